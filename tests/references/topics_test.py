"""The brute-force references of the topic models against themselves: two roads to each number, bounds, optima."""

import numpy as np
import pytest
from scipy.stats import dirichlet

from tests.references import _collapsed, _topics, lda, multinomial_pca, plsa
from tests.references.rows_test import close, masked, slopes

pytestmark = pytest.mark.quick

MISSING = pytest.mark.parametrize("missing", [0.0, 0.3])
ALPHA = pytest.mark.parametrize("alpha", [1.0, [0.3, 1.7]])


def problem(seed, missing=0.0, num_topics=2, vocabulary_size=4, num_documents=5, length=6):
    """Topics, counts of 0 to ``length`` tokens a document (the first is empty), a mask, and random numbers."""
    rng = np.random.default_rng(seed)
    topic = rng.dirichlet(np.full(vocabulary_size, 0.7), num_topics)
    lengths = [0, *rng.integers(1, length + 1, num_documents - 1)]
    words = rng.dirichlet(np.ones(vocabulary_size), num_documents)
    x = np.array([rng.multinomial(n, p) for n, p in zip(lengths, words, strict=True)], dtype=float)
    return topic, x, masked(rng, x.shape, missing), rng


@MISSING
@ALPHA
def test_sum_over_all_topics_is_the_integral_over_the_simplex(missing, alpha):
    topic, x, mask, _ = problem(0, missing)
    summed = _topics.log_evidence(topic, x, alpha, mask)
    assert close(summed, _topics.log_evidence_quadrature(topic, x, alpha, mask), atol=1e-8)
    assert close(summed, _topics.log_evidence_polynomial(topic, x, alpha, mask), atol=1e-10)
    means = _topics.posterior_mean(topic, x, alpha, mask)
    assert close(means, _topics.posterior_mean_quadrature(topic, x, alpha, mask), atol=1e-8)
    prior = np.broadcast_to(alpha, (2,)) / np.sum(np.broadcast_to(alpha, (2,)))
    assert close(summed[0], 0.0, atol=1e-12) and close(means[0], prior, atol=1e-12)


def test_evidence_sums_to_one_over_sequences_and_over_counts():
    topic, _, _, _ = problem(1, num_topics=3, vocabulary_size=3)
    sequences = [np.bincount(s, minlength=3) for s in np.ndindex(3, 3, 3, 3)]
    assert close(np.exp(_topics.log_evidence(topic, np.array(sequences), 0.4)).sum(), 1.0, atol=1e-12)
    counts = np.unique(sequences, axis=0)
    value = multinomial_pca.log_evidence({"topic": topic}, counts, 0.4)
    assert len(counts) == 15 and close(np.exp(value).sum(), 1.0, atol=1e-12)


@MISSING
def test_evidence_and_posterior_mean_by_draws_of_the_prior(missing):
    """Three topics, where there is no quadrature: importance sampling from the prior, within four standard errors."""
    topic, x, mask, rng = problem(2, missing, num_topics=3)
    alpha, size = np.array([0.5, 1.0, 2.0]), 50_000
    draws = rng.dirichlet(alpha, size)
    words = np.log(draws @ topic)
    for i, counts in enumerate(_topics.counts_of(x, mask)):
        weight = np.exp(words @ counts)
        exact = np.exp(_topics.log_evidence(topic, x, alpha, mask)[i])
        assert abs(weight.mean() - exact) <= 4 * weight.std() / np.sqrt(size) + 1e-12
        mean = _topics.posterior_mean(topic, x, alpha, mask)[i]
        error = weight[:, None] * (draws - mean) / exact
        assert (np.abs(error.mean(0)) <= 4 * error.std(0) / np.sqrt(size) + 1e-12).all()


@MISSING
def test_log_joints_differ_by_coefficient_and_priors_alone(missing):
    topic, x, mask, rng = problem(3, missing, num_topics=3)
    proportion = rng.dirichlet(np.ones(3), len(x))
    params = {"topic": topic}
    priors = {"topic": ("dirichlet", 0.7), "topic_proportion": ("dirichlet", [0.5, 1.0, 2.0])}
    likelihood = plsa.log_joint(params, x, proportion, mask)
    density = sum(dirichlet.logpdf(b, np.full(4, 0.7)) for b in topic)
    density += sum(dirichlet.logpdf(pi, [0.5, 1.0, 2.0]) for pi in proportion)
    assert close(lda.log_joint(params, x, proportion, mask, priors), likelihood + density, atol=1e-10)
    counts = multinomial_pca.log_joint(params, x, proportion, mask, priors)
    coefficient = _topics.log_coefficient(x, mask).sum()
    assert close(counts - coefficient, likelihood + density, atol=1e-10) and coefficient > 1


