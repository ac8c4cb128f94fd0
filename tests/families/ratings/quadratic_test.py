"""Bilinear factors by quadratic bounds: below the exact evidence, climbing to where the bound's own slope is zero."""

from dataclasses import replace

import numpy as np
import pyro
import pytest
import scipy.sparse
import torch
from pyro import poutine

import custom_inference as ci
from custom_inference.core.local_inference import LocalSolver
from custom_inference.families.ratings.quadratic import ClickBound
from ppl_models import BilinearPMF, DataError, PriorError, ratings
from ppl_models.distributions import Flat
from tests.references import bilinear_pmf as reference
from tests.support.cases import at_subsample, problem_of


def numbers(params):
    return {site: value.numpy() for site, value in params.items()}


def with_features(seed=0, missing=0.3):
    """The example with smaller factors, two features of users, three of items (the first constant); entries missing."""
    example, rng = problem_of("bilinear_pmf"), np.random.default_rng(seed)
    model = replace(example.model, num_user_covariates=2, num_item_covariates=3)
    weights = {"user_weight": torch.tensor([[0.5, 0.0], [1.0, -1.0]]), "item_weight": rng.normal(size=(3, 2))}
    sides = {"user": (32, 2), "item": (8, 3)}
    features = {f"{side}_covariates": rng.normal(size=size) for side, size in sides.items()}
    features = {site: torch.as_tensor(value) for site, value in features.items()}
    params = {"item": example.truth["item"] / 1.5} | {site: torch.as_tensor(value) for site, value in weights.items()}
    for value in features.values():
        value[:, 0] = 1.0
    factor = example.truth["user"] + features["user_covariates"] @ params["user_weight"]
    odds = factor @ (params["item"] + features["item_covariates"] @ params["item_weight"]).T
    x = (torch.as_tensor(rng.random((32, 8))) < torch.sigmoid(odds)).double()
    x = torch.where(torch.as_tensor(rng.random((32, 8)) < missing), torch.nan, x)
    return model, params, model.prepare(x, **features)


def test_the_program_is_the_references():
    """Its log joint with features of both sides and missing entries; all users, and a quarter of them for four."""
    model, params, data = with_features()
    user = problem_of("bilinear_pmf").truth["user"]
    given = {site: value.numpy() for site, value in data.others.items()}
    priors = {site: ("normal", 0.0, 1.0) for site in params}
    expected = reference.log_joint(numbers(params), data.x.numpy(), user.numpy(), data.mask.numpy(), priors, **given)
    values = {**params, "user": user}
    trace = poutine.trace(pyro.condition(model, data=values)).get_trace(data.x, mask=data.mask, **data.others)
    assert np.isclose(float(trace.log_prob_sum()), expected, rtol=1e-12)
    parts = []
    for index in torch.arange(32).split(8):
        program = at_subsample(pyro.condition(model, data={**params, "user": user[index]}), index)
        with poutine.substitute(data={}):
            one = poutine.trace(program).get_trace(data.x, mask=data.mask, batch_size=8, **data.others)
        parts.append(float(one.log_prob_sum()))
    assert np.isclose(np.mean(parts), expected, rtol=1e-12)


def test_the_bound_is_below_the_evidence_by_the_fourth_power_of_the_weights():
    """The quadratic touches where E[theta^2] is; what is left out are fourth moments of the log-odds."""
    model, params, data = with_features()
    gaps = {}
    for scale in (1.0, 0.2, 0.1):
        smaller = {site: scale * value for site, value in params.items()}
        local = LocalSolver(engine=ClickBound()).solve(model, smaller, data)
        arguments = numbers(smaller), data.x.numpy(), data.mask.numpy(), *(v.numpy() for v in data.others.values())
        gap = reference.log_evidence_hermite(*arguments) - local.bound.numpy()
        assert (gap > 0).all()
        gaps[scale] = gap.mean()
        off = np.abs(local.posterior.mean.numpy() - reference.posterior_mean_hermite(*arguments)).max()
        assert off < (0.1 if scale == 1 else 0.01)
    assert 12 < gaps[0.2] / gaps[0.1] < 20


