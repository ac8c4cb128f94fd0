"""Posterior predictive checks: right models pass, wrong ones are caught by the statistic that should catch them."""

import warnings
from dataclasses import replace
from functools import cache

import numpy as np
import psutil
import pyro.distributions as dist
import pytest
import torch

import custom_inference as ci
from custom_inference import STATISTICS, posterior_predictive_check
from custom_inference.checks.copies import Graph, Law, source_of
from custom_inference.core.draws import PosteriorDraws
from custom_inference.methods import default_method
from ppl_models import (
    CVQ,
    LDA,
    MODELS,
    SBM,
    CapacityError,
    MethodError,
    MixtureOfBernoullis,
    MixtureOfCategoricals,
    MixtureOfPoissons,
    graph,
)
from tests.support.cases import small_computations


def check(fit, statistics=None, **settings):
    return posterior_predictive_check(fit, statistics, **{"num_samples": 100, "progress": False, **settings})


def quick(model, x, method=None, **settings):
    return ci.fit(model, x, method=method, progress=False, **settings)


@cache
def example_fit(name):
    """A fit of the model's example by its default method, from one start."""
    example = MODELS[name].example()
    method = default_method(example.model, example.data)
    if isinstance(getattr(method, "search", None), ci.Search):
        method = replace(method, search=ci.Search(restarts=1))
    with small_computations(name, "default"):
        return method.fit(example.model, example.data, progress=False)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_is_checked_by_the_statistics_of_its_data(name):
    fit = example_fit(name)
    state = torch.random.get_rng_state()
    found = check(fit, num_samples=12, keep=2)
    assert torch.equal(state, torch.random.get_rng_state())
    expected = set(STATISTICS[fit.model.data_kind])
    assert set(found.table.index) == expected - (
        {"word_document_information"} if name in ("softmax_pca", "dtm", "replicated_softmax") else set()
    )
    assert list(found.table.columns) == ["observed", "mean", "sd", "p_value", "error", "tail", "worst"]
    assert found.table["p_value"].between(0, 1).all() and (found.table["error"] > 0).all()
    assert len(found.copies) == 2 and found.copies[0].shape == fit.data.x.shape
    assert "globals: " in found.source and fit.method_name in found.source
    assert found.verdict.endswith(".")
    groups = found.to_arviz()
    for statistic in found.table.index:
        assert groups.posterior_predictive[statistic].shape[:2] == (1, 12)
        assert statistic in groups.observed_data


def test_same_seed_same_copies():
    first, again, other = (check(example_fit("lda"), num_samples=12, seed=seed) for seed in (3, 3, 4))
    assert again.table.equals(first.table) and not other.table.equals(first.table)
    alone = check(example_fit("lda"), ["burstiness"], num_samples=12, seed=3)
    np.testing.assert_allclose(alone.predicted["burstiness"], first.predicted["burstiness"], rtol=1e-12)


@pytest.mark.parametrize("name", ["poisson_sbm", "lda"])
def test_a_figure_has_a_panel_for_every_statistic(name):
    found = check(example_fit(name), num_samples=12)
    figure = found.plot()
    assert [axes.get_title().split(",")[0] for axes in figure.axes if axes.get_title()] == list(found.table.index)


@pytest.mark.parametrize("name", MODELS)
def test_copies_have_the_law_that_the_program_gives_them(name):
    """Means of 60 copies at one draw of the latents, against the law's mean: within 5.5 sd of it, of counts and 0/1
    entries and one event, which where hardly any is expected is many sd."""
    fit = example_fit(name)
    params, local = next(iter(PosteriorDraws(fit, 1)))
    source = source_of(fit.model, fit.data)
    copies = [source.replicate(params, local, {}, seed)[0] for seed in range(60)]
    dense = np.stack([one.toarray() if hasattr(one, "toarray") else one for one in copies])
    laws = [law for law, _, _ in source.blocks(params, local)]
    mean, variance = (torch.cat([getattr(law, moment) for law in laws]) for moment in ("mean", "variance"))
    if isinstance(source, Graph):
        mean, variance = (fit.model.as_data(side) for side in (mean, variance))
    if fit.model.data_kind == "categories":  # a torch.Categorical has no variance: at most that of its extremes
        size = max(law.distribution.probs.shape[-1] for law in laws)
        variance = torch.full_like(mean, (size - 1) ** 2 / 4)
    event = 1 / 60 if fit.model.data_kind in ("binary", "counts", "documents", "sequences") else 0.0
    off = (np.abs(dense.mean(0) - mean.numpy()) - event).clip(0)
    assert (off / np.sqrt(variance.numpy() / 60 + 1e-9)).max() < 5.5


