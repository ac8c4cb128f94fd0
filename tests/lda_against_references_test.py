"""Every engine of LDA, multinomial PCA and PLSA against the NumPy references, one update at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import custom_inference as ci
from custom_inference.engines import steps_for
from ppl_models import LDA, PLSA, Data, MultinomialPCA
from tests.references import _topics, lda, plsa
from tests.references_test import close

#: The corpora have an empty document and a word that never occurs; fits say so.
pytestmark = pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")
KINDS = pytest.mark.parametrize("kind", ["dense", "sparse", "masked"])
MODELS = pytest.mark.parametrize("kind_of_model", [LDA, MultinomialPCA])


def corpus(seed, kind="sparse", num_documents=6, vocabulary_size=7, num_topics=3, length=12):
    """(topics, counts, mask, data): the first document is empty, the last word never occurs, no block is alike."""
    rng = np.random.default_rng(seed)
    topic = rng.dirichlet(np.full(vocabulary_size, 0.5), num_topics) + 1e-3
    topic /= topic.sum(1, keepdims=True)
    words = rng.dirichlet(np.full(num_topics, 0.5), num_documents) @ topic
    lengths = rng.integers(1, length + 1, num_documents)
    x = np.array([rng.multinomial(n, p) for n, p in zip(lengths, words, strict=True)], dtype=float)
    if num_documents > 1:
        x[0] = 0
    if vocabulary_size > 1:
        x[:, -1] = 0
    mask = rng.random(x.shape) > 0.3 if kind == "masked" else None
    if kind == "sparse":
        data = Data(x=torch.tensor(x).to_sparse_csr())
    else:
        filled = x if mask is None else np.where(mask, x, 9.0)  # a masked count may be anything
        data = Data(x=torch.tensor(filled), mask=None if mask is None else torch.tensor(mask))
    return topic, x, mask, data


def steps_of(name, model, data):
    steps = steps_for(model, name)
    rows = steps.rows(data)
    steps.check(model, rows)
    return steps, rows


def made(kind_of_model, topic, alpha=None, gamma=None):
    model = kind_of_model(num_topics=len(topic), vocabulary_size=topic.shape[1])
    return model.with_concentration(alpha=alpha, gamma=gamma)


def by_cell(array, x, mask):
    """(N, V, K) read at the words that occur, in the order of CSR, (nnz, K)."""
    return array[_topics.counts_of(x, mask) > 0]


SHAPES = given(
    seed=st.integers(0, 10**6),
    num_documents=st.integers(1, 9),
    vocabulary_size=st.integers(2, 8),
    num_topics=st.integers(1, 5),
    alpha=st.sampled_from([1e-3, 0.3, 1.0, 50.0]),
    gamma=st.sampled_from([0.01, 1.0, 2.0]),
)


# ----- map: LDA by points, and PLSA -----------------------------------------------------------------------------------


@KINDS
@MODELS
@pytest.mark.parametrize(("alpha", "gamma"), [(1.0, 1.0), (1.6, 1.2), ([0.2, 0.9, 1.5], 0.05), (0.5, 1.0)])
def test_map_steps_are_em_with_pseudo_counts(kind, kind_of_model, alpha, gamma):
    """E step: ``sweeps`` updates of the proportions at fixed topics; M step: the topics; pseudo-counts by the basis."""
    topic, x, mask, data = corpus(0, kind)
    model = made(kind_of_model, topic, alpha, gamma)
    steps, rows = steps_of("map", model, data)
    proportion_pseudo = np.asarray(alpha) - float(np.min(alpha) >= 1)
    topic_pseudo = gamma - float(gamma >= 1)
    params = {"topic": torch.tensor(topic)}
    step, proportion = None, np.full((len(x), 3), 1 / 3)
    for sweeps in (20, 2, 2):  # equal shares are taken further
        for _ in range(sweeps):
            share = plsa.responsibilities(topic, proportion)
            proportion = plsa.proportion_update(x, share, proportion_pseudo, mask)
        step = steps.e_step(params, rows, step.locals if step else None)
        assert close(step.locals["topic_proportion"], proportion, atol=1e-9)
        share = plsa.responsibilities(topic, proportion)
        found = steps.responsibilities(params, rows, step.locals)
        assert close(found, by_cell(share, x, mask), atol=1e-9)
        likelihood = _topics.log_likelihood(topic, x, proportion, mask)
        if kind_of_model.coefficient:
            likelihood = likelihood + _topics.log_coefficient(x, mask)
        constant = step.bound.numpy() - likelihood - (proportion_pseudo * np.log(proportion)).sum(1)
        assert np.ptp(constant) < 1e-8
        if np.all(np.asarray(alpha) == 1):
            assert close(constant, 0.0, atol=1e-8)
        params = steps.m_step(model, params, step, rows)
        topic = plsa.topic_update(x, share, topic_pseudo, mask)
        assert close(params["topic"], topic, atol=1e-9)


@pytest.mark.parametrize("kind_of_model", [LDA, PLSA])
def test_map_objective_is_the_log_joint(kind_of_model):
    """In the simplex basis (all concentrations at least 1) the trace is log p(x, pi, b), density constants included."""
    topic, x, _, data = corpus(1, "dense")
    model = made(kind_of_model, topic, 1.5, 1.3)
    fit = ci.VariationalEM(guide="map", max_iterations=30).fit(model, data, progress=False)
    params, proportion = {"topic": fit.params["topic"].numpy()}, fit.params["topic_proportion"].numpy()
    priors = {"topic": ("dirichlet", 1.3), "topic_proportion": ("dirichlet", 1.5)}
    assert close(fit.elbo[-1], lda.log_joint(params, x, proportion, None, priors), atol=1e-6)


def test_tempered_plsa_is_hofmanns():
    """P(z | d, w) proportional to P(z) [P(d | z) P(w | z)]^beta (SIGIR 1999, eq. 9), in the slides' symmetric form."""
    topic, x, _, data = corpus(2, "dense")
    model, rng, beta = made(PLSA, topic), np.random.default_rng(0), 0.7
    proportion = rng.dirichlet(np.ones(3), len(x))
    document = x.sum(1)
    aspect = document @ proportion / document.sum()
    given_aspect = document[:, None] * proportion / document.sum() / aspect  # P(d | z)
    joint = aspect * (given_aspect[:, None, :] * topic.T[None]) ** beta
    with np.errstate(invalid="ignore"):
        share = np.nan_to_num(joint / joint.sum(-1, keepdims=True))
    steps = steps_for(model, "map", temper=beta, share=tuple(aspect), sweeps=1)
    rows, params = steps.rows(data), {"topic": torch.tensor(topic)}
    # The locals after one sweep are the M step of P(z | d) from that share.
    start = steps.e_step(params, rows, {"topic_proportion": torch.tensor(proportion)})
    expected = plsa.proportion_update(x, share)
    assert close(start.locals["topic_proportion"], expected, atol=1e-9)


