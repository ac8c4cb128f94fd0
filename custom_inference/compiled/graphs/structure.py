"""The structure of the program of a graph: where the parameters of its nodes' and its dyads' laws come from.

Dyads without a node in common tell what a law is at many pairs of labels in one run. What is found is proved on all
dyads, or on very many of them, at random labels and globals.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor

from custom_inference.compiled.blocks import Block
from custom_inference.compiled.graphs.program import GraphProgram
from custom_inference.compiled.graphs.propensities import Propensities, candidates, find_ends
from custom_inference.compiled.laws import ExponentialLaw, Law, NormalLaw, PoissonLaw, TabulatedLaw
from custom_inference.compiled.origins import Asked, Group, ProgramRuns, find_sources
from custom_inference.compiled.probes import Probe, alike, require_entries
from custom_inference.compiled.reading import NotCompiled, Statement
from custom_inference.compiled.sources import Entries, EntrySource, ProgramSource, Source
from custom_inference.core.dyads import dyad_number
from ppl_models import Data, GraphData, GraphModel
from ppl_models.core.errors import warn_of_data

#: Dyads without a node in common that are run at once, at most; and random assignments of pairs of labels to them on
#: which the laws of all are compared.
_MATCHED, _COMPARED = 256, 3
#: How many times as far from 0 as from each other weights of a normal may be: of squares no more digits are left.
_FAR = 1e5
#: Values of a law that is no exponential family, at most, to be counted one by one.
_MOST_VALUES = 64
#: Dyads that the factors are proved on at once, random globals and labels, and by how much they may differ.
_PROVED, _DRAWN, _DIFFER = 2**18, 3, 1e-7


@dataclass
class GraphStructure:
    """What the program of a graph is made of.

    nodes: the law of labels, of one cell (1, 1, U, P), U = 1 where it is that of all nodes, else N. dyads: their law at
    all pairs of labels (1, K^2, 1, P), the second running first. mirrored: symmetric sites over pairs of blocks, whose
    entries on and above the diagonal are what is learned. alike_nodes: whether all nodes have one law.
    propensities: of nodes, which multiply rates. steps: of models.
    """

    program: GraphProgram
    probe: Probe
    entries: Entries
    nodes: Block
    dyads: Block
    mirrored: tuple[str, ...]
    alike_nodes: bool
    propensities: Propensities
    steps: weakref.WeakKeyDictionary[Any, Any] = field(default_factory=weakref.WeakKeyDictionary, repr=False)

    @property
    def model(self) -> GraphModel:
        return self.program.model

    def log_labels(self, flat: Tensor) -> Tensor:
        """Return log p (U, K) of the labels of nodes."""
        return self.nodes.law.natural(self.nodes.parameters(flat))[0, 0]

    def look_up(self, values: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the natural parameters (K, K, F) of dyads between labels, and log p (U, K) of labels."""
        flat, size = self.entries.flatten({s: values[s] for s in self.entries.shapes}), self.program.num_labels
        natural = self.dyads.law.natural(self.dyads.parameters(flat))[0, :, 0]
        return natural.reshape(size, size, -1), self.log_labels(flat)


#: Model -> its structure; and why others have none.
_STRUCTURES: weakref.WeakKeyDictionary[GraphModel, GraphStructure] = weakref.WeakKeyDictionary()


def structure_of(model: GraphModel, data: Data) -> GraphStructure:
    """Return the structure of the program of a graph, proved on this graph. Raises NotCompiled where it has none."""
    known = _STRUCTURES.get(model)
    try:
        program = GraphProgram.of(copy.copy(model), data)  # the model itself would be held for ever
        if known is None or not _serves(known, program.data):
            known = derive(program)
        prove(known, program)
    except NotCompiled as reason:
        raise NotCompiled(f"{type(model).__name__} is not compiled: {reason}") from None
    _STRUCTURES[model] = known
    return known


def structure_if_known(model: GraphModel) -> GraphStructure | None:
    """Return the structure of a program that was read before."""
    return _STRUCTURES.get(model)


def _serves(known: GraphStructure, data: GraphData) -> bool:
    """Tell whether what was read of a program on one graph is what it is on another."""
    before, law = known.program.data, known.dyads.law
    given = all(one.shape == data.others[name].shape and bool((one == data.others[name]).all())
                for name, one in before.others.items() if name in data.others)  # fmt: skip
    values = not bool(law.find_unknown(data.x.values()).any())
    return before.num_nodes == data.num_nodes and given and values and set(before.others) == set(data.others)