@pytest.mark.parametrize("kind", ["binary", "counts"])
def test_p_values_of_a_right_model_are_not_extreme(kind):
    """Data from the model: over 4 data sets of 10 statistics, p < .04 in at most 7 (uniform p-values: mean 1.6, and
    P(more than 7) < 1e-3; these are closer to 1)."""
    extreme, verdicts = 0, 0
    for seed in range(4):
        rng = np.random.default_rng(seed)
        share = rng.beta(1, 1, (2, 6)) if kind == "binary" else rng.gamma(2.0, 1.5, (2, 6))
        component = share[rng.integers(2, size=80)]
        if kind == "binary":
            fit = quick(MixtureOfBernoullis(num_components=2, num_features=6), 1.0 * (rng.random((80, 6)) < component))
        else:
            fit = quick(MixtureOfPoissons(num_components=2, num_features=6), rng.poisson(component), "vb")
        found = check(fit, num_samples=60)
        extreme += int((found.table["p_value"] < 0.04).sum())
        verdicts += len(found.extreme)
    assert extreme <= 7 and verdicts <= 1


def test_independent_columns_are_told_from_correlated_ones():
    rng = np.random.default_rng(0)
    x = (rng.random((200, 6)) < np.where(rng.random((200, 1)) < 0.5, 0.8, 0.2)).astype(float)
    one = check(quick(MixtureOfBernoullis(num_components=1, num_features=6), x))
    assert {"row_total_variance", "correlation"} <= set(one.extreme) and "column_mean" not in one.extreme
    assert "unlike" in one.verdict and "row_total_variance (" in one.verdict
    assert not check(quick(MixtureOfBernoullis(num_components=2, num_features=6), x)).extreme
    frame = one.deviations("correlation")
    assert len(frame) == 15 and frame.index[0] == one.table.loc["correlation", "worst"]
    assert (frame["z"].abs().diff().dropna() <= 0).all()


def test_overdispersed_counts_are_told_from_poisson_ones():
    rng = np.random.default_rng(1)
    x = rng.poisson(rng.gamma(0.7, 4.0, (150, 5)))
    found = check(quick(MixtureOfPoissons(num_components=1, num_features=5), x))
    assert {"dispersion", "zero_share", "value_frequency", "chi_square"} <= set(found.extreme)
    assert "mean" not in found.extreme
    figure = found.plot("rootogram")
    assert figure.axes[0].get_ylim()[0] < 0
    poisson = check(quick(MixtureOfPoissons(num_components=1, num_features=5), rng.poisson(2.8, (150, 5))))
    assert not poisson.extreme


def test_a_clustered_graph_is_told_from_a_graph_of_one_block():
    """Two cliques beside sparse edges: by transitivity, spectral gap and degrees alike; two blocks explain it."""
    rng = np.random.default_rng(2)
    block = np.repeat([0, 1], 20)
    upper = np.triu(rng.random((40, 40)) < np.where(block[:, None] == block, 0.5, 0.03), 1)
    data = graph(1.0 * (upper + upper.T), directed=False)
    one = check(quick(SBM(num_blocks=1, num_nodes=40, directed=False), data))
    assert {"transitivity", "spectral_gap"} <= set(one.extreme) and "density" not in one.extreme
    assert not check(quick(SBM(num_blocks=2, num_nodes=40, directed=False), data)).extreme


def test_bursty_words_are_told_from_one_topic():
    """Documents of one topic whose words come in bursts (Dirichlet-multinomial), under LDA with one topic."""
    rng = np.random.default_rng(3)
    probability = rng.dirichlet(np.full(30, 0.1), 60)
    x = np.stack([rng.multinomial(40, p) for p in probability])
    found = check(quick(LDA(num_topics=1, vocabulary_size=30), x))
    assert {"burstiness", "distinct_words", "dispersion", "word_document_information"} <= set(found.extreme)
    assert "word_total" not in found.extreme


