"""Collapsed Gibbs sampling of Dirichlet-multinomial regression: the topics of the tokens, and the weights' values.

Given the topics of the tokens, the weights have the likelihood of n_ik tokens in documents of concentrations
alpha_i = exp(c + W'(u_i - m)) (``topics.learned.log_prevalence``): each number moves by slice steps on it, with its
prior. Of one topic's number only that topic's alpha and the sums A_i change. Values of W are moved in units of the
covariates, W_p s_p (``ppl_models.core.scales``).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import gammaln
from torch import Tensor

from custom_inference.core.local_inference import Local
from custom_inference.em.surrogate_priors import inside
from custom_inference.families.common.explicit import dependent_sites, log_density_within
from custom_inference.families.common.slices import slice_step
from custom_inference.families.conjugate.dirichlet import normalise
from custom_inference.families.labels.regression import SITES, CovariateDocumentRows
from custom_inference.families.topics.chain import LdaChain, TokenList
from custom_inference.families.topics.gibbs import LdaSampler, add_hyper_parameters, local_draws, words_prior
from custom_inference.families.topics.learned import START_ALPHA
from custom_inference.families.topics.propose import propose_topics
from custom_inference.gibbs.protocol import Chain, Params
from ppl_models import Data, DirichletMultinomialRegression, PriorError
from ppl_models.core.priors import support_of
from ppl_models.dirichlet_multinomial_regression import STRONGEST, WEAKEST, concentrations

#: Sweeps over the tokens before the weights first move, and from one move of theirs to the next.
_SETTLE, _EVERY = 10, 3
#: The width of a slice's first interval.
_WIDTH = 0.5


class RegressionChain(LdaChain):
    """LDA's chain at concentrations that weights, values of the state, give every document.

    inputs: (N, P + 1), the first of which is 1, the others covariates in their units. weight: (P + 1, K), c and W s
    below each other.
    """

    def __init__(
        self,
        model: DirichletMultinomialRegression,
        tokens: TokenList,
        covariates: Tensor,
        gamma: Tensor,
        seed: int,
        start: Params,
        **settings: Any,
    ):
        self.model = model
        self._priors = {s: model.prior(s, like=torch.zeros(1).double()) for s in SITES if s in model.unknown_sites}
        given = model.standard(covariates.double())
        self.inputs = torch.cat([given.new_ones(len(given), 1), given], 1).numpy()
        self._unit = model.scale_of_columns(given)[1].unsqueeze(-1)
        self.weight = torch.cat(
            [start["prevalence_bias"].double().unsqueeze(0), start["prevalence_weight"].double() * self._unit]
        ).numpy()
        self._swept, self._settle = 0, settings.pop("settle", _SETTLE)
        super().__init__(tokens, model.num_topics, torch.as_tensor(self._concentration()), gamma, seed, **settings)

    def _concentration(self) -> NDArray[np.float64]:
        return _concentrations(self.inputs @ self.weight)

    def sweep(self) -> None:
        super().sweep()
        self._swept += 1
        if self._swept > self._settle and self._swept % _EVERY == 0:
            self.move_weights()

    def move_weights(self) -> None:
        """Take a slice step of every number of the weights that is not known."""
        counts = self.document_topic.astype(np.float64)
        length = counts.sum(1)
        free = [site in self.model.unknown_sites for site in SITES]
        rows = [p for p in range(len(self.weight)) if free[min(p, 1)]]
        for k in range(self.num_topics):
            for p in rows:
                step = slice_step(self._on_a_line(p, k, counts, length), torch.tensor([_WIDTH]), self._generator)
                self.weight[p, k] += float(step)
                self.alpha = self._concentration()

    def _on_a_line(self, p: int, k: int, counts: NDArray[np.float64], length: NDArray[np.float64]) -> Any:
        eta = self.inputs @ self.weight
        other_topics, alone = np.delete(eta, k, 1), self.alpha.sum(1) - self.alpha[:, k]
        free = not other_topics.size or other_topics.max() <= STRONGEST

        def density(offset: Tensor) -> Tensor:
            own = eta[:, k] + self.inputs[:, p] * float(offset)
            if free and own.max() <= STRONGEST:
                alpha, tokens, others = np.exp(own.clip(min=WEAKEST))[:, None], counts[:, [k]], alone
            else:  # where one is at its limit the others of its document move too
                alpha = _concentrations(np.insert(other_topics, k, own, 1))
                tokens, others = counts, 0.0
            total = others + alpha.sum(1)
            value = gammaln(total) - gammaln(total + length) + (gammaln(alpha + tokens) - gammaln(alpha)).sum(1)
            weight = self.weight.copy()
            weight[p, k] += float(offset)
            found = float(value.sum()) + self._log_prior(weight)
            return torch.tensor([found if np.isfinite(found) else -np.inf], dtype=torch.float64)

        return density

    def _log_prior(self, weight: NDArray[np.float64]) -> float:
        sites = self._sites(weight)
        return sum(log_density_within(prior, sites[site]) for site, prior in self._priors.items())

    def _sites(self, weight: NDArray[np.float64]) -> Params:
        found = torch.as_tensor(weight)
        return {"prevalence_bias": found[0], "prevalence_weight": found[1:] / self._unit}

    def _values(self) -> Params:
        return super()._values() | self._sites(self.weight.copy())

    def list_sampled(self) -> dict[str, str]:
        own = {site: f"{site} by slice steps" for site in SITES if site in self.model.unknown_sites}
        return super().list_sampled() | own

    def log_joint(self) -> float:
        """Compute the log joint of LDA plus the log prior density of the weights."""
        return super().log_joint() + self._log_prior(self.weight)


class RegressionSampler(LdaSampler):
    """Chains of :class:`RegressionChain`."""

    learns = False

    def check(self, model: DirichletMultinomialRegression, data: Data) -> None:
        """Raises PriorError for priors of the weights that are functions."""
        dependent = [site for site in dependent_sites(model) if site in SITES]
        if dependent:
            raise PriorError(f"collapsed Gibbs takes no prior of '{dependent[0]}' that is a function; use NUTS")
        words_prior(model)

    def chain(self, model: DirichletMultinomialRegression, data: Data, seed: int, start: Params | None) -> Chain:
        rows, (_, gamma, explicit) = CovariateDocumentRows.read(model, data), words_prior(model)
        at = start or {}
        weights = {**_start_as_lda(model), **{site: at[site] for site in SITES if site in at}}
        weights = {site: inside(value, support_of(model.priors[site])) for site, value in weights.items()}
        weights |= {site: value for site, value in model.known.items() if site in SITES}
        settings: Any = {"given": at.get("topic"), "explicit": explicit}
        chain = RegressionChain(model, TokenList.of(rows), rows.covariates, gamma, seed, weights, **settings)
        return add_hyper_parameters(model, chain, seed, start)

    def propose(self, model: DirichletMultinomialRegression, data: Data, seed: int) -> Params:
        gamma = words_prior(model)[1]
        generator = torch.Generator().manual_seed(seed % 2**63)
        alpha = gamma.new_full((model.num_topics,), START_ALPHA)
        counts = propose_topics(CovariateDocumentRows.read(model, data), alpha, gamma, generator)
        return {"topic": normalise(counts.double() + gamma)}

    def local_posterior(
        self, model: DirichletMultinomialRegression, params: Params, data: Data, *, seed: int = 0
    ) -> Local:
        rows = CovariateDocumentRows.read(model, data)
        alpha = model.concentration(params, rows.covariates).double().numpy()
        return self.local_of_draws(model, data, local_draws(rows, alpha, params["topic"], seed))


def _concentrations(eta: NDArray[np.float64]) -> NDArray[np.float64]:
    return concentrations(torch.as_tensor(eta)).numpy()


def _start_as_lda(model: DirichletMultinomialRegression) -> Params:
    bias = torch.full((model.num_topics,), START_ALPHA, dtype=torch.float64).log()
    return {"prevalence_bias": bias, "prevalence_weight": torch.zeros(model.shapes["prevalence_weight"]).double()}
