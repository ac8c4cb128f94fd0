"""Topic models whose documents' concentrations are learned: Dirichlet posteriors of the proportions, globals as points.

With alpha_i the concentration of document i, at given shares of its tokens among the topics, n_ik expected tokens in
all, the best posterior of its proportions is Dirichlet(alpha_i + n_i), and with it the bound is

    F_i = log [Gamma(A_i) / Gamma(A_i + L_i)] + sum_k log [Gamma(alpha_ik + n_ik) / Gamma(alpha_ik)]
          + sum_vk n_iv c_ivk (log b_kv - log c_ivk),                           A_i = sum_k alpha_ik:

the proportions are integrated out. An E step is LDA's sweeps, which end with c at its best for Dirichlet(pi~_i), and
the bound above is theirs plus KL(Dirichlet(pi~_i) || Dirichlet(alpha_i + n_i)). The M step climbs F in what alpha
depends on, with n as it is: it is the likelihood of a Dirichlet-multinomial regression of n (Mimno & McCallum, UAI
2008, eq. 3).
"""

from __future__ import annotations

import abc
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from custom_inference.core.all_rows import AllRows
from custom_inference.core.engine import EStep, Params, Warm
from custom_inference.core.optimize.lbfgs import minimise
from custom_inference.core.posteriors import DirichletPosterior
from custom_inference.families.conjugate.dirichlet import Dirichlet
from custom_inference.families.rows.documents import DocumentRows
from custom_inference.families.topics.dirichlet import LdaDirichlet, Swept, TopicScores, relative_share, sweep_documents
from ppl_models import Model
from ppl_models.data import sparse as _sparse
from ppl_models.distributions.tokens import sparse_product

#: Concentrations of the topics while starts are sampled.
START_ALPHA = 0.1
#: Iterations of L-BFGS in an M step, at most.
_ITERATIONS = 4


class LearnedConcentration(LdaDirichlet):
    """E step, posterior and the climbing of the M step; engines say what alpha depends on."""

    additive = False
    reads_rows = True

    @abc.abstractmethod
    def document_alpha(self, model: Model, state: Params, rows: DocumentRows) -> Tensor: ...

    @abc.abstractmethod
    def learn_concentration(self, model: Model, params: Params, rows: AllRows, warm: Params) -> Params:
        """Update what alpha depends on, at the expected counts ``warm["counts"]``."""

    def alpha(self, model: Model, like: Tensor) -> Tensor:
        """Return the concentration (K,) that starts are sampled with."""
        return like.new_full(model.shapes["topic"][:1], START_ALPHA)

    def check(self, model: Model, rows: DocumentRows) -> None:
        self.words_prior(model, rows.like.values())

    def documents(self, rows: DocumentRows, scores: TopicScores, alpha: Tensor, warm: Warm) -> EStep:
        start, sweeps = (alpha + warm["counts"], self.sweeps) if warm else (None, self.cold_sweeps)
        found = sweep_documents(rows, scores, alpha, start, sweeps, self.threshold, self.cold_sweeps)
        counts = expected_counts(rows, scores, found)
        gain = Dirichlet(found.concentration).kl(alpha + counts)
        return EStep({"topic": found.counts}, {"counts": counts}, found.bound + gain)

    def m_step(self, model: Model, params: Params, step: EStep, rows: DocumentRows | AllRows) -> Params:
        every = AllRows.of(rows)
        topic = self.best_topics(model, step.statistics["topic"])
        return {**params, **topic, **self.learn_concentration(model, params, every, step.locals)}

    def posterior(self, model: Model, params: Params, rows: DocumentRows, step: EStep) -> DirichletPosterior:
        return DirichletPosterior(self.document_alpha(model, params, rows) + step.locals["counts"])

    def responsibilities(self, model: Model, params: Params, rows: DocumentRows, warm: Params) -> Tensor:
        concentration = self.document_alpha(model, params, rows) + warm["counts"]
        return rows.responsibilities(relative_share(concentration), self.scores(model, params).word)


def expected_counts(rows: DocumentRows, scores: TopicScores, found: Swept) -> Tensor:
    """Compute n_ik = sum_v n_iv c_ivk with c at its best for the posteriors that were found, (N, K)."""
    size = rows.counts.shape[0], rows.counts.shape[1]
    matrix = _sparse.tensor(rows.counts.crow_indices(), rows.counts.col_indices(), found.ratio, size=size)
    return found.share * sparse_product(matrix, scores.word)


def log_prevalence(alpha: Tensor, counts: Tensor) -> Tensor:
    """Compute sum_i log E[prod_k pi_ik^n_ik] under Dirichlet(alpha_i), the part of F that depends on alpha. alpha (N,
    K) or (K,)."""
    rising = torch.lgamma(alpha + counts) - torch.lgamma(alpha).expand_as(counts)
    total, length = alpha.sum(-1), counts.sum(-1)
    return rising.sum() + (torch.lgamma(total) - torch.lgamma(total + length)).sum()


def maximise(
    term: Callable[[Tensor], Tensor], prior: Callable[[Tensor], Tensor], start: Tensor, rows: AllRows
) -> Tensor:
    """Maximise term + prior by L-BFGS from ``start``; the result is no lower than it. term: of the rows of this
    process, which ``rows`` adds up."""

    def slope_of(function: Callable[[Tensor], Tensor], point: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            at = point.detach().requires_grad_()
            value = function(at)
            return value.detach(), torch.autograd.grad(value, at)[0]

    def downwards(point: np.ndarray) -> tuple[float, np.ndarray]:
        at = torch.as_tensor(point).to(start)
        (own, own_slope), (other, other_slope) = rows.total(*slope_of(term, at)), slope_of(prior, at)
        value, slope = own + other, own_slope + other_slope
        return -float(value), -slope.double().cpu().numpy()

    found, _, _ = minimise(downwards, start.double().cpu().numpy(), maxiter=_ITERATIONS)
    return torch.as_tensor(found).to(start)
