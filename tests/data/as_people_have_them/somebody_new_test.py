"""Users and items that a fit does not know, of models of ratings: an error, or with ``new="prior"`` somebody new."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from custom_inference import fit
from ppl_models import PMF, BilinearPMF, ChoicePMF, DataError, MethodError, impressions, ratings

QUIET = {"progress": False}
USERS = [f"u{n}" for n in range(40)]


@pytest.fixture(scope="module")
def clicks():
    rng = np.random.default_rng(0)
    user, item = rng.normal(size=(40, 2)), rng.normal(size=(6, 2))
    table = pd.DataFrame(1.0 * (rng.random((40, 6)) < 1 / (1 + np.exp(-2 * user @ item.T))), USERS, list("abcdef"))
    listed = table.stack().rename_axis(["user", "item"]).rename("rating").reset_index()
    data = ratings(listed)
    return fit(BilinearPMF.for_data(data, 2), data, **QUIET)


def test_clicks_of_somebody_new_are_those_of_the_prior(clicks):
    rng = np.random.default_rng(1)
    with pytest.raises(DataError, match="unknown users .*'eve'.*new='prior'"):
        clicks.predict((["eve"], ["a"]))
    said = clicks.predict((["eve", "u0", "u0"], ["a", "a", "z"]), new="prior", uncertainty=True)
    drawn = rng.normal(size=(200_000, 2))
    posterior = clicks.global_posterior.get("item")
    mean = clicks.params["item"][0].numpy()
    spread = np.zeros((2, 2)) if posterior is None else posterior.covariance[0].numpy()
    item = rng.multivariate_normal(mean, spread, size=len(drawn))
    chance = 1 / (1 + np.exp(-(drawn * item).sum(1)))
    assert float(said.mean[0]) == pytest.approx(chance.mean(), abs=0.01)
    assert float(said.sd[0]) == pytest.approx(chance.std(), abs=0.02)
    assert torch.allclose(said.mean[1:2], clicks.predict((["u0"], ["a"])))
    assert torch.allclose(said.spread, (said.mean * (1 - said.mean)).sqrt())
    with pytest.raises(MethodError, match="expected None or 'prior'"):
        clicks.predict((["eve"], ["a"]), new="mean")


def test_further_users_are_known_by_their_clicks(clicks):
    like = clicks.predict((["u3"] * 6, list("abcdef")))
    own = pd.DataFrame({"user": "eve", "item": list("abcdef"), "rating": clicks.data.dense().x[3].numpy()})
    said = clicks.predict((["eve"] * 6, list("abcdef")), ratings=own)
    assert torch.allclose(said, like, atol=0.02)


def choices():
    rng = np.random.default_rng(3)
    item, rows = np.array([[1.5, 0.0], [0.0, 1.5], [-1.0, -1.0], [0.5, 0.5]]), []
    for user in range(30):
        taste = rng.normal(size=2)
        for _ in range(4):
            shown = rng.choice(4, 3, replace=False)
            chance = np.exp(item[shown] @ taste)
            rows.append((user, shown.tolist(), int(rng.choice(shown, p=chance / chance.sum()))))
    return impressions(*(list(part) for part in zip(*rows, strict=True)), num_users=30)


def test_choices_of_somebody_new_are_those_of_the_prior():
    rng = np.random.default_rng(4)
    data = choices()
    found = fit(ChoicePMF.for_data(data, 2), data, **QUIET)
    with pytest.raises(DataError, match="1 unknown users.*new='prior'"):
        found.predict(([77], [[0, 1]]))
    said = found.predict(([77, 3], [[0, 1, 2], [0, 1]]), new="prior")
    logits = rng.normal(size=(100_000, 2)) @ found.params["item"][:3].numpy().T
    chance = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    error = chance.std(0) / np.sqrt(400)
    assert (np.abs(said[0].numpy() - chance.mean(0)) < 5 * error).all()
    assert torch.allclose(said[1, :2], found.predict(([3], [[0, 1]]))[0])
    with pytest.raises(DataError, match="num_user_covariates"):
        found.predict(([0], [[0, 1]]), user_covariates=np.zeros((1, 2)))


def test_choices_of_users_known_by_their_covariates():
    rng = np.random.default_rng(5)
    data, given = choices(), rng.normal(size=(30, 2))
    model = ChoicePMF.for_data(data, 2, num_user_covariates=2)
    found = fit(model, data, user_covariates=given, **QUIET)
    new = pd.DataFrame([[2.0, 0.0], [0.0, -1.0]], index=["ann", "bob"])
    said = found.predict((["bob", "ann"], [[0, 1, 2]] * 2), user_covariates=new)
    for row, name in zip(said.numpy(), ["bob", "ann"], strict=True):
        taste = rng.normal(size=(100_000, 2)) + new.loc[name].to_numpy() @ found.params["user_weight"].numpy()
        chance = np.exp(taste @ found.params["item"][:3].numpy().T)
        chance /= chance.sum(1, keepdims=True)
        assert (np.abs(row - chance.mean(0)) < 5 * chance.std(0) / np.sqrt(400)).all()


def test_pmf_has_the_same_faces():
    rng = np.random.default_rng(6)
    table = pd.DataFrame(3 + rng.normal(size=(40, 2)) @ rng.normal(size=(2, 6)), USERS, list("abcdef"))
    found = fit(PMF.for_data(table, 2), table, **QUIET)
    assert torch.isfinite(found.predict((["eve", "u1"], ["a", "z"]), new="prior")).all()
    with pytest.raises(DataError, match="unknown users"):
        found.predict((["eve"], ["a"]))


@pytest.fixture(scope="module")
def tall():
    """Ratings by what is known of users: 3 + 2 x."""
    rng = np.random.default_rng(0)
    known = rng.normal(size=40)
    user, item = np.nonzero(rng.random((40, 8)) < 0.7)
    value = 3 + 2 * known[user] + 0.05 * rng.normal(size=len(user))
    data = ratings([USERS[n] for n in user], [f"i{n}" for n in item], value, users=USERS)
    return fit(PMF.for_data(data, 1, num_user_covariates=1), data, user_covariates=known[:, None], **QUIET)


@pytest.mark.parametrize("new", [None, "prior"])
def test_whoever_is_given_covariates_is_asked_for_by_row_or_by_label(tall, new):
    frame = pd.DataFrame({"x": [1.5, -1.0]}, ["eve", "max"])
    by_label = tall.predict((["eve", "max"], ["i3", "i3"]), user_covariates=frame, new=new)
    by_row = tall.predict(([0, 1], ["i3", "i3"]), user_covariates=frame.to_numpy(), new=new)
    assert torch.equal(by_label, by_row) and by_row.numpy() == pytest.approx([6.0, 1.0], abs=0.2)
    for covariates in ([[1.5]], frame):  # neither a name without labels nor one that is misspelt has the prior
        with pytest.raises(DataError, match="1 unknown users .the first: 'ewe'.*in place of the fit's"):
            tall.predict((["ewe"], ["i3"]), user_covariates=covariates, new=new)
    with pytest.raises(DataError, match="1 unknown users .the first: 'u0'.*in place of the fit's"):
        tall.predict((["u0"], ["i3"]), user_covariates=frame, new=new)
