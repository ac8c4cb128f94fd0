"""The collapsed references of topics: evidence of a corpus with topics integrated out, Gibbs conditionals, CVB0."""

import numpy as np
import pytest
from scipy.special import logsumexp

from tests.references import _collapsed, _topics
from tests.references.rows_test import close

pytestmark = pytest.mark.quick


def toy(seed=10):
    rng = np.random.default_rng(seed)
    documents = [np.array([0, 0, 1]), np.array([2, 1, 2]), np.array([], dtype=int), np.array([0, 2])]
    return documents, np.array([0.4, 1.1]), np.array([0.3, 0.8, 1.2]), rng


def test_corpus_evidence_is_the_topics_integrated_out_by_draws():
    """sum over q of eqs. 27.34 and 27.36 against E over b ~ prior of the documents' exact evidences."""
    documents, alpha, gamma, rng = toy()
    x = np.array([np.bincount(words, minlength=3) for words in documents])
    draws = np.array([_topics.log_evidence(rng.dirichlet(gamma, 2), x, alpha).sum() for _ in range(1000)])
    exact = np.exp(_collapsed.log_evidence(documents, 2, 3, alpha, gamma))
    assert abs(np.exp(draws).mean() - exact) <= 4 * np.exp(draws).std() / np.sqrt(len(draws))


def test_corpus_evidence_sums_to_one_over_all_corpora():
    total = [
        _collapsed.log_evidence([np.array(w[:2]), np.array(w[2:])], 2, 2, [0.4, 1.1], [0.3, 0.8])
        for w in np.ndindex(2, 2, 2, 2)
    ]
    assert close(logsumexp(total), 0.0, atol=1e-12)


def test_gibbs_conditional_is_the_ratio_of_joints():
    documents, alpha, gamma, rng = toy()
    for _ in range(5):
        q = _collapsed.split(rng.integers(2, size=8), documents)
        for i, words in enumerate(documents):
            for place in range(len(words)):
                joint = []
                for k in range(2):
                    q[i][place] = k
                    joint.append(_collapsed.log_joint(documents, q, 2, 3, alpha, gamma))
                ratio = np.exp(joint - logsumexp(joint))
                q[i][place] = rng.integers(2)
                found = _collapsed.gibbs_conditional(documents, q, i, place, 2, 3, alpha, gamma)
                assert close(found, ratio, atol=1e-12)


def test_posterior_means_of_the_corpus_are_ratios_of_evidences():
    """E[b_kv | y] and E[pi_ik | y] add up to the predictive of one more token: p(y, new) / p(y)."""
    documents, alpha, gamma, _ = toy()
    every, table = _collapsed.table(documents, 2, 3, alpha, gamma)
    weight = np.exp(table - logsumexp(table))
    base = _collapsed.log_evidence(documents, 2, 3, alpha, gamma)
    predictive = []
    for v in range(3):
        longer = [np.append(documents[0], v), *documents[1:]]
        predictive.append(np.exp(_collapsed.log_evidence(longer, 2, 3, alpha, gamma) - base))
    by_draw = np.zeros(3)
    for w, q in zip(weight, every, strict=True):
        shares = _collapsed.one_hot(_collapsed.split(q, documents), 2)
        document, word = _collapsed.tables(documents, shares, 3)
        pi, b = (document[0] + alpha), (word + gamma)
        by_draw += w * (pi / pi.sum()) @ (b / b.sum(1, keepdims=True))
    assert close(predictive, by_draw, atol=1e-12) and close(sum(predictive), 1.0, atol=1e-12)
    proportion, topic = _collapsed.posterior_means(documents, 2, 3, alpha, gamma)
    assert close(proportion.sum(1), 1.0) and close(topic.sum(1), 1.0)
    assert close(proportion[2], alpha / alpha.sum(), atol=1e-12), "an empty document keeps its prior"


def test_same_topic_probabilities_do_not_know_labels():
    documents, _, gamma, _ = toy()
    every, table = _collapsed.table(documents, 2, 3, 0.5, gamma)
    weight = np.exp(table - logsumexp(table))
    same = _collapsed.same_topic(every, weight)
    assert close(same, _collapsed.same_topic(1 - every, weight), atol=1e-12) and close(np.diag(same), 1.0)
    assert same[0, 1] > same[0, 2], "two tokens of one word share a topic more often than tokens of two words"


def test_cvb0_ends_at_a_fixed_point_that_equal_tokens_share():
    documents, alpha, gamma, rng = toy()
    shares = [rng.dirichlet(np.ones(2), len(words)).reshape(-1, 2) for words in documents]
    for _ in range(1500):
        before, shares = shares, _collapsed.cvb0_sweep(documents, shares, 3, alpha, gamma)
    for old, new in zip(before, shares, strict=True):
        assert close(old, new, atol=1e-12) and close(new.sum(1), 1.0)
    assert close(shares[0][0], shares[0][1], atol=1e-8) and close(shares[1][0], shares[1][2], atol=1e-8)


def test_cvb0_with_certain_topics_is_the_gibbs_conditional():
    documents, alpha, gamma, rng = toy()
    q = _collapsed.split(rng.integers(2, size=8), documents)
    moved = _collapsed.cvb0_sweep(documents, _collapsed.one_hot(q, 2), 3, alpha, gamma)
    expected = _collapsed.gibbs_conditional(documents, q, 0, 0, 2, 3, alpha, gamma)
    assert close(moved[0][0], expected, atol=1e-12)
