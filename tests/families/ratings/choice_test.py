"""Choices among items shown: a bound below the evidence, a fit at its maximum, and what choices say beyond clicks."""

import numpy as np
import pyro
import pytest
import torch
from pyro import poutine
from scipy.stats import spearmanr

import custom_inference as ci
from custom_inference.core.local_inference import LocalSolver
from custom_inference.families.ratings.quadratic import ChoiceBound
from ppl_models import BilinearPMF, ChoicePMF, DataError, ModelError, impressions, ratings
from tests.references import choice_pmf as reference


def log_of(seed=0, users=30, items=7):
    """Impressions of two to four items, none to six a user, by true factors."""
    rng = np.random.default_rng(seed)
    truth = {"item": rng.normal(size=(items, 2)), "user": rng.normal(size=(users, 2))}
    score, user, shown, picked = truth["user"] @ truth["item"].T, [], [], []
    for u in range(users):
        for _ in range(rng.integers(0, 7)):
            these = rng.choice(items, rng.integers(2, 5), replace=False)
            p = np.exp(score[u, these])
            user, shown = [*user, u], [*shown, these.tolist()]
            picked.append(int(rng.choice(these, p=p / p.sum())))
    data = impressions(user, shown, picked, num_users=users)
    model = ChoicePMF.for_data(data, 2, num_items=items)
    return model, {site: torch.as_tensor(value) for site, value in truth.items()}, model.prepare(data)


def arguments(data):
    return data.x.numpy(), None if data.mask is None else data.mask.numpy()


def test_a_log_is_read_as_it_is():
    model, _, data = log_of()
    assert data.mask is not None and model.num_choices == data.x.shape[1] == int(data.mask.sum(1).max())
    assert model.num_shown == 4 and bool((data.others["shown"][data.mask] < 0).any()), "sets of different sizes"
    log = impressions([1, 0, 1], [[5, 2], [0, 1, 2], [4, 3]], [2, 0, 4], num_users=3)
    assert log.x.tolist() == [[0, 0], [1, 0], [0, 0]]
    assert log.mask is not None and log.mask.tolist() == [[True, False], [True, True], [False, False]]
    assert log.others["shown"][1].tolist() == [[5, 2, -1], [4, 3, -1]]


def test_the_program_is_the_references():
    model, truth, data = log_of()
    priors = {"item": ("normal", 0.0, 1.0)}
    params = {"item": truth["item"].numpy()}
    shown = data.others["shown"]
    x, mask = arguments(data)
    expected = reference.log_joint(params, x, truth["user"].numpy(), mask, priors, shown.numpy())
    trace = poutine.trace(pyro.condition(model, data=truth)).get_trace(data.x, mask=data.mask, shown=shown)
    assert np.isclose(float(trace.log_prob_sum()), expected, rtol=1e-12)


def test_the_bound_is_below_the_evidence_and_its_gap_vanishes_with_the_factors():
    model, truth, data = log_of(users=6)
    gaps = {}
    for scale in (1.0, 0.2, 0.1):
        params = {"item": scale * truth["item"]}
        local = LocalSolver(engine=ChoiceBound()).solve(model, params, data)
        exact = reference.log_evidence_hermite(
            {"item": params["item"].numpy()}, *arguments(data), data.others["shown"], 16
        )
        gap = exact - local.bound.numpy()
        assert (gap > -1e-8).all()
        gaps[scale] = gap.mean()
    assert gaps[1.0] < 0.5 and 3 < gaps[0.2] / gaps[0.1] < 5, "Boehning's curvature is off by a share: second order"


def test_a_fit_ends_where_the_slope_of_its_objective_is_zero():
    model, _, data = log_of()
    settings = {"tolerance": 1e-13, "max_iterations": 6000, "accelerate": "squarem", "search": None}
    fit = ci.VariationalEM(guide="gaussian", **settings).fit(model, data, progress=False)
    assert (fit.elbo.diff() > -1e-8).all()
    solver = LocalSolver(engine=ChoiceBound(), max_iterations=2000, tolerance=1e-12)

    def objective(item):
        return float(solver.solve(model, {"item": item}, data).bound.sum() + model.log_prior({"item": item}))

    for at in np.ndindex(*fit.params["item"].shape):
        ends = []
        for step in (1e-4, -1e-4):
            moved = fit.params["item"].clone()
            moved[at] += step
            ends.append(objective(moved))
        assert abs(ends[0] - ends[1]) / 2e-4 < 3e-3, at


