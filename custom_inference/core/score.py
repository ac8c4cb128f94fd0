"""The best log-likelihood that is feasible: exact, or a bound that says which it is."""

from __future__ import annotations

from torch import Tensor

from custom_inference.core.local_inference import bounds_of, is_feasible, log_likelihood, scalable_bound
from custom_inference.core.registry import engines_of
from custom_inference.core.result import Result
from ppl_models import CapacityError


def score(fit: Result, params: dict[str, Tensor] | None = None) -> tuple[Tensor, str]:
    """log p(x_n | params) of the training rows, (N,), and "exact"; or a lower bound and its name.

    params: globals to score, by default the fit's own.
    """
    engines = engines_of(fit.model)
    at = fit.globals if params is None else params
    if not engines or is_feasible(fit.model):
        try:
            return log_likelihood(fit.model, at, fit.data, seed=fit.seed), "exact"
        except CapacityError:
            if not engines:
                raise
    if params is None and fit.local is not None and fit.bound_name in bounds_of(fit.model):
        return fit.local.bound, fit.bound_name
    named = fit.bound_name in bounds_of(fit.model) and fit.bound_name != "exact"
    bound = fit.bound_name if named else scalable_bound(fit.model)
    return log_likelihood(fit.model, at, fit.data, bound=bound, seed=fit.seed), bound
