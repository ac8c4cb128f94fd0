"""Topics over time: their words slice by slice, how much is said of them, and documents of one topic in any words.

For fits of :class:`ppl_models.DTM` (Murphy 2012, section 27.4.2 and figure 27.12). Slices are named by the labels that
came with the data, else by their numbers. What lies after the last slice is what the random walk says of it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from custom_inference.core.posteriors import WalkPosterior
from custom_inference.core.result import Result
from custom_inference.core.settings import require_whole
from custom_inference.documents.topics import proportions
from ppl_models import DTM, MethodError
from ppl_models.core.errors import unknown_name
from ppl_models.data import sparse
from ppl_models.data.held import is_whole

Array = NDArray[np.float64]

#: How alike the topics of documents are.
SIMILARITIES = ("hellinger", "cosine")
#: Logits that are drawn at a time.
_DRAWN = 2**24


def topics_over_time(fit: Result) -> Array:
    """Word probabilities at the posterior means of the logits, (T, K, V)."""
    model = _dynamic(fit)
    return model.topics(fit.globals).detach().cpu().double().numpy()


def words_over_time(fit: Result, topic: Hashable, top: int = 10, *, every: int = 1) -> pd.DataFrame:
    """The ``top`` words of a topic in every slice (or every so many), the most probable first: ranks by slices.

    topic: its number, or its label where topics have labels.
    """
    require_whole("top", top)
    require_whole("every", every)
    words, labels = topics_over_time(fit)[:, topic_number(fit, topic)], slices(fit)
    vocabulary = fit.coords[fit.model.feature_axis]
    columns = {}
    for t in range(0, len(words), every):
        columns[labels[t]] = [vocabulary[v] for v in np.argsort(-words[t], kind="stable")[:top]]
    found = pd.DataFrame(columns, index=pd.RangeIndex(1, 1 + min(top, len(vocabulary)), name="rank"))
    return found.rename_axis(columns="slice")


def word_probabilities(
    fit: Result,
    topic: Hashable,
    words: Sequence[Any],
    *,
    ahead: int = 0,
    level: float = 0.9,
    num_draws: int = 200,
    seed: int = 0,
) -> pd.DataFrame:
    """P(word | topic) of chosen words in every slice: a line for each word and slice.

    ahead: so many slices after the last too, as the walk has them. level: of the intervals, equal-tailed, of draws from
        the posterior of the logits.

    Returns columns ``probability`` (mean of the draws), ``low`` and ``high``, indexed by ``word`` and ``slice``.
    """
    require_whole("ahead", ahead, 0)
    require_whole("num_draws", num_draws, 2)
    if not 0 < level < 1:
        raise MethodError(f"level = {level}, expected between 0 and 1")
    vocabulary = {word: v for v, word in enumerate(fit.coords[fit.model.feature_axis])}
    unknown = [word for word in words if word not in vocabulary]
    if unknown:
        raise MethodError(f"the word {unknown[0]!r} is not in the vocabulary of {len(vocabulary)} words")
    chosen = [vocabulary[word] for word in words]
    drawn = _draw_probabilities(fit, topic_number(fit, topic), chosen, ahead, num_draws, seed)
    tail = (1 - level) / 2
    parts = {"probability": drawn.mean(0), "low": np.quantile(drawn, tail, 0), "high": np.quantile(drawn, 1 - tail, 0)}
    labels = [*slices(fit), *(f"+{step}" for step in range(1, ahead + 1))]
    index = pd.MultiIndex.from_product([list(words), labels], names=["word", "slice"])
    return pd.DataFrame({name: value.T.ravel() for name, value in parts.items()}, index=index)


def shares_over_time(fit: Result) -> pd.DataFrame:
    """The topics' shares of the tokens of each slice: slices by topics; NaN where a slice has no tokens."""
    model, mix = _dynamic(fit), proportions(fit)
    tokens = sparse.row_sums(fit.data.observed_x).cpu().double().numpy()
    total = np.zeros((model.num_times, mix.shape[1]))
    np.add.at(total, _times(fit), tokens[:, None] * mix)
    with np.errstate(invalid="ignore"):
        share = total / total.sum(1, keepdims=True)
    return pd.DataFrame(share, index=pd.Index(slices(fit), name="slice"), columns=list(fit.coords["component"]))


def documents_of_topic(fit: Result, topic: Hashable, top: int = 10) -> pd.DataFrame:
    """The ``top`` documents by their proportion of a topic, in the order of time: columns ``slice``, ``proportion``."""
    require_whole("top", top)
    share = proportions(fit)[:, topic_number(fit, topic)]
    best = np.argsort(-share, kind="stable")[:top]
    return _list_documents(fit, best[np.argsort(_times(fit)[best], kind="stable")], proportion=share)


