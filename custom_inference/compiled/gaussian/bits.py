"""Variational EM of programs whose Gaussian latents stand behind bits: normal values in the place of these.

The bound of ``elements`` is a normal value for every bit, whose precision depends on where it touches, xi. Given these
all is as behind normal values: the posterior of a row, the M step, and log p of the values that stand in, which bounds
log p(x_n) from below. The E step alternates between the posterior and the best xi^2 = E[m^2] under it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from custom_inference.compiled.blocks import Block
from custom_inference.compiled.gaussian.engine import LinearEngine, flatten_state, take_step
from custom_inference.compiled.gaussian.rows import GaussianRows, Solved, scope_of
from custom_inference.core.engine import EStep, Params, Warm
from custom_inference.core.posteriors import LocalPosterior
from ppl_models import Model

#: Updates of xi in an E step that goes on from the last one, and in one that does not.
_SWEEPS, _COLD_SWEEPS = 1, 8


@dataclass(frozen=True, kw_only=True)
class CompiledBits(LinearEngine):
    """Gaussian posteriors of the latents under the bound of Jaakkola and Jordan (1997) on bits."""

    name: ClassVar[str] = "conjugate"

    def initial(self, model: Model, rows: GaussianRows, generator: torch.Generator) -> Params:
        return super().initial(model, bound_at(rows, _start(rows)), generator)

    def propose(self, model: Model, rows: GaussianRows, generator: torch.Generator, attempt: int) -> Params:
        return super().propose(model, bound_at(rows, _start(rows)), generator, attempt)

    def infer(
        self, state: Params, rows: GaussianRows, weights: Tensor | None, warm: Warm, temperature: float
    ) -> EStep:  # fmt: skip
        flat = flatten_state(rows, state)
        at, sweeps = (warm["xi"], _SWEEPS) if warm else (_start(rows), _COLD_SWEEPS)
        xi = find_xi(rows, flat, at, sweeps, temperature)
        return take_step(state, bound_at(rows, xi), weights, temperature, {"xi": xi})

    def posterior(self, model: Model, state: Params, rows: GaussianRows, step: EStep) -> LocalPosterior:
        return bound_at(rows, step.locals["xi"]).posterior(flatten_state(rows, state))


def _start(rows: GaussianRows) -> Tensor:
    """Return where bounds touch of which nothing is known, (N, bits): at log-odds of 0."""
    many = sum(part.trials[0].numel() for part in rows.parts if part.trials is not None)
    return rows.like.new_zeros(len(rows), many)


def bound_at(rows: GaussianRows, xi: Tensor) -> GaussianRows:
    """Return the rows with normal values in the place of bits, whose bounds touch at xi (N, bits)."""
    parts, start = list(rows.parts), 0
    for place, own in enumerate(parts):
        if own.trials is not None:
            end = start + own.trials[0].numel()
            parts[place] = own.bound_at(xi[:, start:end].double().reshape(own.trials.shape))
            start = end
    return replace(rows, parts=tuple(parts), kinds=torch.arange(len(rows)))


def find_xi(rows: GaussianRows, flat: Tensor, xi: Tensor, sweeps: int, temperature: float = 1.0) -> Tensor:
    """Return where bounds touch, (N, bits), after so many updates of the posterior and of them from some."""
    found = list[Tensor]()
    for own in bound_at(rows, xi).cut():
        terms, squares = own.terms(flat), torch.empty(0)
        for _ in range(sweeps):
            solved = own.solve(flat, temperature)
            squares = torch.cat([
                term.find_squares(*_look_up(solved, block))[0].flatten(1)
                for block, read, term in zip(own.blocks, own.parts, terms, strict=True) if read.trials is not None
            ], 1)  # fmt: skip
            own = bound_at(own, squares.sqrt())
        found.append(squares.sqrt())
    return torch.cat(found).to(rows.like)


def _look_up(solved: Solved, block: Block) -> tuple[Tensor, Tensor]:
    """Return the means (C, N, G, R) and the covariances (C, N, G, R, R) of the parents of a block."""
    scope = scope_of(block)
    own = solved.covariance[:, :, scope.unsqueeze(-1), scope.unsqueeze(-2)]
    return solved.mean[..., scope], own[:, solved.pattern]
