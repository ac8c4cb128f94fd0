"""Supervised latent Dirichlet allocation (sLDA): a response to every document, by the topics that its tokens took.

Source 002, section 27.4.4.1 (Blei & McAuliffe, *Supervised topic models*, NIPS 2007):

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
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models.core.document_model import TopicAdmixture, example_topics
from ppl_models.core.errors import DataError, ModelError, about, unknown_name
from ppl_models.core.likelihood import Likelihood
from ppl_models.core.model import Example, Model
from ppl_models.core.scales import OnOwnScale
from ppl_models.core.sites import Site
from ppl_models.data.covariates import beside
from ppl_models.data.matrix import Data
from ppl_models.data.names import encode_classes
from ppl_models.distributions import Flat, ScaledNormal
from ppl_models.distributions.topic_means import SUPPORTS, response_law
from ppl_models.likelihoods import Bernoulli, Categorical, Gaussian, Poisson

#: Kinds of responses.
RESPONSES = tuple(SUPPORTS)
#: Kind -> the standard deviation of the default prior of the weights.
_WEIGHTS = {"binary": 5.0, "categorical": 5.0, "real": 10.0, "counts": 2.0}
#: Of real responses this is in units of theirs, about their centre.


@dataclass(frozen=True, kw_only=True, eq=False)
class SupervisedLDA(OnOwnScale, TopicAdmixture):
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

    response: str = "binary"
    num_classes: int = 1
    num_responses: int = 1

    scaled_site: ClassVar[str] = "response"
    scaled_size: ClassVar[str] = "num_responses"
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

    @property
    def response_likelihood(self) -> Likelihood:
        """p(c | eta); of real responses at a scale of 1."""
        if self.response == "categorical":
            return Categorical(self.num_classes)
        return {"binary": Bernoulli, "real": Gaussian, "counts": Poisson}[self.response]()

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

    def observe_rows(
        self, site: Mapping[str, Tensor], local: Tensor, x: Tensor | None, mask: Tensor | None, index: Tensor | None,
        num_tokens: Tensor | int | None = None, response: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """As LDA's; ``response`` (N,) or (N, R), NaN where it is unknown. With ``x`` and without a response there is no
        statement of it: it would say nothing of the rest."""
        words = super().observe_rows(site, local, x, mask, index, num_tokens)
        if x is not None and response is None:
            return words
        weight, scale = site["response_weight"], site.get("response_scale")
        centre = self.scale_of_columns(weight)[0] if self.centre and self.response == "real" else None
        answer: Any = response_law(self.response, local, site["topic"], words, weight, scale, centre)
        given = response if response is None or index is None else response[index]
        if given is not None and given.ndim == 1:
            seen = ~torch.isnan(given)
            answer, given = answer.mask(seen), torch.where(seen, given, torch.zeros_like(given))
        elif given is not None:
            answer = answer.mask(~torch.isnan(given).all(-1))
        pyro.sample("response", answer, obs=given)
        return words

    def prepare(self, data: Any, *, mask: Any = None, dtype=None, device=None, response: Any = None) -> Data:
        """Word counts, and the responses (N,) or (N, R). Raises DataError for anything else."""
        known = data.others.get("response") if isinstance(data, Data) and response is None else response
        names = data.coords.get("class") if isinstance(data, Data) else None
        checked = super().prepare(data, mask=mask, dtype=dtype, device=device)
        if known is None:
            return replace(checked, others={})
        several = (self.num_responses,) if self.num_responses > 1 else ()
        with about("response"):
            known, names = self._encode_names(known, names)
            given = beside(known, checked)
            shape = len(checked), *several
            if given.shape != shape:
                each = f"{shape}, {self.num_responses} a document" if several else f"{shape}, one a document"
                raise DataError(f"shape {tuple(given.shape)}", expected=each)
            wrong = (~self.response_likelihood.valid(given) & ~torch.isnan(given)).nonzero()
            if len(wrong):
                what, expected = self.response_likelihood.refusal
                value, document = float(given[tuple(wrong[0])]), int(wrong[0, 0])
                found = f"{len(wrong)} values {what} (the first: {value:g} of document {document})"
                raise DataError(found, expected=expected.partition(";")[0])
        coords = {axis: labels for axis, labels in checked.coords.items() if axis != "class"}
        coords |= {} if names is None else {"class": names}
        return replace(checked, coords=coords, others={"response": given})

    @property
    def named_sizes(self) -> dict[str, int]:
        """A binary response has two names."""
        return {"class": 2} if self.response == "binary" else {}

    def _encode_names(self, given: Any, known: list[Any] | None) -> tuple[Any, list[Any] | None]:
        """One response a document as numbers, and the names of the classes; known: those of a fit.

        Raises DataError for names that are not known, and for another number of them than the model has.
        """
        if self.response not in ("binary", "categorical") or self.num_responses > 1:
            return given, None
        given, names = encode_classes(given, known)
        number = self.named_sizes.get("class", self.num_classes)
        if names is not None and len(names) != number:
            found = f"{len(names)} classes ({', '.join(map(str, names[:8]))}{', ...' if len(names) > 8 else ''})"
            expected = 'two, or response="categorical"' if self.response == "binary" else f"num_classes = {number}"
            raise DataError(found, expected=expected)
        return given, names

    def prepare_new(self, data: Any, like: Data, *, response: Any = None, **settings: Any) -> Data:
        """As :meth:`prepare`, in the vocabulary and with the classes of the documents ``like``."""
        checked = super().prepare_new(data, like, **settings)
        known = {axis: names for axis, names in like.coords.items() if axis == "class"}
        return self.prepare(replace(checked, coords=checked.coords | known), response=response)

    def check_for_fitting(self, data: Data) -> None:
        """Refuses what LDA refuses, and data without any response, or whose responses are all the same."""
        super().check_for_fitting(data)
        known = data.others.get("response")
        if known is None or bool(torch.isnan(known).all()):
            what = {"binary": "0 or 1, or one of two names", "categorical": f"0 to {self.num_classes - 1}, or a name"}
            each = what.get(self.response, {"real": "a number", "counts": "0, 1, 2, ..."}.get(self.response, ""))
            found = "no responses" if known is None else f"all {len(known)} responses are missing"
            raise DataError(
                found, site="response", expected=f"fit(model, words, response=...), {each} of some documents"
            )
        for place, column in enumerate(known.reshape(len(known), -1).T):
            seen = column[~torch.isnan(column)]
            which = f"of response {place} " if self.num_responses > 1 else ""
            if not len(seen):
                raise DataError(f"no value {which}is known", site="response", expected="some documents to learn from")
            if bool((seen == seen[0]).all()):
                found = f"all {len(seen)} values {which}are {float(seen[0]):g}"
                raise DataError(found, site="response", expected="at least two different ones to learn from")

    @classmethod
    def for_data(cls, data: Data, num_components: int, **settings: Any) -> Self:
        """The model of the data's vocabulary, with as many classes or responses as the data have."""
        response, kind = data.others.get("response"), settings.get("response", "binary")
        if response is not None and response.ndim > 1:
            settings.setdefault("num_responses", response.shape[1])
        elif response is not None and kind == "categorical":
            settings.setdefault("num_classes", max(2, int(torch.nan_to_num(response).max()) + 1))
        return super().for_data(data, num_components, **settings)

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
