"""Stochastic gradient descent over ratings: its steps are the gradient's, and it finds what made the ratings."""

import numpy as np
import pyro.distributions as dist
import pytest
import torch

import custom_inference as ci
from custom_inference.families.ratings import gradient
from custom_inference.families.ratings.sgd import descent
from ppl_models import PMF, MethodError, PriorError, ratings


def descend(*arguments, **settings):
    *_, found = descent(*map(np.asarray, arguments), **settings)
    return found


def problem(seed=0, noise=0.3):
    """Ratings of 60 of 100 pairs of 40 users and 30 items, two factors and biases."""
    rng = np.random.default_rng(seed)
    u, v, f, g = rng.normal(size=(40, 2)), rng.normal(size=(30, 2)), rng.normal(size=40), rng.normal(size=30)
    mean = 3 + f[:, None] + g + u @ v.T
    i, j = np.nonzero(rng.random(mean.shape) < 0.6)
    return i, j, mean[i, j] + noise * rng.normal(size=len(i)), mean


def objective(parts, i, j, r, mean, regularizers):
    """The sum over pairs of eq. 27.92, half of it, with regularisers once a rating."""
    u, v, f, g = parts
    a, b, c = regularizers
    error = r - mean - f[i] - g[j] - (u[i] * v[j]).sum(1)
    sizes = a * (u[i] ** 2).sum(1) + b * (v[j] ** 2).sum(1) + c * (f[i] ** 2 + g[j] ** 2)
    return 0.5 * (error**2 + sizes).sum()


def test_a_step_is_the_gradient_by_finite_differences():
    """One pair, one pass: what moved is minus the learning rate times the slope of its terms."""
    i, j, r, regularizers = np.array([1]), np.array([0]), np.array([4.0]), (0.3, 0.2, 0.1)
    names = ("user_regularizer", "item_regularizer", "bias_regularizer")
    settings = {"num_users": 2, "num_items": 1, "num_factors": 2, **dict(zip(names, regularizers, strict=True))}

    def run(rate, value):
        return descend(i, j, value, passes=1, learning_rate=rate, spread=0.8, seed=4, **settings)

    before, after = run(1e-300, r), run(0.01, r)
    start = [before.user, before.item, before.user_bias, before.item_bias]
    ends = [after.user, after.item, after.user_bias, after.item_bias]
    for place, (one, other) in enumerate(zip(start, ends, strict=True)):
        slope = np.zeros_like(one)
        for at in np.ndindex(one.shape):
            values = []
            for step in (1e-5, -1e-5):
                moved = [part.copy() for part in start]
                moved[place][at] += step
                values.append(objective(moved, i, j, r, r.mean(), regularizers))
            slope[at] = (values[0] - values[1]) / 2e-5
        assert np.allclose(other - one, -0.01 * slope, atol=1e-9)


def test_it_recovers_what_made_the_ratings():
    i, j, r, mean = problem()
    held = np.random.default_rng(1).random(len(r)) < 0.2
    left = ~held
    settings = {"num_users": 40, "num_items": 30, "num_factors": 2, "passes": 200, "learning_rate": 0.03}
    settings |= {"user_regularizer": 0.02, "item_regularizer": 0.02, "decay": 0.99}
    found = descend(i[left], j[left], r[left], **settings)
    assert found.trace.shape == (200,) and found.trace[-1] < found.trace[0]
    wrong = found.predict(i[held], j[held]) - r[held]
    assert np.sqrt(np.mean(wrong**2)) < 0.5, "noise has .3, the ratings a spread of 2"
    every = found.predict(*(one.ravel() for one in np.indices(mean.shape)))
    assert np.corrcoef(every, mean.ravel())[0, 1] > 0.98


def test_without_biases_there_are_none_and_seeds_decide():
    i, j, r, _ = problem()
    settings = {"num_users": 40, "num_items": 30, "passes": 3, "biases": False}
    one, same, other = (descend(i, j, r, seed=seed, **settings) for seed in (1, 1, 2))
    assert not one.user_bias.any() and not one.item_bias.any()
    assert np.array_equal(one.user, same.user) and not np.array_equal(one.user, other.user)


def test_a_learning_rate_that_is_too_large_is_named():
    i, j, r, _ = problem()
    with pytest.raises(MethodError, match="learning_rate below 5"):
        descend(i, j, r, num_users=40, num_items=30, learning_rate=5.0)


