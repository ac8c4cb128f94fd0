"""Scores of fits: the best feasible log-likelihood, BIC, one line a component, recovery of known ones."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from custom_inference.core.align import match_components
from custom_inference.core.counted import add_rows, are_counts
from custom_inference.core.engine import POINT
from custom_inference.core.local_inference import (
    bounds_of,
    estimate_in_place,
    is_feasible,
    log_likelihood,
    scalable_bound,
)
from custom_inference.core.predictive import feature_mean
from custom_inference.core.registry import engines_of, presentation_of
from custom_inference.core.result import Result
from custom_inference.core.states import Params
from ppl_models import CapacityError, Data, MethodError, Model
from ppl_models.core.displays import choose_decimals
from ppl_models.core.errors import unknown_name
from ppl_models.data import sparse
from ppl_models.data.held import objects
from ppl_models.data.lazy import pandas as pd
from ppl_models.likelihoods import PoissonDivergence


def score(fit: Result, params: dict[str, Tensor] | None = None) -> tuple[Tensor, str]:
    """The best feasible: log p(x_n | params) of the training rows, (N,), and "exact"; or a bound or estimate, by name.

    params: globals to score, by default the fit's own.
    """
    engines = engines_of(fit.model)
    at = fit.globals if params is None else params
    instead = estimate_in_place(fit.model, fit.data)
    if instead is not None:
        return log_likelihood(fit.model, at, fit.data, bound=instead, seed=fit.seed), instead
    if not engines or is_feasible(fit.model, fit.data):
        try:
            exact = fit.evidence if params is None else log_likelihood(fit.model, at, fit.data, seed=fit.seed)
            return exact, "exact"
        except CapacityError:
            if not engines:
                raise
    own = fit.bound_name if fit.bound_name in bounds_of(fit.model) else None
    if params is None and fit.local is not None and own is not None:
        return fit.local.bound, own
    bound = own if own not in (None, "exact") else scalable_bound(fit.model)
    return log_likelihood(fit.model, at, fit.data, bound=bound, seed=fit.seed), bound


def criterion(log_likelihood: float, num_parameters: int, num_rows: float, kind: str) -> float:
    """-2 L + psi log N ("bic") or -2 L + 2 psi ("aic"); the best model minimises it.

    Schwarz, *Estimating the dimension of a model*, 1978; Akaike, 1974. The papers on NOCA (section 4.2) and aspect
    Bernoulli (eq. 27) print half of these.
    """
    if kind not in ("aic", "bic"):
        raise MethodError(unknown_name("information criterion", kind, ("aic", "bic")))
    return -2 * log_likelihood + num_parameters * (math.log(num_rows) if kind == "bic" else 2.0)


def by_names(fit: Result, chance: Tensor) -> Any:
    """Return the name of the most probable class, (N,), from probabilities (N, C), or (N,) of the second of two; or
    from probabilities of labels (N, L), the list of the names of those above 1/2.

    Raises MethodError where the classes have no names.
    """
    labels, classes = (fit.data.coords.get(axis) for axis in ("label", "class"))
    chance = chance.cpu()
    if labels is not None:
        return [[name for name, p in zip(labels, row, strict=True) if p > 0.5] for row in chance.tolist()]
    if classes is None:
        found = f"names=True, but what {type(fit.model).__name__} was fitted with had no names"
        raise MethodError(f"{found}; expected names of classes or labels in the fit, or names=False")
    best = chance.argmax(-1) if chance.ndim > 1 else (chance > 0.5).long()
    return objects([classes[c] for c in best.tolist()])


def require_probability(model: Model, data: Data) -> None:
    """Raises MethodError for entries whose likelihood is no probability: what it is differs by more than a constant
    from that of counts, and criteria that weigh it against numbers of parameters mean nothing."""
    if isinstance(getattr(model, "likelihood", None), PoissonDivergence) and not sparse.is_whole(data.x):
        found = "x has entries that are no whole numbers, whose likelihood is a divergence and no probability"
        raise MethodError(f"{found}; expected counts, or held-out entries to choose the number of components by")


def information_criterion(fit: Result, kind: str, bound: str | None = None) -> float:
    """AIC or BIC of a fit.

    L is log p(x | params) by ``bound``, by default as :func:`score` has it: exact where that is feasible, else the
    fit's own lower bound, with which the criterion is an upper bound of the exact one, or its estimate, with which it
    is on either side. For fits that estimate the
    locals as points it is by default the likelihood at these, and their coordinates count as parameters, as in
    that of aspect Bernoulli, eq. 27: psi = TK + (K - 1) N. Rows with weights count by these, in L and in N: whole ones
    are numbers of equal rows, others are worth N = (sum w)^2 / sum w^2 rows, and scaled to add up to this.

    Raises MethodError for data that the likelihood only measures a distance of.
    """
    require_probability(fit.model, fit.data)
    if bound is not None:
        each = fit.log_likelihood(bound=bound)
    else:
        each = fit.plugin_log_likelihood() if fit.bound_name == POINT else score(fit)[0]
    psi = fit.model.num_parameters(0) if bound is not None else num_parameters(fit)
    total, rows = add_rows(each, fit.weights)
    return criterion(total, psi, rows, kind)


def num_parameters(fit: Result) -> int:
    """Free parameters of a fit: of the globals, and of the rows' locals where these were estimated as points. Rows with
    whole weights count by these: of a row that stands for several each has its own. Of others every row that counts."""
    if fit.bound_name != POINT:
        return fit.model.num_parameters(0)
    rows = torch.ones(len(fit.data)) if fit.weights is None else fit.weights
    return fit.model.num_parameters(int(rows.sum()) if are_counts(rows) else int((rows > 0).sum()))


def component_report(fit: Result, *, top: int = 5, **thresholds: float) -> pd.DataFrame:
    """One line a component: what the model says of it, its strongest features, shut off or not.

    Column "share", of models with memberships or proportions: the share of the tokens (of profiles the responses) that
    the fit assigns to the component, the mean over these of the responsibilities

        r_tk = E[pi_nk] b_k(x_t) / sum_j E[pi_nj] b_j(x_t)

    at the posterior means E[pi_n] of the proportions of row n and the components b; of aspects and of nodes of graphs
    the mean of E[pi_n]. It adds up to 1. Of a fit to rows read block by block, in the first block (``Fit.data``).
    """
    model, params, shown = fit.model, fit.globals, presentation_of(fit.model)
    values, names = shown.matrix(model, params), shown.labels_of(model, fit.column_names, fit.data)
    off, (use, columns) = shown.is_shut_off(model, params, **thresholds), describe_components(fit)
    order = torch.argsort(use, descending=True, stable=True).tolist()
    strongest = torch.argsort(values.abs(), descending=True)[:, :top]
    # Words of topics have small probabilities: as many digits as tell them apart.
    places = choose_decimals(values.gather(1, strongest).flatten().tolist(), least=2)
    table: dict[str, list[Any]] = {
        name: [round(float(column[i]), 4) for i in order] for name, column in columns.items()
    }
    lists = [[f"{names[j]} {float(values[i, j]):.{places}f}" for j in strongest[i].tolist()] for i in order]
    table["strongest"] = [", ".join(one) for one in lists]
    table["shut off"] = [bool(off[i]) for i in order]
    from custom_inference.core.report_table import ReportTable  # pandas takes long to load

    return ReportTable(table, index=pd.Index(order, name="component"))


def describe_components(fit: Result) -> tuple[Tensor, dict[str, Tensor]]:
    """How much each component of a fit matters, (K,), and what reports say of it: column name -> (K,)."""
    shown = presentation_of(fit.model)
    with torch.no_grad():
        return shown.report_columns(fit.model, fit.params, fit.data, fit.transform)


def component_order(fit: Result) -> list[int]:
    """Return the components by how much they matter, most first: the order of reports, tables and figures.

    Models without components, and programs of one's own that do not say what these do, keep the order that they have.
    """
    count = len(fit.component_names)
    if not fit.model.has_components:
        return list(range(count))
    use = describe_components(fit)[0]
    return torch.argsort(use, descending=True, stable=True).tolist() if len(use) == count else list(range(count))


def recovered(found: Params, truth: Params, *, threshold: float = 0.95) -> int:
    """How many rows of ``truth`` (K, D) are matched one-to-one by rows of ``found`` with cosine above ``threshold``."""
    return int((match_components(truth, found).similarity > threshold).sum())


def reconstruction_error(fit: Result, x: Tensor | None = None, *, seed: int = 0) -> float:
    """Proportion of entries in which a copy sampled at the most probable codes differs from x (the paper, 4.4)."""
    data = fit.read(x).dense()
    if bool(((data.x != 0) & (data.x != 1)).any()) or fit.model.data_kind == "documents":
        name = type(fit.model).__name__
        raise MethodError(f"{name}: the reconstruction error is one of 0/1 data, and these are not")
    chance = feature_mean(fit.model, fit.globals, fit.posterior_of(data).mode, like=data)
    copy = torch.bernoulli(chance.cpu(), generator=torch.Generator().manual_seed(seed)).to(data.x)
    differs = (copy != data.x).to(copy)
    return float(differs.mean() if data.mask is None else (differs * data.mask).sum() / data.mask.sum())
