"""Users who are known by their covariates alone."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from custom_inference import fit
from ppl_models import PMF, BilinearPMF, DataError, ratings

RNG = np.random.default_rng(0)
COVARIATES = RNG.normal(size=(60, 2))
ITEM = np.array([[1.0, -1.0], [0.5, 1.0], [-1.0, 0.3], [0.2, 0.8], [-0.7, -0.9]])
SCORE = 3 + COVARIATES @ ITEM.T + 0.1 * RNG.normal(size=(60, 5))
NAMES = [f"film {n}" for n in range(5)]


@pytest.fixture(scope="module")
def found():
    table = pd.DataFrame(SCORE, columns=NAMES)
    model = PMF(num_components=2, num_users=60, num_items=5, num_user_covariates=2)
    return fit(model, table, user_covariates=COVARIATES, progress=False)


def test_users_without_ratings_are_known_by_their_covariates(found):
    """What the program says: a profile has its prior's mean, moved by x B; and near the truth."""
    new = RNG.normal(size=(4, 2))
    user, item = np.repeat(np.arange(4), 5), NAMES * 4
    said = found.predict((user, item), user_covariates=new, uncertainty=True)
    assert np.abs(said.mean.reshape(4, 5).numpy() - (3 + new @ ITEM.T)).max() < 0.5
    at = {site: value.flatten(0, 1).numpy() for site, value in found.draws.items()}
    profile = at["user_mean"][:, None] + new @ at["user_weight"]  # (S, 4, 3): a bias, and factors
    by_item = at["item_bias"][:, None] + profile[..., :1] + profile[..., 1:] @ at["item"].swapaxes(1, 2)
    expected = (at["mean"].reshape(-1, 1, 1) + by_item).mean(0).reshape(-1)
    assert np.allclose(said.mean.numpy(), expected)


def test_labels_uncertainty_and_ratings_beside(found):
    new = pd.DataFrame(RNG.normal(size=(2, 2)), index=["ann", "bob"])
    pairs = (["bob", "ann"], ["film 1"] * 2)
    said = found.predict(pairs, user_covariates=new, new="prior", uncertainty=True)
    by_number = found.predict(([1, 0], ["film 1"] * 2), user_covariates=new.to_numpy())
    assert torch.allclose(said.mean, by_number) and bool((said.sd > 0).all())
    rated = ratings(["ann", "ann", "bob"], ["film 0", "film 2", "film 0"], [9.0, 1.0, 2.0])
    more = found.predict((["ann"], ["film 0"]), ratings=rated, user_covariates=new)
    before = found.predict((["ann"], ["film 0"]), user_covariates=new)
    assert abs(float(more) - 9) < abs(float(before) - 9)  # what was rated counts beside what is known
    assert abs(float(more - before)) > 1e-3


def test_wrong_covariates_are_refused(found):
    with pytest.raises(DataError, match="user_covariates"):
        found.predict(([0], ["film 0"]), user_covariates=np.zeros((2, 3)))
    with pytest.raises(DataError, match="1 dimensions"):
        found.predict(([0], ["film 0"]), user_covariates=np.zeros(2))
    plain = fit(PMF(num_components=1, num_users=60, num_items=5), SCORE, progress=False)
    with pytest.raises(DataError, match="num_user_covariates"):
        plain.predict(([0], [0]), user_covariates=np.zeros((1, 2)))


def posterior_draws(found, site):
    """Independent Gaussian draws, (200 000, P, K)."""
    mean, covariance = found.global_posterior[site].mean.numpy(), found.global_posterior[site].covariance.numpy()
    deviation = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
    return mean + deviation * RNG.normal(size=(200_000, *mean.shape))


def test_clicks_of_users_without_any():
    """P(click) at the program's own prior of the factors, moved by x B, by plain Monte Carlo: B and the items are draws
    from their posteriors."""
    clicked = (RNG.random((60, 5)) < 1 / (1 + np.exp(-2 * COVARIATES @ ITEM.T))) * 1.0
    model = BilinearPMF(num_components=2, num_users=60, num_items=5, num_user_covariates=2)
    found = fit(model, clicked, user_covariates=COVARIATES, progress=False)
    new = pd.DataFrame([[1.0, -0.5], [-0.3, 2.0]], index=["ann", "bob"])
    said = found.predict((["bob", "ann"], [3, 0]), user_covariates=new)
    own, weight, every = RNG.normal(size=(200_000, 2)), *(posterior_draws(found, s) for s in ("user_weight", "item"))
    for chance, name, item in zip(said.tolist(), ["bob", "ann"], [3, 0], strict=True):
        factors = own + new.loc[name].to_numpy() @ weight
        drawn = 1 / (1 + np.exp(-(factors * every[:, item]).sum(-1)))
        assert chance == pytest.approx(drawn.mean(), abs=0.01)
    with pytest.raises(DataError, match="1 unknown users .*'eve'"):
        found.predict((["eve"], [0]), user_covariates=new)
