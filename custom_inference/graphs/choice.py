"""How many blocks a graph has: by integrated likelihood, by a bound on or an estimate of the evidence, or by links held
out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike

from custom_inference.core.fit import require_complete
from custom_inference.core.registry import engine_for
from custom_inference.families.blocks.likelihoods import likelihood_of
from custom_inference.families.blocks.rows import SbmRows
from custom_inference.families.conjugate.dirichlet import Dirichlet
from custom_inference.graphs.blocks import edges_follow_blocks, has_block_matrix, propensities_of
from custom_inference.graphs.links import hold_out_dyads, link_prediction
from custom_inference.methods import fit as default_fit
from ppl_models import Data, DataError, GraphData, GraphModel, MethodError
from ppl_models.block_models import BlockModel
from ppl_models.core.errors import unknown_name
from ppl_models.data.held import is_text

if TYPE_CHECKING:
    from custom_inference.core.fit import Fit
    from custom_inference.graphs.links import HeldDyads

CRITERIA = ("icl", "bethe", "evidence", "held_out")
#: The methods whose objectives are criteria.
_METHODS = {"bethe": "bethe", "evidence": "vb"}


class BlockChoice(NamedTuple):
    """A row for each number of blocks, indexed by "num_blocks", and the number that is best.

    table: "score", which is maximised; of several criteria each under its name, the first of them the score; "used",
        blocks that hold a node; "status" of the fit.
    interrupted: Ctrl-C ended the search; the table has the numbers until then.
    """

    table: pd.DataFrame
    best: int
    interrupted: bool = False

    def _repr_html_(self) -> str:
        from custom_inference.faces import displays

        return displays.report(f"Best with {self.best} blocks", table=self.table)


def choose_num_blocks(
    model: GraphModel | Callable[[int], GraphModel],
    graph: GraphData,
    num_blocks: Iterable[int],
    *,
    criterion: str | Sequence[str] = "icl",
    share: float = 0.1,
    seed: int = 0,
    **settings: Any,
) -> BlockChoice:
    """Fit a graph with every number of blocks, and compare.

    model: makes the model of K blocks; or one whose settings they share (its priors must be the default ones, which
        depend on K). settings: of :func:`custom_inference.fit`, ``method`` among them.
    criterion: one, or several side by side (``table.idxmax()`` says what each would choose; the first decides):
        "icl", the complete-data likelihood with the parameters integrated out, :func:`integrated_likelihood`
        (Daudin, Picard & Robin, *A mixture model for random graphs*, 2008; exact by Côme & Latouche, *Model selection
        and clustering in stochastic block models based on the exact integrated complete data likelihood*, 2015); of
        DegreeCorrectedSBM the asymptotic :func:`icl`. "bethe": :func:`bethe_evidence`, no bound, of fits by "bethe":
        near what can be found at all, where no division of the nodes is likely, the one to take. "evidence": the bound
        on log p(x) of fits by "vb". "held_out": minus the log loss of a ``share`` of dyads that the fits do not see.
    """
    criteria = [str(criterion)] if is_text(criterion) else list(criterion)
    for one in criteria:
        if one not in CRITERIA:
            raise MethodError(unknown_name("criterion", one, CRITERIA))
    numbers = sorted(set(num_blocks))
    if not numbers or numbers[0] < 1:
        raise MethodError(f"num_blocks = {numbers}, expected numbers of at least 1")
    if not criteria:
        raise MethodError(f"no criterion, expected some of {', '.join(CRITERIA)}")
    make = (lambda k: replace(model, num_blocks=k, priors={})) if isinstance(model, GraphModel) else model
    held = hold_out_dyads(graph, share, seed) if "held_out" in criteria else (graph, None)
    rows, interrupted = {}, False
    try:
        for k in numbers:
            rows[k] = _score_model(make(k), graph, held, criteria, {"seed": seed, **settings})
    except KeyboardInterrupt:
        if not rows:
            raise
        interrupted = True
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis("num_blocks")
    return BlockChoice(table, max(rows, key=lambda k: rows[k]["score"]), interrupted)


def _score_model(
    model: GraphModel,
    graph: GraphData,
    held: tuple[GraphData, HeldDyads | None],
    criteria: list[str],
    settings: dict[str, Any],
) -> dict[str, Any]:
    """A row of the table. Criteria share a fit where they go by the same method."""
    fits: dict[str, Fit] = {}
    found: dict[str, Any] = {}
    for name in criteria:
        kind = "held_out" if name == "held_out" else _METHODS.get(name, "") if "method" not in settings else ""
        if kind not in fits:
            method: dict[str, Any] = {"method": kind} if kind in _METHODS.values() else {}
            data = held[0] if name == "held_out" else graph
            fits[kind] = require_complete(default_fit(model, data, **settings, **method))
        found[name] = _score(fits[kind], name, held[1])
    first = fits[next(iter(fits))]
    several = found if len(criteria) > 1 else {}
    used = len(first.posterior.mean.argmax(-1).unique())
    return {"score": found[criteria[0]], **several, "used": used, "status": first.status}


def _score(fit: Fit, criterion: str, held: HeldDyads | None) -> float:
    if criterion == "held_out" and held is not None:
        return -float(link_prediction(fit, held).loc["model", "log_loss"])
    if criterion == "evidence":
        if fit.bound_name != "vb":
            expected = "expected 'vb', or criterion='icl', 'bethe' or 'held_out'"
            raise MethodError(f"{_describe_objective(fit)} bounds no evidence; {expected}")
        return float(fit.elbo[-1])
    if criterion == "bethe":
        return bethe_evidence(fit)
    # exact where there is a closed form
    return icl(fit) if propensities_of(fit.model) else integrated_likelihood(fit)


def _describe_objective(fit: Fit) -> str:
    return f"a fit by {fit.method_name} with the objective {fit.bound_name!r}"


def bethe_evidence(fit: Fit) -> float:
    """log Z of belief propagation, less half the price of the globals as in :func:`icl`; larger is better.

        log Z - (K - 1) / 2 log N - F / 2 log D

    An estimate of log p(x), nodes' blocks summed out, and no bound: of degree-corrected models above all it may lie
    several nats above (Decelle et al., Phys. Rev. E 84, 2011, for log Z; Schwarz's
    approximation of the integral over the globals). Raises MethodError for fits by other methods.
    """
    if fit.bound_name != "bethe" or fit.local is None:
        raise MethodError(f"{_describe_objective(fit)} has no log Z of belief propagation; expected 'bethe'")
    model: Any = fit.model
    return float(fit.local.bound) - _price(model, SbmRows.of(model, fit.data))


def _price(model: BlockModel, rows: SbmRows) -> float:
    """Half a logarithm a free number: proportions by nodes, the others by observed dyads."""
    seen = rows.counts(np.ones((len(rows), 1)), rows.unweighted).exposure.item()
    free = len(likelihood_of(model).free(torch.zeros(model.num_blocks, model.num_blocks)))
    if propensities_of(model):
        free += len(propensities_of(model)) * (len(rows) - model.num_blocks)
    return 0.5 * (model.num_blocks - 1) * math.log(len(rows)) + 0.5 * free * math.log(max(seen, 1.0))


def integrated_likelihood(fit: Fit) -> float:
    """log p(x, q) at the most probable block of each node, with proportions and probabilities integrated out.

    Exact for SBM and PoissonSBM with conjugate priors: :func:`integrated_log_likelihood` at these blocks.
    """
    model: Any = fit.model
    return integrated_log_likelihood(model, fit.data, fit.posterior.mean.argmax(-1))


def integrated_log_likelihood(model: GraphModel, graph: Data | ArrayLike, labels: ArrayLike) -> float:
    """log p(x, z) of a division z of the nodes, proportions and block matrix integrated out: the exact ICL.

        log E[prod_a pi_a^(n_a)] + sum_ab log B(a + m_ab, b + n_ab - m_ab) / B(a, b)                  (Bernoulli)
        log E[prod_a pi_a^(n_a)] + sum_ab log E[eta^(m_ab) e^(-n_ab eta)] - sum log x_ij!             (Poisson)

    with m edges among n observed dyads of blocks a and b, a <= b if undirected (Come & Latouche, *Model selection and
    clustering in stochastic block models based on the exact integrated complete data likelihood*, Statistical
    Modelling 15, 2015, eq. 8).

    labels: (N,) whole numbers below K. Larger is better, over z and over K.

    Raises MethodError for other models than SBM and PoissonSBM, and priors that are not conjugate; DataError for labels
    that do not fit.
    """
    if not edges_follow_blocks(model):
        raise MethodError(f"no exact integrated likelihood of {type(model).__name__}: only of SBM and PoissonSBM")
    rows = SbmRows.of(model, model.prepare(graph, dtype=torch.float64))
    label = np.asarray(labels)
    if label.shape != (len(rows),):
        raise DataError(f"labels of shape {label.shape}", site="block", axis="row", expected=f"shape ({len(rows)},)")
    if not np.issubdtype(label.dtype, np.integer) or label.min() < 0 or label.max() >= model.num_blocks:
        raise DataError("not a block", site="block", expected=f"whole numbers from 0 to {model.num_blocks - 1}")
    edges, exposure, size = rows.counts(np.eye(model.num_blocks)[label], rows.unweighted)
    matrix, counts = likelihood_of(cast(BlockModel, model)), torch.as_tensor(size)
    value = float(Dirichlet.of(model, "block_proportion", counts).log_marginal(counts))
    each = matrix.prior().log_marginal(torch.as_tensor(edges), torch.as_tensor(exposure))
    return value + float(matrix.free(each).sum()) - (rows.log_factorials if matrix.kind == "poisson" else 0.0)


def icl(fit: Fit) -> float:
    """log p(x, z | globals) at the most probable blocks, less half the price of the globals; larger is better.

        ICL = log p(x, z | pi, eta) - (K - 1) / 2 log N - F / 2 log D

    F entries of the block matrix, K (K + 1) / 2 if undirected, and D observed dyads (Daudin, Picard & Robin, Statistics
    and Computing 18, 2008, eq. 11). pi and eta are those of the fit. Of propensities N more, one degree of freedom for
    the scale of every block less, count as 1 / 2 log D each.
    """
    model: Any = fit.model
    if not has_block_matrix(model):
        raise MethodError(f"no ICL of {type(model).__name__}: only of block models with one block a node")
    engine: Any = engine_for(model, "mean_field")
    rows = engine.rows(model, fit.data)
    share = torch.nn.functional.one_hot(fit.params["block"].long(), model.num_blocks).double()
    joint = float(engine.bound(model, fit.globals, rows, share))
    return joint - _price(model, rows)
