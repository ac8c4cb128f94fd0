"""Collapsed Gibbs sampling of supervised LDA: tokens' topics given the weights, the weights given the topics.

Topics and proportions are integrated out. A token's conditional is LDA's (Murphy 2012, eq. 27.37) times the probability
of the response at the document's mean topic with the token moved, evaluated exactly (``kernels.sweep_responses``): any
kind of response, no augmentation. Given the tokens' topics the weights are those of a regression on qbar with its
prior: they are proposed from Student's t about the mode with the curvature there, and accepted by the ratio of the
densities; the scale of real responses from its law under a flat prior, accepted by the ratio of the priors. Both leave
the posterior as it is, whatever the priors are.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import Distribution

from custom_inference.core.local_inference import Local
from custom_inference.em.surrogate_priors import alike
from custom_inference.families.common.explicit import first_values, log_density_within
from custom_inference.families.common.hyper import with_hyper_parameters
from custom_inference.families.conjugate.dirichlet import Dirichlet
from custom_inference.families.responses.regression import Regression, fit_regression, log_responses
from custom_inference.families.responses.supervised import InUnits, SupervisedRows
from custom_inference.families.topics.chain import LdaChain, TokenList, vector
from custom_inference.families.topics.gibbs import LOCAL_DRAWS, LOCAL_WARMUP, LdaSampler, topic_priors
from custom_inference.gibbs.protocol import Chain, Params
from ppl_models import Data, Model, PriorError, SupervisedLDA
from ppl_models.core.hierarchy import is_function
from ppl_models.core.priors import is_flat, move_prior, value_if_known

if TYPE_CHECKING:
    from custom_inference.families.common.compiled import Ints, Reals, Words

#: Degrees of freedom of proposals; proposals of the weights in a sweep.
_FREEDOM, _PROPOSALS = 6.0, 2


class Value:
    """A global that is a value of the chain's state, under any prior of its support."""

    def __init__(self, model: Model, site: str, start: Tensor | None):
        self.site, self.shape = site, model.shapes[site]
        prior = model.priors[site]
        self.known = None if is_function(prior) else value_if_known(prior)
        if self.known is None:
            self.exchange_prior(prior)
        first = self.known if self.known is not None else start
        first = self.reference[0] if first is None else first
        self.value = first.expand(self.shape).double().clone()

    def exchange_prior(self, prior: Distribution) -> None:
        like = torch.zeros((), dtype=torch.float64)
        moved = move_prior(prior, like)
        self.prior = moved.expand(self.shape[: len(self.shape) - len(prior.event_shape)])
        self.__dict__.pop("reference", None)

    @cached_property
    def reference(self) -> tuple[Tensor, Tensor]:
        """Mean and precision of the Normal that stands for the prior in proposals."""
        return _reference(self.prior)

    def log_prior(self, value: Tensor) -> float:
        return 0.0 if self.known is not None else log_density_within(self.prior, value)

    @property
    def note(self) -> str:
        how = "Metropolis steps from its regression on the topics"
        return f"{self.site} held at its known value" if self.known is not None else f"{self.site} by {how}"


