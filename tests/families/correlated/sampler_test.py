"""Gibbs sampling of correlated topics: its conditionals, its stationary law, and what a default fit promises."""

from __future__ import annotations

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy.stats import chisquare

import custom_inference as ci
from custom_inference.core.diagnostics import effective_size
from custom_inference.families.conjugate.dirichlet import Dirichlet
from custom_inference.families.correlated.chain import CorrelatedChain
from custom_inference.families.correlated.common import CorrelatedRows
from custom_inference.families.correlated.seen import SeenGaussian, helmert_basis
from ppl_models import CTM, PriorError, RandomEffectsLDA
from ppl_models.distributions import InverseWishart
from tests.references import ctm as reference

X = np.array([[2.0, 1, 0, 1], [0, 1, 3, 0], [0, 0, 0, 0], [1, 0, 1, 2]])


def chain_of(model, x=X, seed=0, start=None, **others) -> CorrelatedChain:
    data = model.prepare(x, dtype=torch.float64, **others)
    gamma = torch.as_tensor(model.priors["topic"].concentration, dtype=torch.float64)
    return CorrelatedChain(model, CorrelatedRows.read(model, data), gamma, seed, start, None)


def small(num_topics=3, **settings) -> CTM:
    prior = InverseWishart(num_topics + 5.0, 4 * torch.eye(num_topics))
    model = CTM(num_topics=num_topics, vocabulary_size=4, **settings)
    return model.with_priors(covariance=prior, mean=dist.Normal(0.0, 0.5)).with_concentration(gamma=0.7)


@pytest.mark.parametrize("num_topics", [2, 3, 20])
def test_topics_of_tokens_are_drawn_from_their_conditional(num_topics):
    """p(q_1 | rest) by brute force: proportional to p(y, q) p(q | z) at every value of q_1."""
    chain = chain_of(small(num_topics))
    chain.sweep()
    q, found = np.arange(len(chain.tokens)).astype(np.int32) % num_topics, np.zeros(num_topics)
    logs = np.empty(num_topics)
    for k in range(num_topics):
        chain.assign(np.r_[np.int32(k), q[1:]].astype(np.int32))
        logs[k] = chain.log_joint()
    expected = np.exp(logs - logs.max())
    expected /= expected.sum()
    draws = 4000
    for _ in range(draws):
        chain.assign(q.copy())
        chain._sweep_integrated()
        found[chain.topic[0]] += 1
    usual = expected * draws > 5
    observed, wanted = np.r_[found[usual], found[~usual].sum()], np.r_[expected[usual], expected[~usual].sum()] * draws
    keep = wanted > 0
    assert chisquare(observed[keep], wanted[keep] * observed[keep].sum() / wanted[keep].sum()).pvalue > 1e-4


def test_logits_are_drawn_from_their_posterior():
    """Many documents with the same tokens' topics, at given mean and covariance: moments by quadrature of xi."""
    from custom_inference.families.correlated import kernels

    size, rng = 20000, np.random.default_rng(0)
    basis, count, mean, variance = helmert_basis(2)[:, :1], np.array([5.0, 1.0]), np.array([0.4, -0.4]), 1.7
    logit = np.tile(mean, (size, 1)) + rng.standard_normal((size, 1)) * np.sqrt(variance) @ basis.T
    precision, scale = 2.5 / variance * basis @ basis.T, np.full(size, 2.5)
    state, given = np.array([7], np.uint64), (np.tile(count, (size, 1)), np.full(size, 6.0))
    for _ in range(12):
        kernels.move_logits(logit, np.tile(mean, (size, 1)), precision, scale, *given, state)
    assert np.abs(logit.sum(1)).max() < 1e-10
    xi = np.linspace(-12, 12, 20001)
    z = xi[:, None] * basis.T
    logs = z @ count - 6 * np.logaddexp(z[:, 0], z[:, 1]) - (xi - mean @ basis[:, 0]) ** 2 / 2 / variance
    weight = np.exp(logs - logs.max())
    weight /= weight.sum()
    found, exact = (logit @ basis)[:, 0], weight @ xi
    spread = weight @ (xi - exact) ** 2
    assert abs(found.mean() - exact) < 5 * np.sqrt(spread / size)
    assert abs(found.var() / spread - 1) < 5 * np.sqrt(2 / size) * 1.5


def test_what_is_not_seen_completes_an_inverse_wishart():
    """Sigma_11 from its marginal and the rest by ``draw``: E[Sigma^-1] = df Psi^-1, and that of log |Sigma|."""
    size, df, draws = 3, 9.0, 1000
    root = np.random.default_rng(1).normal(size=(size, size))
    psi = root @ root.T + np.eye(size)
    model = CTM(num_topics=size, vocabulary_size=4).with_priors(covariance=InverseWishart(df, torch.as_tensor(psi)))
    gaussian, rng = SeenGaussian(model), np.random.default_rng(2)
    inverse, log_det = np.zeros((draws, size, size)), np.zeros(draws)
    for i in range(draws):
        gaussian.covariance = gaussian.seen_prior.draw(rng)
        whole = gaussian.draw(rng)[1]
        inverse[i], log_det[i] = np.linalg.inv(whole), np.linalg.slogdet(whole)[1]
    error = inverse.std(0) / np.sqrt(draws)
    assert (np.abs(inverse.mean(0) - df * np.linalg.inv(psi)) < 5 * error).all()
    direct = InverseWishart(df, torch.as_tensor(psi)).rsample((draws,)).logdet().numpy()
    assert abs(log_det.mean() - direct.mean()) < 5 * np.hypot(log_det.std(), direct.std()) / np.sqrt(draws)


