"""Collapsed Gibbs sampling of LDA against all K^T topics of the tokens of a toy corpus."""

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import chisquare

import custom_inference as ci
from custom_inference.families.common.documents import DocumentRows
from custom_inference.families.topics.chain import LdaChain, TokenList, fixed_point, sweep_topics
from ppl_models import LDA, Data, MultinomialPCA
from tests.references import _collapsed, _topics
from tests.references.rows_test import close
from tests.support.corpora import made

ALPHA, GAMMA = np.array([0.4, 1.1]), np.array([0.3, 0.8, 1.2])
#: Chi-square tests fail by chance with this probability; the seeds are fixed.
RARE = 1e-4


def toy():
    """Six tokens in two documents: 64 values of q."""
    x = np.array([[2.0, 1.0, 0.0], [0.0, 1.0, 2.0]])
    documents = _topics.tokens_of(x)
    every, log_weight = _collapsed.table(documents, 2, 3, ALPHA, GAMMA)
    data = Data(x=torch.tensor(x))
    return x, documents, every, np.exp(log_weight - logsumexp(log_weight)), data


def test_a_sweep_leaves_the_posterior_as_it_is():
    """q drawn exactly from p(q | y), one sweep each: independent draws, which must still have that law."""
    _, _, every, weight, data = toy()
    chain = LdaChain(TokenList.of(DocumentRows.of(data)), 2, torch.tensor(ALPHA), torch.tensor(GAMMA), 5)
    rng, size = np.random.default_rng(0), 20_000
    before = rng.choice(len(every), size, p=weight)
    after, moved = np.zeros(len(every)), 0
    assert (every @ 2 ** np.arange(5, -1, -1) == np.arange(64)).all()  # the values of q are in order
    for place in before:
        chain.assign(every[place].astype(np.int32))
        chain.sweep()
        now = int("".join(map(str, chain.topic)), 2)
        after[now] += 1
        moved += now != place
    assert moved > size / 2 and chisquare(after, weight * size).pvalue > RARE


def test_sweeps_at_given_topics_leave_the_posterior_of_a_document_as_it_is():
    topic = np.array([[0.6, 0.3, 0.1], [0.1, 0.2, 0.7]])
    x = np.array([[2.0, 1.0, 1.0]])
    q, table = _topics.assignment_table(topic, _topics.tokens_of(x)[0], ALPHA)
    weight = np.exp(table - logsumexp(table))
    tokens = TokenList.of(DocumentRows.of(Data(x=torch.tensor(x))))
    rng, state, after = np.random.default_rng(2), np.array([3], np.uint64), np.zeros(16)
    for place in rng.choice(16, 10_000, p=weight):
        drawn = q[place].astype(np.int32)
        sweep_topics(tokens, drawn, ALPHA, torch.tensor(topic), state)
        after[int("".join(map(str, drawn)), 2)] += 1
    assert chisquare(after, weight * 10_000).pvalue > RARE


@pytest.mark.parametrize("kind_of_model", [LDA, MultinomialPCA])
def test_log_joint_of_a_chain_is_eqs_27_34_and_27_36(kind_of_model):
    x, documents, every, _, data = toy()
    model = made(kind_of_model, np.full((2, 3), 1 / 3), ALPHA, GAMMA)
    chain = ci.gibbs.sampler_of(model).chain(model, data, 0, None)
    coefficient = _topics.log_coefficient(x).sum() if kind_of_model.coefficient else 0.0
    for q in every[::7]:
        chain.assign(q.astype(np.int32))
        expected = _collapsed.log_joint(documents, _collapsed.split(q, documents), 2, 3, ALPHA, GAMMA)
        assert close(chain.log_joint(), expected + coefficient, atol=1e-10)


def test_means_of_a_long_chain_are_the_exact_posteriors():
    """Unequal alpha and gamma tell the topics apart, so that nothing need be aligned; errors gated on the ESS."""
    _, documents, _, _, data = toy()
    model = made(LDA, np.full((2, 3), 1 / 3), ALPHA, GAMMA)
    method = ci.CollapsedGibbs(num_samples=2000, warmup=100, thin=2, chains=2, align=False)
    fit = method.fit(model, data, seed=1, progress=False)
    proportion, topic = _collapsed.posterior_means(documents, 2, 3, ALPHA, GAMMA)
    spread = fit.draws["topic"].flatten(0, 1).std(0).numpy()
    error = 4 * spread / np.sqrt(fit.details["topic_ess"])
    assert fit.details["topic_ess"] > 500 and (np.abs(fit.params["topic"].numpy() - topic) < error).all()
    spread = fit.draws["topic_proportion"].flatten(0, 1).std(0).numpy()
    assert (np.abs(fit.posterior.mean.numpy() - proportion) < 4 * spread / np.sqrt(fit.details["topic_ess"])).all()


def test_learned_concentration_is_minkas():
    rng = np.random.default_rng(3)
    lengths, shares = rng.integers(0, 30, 60), rng.dirichlet([0.5, 1.5, 0.9], 60)
    counts = np.array([rng.multinomial(n, p) for n, p in zip(lengths, shares, strict=True)])
    alpha, values = np.ones(3), []
    for _ in range(3000):
        alpha = fixed_point(counts, alpha)
        values.append(_collapsed.log_moment_of_corpus(counts, alpha))
    assert np.diff(values).min() > -1e-9 and np.abs(_collapsed.moment_gradient(counts, alpha)).max() < 1e-6
    same = np.ones(3)
    for _ in range(3000):
        same = fixed_point(counts, same, symmetric=True)
    assert np.ptp(same) == 0 and abs(_collapsed.moment_gradient(counts, same).sum()) < 1e-6
