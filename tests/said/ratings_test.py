"""What fits of ratings, clicks and choices predict is what their posterior says: of draws by draws, of new users by the
prior's closed form, whatever the seed; beside the posterior predictive of tiny models by brute force."""

from __future__ import annotations

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy import stats

import custom_inference as ci
from custom_inference.families.ratings.clicks import mean_sigmoid
from ppl_models import PMF, BilinearPMF, ChoicePMF, MethodError, impressions, ratings

QUIET = {"progress": False}
USER, ITEM = np.array([0, 0, 0, 1, 1, 2]), np.array([0, 1, 2, 0, 1, 1])
PAIRS = ([0, 1, 2, 2], [0, 2, 0, 2])


def liked(seed=3, users=60, items=30, share=0.5):
    rng = np.random.default_rng(seed)
    u, v, c = rng.standard_normal((users, 2)), rng.standard_normal((items, 2)), 0.8 * rng.standard_normal(items)
    user, item = np.nonzero(rng.random((users, items)) < share)
    value = 3 + c[item] + 0.5 * (u[user] * v[item]).sum(1) + 0.3 * rng.standard_normal(len(user))
    return user, item, value


@pytest.fixture(scope="module")
def data():
    return ratings(*liked(), num_users=60, num_items=30)


def at_draws(fit):
    return {site: value.flatten(0, 1) for site, value in fit.draws.items()}


@pytest.mark.parametrize("covariates", [False, True])
def test_means_of_new_users_and_items_are_those_of_the_variational_posterior(data, covariates):
    """E[mu + m_f + g + m_u'v] with independent factors: by the posterior means of the globals alone."""
    given = {"user_covariates": np.random.default_rng(0).normal(size=(60, 2))} if covariates else {}
    model = PMF(num_components=2, num_users=60, num_items=30, num_user_covariates=2 * covariates)
    fit = ci.fit(model, data, sweeps=5, **given, **QUIET)
    at = fit.globals
    row = torch.cat([at["item_mean"][None], torch.cat([at["item_bias"][:, None], at["item"]], 1)])
    said = fit.predict(([900] * 31, [*range(30), 77]), new="prior")
    expected = at["mean"] + at["user_mean"][0] + row[:, 0] + row[:, 1:] @ at["user_mean"][1:]
    assert torch.allclose(said, expected.roll(-1))
    profile = fit.posterior.mean[:4]
    of_new_item = fit.predict((range(4), [77] * 4), new="prior")
    if not covariates:
        expected = at["mean"] + profile[:, 0] + at["item_mean"][0] + profile[:, 1:] @ at["item_mean"][1:]
        assert torch.allclose(of_new_item, expected)


@pytest.mark.parametrize(("likelihood", "levels"), [("logistic", None), ("ordinal", (1, 5))])
@pytest.mark.parametrize("method", ["vb", "gibbs"])
def test_new_and_known_users_of_other_likelihoods(likelihood, levels, method):
    """Known pairs: the average over draws; a new user: the integral over its prior, a Normal, at each draw."""
    user, item, value = liked(users=20, items=6, share=0.9)
    value = (value > 3) * 1.0 if levels is None else np.clip(np.round(value), 1, 5)
    settings = {} if method == "vb" else {"num_samples": 20, "warmup": 20, "chains": 1}
    model = PMF(num_components=1, num_users=20, num_items=6, likelihood=likelihood, levels=levels)
    fit = ci.fit(model, ratings(user, item, value, num_users=20, num_items=6), method=method, **settings, **QUIET)
    at = at_draws(fit)

    def mean_at(eta):  # (S, ...)
        if levels is None:
            return 1 / (1 + np.exp(-eta))
        scale = at["scale"].numpy().reshape(-1, *[1] * (eta.ndim - 1))
        return 1 + np.sum([1 / (1 + np.exp((level - 0.5 - eta) / scale)) for level in range(2, 6)], 0)

    row = torch.stack([at["item_bias"][:, 2], at["item"][:, 2, 0]], 1).numpy()
    a = np.stack([np.ones(len(row)), row[:, 1]], 1)
    known = at["mean"].numpy() + row[:, 0] + (a * at["user_profile"][:, 4].numpy()).sum(1)
    said = fit.predict(([4], [2]), uncertainty=True)
    assert float(said.mean) == pytest.approx(mean_at(known).mean(), rel=1e-9)
    mean = at["mean"].numpy() + row[:, 0] + (a * at["user_mean"].numpy()).sum(1)
    sd = np.sqrt(np.einsum("si,sij,sj->s", a, at["user_covariance"].numpy(), a))
    z = np.linspace(-9, 9, 2001)
    weight = stats.norm.pdf(z) / stats.norm.pdf(z).sum()
    expected = (mean_at(mean[:, None] + sd[:, None] * z) @ weight).mean()
    assert float(fit.predict(([99], [2]), new="prior")) == pytest.approx(expected, abs=1e-4)
    low, high = said.interval()
    assert low >= (0 if levels is None else 1)
    assert high <= (1 if levels is None else 5)


