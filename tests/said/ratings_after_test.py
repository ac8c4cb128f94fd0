"""What comes after a fit of ratings: evidence and profiles at given globals, estimators, recommendations, the shell."""

from __future__ import annotations

import time

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from typer.testing import CliRunner

import custom_inference as ci
from custom_inference.faces.command_line.app import app
from custom_inference.faces.sklearn.factory import estimator_of
from ppl_models import PMF, BilinearPMF, ChoicePMF, DataError, MethodError, ratings

QUIET = {"progress": False}


def table(seed=0, users=80, items=30, share=0.6):
    rng = np.random.default_rng(seed)
    x = 3 + 0.5 * rng.normal(size=(users, 1)) + 0.5 * rng.normal(size=items)
    x = x + rng.normal(size=(users, 2)) @ rng.normal(size=(2, items)) + 0.5 * rng.normal(size=(users, items))
    x[rng.random(x.shape) > share] = np.nan
    return x


def outcomes(x, levels):
    return np.where(np.isnan(x), np.nan, x > 3) if levels is None else np.clip(np.round(x), *levels)


@pytest.mark.parametrize(("likelihood", "levels"), [("logistic", None), ("ordinal", (1, 5))])
def test_evidence_of_other_likelihoods_is_the_integral_over_profiles(likelihood, levels):
    """By a fine grid over (f, u) for one factor; the bound is below it."""
    x = outcomes(table(users=12, items=8), levels)
    model = PMF(num_components=1, num_users=12, num_items=8, likelihood=likelihood, levels=levels)
    fit = ci.fit(model, ratings(x, num_users=12, num_items=8), sweeps=5, **QUIET)
    at = fit.globals
    prior = stats.multivariate_normal(at["user_mean"].numpy(), at["user_covariance"].numpy())
    spread = 7 * np.sqrt(np.diag(prior.cov))
    f, u = (np.linspace(m - s, m + s, 301) for m, s in zip(prior.mean, spread, strict=True))
    grid = np.stack(np.meshgrid(f, u, indexing="ij"), -1).reshape(-1, 2)
    eta = torch.as_tensor(grid[:, :1] + grid[:, 1:] * at["item"][:, 0].numpy()) + at["mean"] + at["item_bias"]
    bound = fit.log_likelihood(bound="gaussian").numpy()
    found, mean = fit.log_likelihood(bound="exact").numpy(), fit.posterior_of(fit.data).mean.numpy()
    for n in range(3):
        seen = ~np.isnan(x[n])
        each = model.entry(at, eta[:, seen]).log_prob(torch.as_tensor(x[n, seen])).sum(1).numpy() + prior.logpdf(grid)
        mass = np.exp(each) * (f[1] - f[0]) * (u[1] - u[0])
        assert found[n] == pytest.approx(np.log(mass.sum()), abs=1e-4)
        assert mean[n] == pytest.approx(mass @ grid / mass.sum(), abs=1e-4)
        assert bound[n] < found[n] + 1e-9


@pytest.mark.parametrize("beside", [False, True])
def test_evidence_with_covariates_and_times_is_that_of_the_dense_gaussian(beside):
    x, rng = table(users=10, items=6), np.random.default_rng(1)
    given = (
        {"user_covariates": rng.normal(size=(10, 2)), "time": rng.random(int((~np.isnan(x)).sum()))} if beside else {}
    )
    settings = {"num_user_covariates": 2, "time_edges": (0.5,)} if beside else {}
    model = PMF(num_components=2, num_users=10, num_items=6, varying_noise=float("inf"), **settings)
    data = ratings(x, num_users=10, num_items=6)
    fit = ci.fit(model, data, sweeps=3, **given, **QUIET)
    at, found, start = fit.globals, fit.log_likelihood().numpy(), 0
    for n in range(4):
        seen = ~np.isnan(x[n])
        a = np.concatenate([np.ones((seen.sum(), 1)), at["item"].numpy()[seen]], 1)
        mean, items = at["user_mean"].numpy(), np.flatnonzero(seen)
        centre = at["mean"].numpy() + at["item_bias"].numpy()[seen]
        if beside:
            place = (given["time"][start : start + seen.sum()] >= 0.5).astype(int)
            centre = centre + at["bin_bias"].numpy()[place] + at["item_bin_bias"].numpy()[items, place]
            mean = mean + given["user_covariates"][n] @ at["user_weight"].numpy()
        start += seen.sum()
        joint = a @ at["user_covariance"].numpy() @ a.T + float(at["scale"]) ** 2 * np.eye(len(a))
        assert found[n] == pytest.approx(
            stats.multivariate_normal(centre + a @ mean, joint).logpdf(x[n, seen]), abs=1e-8
        )


@pytest.mark.parametrize("settings", [{}, {"likelihood": "logistic"}, {"likelihood": "ordinal", "levels": (1, 5)}])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_estimators_are_quick_and_whole(settings, number):
    x = table() if not settings else outcomes(table(), settings.get("levels"))
    made = estimator_of(PMF)(n_components=number, random_state=0, **settings).fit(x)
    start = time.process_time()
    latent = made.transform(x)
    back = made.inverse_transform(latent)
    assert np.isfinite([made.fit_.bic(), made.bic(x), made.score(x)]).all()
    assert time.process_time() - start < 8  # of a busy machine; half a minute each before
    at = made.fit_.globals
    eta = latent[:, :1] + latent[:, 1:] @ at["item"].numpy().T + (at["mean"] + at["item_bias"]).numpy()
    law = made.fit_.model.entry(at, torch.as_tensor(eta)) if settings else None
    assert np.allclose(back, eta if law is None else law.mean.numpy())


