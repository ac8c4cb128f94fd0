"""Starts of programs with Gaussian latents, from the data: the columns' means, slopes that explain a part of what is
observed, whatever its units, and principal components as latents; beside finite latents, groups of rows that are alike.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

import torch
from torch import Tensor
from torch.distributions import constraints

from custom_inference.compiled.counts import find_spread
from custom_inference.compiled.gaussian.affine import as_matrices
from custom_inference.compiled.gaussian.rows import GaussianRows, Solved, scope_of
from custom_inference.compiled.gaussian.steps import GaussianSteps, gaussian_steps_of
from custom_inference.core.engine import Params
from ppl_models import Model
from ppl_models.core.hierarchy import typical_values

#: The part of what is observed that latents explain in a start, and the variance of latents that are taken for known
#: there, as a part of their own.
_EXPLAINED, _UNSURE = 0.5, 0.1
#: M steps in which scales that start at the middle of their priors come to the data's.
_SETTLED = 10
#: The least root of the weight of a row.
_LITTLE = 1e-3


def start_at_random(
    model: Model, rows: GaussianRows, generator: torch.Generator, share: Tensor | None = None
) -> Params:  # fmt: skip
    """Start with random slopes that explain a part of what is observed, at the best intercepts and scales for latents
    at their prior means. share: (N, C) probabilities of the values of finite latents; without these all are as
    probable, and intercepts are moved apart."""
    steps = gaussian_steps_of(model, rows)
    state = {**typical_values(model), **model.known}
    state = {site: state[site].double().expand(shape).clone() for site, shape in steps.entries.shapes.items()}
    prior = _solve_prior(rows, state)
    at_mean = prior._replace(covariance=torch.zeros_like(prior.covariance))
    moments = _observe(steps, rows, at_mean, share)
    slopes, intercepts = _find_units(steps, rows, moments, prior)
    drawn = _move(steps, state, slopes, generator, replaces=True)
    # Of latents at their means nothing is known about slopes, which priors would bring back to where they were.
    state = _fit_observed(steps, state | drawn, moments, held=drawn)
    if rows.finite is not None and share is None:
        state |= _move(steps, state, intercepts, generator, replaces=False)
    state = _scale_latents(steps, rows, state)
    return {site: value.to(rows.like) for site, value in state.items()}


def start_at_components(model: Model, rows: GaussianRows, state: Params, share: Tensor | None = None) -> Params:
    """Start with principal components of what is observed as latents, where latents are independent and have slopes
    that are learned; else as ``state`` is. share: (N, C) probabilities of the values of finite latents, each of which
    has components of its own."""
    steps = gaussian_steps_of(model, rows)
    wide = {site: value.double() for site, value in state.items()}
    flat, size = steps.entries.flatten(wide), rows.structure.size
    chained = any(drawn is not None and len(b.scopes[0]) > 1 for b, drawn in zip(rows.blocks, steps.drawn, strict=True))
    if chained or not _learns_slopes(steps):
        return state
    prior = _solve_prior(rows, wide)
    weight = torch.ones(1, len(rows), 1).double() if share is None else share.T.double().unsqueeze(-1)
    columns = list[Tensor]()
    for block, part, term, drawn in zip(rows.blocks, rows.parts, rows.terms(flat), steps.drawn, strict=True):
        if drawn is None:
            own = (part.x - term.find_means(prior.mean[..., scope_of(block)])).flatten(2)  # (C, N, ...)
            seen = weight * (torch.ones_like(own) if part.seen is None else part.seen.flatten(1))
            deviation = ((own.square() * seen).sum(1) / seen.sum(1).clamp(min=1e-300)).sqrt().unsqueeze(1)
            columns.append(own * seen.sqrt() / deviation.clamp(min=1e-300))
    every = torch.cat(columns, 2)
    if size > min(every.shape[1:]):
        return state
    left, root, _ = torch.linalg.svd(every, full_matrices=False)
    part_of = (root[:, :size] / root[:, :1].clamp(min=1e-300)).clamp(max=1.0)
    deviation = prior.covariance[:, :1].diagonal(dim1=-2, dim2=-1).sqrt()  # (C, 1, W)
    scale = weight.sum(1, keepdim=True).sqrt() / weight.sqrt().clamp(min=_LITTLE)
    spread = torch.diag_embed(_UNSURE * deviation.square() * (2 - part_of.unsqueeze(1)))
    latents = prior._replace(mean=prior.mean + left[..., :size] * scale * deviation, covariance=spread)
    found = _fit_observed(steps, wide, _observe(steps, rows, latents, share))
    return {site: value.to(rows.like) for site, value in found.items()}


def _solve_prior(rows: GaussianRows, state: Params) -> Solved:
    """Return the real latents of all rows as they are without data, with the covariance of the first row's."""
    found = rows.solve(rows.structure.entries.flatten(state), 0.0)
    return found._replace(covariance=found.covariance[:, :1], pattern=torch.zeros_like(found.pattern))


def _observe(steps: GaussianSteps, rows: GaussianRows, latents: Solved, share: Tensor | None) -> list[Tensor]:
    """Return the moments of what is observed and of finite latents at some real latents, 0 of these themselves."""
    values = len(rows.structure.codes)
    every = torch.full((len(rows), values), 1 / values).double() if share is None else share.double()
    found = rows.gather(latents, every)
    zeros = [drawn is not None for drawn in steps.drawn] + [False] * (len(found) - len(steps.drawn))
    return [torch.zeros_like(own) if zero else own for own, zero in zip(found, zeros, strict=True)]


