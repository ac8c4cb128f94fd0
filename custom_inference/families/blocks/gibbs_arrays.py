"""Priors, globals and data of a block model as arrays, which compiled sweeps read, and the labels of a start."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from scipy.special import betaln, gammaln
from torch import Tensor

from custom_inference.families.blocks.cells import fill
from custom_inference.families.blocks.labels_given import sweep_given
from custom_inference.families.blocks.likelihoods import likelihood_of, partition_likelihood
from custom_inference.families.blocks.mean_field import natural_globals
from custom_inference.families.blocks.nodes import Propensities
from custom_inference.families.blocks.rows import BERNOULLI, POISSON, Floats, Graph, PartitionState, SbmRows, graph_of
from custom_inference.families.blocks.sweep import BlockExpectations
from custom_inference.families.conjugate.dirichlet import Dirichlet
from custom_inference.gibbs.protocol import Params
from ppl_models import SBM
from ppl_models.block_models import BlockModel

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
    kind = BERNOULLI if isinstance(model, SBM) else POISSON
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