@MISSING
def test_posterior_of_a_tokens_topic_gives_the_slope_of_the_evidence(missing):
    """d log p(y | b) / d b_kv = n_v P(q = k | y) / b_kv, for b off the simplex too."""
    topic, x, mask, _ = problem(4, missing)
    share = _topics.responsibilities(topic, x, [0.3, 1.7], mask)
    for i in range(len(x)):
        one = None if mask is None else mask[i : i + 1]

        def evidence(b, i=i, one=one):
            return _topics.log_evidence(b, x[i : i + 1], [0.3, 1.7], one)[0]

        expected = np.nan_to_num(share[i]).T * _topics.counts_of(x, mask)[i] / topic
        assert np.allclose(slopes(evidence, topic, 1e-6), expected, rtol=1e-6, atol=1e-6)


@MISSING
@ALPHA
def test_token_and_count_mean_field_are_one(missing, alpha):
    """Eqs. 27.39-27.41 and 27.44-27.45: the same pi~, the same statistics, bounds apart by the coefficient alone."""
    topic, x, mask, rng = problem(5, missing)
    start = rng.uniform(0.3, 4.0, (len(x), 2))
    weight, c = lda.count_mean_field(np.log(topic), x, alpha, start, mask, sweeps=3)
    bounds, shares = [], []
    for i, words in enumerate(_topics.tokens_of(x, mask)):
        by_token, q = lda.token_mean_field(topic, words, alpha, start[i], sweeps=3)
        assert close(by_token, weight[i], atol=1e-12) and close(q, c[i][words], atol=1e-12)
        bounds.append(lda.token_bound(topic, words, by_token, q, alpha))
        shares.append(q)
    counted = lda.count_bound(np.log(topic), x, weight, c, alpha, mask)
    assert close(counted - _topics.log_coefficient(x, mask), bounds, atol=1e-10)
    assert close(lda.token_topic_counts(x, shares, mask), lda.topic_counts(x, c, mask), atol=1e-12)


@MISSING
@ALPHA
def test_mean_field_updates_are_optima_below_the_evidence(missing, alpha):
    topic, x, mask, rng = problem(6, missing)
    evidence = multinomial_pca.log_evidence({"topic": topic}, x, alpha, mask)
    weight, log_topic = rng.uniform(0.3, 4.0, (len(x), 2)), np.log(topic)

    def bound(weight, c):
        return lda.count_bound(log_topic, x, weight, c, alpha, mask)

    for _ in range(10):
        random, best = rng.dirichlet(np.ones(2), x.shape), lda.count_update(log_topic, weight)
        assert (bound(weight, random) <= bound(weight, best) + 1e-12).all()
        after = lda.weight_update(x, best, alpha, mask)
        assert (bound(weight, best) <= bound(after, best) + 1e-12).all()
        assert (bound(after, best) <= evidence + 1e-12).all()
        assert np.abs(slopes(lambda w, c=best: bound(w, c).sum(), after)).max() < 1e-6
        weight = after * rng.uniform(0.5, 2.0, after.shape)


def test_mean_field_is_exact_where_only_one_topic_has_the_words():
    topic, x = np.array([[0.7, 0.3, 0.0], [0.0, 0.0, 1.0]]), np.array([[2.0, 1.0, 0.0]])
    with np.errstate(divide="ignore"):
        weight, q = lda.token_mean_field(topic, [0, 0, 1], [0.5, 1.5])
    assert close(weight, [3.5, 1.5], atol=1e-12)
    bound = lda.token_bound(topic, [0, 0, 1], weight, q, [0.5, 1.5])
    assert close(bound, _topics.log_evidence(topic, x, [0.5, 1.5]), atol=1e-12)


def vb_problem(seed, missing=0.0):
    _, x, mask, rng = problem(seed, missing, vocabulary_size=3, num_documents=4, length=3)
    return x, mask, np.array([0.4, 1.1]), np.array([0.3, 0.8, 1.2]), rng


