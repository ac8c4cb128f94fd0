"""The recognition network of a Helmholtz machine, and its distributions (Dayan et al. 1995).

    q(h | x) = prod_l q(h_l | h_{l+1}),    q(h_l | h_{l+1}) = prod Bernoulli(sigmoid(c_l + R_l'h_{l+1})),    h_L = x

from the visible layer up; a missing entry of x is read as 0.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from custom_inference.core.engine import Params
from custom_inference.core.posteriors import CodePosterior
from custom_inference.families.helmholtz.tables import log_odds
from ppl_models.distributions import all_codes

#: Hidden units of which the posterior is a table; of more, draws of every row.
_TABLE_UNITS, _DRAWS = 10, 100
#: Entries of a block of a table.
_BLOCK = 2**22


class Recognition(torch.nn.Module):
    """weight_l R_l (n_{l+1}, n_l) and bias_l c_l (n_l,), of the hidden layers l = 0, ..., L - 1."""

    def __init__(self, layers: tuple[int, ...], like: Tensor, generator: torch.Generator, spread: float = 0.1):
        super().__init__()
        self.layers = layers
        for layer in range(len(layers) - 1):
            start = spread * torch.randn(layers[layer + 1], layers[layer], generator=generator, dtype=torch.float64)
            setattr(self, f"weight_{layer}", torch.nn.Parameter(start.to(like)))
            setattr(self, f"bias_{layer}", torch.nn.Parameter(like.new_zeros(layers[layer])))

    def odds(self, layer: int, below: Tensor) -> Tensor:
        """Compute the log odds of the units of a hidden layer given the one below it."""
        return getattr(self, f"bias_{layer}") + below @ getattr(self, f"weight_{layer}")

    def sample(self, x: Tensor, number: int, generator: torch.Generator) -> list[Tensor]:
        """Draws of the hidden layers from the top, each (number, N, n_l)."""
        below, found = x.expand(number, *x.shape), []
        with torch.no_grad():
            for layer in reversed(range(len(self.layers) - 1)):
                below = bernoulli(self.odds(layer, below), generator)
                found.insert(0, below)
        return found

    def log_prob(self, x: Tensor, hidden: list[Tensor]) -> Tensor:
        """log q(h | x) of hidden layers (..., N, n_l), (..., N)."""
        parts = [*hidden, x]
        each = [log_bernoulli(self.odds(layer, parts[layer + 1]), parts[layer]) for layer in range(len(hidden))]
        return torch.stack([one.expand(each[0].shape) for one in each]).sum(0)

    def posterior(self, x: Tensor, generator: torch.Generator) -> CodePosterior:
        """q of every row: a table of all states of the hidden layers, or, where these are too many, draws."""
        hidden, like = sum(self.layers[:-1]), x
        with torch.no_grad():
            if hidden > _TABLE_UNITS:
                codes = torch.cat(self.sample(x, _DRAWS, generator), -1).movedim(0, 1)
                return CodePosterior(codes, like.new_full(codes.shape[:2], 1.0 / _DRAWS).log())
            codes = all_codes(hidden, dtype=like.dtype, device=like.device)
            parts = list(codes.unsqueeze(1).split(self.layers[:-1], -1))
            size = max(1, _BLOCK // len(codes))
            table = [
                self.log_prob(block, [part.expand(-1, len(block), -1) for part in parts]) for block in x.split(size)
            ]
            return CodePosterior(codes, torch.cat(table, 1).T)


def bernoulli(odds: Tensor, generator: torch.Generator) -> Tensor:
    """Draws, made on the CPU: the same on every device."""
    return torch.bernoulli(torch.sigmoid(odds).cpu(), generator=generator).to(odds)


def log_bernoulli(odds: Tensor, value: Tensor) -> Tensor:
    """log p of binary units with these log odds, summed over the last axis."""
    return (value * odds - softplus(odds)).sum(-1)


def log_generative(params: Params, hidden: list[Tensor], x: Tensor, mask: Tensor | None = None) -> Tensor:
    """log p(x observed, h) of hidden layers (..., N, n_l), (..., N)."""
    top = params["bias_0"]
    found = log_bernoulli(top, hidden[0])
    for layer in range(1, len(hidden)):
        found = found + log_bernoulli(log_odds(params, layer, hidden[layer - 1]), hidden[layer])
    odds = log_odds(params, len(hidden), hidden[-1])
    if mask is None:
        return found + log_bernoulli(odds, x)
    return found + (mask * torch.where(x > 0, logsigmoid(odds), logsigmoid(-odds))).sum(-1)


def fantasies(params: Params, layers: tuple[int, ...], number: int, generator: torch.Generator) -> list[Tensor]:
    """Draws of all layers from the top, the visible one last, each (number, n_l)."""
    with torch.no_grad():
        found = [bernoulli(params["bias_0"].expand(number, -1), generator)]
        for layer in range(1, len(layers)):
            found.append(bernoulli(log_odds(params, layer, found[-1]), generator))
    return found
