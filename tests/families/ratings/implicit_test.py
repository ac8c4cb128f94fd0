"""Implicit feedback in the frame, on ratings of users who mostly rate what they like."""

import numpy as np
import pytest
import torch

import custom_inference as ci
from custom_inference.families.ratings.features import Design
from custom_inference.families.ratings.hyper import prior_given_rows
from custom_inference.families.ratings.implicit import Feedback, blocks_of, incidence
from custom_inference.families.ratings.priors import settings_of, units_of_rows
from ppl_models import PMF, MethodError, ratings

QUIET = {"progress": False}
USERS, ITEMS, NEW = 220, 40, 80
SETTINGS = {"vb": {"draws": 40, "rank": 10}, "gibbs": {"num_samples": 40, "warmup": 10, "rank": 10}}


@pytest.fixture(scope="module")
def world():
    """Ratings (USERS + NEW, ITEMS), and which of them were given: about six a user, mostly of items of their kind."""
    rng = np.random.default_rng(5)
    user, item = rng.standard_normal((USERS + NEW, 1)), rng.standard_normal((ITEMS, 1))
    x = 3 + 0.9 * user + 0.9 * item.T + 1.5 * rng.standard_normal((USERS + NEW, ITEMS))
    chance = np.exp(1.5 * user @ item.T)
    return x, rng.random(x.shape) < 6 * chance / chance.sum(1, keepdims=True)


@pytest.fixture(scope="module")
def fits(world):
    x, given = world
    user, item = np.nonzero(given[:USERS])
    data = ratings(user, item, x[:USERS][given[:USERS]], num_users=USERS, num_items=ITEMS)
    model = PMF(num_components=1, num_users=USERS, num_items=ITEMS, adaptive=True)
    return {
        (name, implicit): ci.fit(model, data, method=name, implicit=implicit, seed=1, **SETTINGS[name], **QUIET)
        for name in SETTINGS
        for implicit in (False, True)
    }


def error(found, x, user, item):
    return float(np.sqrt(np.mean((found.numpy() - x[user, item]) ** 2)))


@pytest.mark.parametrize("name", ["vb", "gibbs"])
def test_what_users_rate_says_what_they_like(world, fits, name):
    x, given = world
    pairs = np.nonzero(~given[:USERS])
    plain, informed = (error(fits[name, one].predict(pairs), x, *pairs) for one in (False, True))
    assert informed < 0.95 * plain
    assert torch.linalg.eigvalsh(fits[name, True].params["user_covariance"]).min() > 0


@pytest.mark.parametrize("name", ["vb", "gibbs"])
def test_new_users_have_the_feedback_of_their_own_ratings(world, fits, name, tmp_path):
    x, given = world
    user, item = np.nonzero(given[USERS:])
    new = ratings(user, item, x[USERS:][given[USERS:]], num_users=NEW, num_items=ITEMS)
    pairs = np.nonzero(~given[USERS:])
    plain, informed = (fits[name, one].predict(pairs, ratings=new) for one in (False, True))
    assert error(informed, x[USERS:], *pairs) < 0.95 * error(plain, x[USERS:], *pairs)
    loaded = ci.Fit.load(fits[name, True].save(tmp_path / "fit"))
    assert torch.equal(loaded.predict(pairs, ratings=new), informed)


def test_users_given_again_are_predicted_as_they_were(world, fits):
    _, given = world
    pairs = np.nonzero(~given[:30])
    fit = fits["gibbs", True]
    known = fit.predict(pairs, uncertainty=True)
    again = fit.predict(pairs, ratings=fit.data.rows(slice(0, 30)), uncertainty=True)
    assert (known.mean - again.mean).square().mean().sqrt() < 0.3 * known.sd.mean()
    user, item = np.nonzero(~given[:USERS])
    moved = fit.predict((user, item), item_ratings=fit.data)
    assert (moved - fit.predict((user, item))).square().mean().sqrt() < 0.3 * known.sd.mean()


@pytest.mark.parametrize("side", ["user", "item"])
def test_what_new_rows_start_from_is_the_regression_on_feedback(fits, side):
    """The columns of the users of the fit, given as new, are those of the fit; and so is the mean of their prior."""
    fit = fits["vb", True]
    settings, said = settings_of(fit.model, 10), fit.details["implicit"]
    both, units = {"user": settings.user, "item": settings.item}, units_of_rows(fit.model)
    feedback = Feedback(fit.data, said["rank"], said["ridges"], both, units)
    block = blocks_of(incidence(fit.data))[side == "item"]
    design = Design.of([block], block.shape[0], 10)
    columns = feedback.columns(side, fit.data)
    assert np.allclose(columns, design.columns)
    rows = torch.randn(len(columns), 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = feedback.prior(side, columns, rows, None, 0)
    ridge = np.array([said["ridges"][0][side == "item"]])
    each = units[side].numpy()
    best = prior_given_rows(rows.numpy() / each, np.zeros((2, 2)), design, getattr(settings, side), ridge, learn=False)
    gram = design.gram + ridge[0] * np.eye(design.gram.shape[1])
    solved = np.linalg.solve(gram, design.columns.T @ rows.numpy())
    assert np.allclose(found.mean, best.coefficient[0] * each + design.columns @ solved)
    # E[S] of the inverse Wishart, times 1 and what is not known of m and B at these columns.
    wider = 1 + 1 / best.strength + np.einsum("np,np->n", design.columns, np.linalg.solve(gram, design.columns.T).T)
    expected = best.scale / (best.degrees - 3) * np.outer(each, each)
    assert np.allclose(found.covariance, wider[:, None, None] * expected)


def test_feedback_and_covariates_are_blocks_of_their_own(world):
    """Covariates of users are told apart from what feedback adds, and rows add up to what was found."""
    x, given = world
    covariate = np.random.default_rng(0).standard_normal((USERS, 1))
    shown = np.where(given[:USERS], x[:USERS] + covariate, np.nan)
    model = PMF(num_components=1, num_users=USERS, num_items=ITEMS, adaptive=True, num_user_covariates=1)
    fit = ci.fit(model, ratings(shown), user_covariates=covariate, implicit=True, draws=10, rank=10, **QUIET)
    assert abs(float(fit.params["user_weight"][0, 0]) - 1) < 0.15
    pairs = np.nonzero(~given[:USERS])
    assert error(fit.predict(pairs), x[:USERS] + covariate, *pairs) < 0.95 * np.std(x)


def test_where_all_rated_all_there_is_no_feedback():
    """What is found is what is found without, and new users are predicted."""
    x = 3 + np.random.default_rng(0).standard_normal((12, 5))
    model = PMF(num_components=1, num_users=12, num_items=5, adaptive=True)
    settings = {"sweeps": 4, "draws": 5, **QUIET}
    one, other = (ci.fit(model, x, implicit=implicit, **settings) for implicit in (True, False))
    assert all(torch.allclose(value, other.params[site]) for site, value in one.params.items())
    drawn = ci.fit(model, x, method="gibbs", implicit=True, num_samples=5, warmup=1, **QUIET)
    for fit in (one, drawn):
        assert torch.isfinite(fit.predict(([0, 1], [1, 2]), ratings=x[:2])).all()


def test_implicit_is_true_or_false():
    with pytest.raises(MethodError, match="implicit = 'yes'"):
        ci.fit(PMF(num_components=1, num_users=4, num_items=3, adaptive=True), np.ones((4, 3)), implicit="yes", **QUIET)