class SupervisedChain(LdaChain):
    """LDA's chain with the weights (and scale) of the responses as values of its state."""

    def __init__(self, model: SupervisedLDA, rows: SupervisedRows, seed: int, start: Params | None, **settings: Any):
        self.model, self.kind, self.likelihood = model, model.response, model.response_likelihood
        self.response = rows.response.double().cpu()
        self.units = InUnits.of(model, self.response)
        self._volume = float(self.units.volume(self.response).sum())
        start = start or {}
        self.weights = Value(model, "response_weight", start.get("response_weight"))
        self.scale = None
        if self.kind == "real":
            unit = self.units.unit.reshape(model.shapes["response_scale"])
            self.scale = Value(model, "response_scale", start.get("response_scale", unit))
        self.accepted, self.tried, self._mode = 0, 0, None
        super().__init__(TokenList.of(rows), model.num_topics, seed=seed, **settings)
        self.length = torch.as_tensor(np.maximum(np.diff(self.tokens.start), 1))[:, None]
        if self._begun:
            self._move_globals()

    @property
    def values(self) -> list[Value]:
        """The globals of the responses."""
        return [self.weights] if self.scale is None else [self.weights, self.scale]

    @property
    def weight(self) -> Tensor:
        """(D, K), in units of the responses about their centre, as all that follows is."""
        return self.units.weights(self.weights.value)

    @property
    def deviation(self) -> Tensor | None:
        """The standard deviations of real responses, (R,)."""
        return None if self.scale is None else self.units.scales(self.scale.value)

    @property
    def qbar(self) -> Tensor:
        return torch.as_tensor(self.document_topic, dtype=torch.float64) / self.length

    def sweep(self) -> None:
        given = self.explicit.value.numpy().T if self.explicit is not None and self._begun else None
        tokens = self.tokens.word, self.topic, self.tokens.start
        sweep_tokens(tokens, self.alpha, self.gamma, (self._word_topic, self._total), given, self, self._rng)
        if self.explicit is not None:
            self.assign(self.topic)
            move = self.explicit.update if self._begun else self.explicit.begin
            move(self._word_counts(), self._generator)
        self._begun = True
        self._move_globals()

    def _move_globals(self) -> None:
        qbar = self.qbar
        if self.weights.known is None:
            law = self._regression(qbar)
            for _ in range(_PROPOSALS):
                self._move_weights(qbar, law)
        if self.scale is not None and self.scale.known is None:
            self._move_scale(qbar)

    def _move_weights(self, qbar: Tensor, law: Regression) -> None:
        chol = torch.linalg.cholesky(law.precision)
        normal = torch.as_tensor(self._generator.standard_normal(len(chol)))
        shrink = np.sqrt(self._generator.chisquare(_FREEDOM) / _FREEDOM)
        step = torch.linalg.solve_triangular(chol.T, normal[:, None], upper=True).squeeze(1) / shrink
        proposed = self.units.back(law.weight + step.view_as(law.weight)).reshape(self.weights.shape)

        def log_density(value: Tensor) -> float:
            flat = self.units.weights(value)
            away = (chol.T @ (flat - law.weight).flatten()).square().sum()
            heavy = 0.5 * (_FREEDOM + len(chol)) * float(torch.log1p(away / _FREEDOM))
            fitted = log_responses(self.likelihood, self.response, qbar @ flat.T, self.deviation)
            return float(fitted.sum()) + self.weights.log_prior(value) + heavy

        ratio = log_density(proposed) - log_density(self.weights.value)
        self.tried += 1
        if np.log(self._generator.random()) < ratio:
            self.weights.value = proposed
            self.accepted += 1

    def _regression(self, qbar: Tensor) -> Regression:
        """Return the mode and curvature that weights are proposed by: a function of the topics (and the scale)
        alone."""
        centre, precision = self.units.prior(*(one.expand(self.weights.shape) for one in self.weights.reference))
        start = centre if self._mode is None else self._mode
        found = fit_regression(self.likelihood, self.response, qbar, centre, precision, start, scale=self.deviation)
        self._mode = found.weight
        return found

    def _move_scale(self, qbar: Tensor) -> None:
        assert self.scale is not None
        gap = self.response - qbar @ self.weight.T
        seen = ~torch.isnan(gap)
        squares, number = torch.nan_to_num(gap).square().sum(0), seen.sum(0)
        shape = ((number - 1) / 2).clamp(min=0.5).numpy()
        drawn = torch.as_tensor(self._generator.standard_gamma(shape)).clamp(min=1e-300)
        proposed = (self.units.unit * (squares / 2 / drawn).sqrt().clamp(min=1e-12)).reshape(self.scale.shape)
        ratio = self.scale.log_prior(proposed) - self.scale.log_prior(self.scale.value)
        if np.log(self._generator.random()) < ratio:
            self.scale.value = proposed

    def log_joint(self) -> float:
        """Compute the log joint of LDA plus log p(y | qbar, W), and the log priors of W and of the scale."""
        own = sum(one.log_prior(one.value) for one in self.values)
        fitted = log_responses(self.likelihood, self.response, self.qbar @ self.weight.T, self.deviation)
        return super().log_joint() + float(fitted.sum()) - self._volume + own

    def _values(self) -> Params:
        return super()._values() | {one.site: one.value.clone() for one in self.values}

    def list_sampled(self) -> dict[str, str]:
        return super().list_sampled() | {one.site: one.note for one in self.values}


