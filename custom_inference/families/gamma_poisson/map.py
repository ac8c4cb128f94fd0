"""Points of activations and loadings: GaP by joint maximum a posteriori, and NMF by maximum likelihood.

The objective is the log joint, up to constants of flat priors:

    F(z, b) = sum_nv [x_nv log y_nv - y_nv - log x_nv!] + log p(z) + log p(b),    y = z b (observed entries)

EM with the auxiliary counts of ``engines`` is, with e_nk = sum_v x_nv b_kv / y_nv and sums over observed entries,

    z_nk <- (z_nk e_nk + alpha_k - 1) / (beta_k + sum_v b_kv)                         E step, ``sweeps`` times
    b_kv <- (b_kv sum_n x_nv z_nk / y_nv + c - 1) / (d + sum_n z_nk)                  M step

(alpha and c in place of alpha - 1 and c - 1 where a shape is below 1: modes of logarithms, see ``conjugate``). Flat
priors leave Lee & Seung's multiplicative updates (2001, theorem 2). Each raises F; with loadings fixed F is concave in
every row of z: that is the folding-in of new rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from custom_inference.core.engine import POINT, EStep, Objective, Params, Warm
from custom_inference.core.posteriors import LocalPosterior, PointPosterior
from custom_inference.families.conjugate.gamma import Gamma
from custom_inference.families.gamma_poisson.common import FLOOR, EventRows, GapEngine, best_scale, loading_of
from ppl_models import GammaPoisson

#: Updates of the activations of rows that start from equal shares at loadings that are known.
_COLD_SWEEPS = 20


@dataclass(frozen=True, kw_only=True)
class GapMap(GapEngine):
    """sweeps, cold_sweeps: updates of the activations in an E step that goes on from the last one, and in one that does
    not. least_share: extrapolations keep this share of the mean over a component.

    EStep.bound is log p(x_n | z_n, b) + log p(z_n), the latter 0 where it is flat.
    """

    has_point_locals = True

    sweeps: int = 2
    cold_sweeps: int = _COLD_SWEEPS

    name: ClassVar[str] = POINT
    objective: ClassVar[Objective] = "log joint"
    accelerate: ClassVar[str | None] = "anderson"
    extrapolated: ClassVar[tuple[str, ...]] = ("activation",)
    least_share: ClassVar[float] = 0.0

    def local(self) -> GapMap:
        """Folding in: many cheap updates between two looks at the bound."""
        return replace(self, sweeps=_COLD_SWEEPS, cold_sweeps=_COLD_SWEEPS)

    def e_step(
        self, model: GammaPoisson, state: Params, rows: EventRows, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        loading = loading_of(state)
        prior, exposure = Gamma(*self.activation_prior(model, loading)[:2]), rows.exposure(loading)
        if warm:
            activation, sweeps = warm["activation"].clone(), self.sweeps
        else:
            even = (rows.lengths.unsqueeze(1) + 0.1) / len(loading)
            activation, sweeps = even / exposure.clamp(min=FLOOR), self.cold_sweeps
        words = loading.T.contiguous()
        settle = settle_blocks
        if words.device.type == "cpu":
            # The compiler is loaded where it is needed, not with the package.
            from custom_inference.families.gamma_poisson.kernels import settle_points as settle
        above = prior.powers.contiguous()
        limits = {"sweeps": sweeps, "floor": FLOOR, "temperature": temperature}
        activation = activation.contiguous()
        ratios, fit = settle(rows, words, activation, above, exposure + prior.rate, **limits)
        bound = rows.log_base + fit
        bound = bound - (activation * exposure).sum(-1) + prior.log_density(activation).sum(-1)
        events = words * rows.sum_by_word(ratios, activation)
        return EStep(rows.statistics(events.T, activation), {"activation": activation}, bound)

    def scale(self, prior: tuple[Tensor, ...], step: EStep, size: Tensor, mass: Tensor) -> Tensor:
        """All components are rescaled alike, as an E step does not depend on the scale of the activations that it
        starts from."""
        activation, found = Gamma(*prior[:2]), step.statistics
        power = found["rows"] * activation.powers - size
        return best_scale(power.sum(), (activation.rate * found["activation"]).sum(), mass.sum())

    def posterior(self, model: GammaPoisson, state: Params, rows: EventRows, step: EStep) -> LocalPosterior:
        return PointPosterior(step.locals["activation"])

    def point_locals(self, step: EStep) -> Params:
        return {"activation": step.locals["activation"]}

    def project(self, model: GammaPoisson, state: Params, locals_: Params) -> tuple[Params, Params]:
        """Positive values, which EM steps can leave."""
        loading, activation = state["loading"], locals_["activation"]
        inside = {**locals_, "activation": _apart(activation, 0, self.least_share)}
        return {**state, "loading": _apart(loading, 1, self.least_share)}, inside

    def canonical(self, model: GammaPoisson, params: Params, locals_: Params) -> tuple[Params, Params]:
        form = model.standard_form({**params, "activation": locals_["activation"]})
        return {**params, "loading": form["loading"]}, {**locals_, "activation": form["activation"]}


@dataclass(frozen=True, kw_only=True)
class NmfMap(GapMap):
    """Under flat priors: one update of either factor after the other. Activations that were fitted to the first
    loadings would keep zeros from there, as would those extrapolated to 0, and lead to lower maxima."""

    one_process = True

    sweeps: int = 1
    cold_sweeps: int = 1
    least_share: ClassVar[float] = 0.01


def _apart(value: Tensor, dim: int, share: float) -> Tensor:
    value = value.clamp(min=FLOOR)
    return torch.maximum(value, share * value.mean(dim, keepdim=True))


def settle_blocks(
    rows: EventRows, words: Tensor, activation: Tensor, above: Tensor, below: Tensor, *, sweeps: int, floor: float,
    temperature: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Update like :func:`custom_inference.families.gamma_poisson.kernels.settle_points`, in blocks, on any device."""
    ratios = words.new_zeros(rows.counts.values().numel() + 1)  # the last place takes the padding
    fit, least = words.new_zeros(len(rows)), torch.finfo(words.dtype).tiny
    for block in rows.blocks:
        at, seen = block.documents, block.of_words(words)
        z, under = activation[at], below[at]
        for _ in range(sweeps):
            ratio = block.count / (seen @ z.unsqueeze(-1)).squeeze(-1).clamp(min=least)
            found = temperature * z * (ratio.unsqueeze(1) @ seen).squeeze(1) + above
            # Neither events nor exposure: every rate is a maximum.
            z = torch.where(under > 0, found / under.clamp(min=least), 0.0).clamp(min=floor)
        mixture = (seen @ z.unsqueeze(-1)).squeeze(-1).clamp(min=least)
        ratios[block.cells], activation[at] = block.count / mixture, z
        fit[at] = torch.xlogy(block.count, mixture).sum(-1)
    return ratios[:-1], fit
