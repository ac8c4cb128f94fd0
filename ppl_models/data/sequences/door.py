"""``sequences(...)``: documents whose words have an order, from lists, arrays or a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from ppl_models.core.errors import DataError, FileFormatError, warn_of_data
from ppl_models.data.containers import refuse_blocks
from ppl_models.data.documents.words import Vocabulary, number_tokens
from ppl_models.data.files.reading import decode, file_bytes, file_named, naming, reading
from ppl_models.data.held import Source, Words, holds_several, is_listed, is_text, labels_of, plain
from ppl_models.data.sequences.data import Sequences, sequences_of

_EXPECTED = "a list of documents, each a list of sentences, each a list of words or whole numbers"
#: What the arrays of an archive may be called.
_NAMES = {
    "token": ("token", "tokens"),
    "sentence": ("sentence_start", "sentence_offsets"),
    "document": ("document_first_sentence", "address_first_sentence", "document_offsets"),
    "words": ("vocab", "vocabulary"),
}
_NAMED = 5


def sequences(
    texts: Source,
    vocabulary: Words | None = None,
    *,
    labels: Sequence[Any] | None = None,
    vocabulary_size: int | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Sequences:
    """Documents with the order of their words, from whatever people hold them in.

    >>> data = sequences([[["the", "river", "rose"], ["it", "rained"]], ["the", "bank", "closed"]])
    >>> len(data), data.num_sentences, data.num_tokens, data.words
    (2, 3, 8, ['bank', 'closed', 'it', 'rained', 'river', 'rose', 'the'])

    Parameters
    ----------
    texts: a list of documents, each a list of sentences, each a list of tokens: words, or whole numbers, which are
        columns of the vocabulary. A document may be one flat list of tokens, a single sentence. Or arrays (tokens,
        sentence_offsets, document_offsets): where each sentence begins among the tokens and each document among the
        sentences, with or without the end. Or the path of a file: a text with a sentence a line, cut at blanks, and an
        empty line between documents; or an NPZ archive of ``token``, ``sentence_start`` and
        ``document_first_sentence``, perhaps ``vocab``.
    vocabulary: words by number, a mapping of words to numbers, or the data of a fit. Other words are left out, with a
        DataWarning that says how many; their sentences close up. By default all words, sorted.
    labels: of the documents. vocabulary_size: for tokens by number.

    Empty sentences are left out; documents without any token stay, as empty rows.

    Raises DataError for anything else, naming the document, and for data without any token.
    """
    refuse_blocks(texts)
    file = file_named(texts, _EXPECTED)
    with naming(file):
        if isinstance(texts, Sequences):
            if vocabulary is None or Vocabulary.of(vocabulary).words == tuple(texts.words):
                return texts.to(dtype=dtype, device=device)
            texts, labels = _as_lists(texts), texts.coords.get("row", labels)
        if file is not None:
            texts, vocabulary, labels = _read(file, vocabulary, labels)
        held: Any = texts
        arrays = is_listed(held) and len(held) == 3 and all(hasattr(one, "dtype") for one in held)
        tokens, document, sentence, number = _from_arrays(*held) if arrays else _from_lists(held)
        if labels is not None and len(labels) != number:
            raise DataError(f"{len(labels)} labels for {number} documents", axis="document", expected="one a document")
        known = None if vocabulary is None else Vocabulary.of(vocabulary)
        word, words, size = number_tokens(tokens, document, vocabulary=known, size=vocabulary_size)
        kept = word >= 0
        _say_unknown(tokens, kept)
        if not kept.any():
            raise DataError("no tokens", axis="document", expected="at least one sentence with a word")
        found = {"feature": words, "row": None if labels is None else labels_of(labels)}
        made = sequences_of(
            word[kept], document[kept], sentence[kept], num_documents=number, num_words=size,
            coords={axis: names for axis, names in found.items() if names is not None},
            dtype=dtype or torch.get_default_dtype(),
        )  # fmt: skip
        return made.to(device=device)


def _as_lists(data: Sequences) -> list[list[list[Any]]]:
    tokens, words = data.tokens, data.words
    found: list[list[list[Any]]] = [[] for _ in range(len(data))]
    for word, document, position in zip(*(t.tolist() for t in (tokens.word, tokens.document, tokens.position)),
                                        strict=True):  # fmt: skip
        if position == 0:
            found[document].append([])
        found[document][-1].append(words[word])
    return found


def _say_unknown(tokens: list[Any], kept: np.ndarray) -> None:
    if kept.all():
        return
    unknown = [tokens[place] for place in np.flatnonzero(~kept).tolist()]
    some = ", ".join(repr(word) for word in list(dict.fromkeys(unknown))[:_NAMED])
    warn_of_data(
        f"{len(unknown)} of {len(tokens)} tokens are of {len(set(unknown))} word(s) outside the vocabulary and are "
        f"left out ({some}); their sentences close up"
    )


_Listed = tuple[list[Any], np.ndarray, np.ndarray, int]


def _from_lists(texts: Any) -> _Listed:
    """The tokens, the document and the sentence of each, and the number of documents."""
    if not holds_several(texts) or not len(texts):
        raise DataError(f"{type(texts).__name__} {texts!r:.40}", axis="document", expected=_EXPECTED)
    tokens: list[Any] = []
    document: list[int] = []
    lengths: list[int] = []
    for place, one in enumerate(texts):
        for sentence in _sentences(one, place):
            tokens += sentence
            lengths.append(len(sentence))
            document.append(place)
    repeats = np.array(lengths, dtype=np.int64)
    sentence = np.repeat(np.arange(len(repeats)), repeats)
    return tokens, np.repeat(np.array(document, dtype=np.int64), repeats), sentence, len(texts)


def _sentences(document: Any, place: int) -> list[list[Any]]:
    """The sentences of a document, without empty ones."""
    if is_text(document):
        found = f"document {place} is a single string, {document!r:.40}"
        raise DataError(found, axis="document", expected="lists of words; text.split() makes one")
    parts = [_as_list(part) for part in document]
    nested = list(map(is_listed, parts))
    if any(nested) and not all(nested):
        found = f"document {place} has both sentences and single words"
        raise DataError(found, axis="document", expected="a list of sentences, or one flat list of words")
    sentences = parts if any(nested) else [parts]
    wrong = [word for sentence in sentences for word in sentence if is_listed(word) or np.ndim(word)]
    if wrong:
        found = f"document {place} has lists within its sentences ({wrong[0]!r:.40})"
        raise DataError(found, axis="document", expected=_EXPECTED)
    return [sentence for sentence in sentences if sentence]


def _as_list(part: Any) -> Any:
    """A sentence as a list; a token as it is."""
    return plain(part) if is_listed(part) else part.tolist() if hasattr(part, "tolist") else part


def _from_arrays(tokens: ArrayLike, sentence_offsets: ArrayLike, document_offsets: ArrayLike) -> _Listed:
    """Read tokens with the offsets of sentences and documents, with or without the final one, as ``_from_lists``."""
    tokens = np.asarray(tokens)
    sentences = _offsets(sentence_offsets, len(tokens), "sentence", "tokens")
    documents = _offsets(document_offsets, len(sentences) - 1, "document", "sentences")
    sentence = np.repeat(np.arange(len(sentences) - 1), np.diff(sentences))
    of_sentence = np.repeat(np.arange(len(documents) - 1), np.diff(documents))
    return tokens.tolist(), of_sentence[sentence], sentence, len(documents) - 1


def _offsets(given: ArrayLike, end: int, axis: str, what: str) -> np.ndarray:
    values = np.asarray(given)
    if values.ndim != 1 or values.dtype.kind not in "iu" or not len(values) or values[0] != 0:
        raise DataError(f"offsets of {axis}s that are no whole numbers from 0", axis=axis, expected="0, ...")
    values = values.astype(np.int64)
    values = values if values[-1] == end else np.append(values, end)
    if (np.diff(values) < 0).any():
        expected = f"numbers that never fall, at most {end}, the number of {what}"
        raise DataError(f"offsets of {axis}s out of order", axis=axis, expected=expected)
    return values


def _read(file: Path, vocabulary: Words | None, labels: Sequence[Any] | None) -> tuple[Any, Any, Any]:
    """Documents of a file, with the vocabulary and the labels that it has where none are given."""
    if file.suffix.lower() == ".npz":
        with reading(file, "an NPZ archive"), np.load(file, allow_pickle=False) as archive:
            found = {part: next((n for n in names if n in archive), None) for part, names in _NAMES.items()}
            arrays = {part: None if name is None else archive[name] for part, name in found.items()}
        missing = [_NAMES[part][0] for part in ("token", "sentence", "document") if arrays[part] is None]
        if missing:
            raise FileFormatError(f"{file}: no arrays {', '.join(missing)}; expected token, sentence_start and "
                                  "document_first_sentence")  # fmt: skip
        words = None if arrays["words"] is None else [str(word) for word in arrays["words"].tolist()]
        texts: Any = (arrays["token"], arrays["sentence"], arrays["document"])
        if vocabulary is not None and words is not None:
            made = replace(sequences(texts, vocabulary_size=len(words)), coords={"feature": words})
            return _as_lists(made), vocabulary, labels
        return texts, words if vocabulary is None else vocabulary, labels
    lines = decode(file, file_bytes(file)).split("\n")
    texts = [[]]
    for line in lines:
        if line.strip():
            texts[-1].append(line.split())
        elif texts[-1]:
            texts.append([])
    return (texts if texts[-1] else texts[:-1]), vocabulary, labels
