"""Sparse activations: the components that a row has are summed over, each set with its own Gamma posteriors.

With s_nk = 1 where z_nk > 0 (002, eq. 27.17), p(s_n) = prod_k rho_k^(1 - s_nk) (1 - rho_k)^s_nk, and F_n(s) the bound
of ``engines`` on log p(x_n | s_n = s) with the components of s alone,

    q(s_n = s) proportional to p(s) exp F_n(s),    bound log sum_s p(s) exp F_n(s) <= log p(x_n | b):

2^K sets. Events given to a component rule out that its activation is 0, which is why no factorised posterior of the
events, spikes and activations would do: it is always certain of every s_nk.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from custom_inference.core.engine import Engine, EStep, Warm
from custom_inference.core.posteriors import GammaTerms
from custom_inference.families.gamma_poisson.common import EventRows
from custom_inference.families.gamma_poisson.engines import GapGamma, GapVB
from custom_inference.families.topics.dirichlet import TopicScores, relative_share
from ppl_models import CapacityError, Model
from ppl_models.data import sparse as _sparse

#: Sets of so many components are summed over.
_MOST = 8


@dataclass(frozen=True, kw_only=True)
class SpikeGap(GapGamma):
    """Loadings as points."""

    def check(self, model: Model, rows: EventRows) -> None:
        """Raises CapacityError for too many sets of components."""
        super().check(model, rows)
        size = model.local_shape[0]
        if size > _MOST:
            fits = f"up to {_MOST} components would do; use CollapsedGibbs()"
            raise CapacityError(f"summing over the 2^{size} sets of components of each row takes too long; {fits}")

    def infer_activations(
        self, rows: EventRows, log_score: Tensor, exposure: Tensor, prior: tuple[Tensor, ...], warm: Warm
    ) -> EStep:
        """Compute the posteriors as :class:`GapGamma` does; rows (K,) are those that have a component, total all."""
        (shape, rate, spike), sets = prior, component_sets(log_score)
        empty = torch.where(rows.lengths > 0, -torch.inf, 0.0).to(log_score)
        joint, passes = [empty + spike.log().sum()], empty
        after = rate + exposure
        concentration = torch.zeros((len(rows), len(sets), len(shape)), dtype=after.dtype, device=after.device)
        for place, on in enumerate(sets[1:], start=1):
            given = warm and {**warm, "concentration": warm["concentration"][:, place, on].contiguous()}
            found = super().infer_activations(rows, log_score[on], exposure[:, on], (shape[on], rate[on]), given)
            concentration[:, place, on], passes = found.locals["concentration"], found.locals["passes"]
            off = torch.ones_like(spike, dtype=torch.bool)
            off[on] = False
            joint.append(found.bound + torch.log1p(-spike[on]).sum() + spike[off].log().sum())
        table = torch.stack(joint, 1)
        bound = table.logsumexp(1)
        weight = (table - bound.unsqueeze(1)).exp()
        statistics = self._statistics(rows, log_score, concentration, after, weight, sets)
        locals_ = {"concentration": concentration, "rate": after, "log_weight": weight.log(), "passes": passes}
        return EStep(statistics, locals_, bound)

    def _statistics(
        self, rows: EventRows, log_score: Tensor, concentration: Tensor, after: Tensor, weight: Tensor, sets: list[Any]
    ) -> dict[str, Tensor]:
        mean = (weight.unsqueeze(-1) * concentration).sum(1) / after
        events, log_mean = torch.zeros_like(log_score), torch.zeros_like(after)
        row, column, count = _sparse.triplets(rows.counts)
        for place, on in enumerate(sets[1:], start=1):
            own = concentration[:, place, on]
            share = rows.responsibilities(relative_share(own) / after[:, on], TopicScores.of(log_score[on]).word)
            given = torch.zeros_like(log_score.T[:, : len(on)])
            given.index_add_(0, column, share * (count * weight[row, place]).unsqueeze(1))
            events[on] += given.T
            log_mean[:, on] += weight[:, place, None] * (torch.digamma(own) - after[:, on].log())
        member = torch.stack([torch.zeros_like(after[0]).index_fill(0, on, 1.0) for on in sets])
        return {
            "events": events,
            "exposure": rows.sum_observed(mean),
            "activation": mean.sum(0),
            "log_activation": log_mean.sum(0),
            "rows": (weight @ member).sum(0),
            "total": after.new_tensor(float(len(rows))),
        }

    def posterior(self, model: Model, state: Any, rows: EventRows, step: EStep) -> Any:
        shape = step.locals["concentration"]
        rate = step.locals["rate"].unsqueeze(1).expand_as(shape)
        return GammaTerms(step.locals["log_weight"], shape, rate.contiguous())


@dataclass(frozen=True, kw_only=True)
class SpikeVB(GapVB, SpikeGap):
    """Posteriors of the loadings too. learn: "activation" learns shapes, rates and spikes."""

    def local(self) -> Engine:
        return SpikeGap()


def component_sets(log_score: Tensor) -> list[Tensor]:
    """The components of every set, the empty one first."""
    every = itertools.product((False, True), repeat=len(log_score))
    return [torch.tensor(one, device=log_score.device).nonzero().flatten() for one in every]
