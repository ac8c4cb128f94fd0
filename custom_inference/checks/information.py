"""Standard errors by the observed information: how sharply log p(x) + log p(theta) bends at its maximum.

In coordinates u without bounds (log odds of probabilities, logarithms of positive numbers, log ratios of proportions)

    H = -d^2 [sum_n w_n log p(x_n | theta(u)) + log p(theta(u))] / du du',    Cov[theta] = J H^-1 J',  J = d theta / du

Whole weights w_n are numbers of equal rows. Of others the slopes of rows vary by w_n^2, so that the part of the rows,
H_x, has the variance V = H_x sum w^2 / sum w, and Cov[theta] = J H^-1 (V + H - H_x) H^-1 J'.

At a maximum this does not depend on the coordinates (Efron & Hinkley, Biometrika 65, 1978). The density of a prior
without a mode, such as a Gamma of a shape below 1, is that in the basis in which points maximise it: of log odds,
logarithms or log ratios.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import biject_to, constraints

from custom_inference.checks.standard_errors import StandardErrors
from custom_inference.core.counted import are_counts, scale_of
from custom_inference.core.fit import Fit
from custom_inference.core.latent_values import is_own_of_rows
from custom_inference.core.local_inference import is_feasible, log_likelihood
from custom_inference.core.programs.density import RowDensity
from custom_inference.core.programs.evidence import row_evidence
from custom_inference.core.states import Params
from custom_inference.svi.guides.bases import with_modes
from ppl_models import MethodError

#: Numbers up to which the matrix is made, and the slope in u, in standard errors, up to which a point is a maximum.
_MOST, _SLOPE = 2000, 0.1
#: The widest standard error of log odds, log ratios or logarithms beside which a value is not at an edge: of one case
#: in N rows it is 1, of an expected number of c cases 1 / sqrt(c).
_WIDEST = 10.0


def observed_information(fit: Fit) -> StandardErrors:
    """Standard errors of the globals at the maximum that a fit has found, by the exact evidence of its rows.

    Raises MethodError where the evidence is not exact or not differentiable, for more than 2,000 free numbers, for
    values at the edge of their support, and at points that are no maximum or lie on a ridge of maxima (scores that can
    be turned, components that coincide): ``bootstrap`` has none of these limits.
    """
    model, name = fit.model, type(fit.model).__name__
    if not model.rows_are_independent or not is_feasible(model, fit.data):
        raise MethodError(f"the information of {name}: its evidence is not exact here; expected bootstrap(fit)")
    sites = [site for site in model.global_sites if site not in model.known]
    coordinates = _coordinates(fit, sites)
    free, to_theta = coordinates.values, coordinates.to_theta
    if len(free) > _MOST:
        raise MethodError(
            f"the information of {len(free)} numbers, expected at most {_MOST}; bootstrap(fit) has no limit"
        )
    objective, weights = _objective(fit, sites, to_theta), fit.weights
    with torch.enable_grad():
        try:
            slope: Any = torch.autograd.functional.jacobian(objective, free)
            bend = _hessian(objective, free).neg()
            varies = bend
            if weights is not None and not are_counts(weights):
                varies = bend + (1 - 1 / scale_of(weights)) * _hessian(lambda at: objective(at, prior=False), free)
        except RuntimeError as error:
            raise MethodError(f"the evidence of {name} is not differentiable ({error}); use bootstrap(fit)") from error
        coordinates.require_inside(bend.diagonal())
        factor = _factor(bend, name)
        jacobian = torch.autograd.functional.jacobian(lambda at: _concatenate(to_theta(at), sites), free)
    away = float(torch.linalg.solve_triangular(factor, slope[:, None], upper=False).norm())
    if not away <= _SLOPE:
        problem = f"the globals are {away:.2g} standard errors from a maximum"
        raise MethodError(f"{problem}; expected a fit that has converged (EM(tolerance=1e-9), started from this one)")
    moved = torch.cholesky_solve(jacobian.T, factor)
    spread = (moved * (varies @ moved)).sum(0).clamp_min(0.0).sqrt().split([fit.params[s].numel() for s in sites])
    error = {site: part.reshape(fit.params[site].shape) for site, part in zip(sites, spread, strict=True)}
    return StandardErrors(fit=fit, how="information", standard_error=error, said=f"{len(free)} free numbers")


def _objective(fit: Fit, sites: list[str], to_theta: Callable[[Tensor], Params]) -> Callable[..., Tensor]:
    """Make the function that gives what is maximised at coordinates of the sites, with the prior or without."""
    evidence, with_prior = _evidence(fit), with_modes(fit.model, sites)

    def objective(at: Tensor, prior: bool = True) -> Tensor:
        params = fit.globals | to_theta(at)
        each = evidence(params)
        if not each.requires_grad:  # else the prior alone would bend
            raise RuntimeError("it has no gradient")
        weights = None if fit.weights is None else fit.weights.to(at)
        each = each if weights is None else torch.where(weights > 0, weights * each, 0.0)
        return each.sum() + (with_prior.log_prior(params) if prior else 0.0)

    return objective


def _hessian(objective: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    return torch.as_tensor(torch.autograd.functional.hessian(objective, at))


def _evidence(fit: Fit) -> Callable[[dict[str, Tensor]], Tensor]:
    """Make the function that gives log p(x_n | globals), (N,), with gradients to the globals."""
    if not is_own_of_rows(fit.model):
        return lambda params: log_likelihood(fit.model, params, fit.data)
    return row_evidence(RowDensity.of(fit.model, fit.globals, fit.data).double())


def _concatenate(params: dict[str, Tensor], sites: list[str]) -> Tensor:
    return torch.cat([params[site].reshape(-1) for site in sites])


def _coordinates(fit: Fit, sites: list[str]) -> _Coordinates:
    """The globals without bounds. Raises MethodError for values that have none: at edges of their supports."""
    maps: dict[str, Any] = {}
    each: dict[str, Tensor] = {}
    for site in sites:
        change, possible = biject_to(fit.model.supports[site] or constraints.real), fit.model.possible(site)
        value = fit.params[site].double()
        maps[site] = change if possible is None else _OfPossible(change, possible.expand(value.shape))
        each[site] = maps[site].inv(value)
        bad = ~torch.isfinite(each[site])
        if bool(bad.any()):
            raise _at_edge(site, int(bad.sum()), change.codomain)
    return _Coordinates(_concatenate(each, sites), maps, {site: value.shape for site, value in each.items()})


@dataclass(frozen=True)
class _Coordinates:
    """Globals without bounds, joined, (M,); each site's map to its support, and the shape that the map takes."""

    values: Tensor
    maps: dict[str, Any]
    shapes: dict[str, torch.Size]

    def to_theta(self, at: Tensor) -> dict[str, Tensor]:
        """The globals at coordinates (M,)."""
        return {site: self.maps[site](part.reshape(self.shapes[site])) for site, part in self._split(at)}

    def require_inside(self, curvature: Tensor) -> None:
        """Raises MethodError for values of bounded sites whose curvature (M,) leaves them free over many powers of e:
        probabilities of what never happened, held only by the floor of an M step. Log odds, ratios and logarithms
        have no unit, so that this does not depend on the data's."""
        for site, part in self._split(curvature):
            support = self.maps[site].codomain
            free = isinstance(getattr(support, "base_constraint", support), type(constraints.real))
            edge = part < 1 / _WIDEST**2
            if not free and support.event_dim <= 1 and bool(edge.any()):
                raise _at_edge(site, int(edge.sum()), support)

    def _split(self, at: Tensor) -> Iterator[tuple[str, Tensor]]:
        parts = at.split([shape.numel() for shape in self.shapes.values()])
        return zip(self.shapes, parts, strict=True)


