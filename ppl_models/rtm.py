"""Relational topic model (RTM): documents with links between them, by the topics that their tokens took.

Murphy (2012), section 27.5.3 (Chang & Blei, *Hierarchical relational models for document networks*, AOAS 2010):

    pi_i ~ Dirichlet(alpha),  q_il | pi_i ~ Categorical(pi_i),  y_il | q_il, b ~ Categorical(b_{q_il})       (as LDA)
    qbar_i = 1/L_i sum_l q_il,   s_ij = sum_k w_k qbar_ik qbar_jk

    sigmoid       R_ij ~ Bernoulli(sigmoid(s_ij + w_0))                                                 (eq. 27.80)
    exponential   R_ij ~ Poisson(exp(s_ij + w_0))
    additive      R_ij ~ Poisson(s_ij + w_0)     with w >= 0: every link has a topic that both documents have, or none

The links depend on the topics that the tokens took, not on the proportions that these were drawn from (the source's
point: links would count as a few words more). ``link_on="proportions"`` has pi in the place of qbar, to compare.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Unpack

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from torch import Tensor
from torch.distributions import constraints

from ppl_models.core.document_model import TopicAdmixture, example_topics
from ppl_models.core.errors import ModelError, require_whole, unknown_name
from ppl_models.core.model import Example
from ppl_models.core.plates import DocumentPlate
from ppl_models.core.sites import Site
from ppl_models.data import sparse as _sparse
from ppl_models.data.matrix import Data
from ppl_models.distributions.basic import Shape, UnexpandedLaw
from ppl_models.distributions.tokens import Cells, Tokens
from ppl_models.distributions.topic_means import draw_means, tokens_share, topic_count_law
from ppl_models.kinds.linked_documents import LinkedDocuments, all_pairs, of_pairs

#: Link functions, and what links may depend on.
LINKS, LINK_ON = ("additive", "sigmoid", "exponential"), ("tokens", "proportions")
#: What the default concentrations of the proportions add up to, at most: texts of a few dozen words outweigh no more.
_MOST_PSEUDO_TOKENS = 7.5
#: Tokens times topics of the number of topics that nobody says, at most: a sweep then takes a fraction of a second.
_MOST_WORK = 5e7


@dataclass(frozen=True, kw_only=True, eq=False)
class RTM(LinkedDocuments, TopicAdmixture):
    """Relational topic model: topics of documents that also explain the links between them.

    link: the link function, "additive", "sigmoid" or "exponential"; others raise ModelError.
    num_topics: where nobody says it (``for_data``, or ``RTM(vocabulary_size=V)``) 5 sqrt(N), at most N / 10, 400, and
        (20 or more) 5e7 by the number of tokens.
    link_on: "tokens", the topics that the tokens took, or "proportions"; by default these, where the link is additive.
    directed: whether R_ij and R_ji are two observations; their probability is the same.
    link_copies: how often every pair counts, as if it was observed so many times: long texts outweigh few links. By
        default 4 times, where links are additive and on the proportions, else once.
    negatives: of the sigmoid and the exponential link, unlinked pairs that inference reads, for every link; they are
        drawn once and stand for all. The additive link reads all at no cost. With 0 topics are inferred from the links
        alone; unlinked pairs regularise the weights, as so many pairs of documents at the prior means of their topics
        (Chang & Blei, section 4.2), of the additive link at the present means: a cut of the feedback. By default 0 of
        additive links on the proportions, else 10.

    Sites
    -----
    topic: b (K, V), word probabilities; Dirichlet(.05, ..., .05) by default.
    link_weight: w (K,); Normal(0, 5) by default, of the additive link Gamma(1, 1).
    link_bias: w_0 (); Normal(0, 10) by default, of the additive link Gamma(1, 1).
    topic_proportion: pi (N, K), local; by default Dirichlet(a, ..., a), a = .1, of more than 75 topics 7.5 / K.
    topic_share: qbar (N, K), local, given the words; only with link_on="tokens".
    x: (N, V), observed, word counts.
    links: (N, N), observed: ``fit(model, words, links=...)`` takes pairs, a matrix, a networkx graph, or a file of
        them; NaN in a matrix (kept as -1) is a pair of which nothing is known, and 0 a pair without a link. The
        program states the links of all pairs i < j (directed: i != j), row by row; ``links=`` takes these too.
    """

    link: str = "additive"
    link_on: str = None  # pyright: ignore[reportAssignmentType]
    link_copies: int = None  # pyright: ignore[reportAssignmentType]
    negatives: int = None  # pyright: ignore[reportAssignmentType]

    whole_fields: ClassVar[tuple[str, ...]] = ("document_length", "link_copies")

    def __post_init__(self) -> None:
        self._complete("link_on", "proportions" if self.link == "additive" else "tokens")
        by_labels = self.link == "additive" and self.link_on == "proportions"
        self._complete("link_copies", 4 if by_labels else 1)
        self._complete("negatives", 0 if by_labels else 10)
        for what, given, valid in (("link", self.link, LINKS), ("link_on", self.link_on, LINK_ON)):
            if given not in valid:
                raise ModelError(unknown_name(what, given, valid))
        require_whole({"negatives": self.negatives}, 0)
        super().__post_init__()

    def _complete(self, name: str, value: str | int) -> None:
        if getattr(self, name) is None:
            object.__setattr__(self, name, value)

    @classmethod
    def number_for(cls, data: Data, settings: Mapping[str, Any]) -> int | None:
        """Return how many topics predict hidden links well in so many documents, and are sampled soon in so many
        tokens."""
        del settings
        many = min(len(data) // 10, int(5 * math.sqrt(len(data))), 400)
        tokens = max(float(_sparse.row_sums(data.observed_x).sum()), 1.0)
        return max(2, min(many, max(20, int(_MOST_WORK / tokens))))

    @property
    def sites(self) -> Mapping[str, Site]:  # pyright: ignore[reportIncompatibleVariableOverride]
        support = constraints.positive if self.link == "additive" else constraints.real
        share = Site("latent", ("component",), ("document",), constraints.nonnegative)
        return {
            "topic": TopicAdmixture.sites["topic"],
            "link_weight": Site("global", ("component",), support=support),
            "link_bias": Site("global", (), support=support),
            "topic_proportion": TopicAdmixture.sites["topic_proportion"],
            "x": TopicAdmixture.sites["x"],
            **({"topic_share": share} if self.link_on == "tokens" else {}),
            "links": Site("observed", ("to_document",), ("document",), constraints.nonnegative_integer),
        }

    @property
    def has_atoms(self) -> bool:
        """True of links on tokens: their topics are discrete, and given all links no product over documents."""
        return self.link_on == "tokens"

    def default_priors(self) -> dict[str, Any]:
        size = self.num_topics
        share = {"topic_proportion": dist.Dirichlet(torch.full((size,), min(0.1, _MOST_PSEUDO_TOKENS / size)))}
        if self.link == "additive":
            own = {"link_weight": dist.Gamma(1.0, 1.0), "link_bias": dist.Gamma(1.0, 1.0)}
        else:
            own = {"link_weight": dist.Normal(0.0, 5.0), "link_bias": dist.Normal(0.0, 10.0)}
        return {**super().default_priors(), **share, **own}

    def __call__(
        self, x: Tensor | None = None, *, links: Tensor | None = None, **plate: Unpack[DocumentPlate]
    ) -> Tensor:
        """State the program. With ``x`` and without ``links`` there is no statement of these. Of a minibatch the links
        among its documents are stated, scaled to all pairs: unbiased over random minibatches."""
        if links is not None and links.ndim == 1:
            links = of_pairs(links, plate.get("num_rows", 1) if x is None else x.shape[0], self.directed)
        stated = x is None or (links is not None and links.shape[0] == links.shape[1] == x.shape[0])
        topic = self.sample("topic")
        weight = self.sample("link_weight")
        bias = self.sample("link_bias")
        with self.documents(x, **plate) as documents:
            share = self.sample("topic_proportion")
            words = documents.observe("x", Tokens(share, topic, documents.lengths))
            if stated and self.link_on == "tokens":
                share = pyro.sample("topic_share", TopicShare(share, topic, words))
        if stated:
            i, j = all_pairs(documents.number, self.directed).to(documents.places.device)
            law, known = self.link_law(((share * weight) @ share.mT)[i, j] + bias), None
            if links is not None:
                known = _sparse.entries(links, documents.places[i], documents.places[j])
                law, known = law.mask(known >= 0), known.clamp(min=0)
            number, total = documents.number, documents.plate.size
            if number < 2:  # there is no pair, and Pyro has no empty plates
                pyro.sample("links", law.to_event(1), obs=known)
                return words
            scale = self.link_copies * total * (total - 1) / (number * (number - 1))
            with poutine.scale(scale=scale), pyro.plate("pairs", len(i), dim=-1):
                pyro.sample("links", law, obs=known)
        return words

    @property
    def most_links(self) -> float:
        return 1 if self.link == "sigmoid" else torch.inf

    def link_law(self, score: Tensor) -> Any:
        """Return p(R | s + w_0)."""
        if self.link == "sigmoid":
            return dist.Bernoulli(logits=score)
        return dist.Poisson(score if self.link == "additive" else score.exp())

    @classmethod
    def example(cls) -> Example:
        """Return three topics over nine words, and thirty documents, linked where they share topics."""
        rng = np.random.default_rng(4)
        topic = example_topics(0.02, (0.4, 0.3, 0.2))
        proportion, weight, bias = rng.dirichlet([0.3] * 3, 30), np.array([4.0, 3.0, 3.5]), -3.0
        x, share = np.zeros((30, 9)), np.zeros((30, 3))
        for n, length in enumerate(rng.integers(6, 11, 30)):
            for k in rng.choice(3, length, p=proportion[n]):
                share[n, k] += 1 / length
                x[n, rng.choice(9, p=topic[k])] += 1
        upper = np.triu(rng.random((30, 30)) < 1 / (1 + np.exp(-(share * weight) @ share.T - bias)), 1)
        truth = {"topic": topic, "link_weight": weight, "link_bias": np.array(bias)}
        truth |= {"topic_proportion": proportion, "topic_share": share}
        model = cls(num_topics=3, vocabulary_size=9, link="sigmoid")
        return Example.of(model, x, truth, links=(upper | upper.T).astype(float))


class _Shares(constraints.Constraint):
    """Parts of so many tokens (N,): finitely many points of the simplex, so that no normal can stand for them."""

    is_discrete, event_dim = True, 1

    def __init__(self, tokens: Tensor):
        self.tokens = tokens

    def check(self, value: Tensor) -> Tensor:
        number = value * self.tokens.unsqueeze(-1)
        whole = ((number - number.round()).abs() < 1e-3).all(-1) & (value >= 0).all(-1)
        return whole & ((number.sum(-1) - self.tokens).abs() < 1e-3)


class TopicShare(UnexpandedLaw):
    """The law of qbar_i given words and proportions: its tokens' topics are independent, p(q = k) ~ pi_k b_kv.

    Draws take no convolution; ``log_prob`` does, and raises CapacityError where that has too many terms.
    """

    def __init__(self, proportion: Tensor, topic: Tensor, counts: Tensor):
        self.counts = counts
        self.cells = Cells.of(counts)
        self.phi = tokens_share(proportion, topic, self.cells)
        super().__init__(proportion.shape[:1], proportion.shape[1:], validate_args=False)

    @constraints.dependent_property(is_discrete=True, event_dim=1)
    def support(self) -> Any:
        """Return parts of the document's tokens, which add up to 1, or are 0 where it has none."""
        return _Shares(_sparse.row_sums(self.counts))

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        with torch.no_grad():
            draws = [draw_means(self.phi, self.cells) for _ in range(torch.Size(sample_shape).numel())]
            return torch.stack(draws).reshape(self._extended_shape(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        chance, share = topic_count_law(self.phi, self.cells, torch.eye(value.shape[-1]).to(self.phi))
        same = (share - value.unsqueeze(1)).abs().amax(-1) < 1e-5
        return (chance * same).sum(-1).log()