@MISSING
def test_vb_bound_climbs_below_the_corpus_evidence_and_ends_at_an_optimum(missing):
    x, mask, alpha, gamma, rng = vb_problem(7, missing)
    evidence = _collapsed.log_evidence(_topics.tokens_of(x, mask), 2, 3, alpha, gamma)
    topic_weight, trace = rng.gamma(2.0, 1.0, (2, 3)), []
    weight = np.ones((len(x), 2))
    for _ in range(400):
        weight, c, new = lda.vb_iteration(x, topic_weight, alpha, gamma, weight, mask, sweeps=5)
        trace += [lda.vb_bound(x, weight, c, b, alpha, gamma, mask) for b in (topic_weight, new)]
        topic_weight = new
    assert np.diff(trace).min() > -1e-9 and trace[0] < trace[-1] <= evidence
    assert np.abs(slopes(lambda b: lda.vb_bound(x, weight, c, b, alpha, gamma, mask), topic_weight)).max() < 1e-5
    assert np.abs(slopes(lambda w: lda.vb_bound(x, w, c, topic_weight, alpha, gamma, mask), weight)).max() < 1e-5
    for _ in range(50):
        random = [rng.dirichlet(20 * c_) for c_ in c.reshape(-1, 2) + 1e-6]
        other = lda.vb_bound(x, weight, np.reshape(random, c.shape), topic_weight, alpha, gamma, mask)
        assert other <= trace[-1] + 1e-12


@MISSING
def test_vb_bound_at_sharp_topics_is_the_mean_field_bound(missing):
    """With b~ = t b, t large, E[log b] is log b: only the topics' own two terms are then left."""
    topic, x, mask, _ = problem(8, missing)
    topic = (topic + 0.1) / (topic + 0.1).sum(1, keepdims=True)
    weight, c, _ = lda.vb_iteration(x, 1e9 * topic, 0.7, 0.5, mask=mask)
    terms = lda.vb_terms(x, weight, c, 1e9 * topic, 0.7, 0.5, mask)
    local = sum(value for name, value in terms.items() if "topics" not in name)
    counted = lda.count_bound(np.log(topic), x, weight, c, 0.7, mask) - _topics.log_coefficient(x, mask)
    assert close(local, counted.sum(), atol=1e-6)


def test_online_update_with_all_documents_and_rate_one_is_the_batch_update():
    x, _, alpha, gamma, rng = vb_problem(9)
    topic_weight = rng.gamma(2.0, 1.0, (2, 3))
    batch = lda.vb_iteration(x, topic_weight, alpha, gamma)[2]
    assert close(lda.online_update(x, topic_weight, alpha, gamma, 1.0, len(x)), batch, atol=1e-12)
    parts = [lda.online_update(x[i : i + 1], topic_weight, alpha, gamma, 1.0, len(x)) for i in range(len(x))]
    assert close(np.mean(parts, 0), batch, atol=1e-12), "the noisy update is unbiased"


def test_gradients_of_alpha_and_their_zeros():
    rng = np.random.default_rng(11)
    counts = np.array([rng.multinomial(n, p) for n, p in zip(rng.integers(0, 30, 40), rng.dirichlet([0.5, 1.5], 40),
                       strict=True)])  # fmt: skip
    expected_log = lda.expected_log(counts + np.array([0.5, 1.5]))
    pairs = (
        (_collapsed.log_moment_of_corpus, _collapsed.moment_gradient, counts),
        (_collapsed.log_density_of_corpus, _collapsed.density_gradient, expected_log),
    )
    for objective, gradient, data in pairs:
        alpha = np.array([0.7, 1.9])
        assert close(slopes(lambda a, f=objective, d=data: f(d, a), alpha), gradient(data, alpha), atol=1e-6)
        best = _collapsed.best_alpha(lambda a, f=objective, d=data: f(d, a), alpha)
        assert np.abs(gradient(data, best)).max() < 1e-3 and np.abs(gradient(data, alpha)).max() > 0.1


@MISSING
@pytest.mark.parametrize("pseudo", [0.0, 0.4])
def test_plsa_em_climbs_to_a_stationary_point(missing, pseudo):
    topic, x, mask, rng = problem(12, missing, vocabulary_size=5, num_documents=8, length=12)
    proportion = rng.dirichlet(np.ones(2), len(x))

    def objective(topic, proportion):
        value = plsa.log_joint({"topic": topic}, x, proportion, mask)
        return value + pseudo * (np.log(topic).sum() + np.log(proportion).sum()) if pseudo else value

    trace = [objective(topic, proportion)]
    for _ in range(300):
        topic, proportion = plsa.em_iteration(x, topic, proportion, pseudo, pseudo, mask=mask)
        trace.append(objective(topic, proportion))
    assert np.diff(trace).min() > -1e-9 and trace[-1] > trace[0]
    if pseudo:
        # Along the simplex: softmax coordinates leave it to no step.
        def softmax(z):
            return np.exp(z) / np.exp(z).sum(-1, keepdims=True)

        assert np.abs(slopes(lambda z: objective(softmax(z), proportion), np.log(topic))).max() < 1e-3
        assert np.abs(slopes(lambda z: objective(topic, softmax(z)), np.log(proportion))).max() < 1e-3


