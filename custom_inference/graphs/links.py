"""Links that were held out: which dyads, how probable an edge is there, and how good that is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from custom_inference.core.draws import PosteriorDraws, has_draws, num_independent
from custom_inference.core.posteriors import LabellingPosterior
from custom_inference.core.predicted import Prediction
from custom_inference.core.result import Result
from custom_inference.graphs.blocks import edges_follow_blocks, graph_of
from ppl_models import CapacityError, DataError, GraphData, MethodError
from ppl_models.core.errors import a_value_of
from ppl_models.data.held import is_text
from ppl_models.data.labels import places_of
from ppl_models.datasets.graphs import dyads_at

#: Nodes by their names or numbers.
Nodes = ArrayLike | Tensor
#: Dyads a block: what K^2 numbers a dyad may cost.
_BLOCK = 100_000
#: Labelings that are averaged over as they are; of more, the nodes are taken to be independent.
_LABELINGS = 20_000
#: Draws of the globals that blocks are drawn given, where a fit has not drawn them.
_INFERRED = 400
#: Draws that intervals are made of, and numbers that these may be in all.
_DRAWS, _MOST = 1000, 2**26


class HeldDyads(NamedTuple):
    """Dyads (M,) by the numbers of their nodes, and the values that were hidden there."""

    i: Tensor
    j: Tensor
    value: Tensor


def hold_out_dyads(
    graph: GraphData, share: float = 0.1, seed: int = 0, *, stratified: bool = True, max_dyads: int = 20_000_000
) -> tuple[GraphData, HeldDyads]:
    """The graph with a share of its observed dyads hidden, and these dyads with their values.

    stratified: the same share of the edges and of the dyads without one. Self loops are never held out.

    Raises DataError where nothing would be held out or left; CapacityError for more than ``max_dyads``.
    """
    if not 0 < share < 1:
        raise DataError(f"share = {share}", axis="dyad", expected="a number between 0 and 1")
    rng, size = np.random.default_rng(seed), len(graph)
    ends, value = graph.edges().cpu().numpy(), graph.edge_values().cpu().numpy()
    proper = ends[0] != ends[1]
    edge, value = _number(ends[:, proper], size, graph.directed), value[proper]
    hidden = np.empty((2, 0), dtype=np.int64) if graph.hidden is None else graph.hidden.cpu().numpy()
    gone = _number(hidden[:, hidden[0] != hidden[1]], size, graph.directed)
    total = size * (size - 1) // (1 if graph.directed else 2)
    count = round(share * (total - len(gone)))
    if count > max_dyads:
        raise CapacityError(
            f"{count} dyads would be held out, {max_dyads} are allowed; a smaller share would do",
            needed_bytes=24.0 * count, allowed_bytes=24.0 * max_dyads,
        )  # fmt: skip
    if stratified:
        ones = rng.choice(edge, round(share * len(edge)), replace=False)
        zeros = _others(rng, np.union1d(edge, gone), total, round(share * (total - len(gone) - len(edge))))
        chosen = np.sort(np.concatenate([ones, zeros]))
    else:
        chosen = np.sort(_others(rng, np.unique(gone), total, count))
    if not len(chosen) or len(chosen) >= total - len(gone):
        found = f"{len(chosen)} of {total - len(gone)} observed dyads to hold out"
        raise DataError(found, axis="dyad", expected="a share that holds some out and leaves others")
    i, j = (torch.as_tensor(part, device=graph.x.device) for part in dyads_at(chosen, size, graph.directed))
    held = HeldDyads(i, j, graph.observed_value(i, j))
    return graph.without(torch.stack([i, j])), held


def _number(ends: NDArray[np.int64], size: int, directed: bool) -> NDArray[np.int64]:
    """The places (M,) of dyads (2, M) in lexicographic order: the inverse of ``dyads_at``."""
    i, j = ends
    if directed:
        return i * (size - 1) + j - (j > i)
    return i * size - i * (i + 1) // 2 + j - i - 1


def _others(rng: np.random.Generator, excluded: NDArray[np.int64], total: int, count: int) -> NDArray[np.int64]:
    """``count`` different numbers below ``total`` that are none of the sorted ``excluded`` ones."""
    if not count:
        return np.empty(0, dtype=np.int64)
    rank = rng.choice(total - len(excluded), count, replace=False, shuffle=False)
    # So many numbers below each excluded one are not excluded: the rank among those is moved past them.
    return rank + np.searchsorted(excluded - np.arange(len(excluded)), rank, side="right")


def link_probability(
    fit: Result,
    i: HeldDyads | Nodes | None = None,
    j: Nodes | None = None,
    *,
    positions: tuple[Nodes, Nodes] | None = None,
    uncertainty: bool = False,
) -> Any:
    """P(x_ij > 0 | graph) of dyads (M,), the posterior of locals and globals averaged out as far as the fit has one.

    i, j: (M,) the names of the nodes, their numbers 0, ..., N - 1 where they have none; or i alone, dyads as
        :func:`hold_out_dyads` gives them. positions: (i, j) by their numbers, whatever their names.

        sum_ab P(q_i = a) P(q_j = b) E[eta_ab]                    SBM; 1 - exp(-rate) in place of eta for counts
        (1 - rho) E[pi_i]' E[eta] E[pi_j]                         MMSB (Murphy 2012, eqs. 27.77-27.79)

    Of fits with draws it is the mean over the draws of locals and globals together, which no exchange of the blocks'
    labels changes.

    uncertainty: give a :class:`Prediction` instead: of every dyad the mean, the sd of the probability over the
        posterior of locals and globals, and intervals of the probability; spread is that of the edge itself, 0 or 1.
        Globals that the fit estimates as points count as known.

    Raises DataError for unknown nodes, and for as many of both as there are not.
    """
    if isinstance(i, HeldDyads) and j is None:
        i, positions = None, i[:2]
    first, second = _resolve_pairs(graph_of(fit), (i, j), positions)
    mean = _average(fit, first, second, _above_zero)[0]
    return _with_draws(fit, mean, first, second) if uncertainty else mean


def expect_dyads(fit: Result, i: Tensor, j: Tensor) -> tuple[Tensor, Tensor]:
    """Return E[x_ij | graph] of dyads (M,) by the numbers of their nodes, and its standard errors, which only fits with
    draws have."""
    return _average(fit, i, j, lambda edge: edge.mean)


def _average(fit: Result, i: Tensor, j: Tensor, read: Callable[[Any], Tensor]) -> tuple[Tensor, Tensor]:
    """Average what is read of the distributions of dyads over the states of a fit: the means, and standard errors."""
    states = _states(fit)
    total = torch.zeros(len(i)).to(states[0][2].device, fit.params[fit.model.component_site].dtype)
    squares, drawn = torch.zeros_like(total), len(states) > 1 and has_draws(fit)
    for weight, site, local in states:
        for start in range(0, len(i), _BLOCK):
            part = slice(start, start + _BLOCK)
            found = _dyad_means(fit.model, site, local, i[part], j[part], read)
            total[part] += weight * found
            squares[part] += weight * found.square()
    if not drawn:
        return total, torch.zeros_like(total)
    return total, ((squares - total.square()).clamp_min(0) / num_independent(fit)).sqrt()


def _with_draws(fit: Result, mean: Tensor, i: Tensor, j: Tensor) -> Prediction:
    """Add to the means (M,) what the probabilities are at draws of globals and locals. Raises CapacityError."""
    if len(i) * _DRAWS > _MOST:
        raise CapacityError(
            f"uncertainty=True of {len(i)} dyads at {_DRAWS} draws; ask for fewer, at most {_MOST // _DRAWS}",
            needed_bytes=8.0 * len(i) * _DRAWS, allowed_bytes=8.0 * _MOST,
        )  # fmt: skip
    pairs = PosteriorDraws(fit, _DRAWS, fit.seed)
    found = [_dyad_means(fit.model, site, local, i, j, _above_zero).detach() for site, local in pairs]
    chances = torch.stack(found).to(mean)
    sd = (chances - mean).square().mean(0).sqrt()
    return Prediction(mean, sd, (mean * (1 - mean)).clamp_min(0.0).sqrt(), chances)


def _resolve_pairs(
    graph: GraphData, named: tuple[Nodes | None, Nodes | None], positions: tuple[Nodes, Nodes] | None
) -> tuple[Tensor, Tensor]:
    """The numbers (M,) of the nodes of dyads, by their names or by these numbers."""
    pair = named if positions is None else positions
    both = positions is not None and any(part is not None for part in named)
    if both or any(part is None for part in pair):
        raise DataError("neither pairs nor positions, or both", axis="dyad", expected="i and j, or positions=(i, j)")
    labels = graph.coords.get("row") if positions is None else None
    hint = "" if labels is None else "; positions=(i, j) takes numbers"
    first, second = (torch.as_tensor(places_of(_flat(one), labels, len(graph), "node", hint=hint)) for one in pair)
    if first.shape != second.shape:
        raise DataError(f"{len(first)} and {len(second)} nodes", axis="dyad", expected="as many of both")
    return first, second


def _flat(nodes: Any) -> Any:
    """One node as a list of it; numbers of any shape as a vector."""
    if is_text(nodes) or np.ndim(nodes) == 0:
        return [nodes.item() if torch.is_tensor(nodes) else nodes]
    return nodes.flatten() if isinstance(nodes, np.ndarray | Tensor) else nodes


def _states(fit: Result) -> list[tuple[float, dict[str, Tensor], Tensor]]:
    """(weight, globals, locals): labels (N,), or P(block) or memberships (N, K)."""
    posterior, globals_ = fit.posterior, fit.globals
    draws = {site: v.flatten(0, 1) for site, v in (fit.draws or {}).items() if site in globals_}
    count = len(next(iter(draws.values()))) if len(draws) == len(globals_) else 0
    if isinstance(posterior, LabellingPosterior):
        labels, weight = posterior.labels.long(), posterior.log_weight.exp()
        if count == len(labels):
            return [(1 / count, {s: v[d] for s, v in draws.items()}, labels[d]) for d in range(count)]
        if not count and len(labels) <= _LABELINGS:
            return [(float(w), globals_, one) for w, one in zip(weight, labels, strict=True) if w > 0]
    concentration = getattr(posterior, "concentration", None)
    if concentration is not None and concentration.ndim == 3 and len(concentration) == count:
        mean = concentration / concentration.sum(-1, keepdim=True)
        return [(1 / count, {s: v[d] for s, v in draws.items()}, mean[d]) for d in range(count)]
    if has_draws(fit):  # of the globals alone: the blocks given each
        return [(1 / _INFERRED, site, local) for site, local in PosteriorDraws(fit, _INFERRED, fit.seed)]
    return [(1.0, globals_, posterior.mean)]


def _dyad_means(
    model: Any, site: dict[str, Tensor], local: Tensor, i: Tensor, j: Tensor, read: Callable[[Any], Tensor]
) -> Tensor:
    """What is read of the distributions of dyads (M,) at given globals; nodes are independent given ``local``."""
    if model.has_continuous_locals:
        # Bilinear in the memberships of two different nodes, so that their means will do.
        return read(model.edge_distribution(site, local, i, j))
    if not hasattr(model, "edges_between"):
        kind = type(model).__name__
        raise MethodError(
            f"{kind} does not say what its dyads are at given blocks; expected a model of the suite, or a method "
            f"edges_between(site, first, second, i, j) of {kind} that returns the distributions of dyads"
        )
    if local.ndim == 1:
        return read(model.edges_between(site, local[i], local[j], i, j))
    blocks = torch.arange(model.num_blocks)
    if edges_follow_blocks(model):
        a, b = (part.flatten() for part in torch.meshgrid(blocks, blocks, indexing="ij"))
        matrix = read(model.edges_between(site, a, b, a, b)).reshape(len(blocks), -1)
        return (local[i] @ matrix * local[j]).sum(-1)
    total = local.new_zeros(len(i))
    for a in blocks.tolist():
        for b in blocks.tolist():
            one, other = (torch.full_like(i, label) for label in (a, b))
            total += local[i, a] * local[j, b] * read(model.edges_between(site, one, other, i, j))
    return total


def _above_zero(edge: Any) -> Tensor:
    return -torch.expm1(-edge.rate) if hasattr(edge, "rate") else edge.probs


def link_prediction(fit: Result, held: HeldDyads) -> pd.DataFrame:
    """How well a fit to the graph without the held dyads tells which of them have an edge, beside two baselines.

    Rows "model", "density" (the same probability everywhere) and "degree product" (1 - exp(-d_i d_j / E), the degrees
    out of i and into j of E edges in the training graph; twice E if undirected). Columns: "auc", the area under the ROC
    curve; "average_precision", of the precision-recall curve; "log_loss", in nats a dyad.

    Raises DataError where the held dyads all have an edge, or none.
    """
    from sklearn.metrics import average_precision_score, log_loss, roc_auc_score

    if not hasattr(held, "value"):
        raise MethodError(f"held = {a_value_of(type(held))}; expected the second that hold_out_dyads(graph) gives")
    truth = (held.value > 0).cpu().numpy()
    if truth.all() or not truth.any():
        found = f"{int(truth.sum())} of {len(truth)} held dyads have an edge"
        raise DataError(found, axis="dyad", expected="some that have one and some that have none")
    graph = graph_of(fit)
    edges = graph.num_edges
    out, into = (graph.degrees(kind).double() for kind in ("out", "in"))
    expected = out[held.i] * into[held.j] / max(edges * (1 if graph.directed else 2), 1)
    predictors = {
        "model": link_probability(fit, held),
        "density": torch.full(held.i.shape, edges / graph.num_dyads, dtype=torch.float64),
        "degree product": -torch.expm1(-expected),
    }
    # A probability of 0 where there is an edge would be an infinite loss.
    rows = {name: p.detach().cpu().double().clamp(1e-12, 1 - 1e-12).numpy() for name, p in predictors.items()}
    measures = {"auc": roc_auc_score, "average_precision": average_precision_score, "log_loss": log_loss}
    scores = {name: {measure: of(truth, p) for measure, of in measures.items()} for name, p in rows.items()}
    return pd.DataFrame.from_dict(scores, orient="index").rename_axis("predictor")
