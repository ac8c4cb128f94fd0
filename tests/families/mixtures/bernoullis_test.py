"""Mixture of Bernoullis: what it has beyond the other mixtures: starts on probabilities, priors that need a mode."""

from __future__ import annotations

import numpy as np
import pyro.distributions as dist
import pytest
import torch

from custom_inference import EM, Search
from custom_inference.core.registry import engine_for, presentation_of
from custom_inference.families.mixtures.densities import density_of
from ppl_models import Data, DataError, MethodError, MixtureOfBernoullis, ModelError
from tests.support.mixtures import bernoullis, missing, tensors

pytestmark = pytest.mark.quick

MODEL = MixtureOfBernoullis(num_components=3, num_features=5)
STEPS = engine_for(MODEL, "exact")


def planted(num_rows: int = 600, seed: int = 0):
    rng = np.random.default_rng(seed)
    probability = rng.choice([0.1, 0.85], (6, 30))
    label = rng.integers(6, size=num_rows)
    return probability, label, (rng.random((num_rows, 30)) < probability[label]).astype(float)


def test_distances_of_starts_are_those_of_the_entries_observed_in_both():
    model, _, x = bernoullis(2)
    mask = missing(x, 2, 0.5)
    mask[0] = False
    rows = STEPS.rows(model, Data(x=torch.tensor(x), mask=torch.tensor(mask)))
    distances, weight = density_of(model).distances(rows)
    found = distances(torch.tensor([1, 4, 0]))
    for n in range(len(x)):
        for column, other in enumerate((1, 4, 0)):
            both = mask[n] & mask[other]
            assert np.isclose(found[n, column], (x[n] != x[other])[both].mean() if both.any() else 0.5)
    assert torch.equal(weight, torch.ones(8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_planted_classes_are_found_and_starts_agree(dtype):
    probability, label, x = planted()
    model = MixtureOfBernoullis(num_components=6, num_features=30)
    fit = EM().fit(model, x, seed=0, progress=False, dtype=dtype)
    assert fit.params["probability"].dtype == dtype
    found = fit.transform().argmax(-1).numpy()
    table = np.zeros((6, 6))
    np.add.at(table, (label, found), 1)
    assert table.max(1).sum() > 0.97 * len(x), "each planted class is one found class"
    assert len(set(table.argmax(1))) == 6
    truth = {"mixing_proportion": torch.full((6,), 1 / 6), "probability": torch.tensor(probability)}
    assert STEPS.same_solution(model, {k: v.double() for k, v in fit.params.items()}, truth)


def test_informed_starts_beat_random_ones():
    """One start each: the k-means++-like ones find all six classes more often than uniform random ones."""
    _, _, x = planted(seed=5)
    model, wins = MixtureOfBernoullis(num_components=6, num_features=30), {}
    for informed in (True, False):
        search = Search(restarts=1, informed=informed, settle=30)
        fits = [EM(search=search).fit(model, x, seed=seed, progress=False) for seed in range(6)]
        wins[informed] = [float(fit.elbo[-1]) for fit in fits]
    best = max(wins[True] + wins[False])
    count = {informed: sum(value > best - 1 for value in values) for informed, values in wins.items()}
    assert count[True] >= 5 and count[True] > count[False], count


def test_same_solution_tells_solutions_apart():
    params = tensors(bernoullis(6)[1])
    other = {site: value.flip(0) for site, value in params.items()}
    assert STEPS.same_solution(MODEL, params, other), "the order of the classes means nothing"
    changed = params["probability"].clone()
    changed[0] = changed[1]
    assert not STEPS.same_solution(MODEL, params, {**params, "probability": changed})


def test_free_parameters_and_prominence():
    model, params, _ = bernoullis(0)
    assert model.num_parameters(10**6) == 17
    assert torch.equal(presentation_of(model).prominence(model, tensors(params)), tensors(params)["mixing_proportion"])


def test_bad_input_is_refused():
    with pytest.raises(ModelError, match="num_components = 0"):
        MixtureOfBernoullis(num_components=0, num_features=5)
    model = MixtureOfBernoullis(num_components=2, num_features=3)
    with pytest.raises(ModelError, match="is a probability"):
        model.with_priors(probability=dist.Normal(0.0, 1.0))
    with pytest.raises(ModelError, match="simplex|batch shape"):
        model.with_priors(mixing_proportion=dist.Normal(0.0, 1.0))
    with pytest.raises(ModelError, match="simplex"):
        model.with_priors(mixing_proportion=dist.Beta(torch.ones(2), torch.ones(2)).to_event(1))
    with pytest.raises(DataError, match="neither 0 nor 1"):
        EM().fit(model, np.array([[0.5, 1.0, 0.0], [1.0, 0.0, 1.0]]), progress=False)
    rows = STEPS.rows(model, model.prepare(np.eye(3)))
    for prior, match in (
        ({"probability": dist.Uniform(0.1, 0.9)}, "need a Beta prior"),
        ({"probability": dist.Beta(0.5, 1.0)}, "concentration below 1"),
        ({"mixing_proportion": dist.Dirichlet(torch.tensor([0.5, 1.0]))}, "concentration below 1"),
    ):
        with pytest.raises(MethodError, match=match):
            STEPS.check(model.with_priors(**prior), rows)
