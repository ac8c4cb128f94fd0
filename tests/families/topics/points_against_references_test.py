"""LDA's engines with topics as points (exact, map) and PLSA against the NumPy references, one update at a time."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings

import custom_inference as ci
from custom_inference.core.local_inference import LocalSolver
from custom_inference.core.registry import engine_for
from ppl_models import LDA, PLSA, MultinomialPCA
from tests.references import _topics, lda, multinomial_pca, plsa
from tests.references.rows_test import close
from tests.support.corpora import SHAPES, at_words, by_cell, climbs, corpus, made, steps_of, trace_of

#: The corpora have an empty document and a word that never occurs; fits say so.
pytestmark = [pytest.mark.quick, pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")]
KINDS = pytest.mark.parametrize("kind", ["dense", "sparse", "masked", "zeros"])
MODELS = pytest.mark.parametrize("kind_of_model", [LDA, MultinomialPCA])


@KINDS
@MODELS
@pytest.mark.parametrize("alpha", [[0.7], [0.2, 0.9, 1.5], [0.4, 0.8, 1.2, 1.7]])
def test_exact_steps_are_sums_over_all_topics_of_all_tokens(kind, kind_of_model, alpha):
    topic, x, mask, data = corpus(0, kind, num_topics=len(alpha), length=6)
    model, params = made(kind_of_model, topic, alpha, 1.3), {"topic": torch.tensor(topic)}
    steps, rows = steps_of("exact", model, data)
    step = steps.e_step(model, params, rows)
    reference = multinomial_pca.log_evidence if kind_of_model.coefficient else None
    expected = reference(params, x, alpha, mask) if reference else _topics.log_evidence(topic, x, alpha, mask)
    assert close(step.bound, expected) and close(steps.log_evidence(model, params, rows), expected)
    share = _topics.responsibilities(topic, x, alpha, mask)
    counts = np.einsum("iv,ivk->kv", _topics.counts_of(x, mask), np.nan_to_num(share))
    assert close(step.statistics["topic"], counts)
    assert close(at_words(steps.responsibilities(model, params, rows, {}), rows), by_cell(share, x, mask))
    assert close(steps.posterior(model, params, rows).mean, _topics.posterior_mean(topic, x, alpha, mask))
    moved = steps.m_step(model, params, step, rows)["topic"]
    assert close(moved, (counts + 0.3) / (counts + 0.3).sum(1, keepdims=True))


def test_exact_evidence_of_longer_documents_is_the_polynomials():
    topic, x, _, data = corpus(1, num_topics=4, length=25)
    model, params = made(LDA, topic, 0.3), {"topic": torch.tensor(topic)}
    steps, rows = steps_of("exact", model, data)
    assert close(steps.e_step(model, params, rows).bound, _topics.log_evidence_polynomial(topic, x, 0.3), atol=1e-9)


def test_exact_em_does_not_depend_on_how_documents_are_grouped(monkeypatch):
    """Short documents padded to the longest, and documents of each length on their own."""
    from custom_inference.families.topics import exact as lda_exact

    topic, _, _, data = corpus(2, length=9)
    model, params = made(LDA, topic, 0.3), {"topic": torch.tensor(topic)}
    found = []
    for little in (2**18, 0):
        monkeypatch.setattr(lda_exact, "_LITTLE", little)
        steps, rows = steps_of("exact", model, data)
        step = steps.e_step(model, params, rows)
        found.append([step.bound, step.statistics["topic"], steps.responsibilities(model, params, rows, {})])
    for together, apart in zip(*found, strict=True):
        assert close(together, apart, atol=1e-12)


@pytest.mark.parametrize("name", ["exact", "map", "dirichlet", "vb"])
@settings(max_examples=15, deadline=None)
@given(**SHAPES)
def test_engines_climb_on_any_corpus(name, seed, num_documents, vocabulary_size, num_topics, alpha, gamma):
    length = 6 if name == "exact" else 12
    topic, _, _, data = corpus(seed, "sparse", num_documents, vocabulary_size, num_topics, length=length)
    assert climbs(trace_of(name, made(LDA, topic, alpha, gamma), data, {"topic": torch.tensor(topic)}))


@KINDS
@MODELS
@pytest.mark.parametrize(("alpha", "gamma"), [(1.0, 1.0), (1.6, 1.2), ([0.2, 0.9, 1.5], 0.05), (0.5, 1.0)])
def test_map_steps_are_em_with_pseudo_counts(kind, kind_of_model, alpha, gamma):
    """E step: ``sweeps`` updates of the proportions at fixed topics; M step: the topics; pseudo-counts by the basis."""
    topic, x, mask, data = corpus(0, kind)
    model = made(kind_of_model, topic, alpha, gamma)
    steps, rows = steps_of("map", model, data, sweeps=2)
    proportion_pseudo = np.asarray(alpha) - float(np.min(alpha) >= 1)
    topic_pseudo = gamma - float(gamma >= 1)
    params, proportion = {"topic": torch.tensor(topic)}, np.full((len(x), 3), 1 / 3)
    locals_ = {"topic_proportion": torch.tensor(proportion)}
    for _ in range(3):
        for _ in range(2):
            share = plsa.responsibilities(topic, proportion)
            proportion = plsa.proportion_update(x, share, proportion_pseudo, mask)
        step = steps.e_step(model, params, rows, locals_)
        locals_ = step.locals
        assert close(step.locals["topic_proportion"], proportion, atol=1e-9)
        share = plsa.responsibilities(topic, proportion)
        found = at_words(steps.responsibilities(model, params, rows, step.locals), rows)
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
    steps = engine_for(model, "map", temper=beta, share=tuple(aspect), sweeps=1)
    rows, params = steps.rows(model, data), {"topic": torch.tensor(topic)}
    # The locals after one sweep are the M step of P(z | d) from that share.
    start = steps.e_step(model, params, rows, {"topic_proportion": torch.tensor(proportion)})
    expected = plsa.proportion_update(x, share)
    assert close(start.locals["topic_proportion"], expected, atol=1e-9)


@pytest.mark.parametrize("kind", ["dense", "sparse", "masked"])
def test_plsa_is_ldas_map_under_flat_priors(kind):
    """Girolami & Kaban, SIGIR 2003: the same fit, number by number, and the likelihood is PLSA's."""
    topic, x, mask, data = corpus(3, kind, num_documents=12)
    flat = made(LDA, topic, 1.0, 1.0)
    method = ci.VariationalEM(guide="map", max_iterations=50)
    fits = [method.fit(model, data, seed=1, progress=False) for model in (flat, made(PLSA, topic))]
    for site in ("topic", "topic_proportion"):
        torch.testing.assert_close(fits[0].params[site], fits[1].params[site], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(fits[0].elbo, fits[1].elbo, rtol=1e-10, atol=0)
    params = {"topic": fits[1].params["topic"].numpy()}
    likelihood = plsa.log_joint(params, x, fits[1].params["topic_proportion"].numpy(), mask)
    assert close(fits[1].elbo[-1], likelihood, atol=1e-6)


def test_folding_in_is_the_best_proportion():
    topic, x, mask, data = corpus(4, "masked")
    model = made(PLSA, topic)
    steps, _ = steps_of("map", model, data)
    params = {"topic": torch.tensor(topic)}
    local = LocalSolver(engine=steps, max_iterations=2000, tolerance=1e-12).solve(model, params, data)
    best = plsa.fold_in(x, topic, mask=mask)
    found = _topics.log_likelihood(topic, x, local.posterior.mean.numpy(), mask)
    assert close(found, _topics.log_likelihood(topic, x, best, mask), atol=1e-6)
