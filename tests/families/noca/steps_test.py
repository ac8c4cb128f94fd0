"""NOCA's closed-form steps: the chain of bounds, stationary points, and the exponential sum behind the mean field."""

from __future__ import annotations

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from custom_inference.core.local_inference import LocalSolver
from custom_inference.families.noca.exact import NocaExact
from custom_inference.families.noca.factorized import FeatureLinks, NocaFactorized, sharpen
from custom_inference.families.noca.mean_field import NocaMeanField, exponential_sum
from custom_inference.families.noca.truncated import NocaTruncated
from ppl_models import NOCA, Data
from ppl_models.distributions import all_codes
from tests.references import noca as reference

ENGINES = [NocaExact(), NocaFactorized(), NocaMeanField(), NocaTruncated()]
NAMES = [engine.name for engine in ENGINES]


def problem(seed: int, num_components: int = 3, num_features: int = 5, num_rows: int = 7, missing: float = 0.0):
    """Random parameters and random data (not drawn from them: bounds must hold for any data)."""
    rng = np.random.default_rng(seed)
    params = {
        "source_prior": rng.uniform(0.05, 0.9, num_components),
        "loading": rng.uniform(0.0, 0.98, (num_components, num_features)),
        "leak": rng.uniform(0.001, 0.3, num_features),
    }
    x = (rng.random((num_rows, num_features)) < 0.5).astype(float)
    mask = rng.random(x.shape) > missing if missing else None
    tensors = {site: torch.tensor(value) for site, value in params.items()}
    data = Data(x=torch.tensor(x), mask=None if mask is None else torch.tensor(mask))
    return params, tensors, x, mask, data


def model_of(params) -> NOCA:
    return NOCA(num_components=params["loading"].shape[0], num_features=params["loading"].shape[1])


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    shape=st.tuples(st.integers(1, 4), st.integers(4, 6), st.integers(1, 6)),
    missing=st.sampled_from([0.0, 0.3]),
)
def test_chain_of_bounds_datum_by_datum(seed, shape, missing):
    """F (eq. 7) <= ELBO of its Q <= best mean-field ELBO <= log evidence, and truncated <= log evidence."""
    params, tensors, x, mask, data = problem(seed, *shape, missing=missing)
    model = model_of(tensors)
    local = LocalSolver(engine=NocaFactorized()).solve(model, tensors, data)
    mean = local.posterior.mean.numpy()
    own = reference.elbo_of_mean(params, x, mean, mask)
    _, best = reference.best_mean_field(params, x, mean, mask)
    evidence = reference.log_evidence(params, x, mask)
    slack = 1e-9
    assert (local.bound.numpy() <= own + slack).all()
    assert (own <= best + slack).all() and (best <= evidence + slack).all()
    field = NocaMeanField()
    from_own = field.e_step(model, tensors, field.rows(model, data), {"mean": torch.tensor(mean)})
    assert (own <= from_own.bound.numpy() + 1e-6).all(), "coordinate ascent from Q cannot end below the ELBO of Q"
    truncated = LocalSolver(engine=NocaTruncated()).solve(model, tensors, data)
    assert (truncated.bound.numpy() <= evidence + slack).all()


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_every_bound_equals_its_reference(missing):
    params, tensors, x, mask, data = problem(3, missing=missing)
    model = model_of(tensors)
    exact = NocaExact()
    evidence = exact.log_evidence(model, tensors, exact.rows(model, data))
    assert np.allclose(evidence, reference.log_evidence(params, x, mask), atol=1e-10)
    table = exact.posterior(model, tensors, exact.rows(model, data)).log_weight.exp().numpy()
    ours = [int("".join(str(int(b)) for b in code), 2) for code in exact.log_joint(tensors, exact.rows(model, data))[0]]
    assert np.allclose(table, reference.posterior(params, x, mask)[:, ours], atol=1e-12)

    factorized = NocaFactorized()
    rows = factorized.rows(model, data)
    step = factorized.e_step(model, tensors, rows)
    q = np.full((*x.shape, 3), 1 / 3)
    q[tuple(index.numpy() for index in rows.nonzero)] = step.locals["q"].numpy()
    mean = step.locals["mean"].numpy()
    assert np.allclose(step.bound, reference.factorized_bound(params, x, mean, q, mask), atol=1e-10)
    assert np.allclose(mean, reference.factorized_source_mean(params, x, q, mask), atol=1e-10)

    field = NocaMeanField()
    value = field.bound(model, tensors, field.rows(model, data), torch.tensor(mean)).numpy()
    elbo = reference.elbo_of_mean(params, x, mean, mask)
    assert (value <= elbo + 1e-12).all() and np.allclose(value, elbo, atol=1e-6)


