"""What a fit of topics and syntax says of every token: its state, its topic, whether it is content."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from custom_inference.core.presentation import Params
from custom_inference.families.syntax.dirichlet import tables_of
from custom_inference.families.syntax.rows import SentenceRows, array
from ppl_models import LDAHMM, Data


def tokens(fit: Any, data: Data) -> pd.DataFrame:
    """One line a token, in their order: its ``document`` (label, or number), ``sentence`` in the document and
    ``position`` in the sentence (from 0), ``word``, the most probable ``state``, the most probable ``topic`` (-1 where
    the state is not that of content), and ``content_probability`` = p(state = 0).

    States are inferred by forward and backward passes at the posterior means of globals and proportions.
    """
    rows, posterior = SentenceRows.of(data, fit.model.vocabulary_size), fit.posterior
    if data is not fit.data:
        posterior = fit.posterior_of(data)
    tables, share = tables_of(fit.globals), array(posterior.mean)
    state = np.zeros((len(rows.words[0]), fit.model.num_states))
    rows.compute_expectations(tables, share, state=state)
    (word, start, of_sentence), document = rows.words, rows.document
    topic = (share[document] * tables.topic[word]).argmax(1)
    first = np.searchsorted(of_sentence, np.arange(len(rows)))
    sentence = np.repeat(np.arange(len(of_sentence)), np.diff(start))
    most = state.argmax(1)
    labels, words = (np.array(data.coords[axis], dtype=object) if axis in data.coords else None
                     for axis in ("row", "feature"))  # fmt: skip
    return pd.DataFrame({
        "document": document if labels is None else labels[document],
        "sentence": sentence - first[document],
        "position": np.arange(len(word)) - start[sentence],
        "word": word.astype(np.int64) if words is None else words[word],
        "state": most,
        "topic": np.where(most == 0, topic, -1),
        "content_probability": state[:, 0],
    })  # fmt: skip


def content_share(model: LDAHMM, params: Params, data: Data, mean: Tensor) -> Tensor:
    """The share of the tokens of content that each topic has, (K,), at the posterior means of the proportions."""
    rows = SentenceRows.of(data, model.vocabulary_size)
    usage = rows.compute_expectations(tables_of(dict(params)), array(mean)).usage.sum(0)
    return mean.new_tensor(usage / max(usage.sum(), np.finfo(float).tiny))