class _OfPossible:
    """The map to vectors on a support whose impossible places (..., C) hold 0: of the possible ones of each vector."""

    def __init__(self, change: Any, possible: Tensor):
        self.change, self.codomain, self.shape = change, change.codomain, possible.shape
        self.places = [one.nonzero().flatten() for one in possible.reshape(-1, possible.shape[-1])]

    def inv(self, value: Tensor) -> Tensor:
        rows = value.reshape(-1, self.shape[-1])
        return torch.cat([self.change.inv(row[at]) for row, at in zip(rows, self.places, strict=True)])

    def __call__(self, at: Tensor) -> Tensor:
        rows, parts = [], at.split([len(places) - 1 for places in self.places])
        for places, part in zip(self.places, parts, strict=True):
            rows.append(at.new_zeros(self.shape[-1]).index_put((places,), self.change(part)))
        return torch.stack(rows).reshape(self.shape)


def _at_edge(site: str, number: int, support: constraints.Constraint) -> MethodError:
    found = f"'{site}' has {number} values at the edge of its support, {support}, or of which the rows say nothing"
    return MethodError(f"{found}: the information gives no standard error there; expected bootstrap(fit)")


def _factor(bend: Tensor, name: str) -> Tensor:
    """The Cholesky factor. Raises MethodError where there is none, or next to none."""
    bends = bool(bend.isfinite().all()) and bool((bend.diagonal() > 0).all())  # in whatever units, so above 0 alone
    scale = bend.diagonal().sqrt()
    least = float(torch.linalg.eigvalsh(bend / scale / scale[:, None])[0]) if bends else -1.0
    if not least > 1e-9:
        problem = f"the evidence of {name} has no single maximum here (its least curvature is {least:.2g} of the scale)"
        raise MethodError(f"{problem}: scores that can be turned, or components that coincide; use bootstrap(fit)")
    return torch.linalg.cholesky(bend)