def test_mean_field_coordinates_reach_the_best_mean_field_from_the_same_start():
    params, tensors, x, _, data = problem(11, 4, 6, 10)
    model = model_of(tensors)
    start = np.full((10, 4), 0.4)
    field = NocaMeanField(sweeps=200)
    step = field.e_step(model, tensors, field.rows(model, data), {"mean": torch.tensor(start)})
    mean, best = reference.best_mean_field(params, x, start, sweeps=400)
    assert np.allclose(step.bound, best, atol=1e-6) and np.allclose(step.locals["mean"], mean, atol=1e-3)


@pytest.mark.quick
def test_truncated_with_every_code_is_exact():
    params, tensors, x, _, data = problem(5, 4, 6, 8)
    model = model_of(tensors)
    local = LocalSolver(engine=NocaTruncated(free=4)).solve(model, tensors, data)
    assert np.allclose(local.bound, reference.log_evidence(params, x), atol=1e-9)
    exact = NocaExact()
    assert torch.allclose(
        local.posterior.mean, exact.posterior(model, tensors, exact.rows(model, data)).mean, atol=1e-9
    )


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_exact_m_step_is_a_stationary_point_of_the_expected_log_joint(missing):
    """Run the M step to its fixed point on fixed responsibilities; finite differences of the reference vanish there."""
    params, tensors, x, mask, data = problem(8, 2, 4, 40, missing=missing)
    beta = {"loading": (2.0, 2.0), "leak": (2.0, 5.0), "source_prior": (2.0, 2.0)}
    model = model_of(params).with_priors(**{site: dist.Beta(*ab) for site, ab in beta.items()})
    engine = NocaExact(inner_steps=5000)
    rows = engine.rows(model, data)
    new = engine.m_step(model, tensors, engine.e_step(model, tensors, rows), rows)
    weights = reference.posterior(params, x, mask)

    def objective(values):
        from scipy.stats import beta as density

        prior = sum(density.logpdf(values[site], *beta[site]).sum() for site in beta)
        return reference.expected_log_joint_by_enumeration(values, x, weights, mask) + prior

    found = {site: value.numpy() for site, value in new.items()}
    assert_stationary(objective, found)


def assert_stationary(objective, point, *, step=1e-5, tolerance=2e-3):
    """Central differences of ``objective`` in every coordinate that is not at an edge."""
    for site, value in point.items():
        for index in np.ndindex(value.shape):
            if not 1e-3 < value[index] < 1 - 1e-3:
                continue
            high, low = ({**point, site: value.copy()} for _ in range(2))
            high[site][index] += step
            low[site][index] -= step
            slope = (objective(high) - objective(low)) / (2 * step)
            assert abs(slope) < tolerance, (site, index, slope)


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_paper_m_step_finds_the_roots(missing):
    """Alternating the M-step blocks of Fig. 2 ends where finite differences of F (eq. 7) vanish or push outwards."""
    params, tensors, x, mask, data = problem(9, 2, 4, 40, missing=missing)
    engine, model = NocaFactorized(), model_of(params)
    rows = engine.rows(model, data)
    step = engine.e_step(model, tensors, rows)
    new = tensors
    for _ in range(300):
        new = engine.m_step(model, new, step, rows)
    q = np.full((*x.shape, 2), 0.5)
    q[tuple(index.numpy() for index in rows.nonzero)] = step.locals["q"].numpy()
    mean = step.locals["mean"].numpy()

    def objective(values):
        return reference.factorized_bound(values, x, mean, q, mask).sum()

    found = {site: value.numpy() for site, value in new.items()}
    assert_stationary(objective, found)
    for i, j in zip(*np.nonzero(found["loading"] <= 1e-3), strict=True):  # shut links: F must fall as they open
        opened = {**found, "loading": found["loading"].copy()}
        opened["loading"][i, j] += 1e-3
        assert objective(opened) <= objective(found) + 1e-9


