"""Starts of programs with Gaussian latents, from the data: the columns' means, slopes that explain a part of what is
observed, whatever its units, and principal components as latents."""

from __future__ import annotations

from collections.abc import Container, Sequence

import torch
from torch import Tensor
from torch.distributions import constraints

from custom_inference.compiled.counts import find_spread
from custom_inference.compiled.gaussian.affine import as_matrices
from custom_inference.compiled.gaussian.rows import GaussianRows, Solved
from custom_inference.compiled.gaussian.steps import GaussianSteps, gaussian_steps_of
from custom_inference.core.engine import Params
from ppl_models import Model
from ppl_models.core.hierarchy import typical_values

#: The part of what is observed that latents explain in a start, and the variance of latents that are taken for known
#: there, as a part of their own.
_EXPLAINED, _UNSURE = 0.5, 0.1
#: M steps in which scales that start at the middle of their priors come to the data's.
_SETTLED = 10


def start_at_random(model: Model, rows: GaussianRows, generator: torch.Generator) -> Params:
    """Start with random slopes that explain a part of what is observed, at the best intercepts and scales for latents
    at their prior means."""
    steps = gaussian_steps_of(model, rows)
    state = {**typical_values(model), **model.known}
    state = {site: state[site].double().expand(shape).clone() for site, shape in steps.entries.shapes.items()}
    prior = _solve_prior(rows, state)
    at_mean = prior._replace(covariance=torch.zeros_like(prior.covariance))
    moments = _observe(steps, rows, at_mean)
    drawn = _draw_slopes(steps, state, moments, prior, generator)
    # Of latents at their means nothing is known about slopes, which priors would bring back to where they were.
    state = _fit_observed(steps, state | drawn, moments, held=drawn)
    state = _scale_latents(steps, rows, state)
    return {site: value.to(rows.like) for site, value in state.items()}


def start_at_components(model: Model, rows: GaussianRows, state: Params) -> Params:
    """Start with principal components of what is observed as latents, where latents are independent and have slopes
    that are learned; else as ``state`` is."""
    steps = gaussian_steps_of(model, rows)
    wide = {site: value.double() for site, value in state.items()}
    flat, size = steps.entries.flatten(wide), rows.structure.size
    chained = any(
        drawn is not None and len(b.scopes[0]) > 1 for b, drawn in zip(steps.blocks, steps.drawn, strict=True)
    )
    if chained or not _learns_slopes(steps):
        return state
    prior, columns = _solve_prior(rows, wide), list[Tensor]()
    for block, part, term, drawn in zip(rows.blocks, rows.parts, rows.terms(flat), steps.drawn, strict=True):
        if drawn is None:
            own = (part.x - rows.find_means(block, term, prior.mean)).flatten(1)
            seen = torch.ones_like(own) if part.seen is None else part.seen.flatten(1).to(own)
            deviation = ((own.square() * seen).sum(0) / seen.sum(0).clamp(min=1)).sqrt()
            columns.append(own * seen / deviation.clamp(min=1e-300))
    every = torch.cat(columns, 1)
    if size > min(every.shape):
        return state
    left, value, _ = torch.linalg.svd(every, full_matrices=False)
    share = (value[:size] / value[0].clamp(min=1e-300)).clamp(max=1.0)
    deviation = prior.covariance[0].diagonal().sqrt()
    mean = prior.mean + left[:, :size] * len(rows) ** 0.5 * deviation
    spread = torch.diag(_UNSURE * deviation.square() * (2 - share))[None]
    moments = _observe(steps, rows, prior._replace(mean=mean, covariance=spread))
    found = _fit_observed(steps, wide, moments)
    return {site: value.to(rows.like) for site, value in found.items()}


def _solve_prior(rows: GaussianRows, state: Params) -> Solved:
    """Return the latents of all rows as they are without data, with the covariance of the first row's."""
    found = rows.solve(rows.structure.entries.flatten(state), 0.0)
    return found._replace(covariance=found.covariance[:1], pattern=torch.zeros_like(found.pattern))


def _observe(steps: GaussianSteps, rows: GaussianRows, latents: Solved) -> list[Tensor]:
    """Return the moments of what is observed at some latents, 0 of the latents themselves."""
    found = list[Tensor]()
    for place, drawn in enumerate(steps.drawn):
        own = rows.moments(place, latents)
        found.append(own if drawn is None else torch.zeros_like(own))
    return found


