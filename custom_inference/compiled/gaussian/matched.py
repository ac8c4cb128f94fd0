"""Variational EM of programs whose Gaussian latents stand behind bits, under the best Gaussian posterior of every row.

The bound is E_q[log p(x_n, u)] plus the entropy of q, over all Gaussian q; of bits its expectations are integrals over
one number. q is the posterior behind normal values in the place of bits, whose precisions r and pulls r x' are best at

    r = n E[s(m) (1 - s(m))],    r x' = r E[m] + x - n E[s(m)],    s(m) = 1 / (1 + e^-m),

under q itself (Khan & Lin, *Conjugate-computation variational inference*, AISTATS 2017). Steps go there from where they
are, half as far in rows whose bound would fall. These values have the slopes of the bound in all globals at q, too, so
that the M step behind them is one of Newton's method.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from custom_inference.compiled.gaussian.bits import Bits, CompiledBits, find_moments, put
from custom_inference.compiled.gaussian.elements import count_orders
from custom_inference.compiled.gaussian.engine import flatten_state
from custom_inference.compiled.gaussian.rows import GaussianRows, Solved
from custom_inference.core.engine import EStep, Params, Warm
from custom_inference.core.posteriors import LocalPosterior
from custom_inference.em.rows import FitRows
from ppl_models import Model
from ppl_models.core.likelihood import hermite

#: Steps of an E step that goes on from the last one, at most, until all bounds rose, and of one that does not; nodes of
#: integrals over one number.
_STEPS, _COLD_STEPS, _NODES = 6, 12, 20
#: What a bound may fall by through rounding, as a part of itself; the least precision in the place of a bit, and
#: the least standard deviation of its log-odds.
_ROUNDING, _LEAST, _NARROW = 1e-12, 1e-12, 1e-5


class Reached(NamedTuple):
    """The posteriors of rows behind normal values with rates and pulls (N, 2, bits), their bounds (N,), and which rates
    and pulls are best under them."""

    natural: Tensor
    solved: Solved
    bound: Tensor
    best: Tensor


@dataclass(frozen=True, kw_only=True)
class CompiledMatched(CompiledBits):
    """The best Gaussian posteriors of the latents."""

    name: ClassVar[str] = "variational"
    may_lower = True

    #: An M step is shortened to 1 / (1 + tightness) of itself.
    tightness: float = 0.0

    def tighten(self, factor: float) -> None:
        tightness = self.tightness * factor
        tightness = max(1.0, tightness) if factor > 1 else (tightness if tightness > 1e-2 else 0.0)
        object.__setattr__(self, "tightness", tightness)

    def infer(
        self, state: Params, rows: GaussianRows, weights: Tensor | None, warm: Warm, temperature: float
    ) -> EStep:  # fmt: skip
        flat, size, every = flatten_state(rows, state), rows.count_together(), list[list[Tensor]]()
        start = warm["natural"] if warm else _start(rows)
        share = rows.like.new_ones(len(rows)) if weights is None else weights
        natural, bounds = list[Tensor](), list[Tensor]()
        for own, at, weight in zip(rows.cut(), start.split(size), share.split(size), strict=True):
            found = _climb(own, flat, at.double(), temperature, cold=not warm)
            rate, pull = found.best.unbind(1)
            counted = put(own, rate, pull, torch.zeros_like(rate))
            every.append(counted.gather(found.solved, weight.double().unsqueeze(1), temperature))
            natural.append(found.natural)
            bounds.append(found.bound)
        moments = [torch.stack(one).sum(0) for one in zip(*every, strict=True)]
        statistics = {**dict(zip(rows.keys, moments, strict=True)), "rows": share.sum()}
        return EStep(statistics, {"natural": torch.cat(natural)}, torch.cat(bounds).to(rows.like))

    def m_step(self, model: Model, state: Params, step: EStep, rows: GaussianRows | FitRows) -> Params:
        found, part = super().m_step(model, state, step, rows), 1 / (1 + self.tightness)
        return {site: value + part * (found[site] - value) for site, value in state.items()}

    def posterior(self, model: Model, state: Params, rows: GaussianRows, step: EStep) -> LocalPosterior:
        rate, pull = step.locals["natural"].double().unbind(1)
        return put(rows, rate, pull, torch.zeros_like(rate)).posterior(flatten_state(rows, state))


def _start(rows: GaussianRows) -> Tensor:
    """Return the rates and pulls (N, 2, bits) of log-odds of 0."""
    own = Bits.of(rows)
    return torch.stack([own.trials / 4, own.x - own.trials / 2], 1)


def _climb(rows: GaussianRows, flat: Tensor, natural: Tensor, temperature: float, *, cold: bool) -> Reached:
    """Take steps towards the best rates and pulls; in rows whose bound would fall half as far."""
    bits, risen = Bits.of(rows), torch.zeros(len(rows), dtype=torch.bool)
    now, length = _reach(rows, bits, flat, natural, temperature), natural.new_ones(len(rows))
    for _ in range(_COLD_STEPS if cold else _STEPS):
        moved = now.natural + length[:, None, None] * (now.best - now.natural)
        then = _reach(rows, bits, flat, moved, temperature)
        rose = then.bound >= now.bound - _ROUNDING * now.bound.abs()
        length = torch.where(rose, (2 * length).clamp(max=1.0), length / 2)
        kept = torch.where(rose[:, None, None], moved, now.natural)
        now, risen = then if bool(rose.all()) else _reach(rows, bits, flat, kept, temperature), risen | rose
        if not cold and bool(risen.all()):
            break
    return now


def _reach(rows: GaussianRows, bits: Bits, flat: Tensor, natural: Tensor, temperature: float) -> Reached:
    """Return the posteriors behind some normal values, with their bounds."""
    rate, pull = natural.unbind(1)
    solved = put(rows, rate, pull, torch.zeros_like(rate)).solve(flat, temperature)
    mean, variance = find_moments(rows, flat, solved)
    risen, chance, bent = _expect(mean, variance)
    expected = bits.x * mean - bits.trials * risen + count_orders(bits.x, bits.trials)
    apart = rate * ((pull / rate - mean).square() + variance) / 2
    gain = ((expected + apart) * bits.seen).sum(1)
    curved = (bits.trials * bent).clamp(min=_LEAST)
    best = torch.stack([curved, curved * mean + bits.x - bits.trials * chance], 1)
    return Reached(natural, solved, solved.log_joint[:, 0] + temperature * gain, best)


def _expect(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return E log(1 + e^m), E s(m) and E[s(m) (1 - s(m))] of normal m, the last as twice the slope of the first in the
    variance, which it is of the sums over nodes, too."""
    deviation, zeros = variance.sqrt().clamp(min=_NARROW), torch.zeros_like(mean)
    risen, chance, slope = zeros, zeros, zeros
    for node, weight in zip(*hermite(_NODES), strict=True):
        odds = mean + deviation * node
        small = torch.exp(-odds.abs())
        own = torch.where(odds > 0, 1.0, small) / (1 + small)
        risen = risen + weight * (odds.clamp(min=0) + torch.log1p(small))
        chance = chance + weight * own
        slope = slope + weight * node * own
    return risen, chance, slope / deviation
