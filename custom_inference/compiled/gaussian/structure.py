"""The structure of programs whose rows have Gaussian latents: every element of every statement is normal, with a mean
that is affine in the real latents of its row and a scale that does not depend on them; given each value of the finite
latents that a row has beside them, by which other statements are factors. Where it has none of these, elements may be
bits and counts of successes, whose log-odds are affine.

So are factor analyses, random intercepts and slopes, random walks, Kalman chains, mixtures of these, and their likes.
The structure is read by running the program at real latents that are 0 and at unit vectors, at several values of the
globals.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints

from custom_inference.compiled.blocks import Block
from custom_inference.compiled.derive import derive
from custom_inference.compiled.gaussian.affine import Affine, AffineLaw, AffineRuns, AffineSource, units_of
from custom_inference.compiled.kept import KeptStructures, refuse_errors
from custom_inference.compiled.linear import LinearSource
from custom_inference.compiled.origins import find_vectors
from custom_inference.compiled.probes import Probe, alike
from custom_inference.compiled.proof import choose_rows
from custom_inference.compiled.reading import NotCompiled, Variables, read_codes
from custom_inference.compiled.sources import Entries, EntrySource, Source, match_entries
from custom_inference.compiled.structure import Structure
from custom_inference.compiled.sums import find_linear
from custom_inference.core.programs.density import RowDensity
from custom_inference.core.programs.latents import Layout
from ppl_models import Data, Model
from ppl_models.core.hierarchy import typical_values
from ppl_models.core.sites import of_element

#: Real latents of a row at most, values of the finite ones together, and rows on which they are read.
_WIDEST, _CONFIGURATIONS, _READ = 512, 1024, 32
#: By how much means may differ from affine ones, as a part of their size.
_CURVED = 1e-7

_STRUCTURES = KeptStructures["GaussianStructure"]()


@dataclass(frozen=True)
class AffineGroup:
    """Elements of a statement whose means depend on the same latents. own: the place among these of the latent that
    they draw. varying: whether coefficients or scales differ between rows."""

    statement: str
    of: type[AffineLaw]
    kind: type
    elements: Tensor
    parents: tuple[int, ...]
    own: int | None
    varying: bool

    @property
    def law(self) -> AffineLaw:
        return self.of.of(self.kind, len(self.parents))


@dataclass
class GaussianStructure:
    """What a program of Gaussian latents is made of, whatever the rows.

    blocks: of the groups whose coefficients are the same in all rows. varying: the other groups, which are read off the
    rows. finite: the factors of finite latents, and of what depends on these alone. proved: digests of the rows in
    which the structure was proved. refused: why it is not the program, where the first rows say so. steps: the M steps
    of models, where rows make no blocks.
    """

    model: Model
    layout: Layout
    plates: frozenset[str]
    entries: Entries
    blocks: list[Block]
    varying: list[AffineGroup]
    probe: Probe = field(repr=False)
    finite: Structure | None = None
    proved: set[bytes] = field(default_factory=set, repr=False)
    refused: str = ""
    steps: weakref.WeakKeyDictionary[Model, Any] = field(default_factory=weakref.WeakKeyDictionary, repr=False)

    @property
    def size(self) -> int:
        """How many real latents a row has."""
        return self.layout.num_reals

    @property
    def codes(self) -> Tensor:
        """All values of the finite latents together, (C, K), 0 where real ones stand."""
        return self.layout.configurations(torch.empty(0, dtype=torch.float64))

    @cached_property
    def units(self) -> Tensor:
        """Codes (W, K) of which each has one real latent."""
        return units_of(self.layout)[1:]

    @property
    def flats(self) -> list[Tensor]:
        """The fingerprints, as vectors of all entries."""
        return [self.entries.flatten(params) for params in self.probe.fingerprints]

    def find_drawn(self, block: Block) -> Tensor | None:
        """Find the places (G,) among the parents of the factors of a block of the latents that they draw; None of what
        is observed."""
        slices = self.layout.slices_of_reals
        if block.elements[0][0] not in slices:
            return None
        pairs = zip(block.scopes, block.elements, strict=True)
        return torch.tensor([scope.index(slices[name].start + int(element[0])) for scope, (name, element) in pairs])

    def run_on(self, data: Data) -> AffineRuns:
        """Return the coefficients in some rows as functions of the globals."""
        return AffineRuns(self.model, self.layout, self.plates, data, self.entries)


def may_be_gaussian(model: Model) -> bool:
    """Tell whether real numbers are declared as latents and as observed, and no latents but these and finite ones: only
    of such models it is looked for Gaussian latents."""
    latents, seen = ([model.sites[name] for name in names] for names in (model.row_latents, model.sites_of("observed")))
    real = [site for site in latents if site.choice is None and of_element(site.support) is constraints.real]
    finite = [site for site in latents if site.choice is not None or site.support is None or site.support.is_discrete]
    of_reals = [of_element(site.support) is constraints.real for site in seen]
    # What is no real number may depend on finite latents alone.
    return bool(real) and len(real) + len(finite) == len(latents) and (any if finite else all)(of_reals)


def may_have_bits(model: Model) -> bool:
    """Tell whether bits, or whole numbers up to a bound, are declared as observed, and beside them at most real numbers
    as observed and real latents alone."""
    latents, seen = ([model.sites[name] for name in names] for names in (model.row_latents, model.sites_of("observed")))
    supports = [of_element(site.support) for site in seen]
    whole = [one is constraints.boolean or type(one) is constraints.integer_interval for one in supports]
    others = [one is constraints.real for one in supports]
    real = [site.choice is None and of_element(site.support) is constraints.real for site in latents]
    return bool(real) and all(real) and any(whole) and all(map(max, whole, others))


def gaussian_structure_of(model: Model, data: Data) -> GaussianStructure:
    """Return the structure of a program, found once, on some of the rows. Raises NotCompiled where it has none."""
    return _STRUCTURES.find(model, lambda own: derive_gaussian(own, data))


def gaussian_if_known(model: Model) -> GaussianStructure | None:
    """Return the structure of a program that was read before, all of whose latents are Gaussian given the rows."""
    return _STRUCTURES.recall(model) if may_be_gaussian(model) else None


def derive_gaussian(model: Model, data: Data, *, seed: int = 0) -> GaussianStructure:
    """Read the structure of a program off runs of it on some of the rows; binding rows to it proves it.

    Raises NotCompiled, with the reason, where means are not affine or laws not normal.
    """
    if not may_be_gaussian(model) and not may_have_bits(model):
        raise NotCompiled("its latents are not real numbers, alone or beside finite ones, or it observes none")
    every = data.to(dtype=torch.float64)
    data = every.rows(choose_rows(every, _READ))
    values = {site: value.double() for site, value in typical_values(model).items()}
    density = RowDensity.of(model, values, data)
    layout, plates = density.layout, density.plates
    _require_latents(layout)
    variables = Variables.of(layout, plates)
    probe = Probe(density.model, density.data, variables, seed=seed)
    entries = Entries({site: tuple(shape) for site, shape in model.shapes.items()})
    found = GaussianStructure(density.model, layout, plates, entries, [], [], probe)
    with refuse_errors(), torch.no_grad():
        runs = found.run_on(density.data)
        stated = [runs(flat) for flat in found.flats]
        _require_affine(found, density.data, stated[0])
    groups = [group for name in stated[0] for group in _group(name, [one[name] for one in stated], layout)]
    found.varying = [group for group in groups if group.varying]
    fixed = [group for group in groups if not group.varying]
    first = found.run_on(density.data.rows(torch.zeros(1, dtype=torch.long)))
    places = [torch.zeros_like(group.elements) for group in fixed]
    elements = [group.elements for group in fixed]
    found.blocks = _combine(make_blocks(found, fixed, first, places, elements), layout)
    if layout.finite:
        found.finite = derive(density.model, every, variables, seed=seed, without=frozenset(stated[0]))
    return found


def _require_latents(layout: Layout) -> None:
    """Raise NotCompiled where latents have other laws, or are too many."""
    for latent in layout:
        if latent.moving or latent.open or (latent.transform is not None and not latent.is_untransformed):
            raise NotCompiled(
                f"latent '{latent.name}' is neither any real number nor one of finitely many values that all rows share"
            )
    if layout.num_reals > _WIDEST:
        raise NotCompiled(f"a row has {layout.num_reals} real latents, of at most {_WIDEST}")
    if layout.num_configurations > _CONFIGURATIONS:
        raise NotCompiled(
            f"beside its real latents a row has {layout.num_configurations:.6g} values of the finite ones together, of "
            f"at most {_CONFIGURATIONS}"
        )


def _require_affine(structure: GaussianStructure, data: Data, stated: Mapping[str, Affine]) -> None:
    """Compare the means at random latents with those that the coefficients at the first fingerprint give.

    Raises NotCompiled, naming the statement, where they differ.
    """
    probe = structure.probe
    number, every = len(data), structure.codes
    data, every = data.rows(torch.arange(number).repeat(len(every))), every.repeat_interleave(number, 0)
    latents = torch.randn(len(data), structure.size, generator=probe.generator, dtype=torch.float64)
    model, layout, plates, codes = (
        structure.model,
        structure.layout,
        structure.plates,
        every + latents @ structure.units,
    )
    for name, one in read_codes(model, data, probe.fingerprints[0], layout, plates, codes).items():
        if name not in stated:
            continue
        own = stated[name].coefficient.flatten(0, 1)
        found, loc = own[..., 0] + torch.einsum("new,nw->ne", own[..., 1:], latents), one.parameters[..., 0]
        size = own[..., 0].abs() + torch.einsum("new,nw->ne", own[..., 1:].abs(), latents.abs())
        if not bool(((found - loc).abs() <= _CURVED * (1e-3 + size)).all()):
            raise NotCompiled(f"the mean of '{name}' is not affine in the latents")


def _group(name: str, stated: Sequence[Affine], layout: Layout) -> list[AffineGroup]:
    """Put the elements of a statement into groups of the same parents; those of latents stay alone."""
    coefficient, scale = (torch.stack([getattr(one, part) for one in stated]) for part in ("coefficient", "scale"))
    used = (coefficient[..., 1:] != 0).flatten(0, 2).any(0)  # (E, W)
    varying = (~alike(coefficient, coefficient[:, :, :1])).any(-1).flatten(0, 2).any(0)
    varying |= (~alike(scale, scale[:, :, :1])).flatten(0, 2).any(0)
    if not bool(coefficient.isfinite().all() and scale.isfinite().all()):
        raise NotCompiled(f"the law of '{name}' has parameters that are no finite numbers")
    own = layout.slices_of_reals.get(name)
    found: dict[tuple[Any, ...], list[int]] = {}
    for element in range(used.shape[0]):
        parents = used[element].nonzero()[:, 0].tolist()
        drawn = None if own is None else own.start + element
        if drawn in parents:
            raise NotCompiled(f"the law of '{name}' depends on its own value")
        if drawn is not None:
            parents = sorted([*parents, drawn])
        key = tuple(parents), None if drawn is None else parents.index(drawn), bool(varying[element])
        found.setdefault((*key, element if drawn is not None else -1), []).append(element)
    law, kind = stated[0].law, stated[0].kind
    return [AffineGroup(name, law, kind, torch.tensor(some), *key[:3]) for key, some in found.items()]


def make_blocks(
    structure: GaussianStructure, groups: Sequence[AffineGroup], runs: AffineRuns, rows: Sequence[Tensor],
    elements: Sequence[Tensor],
) -> list[Block]:  # fmt: skip
    """Make the blocks of groups from runs of the program. rows, elements: (U,) of every group, of its parameters."""
    flats, sources = structure.flats, dict[tuple[int, bool], Source]()
    with torch.no_grad():
        stated = [runs(flat) for flat in flats]
    rest: list[tuple[int, bool]] = []
    for number, (group, row, element) in enumerate(zip(groups, rows, elements, strict=True)):
        for of_scale in (False, True):
            parents = None if of_scale else group.parents
            made = AffineSource(runs, group.statement, row, element, parents, None if of_scale else group.own)
            values = [made.choose(one[group.statement]) for one in stated]
            matched = match_entries(values, flats, structure.entries)
            if matched is None:
                rest.append((number, of_scale))
                made = replace(made, sites=runs.sites_of(made, flats[1]))
            sources[number, of_scale] = made if matched is None else matched
    sources |= _find_sums(structure, {key: sources[key] for key in rest}, flats)
    return [
        Block(
            group.law, (group.parents,), (len(structure.codes),), (sources[n, False], sources[n, True]),
            elements=((group.statement, group.elements),),
        )
        for n, group in enumerate(groups)
    ]  # fmt: skip


def _find_sums(
    structure: GaussianStructure, rest: Mapping[tuple[int, bool], Source], flats: list[Tensor]
) -> dict[tuple[int, bool], Source]:
    """The coefficients and scales that are sums of entries, of those that are no single entries."""
    vectors = find_vectors(structure.model)
    keys = [key for key, one in rest.items() if one.sites and not one.sites & vectors]
    if not keys:
        return {}
    begun = time.perf_counter()
    supports = {site: structure.model.supports[site] for key in keys for site in rest[key].sites}

    def evaluate(flat: Tensor) -> list[Tensor]:
        with torch.no_grad():
            return [rest[key].parameters(flat).reshape(1, 1, -1, 1) for key in keys]

    names = ["scale" if of_scale else "coefficient" for _, of_scale in keys]
    sums = find_linear(evaluate, names, flats, structure.entries, supports, lambda: time.perf_counter() - begun)
    found = dict[tuple[int, bool], Source]()
    for key, one in zip(keys, sums, strict=True):
        if one is not None:
            shape = tuple(rest[key].parameters(flats[0]).shape)
            parts = (one.link, one.shift, one.place, one.entry, one.slope, one.scales, one.sites)
            found[key] = LinearSource(shape, *parts)
    return found


def _combine(blocks: list[Block], layout: Layout) -> list[Block]:
    """Put blocks of the same sizes, all of whose parameters are entries, behind each other."""
    same: dict[tuple[Any, ...], list[Block]] = {}
    for number, block in enumerate(blocks):
        plain = all(source.of_entries for source in block.sources)
        (name, elements), *_ = block.elements
        key = block.law, elements.numel(), name in layout.names, -1 if plain else number
        same.setdefault(key, []).append(block)
    found = []
    for some in same.values():
        if len(some) > 1:
            sources: Any = tuple(EntrySource.stack(list(each)) for each in zip(*(b.sources for b in some), strict=True))
            scopes, elements = (tuple(one for b in some for one in getattr(b, part)) for part in ("scopes", "elements"))
            some = [replace(some[0], scopes=scopes, sources=sources, elements=elements)]
        found += some
    return found
