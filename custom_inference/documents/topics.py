"""Topics as people read them: tables of their words, and what pyLDAvis draws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from custom_inference.core.result import Result
from ppl_models import MethodError
from ppl_models.core.errors import unknown_name
from ppl_models.data import sparse

Array = NDArray[np.float64]

#: How words can be ranked within a topic.
RANKINGS = ("probability", "lift", "relevance", "frex")


def topic_table(fit: Result, top: int = 10, *, by: str = "probability", weight: float | None = None) -> pd.DataFrame:
    """The ``top`` words of every topic: a line for each topic and rank, the most used topic first.

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
    words, names = _word_probabilities(fit), _names(fit)
    if by not in RANKINGS:
        raise MethodError(unknown_name("ranking of words", by, RANKINGS))
    if weight is not None and (by in ("probability", "lift") or not 0 <= weight <= 1):
        raise MethodError(f"weight = {weight} for by = {by!r}; expected 0 to 1, for 'relevance' or 'frex'")
    if not 1 <= top <= words.shape[1]:
        raise MethodError(f"top = {top}, expected 1 to {words.shape[1]} words")
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
    lengths = _lengths(fit)
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
    words, counts = _word_probabilities(fit), _counts(fit)
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


def _require_topics(fit: Result) -> None:
    if fit.model.data_kind != "documents":
        raise MethodError(f"{type(fit.model).__name__} has no topics; this is for models of documents")


def _word_probabilities(fit: Result) -> Array:
    _require_topics(fit)
    return fit.params[fit.model.component_site].detach().cpu().double().numpy()


def _names(fit: Result) -> list[Any]:
    return list(fit.coords["component"])


def _counts(fit: Result) -> Any:
    x = fit.data.x if fit.data.mask is None else fit.data.x * fit.data.mask
    return sparse.to_scipy(x) if fit.data.is_sparse else x.cpu().numpy()


def _lengths(fit: Result) -> Array:
    return np.asarray(_counts(fit).sum(1), dtype=float).ravel()
