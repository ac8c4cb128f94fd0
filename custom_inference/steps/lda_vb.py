"""LDA by variational Bayes: topics and topic proportions both have Dirichlet posteriors (002, section 27.3.6.3).

q(pi, c, b) = prod_i [Dirichlet(pi_i | pi~_i) prod_v Multinomial(c_iv | n_iv, c~_iv)] prod_k Dirichlet(b_k | b~_k)
(eq. 27.47). Algorithm 27.1, on counts: the E step is that of ``_lda_sweeps`` with the scores

    s_vk = exp(E[log b_vk]),    E[log b_vk] = psi(b~_vk) - psi(sum_v' b~_v'k),

and the M step b~_vk = gamma_v + sum_i n_iv c~_ivk. (The source prints psi_k(b~_v.) in eq. 27.48, which would normalise
over topics, and leaves n_iv out of eq. 27.49.) Together they climb the lower bound on log p(n)

    F = sum_i L_i - sum_k KL(Dirichlet(b~_k) || Dirichlet(gamma)),
    L_i = sum_v n_iv log sum_k exp(E[log pi_ik] + E[log b_vk]) - KL(Dirichlet(pi~_i) || Dirichlet(alpha)).

Running averages of the statistics, b~ = gamma + s, are the averages of b~ that online VB takes (algorithm 27.2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from custom_inference.posterior import DirichletPosterior
from custom_inference.steps._dirichlet import (
    dirichlet_divergence,
    dirichlet_prior,
    expected_log,
    normalised,
)
from custom_inference.steps._documents import DocumentRows
from custom_inference.steps._lda_sweeps import Scores
from custom_inference.steps._protocol import EStep, Params
from custom_inference.steps.lda_dirichlet import LdaDirichlet
from ppl_models import Model, _sparse


@dataclass(frozen=True, kw_only=True)
class LdaVB(LdaDirichlet):
    """params {"topic": b~ (K, V)}, the concentrations of the topics' posteriors."""

    bound_name: ClassVar[str] = "vb"
    integrates_globals: ClassVar[bool] = True

    def local(self) -> LdaDirichlet:
        """The documents' inference at given topics."""
        return LdaDirichlet(concentration=self.concentration, coefficient=self.coefficient)

    def scores(self, params: Params, temperature: float = 1.0) -> Scores:
        """E[log b], tempered."""
        return Scores.of(temperature * expected_log(params["topic"]))

    def gamma(self, model: Model, params: Params) -> Tensor:
        """The concentration of the topics' prior, broadcastable to (K, V)."""
        return dirichlet_prior(model, "topic", params["topic"])

    def from_counts(self, model: Model, counts: Tensor) -> Params:
        """b~ = gamma + counts."""
        return {"topic": dirichlet_prior(model, "topic", counts) + counts}

    def m_step(self, model: Model, params: Params, step: EStep, rows: DocumentRows) -> Params:
        return self.from_counts(model, step.statistics["topic"])

    def objective(self, model: Model, params: Params, bound: Tensor) -> float:
        divergence = dirichlet_divergence(params["topic"], self.gamma(model, params))
        return float(bound.double().sum() - divergence.double().sum())

    def initial(self, model: Model, rows: DocumentRows, generator: torch.Generator) -> Params:
        """Every word's tokens, divided among the topics in random proportions."""
        topic = super().initial(model, rows, generator)["topic"]
        return self.from_counts(model, topic / topic.sum(0) * _sparse.column_sums(rows.counts))

    def starting(self, model: Model, params: Params, rows: DocumentRows) -> Params:
        """The posterior that the documents give when their own are inferred at these topics."""
        return self.m_step(model, params, self.local().e_step(params, rows), rows)

    def reported(self, model: Model, params: Params) -> tuple[Params, dict[str, DirichletPosterior]]:
        """Posterior means, and the posteriors."""
        return {"topic": normalised(params["topic"])}, {"topic": DirichletPosterior(params["topic"])}
