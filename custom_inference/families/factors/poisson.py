"""Poisson PCA's engines: Gaussian scores, with weights as points ("variational") or Gaussian too ("bayesian").

Mathematics and derivations are those of :mod:`custom_inference.families.factors.poisson_updates`: an E step is one
Newton step of every row's scores, an M step one of every column's weights and bias, then the best turn of both. The
E step's statistics add up over rows, so that minibatches, blocks on disk and several processes serve.

- "variational": a lower bound on the evidence at the weights, which have the modes of their priors' objective.
- "bayesian": q(c_j) = N(c_j, T_j) of every column, and the precisions of the weights' prior learned, one a component:
  l_k = D / sum_j E[w_jk^2], where superfluous components go to 0 (Bishop, *Variational principal components*, 1999).
  Its objective is an estimate of the bound, since E exp(s'w) of two Gaussian vectors is taken to the first orders.
  Fits begin with points.

The rates are dense whatever the counts are: N D K^2 operations a step, and the rows' (rows, D) arrays in blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from custom_inference.core.engine import Engine, EStep, InitialStep, Objective, Params, Warm
from custom_inference.core.posteriors import GaussianPosterior, LocalPosterior
from custom_inference.core.proposals import Proposals
from custom_inference.core.states import PointsWithLocals
from custom_inference.families.conjugate.normal import Normal
from custom_inference.families.factors.common import span_alike
from custom_inference.families.factors.poisson_rows import PoissonRows, PoissonState, leading_axes, warm_scores
from custom_inference.families.factors.poisson_updates import (
    Columns,
    Globals,
    PoissonScores,
    RowBlock,
    Turn,
    find_turn,
    step_columns,
)
from custom_inference.families.rows.base import BlockSteps
from ppl_models import Data, Model
from ppl_models.core.turns import canonical_turn
from ppl_models.data import sparse

#: Steps of the first E step, which starts at the prior.
_COLD_STEPS = 4
#: Rows that starts are made from, at most.
_START_ROWS = 4096
#: The variance that a point is taken to have as a Gaussian.
_POINT = 1e-12
#: Of more entries a single start is made: its principal components leave little to chance.
_SMALL = 50_000
#: There fits have converged where they gain less than this an entry: what comes later does not predict better.
_SETTLED = 1e-5
#: Of more rows no random start competes with the principal components.
_FEW_ROWS = 500


def _score_prior(model: Model, like: Tensor) -> Normal:
    return Normal.of(model, "score", model.local_shape, like)


@dataclass(frozen=True, kw_only=True)
class PoissonVariational(Proposals, Engine):
    """Gaussian posteriors of the scores, weights and bias as points.

    steps: of Newton's method on the scores, an E step.
    """

    may_lower = True
    tolerance = 1e-2

    steps: int = 1

    name: ClassVar[str] = "variational"
    state: ClassVar[type[PointsWithLocals]] = PoissonState
    extrapolated: ClassVar[tuple[str, ...]] = ("score", "covariance", "number")
    engine = property(lambda self: PoissonVariational(steps=self.steps))  # pyright: ignore
    #: How much shorter M steps are taken: by 1 / (1 + tightness).
    tightness = 0.0

    def rows(self, model: Model, data: Data) -> PoissonRows:
        return PoissonRows.of(data)

    def check(self, model: Model, rows: PoissonRows) -> None:
        """Raises PriorError for priors other than Normal (or flat ones of weight and bias)."""
        for site, shape in model.shapes.items():
            if site in ("weight", "bias"):
                Normal.of(model, site, shape, rows.offset)
        _score_prior(model, rows.offset).require_proper("score")

    def tighten(self, factor: float) -> None:
        tightness = self.tightness * factor
        object.__setattr__(self, "tightness", max(1.0, tightness) if factor > 1 else tightness)

    def from_point(self, model: Model, params: Params, rows: PoissonRows, e_step: InitialStep) -> PoissonState:
        return PoissonState(dict(params))

    # ----- starts -----------------------------------------------------------------------------------------

    def initial(self, model: Model, rows: PoissonRows, generator: torch.Generator) -> PoissonState:
        """Start with small random weights, and the columns' log rates as bias."""
        noise = torch.randn(model.shapes["weight"], generator=generator, dtype=torch.float64)
        return self._start(model, rows, 0.3 * noise.to(rows.offset))

    def propose(self, model: Model, rows: PoissonRows, generator: torch.Generator, attempt: int) -> PoissonState:
        """Start with half the leading principal components of the Pearson residuals at one rate a column; later starts
        are random."""
        if attempt > 0:
            return self.initial(model, rows, generator)
        if len(rows) > _START_ROWS:
            rows = rows.select(torch.randperm(len(rows), generator=generator)[:_START_ROWS])
        counts, size = rows.counts, model.shapes["weight"][0]
        total = counts.x.sum(1) / counts.x.sum().clamp(min=1)
        expected = torch.outer(total, counts.x.sum(0) + 0.5)
        residual = (counts.x - expected) / (expected + 0.1).sqrt()
        if counts.observed is not None:
            residual = residual * counts.observed
        return self._start(model, rows, 0.5 * leading_axes(residual, size, generator))

    def _start(self, model: Model, rows: PoissonRows, weight: Tensor) -> PoissonState:
        mean, _ = Normal.of(model, "weight", model.shapes["weight"], weight)
        x, offset = rows.like, rows.offset
        if rows.observed is None:
            exposure = offset.exp().sum().expand(x.shape[1])
        else:
            exposure = offset.exp() @ rows.observed
        bias = torch.log((sparse.column_sums(x) + 0.5) / exposure.clamp(min=1e-6))
        return PoissonState({"weight": mean + weight * (mean == 0), "bias": bias})

    def at_random(self, attempt: int, num_rows: int) -> bool:
        return attempt > 0

    def search_size(self, model: Model, num_rows: int) -> tuple[int, int]:
        """The principal components, on all rows; with random starts beside them where the data are small."""
        return 3 if num_rows * model.shapes["bias"][0] <= _SMALL else 1, num_rows

    def random_starts(self, model: Model, num_rows: int) -> int:
        return super().random_starts(model, num_rows) if num_rows <= _FEW_ROWS else 0

    def suggest_tolerance(self, model: Model, num_rows: int) -> float:
        features = model.shapes["bias"][0]
        return 1e-5 if num_rows * features <= _SMALL else max(1e-5, _SETTLED * features)

    def same_solution(self, model: Model, first: PoissonState, second: PoissonState) -> bool:
        return span_alike(first.sites["weight"], second.sites["weight"])

    def finishing(self) -> Engine:
        return self

    # ----- steps ------------------------------------------------------------------------------------------

    def e_step(
        self,
        model: Model,
        state: PoissonState | Params,
        rows: PoissonRows,
        warm: Warm = None,
        *,
        temperature=1.0,
        generator=None,
    ) -> EStep:
        state = PoissonState.read(state)
        at, prior, steps = state.at, _score_prior(model, rows.offset), BlockSteps()
        number = state.locals.get("number", rows.offset.new_zeros(1))
        for place, part in rows.blocks():
            block = RowBlock(part.counts, at, prior, temperature)
            start = PoissonScores.at(prior, len(part)) if warm is None else warm_scores(warm, place, state)
            row = block.row(start)
            for _ in range(self.steps if warm else max(self.steps, _COLD_STEPS)):
                row = block.step(row)
            bound = row.bound + block.constant() - temperature * part.log_factorials
            kept = {"score": row.q.mean, "covariance": row.q.covariance, "number": number.expand(len(part))}
            steps.add(block.sums(row), bound, **kept)
        return steps.join()

    def m_step(self, model: Model, state: PoissonState | Params, step: EStep, rows: PoissonRows) -> PoissonState:
        state = PoissonState.read(state)
        at = self._before(state.at)
        new = step_columns(step.statistics, at, self._columns(model, state, at), 1 / (1 + self.tightness))
        turn = self._turn(model, step, new)
        new, kept = turn.globals(new), {"matrix": turn.matrix, "shift": turn.shift}
        kept["number"] = state.locals.get("number", new.bias.new_zeros(1)) + 1
        if new.spread is not None:
            kept |= {"spread": new.spread, "precision": self._learn_precisions(model, state, new)}
        return replace(state, sites={**state.sites, "weight": new.weight, "bias": new.bias}, locals=kept)

    def _before(self, at: Globals) -> Globals:
        return at

    def _columns(self, model: Model, state: PoissonState, at: Globals) -> Columns:
        weight, bias = (Normal.of(model, site, model.shapes[site], at.bias) for site in ("weight", "bias"))
        mean, precision = (torch.cat([one.T, other[:, None]], 1) for one, other in zip(weight, bias, strict=True))
        if "precision" in state.locals:
            precision[:, :-1] = state.locals["precision"]
        return Columns(mean, precision)

    def _turn(self, model: Model, step: EStep, at: Globals) -> Turn:
        """Find the best rotation of the components that their priors do not tell apart."""
        alike, sums = self._alike(model, at.bias), step.statistics
        index = alike.nonzero().flatten()
        if not len(index):
            return Turn(torch.eye(len(alike)).to(at.bias), at.bias.new_zeros(len(alike)))
        both = torch.cat([index, index.new_tensor([len(alike)])])
        spread = None if at.spread is None else at.spread[:, both[:, None], both]
        part = {"rows": sums["rows"], "first": sums["first"][index], "second": sums["second"][index[:, None], index]}
        chosen, score = Globals(at.weight[index], at.bias, spread), _score_prior(model, at.bias)
        weight = None if spread is not None else Normal.of(model, "weight", model.shapes["weight"], at.bias).precision
        bias = Normal.of(model, "bias", model.shapes["bias"], at.bias)
        each = None if weight is None else weight[index[0], 0]
        return find_turn(part, chosen, score.precision[index[0]], each, bias).within(alike)

    def _alike(self, model: Model, like: Tensor) -> Tensor:
        """Tell which components have the priors of the first one whose weights and scores have mean 0, (K,)."""
        mean, precision = Normal.of(model, "weight", model.shapes["weight"], like)
        score, each = _score_prior(model, like), precision[:, 0]
        central = (mean == 0).all(1) & (precision == precision[:, :1]).all(1) & (each > 0) & (score.mean == 0)
        first = central.nonzero().flatten()[:1]
        same = (each == each[first]) & (score.precision == score.precision[first]) if len(first) else central
        return central & same

    def _learn_precisions(self, model: Model, state: PoissonState, at: Globals) -> Tensor:
        """Return the precisions (K,) of the weights' prior."""
        raise NotImplementedError

    def _standard(self, state: PoissonState, weight: Tensor) -> Tensor:
        return canonical_turn(weight)

    def posterior(self, model: Model, state: PoissonState | Params, rows: PoissonRows, step: EStep) -> LocalPosterior:
        return GaussianPosterior(step.locals["score"], step.locals["covariance"])

    def canonical(
        self, model: Model, params: PoissonState | Params, locals_: Params
    ) -> tuple[PoissonState | Params, Params]:
        """Rotate to orthogonal rows of the weight, the longest first, the largest entry of each positive, if the priors
        allow."""
        state, sites = PoissonState.read(params), {"weight": model.shapes["weight"], "score": model.local_shape}
        priors = [Normal.of(model, site, shape, state.sites["weight"]) for site, shape in sites.items()]
        if not all(prior.is_central(0) for prior in priors):
            return params, locals_
        weight = state.sites["weight"]
        turn = Turn(self._standard(state, weight), weight.new_zeros(len(weight)))
        at, q = turn.globals(state.at), turn.scores(PoissonScores(locals_["score"], locals_["covariance"]))
        kept = {name: value for name, value in state.locals.items() if name not in ("matrix", "shift")}
        if at.spread is not None:
            kept["spread"] = at.spread
        state = replace(state, sites={**state.sites, "weight": at.weight, "bias": at.bias}, locals=kept)
        return state, {**locals_, "score": q.mean, "covariance": q.covariance}


