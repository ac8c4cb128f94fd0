"""Counts of thousands: the default fits cost what their stored cells do, not what the counts add up to."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from custom_inference import fit
from custom_inference.core.align import match_components
from custom_inference.families.rows.documents import DocumentRows
from custom_inference.families.topics import chain
from custom_inference.families.topics.chain import TokenList
from custom_inference.methods import Default
from ppl_models import CTM, LDA, PLSA, GammaPoisson, LabeledLDA, as_documents
from ppl_models.core.errors import DataWarning


def corpus(tokens, seed=0):
    """Forty documents of three topics over twelve words, (40, 12), and the topics."""
    rng = np.random.default_rng(seed)
    topics = rng.dirichlet(np.full(12, 0.2), 3)
    shares = rng.dirichlet(np.full(3, 0.3), 40)
    return np.stack([rng.multinomial(tokens, share @ topics) for share in shares]).astype(float), topics


def rows_of(x):
    return DocumentRows.of(as_documents(x))


def test_starts_are_sampled_from_all_tokens_of_texts():
    x, _ = corpus(200)
    rows = rows_of(x)
    tokens, share = TokenList.for_start(rows, torch.Generator().manual_seed(0))
    every = TokenList.of(rows)
    assert share is None and np.array_equal(tokens.word, every.word) and np.array_equal(tokens.start, every.start)


def test_of_many_more_a_part_of_every_cell_is_drawn():
    x, _ = corpus(20_000)
    x[:, 0] += 2_000_000  # one word outweighs all others
    rows = rows_of(x)
    tokens, share = TokenList.for_start(rows, torch.Generator().manual_seed(0))
    assert share is not None and tokens.start[-1] == len(tokens)
    total = x.sum(0)
    assert float((share.numpy() * total).sum()) == pytest.approx(chain._TOKENS_OF_STARTS, rel=1e-9)
    found = np.zeros_like(x)
    np.add.at(found, (tokens.document, tokens.word), 1)
    expected = x * share.numpy()
    assert np.abs(found - expected).max() < 6 * np.sqrt(expected.max()) and (found <= x).all()
    rare = total < total[0]
    assert (share.numpy()[rare] > share.numpy()[0]).all()


@pytest.mark.parametrize(("totals", "most"), [([5.0, 1.0, 10.0], 9.0), ([3.0, 3.0, 3.0], 6.0), ([0.0, 100.0], 50.0)])
def test_the_level_leaves_so_many(totals, most):
    level = chain._level(torch.tensor(totals), most)
    assert np.minimum(totals, level).sum() == pytest.approx(most)


@pytest.mark.parametrize("kind", [LDA, PLSA, GammaPoisson])
@pytest.mark.filterwarnings("ignore:.*limit")
def test_default_fits_list_no_tokens_and_find_the_topics(kind, monkeypatch):
    x, topics = corpus(50_000)
    wide = kind is GammaPoisson
    sizes = {"num_components": 3, "num_features": 12} if wide else {"num_topics": 3, "vocabulary_size": 12}

    def refuse(*_):
        raise AssertionError("every token was listed")

    monkeypatch.setattr(TokenList, "of", refuse)
    found = fit(kind(**sizes), x, progress=False)
    value = found.params["loading" if wide else "topic"].double()
    value = value / value.sum(-1, keepdim=True)
    assert bool((match_components(value, torch.as_tensor(topics)).similarity > 0.95).all())


def test_labelled_documents_start_from_a_part_too(monkeypatch):
    x, _ = corpus(50_000)
    labels = np.array([[1, 0], [0, 1], [1, 1], [0, 0]])[np.arange(40) % 4]
    monkeypatch.setattr(TokenList, "of", None)
    model = LabeledLDA(num_topics=3, vocabulary_size=12, num_labels=2)
    found = fit(model, x, labels=labels, max_iterations=20, progress=False)
    assert bool(torch.isfinite(found.params["topic"]).all())


def test_samplers_tell_of_tokens_that_cells_would_do_for():
    rows = rows_of(np.full((10, 10), 20_000.0))
    with pytest.warns(DataWarning, match="2e.06 tokens in 100 cells.*methods that go by cells"):
        TokenList.of(rows)


@pytest.mark.filterwarnings("ignore:.*limit")
def test_defaults_that_sample_tokens_go_by_cells_there(monkeypatch):
    model = CTM(num_topics=3, vocabulary_size=12)
    x, topics = corpus(50_000)
    monkeypatch.setattr(TokenList, "of", None)
    for found in (fit(model, x, progress=False), Default().fit(model, x, progress=False)):
        assert "VariationalEM(gaussian), since 2e+06 tokens in" in found.status
        value = found.params["topic"].double()
        assert bool((match_components(value, torch.as_tensor(topics)).similarity > 0.95).all())


def test_texts_and_those_who_ask_for_draws_get_them():
    x, _ = corpus(200)
    x[0, 0] = np.nan
    model, brief = CTM(num_topics=3, vocabulary_size=12), {"warmup": 2, "num_samples": 2, "thin": 1}
    short = fit(model, x, progress=False, mask=~np.isnan(x), **brief)
    assert "one chain" in short.status
    many = fit(model, corpus(20_000)[0][:12], progress=False, **brief)
    assert "one chain" in many.status and "since" not in many.status
