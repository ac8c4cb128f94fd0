"""Sparse activations: the components that a row has are summed over, each set with its own Gamma posteriors.

With s_nk = 1 where z_nk > 0 (Murphy, eq. 27.17), p(s_n) = prod_k rho_k^(1 - s_nk) (1 - rho_k)^s_nk, and F_n(s) the
bound of ``engines`` on log p(x_n | s_n = s) with the components of s alone,

    q(s_n = s) proportional to p(s) exp F_n(s),    bound log sum_s p(s) exp F_n(s) <= log p(x_n | b):

2^K sets. Events given to a component rule out that its activation is 0, which is why no factorised posterior of the
events, spikes and activations would do: it is always certain of every s_nk. Exactly, for few components and rows of few
events, p(x_n | s_n = s) is the evidence of ``exact`` with the components of s alone: with the sums m of the events,

    p(x_n) = sum_s p(s) p(x_n | s),    p(z_n | x_n) = sum_s sum_m w_nsm prod_k Gamma(z_nk | alpha_k + m_k, r_nk).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from custom_inference.core.engine import Engine, EStep, Params, Warm
from custom_inference.core.posteriors import GammaTerms
from custom_inference.core.states import State
from custom_inference.families.gamma_poisson.common import EventRows, loading_of
from custom_inference.families.gamma_poisson.engines import GapGamma, GapVB, rows_constant
from custom_inference.families.gamma_poisson.exact import ExactByTokens
from custom_inference.families.topics.dirichlet import TopicScores, relative_share
from ppl_models import CapacityError, GammaPoisson
from ppl_models.data import sparse as _sparse

#: Sets of so many components are summed over.
_MOST = 8


@dataclass(frozen=True, kw_only=True)
class SpikeGap(GapGamma):
    """Loadings as points."""

    def check(self, model: GammaPoisson, rows: EventRows) -> None:
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
            joint.append(found.bound + _log_chance(spike, on))
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
        found = rows.statistics(events, mean)
        return {**found, "log_activation": log_mean.sum(0), "rows": (weight @ member).sum(0), "total": found["rows"]}

    def posterior(self, model: GammaPoisson, state: Params | State, rows: EventRows, step: EStep) -> Any:
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


def _log_chance(spike: Tensor, on: Tensor) -> Tensor:
    """Compute log p(s), (), of the set of the components that are not 0."""
    off = torch.ones_like(spike, dtype=torch.bool).index_fill(0, on, False)
    return torch.log1p(-spike[on]).sum() + spike[off].log().sum()


class _Set(NamedTuple):
    """on: a set's components. bound (N,): log p(s) p(x | s). own (N, |s|): E[shape | s]. counted: rows, words and
    expected events (B, |s|), place by place."""

    on: Tensor
    bound: Tensor
    own: Tensor
    counted: list[tuple[Tensor, Tensor, Tensor]]


@dataclass(frozen=True, kw_only=True)
class SpikeExact(ExactByTokens, SpikeGap):
    """The evidence, summed over all sets of components that are not 0 as well."""

    def e_step(
        self, model: GammaPoisson, state: Params, rows: EventRows, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        loading = loading_of(state)
        after = self.activation_prior(model, loading)[1] + rows.exposure(loading)
        sets = list(self._each(model, loading, rows, after, temperature))
        table = torch.stack([one.bound for one in sets], 1)
        bound = table.logsumexp(1)
        weight = (table - bound.unsqueeze(1)).exp()
        events, mean, number = torch.zeros_like(loading), torch.zeros_like(after), torch.zeros_like(loading[:, 0])
        for one, share in zip(sets, weight.T, strict=True):
            number[one.on] += share.sum()
            mean[:, one.on] += share.unsqueeze(1) * one.own / after[:, one.on]
            given = events.new_zeros(events.shape[1], len(one.on))
            for rows_, words, hits in one.counted:
                given.index_add_(0, words, hits * share[rows_].unsqueeze(1))
            events[one.on] += given.T
        return EStep({**rows.statistics(events, mean), "rows": number}, {}, bound)

    def log_evidence(self, model: GammaPoisson, params: Params, rows: EventRows) -> Tensor:
        """Compute log p(x_n | loadings), (N,), by the sum over all sets; differentiable in the loadings."""
        return self._log_joint(model, loading_of(params), rows).logsumexp(1)

    def _log_joint(self, model: GammaPoisson, loading: Tensor, rows: EventRows) -> Tensor:
        """Compute log p(s) p(x_n | s) of every set s of components, (N, S)."""
        (shape, rate, spike), joint = self.activation_prior(model, loading), []
        after = rate + rows.exposure(loading)
        for on in component_sets(loading):
            chance = _log_chance(spike, on)
            if len(on):
                tokens = self._tokens.log_tokens(loading[on], shape[on], rows.with_weights(1 / after[:, on]))
                joint.append(chance + rows_constant(rows, (shape[on], rate[on]), after[:, on]) + tokens)
            else:
                joint.append(chance + torch.where(rows.lengths > 0, -torch.inf, 0.0).to(loading))
        return torch.stack(joint, 1)

    def _each(
        self, model: GammaPoisson, loading: Tensor, rows: EventRows, after: Tensor, temperature: float
    ) -> Iterator[_Set]:
        shape, rate, spike = self.activation_prior(model, loading)
        for on in component_sets(loading):
            chance = _log_chance(spike, on)
            own, counted = shape[on].repeat(len(rows), 1), []
            if not len(on):
                empty = torch.where(rows.lengths > 0, -torch.inf, 0.0).to(loading)
                yield _Set(on, empty + chance, own, counted)
                continue
            part = rows.with_weights(1 / after[:, on])
            bound = rows_constant(rows, (shape[on], rate[on]), after[:, on])
            for tokens, place, share in self._tokens.attribute_tokens(loading[on], shape[on], part, bound, temperature):
                hits = (share * tokens.inside[place]).T
                own[tokens.documents] += hits
                counted.append((tokens.documents, tokens.word[place], hits))
            yield _Set(on, bound + chance, own, counted)

    def posterior(self, model: GammaPoisson, state: Params, rows: EventRows, step: EStep | None = None) -> GammaTerms:
        """The exact posterior of every row's activations: a term for every set and division of the events in it."""
        loading = loading_of(state)
        shape, rate, _ = self.activation_prior(model, loading)
        after = rate + rows.exposure(loading)
        joint = self._log_joint(model, loading, rows)
        weights, shapes = [], []
        for log_weight, on in zip(joint.log_softmax(1).T, component_sets(loading), strict=True):
            share, own = self._weigh_divisions(loading[on], shape[on], rows, after[:, on])
            weights.append(log_weight.unsqueeze(1) + share)
            shapes.append(torch.zeros(*share.shape, len(shape)).to(loading).index_copy(2, on, own))
        found = torch.cat(shapes, 1)
        return GammaTerms(torch.cat(weights, 1), found, after.unsqueeze(1).expand_as(found).contiguous())

    def _weigh_divisions(self, loading: Tensor, shape: Tensor, rows: EventRows, after: Tensor) -> tuple[Tensor, Tensor]:
        """Compute log p(division of the events among these components | x_n, s) (N, M), and its shapes (N, M, |s|).
        Rows of fewer events than others have fewer divisions."""
        if not len(shape):
            return after.new_zeros(len(rows), 1), after.new_zeros(len(rows), 1, 0)
        lengths, found = rows.lengths.round().long(), []
        for length in torch.unique(lengths).tolist():
            at = (lengths == length).nonzero().flatten()
            found.append((length, at, self._tokens.mixture(loading, shape, rows.with_weights(1 / after).select(at))))
        most = max(one.log_weight.shape[1] for *_, one in found)
        weight = after.new_full((len(rows), most), -torch.inf)
        own = after.new_ones(len(rows), most, len(shape))
        for length, at, one in found:
            number = one.log_weight.shape[1]
            last = shape.sum() + length - one.concentration[:, :-1].sum(1, keepdim=True)  # what the others leave
            weight[at, :number] = one.log_weight
            own[at, :number] = torch.cat([one.concentration[:, :-1], last], 1)
        return weight, own
