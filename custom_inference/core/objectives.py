"""The objective of a fit in words and numbers: its kind, and the two parts that it is the sum of.

``fit`` is a :class:`~custom_inference.core.result.Result`, which is described here.
"""

from __future__ import annotations

from typing import Any

#: What the part of the rows is called, and the sum of it and of the log prior, by the objective's kind.
_PARTS = {
    "log posterior": ("evidence", "log posterior"),
    "bound": ("bound", "bound on the log posterior"),
    "estimate": ("estimate", "estimate of the log posterior, no bound"),
    "log joint": ("log joint given the globals", "log joint"),
}


#: Rounding, of terms of this size.
_SAME = 1e-4


def describe_objective(fit: Any) -> str:
    """What kind of number the objective is, by which posterior, and what it is the sum of where it has two parts:
    "evidence"; "log posterior = evidence + log prior"; "bound, mean_field"; "bound, vb = bound given the globals -
    divergence of the globals from their priors"."""
    if fit.bound_name.startswith("log"):
        return fit.bound_name
    by = "" if fit.bound_name == "exact" else f", {fit.bound_name}"
    if fit.objective == "estimate" and (not fit.prior_term or _has_posterior(fit)):
        by = f", no bound{by}"
    if not fit.prior_term:
        return f"{fit.objective}{by}"
    if _has_posterior(fit):
        return f"{fit.objective}{by} = {fit.objective} given the globals - divergence of the globals from their priors"
    part, total = _PARTS[fit.objective]
    own = getattr(getattr(fit.solver, "engine", None), "globals_part", "")
    if not own:  # in coordinates in which the M step has its maximum the density has the logarithms of the values too
        same = abs(fit.prior_term - fit.log_prior) <= _SAME * (1 + abs(fit.prior_term))
        own = "log prior" if same else "log prior of logits or logarithms"
    return f"{total}{by} = {part} + {own}"


def objective_line(fit: Any, digits: int = 2) -> tuple[str, str]:
    """What a line says of the last objective: its name, and its value with the parts where it has two, ("objective
    (log posterior = evidence + log prior)", "-4685.12 = -5051.03 + 365.91")."""
    name, last = f"objective ({describe_objective(fit)})", f"{float(fit.elbo[-1]):.{digits}f}" if len(fit.elbo) else ""
    if not last or not fit.prior_term or fit.data_term is None:
        return name, last or "none"
    sign, second = ("-", -fit.prior_term) if _has_posterior(fit) else ("+", fit.prior_term)
    shown = f"{second:.{digits}f}" if second >= 0 else f"({second:.{digits}f})"
    return name, f"{last} = {fit.data_term:.{digits}f} {sign} {shown}"


def _has_posterior(fit: Any) -> bool:
    """Whether the objective is about log p(x), with a posterior of the globals, rather than at values of them."""
    return bool(fit.global_posterior) or fit.draws is not None
