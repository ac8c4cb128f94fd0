"""log Z of a harmonium by annealed importance sampling, from both ends, and its pseudo-likelihood.

Neal, *Annealed importance sampling* (2001); Salakhutdinov & Murray, *On the quantitative analysis of deep belief
networks* (2008); Murphy 2012, section 24.6.2. Between independent units with natural parameters a (weight 0) and the
machine itself lie, for temperatures 0 = beta_0 < ... < beta_T = 1,

    f_beta(v) = r(v) exp(((1 - beta) a + beta b)'t + sum_k A_h(beta zeta_k)),   Z_0 = exp(sum_d n_d A_v(a_d) + K A_h(0))

Forwards, chains from f_0 whose transitions are Gibbs sweeps have weights w with E[w] = Z / Z_0, so that the mean of
log w lies below log Z / Z_0; backwards, chains from the machine have weights with E[w'] = Z_0 / Z, and -log of their
mean lies above it on average (Grosse, Ghahramani & Adams 2015; Burda, Grosse & Salakhutdinov 2015).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from custom_inference.core.engine import Params
from custom_inference.core.fit import Fit
from custom_inference.core.local_inference import Local
from custom_inference.core.settings import require_whole
from custom_inference.families.boltzmann import common
from custom_inference.families.boltzmann.common import HarmoniumRows, column_naturals, require_machine
from custom_inference.families.boltzmann.exact import ExactHarmonium
from ppl_models import Data, MethodError
from ppl_models.distributions import Energy
from ppl_models.distributions.energy import log_normaliser_of
from ppl_models.rbm import HarmoniumModel


class LogPartition(NamedTuple):
    """An estimate of log Z, of rows with units of their own one each.

    value, standard_error: by chains forwards; of exact sums the error is 0. reverse, reverse_error: by those backwards;
    NaN where there were none. ``value`` tends to lie below log Z and ``reverse`` above it.
    """

    value: Tensor
    standard_error: Tensor
    reverse: Tensor
    reverse_error: Tensor


@dataclass(frozen=True)
class MachinePath:
    """The machines between independent units (``base``: a, (M,)) and ``energy``."""

    energy: Energy
    base: Tensor

    def run(self, statistic: Tensor, betas: list[float], generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Move chains along the path by Gibbs sweeps; return the last states, and the log weights (..., chains)."""
        weight, kind, bias = (
            torch.zeros_like(statistic[..., 0]),
            self.energy.hidden,
            self.energy.visible_bias - self.base,
        )
        for before, after in pairwise(betas):
            zeta = self.energy.zeta(statistic)
            moved = log_normaliser_of(kind, after * zeta) - log_normaliser_of(kind, before * zeta)
            weight = weight + ((after - before) * (statistic @ bias) + moved.sum(-1))
            hidden = self.energy.draw_hidden(statistic, generator, after)
            eta = (1 - after) * self.base + after * self.energy.eta(hidden)
            statistic = self.energy.draw_statistic(eta, generator)
        return statistic, weight


