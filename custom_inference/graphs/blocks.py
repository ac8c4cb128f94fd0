"""What a fit says of pairs of blocks: edges, dyads, and the posterior of their rate."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from custom_inference.core.posteriors import ContinuousPosterior
from custom_inference.core.result import Result
from ppl_models import GraphData, MethodError


class PairCounts(NamedTuple):
    """Expected numbers (K, K) of edges (the sum of x) and of observed dyads, from block to block.

    Of undirected graphs the two are symmetric, and count every dyad once.
    """

    edges: Tensor
    dyads: Tensor


def pair_counts(graph: GraphData, mean: Tensor) -> PairCounts:
    """Sums over the dyads (i, j) of x_ij m_ia m_jb and of m_ia m_jb, for rows m_i (N, K) that sum to 1.

    The cost is linear in edges and hidden dyads: nothing is (N, N).
    """

    def over(ends: Tensor, value: Tensor) -> Tensor:
        weight = torch.sparse_coo_tensor(ends, value, (len(mean), len(mean)), check_invariants=False).coalesce()
        return mean.T @ torch.sparse.mm(weight, mean)

    ends, value, total = graph.edges(), graph.edge_values().to(mean), mean.sum(0)
    loop = ends[0] == ends[1]
    edges = over(ends[:, ~loop], value[~loop])
    dyads = (total[:, None] * total - mean.T @ mean) / (1 if graph.directed else 2)
    if graph.hidden is not None:
        hidden = graph.hidden[:, graph.hidden[0] != graph.hidden[1]]
        dyads = dyads - over(hidden, mean.new_ones(hidden.shape[1]))
    if not graph.directed:
        edges, dyads = _once(edges), _once(dyads)
    if graph.self_loops:  # both ends have the same block
        nodes = torch.arange(len(mean), device=mean.device)
        at = ends[0][loop]
        edges = edges + torch.diag(value[loop] @ mean[at])
        dyads = dyads + torch.diag(graph.is_observed(nodes, nodes).to(mean) @ mean)
    return PairCounts(edges, dyads)


def _once(counts: Tensor) -> Tensor:
    """Both orders of two blocks together; within a block every dyad is there once already."""
    return counts + counts.T - torch.diag(counts.diagonal())


def block_matrix(fit: Result, *, level: float = 0.9) -> pd.DataFrame:
    """Pairs of blocks: expected edges and observed dyads between them, and the posterior of their probability or rate.

    One row a pair (of undirected models each once), indexed by "block" and "to_block". Columns: "edges" and "dyads"
    under the posterior of the nodes; "observed", their quotient; "mean", the fit's eta; "lower" and "upper", the
    central interval of ``level``, from draws or the posterior of the fit, else NaN.
    """
    model: Any = fit.model
    graph = fit.data
    if not isinstance(graph, GraphData):
        raise MethodError(f"{type(model).__name__} is no model of graphs")
    site = model.component_site
    if fit.params[site].ndim != 2:
        raise MethodError(f"{type(model).__name__} has no one number for a pair of blocks, but weights of covariates")
    if not 0 < level < 1:
        raise MethodError(f"level = {level}, expected a number between 0 and 1")
    counts = pair_counts(graph, fit.posterior.mean)
    lower, upper = _interval(fit, site, level)
    names = fit.coords["component"]
    columns: dict[str, Any] = {
        "edges": counts.edges, "dyads": counts.dyads, "observed": counts.edges / counts.dyads,
        "mean": fit.params[site], "lower": lower, "upper": upper,
    }  # fmt: skip
    a, b = np.indices(counts.edges.shape).reshape(2, -1)
    kept = np.ones(len(a), dtype=bool) if model.directed else a <= b
    index = pd.MultiIndex.from_tuples(
        [(names[p], names[q]) for p, q in zip(a[kept], b[kept], strict=True)], names=["block", "to_block"]
    )
    values = {name: v.detach().cpu().numpy().ravel()[kept] for name, v in columns.items()}
    return pd.DataFrame(values, index=index)


def _interval(fit: Result, site: str, level: float) -> tuple[Tensor, Tensor]:
    posterior: ContinuousPosterior | None = fit.global_posterior.get(site)
    if fit.draws is not None and site in fit.draws:
        draws = fit.draws[site].flatten(0, 1)
    elif posterior is not None:
        draws = posterior.sample(4000, seed=fit.seed)
    else:
        nothing = torch.full_like(fit.params[site], torch.nan)
        return nothing, nothing
    tail = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=draws.dtype, device=draws.device)
    low, high = torch.quantile(draws, tail, dim=0)
    return low, high
