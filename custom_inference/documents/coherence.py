"""Topic coherence: whether the top words of a topic occur in the same documents of a reference corpus.

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
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import scipy.sparse
import torch

from ppl_models import Data, DataWarning, MethodError, as_documents
from ppl_models.core.errors import unknown_name
from ppl_models.data import sparse

if TYPE_CHECKING:
    from custom_inference.core.fit import Fit

MEASURES = ("umass", "uci", "npmi")
_EPSILON = 1e-12


def coherence(topics: Fit | Any, x: Any = None, measure: str = "npmi", *, top: int = 10) -> pd.Series:
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
        site = topics.model.component_site
        data = topics.data if x is None else topics.as_data(x, None)
        return topics.params[site].detach().cpu().double().numpy(), data, list(topics.coords["component"])
    if x is None:
        raise MethodError("topics without a fit need a reference corpus, x")
    words = torch.as_tensor(topics).detach().cpu().double().numpy()
    if words.ndim != 2:
        raise MethodError(f"topics of shape {words.shape}, expected a fit or word probabilities (K, V)")
    return words, as_documents(x, vocabulary_size=words.shape[1]), list(range(len(words)))


def _occurrences(data: Data, chosen: Any) -> tuple[Any, Any, Any]:
    """Places of the chosen words among all that are chosen, D(v) of these, and D(v, w)."""
    words, each = np.unique(chosen, return_inverse=True)
    x = data.x if data.mask is None else data.x * data.mask
    counts: Any = scipy.sparse.csr_matrix(sparse.to_scipy(x) if data.is_sparse else x.cpu().numpy())
    present = (counts[:, words] > 0).astype(np.float64)
    together = np.asarray((present.T @ present).todense())
    return each.reshape(chosen.shape), together.diagonal().copy(), together
