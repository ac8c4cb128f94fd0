"""One search of prediction-constrained training: the sweeps whose mathematics ``constrained`` states."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from custom_inference.core.align import Alignment
from custom_inference.families.conjugate.dirichlet import Dirichlet, normalise
from custom_inference.families.conjugate.normal import Normal
from custom_inference.families.responses.regression import fit_regression, log_responses, residuals
from custom_inference.families.responses.supervised import InUnits, SupervisedRows
from custom_inference.families.rows.documents import DocumentRows
from custom_inference.families.topics.chain import LdaChain, TokenList
from custom_inference.families.topics.propose import propose_topics
from custom_inference.gibbs.protocol import Learn, Params, may_learn
from ppl_models import Data, SupervisedLDA

#: Steps of the first fold-in and of the last; a document is done when nothing moves by more than this part of it.
_FIRST, _LAST, _TOLERANCE = 20, 100, 1e-4
#: Logarithms of factors are cut here.
_LARGEST = 8.0
#: Sweeps between steps of the concentration and values of the objective, and between the states that are kept.
_LEARN, _THIN = 5, 2
#: Noise of real responses is at least this part of their spread.
_LEAST_NOISE = 1e-3


class Lengths(Protocol):
    """How long a search runs: fields of ``PredictionConstrained``, which explains them."""

    @property
    def sweeps(self) -> int: ...
    @property
    def begin(self) -> int: ...
    @property
    def average(self) -> int: ...
    @property
    def learn(self) -> Learn: ...
    @property
    def steps(self) -> int: ...


class WeightedChain(LdaChain):
    """LDA's chain with a factor on every topic in every document, given by its logarithm (N, K)."""

    log_factor: Tensor | None = None

    def _sweep_integrated(self) -> None:
        from custom_inference.families.responses import kernels

        if self.log_factor is None:
            super()._sweep_integrated()
            return
        factor = np.ones((len(self.log_factor), self._padded), np.float32)
        factor[:, : self.num_topics] = self.log_factor.clamp(-_LARGEST, _LARGEST).exp().numpy()
        alpha = np.zeros(self._padded, np.float32)
        alpha[: self.num_topics] = self.alpha
        tokens, counts = self.tokens, (self._word_topic, self._total, self._rng)
        gamma = self.gamma.astype(np.float32)
        given: Any = (tokens.word, self.topic, tokens.start, alpha, factor, gamma, *counts)
        kernels.sweep_weighted(*given)


def fold_in_documents(
    rows: DocumentRows, topic: ArrayLike, alpha: ArrayLike, start: np.ndarray | None = None, steps: int = _LAST
) -> np.ndarray:
    """Compute g (N, K), alpha and the expected tokens of every topic, from the words alone; topic (K, V). ``start`` is
    changed in place; by default equal shares."""
    from custom_inference.families.responses import kernels

    counts, alpha = rows.counts.cpu(), np.asarray(alpha, np.float32)
    if start is None:
        lengths = rows.lengths.cpu().numpy().astype(np.float32)
        start = lengths[:, None] / np.float32(len(alpha)) + alpha
    parts = counts.crow_indices().numpy(), counts.col_indices().numpy(), counts.values().float().numpy()
    by_word = np.ascontiguousarray(np.asarray(topic, np.float32).T)
    kernels.fold_in(*parts, by_word, alpha, start, steps, np.float32(_TOLERANCE))
    return start


def shares(found: np.ndarray) -> Tensor:
    """Compute q0 (N, K) from g."""
    q = torch.as_tensor(found, dtype=torch.float64)
    return q / q.sum(1, keepdim=True)


def propose_start(model: SupervisedLDA, data: Data, seed: int) -> Params:
    """Propose topics (K, V) of the words alone."""
    rows, like = DocumentRows.of(data), torch.zeros((), dtype=torch.float64)
    alpha = Dirichlet.of(model, "topic_proportion", like).concentration.expand(model.num_topics)
    gamma = Dirichlet.of(model, "topic", like).concentration
    counts = propose_topics(rows, alpha, gamma, torch.Generator().manual_seed(seed % 2**63))
    return {"topic": normalise(counts.double() + gamma)}


