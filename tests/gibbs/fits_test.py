"""What a fit by collapsed Gibbs sampling promises, and what it refuses."""

from __future__ import annotations

import warnings

import numpy as np
import pyro.distributions as dist
import pytest
import torch

import custom_inference as ci
from custom_inference import CollapsedGibbs, Fit
from custom_inference.core.diagnostics import effective_size, r_hat
from custom_inference.core.posteriors import DirichletDraws, DirichletPosterior
from custom_inference.families.rows.documents import DocumentRows
from custom_inference.families.topics.chain import LdaChain
from custom_inference.families.topics.propose import gibbs_counts
from custom_inference.gibbs import sampler_of
from ppl_models import CVQ, LDA, PLSA, Data, DataWarning, LDAIndicator, MethodError, ModelError, MultinomialPCA
from ppl_models.data import sparse as _sparse
from tests.references import lda as reference

SHORT = CollapsedGibbs(num_samples=10, warmup=20, thin=1, chains=2)


def corpus(documents=120, seed=0):
    """Three topics on six words each, nearly disjoint: every chain finds them."""
    rng = np.random.default_rng(seed)
    topic = np.full((3, 18), 0.002)
    for k in range(3):
        topic[k, 6 * k : 6 * k + 6] = rng.dirichlet(np.full(6, 5.0))
    topic /= topic.sum(1, keepdims=True)
    proportion = rng.dirichlet(np.full(3, 0.3), documents)
    lengths = rng.integers(20, 40, documents)
    x = np.stack([rng.multinomial(n, p) for n, p in zip(lengths, proportion @ topic, strict=True)])
    return LDA(num_topics=3, vocabulary_size=18), x.astype(float), topic, proportion


def same(first: Fit, second: Fit) -> bool:
    assert first.draws is not None and second.draws is not None
    pairs = [(first.elbo, second.elbo), (first.posterior.mean, second.posterior.mean)]
    pairs += [(first.params[site], second.params[site]) for site in first.params]
    pairs += [(first.draws[site], second.draws[site]) for site in first.draws]
    return all(torch.equal(a, b) for a, b in pairs)


def test_finds_topics_and_reports_chains_that_agree():
    model, x, topic, proportion = corpus()
    fit = CollapsedGibbs(num_samples=200, warmup=60).fit(model, x, seed=0, progress=False)
    matched = ci.match_components(topic, fit.params["topic"])
    assert float(matched.similarity.min()) > 0.98
    assert np.abs(fit.posterior.mean.numpy()[:, matched.order] - proportion).mean() < 0.08
    assert "4 of 4 chains found these components" in fit.status and "R-hat" in fit.status
    assert fit.details["lp_r_hat"] < 1.1 and fit.details["topic_r_hat"] < 1.1 and fit.details["topic_ess"] > 40
    assert fit.draws is not None and fit.draws["topic"].shape == (4, 200, 3, 18)
    assert torch.allclose(fit.draws["topic"].mean((0, 1)), fit.params["topic"], atol=0.02)
    assert torch.allclose(fit.draws["topic"].sum(-1), torch.ones(()))
    assert fit.sample_stats["lp"].shape == (4, 200) and len(fit.elbo) == 30 + 200
    held = fit.transform(x[:5])
    assert torch.allclose(held, fit.posterior.mean[:5], atol=0.1)


def test_same_seed_same_result_whatever_the_threads():
    model, x, *_ = corpus(30)
    state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    fits = [
        ci.fit(model, x, method="gibbs", num_samples=5, warmup=5, chains=3, threads=t, seed=4, progress=False)
        for t in (1, 3)
    ]
    assert same(*fits)
    assert torch.equal(state, torch.get_rng_state()) and (numpy_state == np.random.get_state()[1]).all()  # noqa: NPY002
    other = ci.fit(model, x, method="gibbs", num_samples=5, warmup=5, chains=3, seed=5, progress=False)
    assert not torch.equal(other.params["topic"], fits[0].params["topic"])


