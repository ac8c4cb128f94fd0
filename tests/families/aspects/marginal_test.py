"""Aspect Bernoulli with the memberships integrated out: exactly, and under Dirichlet posteriors."""

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp

from custom_inference.core.local_inference import LocalSolver
from custom_inference.families.aspects.engines import AspectDirichlet, AspectExact
from custom_inference.families.common.polynomial import num_terms
from ppl_models import AspectBernoulli, CapacityError, Data, MethodError
from tests.references import aspect_bernoulli as reference

ENGINES = [AspectExact, AspectDirichlet]
NAMES = ["exact", "dirichlet"]


def problem(seed, num_components=2, num_features=5, num_rows=4, missing=0.0, total_count=1, edge=0.02):
    rng = np.random.default_rng(seed)
    params = {"aspect_probability": rng.uniform(edge, 1 - edge, (num_components, num_features))}
    x = rng.integers(0, total_count + 1, (num_rows, num_features)).astype(float)
    mask = rng.random(x.shape) > missing if missing else None
    tensors = {site: torch.tensor(value) for site, value in params.items()}
    data = Data(x=torch.tensor(x), mask=None if mask is None else torch.tensor(mask))
    return params, tensors, x, mask, data


def engine_of(kind, alpha, total_count=1, **settings):
    """The engine, and a model with this prior of the memberships."""
    model = AspectBernoulli(num_components=len(alpha), num_features=5, total_count=total_count)
    return kind(**settings), model.with_priors(membership=dist.Dirichlet(torch.tensor(np.asarray(alpha, dtype=float))))


@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize("alpha", [(1.0, 1.0), (0.3, 0.3), (2.5, 0.7)])
@pytest.mark.parametrize("total_count", [1, 2])
def test_evidence_and_mean_are_quadratures(total_count, alpha, missing):
    params, tensors, x, mask, data = problem(0, missing=missing, total_count=total_count, num_features=6)
    engine, model = engine_of(AspectExact, alpha, total_count)
    rows = engine.rows(model, data)
    truth = reference.log_evidence_quadrature(params, x, alpha, mask, total_count)
    assert np.allclose(engine.log_evidence(model, tensors, rows), truth, atol=1e-9)
    assert np.allclose(engine.e_step(model, tensors, rows).bound, truth, atol=1e-9)
    mean = reference.posterior_mean_quadrature(params, x, alpha, mask, total_count)
    assert np.allclose(engine.posterior(model, tensors, rows).mean, mean, atol=1e-8)


@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize("num_components", [1, 2, 3, 4])
def test_evidence_posterior_and_attribution_are_sums_over_the_indicators(num_components, missing):
    """All K^D indicators; the counts that EM needs are the attributions, summed."""
    alpha = np.linspace(0.6, 1.7, num_components)
    params, tensors, x, mask, data = problem(1, num_components, 5, 3, missing)
    engine, model = engine_of(AspectExact, alpha)
    rows = engine.rows(model, data)
    assert np.allclose(
        engine.log_evidence(model, tensors, rows), reference.log_evidence_indicators(params, x, alpha, mask), atol=1e-11
    )
    mean = reference.posterior_mean_indicators(params, x, alpha, mask)
    assert np.allclose(engine.posterior(model, tensors, rows).mean, mean, atol=1e-11)
    share = np.nan_to_num(reference.attribution_indicators(params, x, alpha, mask))
    counts = engine.e_step(model, tensors, rows).statistics
    seen = np.ones_like(x) if mask is None else mask
    assert np.allclose(counts["on"], np.einsum("ntk,nt->kt", share, x * seen), atol=1e-11)
    assert np.allclose(counts["off"], np.einsum("ntk,nt->kt", share, (1 - x) * seen), atol=1e-11)


def test_counts_of_three_are_the_references_polynomial():
    alpha = (0.5, 1.0, 2.0)
    params, tensors, x, mask, data = problem(2, 3, 4, 3, 0.2, total_count=3)
    engine, model = engine_of(AspectExact, alpha, 3)
    truth = reference.log_evidence_polynomial(params, x, alpha, mask, 3)
    assert np.allclose(engine.log_evidence(model, tensors, engine.rows(model, data)), truth, atol=1e-10)


