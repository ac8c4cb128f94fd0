"""Exponential-family PCA at given globals and at the end of EM: evidences, bounds, estimates, stationarity."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch

from custom_inference import VariationalEM
from custom_inference.core.local_inference import LocalSolver
from custom_inference.core.registry import engine_for, engines_of
from custom_inference.families.factors.newton import FactorVariational
from ppl_models import (
    CategoricalPCA,
    ExponentialFamilyPCA,
    GaussianPCA,
    LogisticPCA,
    MethodError,
    ModelError,
    PoissonPCA,
    SoftmaxPCA,
)
from ppl_models.likelihoods import Binomial, Gaussian, Poisson
from tests.references import _pca
from tests.references import categorical_pca as categorical
from tests.references import gaussian_pca as gaussian

KINDS = {"poisson_pca": PoissonPCA, "categorical_pca": CategoricalPCA, "softmax_pca": SoftmaxPCA}
NAMES = pytest.mark.parametrize("name", KINDS)
SIZES = (3, 2, 4)


def problem(name: str, seed: int, num_components=2, num_rows=5, missing=0.0, scale=0.7):
    """A model, its reference's log likelihood and evidence, values of its globals, and data drawn under them."""
    rng, kind = np.random.default_rng(seed), KINDS[name]
    reference = importlib.import_module(f"tests.references.{name}")
    shape = (3, 4) if name == "categorical_pca" else (5,)
    settings = {"num_categories": SIZES} if name == "categorical_pca" else {}
    model = kind(num_components=num_components, num_features=shape[0], **settings)
    params = {"weight": scale * rng.normal(size=(num_components, *shape)), "bias": rng.normal(size=shape)}
    score = rng.normal(size=(num_rows, num_components))
    eta = _pca.natural(params, score)
    if name == "poisson_pca":
        x = rng.poisson(np.exp(eta))
    elif name == "softmax_pca":
        x = np.stack([rng.multinomial(12, np.exp(e) / np.exp(e).sum()) for e in eta])
    else:
        x = np.stack([[rng.integers(size) for size in SIZES] for _ in eta])
    mask = rng.random(x.shape) >= missing
    data = model.prepare(np.where(mask, x, np.nan), dtype=torch.float64)
    likelihood = categorical.log_likelihood_of(SIZES) if name == "categorical_pca" else reference.log_likelihood
    tensors = {site: torch.tensor(value) for site, value in params.items()}
    return model, likelihood, params, tensors, x.astype(float), mask, data


def by_name() -> ExponentialFamilyPCA:
    """The model of Poisson PCA's example."""
    priors = PoissonPCA.example().model.priors
    return ExponentialFamilyPCA(likelihood=Poisson(), num_components=2, num_features=6, priors=priors)


def solved(engine, model, tensors, data) -> Any:
    return LocalSolver(engine=engine, tolerance=1e-13, max_iterations=500).solve(model, tensors, data)


@NAMES
@pytest.mark.parametrize("missing", [0.0, 0.4])
@pytest.mark.parametrize("num_components", [1, 2])
def test_evidence_and_moments_are_the_references(name, num_components, missing):
    model, likelihood, params, tensors, x, mask, data = problem(name, 0, num_components, missing=missing)
    grid, points = _pca.by_grid(likelihood), 120 if num_components == 1 else 60
    engine: Any = engine_for(model, "exact")
    rows = engine.rows(model, data)
    expected = grid.log_evidence(params, x, mask, points=points)
    assert np.allclose(engine.log_evidence(model, tensors, rows), expected, atol=1e-7)
    posterior = engine.posterior(model, tensors, rows, None)
    mean, covariance = grid.moments(params, x, mask, points=points)
    assert np.allclose(posterior.mean, mean, atol=1e-5) and np.allclose(posterior.covariance, covariance, atol=1e-5)
    at = torch.tensor(mean)
    own = likelihood(params, x, mean, mask) - 0.5 * (mean**2).sum(1) - num_components / 2 * np.log(2 * np.pi)
    assert np.allclose(posterior.log_prob(at), own - expected, atol=1e-6)
    draws = posterior.sample(2000, seed=0)
    assert (draws.mean(0) - posterior.mean).abs().max() < 0.1


