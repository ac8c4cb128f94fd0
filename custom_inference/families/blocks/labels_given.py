"""Priors and globals of a block model as compiled sweeps read them, and labels drawn at given ones."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from typing import Any

import numpy as np
from scipy.special import betaln, gammaln, softmax
from torch import Tensor

from custom_inference.families.blocks.cells import fill
from custom_inference.families.blocks.likelihoods import likelihood_of, partition_likelihood
from custom_inference.families.blocks.mean_field import natural_globals
from custom_inference.families.blocks.nodes import Propensities
from custom_inference.families.blocks.rows import BERNOULLI, POISSON, Floats, Graph, PartitionState, SbmRows, graph_of
from custom_inference.families.blocks.sweep import BlockExpectations, score_names
from custom_inference.families.conjugate.dirichlet import Dirichlet
from custom_inference.gibbs.protocol import Params
from ppl_models.block_models import BlockModel

#: All orders of up to so many blocks are weighed when these are renamed.
_ALL_ORDERS = 5


def start_from_labels(rows: SbmRows, ends: Floats, blocks: int, label: Any, seed: int) -> tuple[Graph, PartitionState]:
    """Return a graph with the nodes' weights (S, N), and its labelling (N,)."""
    graph = graph_of(rows, kind=BERNOULLI, alpha=np.ones(blocks), first=1.0, second=1.0)._replace(weight=ends)
    state = PartitionState.empty(graph, seed)
    state.label[:] = label
    fill(graph, state)
    return graph, state


def sweep_given(graph: Graph, state: PartitionState, at: BlockExpectations, sweeps: int) -> Floats:
    """Sweep the labels at given expectations; return the nodes' mean probabilities of the blocks on the way, (N, K)."""
    from custom_inference.families.blocks import gibbs_conditionals as conditionals

    share = np.zeros((graph.num_nodes, graph.num_blocks))
    for _ in range(sweeps):
        conditionals.sweep_given(graph, state, at.log_proportion, at.lift, at.base, share)
    return share / max(sweeps, 1)


def rename_given(graph: Graph, state: PartitionState, at: BlockExpectations, generator: np.random.Generator) -> None:
    """Draw new names for all blocks at once by log p(x, z | globals).

    Nodes one by one cannot pass from a labelling to one with the blocks' roles exchanged, which may fit nearly as well.
    The names are drawn from all orders of few blocks; of many, one exchange of two blocks after another is drawn or
    left. Both are groups of renamings, so that the distribution stays as it is.
    """
    fill(graph, state)
    blocks = graph.num_blocks
    same = np.arange(blocks)
    if blocks <= _ALL_ORDERS:
        groups = [np.array(list(itertools.permutations(range(blocks))))]
    else:
        groups = [np.stack([same, same]) for _ in range(blocks)]
        for group in groups:
            pair = generator.choice(blocks, 2, replace=False)
            group[1, pair] = pair[::-1]
    order, counts = same, state.counts(graph)
    for group in groups:
        names = group[:, order]  # (P, K): what block a would be called
        order = names[generator.choice(len(names), p=softmax(score_names(at, counts, names)))]
    if (order != same).any():
        state.label[:] = order[state.label]
        fill(graph, state)


def log_joint_given(graph: Graph, state: PartitionState, at: BlockExpectations) -> float:
    """Compute log p(x, z | globals) up to what does not depend on z; ``state`` is brought up to date."""
    fill(graph, state)
    return float(score_names(at, state.counts(graph), np.arange(graph.num_blocks)))


#: Sweeps at given globals that a chain's first blocks are drawn by.
_SETTLE = 20


def begin(model: BlockModel, rows: SbmRows, seed: int, start: Params | None) -> tuple[Graph, PartitionState]:
    """Return a graph and its labelling: ``start["block"]``, or drawn at the globals in ``start``, or none yet."""
    graph = model_graph(model, rows, start)
    state = PartitionState.empty(graph, seed)
    if start is not None and "block" in start:
        state.label[:] = start["block"].cpu().numpy()
    elif start is not None:
        sweep_given(graph, state, at_globals(model, rows, start), _SETTLE)
    fill(graph, state)
    return graph, state


def model_graph(model: BlockModel, rows: SbmRows, start: Params | None = None) -> Graph:
    """Return a graph with the model's priors, and with the propensities in ``start`` or those that the degrees
    suggest."""
    first, second = (array(part) for part in likelihood_of(model).prior())
    kind = BERNOULLI if likelihood_of(model).kind == "bernoulli" else POISSON
    alpha = array(Dirichlet.of(model, "block_proportion", rows.like).concentration.expand(model.num_blocks))
    graph = graph_of(rows, kind=kind, alpha=alpha, first=first, second=second)
    sites = Propensities(model, integrated=True).sites
    if not sites:
        return graph
    if start is not None and sites[0] in start:
        return graph._replace(weight=np.stack([array(start[site]) for site in sites]))
    degree = graph.links.degree
    return graph._replace(weight=(degree + 1) / (degree.mean(1, keepdims=True) + 1))


def at_globals(model: BlockModel, rows: SbmRows, params: Params) -> BlockExpectations:
    """Return log pi, A and B at given globals."""
    return BlockExpectations(*natural_globals(model, params), rows.unweighted, partition_likelihood(model))


def log_constant(graph: Graph, rows: SbmRows, given: Collection[str] = ()) -> float:
    """Compute what log p(x, z) has more than ``cells.total``; given: sites that are not integrated out."""
    mass, found = graph.alpha.sum(), 0.0
    if "block_proportion" not in given:
        found += float(gammaln(mass) - gammaln(mass + graph.num_nodes) - gammaln(graph.alpha).sum())
    first, second, bernoulli = graph.first, graph.second, graph.kind == BERNOULLI
    cell = -betaln(first, second) if bernoulli else first * np.log(second) - gammaln(first)
    if not {"edge_probability", "edge_rate"} & set(given):
        found += float((cell if graph.directed else np.triu(cell)).sum())
    return found if bernoulli else found - rows.log_factorials


def array(value: Tensor) -> Floats:
    return value.detach().cpu().double().numpy()