@pytest.mark.parametrize("alpha", [(1.0, 1.0), (0.4, 3.0)])
def test_many_features_and_extreme_aspects_lose_no_digits(alpha):
    """400 draws, aspects down to 1e-6: probabilities far below the smallest number; Gauss-Jacobi quadrature agrees."""
    from scipy.special import roots_jacobi

    params, tensors, x, _, data = problem(3, 2, 400, 3, edge=1e-6)
    engine, model = engine_of(AspectExact, alpha)
    # A polynomial of degree 400 is integrated exactly by 201 nodes.
    node, weight = roots_jacobi(220, alpha[1] - 1, alpha[0] - 1)
    s = (node + 1) / 2
    heights = [reference.log_likelihood(params, np.repeat(row[None], len(s), 0), np.stack([s, 1 - s], 1)) for row in x]
    truth = logsumexp(np.array(heights) + np.log(weight / weight.sum()), axis=1)
    found = engine.log_evidence(model, tensors, engine.rows(model, data)).numpy()
    assert (found < -300).all() and np.allclose(found, truth, rtol=1e-10)
    single = {"aspect_probability": tensors["aspect_probability"].float()}
    rounded = engine.log_evidence(model, single, engine.rows(model, data.to(dtype=torch.float32)))
    assert rounded.dtype == torch.float32 and np.allclose(rounded, truth, rtol=1e-4)


def test_posterior_density_is_bayes_rule():
    """log p(s | x) = log p(x | s) + log p(s) - log p(x) at any s: the mixture is the posterior itself."""
    alpha = (0.7, 1.0, 2.0)
    params, tensors, x, mask, data = problem(4, 3, 6, 5, 0.3)
    engine, model = engine_of(AspectExact, alpha)
    rows = engine.rows(model, data)
    s = np.random.default_rng(0).dirichlet(np.ones(3), 5)
    prior = torch.distributions.Dirichlet(torch.tensor(alpha)).log_prob(torch.tensor(s))
    expected = (
        torch.tensor(reference.log_likelihood(params, x, s, mask)) + prior - engine.log_evidence(model, tensors, rows)
    )
    assert torch.allclose(engine.posterior(model, tensors, rows).log_prob(torch.tensor(s)), expected, atol=1e-10)


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_exact_em_ends_where_the_evidence_has_no_slope(missing):
    alpha, prior = (0.8, 1.3), (1.5, 2.0)
    _, tensors, x, mask, data = problem(5, 2, 4, 25, missing)
    model = AspectBernoulli(num_components=2, num_features=4).with_priors(
        aspect_probability=dist.Beta(*prior), membership=dist.Dirichlet(torch.tensor(alpha))
    )
    engine = AspectExact()
    rows = engine.rows(model, data)
    for _ in range(800):
        tensors = engine.m_step(model, tensors, engine.e_step(model, tensors, rows), rows)

    def objective(a):
        evidence = reference.log_evidence_indicators({"aspect_probability": a}, x, alpha, mask).sum()
        return evidence + ((prior[0] - 1) * np.log(a) + (prior[1] - 1) * np.log(1 - a)).sum()

    a, h = tensors["aspect_probability"].numpy(), 1e-5
    for index in np.ndindex(a.shape):
        shift = np.zeros_like(a)
        shift[index] = h
        assert abs(objective(a + shift) - objective(a - shift)) / (2 * h) < 1e-3