def shop(seed, users=100, items=40):
    """Each user sees each item once, in sets of five that are good throughout or bad throughout, as a shop that sorts
    by popularity makes them. Scores (U, I), sets (U, 8, 5), places picked (U, 8)."""
    rng = np.random.default_rng(seed)
    popular = 1.5 * rng.normal(size=items)
    score = popular + rng.normal(size=(users, 2)) @ rng.normal(size=(2, items))
    sets = np.array([np.argsort(popular + 0.7 * rng.normal(size=items)).reshape(8, 5) for _ in range(users)])
    chance = np.exp(np.take_along_axis(score[:, None], sets, 2))
    chance /= chance.sum(-1, keepdims=True)
    return score, sets, (chance.cumsum(-1) < rng.random((users, 8, 1))).sum(-1)


def test_choices_tell_more_than_picks_as_clicks():
    """Order of all items for each user: choices know that a pick beat its set, clicks take every set to be alike."""
    score, sets, places = shop(1)
    users, items = score.shape
    given = {"user_covariates": np.ones((users, 1)), "progress": False}
    sizes = {"num_users": users, "num_items": items, "num_user_covariates": 1}
    choice = ci.fit(ChoicePMF(num_components=3, num_choices=8, num_shown=5, **sizes), places, shown=sets, **given)
    picked = np.zeros((users, items))
    np.put_along_axis(picked, np.take_along_axis(sets, places[..., None], 2)[..., 0], 1.0, 1)
    click = ci.fit(BilinearPMF(num_components=3, **sizes), picked, **given)

    def agreement(fit):
        factor = fit.posterior.mean + fit.params["user_weight"]
        found = (factor @ fit.params["item"].T).numpy()
        return np.mean([spearmanr(a, b).statistic for a, b in zip(score, found, strict=True)])

    assert agreement(choice) > 0.8 and agreement(choice) > agreement(click) + 0.1
    user, item = np.nonzero(picked)
    alone = ratings(user, item, picked[user, item], num_users=users, num_items=items)
    with pytest.raises(DataError, match="same"):  # picks alone: everything is liked
        ci.fit(BilinearPMF(num_components=3, **sizes), alone, **given)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: impressions([0], [[1, 2]], [3], num_users=1), DataError, "item 3 was picked and not shown"),
        (lambda: impressions([0], [[1, 1]], [1], num_users=1), DataError, "all different"),
        (lambda: impressions([2], [[1, 2]], [1], num_users=2), DataError, "expected 0 to 1"),
        (lambda: impressions([0, 1], [[1, 2]], [1], num_users=2), DataError, "2 users, 1 sets"),
        (lambda: ChoicePMF(num_components=1, num_users=2, num_items=1, num_choices=1), ModelError, "at least two"),
        (lambda: log_of()[0].prepare(np.zeros((30, 6)), shown=np.ones((30, 6, 3))), DataError, "shown.*shape"),
        (lambda: log_of()[0].prepare(np.zeros((30, 6)), shown=np.full((30, 6, 4), 7)), DataError, "no item's number"),
        (lambda: log_of()[0].prepare(np.zeros((30, 6)), shown=np.full((30, 6, 4), -1)), DataError, "empty places"),
        (lambda: log_of()[0].prepare(np.full((30, 6), 4.0)), DataError, "x"),
    ],
)
def test_bad_input_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_predictions_are_probabilities_of_the_items_shown():
    """The mean of the softmax: of two items by quadrature along the difference of their logits."""
    model, _, data = log_of()
    fit = ci.fit(model, data, progress=False)
    user, shown = [3, 5, 3], [[0, 4, 2], [1, 6], [4, 2, 0]]
    found = fit.predict((user, shown))
    assert found.shape == (3, 3) and torch.allclose(found.sum(1), torch.ones(3, dtype=found.dtype))
    assert found[1, 2] == 0 and torch.allclose(found[0, [1, 2, 0]], found[2])
    apart = fit.params["item"][1] - fit.params["item"][6]
    mean, covariance = fit.posterior.mean[5] @ apart, apart @ fit.posterior.covariance[5] @ apart
    node, weight = np.polynomial.hermite_e.hermegauss(40)
    exact = (weight / weight.sum()) @ (1 / (1 + np.exp(-(float(mean) + float(covariance) ** 0.5 * node))))
    assert abs(float(found[1, 0]) - exact) < 4 * 0.5 / np.sqrt(400)
    for query in (([99], [[0, 1]]), ([0], [[0, 7]]), ([0], [[2]]), ([0, 1], [[0, 1]])):
        with pytest.raises(DataError):
            fit.predict(query)
