"""L-BFGS up a differentiable function of several tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from custom_inference.core.engine import Params


def climbed(objective: Callable[[Params], Tensor], start: Params, iterations: int) -> tuple[Params, float]:
    """Where L-BFGS takes ``start`` in double precision, and the objective there; the start itself where that is no
    better.

    objective: of order 1, such as a mean over rows: L-BFGS ends where its gradient is below 1e-5.
    """
    sites, like = list(start), next(iter(start.values()))
    shapes = [start[site].shape for site in sites]

    def unpacked(flat: Tensor) -> Params:
        parts = flat.split([shape.numel() for shape in shapes])
        return {site: part.view(shape) for site, part, shape in zip(sites, parts, shapes, strict=True)}

    def slope(flat: Any) -> tuple[float, Any]:
        at = torch.tensor(flat, dtype=torch.float64, requires_grad=True)
        with torch.enable_grad():
            value = -objective({site: part.to(like.device) for site, part in unpacked(at).items()})
        return float(value.detach()), torch.autograd.grad(value, at)[0].numpy()

    first = torch.cat([start[site].detach().flatten() for site in sites]).cpu().double().numpy()
    at_first = slope(first)[0]
    found = minimize(slope, first, jac=True, method="L-BFGS-B", options={"maxiter": iterations, "maxcor": 20})
    better = bool(np.isfinite(found.fun)) and found.fun <= at_first
    flat = torch.as_tensor(found.x if better else first)
    best = {site: value.to(like) for site, value in unpacked(flat).items()}
    return best, -float(found.fun if better else at_first)
