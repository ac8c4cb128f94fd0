"""Logistic PCA: quadrature, bounds, ascent, stationarity, the canonical rotation, missing entries, and refusals."""

from __future__ import annotations

import numpy as np
import pyro.distributions as dist
import pytest
import torch

from custom_inference import VariationalEM
from custom_inference.core.local_inference import LocalSolver
from custom_inference.core.registry import engine_for
from custom_inference.families.conjugate.normal import Normal
from custom_inference.families.factors.common import principal_axes
from custom_inference.families.factors.logistic_pca import LogisticGaussian, LogisticMap
from custom_inference.families.factors.quadrature import LogisticQuadrature
from ppl_models import CapacityError, Data, DataError, LogisticPCA, MethodError, ModelError
from ppl_models.distributions import Flat
from tests.references import logistic_pca as reference

ENGINES = [LogisticMap(), LogisticGaussian(), LogisticQuadrature(nodes=24)]
NAMES = [engine.name for engine in ENGINES]


def problem(seed: int, num_components=2, num_features=5, num_rows=4, missing=0.0, scale=1.5):
    rng = np.random.default_rng(seed)
    params = {"weight": scale * rng.normal(size=(num_components, num_features)), "bias": rng.normal(size=num_features)}
    x = (rng.random((num_rows, num_features)) < 0.5).astype(float)
    mask = rng.random(x.shape) > missing if missing else None
    tensors = {site: torch.tensor(value) for site, value in params.items()}
    data = Data(x=torch.tensor(x), mask=None if mask is None else torch.tensor(mask))
    return params, tensors, x, mask, data


def model_of(tensors) -> LogisticPCA:
    num_components, num_features = tensors["weight"].shape
    return LogisticPCA(num_components=num_components, num_features=num_features)


def example(missing: float = 0.0, **priors):
    made = LogisticPCA.example()
    model = made.model.with_priors(**priors)
    mask = torch.rand(made.data.x.shape, generator=torch.Generator().manual_seed(1)) > missing if missing else None
    return model, model.prepare(made.data.x, mask=mask, dtype=torch.float64)


PRIORS = {
    "default": {},
    "shifted": {
        "weight": dist.Normal(0.5, torch.linspace(0.5, 2.0, 7)),
        "bias": dist.Normal(-1.0, 2.0),
        "score": dist.Normal(torch.tensor([0.3, -0.2]), torch.tensor([1.0, 0.5])),
    },
    "flat": {"weight": Flat(dist.Normal(0.0, 1.0)), "bias": Flat(dist.Normal(0.0, 1.0))},
}


@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize("name", ["map", "gaussian"])
def test_em_ends_at_a_stationary_point(name, missing):
    """Slopes of the reference's objective, in weights, biases and (for points) scores, are nil."""
    model, data = example(missing)
    engine = engine_for(model, name, sweeps=3)
    rows = engine.rows(model, data)
    params, locals_ = engine.propose(model, rows, torch.Generator().manual_seed(0), 0), None
    for _ in range(1500):
        step = engine.e_step(model, params, rows, locals_)
        before, (params, locals_) = params, (engine.m_step(model, params, step, rows), step.locals)
        if all(float((params[site] - before[site]).abs().max()) < 1e-8 for site in params):
            break
    x, mask = data.x.numpy(), None if data.mask is None else data.mask.numpy()
    score = locals_["score"].numpy()

    def objective(flat):
        values = {"weight": flat[:14].reshape(2, 7), "bias": flat[14:21]}
        prior = -0.5 * (values["weight"] ** 2).sum() / 9 - 0.5 * (values["bias"] ** 2).sum() / 100
        if name == "map":
            at = flat[21:].reshape(score.shape)
            return reference.log_likelihood(values, x, at, mask).sum() - 0.5 * (at**2).sum() + prior
        # The bound at the best xi for this q: by the envelope theorem q itself may stand still.
        covariance = locals_["covariance"].numpy()
        xi = reference.best_xi(values, score, covariance)
        return reference.jaakkola_bound(values, x, score, covariance, xi, mask).sum() + prior

    at = np.concatenate([params["weight"].numpy().ravel(), params["bias"].numpy(), score.ravel()])
    checked = len(at) if name == "map" else 21
    slopes = [(objective(at + h) - objective(at - h)) / 2e-5 for h in 1e-5 * np.eye(len(at))[:checked]]
    assert np.abs(slopes).max() < 1e-4


@pytest.mark.parametrize("engine", ENGINES, ids=NAMES)
def test_blocks_of_rows_change_nothing(engine, monkeypatch):
    _, tensors, _, _, data = problem(6, num_rows=150, missing=0.2)
    model = model_of(tensors)
    whole = engine.e_step(model, tensors, engine.rows(model, data))
    for module in ("logistic_pca", "quadrature"):
        monkeypatch.setattr(f"custom_inference.families.factors.{module}._BLOCK_ENTRIES", 2)
    blocks = engine.e_step(model, tensors, engine.rows(model, data))
    assert torch.allclose(whole.bound, blocks.bound, atol=1e-10)
    assert all(torch.allclose(v, blocks.statistics[k], atol=1e-8) for k, v in whole.statistics.items())
    assert all(torch.allclose(v, blocks.locals[k], atol=1e-8) for k, v in whole.locals.items())


