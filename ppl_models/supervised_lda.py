"""Supervised latent Dirichlet allocation (sLDA): a response to every document, by the topics that its tokens took.

Source 002, section 27.4.4.1 (Blei & McAuliffe, *Supervised topic models*, NIPS 2007):

    pi_i ~ Dirichlet(alpha),  q_il | pi_i ~ Categorical(pi_i),  y_il | q_il, b ~ Categorical(b_{q_il})       (as LDA)
    c_i | q_i ~ Bernoulli(sigmoid(w' qbar_i)),   qbar_i = 1/L_i sum_l q_il                              (eq. 27.65)

The response depends on the topics that the tokens took, not on the proportions that they were drawn from. Given the
proportions and the words the tokens' topics are independent; the program sums them out exactly:
p(c | words, pi) = E[sigmoid(w' qbar)] is a one-dimensional integral, that of ``distributions.TopicMeanBernoulli``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models.core.document_model import TopicAdmixture, example_topics
from ppl_models.core.errors import DataError, ModelError, about, unknown_name
from ppl_models.core.model import Example
from ppl_models.core.sites import Site
from ppl_models.data.containers import as_tensor, unpacked
from ppl_models.data.matrix import Data
from ppl_models.distributions import TopicMeanBernoulli

#: Kinds of responses.
RESPONSES = ("binary",)


@dataclass(frozen=True, kw_only=True, eq=False)
class SupervisedLDA(TopicAdmixture):
    """Supervised LDA: topics that also explain a response of every document.

    response: what a response is: "binary", 0 or 1.

    Sites
    -----
    topic: b (K, V), word probabilities; Dirichlet(.05, ..., .05) by default.
    response_weight: w (K,), the log-odds of a document all of whose tokens took the topic; Normal(0, 5) by default.
        There is no bias: the entries of qbar sum to 1.
    topic_proportion: pi (N, K), local; Dirichlet(.1, ..., .1) by default.
    x: (N, V), observed, word counts.
    response: (N,), observed, 0 or 1; NaN where it is unknown. ``fit(model, words, response=...)``.

    Raises ModelError for an unknown kind of response.
    """

    response: str = "binary"

    sites: ClassVar[Mapping[str, Site]] = {
        "topic": TopicAdmixture.sites["topic"],
        "response_weight": Site("global", ("component",)),
        "topic_proportion": TopicAdmixture.sites["topic_proportion"],
        "x": TopicAdmixture.sites["x"],
        "response": Site("observed", (), ("document",), constraints.boolean),
    }

    def __post_init__(self) -> None:
        if self.response not in RESPONSES:
            raise ModelError(unknown_name("kind of response", self.response, RESPONSES))
        super().__post_init__()

    def default_priors(self) -> dict[str, Any]:
        return {**super().default_priors(), "response_weight": dist.Normal(0.0, 5.0)}

    def observe_rows(
        self,
        site: Mapping[str, Tensor],
        local: Tensor,
        x: Tensor | None,
        mask: Tensor | None,
        index: Tensor | None,
        num_tokens: Tensor | int | None = None,
        response: Tensor | None = None,
    ) -> Tensor:
        """As LDA's; ``response`` (N,), NaN where it is unknown. With ``x`` and without a response there is no statement
        of it: it would say nothing of the rest."""
        words = super().observe_rows(site, local, x, mask, index, num_tokens)
        if x is not None and response is None:
            return words
        answer: Any = TopicMeanBernoulli(local, site["topic"], words, site["response_weight"])
        given = response if response is None or index is None else response[index]
        if given is not None:
            seen = ~torch.isnan(given)
            answer, given = answer.mask(seen), torch.where(seen, given, torch.zeros_like(given))
        pyro.sample("response", answer, obs=given)
        return words

    def prepare(self, data: Any, *, mask: Any = None, dtype=None, device=None, response: Any = None) -> Data:
        """Word counts, and the responses (N,) of 0, 1 and NaN. Raises DataError for anything else."""
        known = data.others.get("response") if isinstance(data, Data) and response is None else response
        checked = super().prepare(data, mask=mask, dtype=dtype, device=device)
        if known is None:
            return replace(checked, others={})
        with about("response"):
            given = as_tensor(unpacked(known)[0], checked.x.dtype).to(checked.x.device)
            if given.shape != (len(checked),):
                raise DataError(f"shape {tuple(given.shape)}", expected=f"({len(checked)},), one a document")
            wrong = ((given != 0) & (given != 1) & ~torch.isnan(given)).nonzero().flatten()
            if len(wrong):
                value = float(given[wrong[0]])
                found = f"{len(wrong)} values are neither 0 nor 1 (the first: {value:g} of document {int(wrong[0])})"
                raise DataError(found, expected="0, 1, or NaN where it is unknown")
        return replace(checked, others={"response": given})

    def prepare_new(self, data: Any, like: Data, *, response: Any = None, **settings: Any) -> Data:
        """As :meth:`prepare`, in the vocabulary of the documents ``like``."""
        return self.prepare(super().prepare_new(data, like, **settings), response=response)

    def check_for_fitting(self, data: Data) -> None:
        """Refuses what LDA refuses, and data without any response."""
        super().check_for_fitting(data)
        known = data.others.get("response")
        if known is None or bool(torch.isnan(known).all()):
            raise DataError("no responses", site="response", expected="fit(model, words, response=...), 0 or 1 each")

    @classmethod
    def example(cls) -> Example:
        """Three topics over nine words, sixty documents of six to fourteen tokens; two topics decide the response."""
        rng = np.random.default_rng(9)
        topic = example_topics(0.02, (0.4, 0.3, 0.2))
        proportion, weight = rng.dirichlet([0.4] * 3, 60), np.array([4.0, 0.0, -4.0])
        x, chosen = np.zeros((60, 9)), np.zeros((60, 3))
        for n, length in enumerate(rng.integers(6, 15, 60)):
            for k in rng.choice(3, length, p=proportion[n]):
                chosen[n, k] += 1 / length
                x[n, rng.choice(9, p=topic[k])] += 1
        response = rng.random(60) < 1 / (1 + np.exp(-chosen @ weight))
        truth = {"topic": topic, "response_weight": weight, "topic_proportion": proportion}
        return Example.of(cls(num_topics=3, vocabulary_size=9), x, truth, response=response)
