"""Tempered EM for PLSA and LDA by points: as smooth responsibilities as predict held-out tokens best.

Hofmann, *Probabilistic latent semantic indexing*, SIGIR 1999, section 3.5, and UAI 1999, section 3. Maximum likelihood
overfits: with a proportion for every document there are as many parameters as one likes. At an inverse temperature
beta <= 1 the E step is P(z | d, w) proportional to P(z) [P(d | z) P(w | z)]^beta (``map``), and beta is found
by a part of every document's tokens that is held out:

    1. beta = 1: EM until the perplexity of the held-out tokens stops falling (early stopping).
    2. beta <- eta beta, going on from the best state so far, as long as the perplexity falls.
    3. Stop where lowering beta gains nothing.

The held-out tokens are predicted by the proportions that the document's other tokens give, folded in: the perplexity is
exp(-sum log sum_k theta_dk b_kv / their number), in natural logarithms and per token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from custom_inference.core.ended import Ended
from custom_inference.core.engine import POINT, EStep, Params
from custom_inference.core.fit import Fit
from custom_inference.core.local_inference import Local, LocalSolver
from custom_inference.core.method import Call, Method
from custom_inference.core.progress import Progress
from custom_inference.core.registry import engine_for, engines_of, proposals_for
from custom_inference.core.settings import require_between, require_whole
from custom_inference.em.any_prior import complete_state, describe_priors, for_starts, with_any_prior
from custom_inference.families.rows.documents import DocumentRows
from custom_inference.families.topics.map import LdaMap
from ppl_models import Data, DataError, MethodError, Model
from ppl_models.data import sparse as _sparse
from ppl_models.distributions import Tokens


@dataclass(frozen=True, kw_only=True)
class TemperedEM(Method):
    """held_out: the share of every document's tokens that beta and the number of iterations are found by.

    eta: what beta is multiplied by. patience: how many iterations in a row may gain nothing before beta is lowered.
    max_iterations: at most, over all beta. tolerance: gains of log perplexity that count.
    refit: repeat the iterations that led to the best state, from the same start, with all tokens; False keeps that
        state and only folds the held-out tokens in.
    informed: start from sampled topics; False: from random ones.

    ``Fit.details`` holds "beta" and "held_out_perplexity" of every iteration, "best_beta", "best_perplexity", and the
    betas of the iterations that led there, "path". New documents are folded in at the best beta.
    """

    held_out: float = 0.1
    eta: float = 0.9
    patience: int = 3
    max_iterations: int = 500
    tolerance: float = 1e-4
    refit: bool = True
    informed: bool = True

    def __post_init__(self) -> None:
        for name in ("held_out", "eta"):
            require_between(name, getattr(self, name), "(0, 1)")
        require_whole("patience", self.patience)
        require_whole("max_iterations", self.max_iterations)
        require_between("tolerance", self.tolerance, "[0, inf)")

    @property
    def name(self) -> str:
        return "TemperedEM"

    def check(self, model: Model) -> None:
        """Raises MethodError for models other than those of documents whose proportions are estimated as points."""
        if engines_of(model).get(POINT) is not LdaMap:
            raise MethodError(f"tempered EM is for models of documents such as PLSA, not {type(model).__name__}")

    def _fit(self, model: Model, data: Data, call: Call) -> Fit:
        """Fit from the topics that ``init`` gives, if any. Ctrl-C keeps the best state so far."""
        engine: Any = with_any_prior(LdaMap(sweeps=1), model)
        rows, given = engine.rows(model, data), call.start(model)
        engine.check(model, rows)
        generator = torch.Generator().manual_seed(call.seed)
        observed, hidden = split_tokens(rows, self.held_out, generator)
        with Progress(None, self.name, enabled=call.progress) as bar, torch.no_grad():
            if given is not None:
                params = {"topic": given["topic"].to(rows.like)}
            elif self.informed:
                params = proposals_for(model, engine).propose(for_starts(engine, model), observed, generator, 0)
            else:
                params = engine.initial(model, observed, generator)
            start = _TemperedState(complete_state(engine, model, params), None, engine)
            path = _BetaSearch(self, model, observed, hidden, start)
            path.follow(bar)
            try:
                return self._result(data, rows, start, path, call.seed)
            except KeyboardInterrupt:  # the best state is there all the same
                path.interrupted = True
                return self._result(data, rows, start, path, call.seed)

    def _result(self, data: Data, rows: DocumentRows, start: _TemperedState, path: _BetaSearch, seed: int) -> Fit:
        model, best = path.model, path.best
        if self.refit and not path.interrupted:
            best = start
            for beta in path.best.betas:
                best = best.iterate(model, rows, beta)
        solver = LocalSolver(engine=temper_engine(best.engine, rows, best.locals, best.engine.temper))
        local = (replace(solver, max_iterations=1) if path.interrupted else solver).solve(model, best.params, data)
        step = EStep({}, {"topic_proportion": local.posterior.mean}, local.bound)
        return Fit(
            model=model,
            params={**best.params, **best.engine.point_locals(step)},
            elbo=torch.tensor(best.trace, dtype=torch.float64),
            bound_name=POINT,
            objective="log joint",
            prior_term=best.prior_term,
            status=path.outcome + describe_priors(best.engine, POINT, model),
            ended=path.ended,
            method=self,
            data=data,
            seed=seed,
            local=local,
            solver=solver,
            details=path.details,
        )

    def local_posterior(self, model: Model, params: dict[str, Tensor], data: Data, *, seed: int = 0) -> Local:
        """Fold documents in at beta = 1: a beta belongs to a fit."""
        with torch.no_grad():
            return LocalSolver(engine=engine_for(model, POINT)).solve(model, params, data, seed=seed)


@dataclass
class _TemperedState:
    """The state of the search for beta: topics, proportions, the engine that led here, the betas and objectives.

    prior_term: the part of the last objective that is of the priors."""

    params: Params
    locals: dict[str, Tensor] | None
    engine: Any  # an ``LdaMap``, or one that is adapted to any priors
    betas: list[float] = field(default_factory=list)
    trace: list[float] = field(default_factory=list)
    prior_term: float = 0.0

    def iterate(self, model: Model, rows: DocumentRows, beta: float) -> _TemperedState:
        """Make one iteration at this beta."""
        engine = temper_engine(self.engine, rows, self.locals, beta)
        step = engine.e_step(model, self.params, rows, self.locals)
        trace = [*self.trace, engine.objective_at(model, self.params, step.bound)]
        params, prior = engine.m_step(model, self.params, step, rows), engine.prior_term_at(model, self.params)
        return _TemperedState(params, step.locals, engine, [*self.betas, beta], trace, prior)


@dataclass
class _BetaSearch:
    """The search for beta on the observed tokens, judged by the hidden ones."""

    settings: TemperedEM
    model: Model
    observed: DocumentRows
    hidden: DocumentRows
    best: _TemperedState
    tried: list[float] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    interrupted: bool = False

    def follow(self, bar: Progress) -> None:
        beta, state, idle, gained = 1.0, self.best, 0, False
        lowest, eta = math.inf, self.settings.eta
        try:
            while len(self.scores) < self.settings.max_iterations:
                state = state.iterate(self.model, self.observed, beta)
                score = self._score(state)
                self.tried.append(beta)
                self.scores.append(score)
                bar.advance(-score)
                if score < lowest - self.settings.tolerance:
                    lowest, idle, gained, self.best = score, 0, True, state
                    continue
                idle += 1
                if idle < self.settings.patience:
                    continue
                if not gained:
                    break
                beta, state, idle, gained = beta * eta, self.best, 0, False
        except KeyboardInterrupt:
            if self.best.locals is None:
                raise
            self.interrupted = True

    def _score(self, state: _TemperedState) -> float:
        """Compute the log perplexity of the hidden tokens."""
        assert state.locals is not None
        tokens = Tokens(state.locals["topic_proportion"], state.params["topic"])
        return -float(tokens.log_prob(self.hidden.counts).double().sum() / self.hidden.lengths.double().sum())

    @property
    def ended(self) -> Ended:
        if self.interrupted:
            return Ended.INTERRUPTED
        return Ended.LIMIT if len(self.scores) == self.settings.max_iterations else Ended.CONVERGED

    @property
    def outcome(self) -> str:
        beta, count = self.best.betas[-1], len(self.scores)
        found = f"beta = {beta:.3g}, held-out perplexity {math.exp(min(self.scores)):.4g}"
        if self.interrupted:
            return f"interrupted after {count} iterations; this is the best state so far: {found}"
        if self.ended is Ended.LIMIT:
            return f"stopped at the limit of {count} iterations; the best state: {found}"
        return f"lowering beta gained no more after {count} iterations; the best state: {found}"

    @property
    def details(self) -> dict[str, Any]:
        perplexity = [math.exp(score) for score in self.scores]
        found = {"best_beta": self.best.betas[-1], "best_perplexity": min(perplexity), "path": self.best.betas}
        return {"beta": self.tried, "held_out_perplexity": perplexity, **found}


def temper_engine(engine: Any, rows: DocumentRows, locals_: Mapping[str, Tensor] | None, beta: float) -> Any:
    """The engine at this beta, with P(z) = sum_d L_d P(z | d) / sum_d L_d of proportions so far; equal without."""
    if beta == 1.0:
        return engine.wrap(replace(engine.plain, temper=1.0, share=()))
    if locals_ is None:
        raise MethodError("a beta below 1 needs proportions to start from")
    weight = rows.lengths @ locals_["topic_proportion"]
    return engine.wrap(replace(engine.plain, temper=beta, share=tuple((weight / weight.sum()).tolist())))


def split_tokens(rows: DocumentRows, share: float, generator: torch.Generator) -> tuple[DocumentRows, DocumentRows]:
    """Split tokens into (observed, hidden): ``share`` of every document's tokens, rounded, is drawn without
    replacement. Raises DataError where no document is long enough to lose a token."""
    counts, lengths = rows.counts, rows.lengths.long().cpu()
    random = torch.rand(int(lengths.sum()), generator=generator, dtype=torch.float64)
    hidden = rows.draw_tokens((share * lengths).round(), random.numpy())
    if not bool(hidden.any()):
        found = f"no document is long enough to hold {share:g} of its tokens out (the longest: {int(lengths.max())})"
        raise DataError(found, axis="document", expected="longer documents, or a larger held_out")
    observed, held = (_sparse.with_values(counts, values) for values in (counts.values() - hidden, hidden))
    return replace(rows, counts=observed), replace(rows, counts=held)