def test_sparse_masked_and_empty_documents():
    """Sparse is dense; the tokens of masked entries are no tokens; an empty document has the prior's proportions."""
    model, x, *_ = corpus(30)
    model = model.with_concentration(alpha=[0.2, 0.3, 0.5])
    x[3] = 0
    with pytest.warns(DataWarning, match="empty"):
        dense = SHORT.fit(model, x, seed=1, progress=False)
    with pytest.warns(DataWarning, match="empty"):
        sparse = SHORT.fit(model, _sparse.from_dense(torch.as_tensor(x)), seed=1, progress=False)
    filled, mask = x.copy(), np.ones_like(x, dtype=bool)
    filled[3], mask[3] = 9.0, False
    with pytest.warns(DataWarning, match="empty"):
        masked = SHORT.fit(model, filled, mask=mask, seed=1, progress=False)
    assert same(dense, sparse) and same(dense, masked)
    assert torch.allclose(dense.posterior.mean[3].sort().values, torch.tensor([0.2, 0.3, 0.5]))


@pytest.mark.quick
def test_one_topic_is_the_dirichlets_mean():
    _, x, *_ = corpus(30)
    fit = SHORT.fit(LDA(num_topics=1, vocabulary_size=18), x, progress=False)
    expected = x.sum(0) + 0.05
    assert np.allclose(fit.params["topic"][0].numpy(), expected / expected.sum())
    assert (fit.posterior.mean == 1).all() and "never left" in fit.status and "all alike" in fit.status


def test_counts_have_the_coefficient_and_the_same_chain():
    model, x, *_ = corpus(30)
    counts = MultinomialPCA(num_topics=3, vocabulary_size=18)
    tokens, whole = (SHORT.fit(one, x, seed=2, progress=False) for one in (model, counts))
    coefficient = float(reference._topics.log_coefficient(x).sum())
    assert torch.equal(tokens.params["topic"], whole.params["topic"])
    assert torch.allclose(whole.elbo - tokens.elbo, torch.tensor(coefficient))


def test_starts_from_given_topics_and_keeps_their_labels():
    model, x, topic, _ = corpus()
    moved = torch.as_tensor(topic[[2, 0, 1]])
    fit = SHORT.fit(model, x, init={"topic": moved}, seed=3, progress=False)
    assert (torch.cosine_similarity(fit.params["topic"], moved, dim=-1) > 0.95).all()
    with pytest.raises(ModelError, match="shape"):
        SHORT.fit(model, x, init={"topic": moved[:2]}, progress=False)


def test_learned_concentrations_raise_the_law_and_are_reported():
    model, x, *_ = corpus(300)
    start = model.with_concentration(alpha=2.0, gamma=1.0)
    fixed = SHORT.fit(start, x, seed=0, progress=False)
    learning = CollapsedGibbs(num_samples=10, warmup=60, thin=1, chains=2, learn=True)
    learned = learning.fit(start, x, seed=0, progress=False)
    prior = learned.model.priors["topic_proportion"]
    assert isinstance(prior, dist.Dirichlet)
    assert (prior.concentration < 0.7).all() and (prior.concentration > 0.1).all()  # the truth is .3
    assert float(learned.sample_stats["lp"].mean()) > float(fixed.sample_stats["lp"].mean()) + 50
    assert start.priors["topic_proportion"] is not prior


@pytest.mark.parametrize("stop_at", [5, 40])
def test_interrupt_keeps_what_there_is(monkeypatch, stop_at):
    """In the warm-up the present state; later the draws so far."""
    model, x, *_ = corpus(30)
    sweep, calls = LdaChain.sweep, []

    def counted(self) -> None:
        calls.append(self)
        sweep(self)

    def follow(running, records, bar) -> None:
        while len(calls) < stop_at:
            pass
        raise KeyboardInterrupt

    monkeypatch.setattr(LdaChain, "sweep", counted)
    monkeypatch.setattr("custom_inference.gibbs.chains._follow", follow)
    fit = CollapsedGibbs(num_samples=10**6, warmup=20 if stop_at > 20 else 10**6, chains=1, thin=1, search=False).fit(
        model, x, progress=False
    )
    assert fit.status.startswith("interrupted after")
    kept = fit.details["draws"][0]
    assert kept == 1 if stop_at < 20 else kept >= 10
    assert torch.allclose(fit.params["topic"].sum(-1), torch.ones(())) and fit.transform(x).shape == (30, 3)


@pytest.mark.quick
def test_save_and_load(tmp_path):
    model, x, *_ = corpus(20)
    fit = SHORT.fit(model, x, progress=False)
    loaded = Fit.load(fit.save(tmp_path / "fit.safetensors"))
    assert same(fit, loaded) and isinstance(loaded.posterior, DirichletDraws) and loaded.details == fit.details