@NAMES
def test_chain_of_bounds_row_by_row(name):
    """Boehning's bound <= the tilted or exact one <= evidence; all scores integrated out."""
    for seed in range(4):
        model, _, _, tensors, _, _, data = problem(name, seed, missing=0.3 * (seed % 2), scale=0.5 + 0.4 * seed)
        best = solved(engine_for(model, "variational"), model, tensors, data).bound
        exact: Any = engine_for(model, "exact")
        evidence = exact.log_evidence(model, tensors, exact.rows(model, data))
        assert (best <= evidence + 1e-8).all() and (best > evidence - 1.5).all()
        if "gaussian" in engines_of(model):
            assert (solved(engine_for(model, "gaussian"), model, tensors, data).bound <= best + 1e-8).all()


def test_poisson_bound_is_the_elbo_of_its_gaussians_and_the_best_one():
    reference = importlib.import_module("tests.references.poisson_pca")
    model, _, params, tensors, x, mask, data = problem("poisson_pca", 3, missing=0.2)
    local = solved(engine_for(model, "variational"), model, tensors, data)
    mean, covariance = local.posterior.mean.numpy(), local.posterior.covariance.numpy()

    def elbo(mean, covariance):
        divergence = 0.5 * (np.trace(covariance, axis1=1, axis2=2) + (mean**2).sum(1) - 2)
        divergence -= 0.5 * np.linalg.slogdet(covariance)[1]
        return reference.expected_log_likelihood(params, x, mean, covariance, mask) - divergence

    assert np.allclose(local.bound, elbo(mean, covariance), atol=1e-9)
    rng = np.random.default_rng(0)
    for _ in range(8):
        move, turn = 0.05 * rng.normal(size=mean.shape), 0.05 * rng.normal(size=covariance.shape)
        other = covariance + turn @ covariance + covariance @ turn.swapaxes(1, 2)
        assert (elbo(mean + move, other) < elbo(mean, covariance)).all()


@NAMES
def test_laplace_is_that_of_finite_differences(name):
    model, likelihood, params, tensors, x, mask, data = problem(name, 4, missing=0.2)
    local = solved(engine_for(model, "laplace"), model, tensors, data)
    for n in range(len(x)):

        def log_joint(score, n=n):
            own = likelihood(params, x[n : n + 1], score[None], mask[n : n + 1])[0]
            return own - 0.5 * score @ score - len(score) / 2 * np.log(2 * np.pi)

        mode = local.posterior.mean[n].numpy()
        assert np.isclose(local.bound[n], _pca.laplace(log_joint, mode), atol=1e-5)
        for step in 1e-3 * np.eye(2):
            assert log_joint(mode) > max(log_joint(mode + step), log_joint(mode - step))


#: Poisson PCA's own engines have tests of their own; by the likelihood's name it has those of any likelihood.
EXAMPLES: dict[str, Any] = {name: KINDS[name].example() for name in ("categorical_pca", "softmax_pca")}
EXAMPLES["logistic_pca"] = LogisticPCA.example()
EXAMPLES["poisson"] = replace(PoissonPCA.example(), model=by_name())
EXAMPLES["gaussian_pca"] = GaussianPCA.example()
CASES = [(name, guide) for name in EXAMPLES for guide in engines_of(EXAMPLES[name].model)]
CASES = [case for case in CASES if case[0] != "logistic_pca" or case[1] in ("variational", "laplace")]
CASES.remove(("poisson", "gaussian"))  # which counts refuse