@pytest.mark.parametrize("kind", ["ctm", "covariates", "random effects"])
def test_the_chain_leaves_the_joint_law_as_it_is(kind):
    """Geweke's test: sweeps and new words by turns have the marginals of the prior."""
    covariates = None if kind == "ctm" else np.array([[1.0, 0.5], [1.0, -1.0], [0.3, 1.0], [1.0, 2.0]])
    model = small(num_covariates=2) if kind == "covariates" else small()
    if kind == "random effects":
        model = RandomEffectsLDA(num_topics=3, vocabulary_size=4, num_covariates=2, priors=model.priors)
    chain = chain_of(model, **({} if covariates is None else {"covariates": covariates}))
    rng, found = np.random.default_rng(3), []
    for _ in range(700):
        chain.sweep()
        topic = Dirichlet(torch.as_tensor(chain.word_topic.T + chain.gamma)).draw(rng).numpy()
        levels = topic.cumsum(1)[chain.topic]
        word = (levels < rng.random(len(levels))[:, None]).sum(1).clip(0, 3)
        chain.tokens.word[:] = word
        chain.assign(chain.topic)
        gaussian = chain.gaussian
        inverse = np.linalg.inv(gaussian.covariance)
        found.append([gaussian.location[0, 0], gaussian.location[0, 0] ** 2, np.log(inverse[0, 0]), inverse[0, 1]])
    found = np.array(found)
    prior = SeenGaussian(model)
    direct = [np.linalg.inv(prior.seen_prior.draw(rng)) for _ in range(2000)]
    expected = [0.0, 0.25, np.mean([np.log(one[0, 0]) for one in direct]), 0.0]
    for column, wanted in zip(found.T, expected, strict=True):
        error = column.std() / np.sqrt(effective_size(column[None]))
        assert abs(column.mean() - wanted) < 4.5 * error + 0.01


def test_the_chain_finds_the_exact_posterior_of_the_logits():
    """At known globals: means of a document's logits against quadrature."""
    rng = np.random.default_rng(4)
    params = {
        "topic": rng.dirichlet(np.full(4, 0.6), 3), "mean": np.array([0.5, 0.0, -0.5]),
        "covariance": np.array([[1.5, 0.6, 0.0], [0.6, 1.0, -0.3], [0.0, -0.3, 0.8]]),
    }  # fmt: skip
    model = CTM(num_topics=3, vocabulary_size=4).with_priors(**{s: torch.as_tensor(v) for s, v in params.items()})
    x, method = X[[0, 1, 3]], ci.CollapsedGibbs(chains=1, warmup=50, num_samples=2000, thin=1)
    fit = method.fit(model, x, progress=False, dtype=torch.float64)
    assert all(np.allclose(fit.params[site], value) for site, value in params.items())
    means, spread = reference.posterior_logit(params, x)
    mean, covariance = fit.local.posterior.mean.numpy(), fit.local.posterior.covariance.numpy()
    assert np.abs(mean - means).max() < 0.12 and np.abs(covariance - spread).max() < 0.2


def test_random_effects_with_a_constant_are_the_ctm():
    example = CTM.example()
    one = example.model
    other = RandomEffectsLDA(num_topics=3, vocabulary_size=9, num_covariates=1)
    method = ci.CollapsedGibbs(chains=1, warmup=5, num_samples=5)
    found = method.fit(one, example.data, seed=3, progress=False)
    same = method.fit(other, example.data.x, seed=3, progress=False, covariates=np.ones((60, 1)))
    torch.testing.assert_close(found.params["covariance"], same.params["covariance"])
    torch.testing.assert_close(found.params["mean"], same.params["mean"][0])
    torch.testing.assert_close(found.elbo, same.elbo)


def test_the_default_keeps_the_promises_of_a_fit(tmp_path):
    example = CTM.example()
    fit = ci.fit(example.model, example.data, progress=False)
    assert "topic_logit by slice moves" in fit.status
    again = type(fit).load(fit.save(tmp_path / "fit"))
    new = example.data.x[:4]
    torch.testing.assert_close(again.transform(new), fit.transform(new))
    bound = fit.log_likelihood(new, bound="gaussian")
    exact = reference.log_evidence({site: value.double().numpy() for site, value in fit.params.items()}, new)
    assert (bound.numpy() <= exact + 1e-5).all() and (exact - bound.numpy()).max() < 2
    posterior = fit.to_arviz().posterior
    assert posterior["covariance"].dims == ("chain", "draw", "component", "to_component")
    assert "topic_logit" in posterior


def test_priors_without_steps_are_refused():
    model = small().with_priors(mean=dist.Laplace(0.0, 1.0))
    with pytest.raises(PriorError, match="Normal prior for 'mean'"):
        ci.CollapsedGibbs().fit(model, X[:2], progress=False)
    with pytest.raises(PriorError, match="prior of 'mean' that is a function"):
        deep = model.with_priors(width=dist.Gamma(2.0, 2.0), mean=lambda width: dist.Normal(0.0, width))
        ci.CollapsedGibbs().fit(deep, X[:2], progress=False)
