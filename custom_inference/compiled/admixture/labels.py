"""Axes of the globals of programs of shares along which components may change places."""

from __future__ import annotations

import torch

from custom_inference.compiled.admixture.structure import AdmixtureStructure
from custom_inference.compiled.moves import Exchangeable
from custom_inference.compiled.probes import alike


def find_axes(structure: AdmixtureStructure) -> list[Exchangeable]:
    """Find the axes of globals in another order of which components are in that order; none where shares tell them
    apart."""
    model, values, size = structure.model, structure.probe.draw_globals(), structure.size
    laws = [structure.shape] if structure.rate is None else [structure.shape, structure.rate]
    if any(bool((law != law[0]).any()) for law in laws):
        return []
    order = torch.cat([torch.tensor([1, 0]), torch.arange(2, size)]).roll(1)
    for field in dict.fromkeys(model.axes.values()):
        sites = {
            site: tuple(place for place, axis in enumerate(model.sites[site].dims) if model.axes.get(axis) == field)
            for site in model.unknown_sites
        }
        axes = Exchangeable(size, {site: places for site, places in sites.items() if places}, (), ())
        if not axes.sites or int(getattr(model, field)) != size:
            continue
        moved = structure.profile(axes.permute(values, order))
        if bool(alike(moved, structure.profile(values)[order]).all()):
            return [axes]
    return []