def _fit_observed(
    steps: GaussianSteps, state: Params, moments: Sequence[Tensor], held: Container[str] = ()
) -> Params:  # fmt: skip
    """Return the state after an M step of the sites that the moments say something about, but for some."""
    none = [None] * len(moments)
    closed = {site: role for site, role in steps.roles.items() if _stands_in_observed(steps, site) and site not in held}
    own = steps.restrict(closed)
    for _ in range(_SETTLED):  # under priors of any width, which an M step crosses in several
        state = own.advance(state, moments, 1.0, none)
    return state


def _stands_in_observed(steps: GaussianSteps, site: str) -> bool:
    pairs = zip(steps.blocks, steps.drawn, strict=True)
    return any(drawn is None and site in block.sites for block, drawn in pairs)


def _learns_slopes(steps: GaussianSteps) -> bool:
    """Whether some slopes of what is observed are entries that are solved for."""
    for place, own in steps.coefficients.items():
        if steps.drawn[place] is None and bool(((own.part > 1) & (own.slope != 0)).any()):
            return True
    return False


def _draw_slopes(
    steps: GaussianSteps, state: Params, moments: Sequence[Tensor], prior: Solved, generator: torch.Generator
) -> Params:
    """Return the sites that have entries which are slopes of what is observed, with these drawn so large that latents
    explain a part of its variance."""
    flat, variance = steps.entries.flatten(state), prior.covariance[0].diagonal()
    size, number = torch.zeros_like(flat), torch.zeros_like(flat)
    for block, counted, drawn in zip(steps.blocks, moments, steps.drawn, strict=True):
        sums = block.sources[0].as_sums() if drawn is None else None
        if sums is None or sums.link != "identity":
            continue
        own = as_matrices(counted)[:, 0]  # (G, U, 2 + R, 2 + R)
        if float(own[..., 1, 1].max()) < 1.5:
            own = own.sum(1, keepdim=True).expand_as(own)
        squares, count = find_spread(own[..., 0, 0], own[..., 0, 1], own[..., 1, 1])
        deviation = (squares / count.clamp(min=1e-300)).sqrt().reshape(-1)  # (G U,)
        wide, many = sums.shape[-1], len(block.scopes[0])
        cell, part = sums.place // wide, sums.place % wide
        slopes = part > 0
        cell, part, entry, slope = (one[slopes] for one in (cell, part, sums.entry, sums.slope.double()))
        latent = torch.tensor(block.scopes)[cell // own.shape[1], part - 1]
        each = deviation[cell] * (_EXPLAINED / many / variance[latent].clamp(min=1e-300)).sqrt() / slope.abs()
        size, number = size.index_add(0, entry, each), number.index_add(0, entry, torch.ones_like(each))
    drawn = torch.randn(flat.shape, generator=generator, dtype=torch.float64) * size / number.clamp(min=1)
    found = steps.entries.unflatten(torch.where(number > 0, drawn, flat))
    part, model = steps.entries.slices, steps.model
    real = [site for site in model.unknown_sites if model.supports[site] is constraints.real]
    return {site: found[site] for site in real if bool((number[part[site]] > 0).any())}


def _scale_latents(steps: GaussianSteps, rows: GaussianRows, state: Params) -> Params:
    """Multiply the standard deviations of latents so that these explain a part of the variance of what is observed."""
    sites = [site for site in steps.sites_in("spread") if not _stands_in_observed(steps, site)]
    if not sites:
        return state
    flat = steps.entries.flatten(state)
    covariance, explained, left = _solve_prior(rows, state).covariance[0], 0.0, 0.0
    for block, term, drawn in zip(rows.blocks, rows.terms(flat), steps.drawn, strict=True):
        if drawn is None:
            scope = torch.tensor(block.scopes, dtype=torch.long)
            own = covariance[scope.unsqueeze(-1), scope.unsqueeze(-2)]  # (G, R, R)
            explained += float(torch.einsum("ngur,grs,ngus->ngu", term.slope, own, term.slope).mean(0).sum())
            left += float(term.scale.square().mean(0).sum())
    factor = (_EXPLAINED * left / max(explained, 1e-300)) ** 0.5
    return {**state, **{site: factor * state[site] for site in sites}} if explained > 0 else state
