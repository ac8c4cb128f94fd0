"""Message passing through products and sigmoids: each message by hand, posteriors against weighted draws."""

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy.integrate import quad
from scipy.special import expit

import custom_inference as ci
from custom_inference.core.method import Call
from custom_inference.families.ratings.bilinear import factor_states
from custom_inference.families.ratings.matchbox import Matchbox
from ppl_models import PMF, BilinearPMF, ChoicePMF, DataError, MethodError, PriorError, ratings
from ppl_models.distributions import Flat
from tests.support.cases import problem_of


def moments_of_clicks(fit):
    """Mean and variance of the log-odds of every user and item, who are independent."""
    (both,) = factor_states(fit)
    (a, va), (b, vb) = ((side.mean[:-1], side.covariance[:-1].diagonal(dim1=1, dim2=2)) for side in both)
    return a @ b.T, a.square() @ vb.T + va @ b.square().T + va @ vb.T


def chances(fit):
    users, items = np.indices((len(fit.data), fit.model.num_items)).reshape(2, -1)
    return fit.predict(positions=(users, items)).numpy()


def tilted(mean, variance, sign):
    """Moments of N(r; m, v) sigmoid(sign r) by adaptive quadrature."""
    sd = np.sqrt(variance)

    def moment(f):
        at = (mean - 12 * sd, mean + 12 * sd)
        density = lambda r: f(r) * expit(sign * r) * np.exp(-0.5 * ((r - mean) / sd) ** 2)  # noqa: E731
        return quad(density, *at, points=[mean, min(max(0.0, at[0]), at[1])], epsabs=0, epsrel=1e-11, limit=200)[0]

    total = moment(lambda r: 1.0)
    first = moment(lambda r: r) / total
    return np.log(total / (sd * np.sqrt(2 * np.pi))), first, moment(lambda r: (r - first) ** 2) / total


@pytest.mark.parametrize("mean", [0.0, -8.0, 3.0])
@pytest.mark.parametrize("variance", [1e-4, 1.0, 30.0, 400.0])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_tilted_moments_are_the_integrals(mean, variance, sign):
    from custom_inference.families.ratings.matchbox_kernel import moments_of_tilted as compiled

    assert np.allclose(compiled(mean, variance, sign), tilted(mean, variance, sign), rtol=2e-6, atol=2e-6)


def one_click(ms, vs, mt, vt, sign):
    """Posterior moments of s and t (K,), all independent, after one click, by the messages of the docstring."""
    z, own = ms * mt, ms**2 * vt + mt**2 * vs + vs * vt
    _, new, spread = tilted(z.sum(), own.sum(), sign)
    info, pull = 1 / spread - 1 / own.sum(), new / spread - z.sum() / own.sum()
    y, width = pull / info - (z.sum() - z), 1 / info + own.sum() - own
    a, first, b, second = ms, ms**2 + vs, mt, mt**2 + vt
    for _ in range(200):
        first = 1 / (1 / vs + second / width)
        a = first * (ms / vs + b * y / width)
        first = first + a**2
        second = 1 / (1 / vt + first / width)
        b = second * (mt / vt + a * y / width)
        second = second + b**2
    return a, first - a**2, b, second - b**2


@pytest.mark.parametrize("click", [0.0, 1.0])
def test_one_click_is_the_messages_by_hand(click):
    """One user with two features, one item with one; K = 2. Weights share what their sums learn."""
    rng = np.random.default_rng(3)
    means = {"user_weight": (2, 2), "user": (1, 2), "item_weight": (1, 2), "item": (1, 2)}
    means = {site: rng.normal(size=shape) for site, shape in means.items()}
    priors = {site: dist.Normal(torch.as_tensor(value), 0.8) for site, value in means.items() if site != "user"}
    priors["user"] = dist.Normal(torch.as_tensor(means["user"][0]), 0.5)
    sizes = {"num_users": 1, "num_items": 1, "num_user_covariates": 2, "num_item_covariates": 1}
    model = BilinearPMF(num_components=2, **sizes).with_priors(**priors)
    x, z = np.array([[1.0, -1.5]]), np.ones((1, 1))
    start = {site: torch.as_tensor(value) for site, value in means.items() if site != "user"}
    data = model.prepare(ratings([0], [0], [click]), user_covariates=x)
    fit = Matchbox(passes=1)._fit(model, data, Call(0, start, False, torch.float64, None))
    ms, mt = (x @ means["user_weight"] + means["user"])[0], (z @ means["item_weight"] + means["item"])[0]
    vs, vt = np.full(2, 0.64 * (x**2).sum() + 0.25), np.full(2, 1.28)
    a, va, b, vb = one_click(ms, vs, mt, vt, 2 * click - 1)
    for site, feature, variance, (m, v, new, spread) in (
        ("user_weight", x[0], 0.64, (ms, vs, a, va)),
        ("user", np.ones(1), 0.25, (ms, vs, a, va)),
        ("item_weight", z[0], 0.64, (mt, vt, b, vb)),
        ("item", np.ones(1), 0.64, (mt, vt, b, vb)),
    ):
        found = fit.posterior if site == "user" else fit.global_posterior[site]
        share = feature[:, None] * variance / v
        assert np.allclose(found.mean, means[site] + share * (new - m), atol=1e-5), site
        expected = variance + share**2 * (spread - v)
        assert np.allclose(found.covariance.diagonal(dim1=1, dim2=2), expected, atol=1e-5), site


