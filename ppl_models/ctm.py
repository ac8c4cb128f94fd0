"""Correlated topic models: the logits of a document's topic proportions are Gaussian, so that topics go together.

Source 002, section 27.4.1 (Blei & Lafferty, *A correlated topic model of Science*, Annals of Applied Statistics 2007):

    z_i ~ Normal(mu, Sigma)                         logits of the document's topic proportions           (eq. 27.51)
    pi_i = softmax(z_i)                                                                                  (eq. 27.52)
    p(y_il = v | pi_i) = sum_k pi_ik b_kv           its tokens, their topics summed out              (eqs. 27.53-55)

With covariates u_i of the documents the prior mean is mu + W'(u_i - m), W (P, K), m (P,) their centre: the
prevalence part of the structural topic model (Roberts, Stewart & Airoldi, *A model of text for experimentation in the
social sciences*, JASA 2016).

A mixture of experts with random effects (Fig. 27.16b) gives every document weights of its own, W_i (P, K) with rows
Normal(m_p, Sigma), and logits z_i = W_i'u_i: with the weights integrated out z_i ~ Normal(m'u_i, |u_i|^2 Sigma). Where
P = 1 and u_i = 1 it is the CTM.

A number added to all logits of a document changes nothing: of mu and Sigma the data see C mu and C Sigma C alone, with
C = I - 1 1'/K. Their priors say the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models.core.document_model import DocumentModel, example_topics
from ppl_models.core.errors import DataError, ModelError, warn_of_absent
from ppl_models.core.model import Example
from ppl_models.core.scales import OnOwnScale
from ppl_models.core.sites import Site
from ppl_models.data.covariates import covariates_of
from ppl_models.data.matrix import Data
from ppl_models.distributions import InverseWishart


@dataclass(frozen=True, kw_only=True, eq=False)
class LogisticNormalTopics(OnOwnScale, DocumentModel):
    """Topic models whose logits are Gaussian, Normal(B'd_i, s_i Sigma) at a design d_i and a scale s_i of the document.

    The design has covariates in their units (``core.scales``). ``location_sites``: the globals whose rows, one below
    the other and times the units of their columns, are B.
    """

    num_covariates: int

    axes: ClassVar[Mapping[str, str]] = {**DocumentModel.axes, "to_component": "num_topics"}
    scaled_site: ClassVar[str] = "covariates"
    scaled_size: ClassVar[str] = "num_covariates"
    latent_depends_on: ClassVar[str | None] = "covariates"
    _covariates: ClassVar[Site] = Site("given", ("covariate",), ("document",), constraints.real)

    @property
    def location_sites(self) -> tuple[str, ...]:
        return ("mean",)

    def design(self, covariates: Tensor | None, rows: int, like: Tensor) -> tuple[Tensor, Tensor | None]:
        """d (N, P') and s (N,) of documents with these covariates (N, P); None: s = 1."""
        raise NotImplementedError

    def location(self, site: Mapping[str, Tensor]) -> Tensor:
        """B (..., P', K)."""
        parts = {name: site[name] for name in self.location_sites}
        wide = [value if len(self.sites[name].dims) == 2 else value.unsqueeze(-2) for name, value in parts.items()]
        return torch.cat(wide, -2) * self.location_units(wide[0])

    def location_units(self, like: Tensor) -> Tensor:
        """The units of the columns of the design, (P', 1), the first of which is an intercept."""
        unit = self.scale_of_columns(like)[1]
        return torch.cat([unit.new_ones(1), unit]).unsqueeze(-1)

    def default_priors(self) -> dict[str, Any]:
        return {
            "topic": dist.Dirichlet(torch.full((self.vocabulary_size,), 0.05)),
            "mean": dist.Normal(0.0, 3.0),
            "covariance": InverseWishart(self.num_topics + 1.0, torch.eye(self.num_topics)),
        }

    def latent_given(self, site: Mapping[str, Tensor], given: Tensor | None, rows: int) -> Any:
        """p(z_n | u_n) of covariates (N, P), by default those of an average document (:meth:`design`)."""
        location = self.location(site)
        design, scale = self.design(given, rows, location)
        factor = torch.linalg.cholesky(site["covariance"])
        if scale is not None:
            factor = factor * scale.sqrt()[:, None, None]
        return dist.MultivariateNormal((design.unsqueeze(-2) @ location).squeeze(-2), scale_tril=factor)

    def proportions(self, local: Tensor) -> Tensor:
        """softmax(z) of logits z (eq. 27.52)."""
        return torch.softmax(local, -1)

    def prepare(self, data: Any, *, mask: Any = None, dtype=None, device=None, covariates: Any = None) -> Data:
        """Word counts, and covariates (N, P) of finite numbers where the model has any; without them those of an
        average document. Raises DataError for anything else."""
        known = data.others.get("covariates") if isinstance(data, Data) and covariates is None else covariates
        checked = super().prepare(data, mask=mask, dtype=dtype, device=device)
        if not self.num_covariates:
            if known is not None:
                raise DataError("covariates of a model without any", site="covariates", expected="num_covariates = P")
            return replace(checked, others={})
        if known is None:
            return replace(checked, others={"covariates": self.average(len(checked), checked.x)})
        given = covariates_of(known, checked, self.num_covariates)
        self.check_covariates(given)
        return replace(checked, others={"covariates": given})

    def check_for_fitting(self, data: Data) -> None:
        """Refuses what LDA refuses; warns where all documents have the covariates of an average one, as without any;
        one column of another number than 0 is an intercept alone."""
        super().check_for_fitting(data)
        given = data.others.get("covariates")
        if given is None or (given.shape[1] == 1 and bool((given != 0).all())):
            return
        if torch.equal(given, self.average(len(data), given)):
            warn_of_absent(
                "covariates", "all are average ones, and no weight is learned", "covariates=..., one row each"
            )

    def average(self, rows: int, like: Tensor) -> Tensor:
        """The covariates (N, P) of documents of which nothing is known: the centre."""
        return self.scale_of_columns(like)[0].expand(rows, -1)

    def check_covariates(self, covariates: Tensor) -> None:
        """Refuses values that the model cannot take."""

    def prepare_new(self, data: Any, like: Data, *, covariates: Any = None, **settings: Any) -> Data:
        """As :meth:`prepare`, in the vocabulary of the documents ``like``."""
        return self.prepare(super().prepare_new(data, like, **settings), covariates=covariates)

    @classmethod
    def for_data(cls, data: Data, num_components: int, **settings: Any) -> Self:
        """The model whose vocabulary and number of covariates are the data's."""
        known = data.others.get("covariates")
        if known is not None:
            settings.setdefault("num_covariates", known.shape[1])
        return super().for_data(data, num_components, **settings)

    def num_parameters(self, num_rows: int) -> int:
        """K (V - 1) + P' (K - 1) + K (K - 1) / 2: of B and the covariance what the data can see."""
        k, rows = self.num_topics, self.design(None, 1, torch.zeros(()))[0].shape[1]
        return k * (self.vocabulary_size - 1) + rows * (k - 1) + k * (k - 1) // 2


@dataclass(frozen=True, kw_only=True, eq=False)
class CTM(LogisticNormalTopics):
    """Correlated topic model: LDA with Gaussian logits of the topics, which may go together.

    num_covariates: P, of the structural topic model; 0 by default.
    centre, unit: m and s, of each covariate, its origin and its scale; by default from the data that are fitted: the
        mean, and the distance of two values where it has but two, else the standard deviation.

    Sites
    -----
    topic: b (K, V), word probabilities; Dirichlet(.05, ..., .05) by default.
    mean: mu (K,), of the topic logits; Normal(0, 3) by default.
    prevalence_weight: W (P, K), where there are covariates, of each unit of the data; Normal(0, 1 / s_p) by default.
    covariance: Sigma (K, K), positive definite; InverseWishart(K + 1, I) by default. A prior is one of whole matrices.
    topic_logit: z (N, K), local, Normal(mu + W'(u - m), Sigma): its prior is what the globals say.
    covariates: u (N, P), given, finite numbers: ``fit(model, words, covariates=u)``. Without them u = m.
    x: (N, V), observed, word counts. log p(x) is that of the tokens in their order.

    Raises ModelError for a prior of ``covariance`` that is not over positive definite matrices.
    """

    num_covariates: int = 0

    @property
    def sites(self) -> Mapping[str, Site]:  # pyright: ignore[reportIncompatibleVariableOverride]
        several = self.num_covariates > 0
        return {
            "topic": DocumentModel.sites["topic"],
            "mean": Site("global", ("component",)),
            **({"prevalence_weight": Site("global", ("covariate", "component"))} if several else {}),
            "covariance": Site("global", ("component", "to_component"), support=constraints.positive_definite),
            "topic_logit": Site("latent", ("component",), ("document",), constraints.real),
            **({"covariates": self._covariates} if several else {}),
            "x": DocumentModel.sites["x"],
        }

    def __post_init__(self) -> None:
        if isinstance(self.num_covariates, bool) or not isinstance(self.num_covariates, int) or self.num_covariates < 0:
            raise ModelError(f"num_covariates = {self.num_covariates!r}, expected a whole number of at least 0")
        super().__post_init__()

    @property
    def location_sites(self) -> tuple[str, ...]:
        return ("mean", "prevalence_weight") if self.num_covariates else ("mean",)

    def default_priors(self) -> dict[str, Any]:
        weights = {"prevalence_weight": self.of_weights(1.0)} if self.num_covariates else {}
        return {**super().default_priors(), **weights}

    @property
    def sizes(self) -> dict[str, int]:
        return super().sizes | ({"covariate": self.num_covariates} if self.num_covariates else {})

    def design(self, covariates: Tensor | None, rows: int, like: Tensor) -> tuple[Tensor, Tensor | None]:
        """(1, (u_n - m) / s), with u = m where there are none, and 1."""
        ones = torch.ones(rows, 1, dtype=like.dtype, device=like.device)
        if not self.num_covariates:
            return ones, None
        given = self.average(rows, like) if covariates is None else covariates.to(ones)
        return torch.cat([ones, self.standard(given)], 1), None

    @classmethod
    def example(cls) -> Example:
        """Three topics over nine words, two of which go together, sixty documents of twenty tokens."""
        rng = np.random.default_rng(6)
        topic = example_topics(0.02, (0.4, 0.3, 0.2))
        covariance = 2.25 * np.array([[1.0, 0.8, -0.5], [0.8, 1.0, -0.5], [-0.5, -0.5, 1.0]])
        logit = rng.multivariate_normal(np.zeros(3), covariance, 60)
        proportion = np.exp(logit - logit.max(1, keepdims=True))
        proportion /= proportion.sum(1, keepdims=True)
        x = np.stack([rng.multinomial(20, p) for p in proportion @ topic])
        truth = {"topic": topic, "mean": np.zeros(3), "covariance": covariance, "topic_logit": logit}
        return Example.of(cls(num_topics=3, vocabulary_size=9), x, truth)
