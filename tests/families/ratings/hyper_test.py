"""The adaptive prior of rows and the columns of their features, against scipy's densities and dense algebra."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.stats

from custom_inference.families.ratings import features as feature_module
from custom_inference.families.ratings.features import Design, implicit_feedback
from custom_inference.families.ratings.hyper import PriorSettings, draw_prior, log_prior_of_ridges, prior_given_rows
from custom_inference.families.ratings.incidence import ByRow
from ppl_models.core.errors import DataError

SETTINGS = PriorSettings(strength=0.7, degrees=2.5, spread=0.3, ridge=1.9)


def rows(seed=0, size=6, d=2):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((size, d)), Design.of([rng.standard_normal((size, 2)), np.eye(size)[:, :3]], size, 5)


@pytest.mark.parametrize("with_features", [False, True])
def test_evidence_is_a_matrix_t_density(with_features):
    if not hasattr(scipy.stats, "matrix_t"):
        pytest.skip(f"scipy {scipy.__version__} has no matrix_t")
    w, design = rows()
    d, degrees = 2, 3.5
    kernel = np.eye(6) + 1 / 0.7
    if with_features:
        kernel += design.columns @ np.diag(1 / np.array([1.9, 0.4])[design.block]) @ design.columns.T
    prior = prior_given_rows(
        w, np.zeros((d, d)), design if with_features else None, SETTINGS, np.array([1.9, 0.4]), learn=False
    )
    expected = scipy.stats.matrix_t(np.zeros((6, d)), kernel, 0.3 * degrees * np.eye(d), degrees - d + 1).logpdf(w)
    expected += log_prior_of_ridges(prior.ridges, SETTINGS) if with_features else 0.0
    assert prior.evidence == pytest.approx(expected, rel=1e-9)


def test_draws_have_the_moments_of_the_posterior():
    w, design = rows()
    prior = prior_given_rows(w, 0.1 * np.eye(2), design, SETTINGS, learn=False)
    rng = np.random.default_rng(0)
    draws = [draw_prior(prior, design, SETTINGS, rng) for _ in range(4000)]
    precision = np.array([one.precision for one in draws])
    assert np.abs(precision.mean(0) - prior.precision).max() < 5 * precision.std(0).max() / np.sqrt(4000)
    gram = np.zeros((6, 6))
    gram[0, 0], gram[1:, 1:] = prior.strength, prior.factor @ prior.factor.T
    rest = np.array([one.coefficient for one in draws]) - prior.coefficient
    whitened = np.array([one @ np.linalg.cholesky(p) for one, p in zip(rest, precision, strict=True)])
    found = np.einsum("npa,nqa->pq", whitened, whitened) / (2 * 4000)
    np.testing.assert_allclose(found, np.linalg.inv(gram), atol=0.02)
    assert np.abs(rest.mean(0)).max() < 0.1


def test_ridges_move_to_more_evidence():
    rng = np.random.default_rng(1)
    x, noise = rng.standard_normal((200, 3)), rng.standard_normal((200, 3))
    w = x @ rng.standard_normal((3, 2)) + 0.1 * rng.standard_normal((200, 2))
    design = Design.of([x, noise], 200, 3)
    prior, ridges = prior_given_rows(w, np.zeros((2, 2)), design, SETTINGS, learn=False), None
    for _ in range(10):
        moved = prior_given_rows(w, np.zeros((2, 2)), design, SETTINGS, ridges)
        assert moved.evidence >= prior.evidence
        prior, ridges = moved, moved.ridges
    assert prior.ridges[0] < 0.1
    assert prior.ridges[1] > 30


@pytest.mark.parametrize("exact", [True, False])
def test_columns_have_the_products_of_centred_features(monkeypatch, exact):
    monkeypatch.setattr(feature_module, "EXACT", 100 if exact else 0)
    rng = np.random.default_rng(0)
    x = sp.random_array((30, 12), density=0.4, rng=rng, format="csr")
    design, dense = Design.of([x], 30, 12), x.toarray() - x.toarray().mean(0)
    found, expected = design.columns @ design.columns.T, dense @ dense.T
    np.testing.assert_allclose(found / np.trace(found), expected / np.trace(expected), atol=1e-9)
    assert np.square(design.columns).sum() == pytest.approx(30)
    np.testing.assert_allclose(design.of_new([x[:4]]), design.columns[:4], atol=1e-12)
    np.testing.assert_allclose(design.of_new([x[:4].toarray()]), design.columns[:4], atol=1e-12)


def test_features_of_no_information_have_no_columns():
    design = Design.of([np.ones((5, 3)), np.arange(5.0)[:, None]], 5, 3)
    assert design.columns.shape == (5, 1)
    np.testing.assert_array_equal(design.block, [1])


def test_implicit_feedback_is_weighed():
    ratings = ByRow.of(np.array([0, 0, 2, 2, 2]), np.array([1, 3, 0, 1, 2]), np.zeros(5), 3)
    found = implicit_feedback(ratings, np.array([16, 1, 0, 1])).toarray()
    np.testing.assert_allclose(found, np.array([[0, 1, 0, 1], [0, 0, 0, 0], [0.5, 1, 1, 0]]) / np.sqrt([[2], [1], [3]]))


def test_other_blocks_of_features_are_refused():
    _, design = rows()
    with pytest.raises(DataError, match="blocks"):
        design.of_new([np.zeros((1, 2))])
