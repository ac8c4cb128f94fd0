"""How many blocks a graph has: by integrated likelihood, by the bound, or by links held out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from custom_inference.core.fit import completed
from custom_inference.graphs.criteria import icl, integrated_log_likelihood, propensities_of
from custom_inference.graphs.links import hold_out_dyads, link_prediction
from custom_inference.methods import fit as default_fit
from ppl_models import GraphData, GraphModel, MethodError
from ppl_models.core.errors import unknown_name

if TYPE_CHECKING:
    from custom_inference.core.fit import Fit

CRITERIA = ("icl", "evidence", "held_out")


class BlockChoice(NamedTuple):
    """A row for each number of blocks, indexed by "num_blocks", and the number that is best.

    table: "score", which is maximised; "used", blocks that hold a node; "status" of the fit.
    interrupted: Ctrl-C ended the search; the table has the numbers until then.
    """

    table: pd.DataFrame
    best: int
    interrupted: bool = False


def choose_num_blocks(
    model: GraphModel | Callable[[int], GraphModel],
    graph: GraphData,
    num_blocks: Iterable[int],
    *,
    criterion: str = "icl",
    share: float = 0.1,
    seed: int = 0,
    **settings: Any,
) -> BlockChoice:
    """Fit a graph with every number of blocks, and compare.

    model: makes the model of K blocks; or one whose settings they share (its priors must be the default ones, which
        depend on K). settings: of :func:`custom_inference.fit`, ``method`` among them.
    criterion: "icl", the complete-data likelihood with the parameters integrated out, :func:`integrated_likelihood`
        (Daudin, Picard & Robin, *A mixture model for random graphs*, 2008; exact by Côme & Latouche, *Model selection
        and clustering in stochastic block models based on the exact integrated complete data likelihood*, 2015); of
        DegreeCorrectedSBM the asymptotic :func:`icl`. "evidence": the fits' bound on log p(x), for fits by "vb".
        "held_out": minus the log loss of a ``share`` of dyads that the fits do not see.
    """
    if criterion not in CRITERIA:
        raise MethodError(unknown_name("criterion", criterion, CRITERIA))
    numbers = sorted(set(num_blocks))
    if not numbers or numbers[0] < 1:
        raise MethodError(f"num_blocks = {numbers}, expected numbers of at least 1")
    make = (lambda k: _with_blocks(model, k)) if isinstance(model, GraphModel) else model
    seen, held = hold_out_dyads(graph, share, seed) if criterion == "held_out" else (graph, None)
    rows, scores, interrupted = {}, {}, False
    try:
        for k in numbers:
            fitted = completed(default_fit(make(k), seen, seed=seed, **settings))
            if held is not None:
                score = -float(link_prediction(fitted, held).loc["model", "log_loss"])
            else:
                score = _integrated(fitted) if criterion == "icl" else _bound(fitted)
            used = len(fitted.posterior.mean.argmax(-1).unique())
            rows[k] = {"score": score, "used": used, "status": fitted.status}
            scores[k] = score
    except KeyboardInterrupt:
        if not scores:
            raise
        interrupted = True
    table = pd.DataFrame.from_dict({k: rows[k] for k in scores}, orient="index").rename_axis("num_blocks")
    return BlockChoice(table, max(scores, key=scores.__getitem__), interrupted)


def _with_blocks(model: GraphModel, num_blocks: int) -> GraphModel:
    return replace(model, num_blocks=num_blocks, priors={})


def _bound(fit: Fit) -> float:
    if fit.bound_name != "vb":
        found = f"a fit by {fit.method} with the objective {fit.bound_name!r}"
        raise MethodError(f"{found} bounds no evidence; expected 'vb', or criterion='icl' or 'held_out'")
    return float(fit.elbo[-1])


def _integrated(fit: Fit) -> float:
    """Exact where there is a closed form; with propensities the asymptotic ICL."""
    return icl(fit) if propensities_of(fit.model) else integrated_likelihood(fit)


def integrated_likelihood(fit: Fit) -> float:
    """log p(x, q) at the most probable block of each node, with proportions and probabilities integrated out.

    Exact for SBM and PoissonSBM with conjugate priors: :func:`integrated_log_likelihood` at these blocks.
    """
    return integrated_log_likelihood(fit.model, fit.data, fit.posterior.mean.argmax(-1))
