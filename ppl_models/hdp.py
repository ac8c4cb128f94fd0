"""The hierarchical Dirichlet process (HDP) as a topic model: how many topics there are follows from the documents.

Murphy (2012), section 27.3.8 (Teh, Jordan, Beal & Blei, *Hierarchical Dirichlet processes*, JASA 2006), truncated at K
topics, more than are needed:

    v_k ~ Beta(1, c),  beta_k = v_k prod_{j<k} (1 - v_j)     shares of the topics among all documents, beta_K the rest
    pi_i ~ Dirichlet(a beta)                                 topic proportions of the document
    q_il | pi_i ~ Categorical(pi_i),   y_il | q_il, b ~ Categorical(b_{q_il}),   b_k ~ Dirichlet(gamma)    (as LDA)

As K grows this is the process with unboundedly many topics, of which a corpus uses finitely many. Given beta it is LDA
with the asymmetric concentration a beta. a and c are learned: a says how different documents are, c how many topics
there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Unpack

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models.core.document_model import DocumentModel, TopicAdmixture, WordCounts, example_topics
from ppl_models.core.model import Example
from ppl_models.core.plates import DocumentPlate
from ppl_models.core.sites import Site
from ppl_models.distributions import StickBreaking, Tokens

#: What the prior of the proportions depends on.
_OF_PROPORTIONS = ("concentration", "topic_weight")


def proportion_law(concentration: Tensor, weight: Tensor) -> Any:
    """Return Dirichlet(a beta), of concentrations a (...,) and shares beta (..., K)."""
    # A share that is next to nothing is a topic that no document has.
    alpha = (concentration.unsqueeze(-1) * weight).clamp_min(1e-12)
    return dist.Dirichlet(alpha, validate_args=False)


@dataclass(frozen=True, kw_only=True, eq=False)
class HDP(WordCounts):
    """Hierarchical Dirichlet process: a topic model that finds out how many topics there are.

    max_topics: K, at most so many topics; those that no document uses stay as their prior says.
    document_length: tokens of a document that the program generates; no influence on inference.

    Sites
    -----
    topic: b (K, V), word probabilities; Dirichlet(.05, ..., .05) by default.
    stick_concentration: c, of the topics' shares; Gamma(1, 1) by default. More is more topics.
    topic_weight: beta (K,), the topics' shares among all documents; by default sticks broken by Beta(1, c).
    concentration: a, of the documents' proportions around beta; Gamma(1, 1) by default. Less: fewer topics in each.
    topic_proportion: pi (N, K), local, Dirichlet(a beta): its prior is what these say.
    x: (N, V), observed, word counts.
    """

    max_topics: int = 50
    vocabulary_size: int
    document_length: int = 100

    axes: ClassVar[Mapping[str, str]] = {"component": "max_topics", "word": "vocabulary_size"}
    whole_fields: ClassVar[tuple[str, ...]] = ("document_length",)
    sites: ClassVar[Mapping[str, Site]] = {
        "topic": DocumentModel.sites["topic"],
        "stick_concentration": Site("global", (), support=constraints.positive),
        "topic_weight": Site("global", ("component",), support=constraints.simplex),
        "concentration": Site("global", (), support=constraints.positive),
        "topic_proportion": TopicAdmixture.sites["topic_proportion"],
        "x": DocumentModel.sites["x"],
    }

    def default_priors(self) -> dict[str, Any]:
        return {
            "topic": dist.Dirichlet(torch.full((self.vocabulary_size,), 0.05)),
            "stick_concentration": dist.Gamma(1.0, 1.0),
            "topic_weight": StickBreaking(torch.tensor(1.0), self.max_topics),
            "concentration": dist.Gamma(1.0, 1.0),
        }

    def prior(self, site: str, *, like: Tensor | None = None, values: Mapping[str, Tensor] | None = None) -> Any:
        """Return the prior of a site: sticks are broken as the value of ``stick_concentration`` says, or as if it was
        1, and that of the proportions is what the values of the shares say, or the means of their priors."""
        own, known = self.priors.get(site), (values or {}).get("stick_concentration")
        if site == "topic_weight" and isinstance(own, StickBreaking) and known is not None:
            return StickBreaking(known, self.max_topics, validate_args=False)
        if site == "topic_proportion":
            means = {} if values else {one: self.prior(one, like=like).mean for one in _OF_PROPORTIONS}
            return proportion_law(*((values or means)[one] for one in _OF_PROPORTIONS))
        return super().prior(site, like=like, values=values)

    proportions = DocumentModel.proportions  # pyright: ignore[reportAssignmentType]

    def __call__(self, x: Tensor | None = None, **plate: Unpack[DocumentPlate]) -> Tensor:
        topic = self.sample("topic")
        self.sample("stick_concentration")  # which the prior of the topics' shares depends on
        weight = self.sample("topic_weight")
        concentration = self.sample("concentration")
        with self.documents(x, **plate) as documents:
            proportion = pyro.sample("topic_proportion", proportion_law(concentration, weight))
            return documents.observe("x", Tokens(proportion, topic, documents.lengths))

    @classmethod
    def example(cls) -> Example:
        """Return two topics over six words, at most four, and forty documents of six to fourteen tokens."""
        rng = np.random.default_rng(15)
        topic = np.full((4, 6), 1 / 6)
        topic[:2] = example_topics(0.02, (0.4, 0.3, 0.2))[:2, :6]
        topic /= topic.sum(1, keepdims=True)
        weight = np.array([0.55, 0.41, 0.03, 0.01])
        proportion = rng.dirichlet(weight, 40).clip(1e-9)
        proportion /= proportion.sum(1, keepdims=True)
        x = np.stack([rng.multinomial(n, p) for n, p in zip(rng.integers(6, 15, 40), proportion @ topic, strict=True)])
        truth = {"topic": topic, "topic_weight": weight, "topic_proportion": proportion}
        truth |= {"stick_concentration": np.array(1.0), "concentration": np.array(1.0)}
        return Example.of(cls(max_topics=4, vocabulary_size=6), x, truth)
