"""Gamma-Poisson factor analysis against sums over auxiliary counts and quadrature; NMF against Lee & Seung."""

import warnings

import numpy as np
import pyro.distributions as dist
import pytest
import scipy.sparse
import torch
from scipy import stats
from scipy.integrate import nquad
from scipy.special import gammaln
from sklearn.decomposition import NMF as SklearnNMF

import custom_inference as ci
from custom_inference.families.gamma_poisson.common import EventRows, best_scale
from custom_inference.families.gamma_poisson.engines import GapVB
from custom_inference.families.gamma_poisson.kernels import settle_points
from custom_inference.families.gamma_poisson.map import settle_blocks
from ppl_models import NMF, DataError, GammaPoisson, ModelError
from tests.references import gamma_poisson, multinomial_pca, nmf
from tests.references.rows_test import slopes

MISSING = pytest.mark.parametrize("missing", [0.0, 0.3])
SHAPE, RATE = [0.5, 1.3], [0.7, 0.4]


def problem(missing=0.0, rows=8):
    example = GammaPoisson.example()
    x = example.data.x[example.data.x.sum(1) < 9][:rows]
    mask = torch.rand(x.shape, generator=torch.Generator().manual_seed(0)) >= missing if missing else None
    model = example.model.with_activation(SHAPE, RATE)
    return model, model.prepare(x, mask=mask), {"loading": example.truth["loading"]}


def given(data, params):
    mask = None if data.mask is None else data.mask.numpy()
    return {site: value.numpy() for site, value in params.items()}, data.x.numpy(), mask


@MISSING
def test_two_roads_of_the_reference(missing):
    _, data, params = problem(missing, rows=1)
    params, x, mask = given(data, params)
    by_counts = gamma_poisson.log_evidence(params, x, SHAPE, RATE, mask)
    assert np.allclose(gamma_poisson.log_evidence_quadrature(params, x, SHAPE, RATE, mask), by_counts, atol=1e-7)


@MISSING
def test_exact_evidence_and_posterior(missing):
    model, data, params = problem(missing)
    numpy, x, mask = given(data, params)
    local = ci.Exact().local_posterior(model, params, data)
    assert np.allclose(local.bound, gamma_poisson.log_evidence(numpy, x, SHAPE, RATE, mask), rtol=0, atol=1e-12)
    mean = gamma_poisson.posterior_mean(numpy, x, SHAPE, RATE, mask)
    assert np.allclose(local.posterior.mean, mean, rtol=0, atol=1e-12)
    draws = local.posterior.sample(4000, seed=1)
    error = draws.std(0) / 4000**0.5
    assert ((draws.mean(0) - torch.as_tensor(mean)).abs() < 5 * error).all()
    point = draws[0]
    joint = [
        gamma_poisson.log_likelihood(numpy, x, point.numpy(), mask),
        stats.gamma.logpdf(point.numpy(), SHAPE, scale=1 / np.array(RATE)).sum(1),
    ]
    assert np.allclose(local.posterior.log_prob(point), sum(joint) - local.bound.numpy(), atol=1e-9)  # Bayes' rule
    assert (ci.VariationalEM(guide="gamma").local_posterior(model, params, data).bound <= local.bound + 1e-10).all()


def test_given_the_total_it_is_multinomial_pca():
    """Buntine & Jakulin (2006), 002 below eq. 27.16: loadings with equal sums B, activations with equal rates beta: the
    total is negative binomial, and given it the row is multinomial PCA's with Dirichlet(alpha)."""
    model, data, params = problem()
    total = 1.7
    loading = params["loading"] / params["loading"].sum(1, keepdim=True)
    even = model.with_activation(SHAPE, 0.6)
    found = ci.Exact().local_posterior(even, {"loading": total * loading}, data).bound
    x, alpha = data.x.numpy(), np.array(SHAPE)
    given_total = multinomial_pca.log_evidence({"topic": loading.numpy()}, x, alpha)
    of_total = stats.nbinom.logpmf(x.sum(1), alpha.sum(), 0.6 / (0.6 + total))
    assert np.allclose(found, given_total + of_total, rtol=0, atol=1e-10)


def test_vb_is_below_the_evidence_with_everything_integrated_out():
    """One component, two features: given the loadings a row's activation integrates in closed form."""
    x, (a, b), (c, d) = np.array([[2.0, 1.0], [0.0, 3.0], [1.0, 0.0]]), (0.8, 0.5), (1.2, 0.7)
    model = GammaPoisson(num_components=1, num_features=2).with_activation(a, b).with_loading(c, d)

    def density(*loading: float) -> float:
        v, n = np.array(loading), x.sum(1)
        rows = gammaln(a + n) - gammaln(a) + a * np.log(b) - (a + n) * np.log(b + v.sum())
        return float(
            np.exp(rows.sum() + (x * np.log(v) - gammaln(x + 1)).sum() + stats.gamma.logpdf(v, c, scale=1 / d).sum())
        )

    exact = np.log(nquad(density, [(0, 60)] * 2, opts=[{"points": [1.0], "limit": 200}] * 2)[0])
    fit = ci.VariationalEM(guide="vb", search=None, tolerance=1e-10).fit(model, x, progress=False)
    assert exact - 1.0 < float(fit.elbo[-1]) < exact