@dataclass(frozen=True, kw_only=True)
class PoissonBayesian(PoissonVariational):
    """Gaussian posteriors of scores, weights and bias; the precisions of the weights' prior are learned.

    gives_way: to points, under priors that are not Normal, as engines do that integrate the globals.
    """

    name: ClassVar[str] = "bayesian"
    gives_way: ClassVar[bool] = True
    objective: ClassVar[Objective] = "estimate"
    globals_part: ClassVar[str] = "(- divergence of the weights from their prior)"

    def local(self) -> Engine:
        return PoissonVariational(steps=self.steps)

    def _before(self, at: Globals) -> Globals:
        size = len(at.weight) + 1
        return at if at.spread is not None else at._replace(spread=at.bias.new_zeros(len(at.bias), size, size))

    def _learn_precisions(self, model: Model, state: PoissonState, at: Globals) -> Tensor:
        """Compute D / sum_j E[w_jk^2] of the components whose prior means are 0; others keep the model's own."""
        assert at.spread is not None
        mean, precision = Normal.of(model, "weight", model.shapes["weight"], at.bias)
        second = at.weight.square().sum(1) + at.spread.diagonal(dim1=-2, dim2=-1)[:, :-1].sum(0)
        return torch.where((mean == 0).all(1), len(at.bias) / second, precision[:, 0])

    def _standard(self, state: PoissonState, weight: Tensor) -> Tensor:
        """Signs alone: the turns keep E[w w'] diagonal, as the learned precisions take it to be."""
        if "precision" not in state.locals:
            return super()._standard(state, weight)
        largest = weight.gather(1, weight.abs().argmax(1, keepdim=True))[:, 0]
        return torch.diag(torch.where(largest < 0, -1.0, 1.0).to(weight))

    def prior_term(self, model: Model, state: PoissonState | Params) -> Tensor | float:
        """Compute minus the divergence of q of the columns from their prior; the points of a start are taken for
        Gaussians that are nearly such, so that any step from there is a gain."""
        state = PoissonState.read(state)
        at = self._before(state.at)
        prior, spread = self._columns(model, state, at), at.spread
        assert spread is not None
        far = ((at.columns - prior.mean).square() * prior.precision).sum(-1)
        trace = (spread.diagonal(dim1=-2, dim2=-1) * prior.precision).sum(-1)
        wide = spread.double() + _POINT * torch.eye(spread.shape[1]).to(spread.double())
        sizes = torch.linalg.slogdet(wide)[1] + prior.precision.double().log().sum(-1)
        return 0.5 * (sizes - far - trace + at.columns.shape[1]).sum()