@pytest.mark.parametrize(("name", "guide"), [case for case in CASES if case[0] != "gaussian_pca"])
def test_em_ends_at_a_stationary_point(name, guide):
    """Slopes of objective and log prior in random directions of the globals are nil; the scores follow."""
    example = EXAMPLES[name]
    model, data = example.model, example.data.to(dtype=torch.float64).rows(slice(0, 20))
    engine: Any = engine_for(model, guide, **({"nodes": 10} if guide == "exact" else {}))
    rows = engine.rows(model, data)
    params, warm = engine.propose(model, rows, torch.Generator().manual_seed(0), 0), None
    for _ in range(1200 if guide == "gaussian" else 300):  # whose steps are short
        step = engine.e_step(model, params, rows, warm)
        before, (params, warm) = params, (engine.m_step(model, params, step, rows), step.locals or None)
        if all(float((params[site] - before[site]).abs().max()) < 1e-6 for site in params):
            break
    settled = step.locals

    def objective(values):
        local = LocalSolver(engine=engine, tolerance=1e-14, max_iterations=60)
        found = local.solve(model, values, data)
        return float(found.bound.sum() + model.log_prior(values)) if engine.name != "map" else joint(values)

    def joint(values):
        held = engine.e_step(model, values, rows, settled)
        return float(held.bound.sum() + model.log_prior(values))

    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        move = {s: torch.randn(v.shape, generator=generator, dtype=v.dtype) for s, v in params.items()}
        ends = [objective({s: v + h * move[s] for s, v in params.items()}) for h in (1e-4, -1e-4)]
        assert abs(ends[0] - ends[1]) / 2e-4 < 5e-3, (ends[0] - ends[1]) / 2e-4


def test_offsets_are_exposures():
    reference = importlib.import_module("tests.references.poisson_pca")
    model, _, params, tensors, x, _, _ = problem("poisson_pca", 5)
    offset = np.random.default_rng(0).normal(size=len(x))
    data = model.prepare(x, offset=offset, dtype=torch.float64)
    for name in ("exact", "variational", "laplace"):
        found = solved(engine_for(model, name), model, tensors, data).bound.numpy()
        expected = reference.log_evidence(params, x, None, 50, offset)
        assert np.allclose(found, expected, atol=1e-6 if name == "exact" else 0.3)
        held = [data.rows(slice(n, n + 1)) for n in range(len(x))]  # a row's offset goes with it
        alone = [float(solved(engine_for(model, name), model, tensors, one).bound) for one in held]
        assert np.allclose(found, alone, atol=1e-8)


def test_offsets_are_learned_around():
    """Data of the same rates under other exposures have the same weights."""
    example: Any = PoissonPCA.example()
    truth, generator = example.truth, torch.Generator().manual_seed(0)
    offset = torch.randn(200, generator=generator) + 2
    score = torch.randn((200, 2), generator=generator)
    eta = truth["bias"] + score @ truth["weight"] + offset[:, None]
    x = torch.poisson(eta.exp(), generator=generator)
    settings = {"guide": "variational", "search": None, "max_iterations": 60}
    fit = VariationalEM(**settings).fit(example.model, x, offset=offset, progress=False)
    gram = [w.T @ w for w in (fit.params["weight"], truth["weight"].to(fit.params["weight"]))]
    assert (gram[0] - gram[1]).abs().max() < 0.25 and (fit.params["bias"] - truth["bias"]).abs().max() < 0.2
    total = example.model.prepare(x, offset="total")
    assert torch.allclose(total.others["offset"], x.sum(1).clamp(min=1).log(), rtol=1e-12, atol=0)


# ----- real numbers: exact in closed form -----------------------------------------------------------------------------


def real(seed: int, missing: float):
    rng = np.random.default_rng(seed)
    params = {"weight": rng.normal(size=(2, 5)), "bias": rng.normal(size=5), "scale": np.array(0.7)}
    x = rng.normal(size=(9, 2)) @ params["weight"] + params["bias"] + 0.7 * rng.normal(size=(9, 5))
    mask = rng.random(x.shape) >= missing
    return params, {site: torch.tensor(value) for site, value in params.items()}, x, mask


