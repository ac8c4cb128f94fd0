"""Gibbs sampling of compiled programs of graphs: one node's label after the other from its conditional, at the cost of
its stored edges, then the globals given the labels, whose counts say all of the graph.

    p(z_i = a | z of the others, globals, x) proportional to p(z_i = a) prod over dyads of i of p(x_ij | a, z_j)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from custom_inference.compiled.bayes.drawing import GlobalsDrawer
from custom_inference.compiled.graphs.engine import RESPONSIBILITY, DyadMeanField
from custom_inference.compiled.graphs.rows import DyadRows, Floats, Whole
from custom_inference.compiled.graphs.steps import GraphSteps, mirror
from custom_inference.compiled.graphs.sweep import DyadTables, bound_at, draw_labels
from custom_inference.core.align import rename_components
from custom_inference.core.local_inference import Local
from custom_inference.core.posteriors import LabellingPosterior
from custom_inference.families.conjugate.gamma import Gamma
from custom_inference.gibbs.programs import CompiledSampler
from custom_inference.gibbs.protocol import Chain, Params, no_bound
from ppl_models import Data, GraphModel

#: What log-probabilities under two namings of the blocks may differ by, relative to their size.
_SAME = 1e-9
#: Propensities are kept this far from 0.
_LEAST = 1e-10


class GraphDrawer(GlobalsDrawer):
    """Draws the globals given the labels: symmetric sites by their entries on and above the diagonal, propensities node
    after node."""

    rows: DyadRows  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, model: GraphModel, rows: DyadRows, generator: np.random.Generator):
        super().__init__(model, cast(Any, rows), generator)

    @property
    def steps(self) -> GraphSteps:
        return DyadMeanField().steps(self.model, self.rows)  # pyright: ignore[reportArgumentType]

    def draw(self, values: Params, counted: Sequence[Tensor]) -> Params:
        found = super().draw(values, counted)
        held = {site: values[site] for site in self.steps.apart}
        return {**found, **held, **{site: mirror(found[site]) for site in self.steps.mirrored}}

    def draw_ends(self, values: Params, share: Floats) -> Params:
        """Draw new propensities given all else, one site after the other, at labels (N, K), 0 or 1."""
        found, rows, own = dict(values), self.rows, self.rows.structure.propensities
        rates = np.exp(DyadTables.at(rows, values).natural[0])
        for site, ends in own.ends.items():
            if site in self.model.known:
                continue
            value, (end, *both) = found[site].numpy().copy(), ends
            prior = Gamma.of(self.model, site, torch.zeros(0, dtype=torch.float64))
            rest = replace(own, ends={s: other for s, other in own.ends.items() if s != site}).weights(
                found, len(value)
            )
            shape, rate = (part.expand(len(value)).numpy() for part in (prior.shape, prior.rate))
            drawn = self.generator.standard_gamma(shape + rows.degrees[list(ends)].sum(0))
            if both:
                _divide_in_turn(value, drawn, rate, rest, rows, share.argmax(1), rates)
            else:
                value = drawn / (rate + rest[end] * rows.partners(share, rates, rest[1 - end], end))
            found[site] = torch.as_tensor(np.maximum(value, _LEAST))
        return found


def _divide_in_turn(
    value: Floats, drawn: Floats, rate: Floats, rest: Floats, rows: DyadRows, label: Whole, rates: Floats
) -> None:
    """Divide gamma variables (N,) by the rates of the conditionals of numbers that both ends of dyads have, node after
    node, as each is in the others' rates: ``value`` (N,) is changed in place."""
    links, directed = rows.links, rows.directed
    behind, ahead = np.zeros(len(rates)), np.bincount(label, rest[1] * value, len(rates))
    if directed:
        behind = np.bincount(label, rest[0] * value, len(rates))
    for i, a in enumerate(label):
        ahead[a] -= rest[1, i] * value[i]
        behind[a] -= directed * rest[0, i] * value[i]
        exposure = rest[0, i] * (rates[a] @ ahead) + rest[1, i] * (rates[:, a] @ behind)
        for side, own in ((0, rates[a]), (1, rates[:, a])):
            j = links.hidden_node[side, links.hidden_start[side, i] : links.hidden_start[side, i + 1]]
            exposure -= rest[side, i] * (rest[1 - side, j] * value[j] * own[label[j]]).sum()
        value[i] = max(drawn[i] / (rate[i] + max(exposure, 0.0)), _LEAST)
        behind[a] += rest[0, i] * value[i]
        ahead[a] += directed * rest[1, i] * value[i]


