"""CVQ's closed-form steps: brute force, bounds datum by datum, monotone ascent, stationary points, bad input."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import custom_inference as ci
from custom_inference.core.engine import Params
from custom_inference.core.enumeration import enumerate_log_joint
from custom_inference.core.local_inference import LocalSolver
from custom_inference.families.cvq.common import ascend
from custom_inference.families.cvq.engines import CvqExact, CvqMeanField, CvqTruncated
from ppl_models import CVQ, CapacityError, Data, DataWarning

ENGINES = [CvqExact(), CvqMeanField(), CvqTruncated(free=2)]
NAMES = [engine.name for engine in ENGINES]
PRIORS = {
    "flat": {},
    "log_normal": {
        "source_prior": dist.Beta(1.5, 3.0),
        "weight": dist.Normal(0.1, 0.7),
        "scale": dist.LogNormal(-1.0, 0.3),
    },
    "inverse_gamma": {"weight": dist.Normal(-0.2, 0.4), "scale": dist.InverseGamma(3.0, 1.0)},
}


def problem(
    seed: int,
    num_components: int = 3,
    num_features: int = 5,
    num_rows: int = 7,
    *,
    missing: float = 0.0,
    per_feature: bool = False,
    priors: str = "flat",
) -> tuple[CVQ, Params, Data]:
    """Random parameters and random data (not drawn from them: bounds must hold for any data)."""
    rng = np.random.default_rng(seed)
    model = CVQ(num_components=num_components, num_features=num_features, per_feature_scale=per_feature)
    params = {
        "source_prior": torch.tensor(rng.uniform(0.05, 0.9, num_components)),
        "weight": torch.tensor(rng.normal(0, 1, (num_components, num_features))),
        "scale": torch.tensor(rng.uniform(0.3, 1.2, num_features) if per_feature else rng.uniform(0.3, 1.2)),
    }
    x = torch.tensor(rng.normal(0.3, 1.5, (num_rows, num_features)))
    mask = torch.tensor(rng.random(x.shape) > missing) if missing else None
    return model.with_priors(**PRIORS[priors]), params, model.prepare(x, mask=mask)


def brute_force(params: Params, data: Data) -> Tensor:
    """log p(x_n, s), (N, 2^K), entry by entry from the density of a normal, codes in the order of binary counting."""
    num_bits, num_features = params["weight"].shape
    scale = params["scale"].expand(num_features)
    table = []
    for bits in itertools.product([0, 1], repeat=num_bits):
        code = torch.tensor(bits[::-1], dtype=torch.float64)
        mean = sum((code[i] * params["weight"][i] for i in range(num_bits)), torch.zeros(num_features))
        density = torch.distributions.Normal(mean, scale).log_prob(data.x)
        likelihood = density if data.mask is None else density.where(data.mask, torch.zeros(()))
        pi = params["source_prior"]
        table.append(likelihood.sum(1) + (code * pi.log() + (1 - code) * (1 - pi).log()).sum())
    return torch.stack(table, 1)


@pytest.mark.quick
@pytest.mark.parametrize("per_feature", [False, True])
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_log_joint_of_every_code_is_brute_force_and_the_programs(missing, per_feature):
    model, params, data = problem(1, missing=missing, per_feature=per_feature)
    exact = CvqExact()
    codes, joint = exact.log_joint(params, exact.rows(model, data))
    expected = brute_force(params, data)
    values, enumerated = enumerate_log_joint(model, params, data)
    assert torch.allclose(joint, expected, atol=1e-11)
    assert torch.equal(values["source"].reshape(codes.shape), codes) and torch.allclose(joint, enumerated, atol=1e-11)
    assert torch.allclose(exact.log_evidence(model, params, exact.rows(model, data)), expected.logsumexp(1), atol=1e-11)
    assert torch.allclose(exact.e_step(model, params, exact.rows(model, data)).bound, expected.logsumexp(1), atol=1e-11)
    posterior = torch.softmax(expected, 1)
    assert torch.allclose(exact.posterior(model, params, exact.rows(model, data)).mean, posterior @ codes, atol=1e-12)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    shape=st.tuples(st.integers(1, 4), st.integers(1, 6), st.integers(2, 6)),
    missing=st.sampled_from([0.0, 0.3]),
    per_feature=st.booleans(),
)
def test_chain_of_bounds_datum_by_datum(seed, shape, missing, per_feature):
    """Mean field <= log evidence and truncated <= log evidence; F is the ELBO of its lambda."""
    model, params, data = problem(seed, *shape, missing=missing, per_feature=per_feature)
    table = brute_force(params, data)
    evidence = table.logsumexp(1)
    local = LocalSolver(engine=CvqMeanField()).solve(model, params, data)
    log_q = local.posterior.table()[1]
    elbo = (log_q.exp() * (table - log_q)).sum(1)
    assert torch.allclose(local.bound, elbo, atol=1e-8) and (local.bound <= evidence + 1e-9).all()
    truncated = LocalSolver(engine=CvqTruncated(free=2)).solve(model, params, data)
    assert (truncated.bound <= evidence + 1e-9).all()
    codes = truncated.posterior.table()[1]
    listed = torch.where(codes > -torch.inf, table, torch.full_like(table, -torch.inf)).logsumexp(1)
    assert torch.allclose(truncated.bound, listed, atol=1e-9), "the bound is the mass of the codes that it lists"


def test_sweeps_never_lower_the_bound_and_end_at_the_slides_fixed_point():
    model, params, data = problem(4, 4, 6, 30, missing=0.2)
    field = CvqMeanField(sweeps=1)
    rows, mean = field.rows(model, data), torch.full((30, 4), 0.4)
    bound = field.bound(model, params, rows, mean)
    for _ in range(300):
        step = field.e_step(model, params, rows, {"mean": mean})
        assert (step.bound >= bound - 1e-12).all()
        mean, bound = step.locals["mean"], step.bound
    observed, weight = data.mask.to(mean), params["weight"]
    for i in range(4):
        rest = data.x - mean @ weight + mean[:, i : i + 1] * weight[i]
        field_i = (observed * (rest * weight[i] - 0.5 * weight[i] ** 2)).sum(1) / params["scale"] ** 2
        assert torch.allclose(mean[:, i], torch.sigmoid(field_i + torch.logit(params["source_prior"][i])), atol=1e-9)


@pytest.mark.quick
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_truncated_with_every_code_is_exact(missing):
    model, params, data = problem(5, 4, 6, 8, missing=missing)
    exact, cubes = CvqExact(), CvqTruncated(free=4)
    mine, theirs = (
        cubes.e_step(model, params, cubes.rows(model, data)),
        exact.e_step(model, params, exact.rows(model, data)),
    )
    assert torch.allclose(mine.bound, theirs.bound, atol=1e-11)
    for name, value in theirs.statistics.items():
        assert torch.allclose(mine.statistics[name], value, atol=1e-11), name


def test_statistics_are_the_posteriors_moments():
    model, params, data = problem(3, 3, 5, 9, missing=0.3)
    exact = CvqExact()
    statistics = exact.e_step(model, params, exact.rows(model, data)).statistics
    codes = exact.log_joint(params, exact.rows(model, data))[0]
    posterior, observed = torch.softmax(brute_force(params, data), 1), data.mask.to(torch.float64)
    expected = torch.einsum("nc,ci,cj,nd->dij", posterior, codes, codes, observed)
    assert torch.allclose(statistics["pairs"], expected, atol=1e-12)
    assert torch.allclose(statistics["cross"], torch.einsum("nc,ck,nd->kd", posterior, codes, data.x), atol=1e-12)


@pytest.mark.parametrize("priors", PRIORS)
@pytest.mark.parametrize("per_feature", [False, True])
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_m_step_is_a_stationary_point_of_the_expected_log_joint(missing, per_feature, priors):
    """At the M step's fixed point for fixed posteriors, autograd's gradient of the program's own density vanishes."""
    model, params, data = problem(8, 2, 4, 40, missing=missing, per_feature=per_feature, priors=priors)
    exact = CvqExact()
    rows = exact.rows(model, data)
    step = exact.e_step(model, params, rows)
    posterior = torch.softmax(brute_force(params, data), 1)
    for _ in range(200):
        params = exact.m_step(model, params, step, rows)
    leaves = {site: value.clone().requires_grad_() for site, value in params.items()}
    objective = (posterior * brute_force(leaves, data)).sum() + model.log_prior(leaves)
    objective.backward()
    for site, leaf in leaves.items():
        assert leaf.grad is not None and float(leaf.grad.abs().max()) < 1e-6, site