@MISSING
def test_em_ends_where_the_posterior_is_stationary(missing):
    model, data, _ = problem(missing)
    model = model.with_loading(2.0, 1.0)
    fit = ci.EM(search=None, tolerance=1e-13, max_iterations=3000).fit(model, data, progress=False)
    _, x, mask = given(data, {})

    def objective(loading):
        return (
            gamma_poisson.log_evidence({"loading": loading}, x, SHAPE, RATE, mask).sum()
            + stats.gamma.logpdf(loading, 2.0).sum()
        )

    assert np.abs(slopes(objective, fit.params["loading"].numpy())).max() < 1e-4
    assert np.isclose(float(fit.elbo[-1]), objective(fit.params["loading"].numpy()), atol=1e-6)


@MISSING
def test_points_are_stationary(missing):
    model, data, _ = problem(missing)
    model = model.with_activation(2.0, 0.8).with_loading(2.0, 1.0)
    fit = ci.VariationalEM(guide="map", search=None, tolerance=1e-13, max_iterations=3000).fit(
        model, data, progress=False
    )
    _, x, mask = given(data, {})
    priors = {"loading": ("gamma", 2.0, 1.0), "activation": ("gamma", 2.0, 0.8)}
    value = {site: fit.params[site].numpy() for site in ("loading", "activation")}
    for site in value:

        def objective(v, site=site):
            at = {**value, site: v}
            return gamma_poisson.log_joint(at, x, at["activation"], mask, priors)

        assert np.abs(slopes(objective, value[site])).max() < 1e-3, site
    assert np.isclose(float(fit.elbo[-1]), gamma_poisson.log_joint(value, x, value["activation"], mask, priors))


@MISSING
def test_learned_activations_are_the_best(missing):
    """The bound falls where any of the learned shapes and rates is changed, and it was above that of the given ones."""
    model, data, _ = problem(missing, rows=30)
    learning = ci.VariationalEM(guide=ci.VariationalBayes(learn="activation"), search=None, tolerance=1e-12)
    fit = learning.fit(model, data, progress=False)
    assert (fit.elbo.diff() > -1e-9).all()
    engine, prior = GapVB(), fit.model.priors["activation"]
    rows = engine.rows(model, data)

    def bound(shape, rate):
        changed, state = model.with_activation(shape, rate), GapVB.state.of_posteriors(fit.global_posterior)
        step = engine.e_step(changed, state, rows, {"concentration": fit.posterior.shape})
        for _ in range(50):
            step = engine.e_step(changed, state, rows, step.locals)
        return float(step.bound.sum())

    best = bound(prior.concentration, prior.rate)
    for k in range(2):
        for factor in (0.97, 1.03):
            scale = torch.ones(2)
            scale[k] = factor
            assert bound(prior.concentration * scale, prior.rate) < best
            assert bound(prior.concentration, prior.rate * scale) < best


@pytest.mark.parametrize("power", [-3.0, 0.0, 2.0])
def test_best_scale_is_the_maximum(power):
    rate, mass = torch.tensor([0.7]), torch.tensor([1.9])
    best = best_scale(torch.tensor([power]), rate, mass)
    grid = torch.linspace(0.01, 20, 20001)
    assert abs(float(best) - float(grid[(power * grid.log() - 0.7 * grid - 1.9 / grid).argmax()])) < 1e-3
    assert best_scale(torch.tensor([power]), torch.zeros(1), mass) == 1


@pytest.mark.parametrize("power", [1.0, 0.4])
def test_compiled_updates_of_points_are_those_in_blocks(power):
    """With rows without events, a component without exposure, and rates that may not fall to 0."""
    rng = np.random.default_rng(0)
    counts = rng.poisson(0.6, (30, 7)) * rng.integers(1, 4, (30, 7))
    counts[4] = 0
    model = GammaPoisson(num_components=3, num_features=7)
    rows = EventRows.of(model.prepare(scipy.sparse.csr_matrix(counts.astype(float)), dtype=torch.float64))
    words = torch.as_tensor(rng.gamma(0.3, 1.0, (7, 3)))
    below, above = torch.as_tensor(rng.gamma(1.0, 1.0, (30, 3))), torch.tensor([0.3, 0.0, 1.0]).double()
    below[:, 1] = 0
    found = []
    for settle in (settle_points, settle_blocks):
        activation = torch.ones(30, 3, dtype=torch.float64)
        limits = {"sweeps": 3, "floor": 1e-12, "temperature": power}
        found.append((*settle(rows, words, activation, above, below, **limits), activation))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)
    assert bool((found[0][2][:, 1] == 1e-12).all())
    mixture = (found[0][2] @ words.T)[rows.counts.to_dense() > 0]
    torch.testing.assert_close(found[0][0] * mixture, rows.counts.values())


