"""Standard errors by the observed information: how sharply log p(x) + log p(theta) bends at its maximum.

In coordinates u without bounds (log odds of probabilities, logarithms of positive numbers, log ratios of proportions)

    H = -d^2 [sum_n w_n log p(x_n | theta(u)) + log p(theta(u))] / du du',    Cov[theta] = J H^-1 J',  J = d theta / du

At a maximum this does not depend on the coordinates (Efron & Hinkley, Biometrika 65, 1978).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributions import biject_to, constraints

from custom_inference.checks.standard_errors import StandardErrors
from custom_inference.core.fit import Fit
from custom_inference.core.local_inference import is_feasible, log_likelihood
from ppl_models import MethodError

#: Numbers up to which the matrix is made, and the slope in u, in standard errors, up to which a point is a maximum.
_MOST, _SLOPE = 2000, 0.1


def observed_information(fit: Fit) -> StandardErrors:
    """Standard errors of the globals at the maximum that a fit has found, by the exact evidence of its rows.

    Raises MethodError where the evidence is not exact or not differentiable, for more than 2,000 free numbers, for
    values at the edge of their support, and at points that are no maximum or lie on a ridge of maxima (scores that can
    be turned, components that coincide): ``bootstrap`` has none of these limits.
    """
    model, name = fit.model, type(fit.model).__name__
    if not model.rows_are_independent or not is_feasible(model):
        raise MethodError(f"the information of {name}: its evidence is not exact here; expected bootstrap(fit)")
    sites = [site for site in model.global_sites if site not in model.known]
    free, to_theta = _coordinates(fit, sites)
    if len(free) > _MOST:
        raise MethodError(
            f"the information of {len(free)} numbers, expected at most {_MOST}; bootstrap(fit) has no limit"
        )
    weights = None if fit.weights is None else fit.weights.to(free)

    def objective(at: Tensor) -> Tensor:
        params = fit.globals | to_theta(at)
        each = log_likelihood(model, params, fit.data)
        each = each if weights is None else torch.where(weights > 0, weights * each, 0.0)
        return each.sum() + model.log_prior(params)

    with torch.enable_grad():
        try:
            slope = torch.autograd.functional.jacobian(objective, free)
            bend = torch.as_tensor(torch.autograd.functional.hessian(objective, free)).neg()
        except RuntimeError as error:
            raise MethodError(f"the evidence of {name} is not differentiable ({error}); use bootstrap(fit)") from error
        factor = _factor(bend, name)
        jacobian = torch.autograd.functional.jacobian(lambda at: _joined(to_theta(at), sites), free)
    away = float(torch.linalg.solve_triangular(factor, slope[:, None], upper=False).norm())
    if not away <= _SLOPE:
        problem = f"the globals are {away:.2g} standard errors from a maximum"
        raise MethodError(f"{problem}; expected a fit that has converged (EM(tolerance=1e-9), started from this one)")
    spread = torch.linalg.solve_triangular(factor, jacobian.T, upper=False).norm(dim=0)
    sizes = [fit.params[site].numel() for site in sites]
    parts = zip(sites, spread.split(sizes), strict=True)
    error = {site: part.reshape(fit.params[site].shape) for site, part in parts}
    return StandardErrors(fit=fit, how="information", standard_error=error, said=f"{len(free)} free numbers")


def _joined(params: dict[str, Tensor], sites: list[str]) -> Tensor:
    return torch.cat([params[site].reshape(-1) for site in sites])


def _coordinates(fit: Fit, sites: list[str]) -> tuple[Tensor, Callable[[Tensor], dict[str, Tensor]]]:
    """The globals without bounds, joined, and what makes globals of such. Raises MethodError at edges of supports."""
    maps = {site: biject_to(fit.model.sites[site].support or constraints.real) for site in sites}
    each: dict[str, Tensor] = {}
    for site, change in maps.items():
        each[site] = change.inv(fit.params[site].double())
        inside = torch.isfinite(each[site]) & (each[site].abs() < 30)
        if not bool(inside.all()):
            problem = f"'{site}' has {int((~inside).sum())} values at the edge of its support, {change.codomain}"
            raise MethodError(f"{problem}, where the information says nothing; expected bootstrap(fit)")
    shapes = [(site, value.shape, value.numel()) for site, value in each.items()]

    def to_theta(at: Tensor) -> dict[str, Tensor]:
        parts = at.split([size for _, _, size in shapes])
        return {site: maps[site](part.reshape(shape)) for (site, shape, _), part in zip(shapes, parts, strict=True)}

    return _joined(each, sites), to_theta


def _factor(bend: Tensor, name: str) -> Tensor:
    """The Cholesky factor. Raises MethodError where there is none, or next to none."""
    scale = bend.diagonal().clamp(min=1e-12).sqrt()
    least = float(torch.linalg.eigvalsh(bend / scale / scale[:, None])[0]) if bool(bend.isfinite().all()) else -1.0
    if not least > 1e-9:
        problem = f"the evidence of {name} has no single maximum here (its least curvature is {least:.2g} of the scale)"
        raise MethodError(f"{problem}: scores that can be turned, or components that coincide; use bootstrap(fit)")
    return torch.linalg.cholesky(bend)
