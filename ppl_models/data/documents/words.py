"""Words into counts: token lists and raw texts, and the vocabulary that they are counted in.

Raw texts are cut up by scikit-learn's ``CountVectorizer``. It could count tokens too, but neither says which words it
left out and how often, nor takes counts of words, or columns by number.
"""

from __future__ import annotations

import collections
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from ppl_models.core.errors import DataError, unknown_name, warn_of_data
from ppl_models.data.containers import plausible_size
from ppl_models.data.held import (
    describe,
    has_text,
    holds_several,
    is_listed,
    is_name,
    is_string,
    is_whole,
    labels_of,
    plain,
    to_list,
)
from ppl_models.data.lazy import pandas as pd
from ppl_models.data.matrix import Data

#: How many unknown words a warning names.
_NAMED = 5
#: Letters that stand alone in many languages, as articles do, or behind an apostrophe.
_ARTICLES = frozenset("aeiouyst")
#: What a word is, texts that are looked at, and the share of words of one character from which on they are missed.
_WORD, _LOOKED_AT, _SHORT = re.compile(r"(?u)\b\w+\b"), 1000, 0.1


@dataclass(frozen=True)
class Vocabulary:
    """The words of the columns, each once. ``named`` is False where they are the numbers of the columns."""

    words: tuple[Any, ...]

    @classmethod
    def of(cls, given: Any) -> Vocabulary:
        """Make a vocabulary from words in column order, a mapping of words to columns, or ``Data`` with named columns.

        Raises DataError for words that occur twice, or are missing, and for columns that are not 0, 1, ..., V - 1.
        """
        if isinstance(given, Vocabulary):
            return given
        if isinstance(given, Data):
            return cls(tuple(given.feature_names))
        if not holds_several(given):
            found = f"a single {type(given).__name__} as vocabulary, {describe(given)}"
            raise DataError(found, axis="word", expected="a list of words")
        words = plain(_in_order(given) if isinstance(given, Mapping) else given)
        wrong = [word for word in words if not is_name(word)]
        if wrong:
            raise DataError(f"{wrong[0]!r} in the vocabulary", axis="word", expected="words")
        index = pd.Index(words, dtype=object, tupleize_cols=False)
        repeated = index[index.duplicated()]
        if len(repeated):
            found = f"{len(repeated)} word(s) of the vocabulary occur twice (the first: {repeated[0]!r})"
            raise DataError(found, axis="word", expected="every word once")
        return cls(tuple(words))

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def named(self) -> bool:
        return labels_of(self.words) is not None

    @cached_property
    def of_text(self) -> bool:
        """Whether the words are strings; otherwise numbers among the tokens are words like others."""
        return has_text(self.words)

    @cached_property
    def _index(self) -> pd.Index:
        return pd.Index(list(self.words), dtype=object)

    def columns(self, words: Sequence[Any]) -> np.ndarray:
        """The column of each word, -1 where it is unknown."""
        return self._index.get_indexer(pd.Index(list(words), dtype=object))


def _in_order(columns: Mapping[Any, Any]) -> list[Any]:
    """The words of a mapping to columns, by column."""
    if not all(map(is_whole, columns.values())) or sorted(columns.values()) != list(range(len(columns))):
        expected = f"0 to {len(columns) - 1}, each once"
        raise DataError("the values of the vocabulary are not its columns", axis="word", expected=expected)
    return sorted(columns, key=lambda word: columns[word])


class WordCounts(NamedTuple):
    """counts (N, V), the words of the columns (None where they are known by number), and how often which tokens were
    left out because the vocabulary has them not."""

    counts: scipy.sparse.csr_matrix
    words: list[Any] | None
    unknown: dict[Any, float]


def count_tokens(
    documents: Sequence[Any], *, vocabulary: Vocabulary | None = None, size: int | None = None
) -> WordCounts:
    """Counts of the words in lists of tokens: strings, or whole numbers, which are columns of the vocabulary.

    A document may also be a mapping of words to their counts. Without a vocabulary the words are sorted.

    Raises DataError, naming document and token, for anything else: lists in lists, missing tokens, strings beside
    numbers, numbers beyond the vocabulary.
    """
    tokens, times, lengths = _flatten(documents)
    row = np.repeat(np.arange(len(documents)), lengths)
    column, words, size = number_tokens(tokens, row, vocabulary=vocabulary, size=size)
    known = column >= 0
    counts = scipy.sparse.csr_matrix((times[known], (row[known], column[known])), shape=(len(documents), size))
    unknown: dict[Any, float] = {}
    for place in np.flatnonzero(~known).tolist():
        unknown[tokens[place]] = unknown.get(tokens[place], 0.0) + float(times[place])
    return WordCounts(counts, words, unknown)