@settings(max_examples=30, deadline=None)
@SHAPES
def test_map_climbs_on_any_corpus(seed, num_documents, vocabulary_size, num_topics, alpha, gamma):
    topic, _, _, data = corpus(seed, "sparse", num_documents, vocabulary_size, num_topics)
    model = made(LDA, topic, alpha, gamma)
    _climbs("map", model, data, {"topic": torch.tensor(topic)})


def _climbs(name, model, data, params, iterations=8):
    steps, rows = steps_of(name, model, data)
    params, locals_, trace = steps.starting(model, params, rows), None, []
    for _ in range(iterations):
        step = steps.e_step(params, rows, locals_)
        assert all(torch.isfinite(value).all() for value in (step.bound, *params.values(), *step.locals.values()))
        trace.append(steps.objective(model, params, step.bound))
        params, locals_ = steps.m_step(model, params, step, rows), step.locals
    assert np.diff(trace).min() >= -1e-9 * max(1.0, np.abs(trace).max())


@KINDS
def test_plsa_is_ldas_map_under_flat_priors(kind):
    topic, _, _, data = corpus(3, kind, num_documents=12)
    flat = made(LDA, topic, 1.0, 1.0)
    fits = [
        ci.VariationalEM(guide="map", max_iterations=50).fit(model, data, seed=1, progress=False)
        for model in (flat, made(PLSA, topic))
    ]
    for site in ("topic", "topic_proportion"):
        assert torch.equal(fits[0].params[site], fits[1].params[site])
    assert torch.equal(fits[0].elbo, fits[1].elbo)
