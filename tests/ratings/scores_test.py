"""Measures of ratings against scikit-learn's and against counting by hand."""

import itertools

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, mean_absolute_error, ndcg_score, root_mean_squared_error

from custom_inference import ratings
from ppl_models import DataError, MethodError

pytestmark = pytest.mark.quick

RANKINGS = (ratings.precision_at, ratings.recall_at, ratings.ndcg_at, ratings.average_precision)


def problem(seed, *, ties):
    """Ratings 0 to 4 of users with two to nine items in mixed order, some predictions equal; one has all zeros."""
    rng = np.random.default_rng(seed)
    user = np.repeat(np.arange(12) * 7, rng.integers(2, 10, 12))
    rng.shuffle(user)
    prediction = rng.integers(0, 4, len(user)) / 2 if ties else rng.normal(size=len(user))
    return prediction.astype(float), np.where(user == 7, 0.0, rng.integers(0, 5, len(user))), user


def of_users(prediction, value, user, measure):
    return np.array([measure(prediction[user == one], value[user == one]) for one in np.unique(user)])


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("k", [1, 3, None])
def test_ndcg_is_scikit_learns(ties, k):
    data = problem(1, ties=ties)
    expected = of_users(*data, lambda p, r: ndcg_score(r[None], p[None], k=k) if r.any() else np.nan)
    assert np.allclose(ratings.ndcg_at(*data, k, average=False), expected, equal_nan=True)
    raised = of_users(*data, lambda p, r: ndcg_score(2.0 ** r[None] - 1, p[None], k=k) if r.any() else np.nan)
    assert np.allclose(ratings.ndcg_at(*data, k, gain="exponential", average=False), raised, equal_nan=True)
    assert np.isclose(ratings.ndcg_at(*data, k), np.nanmean(expected))


@pytest.mark.parametrize("ties", [False, True])
def test_average_precision_is_scikit_learns(ties):
    data = problem(2, ties=ties)
    expected = of_users(*data, lambda p, r: average_precision_score(r >= 3, p) if (r >= 3).any() else np.nan)
    assert np.isnan(expected).any(), "some user has no relevant pair"
    assert np.allclose(ratings.average_precision(*data, relevant=3, average=False), expected, equal_nan=True)
    assert np.isclose(ratings.average_precision(*data, relevant=3), np.nanmean(expected))


@pytest.mark.parametrize("k", [1, 2, 4])
def test_precision_and_recall_are_means_over_all_orders_of_equal_predictions(k):
    rng = np.random.default_rng(3)
    user = np.repeat([0, 1, 2], 5)
    prediction, value = rng.integers(0, 3, 15).astype(float), rng.integers(0, 2, 15).astype(float)

    def hits(p, r):
        """Mean of the relevant among the first k over the orders that the predictions allow."""
        orders = [o for o in itertools.permutations(range(5)) if (np.diff(p[list(o)]) <= 0).all()]
        return np.mean([r[list(o)][:k].sum() for o in orders])

    expected = of_users(prediction, value, user, hits)
    relevant = np.bincount(user, value)
    assert np.allclose(ratings.precision_at(prediction, value, user, k, average=False), expected / k)
    assert np.allclose(ratings.recall_at(prediction, value, user, k, average=False), expected / relevant)


def test_a_user_with_fewer_pairs_than_k_has_k_in_the_denominator():
    assert ratings.precision_at([3.0, 2.0], [1.0, 1.0], [0, 0], 4) == 0.5
    assert ratings.recall_at([3.0, 2.0], [1.0, 1.0], [0, 0], 4) == 1.0


def test_errors_are_scikit_learns():
    prediction, value, user = problem(4, ties=False)
    assert np.isclose(ratings.rmse(prediction, value), root_mean_squared_error(value, prediction))
    assert np.isclose(ratings.mae(prediction, value), mean_absolute_error(value, prediction))
    root = of_users(prediction, value, user, lambda p, r: root_mean_squared_error(r, p))
    assert np.allclose(ratings.rmse(prediction, value, user, average=False), root)
    assert np.isclose(ratings.rmse(prediction, value, user), root.mean())
    absolute = of_users(prediction, value, user, lambda p, r: mean_absolute_error(r, p))
    assert np.allclose(ratings.mae(prediction, value, user, average=False), absolute)


def test_coverage_counts_the_ends():
    lower, upper = np.zeros(4), np.ones(4)
    value, user = np.array([0.0, 1.0, 0.5, 2.0]), ["b", "a", "b", "a"]
    assert ratings.interval_coverage(lower, upper, value) == 0.75
    assert np.array_equal(ratings.interval_coverage(lower, upper, value, user, average=False), [0.5, 1.0])


@pytest.mark.parametrize("ties", [False, True])
def test_the_order_of_the_data_does_not_matter(ties):
    data = problem(5, ties=ties)
    order = np.random.default_rng(0).permutation(len(data[0]))
    for measure in RANKINGS:
        moved = measure(*(one[order] for one in data), average=False)
        assert np.allclose(measure(*data, average=False), moved, equal_nan=True), measure.__name__


def test_the_table_has_each_measure_by_the_users_labels():
    prediction, value, user = problem(6, ties=True)
    table = ratings.ranking_scores(torch.as_tensor(prediction), torch.as_tensor(value), user, (2, 4), relevant=3)
    assert list(table.index) == sorted(set(user)) and table.shape == (12, 7)
    for k in (2, 4):
        assert np.isclose(table[f"precision@{k}"].mean(), ratings.precision_at(prediction, value, user, k, relevant=3))
        assert np.isclose(table[f"recall@{k}"].mean(), ratings.recall_at(prediction, value, user, k, relevant=3))
        assert np.isclose(table[f"ndcg@{k}"].mean(), ratings.ndcg_at(prediction, value, user, k))
    names = ratings.ranking_scores(prediction, value, [f"user {one}" for one in user], 2)
    assert names.loc["user 14", "ndcg@2"] == table.loc[14, "ndcg@2"]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ratings.rmse([1.0, 2.0], [1.0]), DataError, "2 of 'prediction', 1 of 'value'"),
        (lambda: ratings.mae([1.0, np.nan], [1.0, 1.0]), DataError, "not finite .*pair 1"),
        (lambda: ratings.rmse([], []), DataError, "no pairs"),
        (lambda: ratings.rmse([1.0], [1.0], average=False), MethodError, "expected user="),
        (lambda: ratings.precision_at([1.0], [1.0], [0, 1]), DataError, "2 users of 1 pairs"),
        (lambda: ratings.precision_at([1.0], [1.0], [0], 0), MethodError, "k = 0"),
        (lambda: ratings.ndcg_at([1.0], [-1.0], [0]), DataError, "1 values below 0"),
        (lambda: ratings.ndcg_at([1.0], [1.0], [0], gain="cubic"), MethodError, "valid: "),
        (lambda: ratings.interval_coverage([1.0], [0.0], [0.5]), DataError, "end before they begin"),
    ],
)
def test_bad_input_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()
