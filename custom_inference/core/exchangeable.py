"""Exchangeable components: those that can change places without a change of any prior or known value.

The likelihood of a model does not see in which order its components stand, so the posterior is unchanged by a renaming
exactly where all else that speaks of components is: the priors of the globals and of the locals, the values of known
sites, and what the program itself tells apart (``Model.component_kinds``). Only these renamings may be undone when
draws are brought into one labelling; every other one makes different statements of them.

A renaming moves every axis of components of all sites at once: of a table (K, K) the rows and the columns. Found are
the renamings that exchange two components; those of larger symmetries (all blocks one further) are left alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import biject_to

from custom_inference.core.align import AXES, COORDINATES, rename_components
from custom_inference.core.isolation import isolated
from ppl_models import Model
from ppl_models.core.hierarchy import is_function

Values = dict[str, Tensor]

#: Values at which priors are compared: one of priors that are distributions, some of functions, which may have cases.
_PLACES, _PLACES_OF_FUNCTIONS = 1, 3


def exchangeable(model: Model) -> list[list[int]]:
    """The sets of two or more components that nothing tells apart: one of all of them, as a rule, or none.

    Priors are compared at values in general position: where two components can be exchanged there without a change of
    any density, they can everywhere. A prior that is a function of other sites, or a hyper-parameter, that has
    something of its own for a component tells it from the others.
    """
    size = _num_components(model)
    if not size:
        return []
    kinds, entangled = _kinds(model, size)
    places = range(_PLACES_OF_FUNCTIONS if model.has_functions else _PLACES)
    compared = [_Compared(model, entangled, place) for place in places] if entangled else []
    sets: list[list[int]] = []
    for component in range(size):
        for one in sets:
            # Who can change places with the first of a set can with all of it.
            alike = kinds[one[0]] == kinds[component]
            if alike and all(values.keeps_priors(one[0], component) for values in compared):
                one.append(component)
                break
        else:
            sets.append([component])
    return [one for one in sets if len(one) > 1]


def has_standard_form(model: Model) -> bool:
    """Whether the model has further symmetries, which its ``standard_form`` removes, and its priors allow that."""
    compared = _Compared(model, tuple(_sites_with_priors(model)), 0)
    after = model.standard_form(compared.values)
    changed = any(not torch.equal(value, after[site]) for site, value in compared.values.items())
    return changed and compared.same_density(after)


def _num_components(model: Model) -> int:
    return model.sizes["component"] if model.has_components else 0


def _sites_with_priors(model: Model) -> Iterator[str]:
    """The globals, and the main latent where it, or a part of it, has a prior of its own."""
    yield from model.global_sites
    if {model.local_site, *model.part_sites} & set(model.priors):
        yield model.local_site


def _kinds(model: Model, size: int) -> tuple[list[int], tuple[str, ...]]:
    """A number for every component, different where the model, or the prior of single components, tells them apart;
    and the sites that only their densities can tell of."""
    own = model.component_kinds
    kinds, entangled = torch.zeros(size, dtype=torch.int64) if own is None else own.clone(), []
    for site in _sites_with_priors(model):
        rows = _rows_of_parameters(model, site)
        if rows is None:
            entangled.append(site)
        elif len(rows):
            # Of coordinates the last are the components'.
            both = torch.cat([kinds.unsqueeze(1).double(), rows[-size:]], 1)
            kinds = torch.unique(both, dim=0, return_inverse=True)[1]
    return kinds.tolist(), tuple(entangled)


def _rows_of_parameters(model: Model, site: str) -> Tensor | None:
    """(K, P): what the prior of a site says of each component; (0, 0) where it says the same of all; None where its
    parameters do not tell, as of a prior of all components together."""
    prior, places = model.priors.get(site), _places(model, site)
    if prior is None or is_function(prior):
        return None
    event, whole = len(prior.event_shape), (*prior.batch_shape, *prior.event_shape)
    varying = [place for place in places if place <= event or (place <= len(whole) and whole[-place] > 1)]
    if not varying:
        return torch.zeros(0, 0)
    if len(places) > 1 or places[0] <= event:
        return None
    names = [name for name in getattr(prior, "arg_constraints", {}) if name not in ("logits", "precision_matrix")]
    found = [getattr(prior, name, None) for name in names]
    values = [value for value in found if isinstance(value, Tensor) and tuple(value.shape) == whole]
    if not values or len(values) < len(found):
        return None
    rows = [value.detach().cpu().double().movedim(-places[0], 0) for value in values]
    return torch.cat([value.reshape(len(value), -1) for value in rows], 1)


def _places(model: Model, site: str) -> list[int]:
    """The axes of components of a site (or of one row of it), counted from the right."""
    dims = model.sites[site].dims if site in model.sites else ()
    return [place for place, axis in enumerate(reversed(dims), start=1) if axis in (*AXES, *COORDINATES)]


class _Compared:
    """The densities of some sites at values in general position, and at these with components exchanged.

    values: of the globals, and of two rows of the local site where it has a prior; of these, and of the components,
    which may be large, only where they are compared or a function may depend on them.
    """

    def __init__(self, model: Model, sites: Sequence[str], seed: int):
        self.model, self.sites = model, sites
        large = {model.local_site, *([model.component_site] if model.has_components else [])}
        spared = large - {*sites} if not model.has_functions else set()
        self.values = _in_general_position(model, seed, spared)
        self._before = {site: self._density(site, self.values) for site in sites}

    def keeps_priors(self, one: int, other: int) -> bool:
        """Whether the exchange of two components leaves all densities as they are."""
        order = list(range(_num_components(self.model)))
        order[one], order[other] = other, one
        return self.same_density(rename_components(self.values, order, self.model.dims))

    def same_density(self, after: Values) -> bool:
        pairs = ((self._before[site], self._density(site, after)) for site in self.sites)
        return all(torch.allclose(before, one, rtol=1e-9, atol=1e-9) for before, one in pairs)

    def _density(self, site: str, values: Values) -> Tensor:
        """Minus infinity outside the support, where distributions may refuse to say."""
        value = values[site]
        with torch.no_grad():
            known = self.model.known.get(site)
            if known is not None:
                return value.new_tensor(0.0 if torch.equal(known.to(value), value) else -torch.inf)
            prior: Any = self.model.prior(site, like=value, values=values)
            inside = bool(torch.as_tensor(prior.support.check(value)).all())
            return prior.log_prob(value) if inside else value.new_tensor(-torch.inf)


def _in_general_position(model: Model, seed: int, spared: set[str]) -> Values:
    """Values of all sites with priors but those spared, inside the supports of their priors, known ones as they are: no
    two entries are alike, as those of draws from sparse priors may be. Nobody's random state moves: chains of a sampler
    ask, in threads of theirs."""
    like, generator = torch.zeros((), dtype=torch.float64), torch.Generator().manual_seed(seed)
    values: Values = {}
    with torch.no_grad():
        for site in _sites_with_priors(model):
            if site in spared:
                continue
            if site in model.known:
                values[site] = model.known[site].to(like)
                continue
            prior: Any = model.prior(site, like=like, values=values)
            rows = torch.Size([2] if site == model.local_site else [])
            values[site] = _inside(prior, rows, generator)
    return values


def _inside(prior: Any, rows: torch.Size, generator: torch.Generator) -> Tensor:
    """Noise taken to the prior's support by its transform, or a draw where the prior has no transform."""
    try:
        transform: Any = biject_to(prior.support)
        shape = transform.inverse_shape(prior.shape(rows))
        noise = torch.randn(shape, dtype=torch.float64, generator=generator)
        # Triangles of as much noise in every place are nearly singular where they are large.
        return transform(noise / shape[-1] ** 0.5 if len(prior.event_shape) > 1 else noise)
    except NotImplementedError:
        with isolated(generator.initial_seed()):
            return prior.sample(rows)
