"""The helper functions of the citation benchmark, against enumeration."""

from itertools import combinations, permutations

import numpy as np
import pytest

from benchmarks.quality._citations import COMMUNITIES, Components, score, successes, weighted_cosines
from benchmarks.quality._set_models import elementary, log_set_given_size, log_size, log_words


def test_elementary_symmetric_polynomials_are_sums_over_subsets():
    q = np.random.default_rng(0).dirichlet(np.ones(6), 3)
    found = elementary(q, 4)
    for row, values in zip(q, found, strict=True):
        for n in range(5):
            assert values[n] == pytest.approx(sum(np.prod(row[list(s)]) for s in combinations(range(6), n)))


def test_probabilities_of_all_sets_of_a_size_add_up_to_one():
    """And are those of n draws in any order, given that all differ."""
    rng = np.random.default_rng(1)
    q, weight = rng.dirichlet(np.ones(5), 2), np.array([0.3, 0.7])
    sets = list(combinations(range(5), 3))
    x = np.zeros((len(sets), 5))
    for row, members in zip(x, sets, strict=True):
        row[list(members)] = 1
    found = np.exp(log_set_given_size(x, q, np.log(weight)))
    assert found.sum() == pytest.approx(1)
    drawn = np.array([sum(weight @ np.prod(q[:, list(p)], 1) for p in permutations(s)) for s in sets])
    np.testing.assert_allclose(found, drawn / drawn.sum())


def test_words_in_their_order():
    q, weight = np.array([[0.5, 0.5, 0.0], [0.1, 0.2, 0.7]]), np.array([0.25, 0.75])
    x = np.array([[1.0, 1, 0], [0, 1, 1]])
    expected = [np.log(0.25 * 0.25 + 0.75 * 0.02), np.log(0.75 * 0.14)]
    np.testing.assert_allclose(log_words(x, q, np.log(weight)), expected)


def test_sizes_are_a_distribution_over_all_sizes():
    train = np.tril(np.ones((4, 4)))
    test = np.tril(np.ones((4, 4)))
    assert float(np.exp(log_size(train, test)).sum()) == pytest.approx(1)
    skewed = log_size(train[[0, 0, 0, 1]], test)
    assert skewed[0] > skewed[1] > skewed[2] > -np.inf


def test_weighted_cosines_find_the_best_of_all_matchings():
    rng = np.random.default_rng(2)
    found = Components(rng.random((4, 7)), rng.dirichlet(np.ones(4)))
    reference = rng.random((6, 7))
    cos = [[a @ b / np.linalg.norm(a) / np.linalg.norm(b) for b in reference] for a in found.vectors]
    best = max(sum(found.weight[i] * cos[i][j] for i, j in enumerate(p)) for p in permutations(range(6), 4))
    terms = weighted_cosines(found, reference)
    assert terms.sum() == pytest.approx(best)
    assert (np.diff(terms) <= 0).all()


def test_weighted_cosines_of_components_with_themselves_are_the_weights():
    vectors, weight = np.eye(3) * [[2.0], [1.0], [0.5]], np.array([0.2, 0.5, 0.3])
    shuffled = vectors[[2, 0, 1]]
    np.testing.assert_allclose(weighted_cosines(Components(vectors, weight), shuffled), [0.5, 0.3, 0.2])
    off = Components(np.vstack([vectors[:2], np.zeros((1, 3))]), weight)
    np.testing.assert_allclose(weighted_cosines(off, shuffled), [0.5, 0.2, 0.0])


def test_scores_count_members_and_each_component_speaks_for_one_community():
    community = list(COMMUNITIES["reinforcement"])
    assert score(community[:7], community) == 1.0
    assert score([*community[:3], "a", "b", "c", "d"], community) == 0.5
    assert score([*community[:2], "a", "b", "c", "d", "e"], community) == 0.0
    names = [*community[:7], *COMMUNITIES["digits"][:7], "nobody"]
    vectors = np.zeros((3, 15))
    vectors[0, :7], vectors[1, 7:14], vectors[2, [0, 1, 2, 14]] = 1, 1, 1
    found = successes(vectors, names)
    assert found["reinforcement"] == found["digits"] == 1.0
    assert sum(found.values()) == 2.0