class GraphChain(Chain):
    """Values of the globals, and the labels of all nodes.

    start: values of all globals, and labels (N,) under the name of the nodes' site; of labels that are not there the
    first sweep draws new ones from random ones.
    """

    def __init__(self, model: GraphModel, rows: DyadRows, seed: int, start: Params):
        self.model, self.rows = model, rows
        self._generator = np.random.default_rng(seed % 2**64)
        label = start.get(model.local_site, torch.as_tensor(self._generator.integers(rows.num_labels, size=len(rows))))
        self.values = {site: value.double() for site, value in start.items() if site in model.shapes}
        self._share, self._begun = one_hot(label.long(), rows.num_labels).double().numpy(), model.local_site in start
        self._drawer = GraphDrawer(model, rows, self._generator)

    def sweep(self) -> None:
        """Draw the globals given the labels, then every label given the others; at first the labels alone where there
        were none."""
        with torch.no_grad():
            if self._begun:
                self.values = self._drawer.draw_ends(self.values, self._share)
                weights = self.rows.structure.propensities.weights(self.values, len(self.rows))
                counted = torch.as_tensor(self.rows.count(self._share, weights))
                statistics = self.rows.statistics(torch.as_tensor(self._share), counted)
                self.values = self._drawer.draw(self.values, statistics)
            self._begun = True
            draw_labels(DyadTables.at(self.rows, self.values), self.rows, self._share, self._generator)

    def log_joint(self) -> float:
        """Return log p(x, labels, globals)."""
        at = DyadTables.at(self.rows, self.values)
        given = bound_at(at, self.rows, self._share, self.rows.count(self._share, at.weight))
        return given + float(self.model.log_prior(self.values))

    def means(self) -> Params:
        return dict(self.values)

    def draw(self) -> Params:
        return {**self.values, self.model.local_site: self.indicators()}

    def profile(self) -> Tensor:
        """Return which nodes are in every block, (K, N + 1): labellings are matched by the nodes that they share. The
        last entry, 1, is what blocks without nodes have in common."""
        return torch.nn.functional.pad(torch.as_tensor(self._share.T.copy()), (0, 1), value=1.0)

    def indicators(self) -> Tensor:
        return torch.as_tensor(self._share.argmax(1))

    def locals(self) -> Tensor:
        return self.indicators()


class GraphSampler(CompiledSampler):
    """Chains of programs of graphs, whose blocks are matched by their nodes."""

    matched = True
    compares = False
    target = "log p(x, labels, globals)"

    def _read(self, model: GraphModel, data: Data) -> DyadRows:
        return DyadMeanField().rows(model, data)

    def chain(self, model: GraphModel, data: Data, seed: int, start: Params | None) -> Chain:
        rows = self._read(model, data)
        self._structure = rows.structure
        if start is None:
            label = torch.randint(rows.num_labels, (len(rows),), generator=torch.Generator().manual_seed(seed % 2**63))
            share = one_hot(label, rows.num_labels).double()
            start = {**DyadMeanField().start_at(model, share, rows), model.local_site: label}
        return GraphChain(model, rows, seed, {**start, **model.known})

    def propose(self, model: GraphModel, data: Data, seed: int) -> Params:
        """Propose values near a good mode: the best of some divisions of the nodes, after some steps of mean field."""
        engine, rows = DyadMeanField(), self._read(model, data)
        state = engine.propose(model, rows, torch.Generator().manual_seed(seed % 2**63), 0)
        return {**state.sites, model.local_site: state.locals[RESPONSIBILITY].argmax(-1)}

    def exchangeable(self, model: GraphModel) -> list[list[int]]:
        """Return the blocks that priors do not tell apart, where the program itself does not either."""
        sets, structure = super().exchangeable(model), self._structure
        values = structure.probe.draw_globals()
        for own in sets:
            order = torch.arange(structure.program.num_labels)
            order[own] = torch.tensor(own).roll(1)
            moved = rename_components(values, order.tolist(), model.dims)
            (dyads, nodes), (other, others) = (structure.look_up(one) for one in (values, moved))
            same = [other - dyads[order][:, order], others - nodes[:, order]]
            if any(bool((one.abs() > _SAME * (1 + dyads.abs().max())).any()) for one in same):
                return []
        return sets

    def relabel(self, locals_: Tensor, order: Tensor) -> Tensor:
        return torch.argsort(order)[locals_]

    def local_of_draws(self, model: GraphModel, data: Data, locals_: Tensor) -> Local:
        size = model.sizes[str(model.sites[model.local_site].choice)]
        return Local(LabellingPosterior.of_draws(locals_, size), no_bound(1, data.x))
