"""RBMEstimator: the names, values and rows that scikit-learn's BernoulliRBM takes."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score

import custom_inference as ci
from custom_inference.faces.sklearn import RBMEstimator
from ppl_models import RBM, DataError, MethodError
from tests.references import rbm as reference
from tests.references._shared import all_codes

pytestmark = pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")


def patterns(rows=120, seed=0):
    """Two kinds of rows over six entries, as probabilities that these are 1."""
    rng = np.random.default_rng(seed)
    kind = rng.random((rows, 1)) < 0.5
    return np.clip(np.where(np.arange(6) < 3, kind, ~kind) + rng.normal(0.0, 0.2, (rows, 6)), 0.0, 1.0)


def machine(**settings):
    settings = {"n_components": 3, "learning_rate": 0.2, "batch_size": 20, "n_iter": 30, "random_state": 0, **settings}
    return RBMEstimator(**settings)


def weights(estimator):
    sites = {"weight": "components_", "visible_bias": "intercept_visible_", "hidden_bias": "intercept_hidden_"}
    return {site: getattr(estimator, name) for site, name in sites.items()}


def test_settings_of_stochastic_learning_choose_persistent_cd():
    x = patterns()
    before = x.copy()
    estimator: Any = machine().fit(x)
    assert estimator.fit_.method_name == "PCD-1" and estimator.fit_.details["passes"] == 30
    model = RBM(num_hidden=3, num_features=6, visible="probability")
    same = ci.fit(model, x, method="pcd", learning_rate=0.2, batch_size=20, max_iterations=30, progress=False)
    assert np.allclose(estimator.components_, same.params["weight"], rtol=1e-4, atol=1e-5)
    assert np.array_equal(x, before) and RBMEstimator(3).fit(x.round()).fit_.method != "PCD-1"
    with pytest.raises(MethodError, match="batch_size = 0"):
        machine(batch_size=0).fit(x)
    copy: Any = clone(estimator)
    assert copy.get_params() == estimator.get_params()


def test_probabilities_score_below_the_rows_they_are_of():
    """-F is convex: log p(x) <= E log p(v) under independent v_d ~ Bernoulli(x_d), the same where x is 0 or 1."""
    x = patterns(8)
    estimator = RBMEstimator(2, n_iter=60, random_state=0).fit(patterns())
    codes, found = all_codes(6), weights(estimator)
    log_p = reference.log_evidence(found, codes)
    chance = np.where(codes == 1, x[:, None], 1 - x[:, None]).prod(-1)
    score = estimator.score_samples(x)
    assert (score <= chance @ log_p + 1e-9).all() and (score < chance @ log_p - 1e-3).any()
    assert np.allclose(estimator.score_samples(codes), log_p, atol=1e-6)
    assert np.allclose(estimator.transform(x), reference.hidden_probability(found, x), atol=1e-6)


def free_energy(found, x):
    """-F(x)."""
    return x @ found["visible_bias"] + np.logaddexp(0, found["hidden_bias"] + x @ found["weight"].T).sum(1)


def test_pseudo_likelihood_is_that_of_every_entry_given_the_others():
    """Against the flipped entry; of probabilities too, as BernoulliRBM has it of one entry of a row."""
    x = patterns(7)
    estimator = machine(bound="pseudo_likelihood").fit(patterns())
    found, expected = weights(estimator), np.zeros(7)
    for column in range(6):
        other = x.copy()
        other[:, column] = 1 - other[:, column]
        own, flipped = (free_energy(found, rows) for rows in (x, other))
        expected += own - np.logaddexp(own, flipped)
    assert estimator.bound_name_ == "pseudo_likelihood"
    assert np.allclose(estimator.score_samples(x), expected, atol=1e-5)
    assert machine().fit(patterns()).bound_name_ == "exact"
    wide = RBMEstimator(21, n_iter=1).fit(np.tile(x, (1, 4)))
    assert wide.bound_name_ == "pseudo_likelihood" and np.isfinite(wide.score(np.tile(x, (1, 4))))


def test_parts_of_the_rows_are_learned_from_one_after_the_other():
    """Most of what the exact maximum gains over independent entries is gained."""
    x = patterns(200).round()
    estimator = machine(learning_rate=0.1)
    for number in range(200):
        estimator.partial_fit(x[20 * (number % 10) :][:20])
    assert "learned from 4000 rows" in estimator.fit_.status
    mean = x.mean(0)
    alone = (x * np.log(mean) + (1 - x) * np.log(1 - mean)).sum(1).mean()
    best = RBMEstimator(3, random_state=0).fit(x).score(x)
    ours = reference.log_evidence(weights(estimator), x).mean()
    assert ours > alone + 0.6 * (best - alone)
    known = estimator.fit(x).score(x)
    estimator.learning_rate = 0.02
    assert known - 0.1 < estimator.partial_fit(x).score(x) != known
    with pytest.raises(MethodError, match="partial_fit by EM.*expected 'cd'"):
        RBMEstimator(2, method="em").partial_fit(x)


def test_gibbs_draws_both_layers_from_their_conditionals():
    x = patterns(1).round()
    estimator = machine().fit(patterns())
    found = weights(estimator)
    many = np.repeat(x, 4000, axis=0)
    chance = reference.hidden_probability(found, x)[0]
    assert np.abs(estimator.sample_hidden(many, 0).mean(0) - chance).max() < 0.05
    codes = all_codes(3)
    share = np.where(codes == 1, chance, 1 - chance).prod(1)
    on = share @ (1 / (1 + np.exp(-(found["visible_bias"] + codes @ found["weight"]))))
    drawn = estimator.gibbs(many, random_state=1)
    assert np.abs(drawn.mean(0) - on).max() < 0.05 and set(np.unique(drawn)) <= {0.0, 1.0}
    assert not np.array_equal(estimator.gibbs(many), estimator.gibbs(many)), "every call draws anew"
    with pytest.raises(NotFittedError):
        machine().gibbs(x)
    with pytest.raises(DataError, match="no probabilities"):
        estimator.gibbs(2 * np.ones((1, 6)))


def test_missing_entries_categories_and_cross_validation():
    x = patterns()
    assert np.isfinite(cross_val_score(machine(n_iter=2), x, cv=3)).all()
    holes = np.where(np.random.default_rng(0).random(x.shape) < 0.1, np.nan, x)
    estimator = machine(n_iter=3).fit(holes)
    assert np.isfinite(estimator.partial_fit(holes[:30]).transform(holes[:30])).all()
    with pytest.raises(MethodError, match="rows with missing entries"):
        estimator.gibbs(holes)
    categories = machine(visible="categorical", n_iter=2).fit((3 * x).round())
    assert categories.gibbs((3 * x).round()).max() <= 3 and categories.components_.shape == (3, 24)
    assert isinstance(categories.fit_.params["weight"], torch.Tensor)
