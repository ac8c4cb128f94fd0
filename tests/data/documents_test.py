"""The door for documents: every container says the same, and what is no document is refused with its place."""

from __future__ import annotations

import gzip
import warnings
from collections import Counter

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from ppl_models import LDA, Data, DataError, DataWarning, as_documents, documents
from ppl_models.data import sparse as _sparse

pytestmark = pytest.mark.quick

WORDS = ["ant", "bee", "cat", "dog"]
COUNTS = np.array([[2, 0, 1, 0], [0, 1, 1, 3], [0, 0, 0, 0]])
LABELS = ["first", "second", "third"]
TOKENS = [["ant", "cat", "ant"], ["dog", "bee", "dog", "cat", "dog"], []]


def dense(data: Data) -> np.ndarray:
    return _sparse.dense(data.x).numpy()


def lda_c(counts: np.ndarray) -> str:
    lines = [" ".join([str((row > 0).sum()), *(f"{j}:{row[j]}" for j in np.flatnonzero(row))]) for row in counts]
    return "\n".join(lines) + "\n"


def uci(counts: np.ndarray) -> str:
    cells = [f"{i + 1} {j + 1} {counts[i, j]}" for i, j in np.argwhere(counts > 0)]
    return "\n".join([str(len(counts)), str(counts.shape[1]), str(len(cells)), *cells]) + "\n"


@pytest.mark.parametrize(
    ("container", "labelled"),
    [
        (COUNTS, False),
        (torch.as_tensor(COUNTS), False),
        (scipy.sparse.csc_matrix(COUNTS), False),
        (scipy.sparse.coo_array(COUNTS), False),
        (torch.as_tensor(COUNTS).to_sparse(), False),
        (pd.DataFrame(COUNTS, LABELS, WORDS), True),
        (xr.DataArray(COUNTS, dims=("d", "w"), coords={"d": LABELS, "w": WORDS}), True),
        (Data(x=torch.as_tensor(COUNTS, dtype=torch.float64), coords={"row": LABELS, "feature": WORDS}), True),
        (pd.Series(TOKENS, LABELS), True),
        (pd.Series([" ".join(t) for t in TOKENS], LABELS), True),
    ],
)
def test_containers_of_counts_tokens_and_texts_agree(container, labelled):
    for data in (as_documents(container), documents(container)):
        np.testing.assert_array_equal(dense(data), COUNTS)
        assert data.x.dtype == torch.float64 and data.mask is None
        assert data.coords == ({"row": LABELS, "feature": WORDS} if labelled else {})
    # In a reversed vocabulary, labelled columns go where their word is.
    turned = as_documents(container, vocabulary=WORDS[::-1])
    np.testing.assert_array_equal(dense(turned), COUNTS[:, ::-1] if labelled else COUNTS)
    assert turned.coords["feature"] == WORDS[::-1]


counts_of = st.integers(1, 4).flatmap(
    lambda v: st.lists(st.lists(st.integers(0, 3), min_size=v, max_size=v), min_size=1, max_size=6)
)


@settings(max_examples=60, deadline=None)
@given(counts_of)
def test_round_trips_between_formats(tmp_path_factory, rows):
    counts = np.array(rows)
    words = [f"w{j}" for j in range(counts.shape[1])]
    names = {"vocabulary": words}
    tokens = [[w for w, n in zip(words, row, strict=True) for _ in range(n)] for row in rows]
    ids = [[j for j, n in enumerate(row) for _ in range(n)] for row in rows]
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "c.ldac").write_text(lda_c(counts))
    (folder / "docword.c.txt.gz").write_bytes(gzip.compress(uci(counts).encode()))
    sources = [tokens, ids, [Counter(t) for t in tokens], counts]
    sources += [[np.array(t, dtype=int) for t in ids], (" ".join(t) for t in tokens)]
    sources += [folder / "c.ldac", folder / "docword.c.txt.gz", pd.DataFrame(counts, columns=words).iloc[:, ::-1]]
    for source in sources:
        data = documents(source, **names)
        np.testing.assert_array_equal(dense(data), counts, err_msg=str(source))
        assert data.coords["feature"] == words
    # Back to tokens, and again.
    again = documents([np.repeat(words, row).tolist() for row in dense(data).astype(int)], vocabulary=data)
    np.testing.assert_array_equal(dense(again), counts)


