"""Tempered chains over the labelings of a graph's nodes at given globals: all of them are one observation."""

from __future__ import annotations

import abc
import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import one_hot

from custom_inference.core.annealing.chains import (
    GraphChains,
    Product,
    State,
    Tuning,
    draw_places,
    draw_seed,
    exchange_names,
)
from custom_inference.core.engine import Params
from custom_inference.families.blocks.covariates import CovariateGraphRows, log_proportion_of
from custom_inference.families.blocks.labels_given import start_from_labels
from custom_inference.families.blocks.mean_field import SbmMeanField
from custom_inference.families.blocks.rows import Floats, Graph, PartitionState, SbmRows
from ppl_models import CovariateSBM, Data
from ppl_models.block_models import BlockModel


class _Terms(NamedTuple):
    """What labels are drawn and scored by: a graph with room for its sums, A and B (K, K)."""

    graph: Graph
    state: PartitionState
    lift: Floats
    base: Floats


@dataclass(frozen=True)
class LabelChains(GraphChains):
    """Chains over the labels of N nodes, drawn one after the other, with exchanges of the names of two blocks: nodes
    one by one do not pass from a labeling to the one with these roles exchanged, which may fit nearly as well.

    proportion: log pi (K,). size: N. constant: what log p(x, z) has beside the sums over nodes and dyads.
    """

    proportion: Tensor
    size: int
    constant: float
    base: Product | None

    @property
    def options(self) -> Tensor:
        return torch.full((self.size,), len(self.proportion))

    @abc.abstractmethod
    def sweep(self, labels: NDArray[np.int64], field: Floats, power: float, rng: NDArray[np.uint64]) -> None:
        """Draw new labels (M, N), in place, in proportion to exp(field_ir) (N, K) and the dyads' terms at a power."""

    @abc.abstractmethod
    def score(self, labels: NDArray[np.int64]) -> Floats:
        """Sum the dyads' terms (M,) of labels (M, N)."""

    @functools.cached_property
    def _table(self) -> Tensor:
        """The log-probabilities (N, K) that paths begin at."""
        return self.proportion.expand(self.size, -1) if self.base is None else self.base.table[0]

    def begin(self, chains: int, generator: torch.Generator) -> State:
        return self._evaluate(draw_places(self._table.exp(), (chains,), generator))

    def at(self, code: Tensor, generator: torch.Generator) -> State:
        del generator
        return self._evaluate(code.reshape(len(code), self.size, -1).argmax(-1))

    def code(self, state: State) -> Tensor:
        return one_hot(state.place, len(self.proportion)).to(self.proportion).flatten(2)

    def _evaluate(self, label: Tensor) -> State:
        """The state at labels (M, N)."""
        begun = self._table.expand(len(label), -1, -1).gather(-1, label.unsqueeze(-1)).sum((1, 2))
        joint = self.proportion[label].sum(-1) + torch.from_numpy(self.score(label.numpy())) + self.constant
        place = label.unsqueeze(1)
        return State(place, place.new_zeros(*place.shape[:2], 0, dtype=torch.float64), joint[:, None], begun[:, None])

    def move(self, state: State, power: Tensor, tuning: Tuning, generator: torch.Generator) -> tuple[State, Tensor]:
        label, heat = state.place[:, 0].clone(), float(power)
        field = (1 - heat) * self._table + heat * self.proportion
        self.sweep(label.numpy(), np.ascontiguousarray(field.numpy()), heat, draw_seed(generator))
        state, blocks = self._evaluate(label), len(self.proportion)
        if blocks > 1:
            other = self._evaluate(exchange_names(blocks, len(label), generator).gather(1, label))
            state = state.accept(other, power, generator)
        return state, torch.ones_like(power)


@dataclass(frozen=True)
class GraphLabelChains(LabelChains):
    """Labels of graphs whose dyads are alike but for the blocks and the weights of their nodes."""

    terms: _Terms

    def sweep(self, labels: NDArray[np.int64], field: Floats, power: float, rng: NDArray[np.uint64]) -> None:
        from custom_inference.families.blocks.gibbs_conditionals import sweep_chains

        graph, state, lift, base = self.terms
        state.rng[0] = rng[0]
        sweep_chains(graph, state, labels, field, power * lift, power * base)

    def score(self, labels: NDArray[np.int64]) -> Floats:
        from custom_inference.families.blocks.gibbs_conditionals import score_chains

        found = np.empty(len(labels))
        score_chains(self.terms.graph, self.terms.state, labels, self.terms.lift, self.terms.base, found)
        return found


@dataclass(frozen=True)
class DenseLabelChains(LabelChains):
    """Labels of graphs whose dyads have features of their own.

    exposure (N, N, K, K): the terms of both directions of a pair, by the block of the second node and of the first.
    own (N, K): those of self loops.
    """

    exposure: Floats
    own: Tensor

    def sweep(self, labels: NDArray[np.int64], field: Floats, power: float, rng: NDArray[np.uint64]) -> None:
        from custom_inference.families.blocks.gibbs_conditionals import sweep_dense_chains

        room = np.empty((2, field.shape[1]))
        sweep_dense_chains(self.exposure, labels, field + power * self.own.numpy(), power, room[0], room[1], rng)

    def score(self, labels: NDArray[np.int64]) -> Floats:
        from custom_inference.families.blocks.gibbs_conditionals import score_dense_chains

        found = np.empty(len(labels))
        score_dense_chains(self.exposure, labels, found)
        return found + self.own.numpy()[np.arange(self.size), labels].sum(-1)


def block_chains(model: BlockModel, params: Params, data: Data) -> GraphLabelChains:
    """Chains over the blocks of nodes, at a cost of the edges and the hidden dyads."""
    rows = SbmRows.of(model, data)
    at: Any = SbmMeanField().compute_expectations(model, params, rows)
    graph, state = start_from_labels(rows, at.weights.ends, model.num_blocks, 0, 0)
    constant = at.weights.log_power - (0.0 if at.likelihood == "bernoulli" else rows.log_factorials)
    proportion = torch.as_tensor(at.log_proportion)
    return GraphLabelChains(proportion, len(rows), constant, None, _Terms(graph, state, at.lift, at.base))


def covariate_chains(model: CovariateSBM, params: Params, data: Data) -> DenseLabelChains:
    """Chains over the blocks of nodes with features, of which every dyad has its own.

    Raises CapacityError where N^2 K^2 numbers do not fit into memory.
    """
    rows = CovariateGraphRows.of(model, data)
    exposure, own = rows.exposures(params["weight"])
    table = exposure.permute(0, 2, 3, 1).contiguous().numpy()
    return DenseLabelChains(log_proportion_of(params), len(rows), 0.0, None, table, own)
