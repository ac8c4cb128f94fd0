"""Starts for NOCA with many sources: over-complete EM on truncated posteriors, with splits and pruning by evidence.

Beyond enumeration EM from many random rows finds most sources; what is left are *merged* ones, the overlay of two true
sources that each explain half of the rows it is active in. Births from residuals do not cure them (nothing is left
unexplained), splits do: over the active rows of source k the transmissions z_nj = x_nj p_kj / P(x_j = 1 | s_n) are
independent noise for a true source, and have one large eigenvalue for an overlay. Both halves of the split are the
means of z on either side of the leading eigenvector. After a few EM steps, sources are dropped one set at a time by
what the bound would lose without them (``removal_loss``), priced by BIC, so that the useless halves disappear.
Source: the split-and-merge idea is Ueda et al., Neural Computation 12 (2000); the criteria are this suite's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize, pad

from custom_inference.core.engine import EStep, Params
from custom_inference.families.common.cubes import Cubes
from custom_inference.families.conjugate.beta import FLOOR
from custom_inference.families.noca.common import any_size, thetas
from custom_inference.families.noca.truncated import Chosen, NocaTruncated
from custom_inference.families.rows.matrix import BinaryRows
from ppl_models import Model


class _SplitState(NamedTuple):
    """Parameters with the cubes and the bound they were last used with."""

    params: Params
    cubes: Cubes
    bound: Tensor

    @property
    def size(self) -> int:
        return len(self.params["source_prior"])

    def keep(self, index: list[int]) -> _SplitState:
        cubes = Cubes.at(self.cubes.base[:, index], self.cubes.mean[:, index])
        return _SplitState(_select_sources(self.params, index), cubes, self.bound)


@dataclass(frozen=True)
class _Climber:
    """EM on truncated posteriors for models of any number of sources."""

    model: Model
    rows: BinaryRows
    engine: NocaTruncated
    #: What a link costs beside half log N; log D (extended BIC) when sources are shut off for good.
    link_price: float = 0.0

    def climb(self, state: _SplitState, iterations: int) -> _SplitState:
        for _ in range(iterations):
            step = self.engine.e_step(self.model, state.params, self.rows, state.cubes._asdict())
            params = self.engine.m_step(self.model, state.params, step, self.rows)
            state = _SplitState(params, _cubes(step), step.bound)
        return state

    def start(self, params: Params, iterations: int) -> _SplitState:
        """Return the state after so many iterations from empty codes."""
        cubes = Cubes.empty(self.rows, len(params["source_prior"]))
        return self.climb(_SplitState(params, cubes, self.rows.ones.new_zeros(len(self.rows))), iterations)

    def price(self, params: Params) -> Tensor:
        """Compute BIC's price of every source, (K,): half log N for its prior and for each link in use."""
        links = (params["loading"] > 0.1).sum(1).to(params["leak"])
        return 0.5 * math.log(len(self.rows)) * (1 + links) + self.link_price * links

    def objective(self, state: _SplitState) -> float:
        return float(state.bound.sum() - self.price(state.params).sum())


def _cubes(step: EStep) -> Cubes:
    return Cubes(*(step.locals[field] for field in Cubes._fields))


def _select_sources(params: Params, index: list[int]) -> Params:
    return {**params, "source_prior": params["source_prior"][index], "loading": params["loading"][index]}


def random_rows(rows: BinaryRows, number: int, generator: torch.Generator) -> Params:
    """Make sources of random rows, faded: each starts specialised, which random loadings do not."""
    mass = rows.ones.sum(1).double().cpu() + 1e-3
    cap = mass.median() + 1e-3
    pick = torch.multinomial(mass.clamp_max(cap), number, replacement=number > len(mass), generator=generator)
    loading = 0.6 * rows.ones[pick.to(rows.ones.device)] + 0.05
    return {
        "source_prior": loading.new_full((number,), min(0.3, 2.5 / number)),
        "loading": loading,
        "leak": loading.new_full((loading.shape[1],), 0.02),
    }


