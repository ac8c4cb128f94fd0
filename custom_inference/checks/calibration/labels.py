"""Matching of components between draws, such that ranks stay uniform.

Where components are exchangeable, the posterior is the same under every renaming of them, and a rank of "component 1"
needs a rule that says which one that is. Let T_R(theta) be theta with its components matched to a reference R, and let
R be a function of the data (and of random numbers that know nothing of the truth): here the point estimate of the fit.
Given the data the true theta and draws from the exact posterior are independent with one distribution; T_R is one and
the same function of each, so T_R(theta) and the T_R(draws) have one distribution too, and the rank is uniform. Since
T_R(theta) is the same for all renamings of theta, nothing is asked of the sampler: it may stay in one labelling or
switch between all. (A sampler's estimate is a mean over its draws, of which the ranked ones are a few.) Where priors
tell some components apart, the others are renamed among themselves.

Matching the draws to the truth would be a rule T_theta that treats the two sides unlike each other: every draw is
brought as close to the truth as renaming can, the truth ends up in the middle of the draws, and ranks of an exact
posterior pile up in the centre (``tests/checks/calibration_parts_test.py`` shows both).

Ties of the matching (two empty blocks) are broken by order, which renaming changes; so everything is renamed at random
first. Test quantities that do not depend on names (log p(x | theta), log p(x, theta)) need none of this.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from custom_inference.core.align import align, match_components, rename_components
from custom_inference.core.isolation import default_dtype, isolated
from ppl_models import Model

Values = dict[str, Tensor]


def match_to_reference(
    model: Model, values: Values, reference: Values, generator: torch.Generator, sets: Sequence[Sequence[int]]
) -> Values:
    """T_R: values of one draw, the components of each set matched to those of the reference."""
    order = torch.arange(model.sizes["component"])
    for one in map(torch.tensor, sets):
        order[one] = one[torch.randperm(len(one), generator=generator)]
    moved = rename_components(values, order.tolist(), model.dims)
    if model.is_graph:  # blocks are matched by their nodes, or by rows and columns at once
        return align(moved, to=reference, within=sets).apply(moved, model.dims)
    site = model.component_site
    axis = model.dims[site].index("component")
    known, found = (side[site].movedim(axis, 0) for side in (reference, moved))
    return match_components(known, found, within=sets).apply(moved, model.dims)


def prior_draw(model: Model, seed: int, *, num_rows: int = 0) -> Values:
    """Globals from their priors, and the locals of so many rows where the model has a prior of these."""
    like = torch.zeros((), dtype=torch.float64)
    with isolated(seed), default_dtype(torch.float64), torch.no_grad():
        draw: Values = {}
        for site in model.global_sites:
            draw[site] = model.prior(site, like=like, values=draw).sample()
        if num_rows and {model.local_site, *model.part_sites} & set(model.priors):
            prior: Any = model.prior(model.local_site, like=like, values=draw)
            draw[model.local_site] = prior.sample(torch.Size([num_rows]))
    return draw
