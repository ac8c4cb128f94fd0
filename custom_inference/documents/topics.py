"""Topics as people read them: tables of their words, how coherent these are, and what pyLDAvis draws.

Topic coherence: whether the top words of a topic occur in the same documents of a reference corpus.

D(v) documents have word v, D(v, w) have both, of N; p(v) = D(v) / N and p(v, w) = D(v, w) / N. Over the pairs of the
``top`` most probable words of a topic, v_1 the most probable:

    umass: log (D(v_m, v_l) + 1) / D(v_l), l < m     Mimno, Wallach, Talley, Leenders & McCallum, EMNLP 2011
    uci:   log (p(v, w) + e) / (p(v) p(w))           Newman, Lau, Grieser & Baldwin, NAACL 2010
    npmi:  uci / -log (p(v, w) + e), in [-1, 1]      Bouma, GSCL 2009

e = 1e-12, as Röder, Both & Hinneburg, WSDM 2015. umass was printed as a sum over the pairs; here all are means, which
do not grow with ``top``. uci and npmi were printed with sliding windows of text; here the window is the document, all
that counts leave.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch.distributions import constraints

from custom_inference.core.result import Result
from custom_inference.core.settings import require_whole
from custom_inference.families.common.documents import DocumentRows
from ppl_models import Data, DataWarning, MethodError, Sequences, as_documents
from ppl_models.core.errors import unknown_name
from ppl_models.data import sparse

Array = NDArray[np.float64]

#: How words can be ranked within a topic.
RANKINGS = ("probability", "lift", "relevance", "frex")
MEASURES = ("umass", "uci", "npmi")
_EPSILON = 1e-12


def topic_table(fit: Result, top: int = 10, *, by: str = "probability", weight: float | None = None) -> pd.DataFrame:
    """The ``top`` words of every topic (all where there are fewer): a line for each topic and rank, the most used
    topic first.

    by, with b_kv = p(word v | topic k), share_k the topic's share of the corpus and p(v) = sum_k share_k b_kv
    ------------------------------------------------------------------------------------------------------
    "probability": b_kv.
    "lift": b_kv / p(v) (Taddy, AISTATS 2012): words that are the topic's own, the rare ones above all.
    "relevance": weight log b_kv + (1 - weight) log lift (Sievert & Shirley, ILLVI 2014); weight = .6.
    "frex": 1 / (weight / E + (1 - weight) / F) of the word's ranks, as shares, by exclusivity b_kv / sum_l b_lv and by
        b_kv within the topic (Bischof & Airoldi, ICML 2012); weight = .5.

    Returns columns ``word``, ``probability`` and ``score``, indexed by ``topic`` and ``rank`` (from 1);
    ``topic_table(fit)["word"].unstack("topic")`` has the words side by side.
    """
    words, names = _word_probabilities(fit), fit.coords["component"]
    if by not in RANKINGS:
        raise MethodError(unknown_name("ranking of words", by, RANKINGS))
    if weight is not None and (by in ("probability", "lift") or not 0 <= weight <= 1):
        raise MethodError(f"weight = {weight} for by = {by!r}; expected 0 to 1, for 'relevance' or 'frex'")
    require_whole("top", top)
    share, vocabulary = shares(fit), fit.coords[fit.model.feature_axis]
    score = _scores(words, share, by, weight)
    lines: list[dict[str, Any]] = []
    for k in np.argsort(-share, kind="stable").tolist():
        for rank, j in enumerate(np.argsort(-score[k], kind="stable")[:top].tolist(), 1):
            line = {"topic": names[k], "rank": rank, "word": vocabulary[j]}
            lines.append({**line, "probability": words[k, j], "score": score[k, j]})
    return pd.DataFrame(lines).set_index(["topic", "rank"])


def _scores(words: Array, share: Array, by: str, weight: float | None) -> Array:
    """The score (K, V) that words are ranked by."""
    if by == "probability":
        return words
    tiny = np.finfo(float).tiny
    overall = np.maximum(share @ words, tiny)
    if by == "lift":
        return words / overall
    if by == "relevance":
        weight = 0.6 if weight is None else weight
        return np.log(np.maximum(words, tiny)) - (1 - weight) * np.log(overall)
    weight = 0.5 if weight is None else weight
    exclusive = _rank_share(words / np.maximum(words.sum(0), tiny))
    return 1 / (weight / exclusive + (1 - weight) / _rank_share(words))


def _rank_share(values: Array) -> Array:
    """Of every row the empirical distribution function at its own values: the share of values that are no larger."""
    return np.asarray(pd.DataFrame(values).rank(axis=1, method="max", pct=True))


def shares(fit: Result) -> Array:
    """Each topic's share of the tokens (K,): the documents' proportions, weighted by their lengths."""
    lengths = _counted(fit.data).lengths.cpu().double().numpy()
    return lengths @ proportions(fit) / max(lengths.sum(), 1.0)


def proportions(fit: Result) -> Array:
    """The topic proportions of the documents of the fit, (N, K)."""
    _require_topics(fit)
    model: Any = fit.model
    found = fit.params.get(model.local_site)
    found = fit.posterior.mean if found is None else found
    return model.proportions(found.detach()).cpu().double().numpy()


def to_pyldavis(fit: Result) -> dict[str, Any]:
    """The arguments of ``pyLDAvis.prepare``: ``pyLDAvis.prepare(**to_pyldavis(fit))``. pyLDAvis itself is not needed.

    topic_term_dists (K, V) and doc_topic_dists (N, K), whose rows sum to 1; doc_lengths (N,); vocab, V strings;
    term_frequency (V,). Documents without tokens and words without occurrence are left out, as pyLDAvis divides by
    their counts; topics are normalised over the words that are left.
    """
    words, counts = _word_probabilities(fit), sparse.to_scipy(_counted(fit.data).counts)
    lengths, frequency = np.asarray(counts.sum(1)).ravel(), np.asarray(counts.sum(0)).ravel()
    kept, occurring = lengths > 0, frequency > 0
    if not kept.any():
        raise MethodError("every document is empty: nothing to draw")
    mix = proportions(fit)[kept]
    vocabulary = [str(word) for word, used in zip(fit.coords[fit.model.feature_axis], occurring, strict=True) if used]
    topics = words[:, occurring]
    return {
        "topic_term_dists": topics / topics.sum(1, keepdims=True),
        "doc_topic_dists": mix / mix.sum(1, keepdims=True),
        "doc_lengths": lengths[kept].astype(np.int64),
        "vocab": vocabulary,
        "term_frequency": frequency[occurring].astype(np.int64),
    }


def _counted(data: Data) -> DocumentRows:
    """The words of documents, counted; of sequences too."""
    return DocumentRows.of(data.counts() if isinstance(data, Sequences) else data)


def _require_topics(fit: Result) -> None:
    support = fit.model.sites[fit.model.component_site].support
    if fit.model.data_kind not in ("documents", "sequences") or support != constraints.simplex:
        raise MethodError(f"{type(fit.model).__name__} has no topics; this is for models of documents that have")


def _word_probabilities(fit: Result) -> Array:
    _require_topics(fit)
    return fit.params[fit.model.component_site].detach().cpu().double().numpy()


def coherence(topics: Any, x: Any = None, measure: str = "npmi", *, top: int = 10) -> pd.Series:
    """The coherence of every topic: the mean of the measure over the pairs of its ``top`` most probable words.

    topics: a fit of a document model, or word probabilities (K, V). x: the reference corpus, in the fit's vocabulary
        (by default the documents of the fit), or with V columns. Presence counts, not how often.

    Pairs with a word that is in no reference document say nothing and are left out, with a DataWarning; a topic without
    any pair left is NaN. Of a series the mean is the model's coherence.

    Raises MethodError for an unknown measure, or fewer than two words.
    """
    if measure not in MEASURES:
        raise MethodError(unknown_name("measure of coherence", measure, MEASURES))
    words, data, names = _topics_and_corpus(topics, x)
    if not 2 <= top <= words.shape[1]:
        raise MethodError(f"top = {top}, expected 2 to {words.shape[1]} words")
    chosen = np.argsort(-words, axis=1, kind="stable")[:, :top]
    each, alone, together = _occurrences(data, chosen)
    first, second = np.triu_indices(top, 1)  # first < second: the more probable word
    unknown = (alone[each[:, first]] == 0) | (alone[each[:, second]] == 0)
    if unknown.any():
        absent = int((alone == 0).sum())
        message = f"{absent} of the top words are in no reference document; pairs with them are left out"
        warnings.warn(message, DataWarning, stacklevel=2)
    both = together[each[:, first], each[:, second]]
    with np.errstate(divide="ignore", invalid="ignore"):
        values = _measured(measure, both, alone[each[:, first]], alone[each[:, second]], len(data))
        values[unknown] = np.nan
        mean = np.nansum(values, 1) / (~unknown).sum(1)
    return pd.Series(mean, index=pd.Index(names, name="topic"), name=measure)


def _measured(measure: str, both: Any, first: Any, second: Any, total: int) -> Any:
    if measure == "umass":
        return np.log((both + 1) / first)
    joint = both / total + _EPSILON
    pointwise = np.log(joint * total**2 / (first * second))
    if measure == "uci":
        return pointwise
    # Two words in every document: the limit of the ratio as p(v, w) -> 1.
    return np.where(both == total, 1.0, pointwise / np.where(both == total, 1.0, -np.log(joint)))


def _topics_and_corpus(topics: Any, x: Any) -> tuple[Any, Data, list[Any]]:
    """Word probabilities (K, V), the reference corpus, and the names of the topics."""
    if hasattr(topics, "model"):
        data = topics.data if x is None else topics.as_data(x, None)
        return _word_probabilities(topics), data, list(topics.coords["component"])
    if x is None:
        raise MethodError("topics without a fit need a reference corpus, x")
    words = torch.as_tensor(topics).detach().cpu().double().numpy()
    if words.ndim != 2:
        raise MethodError(f"topics of shape {words.shape}, expected a fit or word probabilities (K, V)")
    return words, as_documents(x, vocabulary_size=words.shape[1]), list(range(len(words)))


def _occurrences(data: Data, chosen: Any) -> tuple[Any, Any, Any]:
    """Places of the chosen words among all that are chosen, D(v) of these, and D(v, w)."""
    words, each = np.unique(chosen, return_inverse=True)
    present = (sparse.to_scipy(_counted(data).counts)[:, words] > 0).astype(np.float64)
    together = np.asarray((present.T @ present).todense())
    return each.reshape(chosen.shape), together.diagonal().copy(), together
