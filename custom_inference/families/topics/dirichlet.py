"""LDA and PLSA with the topics as points and Dirichlet posteriors of the topic proportions (002, section 27.3.6.2).

q(pi_i, c_i) = Dirichlet(pi_i | pi~_i) prod_v Multinomial(c_iv | n_iv, c~_iv) (eq. 27.43). The E step is that of
``_lda_sweeps`` (eqs. 27.44 and 27.45), with the bound on log p(n_i | b)

    L_i = sum_v n_iv log sum_k exp(E[log pi_ik]) b_kv - KL(Dirichlet(pi~_i) || Dirichlet(alpha)),

plus the multinomial coefficient where the model has it; the M step is eq. 27.46 (see ``lda_topics``). This is also how
documents are inferred at given topics, whatever these were fitted with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from custom_inference.core.engine import EStep, Params, Warm
from custom_inference.core.posteriors import DirichletPosterior
from custom_inference.families.common.documents import DocumentRows
from custom_inference.families.topics.common import TopicEngine
from custom_inference.families.topics.sweeps import Scores, responsibilities, sweep_documents
from ppl_models import Model


@dataclass(frozen=True, kw_only=True)
class LdaDirichlet(TopicEngine):
    """sweeps, cold_sweeps: at most this many of an E step that goes on from the last one, and of one that does not.

    threshold: a block of documents is done when pi~ changes by less than this, on average over the topics.
    """

    sweeps: int = 10
    cold_sweeps: int = 100
    threshold: float = 1e-3

    name: ClassVar[str] = "dirichlet"

    def scores(self, params: Params, temperature: float = 1.0) -> Scores:
        """log b, tempered."""
        return Scores.of(temperature * torch.log(params["topic"]))

    def e_step(
        self, model: Model, params: Params, rows: DocumentRows, warm: Warm = None, *, temperature=1.0, generator=None
    ) -> EStep:
        del generator
        return self.documents(rows, self.scores(params, temperature), self.alpha(model, params["topic"]), warm)

    def documents(self, rows: DocumentRows, scores: Scores, alpha: Tensor, warm: dict[str, Tensor] | None) -> EStep:
        """The documents' posteriors at (expected) log b and alpha."""
        start, sweeps = (warm["concentration"], self.sweeps) if warm else (None, self.cold_sweeps)
        limits = {"sweeps": sweeps, "afresh": self.cold_sweeps}
        found = sweep_documents(rows, scores, alpha, start, threshold=self.threshold, **limits)
        return EStep({"topic": found.counts}, {"concentration": found.concentration}, found.bound)

    def posterior(self, model: Model, params: Params, rows: DocumentRows, step: EStep) -> DirichletPosterior:
        return DirichletPosterior(step.locals["concentration"])

    def responsibilities(self, model: Model, params: Params, rows: DocumentRows, warm: Params) -> Tensor:
        """c~_ivk of every stored cell (eq. 27.45), (nnz, K)."""
        return responsibilities(rows, self.scores(params), warm["concentration"])
