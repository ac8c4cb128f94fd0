"""Starts of programs of finite latents beside Gaussian ones: groups of rows that are alike for the values of the finite
ones, and races among them."""

from __future__ import annotations

import torch
from torch import Tensor

from custom_inference.compiled.gaussian.rows import GaussianRows
from custom_inference.compiled.gaussian.starts import start_at_components, start_at_random
from custom_inference.compiled.gaussian.steps import gaussian_steps_of
from custom_inference.core.engine import Params
from custom_inference.families.common.distances import distant_rows, squared_distances
from ppl_models import Model

#: Groups at most, and rows of each at least; passes in which rows come to the nearest mean.
_GROUPS, _LEAST, _PASSES = 12, 4, 5
#: The share that a row has in its own group; iterations in which groups are held.
_OWN, _HELD = 0.9, 3
#: Directions of what is observed whose part of the largest variance is less are not made as long as others.
_FLAT = 1e-6


def start_at_groups(model: Model, rows: GaussianRows, generator: torch.Generator, *, whitened: bool) -> Params:
    """Start with rows that are alike at the same value of the finite latents. whitened: alike in all directions that
    differ from each other, as those are not in which a Gaussian latent moves all of them."""
    share = draw_groups(rows, generator, whitened=whitened)
    state = start_at_random(model, rows, generator, share)
    state = start_at_components(model, rows, state, share)
    steps, held = gaussian_steps_of(model, rows), share.log()
    for _ in range(_HELD):
        flat = steps.entries.flatten({site: value.double() for site, value in state.items()})
        counted, _ = rows.expect(flat, held=held)
        state = steps.advance(state, counted, float(len(rows)), rows.all_parts)
    return state


def draw_groups(rows: GaussianRows, generator: torch.Generator, *, whitened: bool) -> Tensor:
    """Return the probabilities (N, C) of the values of the finite latents where alike rows have the same."""
    features, values = _features_of(rows, whitened), len(rows.structure.codes)
    number = max(1, min(values, _GROUPS, len(rows) // _LEAST))
    centre = features[distant_rows(squared_distances(features), torch.ones(len(rows)), number, generator)]
    group = torch.zeros(len(rows), dtype=torch.long)
    for _ in range(_PASSES):
        group = torch.cdist(features, centre).argmin(1)
        sums = torch.zeros_like(centre).index_add(0, group, features)
        many = torch.bincount(group, minlength=number).unsqueeze(1)
        centre = torch.where(many > 0, sums / many.clamp(min=1), centre)
    value = torch.randperm(values, generator=generator)[:number][group]
    found = torch.full((len(rows), values), (1 - _OWN) / values, dtype=torch.float64)
    found[torch.arange(len(rows)), value] += _OWN
    return found


def _features_of(rows: GaussianRows, whitened: bool) -> Tensor:
    """Return what is observed of rows, column by column in units of what it varies, 0 where it is missing."""
    columns = list[Tensor]()
    for block, part in zip(rows.blocks, rows.parts, strict=True):
        if not rows.is_latent(block):
            own = part.x.flatten(1)
            seen = torch.ones_like(own) if part.seen is None else part.seen.flatten(1).to(own)
            number = seen.sum(0).clamp(min=1)
            apart = (own - (own * seen).sum(0) / number) * seen
            columns.append(apart / (apart.square().sum(0) / number).sqrt().clamp(min=1e-300))
    for part in () if rows.finite is None else rows.finite.parts:
        if part is not None and part.features is not None:
            own = part.features.transpose(0, 1).flatten(1).double()
            columns.append((own - own.mean(0)) / own.std(0, correction=0).clamp(min=1e-9))
    every = torch.cat(columns, 1)
    if not whitened:
        return every
    left, size, _ = torch.linalg.svd(every, full_matrices=False)
    return left[:, size.square() > _FLAT * size[0].square()]