def test_draws_that_would_be_too_large_are_not_kept(monkeypatch):
    monkeypatch.setattr("custom_inference.gibbs.method._ENTRIES", 400)
    model, x, *_ = corpus(20)
    fit = SHORT.fit(model, x, progress=False)
    assert fit.draws is None and "topic_r_hat" not in fit.details
    assert isinstance(fit.posterior, DirichletDraws) and len(fit.posterior.concentration) < 2 * 10
    assert torch.allclose(fit.params["topic"].sum(-1), torch.ones(()))


@pytest.mark.quick
def test_refusals():
    model, x, *_ = corpus(20)
    for name, value in {"num_samples": 0, "warmup": -1, "thin": 0, "chains": 1.5, "threads": 0}.items():
        with pytest.raises(MethodError, match=f"{name} = "):
            CollapsedGibbs(**{name: value})
    with pytest.raises(MethodError, match="CVQ has no collapsed Gibbs sampler"):
        SHORT.fit(CVQ(num_components=2, num_features=3), np.eye(3), progress=False)
    logits = model.with_priors(topic_proportion=dist.LogisticNormal(torch.zeros(2), torch.ones(2)))
    with pytest.raises(MethodError, match="under the prior of 'topic_proportion', LogisticNormal"):
        SHORT.fit(logits, x, progress=False)
    assert sampler_of(LDAIndicator(num_topics=2, vocabulary_size=4))
    with pytest.raises(MethodError, match="PLSA has no collapsed Gibbs sampler"):
        sampler_of(PLSA(num_topics=2, vocabulary_size=4))
    assert sampler_of(model).learns


def test_mixture_over_draws_is_a_mixture():
    """Mean, density and draws of DirichletDraws against those of its parts."""
    posterior = DirichletDraws(torch.tensor([[[1.0, 2, 3], [4, 1, 1]], [[2.0, 2, 2], [1, 5, 1]]]))
    parts = [DirichletPosterior(one) for one in posterior.concentration]
    assert torch.allclose(posterior.mean, (parts[0].mean + parts[1].mean) / 2)
    at = torch.tensor([[0.2, 0.3, 0.5], [0.6, 0.3, 0.1]])
    assert torch.allclose(posterior.log_prob(at).exp(), (parts[0].log_prob(at).exp() + parts[1].log_prob(at).exp()) / 2)
    drawn = posterior.sample(20000, seed=1)
    error = drawn.std(0) / 20000**0.5
    assert ((drawn.mean(0) - posterior.mean).abs() < 4.5 * error).all()
    torch.testing.assert_close(posterior.rows(slice(1, 2)).mean, posterior.mean[1:], rtol=1e-12, atol=0)
    assert torch.isfinite(posterior.log_prob(posterior.mode)).all()


@pytest.mark.parametrize(("rho", "chains", "length"), [(0.0, 4, 60), (0.6, 2, 401), (0.9, 4, 400)])
def test_diagnostics_are_arvizs(rho, chains, length):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        import arviz
    noise = np.random.default_rng(3).normal(size=(chains, length))
    draws = noise.copy()
    for t in range(1, length):
        draws[:, t] += rho * draws[:, t - 1]
    many = np.stack([draws, draws**2], -1)
    assert np.allclose(r_hat(many), [arviz.rhat(draws), arviz.rhat(draws**2)], rtol=1e-10)
    assert np.allclose(effective_size(many), [arviz.ess(draws), arviz.ess(draws**2)], rtol=0.06)


def test_proposed_counts_add_up_and_depend_on_the_generator_alone():
    _, x, topic, _ = corpus()
    rows = DocumentRows.of(Data(x=torch.as_tensor(x)))
    first, again, other = (
        gibbs_counts(rows, 3, 0.3, 0.05, torch.Generator().manual_seed(seed), sweeps=30) for seed in (1, 1, 2)
    )
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.allclose(first.sum(0), torch.as_tensor(x.sum(0)))
    assert float(ci.match_components(topic, first).similarity.min()) > 0.95
    assert not gibbs_counts(rows, 3, torch.ones(3), torch.ones(18), torch.Generator(), sweeps=0).any()
