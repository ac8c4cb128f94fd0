"""The best log-likelihood that is feasible: exact, or a bound that says which it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from custom_inference import evaluate
from custom_inference.engines import bounds_of, engines_of, is_feasible, scalable_bound
from ppl_models import CapacityError

if TYPE_CHECKING:
    from custom_inference.fit import Fit


def score(fit: Fit, params: dict[str, Tensor] | None = None) -> tuple[Tensor, str]:
    """log p(x_n | params) of the training rows, (N,), and "evidence"; or a lower bound and its name.

    params: globals to score, by default the fit's own.
    """
    engines = engines_of(fit.model)
    at = fit.globals if params is None else params
    if not engines or is_feasible(fit.model):
        try:
            return evaluate.log_likelihood(fit.model, at, fit.data, seed=fit.seed), "evidence"
        except CapacityError:
            if not engines:
                raise
    if params is None and fit.local is not None and fit.bound_name in bounds_of(fit.model):
        return fit.local.bound, fit.bound_name
    named = fit.bound_name in bounds_of(fit.model) and fit.bound_name != "evidence"
    bound = fit.bound_name if named else scalable_bound(fit.model)
    return evaluate.log_likelihood(fit.model, at, fit.data, bound=bound, seed=fit.seed), bound
