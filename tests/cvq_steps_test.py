"""CVQ's closed-form steps: brute force, bounds datum by datum, monotone ascent, stationary points, bad input."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import custom_inference as ci
from custom_inference._enumerate import enumerated_log_joint
from custom_inference._loop import objective_of
from custom_inference.engines import LocalSolver
from custom_inference.steps._protocol import Params
from custom_inference.steps.cvq_common import ascend, m_step
from custom_inference.steps.cvq_exact import CvqExact
from custom_inference.steps.cvq_mean_field import CvqMeanField, statistics_of
from custom_inference.steps.cvq_propose import upright
from custom_inference.steps.cvq_reseat import Climber, birth, leading, split
from custom_inference.steps.cvq_truncated import CvqTruncated
from ppl_models import CVQ, CapacityError, Data, DataError, DataWarning, MethodError, ModelError
from ppl_models.datasets import bars, mixed_images
from ppl_models.distributions import Flat

ENGINES = [CvqExact(), CvqMeanField(), CvqTruncated(free=2)]
NAMES = [engine.bound_name for engine in ENGINES]
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


@pytest.mark.parametrize("per_feature", [False, True])
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_log_joint_of_every_code_is_brute_force_and_the_programs(missing, per_feature):
    model, params, data = problem(1, missing=missing, per_feature=per_feature)
    exact = CvqExact()
    codes, joint = exact.log_joint(params, exact.rows(data))
    expected = brute_force(params, data)
    values, enumerated = enumerated_log_joint(model, params, data)
    assert torch.allclose(joint, expected, atol=1e-11)
    assert torch.equal(values["source"].reshape(codes.shape), codes) and torch.allclose(joint, enumerated, atol=1e-11)
    assert torch.allclose(exact.log_evidence(params, exact.rows(data)), expected.logsumexp(1), atol=1e-11)
    assert torch.allclose(exact.e_step(params, exact.rows(data)).bound, expected.logsumexp(1), atol=1e-11)
    posterior = torch.softmax(expected, 1)
    assert torch.allclose(exact.posterior(params, exact.rows(data)).mean, posterior @ codes, atol=1e-12)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    shape=st.tuples(st.integers(1, 4), st.integers(1, 6), st.integers(2, 6)),
    missing=st.sampled_from([0.0, 0.3]),
    per_feature=st.booleans(),
)
def test_chain_of_bounds_datum_by_datum(seed, shape, missing, per_feature):
    """Mean field <= log evidence and truncated <= log evidence; F is the ELBO of its lambda."""
    _, params, data = problem(seed, *shape, missing=missing, per_feature=per_feature)
    table = brute_force(params, data)
    evidence = table.logsumexp(1)
    local = LocalSolver(steps=CvqMeanField()).solve(params, data)
    log_q = local.posterior.table()[1]
    elbo = (log_q.exp() * (table - log_q)).sum(1)
    assert torch.allclose(local.bound, elbo, atol=1e-8) and (local.bound <= evidence + 1e-9).all()
    truncated = LocalSolver(steps=CvqTruncated(free=2)).solve(params, data)
    assert (truncated.bound <= evidence + 1e-9).all()
    codes = truncated.posterior.table()[1]
    listed = torch.where(codes > -torch.inf, table, torch.full_like(table, -torch.inf)).logsumexp(1)
    assert torch.allclose(truncated.bound, listed, atol=1e-9), "the bound is the mass of the codes that it lists"


def test_sweeps_never_lower_the_bound_and_end_at_the_slides_fixed_point():
    _, params, data = problem(4, 4, 6, 30, missing=0.2)
    field = CvqMeanField(sweeps=1)
    rows, mean = field.rows(data), torch.full((30, 4), 0.4)
    bound = field.bound(params, rows, mean)
    for _ in range(300):
        step = field.e_step(params, rows, {"mean": mean})
        assert (step.bound >= bound - 1e-12).all()
        mean, bound = step.locals["mean"], step.bound
    observed, weight = data.mask.to(mean), params["weight"]
    for i in range(4):
        rest = data.x - mean @ weight + mean[:, i : i + 1] * weight[i]
        field_i = (observed * (rest * weight[i] - 0.5 * weight[i] ** 2)).sum(1) / params["scale"] ** 2
        assert torch.allclose(mean[:, i], torch.sigmoid(field_i + torch.logit(params["source_prior"][i])), atol=1e-9)


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_truncated_with_every_code_is_exact(missing):
    _, params, data = problem(5, 4, 6, 8, missing=missing)
    exact, cubes = CvqExact(), CvqTruncated(free=4)
    mine, theirs = cubes.e_step(params, cubes.rows(data)), exact.e_step(params, exact.rows(data))
    assert torch.allclose(mine.bound, theirs.bound, atol=1e-11)
    for name, value in theirs.statistics.items():
        assert torch.allclose(mine.statistics[name], value, atol=1e-11), name


def test_statistics_are_additive_over_rows():
    for missing, engine in itertools.product([0.0, 0.2], ENGINES):
        _, params, data = problem(2, 3, 5, 12, missing=missing)
        whole = engine.e_step(params, engine.rows(data))
        parts = [engine.e_step(params, engine.rows(data.rows(part))) for part in (slice(0, 5), slice(5, 12))]
        for name, value in whole.statistics.items():
            assert torch.allclose(value, parts[0].statistics[name] + parts[1].statistics[name], atol=1e-10), name
        assert torch.allclose(whole.bound, torch.cat([p.bound for p in parts]), atol=1e-10)


def test_statistics_are_the_posteriors_moments():
    _, params, data = problem(3, 3, 5, 9, missing=0.3)
    exact = CvqExact()
    statistics = exact.e_step(params, exact.rows(data)).statistics
    codes = exact.log_joint(params, exact.rows(data))[0]
    posterior, observed = torch.softmax(brute_force(params, data), 1), data.mask.to(torch.float64)
    expected = torch.einsum("nc,ci,cj,nd->dij", posterior, codes, codes, observed)
    assert torch.allclose(statistics["pairs"], expected, atol=1e-12)
    assert torch.allclose(statistics["cross"], torch.einsum("nc,ck,nd->kd", posterior, codes, data.x), atol=1e-12)


@pytest.mark.parametrize("priors", PRIORS)
@pytest.mark.parametrize("per_feature", [False, True])
@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize("engine", ENGINES, ids=NAMES)
def test_em_never_lowers_its_objective(engine, missing, per_feature, priors):
    example = CVQ.example()
    model = replace(example.model, per_feature_scale=per_feature).with_priors(**PRIORS[priors])
    mask = torch.rand(example.data.x.shape, generator=torch.Generator().manual_seed(1)) > missing if missing else None
    data = model.prepare(example.data.x, mask=mask)
    rows, generator = engine.rows(data), torch.Generator().manual_seed(0)
    params, locals_, trace = engine.initial(model, rows, generator), None, []
    for _ in range(60):
        step = engine.e_step(params, rows, locals_, generator=generator)
        trace.append(objective_of(model, params, step.bound))
        params, locals_ = engine.m_step(model, params, step, rows), step.locals
    assert np.diff(trace).min() > -1e-9
    assert trace[-1] > trace[0] + 1


@pytest.mark.parametrize("priors", PRIORS)
@pytest.mark.parametrize("per_feature", [False, True])
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_m_step_is_a_stationary_point_of_the_expected_log_joint(missing, per_feature, priors):
    """At the M step's fixed point for fixed posteriors, autograd's gradient of the program's own density vanishes."""
    model, params, data = problem(8, 2, 4, 40, missing=missing, per_feature=per_feature, priors=priors)
    exact = CvqExact()
    statistics = exact.e_step(params, exact.rows(data)).statistics
    posterior = torch.softmax(brute_force(params, data), 1)
    for _ in range(200):
        params = m_step(model, params, statistics)
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
        rows, current, trace = engine.rows(example.data), params, []
        locals_ = None
        for _ in range(20):
            step = engine.e_step(current, rows, locals_)
            trace.append(float(step.bound.sum()))
            current, locals_ = engine.m_step(model, current, step, rows), step.locals
        assert np.diff(trace).min() > -1e-9 and all(torch.isfinite(v).all() for v in current.values())


