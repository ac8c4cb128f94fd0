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

from custom_inference.core.engine import EStep, Params
from custom_inference.core.posteriors import DirichletPosterior
from custom_inference.families.common.dirichlet import dirichlet_divergence, dirichlet_prior, expected_log, normalised
from custom_inference.families.common.documents import DocumentRows
from custom_inference.families.common.learn_dirichlet import LEAST, fixed_point, learned_scale
from custom_inference.families.topics.dirichlet import LdaDirichlet
from custom_inference.families.topics.sweeps import Scores
from ppl_models import MethodError, Model
from ppl_models.core.errors import unknown_name
from ppl_models.data import sparse as _sparse

#: What ``learn`` takes beside None.
LEARNED = ("alpha", "gamma", "both")


@dataclass(frozen=True, kw_only=True)
class LdaVB(LdaDirichlet):
    """params {"topic": b~ (K, V)}, the concentrations of the topics' posteriors; and what is learned of the priors.

    learn: "alpha", "gamma" or "both" learn the priors' concentrations as maxima of F: alpha with a value for every
        topic, gamma as its prior times a factor (K topics are too few to learn a value for every word from). They are
        ``params["alpha"]`` (K,) and ``params["gamma"]`` (V,), and end in the priors of ``Fit.model``.
    """

    learn: str | None = None

    name: ClassVar[str] = "vb"
    integrates_globals: ClassVar[bool] = True
    #: From sharper random topics documents settle in one of them at once, and topics that are two never part.
    noise_shape: ClassVar[int] = 10

    def __post_init__(self) -> None:
        if self.learn not in (None, *LEARNED):
            raise MethodError(unknown_name("prior to learn", str(self.learn), LEARNED))

    def local(self) -> LdaDirichlet:
        """The documents' inference at given topics."""
        return LdaDirichlet(concentration=self.concentration, coefficient=self.coefficient)

    def scores(self, params: Params, temperature: float = 1.0) -> Scores:
        """E[log b], tempered."""
        return Scores.of(temperature * expected_log(params["topic"]))

    def alpha(self, params: Params) -> Tensor:
        return params["alpha"] if "alpha" in params else super().alpha(params)

    def gamma(self, model: Model, params: Params) -> Tensor:
        """The concentration of the topics' prior, broadcastable to (K, V)."""
        return params["gamma"] if "gamma" in params else dirichlet_prior(model, "topic", params["topic"])

    def from_counts(self, model: Model, counts: Tensor) -> Params:
        """b~ = gamma + counts, with the priors as the model has them."""
        prior = dirichlet_prior(model, "topic", counts)
        params = {"topic": prior + counts}
        if self.learn in ("alpha", "both"):
            params["alpha"] = super().alpha(params).clamp(min=LEAST)
        if self.learn in ("gamma", "both"):
            params["gamma"] = prior.clamp(min=LEAST)
        return params

    def e_step(
        self,
        params: Params,
        rows: DocumentRows,
        locals_: dict[str, Tensor] | None = None,
        *,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> EStep:
        step = super().e_step(params, rows, locals_, temperature=temperature, generator=generator)
        if "alpha" not in params:
            return step
        log_proportion = expected_log(step.locals["concentration"])
        seen = {"log_proportion": log_proportion.sum(0), "documents": log_proportion.new_tensor(len(rows))}
        return step._replace(statistics={**step.statistics, **seen})

    def m_step(self, model: Model, params: Params, step: EStep, rows: DocumentRows) -> Params:
        """Each of b~, gamma and alpha is set to its best given the others."""
        topic = self.gamma(model, params) + step.statistics["topic"]
        learned = {"topic": topic}
        if "alpha" in params:
            mean_log = step.statistics["log_proportion"] / step.statistics["documents"]
            learned["alpha"] = fixed_point(mean_log, params["alpha"])
        if "gamma" in params:
            mean_log, before = expected_log(topic).mean(-2), params["gamma"]
            learned["gamma"] = before * learned_scale(mean_log, before, torch.ones_like(before[0]))
        return learned

    def objective(self, model: Model, params: Params, bound: Tensor) -> float:
        divergence = dirichlet_divergence(params["topic"], self.gamma(model, params))
        return float(bound.double().sum() - divergence.double().sum())

    def initial(self, model: Model, rows: DocumentRows, generator: torch.Generator) -> Params:
        """Every word's tokens, divided among the topics in random proportions."""
        topic = super().initial(model, rows, generator)["topic"]
        return self.from_counts(model, topic / topic.sum(0) * _sparse.column_sums(rows.counts))

    def starting(self, model: Model, params: Params, rows: DocumentRows) -> Params:
        """The posterior that the documents give when their own are inferred at these topics."""
        return self.from_counts(model, self.looked(params, rows).statistics["topic"])

    def reported(self, model: Model, params: Params) -> tuple[Params, dict[str, DirichletPosterior]]:
        """Posterior means, and the posteriors."""
        return {"topic": normalised(params["topic"])}, {"topic": DirichletPosterior(params["topic"])}

    def project(self, params: Params, locals_: dict[str, Tensor]) -> tuple[Params, dict[str, Tensor]]:
        """Concentrations are positive."""
        return {name: value.clamp(min=LEAST) for name, value in params.items()}, locals_

    def fitted_model(self, model: Model, params: Params) -> Model:
        """With the learned concentrations as its priors'."""
        learned = {name: params[name] for name in ("alpha", "gamma") if name in params}
        return model.with_concentration(**learned) if learned else model  # pyright: ignore[reportAttributeAccessIssue]
