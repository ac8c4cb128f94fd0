"""Draws from a fitted machine, and what it says of what was not observed (Murphy 2012, sections 27.7.2.3 and
27.7.3)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from custom_inference.core.fit import Fit
from custom_inference.core.settings import require_whole
from custom_inference.families.boltzmann import common
from custom_inference.families.boltzmann.annealing import MachinePath
from custom_inference.families.boltzmann.chains import Chains
from custom_inference.families.boltzmann.common import HarmoniumRows, column_naturals, require_machine
from ppl_models import MethodError
from ppl_models.core.errors import unknown_name
from ppl_models.distributions import Energy
from ppl_models.distributions.energy import log_normaliser_of
from ppl_models.rbm import HarmoniumModel

#: How rows are drawn.
HOW = ("gibbs", "annealed", "tempered")
#: Hidden units of which missing entries have exact means, and entries of a block of their table.
_FEW_BITS, _BLOCK = 12, 2**22


def fantasies(
    fit: Fit, num_rows: int = 16, *, how: str = "tempered", sweeps: int = 1000, temperatures: int = 20, seed: int = 0
) -> Tensor:
    """Rows (num_rows, D) of a fitted RBM by Markov chains from independent units, at any size.

    how: "gibbs", so many block Gibbs sweeps; "annealed", sweeps whose temperature moves from independent units to
    the machine; "tempered", chains at several ``temperatures`` that exchange states. ``fit.sample`` draws exactly where
    that is feasible.
    """
    if how not in HOW:
        raise MethodError(unknown_name("way of drawing", how, HOW))
    model = require_machine(fit.model)
    if model.sites[model.observed_site].sparse:
        raise MethodError("documents are drawn by fit.sample; expected an RBM")
    require_whole("num_rows", num_rows, 1)
    require_whole("sweeps", sweeps, 1)
    energy, generator = model.energy(fit.globals), torch.Generator().manual_seed(seed)
    rows = HarmoniumRows.of(model, fit.data)
    base = column_naturals(model, rows).flatten().to(energy.weight)
    with torch.no_grad():
        if how == "tempered":
            chains = Chains.of("pt", sweeps, num_rows, temperatures, energy, base, HarmoniumRows(rows.statistic[:1],
                               rows.base[:1]), generator)  # fmt: skip
            statistic = chains.negative(energy, rows.statistic[:1], torch.zeros(1, dtype=torch.long))
        else:
            statistic = energy.draw_statistic(base.expand(num_rows, -1), generator)
            if how == "gibbs":
                statistic = energy.gibbs(statistic, sweeps, generator)
            else:
                betas = torch.linspace(0, 1, sweeps + 1, dtype=torch.float64).tolist()
                statistic = MachinePath(energy, base).run(statistic, betas, generator)[0]
    return entries_of(model, statistic)


def entries_of(model: HarmoniumModel, statistic: Tensor) -> Tensor:
    """x of statistics."""
    if not model.likelihood.is_vector:
        return _of_data(model, statistic)
    return statistic.unflatten(-1, (-1, model.likelihood.num_categories)).argmax(-1).to(statistic)


def complete(
    fit: Fit,
    x: Any = None,
    *,
    mask: Any = None,
    sweeps: int = 500,
    temperatures: int = 10,
    length: int | None = None,
    seed: int = 0,
) -> Tensor:
    """What a machine expects of what was not observed, given what was: (N, D), or (N, D, C) of categories.

    Observed entries are as they are (of categories indicators); the others E[x_d | observed], of 0/1 data and
    categories probabilities. Missing entries that exist ("summed") have exact means where the hidden units of a row
    have few states; else they are averaged over ``sweeps`` Gibbs sweeps of these and the hidden units, by chains at so
    many ``temperatures`` that exchange states (1: a single chain a row, which may stay in one mode). Of absent units,
    and of the next token of a document, which gives (N, V) probabilities of the words,

        p(unit = c | row) proportional to exp(b_c + sum_k A_h(zeta_k + w_kc)):    the row with that unit, h summed out

    length: of the documents, of which x are some of the tokens; None: those that x has, and one more.
    """
    model = require_machine(fit.model)
    data = fit.read(x, mask)
    rows = HarmoniumRows.of(model, data)
    with torch.no_grad():
        if model.sites[model.observed_site].sparse:
            assert rows.times is not None
            times = rows.times + 1 if length is None else torch.full_like(rows.times, float(length))
            energy = model.energy_of_rows(fit.globals, times)
            return torch.softmax(_logits_of_one_more(energy, energy.zeta(rows.statistic)), -1)
        dense = data.dense()
        observed = dense.observed
        if model.likelihood.is_vector:
            observed = observed.unsqueeze(-1)
        shape = (*dense.x.shape, -1) if model.likelihood.is_vector else dense.x.shape
        if rows.times is not None:
            expected = _absent(model, fit, rows)
        elif rows.missing is not None:
            require_whole("sweeps", sweeps, 1)
            require_whole("temperatures", temperatures, 1)
            expected = _missing(model, fit, rows, sweeps, temperatures, torch.Generator().manual_seed(seed))
        else:
            expected = rows.statistic
        return _of_data(model, torch.where(observed, rows.statistic.view(shape), expected.view(shape)))


def _of_data(model: HarmoniumModel, statistic: Tensor) -> Tensor:
    """Convert values of real units to the units of the data."""
    centre, unit = model.units
    return statistic if (centre, unit) == (0.0, 1.0) else centre + unit * statistic


def _missing(
    model: HarmoniumModel, fit: Fit, rows: HarmoniumRows, sweeps: int, temperatures: int, generator: torch.Generator
) -> Tensor:
    """E[t | row] of the units of a row that were not observed, (N, M)."""
    hole = common.clamp_to_rows(model.energy(fit.globals), rows)
    if hole.closed_form:
        return hole.visible_mean(hole.gaussian()[1])
    if hole.bits[0] <= _FEW_BITS:
        codes, parts = hole.codes, []
        mean = model.energy(fit.globals).visible_mean(codes)
        for block in torch.arange(len(rows)).split(max(1, _BLOCK // len(codes))):
            own = common.clamp_to_rows(model.energy(fit.globals), rows.select(block))
            parts.append(torch.softmax(own.log_weights(codes), -1) @ mean)
        return torch.cat(parts)
    base = column_naturals(model, HarmoniumRows.of(model, fit.data)).flatten().to(hole.weight)
    betas = torch.linspace(0, 1, temperatures).to(base) if temperatures > 1 else base.new_ones(1)
    state = hole.draw_statistic(base.expand(len(betas), *rows.statistic.shape), generator)
    chains = Chains("pt", 1, base, generator, betas, state)
    total, every = torch.zeros_like(rows.statistic), torch.arange(len(rows))
    for sweep in range(sweeps):
        statistic = chains.negative(hole, rows.statistic, every)
        if sweep >= sweeps // 5:
            total += hole.visible_mean(hole.draw_hidden(statistic, generator))
    return total / (sweeps - sweeps // 5)


def _logits_of_one_more(energy: Energy, zeta: Tensor) -> Tensor:
    """b_c + sum_k A_h(zeta_nk + w_kc) of every row and every statistic of one unit, (N, M), in blocks."""
    size = max(1, 2**22 // max(1, energy.weight.numel()))
    parts = [
        log_normaliser_of(energy.hidden, part.unsqueeze(1) + energy.weight.mT).sum(-1) for part in zeta.split(size)
    ]
    return energy.visible_bias + torch.cat(parts)


def _absent(model: HarmoniumModel, fit: Fit, rows: HarmoniumRows) -> Tensor:
    """Probabilities of units that a row does not have, were they there."""
    energy = common.free_energy_of(model, fit.globals, rows)
    if model.likelihood.kind == "real":
        return model.energy(fit.globals).eta(energy.hidden_mean(rows.statistic))
    zeta = energy.zeta(rows.statistic)
    logit = _logits_of_one_more(energy, zeta)
    if model.likelihood.is_vector:
        return torch.softmax(logit.unflatten(-1, (-1, model.likelihood.num_categories)), -1).flatten(1)
    return torch.sigmoid(logit - log_normaliser_of(energy.hidden, zeta).sum(-1, keepdim=True))
