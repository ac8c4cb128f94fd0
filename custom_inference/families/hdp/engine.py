"""The hierarchical Dirichlet process by variational EM: ``topics.learned`` with alpha = a beta for all documents.

beta, a and c are points. The logits of the sticks v_k and the logarithms of a and c are unbounded coordinates; the
maximum is of the density of these, in which the stick-breaking prior has no edge that it piles up at. The volume is
prod_k beta_k, that of the softmax basis (``conjugate.pair``).

The M step of these has closed forms below the likelihood of the expected counts n_ik (Minka, *Estimating a Dirichlet
distribution*, 2000, section 3): with alpha = a beta, its present value alpha', and A' = sum_k alpha'_k,

    log [Gamma(alpha_k + n) / Gamma(alpha_k)]  >=  alpha'_k [psi(alpha'_k + n) - psi(alpha'_k)] log alpha_k + const
    log [Gamma(A) / Gamma(A + L)]              >=  -[psi(A' + L) - psi(A')] A + const,

equal at alpha'. Summed over documents the factors are m_k, the expected number of tables of topic k in the Chinese
restaurants of the documents (``gibbs``), and t:

    sum_k m_k log(a beta_k) - t a:    a | m ~ Gamma,    v_k | m, c: (1 + m_k) / (1 + m_k + c + m_(k+1) + ... + m_K).
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
from custom_inference.families.topics.learned import LearnedConcentration
from ppl_models import HDP
from ppl_models.distributions import StickBreaking

#: Shares of topics are kept above this.
LEAST = 1e-12
#: What concentrations are kept within.
_RANGE = 1e-3, 1e4
#: Rounds of the bound on the likelihood of the shares in an M step.
_ROUNDS = 2
SITES = ("topic_weight", "concentration", "stick_concentration")


@dataclass(frozen=True, kw_only=True)
class HdpDirichlet(LearnedConcentration):
    """Dirichlet posteriors of the proportions; topics, their shares and the concentrations as points."""

    conjugate: ClassVar[Any] = {
        "topic_weight": (torch.distributions.Dirichlet, StickBreaking),
        "stick_concentration": (torch.distributions.Gamma,),
        "concentration": (torch.distributions.Gamma,),
    }

    def document_alpha(self, model: HDP, state: Params, rows: DocumentRows) -> Tensor:
        return (state["concentration"] * state["topic_weight"]).clamp_min(LEAST)

    def complete(self, model: HDP, params: Params, counts: Tensor | None = None) -> Params:
        """Add shares by the topics' numbers of tokens, equal ones where these are unknown; and a and c of 1."""
        topic, share = params["topic"], params["topic"].new_ones(len(params["topic"]))
        if counts is not None:
            sizes = counts.sum(-1)
            share = sizes.to(topic) + 1e-6 * sizes.sum() / len(topic)
        one = topic.new_ones(())
        return {**params, "topic_weight": share / share.sum(), "concentration": one, "stick_concentration": one.clone()}

    def learn_concentration(self, model: HDP, params: Params, rows: AllRows, warm: Params) -> Params:
        """Update beta, a and c so that they climb the likelihood of the expected counts, with their priors."""
        parts, found = [each["counts"] for _, each in rows.pieces(warm)], {site: params[site] for site in SITES}
        for _ in range(_ROUNDS):
            alpha = (found["concentration"] * found["topic_weight"]).clamp_min(LEAST)
            each = [expect_tables(alpha, counts) for counts in parts]
            tables, rate = rows.total(*(torch.stack(one).sum(0) for one in zip(*each, strict=True)))
            found = best_shares(model, found, tables, rate)
        return found

    def prior_term(self, model: HDP, params: Params) -> Tensor:
        topic = self.topics(model, params)
        density = Dirichlet(self.words_prior(model, topic)).log_density(topic).double()
        weight, a, c = (params[site] for site in ("topic_weight", "concentration", "stick_concentration"))
        return density + log_density(model, weight, a, c)


def has_sticks(model: HDP) -> bool:
    """Tell whether the prior of the topics' shares breaks sticks."""
    return isinstance(model.priors["topic_weight"], StickBreaking)


def log_density(model: HDP, weight: Tensor, a: Tensor, c: Tensor) -> Tensor:
    """Compute the log density of the logits of sticks and of log a and log c, under the priors of the values."""
    found = model.prior("topic_weight", like=weight, values={"stick_concentration": c}).log_prob(weight)
    found = found + weight.clamp_min(torch.finfo(weight.dtype).tiny).log().sum()
    for site, value in (("concentration", a), ("stick_concentration", c)):
        found = found + model.prior(site, like=value).log_prob(value) + value.log()
    return found


def expect_tables(alpha: Tensor, counts: Tensor, total: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Compute m_k (K,) and the slope t, both summed over documents with these expected counts (N, K). total: A, where
    it is not the sum of alpha."""
    tables = alpha * (torch.digamma(alpha + counts) - torch.digamma(alpha)).sum(0)
    total = alpha.sum() if total is None else total
    return tables, (torch.digamma(total + counts.sum(-1)) - torch.digamma(total)).sum()


def best_shares(model: HDP, at: Params, tables: Tensor, rate: Tensor) -> Params:
    """Maximise sum_k m_k log(a beta_k) - t a and the log priors in a and, at the last c, in beta; then in c at that
    beta."""
    weight, c = at["topic_weight"], at["stick_concentration"]
    law = model.prior("topic_weight", like=weight, values={"stick_concentration": c})
    of_a, of_c = (model.prior(site, like=c) for site in SITES[1:])
    a = (tables.sum() + of_a.concentration) / (rate + of_a.rate)
    if has_sticks(model):
        own, later = 1 + tables[:-1], c + tables.flip(0).cumsum(0).flip(0)[1:]
        left = torch.cat([own.new_ones(1), later / (own + later)])  # 1 - v of the sticks before
        weight = left.cumprod(0) * torch.cat([own / (own + later), own.new_ones(1)])
        c = (len(own) + of_c.concentration) / (of_c.rate - left.log().sum())
    else:
        weight, c = tables + law.concentration, of_c.concentration / of_c.rate
    weight = (weight / weight.sum()).clamp_min(LEAST)
    return dict(zip(SITES, (weight / weight.sum(), a.clamp(*_RANGE), c.clamp(*_RANGE)), strict=True))