@pytest.mark.parametrize("name", ["map", "gaussian"])
def test_the_canonical_rotation_changes_nothing_but_the_axes(name):
    _, tensors, _, _, data = problem(7, 3, 8, 12)
    model = model_of(tensors)
    engine = LogisticMap() if name == "map" else LogisticGaussian()
    step = engine.e_step(model, tensors, engine.rows(model, data))
    params, locals_ = engine.canonical(model, tensors, step.locals)
    gram = params["weight"] @ params["weight"].T
    assert torch.allclose(gram, torch.diag(gram.diagonal()), atol=1e-10), "orthogonal"
    assert (gram.diagonal().diff() <= 0).all(), "the longest first"
    peak = params["weight"].gather(1, params["weight"].abs().argmax(1, keepdim=True))
    assert (peak > 0).all()
    odds = tensors["bias"] + step.locals["score"] @ tensors["weight"]
    assert torch.allclose(params["bias"] + locals_["score"] @ params["weight"], odds, atol=1e-10)
    again = engine.e_step(model, params, engine.rows(model, data), locals_)
    before = engine.e_step(model, tensors, engine.rows(model, data), step.locals)
    assert torch.allclose(again.bound, before.bound, atol=1e-10)
    twice, _ = engine.canonical(model, params, {})
    assert torch.allclose(twice["weight"], params["weight"], atol=1e-10)


def test_priors_that_prefer_directions_are_not_turned():
    model, _ = example(score=dist.Normal(0.0, torch.tensor([1.0, 2.0])))
    engine = engine_for(model, "map")
    _, tensors, _, _, _ = problem(8, 2, 7)
    assert engine.canonical(model, tensors, {})[0] is tensors
    assert Normal.of(model, "score", model.local_shape, tensors["weight"]).precision.tolist() == [1.0, 0.25]


def test_same_solution_is_blind_to_rotation():
    _, tensors, _, _, _ = problem(9, 3, 8)
    model = model_of(tensors)
    turn = torch.linalg.qr(torch.randn(3, 3, generator=torch.Generator().manual_seed(0)))[0]
    engine = LogisticMap()
    assert engine.same_solution(model, tensors, {**tensors, "weight": turn @ tensors["weight"]})
    _, other, _, _, _ = problem(10, 3, 8)
    assert not engine.same_solution(model, tensors, other)


@pytest.mark.parametrize("shape", [(30, 6), (6, 30), (3, 5)])
def test_principal_axes_are_those_of_the_svd(shape):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    axes = principal_axes(matrix, 2)
    _, value, right = torch.linalg.svd(matrix, full_matrices=False)
    best = right[:2].T @ torch.diag(value[:2].square() / len(matrix)) @ right[:2]
    assert torch.allclose(axes.T @ axes, best, atol=1e-8)
    assert principal_axes(matrix, min(6, shape[1])).shape == (min(6, shape[1]), shape[1])


@pytest.mark.parametrize("name", NAMES)
def test_planted_log_odds_are_recovered(name):
    """The log-odds found are those that the true weights would give to the same rows."""
    rng = np.random.default_rng(0)
    size = 300 if name == "exact" else 600
    truth = {"weight": torch.tensor(1.5 * rng.normal(size=(2, 20))), "bias": torch.full((20,), -0.5)}
    odds = rng.normal(size=(size, 2)) @ truth["weight"].numpy() - 0.5
    x = (rng.random(odds.shape) < 1 / (1 + np.exp(-odds))).astype(float)
    model = LogisticPCA(num_components=2, num_features=20)
    guide = {"exact": "exact"}.get(name, name)
    # Exact EM goes on from where the cheap bound ends.
    cheap = VariationalEM(guide="gaussian", search=None)
    init = cheap.fit(model, x, progress=False) if name == "exact" else None
    steps = 12 if name == "exact" else 60
    fit = VariationalEM(guide=guide, tolerance=1e-4, max_iterations=steps).fit(model, x, init=init, progress=False)
    found = (fit.params["bias"] + fit.posterior.mean @ fit.params["weight"]).numpy().ravel()
    gaussian = LogisticGaussian()
    at_truth = LocalSolver(engine=gaussian).solve(model, truth, fit.data).posterior.mean
    best = (truth["bias"] + at_truth @ truth["weight"]).numpy().ravel()
    assert np.corrcoef(found, best)[0, 1] > (0.9 if name == "map" else 0.95)
    # Exact EM gets the scale right; joint point estimates exaggerate it, and Jaakkola's bound, which is looser the
    # larger the log-odds, keeps it down.
    gram = fit.params["weight"] @ fit.params["weight"].T
    assert torch.allclose(gram, torch.diag(gram.diagonal()), atol=1e-8), "reported in canonical rotation"
    low, high = {"map": (1.5, 2.5), "gaussian": (0.7, 1.0), "exact": (0.85, 1.2)}[name]
    assert low < np.polyfit(best, found, 1)[0] < high


