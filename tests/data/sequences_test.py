"""``sequences(...)``: documents with the order of their words, from lists, arrays and files."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ppl_models import DataError, DataWarning, FileFormatError, sequences
from ppl_models.data.several import same_data

TEXTS = [[["the", "river", "rose"], ["it", "rained"]], ["the", "bank", "closed"]]


def test_words_keep_their_order_and_sentences_their_ends():
    data = sequences(TEXTS, labels=["one", "two"])
    assert data.words == ["bank", "closed", "it", "rained", "river", "rose", "the"] and data.num_words == 7
    assert data.x.to_dense().tolist() == [[7, 5, 6, 0, 3, 4], [7, 1, 2, 0, 0, 0]]
    tokens = data.tokens
    assert [data.words[v] for v in tokens.word.tolist()] == [*TEXTS[0][0], *TEXTS[0][1], *TEXTS[1]]
    assert tokens.document.tolist() == [0, 0, 0, 0, 0, 1, 1, 1] and tokens.sentence.tolist() == [0, 0, 0, 1, 1, 2, 2, 2]
    assert tokens.position.tolist() == [0, 1, 2, 0, 1, 0, 1, 2] and tokens.offsets.tolist() == [0, 3, 5, 8]
    assert (len(data), data.num_sentences, data.num_tokens) == (2, 3, 8)
    assert tokens.sentence_document.tolist() == [0, 0, 1] and data.coords["row"] == ["one", "two"]
    assert data.counts().x.to_dense().tolist() == [[0, 0, 1, 1, 1, 1, 1], [1, 1, 0, 0, 0, 0, 1]]
    assert "2 documents, 3 sentences, 8 tokens" in data._repr_html_()


def test_numbers_arrays_and_lists_are_the_same():
    listed = sequences([[[3, 0], [1]], [[2, 2, 0]]], vocabulary_size=5)
    arrays = np.array([3, 0, 1, 2, 2, 0]), np.array([0, 2, 3]), np.array([0, 2])
    for given in (
        arrays,
        (arrays[0], np.array([0, 2, 3, 6]), np.array([0, 2, 3])),
        tuple(map(torch.as_tensor, arrays)),
    ):
        assert same_data(listed, sequences(given, vocabulary_size=5))
    assert listed.num_words == 5 and "feature" not in listed.coords
    assert listed.x.to_dense().tolist() == [[4, 1, 0, 2], [3, 3, 1, 0]]
    assert sequences(arrays).num_words == 4


def test_rows_and_dense_copies_keep_the_words():
    data = sequences(TEXTS, labels=["one", "two"])
    second = data.rows(torch.tensor([1]))
    assert second.coords == {"row": ["two"], "feature": data.words} and second.tokens.word.tolist() == [6, 0, 1]
    assert data.dense().tokens.word.tolist() == data.tokens.word.tolist()
    assert data.rows(slice(0, 1)).num_sentences == 2 and data.to(dtype=torch.float32).x.dtype == torch.float32


def test_empty_sentences_are_left_out_and_empty_documents_stay():
    data = sequences([[[], ["a", "b"], []], [], [["a"]]])
    assert len(data) == 3 and data.num_sentences == 2 and data.tokens.document.tolist() == [0, 0, 2]


def test_new_documents_are_in_the_known_vocabulary():
    data = sequences(TEXTS)
    with pytest.warns(DataWarning, match=r"2 of 5 tokens are of 1 word\(s\) outside the vocabulary.*'dog'.*close up"):
        new = sequences([["the", "dog", "rose"], ["dog", "it"]], data)
    assert new.words == data.words and new.x.to_dense().tolist() == [[7, 6], [3, 0]]
    other = sequences([["rose", "it"]])
    assert sequences(other, data).tokens.word.tolist() == [5, 2] and sequences(data, data) is not None


def test_files(tmp_path):
    text = tmp_path / "texts.txt"
    text.write_text("the river rose\nit rained\n\n\nthe bank closed\n")
    assert same_data(sequences(text), sequences(TEXTS)) and same_data(sequences(str(text)), sequences(TEXTS))
    arrays = {"token": [1, 0, 2, 1], "sentence_start": [0, 2, 3], "address_first_sentence": [0, 2]}
    np.savez(tmp_path / "tokens.npz", vocab=np.array(["a", "b", "c"]), **{k: np.array(v) for k, v in arrays.items()})
    found = sequences(tmp_path / "tokens.npz")
    assert found.words == ["a", "b", "c"] and found.x.to_dense().tolist() == [[2, 1, 0, 3], [2, 0, 0, 0]]
    with pytest.warns(DataWarning, match="outside the vocabulary"):
        assert sequences(tmp_path / "tokens.npz", ["b", "c"]).x.to_dense().tolist() == [[1, 0, 2], [1, 0, 0]]
    np.savez(tmp_path / "other.npz", token=np.array([1]))
    with pytest.raises(FileFormatError, match="no arrays sentence, document|no arrays"):
        sequences(tmp_path / "other.npz")


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], "expected a list of documents"),
        ("no such file", "names no file"),
        (["the river rose"], "document 0 is a single string"),
        ([[]], "no tokens"),
        ([[["a"], "b"]], "document 0 has both sentences and single words"),
        ([[[["a"]]]], "lists within its sentences"),
        ([["a", 1]], "document 0"),
        ([[0, -1]], "out of range"),
        ([["a", None]], "document 0"),
        ((np.array([1, 2]), np.array([0, 5]), np.array([0])), "out of order"),
        ((np.array([1, 2]), np.array([1]), np.array([0])), "no whole numbers from 0"),
    ],
)
def test_what_is_no_sequence_is_refused(texts, message):
    with pytest.raises(DataError, match=message):
        sequences(texts)


def test_labels_and_vocabularies_fit():
    with pytest.raises(DataError, match="1 labels for 2 documents"):
        sequences(TEXTS, labels=["one"])
    with pytest.raises(DataError, match="out of range"):
        sequences([[7]], vocabulary_size=5)
