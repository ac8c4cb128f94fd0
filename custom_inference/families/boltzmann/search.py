"""Starts of a fit by exact sums: several random starts climb side by side, the best of them to its maximum; machines of
binary units with Gaussian priors, on rows that were observed whole, replace hidden units on the way.

The search by replacement goes on from machines that chains have led near a maximum, one hidden unit at a time.
The unit that log p(x) loses least by is removed, or one that it loses little by. Without unit k, off or on for good,

    log Z' = log Z + log p(h_k = 0)     or     log Z + log p(h_k = 1) - c_k,  with b' = b + w_k

by the table of the hidden states. A new unit of small weights w raises log p(x) of a row, to the second order, by
w' (Cov_rows[v] - Cov_model[v]) w / 8: w is along an eigenvector of one of the largest eigenvalues, and its biases keep
all means where they are. Then the whole machine climbs, and is kept where it ends higher.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import linear as affine
from torch.nn.functional import softplus

from custom_inference.core.engine import Params
from custom_inference.core.optimize.lbfgs import maximise
from custom_inference.core.proposals import Proposals
from custom_inference.families.boltzmann import common
from custom_inference.families.boltzmann.ascent import Ascent
from custom_inference.families.boltzmann.common import SITES, HarmoniumRows, MachineWeights, column_naturals
from custom_inference.families.boltzmann.priors import GaussianPriors, log_prior_of
from custom_inference.families.boltzmann.table import Table
from ppl_models import Model
from ppl_models.distributions import Energy
from ppl_models.rbm import HarmoniumModel

#: Starts that climb at once, their steps by Adam in single precision, and the spread of their weights.
_STARTS, _ADAM_STEPS, _SPREAD, _RATE = 6, 250, 0.3, 0.05
#: Iterations of L-BFGS of the best, and units that are replaced in it one after the other.
_POLISH, _REPLACED = 400, 24
#: Entries of all rows up to which units are replaced: of more a climb takes seconds.
_ENTRIES = 2**17


class HarmoniumProposals(Proposals):
    """One start: the best of several random ones that climbed log p(x) + log p(theta) side by side."""

    def propose(self, model: HarmoniumModel, rows: HarmoniumRows, generator: torch.Generator, attempt: int) -> Params:
        return ascend(model, rows, random_starts(model, rows, generator, _STARTS), generator)

    def at_random(self, attempt: int, num_rows: int) -> bool:
        return True

    def search_size(self, model: Model, num_rows: int) -> tuple[int, int]:
        """One proposal, which makes its starts itself, on all rows."""
        return 1, num_rows


def random_starts(model: HarmoniumModel, rows: HarmoniumRows, generator: torch.Generator, starts: int) -> Params:
    shape, like = model.shapes["weight"], rows.like
    noise = torch.randn((starts, *shape), generator=generator, dtype=torch.float64).to(like)
    size = _SPREAD if model.code_bits is not None else min(_SPREAD, 0.3 / (shape[0] ** 0.5 + shape[1] ** 0.5))
    bias = common.first_bias(column_naturals(model, rows))
    return {
        "weight": size * noise,
        "visible_bias": bias.expand(starts, *bias.shape).clone(),
        "hidden_bias": like.new_zeros(starts, shape[0]),
    }


def ascend(model: HarmoniumModel, rows: HarmoniumRows, starts: Params, generator: torch.Generator) -> Params:
    """Adam on all starts at once, L-BFGS on the best, or on what replacing units makes of them: a maximum of log p(x) +
    log p(theta)."""
    distinct, weights = rows.distinct, MachineWeights(starts, axes=1)
    climb = climb_of(model, distinct, len(rows))
    for _ in range(_ADAM_STEPS):
        weights.climb_adam(weights.join(climb(weights.at)[1]), _RATE, memory=0.99)
    best = int(climb(weights.at)[0].nan_to_num(-torch.inf, neginf=-torch.inf).argmax())
    start = {site: value[best] for site, value in weights.at.items()}
    priors = _replaceable(model, rows)
    if priors is not None:
        each = [{site: value[number] for site, value in weights.at.items()} for number in range(len(weights.theta))]
        found, _ = maximum(Ascent(rows.statistic.cpu().float(), priors), each, generator, _REPLACED)
        start = {site: value.to(start[site]) for site, value in found.items()}
    climb = climb_of(model, distinct.to(torch.float64), len(rows))

    def single(one: Params) -> tuple[Tensor, Params]:
        value, slope = climb({site: part[None] for site, part in one.items()})
        return value[0], {site: part[0] for site, part in slope.items()}

    return maximise(single, start, _POLISH, sloped=True)[0]


def _replaceable(model: HarmoniumModel, rows: HarmoniumRows) -> GaussianPriors | None:
    """The priors of machines whose hidden units can be replaced at a small cost; None of others."""
    units, *visible = model.shapes["weight"]
    whole = rows.times is None and rows.missing is None and rows.statistic.numel() <= _ENTRIES
    if not (whole and model.data_kind == "binary" and model.code_bits is not None and 1 < units <= math.prod(visible)):
        return None
    return GaussianPriors.of(model, rows.statistic.cpu().double())


def climb_of(model: HarmoniumModel, rows: HarmoniumRows, number: int) -> Callable[[Params], tuple[Tensor, Params]]:
    """What is climbed, (log p(x) + log p(theta)) / number of starts (S, ...), and its slope.

    rows: the different ones of a number of rows. The slope of whole rows is E[(h t', t, h) | x] - E[(h t', t, h)],
    summed over the rows; those of others, and of priors that are not Gaussian, are differentiated.
    """
    prior, priors = log_prior_of(model, rows.like), GaussianPriors.of(model, rows.like)
    copies = rows.base.new_ones(len(rows)) if rows.copies is None else rows.copies

    def differentiate(at: Params) -> tuple[Tensor, Params]:
        with torch.enable_grad():
            at = {site: at[site].detach().requires_grad_() for site in SITES}
            value = (common.log_likelihood(model, at, rows) @ copies + prior(at)) / number
            found = torch.autograd.grad(value.sum(), list(at.values()))
        return value.detach(), dict(zip(SITES, found, strict=True))

    def value_and_slope(at: Params) -> tuple[Tensor, Params]:
        assert priors is not None
        energy = model.energy(at)
        log_z, *expected = moments(energy)
        hidden = energy.hidden_mean(rows.statistic) * copies.unsqueeze(-1)
        seen = hidden.mT @ rows.statistic, copies @ rows.statistic, hidden.sum(-2)
        value = (energy.log_weight_of_visible(rows.statistic) + rows.base) @ copies - number * log_z + prior(at)
        slope = {}
        for site, of_rows, of_model in zip(SITES, seen, expected, strict=True):
            of_likelihood = (of_rows - number * of_model).view_as(at[site])
            slope[site] = (of_likelihood + priors.slope(site, at[site])) / number
        return value / number, slope

    gaussian = model.likelihood.kind == model.hidden_likelihood.kind == "real"
    whole = rows.times is None and rows.missing is None and not gaussian
    return value_and_slope if priors is not None and whole else differentiate


def moments(energy: Energy) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """log Z, (...), and its slopes E[h t'], E[t] and E[h], by the states of the smaller layer."""
    energy.require_feasible()
    if energy.bits[0] <= energy.bits[1]:
        hidden = energy.codes
        statistic, log_weight = energy.visible_mean(hidden), energy.log_weights(hidden)
    else:
        statistic = energy.visible_states
        hidden, log_weight = energy.hidden_mean(statistic), energy.log_weight_of_visible(statistic)
    chance = torch.softmax(log_weight, -1).unsqueeze(-2)
    share = hidden * chance.mT
    return torch.logsumexp(log_weight, -1), share.mT @ statistic, (chance @ statistic).squeeze(-2), share.sum(-2)


#: Iterations of every machine and of the best of them, and moves from that and their iterations.
_EACH, _BEST, _MOVES, _OF_MOVE = 40, 120, 8, 100
#: Norm of the weights of new units, and the means of the ranks of what is removed and of the eigenvector.
_NORM, _RANK, _DIRECTION = 2.0, 2.0, 1.0


def maximum(
    ascent: Ascent, machines: Sequence[Params], generator: torch.Generator, moves: int = _MOVES
) -> tuple[Params, bool]:
    """The best that the machines with finite weights lead to, in double precision, and whether the search came to its
    end: Ctrl-C leaves the best so far."""
    best, value = machines[0], -math.inf
    each = [{site: part.cpu().double() for site, part in one.items()} for one in machines]
    each = [one for one in each if all(bool(torch.isfinite(part).all()) for part in one.values())]
    if not each:
        return best, True
    try:
        for one in each:
            at, found = ascent.maximise(one, _EACH)
            best, value = (at, found) if found > value else (best, value)
        best, value = ascent.maximise(best, _BEST)
        for _ in range(moves):
            at, found = ascent.maximise(with_new_unit(ascent, best, generator), _OF_MOVE)
            best, value = (at, found) if found > value else (best, value)
        return ascent.maximise(best, _BEST)[0], True
    except KeyboardInterrupt:
        return best, False


def with_new_unit(ascent: Ascent, at: Params, generator: torch.Generator) -> Params:
    """One unit replaced."""
    loss, on = losses(ascent, at)
    lost = int(loss.argsort()[_rank(_RANK, len(loss), generator)])
    others = torch.arange(len(loss)) != lost
    visible = at["visible_bias"] + at["weight"][lost] * bool(on[lost])
    weight, hidden = at["weight"][others], at["hidden_bias"][others]
    residual = ascent.covariance - torch.from_numpy(Table.of(weight, visible, hidden).visible_covariance()).double()
    directions = torch.linalg.eigh(residual).eigenvectors.flip(-1)
    sign = 1 - 2 * int(torch.randint(2, (), generator=generator))
    new = sign * _NORM * directions[:, _rank(_DIRECTION, directions.shape[1], generator)]
    return {
        "weight": torch.cat([weight, new.unsqueeze(0)]),
        "visible_bias": visible - 0.5 * new,
        "hidden_bias": torch.cat([hidden, -(new @ ascent.mean).unsqueeze(0)]),
    }


def losses(ascent: Ascent, at: Params) -> tuple[Tensor, Tensor]:
    """What log p of a row loses without each unit, (K,), and whether less so with the unit always on."""
    weight, visible, hidden = (at[site].float() for site in SITES)
    chance = torch.from_numpy(Table.of(weight, visible, hidden).hidden_mean).double().clamp(1e-7, 1 - 1e-7)
    gained = softplus(affine(ascent.rows, weight, hidden)).mean(0, dtype=torch.float64)
    off = gained + torch.log1p(-chance)
    on = gained - at["weight"] @ ascent.mean - at["hidden_bias"] + chance.log()
    return torch.minimum(off, on), on < off


def _rank(mean: float, most: int, generator: torch.Generator) -> int:
    drawn = torch.empty(()).exponential_(1 / mean, generator=generator)
    return min(int(drawn), most - 1)