def test_a_fit_ends_where_the_slope_of_its_objective_is_zero():
    """Finite differences of the bound, maximised over the posteriors, plus the log prior."""
    model, _, data = with_features()
    settings = {"tolerance": 1e-13, "max_iterations": 4000, "accelerate": "squarem", "search": None}
    fit = ci.VariationalEM(guide="gaussian", **settings).fit(model, data, progress=False)
    model = fit.model  # on the scale of the features
    solver = LocalSolver(engine=ClickBound(), max_iterations=2000, tolerance=1e-12)

    def objective(params):
        return float(solver.solve(model, params, data).bound.sum() + model.log_prior(params))

    assert np.isclose(objective(fit.params), float(fit.elbo[-1]), atol=1e-6)
    for site, value in fit.params.items():
        for at in list(np.ndindex(*value.shape))[::5]:
            ends = []
            for step in (1e-4, -1e-4):
                moved = value.clone()
                moved[at] += step
                ends.append(objective({**fit.params, site: moved}))
            assert abs(ends[0] - ends[1]) / 2e-4 < 2e-3, (site, at)


def test_ratings_and_a_matrix_give_the_same_fit():
    model, _, data = with_features()
    user, item = (part.numpy() for part in data.mask.nonzero(as_tuple=True))
    clicks = ratings(user, item, data.x[data.mask].numpy(), num_users=32, num_items=8)
    one = ci.fit(model, data, progress=False, seed=2)
    other = ci.fit(model, clicks, progress=False, seed=2, **data.others)
    for site, value in one.params.items():
        assert torch.allclose(value, other.params[site], atol=1e-8), site


@pytest.mark.xfail(reason="users given anew alone end up to .15 from where they are among all", strict=True)
def test_some_users_given_anew_are_where_they_were():
    model, _, data = with_features()
    user, item = (part.numpy() for part in data.mask.nonzero(as_tuple=True))
    clicks = ratings(user, item, data.x[data.mask].numpy(), num_users=32, num_items=8)
    fit = ci.fit(model, clicks, progress=False, seed=2, **data.others)
    few = fit.transform(clicks.rows(slice(3, 9)), user_covariates=data.others["user_covariates"][3:9])
    assert torch.allclose(few, fit.transform()[3:9], atol=1e-5)


def test_features_tell_of_new_users_and_items():
    """Held out clicks of users without any others: by their features better than by the share of clicks."""
    rng = np.random.default_rng(5)
    z, w = rng.normal(size=(40, 3)), np.eye(3)
    features = rng.normal(size=(150, 3))
    odds = (features @ w + 0.3 * rng.normal(size=(150, 3))) @ z.T
    x = (rng.random(odds.shape) < 1 / (1 + np.exp(-odds))).astype(float)
    model = BilinearPMF(num_components=3, num_users=100, num_items=40, num_user_covariates=3, num_item_covariates=3)
    given = {"user_covariates": features[:100], "item_covariates": z}
    fit = ci.fit(model, x[:100], progress=False, **given)
    factor = torch.as_tensor(features[100:]) @ fit.params["user_weight"]
    item = model.item_factors(fit.params, torch.as_tensor(z))
    p = torch.sigmoid(factor @ item.T).numpy()
    loss = -np.mean(np.log(np.where(x[100:] > 0, p, 1 - p)))
    truth = 1 / (1 + np.exp(-odds[100:]))
    least = -np.mean(np.log(np.where(x[100:] > 0, truth, 1 - truth)))
    assert loss < least + 0.25 * (np.log(2) - least)


def test_bad_input_is_named():
    model, _, data = with_features()
    with pytest.raises(DataError, match=r"user_covariates.*\(32, 2\)"):
        model.prepare(data.x, user_covariates=np.ones((32, 3)))
    with pytest.raises(DataError, match="item_covariates.*not finite"):
        model.prepare(data.x, item_covariates=np.full((8, 3), np.inf))
    with pytest.raises(DataError, match="neither 0 nor 1"):
        model.prepare(ratings([0, 1], [0, 1], [1.0, 3.0], num_users=32, num_items=8))
    with pytest.raises(DataError, match="9 items"):
        model.prepare(ratings([0, 1], [0, 1], [1.0, 0.0], num_users=32, num_items=9))
    with pytest.raises(DataError, match="same"):
        ci.fit(model, np.ones((32, 8)), progress=False)
    flat = model.with_priors(user=Flat(torch.distributions.Normal(0.0, 1.0)))
    with pytest.raises(PriorError, match="cannot be integrated out"):
        ci.VariationalEM(guide="gaussian").fit(flat, data, progress=False)


def test_sparse_matrices_of_clicks_are_refused():
    """They do not say whether what is not stored is a no or unknown."""
    model = BilinearPMF(num_components=1, num_users=3, num_items=3)
    with pytest.raises(DataError, match=r"is a no or is unknown.*ratings\(x\)"):
        model.prepare(scipy.sparse.csr_array(np.eye(3)))
    assert model.prepare(ratings(scipy.sparse.csr_array(np.eye(3)))).x.values().numel() == 3
