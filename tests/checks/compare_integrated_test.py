"""The exact posterior of toy corpora with topics and proportions integrated out, and every method held against it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import logsumexp

from custom_inference import NUTS, SVI, CollapsedGibbs, VariationalEM, compare
from custom_inference.families.topics.exact import CollapsedPosterior, collapsed_posterior
from ppl_models import LDA, CapacityError, MethodError, MixtureOfBernoullis, MultinomialPCA
from ppl_models.data import sparse as _sparse
from tests.references import _collapsed as reference
from tests.references._topics import tokens_of

X = np.array([[2.0, 1, 0], [0, 1, 2], [1, 0, 1]])
#: Unequal: they tell the topics apart, so that posterior means say something.
ALPHA, GAMMA = [0.5, 1.2], [0.3, 0.4, 0.7]


def model_of(kind=LDA, alpha=ALPHA, gamma=GAMMA) -> LDA:
    model = kind(num_topics=2, vocabulary_size=3)
    return model.with_concentration(alpha=torch.tensor(alpha), gamma=torch.tensor(gamma))


@pytest.fixture
def exact() -> CollapsedPosterior:
    return collapsed_posterior(model_of(), X)


@pytest.fixture
def table():
    """(topics (M, T), log p(y, q) (M,)) by brute force."""
    return reference.table(tokens_of(X), 2, 3, ALPHA, GAMMA)


def test_log_joint_is_the_references(exact, table):
    assert np.allclose(exact.log_joint.numpy(), table[1], rtol=0, atol=1e-12)
    assert exact.log_evidence == pytest.approx(logsumexp(table[1]), abs=1e-12)


def test_co_assignments_are_the_references(exact, table):
    weight = np.exp(table[1] - logsumexp(table[1]))
    assert np.allclose(exact.co_assignment.numpy(), reference.same_topic(table[0], weight), atol=1e-12)


def test_evidence_of_one_topic_needs_no_sum():
    """With K = 1 log p(y) is that of one Dirichlet-multinomial (eq. 27.36), and all tokens share the topic."""
    model = LDA(num_topics=1, vocabulary_size=3).with_concentration(gamma=torch.tensor(GAMMA))
    found = collapsed_posterior(model, X)
    one = [np.zeros(len(words), dtype=int) for words in tokens_of(X)]
    assert found.log_evidence == pytest.approx(reference.log_joint(tokens_of(X), one, 1, 3, 1.0, GAMMA), abs=1e-12)
    assert (found.co_assignment == 1).all()


def test_counts_masks_and_layouts(exact):
    """Counts have the multinomial coefficient; masked tokens and empty documents say nothing; sparse is dense."""
    coefficient = float(np.log([3, 3, 2]).sum())
    counts = collapsed_posterior(model_of(MultinomialPCA), X)
    assert counts.log_evidence == pytest.approx(exact.log_evidence + coefficient, abs=1e-12)
    sparse = collapsed_posterior(model_of(), _sparse.from_dense(torch.as_tensor(X)))
    torch.testing.assert_close(sparse.log_joint, exact.log_joint, rtol=1e-12, atol=0)
    mask = np.ones((4, 3), dtype=bool)
    mask[0, 2] = mask[3] = False
    padded = np.concatenate([X, [[5.0, 5, 5]]])
    padded[0, 2] = 7
    masked = collapsed_posterior(model_of(), padded, mask=mask)
    torch.testing.assert_close(masked.log_joint, exact.log_joint, rtol=1e-12, atol=0)


def test_refuses_what_is_too_large_or_not_lda():
    message = r"24 tokens in 2 topics have 2\^24 assignments.*22 tokens would fit"
    with pytest.raises(CapacityError, match=message) as caught:
        collapsed_posterior(model_of(), np.full((4, 3), 2.0))
    assert caught.value.needed_bytes > caught.value.allowed_bytes
    with pytest.raises(MethodError, match="that of LDA"):
        collapsed_posterior(MixtureOfBernoullis(num_components=2, num_features=3), X)


def test_divergence_of_a_factorised_posterior(exact, table):
    """Against the sum written out; 0 only where the posterior factorises: one token a document and equal topics."""
    shares = torch.softmax(torch.randn(len(exact.word), 2), -1)
    log_q = np.log(shares.numpy())[np.arange(len(exact.word)), table[0]].sum(1)
    log_p = table[1] - logsumexp(table[1])
    assert exact.divergence(shares) == pytest.approx(float((np.exp(log_q) * (log_q - log_p)).sum()), abs=1e-12)
    alone = collapsed_posterior(model_of(), np.array([[0.0, 1, 0]]))
    assert alone.divergence(alone.log_probability.exp()[None]) == pytest.approx(0.0, abs=1e-12)


def test_integrated_comparison_of_fits(exact):
    """VB's bound is below the evidence by at least the divergence of its tokens' posterior; Gibbs is exact up to Monte
    Carlo error; the products of shares are not."""
    names = ("vb", "cvb0", "dirichlet", "map")
    methods = [CollapsedGibbs(num_samples=800, thin=2, warmup=50), *(VariationalEM(guide=name) for name in names)]
    comparison = compare(methods, model_of(), X, at="integrated", seed=2, progress=False)
    table = comparison.table
    assert np.allclose(table["evidence"], exact.log_evidence)
    vb = table.loc["VariationalEM(vb)"]
    assert 0 < vb["kl_per_row"] < vb["gap_per_row"]
    assert table["bound"].drop("VariationalEM(vb)").isna().all()
    assert np.isnan(table.loc["CollapsedGibbs", "kl_per_row"])
    assert (table["kl_per_row"].drop("CollapsedGibbs") > 0).all()
    # 3200 draws, worth at least half as many; the largest of 28 pairs.
    assert table.loc["CollapsedGibbs", "worst_marginal_error"] < 4 * 0.5 / np.sqrt(1600)
    assert table["worst_marginal_error"].drop("CollapsedGibbs").min() > 0.05
    assert set(comparison.fits) == set(table.index)


def test_integrated_comparison_by_draws_of_globals_and_locals():
    """NUTS has no topics of tokens; given its draws of both they are independent."""
    model = model_of(alpha=[1.5, 2.5], gamma=[1.5, 2.0, 2.5])
    nuts = NUTS(num_samples=100, warmup=60, chains=1, max_tree_depth=5)
    found = compare([nuts], model, X, at="integrated", progress=False)
    assert found.table.loc["NUTS", "worst_marginal_error"] < 0.1


def test_integrated_comparison_refuses():
    with pytest.raises(MethodError, match="single tokens"):
        compare([SVI(guide="delta", steps=5)], model_of(), X, at="integrated", progress=False)
    with pytest.raises(MethodError, match="integrated"):
        compare([CollapsedGibbs()], model_of(), X, at="collapsed", progress=False)