def test_plsa_pseudo_counts_are_ldas_priors():
    """Dirichlet(1 + p): the log joint of LDA moves with PLSA's objective up to a constant."""
    topic, x, _, rng = problem(13, num_documents=4)
    priors = {"topic": ("dirichlet", 1.4), "topic_proportion": ("dirichlet", 1.25)}
    gaps = []
    for _ in range(3):
        topic, proportion = rng.dirichlet(np.ones(4), 2), rng.dirichlet(np.ones(2), len(x))
        objective = plsa.log_joint({"topic": topic}, x, proportion)
        objective += 0.4 * np.log(topic).sum() + 0.25 * np.log(proportion).sum()
        gaps.append(lda.log_joint({"topic": topic}, x, proportion, None, priors) - objective)
    assert np.ptp(gaps) < 1e-10


@pytest.mark.parametrize("beta", [1.0, 0.6])
def test_tempered_em_climbs_its_free_energy(beta):
    topic, x, mask, rng = problem(14, 0.2, vocabulary_size=5, num_documents=8, length=12)
    proportion, trace = rng.dirichlet(np.ones(2), len(x)), []
    for _ in range(50):
        share = plsa.responsibilities(topic, proportion, beta)
        best = plsa.free_energy(x, topic, proportion, share, beta, mask)
        random = rng.dirichlet(np.ones(2), x.shape)
        assert plsa.free_energy(x, topic, proportion, random, beta, mask) <= best
        trace.append(best)
        if beta == 1:
            assert close(best, plsa.log_joint({"topic": topic}, x, proportion, mask), atol=1e-9)
        topic, proportion = plsa.em_iteration(x, topic, proportion, beta=beta, mask=mask)
    assert np.diff(trace).min() > -1e-9 and trace[-1] > trace[0]


def test_symmetric_and_asymmetric_em_of_plsa_are_one():
    topic, x, _, rng = problem(15, vocabulary_size=5, num_documents=8, length=12)
    x = x[1:]
    proportion = rng.dirichlet(np.ones(2), len(x))
    share = x.sum(1) / x.sum()
    aspect = share @ proportion
    document = (share[:, None] * proportion / aspect).T
    for _ in range(5):
        topic_, document, aspect = plsa.symmetric_em_iteration(x, topic, document, aspect)
        topic, proportion = plsa.em_iteration(x, topic, proportion)
        assert close(topic, topic_, atol=1e-12)
        by_bayes = (aspect[:, None] * document).T
        assert close(proportion, by_bayes / by_bayes.sum(1, keepdims=True), atol=1e-12)


def test_fold_in_is_the_best_proportion():
    topic, x, mask, _ = problem(16, 0.2, vocabulary_size=5, num_documents=6, length=12)
    best = plsa.fold_in(x, topic, mask=mask)
    value = _topics.log_likelihood(topic, x, best, mask)
    grid = np.linspace(0, 1, 501)
    for s in grid:
        other = np.repeat([[s, 1 - s]], len(x), 0)
        assert (_topics.log_likelihood(topic, x, other, mask) <= value + 1e-6).all()


def test_no_topic_reference_reads_a_missing_count():
    topic, x, mask, rng = problem(17, 0.4)
    filled = np.where(mask, x, 7.0)
    proportion = rng.dirichlet(np.ones(2), len(x))
    params = {"topic": topic}
    for joint in (lda.log_joint, multinomial_pca.log_joint, plsa.log_joint):
        assert joint(params, x, proportion, mask) == joint(params, filled, proportion, mask)
        assert joint(params, x, proportion, mask) != joint(params, x, proportion)
    for function in (_topics.log_evidence, _topics.posterior_mean, _topics.responsibilities):
        pair = function(topic, x, 0.5, mask), function(topic, filled, 0.5, mask)
        assert np.array_equal(*pair, equal_nan=True)
