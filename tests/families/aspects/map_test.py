"""The aspect Bernoulli model's point estimates: the paper's EM, monotone ascent, and stationary points."""

from __future__ import annotations

import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyro import poutine
from sklearn.datasets import load_digits

from custom_inference.core.local_inference import LocalSolver
from custom_inference.core.registry import engine_for, proposals_for
from custom_inference.em.loop import run_em
from custom_inference.em.method import VariationalEM
from custom_inference.families.aspects.map import AspectMap
from custom_inference.families.aspects.propose import AspectPointProposals
from custom_inference.families.rows.counts import margin
from ppl_models import MODELS, AspectBernoulli, Data, datasets
from tests.references import aspect_bernoulli as reference

UPDATES = ["em", "newton"]


def problem(seed: int, *, num_components=3, num_features=6, num_rows=8, total_count=1, missing=0.0, priors=None):
    """A model, random data (not drawn from it), aspects and memberships well inside their domains."""
    rng = np.random.default_rng(seed)
    x = torch.tensor(rng.integers(0, total_count + 1, (num_rows, num_features))).double()
    mask = torch.tensor(rng.random(x.shape) > missing) if missing else None
    model = AspectBernoulli(
        num_components=num_components, num_features=num_features, total_count=total_count, priors=priors or {}
    )
    params = {"aspect_probability": torch.tensor(rng.uniform(0.1, 0.9, (num_components, num_features)))}
    membership = torch.tensor(rng.dirichlet(np.ones(num_components), num_rows))
    return model, Data(x=x, mask=mask), params, membership


def informative(num_components: int = 3):
    """Priors that keep every estimate inside its domain."""
    alpha = torch.linspace(1.3, 2.0, num_components)
    return {"membership": dist.Dirichlet(alpha), "aspect_probability": dist.Beta(1.6, 2.2)}


@pytest.mark.parametrize("total_count", [1, 2])
@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize("with_priors", [False, True])
def test_multiplicative_updates_are_the_explicit_em(total_count, missing, with_priors):
    priors = informative() if with_priors else {}
    model, data, params, s = problem(3, total_count=total_count, missing=missing, priors=priors)
    steps = AspectMap(update="em")
    rows, a = steps.rows(model, data), params["aspect_probability"]
    alpha, beta = (np.linspace(1.3, 2.0, 3), (1.6, 2.2)) if with_priors else (1.0, (1.0, 1.0))
    given = data.x.numpy(), s.numpy(), None if data.mask is None else data.mask.numpy(), total_count, alpha, beta
    expected, membership = reference.em_iteration({"aspect_probability": a.numpy()}, *given)
    step = steps.e_step(model, params, rows, {"membership": s})
    assert np.allclose(step.locals["membership"], membership, rtol=0, atol=1e-13)
    found, edge = steps.m_step(model, params, step, rows)["aspect_probability"], margin(a.dtype)
    assert np.allclose(found, expected["aspect_probability"].clip(edge, 1 - edge), rtol=0, atol=1e-13)


@pytest.mark.parametrize("total_count", [1, 2, 5])
def test_bound_is_the_binomial_log_likelihood_and_the_membership_prior(total_count):
    """With the program: the bound is its log p(x, s | a)."""
    model, data, params, s = problem(5, total_count=total_count, missing=0.2, priors=informative())
    steps = AspectMap(update="em")
    step = steps.e_step(model, params, steps.rows(model, data), {"membership": s})
    new = step.locals["membership"]
    p = new @ params["aspect_probability"]
    binomial = torch.distributions.Binomial(total_count, p).log_prob(data.x)
    expected = torch.where(data.mask, binomial, 0.0).sum(1) + model.priors["membership"].log_prob(new)
    assert torch.allclose(step.bound, expected, rtol=0, atol=1e-12)
    program = pyro.condition(model, data={**params, "membership": new})
    trace = poutine.trace(program).get_trace(data.x, mask=data.mask)
    trace.compute_log_prob()
    joint = trace.nodes["x"]["log_prob"] + trace.nodes["membership"]["log_prob"]
    assert torch.allclose(step.bound, joint, rtol=0, atol=1e-11)


