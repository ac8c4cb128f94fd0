"""Adam for parameters of which a step sees a few rows."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class RowAdam(Optimizer):
    """Adam with decaying rate and clipped gradients; of sparse gradients it moves, and pays for, their rows alone.

    The averages of a row and their bias are counted in that row's own steps (Kingma & Ba 2015): a row that few
    minibatches see takes steps of the full size. Dense gradients are treated as ``pyro.optim.ClippedAdam`` does.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        clip_norm: float = torch.inf,
        lrd: float = 1.0,
    ):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "clip_norm": clip_norm, "lrd": lrd})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None if closure is None else closure()
        for group in self.param_groups:
            group["lr"] *= group["lrd"]
            for param in group["params"]:
                if param.grad is not None:
                    _update(param, param.grad, self.state[param], group)
        return loss


def _update(param: Tensor, grad: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
    if not state:
        state["step"] = param.new_zeros(len(param) if grad.is_sparse else 1)
        state["mean"], state["square"] = torch.zeros_like(param), torch.zeros_like(param)
    index: Any = slice(None)
    if grad.is_sparse:
        grad = grad.coalesce()
        index, grad = grad.indices()[0], grad.values()
    beta1, beta2 = group["betas"]
    grad = grad.clamp(-group["clip_norm"], group["clip_norm"])
    state["step"][index] += 1
    mean = state["mean"][index].lerp(grad, 1 - beta1)
    square = state["square"][index].lerp(grad.square(), 1 - beta2)
    state["mean"][index], state["square"][index] = mean, square
    count = state["step"][index].reshape(-1, *[1] * (param.dim() - 1)) if param.dim() else state["step"][0]
    unbiased = (square / (1 - beta2**count)).sqrt().add_(group["eps"])
    param[index] -= group["lr"] * mean / (1 - beta1**count) / unbiased
