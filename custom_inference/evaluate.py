"""Scores of fits: held-out log-likelihood, BIC, recovery of known components."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from torch import Tensor

from custom_inference.align import match_components
from custom_inference.engines import engines_of, solve_local, steps_for
from ppl_models import CapacityError, Data, MethodError, Model

if TYPE_CHECKING:
    from custom_inference.fit import Fit


def log_likelihood(
    model: Model, params: dict[str, Tensor], data: Data, *, bound: str | None = None, seed: int = 0
) -> Tensor:
    """log p(x_n | params), (N,): exact (``bound`` None or "evidence"), or the named lower bound."""
    if bound not in (None, "evidence"):
        return solve_local(model, params, data, bound=bound, seed=seed).bound
    if not engines_of(model):
        return solve_local(model, params, data, seed=seed).bound
    steps = steps_for(model, "evidence")
    try:
        return steps.log_evidence(params, steps.rows(data))
    except CapacityError as error:
        others = [repr(name) for name in engines_of(model) if name != "evidence"]
        raise CapacityError(
            f"{error}. Lower bounds available: bound={' or bound='.join(others)}",
            needed_bytes=error.needed_bytes,
            allowed_bytes=error.allowed_bytes,
        ) from None


def bic_score(log_likelihood: float, num_components: int, num_features: int, num_rows: int) -> float:
    """-log L + psi_K / 2 log N with psi_K = KD + K + D; the best K minimises it (000, section 4.2)."""
    psi = num_components * num_features + num_components + num_features
    return -log_likelihood + 0.5 * psi * float(torch.log(torch.tensor(float(num_rows))))


def bic(fit: Fit, *, bound: str | None = None) -> float:
    """BIC of a fitted component model, from the exact log-likelihood (or the named bound)."""
    if "loading" not in fit.params:
        raise MethodError(f"BIC is defined here for models with a loading matrix, not {type(fit.model).__name__}")
    total = float(fit.log_likelihood(bound=bound).sum())
    num_components, num_features = fit.params["loading"].shape
    return bic_score(total, num_components, num_features, len(fit.data))


def is_shut_off(params: dict[str, Tensor], *, prior_below: float = 0.005, links_below: float = 0.1) -> Tensor:
    """Sources that explain nothing (000, sections 3.3 and 4.2), (K,) bool.

    A source is shut off where its prior is below ``prior_below``, or where all its links sum to less than
    ``links_below``: the expected number of features that its presence turns on.
    """
    prior, loading = params["source_prior"], params["loading"]
    return (prior < prior_below) | (loading.sum(-1) < links_below)


def component_report(fit: Fit, *, top: int = 5, **thresholds: float) -> pd.DataFrame:
    """One line a component: prior, expected number of features turned on, strongest features, shut off or not."""
    loading, prior = fit.params["loading"], fit.params["source_prior"]
    names = fit.data.coords.get("feature", [str(j) for j in range(loading.shape[1])])
    off = is_shut_off(fit.params, **thresholds)
    lines = []
    for i in torch.argsort(prior * loading.sum(-1), descending=True).tolist():
        strongest = torch.argsort(loading[i], descending=True)[:top].tolist()
        lines.append(
            {
                "component": i,
                "prior": round(float(prior[i]), 4),
                "features on": round(float(loading[i].sum()), 2),
                "strongest": ", ".join(f"{names[j]} {float(loading[i, j]):.2f}" for j in strongest),
                "shut off": bool(off[i]),
            }
        )
    return pd.DataFrame(lines).set_index("component")


def recovered(found: Any, truth: Any, *, threshold: float = 0.95) -> int:
    """How many rows of ``truth`` (K, D) are matched one-to-one by rows of ``found`` with cosine above ``threshold``."""
    return int((match_components(truth, found).similarity > threshold).sum())