def number_tokens(
    tokens: list[Any], document: np.ndarray, *, vocabulary: Vocabulary | None = None, size: int | None = None
) -> tuple[np.ndarray, list[Any] | None, int]:
    """The column of every token, -1 where the vocabulary lacks it; the words of the columns, None where these are known
    by number; and how many columns there are.

    document: of each token, increasing. Raises DataError as :func:`count_tokens` does.
    """
    kind = _kind_of(tokens, np.bincount(document, minlength=1))
    if kind is int and (vocabulary is None or not vocabulary.named or vocabulary.of_text):
        column = _check_ids(tokens, document, len(vocabulary) if vocabulary is not None else size)
        if vocabulary is None:
            return column, None, plausible_size(size or int(column.max(initial=-1)) + 1, len(tokens), "word")
        return column, list(vocabulary.words) if vocabulary.named else None, len(vocabulary)
    if vocabulary is None:
        column, found = pd.factorize(np.asarray(tokens, dtype=object), sort=True)
        return column, [str(word) for word in found], len(found)
    if not vocabulary.named and len(tokens):
        problem = "words, where the columns have numbers only: the documents of the fit came without words"
        raise DataError(problem, axis="word", expected="whole numbers, or a fit of documents with words")
    return vocabulary.columns(tokens), list(vocabulary.words), len(vocabulary)


def _flatten(documents: Sequence[Any]) -> tuple[list[Any], np.ndarray, np.ndarray]:
    """Return all tokens, how often each counts, and the number of tokens of each document."""
    lists, counts = [], []
    for place, document in enumerate(documents):
        if not holds_several(document):
            problem = f"document {place} is {describe(document)} among lists of tokens"
            raise DataError(problem, axis="document", expected="a list of words or whole numbers")
        lists.append(to_list(document))
        counts.append(document.values() if isinstance(document, Mapping) else None)
    lengths = np.array([len(tokens) for tokens in lists], dtype=np.int64)
    tokens = list(itertools.chain.from_iterable(lists))
    if not any(counts):
        return tokens, np.ones(len(tokens)), lengths
    counts = [[1] * n if times is None else times for times, n in zip(counts, lengths.tolist(), strict=True)]
    try:
        return tokens, np.array(list(itertools.chain.from_iterable(counts)), dtype=float), lengths
    except (TypeError, ValueError):
        raise DataError("a count of a word is no number", expected="whole numbers of at least 0") from None


def _kind_of(tokens: list[Any], lengths: np.ndarray) -> type:
    """str or int, whichever all tokens are."""
    kinds = {
        kind: str if issubclass(kind, str) else int if issubclass(kind, int | np.integer) and kind is not bool else None
        for kind in set(map(type, tokens))
    }
    meaning = kinds[type(tokens[0])] if tokens else str
    if meaning is not None and all(kind is meaning for kind in kinds.values()):
        return meaning
    place = next(i for i, token in enumerate(tokens) if meaning is None or kinds[type(token)] is not meaning)
    document = int(np.searchsorted(lengths.cumsum(), place, side="right"))
    position = place - int(lengths[:document].sum())
    beside = "" if meaning is None else f" beside {describe(tokens[0])}"
    hint = "; (word, count) pairs as dict(pairs)" if isinstance(tokens[place], tuple) else ""
    problem = f"token {position} of document {document} is {describe(tokens[place])}{beside}"
    raise DataError(problem, axis="document", expected=f"all words, or all whole numbers{hint}")