def test_what_does_not_fit_is_refused_with_an_estimate():
    model = AspectBernoulli(num_components=8, num_features=100)
    engine = AspectExact()
    assert not engine.feasible(model)
    with pytest.raises(CapacityError, match=r'100 draws in 8 .*GiB.*"dirichlet"') as raised:
        engine.check(model, engine.rows(model, Data(x=torch.zeros(2, 100))))
    assert raised.value.needed_bytes > 8 * num_terms(100, 8)
    small = AspectBernoulli(num_components=2, num_features=60)
    assert AspectExact().feasible(small)
    with pytest.raises(CapacityError):
        AspectExact(max_bytes=1e3).log_evidence(
            model, {"aspect_probability": torch.full((2, 60), 0.5)}, engine.rows(model, Data(x=torch.zeros(2, 60)))
        )
    assert AspectExact().feasible(AspectBernoulli(num_components=2, num_features=99, total_count=2))
    assert not AspectExact().feasible(AspectBernoulli(num_components=2, num_features=100, total_count=2))


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    shape=st.tuples(st.integers(1, 4), st.integers(1, 7), st.integers(1, 4)),
    missing=st.sampled_from([0.0, 0.4]),
    total_count=st.sampled_from([1, 2]),
    scale=st.sampled_from([0.1, 1.0, 3.0]),
)
def test_dirichlet_bound_stays_below_the_evidence(seed, shape, missing, total_count, scale):
    _, tensors, _, _, data = problem(seed, *shape, missing=missing, total_count=total_count)
    alpha = scale * np.linspace(0.5, 1.5, shape[0])
    engine, model = engine_of(AspectDirichlet, alpha, total_count)
    exact = AspectExact()
    local = LocalSolver(engine=engine).solve(model, tensors, data)
    evidence = exact.log_evidence(model, tensors, exact.rows(model, data))
    assert (local.bound <= evidence + 1e-9).all()


@pytest.mark.parametrize("total_count", [1, 2])
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_dirichlet_bound_is_the_references(missing, total_count):
    alpha = (0.5, 1.0, 1.5)
    params, tensors, x, mask, data = problem(6, 3, 8, 5, missing, total_count)
    engine, model = engine_of(AspectDirichlet, alpha, total_count)
    rows = engine.rows(model, data)
    step = engine.e_step(model, tensors, rows)
    gamma = step.locals["concentration"].numpy()
    best = reference.best_indicator(params, gamma)
    value = reference.dirichlet_bound(params, x, gamma, best, alpha, mask, total_count)
    assert np.allclose(step.bound, value, atol=1e-10)
    local = LocalSolver(engine=engine, max_iterations=3000, tolerance=1e-14).solve(model, tensors, data)
    gamma, bound = reference.best_dirichlet(params, x, alpha, mask, total_count)
    assert np.allclose(local.posterior.concentration, gamma, atol=1e-5) and np.allclose(local.bound, bound, atol=1e-9)


@pytest.mark.parametrize("kind", ENGINES, ids=NAMES)
def test_blocks_change_nothing(kind, monkeypatch):
    _, tensors, _, _, data = problem(7, 3, 6, 40, missing=0.2, total_count=2)
    engine, model = engine_of(kind, (0.5, 1.0, 2.0), 2)
    whole = engine.e_step(model, tensors, engine.rows(model, data))
    monkeypatch.setattr("custom_inference.families.aspects.engines.BLOCK_ENTRIES", 1)
    blocks = engine.e_step(model, tensors, engine.rows(model, data))
    for name, value in whole.statistics.items():
        assert torch.allclose(value, blocks.statistics[name], atol=1e-10), name
    assert torch.allclose(whole.bound, blocks.bound, atol=1e-10)
    if kind is AspectExact:
        weights = engine.posterior(model, tensors, engine.rows(model, data)).log_weight
        assert torch.allclose(weights.logsumexp(-1), torch.zeros(40), atol=1e-10)


@pytest.mark.parametrize("kind", ENGINES, ids=NAMES)
def test_priors_without_closed_forms_are_refused(kind):
    model = AspectBernoulli(num_components=2, num_features=3)
    engine = kind()
    rows = engine.rows(model, Data(x=torch.eye(3)))
    with pytest.raises(MethodError, match="Beta prior for 'aspect_probability'"):
        engine.check(model.with_priors(aspect_probability=dist.Uniform(0.1, 0.9)), rows)
    sticks = dist.TransformedDistribution(
        dist.Normal(torch.zeros(1), torch.ones(1)).to_event(1), dist.transforms.StickBreakingTransform()
    )
    with pytest.raises(MethodError, match="Dirichlet prior for 'membership'"):
        engine.check(model.with_priors(membership=sticks), rows)