def toy():
    """Three users and three items with a constant feature, priors with means that tell the signs apart."""
    priors = {"item": (0.8, 0.6), "user": (0.5, 0.6), "item_weight": (0.4, 0.5), "user_weight": (-0.3, 0.5)}
    model = BilinearPMF(num_components=1, num_users=3, num_items=3, num_user_covariates=1, num_item_covariates=1)
    model = model.with_priors(**{site: dist.Normal(*prior) for site, prior in priors.items()})
    return model, priors, np.array([[1.0, 1.0, 0.0], [0.0, np.nan, 0.0], [1.0, 0.0, np.nan]])


def test_posteriors_are_those_of_weighted_draws():
    """EP's means and variances against importance sampling from the prior, an unbiased reference."""
    model, priors, x = toy()
    rng, draws = np.random.default_rng(0), 400_000
    size = {"item": 3, "user": 3, "item_weight": 1, "user_weight": 1}
    value = {site: rng.normal(*priors[site], size=(draws, size[site])) for site in size}
    logit = (value["user"] + value["user_weight"])[:, :, None] * (value["item"] + value["item_weight"])[:, None]
    log = np.where(np.isnan(x), 0.0, np.nan_to_num(x) * logit - np.logaddexp(0, logit)).sum((1, 2))
    weight = np.exp(log - log.max())
    weight /= weight.sum()
    assert 1 / (weight**2).sum() > 50_000, "effective draws"
    fit = Matchbox(passes=100).fit(model, x, progress=False)
    assert "settled" in fit.status
    for site, posterior in {**fit.global_posterior, "user": fit.posterior}.items():
        mean = weight @ value[site]
        sd = np.sqrt(weight @ (value[site] - mean) ** 2)
        prior = priors[site][1]
        assert np.abs(posterior.mean.numpy()[:, 0] - mean).max() < 0.08 * prior, site
        ratio = posterior.covariance.numpy()[:, 0, 0] ** 0.5 / sd
        assert (ratio > 0.85).all() and (ratio < 1.03).all(), site
    mean = weight @ logit.reshape(draws, -1)
    sd = np.sqrt(weight @ (logit.reshape(draws, -1) - mean) ** 2)
    found, variance = moments_of_clicks(fit)
    # Independent factors: what the clicks say of s and t together is not in the mean of their product.
    assert (np.abs(found.numpy().ravel() - mean) < 0.2 * sd).all()
    assert np.abs(variance.numpy().ravel() ** 0.5 / sd - 1).max() < 0.2
    chance = weight @ expit(logit).reshape(draws, -1)
    assert np.abs(chances(fit) - chance).max() < 0.025
    assert np.abs(fit.predict(([2, 0], [1, 1])).numpy() - chance[[7, 1]]).max() < 0.025
    with pytest.raises(DataError, match=r"axis 'item': 1 unknown items \(the first: 3\)"):
        fit.predict(([0], [3]))
    with pytest.raises(DataError, match="1 users and 2 items"):
        fit.predict(([0], [1, 2]))


def test_further_clicks_update_the_posteriors():
    """Clicks in two parts: the second part moves the fit of the first, to about where both together are."""
    rng = np.random.default_rng(2)
    truth = rng.normal(size=(80, 2)) @ (1.5 * rng.normal(size=(40, 2))).T
    x = (rng.random(truth.shape) < expit(truth)).astype(float)
    part = rng.integers(0, 3, truth.shape)  # two to learn from, one held out
    model = BilinearPMF(num_components=2, num_users=80, num_items=40)

    def clicks(chosen):
        user, item = np.nonzero(chosen)
        return ratings(user, item, x[chosen], num_users=80, num_items=40)

    def loss(fit):
        p = chances(fit).reshape(part.shape)[part == 2]
        return -np.mean(np.log(np.where(x[part == 2] > 0, p, 1 - p)))

    first = Matchbox(passes=10).fit(model, clicks(part == 0), progress=False)
    updated = Matchbox(passes=10).update(first, clicks(part == 1))
    both = Matchbox(passes=10).fit(model, clicks(part < 2), progress=False)
    assert loss(first) < 0.62 < np.log(2) and loss(both) < loss(updated) + 0.01 < loss(first)
    for site, before in first.global_posterior.items():
        after = updated.global_posterior[site].covariance.diagonal(dim1=1, dim2=2)
        assert (after <= before.covariance.diagonal(dim1=1, dim2=2)).all(), site
    once = Matchbox(passes=1).fit(model, clicks(part < 2), progress=False)
    assert loss(both) < loss(once) < np.log(2), "further passes gain"