@dataclass
class ConstrainedSearch:
    """The state of one search. weight_of_responses: c."""

    settings: Lengths
    weight_of_responses: float
    model: SupervisedLDA
    data: Data
    seed: int
    start: Params
    trace: list[float] = field(default_factory=list)
    kept: list[Params] = field(default_factory=list)

    def __post_init__(self) -> None:
        model, like = self.model, torch.zeros((), dtype=torch.float64)
        self.rows = SupervisedRows.with_responses(model, self.data)
        alpha = Dirichlet.of(model, "topic_proportion", like).concentration.expand(model.num_topics)
        gamma, given = Dirichlet.of(model, "topic", like).concentration, self.start["topic"].double().cpu()
        self.chain = WeightedChain(TokenList.of(self.rows), model.num_topics, alpha, gamma, self.seed, given=given)
        self.y, self.likelihood = self.rows.response.double(), model.response_likelihood
        self.units = InUnits.of(model, self.y)
        prior = Normal.of(model, "response_weight", model.shapes["response_weight"], like)
        self.centre, self.precision = self.units.prior(*prior)
        self.weight, self.scale = self.centre.clone(), None
        if model.response == "real":
            self.spread = _deviations(self.y).clamp(min=_LEAST_NOISE)
            self.scale = self.spread
        self.done, self.found, self.order = 0, None, list(range(model.num_topics))

    def topics(self) -> np.ndarray:
        """Return the topics' conditional means, (K, V)."""
        counts = self.chain.word_topic.T + self.chain.gamma
        return counts / counts.sum(1, keepdims=True)

    def sweep(self, number: int) -> None:
        settings, chain = self.settings, self.chain
        chain.sweep()
        learned = may_learn(settings.learn, self.model, "topic_proportion")
        if learned and number >= settings.begin // 2 and number % _LEARN == 0:
            chain.learn(components=False)
        self.done, gain = number + 1, 0.0
        if self.done >= settings.begin:
            steps = _FIRST if self.found is None else settings.steps
            self.found = fold_in_documents(self.rows, self.topics(), chain.alpha, self.found, steps)
            q = shares(self.found)
            eta = self.regress(q, steps=2)
            chain.log_factor = self._pull(q, eta) @ self.weight
            gain = log_responses(self.likelihood, self.y, eta, self.scale) - self.units.volume(self.y)
            gain = self.weight_of_responses * float(gain.sum())
            if self.done > settings.sweeps - settings.average and (settings.sweeps - self.done) % _THIN == 0:
                self.kept.append(self.values(self.topics()))
        if self.done % _LEARN == 0:
            self.trace.append(chain.log_joint() + gain)

    def _pull(self, q: Tensor, eta: Tensor) -> Tensor:
        """Compute c / L_n times d log p(y_n | eta) / d eta, (N, D): of real responses where eta is after the tokens'
        moves."""
        each = self.weight_of_responses / self.rows.lengths.clamp(min=1)
        slope = residuals(self.likelihood, self.y, eta, self.scale)
        if self.scale is None:
            return each[:, None] * slope
        # All tokens move at once, eta by about V (c / L) slope, V the covariance of the weights under q.
        v = torch.einsum("nk,rk,sk->nrs", q, self.weight, self.weight) - eta[:, :, None] * eta[:, None, :]
        curvature = torch.where(torch.isnan(self.y), 0.0, self.scale.pow(-2))
        system = torch.eye(v.shape[-1]).to(v) + each[:, None, None] * curvature[:, :, None] * v
        return each[:, None] * torch.linalg.solve(system, slope[:, :, None]).squeeze(-1)

    def values(self, topic: np.ndarray | Tensor) -> Params:
        """Return the values of the sites, with these topics (K, V) and the present weights."""
        shapes, like = self.model.shapes, self.data.x
        weight = self.units.back(self.weight).reshape(shapes["response_weight"])
        found = {"topic": torch.as_tensor(topic), "response_weight": weight}
        if self.scale is not None:
            found["response_scale"] = (self.units.unit * self.scale).reshape(shapes["response_scale"])
        return {site: value.to(like) for site, value in found.items()}

    def regress(self, q: Tensor, steps: int = 30) -> Tensor:
        """Fit new weights (and scale); return eta (N, D) there."""
        problem = self.likelihood, self.y, q, self.centre, self.precision, self.weight
        self.weight = fit_regression(*problem, scale=self.scale, steps=steps).weight
        eta = q @ self.weight.T
        if self.scale is not None:
            self.scale = torch.maximum(_deviations(self.y - eta, about_mean=False), _LEAST_NOISE * self.spread)
        return eta

    def mean_topic(self) -> Tensor:
        return torch.stack([one["topic"] for one in self.kept]).mean(0)

    def relabel(self, alignment: Alignment, dims: dict[str, tuple[str, ...]]) -> None:
        """Reorder the topics of what was kept."""
        self.kept = [alignment.apply(one, dims) for one in self.kept]
        self.order = list(alignment.order)

    def params(self, alpha: Tensor) -> tuple[Params, np.ndarray]:
        """Return the mean topics with the weights there, and g of the training documents."""
        topic = self.mean_topic()
        found = fold_in_documents(self.rows, topic, alpha)
        for _ in range(5 if self.scale is not None else 1):
            self.regress(shares(found))
        return self.values(topic), found


def _deviations(y: Tensor, *, about_mean: bool = True) -> Tensor:
    """Compute root mean squares of what is known of every response, (R,)."""
    seen = ~torch.isnan(y)
    number = seen.sum(0).clamp(min=1)
    y = torch.nan_to_num(y)
    mean = y.sum(0) / number if about_mean else 0.0
    return (torch.where(seen, (y - mean).square(), 0.0).sum(0) / number).sqrt()