def test_an_iteration_of_nmf_is_lee_and_seungs():
    example = GammaPoisson.example()
    model, x = NMF(num_components=2, num_features=6), example.data.x[example.data.x.sum(1) > 0]
    method = ci.VariationalEM(guide="map", search=None, accelerate=None, max_iterations=1)
    engine = method.engine(model)
    rows = engine.rows(model, model.prepare(x))
    activation, loading = torch.rand(len(x), 2) + 0.1, torch.rand(2, 6) + 0.1
    step = engine.e_step(model, {"loading": loading}, rows, {"activation": activation})
    new = engine.m_step(model, {"loading": loading}, step, rows)["loading"]
    expected = activation.numpy()
    expected, _ = nmf.multiplicative_update(x.numpy(), expected, loading.numpy())
    assert np.allclose(step.locals["activation"], expected, rtol=1e-10)
    ratio = x.numpy() / (expected @ loading.numpy())
    assert np.allclose(new, loading.numpy() * (expected.T @ ratio) / expected.sum(0)[:, None], rtol=1e-10)


def random_counts(kind):
    """Twelve features: blocks, random shares, or no structure at all, of more rows than features or fewer."""
    rng = np.random.default_rng(1)
    if kind == "blocks":
        x = rng.poisson(rng.gamma(0.5, 8.0, (60, 3)) @ (np.kron(np.eye(3), np.ones(4)) + 0.05))
    elif kind == "shares":
        x = rng.poisson(rng.gamma(0.5, 8.0, (50, 3)) @ rng.dirichlet(np.full(12, 0.4), 3))
    else:
        x = rng.poisson(2.0, (30 if kind == "noise" else 9, 12))
    return x[x.sum(1) > 0].astype(float)


@pytest.mark.parametrize("kind", ["blocks", "shares", "noise", "few rows"])
def test_nmf_is_no_worse_than_scikit_learns(kind):
    """The best of its ways to start."""
    x, peers = random_counts(kind), []
    for init, seed in [("nndsvd", 0), ("nndsvda", 0), ("nndsvdar", 0), *(("random", seed) for seed in range(3))]:
        with warnings.catch_warnings(action="ignore"):  # NNDSVD keeps its zeros, and no convergence is asked for
            peer = SklearnNMF(3, solver="mu", beta_loss="kullback-leibler", init=init, max_iter=400, random_state=seed)
            activation = peer.fit_transform(x)
        peers.append(nmf.divergence(x, activation, peer.components_))
    fit = ci.fit(NMF(num_components=3, num_features=12), x, tolerance=1e-8, max_iterations=1000, progress=False)
    own = nmf.divergence(x, fit.params["activation"], fit.params["loading"])
    assert own <= min(peers) + 1e-3
    assert np.allclose(fit.params["loading"].sum(1), 1.0)
    assert np.isclose(float(fit.elbo[-1]), gamma_poisson.log_likelihood(
        {"loading": fit.params["loading"].numpy()}, x, fit.params["activation"].numpy()).sum())  # fmt: skip


def test_nmf_keeps_the_scale_that_a_prior_of_the_activations_asks_for():
    """Only flat priors let loadings be scaled to add up to 1."""
    example = NMF.example()
    model = example.model.with_priors(activation=dist.Gamma(4900.0, 7000.0))
    fit = ci.fit(model, example.data, search=None, progress=False)
    assert (fit.params["activation"] - 0.7).abs().max() < 0.05
    assert not np.allclose(fit.params["loading"].sum(1), 1.0)


@pytest.mark.parametrize("guide", ["vb", "gamma", "map"])
def test_sparse_counts_stay_sparse(guide):
    example = GammaPoisson.example()
    method = ci.VariationalEM(guide=guide, search=None, max_iterations=8)
    sparse = method.fit(example.model, scipy.sparse.csr_matrix(example.data.x.numpy()), progress=False)
    dense = method.fit(example.model, example.data, progress=False)
    assert sparse.data.is_sparse and torch.allclose(sparse.elbo, dense.elbo)


def test_single_precision_is_kept():
    example = GammaPoisson.example()
    for guide in ("exact", "vb", "gamma", "map"):
        fit = ci.VariationalEM(guide=guide, search=None, max_iterations=5).fit(
            example.model, example.data, dtype=torch.float32, progress=False
        )
        assert fit.params["loading"].dtype == torch.float32 and torch.isfinite(fit.elbo).all()


def test_bad_input_is_refused():
    model = GammaPoisson(num_components=2, num_features=3)
    with pytest.raises(DataError, match="are no counts"):
        ci.fit(model, [[1, -2, 0], [0, 1, 1]], progress=False)
    with pytest.raises(DataError, match="are no counts"):
        ci.fit(model, [[1, 0.5, 0], [0, 1, 1]], progress=False)
    with pytest.raises(ModelError, match="num_components = 0"):
        GammaPoisson(num_components=0, num_features=3)
    with pytest.raises(ModelError, match="activation"):
        model.with_priors(activation=dist.Normal(0.0, 1.0))
