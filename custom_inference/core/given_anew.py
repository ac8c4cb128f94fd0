"""Rows given anew: what :meth:`Result.transform` infers them by, where that is not how the fit's own were inferred.

All rows that were fitted, given again, have the fit's own values. Of some of them, as of new rows, nothing is known but
what they hold: engines that integrate the globals together with the rows (collapsed variational Bayes), samplers and
guides of the rows have an engine in their place, at the fitted globals.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from custom_inference.core.engine import POINT
from custom_inference.core.local_inference import bounds_of, name_in_place
from custom_inference.core.registry import engines_of

if TYPE_CHECKING:
    from custom_inference.core.result import Result


def describe_rows_given_anew(fit: Result) -> str:
    """Say by what rows given anew are inferred, and by what the fit's own; "" where both are the same, so that they
    differ by the tolerance of both alone."""
    if not fit.model.rows_are_independent:
        return ""
    anew, local = _name_anew(fit), fit.local
    own = "" if local is None else local.family
    averaged = local is None and fit.draws is not None
    if not anew or (not averaged and (local is None or own.split("(")[0] == anew)):
        return ""
    how = f"by {own}" if own else "averages over draws"
    return f"by '{anew}' at the fitted globals, while all rows of the fit given again have its own values, {how}"


def _name_anew(fit: Result) -> str:
    model, solver = fit.model, fit.solver
    if solver is not None:
        state = solver.engine.state
        kept = state is not None and fit.global_posterior and state.of_posteriors(fit.global_posterior) is not None
        return solver.engine.name if kept else solver.engine.local().name
    if not engines_of(model):
        return next(iter(bounds_of(model)), "")
    return POINT if fit.bound_name == POINT and POINT in engines_of(model) else name_in_place(model, fit.data)