def test_q_update_is_stationary_and_never_lowers_the_bound():
    """At the fixed point lambda_i dg_i/dq_i is equal for all sources that carry weight (the KKT conditions)."""
    _, tensors, _, _, data = problem(4, 3, 6, 30)
    model = model_of(tensors)
    engine = NocaFactorized()
    rows = engine.rows(model, data)
    links = FeatureLinks.of(tensors, rows)
    mean = torch.rand(30, 3, generator=torch.Generator().manual_seed(0))[rows.nonzero[0]]
    q = torch.full((len(mean), 3), 1 / 3)
    gain, slope = links.gain(q)
    value = (mean * gain).sum(-1)
    for _ in range(3000):
        q = sharpen(mean, q, slope)
        gain, slope = links.gain(q)
        new = (mean * gain).sum(-1)
        assert (new >= value - 1e-12).all()
        value = new
    assert torch.allclose(q.sum(-1), torch.ones(len(q)))
    marginal = mean * slope / q.clamp(min=1e-300)
    top = marginal.amax(-1, keepdim=True)
    carrying = q > 1e-3
    assert torch.allclose(marginal[carrying], top.expand_as(q)[carrying], rtol=1e-3)


@pytest.mark.quick
def test_gain_slope_is_the_derivative_and_q_0_is_a_limit():
    _, tensors, _, _, data = problem(6)
    model = model_of(tensors)
    links = FeatureLinks.of(tensors, NocaFactorized().rows(model, data))
    q = torch.full_like(links.theta, 0.3)
    up, down = links.gain(q + 1e-6)[0], links.gain(q - 1e-6)[0]
    assert torch.allclose(links.gain(q)[1] / q, (up - down) / 2e-6, atol=1e-6)
    gain, slope = links.gain(torch.zeros_like(q))
    assert (gain == 0).all() and torch.isfinite(slope).all()
    closed = links._replace(theta=torch.zeros_like(q))
    assert torch.isfinite(closed.gain(torch.zeros_like(q))[0]).all()
    assert torch.allclose(closed.gain(q)[0], torch.zeros_like(q), atol=1e-15)


def test_local_solver_reaches_the_bound_of_the_fit_that_it_came_from():
    """New rows get the bound that training rows had: cubes are chosen anew until that no longer helps."""
    from custom_inference import VariationalEM
    from ppl_models import datasets

    data = datasets.overlapping_boxes(400, 0, num_sources=12, side=10).data
    model = NOCA(num_components=12, num_features=100)
    fit = VariationalEM(guide="truncated").fit(model, data, seed=0, progress=False)
    bound, evidence = fit.log_likelihood(bound="truncated"), fit.log_likelihood()
    assert float(bound.mean()) > float(fit.elbo[-1]) / 400 - 0.05
    assert (bound <= evidence + 1e-9).all() and float((evidence - bound).mean()) < 0.5


def test_tempered_truncated_posteriors_are_the_exact_ones_where_the_cube_holds_every_code():
    """A temperature raises the likelihood alone, in every family."""
    example = NOCA.example()
    params = {site: example.truth[site] for site in example.model.global_sites}
    exact, truncated = NocaExact(), NocaTruncated(free=3)
    rows = exact.rows(example.model, example.data)
    expected = exact.e_step(example.model, params, rows, temperature=0.3).statistics["code"] @ all_codes(3)
    found = truncated.e_step(example.model, params, rows, temperature=0.3).statistics["source"]
    assert torch.allclose(expected, found, atol=1e-8)


@pytest.mark.quick
@pytest.mark.parametrize("a_min", [3.0, 0.1, 1e-3, 1e-6])
@pytest.mark.parametrize("tolerance", [1e-4, 1e-7])
def test_the_exponential_sum_has_the_error_that_it_says(a_min, tolerance):
    terms = exponential_sum(a_min, tolerance)
    rng = np.random.default_rng(0)
    a = np.exp(rng.uniform(np.log(a_min), np.log(a_min) + 20, 20000)).astype(np.longdouble)
    exact = -np.log1p(-np.exp(-a))
    value = np.exp(-np.outer(a, terms.nodes.numpy())) @ terms.weights.numpy().astype(np.longdouble)
    assert np.abs(value - exact).max() <= terms.error <= 1.1 * tolerance
    assert (terms.weights > 0).all() and (terms.weights * terms.nodes).max() < 1e30, "must survive float32"
    assert len(terms.nodes) < 90


def test_bad_arguments_of_the_exponential_sum():
    for a_min, tolerance in ((0.0, 1e-6), (float("nan"), 1e-6), (0.1, 0.0)):
        with pytest.raises(ValueError, match="expected positive"):
            exponential_sum(a_min, tolerance)