def test_estimators_take_what_is_known_of_users_with_them():
    x, rng = table(users=40, items=8), np.random.default_rng(0)
    given = rng.normal(size=(40, 2))
    made = estimator_of(PMF)(n_components=1, num_user_covariates=2, random_state=0).fit(x, user_covariates=given)
    own = made.fit_.posterior_of(x, user_covariates=given).mean.numpy()
    assert np.allclose(made.transform(x, user_covariates=given), own)
    with pytest.raises(DataError, match="rows without their user_covariates"):
        made.transform(x)
    assert not hasattr(made, "inverse_transform")
    quick = {"method": "svi_delta", "settings": {"steps": 20}}
    plain = estimator_of(PMF)(n_components=1, adaptive=False, likelihood="logistic", random_state=0, **quick)
    assert plain.fit(outcomes(x, None)).inverse_transform(np.zeros((2, 2))).shape == (2, 8)


@pytest.fixture(scope="module")
def stars():
    x = np.clip(np.round(table(users=20, items=12)), 1, 5)
    user, item = np.nonzero(~np.isnan(x))
    data = ratings([f"u{n}" for n in user], 100 + item, x[user, item])
    return ci.fit(PMF.for_data(data, 1), data, **QUIET)


def test_the_best_items_that_a_user_has_not_rated(stars):
    users, data = stars.data.coords["row"], stars.data
    found = stars.recommend(n=3)
    assert list(found.columns) == ["user", "rank", "item", "mean"]
    for number, who in enumerate(users):
        seen = {100 + int(v) for v in data.item[data.user == number]}
        left = [v for v in data.coords["feature"] if v not in seen]
        every = pd.Series(stars.predict(([who] * len(left), left)).numpy(), left).sort_values(ascending=False)
        mine = found[found["user"] == who]
        assert mine["item"].tolist() == every.index[:3].tolist()
        assert np.allclose(mine["mean"], every[:3])
        assert mine["rank"].tolist() == [1, 2, 3][: len(every)]
    whole = stars.recommend(["u3", "u1"], 99, exclude_seen=False, uncertainty=True, clip=True)
    assert whole["user"].tolist() == ["u3"] * 12 + ["u1"] * 12
    assert whole[["mean", "low", "high"]].to_numpy().max() <= 5
    assert {"sd", "low", "high"} <= set(whole.columns)
    order = stars.recommend(["u3"], 12, exclude_seen=False)["item"].tolist()
    assert whole["item"].tolist()[:12] == order
    with pytest.raises(DataError, match="1 unknown users .*'eve'"):
        stars.recommend(["eve"])
    somebody = stars.recommend(["eve"], 12, new="prior")
    assert somebody["user"].tolist() == ["eve"] * 12
    own = ratings(["zoe"] * 2, [100, 101], [5.0, 1.0])
    assert not set(stars.recommend(n=12, ratings=own)["item"]) & {100, 101}
    with pytest.raises(MethodError, match="n = 0"):
        stars.recommend(n=0)


def test_clicks_are_recommended_and_choices_are_not():
    x = (np.random.default_rng(0).random((6, 5)) < 0.5) * 1.0
    fit = ci.fit(BilinearPMF(num_components=1), x, **QUIET)
    assert fit.recommend(exclude_seen=False).shape == (30, 4)
    assert not len(fit.recommend())  # everybody has seen all
    with pytest.raises(MethodError, match="unknown argument of predict of BilinearPMF 'clip'"):
        fit.recommend(exclude_seen=False, clip=True)
    choices = ci.fit(ChoicePMF(num_components=1, num_users=6, num_items=3, num_choices=4), (x[:, :4]), **QUIET)
    with pytest.raises(MethodError, match="ChoicePMF predicts no items for users"):
        choices.recommend()


def test_the_shell_recommends_and_clips(stars, tmp_path):
    path = stars.save(tmp_path / "fit.safetensors")
    done = CliRunner().invoke(
        app, ["recommend", str(path), "--user", "u3", "-n", "2", "--out", str(tmp_path / "best.csv")]
    )
    assert done.exit_code == 0, done.output
    best = pd.read_csv(tmp_path / "best.csv")
    assert best.columns.tolist() == ["user", "rank", "item", "mean", "sd", "q5", "q95"]
    assert best["item"].tolist() == stars.recommend(["u3"], 2)["item"].tolist()
    pd.DataFrame({"user": ["u3"], "item": [101]}).to_csv(tmp_path / "pairs.csv", index=False)
    done = CliRunner().invoke(app, ["predict", str(path), str(tmp_path / "pairs.csv"), "--clip"])
    assert done.exit_code == 0, done.output
    assert float(done.output.splitlines()[-1].split(",")[-1]) <= 5


@pytest.mark.parametrize("guide", ["mean_field", "gaussian", "delta", pytest.param("normal", marks=pytest.mark.slow)])
def test_sparse_clicks_are_fitted_by_every_guide(guide):
    rng = np.random.default_rng(0)
    user, item = np.nonzero(rng.random((12, 8)) < 0.8)
    clicks = ratings(user, item, (rng.random(len(user)) < 0.6).astype(float), num_users=12, num_items=8)
    model = PMF(num_components=1, num_users=12, num_items=8, likelihood="logistic", adaptive=False)
    found = ci.SVI(guide=guide, steps=2).fit(model, clicks, progress=False)
    assert bool(torch.isfinite(found.elbo).all())