def removal_loss(climber: _Climber, state: _SplitState) -> tuple[Tensor, Tensor]:
    """Compute what the bound loses without each source (K,), and where its rows would go, (K, K) expected counts.

    Every (row, active source) pair is inferred again with that source held off; rows where it is off just lose its
    factor 1 - pi_k. The stand-ins' priors are refitted, a gain of N KL(pi_new || pi) each: without it duplicates
    would seem to be worth log 2 a row.
    """
    params, cubes = state.params, state.cubes
    size, total = state.size, len(climber.rows)
    row, source = (cubes.mean > 0.02).nonzero(as_tuple=True)
    again = Cubes.at(cubes.base[row].scatter(1, source[:, None], 0.0))
    bound = state.bound[row]
    for _ in range(2):
        step = climber.engine.infer(params, climber.rows, again._asdict(), chosen=Chosen(row, source))
        again, bound = _cubes(step), step.bound
    pi = params["source_prior"]
    zero = torch.zeros_like(pi)
    loss = zero.index_add(0, source, state.bound[row] - bound) + total * torch.log1p(-pi)
    moved = zero.expand(size, size).contiguous().index_add(0, source, again.mean - cubes.mean[row])
    new = ((cubes.mean.sum(0) + moved) / total).clamp(FLOOR, 1 - FLOOR)
    gain = total * (new * (new / pi).log() + (1 - new) * ((1 - new) / (1 - pi)).log())
    return loss - gain.fill_diagonal_(0.0).sum(1), moved


def _expendable(loss: Tensor, moved: Tensor, price: Tensor, maximum: int, tie: float = 2.0) -> list[int]:
    """Return the sources to keep after dropping surplus and unpaid ones, never two at once that stand in for each
    other."""
    size = len(loss)
    gone: list[int] = []
    for rank, i in enumerate(torch.argsort(loss - price).tolist()):
        if rank >= size - maximum and loss[i] > price[i]:
            break
        if not any(max(moved[j, i], moved[i, j]) > tie for j in gone):
            gone.append(i)
    return [i for i in range(size) if i not in gone]


def prune_by_evidence(climber: _Climber, state: _SplitState, maximum: int, iterations: int = 4) -> _SplitState:
    """Drop sources and re-fit (backward elimination) until no source is surplus or worth less than its price."""
    while True:
        loss, moved = removal_loss(climber, state)
        keep = _expendable(loss, moved, climber.price(state.params), maximum)
        if len(keep) == state.size or not keep:
            return state
        state = climber.climb(state.keep(keep), iterations)


