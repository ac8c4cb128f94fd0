"""Scores of fits: held-out log-likelihood, BIC, recovery of known components."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from torch import Tensor

from custom_inference.align import match_components
from custom_inference.engines import bounds_of, engines_of, solve_local, steps_for
from custom_inference.steps._protocol import POINT
from ppl_models import CapacityError, Data, MethodError, Model
from ppl_models._errors import unknown_name

if TYPE_CHECKING:
    from custom_inference.fit import Fit


def log_likelihood(
    model: Model, params: dict[str, Tensor], data: Data, *, bound: str | None = None, seed: int = 0
) -> Tensor:
    """log p(x_n | params), (N,): exact (``bound`` None or "evidence"), or the named lower bound."""
    if bound == POINT:
        raise MethodError(
            f"'{POINT}' is no bound on log p(x_n); valid: {', '.join(bounds_of(model))}. The likelihood at point "
            "estimates of the locals is plugin_log_likelihood"
        )
    if bound not in (None, "evidence"):
        return solve_local(model, params, data, bound=bound, seed=seed).bound
    if not engines_of(model):
        return solve_local(model, params, data, seed=seed).bound
    steps = steps_for(model, "evidence")
    try:
        return steps.log_evidence(params, steps.rows(data))
    except CapacityError as error:
        others = [repr(name) for name in bounds_of(model) if name != "evidence"]
        raise CapacityError(
            f"{error}. Lower bounds available: bound={' or bound='.join(others)}",
            needed_bytes=error.needed_bytes,
            allowed_bytes=error.allowed_bytes,
        ) from None


def criterion(log_likelihood: float, num_parameters: int, num_rows: int, kind: str) -> float:
    """-L + psi / 2 log N ("bic": 000, section 4.2) or -L + psi ("aic": 001, eq. 27); the best model minimises it."""
    if kind not in ("aic", "bic"):
        raise MethodError(unknown_name("information criterion", kind, ("aic", "bic")))
    return -log_likelihood + num_parameters * (0.5 * math.log(num_rows) if kind == "bic" else 1.0)


def information_criterion(fit: Fit, kind: str, *, bound: str | None = None) -> float:
    """AIC or BIC of a fit.

    L is the exact log-likelihood (or the named bound); for fits that estimate the locals as points it is the
    likelihood at these, and their coordinates count as parameters, as in 001, eq. 27: psi = TK + (K - 1) N.
    """
    if fit.bound_name == POINT and bound is None:
        total = float(fit.plugin_log_likelihood().sum())
    else:
        total = float(fit.log_likelihood(bound=bound).sum())
    return criterion(total, num_parameters(fit), len(fit.data), kind)


def num_parameters(fit: Fit) -> int:
    """Free parameters of a fit: of the globals, and of the rows' locals where these were estimated as points."""
    return fit.model.num_parameters(len(fit.data) if fit.bound_name == POINT else 0)


def component_report(fit: Fit, *, top: int = 5, **thresholds: float) -> pd.DataFrame:
    """One line a component: what the model says of it, its strongest features, shut off or not."""
    model, params = fit.model, fit.globals
    values = model.component_matrix(params)
    names = model.component_labels(fit.coords[model.feature_axis])
    off, columns = model.shut_off(params, **thresholds), model.report_columns(fit.params)
    lines = []
    for i in torch.argsort(model.prominence(fit.params), descending=True).tolist():
        strongest = torch.argsort(values[i].abs(), descending=True)[:top].tolist()
        lines.append(
            {
                "component": i,
                **{name: round(float(column[i]), 4) for name, column in columns.items()},
                "strongest": ", ".join(f"{names[j]} {float(values[i, j]):.2f}" for j in strongest),
                "shut off": bool(off[i]),
            }
        )
    return pd.DataFrame(lines).set_index("component")


def recovered(found: Any, truth: Any, *, threshold: float = 0.95) -> int:
    """How many rows of ``truth`` (K, D) are matched one-to-one by rows of ``found`` with cosine above ``threshold``."""
    return int((match_components(truth, found).similarity > threshold).sum())
