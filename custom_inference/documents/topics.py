"""Topics as people read them: tables of their words, how coherent these are, and what pyLDAvis draws.

Topic coherence: whether the top words of a topic occur in the same documents of a reference corpus.

D(v) documents have word v, D(v, w) have both, of N; p(v) = D(v) / N and p(v, w) = D(v, w) / N. Over the pairs of the
``top`` most probable words of a topic, v_1 the most probable:

    umass: log (D(v_m, v_l) + 1) / D(v_l), l < m     Mimno, Wallach, Talley, Leenders & McCallum, EMNLP 2011
    uci:   log (p(v, w) + e) / (p(v) p(w))           Newman, Lau, Grieser & Baldwin, NAACL 2010
    npmi:  uci / -log (p(v, w) + e), in [-1, 1]      Bouma, GSCL 2009

e = 1e-12, as Röder, Both & Hinneburg, WSDM 2015. umass was printed as a sum over the pairs; here all are means, which
do not grow with ``top``. uci and npmi were printed with sliding windows of text; by these names the window is the
document, all that counts leave. By window_uci, window_npmi (windows of 10 tokens) and window_cv (of 110) D are windows
of texts (``documents.windows``).

u_mass, c_uci, c_npmi and c_v are what gensim 4 has by these names (``CoherenceModel(...).get_coherence_per_topic()``),
which differs in three places:

    u_mass: log (p(v_m, v_l) + e) / p(v_l), l < m: e in place of 1 / N, so that pairs that never meet cost 20 and more
    c_uci, c_npmi, c_v: windows as gensim counts them, in which a word that left by the left end is taken to be gone,
        whether or not it stands in the window again (``documents.windows``)
    c_npmi, c_v: two words that are in every window have log(1 + e) / -log(1 + e) = -1, not the limit of npmi, 1
"""

from __future__ import annotations

import warnings
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from torch.distributions import constraints

from custom_inference.core.registry import presentation_of
from custom_inference.core.result import Result
from custom_inference.core.settings import require_whole
from custom_inference.documents.windows import Texts, window_counts
from custom_inference.families.rows.documents import DocumentRows
from ppl_models import Data, DataWarning, MethodError, Sequences, as_documents
from ppl_models.core.errors import unknown_name
from ppl_models.data import sparse

Array = NDArray[np.float64]

#: How words can be ranked within a topic.
RANKINGS = ("probability", "lift", "relevance", "frex")
MEASURES = ("umass", "uci", "npmi", "window_uci", "window_npmi", "window_cv", "u_mass", "c_uci", "c_npmi", "c_v")
#: Tokens of a window of the measures that read texts.
WINDOWS = {"window_uci": 10, "window_npmi": 10, "window_cv": 110, "c_uci": 10, "c_npmi": 10, "c_v": 110}
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
    exclusive = words / np.maximum(words.sum(0), tiny)
    # The empirical distribution function of every row at its own values: the share of values not larger.
    own, within = (pd.DataFrame(one).rank(axis=1, method="max", pct=True).to_numpy() for one in (exclusive, words))
    return 1 / (weight / own + (1 - weight) / within)


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
    topics: Result | ArrayLike | torch.Tensor,
    x: Any = None,
    measure: str = "npmi",
    *,
    top: int = 10,
    texts: Texts | None = None,
    window: int | None = None,
) -> pd.Series:
    """The coherence of every topic: the mean of the measure over the pairs of its ``top`` most probable words.

    topics: a fit of a document model, or word probabilities (K, V). x: the reference corpus, in the fit's vocabulary
        (by default the documents of the fit), or with V columns. Presence counts, not how often.
    measure: "npmi", "uci" or "umass", of documents; "window_npmi", "window_uci" or "window_cv", of windows of texts;
        or, with the numbers of gensim, "u_mass", of documents, "c_npmi", "c_uci" or "c_v", of windows, which differ
        from these as the module says. window_cv and c_v are means over the top words. (gensim takes 20 words a topic.)
    texts: of the corpus, for windows: strings, which are cut as ``documents`` does and keep their stop words, lists of
        words, or ``Sequences`` (by default those of the fit).
    window: tokens of a window; by default 110 of window_cv and c_v, else 10.

    Pairs with a word that is in no reference document say nothing and are left out, with a DataWarning, where gensim
    has infinity or NaN (of u_mass they count as there, 0 or the logarithm of e); a topic without any pair left is NaN.
    Of a series the mean is the model's coherence.

    Raises MethodError for an unknown measure, or fewer than two words; for windows without texts, and texts without.
    """
    if measure not in MEASURES:
        raise MethodError(unknown_name("measure of coherence", measure, MEASURES))
    windowed = measure in WINDOWS
    if not windowed and (texts is not None or window is not None):
        raise MethodError(f"texts= or window= for {measure!r}, which counts documents; expected {', '.join(WINDOWS)}")
    if isinstance(topics, Result):
        fit, words, names = topics, _word_probabilities(topics), list(topics.coords["component"])
        vocabulary = fit.coords[fit.model.feature_axis]
    else:
        fit, words = None, _as_words(topics)
        names, vocabulary = list(range(len(words))), range(words.shape[1])
    if windowed:
        texts = _texts_of(fit, measure) if texts is None else texts
        window = WINDOWS[measure] if window is None else window
        require_whole("window", window)
        columns, each = _choose_words(words, top)
        together, number = window_counts(texts, vocabulary, columns, window, as_gensim=measure.startswith("c_"))
    else:
        data = _corpus(fit, x, words.shape[1])
        columns, each = _choose_words(words, top)
        present = (sparse.to_scipy(_count_words(data).counts)[:, columns] > 0).astype(np.float64)
        together, number = np.asarray((present.T @ present).todense()), len(data)
    alone = together.diagonal().copy()
    if not alone.all():
        absent, where = int((alone == 0).sum()), "text" if windowed else "document"
        pairs = "count as in gensim" if measure == "u_mass" else "are left out"
        message = f"{absent} of the top words are in no reference {where}; pairs with them {pairs}"
        warnings.warn(message, DataWarning, stacklevel=2)
    score = _cosine if measure in ("window_cv", "c_v") else _mean
    values = [score(measure, alone[one], together[np.ix_(one, one)], number) for one in each]
    return pd.Series(values, index=pd.Index(names, name="topic"), name=measure)


