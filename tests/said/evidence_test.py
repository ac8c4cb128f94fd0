"""Evidences of small problems are finite, and those that brute force gives."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import poisson

from custom_inference import marginal_likelihood
from custom_inference.core.registry import engine_for
from ppl_models import (
    LDA,
    MMSB,
    SBM,
    DegreeCorrectedSBM,
    GammaPoisson,
    MethodError,
    MixtureOfBernoullis,
    Model,
    SpikeGammaPoisson,
)
from tests.references._shared import log_dirichlet_moment

COUNTS = np.array([[1.0, 2.0], [0.0, 3.0]])
QUIET: Any = {"progress": False}


def drawn_evidence(num_components: int, count: int = 400_000) -> tuple[float, float]:
    """log p(x) under Gamma(1, 1) priors by draws from them, and its standard error."""
    rng = np.random.default_rng(num_components)
    activation = rng.gamma(1.0, 1.0, (count, 2, num_components))
    rate = activation @ rng.gamma(1.0, 1.0, (count, num_components, 2))
    each = np.exp(poisson.logpmf(COUNTS, rate).sum((1, 2)))
    return float(np.log(each.mean())), float(each.std() / each.mean() / count**0.5)


def told(model: Model) -> Model:
    ones = torch.ones((), dtype=torch.float64)
    return model.with_priors(loading=dist.Gamma(ones, ones), activation=dist.Gamma(ones, ones))


def test_the_evidence_of_a_little_table_of_counts_is_that_of_draws_from_the_prior():
    for size in (1, 2):
        model = told(GammaPoisson(num_components=size, num_features=2))
        found = marginal_likelihood(model, COUNTS, seconds=8.0, **QUIET)
        want, error = drawn_evidence(size)
        assert abs(found.log_evidence - want) < 4 * (found.standard_error + error), size


@pytest.mark.parametrize("kind", [GammaPoisson, SpikeGammaPoisson])
def test_the_evidence_without_attributions_is_that_of_the_e_step_and_at_many_globals_at_once(kind):
    model = kind(num_components=2, num_features=3)
    data = model.prepare(np.array([[1.0, 2, 0], [0, 0, 0], [3, np.nan, 1]]), dtype=torch.float64)
    engine: Any = engine_for(model, "exact")
    rows = engine.rows(model, data)
    loadings = torch.rand(5, 2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.1
    together = torch.vmap(lambda loading: engine.log_evidence(model, {"loading": loading}, rows))(loadings)
    for loading, found in zip(loadings, together, strict=True):
        assert torch.allclose(found, engine.e_step(model, {"loading": loading}, rows).bound, rtol=1e-10)


# ----- which estimate is taken ----------------------------------------------------------------------------------------

WORDS = np.array([[1.0, 2, 0], [0, 0, 2], [1, 0, 1]])
EDGES = np.array([[0.0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0]])


def summed_over_topics(concentration: np.ndarray, alpha: float) -> float:
    """log p of the tokens of WORDS, in their order, by the sum over all their topics. concentration: (2, 3)."""
    document, word = (np.repeat(part, WORDS.ravel().astype(int)) for part in np.divmod(np.arange(9), 3))
    total = []
    for each in itertools.product(range(2), repeat=len(word)):
        topics, joint = np.array(each), np.zeros(())
        for k in range(2):
            joint += log_dirichlet_moment(np.bincount(word[topics == k], minlength=3), concentration[k])
        for i in range(3):
            counts = np.bincount(topics[document == i], minlength=2)
            joint += log_dirichlet_moment(counts, np.full(2, alpha))
        total.append(float(joint))
    return float(logsumexp(total))


def test_auto_goes_on_to_what_takes_priors_of_topics_of_their_own():
    model = LDA(num_topics=2, vocabulary_size=3).with_concentration(alpha=0.1, gamma=0.5)
    exact = marginal_likelihood(model, WORDS, **QUIET).log_evidence
    assert np.isclose(exact, summed_over_topics(np.full((2, 3), 0.5), 0.1))
    concentration = torch.tensor([[0.5, 0.5, 2.0], [1.0, 0.2, 0.2]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = marginal_likelihood(model.with_priors(topic=dist.Dirichlet(concentration)), WORDS, seconds=6.0, **QUIET)
    assert found.method == "smc"
    assert abs(found.log_evidence - summed_over_topics(concentration.double().numpy(), 0.1)) < 4 * found.standard_error


def test_auto_goes_on_from_what_takes_no_such_prior():
    plain = MixtureOfBernoullis(num_components=2, num_features=2)
    kumaraswamy = plain.with_priors(probability=dist.Kumaraswamy(1.0, 1.0))  # uniform, too
    x = np.array([[1.0, 0], [1, 1], [0, 0]])
    known = marginal_likelihood(plain, x, **QUIET)
    found = marginal_likelihood(kumaraswamy, x, seconds=6.0, **QUIET)
    assert known.method == "exact" and found.method == "smc"
    assert abs(found.log_evidence - known.log_evidence) < 4 * found.standard_error


@pytest.mark.parametrize("method", ["smc", "chib", "exact", "labelings", "auto"])
@pytest.mark.parametrize("kind", [SBM, DegreeCorrectedSBM, MMSB])
def test_errors_name_what_serves_graphs(kind, method):
    model = kind(num_blocks=2, num_nodes=4, directed=False)
    if kind is SBM and method not in ("smc", "chib"):
        assert np.isfinite(marginal_likelihood(model, EDGES, method=method, seconds=3.0, **QUIET).log_evidence)
        return
    with pytest.raises(MethodError, match=r"'labelings'") as raised:
        marginal_likelihood(model, EDGES, method=method, seconds=3.0, **QUIET)
    assert "plate of rows" not in str(raised.value) and "'smc'" not in str(raised.value)
