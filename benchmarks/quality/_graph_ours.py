"""This project's fits of graphs with known groups: what they found, how sure they are, and what they took."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import custom_inference
from benchmarks.quality._common import cpu_seconds
from benchmarks.quality._graph_data import Array, KnownGraph, Labels
from custom_inference import CollapsedGibbs, Fit
from custom_inference.graphs import link_probability
from ppl_models import MMSB, SBM, DegreeCorrectedSBM, GraphData, PoissonSBM, graph

MODELS: dict[str, type] = {
    "SBM": SBM,
    "Poisson SBM": PoissonSBM,
    "degree-corrected SBM": DegreeCorrectedSBM,
    "MMSB": MMSB,
}


class Ours(NamedTuple):
    """A fit, the block of each node, its memberships (N, K), and CPU seconds."""

    fit: Fit
    block: Labels
    membership: Array
    seconds: float

    @property
    def bound(self) -> float:
        return float(self.fit.elbo[-1])


def data_of(known: KnownGraph) -> GraphData:
    """Through the door that users take."""
    return graph(known.adjacency, directed=known.directed, nodes=list(known.names) or None)


def model_of(kind: str, known: KnownGraph, num_blocks: int, **settings: Any) -> Any:
    return MODELS[kind](num_blocks=num_blocks, num_nodes=known.num_nodes, directed=known.directed, **settings)


def default_fit(model: Any, data: GraphData, seed: int, **settings: Any) -> Ours:
    """``fit(model, data)`` as it comes, or with settings."""
    return found(lambda: custom_inference.fit(model, data, seed=seed, progress=False, **settings))


def gibbs_fit(model: Any, data: GraphData, seed: int, **settings: Any) -> Ours:
    return found(lambda: CollapsedGibbs(**settings).fit(model, data, seed=seed, progress=False))


def warm_up(kind: str, *, directed: bool = False) -> None:
    """Compiles what is compiled, by a fit of a chain of nodes that is long enough not to be treated as a toy."""
    node = np.arange(300)
    edges = np.concatenate([np.stack([node[:-step], node[step:]], 1) for step in (1, 2, 5, 9)])
    known = KnownGraph("chain", edges[edges[:, 0] % 10 != 9], len(node), directed, {})
    default_fit(model_of(kind, known, 3), data_of(known), 0)


def found(call: Callable[[], Fit]) -> Ours:
    fit, seconds = cpu_seconds(call)
    mean = fit.params.get("membership", fit.posterior.mean).numpy(force=True)
    block = fit.params["block"].numpy(force=True) if "block" in fit.params else mean.argmax(1)
    return Ours(fit, block, mean, seconds)


def edge_probability(fit: Fit, i: Labels, j: Labels) -> Array:
    """P(edge) of the dyads (i, j), numbers of nodes, given the graph."""
    return link_probability(fit, positions=(i, j)).numpy(force=True)