def _texts_of(fit: Result | None, measure: str) -> Sequences:
    """The texts of a fit. Raises MethodError where there are none."""
    if fit is None or fit.model.data_kind != "sequences":
        problem = f"{measure!r} reads texts, and counts of words do not hold their order"
        raise MethodError(f"{problem}; expected texts=, the strings or lists of words of the corpus, or 'npmi'")
    return cast(Sequences, fit.data)


def _corpus(fit: Result | None, x: Any, vocabulary_size: int) -> Data:
    """The reference corpus: that of the fit, or another."""
    if fit is not None:
        return fit.data if x is None else fit.read(x, None)
    if x is None:
        raise MethodError("topics without a fit need a reference corpus, x")
    return as_documents(x, vocabulary_size=vocabulary_size)


def _choose_words(words: Array, top: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Columns (M,) that are among the top of some topic, and the places there of those of every topic, (K, top), the
    most probable first."""
    if not 2 <= top <= words.shape[1]:
        raise MethodError(f"top = {top}, expected 2 to {words.shape[1]} words")
    chosen = np.argsort(-words, axis=1, kind="stable")[:, :top]
    columns, each = np.unique(chosen, return_inverse=True)
    return columns, each.reshape(chosen.shape)


def _mean(measure: str, alone: Array, together: Array, total: int) -> float:
    """Average a measure over the pairs of a topic's words that occur, from counts (M,) and (M, M); NaN without any."""
    known = np.arange(len(alone)) if measure == "u_mass" else np.flatnonzero(alone)
    first, second = np.triu_indices(len(known), 1)  # first < second: the more probable word
    if not len(first):
        return np.nan
    first, second = known[first], known[second]
    return float(_measure(measure, together[first, second], alone[first], alone[second], total).mean())


def _cosine(measure: str, alone: Array, together: Array, total: int) -> float:
    """window_cv or c_v of a topic (``documents.windows``), of its words that occur; NaN with fewer than two."""
    known = np.flatnonzero(alone)
    if len(known) < 2:
        return np.nan
    both, single = together[np.ix_(known, known)], alone[known]
    direct = "c_npmi" if measure == "c_v" else "window_npmi"
    pointwise = _measure(direct, both, single[:, None], single, total)
    whole = pointwise.sum(0)
    norms = np.linalg.norm(pointwise, axis=1) * np.linalg.norm(whole)
    return float((pointwise @ whole / np.maximum(norms, np.finfo(float).tiny)).mean())


def _measure(measure: str, both: Array, first: Array, second: Array, total: int) -> Array:
    if measure == "umass":
        return np.log((both + 1) / first)
    joint = both / total + _EPSILON
    if measure == "u_mass":  # 0 where the word that is conditioned on is nowhere
        return np.where(first == 0, 0.0, np.log(joint * total / np.maximum(first, 1)))
    pointwise = np.log(joint / ((first / total) * (second / total)))
    if measure.endswith("uci"):
        return pointwise
    # Two words in every document: the limit of the ratio as p(v, w) -> 1, and what gensim has in its place.
    always = both == total
    return np.where(always, -1.0 if measure == "c_npmi" else 1.0, pointwise / np.where(always, 1.0, -np.log(joint)))


def _as_words(topics: ArrayLike | torch.Tensor) -> Array:
    words = torch.as_tensor(topics).detach().cpu().double().numpy()
    if words.ndim != 2:
        raise MethodError(f"topics of shape {words.shape}, expected a fit or word probabilities (K, V)")
    return words