@settings(max_examples=25, deadline=None)
@example(seed=20000, total_count=1, missing=0.4, update="newton", with_priors=False, accelerate="squarem")
@given(
    seed=st.integers(0, 10**6),
    total_count=st.sampled_from([1, 2]),
    missing=st.sampled_from([0.0, 0.4]),
    update=st.sampled_from(UPDATES),
    with_priors=st.booleans(),
    accelerate=st.sampled_from([None, "squarem", "anderson"]),
)
def test_objective_never_falls(seed, total_count, missing, update, with_priors, accelerate):
    priors = informative() if with_priors else {}
    model, data, params, _ = problem(seed, total_count=total_count, missing=missing, priors=priors)
    steps = AspectMap(update=update)
    run = run_em(
        steps, model, steps.rows(model, data), params, max_iterations=60, tolerance=1e-12, accelerate=accelerate
    )
    trace = np.array(run.trace)
    assert (np.diff(trace) >= -1e-10).all()
    membership = run.step.locals["membership"]
    assert bool((membership >= 0).all()) and torch.allclose(membership.sum(1), torch.ones(len(data)), atol=1e-14)
    aspect = run.state["aspect_probability"]
    assert bool((aspect > 0).all() and (aspect < 1).all())


def converged(model, data, params, update="newton", accelerate="squarem", iterations=3000):
    steps = AspectMap(update=update)
    rows = steps.rows(model, data)
    run = run_em(steps, model, rows, params, max_iterations=iterations, tolerance=1e-14, accelerate=accelerate)
    return run.state["aspect_probability"], run.step.locals["membership"], run


def log_posterior(model, data, a, s):
    """The objective written with the Binomial, for autograd."""
    likelihood = torch.distributions.Binomial(model.total_count, s @ a, validate_args=False).log_prob(data.x)
    observed = torch.ones_like(likelihood) if data.mask is None else data.mask.double()
    alpha, prior = model.priors["membership"].concentration, model.priors["aspect_probability"]
    total = (likelihood * observed).sum()
    if bool((alpha == 1).all()):
        return total  # flat: no logarithms of estimates on the boundary
    total = total + torch.xlogy(alpha - 1, s).sum() + torch.xlogy(prior.concentration1 - 1, a).sum()
    return total + torch.xlogy(prior.concentration0 - 1, 1 - a).sum()


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("total_count", [1, 2])
def test_posterior_mode_is_stationary(update, total_count):
    """Priors that keep the mode inside: no gradient along the simplex, none in the aspects."""
    model, data, params, _ = problem(8, total_count=total_count, missing=0.15, num_rows=30, priors=informative())
    a, s, _ = converged(model, data, params, update)
    a, s = a.clone().requires_grad_(), s.clone().requires_grad_()
    log_posterior(model, data, a, s).backward()
    assert float(a.grad.abs().max()) < 1e-5
    assert float((s.grad - (s.grad * s.detach()).sum(1, keepdim=True)).abs().max()) < 1e-5


def test_maximum_likelihood_meets_the_kkt_conditions():
    """On the boundary: gradients vanish in the interior and point outwards at the edge, on simplex and box."""
    model, data, params, _ = problem(9, num_rows=40, num_features=8)
    a, s, _ = converged(model, data, params)
    edge = margin(a.dtype)
    a_, s_ = a.clone().requires_grad_(), s.clone().requires_grad_()
    log_posterior(model, data, a_, s_).backward()
    inside = (a > 1e-4) & (a < 1 - 1e-4)
    assert float(a_.grad[inside].abs().max()) < 1e-4
    assert bool((a_.grad[a <= edge * 1.01] <= 1e-4).all() and (a_.grad[a >= 1 - edge * 1.01] >= -1e-4).all())
    multiplier = (s_.grad * s).sum(1, keepdim=True)
    assert float((s * (s_.grad - multiplier)).abs().max()) < 1e-4
    assert float((s_.grad - multiplier).max()) < 1e-3
    # The active constraints are not an accident of this test: some are met.
    assert bool((s < 1e-6).any()) and bool((a <= edge * 1.01).any() or (a >= 1 - edge * 1.01).any())


@pytest.mark.parametrize("accelerate", ["squarem", "anderson"])
def test_acceleration_reaches_the_optimum_of_em_with_fewer_evaluations(accelerate):
    generated = datasets.sample_aspects(AspectBernoulli.example().truth["aspect_probability"], 150, concentration=0.3)
    model = AspectBernoulli(num_components=3, num_features=9)
    steps = AspectMap(update="em")
    rows = steps.rows(model, generated.data)
    start = proposals_for(model, steps).propose(model, rows, torch.Generator().manual_seed(0), 0)
    plain = run_em(steps, model, rows, start, max_iterations=6000, tolerance=1e-9)
    most = plain.evaluations // 4
    fast = run_em(steps, model, rows, start, max_iterations=most, tolerance=1e-12, accelerate=accelerate)
    assert fast.objective >= plain.objective - 1e-4
    assert fast.evaluations < plain.evaluations / 3
    assert steps.objective_at(model, fast.state, fast.step.bound) == fast.objective