def test_heavy_tails_are_told_from_normal_noise():
    rng = np.random.default_rng(4)
    x = 0.5 + rng.standard_t(2.5, (200, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = check(quick(CVQ(num_components=1, num_features=4), x))
    assert {"kurtosis", "max"} & set(found.extreme) and "variance" not in found.extreme


def test_agreement_beyond_one_class_is_seen():
    rng = np.random.default_rng(5)
    table = rng.dirichlet(np.full(3, 0.3), (2, 5))
    classes = rng.integers(2, size=150)
    x = np.stack([[rng.choice(3, p=table[k, r]) for r in range(5)] for k in classes]).astype(float)
    found = check(quick(MixtureOfCategoricals(num_components=1, num_features=5, num_categories=3), x, "vb"))
    assert "association" in found.extreme and "answer_share" not in found.extreme


def test_the_same_entries_are_missing_in_the_copies():
    rng = np.random.default_rng(6)
    x = (rng.random((60, 5)) < 0.4).astype(float)
    x[rng.random(x.shape) < 0.2] = np.nan
    found = check(quick(MixtureOfBernoullis(num_components=1, num_features=5), x), num_samples=20, keep=3)
    for copy in found.copies:
        assert np.array_equal(np.ma.getmaskarray(copy), np.isnan(x))
    assert found.observed["mean"] == pytest.approx(np.nanmean(x))
    assert np.isnan(found.to_arviz().posterior_predictive["x"].values[0, 0]).sum() == np.isnan(x).sum()


def test_missing_words_keep_the_lengths_of_what_was_seen():
    rng = np.random.default_rng(7)
    x = rng.multinomial(12, np.full(8, 1 / 8), 30).astype(float)
    x[rng.random(x.shape) < 0.2] = np.nan
    found = check(quick(LDA(num_topics=1, vocabulary_size=8), x), num_samples=20, keep=3)
    for copy in found.copies:
        assert np.array_equal(copy.sum(1), np.nansum(x, 1)) and not copy.toarray()[np.isnan(x)].any()


def test_hidden_dyads_have_no_edge_in_the_copies():
    example = SBM.example()
    hidden = torch.tensor([[0, 1, 5, 9], [3, 7, 2, 20]])
    data = example.data.without(hidden)
    found = check(quick(example.model, data), num_samples=20, keep=3)
    for copy in found.copies:
        assert not copy.toarray()[hidden[0], hidden[1]].any() and not copy.diagonal().any()


def test_own_functions_and_names_together():
    fit = example_fit("mixture_of_poissons")
    expected = lambda x, local, params: float(((x - local @ params["rate"]) ** 2).sum())  # noqa: E731
    found = check(fit, ["mean", {"median": np.median, "squares": expected, "tops": lambda x: x.max(0)}], num_samples=20)
    assert list(found.table.index) == ["mean", "median", "squares", "tops"]
    assert found.observed["median"] == np.median(fit.data.x) and found.observed["squares"].shape == (20,)
    assert found.table.loc["tops", "tail"] == "upper"
    with pytest.raises(MethodError, match="'mean' is a number"):
        found.deviations("mean")


def test_an_own_log_likelihood_agrees_with_the_built_in_one():
    fit = example_fit("mixture_of_poissons")

    def own(x, local, params):
        return float(dist.Poisson(torch.as_tensor(local @ params["rate"])).log_prob(torch.as_tensor(x)).sum())

    found = check(fit, ["log_likelihood", {"own": own}], num_samples=10)
    for side in (found.observed, found.predicted):
        assert np.allclose(side["own"], side["log_likelihood"], rtol=1e-12)


def test_refusals():
    fit = example_fit("noca")
    with pytest.raises(MethodError, match="unknown statistic of binary data 'nonsense'; valid: .*correlation"):
        check(fit, ["nonsense"])
    with pytest.raises(MethodError, match="5 is no fit; expected what a method's"):
        check(5, ["density"])
    with pytest.raises(MethodError, match="needs 2 arguments"):
        check(fit, {"two": lambda x, local: 0.0})
    with pytest.raises(MethodError, match="'bad' gave nan"):
        check(fit, {"bad": lambda x: np.nan})
    with pytest.raises(MethodError, match="'text' gave a str"):
        check(fit, {"text": lambda x: "a"})
    with pytest.raises(MethodError, match="shape"):
        check(fit, {"ones": lambda x: x[x > 0]})
    with pytest.raises(MethodError, match="expected a number"):
        check(fit, {"vector": lambda x, local, params: x[0]})
    with pytest.raises(MethodError, match="no statistics"):
        check(fit, [])
    with pytest.raises(MethodError, match="num_samples = 1"):
        check(fit, num_samples=1)
    with pytest.raises(MethodError, match="keep = -1"):
        check(fit, keep=-1)
    found = check(fit, ["mean"], num_samples=5)
    with pytest.raises(MethodError, match="unknown kind of plot"):
        found.plot("nonsense")
    with pytest.raises(MethodError, match="rootogram needs"):
        found.plot("rootogram")
    with pytest.raises(MethodError, match="unknown statistic of this check"):
        found.deviations("nonsense")


def test_copies_that_do_not_fit_are_refused(monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("M", (), {"available": 1000})())
    with pytest.raises(CapacityError, match=r"a copy of \d+ rows of \d+ features needs"):
        check(example_fit("noca"))


def test_sums_leave_missing_entries_out():
    observed = torch.tensor([[True, False], [True, True]])
    law = Law(torch.distributions.Poisson(torch.full((2, 2), 2.0)), observed)
    x = torch.tensor([[1.0, 0.0], [3.0, 2.0]])
    values = torch.tensor([1.0, 3.0, 2.0])
    assert float(law.log_prob(x)) == pytest.approx(float(torch.distributions.Poisson(2.0).log_prob(values).sum()))
    assert float(STATISTICS["counts"]["chi_square"].function(x, law)) == pytest.approx(1.0)
    assert float(law.sample()[0, 1]) == 0.0
