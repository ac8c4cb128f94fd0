"""Statistics of documents: word counts n (N, V) as a sparse array; the documents' lengths are given, not checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

Array = NDArray[Any]


def _sizes(x: Any) -> Array:
    """Distinct words of every document, (N,)."""
    return np.diff(x.indptr)


def distinct_words(x: Any) -> float:
    """The mean number of distinct words of a document: fewer than copies have where words come in bursts."""
    return float(_sizes(x).mean())


def distinct_words_variance(x: Any) -> float:
    """The variance over the documents of their numbers of distinct words."""
    return float(_sizes(x).var())


def vocabulary(x: Any) -> float:
    """The number of words that occur in some document."""
    return float(len(np.unique(x.indices)))


def max_count(x: Any) -> float:
    """The largest count of a word in a document."""
    return float(x.data.max(initial=0))


def burstiness(x: Any) -> float:
    """E[n_dv | n_dv > 0] over all documents and words: how often a word returns once it is there (Church & Gale,
    *Poisson mixtures*, Natural Language Engineering 1, 1995)."""
    return float(x.data.mean()) if x.nnz else 0.0


def dispersion(x: Any) -> float:
    """The index of dispersion Var_d(n_dv) / E_d(n_dv) of the words, weighted by how often they occur."""
    size = x.shape[0]
    mean = np.bincount(x.indices, x.data, x.shape[1]) / size
    square = np.bincount(x.indices, x.data**2, x.shape[1]) / size
    # Weighted by the means, which cancel.
    return float((square - mean**2).sum() / mean.sum()) if x.nnz else 0.0


def word_total(x: Any) -> Array:
    """The number of tokens of each word, (V,)."""
    return np.bincount(x.indices, x.data, x.shape[1])


def document_frequency(x: Any) -> Array:
    """The number of documents with each word, (V,)."""
    return np.bincount(x.indices, minlength=x.shape[1]).astype(float)


def word_document_information(x: Any, local: Array, params: Mapping[str, Array]) -> float:
    """Mutual information of word and document given the topic, in nats a token, 0 under the model but for chance:

        I(W; D | K) = sum_k N_k / N sum_dv N_dvk / N_k log(N_dvk N_k / (N_dk N_vk))

    (Mimno & Blei, *Bayesian checking for topic models*, EMNLP 2011, section 4), with the expected counts
    N_dvk = n_dv pi_dk b_kv / sum_l pi_dl b_lv in place of sampled topics of the tokens. A realised discrepancy:
    local = pi (N, K) and params["topic"] = b (K, V) are those of a draw.
    """
    counts, topic = x.tocoo(), params["topic"]
    joint = local[counts.row] * topic.T[counts.col]
    joint *= (counts.data / joint.sum(1).clip(min=np.finfo(float).tiny))[:, None]  # N_dvk of what occurs
    total = joint.sum(0)
    by_document, by_word = _summed(joint, counts.row, x.shape[0]), _summed(joint, counts.col, x.shape[1])
    terms = _n_log_n(joint) + _n_log_n(total) - _n_log_n(by_document) - _n_log_n(by_word)
    return terms / max(float(total.sum()), 1.0)


def _n_log_n(counts: Array) -> float:
    """sum n log n."""
    positive = counts[counts > 0]
    return float((positive * np.log(positive)).sum())


def _summed(values: Array, index: Array, size: int) -> Array:
    places = (np.ones(len(index)), (index, np.arange(len(index))))
    return scipy.sparse.csr_array(places, shape=(size, len(index))) @ values
