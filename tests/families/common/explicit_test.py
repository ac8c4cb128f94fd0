"""Sites that samplers keep as values: their conditional given counts, against integrals on grids."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy.stats import kstest

from custom_inference.families.common.explicit import Explicit, with_references
from custom_inference.families.common.scales import SCALES, ProbabilityScale, RateScale, SimplexScale
from ppl_models import LDA, SBM, MixtureOfBernoullis, MixtureOfPoissons, PriorError
from ppl_models.distributions import Flat
from tests.support.priors import PRIORS, OnGrid, correlated_logits

#: Chains side by side, and steps of each.
CHAINS, STEPS = 2500, 10


def run(prior: Any, scale: Any, counts: tuple[Any, ...], shape: tuple[int, ...], start: Any = None) -> np.ndarray:
    """The last values of many chains, all from one value."""
    generator = np.random.default_rng(0)
    one = Explicit("site", prior, scale, shape)
    if start is not None:
        one.settle(torch.as_tensor(start).expand(shape))
    statistics = tuple(torch.as_tensor(part, dtype=torch.float64).expand(shape) for part in counts)
    for _ in range(STEPS):
        one.update(statistics, generator)
    assert bool(torch.isfinite(one.value).all())
    return one.value.numpy()


def assert_law(values: np.ndarray, points: np.ndarray, weight: np.ndarray) -> None:
    """Against a law on a grid (G,)."""
    order = np.argsort(points, kind="stable")
    points, cumulative = points[order], weight[order].cumsum() - weight[order] / 2
    found = kstest(values, lambda v: np.interp(v, points, cumulative, left=0, right=1))
    assert found.pvalue > 1e-3, found


@pytest.mark.parametrize("counts", [(0.0, 0.0), (3.0, 7.0)])
@pytest.mark.parametrize("name", PRIORS["probability"])
def test_probabilities_follow_their_posterior(name, counts):
    prior = PRIORS["probability"][name]
    grid = OnGrid(prior, "probability")
    assert_law(run(prior, ProbabilityScale(), counts, (CHAINS,)), grid.points, grid.weight(counts))


@pytest.mark.parametrize("counts", [(0.0, 0.0), (4.0, 2.5)])
@pytest.mark.parametrize("name", PRIORS["rate"])
def test_rates_follow_their_posterior(name, counts):
    prior = PRIORS["rate"][name]
    grid = OnGrid(prior, "rate")
    assert_law(run(prior, RateScale(), counts, (CHAINS,)), grid.points, grid.weight(counts))


@pytest.mark.parametrize("counts", [(0.0, 0.0, 0.0), (4.0, 1.0, 0.0)])
@pytest.mark.parametrize("name", PRIORS["simplex"])
def test_simplexes_follow_their_posterior(name, counts):
    prior = PRIORS["simplex"][name]
    grid = OnGrid(prior, "simplex")
    values = run(prior, SimplexScale(), (counts,), (CHAINS, 3), start=[0.3, 0.4, 0.3])
    assert np.allclose(values.sum(-1), 1)
    for part in range(3):
        assert_law(values[:, part], grid.points[:, part], grid.weight(counts))


def test_rows_that_depend_on_each_other_move_together():
    """Two probabilities whose logits are correlated under the prior."""
    prior, on, off = correlated_logits(0.9), np.array([3.0, 0.0]), np.array([0.0, 1.0])
    grid = np.stack(np.meshgrid(*[np.linspace(-8, 8, 321)] * 2, indexing="ij"), -1).reshape(-1, 2)
    value = 1 / (1 + np.exp(-grid))
    logs = prior.log_prob(torch.as_tensor(value)).numpy() + (
        np.log(value) * (on + 1) + np.log1p(-value) * (off + 1)
    ).sum(-1)
    weight = np.exp(logs - logs.max())
    weight /= weight.sum()
    values = run(prior, ProbabilityScale(), (on, off), (CHAINS, 2))
    for part in range(2):
        points, place = np.unique(value[:, part], return_inverse=True)
        assert_law(values[:, part], points, np.bincount(place, weight))
    correlation = weight @ (grid[:, 0] * grid[:, 1]) - (weight @ grid[:, 0]) * (weight @ grid[:, 1])
    logits = np.log(values) - np.log1p(-values)
    assert abs(np.cov(logits.T)[0, 1] - correlation) < 4.5 * np.std(logits[:, 0] * logits[:, 1]) / CHAINS**0.5


def test_steps_in_many_dimensions_forget_where_they_began():
    """A logistic-normal of 150 words: correlation of log odds with those of 25 steps before."""
    size, generator = 150, np.random.default_rng(1)
    one = Explicit(
        "topic", dist.LogisticNormal(torch.zeros(size - 1), torch.ones(size - 1)), SimplexScale(), (20, size)
    )
    counts = (torch.as_tensor(generator.poisson(2.0, (20, size)), dtype=torch.float64),)
    trace = []
    for _ in range(90):
        one.update(counts, generator)
        trace.append(torch.log(one.value[:, :20] / one.value[:, 20:40]).numpy())
    late = np.array(trace[30:])
    late -= late.mean(0)
    assert (late[25:] * late[:-25]).mean() / late.var() < 0.25


def test_what_is_integrated_out_and_what_is_not():
    bernoullis = MixtureOfBernoullis(num_components=2, num_features=3)
    for prior in (dist.Uniform(0.0, 1.0), Flat(dist.Beta(2.0, 1.0)), dist.Beta(2.0, 1.0).expand([3]).to_event(1)):
        conjugate, explicit = with_references(bernoullis.with_priors(probability=prior))
        assert not explicit and isinstance(conjugate.priors["probability"], dist.Beta)
    conjugate, explicit = with_references(bernoullis.with_priors(probability=dist.Uniform(0.1, 0.6)))
    assert set(explicit) == {"probability"} and isinstance(conjugate.priors["probability"], dist.Beta)
    assert explicit["probability"].note == "probability by slice steps: its prior is no Beta"
    within = with_references(bernoullis.with_priors(probability=Flat(dist.Uniform(0.1, 0.6))))[1]["probability"]
    assert bool(((within.value > 0.1) & (within.value < 0.6)).all())
    assert not with_references(
        LDA(num_topics=2, vocabulary_size=3).with_priors(topic=Flat(dist.Dirichlet(torch.ones(3))))
    )[1]
    with pytest.raises(PriorError, match=r"prior of 'rate' is improper \(Flat\)"):
        with_references(
            MixtureOfPoissons(num_components=2, num_features=3).with_priors(rate=Flat(dist.Gamma(1.0, 1.0)))
        )


def test_matrices_of_undirected_graphs_stay_symmetric():
    model = SBM(num_blocks=3, num_nodes=5, directed=False).with_priors(edge_probability=dist.Uniform(0.0, 0.7))
    one, generator = with_references(model)[1]["edge_probability"], np.random.default_rng(2)
    counts = (torch.zeros(3, 3), torch.full((3, 3), 2.0))
    one.begin(counts, generator)
    for _ in range(5):
        one.update(counts, generator)
    assert torch.equal(one.value, one.value.T) and len(torch.unique(one.value)) == 6
    entries = torch.triu_indices(3, 3)
    free = one.value[tuple(entries)]
    expected = (2 * torch.log1p(-free)).sum() - 6 * np.log(0.7)
    assert one.log_joint(counts) == pytest.approx(float(expected), rel=1e-12)


def test_references_have_about_the_moments_of_conjugate_priors():
    for support, scale in SCALES:
        prior = {"ProbabilityScale": dist.Beta(2.0, 5.0), "RateScale": dist.Gamma(3.0, 2.0)}.get(
            type(scale).__name__, dist.Dirichlet(torch.tensor([0.5, 2.0, 4.0]))
        )
        found = Explicit("site", prior, scale, (3,)).reference
        names = {"Beta": ("concentration1", "concentration0"), "Gamma": ("concentration", "rate")}
        for value, name in zip(found, names.get(scale.kind.__name__, ("concentration",)), strict=True):
            assert torch.allclose(value, getattr(prior, name).double(), rtol=0.2), (support, value)