def test_ascend_solves_and_survives_singular_systems():
    """A dead source and two that are always on together: the objective does not fall, and nothing blows up."""
    generator = torch.Generator().manual_seed(0)
    code = torch.bernoulli(torch.full((50, 4), 0.4), generator=generator)
    x, start = torch.randn(50, 3, generator=generator), torch.randn(4, 3, generator=generator)
    assert torch.allclose(ascend(code.T @ code, code.T @ x, start), torch.linalg.lstsq(code, x).solution, atol=1e-10)
    code[:, 1], code[:, 2] = code[:, 0], 0.0
    found = ascend(code.T @ code, code.T @ x, start)
    best = torch.linalg.lstsq(code, x, driver="gelsd").solution
    assert torch.allclose(code @ found, code @ best, atol=1e-10)
    assert torch.allclose(found[2], start[2], atol=1e-10), "a source that is never on keeps its weights"
    batched = ascend((code.T @ code).expand(3, 4, 4), code.T @ x, start)
    assert torch.allclose(batched, found, atol=1e-10)
    assert torch.allclose(found[0] - found[1], start[0] - start[1], atol=1e-10), "nor is their difference moved"


def test_em_with_a_dead_and_a_doubled_source_goes_on():
    example = CVQ.example()
    model = CVQ(num_components=4, num_features=6)
    weight = example.truth["weight"]
    params = {
        "source_prior": torch.tensor([0.3, 0.3, 0.25, 1e-6]),
        "weight": torch.stack([weight[0], weight[0], weight[2], torch.full((6,), 50.0)]),
        "scale": torch.tensor(0.3),
    }
    for engine in ENGINES:
        rows, current, trace = engine.rows(model, example.data), params, []
        locals_ = None
        for _ in range(20):
            step = engine.e_step(model, current, rows, locals_)
            trace.append(float(step.bound.sum()))
            current, locals_ = engine.m_step(model, current, step, rows), step.locals
        assert np.diff(trace).min() > -1e-9 and all(torch.isfinite(v).all() for v in current.values())