def brute_force(log_likelihood, predicted, draws=400_000):
    """Posterior means of predictions by draws of factors (S, U, 1), (S, I, 1) from standard Normals, weighed."""
    rng = np.random.default_rng(0)
    total, weight = 0.0, 0.0
    for _ in range(4):
        u, v = rng.standard_normal((draws // 4, 3, 1)), rng.standard_normal((draws // 4, 3, 1))
        eta = u @ v.transpose(0, 2, 1)
        each = np.exp(log_likelihood(eta))
        total, weight = total + each @ predicted(eta), weight + each.sum()
    return total / weight


METHODS = [
    ci.NUTS(num_samples=100, warmup=60, chains=1, max_tree_depth=4),
    ci.SVI(guide="normal", steps=100, restarts=1),
]


@pytest.mark.slow
def test_ratings_by_draws():
    value = np.array([4.0, 2.0, 3.5, 1.5, 4.5, 1.0]) - 3
    model = PMF(num_components=1, num_users=3, num_items=3, adaptive=False, biases=False, centre=0.0, unit=1.0)
    model = model.with_priors(item=dist.Normal(0.0, 1.0), mean=0.0, scale=0.7)
    fit = METHODS[0].fit(model, ratings(USER, ITEM, value, num_users=3, num_items=3), **QUIET)
    likelihood = lambda eta: -0.5 * (((value - eta[:, USER, ITEM]) / 0.7) ** 2).sum(1)  # noqa: E731
    expected = brute_force(likelihood, lambda eta: eta[:, PAIRS[0], PAIRS[1]])
    assert np.abs(fit.predict(PAIRS).numpy() - expected).max() < 0.2
    user, item = (fit.draws[site].flatten(0, 1)[..., 0] for site in ("user_profile", "item"))
    assert torch.allclose(fit.predict(PAIRS), (user[:, PAIRS[0]] * item[:, PAIRS[1]]).mean(0))
    said = fit.predict(([7, 7], [0, 1]), new="prior", uncertainty=True)  # by the prior, of mean 0
    assert said.mean.abs().max() < 1e-12
    assert torch.allclose(said.sd, item[:, :2].square().mean(0).sqrt())


@pytest.mark.parametrize("method", METHODS, ids=["nuts", "svi"])
def test_clicks_by_draws(method):
    value = np.array([1.0, 1.0, 0.0, 1.0, 1.0, 0.0])
    fit = method.fit(BilinearPMF(num_components=1, num_users=3, num_items=3),
                     ratings(USER, ITEM, value, num_users=3, num_items=3), **QUIET)  # fmt: skip
    chance = lambda eta: 1 / (1 + np.exp(-eta))  # noqa: E731
    expected = brute_force(
        lambda eta: np.log(chance((2 * value - 1) * eta[:, USER, ITEM])).sum(1),
        lambda eta: chance(eta)[:, PAIRS[0], PAIRS[1]],
    )
    said = fit.predict(PAIRS, uncertainty=True)
    if fit.method_name == "NUTS":
        assert np.abs(said.mean.numpy() - expected).max() < 0.05
        assert bool((said.sd > 0.05).all())
    eta = at_draws(fit)["user"] @ at_draws(fit)["item"].mT
    each = torch.sigmoid(eta[:, PAIRS[0], PAIRS[1]])
    assert torch.allclose(said.mean, each.mean(0))
    assert torch.allclose(said.sd, each.std(0, correction=0))
    unknown = fit.predict(([9], [1]), new="prior")  # a'b with a ~ Normal(0, 1) is even
    assert float(unknown) == pytest.approx(0.5, abs=1e-9)


def test_choices_by_draws():
    log = impressions([0] * 6, [[0, 1], [0, 1], [1, 2], [0, 2], [2, 1], [0, 1]], [0, 0, 1, 0, 1, 1], num_users=1)
    fit = ci.fit(ChoicePMF.for_data(log, 1), log, method=METHODS[0], **QUIET)
    said = fit.predict(([0, 0, 0], [[0, 1], [0, 2], [1, 2]]), uncertainty=True)
    assert np.abs(said.mean[:, 0].numpy() - [0.545, 0.679, 0.650]).max() < 0.06
    eta = at_draws(fit)["user"] @ at_draws(fit)["item"].mT
    every = fit.predict(([0], [[2, 0, 1]]))
    assert torch.allclose(every[0], eta[:, 0, [2, 0, 1]].softmax(-1).mean(0))
    new = fit.predict(([5], [[0, 1]]), new="prior")
    assert float(new[0, 0]) == pytest.approx(0.5, abs=1e-9)


def test_expectations_of_sigmoids_are_those_of_draws():
    rng = np.random.default_rng(1)
    root = rng.normal(size=(2, 3, 2, 2))
    v, s = root @ root.transpose(0, 1, 3, 2)
    m, n = rng.normal(size=(2, 3, 2))
    first, second = mean_sigmoid(*(torch.as_tensor(one) for one in (m, v, n, s)))
    a, b = (
        at + np.einsum("mij,smj->smi", np.linalg.cholesky(spread), rng.normal(size=(400_000, 3, 2)))
        for at, spread in ((m, v), (n, s))
    )
    drawn = 1 / (1 + np.exp(-(a * b).sum(-1)))
    assert np.allclose(first.numpy(), drawn.mean(0), atol=2e-3)
    assert np.allclose(second.numpy(), (drawn**2).mean(0), atol=2e-3)
    # One side a point: a Normal, by the trapezoidal rule.
    z = np.linspace(-9, 9, 2001)
    deviation = np.sqrt(np.einsum("mi,mij,mj->m", n, v, n))
    chance = 1 / (1 + np.exp(-((m * n).sum(1)[:, None] + deviation[:, None] * z)))
    first, _ = mean_sigmoid(*(torch.as_tensor(one) for one in (m, v, n, 0 * s)))
    assert np.allclose(first.numpy(), chance @ stats.norm.pdf(z) * (z[1] - z[0]), atol=1e-10)


def test_intervals_of_chances_cover_them():
    """Users drawn from their prior, items known: 90 % intervals of clicks and of choices."""
    rng = np.random.default_rng(0)
    item, user = 1.5 * rng.normal(size=(8, 2)), rng.normal(size=(300, 2))
    eta = user @ item.T
    clicks = (rng.random(eta.shape) < 1 / (1 + np.exp(-eta))) * 1.0
    model = BilinearPMF(num_components=2, num_users=300, num_items=8).with_priors(item=torch.as_tensor(item))
    seen = np.where(rng.random(eta.shape) < 0.5, clicks, np.nan)
    fit = ci.fit(model, seen, method="gaussian", **QUIET)
    everybody = np.indices(eta.shape).reshape(2, -1)
    low, high = fit.predict(positions=tuple(everybody), uncertainty=True).interval(0.9)
    chance = 1 / (1 + np.exp(-eta[tuple(everybody)]))
    assert 0.85 < np.mean((low.numpy() <= chance) & (chance <= high.numpy())) < 0.95
    p = np.exp(eta) / np.exp(eta).sum(1, keepdims=True)
    x = np.array([[rng.choice(8, p=row) for _ in range(4)] for row in p])
    model = ChoicePMF(num_components=2, num_users=300, num_items=8, num_choices=4).with_priors(
        item=torch.as_tensor(item)
    )
    fit = ci.fit(model, x, **QUIET)
    said = fit.predict((range(300), [range(8)] * 300), uncertainty=True)
    low, high = said.interval(0.9)
    assert 0.85 < np.mean((low.numpy() <= p) & (p <= high.numpy())) < 0.97
    assert torch.allclose(said.mean.sum(1), torch.ones(300, dtype=said.mean.dtype))


def test_means_and_intervals_within_the_scale(data):
    fit = ci.fit(PMF(num_components=2, num_users=60, num_items=30), data, sweeps=5, **QUIET)
    free, within = (fit.predict(data, uncertainty=True, clip=clip) for clip in (False, True))
    least, most = float(data.value.min()), float(data.value.max())
    assert torch.equal(within.mean, free.mean.clamp(least, most))
    assert torch.equal(within.sd, free.sd)
    low, high = within.interval()
    assert float(low.min()) >= least
    assert float(high.max()) <= most
    assert torch.equal(fit.predict(data, clip=(2, 4)), free.mean.clamp(2, 4))
    with pytest.raises(MethodError, match=r"clip = 5, expected True"):
        fit.predict(data, clip=5)


@pytest.mark.parametrize("method", ["vb", "gibbs"])
def test_no_method_changes_the_prior(data, method):
    model = PMF(num_components=1, num_users=60, num_items=30)
    settings = {"sweeps": 2} if method == "vb" else {"num_samples": 2, "warmup": 2, "chains": 1}
    fit = ci.fit(model, data, method=method, **settings, **QUIET)
    stated = model.on_scale_of(data)
    for side in ("user", "item"):
        one, other = (of.priors[f"{side}_covariance"] for of in (fit.model, stated))
        assert torch.allclose(one.scale.double(), other.scale.double())
