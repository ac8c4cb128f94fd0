"""L-BFGS by SciPy: down a function of an array, and up a differentiable function of several tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController
from torch import Tensor

from custom_inference.core.ended import Ended
from custom_inference.core.engine import Params

Array = NDArray[np.float64]
#: What stands for a value that is not finite, where a line search tries too long a step, by the size of the first
#: value: far above it, and near enough for the search's interpolation to go on from where it was.
_PLATEAU = 1e10
#: What SciPy calls an end at the most iterations or evaluations.
_AT_LIMIT = 1
#: A point is a minimum if its slopes promise a gain of no more than this part of the value.
_LITTLE = 1e-6


@cache
def _blas() -> ThreadpoolController:
    """What limits the threads of SciPy's and NumPy's products: beside torch's, which wait for work at full speed, they
    take each other's processors, and small steps ten times as long."""
    return ThreadpoolController()


def minimise(
    function: Callable[[Array], tuple[float, Array]],
    start: Array,
    *,
    bounds: Sequence[tuple[float, float]] | None = None,
    callback: Callable[[Array, float], None] | None = None,
    **options: Any,
) -> tuple[Array, float, Ended]:
    """Minimise by L-BFGS; return the lowest point, the value there, and how it ended. The start is returned where no
    point is found that is as low.

    CONVERGED: the gains or the slopes are small, or no lower point is found where the slopes promise less than a part
    1e-6 of the value. LIMIT: after as many iterations or evaluations as are allowed. FAILED: no lower point is found
    where the slopes promise one.

    Parameters
    ----------
    function
        Point -> value and gradient. Where one of them is not finite the line search meets a high plateau, and turns.
    bounds
        The lowest and the highest value of each variable.
    callback
        Called with the point and the value of every iteration.
    options
        Those of SciPy's "L-BFGS-B": maxiter, maxfun, maxcor, ftol, gtol.
    """
    from scipy.optimize import minimize  # takes long to load, and is needed by few

    values: list[float] = []

    def finite(at: Array) -> tuple[float, Array]:
        value, slope = function(at)
        if not (np.isfinite(value) and np.isfinite(slope).all()):
            value, slope = _PLATEAU * max(1.0, abs(values[0]) if values else 1.0), np.zeros_like(at)
        values.append(value)
        return value, slope

    def after(intermediate_result: Any) -> None:
        if callback is not None:
            callback(intermediate_result.x.copy(), float(intermediate_result.fun))

    with _blas().limit(limits=1, user_api="blas"):
        found = minimize(finite, start, jac=True, method="L-BFGS-B", bounds=bounds, callback=after, options=options)
    lower = bool(found.fun <= values[0])
    best, value = (found.x, float(found.fun)) if lower else (start, values[0])
    if found.status == _AT_LIMIT or (found.success and lower):
        return best, value, Ended.LIMIT if found.status == _AT_LIMIT else Ended.CONVERGED
    # To second order, by the curvature that the iterations met. Rounding may hide a lower point next to a minimum.
    promised = 0.5 * float(found.jac @ (found.hess_inv @ found.jac))
    little = abs(promised) <= _LITTLE * max(1.0, abs(value))
    return best, value, Ended.CONVERGED if little else Ended.FAILED


def maximise(
    objective: Callable[[Params], Any], start: Params, iterations: int, *, sloped: bool = False
) -> tuple[Params, float]:
    """Maximise by L-BFGS in double precision; return the parameters and the objective there, or the start where no
    better point is found.

    objective: of order 1, such as a mean over rows: L-BFGS ends where its gradient is below 1e-5. Places where it is
    not finite are avoided. sloped: whether it gives its slope beside its value, and need not be differentiated.
    """
    sites, like = list(start), next(iter(start.values()))
    shapes = [start[site].shape for site in sites]

    def unpack(flat: Tensor) -> Params:
        parts = flat.split([shape.numel() for shape in shapes])
        return {site: part.view(shape) for site, part, shape in zip(sites, parts, shapes, strict=True)}

    def join(parts: Params) -> Tensor:
        return torch.cat([parts[site].detach().flatten() for site in sites]).cpu().double()

    def negative(flat: Array) -> tuple[float, Array]:
        at = torch.tensor(flat, dtype=torch.float64, requires_grad=not sloped)
        with torch.set_grad_enabled(not sloped):
            found = objective({site: part.to(like.device) for site, part in unpack(at).items()})
        value = found[0] if sloped else found
        if not bool(torch.isfinite(value)):
            return np.inf, np.zeros_like(flat)  # without the slope, which need not exist
        uphill = join(found[1]) if sloped else torch.autograd.grad(value, at)[0]
        return -float(value.detach()), -uphill.numpy()

    found, lowest, _ = minimise(negative, join(start).numpy(), maxiter=iterations, maxcor=20)
    best = {site: value.to(like) for site, value in unpack(torch.as_tensor(found)).items()}
    return best, -lowest
