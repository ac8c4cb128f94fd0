"""Labels of what may change places in a program of one's own, whatever its axes are called: values of the globals are
brought into the order of others, before they are averaged or compared."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.distributions import constraints

from custom_inference.compiled.admixture.labels import find_axes
from custom_inference.compiled.admixture.reader import recall_admixture
from custom_inference.compiled.admixture.structure import AdmixtureStructure
from custom_inference.compiled.derive import structure_if_known, structure_of
from custom_inference.compiled.moves import Exchangeable, find_exchangeable, scale_alike
from custom_inference.compiled.reading import NotCompiled
from custom_inference.compiled.structure import Structure
from custom_inference.core.align import align_draws, match_blocks
from custom_inference.core.exchangeable import exchangeable
from custom_inference.core.latent_values import is_own_of_rows
from ppl_models import Data, Model, PPLError

Values = Mapping[str, Tensor]

#: Assignments in turn at most, of tables both of whose axes are the places'.
_TURNS = 20
#: What log densities of priors may differ by, relative to their size.
_SAME = 1e-9


def find_places(model: Model) -> list[Exchangeable]:
    """Find the axes of the globals of a program along which values may be reordered: the rows do not tell their places
    apart, nor do the priors. None of a program that was not compiled."""
    structure, of_shares = structure_if_known(model), recall_admixture(model)
    if structure is None:
        return [] if of_shares is None else [one for one in find_axes(of_shares) if _keeps_priors(of_shares, one)]
    return [one for one in find_exchangeable(structure) if _keeps_priors(structure, one)]


def _keeps_priors(structure: Structure | AdmixtureStructure, places: Exchangeable) -> bool:
    values = structure.probe.draw_globals()
    one, other = (
        structure.model.log_prior(dict(v))
        for v in (values, places.permute(values, torch.arange(places.size).roll(1)))
    )  # fmt: skip
    order = torch.arange(places.size)
    order[:2] = torch.tensor([1, 0])
    third = structure.model.log_prior(places.permute(values, order))
    return all(bool((one - again).abs() <= _SAME * (1 + one.abs())) for again in (other, third))


def reorder(
    model: Model, values: Values, reference: Values, places: Sequence[Exchangeable] | None = None
) -> dict[str, Tensor]:
    """Return values of the globals, and of latents as the program draws them, with all that may change places in the
    order of the reference's. places: those of the model, where they are at hand."""
    found = dict(values)
    for one in find_places(model) if places is None else places:
        sites, turned = ({s: own for s, own in part.items() if s in found} for part in (one.sites, one.turned))
        known = replace(one, sites=sites, turned=turned)
        order = match_places(known, reference, found)
        found = known.permute(found, order)
        for site in _latents_of(model, one) & set(found):
            value = found[site]
            if model.sites[site].choice is not None or site in _bits_of(model, one):
                found[site] = torch.argsort(order).to(value)[value.long()]
            else:
                found[site] = value.index_select(-1, order)
    return found


def _latents_of(model: Model, places: Exchangeable) -> set[str]:
    """The latents whose values, or whose elements, are the places."""
    structure = structure_if_known(model)
    if structure is None:
        return set()
    return {structure.variables.names[v] for v in (*places.choices, *(v for group in places.bits for v in group))}


def _bits_of(model: Model, places: Exchangeable) -> set[str]:
    """The latents that are bits, 0 or 1 of which is which of two places."""
    return {
        site
        for site in _latents_of(model, replace(places, bits=()))
        if model.sites[site].support is constraints.boolean
    }


def settle_labels(model: Model, data: Data, draws: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return draws (chain, draw, ...) in one labelling of all that may change places: of programs that can be compiled
    along all axes, of others their components."""
    if is_own_of_rows(model) and not model.has_continuous_locals:
        with contextlib.suppress(NotCompiled, PPLError):
            structure_of(model, model.as_read(data).dense())
        if find_places(model):
            return reorder_draws(model, draws)
    if model.has_components:
        return align_draws(dict(draws), model.dims, site=model.component_site, within=exchangeable(model))
    return dict(draws)


def reorder_draws(model: Model, draws: Values) -> dict[str, Tensor]:
    """Return draws (chain, draw, ...) with what may change places in the order of the mean of the first chain's last
    quarter, in every draw."""
    places = find_places(model)
    if not places:
        return dict(draws)
    chains, length = next(iter(draws.values())).shape[:2]
    # Its draws in the order of its last one, or a change of places among them would blur the mean.
    late = [{site: value[0, n] for site, value in draws.items()} for n in range(length - max(1, length // 4), length)]
    late = [reorder(model, one, late[-1], places) for one in late]
    reference = {site: torch.stack([one[site] for one in late]).mean(0) for site in draws}
    each = [
        reorder(model, {site: value[chain, draw] for site, value in draws.items()}, reference, places)
        for chain in range(chains)
        for draw in range(length)
    ]
    return {site: torch.stack([one[site] for one in each]).reshape(value.shape) for site, value in draws.items()}


def match_places(places: Exchangeable, reference: Values, found: Values) -> Tensor:
    """Return the order in which the places of ``found`` are nearest to the reference's: by the sites that have them
    along one axis, then by tables of pairs in turn."""
    if places.turned:
        return places.match_turned(reference, found)
    from scipy.optimize import linear_sum_assignment  # takes long to load, and is needed by few

    single, pairs = [], []
    for site, axes in places.sites.items():
        if site not in found:
            continue
        one, other = (scale_alike(side[site].detach().cpu().double()) for side in (reference, found))
        if len(axes) == 1:
            single.append([side.movedim(axes[0], 0).reshape(places.size, -1) for side in (one, other)])
        else:
            pairs.append([
                side.movedim(axes[:2], (0, 1)).reshape(places.size, places.size, -1) for side in (one, other)
            ])  # fmt: skip
    cost = torch.zeros(places.size, places.size, dtype=torch.float64)
    for one, other in single:
        cost = cost + torch.cdist(one, other).square()
    if single:
        order = torch.as_tensor(linear_sum_assignment(cost.numpy())[1])
    else:
        both = [torch.cat([pair[side] for pair in pairs], -1) for side in (0, 1)]
        order = torch.tensor(match_blocks(*both).order)
    for _ in range(_TURNS if pairs else 0):
        whole = cost
        for one, other in pairs:
            sent, received = other[:, order], other[order].transpose(0, 1)
            whole = whole + torch.cdist(one.flatten(1), sent.flatten(1)).square()
            whole = whole + torch.cdist(one.transpose(0, 1).flatten(1), received.flatten(1)).square()
        following = torch.as_tensor(linear_sum_assignment(whole.numpy())[1])
        if torch.equal(following, order):
            break
        order = following
    return order
