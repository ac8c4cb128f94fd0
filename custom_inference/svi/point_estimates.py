"""Points of continuous locals at given globals, for models without closed-form steps to them."""

from __future__ import annotations

from collections.abc import Mapping

import pyro
import torch
from pyro import poutine
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoDelta
from pyro.optim import ClippedAdam
from torch import Tensor

from custom_inference.core.isolation import default_dtype, isolated
from custom_inference.core.local_inference import Local, bound_of
from custom_inference.core.posteriors import PointPosterior
from custom_inference.svi.guides.globals import with_modes
from ppl_models import Data, Model


def point_locals(
    model: Model, params: Mapping[str, Tensor], data: Data, *, steps: int, learning_rate: float, seed: int = 0
) -> Local:
    """The locals that maximise log p(locals, x | params), by AutoDelta; points have no bound (NaN)."""
    site = model.local_site
    with isolated(seed), default_dtype(data.x.dtype):
        program = pyro.condition(with_modes(model, [site]), data=dict(params))
        guide = AutoDelta(poutine.block(program, expose=[site]))
        optimizer = ClippedAdam({"lr": learning_rate, "lrd": 0.1 ** (1 / steps)})
        inference = SVI(program, guide, optimizer, Trace_ELBO())
        for _ in range(steps):
            inference.step(data.x, **data.arguments)
        with torch.no_grad():
            point = PointPosterior(guide.median()[site].detach().clone())
    return Local(point, bound_of(model, dict(params), data, point))
