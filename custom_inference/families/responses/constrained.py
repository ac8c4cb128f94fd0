"""Prediction-constrained training of supervised LDA: topics from which the words alone predict the response.

The generative model explains the words and the responses of the training documents together; the topics of their tokens
then know the responses, those of new documents do not, and predictions suffer. Prediction-constrained training (Hughes
et al., *Semi-supervised prediction-constrained topic models*, AISTATS 2018) climbs

    log p(x, q) + c sum_n log p(y_n | eta = W q0_n),      q0_n the proportions inferred from the words x_n alone

instead, c the ``weight``: a response that is seen c times, but only through what the words say. This is a sampler-like
search for such topics, neither a sampler of a posterior nor a bound. In every sweep

    1. q0 is folded in at the present topics, a few steps of g <- alpha + sum_v n_v c_v on from the last sweep;
    2. W is the mode of the regression of the responses on q0 (``regression``), of real responses with their scale;
    3. tokens' topics are drawn from LDA's conditional (Murphy 2012, eq. 27.37) times
       exp(c sum_r d log p(y_n | eta) / d eta_r  w_rk / L_n),
       which is what the response gains, to first order, where one of the L_n tokens of the document moves to topic k;
       of real responses, whose derivative is not bounded, at the eta that the moves of all tokens would lead to:
       residuals (I + c Lambda V_n / L_n)^-1 (y_n - eta), V_n = Cov_q0(w), Lambda the curvature of -log p.

``Fit.params`` holds the topics averaged over the last sweeps and the W fitted to the proportions there, ``Fit.draws``
the topics and W of these sweeps themselves, which predictions are averaged over: states of the search, no
posterior draws.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from custom_inference.core.align import Alignment, match_components
from custom_inference.core.ended import Ended
from custom_inference.core.exchangeable import exchangeable
from custom_inference.core.fit import Fit
from custom_inference.core.local_inference import Local, LocalSolver
from custom_inference.core.method import Call, Method
from custom_inference.core.posteriors import DirichletPosterior
from custom_inference.core.progress import Progress
from custom_inference.core.settings import require_whole
from custom_inference.families.conjugate.dirichlet import Dirichlet
from custom_inference.families.conjugate.normal import Normal
from custom_inference.families.responses.regression import fit_regression, log_responses, residuals
from custom_inference.families.responses.supervised import InUnits, SupervisedDirichlet, SupervisedRows
from custom_inference.families.rows.documents import DocumentRows
from custom_inference.families.topics.chain import LdaChain, TokenList
from custom_inference.gibbs.protocol import no_bound
from ppl_models import Data, MethodError, Model, SupervisedLDA

#: What the name of the objective of these fits is.
OBJECTIVE = "log p(x, q) + weight log p(response | x)"
#: Steps of the first fold-in and of the last; a document is done when nothing moves by more than this part of it.
_FIRST, _LAST, _TOLERANCE = 20, 100, 1e-4
#: Logarithms of factors are cut here.
_LARGEST = 8.0
#: Sweeps between steps of the concentration and values of the objective, and between the states that are kept.
_LEARN, _THIN = 5, 2
#: Between the seeds of chains.
_APART = 7919
#: Noise of real responses is at least this part of their spread.
_LEAST_NOISE = 1e-3


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


@dataclass(frozen=True, kw_only=True)
class PredictionConstrained(Method):
    """weight: c, how much the responses count; choose it by cross-validation, among 20, 50, 100, 200.

    chains: searches, each from a start of its own; predictions are averaged over their states.
    sweeps: passes of each over all tokens. begin: the one from which on responses count: topics come first. average: so
        many of the last sweeps, every second of which is kept and averaged.
    learn: learn the concentration of the proportions. steps: of the fold-in between sweeps.

    ``fit.predict`` folds new documents in, as the training documents were. ``Fit.elbo`` is the objective after every
    fifth sweep, a number that fluctuates and is no bound.
    """

    weight: float = 100.0
    chains: int = 2
    sweeps: int = 60
    begin: int = 15
    average: int = 30
    learn: bool = True
    steps: int = 3

    def __post_init__(self) -> None:
        for name, least in {"chains": 1, "sweeps": 2, "begin": 1, "average": 1, "steps": 1}.items():
            require_whole(name, getattr(self, name), least)
        if not self.weight >= 0:
            raise MethodError(f"weight = {self.weight}, expected a number of at least 0")
        if self.begin >= self.sweeps or self.average > self.sweeps:
            found = f"begin = {self.begin}, average = {self.average} and sweeps = {self.sweeps}"
            raise MethodError(f"{found}; expected begin below sweeps, and average at most that")

    def check(self, model: Model) -> None:
        """Raises MethodError for other models, and for priors that are not Dirichlet or, of the weights, Normal."""
        if not isinstance(model, SupervisedLDA):
            raise MethodError(f"{type(model).__name__}: prediction-constrained training is for SupervisedLDA")
        like = torch.zeros((), dtype=torch.float64)
        Dirichlet.of(model, "topic_proportion", like)
        Dirichlet.of(model, "topic", like)
        Normal.of(model, "response_weight", model.shapes["response_weight"], like)

    def _fit(self, model: Any, data: Data, call: Call) -> Fit:
        """``init`` gives the topics to start from. Ctrl-C keeps what was averaged so far."""
        here, start, seeds = data.to(device="cpu"), call.start(model), range(self.chains)
        runs = [_ConstrainedRun(self, model, here, call.seed + _APART * number, start) for number in seeds]
        with Progress(self.chains * self.sweeps, self.name, enabled=call.progress) as bar, torch.no_grad():
            try:
                for number, run in itertools.product(range(self.sweeps), runs):
                    run.sweep(number)
                    bar.advance()
            except KeyboardInterrupt:
                if any(run.found is None for run in runs):
                    raise
                return self._result(model, data, runs, call.seed, Ended.INTERRUPTED)
            return self._result(model, data, runs, call.seed, Ended.COMPLETE)

    def _result(self, model: SupervisedLDA, data: Data, runs: list[_ConstrainedRun], seed: int, ended: Ended) -> Fit:
        first, length = runs[0], min(len(run.kept) for run in runs)
        for run in runs:
            run.kept = run.kept[:length] if length else [run.values(run.topics())]
        sets = exchangeable(model)
        for run in runs[1:]:
            run.relabel(match_components(first.mean_topic(), run.mean_topic(), within=sets), model.dims)
        alpha = torch.stack([torch.as_tensor(run.chain.alpha)[run.order] for run in runs]).mean(0)
        params, found = first.params(alpha)
        how = "interrupted after" if ended is Ended.INTERRUPTED else "ended after"
        parts = f"{how} {first.done} sweeps of {len(runs)} chains; {len(first.kept)} states of each kept"
        draws = {site: torch.stack([torch.stack([one[site] for one in run.kept]) for run in runs]) for site in params}
        posterior = DirichletPosterior(torch.as_tensor(found).to(data.x))
        return Fit(
            model=model.with_concentration(alpha=alpha) if self.learn else model,
            params=params,
            elbo=torch.tensor(first.trace, dtype=torch.float64),
            bound_name=OBJECTIVE,
            objective="estimate",
            status=f"{parts}; trained to predict, not a posterior",
            ended=ended,
            method=self,
            data=data,
            seed=seed,
            local=Local(posterior, no_bound(len(data), data.x), what="estimate", family=self.name),
            draws=draws,
            solver=LocalSolver(engine=SupervisedDirichlet()),
            details={"weight": self.weight},
        )


@dataclass
class _ConstrainedRun:
    """The state of one search."""

    settings: PredictionConstrained
    model: SupervisedLDA
    data: Data
    seed: int
    start: dict[str, Tensor] | None
    trace: list[float] = field(default_factory=list)
    kept: list[dict[str, Tensor]] = field(default_factory=list)

    def __post_init__(self) -> None:
        model, like = self.model, torch.zeros((), dtype=torch.float64)
        self.rows = SupervisedRows.with_responses(model, self.data)
        alpha = Dirichlet.of(model, "topic_proportion", like).concentration.expand(model.num_topics)
        gamma = Dirichlet.of(model, "topic", like).concentration
        self.gamma = gamma.mean(0) if gamma.ndim > 1 else gamma
        given = None if self.start is None else self.start["topic"].double().cpu()
        self.chain = WeightedChain(TokenList.of(self.rows), model.num_topics, alpha, self.gamma, self.seed, given=given)
        self.y, self.likelihood = self.rows.response.double(), model.response_likelihood
        self.units = InUnits.of(model, self.y)
        prior = Normal.of(model, "response_weight", model.shapes["response_weight"], like)
        self.centre, self.precision = self.units.prior(*prior)
        self.weight, self.scale = self.centre.clone(), None
        if model.response == "real":
            self.spread = _deviations(self.y)
            self.scale = self.spread
        self.done, self.found, self.order = 0, None, list(range(model.num_topics))

    def topics(self) -> np.ndarray:
        """Return the topics' conditional means, (K, V)."""
        counts = self.chain.word_topic.T + self.chain.gamma
        return counts / counts.sum(1, keepdims=True)

    def sweep(self, number: int) -> None:
        settings, chain = self.settings, self.chain
        chain.sweep()
        if settings.learn and number >= settings.begin // 2 and number % _LEARN == 0:
            chain.learn_proportions()
        self.done, gain = number + 1, 0.0
        if self.done >= settings.begin:
            steps = _FIRST if self.found is None else settings.steps
            self.found = fold_in_documents(self.rows, self.topics(), chain.alpha, self.found, steps)
            q = shares(self.found)
            eta = self.regress(q, steps=2)
            chain.log_factor = self._pull(q, eta) @ self.weight
            gain = log_responses(self.likelihood, self.y, eta, self.scale) - self.units.volume(self.y)
            gain = settings.weight * float(gain.sum())
            if self.done > settings.sweeps - settings.average and (settings.sweeps - self.done) % _THIN == 0:
                self.kept.append(self.values(self.topics()))
        if self.done % _LEARN == 0:
            self.trace.append(chain.log_joint() + gain)

    def _pull(self, q: Tensor, eta: Tensor) -> Tensor:
        """Compute c / L_n times d log p(y_n | eta) / d eta, (N, D): of real responses where eta is after the tokens'
        moves."""
        each = self.settings.weight / self.rows.lengths.clamp(min=1)
        slope = residuals(self.likelihood, self.y, eta, self.scale)
        if self.scale is None:
            return each[:, None] * slope
        # All tokens move at once, eta by about V (c / L) slope, V the covariance of the weights under q.
        v = torch.einsum("nk,rk,sk->nrs", q, self.weight, self.weight) - eta[:, :, None] * eta[:, None, :]
        curvature = torch.where(torch.isnan(self.y), 0.0, self.scale.pow(-2))
        system = torch.eye(v.shape[-1]).to(v) + each[:, None, None] * curvature[:, :, None] * v
        return each[:, None] * torch.linalg.solve(system, slope[:, :, None]).squeeze(-1)

    def values(self, topic: np.ndarray | Tensor) -> dict[str, Tensor]:
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

    def params(self, alpha: Tensor) -> tuple[dict[str, Tensor], np.ndarray]:
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
