"""M steps of hyper-parameters, on what the program says of them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.distributions import biject_to

from custom_inference.core.engine import Params
from custom_inference.core.optimize.lbfgs import Array, minimise
from ppl_models import Model
from ppl_models.core.priors import value_if_known


def move_hypers(model: Model, values: Params) -> Params:
    """Move the hyper-parameters to their maximum a posteriori given the sites: by L-BFGS on the unconstrained scale,
    from where they are; never where the log prior is lower."""
    names = [site for site in model.hyper_sites if value_if_known(model.priors[site]) is None]
    if not names:
        return values
    maps = {name: biject_to(model.prior(name, values=values).support) for name in names}
    start = {name: maps[name].inv(_off_edge(values[name].double())) for name in names}
    sizes = [start[name].numel() for name in names]

    def objective(flat: Array) -> tuple[float, Array]:
        with torch.enable_grad():
            free = torch.as_tensor(flat, dtype=torch.float64).clone().requires_grad_()
            parts = zip(names, free.split(sizes), strict=True)
            at = {**values, **{name: maps[name](part.reshape(start[name].shape)) for name, part in parts}}
            try:
                total = -model.log_prior({site: value.double() for site, value in at.items()})
            except ValueError:  # a line search that goes where no prior is defined
                return np.inf, np.zeros(len(flat))
            total.backward()
        assert free.grad is not None
        return float(total.detach()), np.nan_to_num(free.grad.numpy())

    first = torch.cat([start[name].flatten() for name in names]).numpy()
    best, _, _ = minimise(objective, first, maxiter=50)
    if best is first:  # no point is as good
        return values
    parts = zip(names, torch.as_tensor(best).split(sizes), strict=True)
    moved = {name: maps[name](part.reshape(start[name].shape)).to(values[name]) for name, part in parts}
    return {**values, **moved}


def _off_edge(value: Tensor) -> Tensor:
    return torch.where(value == 0, torch.full_like(value, 1e-12), value)