def _fit_observed(
    steps: GaussianSteps, state: Params, moments: Sequence[Tensor], held: Container[str] = ()
) -> Params:  # fmt: skip
    """Return the state after an M step of the sites that the moments say something about, but for some."""
    none = [None] * len(moments)  # which only what is climbed asks for
    closed = {site: role for site, role in steps.roles.items() if _stands_in_observed(steps, site) and site not in held}
    own = steps.restrict(closed)
    for _ in range(_SETTLED):  # under priors of any width, which an M step crosses in several
        state = own.advance(state, moments, 1.0, none)
    return state


def _stands_in_observed(steps: GaussianSteps, site: str) -> bool:
    own = [block for block, drawn in zip(steps.blocks, steps.drawn, strict=False) if drawn is None]
    return any(site in block.sites for block in (*own, *steps.blocks[len(steps.drawn) :]))


def _learns_slopes(steps: GaussianSteps) -> bool:
    """Whether some slopes of what is observed are entries that are solved for."""
    for place, own in steps.coefficients.items():
        if steps.drawn[place] is None and bool(((own.part > 1) & (own.slope != 0)).any()):
            return True
    return False


def _find_units(
    steps: GaussianSteps, rows: GaussianRows, moments: Sequence[Tensor], prior: Solved
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Find how large entries are that are slopes of what is observed where latents explain a part of its variance, and
    by how much those of intercepts change it as much as it varies: (entries,) each, 0 of others."""
    variance = prior.covariance[:, 0].diagonal(dim1=-2, dim2=-1).mean(0)
    zeros = variance.new_zeros(sum(torch.Size(shape).numel() for shape in steps.entries.shapes.values()))
    size, number, change, times = zeros, zeros, zeros, zeros
    for block, counted, drawn in zip(rows.blocks, moments, steps.drawn, strict=False):
        sums = block.sources[0].as_sums() if drawn is None else None
        if sums is None or sums.link != "identity":
            continue
        own = as_matrices(counted)  # (G, C, U, 2 + R, 2 + R)
        own = own.sum(1, keepdim=True).expand_as(own)
        if float(own[..., 1, 1].max()) < 1.5:
            own = own.sum(2, keepdim=True).expand_as(own)
        squares, count = find_spread(own[..., 0, 0], own[..., 0, 1], own[..., 1, 1])
        deviation = (squares / count.clamp(min=1e-300)).sqrt()
        wide, many, cells = sums.shape[-1], len(block.scopes[0]), deviation[0].numel()
        cell, part, slope = sums.place // wide, sums.place % wide, sums.slope.double().abs()
        each = deviation.reshape(-1)[cell]
        if many:
            latent = torch.tensor(block.scopes)[cell // cells, (part - 1).clamp(min=0)]
            long = each * (_EXPLAINED / many / variance[latent].clamp(min=1e-300)).sqrt() / slope
            of_slopes = (part > 0).to(each)
            size = size.index_add(0, sums.entry, long * of_slopes)
            number = number.index_add(0, sums.entry, of_slopes)
        of_intercepts = (part == 0).to(each)
        change = change.index_add(0, sums.entry, of_intercepts * (slope / each.clamp(min=1e-300)).square())
        times = times.index_add(0, sums.entry, of_intercepts)
    apart = torch.where(change > 0, (times / change.clamp(min=1e-300)).sqrt(), zeros)
    return size / number.clamp(min=1), apart


def _move(
    steps: GaussianSteps, state: Params, size: Tensor, generator: torch.Generator, *, replaces: bool
) -> dict[str, Tensor]:  # fmt: skip
    """Return the sites that have entries of some size, with noise of that size added to these, or in their place."""
    flat = steps.entries.flatten(state)
    drawn = torch.randn(flat.shape, generator=generator, dtype=torch.float64) * size
    found = steps.entries.unflatten(torch.where(size > 0, drawn if replaces else flat + drawn, flat))
    part, model = steps.entries.slices, steps.model
    real = [site for site in model.unknown_sites if model.supports[site] is constraints.real]
    return {site: found[site] for site in real if bool((size[part[site]] > 0).any())}


def _scale_latents(steps: GaussianSteps, rows: GaussianRows, state: Params) -> Params:
    """Multiply the standard deviations of latents so that these explain a part of the variance of what is observed."""
    sites = [site for site in steps.sites_in("spread") if not _stands_in_observed(steps, site)]
    if not sites:
        return state
    flat = steps.entries.flatten(state)
    covariance, explained, left = _solve_prior(rows, state).covariance[:, 0], 0.0, 0.0
    for block, term, drawn in zip(rows.blocks, rows.terms(flat), steps.drawn, strict=True):
        if drawn is None:
            scope = scope_of(block)
            own = covariance[:, scope.unsqueeze(-1), scope.unsqueeze(-2)]  # (C, G, R, R)
            explained += float(torch.einsum("cngur,cgrs,cngus->cngu", term.slope, own, term.slope).mean(1).sum())
            left += float(term.scale.square().mean(1).sum())
    factor = (_EXPLAINED * left / max(explained, 1e-300)) ** 0.5
    return {**state, **{site: factor * state[site] for site in sites}} if explained > 0 else state