def estimate_log_partition(
    energy: Energy,
    base: Tensor,
    *,
    chains: int = 200,
    temperatures: int = 1000,
    reverse: bool = False,
    generator: torch.Generator,
) -> LogPartition:
    """Estimate log Z of one exponent without rows, or with one row, by so many chains over so many temperatures.

    base: a (M,). reverse: also from the machine downwards, from exact draws where these can be had, else from the ends
    of the chains forwards, drawn by their weights, after as many more sweeps as a tenth of the temperatures.
    """
    if energy.times is not None:
        energy = energy.of_rows(energy.hidden_bias.expand(chains, -1), energy.times.expand(chains, -1))
    path, betas = MachinePath(energy, base), torch.linspace(0, 1, temperatures + 1, dtype=torch.float64).tolist()
    with torch.no_grad():
        first = energy.draw_statistic(base.expand(chains, -1), generator)
        last, weight = path.run(first, betas, generator)
        units = energy.units(base)
        units = units.sum(-1) if energy.times is None else (energy.times * units).sum(-1)
        log_z0 = units + log_normaliser_of(energy.hidden, torch.zeros_like(energy.hidden_bias)).sum(-1)
        log_z0 = log_z0 if energy.times is None else log_z0[0]
        value, error = _log_mean(weight)
        nothing = torch.full_like(value, torch.nan)
        if not reverse:
            return LogPartition(log_z0 + value, error, nothing, nothing)
        if energy.closed_form or min(energy.bits) <= 16:
            start = energy.draw_visible(energy.sampled_hidden(chains, generator=generator), generator)
        else:
            drawn = torch.multinomial(torch.softmax(weight, -1), chains, replacement=True, generator=generator)
            start = energy.gibbs(last[drawn], max(1, temperatures // 10), generator)
        down = path.run(start, betas[::-1], generator)[1]
        value_down, error_down = _log_mean(down)
        return LogPartition(log_z0 + value, error, log_z0 - value_down, error_down)


def _log_mean(weight: Tensor) -> tuple[Tensor, Tensor]:
    """log of the mean of exp(weight), and its standard error by the delta method."""
    count = weight.shape[-1]
    scaled = torch.exp(weight - weight.amax(-1, keepdim=True))
    error = scaled.std(-1) / scaled.mean(-1) / math.sqrt(count)
    return torch.logsumexp(weight, -1) - math.log(count), error


def log_partition(
    fit: Fit,
    *,
    exact: bool | None = None,
    chains: int = 200,
    temperatures: int = 1000,
    reverse: bool = True,
    seed: int = 0,
    length: int | None = None,
) -> LogPartition:
    """log Z of a fitted RBM, or of a replicated softmax for documents of one ``length``.

    exact: whether to sum over a layer; None: where that is feasible. Otherwise by annealed importance sampling with so
    many chains and temperatures, from independent units with the columns' means; ``reverse`` also from the machine.

    Raises CapacityError for exact sums that are not feasible.
    """
    model = require_machine(fit.model)
    require_whole("chains", chains, 2)
    require_whole("temperatures", temperatures, 1)
    sparse = model.sites[model.observed_site].sparse
    if (length is None) == sparse:
        raise MethodError("documents have a log Z for every length, and only they: expected length= for these alone")
    times = torch.tensor([[float(length)]]).to(fit.globals["weight"]) if length is not None else None
    energy = model.energy_of_rows(fit.globals, times)
    if exact or (exact is None and ExactHarmonium().feasible(model)):
        value = energy.log_partition().reshape(())
        zero = torch.zeros_like(value)
        return LogPartition(value, zero, value, zero)
    base = column_naturals(model, HarmoniumRows.of(model, fit.data)).flatten().to(energy.weight)
    settings: Any = {"chains": chains, "temperatures": temperatures, "reverse": reverse}
    return estimate_log_partition(energy, base, **settings, generator=torch.Generator().manual_seed(seed))


@dataclass(frozen=True)
class AnnealedLikelihood:
    """log p(x_n) with log Z by annealed importance sampling: an estimate at any size, the same error in all rows.

    Rows whose units differ (lengths of documents, absent units) need one run each.
    """

    chains: int = 200
    temperatures: int = 1000

    def __call__(self, model: HarmoniumModel, params: Params, data: Data, *, seed: int = 0) -> Local:
        engine = ExactHarmonium()
        rows = engine.rows(model, data)
        generator = torch.Generator().manual_seed(seed)
        base = column_naturals(model, rows).flatten()
        with torch.no_grad():
            if rows.times is None:
                distinct, place = [None], torch.zeros(len(rows), dtype=torch.long)
            else:
                different, place = rows.lengths
                distinct = list(different.split(1))
            settings: Any = {"chains": self.chains, "temperatures": self.temperatures, "generator": generator}
            found = [estimate_log_partition(model.energy_of_rows(params, one), base, **settings) for one in distinct]
            value, error = (torch.stack(part).to(rows.base) for part in list(zip(*found, strict=True))[:2])
            place = place.to(value.device)
            score = common.negative_free_energy(common.free_energy_of(model, params, rows), rows)
            posterior = engine.posterior(model, params, rows, None)
        return Local(posterior, score - value[place], error[place], what="estimate", family="ais")


# ----- pseudo-likelihood ----------------------------------------------------------------------------------------------


def log_pseudo_likelihood(energy: Energy, rows: HarmoniumRows, generator: torch.Generator) -> Tensor:
    """An unbiased estimate of sum_d log p(x_nd | x_n,-d), (N,): one unit of every row (token of a document), drawn at
    random, times their number (Besag 1975; what scikit-learn's ``BernoulliRBM`` scores rows with)."""
    vector, every = energy.visible.is_vector, torch.arange(len(rows), device=rows.like.device)
    width = energy.visible.num_categories if vector else 1  # pyright: ignore[reportAttributeAccessIssue]
    there = units_there(energy, rows)
    number = there.sum(-1)
    unit = torch.multinomial(there.clamp(min=1e-12).cpu(), 1, generator=generator)[:, 0].to(every.device)
    if vector:
        own = rows.statistic.view(len(rows), -1, width)[every, unit]
        value = torch.multinomial(own.clamp(min=1e-12).cpu(), 1, generator=generator)[:, 0].to(every.device)
        return number * _of_category(energy, rows, unit, value)
    return number * _of_unit(energy, rows, unit)


def all_log_pseudo_likelihoods(energy: Energy, rows: HarmoniumRows) -> Tensor:
    """sum_d log p(x_nd | x_n,-d) over the units that rows have, (N,), not of documents."""
    there, total = units_there(energy, rows), torch.zeros_like(rows.base)
    width = rows.statistic.shape[1] // there.shape[1]
    for number in range(there.shape[1]):
        unit = torch.full((len(rows),), number, device=total.device)
        if energy.visible.is_vector:
            value = rows.statistic[:, number * width : (number + 1) * width].argmax(-1)
            each = _of_category(energy, rows, unit, value)
        else:
            each = _of_unit(energy, rows, unit)
        total += torch.where(there[:, number] > 0, each, 0.0)
    return total


def units_there(energy: Energy, rows: HarmoniumRows) -> Tensor:
    """How often each visible unit of a row was observed, (N, D)."""
    if energy.visible.is_vector:
        width = energy.visible.num_categories  # pyright: ignore[reportAttributeAccessIssue]
        return rows.statistic.view(len(rows), -1, width).sum(-1)
    if rows.missing is not None:
        return 1 - rows.missing
    return torch.ones_like(rows.statistic) if rows.times is None else rows.times


def _of_category(energy: Energy, rows: HarmoniumRows, unit: Tensor, value: Tensor) -> Tensor:
    """log p(unit = value | the others), (N,), of one unit of every row."""
    width = energy.visible.num_categories  # pyright: ignore[reportAttributeAccessIssue]
    column = unit.unsqueeze(1) * width + torch.arange(width, device=unit.device)
    rest = energy.zeta(rows.statistic) - energy.weight.mT[unit * width + value]
    moved = rest.unsqueeze(1) + energy.weight.mT[column]
    logit = energy.visible_bias[column] + log_normaliser_of(energy.hidden, moved).sum(-1)
    return torch.log_softmax(logit, -1).gather(1, value.unsqueeze(1))[:, 0]


def _of_unit(energy: Energy, rows: HarmoniumRows, unit: Tensor) -> Tensor:
    """log p(x_d | the others), (N,), of one unit d of every row."""
    every = torch.arange(len(rows), device=rows.like.device)
    own, weight, bias = rows.statistic[every, unit], energy.weight.mT[unit], energy.visible_bias[unit]
    rest = energy.zeta(rows.statistic) - own.unsqueeze(1) * weight
    value, log_base = _values_of_unit(energy, own)
    moved = rest.unsqueeze(1) + value.unsqueeze(-1) * weight.unsqueeze(1)
    score = value * bias.unsqueeze(1) + log_normaliser_of(energy.hidden, moved).sum(-1) + log_base
    return score[:, 0] - torch.logsumexp(score[:, 1:], -1)


def _values_of_unit(energy: Energy, own: Tensor) -> tuple[Tensor, Tensor]:
    """Values of a unit, its own first and then those that normalise, (N, 1 + S), with the logarithm of r and of what
    the sum is weighted by: x and 1 - x (of 0/1 data 0 and 1; of probabilities as scikit-learn has it), or a fine grid
    of a real one."""
    if energy.visible.kind == "binary":
        both = torch.stack([own, own, 1 - own], 1)
        return both, torch.zeros_like(both)
    grid = torch.linspace(-12, 12, 97, dtype=own.dtype, device=own.device)
    value = torch.cat([own.unsqueeze(1), (own.unsqueeze(1) + grid)], 1)
    step = torch.full_like(value, math.log(0.25))
    step[:, 0] = 0.0
    return value, energy.visible.log_base(value) + step