@pytest.mark.parametrize("accelerate", ["squarem", "anderson"])
def test_accelerated_exact_em_without_locals(accelerate):
    """The driver's acceleration is not the aspect model's own: NOCA's exact EM climbs to the same place in less."""
    example = MODELS["noca"].example()
    steps = engine_for(example.model, "exact")
    rows = steps.rows(example.model, example.data)
    start = proposals_for(example.model, steps).propose(example.model, rows, torch.Generator().manual_seed(1), 0)
    settings_ = {"max_iterations": 3000, "tolerance": 1e-11}
    plain = run_em(steps, example.model, rows, start, **settings_)
    fast = run_em(steps, example.model, rows, start, accelerate=accelerate, **settings_)
    assert (np.diff(fast.trace) >= -1e-10).all()
    assert fast.objective >= plain.objective - 1e-5
    assert fast.evaluations < 0.6 * plain.evaluations


@pytest.mark.parametrize("with_priors", [False, True])
def test_empty_row_goes_to_the_priors_mode(with_priors):
    """Of a flat prior to its mean, which adds nothing to the bound."""
    model, data, params, _ = problem(4, priors=informative() if with_priors else {})
    alpha = model.priors["membership"].concentration
    empty = Data(x=data.x, mask=torch.zeros_like(data.x, dtype=torch.bool))
    local = LocalSolver(engine=engine_for(model, "map")).solve(model, params, empty)
    mode = (alpha - 1) / (alpha - 1).sum() if with_priors else torch.full((3,), 1 / 3)
    assert torch.allclose(local.posterior.mean[0], mode)


@pytest.mark.parametrize("total_count", [1, 2])
def test_blocks_of_rows_agree(total_count, monkeypatch):
    model, data, params, s = problem(6, num_rows=50, num_features=20, total_count=total_count, missing=0.2)
    steps = AspectMap()
    whole = steps.e_step(model, params, steps.rows(model, data), {"membership": s})
    monkeypatch.setattr("custom_inference.families.rows.counts._TILE_ROWS", 16)
    monkeypatch.setattr("custom_inference.families.rows.counts._TILE_ENTRIES", 1)
    small = steps.e_step(model, params, steps.rows(model, data), {"membership": s})
    assert [len(block.tiles) for block in steps.rows(model, data).iterate_tiles()] == [2, 2, 2, 2]
    assert torch.allclose(small.bound, whole.bound, rtol=1e-13)
    for name, value in whole.statistics.items():
        assert torch.allclose(value, small.statistics[name], rtol=1e-12)


@pytest.mark.parametrize("update", UPDATES)
def test_single_precision_ends_where_double_does(update):
    generated = datasets.sample_aspects(AspectBernoulli.example().truth["aspect_probability"], 200, concentration=0.3)
    model = AspectBernoulli(num_components=3, num_features=9)
    steps, ends = AspectMap(update=update), []
    for dtype in (torch.float32, torch.float64):
        rows = steps.rows(model, generated.data).to(dtype)
        start = proposals_for(model, steps).propose(model, rows, torch.Generator().manual_seed(0), 0)
        run = run_em(steps, model, rows, start, max_iterations=500, tolerance=1e-7, accelerate="squarem")
        assert run.state["aspect_probability"].dtype == dtype
        ends.append(run.objective / 200)
    assert ends[0] == pytest.approx(ends[1], abs=2e-4)


@pytest.mark.filterwarnings("ignore:.*are always 0")
def test_default_finishes_by_newton_where_em_crawls(monkeypatch):
    """Damaged digits: EM alone is stopped nats below what the default's Newton steps converge to."""
    digits = torch.tensor(load_digits().data[:200] >= 8).double()
    generator = torch.Generator().manual_seed(0)
    lost = 0.4 * torch.rand(len(digits), 1, generator=generator)
    x = digits * (torch.rand(digits.shape, generator=generator) >= lost)
    model = AspectBernoulli(num_components=10, num_features=64)
    fit = VariationalEM(guide="map", max_iterations=500).fit(model, x, progress=False)
    assert fit.status.startswith("converged") and (fit.elbo.diff() > -1e-8).all()
    monkeypatch.setattr(AspectPointProposals, "finishing", lambda self: self.engine)
    by_em = VariationalEM(guide="map", max_iterations=500).fit(model, x, progress=False)
    assert fit.elbo[-1] > by_em.elbo[-1] + 5  # 10 after five hundred iterations of EM


def test_example_is_recovered():
    example = AspectBernoulli.example()
    assert math.isfinite(float(example.truth["membership"].log().sum()))
    run = converged(example.model, example.data, {"aspect_probability": example.truth["aspect_probability"]})[2]
    truth = torch.distributions.Bernoulli(example.truth["membership"] @ example.truth["aspect_probability"])
    assert run.objective > float(truth.log_prob(example.data.x).sum())
