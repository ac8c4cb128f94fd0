"""The user rating profile model by LDA's engines: against sums over all profiles of the responses, bounds, recovery."""

import itertools

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy.special import gammaln, logsumexp

import custom_inference as ci
from custom_inference.core.local_inference import solve_local
from custom_inference.core.registry import engine_for
from custom_inference.em.guides import VariationalBayes
from ppl_models import LDA, CapacityError, MethodError, UserRatingProfile
from tests.references import user_rating_profile as reference

ALPHA, GAMMA = 0.4, 0.6


def problem(seed=0, num_rows=7, share=0.0, num_components=3, num_features=4, num_categories=3):
    rng = np.random.default_rng(seed)
    response = rng.dirichlet(np.ones(num_categories), (num_components, num_features))
    x = rng.integers(0, num_categories, (num_rows, num_features)).astype(float)
    mask = rng.random(x.shape) > share if share else None
    model = UserRatingProfile(
        num_components=num_components, num_features=num_features, num_categories=num_categories
    ).with_priors(
        membership=dist.Dirichlet(torch.full((num_components,), ALPHA)),
        response=dist.Dirichlet(torch.full((num_categories,), GAMMA)),
    )
    return model, response, x, mask, model.prepare(x, mask=mask, dtype=torch.float64)


@pytest.mark.parametrize("share", [0.0, 0.4])
def test_evidence_and_posterior_means_are_sums_over_all_profiles(share):
    model, response, x, mask, data = problem(share=share)
    params = {"response": torch.tensor(response)}
    local = solve_local(model, params, data, bound="exact")
    expected = reference.log_evidence({"response": response}, x, mask, ALPHA)
    assert np.allclose(local.bound, expected, rtol=0, atol=1e-12)
    means = reference.posterior_mean({"response": response}, x, mask, ALPHA)
    assert np.allclose(local.posterior.mean, means, rtol=0, atol=1e-12)
    steps = engine_for(model, "exact")
    assert np.allclose(steps.log_evidence(model, params, steps.rows(model, data)), expected, rtol=0, atol=1e-12)
    bound = solve_local(model, params, data, bound="dirichlet").bound
    assert bool((bound <= torch.tensor(expected) + 1e-10).all())


def test_exact_em_ends_at_a_stationary_point():
    """Finite differences of the reference's evidence plus the prior's density in the softmax basis."""
    model, _, x, _, data = problem(2, num_rows=12, num_components=2, num_features=3)
    fit = ci.EM(search=None, tolerance=1e-13, max_iterations=2000).fit(model, data, progress=False)
    logit = np.log(fit.params["response"].numpy())

    def objective(a):
        response = np.exp(a - logsumexp(a, axis=-1, keepdims=True))
        return reference.log_evidence({"response": response}, x, None, ALPHA).sum() + GAMMA * np.log(response).sum()

    for index in np.ndindex(logit.shape):
        high, low = logit.copy(), logit.copy()
        high[index] += 1e-5
        low[index] -= 1e-5
        assert abs(objective(high) - objective(low)) / 2e-5 < 1e-4, index


def _collapsed_evidence(x, size, num_categories):
    """log p(x) with memberships and responses integrated out: the sum over all K^(N R) profiles of the responses."""
    logs = []
    for flat in itertools.product(range(size), repeat=x.size):
        z, total = np.array(flat).reshape(x.shape), 0.0
        for row in z:
            count = np.bincount(row, minlength=size)
            total += (gammaln(ALPHA + count) - gammaln(ALPHA)).sum()
            total += gammaln(size * ALPHA) - gammaln(size * ALPHA + len(row))
        for k, r in itertools.product(range(size), range(x.shape[1])):
            count = np.bincount(x[z[:, r] == k, r].astype(int), minlength=num_categories)
            total += (gammaln(GAMMA + count) - gammaln(GAMMA)).sum()
            total += gammaln(num_categories * GAMMA) - gammaln(num_categories * GAMMA + count.sum())
        logs.append(total)
    return logsumexp(logs)


def test_variational_bayes_stays_below_the_evidence():
    model, _, x, _, _ = problem(5, num_rows=3, num_components=2, num_features=3)
    expected = _collapsed_evidence(x, 2, 3)
    fits = [ci.VariationalEM(guide="vb", search=None).fit(model, x, seed=seed, progress=False) for seed in range(4)]
    best = max(float(fit.elbo[-1]) for fit in fits)
    assert expected - 3 < best < expected


