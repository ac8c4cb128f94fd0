"""The parts of calibration: exact p-values and bands, ranks with ties, names of components, densities, draws."""

from __future__ import annotations

import itertools

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine

from benchmarks.quality._calibration_cases import one_rate
from custom_inference.checks.calibration.bands import (
    GRID,
    grid_counts,
    holm,
    inside_probability,
    simultaneous_band,
    uniformity_p_value,
)
from custom_inference.checks.calibration.labels import match_to_reference, prior_draw
from custom_inference.checks.calibration.simulate import log_densities, randomise_rank
from custom_inference.core.exchangeable import exchangeable, has_standard_form
from ppl_models import MODELS, PMF, BilinearPMF, LogisticPCA, MixtureOfPoissons
from tests.support.calibration import proper_priors, tiny

pytestmark = pytest.mark.quick

#: Statistical assertions have to miss by more than this many standard errors to fail.
SIGMA = 4.0


def counts_of(uniform: np.ndarray) -> np.ndarray:
    """R_i of many samples (S, M), (S, G - 1)."""
    return (uniform[..., None] < np.arange(1, GRID) / GRID).sum(-2)


def test_the_probability_to_stay_inside_is_that_of_all_placements():
    """Two values fall into any of G x G cells: all of them are tried."""
    low, high = np.minimum(np.arange(1, GRID) // 60, 1), np.maximum(1, np.arange(1, GRID) // 40).clip(max=2)
    cells = np.array(list(itertools.product(range(GRID), repeat=2))) / GRID + 0.5 / GRID
    counts = counts_of(cells)
    inside = ((counts >= low) & (counts <= high)).all(1).mean()
    assert 0.1 < inside < 0.9
    assert np.isclose(inside_probability(low, high, 2), inside, rtol=1e-12)
    free = np.zeros(GRID - 1, int)
    assert np.isclose(inside_probability(free, free + 30, 30), 1.0, rtol=1e-12)
    assert inside_probability(free + 3, free + 2, 30) == 0.0


@pytest.mark.parametrize("size", [7, 60, 500])
def test_bands_hold_uniform_samples_as_often_as_they_say(size):
    band = simultaneous_band(size, 0.9)
    counts = counts_of(np.random.default_rng(0).random((2000, size))) / size
    inside = ((counts >= band.low - 1e-12) & (counts <= band.high + 1e-12)).all(1)
    exact = inside_probability(np.rint(band.low * size).astype(int), np.rint(band.high * size).astype(int), size)
    assert abs(inside.mean() - exact) < SIGMA * np.sqrt(exact * (1 - exact) / len(inside))
    assert 0.9 <= exact < 0.93  # as narrow as whole counts allow


def test_p_values_are_below_every_level_no_more_often_than_it_says():
    rng = np.random.default_rng(1)
    found = np.array([uniformity_p_value(rng.random(40)) for _ in range(250)])
    for level in (0.02, 0.1, 0.3, 0.6):
        assert (found <= level).mean() < level + SIGMA * np.sqrt(level * (1 - level) / len(found))
        assert (found <= level).mean() > 0.8 * level - SIGMA * np.sqrt(level * (1 - level) / len(found))


def test_a_p_value_is_below_the_level_where_the_sample_leaves_the_band():
    rng, band = np.random.default_rng(2), simultaneous_band(80, 0.95)
    samples = [rng.random(80) ** power for power in np.linspace(0.7, 1.4, 60)]
    outside = [bool(((grid_counts(s) / 80 < band.low) | (grid_counts(s) / 80 > band.high)).any()) for s in samples]
    assert [uniformity_p_value(s) <= 0.05 for s in samples] == outside and 10 < sum(outside) < 50


def test_p_values_far_below_rounding_stay_in_order():
    values = np.linspace(0.001, 0.999, 1000)
    found = [uniformity_p_value(values**power) for power in (1.0, 1.2, 1.5, 2.0, 4.0)]
    assert found == sorted(found, reverse=True) and found[0] == 1.0 and 0 <= found[-1] < 1e-80


def test_adjusted_p_values_are_the_known_ones():
    assert np.allclose(holm(np.array([0.01, 0.04, 0.03, 0.005])), [0.03, 0.06, 0.06, 0.02])  # Holm's own procedure


@pytest.mark.parametrize("probability", [0.03, 0.5, 0.9])
def test_ranks_of_discrete_values_are_uniform(probability):
    """The truth and three draws of one Bernoulli: almost all are ties."""
    values = torch.bernoulli(torch.full((4, 4000), probability), generator=torch.Generator().manual_seed(0))
    ranks = randomise_rank(values[0], values[1:], torch.Generator().manual_seed(1))
    assert uniformity_p_value(ranks) > 0.01
    ordinary = ((values[1:] < values[0]).sum(0) + 0.5).numpy() / 4  # ties all counted as above
    assert uniformity_p_value(ordinary) < 1e-6


def test_ranks_of_continuous_values_are_the_usual_ones():
    values = torch.randn((8, 50), generator=torch.Generator().manual_seed(0))
    ranks = randomise_rank(values[0], values[1:], torch.Generator().manual_seed(1))
    assert np.array_equal(np.floor(8 * ranks), (values[1:] < values[0]).sum(0).numpy())


def test_matching_to_data_keeps_ranks_uniform_and_matching_to_the_truth_does_not():
    """The truth and draws of one exchangeable law, a posterior that says nothing; the reference is any fixed value."""
    model = MixtureOfPoissons(num_components=4, num_features=6).with_priors(rate=dist.Gamma(2.0, 1.0))
    like, generator = torch.zeros((), dtype=torch.float64), torch.Generator().manual_seed(0)

    def drawn(number: int) -> list[dict[str, torch.Tensor]]:
        return [{site: model.prior(site, like=like).sample() for site in model.global_sites} for _ in range(number)]

    (fixed,), spread = drawn(1), {"right": [], "wrong": []}
    for _ in range(60):
        truth, *draws = drawn(8)
        # As of a sampler that stays in one labelling: its draws are not exchangeable under renaming, the truth is.
        draws = [{**d, "rate": d["rate"][d["rate"][:, 0].argsort()]} for d in draws]
        for name, reference in (("right", fixed), ("wrong", truth)):
            moved = [match_to_reference(model, one, reference, generator, [range(4)]) for one in (truth, *draws)]
            named = torch.stack([one["rate"] for one in moved])
            ranks = randomise_rank(named[0], named[1:], generator)
            spread[name].append(12 * np.square(ranks - 0.5).mean())  # 1 of uniform ranks
    errors = {name: (np.mean(v) - 1) / (np.std(v) / len(v) ** 0.5) for name, v in spread.items()}
    # The truth is in the middle of what is moved to it.
    assert abs(errors["right"]) < SIGMA and errors["wrong"] < -SIGMA


def test_exchangeable_components_are_told_from_those_that_priors_name():
    for name in MODELS:
        model = tiny(name)
        ordered = name in ("hdp", "labeled_lda")  # by sticks, by what they are the topics of
        assert exchangeable(model) == ([] if ordered else [list(range(model.sizes["component"]))])
    common = MODELS["partially_labeled_lda"].example().model  # two topics of a label, one of none
    assert exchangeable(common) == [[0, 1]]
    four = MixtureOfPoissons(num_components=4, num_features=2)
    three = four.with_priors(mixing_proportion=dist.Dirichlet(torch.tensor([1.0, 5, 1, 1])))
    assert exchangeable(three) == [[0, 2, 3]]
    pairs = four.with_priors(mixing_proportion=dist.Dirichlet(torch.tensor([1.0, 5, 5, 1])))
    assert exchangeable(pairs) == [[0, 3], [1, 2]]
    model = tiny("mixture_of_poissons")
    assert not exchangeable(model.with_priors(mixing_proportion=dist.Dirichlet(torch.tensor([1.0, 5.0]))))
    assert not exchangeable(tiny("lda").with_concentration(alpha=torch.tensor([0.5, 2.0])))
    assert not exchangeable(one_rate())


def test_components_that_priors_tell_apart_stay_where_they_are():
    """Only those of a set are matched to the reference, whatever order they come in."""
    model, sets = MixtureOfPoissons(num_components=5, num_features=3), [[0, 3], [1, 4]]
    rate, generator = torch.randn(5, 3).exp(), torch.Generator().manual_seed(0)
    reference = {"rate": rate, "mixing_proportion": torch.arange(5.0)}
    for order in ([0, 1, 2, 3, 4], [3, 1, 2, 0, 4], [3, 4, 2, 0, 1]):
        values = {"rate": rate[order], "mixing_proportion": torch.arange(5.0)[order]}
        found = match_to_reference(model, values, reference, generator, sets)
        assert all(torch.equal(found[site], reference[site]) for site in reference)
    apart = match_to_reference(
        model, {site: value.flip(0) for site, value in reference.items()}, reference, generator, sets
    )
    assert torch.equal(apart["rate"][2], rate[2])
    assert sorted(apart["mixing_proportion"][[0, 3]].tolist()) == [1.0, 4.0]


def test_turned_scores_and_weights_have_one_standard_form_and_the_same_likelihood():
    model = LogisticPCA(num_components=2, num_features=5)
    values = {"weight": torch.randn(2, 5), "bias": torch.randn(5), "score": torch.randn(9, 2)}
    angle = torch.tensor(0.8)
    turn = torch.tensor([[angle.cos(), -angle.sin()], [-angle.sin(), -angle.cos()]])
    turned = {**values, "weight": turn @ values["weight"], "score": values["score"] @ turn.T}
    forms = [model.standard_form(one) for one in (values, turned)]
    for one in forms:
        assert torch.allclose(one["score"] @ one["weight"], values["score"] @ values["weight"])
        assert torch.allclose(one["weight"], forms[0]["weight"]) and torch.allclose(one["score"], forms[0]["score"])
    assert has_standard_form(model) and not has_standard_form(tiny("noca"))
    unequal = model.with_priors(weight=dist.Normal(torch.zeros(2, 1), torch.tensor([[1.0], [3.0]])))
    assert not has_standard_form(unequal)


def test_factors_of_items_are_matched_by_their_columns_with_the_profiles_of_users():
    """Of items (I, K) the components are not the first axis; a bias stands before them in a profile."""
    model, generator = PMF(num_components=3, num_users=4, num_items=5, adaptive=False), torch.Generator().manual_seed(0)
    reference = {"item": torch.randn(5, 3), "user_profile": torch.randn(4, 4), "mean": torch.tensor(0.3)}
    order = torch.tensor([2, 0, 1])
    values = {**reference, "item": reference["item"][:, order]}
    values["user_profile"] = torch.cat(
        [reference["user_profile"][:, :1], reference["user_profile"][:, 1:][:, order]], 1
    )
    found = match_to_reference(model, values, reference, generator, [range(3)])
    assert all(torch.equal(found[site], value) for site, value in reference.items())
    assert has_standard_form(model) and exchangeable(model) == [[0, 1, 2]]
    unequal = model.with_priors(user=dist.Normal(torch.zeros(3), torch.tensor([1.0, 3.0, 1.0])))
    assert not has_standard_form(unequal) and exchangeable(unequal) == [[0, 2]]


@pytest.mark.parametrize(("kind", "settings"), [(PMF, {}), (PMF, {"adaptive": True}), (BilinearPMF, {})])
def test_the_standard_form_of_ratings_keeps_the_density(kind, settings):
    """Weights of covariates, means and covariances turn with the factors."""
    covariates = {"num_user_covariates": 2, "num_item_covariates": 3}
    model = kind(num_components=2, num_users=4, num_items=5, **settings, **covariates)
    draw = prior_draw(model, 0)
    given = {"user_covariates": torch.randn(4, 2), "item_covariates": torch.randn(5, 3)}
    draw[model.local_site] = torch.randn(4, *model.local_shape, dtype=torch.float64)
    data, turned = model.prepare(torch.eye(4, 5), dtype=torch.float64, **given), model.standard_form(draw)
    assert has_standard_form(model) and not torch.allclose(draw["item"], turned["item"])
    gram = turned["item"].T @ turned["item"]
    assert torch.allclose(gram, gram.diagonal().diag()) and gram[0, 0] > gram[1, 1]
    both = log_densities(model, {site: torch.stack([draw[site], turned[site]]) for site in draw}, data)
    assert all(torch.allclose(value[0], value[1], rtol=1e-9, atol=1e-6) for value in both.values())


@pytest.mark.parametrize("name", MODELS)
def test_densities_of_many_draws_at_once_are_the_programs(name, monkeypatch):
    model = proper_priors(tiny(name))
    nodes = model.num_nodes if model.is_graph else 4
    traces = [poutine.trace(model).get_trace(num_rows=nodes) for _ in range(3)]
    latent = (*model.global_sites, model.local_site)
    draws = {site: torch.stack([trace.nodes[site]["value"] for trace in traces]) for site in latent}
    data = model.prepare(model.as_data(traces[0].nodes["x"]["value"]), dtype=torch.float64)
    found = log_densities(model, draws, data)
    for i in range(3):
        values = {site: value[i] for site, value in draws.items()}
        read = model.as_read(data)
        one = poutine.trace(pyro.condition(model, data=values)).get_trace(read.x, mask=read.mask)
        assert torch.allclose(found["log_joint"][i], one.log_prob_sum(), atol=1e-6)
        assert torch.allclose(found["log_likelihood"][i], one.log_prob_sum(lambda n, _: n == "x"), atol=1e-6)
    monkeypatch.setattr(torch, "vmap", _refuses)
    for which, value in log_densities(model, draws, data).items():
        torch.testing.assert_close(value, found[which], rtol=1e-12, atol=1e-12)


def _refuses(*arguments, **settings):
    del arguments, settings
    raise RuntimeError("this program's course depends on values")
