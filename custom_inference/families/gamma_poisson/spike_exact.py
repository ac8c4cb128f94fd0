"""Sparse gamma-Poisson factor analysis exactly at given loadings: sets of components, and of each its polynomial.

With s the components whose activations are above 0 (002, eq. 27.17), p(x_n | s_n = s) is the evidence of ``exact`` with
these components alone, so that

    p(x_n) = sum_s p(s) p(x_n | s),    p(z_n | x_n) = sum_s sum_m w_nsm prod_k Gamma(z_nk | alpha_k + m_k, r_nk)

over the sets s and the sums m of the row's events in the components of s: for few components and rows of few events.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from custom_inference.core.engine import EStep, Warm
from custom_inference.core.posteriors import GammaTerms
from custom_inference.families.gamma_poisson.common import EventRows, loading_of
from custom_inference.families.gamma_poisson.engines import rows_constant
from custom_inference.families.gamma_poisson.exact import ExactByTokens
from custom_inference.families.gamma_poisson.spike import SpikeGap, component_sets
from ppl_models import Model


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
        self, model: Model, state: Any, rows: EventRows, warm: Warm = None, *, temperature=1.0, generator=None
    ) -> EStep:
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
        statistics = {"events": events, "exposure": rows.sum_observed(mean), "activation": mean.sum(0), "rows": number}
        return EStep(statistics, {}, bound)

    def _each(
        self, model: Model, loading: Tensor, rows: EventRows, after: Tensor, temperature: float
    ) -> Iterator[_Set]:
        shape, rate, spike = self.activation_prior(model, loading)
        for on in component_sets(loading):
            off = torch.ones_like(spike, dtype=torch.bool).index_fill(0, on, False)
            chance = torch.log1p(-spike[on]).sum() + spike[off].log().sum()
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

    def posterior(self, model: Model, state: Any, rows: EventRows, step: EStep | None = None) -> GammaTerms:
        """The exact posterior of every row's activations: a term for every set and division of the events in it."""
        loading = loading_of(state)
        shape, rate, _ = self.activation_prior(model, loading)
        after = rate + rows.exposure(loading)
        joint = torch.stack([one.bound for one in self._each(model, loading, rows, after, 1.0)], 1)
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
