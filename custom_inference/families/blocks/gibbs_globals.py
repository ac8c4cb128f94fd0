"""What a block model's priors and globals are as arrays, and labels drawn at given globals."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import betaln, gammaln, softmax
from torch import Tensor

from custom_inference.families.blocks.state import BERNOULLI, POISSON, Graph, State, graph_of
from custom_inference.families.common.dirichlet import dirichlet_prior
from custom_inference.families.common.gamma import gamma_prior
from custom_inference.families.common.graph_rows import GraphRows
from custom_inference.gibbs.protocol import Params
from ppl_models import SBM, DegreeCorrectedSBM, MethodError
from ppl_models.sbm import BlockModel

Array = NDArray[np.float64]

#: Sweeps at given globals that a chain's first blocks are drawn by.
SETTLE = 20
#: All orders of up to so many blocks are weighed when these are renamed.
_ALL_ORDERS = 5


def begin(
    model: BlockModel, rows: GraphRows, seed: int, start: Params | None, *, sweeps: int = SETTLE
) -> tuple[Graph, State]:
    """A graph and its labelling: ``start["block"]``, or drawn at the globals in ``start``, or none yet."""
    from custom_inference.families.blocks import gibbs_kernels as kernels

    graph = model_graph(model, rows, start)
    state = State.empty(graph, seed)
    if start is not None and "block" in start:
        state.label[:] = start["block"].cpu().numpy()
    elif start is not None:
        sweep_given(graph, state, start, sweeps)
    kernels.fill(graph, state)
    return graph, state


def model_graph(model: BlockModel, rows: GraphRows, start: Params | None = None) -> Graph:
    """A graph with the model's priors, and with the propensities in ``start`` or those that the degrees suggest."""
    first, second = pair_priors(model)
    kind = BERNOULLI if isinstance(model, SBM) else POISSON
    alpha = _array(dirichlet_prior(model, "block_proportion", rows.like).expand(model.num_blocks))
    graph = graph_of(rows, kind=kind, alpha=alpha, first=first, second=second)
    if not isinstance(model, DegreeCorrectedSBM):
        return graph
    degrees = [graph.out_degree, graph.in_degree]
    weights = [(degree + 1) / (degree.mean() + 1) for degree in degrees]
    if start is not None and model.propensity_sites[0] in start:
        weights = [_array(start[site]) for site in model.propensity_sites]
    return graph._replace(out_weight=weights[0].copy(), in_weight=weights[1].copy())


def sweep_given(graph: Graph, state: State, params: Params, sweeps: int) -> None:
    from custom_inference.families.blocks import gibbs_conditionals as conditionals

    for _ in range(sweeps):
        conditionals.sweep_given(graph, state, *_log_globals(graph, params))


def rename_given(graph: Graph, state: State, params: Params, generator: np.random.Generator) -> None:
    """New names for all blocks at once, drawn by log p(x, z | globals).

    Nodes one by one cannot pass from a labelling to one with the blocks' roles exchanged, which may fit nearly as well.
    The names are drawn from all orders of few blocks; of many, one exchange of two blocks after another is drawn or
    left. Both are groups of renamings, so that the distribution stays as it is.
    """
    from custom_inference.families.blocks import gibbs_kernels as kernels

    kernels.fill(graph, state)
    blocks = graph.num_blocks
    if blocks <= _ALL_ORDERS:
        groups = [np.array(list(itertools.permutations(range(blocks))))]
    else:
        exchanges = [generator.choice(blocks, 2, replace=False) for _ in range(blocks)]
        groups = [np.stack([np.arange(blocks), _exchanged(blocks, *pair)]) for pair in exchanges]
    log_share, per_edge, per_exposure = _log_globals(graph, params)
    every, order = np.ones_like(per_edge) if graph.directed else np.triu(np.ones_like(per_edge)), np.arange(blocks)
    for group in groups:
        names = group[:, order]  # (P, K): what block a would be called
        pairs = names[:, :, None], names[:, None, :]
        each = state.edges * per_edge[pairs] + state.exposure * per_exposure[pairs]
        weight = log_share[names] @ state.size + (each * every).sum((1, 2))
        order = names[generator.choice(len(names), p=softmax(weight))]
    if (order != np.arange(blocks)).any():
        state.label[:] = order[state.label]
        kernels.fill(graph, state)


