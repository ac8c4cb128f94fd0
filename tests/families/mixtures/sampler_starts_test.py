"""Chains of mixtures begin at searched optima, under the names that the priors give; a status says what moved."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy.special import betaln, gammaln

from custom_inference import CollapsedGibbs
from custom_inference.core.engine import EStep
from custom_inference.families.mixtures.densities import density_of
from custom_inference.families.mixtures.engines import MixtureExact
from custom_inference.families.mixtures.gibbs import MixtureChain, MixtureSampler, _find_names
from custom_inference.gibbs.chains import Mode, say_lower
from ppl_models import (
    Data,
    MixtureOfBernoullis,
    MixtureOfCategoricals,
    MixtureOfMultinomialCounts,
    MixtureOfMultinomials,
    MixtureOfPoissons,
)

pytestmark = pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")
SHORT: dict[str, Any] = {"num_samples": 8, "warmup": 5, "thin": 1, "chains": 2}
CLASSES = 4


def sparse_binary(rows: int = 240, features: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """Rows of few ones: every class has a fifth of the features at .3, the rest is at .02."""
    rng = np.random.default_rng(3)
    probability = np.full((CLASSES, features), 0.02)
    for k in range(CLASSES):
        probability[k, k * features // 5 : (k + 1) * features // 5] = 0.3
    label = np.arange(rows) % CLASSES
    return (rng.random((rows, features)) < probability[label]).astype(float), label


def log_joint(x: np.ndarray, label: np.ndarray, size: int) -> float:
    """log p(x, z) of a mixture of Bernoullis, under uniform priors of probabilities and proportions."""
    total = gammaln(size) - gammaln(size + len(x))
    for k in range(size):
        own = x[label == k]
        total += gammaln(1 + len(own)) + betaln(1 + own.sum(0), 1 + (1 - own).sum(0)).sum()
    return float(total)


@pytest.mark.parametrize("kind", [MixtureOfBernoullis, MixtureOfCategoricals])
def test_chains_of_sparse_binary_rows_reach_the_classes(kind):
    x, label = sparse_binary()
    model = kind.for_data(x, 6).with_priors(mixing_proportion=dist.Dirichlet(torch.ones(6)))
    if kind is MixtureOfBernoullis:
        model = model.with_priors(probability=dist.Beta(1.0, 1.0))
    fit: Any = CollapsedGibbs(**SHORT).fit(model, x, seed=0, progress=False)
    one = log_joint(x, np.zeros_like(label), 6)
    truth = log_joint(x, label, 6)
    assert truth > one + 100, "one class would be good enough"
    assert min(fit.details["mean_lp"]) > truth - 30 or kind is MixtureOfCategoricals, fit.details
    assert fit.params["mixing_proportion"].max() < 0.4 and "left out" not in fit.status, fit.status


@pytest.mark.parametrize("kind", [MixtureOfMultinomials, MixtureOfMultinomialCounts, MixtureOfPoissons])
def test_chains_of_sparse_counts_reach_the_classes(kind):
    x, label = sparse_binary()
    model, x = kind.for_data(x, CLASSES), 2 * x
    fit: Any = CollapsedGibbs(**SHORT).fit(model, x, seed=0, progress=False)
    table = np.zeros((CLASSES, CLASSES))
    np.add.at(table, (label, fit.transform().numpy().argmax(1)), 1)
    assert (table.max(1) > 0.8 * table.sum(1)).all() and len({*table.argmax(1)}) == CLASSES, table


@pytest.mark.parametrize("seed", range(3))
def test_starts_have_the_names_that_priors_give(seed):
    """Of classes that priors tell apart every chain's start has each under its own."""
    rng = np.random.default_rng(seed)
    rate = np.array([[1.0, 9.0, 4.0], [8.0, 1.0, 2.0], [4.0, 4.0, 12.0]])
    model = MixtureOfPoissons(num_components=3, num_features=3)
    model = model.with_priors(rate=dist.Gamma(torch.tensor(4 * rate), torch.full((3, 3), 4.0)))
    data = model.as_read(Data(x=torch.as_tensor(rng.poisson(rate[np.arange(90) % 3]), dtype=torch.float64)))
    start = MixtureSampler().propose(model, data, seed)
    assert np.abs(start["rate"].numpy() - rate).max() < 2.0


def test_names_are_the_best_of_all_assignments():
    """Against log p(x, z) of the sampler's chains under every relabelling of the same classes."""
    rng = np.random.default_rng(1)
    concentration = torch.tensor([[3.0, 1.0, 0.5, 0.5], [0.5, 2.0, 2.0, 0.5], [1.0, 1.0, 1.0, 4.0]])
    model = MixtureOfMultinomials(num_topics=3, vocabulary_size=4).with_priors(
        topic=dist.Dirichlet(concentration), mixing_proportion=dist.Dirichlet(torch.tensor([0.5, 1.0, 3.0]))
    )
    x, label = torch.as_tensor(rng.poisson(2.0, (12, 4)), dtype=torch.float64), rng.integers(0, 3, 12)
    rows = MixtureExact().rows(model, model.as_read(Data(x=x)))
    share = torch.nn.functional.one_hot(torch.as_tensor(label), 3).to(rows.like)
    scores = {}
    for order in itertools.permutations(range(3)):
        chain = MixtureChain(model, density_of(model), rows, 0)
        chain.assignment = np.argsort(order)[label]
        scores[order] = chain.log_joint()

    step = EStep(rows.statistics(share), {}, torch.zeros(len(rows)))
    assert tuple(_find_names(model, rows, step).tolist()) == max(scores, key=lambda order: scores[order])


def test_chains_that_never_move_are_not_said_to_have_found_anything():
    x, _ = sparse_binary()
    model = MixtureOfBernoullis.for_data(x, 6)
    blind: Any = CollapsedGibbs(**SHORT, search=False).fit(model, x, seed=0, progress=False)
    assert len({*blind.sample_stats["lp"].flatten().tolist()}) == 1, "else this tests nothing"
    assert "never left these components" in blind.status and "alike" in blind.status


def test_what_is_less_probable_among_agreeing_chains_is_said():
    class Nothing:
        pass

    record: Any = Nothing()
    best, near, far = (Mode(record, level, 1.0, False, "") for level in (-100.0, -102.0, -150.0))
    assert say_lower([best, near]) == ""
    assert say_lower([best, near, far]) == " (1 of them less probable: log p(x, q) 50.0 lower)"
