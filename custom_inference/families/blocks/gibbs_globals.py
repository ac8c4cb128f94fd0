"""What a block model's priors and globals are as arrays, and labels drawn at given globals."""

from __future__ import annotations

import itertools

import numpy as np
from scipy.special import betaln, gammaln, softmax
from torch import Tensor

from custom_inference.families.blocks.likelihoods import likelihood_of, partition_likelihood
from custom_inference.families.blocks.mean_field import natural_globals
from custom_inference.families.blocks.nodes import Propensities
from custom_inference.families.blocks.rows import Floats, SbmRows
from custom_inference.families.blocks.state import BERNOULLI, POISSON, Graph, State, graph_of
from custom_inference.families.blocks.sweep import Expected, score_names
from custom_inference.families.common.dirichlet import dirichlet_prior
from custom_inference.gibbs.protocol import Params
from ppl_models import SBM
from ppl_models.sbm import BlockModel

#: Sweeps at given globals that a chain's first blocks are drawn by.
SETTLE = 20
#: All orders of up to so many blocks are weighed when these are renamed.
_ALL_ORDERS = 5


def begin(model: BlockModel, rows: SbmRows, seed: int, start: Params | None) -> tuple[Graph, State]:
    """A graph and its labelling: ``start["block"]``, or drawn at the globals in ``start``, or none yet."""
    from custom_inference.families.blocks import gibbs_kernels as kernels

    graph = model_graph(model, rows, start)
    state = State.empty(graph, seed)
    if start is not None and "block" in start:
        state.label[:] = start["block"].cpu().numpy()
    elif start is not None:
        sweep_given(graph, state, at_globals(model, rows, start), SETTLE)
    kernels.fill(graph, state)
    return graph, state


def model_graph(model: BlockModel, rows: SbmRows, start: Params | None = None) -> Graph:
    """A graph with the model's priors, and with the propensities in ``start`` or those that the degrees suggest."""
    first, second = (array(part) for part in likelihood_of(model).prior())
    kind = BERNOULLI if isinstance(model, SBM) else POISSON
    alpha = array(dirichlet_prior(model, "block_proportion", rows.like).expand(model.num_blocks))
    graph = graph_of(rows, kind=kind, alpha=alpha, first=first, second=second)
    sites = Propensities(model, integrated=True).sites
    if not sites:
        return graph
    if start is not None and sites[0] in start:
        return graph._replace(weight=np.stack([array(start[site]) for site in sites]))
    degree = graph.links.degree
    return graph._replace(weight=(degree + 1) / (degree.mean(1, keepdims=True) + 1))


def at_globals(model: BlockModel, rows: SbmRows, params: Params) -> Expected:
    """log pi, A and B at given globals."""
    return Expected(*natural_globals(model, params), rows.unweighted, partition_likelihood(model))


def sweep_given(graph: Graph, state: State, at: Expected, sweeps: int) -> None:
    from custom_inference.families.blocks import gibbs_conditionals as conditionals

    for _ in range(sweeps):
        conditionals.sweep_given(graph, state, at.log_proportion, at.lift, at.base)


def rename_given(graph: Graph, state: State, at: Expected, generator: np.random.Generator) -> None:
    """New names for all blocks at once, drawn by log p(x, z | globals).

    Nodes one by one cannot pass from a labelling to one with the blocks' roles exchanged, which may fit nearly as well.
    The names are drawn from all orders of few blocks; of many, one exchange of two blocks after another is drawn or
    left. Both are groups of renamings, so that the distribution stays as it is.
    """
    from custom_inference.families.blocks import gibbs_kernels as kernels

    kernels.fill(graph, state)
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
        kernels.fill(graph, state)


def log_joint_given(graph: Graph, state: State, at: Expected) -> float:
    """log p(x, z | globals) up to what does not depend on z; ``state`` is brought up to date."""
    from custom_inference.families.blocks import gibbs_kernels as kernels

    kernels.fill(graph, state)
    return float(score_names(at, state.counts(graph), np.arange(graph.num_blocks)))


def log_constant(graph: Graph, rows: SbmRows) -> float:
    """What log p(x, z) has more than ``gibbs_kernels.total``."""
    mass = graph.alpha.sum()
    found = float(gammaln(mass) - gammaln(mass + graph.num_nodes) - gammaln(graph.alpha).sum())
    first, second, bernoulli = graph.first, graph.second, graph.kind == BERNOULLI
    cell = -betaln(first, second) if bernoulli else first * np.log(second) - gammaln(first)
    found += float((cell if graph.directed else np.triu(cell)).sum())
    return found if bernoulli else found - rows.log_factorials


def array(value: Tensor) -> Floats:
    return value.detach().cpu().double().numpy()
