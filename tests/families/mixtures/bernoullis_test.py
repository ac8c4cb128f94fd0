"""Mixture of Bernoullis: what it has beyond the table of all mixtures: starts, solutions, priors that need a mode."""

import numpy as np
import pyro.distributions as dist
import pytest
import torch

from custom_inference import EM, Search
from custom_inference.core.registry import engine_for, presentation_of
from custom_inference.families.mixtures.densities import density_of
from ppl_models import Data, MethodError, MixtureOfBernoullis, ModelError
from tests.support.mixtures import bernoullis, missing, tensors

pytestmark = pytest.mark.quick

MODEL = MixtureOfBernoullis(num_components=3, num_features=5)
STEPS = engine_for(MODEL, "exact")


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


def test_informed_starts_beat_random_ones():
    """One start each: the k-means++-like ones find all six classes more often than uniform random ones."""
    rng = np.random.default_rng(5)
    probability = rng.choice([0.1, 0.85], (6, 30))
    x = probability[rng.integers(6, size=600)]
    x, wins = (rng.random(x.shape) < x).astype(float), {}
    model = MixtureOfBernoullis(num_components=6, num_features=30)
    for informed in (True, False):
        search = Search(restarts=1, informed=informed, settle=30, refine=False)
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
    assert MODEL.num_parameters(10**6) == 17
    assert torch.equal(presentation_of(MODEL).prominence(MODEL, params), params["mixing_proportion"])


def test_bad_priors_are_refused():
    for wrong in (dist.Normal(0.0, 1.0), dist.Beta(torch.ones(3), torch.ones(3)).to_event(1)):
        with pytest.raises(ModelError, match="simplex|batch shape"):
            MODEL.with_priors(mixing_proportion=wrong)
    rows = STEPS.rows(MODEL, MODEL.prepare(np.eye(5)))
    for prior, match in (
        ({"probability": dist.Uniform(0.1, 0.9)}, "need a Beta prior"),
        ({"probability": dist.Beta(0.5, 1.0)}, "concentration below 1"),
        ({"mixing_proportion": dist.Dirichlet(torch.tensor([0.5, 1.0, 1.0]))}, "concentration below 1"),
    ):
        with pytest.raises(MethodError, match=match):
            STEPS.check(MODEL.with_priors(**prior), rows)