@dataclass(frozen=True)
class Matching:
    """Dyads (i, j) (M,) without a node in common, and their numbers."""

    i: Tensor
    j: Tensor
    number: Tensor

    @classmethod
    def of(cls, program: GraphProgram, generator: torch.Generator) -> Matching:
        """Draw as many as there are, up to a limit."""
        size, first = program.data.num_nodes, program.model.first_nodes
        if first is not None:
            number = min(first, size - first, _MATCHED)
            sides = (torch.randperm(nodes, generator=generator)[:number] for nodes in (first, size - first))
            i, j = next(sides), next(sides) + first
            return cls(i, j, dyad_number(program.model, i, j, size))
        pairs = torch.randperm(size, generator=generator)[: 2 * min(size // 2, _MATCHED)].reshape(-1, 2)
        pairs = pairs if program.model.directed else pairs.sort(1).values
        return cls(pairs[:, 0], pairs[:, 1], dyad_number(program.model, pairs[:, 0], pairs[:, 1], size))

    def __len__(self) -> int:
        return len(self.number)

    def label(self, program: GraphProgram, pair: Tensor, generator: torch.Generator) -> Tensor:
        """Return labels (N,) that give the first of the dyads pairs (B,) of labels, and any to other nodes."""
        size, number = program.num_labels, len(pair)
        labels = torch.randint(size, (program.data.num_nodes,), generator=generator)
        labels[self.i[:number]], labels[self.j[:number]] = pair // size, pair % size
        return labels


class GraphRuns(ProgramRuns):
    """The parameters of nodes (1, N, P) and of dyads at all pairs of labels (K^2, 1, P), as functions of globals."""

    def __init__(
        self, probe: Probe, entries: Entries, program: GraphProgram, runs: list[tuple[Tensor, Tensor]],
        held: dict[str, Tensor],
    ):  # fmt: skip
        self.probe, self.entries, self.program, self.runs, self.held = probe, entries, program, runs, held
        self._last = None

    def __call__(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the parameters by statement; the last ones are kept, as several blocks ask for them."""
        grad = torch.is_grad_enabled()
        if self._last is not None and self._last[0]() is flat and self._last[1] == grad:
            return self._last[2]
        params, node = {**self.entries.unflatten(flat), **self.held}, self.program.node_site
        dyad = self.program.model.observed_site
        stated = [self.program.read(params, labels, dyads) for labels, dyads in self.runs]
        every = torch.cat([one[dyad].parameters for one in stated])
        found = {node: stated[0][node].parameters, dyad: every}
        self._last = weakref.ref(flat), grad, found
        return found


def derive(program: GraphProgram, *, seed: int = 0) -> GraphStructure:
    """Read the structure of the program of a graph off runs of it.

    Raises NotCompiled, with the reason, where its parameters are not those of labels of nodes and pairs of labels.
    """
    if program.data.num_nodes < 2:
        raise NotCompiled("a graph of one node has no dyads to be read")
    require_entries(float(program.num_labels) ** 2)
    generator, none = torch.Generator().manual_seed(seed), cast(Any, None)
    matching = Matching.of(program, generator)
    sites = candidates(program.model)
    try:
        return _derive(program, matching, generator, {})
    except NotCompiled:
        if not sites:
            raise
    held = {site: torch.ones(program.model.shapes[site], dtype=torch.float64) for site in sites}
    found = _derive(program, matching, generator, held)
    probe = Probe(program.model, program.data, none, seed=seed)
    return replace(found, probe=probe, propensities=_find_propensities(found, probe, matching, generator))


def _derive(
    program: GraphProgram, matching: Matching, generator: torch.Generator, held: dict[str, Tensor]
) -> GraphStructure:
    """Read the structure with some sites held at values."""
    model, size, name = program.model, program.num_labels, program.model.observed_site
    none = cast(Any, None)
    probe = Probe(model.with_priors(**held) if held else model, program.data, none, seed=generator.initial_seed())
    entries = Entries({site: tuple(shape) for site, shape in model.shapes.items()})
    params = probe.fingerprints[0]
    program, law, stated = _find_law(program, params, matching, generator)
    pairs = torch.arange(size**2).split(len(matching))
    jobs = [(matching.label(program, part, generator), matching.number[: len(part)]) for part in pairs]
    runs = GraphRuns(probe, entries, program, jobs, held)
    with torch.no_grad():
        read = [runs(entries.flatten(one)) for one in probe.fingerprints]
    _require_alike(program, params, read[0], matching, generator)
    alike_nodes = bool(alike(read[0][program.node_site], read[0][program.node_site][:, :1]).all())
    number = 1 if alike_nodes else program.data.num_nodes
    first, every = torch.zeros(1, number, dtype=torch.long), torch.arange(number)[None]
    each = torch.arange(size**2)[:, None]
    groups = [Group(one, torch.tensor([0]), (), None, False) for one in (program.node_site, name)]
    asked = [
        Asked(groups[0], runs, first, every, [one[program.node_site][:, :number] for one in read]),
        Asked(groups[1], runs, each, torch.zeros_like(each), [one[name] for one in read]),
    ]
    laws = {program.node_site: stated[program.node_site].law, name: law}
    sources = find_sources(probe, entries, laws, asked)
    symmetric = () if model.directed else tuple(s for s in model.pair_sites if s in model.shapes)
    start, of_dyads = 0, list[Source]()
    for width, source in zip(law.sizes, sources[1], strict=True):
        part, start = slice(start, start + max(width, 1)), start + max(width, 1)
        of_dyads.append(_above(source, asked[1], part, symmetric, entries))
    nodes, dyads = Block(laws[program.node_site], ((),), (), sources[0]), Block(law, ((),), (), tuple(of_dyads))
    return GraphStructure(
        program, probe, entries, nodes, dyads, symmetric, alike_nodes, Propensities({}, model.first_nodes)
    )


def _find_propensities(
    structure: GraphStructure, probe: Probe, matching: Matching, generator: torch.Generator
) -> Propensities:
    """Find the numbers of nodes that rates are multiplied with. Raises NotCompiled where there are none."""
    program, name = structure.program, structure.model.observed_site
    if type(structure.dyads.law) is not PoissonLaw or structure.model.self_loops:
        raise NotCompiled(f"the law of '{name}' differs between dyads, and is no Poisson without self loops")
    params = probe.draw_globals()
    pair = torch.randint(program.num_labels**2, (len(matching),), generator=generator)
    stated = program.read(params, matching.label(program, pair, generator), matching.number)
    between = structure.dyads.parameters(structure.entries.flatten(params))[0, pair, 0, 0]
    ends = find_ends(structure.model, stated[name].parameters[:, 0, 0] / between, params, matching.i, matching.j)
    if ends is None:
        raise NotCompiled(
            f"the law of '{name}' differs between dyads, and not by a number of each of their nodes alone"
        )
    return Propensities(ends, structure.model.first_nodes)


def _find_law(
    program: GraphProgram, params: dict[str, Tensor], matching: Matching, generator: torch.Generator
) -> tuple[GraphProgram, Law, dict[str, Statement]]:
    """The law of the dyads, with how the program is read for it: of what is no exponential family by its values."""
    name, labels = program.model.observed_site, matching.label(program, torch.zeros(0).long(), generator)
    stated = program.read(params, labels, matching.number)
    law = stated[name].law
    if law.has_trials:
        program = replace(program, tabulated=True)
        stated = program.read(params, labels, matching.number)
        law = stated[name].law
    values = torch.unique(torch.cat([program.data.x.values(), program.data.x.values().new_zeros(1)]))
    if not law.exponential:
        if len(values) > _MOST_VALUES:
            raise NotCompiled(f"'{name}' has the law {law.kind.__name__}, and more than {_MOST_VALUES} values")
        law = TabulatedLaw(law.kind, law.names, law.sizes, values)
    if not bool(law.features(values).isfinite().all()):
        raise NotCompiled(f"'{name}' has the law {law.kind.__name__}, under which a dyad cannot be 0")
    stored = program.data.x.values()
    if "spread" in law.kinds.values() and bool(stored.mean().abs() > _FAR * stored.std()):
        raise NotCompiled(
            f"'{name}' is about {float(stored.mean()):.3g}, so far from 0 that sums of squares are rounded"
        )
    seen = program.model.num_dyads(program.data.num_nodes)
    if type(law) in (NormalLaw, ExponentialLaw) and 2 * program.data.num_edges < seen:
        found = f"{seen - program.data.num_edges} of {seen} dyads are not stored, and 0 under a density"
        warn_of_data(
            f"{found}; Hurdle(law, probs) has a probability of 0, and mask= hides dyads that were not observed"
        )
    return program, law, stated


def _require_alike(
    program: GraphProgram, params: dict[str, Tensor], read: dict[str, Tensor], matching: Matching,
    generator: torch.Generator,
) -> None:  # fmt: skip
    """Raise NotCompiled where the law of a dyad depends on more than the labels of its two nodes."""
    name = program.model.observed_site
    for _ in range(_COMPARED):
        pair = torch.randint(program.num_labels**2, (len(matching),), generator=generator)
        found = program.read(params, matching.label(program, pair, generator), matching.number)
        if not bool(alike(found[name].parameters, read[name][pair]).all()):
            raise NotCompiled(f"the law of '{name}' differs between dyads whose nodes have the same labels")
        if not bool(alike(found[program.node_site].parameters, read[program.node_site]).all()):
            raise NotCompiled(f"the law of '{program.node_site}' depends on its own values")


def _above(source: Source, asked: Asked, part: slice, symmetric: tuple[str, ...], entries: Entries) -> Source:
    """The source of parameters with entries of symmetric sites on and above the diagonal in place of those below."""
    if not source.sites & set(symmetric):
        return source
    if type(source) is not EntrySource:  # whose slopes would be shared out among two equal entries
        element = asked.element[None]
        return ProgramSource(asked.runs, asked.group.statement, asked.row[None], element, part, source.sites)
    place = torch.arange(sum(torch.Size(shape).numel() for shape in entries.shapes.values()))
    for site in symmetric:
        own = place[entries.slices[site]].reshape(entries.shapes[site])
        low = torch.arange(len(own))
        place[entries.slices[site]] = own[torch.minimum(low[:, None], low), torch.maximum(low[:, None], low)].flatten()
    return replace(source, index=place[source.index])


def prove(structure: GraphStructure, program: GraphProgram) -> None:
    """Compare the factors with the program's own densities, at random globals and labels, dyad by dyad.

    Raises NotCompiled where they differ.
    """
    model, data, generator = program.model, program.data, structure.probe.generator
    law, every = structure.dyads.law, model.num_dyads(data.num_nodes)
    program = replace(program, tabulated=structure.program.tabulated)
    for _ in range(_DRAWN):
        params = structure.probe.draw_globals()
        flat = structure.entries.flatten(params)
        labels = torch.randint(program.num_labels, (data.num_nodes,), generator=generator)
        dyads = torch.arange(every) if every <= _PROVED else torch.randint(every, (_PROVED,), generator=generator)
        stated = program.states(params, labels, dyads)
        node, dyad = stated[program.node_site], stated[model.observed_site]
        i, j = model.dyads(dyads, data.num_nodes)
        with torch.no_grad():
            value = dyad["value"].double()
            expected = dyad["fn"].log_prob(dyad["value"])
            own = structure.dyads.law.natural(structure.dyads.parameters(flat))[0, :, 0]
            natural = own[labels[i] * program.num_labels + labels[j]]
            features, rest = law.features(value), law.base(value)
            if structure.propensities.ends:
                weight = torch.as_tensor(structure.propensities.weights(params, data.num_nodes))
                times = weight[0, i] * weight[1, j]
                features = torch.stack([value, times], -1)
                rest = rest + torch.xlogy(value, times)
            found = (features * natural).sum(-1) + rest
            labelled = structure.log_labels(flat).expand(data.num_nodes, -1)[torch.arange(data.num_nodes), labels]
            total = node["fn"].log_prob(node["value"]).sum()
        apart = ~((found - expected).abs() <= _DIFFER * (1 + expected.abs()))
        if bool(apart.any()):
            n = int(apart.nonzero()[0])
            what = f"{float(found[n]):.6g} of dyad ({int(i[n])}, {int(j[n])}), the program {float(expected[n]):.6g}"
            raise NotCompiled(f"its factors give log p(x | labels) = {what}")
        if not bool((labelled.sum() - total).abs() <= _DIFFER * (1 + total.abs())):
            what = f"{float(labelled.sum()):.6g}, the program {float(total):.6g}"
            raise NotCompiled(f"its factors give log p(labels) = {what}")