def test_data_without_noise_end_at_the_scales_floor():
    """The likelihood is unbounded; sigma stops where the bound can still be computed, and EM ends there."""
    generator = torch.Generator().manual_seed(0)
    code = torch.bernoulli(torch.full((100, 3), 0.4), generator=generator)
    weight = torch.randn(3, 6, generator=generator)
    for engine in (ci.EM(), ci.VariationalEM(guide="mean_field"), ci.VariationalEM(guide="truncated")):
        fit = engine.fit(CVQ(num_components=3, num_features=6), code @ weight, seed=0, progress=False)
        assert ci.recovered(fit.params["weight"], weight) == 3 and "converged" in fit.status
        assert 0 < float(fit.params["scale"]) < 1e-4 and np.diff(fit.elbo).min() > -1e-3


def test_fill_values_of_missing_entries_do_not_matter():
    model, params, data = problem(13, missing=0.3)
    for engine in ENGINES:
        outcomes = []
        for fill in (0.0, 7.0, math.nan, math.inf):
            filled = Data(x=torch.where(data.mask, data.x, torch.full_like(data.x, fill)), mask=data.mask)
            step = engine.e_step(params, engine.rows(filled))
            outcomes.append({**engine.m_step(model, params, step, engine.rows(filled)), "bound": step.bound})
        for other in outcomes[1:]:
            assert all(torch.equal(value, other[name]) for name, value in outcomes[0].items()), engine.bound_name