@settings(max_examples=40, deadline=None)
@given(counts_of, st.randoms(use_true_random=False))
def test_a_vocabulary_in_any_order_and_with_more_words_keeps_every_known_count(rows, rng):
    counts = np.array(rows)
    words = [f"w{j}" for j in range(counts.shape[1])]
    known = [w for w in words if rng.random() < 0.7] + ["other"]
    rng.shuffle(known)
    frame = pd.DataFrame(counts, columns=words)
    shared = [w for w in words if w in known]
    if not shared:
        with pytest.raises(DataError, match="none of the"):
            as_documents(frame, vocabulary=known)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        for source in (frame, Data(x=_sparse.from_dense(torch.as_tensor(counts)), coords={"feature": words})):
            found = pd.DataFrame(dense(as_documents(source, vocabulary=known)), columns=known)
            np.testing.assert_array_equal(found[shared], frame[shared])
            assert (found["other"] == 0).all()


def test_labels_of_a_single_row_and_column_names_by_number_are_kept():
    data = documents([["x"]], labels=["only"])
    assert data.coords == {"row": ["only"], "feature": ["x"]}
    # Words that are numbers are looked up as words, not as columns.
    named = documents([[2001, 1999, 2001]], vocabulary=[1999, 2000, 2001])
    assert dense(named).tolist() == [[1, 0, 2]]


def test_cleaning_leaves_out_rare_common_and_stop_words_of_every_container():
    texts = ["a the cat cat", "the dog", "the cat bird"]
    tokens = [t.split() for t in texts]
    frame = pd.DataFrame(dense(documents(tokens)), columns=documents(tokens).coords["feature"])
    for source in (tokens, frame, frame.to_numpy(), scipy.sparse.csr_matrix(frame)):
        named = {} if isinstance(source, list | pd.DataFrame) else {"vocabulary": list(frame.columns)}
        clean = documents(source, min_count=2, max_share=0.7, **named)
        assert clean.coords["feature"] == ["cat"] and dense(clean).ravel().tolist() == [2, 0, 1]
        assert documents(source, stop_words=["the", "a"], **named).coords["feature"] == ["bird", "cat", "dog"]
    by_settings = documents(texts, stop_words="english", ngram_range=(1, 2))
    assert by_settings.coords["feature"] == ["bird", "cat", "cat bird", "cat cat", "dog"]
    # Columns without words are known by the numbers they had.
    assert documents(frame.to_numpy(), min_count=2).coords["feature"] == [2, 4]
    masked = np.ones((3, 4), dtype=bool)
    masked[0, 3] = False
    assert documents(np.array([[1, 0, 2, 9]] * 3), mask=masked, min_count=7).coords["feature"] == [3]


def test_settings_of_the_vectorizer_are_passed_on():
    data = documents(["Big BIG cat", "cat"], lowercase=False, binary=True)
    assert data.coords["feature"] == ["BIG", "Big", "cat"]
    assert dense(documents(["cat cat"], vocabulary=["cat"], binary=True)).tolist() == [[1]]
    with pytest.raises(DataError, match="unknown setting of CountVectorizer 'lower' .*valid: .*lowercase"):
        documents(["a cat"], lower=False)
    with pytest.raises(DataError, match="documents that are no raw texts"):
        documents([["cat"]], lowercase=False)
    with pytest.raises(DataError, match="empty vocabulary"):
        documents(["", "  "])


def test_missing_entries_become_a_mask_and_follow_their_words():
    frame = pd.DataFrame([[1.0, np.nan], [2.0, 3.0]], columns=["a", "b"])
    data = as_documents(frame, vocabulary=["c", "b", "a"])
    assert data.mask.tolist() == [[True, False, True], [True, True, True]]
    assert dense(data).tolist() == [[0, 0, 1], [0, 3, 2]]


