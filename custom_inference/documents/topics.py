"""Topics as people read them: tables of their words, how coherent these are, and what pyLDAvis draws.

Topic coherence: whether the top words of a topic occur in the same documents of a reference corpus.

D(v) documents have word v, D(v, w) have both, of N; p(v) = D(v) / N and p(v, w) = D(v, w) / N. Over the pairs of the
``top`` most probable words of a topic, v_1 the most probable:

    umass: log (D(v_m, v_l) + 1) / D(v_l), l < m     Mimno, Wallach, Talley, Leenders & McCallum, EMNLP 2011
    uci:   log (p(v, w) + e) / (p(v) p(w))           Newman, Lau, Grieser & Baldwin, NAACL 2010
    npmi:  uci / -log (p(v, w) + e), in [-1, 1]      Bouma, GSCL 2009

e = 1e-12, as Röder, Both & Hinneburg, WSDM 2015. umass was printed as a sum over the pairs; here all are means, which
do not grow with ``top``. uci and npmi were printed with sliding windows of text; by these names the window is the
document, all that counts leave. Under the names of gensim and Palmetto they are what these have: u_mass is umass, and
c_uci and c_npmi (windows of 10 tokens) and c_v (of 110) read texts, with D the windows (``documents.windows``).
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch.distributions import constraints

from custom_inference.core.registry import presentation_of
from custom_inference.core.result import Result
from custom_inference.core.settings import require_whole
from custom_inference.documents.windows import cosine_coherence, window_counts
from custom_inference.families.rows.documents import DocumentRows
from ppl_models import Data, DataWarning, MethodError, Sequences, as_documents
from ppl_models.core.errors import unknown_name
from ppl_models.data import sparse

Array = NDArray[np.float64]

#: How words can be ranked within a topic.
RANKINGS = ("probability", "lift", "relevance", "frex")
MEASURES = ("umass", "uci", "npmi", "u_mass", "c_uci", "c_npmi", "c_v")
#: Tokens of a window of the measures that read texts.
WINDOWS = {"c_uci": 10, "c_npmi": 10, "c_v": 110}
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
    """Return the empirical distribution function of every row at its own values: the share of values not larger."""
    return np.asarray(pd.DataFrame(values).rank(axis=1, method="max", pct=True))


def shares(fit: Result) -> Array:
    """Each topic's share of the tokens (K,): the documents' proportions, weighted by their lengths."""
    lengths = _count_words(fit.data).lengths.cpu().double().numpy()
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
    words, counts = _word_probabilities(fit), sparse.to_scipy(_count_words(fit.data).counts)
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


def _count_words(data: Data) -> DocumentRows:
    """The words of documents, counted; of sequences too."""
    return DocumentRows.of(data.counts() if isinstance(data, Sequences) else data)


def _require_topics(fit: Result) -> None:
    simplex = fit.model.sites[fit.model.component_site].support == constraints.simplex
    texts = fit.model.data_kind in ("documents", "sequences")
    if not texts or not (simplex or hasattr(fit.model, "topics")):
        raise MethodError(f"{type(fit.model).__name__} has no topics; this is for models of documents that have")


def _word_probabilities(fit: Result) -> Array:
    """(K, V); of topics that change the means over their slices."""
    _require_topics(fit)
    return presentation_of(fit.model).matrix(fit.model, fit.params).detach().cpu().double().numpy()


def coherence(
    topics: Any, x: Any = None, measure: str = "npmi", *, top: int = 10, texts: Any = None, window: int | None = None
) -> pd.Series:
    """The coherence of every topic: the mean of the measure over the pairs of its ``top`` most probable words.

    topics: a fit of a document model, or word probabilities (K, V). x: the reference corpus, in the fit's vocabulary
        (by default the documents of the fit), or with V columns. Presence counts, not how often.
    measure: "npmi", "uci" or "umass", of documents; "u_mass", which is "umass"; or of windows of ``texts`` "c_v",
        "c_npmi" or "c_uci". c_v is a mean over the top words.
    texts: of the corpus, for windows: strings, which are cut as ``documents`` does and keep their stop words, lists of
        words, or ``Sequences`` (by default those of the fit).
    window: tokens of a window; by default 110 of c_v, else 10.

    Pairs with a word that is in no reference document say nothing and are left out, with a DataWarning; a topic without
    any pair left is NaN. Of a series the mean is the model's coherence.

    Raises MethodError for an unknown measure, or fewer than two words; for windows without texts, and texts without.
    """
    if measure not in MEASURES:
        raise MethodError(unknown_name("measure of coherence", measure, MEASURES))
    if measure in WINDOWS:
        words, names, vocabulary, texts = _topics_and_texts(topics, texts, measure)
        window = WINDOWS[measure] if window is None else window
        require_whole("window", window)
        chosen = _choose_words(words, top)
        columns, each = np.unique(chosen, return_inverse=True)
        together, number = window_counts(texts, vocabulary, columns, window)
        each, alone = each.reshape(chosen.shape), together.diagonal().copy()
    elif texts is not None or window is not None:
        raise MethodError(f"texts= or window= for {measure!r}, which counts documents; expected {', '.join(WINDOWS)}")
    else:
        words, data, names = _topics_and_corpus(topics, x)
        (each, alone, together), number = _occurrences(data, _choose_words(words, top)), len(data)
    if not alone.all():
        absent, where = int((alone == 0).sum()), "text" if measure in WINDOWS else "document"
        message = f"{absent} of the top words are in no reference {where}; pairs with them are left out"
        warnings.warn(message, DataWarning, stacklevel=2)
    score = _cosine if measure == "c_v" else _mean
    values = [score(measure, alone[one], together[np.ix_(one, one)], number) for one in each]
    return pd.Series(values, index=pd.Index(names, name="topic"), name=measure)


def _choose_words(words: Array, top: int) -> Any:
    """The columns of the top words of every topic, (K, top), the most probable first."""
    if not 2 <= top <= words.shape[1]:
        raise MethodError(f"top = {top}, expected 2 to {words.shape[1]} words")
    return np.argsort(-words, axis=1, kind="stable")[:, :top]


def _mean(measure: str, alone: Any, together: Any, total: int) -> float:
    """Average a measure over the pairs of a topic's words that occur, from counts (M,) and (M, M); NaN without any."""
    known = np.flatnonzero(alone)
    first, second = np.triu_indices(len(known), 1)  # first < second: the more probable word
    if not len(first):
        return np.nan
    first, second = known[first], known[second]
    return float(_measure(measure, together[first, second], alone[first], alone[second], total).mean())


