"""Logistic PCA at given globals: the evidence by quadrature, and bounds below it."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.stats import norm

from custom_inference.core.local_inference import LocalSolver
from custom_inference.core.registry import engine_for
from custom_inference.families.factors.logistic_pca import LogisticGaussian, LogisticMap
from custom_inference.families.factors.quadrature import LogisticQuadrature
from tests.families.factors.logistic_pca_test import example, model_of, problem
from tests.references import logistic_pca as reference


@pytest.mark.quick
@pytest.mark.parametrize("missing", [0.0, 0.4])
@pytest.mark.parametrize("num_components", [1, 2])
def test_evidence_is_scipys_quadrature(num_components, missing):
    params, tensors, x, mask, data = problem(0, num_components, num_features=4, num_rows=2, missing=missing)
    model = model_of(tensors)
    engine = LogisticQuadrature()
    truth = reference.log_evidence_quadrature(params, x, mask)
    assert np.allclose(engine.log_evidence(model, tensors, engine.rows(model, data)), truth, atol=1e-8)


@pytest.mark.quick
@pytest.mark.parametrize("num_components", [1, 2])
def test_posterior_moments_are_the_references(num_components):
    params, tensors, x, mask, data = problem(1, num_components, missing=0.3)
    model = model_of(tensors)
    engine = LogisticQuadrature()
    posterior = engine.posterior(model, tensors, engine.rows(model, data))
    mean, covariance = reference.posterior_moments_hermite(params, x, mask, points=120)
    assert np.allclose(posterior.mean, mean, atol=1e-6) and np.allclose(posterior.covariance, covariance, atol=1e-6)


def test_evidence_with_large_weights_and_many_features():
    """Narrow posteriors far from the prior's mean, where a rule centred at 0 has no nodes."""
    params, tensors, x, mask, data = problem(2, 1, num_features=150, num_rows=3, scale=4.0)
    model = model_of(tensors)
    engine = LogisticQuadrature()
    truth = reference.log_evidence_quadrature(params, x, mask)
    assert np.allclose(engine.log_evidence(model, tensors, engine.rows(model, data)), truth, atol=1e-8)


def test_gradient_of_the_evidence_vanishes_where_exact_em_ends():
    """Adaptive node by node, yet EM by quadrature ends at a stationary point of an independent quadrature."""
    model, data = example(missing=0.2)
    data = data.rows(slice(0, 25))
    engine = engine_for(model, "exact", nodes=20)
    rows = engine.rows(model, data)
    params = engine.propose(model, rows, torch.Generator().manual_seed(0), 0)
    for _ in range(400):
        before, params = params, engine.m_step(model, params, engine.e_step(model, params, rows), rows)
        if all(float((params[site] - before[site]).abs().max()) < 1e-6 for site in params):
            break
    x, mask = data.x.numpy(), data.mask.numpy()

    def objective(flat):
        values = {"weight": flat[:14].reshape(2, 7), "bias": flat[14:]}
        prior = -0.5 * (values["weight"] ** 2).sum() / 9 - 0.5 * (values["bias"] ** 2).sum() / 100
        return reference.log_evidence_hermite(values, x, mask, points=30).sum() + prior

    at = np.concatenate([params["weight"].numpy().ravel(), params["bias"].numpy()])
    slopes = [(objective(at + h) - objective(at - h)) / 2e-5 for h in 1e-5 * np.eye(len(at))]
    assert np.abs(slopes).max() < 5e-3


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    shape=st.tuples(st.integers(1, 2), st.integers(2, 8), st.integers(1, 4)),
    missing=st.sampled_from([0.0, 0.4]),
    scale=st.sampled_from([0.3, 2.0]),
)
def test_chain_of_bounds_datum_by_datum(seed, shape, missing, scale):
    """Jaakkola's bound <= ELBO of its q <= evidence."""
    params, tensors, x, mask, data = problem(seed, *shape, missing=missing, scale=scale)
    model = model_of(tensors)
    local = LocalSolver(engine=LogisticGaussian()).solve(model, tensors, data)
    covariance = local.posterior.covariance.numpy()
    own = reference.elbo_of_gaussian(params, x, local.posterior.mean.numpy(), covariance, mask)
    exact = LogisticQuadrature()
    evidence = exact.log_evidence(model, tensors, exact.rows(model, data)).numpy()
    assert (local.bound.numpy() <= own + 1e-8).all() and (own <= evidence + 1e-8).all()


@pytest.mark.parametrize("missing", [0.0, 0.4])
def test_gaussian_bound_is_the_references_best(missing):
    params, tensors, x, mask, data = problem(3, 3, 8, 6, missing=missing)
    model = model_of(tensors)
    local = LocalSolver(engine=LogisticGaussian(), tolerance=1e-13, max_iterations=2000).solve(model, tensors, data)
    mean, covariance, _, bound = reference.best_jaakkola(params, x, mask)
    assert np.allclose(local.bound, bound, atol=1e-9)
    assert np.allclose(local.posterior.mean, mean, atol=1e-5)
    assert np.allclose(local.posterior.covariance, covariance, atol=1e-5)


@pytest.mark.parametrize("missing", [0.0, 0.4])
def test_map_scores_are_the_maximum_and_the_objective_is_the_log_joint(missing):
    params, tensors, x, mask, data = problem(4, 3, 8, 5, missing=missing)
    model = model_of(tensors)
    engine = LogisticMap()
    local = LocalSolver(engine=engine, tolerance=1e-13, max_iterations=3000).solve(model, tensors, data)

    def log_joint(score):
        return reference.log_likelihood(params, x, score.reshape(5, 3), mask).sum() + norm.logpdf(score).sum()

    best = minimize(lambda s: -log_joint(s), np.zeros(15), tol=1e-12)
    score = local.posterior.mean.numpy()
    assert np.allclose(score, best.x.reshape(5, 3), atol=1e-4)
    step = engine.e_step(model, tensors, engine.rows(model, data), {"score": torch.tensor(score)})
    found = step.locals["score"].numpy()
    expected = reference.log_likelihood(params, x, found, mask) + norm.logpdf(found).sum(1)
    assert np.allclose(step.bound, expected, atol=1e-10)
    assert abs(float(step.bound.sum()) + best.fun) < 1e-6
