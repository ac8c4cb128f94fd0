"""What the engines of dynamic topics share: dated words, starts, and documents at given topics.

A word in a slice is a column of its own, t V + v: the topics of all slices side by side, (K, T V), normalised in T
groups of V, are what the E steps of LDA read (Murphy 2012, eq. 27.60).
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from custom_inference.core.engine import InitialStep, Params
from custom_inference.core.states import State
from custom_inference.families.conjugate.normal import Normal
from custom_inference.families.dynamics.walks import WalkPrior, WalkState
from custom_inference.families.rows.documents import DocumentRows
from custom_inference.families.topics.common import TopicEngine
from custom_inference.families.topics.dirichlet import LdaDirichlet
from ppl_models import DTM, Data
from ppl_models.core.hierarchy import typical_values
from ppl_models.core.priors import value_if_known
from ppl_models.data import sparse

#: Tokens that a word has in every topic of a start, beside those that it was given.
_SMOOTHING = 0.05


def side_by_side(logit: Tensor) -> Tensor:
    """(K, T V) from (T, K, V)."""
    return logit.transpose(0, 1).flatten(1)


def in_slices(counts: Tensor, num_times: int) -> Tensor:
    """(T, K, V) from (K, T V)."""
    return counts.unflatten(1, (num_times, -1)).transpose(0, 1).contiguous()


class DynamicEngine(TopicEngine):
    """``rows``, ``check`` and topics of values of the sites."""

    site: ClassVar[str] = "topic_logit"
    any_prior_of: ClassVar[tuple[str, ...]] = ("drift_variance", "initial_scale", "background")

    def rows(self, model: DTM, data: Data) -> DocumentRows:
        return DocumentRows.of(model.dated(data))

    def topics(self, model: DTM, params: Params) -> Tensor:
        return side_by_side(torch.softmax(params["topic_logit"], -1))

    def groups(self, model: DTM) -> int:
        return model.num_times

    def check(self, model: DTM, rows: DocumentRows) -> None:
        """Raises PriorError for priors of the first slice and the background that are not Normal."""
        like, shape = rows.like.values(), model.shapes["topic_logit"]
        self.alpha(model, like)
        Normal.of(model, "topic_logit", shape[1:], like)
        if value_if_known(model.priors["background"]) is None:
            Normal.of(model, "background", shape[2:], like)


class DynamicLocals(DynamicEngine, LdaDirichlet):
    """Documents at given topics: Dirichlet posteriors of their proportions."""


class WalkEngine(DynamicEngine):
    """Engines whose state is a Gaussian posterior of the walks."""

    state: ClassVar[type[State]] = WalkState

    def local(self) -> DynamicLocals:
        return DynamicLocals()

    def initial(self, model: DTM, rows: DocumentRows, generator: torch.Generator) -> WalkState:
        """Start from random topics that are the same in every slice."""
        total = in_slices(sparse.column_sums(rows.counts)[None], model.shapes["topic_logit"][0]).sum((0, 1))
        noise = torch.zeros(model.shapes["topic_logit"][1:], dtype=torch.float64)
        noise -= torch.log1p(-torch.rand(noise.shape, generator=generator, dtype=noise.dtype) * (1 - 1e-6))
        return self.from_static(model, rows, (total + 1) * noise.to(total))

    def from_static(self, model: DTM, rows: DocumentRows, counts: Tensor) -> WalkState:
        """Start from expected tokens (K, V) of topics that do not change."""
        smooth = counts + _SMOOTHING
        share = smooth.sum(0) / smooth.sum()
        like = {site: value.to(counts) for site, value in typical_values(model, _HYPERS).items()}
        hypers = {**{site: like[site] for site in _HYPERS}, "background": share.log() - share.log().mean()}
        logit = (smooth / smooth.sum(-1, keepdim=True)).log()
        known = {site: value_if_known(model.priors[site]) for site in _HYPERS}
        hypers |= {site: value.to(counts).expand_as(hypers[site]) for site, value in known.items() if value is not None}
        values = {**hypers, "topic_logit": logit.expand(model.shapes["topic_logit"]).contiguous()}
        tokens = sparse.column_sums(rows.counts).view(model.num_times, 1, -1).sum(-1, keepdim=True)
        return self.at_values(model, values, tokens / model.num_topics)

    def at_values(self, model: DTM, params: Params, tokens: Tensor) -> WalkState:
        """Means at the values, precisions as so many tokens of the topics in the slices give, (T, K or 1, 1)."""
        logit, hypers = params["topic_logit"], {site: params[site] for site in _HYPERS}
        prior = WalkPrior(model, hypers)
        diagonal = prior.diagonal + tokens * torch.softmax(logit, -1)
        return WalkState(prior.centre_logits(logit), diagonal, prior.coupling.clone(), **hypers)

    def log_prior_of_hypers(self, model: DTM, state: WalkState) -> Tensor:
        """Compute the log prior density of what the walks depend on, as far as it is unknown, ()."""
        sites = [site for site in state.hypers if site in model.unknown_sites]
        return model.log_prior({**state.hypers, "topic_logit": state.mean}, sites).double()

    def from_point(self, model: DTM, params: Params, rows: DocumentRows, e_step: InitialStep) -> WalkState:
        counts = in_slices(e_step().statistics["topic"], model.num_times)
        return self.at_values(model, params, counts.sum(-1, keepdim=True))


_HYPERS = ("drift_variance", "background", "initial_scale")
