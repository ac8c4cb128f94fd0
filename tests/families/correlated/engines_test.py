"""Engines of correlated topics: Laplace, diagonal Gaussians, covariates, random effects, extremes, starts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyro.distributions as dist
import pytest
import torch

import custom_inference as ci
from custom_inference.core.local_inference import LocalSolver, solve_local
from custom_inference.em.surrogate_priors import MATCHED
from custom_inference.families.correlated.gaussian import CorrelatedGaussian
from custom_inference.families.correlated.propose import anchor_topics
from custom_inference.families.rows.documents import DocumentRows
from ppl_models import CTM, Data, DataError, DataWarning, MethodError, ModelError, RandomEffectsLDA
from ppl_models.distributions import InverseWishart, ScaledCorrelation
from tests.families.correlated.gaussian_test import problem
from tests.references import ctm as reference


def tensors(params):
    return {site: torch.as_tensor(value) for site, value in params.items()}


def log_posterior(params, x, z):
    off = z - params["mean"]
    inside = np.exp(z) / np.exp(z).sum() @ params["topic"]
    return x @ np.log(inside) - 0.5 * off @ np.linalg.solve(params["covariance"], off)


def test_laplace_is_at_the_mode_with_the_curvature_there():
    """Gradient 0 and minus the inverse Hessian, by differences of the log posterior written from the mathematics."""
    model, params, x = problem(3, 2)
    local = solve_local(model, tensors(params), model.prepare(x, dtype=torch.float64), bound="laplace")
    step, eye = 1e-4, np.eye(3)
    for n in range(1, 6):
        z = local.posterior.mean[n].numpy()

        def height(*moves, z=z, n=n):
            return log_posterior(params, x[n], z + sum(moves, np.zeros(3)))

        slope = [(height(step * e) - height(-step * e)) / 2 / step for e in eye]
        assert np.abs(slope).max() < 1e-4
        bend = np.array([
            [
                (height(step * a, step * b) - height(step * a, -step * b) - height(-step * a, step * b)
                 + height(-step * a, -step * b)) / 4 / step**2
                for b in eye
            ]
            for a in eye
        ])  # fmt: skip
        assert np.allclose(-np.linalg.inv(bend), local.posterior.covariance[n].numpy(), rtol=1e-3, atol=1e-4)
    evidence = reference.log_evidence(params, x)
    assert np.abs(local.bound.numpy() - evidence).max() < 0.5


def test_diagonal_gaussians_have_a_lower_bound_than_full_ones():
    model, params, x = problem(3, 2)
    data = model.prepare(x, dtype=torch.float64)
    full, diagonal = (
        LocalSolver(engine=CorrelatedGaussian(diagonal=choice)).solve(model, tensors(params), data).bound
        for choice in (False, True)
    )
    evidence = reference.log_evidence(params, x)
    assert (diagonal.numpy() <= evidence + 1e-8).all() and (full >= diagonal - 1e-8).all()
    assert float((full - diagonal).sum()) > 0.05


def test_random_effects_with_a_constant_have_the_ctms_engine():
    example = CTM.example()
    other = RandomEffectsLDA(num_topics=3, vocabulary_size=9, num_covariates=1)
    method = ci.VariationalEM(guide="gaussian", search=None, max_iterations=4)
    one = method.fit(example.model, example.data, progress=False)
    two = method.fit(other, example.data.x, progress=False, covariates=np.ones((60, 1)))
    torch.testing.assert_close(one.elbo, two.elbo)
    torch.testing.assert_close(one.params["covariance"], two.params["covariance"])
    truth = {site: value for site, value in example.truth.items() if site != "topic_logit"}
    at = other.prepare(example.data.x, covariates=np.ones((60, 1)))
    pair = {**truth, "mean": truth["mean"][None]}
    bounds = solve_local(example.model, truth, example.data), solve_local(other, pair, at)
    torch.testing.assert_close(bounds[0].bound, bounds[1].bound)


def structural(seed=0, rows=150):
    """Words of two topics whose balance a covariate moves by 2 a unit; another covariate does nothing."""
    rng = np.random.default_rng(seed)
    covariates = rng.normal(size=(rows, 2))
    logit = rng.normal(0, 0.5, (rows, 2)) + covariates[:, :1] * np.array([1.0, -1.0])
    topic = np.array([[0.5, 0.496, 0.002, 0.002], [0.002, 0.002, 0.496, 0.5]])
    share = np.exp(logit) / np.exp(logit).sum(1, keepdims=True)
    x = np.stack([rng.multinomial(40, one) for one in share @ topic])
    return CTM(num_topics=2, vocabulary_size=4, num_covariates=2), x, covariates


@pytest.mark.parametrize("method", ["gibbs", "gaussian", "laplace"])
def test_effects_of_covariates_are_found_with_their_intervals(method):
    model, x, covariates = structural()
    fit = ci.fit(model, x, covariates=covariates, method=method, progress=False)
    effects = ci.prevalence_effects(fit)
    first = 0 if fit.params["topic"][0, :2].sum() > fit.params["topic"][1, :2].sum() else 1
    moved, nothing = effects.loc[(0, first)], effects.loc[(1, first)]
    assert 0.5 < moved["weight"] < 1.4 and moved["low"] > 0.3 and moved["share_low"] > 0
    assert nothing["low"] < 0.15 and nothing["high"] > -0.15 and abs(nothing["weight"]) < 0.25
    ahead = fit.transform(x[:2], covariates=np.array([[2.0, 0.0], [-2.0, 0.0]]))
    behind = fit.transform(x[:2], covariates=-np.array([[2.0, 0.0], [-2.0, 0.0]]))
    assert float(ahead[0, first] - behind[0, first]) > 0 > float(ahead[1, first] - behind[1, first])


def test_the_program_with_covariates_is_the_mathematics():
    model, x, covariates = structural(rows=5)
    data = model.prepare(x, covariates=covariates, dtype=torch.float64)
    rng = np.random.default_rng(1)
    params = {"topic": rng.dirichlet(np.ones(4), 2), "mean": rng.normal(size=2), "covariance": np.eye(2) + 0.3}
    weight, z = rng.normal(size=(2, 2)), rng.normal(size=(5, 2))
    import pyro
    from pyro import poutine

    values = tensors({**params, "prevalence_weight": weight, "topic_logit": z})
    trace = poutine.trace(pyro.condition(model, data=values)).get_trace(data.x, **data.others)
    trace.compute_log_prob()
    found = sum(float(trace.nodes[site]["log_prob_sum"]) for site in ("topic_logit", "x"))
    expected = sum(
        reference.log_joint({**params, "mean": params["mean"] + u @ weight}, row[None], one[None])
        for u, row, one in zip(covariates, x, z, strict=True)
    )
    assert found == pytest.approx(expected, rel=1e-12)


def test_priors_of_whole_matrices_are_matched_where_the_iterations_are():
    """The inverse Wishart that stands in for another prior has its gradient there, so that fixed points are
    stationary; EM climbs under it."""
    prior = ScaledCorrelation(3, 2.0)
    root = np.random.default_rng(0).normal(size=(3, 3))
    value = torch.as_tensor(root @ root.T + 0.5 * np.eye(3)).requires_grad_()
    (slope,) = torch.autograd.grad(prior.log_prob(value), value)
    slope = (slope + slope.T) / 2
    stand_in = MATCHED[InverseWishart](value.detach(), slope, 0 * slope, 0.3, 0 * slope)
    (found,) = torch.autograd.grad(stand_in.log_prob(value), value)
    torch.testing.assert_close((found + found.T) / 2, slope)
    example = CTM.example()
    model, method = example.model.with_priors(covariance=prior), ci.VariationalEM(search=None, max_iterations=10)
    start = {site: example.truth[site] for site in model.global_sites}
    fit = replace(method, guide="gaussian").fit(model, example.data, progress=False, init=start)
    assert "numerical M steps of covariance" in fit.status and float(fit.elbo.diff().min()) > -1e-6


def test_scaled_correlations_have_the_density_of_their_parts():
    """In two dimensions: p(s1) p(s2) p(r) over the Jacobian 4 s1^2 s2^2, r uniform; and their own draws."""
    prior = ScaledCorrelation(2, 1.0, dist.HalfCauchy(1.0))
    s, r = torch.tensor([0.7, 1.8], dtype=torch.float64), 0.4
    value = torch.tensor([[1.0, r], [r, 1.0]], dtype=torch.float64) * s * s[:, None]
    parts = dist.HalfCauchy(torch.tensor(1.0, dtype=torch.float64)).log_prob(s).sum()
    assert float(prior.log_prob(value)) == pytest.approx(
        float(parts) + np.log(0.5) - np.log(4 * float(s.prod()) ** 2), rel=1e-9
    )
    three = ScaledCorrelation(3, 2.0)
    drawn = three.sample((50,))
    assert torch.linalg.eigvalsh(drawn).min() > -1e-4 and torch.isfinite(three.log_prob(drawn.double())).all()


@pytest.mark.parametrize("method", ["gibbs", "gaussian", "laplace"])
def test_extremes_stay_finite(method):
    """One token, a hundred thousand, one word alone, a topic too many; both precisions."""
    x = np.zeros((7, 5))
    x[0, 0], x[1, 1], x[2] = 1, 100_000, [1, 2, 3, 4, 0]
    x[3:, 2:4] = 3
    model = CTM(num_topics=3, vocabulary_size=5)
    settings = {"num_samples": 5, "warmup": 5} if method == "gibbs" else {"max_iterations": 2, "search": None}
    for dtype in (torch.float32, torch.float64):
        with pytest.warns(DataWarning):
            fit = ci.fit(model, x, method=method, dtype=dtype, progress=False, **settings)
        assert all(bool(torch.isfinite(value).all()) for value in fit.params.values())
        assert bool(torch.isfinite(fit.transform()).all()) and fit.params["topic"].dtype == dtype
        assert float(torch.linalg.eigvalsh(fit.params["covariance"].double()).min()) > 0


def test_one_topic_is_a_unigram():
    x = np.array([[3.0, 1, 0], [1, 1, 1]])
    fit = ci.fit(CTM(num_topics=1, vocabulary_size=3), x, progress=False, num_samples=5, warmup=5)
    weight = torch.tensor([4.05, 2.05, 1.05])
    torch.testing.assert_close(fit.params["topic"][0].to(weight), weight / weight.sum(), rtol=1e-4, atol=1e-4)


def test_anchor_words_find_separable_topics():
    rng = np.random.default_rng(0)
    topic = rng.dirichlet(np.full(60, 0.3), 4)
    for k in range(4):
        topic[:, k] = 0.0
        topic[k, k] = 0.1
    topic /= topic.sum(1, keepdims=True)
    x = np.stack([rng.multinomial(200, one) for one in rng.dirichlet(np.full(4, 0.2), 3000) @ topic])
    rows = DocumentRows.of(Data(x=torch.as_tensor(x, dtype=torch.float64)))
    found = anchor_topics(rows, 4, torch.Generator().manual_seed(0))
    distance = 0.5 * (torch.as_tensor(topic)[:, None] - found).abs().sum(-1)
    assert float(distance.min(1).values.max()) < 0.1 and len(set(distance.argmin(1).tolist())) == 4


def test_graphs_of_topics_have_the_links_of_the_covariance():
    """Topics 0 and 1 go together, 2 and 3 too: links there, and none between the pairs."""
    pair = np.array([[1.0, 0.8], [0.8, 1.0]])
    covariance = np.kron(np.eye(2), pair)
    x = np.ones((6, 5))
    model = CTM(num_topics=4, vocabulary_size=5).with_priors(covariance=torch.as_tensor(covariance))
    fit = ci.fit(model, x, progress=False, num_samples=1, warmup=1)
    partial = ci.topic_precision(fit, 0.05)
    assert partial.loc[0, 1] > 0.3 and partial.loc[2, 3] > 0.3 and partial.loc[0, 2] <= 0  # shares add up to 1
    assert ci.topic_correlations(fit).loc[0, 1] == pytest.approx(0.35 / 0.55, rel=1e-4)
    assert (ci.topic_precision(fit, 0.95).to_numpy()[~np.eye(4, dtype=bool)] == 0).all()
    assert fit.plot("topic_graph", top=2) is not None
    with pytest.raises(MethodError, match="penalty"):
        ci.topic_precision(fit, 0.0)


def test_bad_covariates_are_refused():
    model, x, covariates = structural(rows=4)
    for wrong in (covariates[:3], covariates[:, :1], np.where(covariates > 0, np.nan, covariates)):
        with pytest.raises(DataError, match="covariates"):
            model.prepare(x, covariates=wrong)
    with pytest.raises(DataError, match="model without any"):
        CTM(num_topics=2, vocabulary_size=4).prepare(x, covariates=covariates)
    with pytest.raises(DataError, match="all covariates of 1 documents are 0"):
        other = RandomEffectsLDA(num_topics=2, vocabulary_size=4, num_covariates=2)
        other.prepare(x, covariates=np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [1.0, 1.0]]))
    with pytest.raises(ModelError, match="num_covariates = -1"):
        CTM(num_topics=2, vocabulary_size=4, num_covariates=-1)
    assert not model.prepare(x).others["covariates"].any()