def test_data_without_noise_end_at_the_scales_floor():
    """The likelihood is unbounded; sigma stops where the bound can still be computed, and EM ends there."""
    generator = torch.Generator().manual_seed(0)
    code = torch.bernoulli(torch.full((100, 3), 0.4), generator=generator)
    weight = torch.randn(3, 6, generator=generator)
    for engine in (ci.EM(), ci.VariationalEM(guide="mean_field"), ci.VariationalEM(guide="truncated")):
        with pytest.warns(DataWarning, match="at their floor"):
            fit = engine.fit(CVQ(num_components=3, num_features=6), code @ weight, seed=0, progress=False)
        assert ci.recovered(fit.params["weight"], weight) == 3 and "converged" in fit.status
        assert 0 < float(fit.params["scale"]) < 1e-4 and np.diff(fit.elbo).min() > -1e-3


@pytest.mark.parametrize("engine", ENGINES, ids=NAMES)
def test_single_precision_agrees(engine):
    for missing in (0.0, 0.3):
        model, params, data = problem(6, 3, 5, 40, missing=missing, priors="log_normal")
        single = {site: value.float() for site, value in params.items()}
        rows = engine.rows(model, data)
        step, low = engine.e_step(model, params, rows), engine.e_step(model, single, rows.to(torch.float32))
        assert low.bound.dtype == torch.float32 and torch.allclose(low.bound.double(), step.bound, atol=1e-3)
        wanted = engine.m_step(model, params, step, rows)
        for site, value in engine.m_step(model, single, low, rows.to(torch.float32)).items():
            assert value.dtype == torch.float32 and torch.allclose(value.double(), wanted[site], atol=2e-3), site


def test_evidence_of_many_codes_is_summed_in_blocks():
    """2^13 codes of 300 rows, more than one block, against the quadratic form of a multivariate normal mixture."""
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(13, 4, generator=generator)
    params = {"source_prior": torch.full((13,), 0.3), "weight": weight, "scale": torch.tensor(0.8)}
    data = Data(x=torch.randn(300, 4, generator=generator))
    exact, model = CvqExact(), CVQ(num_components=13, num_features=4)
    codes = torch.tensor(list(itertools.product([0.0, 1.0], repeat=13)))
    distance = torch.cdist(data.x, codes @ weight).square()
    joint = -0.5 * distance / 0.64 - 4 * math.log(0.8 * math.sqrt(2 * math.pi)) + codes.sum(1) * math.log(3 / 7)
    expected = joint.logsumexp(1) + 13 * math.log(0.7)
    assert torch.allclose(exact.log_evidence(model, params, exact.rows(model, data)), expected, atol=1e-8)
    with pytest.raises(CapacityError, match="sources would fit"):
        CvqExact(max_bytes=1e4).log_evidence(model, params, exact.rows(model, data))


def test_statistics_of_given_means_are_those_of_the_e_step():
    model, params, data = problem(9, missing=0.3)
    field = CvqMeanField()
    step = field.e_step(model, params, field.rows(model, data))
    again = CvqMeanField(sweeps=0).e_step(model, params, field.rows(model, data), step.locals)
    assert all(torch.allclose(value, again.statistics[name]) for name, value in step.statistics.items())