@pytest.mark.parametrize("engine", ENGINES, ids=NAMES)
def test_single_precision_agrees(engine):
    for missing in (0.0, 0.3):
        model, params, data = problem(6, 3, 5, 40, missing=missing, priors="log_normal")
        single = {site: value.float() for site, value in params.items()}
        rows = engine.rows(data)
        step, low = engine.e_step(params, rows), engine.e_step(single, rows.to(torch.float32))
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
    exact = CvqExact()
    codes = torch.tensor(list(itertools.product([0.0, 1.0], repeat=13)))
    distance = torch.cdist(data.x, codes @ weight).square()
    joint = -0.5 * distance / 0.64 - 4 * math.log(0.8 * math.sqrt(2 * math.pi)) + codes.sum(1) * math.log(3 / 7)
    expected = joint.logsumexp(1) + 13 * math.log(0.7)
    assert torch.allclose(exact.log_evidence(params, exact.rows(data)), expected, atol=1e-8)
    with pytest.raises(CapacityError, match="sources would fit"):
        CvqExact(max_bytes=1e4).log_evidence(params, exact.rows(data))


# ----- starts -----------------------------------------------------------------------------------------------------


def test_leading_directions_are_eigenvectors():
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(200, 5, generator=generator) * torch.tensor([4.0, 2.0, 1.0, 0.5, 0.2])
    weight = torch.rand(200, 2, generator=generator)
    found = leading(x, weight, 2, iterations=60)
    for k in range(2):
        wanted = torch.linalg.eigh((x * weight[:, k : k + 1]).T @ x).eigenvectors[:, [-1, -2]]
        assert torch.allclose((found[k] * wanted).sum(0).abs(), torch.ones(2), atol=1e-6)


def test_a_birth_finds_the_source_in_the_residuals_and_a_split_undoes_a_merger():
    generator = torch.Generator().manual_seed(3)
    on = torch.bernoulli(torch.full((400, 2), 0.2), generator=generator)
    pictures = torch.tensor([[3.0, 3.0, 0.0, 0.0], [0.0, 0.0, 3.0, 3.0]])
    noise = torch.randn(400, 4, generator=generator)
    mean = torch.full((400, 3), 0.5)
    born = birth(on[:, :1] @ pictures[:1] + noise, None, mean, 1)
    assert ((born[:, 1] > 0.5) == (on[:, 0] > 0)).double().mean() > 0.97
    assert torch.equal(born[:, [0, 2]], mean[:, [0, 2]])
    merged = torch.stack([on.amax(1), torch.zeros(400)], 1)  # one source, on where either is
    residual = on @ pictures + noise - merged[:, :1] * pictures.mean(0)
    halves = split(residual, merged, 1)
    single = on.sum(1) == 1
    agreement = ((halves[single] > 0.5) == (on[single] > 0)).double().mean()
    assert max(agreement, 1 - agreement) > 0.95


