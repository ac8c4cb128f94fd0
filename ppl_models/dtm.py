"""Dynamic topic model (DTM): topics whose words change over time, each logit by a Gaussian random walk.

Source 002, section 27.4.2 (Blei & Lafferty, *Dynamic topic models*, ICML 2006), with what it leaves open stated. With
time slices t = 1..T, topics k, words v, and document i of slice t_i (a document has the proportions pi_i):

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
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints
from torch.distributions.transforms import AffineTransform

from ppl_models.core.document_model import DocumentModel, TopicAdmixture, example_topics
from ppl_models.core.errors import DataError, ModelError, about, warn_of_absent
from ppl_models.core.hierarchy import is_function, typical_values
from ppl_models.core.model import Example
from ppl_models.core.priors import is_bounded, support_of, value_if_known
from ppl_models.core.sites import Site
from ppl_models.data import sparse as _sparse
from ppl_models.data.covariates import beside
from ppl_models.data.lazy import is_pandas
from ppl_models.data.lazy import pandas as pd
from ppl_models.data.matrix import Data
from ppl_models.data.times import BINNING, count_slices, slices_of
from ppl_models.distributions import GaussianRandomWalk, Tokens


@dataclass(frozen=True, kw_only=True, eq=False)
class DTM(DocumentModel):
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

    num_times: int

    axes: ClassVar[Mapping[str, str]] = {**DocumentModel.axes, "time": "num_times"}
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
        """Of ``topic_logit`` what its prior is of: the first slice (K, V), unless the whole site is known."""
        shape = super().shape_of(site)
        first = site == "topic_logit" and value_if_known(self.priors.get(site)) is None
        return shape[1:] if first else shape

    def prior(self, site: str, *, like: Tensor | None = None, values: Mapping[str, Tensor] | None = None) -> Any:
        """As of any model; of ``topic_logit`` the walk at the values of the other sites (typical ones if there are
        none)."""
        if site != "topic_logit" or value_if_known(self.priors[site]) is not None:
            return super().prior(site, like=like, values=values)
        standard: Any = super().prior(site, like=like, values=values)
        while isinstance(standard, torch.distributions.Independent):
            standard = standard.base_dist
        at = values if values and "drift_variance" in values else self._typical(like)
        scale = at["initial_scale"][..., None, None]
        first = dist.TransformedDistribution(
            standard.expand(self.shape_of(site)), [AffineTransform(at["background"][..., None, :], scale)]
        )
        return GaussianRandomWalk(first, at["drift_variance"], self.num_times)

    def _typical(self, like: Tensor | None) -> dict[str, Tensor]:
        """Values of the sites that the walk depends on where none are given."""
        found = typical_values(self, ("drift_variance", "background", "initial_scale"))
        return found if like is None else {site: value.to(like) for site, value in found.items()}

    def topics(self, values: Mapping[str, Tensor]) -> Tensor:
        """Word probabilities of the topics in every slice, (..., T, K, V)."""
        return torch.softmax(values["topic_logit"], -1)

    def to_slice_columns(self, data: Data) -> Data:
        """The same documents with a column t V + v for word v in slice t, (N, T V), sparse: documents of the topics of
        all slices side by side. Without their slices they are in the last."""
        seen = data.observed_x
        counts = seen if _sparse.is_sparse(seen) else _sparse.from_dense(seen)
        time = data.others.get("time", torch.full((len(data),), float(self.num_times - 1), device=seen.device))
        row, column, values = _sparse.triplets(counts)
        column = time.long()[row] * self.vocabulary_size + column
        size = (len(data), self.num_times * self.vocabulary_size)
        return Data(x=_sparse.tensor(counts.crow_indices(), column, values, size=size), coords={})

    def observe_rows(
        self, site: Mapping[str, Tensor], local: Tensor, x: Tensor | None, mask: Tensor | None, index: Tensor | None,
        num_tokens: Tensor | int | None = None, time: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """The statement of x (N, V); ``time`` (N,), without which documents are of the last slice.

        A document's tokens are drawn from T K topics, those of its slice and, with proportion 0, the others.
        """
        rows, num_tokens = self.counts_and_lengths(x, mask, index, num_tokens, self.document_length)
        if time is None:
            slices = torch.full(local.shape[-2:-1], self.num_times - 1, device=local.device)
        else:
            slices = (time if index is None else time[index]).long()
        chosen = torch.nn.functional.one_hot(slices, self.num_times).to(local)
        proportion = (chosen[:, :, None] * local[..., :, None, :]).flatten(-2)
        tokens: Any = Tokens(proportion, self.topics(site).flatten(-3, -2), num_tokens)
        return pyro.sample("x", tokens, obs=rows)

    def given(self, data: Data) -> dict[str, Any]:
        """The documents' lengths, and their slices where they are known."""
        times = {"time": data.others["time"]} if "time" in data.others else {}
        return {"num_tokens": _sparse.row_sums(data.observed_x).long(), **times}

    def given_rows(self, num_rows: int) -> dict[str, Any]:
        """Documents evenly over the slices, in their order."""
        return {"time": torch.arange(num_rows) * self.num_times // max(num_rows, 1)}

    def prepare(self, data: Any, *, mask: Any = None, dtype=None, device=None, time: Any = None) -> Data:
        """Word counts, and the times (N,) of the documents: whole numbers 0..T-1 are slices, which may be empty; of
        anything else the T different times that occur are the slices, in their order, or the categories of a pandas
        Categorical, and stay as labels. Raises DataError for others."""
        return self._with_slices(data, super().prepare(data, mask=mask, dtype=dtype, device=device), time, None)

    def prepare_new(self, data: Any, like: Data, *, time: Any = None, **settings: Any) -> Data:
        """As :meth:`prepare`, in the vocabulary and the slices of the documents ``like``. Raises DataError for times
        that these do not have; documents without times are of the last slice: there is the mean of what is to come."""
        return self._with_slices(data, super().prepare_new(data, like, **settings), time, like)

    def _with_slices(self, data: Any, checked: Data, time: Any, like: Data | None) -> Data:
        """With the slices beside the words; ``like``: what the model was fitted to, whose labels these have."""
        own = isinstance(data, Data) and time is None
        given = data.others.get("time") if own else time
        if given is None:
            return replace(checked, others={})
        labels = (data if own else Data(x=checked.x) if like is None else like).coords.get("time")
        with about("time"):
            if own and labels is not None:
                found, labels = given.double().cpu().numpy(), list(labels)
            else:
                if is_pandas(given, "Series"):  # in the order of the documents, where both have labels
                    place = beside(pd.Series(np.arange(len(given)), given.index), checked, dtype=torch.float64)
                    given = given.iloc[place.long().cpu().numpy()]
                found, labels = self._slices(given, labels, like is not None)
            if len(found) != len(checked):
                raise DataError(f"shape {found.shape}", expected=f"({len(checked)},), one a document")
            if len(labels) != self.num_times or not bool(np.isin(found, range(self.num_times)).all()):
                several = f"{len(labels)} different times, {', '.join(map(str, labels[:8]))}"
                raise DataError(several + (", ..." if len(labels) > 8 else ""), expected=self._describe_times())
        coords = {axis: names for axis, names in checked.coords.items() if axis != "time"}
        if labels != list(range(self.num_times)):
            coords["time"] = labels
        return replace(checked, coords=coords, others={"time": torch.as_tensor(found).to(checked.x)})

    def _slices(self, time: Any, known: list[Any] | None, fitted: bool) -> tuple[np.ndarray, list[Any]]:
        """Slices and their labels; known: those of a fit, which are numbers where there are none."""
        numbers = list(range(self.num_times))
        if fitted:
            return slices_of(time, numbers if known is None else known)
        found, labels = slices_of(time)
        if set(labels) <= set(numbers) and not hasattr(getattr(time, "cat", time), "categories"):
            return np.array(labels, dtype=np.float64)[found.astype(int)], numbers
        return found, labels

    def _describe_times(self) -> str:
        numbers = f"num_times = {self.num_times} of them, or whole numbers 0..{self.num_times - 1}"
        return f"{numbers}; DTM.for_data counts those that occur; or {BINNING}"

    def check_for_fitting(self, data: Data) -> None:
        """Refuses what LDA refuses, and documents without slices where there is more than one; warns of those without
        where there is one, in which nothing changes over time."""
        super().check_for_fitting(data)
        if "time" in data.others:
            return
        if self.num_times > 1:
            expected = f"fit(model, words, time=...), of num_times = {self.num_times} slices"
            raise DataError("documents without their slices", site="time", expected=expected)
        warn_of_absent("time", "all are of one slice, and no topic changes", "time=..., when each was written")

    @classmethod
    def for_data(cls, data: Data, num_components: int, **settings: Any) -> Self:
        """The model of as many words as the data, and of as many slices as their times say; one without times."""
        time = data.others.get("time")
        labels = data.coords.get("time")
        slices = 1 if time is None else num_slices(time) if labels is None else len(labels)
        settings.setdefault("num_times", slices)
        return super().for_data(data, num_components, **settings)

    def num_parameters(self, num_rows: int) -> int:
        """T K (V - 1) of the topics, V - 1 of the background, two scales, and K - 1 of every document."""
        free = (self.num_times * self.num_topics + 1) * (self.vocabulary_size - 1)
        return free + 2 + num_rows * (self.num_topics - 1)

    @classmethod
    def example(cls) -> Example:
        """Three topics over nine words in four slices, sixty documents of twenty tokens."""
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


def num_slices(time: Any) -> int:
    """How many slices these times say: the categories of a pandas Categorical, else the different ones that occur.
    Raises DataError for times that are missing, or nearly as many as documents."""
    with about("time"):
        return count_slices(time)
