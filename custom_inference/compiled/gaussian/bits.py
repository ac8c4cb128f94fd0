"""Variational EM of programs whose Gaussian latents stand behind bits: normal values in the place of these.

Bits with log-odds m that are affine in the latents have no Gaussian posterior. A bound has (Jaakkola & Jordan 1997): x
successes of n trials are, where it touches at xi,

    x m - n log(1 + e^m) >= (x - n/2) m - n c(xi) (m^2 - xi^2) / 2 - n log(2 cosh(xi / 2)),

a normal value (x - n/2) / (n c) with the mean m and the precision n c, c(xi) = tanh(xi / 2) / (2 xi). On average over
m it is best at xi^2 = E[m^2]. Given these all is as behind normal values: the posterior of a row, the M step, and log p
of the values that stand in, which bounds log p(x_n) from below. The E step alternates between the posterior and xi.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from custom_inference.compiled.gaussian.elements import count_orders
from custom_inference.compiled.gaussian.engine import LinearEngine, flatten_state, take_step
from custom_inference.compiled.gaussian.rows import GaussianRows, Solved, scope_of
from custom_inference.core.engine import EStep, Params, Warm
from custom_inference.core.posteriors import LocalPosterior
from ppl_models import Model
from ppl_models.core.likelihood import jaakkola_curvature, log_two_cosh_half

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
    return torch.zeros_like(Bits.of(rows).x).to(rows.like)


class Bits(NamedTuple):
    """What is read of the bits of rows: successes, trials, and which are seen, (N, bits)."""

    x: Tensor
    trials: Tensor
    seen: Tensor

    @classmethod
    def of(cls, rows: GaussianRows) -> Bits:
        own = [(part.x, part.trials, part.seen) for part in rows.parts if part.trials is not None]
        seen = [torch.ones_like(x, dtype=torch.bool) if part is None else part for x, _, part in own]
        return cls(
            *(torch.cat([one.flatten(1) for one in every], 1) for every in (*list(zip(*own, strict=True))[:2], seen))
        )


def put(rows: GaussianRows, rate: Tensor, pull: Tensor, beside: Tensor) -> GaussianRows:
    """Return the rows with normal values pull / rate of precisions ``rate`` in the place of bits, (N, bits). beside:
    what their log density has beside -rate (value - m)^2 / 2."""
    parts, start = list(rows.parts), 0
    for place, own in enumerate(parts):
        if own.trials is not None:
            end = start + own.trials[0].numel()
            value, r, b = (one[:, start:end].reshape(own.trials.shape) for one in (pull / rate, rate, beside))
            parts[place], start = replace(own, x=value, rate=r, beside=b), end
    return replace(rows, parts=tuple(parts), kinds=torch.arange(len(rows)))


def find_moments(rows: GaussianRows, flat: Tensor, solved: Solved) -> tuple[Tensor, Tensor]:
    """Return the means and the variances of the log-odds of all bits, (N, bits), under the posterior of their rows."""
    means, variances = list[Tensor](), list[Tensor]()
    for block, part, term in zip(rows.blocks, rows.parts, rows.terms(flat), strict=True):
        if part.trials is not None:
            scope = scope_of(block)
            spread = solved.covariance[:, :, scope.unsqueeze(-1), scope.unsqueeze(-2)][:, solved.pattern]
            means.append(term.find_means(solved.mean[..., scope])[0].flatten(1))
            variances.append(term.find_variances(spread)[0].flatten(1))
    return torch.cat(means, 1), torch.cat(variances, 1)


def bound_at(rows: GaussianRows, xi: Tensor) -> GaussianRows:
    """Return the rows with normal values in the place of bits, whose bounds touch at xi (N, bits)."""
    own, xi = Bits.of(rows), xi.double()
    pull, rate = own.x - own.trials / 2, own.trials * jaakkola_curvature(xi)
    beside = pull.square() / (2 * rate) + rate * xi.square() / 2 - own.trials * log_two_cosh_half(xi)
    return put(rows, rate, pull, beside + count_orders(own.x, own.trials))


def find_xi(rows: GaussianRows, flat: Tensor, xi: Tensor, sweeps: int, temperature: float = 1.0) -> Tensor:
    """Return where bounds touch, (N, bits), after so many updates of the posterior and of them from some."""
    found = list[Tensor]()
    for own, at in zip(rows.cut(), xi.split(rows.count_together()), strict=True):
        for _ in range(sweeps):
            mean, variance = find_moments(own, flat, bound_at(own, at).solve(flat, temperature))
            at = (mean.square() + variance).sqrt()
        found.append(at)
    return torch.cat(found).to(rows.like)