def _transmissions(
    rows: BinaryRows, params: Params, base: Tensor, row: Tensor, source: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute z = x_nj p_kj / P(x_j = 1 | s_n) of pairs of rows and sources that are on in them, where x_nj = 1: the
    pair, the place (k, j) among all links, and z, of each (E,)."""
    (theta, theta0), (start, middle, column) = thetas(params), rows.entries
    length = torch.from_numpy(middle - start[:-1]).to(row)[row]
    pair = torch.repeat_interleave(torch.arange(len(row), device=row.device), length)
    inside = torch.arange(len(pair), device=row.device) - (length.cumsum(0) - length)[pair]
    feature = torch.from_numpy(column).to(row)[torch.from_numpy(start).to(row)[row][pair] + inside]
    of_row, which = row[pair], source[pair]
    on = -torch.expm1(-(base @ theta + theta0))
    return pair, which * theta.shape[1] + feature, params["loading"][which, feature] / on[of_row, feature]


def split(climber: _Climber, state: _SplitState, number: int, generator: torch.Generator) -> _SplitState:
    """Split the ``number`` sources whose transmissions vary most coherently over their active rows."""
    params, base = state.params, state.cubes.base
    size, (row, source) = state.size, (base > 0).nonzero(as_tuple=True)
    # z is zero beside the ones: of every pair of a row and its source (``pair``) only these are kept.
    pair, place, z = _transmissions(climber.rows, params, base, row, source)

    def by_source(values: Tensor) -> Tensor:
        return z.new_zeros(size).index_add_(0, source, values)

    def by_link(values: Tensor) -> Tensor:
        return z.new_zeros(params["loading"].numel()).index_add_(0, place, values).view(size, -1)

    def along(direction: Tensor) -> Tensor:
        """Return how far every pair's z is from its source's mean along the source's direction."""
        found = z.new_zeros(len(row)).index_add_(0, pair, z * direction.flatten()[place])
        return found - (mean * direction).sum(1)[source]

    count = torch.bincount(source, minlength=size).to(z).clamp(min=1)
    mean = by_link(z) / count[:, None]
    direction = torch.randn(mean.shape, generator=generator, dtype=torch.float64).to(z)
    for _ in range(8):  # power iteration for the leading eigenvector of every source's covariance
        direction = normalize(direction)
        far = along(direction)
        direction = (by_link(z * far[pair]) - mean * by_source(far)[:, None]) / count[:, None]
    eigenvalue = torch.where(count > 20, direction.norm(dim=1), -1.0)
    up = (along(direction) > 0).to(z)
    above_count = by_source(up)
    # The sum of z - mean of the pairs above; of those below it is the opposite.
    beyond = by_link(z * up[pair]) - mean * above_count[:, None]
    above = mean + beyond / above_count.clamp(min=1)[:, None]
    below = mean - beyond / (count - above_count).clamp(min=1)[:, None]
    share = above_count / count
    top = eigenvalue.topk(min(number, size)).indices
    top = top[eigenvalue[top] > 0]
    prior = torch.cat([params["source_prior"], params["source_prior"][top] * (1 - share[top])])
    loading = torch.cat([params["loading"], below[top]])
    prior[top], loading[top] = prior[top] * share[top], above[top]
    leak = params["leak"].clamp(min=0.003)
    halves = {"source_prior": prior.clamp(1e-4, 0.99), "loading": loading.clamp(1e-3, 0.95), "leak": leak}
    return _SplitState(
        halves, Cubes.at(*(pad(value, (0, len(top))) for value in (base, state.cubes.mean))), state.bound
    )


def split_and_prune(model: Model, rows: BinaryRows, generator: torch.Generator, *, cycles: int = 6) -> Params:
    """Run EM from K + max(K / 2, 8) random rows; then (split K / 2 sources, EM, prune) while the objective grows.

    First with that room, then with K. Sources that are not worth their BIC price are shut off:
    they come back with prior and links at the floor, so the shapes are the model's.
    """
    wanted = model.shapes["source_prior"][0]
    room = wanted + max(math.ceil(wanted / 2), 8)
    climber = _Climber(any_size(model), rows, NocaTruncated(free=3, guard=False, refresh_every=1))
    best = climber.start(random_rows(rows, room, generator), 20)
    for maximum in (room, wanted):
        best = prune_by_evidence(climber, best, maximum)
        for _ in range(cycles):
            trial = climber.climb(split(climber, best, math.ceil(0.5 * wanted), generator), 8)
            trial = prune_by_evidence(climber, trial, maximum)
            gain = climber.objective(trial) - climber.objective(best)
            best = trial if gain > 0 else best
            if gain < float(climber.price(best.params).mean()):
                break
    return pad_sources(best.params, wanted)


def shut_off(model: Model, rows: BinaryRows, params: Params) -> Params:
    """Put the sources at the floor whose removal, after re-fitting, costs less than their price on these rows.

    The price is that of extended BIC, log D more for each link, since links are chosen among D features (Chen & Chen,
    Biometrika 95, 2008): a surplus source can always find a few rows to fit.
    """
    price = math.log(rows.ones.shape[1])
    climber = _Climber(any_size(model), rows, NocaTruncated(free=4, refresh_every=1), link_price=price)
    alive = (params["source_prior"] > 10 * FLOOR).nonzero().flatten().tolist()
    size = len(params["source_prior"])
    state = prune_by_evidence(climber, climber.start(_select_sources(params, alive), 10), size)
    return pad_sources(_without_the_doubtful(climber, state).params, size)


def _without_the_doubtful(climber: _Climber, state: _SplitState, *, doubt: float = 10.0, refit: int = 4) -> _SplitState:
    """Remove, one by one, sources worth less than ``doubt`` times their price, if that pays after re-fitting.

    ``removal_loss`` holds the other sources fixed; near-duplicates adapt when one of them is gone.
    """
    ratio = removal_loss(climber, state)[0] / climber.price(state.params)
    alive = list(range(state.size))
    for source in [i for i in torch.argsort(ratio).tolist() if ratio[i] < doubt]:
        if len(alive) == 1:
            break
        rest = [i for i in alive if i != source]
        trial = climber.climb(state.keep([alive.index(i) for i in rest]), refit)
        kept = climber.climb(state, refit)
        better = climber.objective(trial) > climber.objective(kept)
        state, alive = (trial, rest) if better else (kept, alive)
    return state


def pad_sources(params: Params, size: int) -> Params:
    """Add shut-off sources to the parameters up to ``size``."""
    missing = max(0, size - len(params["source_prior"]))
    prior = pad(params["source_prior"], (0, missing), value=FLOOR)
    loading = pad(params["loading"], (0, 0, 0, missing), value=FLOOR)
    return {**params, "source_prior": prior, "loading": loading}
