"""The blocks of a fitted graph: edges between them and their rates; communities, and how they match."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from custom_inference.core.posteriors import ContinuousPosterior
from custom_inference.core.registry import engines_of
from custom_inference.core.result import Result
from custom_inference.families.blocks.rows import BlockCounts, SbmRows
from ppl_models import DataError, GraphData, MethodError, Model


def graph_of(fit: Result) -> GraphData:
    """The graph of a fit. Raises MethodError for a fit of another kind of model."""
    if not fit.model.is_graph:
        raise MethodError(f"{type(fit.model).__name__} is no model of graphs")
    return cast(GraphData, fit.data)


def matrix_of(fit: Result) -> Tensor:
    """eta (K, K). Raises MethodError where pairs of blocks have no one number."""
    model: Any = fit.model
    matrix = fit.params[model.component_site]
    if matrix.ndim != 2:
        raise MethodError(f"{type(model).__name__} has no one number for a pair of blocks, but weights of covariates")
    return matrix


def has_block_matrix(model: Model) -> bool:
    """Whether a node has one block, and the block matrix a conjugate prior."""
    return model.local_site == "block" and "vb" in engines_of(model)


def propensities_of(model: Model) -> set[str]:
    """The sites of the nodes' propensities, if the model has such."""
    return set(getattr(model, "propensity_sites", ()))


def edges_follow_blocks(model: Model) -> bool:
    """Whether nothing but the blocks of its ends tells one dyad from another."""
    return has_block_matrix(model) and not propensities_of(model)


def pair_counts(model: Any, graph: GraphData, mean: Tensor) -> BlockCounts:
    """Expected edges (the sum of x) and observed dyads (the exposure) from block to block, (K, K), for rows (N, K) that
    sum to 1. Of undirected graphs both are symmetric, and count every dyad once."""
    rows = SbmRows.of(model, graph)
    return rows.counts(mean.detach().cpu().double().numpy(), rows.unweighted)


def block_matrix(fit: Result, *, level: float = 0.9) -> pd.DataFrame:
    """Pairs of blocks: expected edges and observed dyads between them, and the posterior of their probability or rate.

    One row a pair (of undirected models each once), indexed by "block" and "to_block". Columns: "edges" and "dyads"
    under the posterior of the nodes; "observed", their quotient; "mean", the fit's eta; "lower" and "upper", the
    central interval of ``level``, from draws or the posterior of the fit, else NaN.
    """
    graph, mean = graph_of(fit), matrix_of(fit)
    if not 0 < level < 1:
        raise MethodError(f"level = {level}, expected a number between 0 and 1")
    edges, dyads, _ = pair_counts(fit.model, graph, fit.posterior.mean)
    mean, lower, upper = (part.detach().cpu().numpy() for part in (mean, *_interval(fit, level)))
    with np.errstate(invalid="ignore"):
        observed = edges / dyads
    columns = {"edges": edges, "dyads": dyads, "observed": observed, "mean": mean, "lower": lower, "upper": upper}
    kept = np.ones_like(edges, dtype=bool) if graph.directed else np.triu(np.ones_like(edges, dtype=bool))
    names = fit.coords["component"]
    pairs = [(names[a], names[b]) for a, b in np.argwhere(kept)]
    index = pd.MultiIndex.from_tuples(pairs, names=["block", "to_block"])
    return pd.DataFrame({name: value[kept] for name, value in columns.items()}, index=index)


def _interval(fit: Result, level: float) -> tuple[Tensor, Tensor]:
    site = fit.model.component_site
    posterior: ContinuousPosterior | None = fit.global_posterior.get(site)
    ends = (1 - level) / 2, (1 + level) / 2
    if fit.draws is not None and site in fit.draws:
        draws = fit.draws[site].flatten(0, 1)
        low, high = torch.quantile(draws, draws.new_tensor(ends), dim=0)
    elif posterior is not None:
        low, high = posterior.quantiles(ends)
    else:
        low = high = torch.full_like(fit.params[site], torch.nan)
    return low, high


def communities(fit: Result, threshold: float = 0.1) -> list[list[int]]:
    """The nodes of every block, by number: those whose posterior mean there exceeds ``threshold``, or is their largest.

    Communities of mixed memberships overlap; blocks without nodes are left out.
    """
    graph_of(fit)
    if not 0 < threshold < 1:
        raise MethodError(f"threshold = {threshold}, expected a number between 0 and 1")
    mean = fit.posterior.mean
    belongs = mean > threshold
    belongs.scatter_(1, mean.argmax(1, keepdim=True), True)
    return [column.nonzero().flatten().tolist() for column in belongs.T if bool(column.any())]


def best_match_f1(found: Sequence[Iterable[Hashable]], true: Sequence[Iterable[Hashable]]) -> float:
    """How well sets of nodes match true ones, overlapping or not: 1 where they are the same sets.

    The mean of two averages: of every true set's F1 with the found set that matches it best, and of every found set's
    with the true one (Yang & Leskovec, *Overlapping community detection at scale*, WSDM 2013, eq. 11).
    """
    from sklearn.preprocessing import MultiLabelBinarizer

    one, other = [set(part) for part in found], [set(part) for part in true]
    if not one or not other or not all(one) or not all(other):
        raise DataError("no sets, or an empty one among them", axis="node", expected="sets of nodes to compare")
    nodes = MultiLabelBinarizer(classes=list(set().union(*one, *other)), sparse_output=True)
    first, second = (nodes.fit_transform(sets) for sets in (one, other))
    both = (first @ second.T).toarray()
    sizes = np.array([len(part) for part in one])[:, None] + np.array([len(part) for part in other])
    score = 2 * both / sizes
    return float((score.max(0).mean() + score.max(1).mean()) / 2)
