"""Words that stand near each other: boolean sliding windows over texts, and the coherences that rest on them.

A window of w tokens begins at every token of a text that has w tokens from there on; a text of fewer is one window.
With p(v) and p(v, w) the shares of the windows that have v, and both (Röder, Both & Hinneburg, WSDM 2015):

    npmi(v, w) = log((p(v, w) + e) / (p(v) p(w))) / -log(p(v, w) + e),   e = 1e-12
    window_cv = mean_i cos(u_i, sum_j u_j),   u_i = (npmi(v_i, v_1), ..., npmi(v_i, v_M)) of the M top words of a topic

gensim slides one set along a text: at each step it takes out the word that the window leaves behind and puts in the one
that enters. What is taken out is gone although it may stand in the window again, until it enters anew: of a word at
places q and p its second occurrence does not count in windows after q where p - q is less than w.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppl_models import DataError, Sequences
from ppl_models.core.errors import a_value_of
from ppl_models.data.held import holds_several, is_listed, plain

Array = NDArray[Any]
#: Texts as strings, or as lists of words or of sentences.
Texts = Sequences | Iterable[str | Sequence[Any]]
#: Windows by entries of chosen words that are in memory at once.
_ENTRIES = 2**22


def window_counts(
    texts: Texts, vocabulary: Sequence[Any], words: Array, window: int, *, as_gensim: bool = False
) -> tuple[Array, int]:
    """How many windows have both words, (M, M), and how many windows there are.

    texts: strings, cut into words as ``documents`` does, or lists of words (perhaps of sentences of words), or
        ``Sequences``; of words by number where the vocabulary is one of numbers. words: the chosen columns, (M,).
    as_gensim: count words in windows as gensim does.
    """
    place = {vocabulary[column]: number for number, column in enumerate(words.tolist())}
    together, number = np.zeros((len(words), len(words))), 0
    for tokens in _tokens(texts):
        where = [(at, place[token]) for at, token in enumerate(tokens) if token in place]
        windows = max(1, len(tokens) - window + 1)
        number += windows
        if not where:
            continue
        at, word = np.array(where).T
        own = np.unique(word)
        step = max(1, _ENTRIES // len(own))
        for begin in range(0, windows, step):
            end = min(windows, begin + step)
            # Of every word: how many of its tokens lie before a place, at the window's beginning and behind its end.
            present = np.empty((end - begin, len(own)))
            edges = np.arange(begin, end)
            for column, one in enumerate(own):
                of_word = at[word == one]
                behind, seen = (np.searchsorted(of_word, end) for end in (edges, edges + window))
                present[:, column] = seen > behind
                if as_gensim:
                    left = (behind > 0) & (of_word[seen - 1] - of_word[behind - 1] < window)
                    present[left, column] = 0
            together[np.ix_(own, own)] += present.T @ present
    if not number:
        raise DataError("no texts", axis="document", expected="a list of strings, or of lists of words")
    return together, number


def _tokens(texts: Texts) -> Iterator[list[Any]]:
    """The words of each text, in their order; sentences follow one another."""
    if isinstance(texts, Sequences):
        names, (word, document) = texts.words, (part.cpu().numpy() for part in texts.tokens[:2])
        for own in np.split(word, np.searchsorted(document, np.arange(1, len(texts)))):
            yield [names[one] for one in own.tolist()]
        return
    if not holds_several(texts):
        problem = f"texts = {a_value_of(type(texts))}"
        raise DataError(problem, axis="document", expected="a list of strings, or of lists of words")
    from sklearn.feature_extraction.text import CountVectorizer

    analyse = CountVectorizer().build_analyzer()  # as ``documents`` cuts a text into words
    for text in texts:
        if isinstance(text, str):
            yield analyse(text)
        elif isinstance(text, list | tuple | np.ndarray):
            yield plain(word for part in text for word in (part if is_listed(part) else [part]))
        else:
            problem = f"a text that is {a_value_of(type(text))}"
            raise DataError(problem, axis="document", expected="a string, or a list of words")
