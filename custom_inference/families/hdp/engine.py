"""The hierarchical Dirichlet process by variational EM: ``topics.learned`` with alpha = a beta for all documents.

beta, a and c are points. The logits of the sticks v_k and the logarithms of a and c are unbounded coordinates; the
maximum is of the density of these, in which the stick-breaking prior has no edge that it piles up at. The volume is
prod_k beta_k, that of the softmax basis (``conjugate.pair``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from custom_inference.core.all_rows import AllRows
from custom_inference.core.engine import Params
from custom_inference.families.conjugate.dirichlet import Dirichlet
from custom_inference.families.rows.documents import DocumentRows
from custom_inference.families.topics.learned import LearnedConcentration, log_prevalence, maximise
from ppl_models import Model
from ppl_models.distributions import StickBreaking

#: Shares of topics are kept above this, and sticks that far from 0 and 1.
_LEAST = 1e-10
#: What concentrations are kept within.
_RANGE = 1e-3, 1e4


@dataclass(frozen=True, kw_only=True)
class HdpDirichlet(LearnedConcentration):
    """Dirichlet posteriors of the proportions; topics, their shares and the concentrations as points."""

    conjugate: ClassVar[Any] = {
        "topic_weight": (torch.distributions.Dirichlet, StickBreaking),
        "stick_concentration": (torch.distributions.Gamma,),
        "concentration": (torch.distributions.Gamma,),
    }

    def document_alpha(self, model: Model, state: Params, rows: Any) -> Tensor:
        return (state["concentration"] * state["topic_weight"]).clamp_min(_LEAST)

    def initial(self, model: Model, rows: DocumentRows, generator: torch.Generator) -> Params:
        return _even(super().initial(model, rows, generator), None)

    def from_counts(self, model: Model, counts: Tensor) -> Params:
        return _even(super().from_counts(model, counts), counts.sum(-1))

    def learn_concentration(self, model: Any, params: Params, rows: AllRows, warm: Params) -> Params:
        """Update beta, a and c so that they climb the likelihood of the expected counts, with their priors."""
        parts = [each["counts"] for _, each in rows.pieces(warm)]

        def term(point: Tensor) -> Tensor:
            weight, a, _ = _values(point)
            return sum((log_prevalence((a * weight).clamp_min(_LEAST), n) for n in parts), point.new_zeros(()))

        def prior(point: Tensor) -> Tensor:
            return log_density(model, *_values(point))

        weight, a, c = _values(maximise(term, prior, _point(params), rows))
        return {"topic_weight": weight, "concentration": a, "stick_concentration": c}

    def prior_term(self, model: Model, params: Params) -> Tensor:
        topic = self.topics(model, params)
        density = Dirichlet(self.words_prior(model, topic)).log_density(topic).double()
        weight, a, c = (params[site] for site in ("topic_weight", "concentration", "stick_concentration"))
        return density + log_density(model, weight, a, c)


def log_density(model: Any, weight: Tensor, a: Tensor, c: Tensor) -> Tensor:
    """Compute the log density of the logits of sticks and of log a and log c, under the priors of the values."""
    found = model.prior("topic_weight", like=weight, values={"stick_concentration": c}).log_prob(weight)
    found = found + weight.clamp_min(torch.finfo(weight.dtype).tiny).log().sum()
    for site, value in (("concentration", a), ("stick_concentration", c)):
        found = found + model.prior(site, like=value).log_prob(value) + value.log()
    return found


def _point(params: Params) -> Tensor:
    weight = params["topic_weight"].clamp_min(_LEAST)
    left = weight.flip(0).cumsum(0).flip(0)
    stick = (weight / left)[:-1].clamp(_LEAST, 1 - _LEAST)
    ends = [params[site].clamp(*_RANGE).log().reshape(1) for site in ("concentration", "stick_concentration")]
    return torch.cat([torch.logit(stick), *ends])


def _values(point: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """beta (K,), a and c."""
    stick = torch.sigmoid(point[:-2]).clamp(_LEAST, 1 - _LEAST)
    left = torch.cat([stick.new_ones(1), torch.cumprod(1 - stick, 0)])
    weight = torch.cat([stick * left[:-1], left[-1:]])
    a, c = point[-2:].exp().clamp(*_RANGE)
    return weight, a, c


def _even(params: Params, sizes: Tensor | None) -> Params:
    """Shares by the topics' numbers of tokens, equal ones where these are unknown; a and c of 1."""
    topic = params["topic"]
    share = topic.new_ones(len(topic)) if sizes is None else sizes.to(topic) + 1e-3 * sizes.sum() / len(topic) + 1e-6
    one = topic.new_ones(())
    return {**params, "topic_weight": share / share.sum(), "concentration": one, "stick_concentration": one.clone()}
