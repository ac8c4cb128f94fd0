"""Adam for parameters of which a step sees a few rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pyro
import torch
from pyro.optim import PyroOptim
from torch import Tensor

_BETAS = (0.9, 0.999)
_EPSILON = 1e-8


class RowAdam(PyroOptim):
    """Adam (Kingma & Ba 2015) with a decaying rate; of sparse gradients it moves, and pays for, their rows alone.

    The averages of a row and their bias are counted in that row's own steps: a row that few minibatches see takes steps
    of the full size, and none from the momentum of others.

    rate: name of a parameter -> its learning rate; decay: the factor on all rates at every step.
    """

    def __init__(self, rate: Callable[[str], float], *, decay: float = 1.0):
        # The wrapped optimiser is never made: torch's base class imports its compiler, which takes seconds.
        super().__init__(torch.optim.Adam, {})
        self.rate, self.decay, self.factor = rate, decay, 1.0
        self._averages: dict[Tensor, dict[str, Tensor]] = {}

    @torch.no_grad()
    def __call__(self, params: Iterable[Tensor], *args: Any, **kwargs: Any) -> None:
        """One step for every parameter that has a gradient."""
        self.factor *= self.decay
        for param in params:
            if param.grad is not None:
                name = pyro.get_param_store().param_name(param)
                self._move(param, param.grad, self.rate(name or "") * self.factor)

    def _move(self, param: Tensor, grad: Tensor, rate: float) -> None:
        state = self._averages.get(param)
        if state is None:
            steps = param.new_zeros(len(param) if grad.is_sparse else 1)
            state = {"steps": steps, "mean": torch.zeros_like(param), "square": torch.zeros_like(param)}
            self._averages[param] = state
        index: Any = slice(None)
        if grad.is_sparse:
            grad = grad.coalesce()
            index, grad = grad.indices()[0], grad.values()
        state["steps"][index] += 1
        mean, square = state["mean"][index].lerp(grad, 1 - _BETAS[0]), state["square"][index]
        square = square.mul(_BETAS[1]).addcmul_(grad, grad, value=1 - _BETAS[1])
        state["mean"][index], state["square"][index] = mean, square
        steps = state["steps"][index].reshape(-1, *[1] * (param.dim() - 1))
        size = rate / (1 - _BETAS[0] ** steps)
        param[index] -= size * mean / (square / (1 - _BETAS[1] ** steps)).sqrt().add_(_EPSILON)
