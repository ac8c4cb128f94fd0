"""Dynamic topic model (DTM): topics whose words change over time, each logit by a Gaussian random walk.

Murphy (2012), section 27.4.2 (Blei & Lafferty, *Dynamic topic models*, ICML 2006), with what it leaves open stated.
With time slices t = 1..T, topics k, words v, and document i of slice t_i (a document has the proportions pi_i):

    b_1kv ~ Normal(m_v, s^2)                             first slice, about a background that the topics share
    b_tkv | b_{t-1,kv} ~ Normal(b_{t-1,kv}, sigma^2)                                                     (eq. 27.57)
    pi_i ~ Dirichlet(alpha)                                                                              (eq. 27.58)
    q_il | pi_i ~ Categorical(pi_i)                      summed out                                      (eq. 27.59)
    y_il | q_il = k, b ~ Categorical(softmax(b_{t_i k}))                                                 (eq. 27.60)

sigma^2 is a variance (27.57 prints sigma^2 1_V for sigma^2 I_V). A number added to all logits of a topic in one slice
changes no probability; the walk alone says where they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Unpack

import numpy as np
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints
from torch.distributions.transforms import AffineTransform

from ppl_models.core.document_model import DocumentModel, TopicAdmixture, example_topics
from ppl_models.core.errors import ModelError
from ppl_models.core.hierarchy import is_function, typical_values
from ppl_models.core.model import Example
from ppl_models.core.plates import DocumentPlate
from ppl_models.core.priors import element_of, is_bounded, support_of, value_if_known
from ppl_models.core.sites import Site
from ppl_models.distributions import GaussianRandomWalk, Tokens
from ppl_models.kinds.dated_documents import DatedDocuments


@dataclass(frozen=True, kw_only=True, eq=False)
class DTM(DatedDocuments):
    """Dynamic topic model: LDA with topics that drift from one slice of time to the next.

    num_times: T, slices of time.

    Sites
    -----
    drift_variance: sigma^2, of a step of a logit; LogNormal(-3, 1.5) by default.
    background: m (V,), mean logits of the first slice; Normal(0, 3) by default.
    initial_scale: s, the standard deviation of the first slice's logits; LogNormal(.5, .7) by default.
    topic_logit: b (T, K, V). Its prior is that of an element of (b_1 - m) / s, Normal(0, 1) by default; the walk says
        the rest. softmax(b) are the word probabilities (``topics``).
    topic_proportion: pi (N, K), local; Dirichlet(.1, ..., .1) by default.
    time: t (N,), given: ``fit(model, words, time=...)``. Whole numbers 0..T-1 are slices, some of which may be empty.
        Of other numbers, of dates and of words the T different ones that occur are the slices, in their order, with
        these as labels; of a pandas Categorical its T categories. Without it documents are of the last slice.
    x: (N, V), observed, word counts. log p(x) is that of the tokens in their order.
    """

    sites: ClassVar[Mapping[str, Site]] = {
        "drift_variance": Site("global", (), support=constraints.positive),
        "background": Site("global", ("word",)),
        "initial_scale": Site("global", (), support=constraints.positive),
        "topic_logit": Site("global", ("time", "component", "word"), support=constraints.real),
        "topic_proportion": TopicAdmixture.sites["topic_proportion"],
        "time": Site("given", (), ("document",), constraints.nonnegative_integer),
        "x": DocumentModel.sites["x"],
    }

    def default_priors(self) -> dict[str, Any]:
        return {
            "drift_variance": dist.LogNormal(-3.0, 1.5),
            "background": dist.Normal(0.0, 3.0),
            "initial_scale": dist.LogNormal(0.5, 0.7),
            "topic_logit": dist.Normal(0.0, 1.0),
            "topic_proportion": dist.Dirichlet(torch.full((self.num_topics,), 0.1)),
        }

    def __post_init__(self) -> None:
        super().__post_init__()
        prior = self.priors["topic_logit"]
        if not is_function(prior) and value_if_known(prior) is None and is_bounded(prior):
            problem = f"the prior has support {support_of(prior)}"
            raise ModelError(f"the first step of 'topic_logit' may be any real number; {problem}")

    def shape_of(self, site: str) -> tuple[int, ...]:
        """Return the shape of a site; of ``topic_logit`` that of a slice, (K, V), unless the whole site is known."""
        shape = super().shape_of(site)
        first = site == "topic_logit" and value_if_known(self.priors.get(site)) is None
        return shape[1:] if first else shape

    def prior(self, site: str, *, like: Tensor | None = None, values: Mapping[str, Tensor] | None = None) -> Any:
        """Return the prior of a site; of ``topic_logit`` the walk at these values of the others, or at typical ones."""
        if site != "topic_logit" or value_if_known(self.priors[site]) is not None:
            return super().prior(site, like=like, values=values)
        standard: Any = element_of(super().prior(site, like=like, values=values))
        at = values or {}
        if "drift_variance" not in at:
            found = typical_values(self, ("drift_variance", "background", "initial_scale"))
            at = found if like is None else {name: value.to(like) for name, value in found.items()}
        scale = at["initial_scale"][..., None, None]
        first = dist.TransformedDistribution(
            standard.expand(self.shape_of(site)), [AffineTransform(at["background"][..., None, :], scale)]
        )
        return GaussianRandomWalk(first, at["drift_variance"], self.num_times)

    def topics(self, values: Mapping[str, Tensor]) -> Tensor:
        """Return word probabilities of the topics in every slice, (..., T, K, V)."""
        return torch.softmax(values["topic_logit"], -1)

    def __call__(
        self, x: Tensor | None = None, *, time: Tensor | None = None, **plate: Unpack[DocumentPlate]
    ) -> Tensor:
        self.sample("drift_variance")  # the walk of the logits depends on these
        self.sample("background")
        self.sample("initial_scale")
        logit = self.sample("topic_logit")
        with self.documents(x, **plate) as documents:
            proportion = self.sample("topic_proportion")
            # The tokens are drawn from T K topics: those of the document's slice and, with proportion 0, the others.
            dated = self.place_in_slices(proportion, documents.of(time))
            return documents.observe("x", Tokens(dated, torch.softmax(logit, -1).flatten(-3, -2), documents.lengths))

    def place_in_slices(self, proportion: Tensor, time: Tensor | None) -> Tensor:
        """Return the proportions (..., N, T K) among the topics of all slices, 0 in others than the documents' own.

        proportion: (..., N, K), among the topics of a slice. time: (N,), the slices; None: the last.
        """
        last = torch.full(proportion.shape[-2:-1], self.num_times - 1, device=proportion.device)
        chosen = torch.nn.functional.one_hot(last if time is None else time.long(), self.num_times).to(proportion)
        return (chosen[:, :, None] * proportion[..., :, None, :]).flatten(-2)

    def given_rows(self, num_rows: int) -> dict[str, Any]:
        """Return the times of documents evenly over the slices, in their order."""
        return {"time": torch.arange(num_rows) * self.num_times // max(num_rows, 1)}

    def num_unseen(self, num_rows: int) -> int:
        """Count a number that may be added to the logits of all words, of every topic in every slice."""
        del num_rows
        drifting = self.num_times * self.num_topics * ("topic_logit" in self.unknown_sites)
        return drifting + ("background" in self.unknown_sites)

    @classmethod
    def example(cls) -> Example:
        """Return three topics over nine words in four slices, sixty documents of twenty tokens."""
        rng = np.random.default_rng(12)
        first = np.log(example_topics(0.02, (0.4, 0.3, 0.2)))
        background = first.mean(0)
        logit = [first]
        for _ in range(3):
            logit.append(logit[-1] + rng.normal(0.0, 0.4, first.shape))
        topic = np.exp(logit) / np.exp(logit).sum(-1, keepdims=True)
        proportion, time = rng.dirichlet([0.3] * 3, 60), np.arange(60) // 15
        x = np.stack([rng.multinomial(20, p @ topic[t]) for p, t in zip(proportion, time, strict=True)])
        truth = {"drift_variance": 0.16, "background": background, "initial_scale": 1.3}
        truth |= {"topic_logit": np.stack(logit), "topic_proportion": proportion}
        return Example.of(cls(num_topics=3, vocabulary_size=9, num_times=4), x, truth, time=time)