def similar_documents(
    fit: Result,
    query: Any,
    top: int = 10,
    *,
    time: Any = None,
    slice_: Hashable | None = None,
    measure: str = "hellinger",
) -> pd.DataFrame:
    """Documents of the fit about what ``query`` is about, in the words of any time, the most alike first.

    They are compared by their topics: a document about heredity finds its likes before there was a word for genes.

    query: a document of the fit by its number, or one new document (words as the model takes them), with its ``time``.
    slice_: only documents of this slice. measure: "hellinger", 1 minus Hellinger's distance of the proportions, or
        "cosine".

    Returns columns ``slice`` and ``similarity``, indexed by the documents' labels.
    """
    if measure not in SIMILARITIES:
        raise MethodError(unknown_name("similarity", measure, SIMILARITIES))
    require_whole("top", top)
    mix, times = proportions(fit), _times(fit)
    if is_whole(query):
        if not 0 <= query < len(mix):
            raise MethodError(f"query = {query}, expected 0..{len(mix) - 1}, or a new document")
        one, kept = mix[int(query)], np.arange(len(mix)) != int(query)
    else:
        new = fit.transform(query, **({} if time is None else {"time": time}))
        one, kept = np.asarray(new, dtype=np.float64), np.ones(len(mix), dtype=bool)
        if len(one) != 1:
            raise MethodError(f"{len(one)} documents as a query, expected one")
        one = one[0]
    if slice_ is not None:
        kept &= times == _place(slice_, slices(fit), "slice")
    if measure == "hellinger":
        alike = 1 - np.sqrt(np.maximum(1 - np.sqrt(mix * one).sum(1), 0))
    else:
        alike = mix @ one / np.maximum(np.linalg.norm(mix, axis=1) * np.linalg.norm(one), np.finfo(float).tiny)
    order = np.argsort(-alike, kind="stable")
    return _list_documents(fit, order[kept[order]][:top], similarity=alike)


def slices(fit: Result) -> list[Any]:
    """The labels of the slices."""
    _dynamic(fit)
    return list(fit.coords["time"])


def _dynamic(fit: Result) -> DTM:
    if "drift_variance" not in fit.model.sites:
        raise MethodError(f"{type(fit.model).__name__} has no topics over time; expected a fit of DTM")
    return cast(DTM, fit.model)


def _times(fit: Result) -> NDArray[np.int_]:
    time = fit.data.others.get("time")
    last = _dynamic(fit).num_times - 1
    return np.full(len(fit.data), last) if time is None else time.cpu().numpy().astype(int)


def topic_number(fit: Result, topic: Hashable) -> int:
    """The place of a topic, by its label or number."""
    _dynamic(fit)
    return _place(topic, list(fit.coords["component"]), "topic")


def _place(given: Hashable, labels: list[Any], what: str) -> int:
    if given in labels:
        return labels.index(given)
    raise MethodError(unknown_name(what, str(given), [str(one) for one in labels]))


def _list_documents(fit: Result, chosen: NDArray[np.int_], **columns: Array) -> pd.DataFrame:
    names, labels, times = fit.coords[fit.model.row_axis], slices(fit), _times(fit)
    index = pd.Index([names[n] for n in chosen], name=fit.model.row_axis)
    values = {name: value[chosen] for name, value in columns.items()}
    return pd.DataFrame({"slice": [labels[times[n]] for n in chosen], **values}, index=index)


def _draw_probabilities(fit: Result, topic: int, words: list[int], ahead: int, number: int, seed: int) -> Array:
    """Probabilities of the words in slices and after them, (S, T + ahead, W), at draws of the logits; of a fit
    without a posterior of these at the logits alone."""
    posterior, logit = fit.global_posterior.get("topic_logit"), fit.params["topic_logit"][:, topic]
    variance, found = fit.params["drift_variance"], []
    generator = torch.Generator().manual_seed(seed)
    draws = None if fit.draws is None else fit.draws["topic_logit"][..., topic, :].flatten(0, 1)
    size = max(1, _DRAWN // logit.numel())
    for at in range(0, number, size):
        count = min(size, number - at)
        if draws is not None:
            own = draws[torch.linspace(0, len(draws) - 1, number).long()[at : at + count]]
        elif isinstance(posterior, WalkPosterior):
            location, diagonal = (part[:, [topic]] for part in (posterior.location, posterior.diagonal))
            one = WalkPosterior(location, diagonal, posterior.coupling[[topic]])
            own = one.sample(count, seed=seed + at)[:, :, 0]
        else:
            own = logit.expand(count, *logit.shape)
        later = torch.randn((count, ahead, logit.shape[-1]), generator=generator, dtype=torch.float64).to(own)
        own = torch.cat([own, own[:, -1:] + (later * variance.sqrt()).cumsum(1)], 1)
        found.append(torch.softmax(own.double(), -1)[..., words].cpu().numpy())
    return np.concatenate(found)