@pytest.mark.parametrize("name", NAMES)
def test_single_precision_agrees(name):
    model, data = example(0.2)
    engine = engine_for(model, name)
    results = []
    for dtype in (torch.float32, torch.float64):
        rows = engine.rows(model, data.to(dtype=dtype))
        params = engine.propose(model, rows, torch.Generator().manual_seed(0), 0)
        step = engine.e_step(model, params, rows)
        params = engine.m_step(model, params, step, rows)
        assert step.bound.dtype == dtype and all(value.dtype == dtype for value in params.values())
        results.append((step.bound.double(), params["weight"].double().abs()))
    assert torch.allclose(results[0][0], results[1][0], atol=1e-4)
    assert torch.allclose(results[0][1], results[1][1], atol=1e-3)


@pytest.mark.parametrize("engine", ENGINES, ids=NAMES)
def test_a_row_without_entries_has_the_prior(engine):
    _, tensors, x, _, _ = problem(11)
    model = model_of(tensors)
    mask = torch.ones(x.shape, dtype=torch.bool)
    mask[1] = False
    local = LocalSolver(engine=engine).solve(model, tensors, Data(x=torch.tensor(x), mask=mask))
    assert local.posterior.mean[1].abs().max() < 1e-10
    if engine.name != "map":
        assert abs(float(local.bound[1])) < 1e-10
        assert torch.allclose(local.posterior.covariance[1], torch.eye(2), atol=1e-8)


def test_bias_starts_at_the_columns_log_odds():
    x = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 0.0]])
    expected = torch.log(torch.tensor([2.5 / 1.5, 0.5 / 3.5]))
    assert torch.allclose(LogisticMap().start_bias(None, LogisticMap().rows(None, Data(x=x))), expected)


def test_free_parameters():
    model = LogisticPCA(num_components=2, num_features=7)
    assert model.num_parameters(0) == 14 + 7 - 1
    assert model.num_parameters(80) == 14 + 7 + 160 - 4 - 2


def test_bad_input_is_refused():
    with pytest.raises(ModelError, match="exceeds num_features"):
        LogisticPCA(num_components=4, num_features=3)
    model = LogisticPCA(num_components=2, num_features=3)
    with pytest.raises(ModelError, match=r"unknown site .*valid: bias, score, weight"):
        model.with_priors(scores=dist.Normal(0.0, 1.0))
    with pytest.raises(DataError, match="neither 0 nor 1"):
        model.prepare(np.array([[0.5, 1.0, 0.0]]))
    rows = LogisticMap().rows(model, model.prepare(np.eye(3)))
    for site in ("weight", "bias", "score"):
        changed = model.with_priors(**{site: dist.Laplace(0.0, 1.0)})
        with pytest.raises(MethodError, match=f"need a Normal prior for '{site}'"):
            LogisticMap().check(changed, rows)
    flat = model.with_priors(score=Flat(dist.Normal(0.0, 1.0)))
    LogisticMap().check(flat, rows)
    for engine in (LogisticGaussian(), LogisticQuadrature()):
        with pytest.raises(MethodError, match="'score' is flat"):
            engine.check(flat, rows)
    large = LogisticPCA(num_components=3, num_features=3)
    with pytest.raises(CapacityError, match="up to 2"):
        LogisticQuadrature().check(large, rows)
    assert LogisticQuadrature().feasible(model) and not LogisticQuadrature().feasible(large)


def test_flat_scores_have_finite_estimates_at_every_step():
    """The maximum may lie at infinity: the iterates must stay finite, an empty row included."""
    model, _ = example(score=Flat(dist.Normal(0.0, 1.0)))
    x = LogisticPCA.example().data.x.clone()
    mask = torch.ones(x.shape, dtype=torch.bool)
    mask[3] = False
    engine = engine_for(model, "map")
    rows = engine.rows(model, model.prepare(x, mask=mask, dtype=torch.float64))
    params, locals_, trace = engine.propose(model, rows, torch.Generator().manual_seed(0), 0), None, []
    for _ in range(60):
        step = engine.e_step(model, params, rows, locals_)
        trace.append(engine.objective_at(model, params, step.bound))
        params, locals_ = engine.m_step(model, params, step, rows), step.locals
    assert np.isfinite(trace).all() and np.diff(trace).min() > -1e-9
    assert float(locals_["score"][3].abs().max()) == 0