def _cosine(measure: str, alone: Any, together: Any, total: int) -> float:
    """c_v of a topic, of its words that occur; NaN with fewer than two."""
    known = np.flatnonzero(alone)
    if len(known) < 2:
        return np.nan
    both, single = together[np.ix_(known, known)], alone[known]
    return cosine_coherence(_measure("npmi", both, single[:, None], single, total))


def _measure(measure: str, both: Any, first: Any, second: Any, total: int) -> Any:
    if measure in ("umass", "u_mass"):
        return np.log((both + 1) / first)
    joint = both / total + _EPSILON
    pointwise = np.log(joint * total**2 / (first * second))
    if measure in ("uci", "c_uci"):
        return pointwise
    # Two words in every document: the limit of the ratio as p(v, w) -> 1.
    return np.where(both == total, 1.0, pointwise / np.where(both == total, 1.0, -np.log(joint)))


def _topics_and_texts(topics: Any, texts: Any, measure: str) -> tuple[Any, list[Any], Any, Any]:
    """Word probabilities (K, V), the names of the topics, the vocabulary, and texts."""
    if not hasattr(topics, "model"):
        words = _as_words(topics)
        names, vocabulary, own = list(range(len(words))), range(words.shape[1]), None
    else:
        words, names = _word_probabilities(topics), list(topics.coords["component"])
        vocabulary, own = topics.coords[topics.model.feature_axis], topics.data
    texts = own if texts is None and isinstance(own, Sequences) else texts
    if texts is None:
        problem = f"{measure!r} reads texts, and counts of words do not hold their order"
        raise MethodError(f"{problem}; expected texts=, the strings or lists of words of the corpus, or 'npmi'")
    return words, names, vocabulary, texts


def _as_words(topics: Any) -> Any:
    words = torch.as_tensor(topics).detach().cpu().double().numpy()
    if words.ndim != 2:
        raise MethodError(f"topics of shape {words.shape}, expected a fit or word probabilities (K, V)")
    return words


def _topics_and_corpus(topics: Any, x: Any) -> tuple[Any, Data, list[Any]]:
    """Word probabilities (K, V), the reference corpus, and the names of the topics."""
    if hasattr(topics, "model"):
        data = topics.data if x is None else topics.as_data(x, None)
        return _word_probabilities(topics), data, list(topics.coords["component"])
    if x is None:
        raise MethodError("topics without a fit need a reference corpus, x")
    words = _as_words(topics)
    return words, as_documents(x, vocabulary_size=words.shape[1]), list(range(len(words)))


def _occurrences(data: Data, chosen: Any) -> tuple[Any, Any, Any]:
    """Places of the chosen words among all that are chosen, D(v) of these, and D(v, w)."""
    words, each = np.unique(chosen, return_inverse=True)
    present = (sparse.to_scipy(_count_words(data).counts)[:, words] > 0).astype(np.float64)
    together = np.asarray((present.T @ present).todense())
    return each.reshape(chosen.shape), together.diagonal().copy(), together