def sweep_tokens(
    tokens: tuple[Ints, Ints, Ints], alpha: Reals, gamma: Reals, counts: tuple[Ints, Ints], given: Reals | None,
    at: SupervisedChain | _At, rng: Words,
) -> None:  # fmt: skip
    """Run ``kernels.sweep_responses``. at: has ``kind``, ``response``, ``weight`` and ``deviation``."""
    from custom_inference.families.responses import kernels

    fixed = np.zeros((0, len(alpha))) if given is None else np.ascontiguousarray(given, np.float64)
    weight = np.ascontiguousarray(at.weight.numpy(), np.float64)
    scale = np.ones(len(weight)) if at.deviation is None else np.ascontiguousarray(at.deviation.numpy(), np.float64)
    response = np.ascontiguousarray(at.response.numpy(), np.float64)
    parts = fixed, kernels.KINDS.index(at.kind), response, weight, scale
    every: Any = (*tokens, alpha, np.asarray(gamma, np.float64), *counts, *parts, rng)
    kernels.sweep_responses(*every)


def _reference(prior: Distribution) -> tuple[Tensor, Tensor]:
    """Return mean and precision of a Normal that stands for the prior in proposals: its own, or by its quartiles where
    it has none."""
    nothing = torch.full((), torch.nan, dtype=torch.float64)
    try:
        mean, variance = prior.mean.double(), prior.variance.double()
    except NotImplementedError:
        mean, variance = nothing, nothing
    fine = torch.isfinite(mean) & torch.isfinite(variance) & (variance > 0)
    if bool(fine.all()):
        return mean, 1 / variance
    stand: Any = alike(torch.distributions.Normal, prior)
    return torch.where(fine, mean, stand.loc), torch.where(fine, 1 / variance, stand.scale**-2)


class SupervisedSampler(LdaSampler):
    """Chains of :class:`SupervisedChain`."""

    def check(self, model: SupervisedLDA, data: Data) -> None:
        prior = model.priors["response_weight"]
        if not is_function(prior) and is_flat(prior):
            raise PriorError(
                "the prior of 'response_weight' is flat, and so is its posterior for an empty topic; use EM"
            )
        topic_priors(_without_scale(model))

    def chain(self, model: Any, data: Data, seed: int, start: Params | None) -> Chain:
        rows = SupervisedRows.with_responses(model, data)
        alpha, gamma, topics = topic_priors(_without_scale(model))
        given = None if start is None else start["topic"]
        settings: Any = {"alpha": alpha, "gamma": gamma, "given": given, "explicit": topics}
        # Hyper-parameters are moved around the chain, which has priors at values of theirs.
        at = model.at(first_values(model)) if model.has_functions else model
        chain = SupervisedChain(at, rows, seed, start, **settings)
        explicit: Any = {"response_weight": chain.weights} | ({"topic": topics} if topics else {})
        if chain.scale is not None:
            explicit["response_scale"] = chain.scale
        return with_hyper_parameters(model, chain, explicit, seed, start)

    def propose(self, model: Any, data: Data, seed: int) -> Params:
        return super().propose(_without_scale(model), data, seed)

    def local_posterior(self, model: Any, params: Params, data: Data, *, seed: int = 0) -> Local:
        """Sample the locals as for LDA, with the factors of the responses that the data have."""
        rows = SupervisedRows.with_responses(model, data)
        tokens, at = TokenList.of(rows), _At(model, rows, params)
        alpha = vector(Dirichlet.of(model, "topic_proportion", data.x).concentration, model.local_shape[0])
        rng, topic = np.array([seed % 2**64], np.uint64), np.full(len(tokens), -1, np.int32)
        empty = np.zeros((0, 0), np.int32), np.zeros(0, np.int32)
        given, draws = params["topic"].double().cpu().numpy().T, []
        for sweep in range(LOCAL_WARMUP + LOCAL_DRAWS):
            sweep_tokens((tokens.word, topic, tokens.start), alpha, np.ones(1), empty, given, at, rng)
            if sweep >= LOCAL_WARMUP:
                draws.append(torch.as_tensor(alpha + tokens.count_topics(topic, len(alpha))))
        return self.local_of_draws(model, data, torch.stack(draws))


class _At:
    """What the sweeps read of given values of the globals."""

    def __init__(self, model: SupervisedLDA, rows: SupervisedRows, params: Params):
        self.kind, self.response = model.response, rows.response.double()
        units, scale = InUnits.of(model, self.response), params.get("response_scale")
        self.weight = units.weights(params["response_weight"].double())
        self.deviation = units.scales(None if scale is None else scale.double())


def _without_scale(model: SupervisedLDA) -> Any:
    """Return the model with a plain prior of the scale, on which the topics do not depend."""
    if model.response != "real" or is_function(model.priors["response_scale"]):
        return model
    return model.with_priors(response_scale=dist.Gamma(1.0, 1.0))