@pytest.fixture(scope="module")
def frame():
    """A model with priors of its own, and ratings of which a third are missing."""
    i, j, r, _ = problem(noise=0.5)
    model = PMF(num_components=2, num_users=40, num_items=30, adaptive=False, centre=0.0, unit=1.0)
    model = model.with_priors(scale=0.5, item=dist.Normal(0.0, 0.8), item_bias=dist.Normal(0.0, 0.7))
    return model, ratings(i, j, r, num_users=40, num_items=30)


def gradients(fit, model, data):
    """Of the log joint, of what the ratings are products and sums of."""
    sites = ("user_profile", "item", "item_bias")
    params = {site: value.clone().requires_grad_(site in sites) for site, value in fit.params.items()}
    loading, offset = model.coefficients(params)
    eta = (params["user_profile"][data.user] * loading[data.item]).sum(-1) + offset[data.item]
    value = model.entry(params, eta).log_prob(data.value).sum() + model.log_prior(params)
    value = value + model.prior("user_profile", like=eta, values=params).log_prob(params["user_profile"]).sum()
    return value, torch.autograd.grad(value, [params[site] for site in sites])


def test_the_method_climbs_to_a_mode_of_the_log_joint(frame):
    model, data = frame
    settings = {"passes": 600, "learning_rate": 0.03, "decay": 0.985}
    fit = ci.fit(model, data, method="sgd", progress=False, **settings)
    value, slopes = gradients(fit, model, data)
    assert float(fit.elbo.max()) == pytest.approx(float(value.detach()), rel=1e-9) and len(fit.elbo) == 600
    rough = gradients(ci.fit(model, data, method="sgd", passes=5, progress=False), model, data)[1]
    for slope, before in zip(slopes, rough, strict=True):
        assert slope.abs().max() < 0.02 * before.abs().max()


def test_what_the_regulariser_is_can_be_said(frame):
    model, data = frame
    strong, weak = (ci.fit(model, data, method="sgd", regularisation=one, progress=False) for one in (3.0, 0.0))
    assert strong.params["item"].norm() < 0.1 * weak.params["item"].norm()
    own = ci.fit(model, data, method="sgd", regularisation=0.05, decay=1.0, passes=7, progress=False)
    assert own.status == "7 passes"  # the log joint, of other regularisers, may fall where what is descended does not
    least = descend(
        data.user, data.item, data.value, num_users=40, num_items=30, num_factors=2, passes=7, learning_rate=0.02,
        user_regularizer=0.05, item_regularizer=0.05, bias_regularizer=0.05,
    )  # fmt: skip
    assert np.allclose(own.predict((data.user, data.item)), least.predict(data.user, data.item), atol=1e-5)
    assert (strong.method_name, strong.bound_name, strong.objective) == ("SGD", "map", "log joint")
    with pytest.raises(MethodError, match="regularisation = -1"):
        ci.fit(model, data, method="sgd", regularisation=-1.0)
    with pytest.raises(PriorError, match="'item' is fixed"):
        ci.fit(model.with_priors(item=torch.zeros(30, 2)), data, method="sgd")
    with pytest.raises(PriorError, match=r"Normal\(0, s\) of 'user'"):
        ci.fit(model.with_priors(user=dist.Normal(1.0, 1.0)), data, method="sgd")
    for site, prior in (("mean", dist.Normal(3.0, 0.1)), ("scale", dist.Gamma(2.0, 1.0))):
        with pytest.raises(PriorError, match=f"estimates '{site}' from the ratings alone"):
            ci.fit(model.with_priors(**{site: prior}), data, method="sgd")


def test_an_interrupt_keeps_the_best_pass(frame, monkeypatch):
    model, data = frame
    whole = ci.fit(model, data, method="sgd", passes=4, progress=False)

    class Stopped(gradient.Progress):
        def advance(self, value=None, count=1):
            super().advance(value, count)
            if self.total and value is not None:
                self.seen = getattr(self, "seen", 0) + 1
                if self.seen == 4:
                    raise KeyboardInterrupt

    monkeypatch.setattr(gradient, "Progress", Stopped)
    fit = ci.fit(model, data, method="sgd", passes=50, progress=False)
    assert fit.interrupted and fit.status.startswith("interrupted after 4 passes")
    assert all(torch.equal(value, whole.params[site]) for site, value in fit.params.items())