@pytest.mark.parametrize("missing", [0.0, 0.1])
def test_jumps_repair_what_em_cannot(missing):
    """Two sources on one bar, and the mean of two bars for two others: EM stays there, the climber does not."""
    generated = bars(500, 0, side=6, source_prior=0.15)
    model = CVQ(num_components=12, num_features=36)
    mask = torch.rand(generated.x.shape, generator=torch.Generator().manual_seed(0)) >= missing if missing else None
    climber = Climber(model, CvqMeanField().rows(model.prepare(generated.x, mask=mask)))
    truth = {site: generated.truth[site] for site in model.shapes}
    weight = truth["weight"].clone()
    weight[1], weight[2], weight[3] = weight[0], weight[2:4].mean(0), 0.0
    stuck, step = climber.climb({**truth, "weight": weight}, 60)
    best = climber.climb(truth, 100)[1].bound.mean()
    assert ci.recovered(stuck["weight"], truth["weight"]) < 12 and step.bound.mean() < best - 0.5
    freed, step = climber.climb(climber.start(stuck), 60)
    assert ci.recovered(freed["weight"], truth["weight"]) == 12
    assert torch.isclose(step.bound.mean(), best, atol=1e-6)


def test_a_baseline_takes_a_source_of_its_own():
    """Data around 3 in place of 0: one source is always on, and the others are the bars, none of them upside down."""
    generated = bars(600, 0, side=5)
    model = CVQ(num_components=11, num_features=25)
    x = generated.x + 3.0 + torch.randn(25, generator=torch.Generator().manual_seed(0))
    search = ci.Search(restarts=2)  # the second has the baseline
    fit = ci.VariationalEM(guide="mean_field", search=search).fit(model, x, seed=0, progress=False)
    assert ci.recovered(fit.params["weight"], generated.truth["weight"]) == 10
    assert float(fit.params["source_prior"].max()) > 0.999 and int((fit.params["source_prior"] > 0.5).sum()) == 1


def test_turning_sources_upright_keeps_the_density():
    _, params, data = problem(7, 3, 5, 20, missing=0.2)
    params["source_prior"] = torch.tensor([0.8, 1 - 1e-12, 0.3])
    turned = upright(params)
    assert torch.allclose(turned["source_prior"], torch.tensor([0.2, 1.0, 0.3]))
    before, after = (brute_force(p, data).logsumexp(1) for p in (params, turned))
    assert torch.allclose(before, after, atol=1e-6)
    assert upright(turned) is turned


def test_statistics_of_given_means_are_those_of_the_e_step():
    _, params, data = problem(9, missing=0.3)
    field = CvqMeanField()
    step = field.e_step(params, field.rows(data))
    again = statistics_of(params, field.rows(data), step.locals["mean"])
    assert all(torch.allclose(value, again[name]) for name, value in step.statistics.items())


def test_default_fit_finds_the_bars():
    """5x5: exact EM; 6x6 with 12 sources: truncated."""
    for side in (5, 6):
        generated = bars(1000, side, side=side, scale=0.5)
        model = CVQ(num_components=2 * side, num_features=side**2)
        fit = ci.fit(model, generated.x, seed=0, progress=False)
        truth = {site: generated.truth[site] for site in model.shapes}
        assert ci.recovered(fit.params["weight"], truth["weight"]) == 2 * side
        gain = fit.log_likelihood().mean() - CvqExact().log_evidence(truth, CvqExact().rows(fit.data)).mean()
        assert 0 < gain < 0.5


# ----- the model --------------------------------------------------------------------------------------------------