@pytest.mark.parametrize("missing", [0.0, 0.4])
def test_every_engine_is_exact_for_real_numbers(missing):
    params, tensors, x, mask = real(0, missing)
    expected = gaussian.log_evidence(params, x, mask)
    mean, covariance = gaussian.posterior_moments(params, x, mask)
    known = ExponentialFamilyPCA(likelihood=Gaussian(0.7), num_components=2, num_features=5)
    own = GaussianPCA(num_components=2, num_features=5)
    for model in (own, known):
        data = model.prepare(np.where(mask, x, np.nan), dtype=torch.float64)
        for name in engines_of(model):
            local = solved(engine_for(model, name), model, tensors, data)
            assert np.allclose(local.posterior.mean, mean, atol=1e-7), name
            if name != "map":
                assert np.allclose(local.bound, expected, atol=1e-8), name
                assert np.allclose(local.posterior.covariance, covariance, atol=1e-7), name


@pytest.mark.parametrize("search", [None, "default"])
def test_gaussian_pca_reaches_the_known_maximum(search):
    example = GaussianPCA.example()
    settings = {"tolerance": 1e-12, "max_iterations": 2000, **({"search": None} if search is None else {})}
    fit = VariationalEM(guide="exact", **settings).fit(example.model, example.data.x.double(), seed=1, progress=False)
    best, covariance = gaussian.maximum_likelihood(example.data.x.double().numpy(), 2)
    assert float(fit.elbo[-1]) == pytest.approx(best, abs=1e-7)
    found = gaussian.covariance({site: value.numpy() for site, value in fit.params.items()})
    assert np.allclose(found, covariance, atol=1e-5)


def test_noise_may_be_known_or_differ_between_features():
    rng = np.random.default_rng(1)
    scale = np.array([0.2, 0.5, 1.0, 0.3, 0.8, 0.4])
    weight = rng.normal(size=(1, 6))
    x = rng.normal(size=(800, 1)) @ weight + scale * rng.normal(size=(800, 6))
    model = GaussianPCA(num_components=1, num_features=6, per_feature_scale=True)
    fit = VariationalEM(guide="exact", tolerance=1e-8).fit(model, x, progress=False)
    assert np.allclose(fit.params["scale"], scale, atol=0.08)
    known = GaussianPCA(num_components=1, num_features=6).with_priors(scale=0.5)
    assert float(VariationalEM(guide="exact").fit(known, x, progress=False).params["scale"]) == 0.5


# ----- likelihoods by name, data, refusals ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [PoissonPCA, SoftmaxPCA])
def test_sparse_counts_give_what_dense_ones_do(kind):
    example = kind.example()
    dense, thin = example.data.x.double(), scipy.sparse.csr_matrix(example.data.x.double().numpy())
    settings = {"guide": "variational", "search": None, "max_iterations": 10}
    one, other = (VariationalEM(**settings).fit(example.model, x, progress=False) for x in (dense, thin))
    assert other.data.is_sparse and torch.allclose(one.elbo, other.elbo)


def test_poisson_by_name_is_poisson_pca():
    """The engine of any likelihood ends where Poisson PCA's own does."""
    example = PoissonPCA.example()
    settings = {"guide": "variational", "search": None, "max_iterations": 400, "tolerance": 1e-8}
    fits = [VariationalEM(**settings).fit(m, example.data.x, progress=False) for m in (example.model, by_name())]
    assert float(fits[0].elbo[-1]) == pytest.approx(float(fits[1].elbo[-1]), abs=1e-4)


@pytest.mark.parametrize("engine", ["variational", "gaussian", "laplace", "map", "exact"])
def test_two_draws_are_a_binomial(engine):
    """The evidence of counts of two draws, less the coefficients, is that of the draws one by one."""
    example: Any = ExponentialFamilyPCA.example()
    assert example.model.likelihood == Binomial(4)
    params = {site: example.truth[site].double() for site in example.model.global_sites}
    x = example.data.x.double()
    found = solved(engine_for(example.model, engine), example.model, params, example.model.prepare(x))
    single = torch.cat([(x > k).double() for k in range(4)], 1)
    wide = {site: value.repeat(*[1] * (value.ndim - 1), 4) for site, value in params.items()}
    model = ExponentialFamilyPCA(likelihood=Binomial(1), num_components=2, num_features=24)
    ones = solved(engine_for(model, engine), model, wide, model.prepare(single))
    coefficient = Binomial(4).log_base(x).sum(1)
    assert torch.allclose(found.posterior.mean, ones.posterior.mean, atol=1e-6)
    assert engine == "map" or torch.allclose(found.bound - coefficient, ones.bound, atol=1e-7)


