"""LDA by variational Bayes: topics and topic proportions both have Dirichlet posteriors (Murphy 2012, section
27.3.6.3).

q(pi, c, b) = prod_i [Dirichlet(pi_i | pi~_i) prod_v Multinomial(c_iv | n_iv, c~_iv)] prod_k Dirichlet(b_k | b~_k)
(eq. 27.47). Algorithm 27.1, on counts: the E step is that of ``dirichlet`` with the scores

    s_vk = exp(E[log b_vk]),    E[log b_vk] = psi(b~_vk) - psi(sum_v' b~_v'k),

and the M step b~_vk = gamma_v + sum_i n_iv c~_ivk. (The source prints psi_k(b~_v.) in eq. 27.48, which would normalise
over topics, and leaves n_iv out of eq. 27.49.) Together they climb the lower bound on log p(n)

    F = sum_i L_i - sum_k KL(Dirichlet(b~_k) || Dirichlet(gamma)),
    L_i = sum_v n_iv log sum_k exp(E[log pi_ik] + E[log b_vk]) - KL(Dirichlet(pi~_i) || Dirichlet(alpha)).

Running averages of the statistics, b~ = gamma + s, are the averages of b~ that online VB takes (algorithm 27.2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from custom_inference.core.engine import Engine, EStep, InitialStep, Params, Warm
from custom_inference.core.posteriors import DirichletPosterior
from custom_inference.core.states import State
from custom_inference.families.common.tables import in_tables, without_padding
from custom_inference.families.conjugate.dirichlet import Dirichlet
from custom_inference.families.conjugate.learn import LEAST, fit_concentration, fit_scale
from custom_inference.families.rows.documents import DocumentRows
from custom_inference.families.topics.dirichlet import LdaDirichlet, TopicScores
from ppl_models import MethodError, Model
from ppl_models.core.document_model import TopicAdmixture
from ppl_models.core.errors import unknown_name
from ppl_models.data import sparse as _sparse

#: What ``learn`` takes beside None.
LEARNED = ("alpha", "gamma", "both")


@dataclass(frozen=True)
class TopicPosteriors(State):
    """concentration: b~ (K, V), of the topics' posteriors. alpha (K,), gamma: the priors' where these are learned.
    Where a topic's words are R groups of C, side by side, the posteriors are (K, R, C); groups with fewer have 0
    beyond their own."""

    concentration: Tensor
    alpha: Tensor | None = None
    gamma: Tensor | None = None

    def posteriors(self, model: Model) -> Mapping[str, DirichletPosterior]:
        site = model.component_site
        categories: Any = getattr(model, "categories", None)
        value = self.concentration if categories is None else in_tables(self.concentration, categories)
        return {site: DirichletPosterior(value)}

    def with_fitted_priors(self, model: TopicAdmixture) -> Model:
        """Return the model with the learned concentrations as those of its priors."""
        learned = self.alpha is not None or self.gamma is not None
        return model.with_concentration(alpha=self.alpha, gamma=self.gamma) if learned else model

    @classmethod
    def of_posteriors(cls, posteriors: Mapping[str, Any]) -> Self:
        """Learned concentrations of the priors are in the fitted model."""
        (posterior,) = posteriors.values()
        return cls(without_padding(posterior.concentration.flatten(1)))

    @classmethod
    def from_posterior(cls, model: Model, posterior: DirichletPosterior) -> Self:
        return cls(without_padding(posterior.concentration.flatten(1)))


@dataclass(frozen=True, kw_only=True)
class LdaVB(LdaDirichlet):
    """learn: "alpha", "gamma" or "both" learn the priors' concentrations as maxima of F: alpha with a value for every
    topic, gamma as its prior times a factor (K topics are too few to learn a value for every word from). They
    end in the priors of ``Fit.model``.
    """

    integrates_globals = True

    learn: str | None = None

    name: ClassVar[str] = "vb"
    state: ClassVar[type[State]] = TopicPosteriors
    #: From sharper random topics documents settle in one of them at once, and topics that are two never part.
    noise_shape: ClassVar[int] = 10

    def __post_init__(self) -> None:
        if self.learn not in (None, *LEARNED):
            raise MethodError(unknown_name("prior to learn", str(self.learn), LEARNED))

    def local(self) -> Engine:
        return LdaDirichlet()

    def gamma(self, model: Model, state: TopicPosteriors) -> Tensor:
        """Return the concentration of the topics' prior, broadcastable to (K, V)."""
        return self.words_prior(model, state.concentration) if state.gamma is None else state.gamma

    def from_counts(self, model: Model, counts: Tensor) -> TopicPosteriors:
        """Return the posteriors b~ = gamma + counts, with the priors as the model has them."""
        prior = self.words_prior(model, counts)
        alpha = self.alpha(model, counts).clamp(min=LEAST) if self.learn in ("alpha", "both") else None
        gamma = prior.clamp(min=LEAST) if self.learn in ("gamma", "both") else None
        return TopicPosteriors(prior + counts, alpha, gamma)

    def scores(self, model: Model, state: TopicPosteriors, temperature: float = 1.0) -> TopicScores:
        """Return the scores E[log b], tempered."""
        return TopicScores.of(temperature * Dirichlet(state.concentration, self.groups(model)).expected())

    def e_step(
        self, model: Model, state: TopicPosteriors, rows: DocumentRows, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        alpha = self.document_alpha(model, state, rows) if state.alpha is None else state.alpha
        step = self.documents(rows, self.scores(model, state, temperature), alpha, warm)
        if state.alpha is None:
            return step
        log_proportion = Dirichlet(step.locals["concentration"]).expected()
        seen = {"log_proportion": log_proportion.sum(0), "documents": log_proportion.new_tensor(len(rows))}
        return step._replace(statistics={**step.statistics, **seen})

    def m_step(self, model: Model, state: TopicPosteriors, step: EStep, rows: DocumentRows) -> TopicPosteriors:
        """Set each of b~, gamma and alpha to its best given the others."""
        topic = self.gamma(model, state) + step.statistics["topic"]
        alpha, gamma = state.alpha, state.gamma
        if alpha is not None:
            alpha = fit_concentration(step.statistics["log_proportion"] / step.statistics["documents"], alpha)
        if gamma is not None:
            gamma = gamma * fit_scale(Dirichlet(topic).expected().mean(-2), gamma, torch.ones_like(gamma[0]))
        return TopicPosteriors(topic, alpha, gamma)

    def prior_term(self, model: Model, state: TopicPosteriors) -> Tensor:
        prior = self.gamma(model, state)
        return -Dirichlet(state.concentration, self.groups(model)).kl(prior).double().sum()

    def initial(self, model: Model, rows: DocumentRows, generator: torch.Generator) -> TopicPosteriors:
        """Divide every word's tokens among the topics in random proportions."""
        topic = super().initial(model, rows, generator)[self.site]
        return self.from_counts(model, topic / topic.sum(0) * _sparse.column_sums(rows.counts))

    def from_point(self, model: Model, params: Params, rows: DocumentRows, e_step: InitialStep) -> TopicPosteriors:
        """Return the posterior that the documents give when their own posteriors are inferred at these topics."""
        return self.from_counts(model, e_step().statistics["topic"])

    def project(self, model: Model, state: TopicPosteriors, locals_: Params) -> tuple[TopicPosteriors, Params]:
        """Keep the concentrations positive."""
        return TopicPosteriors.of({name: value.clamp(min=LEAST) for name, value in state.tensors().items()}), locals_
