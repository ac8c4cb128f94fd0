"""Starts of a fit by exact sums: several random starts climb side by side, the best of them to its maximum; machines of
binary units with Gaussian priors, on rows that were observed whole, replace hidden units on the way."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from custom_inference.core.engine import Params
from custom_inference.core.optimize.lbfgs import maximise
from custom_inference.core.proposals import Proposals
from custom_inference.families.boltzmann import common
from custom_inference.families.boltzmann.ascent import Ascent
from custom_inference.families.boltzmann.common import SITES, HarmoniumRows, column_naturals
from custom_inference.families.boltzmann.priors import GaussianPriors, log_prior_of
from custom_inference.families.boltzmann.replace_units import maximum
from custom_inference.families.boltzmann.weights import MachineWeights
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