def test_what_cannot_be_run_is_refused():
    model, _, x = toy()
    with pytest.raises(MethodError, match="for BilinearPMF, not LogisticPCA"):
        Matchbox().fit(problem_of("logistic_pca").model, problem_of("logistic_pca").data, progress=False)
    with pytest.raises(PriorError, match="prior of 'item' is flat"):
        Matchbox().fit(model.with_priors(item=Flat(dist.Normal(0.0, 1.0))), x, progress=False)
    with pytest.raises(MethodError, match="passes = 0"):
        Matchbox(passes=0)
    fit = Matchbox(passes=2).fit(model, x, progress=False)
    with pytest.raises(MethodError, match="2 users, and the fit has 3"):
        Matchbox().update(fit, x[:2])
    with pytest.raises(MethodError, match="goes on from a fit by Matchbox"):
        Matchbox().update(ci.VariationalEM(guide="gaussian").fit(model, x, progress=False), x)


def test_clicks_are_fitted_by_messages_or_where_these_cannot_be_by_the_bound():
    model, _, x = toy()
    assert ci.fit(model, x, progress=False).method == Matchbox()
    flat = ci.fit(model.with_priors(item=Flat(dist.Normal(0.0, 1.0))), x, progress=False)
    assert flat.bound_name == "gaussian" and "prior of 'item' is flat" in flat.status


def test_at_given_globals_users_are_inferred_by_the_bound():
    """Log p(x_u) by quadrature over the one factor is above the bound, and near it."""
    model, priors, x = toy()
    fit = Matchbox().fit(model, x, progress=False)
    found = fit.method.local_posterior(model, fit.globals, fit.data)
    node, weight = np.polynomial.hermite_e.hermegauss(60)
    factor = priors["user"][0] + priors["user"][1] * node + fit.params["user_weight"].item()
    item = (fit.params["item"] + fit.params["item_weight"]).numpy()[:, 0]
    logit = factor[:, None, None] * item
    each = np.where(np.isnan(x), 0.0, np.nan_to_num(x) * logit - np.logaddexp(0, logit)).sum(-1)
    exact = np.log(weight @ np.exp(each) / weight.sum())
    gap = exact - found.bound.numpy()
    assert (gap >= -1e-9).all() and (gap < 0.05).all()


def test_users_and_items_with_features_of_different_numbers_are_summarised_and_updated_with_these():
    rng = np.random.default_rng(0)
    clicks, given = (rng.random((6, 5)) < 0.5) * 1.0, {"user_covariates": rng.random((6, 1))}
    given["item_covariates"] = rng.random((5, 1))
    fit = ci.fit(BilinearPMF(num_components=1), clicks, **given, progress=False)
    assert set(fit.to_arviz().posterior) >= {"item_weight", "user_weight"}
    assert fit.reconstruct().shape == (6, 5)
    more, again = 1 - clicks, dict(fit.data.others)
    updated, same = (fit.method.update(fit, more, **others) for others in ({}, again))
    torch.testing.assert_close(updated.params, same.params)
    torch.testing.assert_close(updated.data.others["item_covariates"], fit.data.others["item_covariates"])


def test_intervals_of_clicks_are_within_0_and_1():
    clicks = (np.random.default_rng(0).random((6, 5)) < 0.5) * 1.0
    fit = ci.fit(BilinearPMF(num_components=1), clicks, progress=False)
    low, high = fit.predict(([0, 1], [2, 3]), uncertainty=True).interval(0.9)
    assert bool(((low >= 0) & (high <= 1) & (low <= high)).all())


def test_ctrl_c_keeps_the_passes_and_says_so(monkeypatch):
    from custom_inference.families.ratings import matchbox_kernel

    example, pass_over, calls = BilinearPMF.example(), matchbox_kernel.pass_over, []

    def stop(*arguments):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return pass_over(*arguments)

    monkeypatch.setattr(matchbox_kernel, "pass_over", stop)
    fit = Matchbox(tolerance=0.0).fit(example.model, example.data, progress=False)
    assert fit.interrupted and fit.status.startswith("interrupted after 3 passes") and len(fit.elbo) == 3


@pytest.mark.parametrize("kind", [PMF, BilinearPMF, ChoicePMF])
def test_what_predictions_do_not_take_is_refused_by_name(kind):
    example = kind.example()
    fit = ci.fit(example.model, example.data, progress=False)
    said = f"argument of predict of {kind.__name__} 'item_covariates'.*valid: .*positions.*user_covariates"
    with pytest.raises(MethodError, match=said):
        fit.predict(([0], [0]), item_covariates=[[1.0]])