def _check_ids(tokens: list[Any], row: np.ndarray, size: int | None) -> np.ndarray:
    # Numbers of any size are numbers; the largest are out of any range.
    ids = np.array([min(max(token, -1), 2**62) for token in tokens], dtype=np.int64)
    wrong = (ids < 0) | (ids >= (np.inf if size is None else size))
    if wrong.any():
        first = int(wrong.argmax())
        expected = "0, 1, ..." if size is None else f"0 to {size - 1}, columns of the vocabulary"
        found = f"{int(wrong.sum())} token(s) out of range (the first: {tokens[first]} in document {row[first]})"
        raise DataError(found, axis="word", expected=expected)
    return ids


def count_texts(texts: Sequence[Any], *, vocabulary: Vocabulary | None = None, **settings: Any) -> WordCounts:
    """Counts of the words in raw texts, cut up by scikit-learn's ``CountVectorizer`` with these settings.

    With a vocabulary its words are counted, and the others are left out.
    """
    from sklearn.feature_extraction.text import CountVectorizer

    for place, text in enumerate(texts):
        if not is_string(text):
            problem = f"document {place} is {describe(text)} among texts"
            raise DataError(problem, axis="document", expected="strings; '' for an empty document")
    _warn_of_short_words(texts, settings)
    try:
        maker = CountVectorizer(**settings)
    except TypeError:
        valid = CountVectorizer().get_params()
        wrong = next(name for name in settings if name not in valid)
        raise DataError(unknown_name("setting of CountVectorizer", wrong, valid)) from None
    try:
        if vocabulary is None:
            counts = maker.fit_transform(texts)
            return WordCounts(scipy.sparse.csr_matrix(counts), [str(w) for w in maker.get_feature_names_out()], {})
        analyzer = maker.build_analyzer()
        counted = count_tokens([analyzer(text) for text in texts], vocabulary=vocabulary)
    except DataError:
        raise
    except ValueError as error:
        raise DataError(str(error), expected="texts and settings that CountVectorizer accepts") from None
    if settings.get("binary"):
        counted.counts.data[:] = 1
    return counted


def read_cut(cut: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of ``CountVectorizer`` as a fit keeps them, or a file of it.

    Raises DataError for functions, which files do not hold.
    """
    for name, value in cut.items():
        if type(value) is dict:
            found = f"texts, where the fit's were cut by {name} = {value.get('function')}, which its file does not hold"
            raise DataError(found, expected=f"documents(texts, vocabulary=fit.data, {name}=...)")
    kinds = {"ngram_range": tuple, "stop_words": list}
    return {name: kinds[name](one) if name in kinds and is_listed(one) else one for name, one in cut.items()}


def _warn_of_short_words(texts: Sequence[str], settings: Mapping[str, Any]) -> None:
    """Warns where words of one character, which scikit-learn's pattern leaves out, are a share of what is there."""
    if set(settings) & {"token_pattern", "tokenizer", "analyzer"}:
        return
    words = [word for text in texts[:_LOOKED_AT] for word in _WORD.findall(text)]
    short = [word for word in words if len(word) == 1 and word.lower() not in _ARTICLES]
    if len(short) > _SHORT * len(words):
        often = ", ".join(repr(word) for word, _ in collections.Counter(short).most_common(_NAMED))
        warn_of_data(
            f"{len(short)} of {len(words)} words have one character and are left out (most often: {often}); "
            "documents(texts, token_pattern=r'(?u)\\b\\w+\\b') (--token-pattern) counts them"
        )


def say_unknown(unknown: Mapping[Any, float], counts: Any, before: np.ndarray | None = None) -> None:
    """Warn of the tokens that were left out, and of documents that are left without any.

    before: tokens of each document with them, (N,), where the documents could have been empty before.
    """
    left_out = sum(unknown.values())
    if not left_out:
        return
    total = float(counts.sum())
    often = sorted(unknown.items(), key=lambda item: -item[1])[:_NAMED]
    named = ", ".join(f"{word!r} {n:g}" for word, n in often)
    problem = (
        f"{left_out:g} of {left_out + total:g} tokens are of {len(unknown)} word(s) outside the vocabulary and are "
        f"left out (most often: {named})"
    )
    lengths = np.asarray(counts.sum(1)).ravel()
    emptied = int(((lengths == 0) & (True if before is None else before > 0)).sum())
    if emptied:
        problem += f"; {emptied} of {len(lengths)} documents are left without any token"
    warn_of_data(problem)
