"""CVB0 for LDA: one token at a time by the reference, its fixed points, and the corpora it must cope with."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from custom_inference import Fit, Search, VariationalEM, compare, fit
from custom_inference.core.registry import engine_for
from custom_inference.families.rows import documents
from custom_inference.families.topics import cvb0, kernels
from custom_inference.families.topics.cvb0 import LdaCvb0, TopicCounts
from custom_inference.families.topics.dirichlet import LdaDirichlet
from ppl_models import LDA, PLSA, CapacityError, Data, MethodError, MultinomialPCA, RowBlocks
from ppl_models.datasets import topic_corpus
from tests.references import _collapsed, _topics

pytestmark = [pytest.mark.quick, pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")]


def corpus(seed, num_documents=8, vocabulary_size=7, num_topics=3, longest=12, counts=True):
    """The first document is empty; without ``counts`` every word occurs at most once in a document."""
    rng = np.random.default_rng(seed)
    topic = rng.dirichlet(np.full(vocabulary_size, 0.4), num_topics)
    words = rng.dirichlet(np.full(num_topics, 0.4), num_documents) @ topic
    lengths = [0, *rng.integers(1, longest + 1, num_documents - 1)]
    x = np.array([rng.multinomial(n, p / p.sum()) for n, p in zip(lengths, words, strict=True)], dtype=float)
    return x if counts else np.minimum(x, 1)


def prepared(x, num_topics=3, alpha=0.3, gamma=0.2, mask=None, kind=LDA):
    model = kind(num_topics=num_topics, vocabulary_size=x.shape[1]).with_concentration(alpha=alpha, gamma=gamma)
    data = Data(x=torch.tensor(x), mask=None if mask is None else torch.tensor(mask))
    steps = engine_for(model, "cvb0")
    rows = steps.rows(model, data)
    steps.check(model, rows)
    return model, steps, rows


def at_random(rows, num_topics, seed=0):
    """Shares of every stored cell, and their counts as the state."""
    rng = np.random.default_rng(seed)
    responsibility = torch.tensor(rng.dirichlet(np.ones(num_topics), rows.counts.values().numel()))
    return TopicCounts(rows.sum_shares(responsibility).T), {"responsibility": responsibility}


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_blocks_have_the_fixed_points_of_the_compiled_loops(temperature, monkeypatch):
    """What other devices run: not the same path, but nothing moves where the other stands still."""
    x = corpus(2, num_documents=15, longest=25)
    model, steps, rows = prepared(x)
    params, locals_ = at_random(rows, 3)
    for _ in range(2000):
        step = steps.e_step(model, params, rows, locals_, temperature=temperature)
        params, locals_ = steps.m_step(model, params, step, rows), step.locals
    monkeypatch.setattr(kernels, "refresh_documents", cvb0.refresh_blocks)
    in_blocks = steps.e_step(model, params, rows, locals_, temperature=temperature)
    assert torch.allclose(in_blocks.locals["responsibility"], locals_["responsibility"], atol=1e-6)
    assert torch.allclose(in_blocks.bound, step.bound, atol=1e-5)
    assert torch.allclose(in_blocks.statistics["topic"], params.counts, atol=1e-5)


def test_one_document_in_blocks_is_a_jacobi_pass(monkeypatch):
    x = corpus(3, num_documents=2)[1:]
    model, steps, rows = prepared(x)
    params, locals_ = at_random(rows, 3)
    monkeypatch.setattr(kernels, "refresh_documents", cvb0.refresh_blocks)
    found = steps.e_step(model, params, rows, locals_).locals["responsibility"].numpy()
    responsibility, count = locals_["responsibility"].numpy(), x[0][x[0] > 0]
    document, word = count @ responsibility, count[:, None] * responsibility
    new = (
        (document - responsibility + 0.3)
        * (word - responsibility + 0.2)
        / (word.sum(0) - responsibility + 0.2 * x.shape[1])
    )
    assert np.allclose(found, new / new.sum(1, keepdims=True), atol=1e-12)


def test_starts_from_topics_in_both_ways():
    x = corpus(4)
    rows = prepared(x)[2]
    topic = torch.tensor(np.random.default_rng(0).dirichlet(np.ones(x.shape[1]), 3))
    alpha = torch.full((3,), 0.3)
    starts = [run(rows, topic.T.contiguous(), alpha, 400) for run in (kernels.start_documents, cvb0.start_blocks)]
    assert torch.allclose(*starts, atol=1e-8)
    responsibility = starts[0].numpy()
    row, column = np.nonzero(x)
    document = np.zeros((len(x), 3))
    np.add.at(document, row, x[row, column][:, None] * responsibility)
    new = (document[row] - responsibility + 0.3) * topic.numpy().T[column]
    assert np.allclose(new / new.sum(1, keepdims=True), responsibility, atol=1e-8)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    num_documents=st.integers(2, 9),
    vocabulary_size=st.integers(1, 8),
    num_topics=st.integers(1, 5),
    alpha=st.sampled_from([1e-6, 0.3, 50.0]),
    gamma=st.sampled_from([1e-6, 0.05, 3.0]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_shares_and_counts_stay_proper_on_any_corpus(
    seed, num_documents, vocabulary_size, num_topics, alpha, gamma, dtype
):
    x = corpus(seed, num_documents, vocabulary_size, num_topics)
    model, steps, rows = prepared(x, num_topics, alpha, gamma)
    rows = rows.to(dtype)
    params, locals_ = steps.initial(model, rows, torch.Generator().manual_seed(seed)), None
    for _ in range(8):
        step = steps.e_step(model, params, rows, locals_)
        responsibility, loose = step.locals["responsibility"], 1e-4 if dtype == torch.float32 else 1e-9
        assert torch.allclose(responsibility.sum(1), torch.ones(len(responsibility), dtype=dtype), atol=loose)
        assert (responsibility >= 0).all()
        assert torch.isfinite(step.bound).all()
        counted = rows.sum_shares(responsibility).T
        assert torch.allclose(step.statistics["topic"], counted, atol=loose * (1 + x.sum()))
        params, locals_ = steps.m_step(model, params, step, rows), step.locals
    values, posterior = params.values(model), params.posteriors(model)
    assert torch.allclose(values["topic"].sum(1), torch.ones(num_topics, dtype=dtype), atol=1e-5)
    torch.testing.assert_close(posterior["topic"].mean, values["topic"])


def test_statistics_are_additive():
    x = corpus(5, num_documents=20)
    model, steps, rows = prepared(x)
    params, locals_ = at_random(rows, 3)
    whole = steps.e_step(model, params, rows, locals_)
    cells = rows.counts.crow_indices()[9]
    responsibility = whole.locals["responsibility"]
    parts = [
        rows.select(at).sum_shares(responsibility[cell])
        for at, cell in ((slice(0, 9), slice(0, cells)), (slice(9, 20), slice(cells, None)))
    ]
    assert torch.allclose(whole.statistics["topic"].T, parts[0] + parts[1], atol=1e-12)
    assert float(whole.statistics["topic"].sum()) == pytest.approx(x.sum())


def test_masked_entries_and_the_coefficient():
    x = corpus(6)
    mask = np.random.default_rng(0).random(x.shape) > 0.3
    model, steps, rows = prepared(np.where(mask, x, 99.0), mask=mask)
    other_model, plain, without = prepared(np.where(mask, x, 0.0))
    params, locals_ = at_random(rows, 3)
    before = locals_["responsibility"].clone()
    step, other = steps.e_step(model, params, rows, locals_), plain.e_step(other_model, params, without, locals_)
    torch.testing.assert_close(step.bound, other.bound, rtol=1e-12, atol=0)
    assert torch.equal(locals_["responsibility"], before)  # what a pass is given stays as it is
    view, counts, as_counts = prepared(np.where(mask, x, 0.0), kind=MultinomialPCA)
    added = counts.e_step(view, params, as_counts, locals_).bound - step.bound
    assert np.allclose(added.numpy(), _topics.log_coefficient(x, mask), atol=1e-10)


def test_fits_find_the_topics_of_a_generated_corpus(tmp_path):
    rng = np.random.default_rng(8)
    topic = rng.dirichlet(np.full(60, 0.05), 6)
    words = rng.dirichlet(np.full(6, 0.2), 200) @ topic
    x = np.array([rng.multinomial(60, p) for p in words], dtype=float)
    model = LDA(num_topics=6, vocabulary_size=60).with_concentration(alpha=0.2, gamma=0.05)
    fits = [VariationalEM(guide="cvb0").fit(model, x, seed=seed, progress=False) for seed in range(3)]
    unit = topic / np.linalg.norm(topic, axis=1, keepdims=True)
    for one in fits:
        found = one.params["topic"].numpy()
        cosine = (found / np.linalg.norm(found, axis=1, keepdims=True)) @ unit.T
        assert (cosine.max(0) > 0.97).all()
        assert one.bound_name == "cvb0"
        assert "converged" in one.status
        # The trace is not monotone by theory; a fit must end near its best all the same.
        assert one.elbo[-1] > one.elbo.max() - 1e-2 * len(x)
    assert float(fits[0].elbo[-1]) == pytest.approx(float(fits[1].elbo[-1]), abs=0.01 * len(x))
    again = VariationalEM(guide="cvb0").fit(model, x, seed=0, progress=False)
    assert torch.equal(again.params["topic"], fits[0].params["topic"])
    loaded = Fit.load(fits[0].save(tmp_path / "fit"))
    assert torch.allclose(loaded.transform(x[:5]), fits[0].transform(x[:5]))
    assert torch.equal(loaded.global_posterior["topic"].concentration, fits[0].global_posterior["topic"].concentration)


def test_many_shares_are_kept_in_single_precision_and_change_nothing(monkeypatch):
    x = corpus(7, num_documents=30, longest=25)
    model, steps, rows = prepared(x)
    state, found = steps.initial(model, rows, torch.Generator().manual_seed(0)), []
    for many in (cvb0._MANY, 0):
        monkeypatch.setattr(cvb0, "_MANY", many)
        step, after = steps.e_step(model, state, rows), state
        for _ in range(5):
            after = steps.m_step(model, after, step, rows)
            step = steps.e_step(model, after, rows, step.locals)
        found.append((step, steps.posterior(model, after, rows, step).mean))
    (plain, mean), (single, same) = found
    assert plain.locals["responsibility"].dtype == torch.float64 == single.statistics["topic"].dtype
    assert single.locals["responsibility"].dtype == torch.float32
    assert torch.allclose(single.statistics["topic"], plain.statistics["topic"], atol=1e-4)
    assert torch.allclose(single.bound, plain.bound, atol=1e-4) and torch.allclose(mean, same, atol=1e-4)
    assert float(single.statistics["topic"].sum()) == pytest.approx(x.sum(), abs=1e-3)


def test_sums_of_shares_do_not_depend_on_how_many_cells_are_taken_at_a_time(monkeypatch):
    x = corpus(8, num_documents=20)
    rows, rng = prepared(x)[2], np.random.default_rng(0)
    share = rng.dirichlet(np.ones(3), rows.counts.values().numel())
    expected = np.zeros((len(x), x.shape[1], 3))
    expected[np.nonzero(x)] = share * x[x > 0][:, None]
    monkeypatch.setattr(documents, "_CELLS", 7)
    assert np.allclose(rows.sum_shares(torch.tensor(share)).numpy(), expected.sum(0))
    assert np.allclose(rows.sum_by_document(torch.tensor(share)).numpy(), expected.sum(1))


def test_a_fit_goes_on_where_its_search_ended():
    """With the shares of the best start, which a pass from its topics alone would have to find anew."""
    x = topic_corpus(600, num_topics=5, vocabulary_size=80, length=40, seed=0).data
    found = fit(LDA(num_topics=5, vocabulary_size=80).with_concentration(alpha=0.1, gamma=0.05), x, progress=False)
    searched = max(one.objective for one in found.stages[:-1] if one.objective is not None)
    assert abs(float(found.elbo[0]) / 600 - searched) < 0.02 and len(found.elbo) <= 4


def test_topics_that_go_together_are_not_taken_for_one():
    """As merging sampled topics may: starts without it, and random ones, compete."""
    rng, pairs = np.random.default_rng(3), np.kron(np.eye(3), np.ones((2, 2)))
    topic = rng.dirichlet(np.full(100, 0.1), 6)
    logit = rng.multivariate_normal(np.zeros(6), 3 * (0.1 * np.eye(6) + 0.9 * pairs), 400)
    share = np.exp(logit) / np.exp(logit).sum(1, keepdims=True)
    x = np.stack([rng.multinomial(60, one @ topic) for one in share])
    model = LDA(num_topics=6, vocabulary_size=100).with_concentration(alpha=0.3, gamma=0.05)
    found = float(fit(model, x, progress=False).elbo[-1])
    search = Search(restarts=1, informed=False)
    others = [fit(model, x, seed=seed, method=VariationalEM(guide="cvb0", search=search)) for seed in range(3)]
    assert found > max(float(one.elbo[-1]) for one in others) - 0.02 * len(x)


def test_its_topics_are_near_the_exact_posterior_means_of_a_toy_corpus():
    """Up to the labels, which the exact posterior leaves open: by which words responsibility a topic with which."""
    x = np.array([[3.0, 0, 0], [0, 2, 1], [2, 1, 0]])
    model = LDA(num_topics=2, vocabulary_size=3).with_concentration(alpha=0.3, gamma=0.4)
    fit = VariationalEM(guide="cvb0").fit(model, x, progress=False)
    words = _topics.tokens_of(x)
    q, table = _collapsed.table(words, 2, 3, 0.3, 0.4)
    together = _collapsed.same_topic(q, np.exp(table - table.max()) / np.exp(table - table.max()).sum())
    steps = engine_for(model, "cvb0")
    rows = steps.rows(model, fit.data)
    params = TopicCounts(fit.global_posterior["topic"].concentration - 0.4)
    locals_ = steps.e_step(model, params, rows).locals
    responsibility = np.repeat(locals_["responsibility"].numpy(), x[x > 0].astype(int), axis=0)
    apart = np.abs(responsibility @ responsibility.T - together)
    np.fill_diagonal(apart, 0)
    assert apart.max() < 0.25
    assert apart.mean() < 0.12


def test_at_given_topics_it_is_the_dirichlet_family():
    x = corpus(9)
    model, steps, _ = prepared(x)
    assert type(steps.local()) is LdaDirichlet
    fit = VariationalEM(guide="cvb0").fit(model, x, progress=False)
    assert torch.allclose(fit.transform(x[1:]), fit.transform(x[1:], bound="dirichlet"))
    table = compare([VariationalEM(guide="cvb0"), VariationalEM(guide="dirichlet")], model, x, at=fit).table
    assert np.allclose(table["bound"].iloc[0], table["bound"].iloc[1], atol=1e-6)


def test_minibatches():
    x = corpus(10, num_documents=60, longest=40)
    model, steps, rows = prepared(x)
    fit = VariationalEM(guide="cvb0", batch_size=10, max_iterations=40).fit(model, x, progress=False)
    whole = VariationalEM(guide="cvb0").fit(model, x, progress=False)
    assert float(fit.elbo[-1]) > float(whole.elbo[-1]) - 0.05 * abs(float(whole.elbo[-1]))
    params, locals_ = at_random(rows, 3)
    assert torch.allclose(steps.responsibilities(model, params, rows, locals_), locals_["responsibility"])


def test_what_does_not_fit_or_apply_is_refused():
    x = corpus(11)
    model, _, rows = prepared(x)
    with pytest.raises(CapacityError, match='responsibilities.*GiB.*guide="vb"'):
        LdaCvb0(max_bytes=10).check(model, rows)
    with pytest.raises(MethodError, match="cvb0"):
        engine_for(PLSA(num_topics=2, vocabulary_size=7), "cvb0")
    assert "cvb0" not in VariationalEM(guide="cvb0").fit(model, x, progress=False).bounds


def test_it_is_the_default_where_documents_are_at_hand():
    """Variational Bayes stands in where rows have weights, are read block by block, or leave no memory."""
    example = LDA.example()
    x, settings = example.data.x, {"progress": False, "search": None, "max_iterations": 3}
    found = fit(example.model, x, **settings)
    assert found.bound_name == "cvb0" and "VariationalEM" not in found.status
    weighted = fit(example.model, x, weights=np.ones(40), **settings)
    assert weighted.bound_name == "vb" and weighted.status.endswith("by VariationalEM(vb), since rows have weights")
    blocks = fit(example.model, RowBlocks.of(x, 20), **settings)
    assert blocks.bound_name == "vb" and blocks.status.endswith("since rows are read block by block")


def test_without_memory_for_it_variational_bayes_fits(monkeypatch):
    example = LDA.example()

    def refuse(engine, model, rows):
        raise CapacityError("no room")

    monkeypatch.setattr(LdaCvb0, "check", refuse)
    found = fit(example.model, example.data, search=None, max_iterations=3, progress=False)
    assert found.bound_name == "vb" and found.status.endswith("since the default refuses: no room")


def test_learned_concentrations_are_those_of_the_fitted_model():
    example = LDA.example()
    found = fit(example.model, example.data, method="learned", chains=1, warmup=30, num_samples=2, progress=False)
    learned = found.model.priors["topic_proportion"].concentration
    assert len(learned) == 3 and not torch.allclose(learned, torch.full((3,), 0.1, dtype=learned.dtype))