def _exchanged(blocks: int, a: int, b: int) -> NDArray[np.int64]:
    order = np.arange(blocks)
    order[a], order[b] = b, a
    return order


def log_joint_given(graph: Graph, state: State, params: Params) -> float:
    """log p(x, z | globals) up to what does not depend on z; ``state`` is brought up to date."""
    from custom_inference.families.blocks import gibbs_kernels as kernels

    kernels.fill(graph, state)
    log_share, per_edge, per_exposure = _log_globals(graph, params)
    each = state.edges * per_edge + state.exposure * per_exposure
    return float(state.size @ log_share + (each if graph.directed else np.triu(each)).sum())


def _log_globals(graph: Graph, params: Params) -> tuple[Array, Array, Array]:
    """log pi, and what an edge and what an exposed dyad adds, (K, K)."""
    tiny, eps = np.finfo(np.float64).tiny, np.finfo(np.float64).eps
    log_share = np.log(_array(params["block_proportion"]).clip(tiny))
    if graph.kind == BERNOULLI:
        eta = _array(params["edge_probability"]).clip(eps, 1 - eps)
        return log_share, np.ascontiguousarray(np.log(eta) - np.log1p(-eta)), np.ascontiguousarray(np.log1p(-eta))
    rate = np.ascontiguousarray(_array(params["edge_rate"]))
    return log_share, np.log(rate.clip(tiny)), -rate


def pair_priors(model: BlockModel) -> tuple[Array, Array]:
    """Of every pair of blocks (K, K): the Beta's (a, b), or the Gamma's shape and rate."""
    site, square = model.component_site, (model.num_blocks, model.num_blocks)
    prior: Any = model.priors[site]
    if not isinstance(model, SBM):
        parts = gamma_prior(model, site, torch.zeros((), dtype=torch.float64))
    elif isinstance(prior, torch.distributions.Beta):
        parts = prior.concentration1, prior.concentration0
    else:
        name = type(prior).__name__
        raise MethodError(f"the prior of '{site}' is a {name}; only a Beta prior is integrated out; use SVI or NUTS")
    full = [np.broadcast_to(_array(part), square).copy() for part in parts]
    first, second = full if model.directed else [mirrored(part) for part in full]
    return first, second


def propensity_priors(model: DegreeCorrectedSBM, size: int) -> tuple[Array, Array]:
    """Shapes and rates, (2, N) each: of sending and of receiving."""
    like = torch.zeros((), dtype=torch.float64)
    parts = [gamma_prior(model, site, like) for site in model.propensity_sites]
    shape, rate = (np.stack([np.broadcast_to(_array(part[at]), size) for part in parts]) for at in (0, 1))
    return shape, rate


def log_constant(graph: Graph, rows: GraphRows) -> float:
    """What log p(x, z) has more than ``_sbm_kernels.total``."""
    mass = graph.alpha.sum()
    found = float(gammaln(mass) - gammaln(mass + graph.num_nodes) - gammaln(graph.alpha).sum())
    first, second = graph.first, graph.second
    cell = -betaln(first, second) if graph.kind == BERNOULLI else first * np.log(second) - gammaln(first)
    found += float((cell if graph.directed else np.triu(cell)).sum())
    if graph.kind == BERNOULLI:
        return found
    every, own = gammaln(rows.outgoing.value + 1).sum(), gammaln(graph.own + 1).sum()
    return found - float(every if graph.directed else (every + own) / 2)


def mirrored(matrix: Array) -> Array:
    """What is above the diagonal, below it too."""
    return np.triu(matrix) + np.triu(matrix, 1).T


def _array(value: Tensor) -> Array:
    return value.detach().cpu().double().numpy()