def test_bad_input_is_refused_in_words():
    model = CVQ(num_components=2, num_features=3)
    x = torch.randn(20, 3)
    with pytest.raises(DataError, match=r"infinite.*row 4, column 1"):
        model.prepare(x.index_put((torch.tensor(4), torch.tensor(1)), torch.tensor(math.inf)))
    constant = x.index_fill(1, torch.tensor([1]), 2.0)
    with pytest.warns(DataWarning, match=r"1 of 3 columns are constant \(the first: 1\)"):
        ci.fit(model, constant, seed=0, progress=False)
    with pytest.raises(DataError, match="unbounded"):
        ci.fit(replace(model, per_feature_scale=True), constant, seed=0, progress=False)
    with pytest.raises(DataError, match="at least one column that varies"):
        ci.fit(model, torch.ones(20, 3), seed=0, progress=False)
    with pytest.raises(DataError, match="without any observed entry"):
        ci.fit(model, x.index_fill(1, torch.tensor([2]), math.nan), seed=0, progress=False)
    with pytest.raises(DataError, match="4 columns where the model has num_features = 3"):
        model.prepare(torch.randn(5, 4))


def test_bad_settings_are_refused_in_words():
    with pytest.raises(ModelError, match="num_components = 0"):
        CVQ(num_components=0, num_features=3)
    with pytest.raises(ModelError, match="per_feature_scale = 1"):
        CVQ(num_components=1, num_features=3, per_feature_scale=1)  # pyright: ignore[reportArgumentType]
    model = CVQ(num_components=2, num_features=3)
    with pytest.raises(ModelError, match="'scale' is a standard deviation"):
        model.with_priors(scale=dist.Normal(0.0, 1.0))
    with pytest.raises(ModelError, match="'source_prior' is a probability"):
        model.with_priors(source_prior=dist.Normal(0.0, 1.0))
    x = torch.randn(20, 3)
    for site, prior in {"weight": dist.Laplace(0.0, 1.0), "scale": dist.HalfNormal(1.0)}.items():
        with pytest.raises(MethodError, match=f"prior for '{site}', not {type(prior).__name__}; use SVI or NUTS"):
            ci.fit(model.with_priors(**{site: prior}), x, seed=0, progress=False)


def test_flat_priors_leave_the_likelihood_alone_and_generate():
    example = CVQ.example()
    params = {site: example.truth[site] for site in example.model.shapes}
    assert float(example.model.log_prior(params)) == 0
    flat = Flat(dist.LogNormal(-1.0, 0.5)).expand([4])
    assert torch.equal(flat.log_prob(torch.tensor([0.1, 1.0, 10.0, 100.0])), torch.zeros(4))
    assert (flat.sample((3,)) > 0).all() and flat.sample((3,)).shape == (3, 4)
    single = example.model.prior("weight", like=torch.zeros((), dtype=torch.float32))
    assert single.sample().dtype == torch.float32 and single.log_prob(single.sample()).shape == ()


def test_fits_with_every_kind_of_prior_are_saved(tmp_path):
    example = CVQ.example()
    for priors in PRIORS.values():
        model = example.model.with_priors(**priors)
        fit = ci.fit(model, example.data, seed=0, progress=False)
        loaded = ci.Fit.load(fit.save(tmp_path / "fit.safetensors"))
        assert torch.equal(loaded.model.log_prior(fit.params), model.log_prior(fit.params))


def test_generators():
    generated = bars(50, 3, side=4)
    weight = generated.truth["weight"]
    assert weight.shape == (8, 16) and torch.equal(weight[:4].sum(0), weight[4:].sum(0))
    assert torch.equal(weight.sum(1), torch.full((8,), 4.0)) and generated.image_shape == (4, 4)
    assert torch.equal(generated.x, bars(50, 3, side=4).x) and not torch.equal(generated.x, bars(50, 4, side=4).x)
    residual = generated.x - generated.truth["source"] @ weight
    assert abs(float(residual.std()) - 0.5) < 0.05
    pictures = mixed_images(10, 0)
    assert pictures.truth["weight"].shape == (6, 24 * 24) and float(pictures.truth["weight"].min()) >= 0
    assert float(pictures.truth["weight"].max()) <= 1
    for wrong in ({"side": 1}, {"scale": 0.0}):
        with pytest.raises(ModelError):
            bars(10, 0, **wrong)