@pytest.mark.parametrize(("name", "guide"), CASES)
def test_single_precision_agrees(name, guide):
    model, found = EXAMPLES[name].model, []
    for dtype in (torch.float32, torch.float64):
        engine: Any = engine_for(model, guide)
        rows = engine.rows(model, model.prepare(EXAMPLES[name].data.x, dtype=dtype))
        params = engine.propose(model, rows, torch.Generator().manual_seed(0), 0)
        step = engine.e_step(model, params, rows)
        params = engine.m_step(model, params, step, rows)
        assert step.bound.dtype == dtype and all(value.dtype == dtype for value in params.values())
        found.append((step.bound.double(), params["weight"].double().abs()))
    assert torch.allclose(found[0][0], found[1][0], atol=2e-3)
    assert torch.allclose(found[0][1], found[1][1], atol=5e-3)


def test_counts_have_no_quadratic_bound():
    model = ExponentialFamilyPCA(likelihood=Poisson(), num_components=1, num_features=3)
    with pytest.raises(MethodError, match="no quadratic bound; use guide='variational'"):
        VariationalEM(guide="gaussian").fit(model, [[1, 2, 3], [2, 0, 1]], progress=False)


# ----- learned prior scales -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["poisson_pca", "softmax_pca"])
def test_surplus_components_go_to_zero(name):
    """Two planted, four offered, under learned variances of the rows; without these all four are used."""
    generator, kind = torch.Generator().manual_seed(1), KINDS[name]
    weight = 0.8 * torch.randn((2, 15), generator=generator)
    eta = torch.randn((150, 2), generator=generator) @ weight
    if name == "poisson_pca":
        x = torch.poisson(torch.exp(eta), generator=generator)
    else:
        drawn = torch.multinomial(torch.softmax(eta, -1), 40, replacement=True, generator=generator)
        x = torch.zeros_like(eta).scatter_add_(1, drawn, torch.ones(150, 40))
    model: Any = kind(num_components=4, num_features=15)
    found, engine = [], FactorVariational()
    for chosen in (model, model.with_learned_scales(150)):
        settings = {"guide": "variational", "search": None, "max_iterations": 150, "tolerance": 1e-4}
        start = engine.propose(model, engine.rows(model, model.prepare(x)), generator, 0)
        fit = VariationalEM(**settings).fit(chosen, x, init=start, progress=False)
        assert (fit.elbo.diff() >= -1e-9).all()
        found.append(fit.params["weight"].norm(dim=1).sort().values)
    assert found[0][1] > 0.3 and found[1][1] < 0.15 and found[1][2] > 1.0


def test_learned_scales_are_the_mode_of_their_density():
    """At the end the variances are (|w_k|^2 + M floor^2) / (M + 4): the maximum of Normal times InverseGamma."""
    example: Any = PoissonPCA.example()
    model = example.model.with_learned_scales(100)
    fit = VariationalEM(guide="variational", search=None, max_iterations=60).fit(model, example.data.x, progress=False)
    expected = (fit.params["weight"].square().sum(1) + 6 * 0.01) / (6 + 4)
    assert torch.allclose(fit.params["weight_variance"], expected, rtol=1e-2)
    with pytest.raises(ModelError, match="num_rows = 0"):
        example.model.with_learned_scales(0)


def test_likelihoods_are_known_by_name():
    sizes = {"num_components": 1, "num_features": 2}
    assert ExponentialFamilyPCA(**sizes, likelihood="poisson").likelihood == Poisson()
    assert ExponentialFamilyPCA(**sizes, likelihood=("binomial", {"total": 3})).likelihood == Binomial(3)
    with pytest.raises(ModelError, match="likelihood = 'binomial', expected what it needs beside its name"):
        ExponentialFamilyPCA(**sizes, likelihood="binomial")
