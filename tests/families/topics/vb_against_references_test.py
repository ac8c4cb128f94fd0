"""LDA's variational engines (dirichlet, vb, online vb, cvb0) against the NumPy references, one update at a time."""

import numpy as np
import pytest
import torch

from custom_inference.core.engine import EStep
from custom_inference.core.local_inference import LocalSolver
from custom_inference.em.stepwise import run_stepwise
from custom_inference.families.topics.vb import TopicPosteriors
from ppl_models import LDA, PLSA, Data, MultinomialPCA
from tests.references import _collapsed, _topics, lda
from tests.references.rows_test import close
from tests.support.corpora import at_words, by_cell, corpus, made, steps_of

pytestmark = [pytest.mark.quick, pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")]
KINDS = pytest.mark.parametrize("kind", ["dense", "sparse", "masked", "zeros"])
MODELS = pytest.mark.parametrize("kind_of_model", [LDA, MultinomialPCA])
ALPHAS = pytest.mark.parametrize("alpha", [1.0, [0.2, 0.9, 1.5], 1e-3, 1000.0])
#: An E step of exactly so many sweeps.
EXACTLY = {"sweeps": 3, "cold_sweeps": 3, "threshold": 0.0}


def swept(log_topic, x, weight, alpha, mask, sweeps=3):
    """(pi~, c~ at it) after the sweeps of an E step."""
    for _ in range(sweeps):
        weight = lda.weight_update(x, lda.count_update(log_topic, weight), alpha, mask)
    return weight, lda.count_update(log_topic, weight)


@KINDS
@MODELS
@ALPHAS
@pytest.mark.parametrize("gamma", [1.0, 1.4, 0.05])
def test_dirichlet_steps_are_eqs_27_43_to_27_46(kind, kind_of_model, alpha, gamma):
    topic, x, mask, data = corpus(0, kind)
    model = made(kind_of_model, topic, alpha, gamma)
    steps, rows = steps_of("dirichlet", model, data, **EXACTLY)
    params, step = {"topic": torch.tensor(topic)}, None
    length = _topics.counts_of(x, mask).sum(1, keepdims=True)
    weight = np.broadcast_to(alpha, (3,)) + length / 3
    for _ in range(2):
        weight, c = swept(np.log(topic), x, weight, alpha, mask)
        step = steps.e_step(model, params, rows, step.locals if step else None)
        assert np.allclose(step.locals["concentration"], weight, rtol=1e-9, atol=1e-12)
        bound = lda.count_bound(np.log(topic), x, weight, c, alpha, mask)
        if not kind_of_model.coefficient:
            bound = bound - _topics.log_coefficient(x, mask)
        assert close(step.bound, bound, atol=1e-8)
        found = at_words(steps.responsibilities(model, params, rows, step.locals), rows)
        assert close(found, by_cell(c, x, mask), atol=1e-9)
        counts = lda.topic_counts(x, c, mask)
        assert close(step.statistics["topic"], counts, atol=1e-8)
        params = steps.m_step(model, params, step, rows)
        topic = counts + gamma - float(gamma >= 1)
        topic = np.maximum(topic / topic.sum(1, keepdims=True), 1e-12)
        assert close(params["topic"], topic, atol=1e-9)
        topic = params["topic"].numpy()  # where the counts are 0 the engine keeps a floor


@KINDS
@pytest.mark.parametrize("kind_of_model", [LDA, MultinomialPCA, PLSA])
def test_dirichlet_bound_is_below_the_exact_evidence(kind, kind_of_model):
    topic, x, mask, data = corpus(1, kind, length=6)
    model = made(kind_of_model, topic, [0.2, 0.9, 1.5])
    steps, _ = steps_of("dirichlet", model, data)
    local = LocalSolver(engine=steps, tolerance=1e-12).solve(model, {"topic": torch.tensor(topic)}, data)
    evidence = _topics.log_evidence(topic, x, [0.2, 0.9, 1.5], mask)
    if kind_of_model.coefficient:
        evidence = evidence + _topics.log_coefficient(x, mask)
    gap = evidence - local.bound.numpy()
    assert (gap >= -1e-9).all() and close(gap[0], 0.0, atol=1e-9) and gap.max() < 1.0
    mean = _topics.posterior_mean(topic, x, [0.2, 0.9, 1.5], mask)
    assert np.abs(local.posterior.mean.numpy() - mean).max() < 0.2


@KINDS
@MODELS
@ALPHAS
def test_vb_steps_and_bound_are_eqs_27_47_to_27_49(kind, kind_of_model, alpha):
    topic, x, mask, data = corpus(2, kind)
    gamma = np.array([0.05, 0.3, 0.7, 1.0, 1.5, 0.1, 0.2])
    model = made(kind_of_model, topic, alpha, gamma)
    steps, rows = steps_of("vb", model, data, **EXACTLY)
    topic_weight = np.random.default_rng(0).gamma(2.0, 1.0, topic.shape)
    params, step = TopicPosteriors(torch.tensor(topic_weight)), None
    length = _topics.counts_of(x, mask).sum(1, keepdims=True)
    weight = np.broadcast_to(alpha, (3,)) + length / 3
    coefficient = _topics.log_coefficient(x, mask).sum() if kind_of_model.coefficient else 0.0
    for _ in range(3):
        weight, c = swept(lda.expected_log(topic_weight), x, weight, alpha, mask)
        step = steps.e_step(model, params, rows, step.locals if step else None)
        assert np.allclose(step.locals["concentration"], weight, rtol=1e-9, atol=1e-12)
        bound = lda.vb_bound(x, weight, c, topic_weight, alpha, gamma, mask)
        assert np.isclose(steps.objective_at(model, params, step.bound), bound + coefficient, rtol=1e-10, atol=1e-8)
        found = at_words(steps.responsibilities(model, params, rows, step.locals), rows)
        assert close(found, by_cell(c, x, mask), atol=1e-9)
        params = steps.m_step(model, params, step, rows)
        topic_weight = gamma + lda.topic_counts(x, c, mask)
        assert close(params.concentration, topic_weight, atol=1e-8)
    values, posterior = params.values(model), params.posteriors(model)
    assert close(values["topic"], topic_weight / topic_weight.sum(1, keepdims=True), atol=1e-9)
    assert close(posterior["topic"].mean, values["topic"], atol=1e-12)


def online_problem():
    topic, x, _, data = corpus(6, "sparse", num_documents=8)
    model = made(LDA, topic, 0.4, 0.2)
    # Enough sweeps that where the E step starts does not matter.
    steps, rows = steps_of("vb", model, data, sweeps=500, cold_sweeps=500, threshold=1e-12)
    topic_weight = np.random.default_rng(1).gamma(2.0, 1.0, topic.shape)
    return x, model, steps, rows, topic_weight


def test_online_vb_with_one_full_batch_is_batch_vb():
    """rho = 1 of the first minibatch, which is all documents; the driver's two full iterations go on from there."""
    x, model, steps, rows, topic_weight = online_problem()
    online = run_stepwise(
        steps, model, rows, TopicPosteriors(torch.tensor(topic_weight)), batch_size=len(x), max_iterations=1,
        tolerance=1e-9, generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    for _ in range(2):
        topic_weight = lda.vb_iteration(x, topic_weight, 0.4, 0.2)[2]
    assert close(online.state.concentration, topic_weight, atol=1e-6)


def test_online_vb_is_algorithm_27_2():
    """Minibatches of three, with rho_t of the driver: b~ <- (1 - rho) b~ + rho (gamma + N / B sum n c~)."""
    x, model, steps, rows, topic_weight = online_problem()
    params, running, rates = TopicPosteriors(torch.tensor(topic_weight)), None, [1.0, 0.6, 0.3]
    order = [[0, 4, 5], [1, 2], [3, 6, 7]]
    for rate, index in zip(rates, order, strict=True):
        step = steps.e_step(model, params, rows.select(torch.tensor(index)))
        scaled = step.statistics["topic"] * (len(x) / len(index))
        running = scaled if running is None else (1 - rate) * running + rate * scaled
        params = steps.m_step(model, params, EStep({"topic": running}, {}, step.bound), rows)
        topic_weight = lda.online_update(x[index], topic_weight, 0.4, 0.2, rate, len(x))
        assert close(params.concentration, topic_weight, atol=1e-6)


def by_token(responsibility, x, mask):
    """The responsibilities of the words' cells, (cells, K), as those of every token, document by document."""
    array = np.zeros((*x.shape, responsibility.shape[1]))
    array[_topics.counts_of(x, mask) > 0] = responsibility
    return [array[i][words] for i, words in enumerate(_topics.tokens_of(x, mask))]


@ALPHAS
@pytest.mark.parametrize("kind", ["sparse", "masked"])
def test_one_pass_of_cvb0_over_documents_as_sets_is_the_literal_sweep(kind, alpha):
    """Where no word comes twice in a document, cells are tokens."""
    topic, x, mask, data = corpus(7, kind)
    data = Data(x=torch.tensor(np.minimum(x, 1.0)), mask=data.mask)
    x, gamma = np.minimum(x, 1.0), np.array([0.05, 0.3, 0.7, 1.0, 1.5, 0.1, 0.2])
    model = made(LDA, topic, alpha, gamma)
    steps, rows = steps_of("cvb0", model, data)
    step = steps.e_step(model, steps.start_from(model, {"topic": torch.tensor(topic)}, rows), rows)
    documents = _topics.tokens_of(x, mask)
    for _ in range(3):
        before = by_token(step.locals["responsibility"].numpy(), x, mask)
        step = steps.e_step(model, steps.m_step(model, {}, step, rows), rows, step.locals)
        expected = _collapsed.cvb0_sweep(documents, before, x.shape[1], alpha, gamma)
        for found, responsibility in zip(
            by_token(step.locals["responsibility"].numpy(), x, mask), expected, strict=True
        ):
            assert close(found, responsibility, atol=1e-9)
        assert close(step.statistics["topic"], _collapsed.tables(documents, expected, x.shape[1])[1], atol=1e-9)


@pytest.mark.parametrize("kind", ["dense", "masked", "zeros"])
@pytest.mark.parametrize("gamma", [0.05, 0.6])
def test_cvb0_ends_where_the_literal_sweep_stands_still(kind, gamma):
    topic, x, mask, data = corpus(8, kind)
    alpha = np.array([0.2, 0.9, 1.5])
    model = made(MultinomialPCA, topic, alpha, gamma)
    steps, rows = steps_of("cvb0", model, data)
    params, locals_ = steps.start_from(model, {"topic": torch.tensor(topic)}, rows), None
    for _ in range(500):
        step = steps.e_step(model, params, rows, locals_)
        assert torch.isfinite(step.bound).all()
        params, locals_ = steps.m_step(model, params, step, rows), step.locals
    documents = _topics.tokens_of(x, mask)
    responsibilities = by_token(at_words(step.locals["responsibility"], rows).numpy(), x, mask)
    moved = _collapsed.cvb0_sweep(documents, responsibilities, x.shape[1], alpha, gamma)
    for before, after in zip(responsibilities, moved, strict=True):
        assert close(before, after, atol=1e-6)
    document, word = _collapsed.tables(documents, responsibilities, x.shape[1])
    assert close(steps.posterior(model, params, rows, step).concentration, document + alpha, atol=1e-6)
    expected = (word + gamma) / (word + gamma).sum(1, keepdims=True)
    assert close(params.values(model)["topic"], expected, atol=1e-6)
    # The objective: every token's predictive probability given all others at their expected counts.
    value = _topics.log_coefficient(x, mask)
    for i, words in enumerate(documents):
        for place, v in enumerate(words):
            own = responsibilities[i][place]
            mass = (word[:, v] - own + gamma) / (word.sum(1) - own + 7 * gamma) * (document[i] - own + alpha)
            value[i] += np.log(mass.sum() / (len(words) - 1 + alpha.sum()))
    assert close(step.bound, value, atol=1e-5)
