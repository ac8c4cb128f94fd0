"""L-BFGS up a differentiable function of several tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from threadpoolctl import ThreadpoolController
from torch import Tensor

from custom_inference.core.engine import Params


@cache
def _blas() -> ThreadpoolController:
    """What limits the threads of SciPy's and NumPy's products: beside torch's, which wait for work at full speed, they
    take each other's processors, and small steps ten times as long."""
    return ThreadpoolController()


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

    def slope(flat: Any) -> tuple[float, Any]:
        at = torch.tensor(flat, dtype=torch.float64, requires_grad=not sloped)
        with torch.set_grad_enabled(not sloped):
            found = objective({site: part.to(like.device) for site, part in unpack(at).items()})
        value = found[0] if sloped else found
        if not bool(torch.isfinite(value)):
            return 1e10, np.zeros_like(flat)
        uphill = join(found[1]) if sloped else torch.autograd.grad(value, at)[0]
        return -float(value.detach()), -uphill.numpy()

    first = join(start).numpy()
    with _blas().limit(limits=1, user_api="blas"):
        at_first = slope(first)[0]
        found = minimize(slope, first, jac=True, method="L-BFGS-B", options={"maxiter": iterations, "maxcor": 20})
    better = bool(np.isfinite(found.fun)) and found.fun <= at_first
    flat = torch.as_tensor(found.x if better else first)
    best = {site: value.to(like) for site, value in unpack(flat).items()}
    return best, -float(found.fun if better else at_first)
