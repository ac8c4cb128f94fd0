"""log p(x_n) with a standard error by annealed importance sampling, until that is small enough or a budget is spent.

Chains that are resampled on their way from the prior to the posterior (``lay_out_path``) say where the posterior is;
from there on paths begin at a product of independent finite elements and a normal of the real numbers with their
frequencies and moments, which is nearer. Chains along that path are independent, and their weights give the estimate
and its standard error; where the weights are too unequal for one, the path is cut finer.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from custom_inference.core.annealing.chains import Chains, Product, State, Tuning
from custom_inference.core.annealing.tempering import (
    Path,
    anneal,
    anneal_back,
    follow_path,
    lay_out_path,
    refine,
    resample,
)
from ppl_models import CapacityError

#: The chance that some element begins at an option by itself, whatever its frequency: what few chains never begin at
#: has no part in their standard error. Normals are made wider by a factor.
_EVEN, _WIDER = 0.3, 1.3
#: Moves after which chains at the posterior are looked at, and how often that is done.
_APART, _LOOKS = 2, 8
#: Chains that go on at the posterior, for each of those side by side.
_KEPT = 4
#: Chains that make an estimate, where the seconds allow it, and at most: fewer meet too little of what is rare.
_ENOUGH, _MANY = 64, 4096
#: Chains at least, and moves that every one of them is likely to make.
_FEWEST, _LIKELY = 8, 200
#: Moves of the fewest chains at least. Where they take longer than so many times the seconds that are given, and than
#: so many seconds at all, nothing is begun.
_SHORTEST, _BEYOND, _PATIENCE = 60, 3.0, 10.0
#: Chains that the mean variance of all rows counts for.
_ROWS = 4
#: The variance of log weights beyond which a standard error of their mean says little, and the path is cut finer.
_UNEQUAL = 1.0
#: Parts that a step is cut into at most.
_FINEST = 256


@dataclass(frozen=True)
class Budget:
    """How much an estimate may cost.

    error: the standard error of log p(x_n) that is enough. seconds: no further round begins after so many. chains:
    how many run beside each other, of every row. runs: where it is not 0, so many times as many chains that are
    resampled along the path (sequential Monte Carlo) take the place of chains that go along it by themselves.
    """

    error: float = 0.05
    seconds: float = 60.0
    chains: int = 32
    runs: int = 0


class Estimated(NamedTuple):
    """log_evidence (N,) with its standard_error (N,); steps (N,) of the paths, and chains (N,) that went along them.

    codes (L, N, W): draws from the posterior; r_hat (N,): the largest of the potential scale reductions of the entries
    of a row's code, between chains that began at draws by weight; mean (N, W), variance (N, W): of the codes, with the
    standard error of the former, mean_error (N, W), by the spread between chains.
    """

    log_evidence: Tensor
    standard_error: Tensor
    steps: Tensor
    chains: Tensor
    codes: Tensor
    mean: Tensor
    variance: Tensor
    mean_error: Tensor
    r_hat: Tensor


class Sandwich(NamedTuple):
    """Estimates of log p(x_n) of rows that were drawn from the model: from below and from above (N,), on average, with
    their standard errors (N,). members: how many rows of the data each of them is, as the nodes of a graph."""

    lower: Tensor
    lower_error: Tensor
    upper: Tensor
    upper_error: Tensor
    members: int = 1

    @classmethod
    def beside(cls, several: list[Sandwich]) -> Sandwich:
        """Put those of several data sets beside each other."""
        parts = {name: torch.cat([getattr(one, name) for one in several]) for name in cls._fields[:4]}
        return several[0]._replace(**parts)

    @property
    def rows(self) -> int:
        """How many rows of the data these are."""
        return self.members * len(self.lower)

    @property
    def gap(self) -> float:
        """The mean of the difference between both, of a row of the data."""
        return float((self.upper - self.lower).mean()) / self.members

    @property
    def gap_error(self) -> float:
        """The standard error of that: by what rows differ in, and of a single row by those of its two sides."""
        if len(self.lower) == 1:
            return float(torch.hypot(self.lower_error, self.upper_error)) / self.members
        return float((self.upper - self.lower).std() / math.sqrt(len(self.lower))) / self.members

    @classmethod
    def of(cls, forward: Tensor, backward: Tensor) -> Sandwich:
        """Take the log weights (M, N) of estimates of p(x_n), and minus those of estimates of 1 / p(x_n)."""
        number = math.log(len(forward))
        return cls(
            forward.logsumexp(0) - number,
            standard_error_of(forward),
            number - (-backward).logsumexp(0),
            standard_error_of(-backward),
        )


def fit_base(chains: Chains, path: Path, generator: torch.Generator) -> Product:
    """The product of independent elements and a normal that is like the posterior, from chains that are there."""
    state, power = path.state, path.powers[-1]
    looks = [state]
    for _ in range(_LOOKS):
        for _ in range(_APART):
            state, _ = chains.move(state, power, path.tunings[-1], generator)
        looks.append(state)
    every = State.stack(looks)
    most = int(chains.options.max()) if len(chains.options) else 1
    count = every.joint.new_zeros(*every.place.shape[1:], most)
    for place in every.place:
        count.scatter_add_(-1, place.long().unsqueeze(-1), torch.ones_like(count[..., :1]))
    found = count / len(every.place)
    even = ((torch.arange(most) < chains.options[:, None]) / chains.options[:, None].clamp_min(1)).to(found)
    share = _EVEN / max(1, len(chains.options))
    table = ((1 - share) * found + share * even).log()
    return Product(table, *_fit_normal(every.reals))


def _fit_normal(reals: Tensor) -> tuple[Tensor, Tensor]:
    """The mean (N, R) of draws (M, N, R), and a root of their covariance, made wider and shrunk to its diagonal."""
    number, _, size = reals.shape
    centre = reals.mean(0)
    if not size:
        return centre, reals.new_zeros(reals.shape[1], 0, 0)
    apart = reals - centre
    covariance = torch.einsum("mnr,mnq->nrq", apart, apart) / number
    variance = covariance.diagonal(dim1=-2, dim2=-1)
    variance = (variance + 1e-3 * variance.mean(-1, keepdim=True)).clamp_min(1e-12)
    shrink = min(1.0, size / number + 0.05)
    covariance = (1 - shrink) * covariance + torch.diag_embed(
        variance - (1 - shrink) * covariance.diagonal(dim1=-2, dim2=-1)
    )
    return centre, _WIDER * torch.linalg.cholesky(covariance)


def prepare(chains: Chains, budget: Budget, generator: torch.Generator) -> tuple[Chains, Path, Budget]:
    """The chains from a base that is like the posterior, a path from there, and the budget with as many chains as it
    can afford."""
    far = chains.begin_at(None)
    budget = replace(budget, chains=_affordable(far, budget, generator))
    first = lay_out_path(far, 2 * budget.chains, generator, 0.25 * budget.seconds)
    guess = far.guess_base() if first.hasty else None
    if guess is not None:  # the way from the prior is too long for the seconds
        first = lay_out_path(far.begin_at(guess), 2 * budget.chains, generator, 0.25 * budget.seconds)
    near = chains.begin_at(fit_base(far, first, generator))
    return near, lay_out_path(near, budget.chains, generator, 0.1 * budget.seconds), budget


def _affordable(chains: Chains, budget: Budget, generator: torch.Generator) -> int:
    """Count the chains that can make ``_LIKELY`` moves within the seconds, at least ``_FEWEST``."""
    _require_seconds(chains, budget, generator)
    rows, power = len(chains), torch.full((len(chains),), 0.5, dtype=torch.float64)
    even = torch.full((rows,), 0.1, dtype=torch.float64)
    tuning = Tuning(even, torch.ones(rows, chains.num_reals, dtype=torch.float64))
    one = torch.zeros(1, dtype=torch.long)
    chains.rows(one).move(chains.rows(one).begin(2, generator), power[:1], tuning.rows(one), generator)  # compiles
    state, begin = chains.begin(_FEWEST, generator), time.perf_counter()
    chains.move(state, power, tuning, generator)
    each = (time.perf_counter() - begin) / _FEWEST
    return int(min(budget.chains, max(_FEWEST, budget.seconds / (_LIKELY * each))))


def _require_seconds(chains: Chains, budget: Budget, generator: torch.Generator) -> None:
    """Refuse chains of which the fewest cannot make the fewest moves in the seconds that there are."""
    move = chains.predict_seconds(chains.begin(_FEWEST, generator))
    least = _SHORTEST * move
    if least > max(_BEYOND * budget.seconds, _PATIENCE):
        raise CapacityError(
            f"annealing: {_FEWEST} chains take about {move:.2g} s to move once, an estimate at least {least:.0f} s, of "
            f"{budget.seconds:g} that are given"
        )


def estimate_log_evidence(chains: Chains, budget: Budget, *, seed: int = 0) -> Estimated:
    """Estimate log p(x_n) of every row.

    How many chains a row needs, and how fine a path, is told by chains that have no part in the estimate: to go on
    until the chains that there are agree would stop where they agree by chance, in what is too high.
    """
    generator, begin = torch.Generator().manual_seed(seed), time.perf_counter()
    chains, path, budget = prepare(chains, budget, generator)
    if budget.runs:
        return _estimate_by_particles(chains, path, budget, generator)
    cuts, numbers, variance = _plan(chains, path, budget, generator, begin)
    like, kept = path.log_evidence, _KEPT * budget.chains
    evidence, error, lacking = like.clone(), torch.full_like(like, math.inf), torch.zeros_like(like)
    last: dict[int, State] = {}
    for parts, number in sorted({(int(p), int(n)) for p, n in zip(cuts, numbers, strict=True)}):
        some = ((cuts == parts) & (numbers == number)).nonzero()[:, 0]
        own = chains.rows(some)
        state, weight = anneal(own, *refine(path.rows(some), parts), number, generator)
        evidence[some] = weight.logsumexp(0) - math.log(number)
        error[some] = standard_error_of(weight, variance[some].clamp_max(_UNEQUAL))
        order = torch.cat([torch.randperm(number, generator=generator) for _ in range(-(-kept // number))])[:kept]
        chosen = state.gather(resample(weight, generator)[order])
        if chains.goes_back:
            lacking[some] = _measure_lack(own, path.rows(some), parts, chosen, weight, budget.chains, generator)
        last |= {row: chosen.rows(torch.tensor([at])) for at, row in enumerate(some.tolist())}
    state = State.beside([last[row] for row in range(len(chains))])
    steps = cuts * len(path.tunings)
    error = torch.hypot(error, lacking)
    return Estimated(evidence, error, steps, numbers, *_draw_posterior(chains, path, state, generator))


def _measure_lack(
    chains: Chains, path: Path, parts: int, state: State, forward: Tensor, number: int, generator: torch.Generator
) -> Tensor:
    """Return :func:`lack_of` of chains that go back along the path from states at its end, by their log weights."""
    for _ in range(_APART):
        state, _ = chains.move(state, path.powers[-1], path.tunings[-1], generator)
    start = state.gather(torch.arange(number)[:, None].expand(-1, len(chains)))
    return lack_of(forward, anneal_back(chains, start, *refine(path, parts), generator))


def lack_of(forward: Tensor, backward: Tensor) -> Tensor:
    """Return by how much (N,) the estimates from above are higher than those from below, beyond two standard errors of
    the difference: what the weights of no chain tell, since none has met it, has no part in their spread.

    forward: (M, N) log weights of estimates of p(x_n); backward: (M', N) minus those of estimates of 1 / p(x_n).
    """
    above = math.log(len(backward)) - (-backward).logsumexp(0)
    gap = above - forward.logsumexp(0) + math.log(len(forward))
    share = [torch.softmax(weight, 0) * len(weight) for weight in (forward, -backward)]
    spread = torch.hypot(*((each.var(0).nan_to_num(nan=0.0) / len(each)).sqrt() for each in share))
    return (gap - 2 * spread).clamp_min(0.0).nan_to_num(nan=0.0, posinf=0.0)


def _estimate_by_particles(chains: Chains, path: Path, budget: Budget, generator: torch.Generator) -> Estimated:
    """Average independent runs of sequential Monte Carlo, whose spread is the standard error.

    All go along the same path: temperatures that a run chose by its own chains would make it too high.
    """
    runs = [follow_path(chains, path, budget.chains, generator) for _ in range(budget.runs)]
    each = torch.stack([evidence for _, evidence in runs])
    weight = each.repeat_interleave(budget.chains, 0)
    order = torch.randperm(len(weight), generator=generator)[: _KEPT * budget.chains]
    state = State.stack([state for state, _ in runs]).gather(resample(weight, generator)[order])
    steps = torch.full_like(each[0], len(path.tunings)).long()
    number = torch.full_like(steps, len(weight))
    evidence = each.logsumexp(0) - math.log(len(each))
    return Estimated(evidence, standard_error_of(each), steps, number, *_draw_posterior(chains, path, state, generator))


def _draw_posterior(
    chains: Chains, path: Path, state: State, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Go on at the posterior; what :func:`summarise_looks` tells of the states there."""
    looks, drawn = [], []
    for _ in range(_LOOKS):
        for _ in range(_APART):
            state, _ = chains.move(state, torch.ones_like(path.powers[-1]), path.tunings[-1], generator)
        looks.append(chains.code(state))
        drawn.append(chains.draw(state, generator))
    return summarise_looks(looks, drawn)


def summarise_looks(looks: list[Tensor], drawn: list[Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Summarise several looks at the codes (M, N, W) of chains at the posterior, expected and drawn ones; codes
    (L, N, W), their mean and variance, the error of the mean, and R-hat (N,)."""
    codes, draws = torch.stack(looks), torch.cat(drawn)  # (looks, M, N, W), (L, N, W)
    mean, variance = codes.mean((0, 1)), draws.var(0, unbiased=False)
    between = codes.mean(0).var(0)  # of the means of chains
    within = codes.var(0).mean(0)
    reduction = ((within * (1 - 1 / len(codes)) + between) / within).sqrt()  # infinite where no chain moves
    r_hat = torch.where(within + between > 1e-9, reduction, 1.0).amax(-1)
    error = between / codes.shape[1]
    if bool(((codes == 0) | (codes == 1)).all()):  # what no chain has met may be there once in as many
        error = error + 1 / codes.shape[1] ** 2
    return draws, mean, variance, error.sqrt(), r_hat


def _plan(
    chains: Chains, path: Path, budget: Budget, generator: torch.Generator, begin: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Cut the paths of rows so finely that log weights differ little, and count the chains that then make the error
    small enough, or as small as the seconds allow.

    Returns into how many parts steps are cut, how many chains there are, and the variance of log weights, each (N,).
    """
    rows = torch.arange(len(chains))
    parts, variance, taken = torch.ones_like(rows), path.log_evidence.clone(), 0
    wanting, cut, start = rows, 1, time.perf_counter()
    while len(wanting):
        own = chains.rows(wanting)
        _, weight = anneal(own, *refine(path.rows(wanting), cut), budget.chains, generator)
        taken += cut * len(path.tunings) * len(wanting)
        found = weight.var(0).nan_to_num(nan=100.0)
        variance[wanting], parts[wanting] = (found + found.mean()) / 2, cut
        wanting = wanting[found > _UNEQUAL]
        spent = time.perf_counter() - begin
        if spent > budget.seconds / 3 or cut >= _FINEST:
            break
        cut *= 4
    each = (time.perf_counter() - start) / max(1, taken * budget.chains)
    number = (variance / budget.error**2).clamp(_ENOUGH, _MANY)
    cost = float((number * parts).sum()) * len(path.tunings) * each
    left = max(budget.seconds - (time.perf_counter() - begin), 0.1 * budget.seconds)
    number = number * min(1.0, left / cost)
    return parts, (2 ** number.log2().ceil()).clamp_min(2 * _FEWEST).long(), variance


def standard_error_of(weight: Tensor, expected: Tensor | None = None) -> Tensor:
    """Estimate the standard error (N,) of the logarithm of the mean of weights (M, N).

    Each row's variance is drawn a little to the ``expected`` one (N,), by default the mean of all: rows in which all
    chains agree by chance have none of their own. Of few weights the error is larger by what Student's quantile is
    above the normal's.
    """
    from scipy import stats  # not at the top: it takes half a second to import

    share = torch.softmax(weight, 0) * len(weight)
    variance = share.var(0).nan_to_num(nan=math.inf)
    if expected is None:
        expected = variance[variance.isfinite()].mean().nan_to_num(nan=0.0)
    student = float(stats.t.ppf(0.975, (len(weight) - 1) * min(_ROWS, weight.shape[1])) / stats.norm.ppf(0.975))
    return student * ((len(weight) * variance + _ROWS * expected) / (len(weight) + _ROWS) / len(weight)).sqrt()