def test_new_documents_are_read_in_the_words_of_the_fit():
    like = documents(TOKENS)
    model = LDA(num_topics=2, vocabulary_size=4)
    with pytest.warns(DataWarning, match=r"3 of 4 tokens are of 2 word\(s\).*'emu' 2, 'fox' 1.*; 1 of 2 documents are"):
        new = model.prepare_new([["cat", "emu"], ["emu", "fox"]], like)
    assert dense(new).tolist() == [[0, 0, 1, 0], [0, 0, 0, 0]] and new.coords["feature"] == WORDS
    with pytest.warns(DataWarning, match=r"7 of 8 tokens are of 1 word\(s\) outside .*'zoo' 7"):
        new = model.prepare_new(pd.DataFrame([[7, 1]], columns=["zoo", "bee"]), like)
    assert dense(new).tolist() == [[0, 1, 0, 0]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a word that the frame has and no document uses is not worth a warning
        new = model.prepare_new(pd.DataFrame([[0, 1]], columns=["zoo", "bee"]), like)
        assert dense(model.prepare_new(["a cat, a dog"], like, dtype=torch.float32)).tolist() == [[0, 0, 1, 1]]
        assert dense(model.prepare_new(COUNTS[:1], like)).tolist() == COUNTS[:1].tolist()
    with pytest.raises(DataError, match="3 columns without names where the vocabulary has 4 words"):
        model.prepare_new(COUNTS[:, :3], like)
    with pytest.raises(DataError, match="none of the 2 words is in the vocabulary"):
        model.prepare_new(pd.DataFrame([[7, 1]], columns=["zoo", "yak"]), like)


def test_a_fit_of_columns_without_words_takes_matrices_by_place_and_refuses_words():
    model, like = LDA(num_topics=2, vocabulary_size=4), as_documents(COUNTS)
    named = model.prepare_new(pd.DataFrame(COUNTS, columns=WORDS), like)
    np.testing.assert_array_equal(dense(named), COUNTS)
    with pytest.raises(DataError, match="vocabulary_size = 4"):
        model.prepare_new(COUNTS[:, :3], like)
    for words in ([["ant", "cat"]], ["ant cat"]):
        with pytest.raises(DataError, match="4 words|numbers only|vocabulary_size = 4"):
            model.prepare_new(words, like)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("the river bank", "a single str"),
        (b"bytes", "a single bytes"),
        ([b"river", b"bank"], "bytes"),
        (np.array([b"river"]), "array of bytes"),
        ([], "no documents"),
        ([["a"], "b"], r"document 1 is 'b' \(str\) among lists"),
        (["a text", ["b"]], r"document 1 is \['b'\] \(list\) among texts"),
        (["a text", None], r"document 1 is None"),
        (pd.Series(["a text", float("nan")]), "document 1 is nan"),
        (pd.Series([1, 2]), "Series of numbers"),
        ([["a", 1]], r"token 1 of document 0 is 1 \(int\) beside 'a'"),
        ([["a"], ["b", None]], "token 1 of document 1 is None"),
        ([[["a"], ["b"]]], r"token 0 of document 0 is \['a'\]"),
        ([[(0, 2), (3, 1)], [(1, 1)]], r"\(word, count\) pairs as dict"),
        ([[1.5, 2], [1]], r"token 0 of document 0 is 1.5"),
        ([[True, False], [True]], "token 0 of document 0 is True"),
        ([[0, -1], [2]], r"1 token\(s\) out of range \(the first: -1 in document 0\)"),
        ([[0, 1], [1, 1]], "equally long lists of whole numbers: word counts, or tokens"),
        ([{"a": 1}, {"b": "two"}], "a count of a word is no number"),
        ([{"a": 1.5}], "1 of 1 entries are no counts"),
        ([{"a": -1, "b": 2}], "no counts"),
        (np.array([[1, -2]]), "are no counts .*-2 in row 0, column 1"),
        (np.array([[0.5, 1]]), "are no counts"),
        (np.array([[np.inf, 1]]), "are no counts"),
        (scipy.sparse.csr_matrix([[0.5, 1]]), "are no counts"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), r"1 word\(s\) of the vocabulary occur twice \(the first: 'a'\)"),
        (np.ones(3), "1 dimensions"),
        (np.ones((0, 3)), "no entries"),
        (3, "dimensions"),
    ],
)
def test_what_is_no_document_is_refused_with_its_place(bad, message):
    with pytest.raises(DataError, match=message):
        as_documents(bad)
    if "equally" not in message:
        with pytest.raises(DataError, match=message):
            documents(bad)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"vocabulary": ["a", "b", "a", "c"]}, "occur twice"),
        ({"vocabulary": ["a", "b"]}, "4 columns without names where the vocabulary has 2 words"),
        ({"vocabulary": "ants"}, "single str as vocabulary"),
        ({"vocabulary": ["a", "b", None, "c"]}, "None in the vocabulary"),
        ({"vocabulary": {"a": 0, "b": 2, "c": 3, "d": 4}}, "not its columns"),
        ({"vocabulary_size": 5}, "4 words where vocabulary_size = 5"),
        ({"labels": ["a"]}, "1 labels for 3 documents"),
        ({"labels": "titles"}, "come from no file"),
        ({"file_format": "uci"}, "come from no file"),
        ({"min_count": 100}, "none of the 4 words is left"),
        ({"max_share": 0.0}, "max_share = 0"),
        ({"stop_words": "latin"}, "stop_words = 'latin'"),
        ({"mask": np.ones((2, 2))}, "mask of shape"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments, message):
    with pytest.raises(DataError, match=message):
        documents(COUNTS, **arguments)


def test_a_mapping_of_words_to_columns_is_a_vocabulary():
    assert dense(documents([["b", "a", "b"]], vocabulary={"b": 0, "a": 1})).tolist() == [[2, 1]]