def test_one_question_with_free_columns_is_lda():
    """R = 1: one group, so that the model is LDA of documents of one word, and the engines are LDA's own."""
    model, response, x, _, data = problem(4, num_features=1, num_categories=5, num_rows=30)
    lda = LDA(num_topics=3, vocabulary_size=5).with_concentration(alpha=ALPHA, gamma=GAMMA)
    counts = lda.prepare(np.eye(5)[x[:, 0].astype(int)], dtype=torch.float64)
    for engine in ("exact", "dirichlet"):
        first = solve_local(model, {"response": torch.tensor(response)}, data, bound=engine)
        second = solve_local(lda, {"topic": torch.tensor(response[:, 0])}, counts, bound=engine)
        assert torch.allclose(first.bound, second.bound, atol=1e-10)
        assert torch.allclose(first.posterior.mean, second.posterior.mean, atol=1e-7)
    start = {"response": torch.tensor(response)}, {"topic": torch.tensor(response[:, 0])}
    settings = {"max_iterations": 6, "accelerate": None}
    fits = [
        ci.VariationalEM(guide="vb", **settings).fit(m, d, init=i, progress=False)
        for m, d, i in zip((model, lda), (data, counts), start, strict=True)
    ]
    assert torch.allclose(fits[0].elbo, fits[1].elbo, atol=1e-9)


def planted(seed=0, num_rows=600, size=4):
    rng = np.random.default_rng(seed)
    response = rng.dirichlet(np.full(5, 0.3), (size, 20))
    membership = rng.dirichlet(np.full(size, 0.3), num_rows)
    table = np.tensordot(membership, response, 1).cumsum(-1)
    x = (rng.random((num_rows, 20, 1)) > table).sum(-1).clip(0, 4).astype(float)
    x[rng.random(x.shape) < 0.2] = np.nan
    return response, membership, x


@pytest.mark.parametrize("method", ["vb", "dirichlet", None])
def test_planted_profiles_are_found_from_every_seed(method):
    response, membership, x = planted()
    model = UserRatingProfile(num_components=4, num_features=20, num_categories=5)
    for seed in range(3):
        fit = ci.fit(model, x, method=method, seed=seed, progress=False)
        matched = ci.align({"response": torch.tensor(response)}, fit)
        assert float(matched.similarity.min()) > 0.93, (seed, matched)
        found = fit.posterior.mean.numpy()[:, np.argsort(matched.order)]
        assert np.corrcoef(found.ravel(), membership.ravel())[0, 1] > 0.85


def test_what_cannot_be_is_said():
    model, _, x, _, _ = problem(5)
    with pytest.raises(MethodError, match="are not learned"):
        ci.fit(model, x, method=ci.VariationalEM(guide=VariationalBayes(learn="alpha")), progress=False)
    large = UserRatingProfile(num_components=12, num_features=60, num_categories=2)
    answers = np.random.default_rng(0).integers(0, 2, (40, 60)).astype(float)
    with pytest.raises(CapacityError):
        ci.EM().fit(large, answers, progress=False)


def test_short_rows_are_fitted_by_exact_sums_and_long_ones_by_points():
    sizes = {(2, 6): "exact", (3, 20): "exact", (4, 20): "map", (2, 21): "map"}
    for (components, features), name in sizes.items():
        model = UserRatingProfile(num_components=components, num_features=features, num_categories=2)
        x = np.random.default_rng(0).integers(0, 2, (20, features)).astype(float)
        fit = ci.fit(model, x, max_iterations=2, search=None, progress=False)
        assert fit.bound_name == name, (components, features)
        assert ci.fit(model, x, weights=np.arange(20), max_iterations=2, progress=False).bound_name == name


def test_many_short_rows_are_fitted_by_points():
    model = UserRatingProfile(num_components=3, num_features=20, num_categories=2)
    x = np.random.default_rng(0).integers(0, 2, (5000, 20)).astype(float)
    fit = ci.fit(model, x, max_iterations=2, search=None, progress=False)
    assert fit.bound_name == "map"
