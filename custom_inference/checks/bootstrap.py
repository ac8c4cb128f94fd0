"""The bootstrap: a fit is repeated on data like its own, and how its globals vary is how uncertain they are.

Efron & Tibshirani, *An Introduction to the Bootstrap* (1993), chapters 6 and 13. By rows: as many rows as there are,
drawn with replacement. Parametric: new data from the fitted model, as large and as incomplete as the fit's. Every refit
starts from the fit, so that it stays at the mode whose uncertainty is asked for, and its components are matched to the
fit's one to one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from custom_inference.checks.calibration.simulate import Problem, rows_of
from custom_inference.checks.standard_errors import StandardErrors
from custom_inference.compiled.labels import reorder
from custom_inference.core.align import match_blocks, match_components
from custom_inference.core.counted import are_counts
from custom_inference.core.ended import Ended
from custom_inference.core.exchangeable import exchangeable
from custom_inference.core.fit import Fit, require_complete
from custom_inference.core.isolation import seed_of
from custom_inference.core.latent_values import is_own_of_rows
from custom_inference.core.method import Method
from custom_inference.core.progress import Progress
from custom_inference.core.registry import engines_of
from custom_inference.core.settings import require_whole
from custom_inference.em.method import EM, VariationalEM
from ppl_models import Data, DataWarning, MethodError
from ppl_models.core.errors import PPLError, unknown_name

HOW = ("rows", "parametric")


def bootstrap(
    fit: Fit, *, draws: int = 200, how: str = "rows", method: Method | None = None, seed: int = 0, progress: bool = True
) -> StandardErrors:
    """Standard errors and intervals of the globals of a fit, by refits to data like its own.

    draws: refits. how: "rows", drawn with replacement, which supposes nothing but that rows are independent; or
        "parametric", new data from the fitted model, of graphs too. method: what refits; by default EM or variational
        EM by the fit's own engine. Of a model whose globals may be turned without a change (scores of PCA), the errors
        say how far the reported ones move.

    Raises MethodError for rows that are not independent under "rows", weights that are no whole numbers, a method that
    starts from no given values, and where more than half of the refits fail, with what they say.
    """
    if how not in HOW:
        raise MethodError(unknown_name("bootstrap", how, HOW))
    require_whole("draws", draws, 2)
    if method is None:  # EM by the engine of the fit
        compiled = is_own_of_rows(fit.model) and fit.bound_name == "exact" and not fit.model.has_continuous_locals
        if not compiled and (fit.solver is None or fit.bound_name not in engines_of(fit.model)):
            name = f"{fit.method_name} of {type(fit.model).__name__}"
            raise MethodError(f"{name} is not refitted by itself; expected method=")
        method = EM() if fit.bound_name == "exact" else VariationalEM(guide=fit.bound_name)
    if method.takes_no_init:
        raise MethodError(f"refits start from the fit, and {method.name} takes no init; expected a method such as EM()")
    make = (_resample_rows if how == "rows" else _draw_new)(fit, seed)
    sets, found, failed, limit = exchangeable(fit.model), [], [], 0
    with Progress(draws, f"bootstrap by {how}", enabled=progress) as bar, warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # of data that were drawn nobody can do anything about
        for number in range(draws):
            try:
                again = method.fit(fit.model, make(number), init=fit, seed=fit.seed, progress=False)
            except PPLError as error:
                failed.append(error)
            else:
                limit += require_complete(again).ended is Ended.LIMIT
                found.append(_align_globals(again, fit, sets))
            bar.advance()
            if 2 * len(failed) > draws:
                raise MethodError(f"{len(failed)} of {number + 1} refits failed; the last: {failed[-1]}")
    stacked = {site: torch.stack([one[site] for one in found]) for site in found[0]}
    said = f"{len(found)} refits by {method.name}"
    said += f", {limit} of them at the limit of their iterations" if limit else ""
    said += f"; {len(failed)} more failed, the first: {failed[0]}" if failed else ""
    if failed:
        warnings.warn(f"bootstrap: {said}", DataWarning, stacklevel=2)
    error = {site: value.std(0) for site, value in stacked.items()}
    return StandardErrors(fit=fit, how=how, standard_error=error, draws=stacked, said=said)


def _align_globals(again: Fit, fit: Fit, sets: list[list[int]]) -> dict[str, Tensor]:
    """The globals that were learned, with their components in the order of the fit's."""
    sites = [site for site in fit.model.global_sites if site not in fit.model.known]
    values = {site: again.params[site] for site in sites}
    if not fit.model.has_components:
        return reorder(fit.model, values, fit.params) if is_own_of_rows(fit.model) else values
    site, dims = fit.model.component_site, fit.model.dims
    if not sets or site not in values or "component" not in dims[site]:
        return values
    # By this site alone: rows and nodes of new data are others.
    if "to_component" in dims[site]:
        alignment = match_blocks(fit.params[site], values[site], within=sets)
    else:
        axis = dims[site].index("component")
        both = (side[site].movedim(axis, 0) for side in (fit.params, values))
        alignment = match_components(*both, within=sets, by_distance=True)
    return alignment.apply(values, dims)


def _resample_rows(fit: Fit, seed: int) -> Callable[[int], Data]:
    """What draws rows of the fit's data with replacement: of rows with weights as often as these say."""
    if not fit.model.rows_are_independent:
        problem = f"rows of {type(fit.model).__name__} are not independent"
        raise MethodError(f"{problem}: none can be drawn again; expected how='parametric'")
    index = torch.arange(len(fit.data))
    if fit.weights is not None:
        weights = fit.weights.cpu()
        if not are_counts(weights):
            raise MethodError("weights that are no whole numbers say of no rows to draw; expected how='parametric'")
        index = index.repeat_interleave(weights.long())

    def draw(number: int) -> Data:
        generator = torch.Generator().manual_seed(seed_of(seed, "rows", number))
        chosen = index[torch.randint(len(index), (len(index),), generator=generator)]
        return fit.data.rows(chosen.to(fit.data.x.device))

    return draw


def _draw_new(fit: Fit, seed: int) -> Callable[[int], Data]:
    """What draws data from the fitted model."""
    if fit.weights is not None:
        raise MethodError("a fit with weights of rows: new data have none; expected how='rows'")
    model, data = fit.model, fit.data
    settings: Any = {"method": None, "of": "globals", "num_draws": 0, "seed": seed}
    problem = Problem(model=model, num_rows=rows_of(model, None, data), at=fit.globals, like=data, **settings)
    return lambda number: problem.draw(problem.seeds(number)).data
