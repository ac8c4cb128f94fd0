"""Supervised latent Dirichlet allocation (sLDA): a response to every document, by the topics that its tokens took.

Murphy (2012), section 27.4.4.1 (Blei & McAuliffe, *Supervised topic models*, NIPS 2007):

    pi_i ~ Dirichlet(alpha),  q_il | pi_i ~ Categorical(pi_i),  y_il | q_il, b ~ Categorical(b_{q_il})       (as LDA)
    qbar_i = 1/L_i sum_l q_il,   eta_i = W qbar_i                                                       (eq. 27.66)

    binary        c_i ~ Bernoulli(sigmoid(w' qbar_i))                                                   (eq. 27.65)
    categorical   c_i ~ Categorical(softmax(W qbar_i)),  one row of W a class
    real          c_i ~ Normal(centre + (w - centre)' qbar_i, scale),  which of a document with tokens is w' qbar_i
    counts        c_i ~ Poisson(exp(w' qbar_i))

The response depends on the topics that the tokens took, not on the proportions that they were drawn from. Given the
proportions and the words the tokens' topics are independent; the program sums them out exactly, by a one-dimensional
integral for one response, else by the law of the numbers of tokens of the topics (``distributions.topic_means``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self, Unpack

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models.core.document_model import TopicAdmixture, example_topics
from ppl_models.core.errors import ModelError, unknown_name
from ppl_models.core.model import Example, Model
from ppl_models.core.plates import DocumentPlate
from ppl_models.core.sites import Site
from ppl_models.data.matrix import Data
from ppl_models.distributions import Flat, ScaledNormal, Tokens
from ppl_models.distributions.topic_means import SUPPORTS, response_law
from ppl_models.kinds.answered_documents import AnsweredDocuments

#: Kinds of responses.
RESPONSES = tuple(SUPPORTS)
#: Kind -> the standard deviation of the default prior of the weights; of real responses in their units.
_WEIGHTS = {"binary": 5.0, "categorical": 5.0, "real": 10.0, "counts": 2.0}


@dataclass(frozen=True, kw_only=True, eq=False)
class SupervisedLDA(AnsweredDocuments, TopicAdmixture):
    """Supervised LDA: topics that also explain a response of every document.

    response: what a response is: "binary", 0 or 1; "categorical", 0 to C - 1; "real"; "counts", 0, 1, 2, ...
    num_classes: C, of categorical responses alone.
    num_responses: R, responses a document, independent given the tokens' topics; one where they are categorical.
    centre, unit: of real responses alone, of each its origin and its scale; by default from the data that are fitted:
        the mean, and the standard deviation (of two values their distance).

    Sites
    -----
    topic: b (K, V), word probabilities; Dirichlet(.05, ..., .05) by default.
    response_weight: w (K,), of R > 1 responses (R, K), of classes (C, K): the log-odds, logits, mean, or log rate of a
        document all of whose tokens took the topic; by default Normal(0, 5), of counts Normal(0, 2), of real responses
        Normal(centre, 10 unit), in their own units. There is no bias: the entries of qbar sum to 1.
    response_scale: the standard deviation of real responses alone, () or (R,), in their own units; flat by default.
    topic_proportion: pi (N, K), local; Dirichlet(.1, ..., .1) by default.
    x: (N, V), observed, word counts.
    response: (N,) or (N, R), observed; NaN where it is unknown. ``fit(model, words, response=...)``. Of one binary or
        categorical response also the names of classes, None where they are unknown: in the order of letters, or of the
        categories of a pandas Categorical.

    ``fit.predict(words)`` gives the mean response, of classes their probabilities; with ``names=True`` the name of the
    most probable class.

    Raises ModelError for an unknown kind of response, fewer than two classes, several categorical responses, and a
    centre or unit of responses that are not real.
    """

    axes: ClassVar[Mapping[str, str]] = {**TopicAdmixture.axes, "class": "num_classes", "output": "num_responses"}

    def __post_init__(self) -> None:
        if self.response not in RESPONSES:
            raise ModelError(unknown_name("kind of response", self.response, RESPONSES))
        for name in ("centre", "unit"):
            if self.response != "real" and getattr(self, name) is not None:
                raise ModelError(f"{name} = {getattr(self, name)!r} of {self.response} responses; real ones have one")
        super().__post_init__()
        if self.response == "categorical" and self.num_classes < 2:
            raise ModelError(f"num_classes = {self.num_classes}, expected at least 2")
        if self.response == "categorical" and self.num_responses > 1:
            raise ModelError(f"num_responses = {self.num_responses} categorical responses, expected one")

    @property
    def outputs(self) -> tuple[str, ...]:
        """The axes of W before that of the topics."""
        if self.response == "categorical":
            return ("class",)
        return ("output",) if self.num_responses > 1 else ()

    @property
    def sites(self) -> Mapping[str, Site]:  # pyright: ignore[reportIncompatibleVariableOverride]
        each = () if self.response == "categorical" else self.outputs
        scale = {"response_scale": Site("global", each, support=constraints.positive)}
        return {
            "topic": TopicAdmixture.sites["topic"],
            "response_weight": Site("global", (*self.outputs, "component")),
            **(scale if self.response == "real" else {}),
            "topic_proportion": TopicAdmixture.sites["topic_proportion"],
            "x": TopicAdmixture.sites["x"],
            "response": Site("observed", each, ("document",), SUPPORTS[self.response]),
        }

    def default_priors(self) -> dict[str, Any]:
        own, spread = super().default_priors(), _WEIGHTS[self.response]
        if self.response != "real":
            return {**own, "response_weight": dist.Normal(0.0, spread)}
        centre, unit = self.scale_of_columns()
        if self.num_responses == 1:
            centre, unit = centre.squeeze(0), unit.squeeze(0)
        weight = ScaledNormal(centre.unsqueeze(-1), spread * unit.unsqueeze(-1))
        return {**own, "response_weight": weight, "response_scale": Flat(dist.LogNormal(unit.log(), 1.0))}

    def on_scale_of(self, data: Data | None, *, like: Model | None = None, weights: Tensor | None = None) -> Self:
        return super().on_scale_of(data, like=like, weights=weights) if self.response == "real" else self

    def __call__(
        self, x: Tensor | None = None, *, response: Tensor | None = None, **plate: Unpack[DocumentPlate]
    ) -> Tensor:
        """State the program. ``response`` (N,) or (N, R), NaN where it is unknown. With ``x`` and without a response
        there is no statement of it: it would say nothing of the rest."""
        topic = self.sample("topic")
        weight = self.sample("response_weight")
        scale = self.sample("response_scale") if self.response == "real" else None
        with self.documents(x, **plate) as documents:
            proportion = self.sample("topic_proportion")
            words = documents.observe("x", Tokens(proportion, topic, documents.lengths))
            if x is None or response is not None:
                centre = self.scale_of_columns(weight)[0] if self.centre and self.response == "real" else None
                law = response_law(self.response, proportion, topic, words, weight, scale, centre)
                law, known = without_unknown(law, documents.of(response))
                pyro.sample("response", law, obs=known)
            return words

    @classmethod
    def example(cls) -> Example:
        """Return three topics over nine words, and sixty documents, whose response two topics decide."""
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


def without_unknown(law: Any, response: Tensor | None) -> tuple[Any, Tensor | None]:
    """Return the law of responses (N,) or (N, R) without those that are NaN, and the values to observe it at."""
    if response is None:
        return law, None
    known = ~torch.isnan(response)
    if response.ndim == 1:
        return law.mask(known), torch.where(known, response, torch.zeros_like(response))
    return law.mask(known.any(-1)), response  # what is unknown of several, the law itself leaves out
