"""Pyro's SVI of documents: kernels, optimiser, bounds against NumPy, sparse rows, masks, priors without a mode."""

from __future__ import annotations

import resource

import arviz as az
import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Trace_ELBO, TraceEnum_ELBO, TraceMeanField_ELBO

import custom_inference as ci
from custom_inference.svi.guides.amortized import Amortized
from custom_inference.svi.guides.continuous import ClosedFormELBO
from custom_inference.svi.guides.mean_field import MeanField
from custom_inference.svi.minibatches import documents_a_step
from ppl_models import LDA, PLSA, Data, MultinomialPCA
from ppl_models.data import sparse as _sparse
from ppl_models.lda import LDAIndicator
from tests.references import _collapsed, _topics
from tests.references import lda as reference
from tests.support.fits import given

pytestmark = pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")

ALPHA, GAMMA = 0.4, 0.3


def corpus(seed: int = 0, num_documents: int = 3, vocabulary_size: int = 4, length: int = 3) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.multinomial(length, np.full(vocabulary_size, 1 / vocabulary_size), num_documents).astype(float)


def lda_model(num_topics: int, vocabulary_size: int, **priors: float) -> LDA:
    model = LDA(num_topics=num_topics, vocabulary_size=vocabulary_size)
    return model.with_concentration(**{"alpha": ALPHA, "gamma": GAMMA, **priors})


def planted(seed: int, num_documents: int = 300) -> tuple[torch.Tensor, torch.Tensor]:
    """Topics (4, 20), each on five words of its own and little else, and counts of documents of 30 tokens."""
    rng = np.random.default_rng(seed)
    topic = np.full((4, 20), 0.004)
    for k in range(4):
        topic[k, 5 * k : 5 * k + 5] = 0.188
    topic /= topic.sum(1, keepdims=True)
    share = rng.dirichlet(np.full(4, 0.2), num_documents) @ topic
    return torch.tensor(topic), torch.tensor(np.array([rng.multinomial(30, p) for p in share], dtype=float))


def at(model, data, weight, topic_weight):
    """The mean field guide at given concentrations of the documents (N, K) and of the topics (K, V)."""
    guide = MeanField().bind(model, data, globals_="dirichlet")
    guide.globals_guide.topic_concentration = torch.tensor(topic_weight)
    guide.local_parameters = torch.log(torch.tensor(weight))
    return guide


def elbos(model, guide, data, number, **arguments):
    loss = ClosedFormELBO()
    return np.array([-loss.loss(model, guide, data.x, mask=data.mask, **arguments) for _ in range(number)])


@pytest.mark.quick
@pytest.mark.parametrize("kind", ["dense", "sparse", "masked", "batch"])
def test_with_one_topic_the_elbo_is_the_closed_form_vb_bound(kind):
    """All tokens are of the one topic: VB's bound is then the guide's own, E_q[log b] included."""
    x, rng = corpus(length=6), np.random.default_rng(1)
    mask = rng.random(x.shape) > 0.3 if kind == "masked" else None
    model = lda_model(1, 4)
    held = np.where(mask, x, 5.0) if mask is not None else x
    given = _sparse.from_dense(torch.tensor(held)) if kind == "sparse" else held
    data = model.prepare(given, mask=mask, dtype=torch.float64)
    weight, topic_weight = 1 + rng.random((3, 1)), 0.5 + rng.random((1, 4))
    expected = reference.vb_bound(x, weight, np.ones((3, 4, 1)), topic_weight, ALPHA, GAMMA, mask)
    guide = at(model, data, weight, topic_weight)
    found = elbos(model, guide, data, 400, **({"batch_size": 2} if kind == "batch" else {}))
    assert abs(found.mean() - expected) < 4 * found.std() / np.sqrt(len(found))
    assert found.std() > 0


def test_the_elbo_is_numpys_and_lies_between_vb_bound_and_evidence():
    """Two topics: E_q[log p(x | pi, b)] by NumPy's own draws, divergences by the reference's formulas."""
    x, rng = corpus(length=2), np.random.default_rng(2)
    model = lda_model(2, 4)
    data = model.prepare(_sparse.from_dense(torch.tensor(x)), dtype=torch.float64)
    _, c, topic_weight = reference.vb_iteration(x, 0.5 + rng.random((2, 4)), ALPHA, GAMMA)
    weight = reference.weight_update(x, c, ALPHA)
    guide = at(model, data, weight, topic_weight)
    found = elbos(model, guide, data, 400)
    draws = [
        _topics.log_likelihood(
            np.array([rng.dirichlet(w) for w in topic_weight]), x, np.array([rng.dirichlet(w) for w in weight])
        ).sum()
        for _ in range(2000)
    ]
    divergence = sum(
        (reference.expected_log_density(w, w) - reference.expected_log_density(w, prior)).sum()
        for w, prior in ((weight, ALPHA), (topic_weight, GAMMA))
    )
    error = np.hypot(found.std() / np.sqrt(len(found)), np.std(draws) / np.sqrt(len(draws)))
    assert abs(found.mean() - (np.mean(draws) - divergence)) < 4 * error
    lower = reference.vb_bound(x, weight, c, topic_weight, ALPHA, GAMMA)
    upper = _collapsed.log_evidence(_topics.tokens_of(x), 2, 4, ALPHA, GAMMA)
    assert lower - 4 * error < found.mean() < upper + 4 * error
    assert lower + 1e-3 < upper


def test_gradients_through_the_draws_are_unbiased():
    """One topic, so that the bound is closed: its slopes in the logarithms of both concentrations."""
    x, rng = corpus(length=6), np.random.default_rng(3)
    model = lda_model(1, 4)
    data = model.prepare(x, dtype=torch.float64)
    weight, topic_weight = 1 + rng.random((3, 1)), 0.5 + rng.random((1, 4))
    guide, draws = at(model, data, weight, topic_weight), []
    for _ in range(400):
        ClosedFormELBO().loss_and_grads(model, guide, data.x)
        unconstrained = pyro.param("globals_guide.topic_concentration").unconstrained()
        draws.append(-unconstrained.grad.flatten().numpy().copy())
        unconstrained.grad = None

    def bound(log_weight):
        return reference.vb_bound(x, weight, np.ones((3, 4, 1)), np.exp(log_weight)[None], ALPHA, GAMMA)

    start = np.log(topic_weight[0])
    slopes = [(bound(start + h) - bound(start - h)) / 2e-5 for h in 1e-5 * np.eye(4)]
    error = np.std(draws, 0) / np.sqrt(len(draws))
    assert (np.abs(np.mean(draws, 0) - slopes) < 4.5 * error).all()
    assert np.abs(slopes).max() > 10 * error.max()


@pytest.mark.parametrize("model", [lda_model(3, 4), MultinomialPCA(num_topics=3, vocabulary_size=4)])
def test_the_closed_form_elbo_is_pyros(model):
    data = model.prepare(_sparse.from_dense(torch.tensor(corpus())), dtype=torch.float64)
    guide = MeanField().bind(model, data, globals_="dirichlet")
    values = []
    for loss in (ClosedFormELBO(), TraceMeanField_ELBO()):
        pyro.set_rng_seed(3)
        values.append(loss.loss(model, guide, data.x, batch_size=2))
    assert np.isclose(*values, rtol=1e-12)


@pytest.mark.parametrize("guide", ["mean_field", "amortized"])
@pytest.mark.parametrize("seed", [0, 1])
def test_planted_topics_are_found(guide, seed):
    topic, x = planted(seed)
    model = lda_model(4, 20, alpha=0.2, gamma=0.1)
    fit = ci.SVI(guide=guide, steps=250, batch_size=100).fit(model, x, seed=seed, progress=False)
    assert ci.recovered(fit.params["topic"], topic, threshold=0.97) == 4
    assert fit.bound_name == f"elbo ({guide}, globals dirichlet)"
    posterior = fit.global_posterior["topic"]
    assert torch.equal(posterior.mean, fit.params["topic"]) and posterior.concentration.shape == (4, 20)
    assert fit.elbo[-20:].mean() > fit.elbo[:20].mean() + 100 and fit.draws is None


@pytest.mark.parametrize("guide", ["mean_field", "amortized"])
@pytest.mark.parametrize("batch_size", [None, 40])
def test_sparse_and_dense_counts_give_the_same_fit(guide, batch_size):
    _, x = planted(0, 80)
    model, method = lda_model(4, 20), ci.SVI(guide=guide, steps=15, batch_size=batch_size)
    fits = [method.fit(model, value, seed=1, progress=False) for value in (x, _sparse.from_dense(x), x)]
    assert fits[1].data.is_sparse and not fits[0].data.is_sparse
    assert torch.equal(fits[0].params["topic"], fits[2].params["topic"]), "same seed, same result"
    assert torch.allclose(fits[0].params["topic"], fits[1].params["topic"], atol=1e-10)
    assert torch.allclose(fits[0].elbo, fits[1].elbo, rtol=1e-10)
    assert torch.allclose(fits[0].posterior.mean, fits[1].posterior.mean, atol=1e-10)


@pytest.mark.parametrize("guide", ["mean_field", "amortized"])
def test_nothing_depends_on_what_fills_a_masked_count(guide):
    _, x = planted(0, 60)
    mask = torch.rand(x.shape) > 0.3
    model, method = lda_model(4, 20), ci.SVI(guide=guide, steps=10, batch_size=20)
    first, second = (
        method.fit(model, torch.where(mask, x, fill), mask=mask, seed=0, progress=False).params["topic"]
        for fill in (torch.zeros(()), torch.full((), 7.0))
    )
    assert torch.equal(first, second) and torch.isfinite(first).all()
    without = method.fit(model, x, seed=0, progress=False).params["topic"]
    assert not torch.allclose(first, without)


def test_sparse_corpora_are_never_made_dense(monkeypatch):
    """Their matrix would take .6 GB."""
    rng, shape, each = np.random.default_rng(0), (1_500, 50_000), 5
    column = torch.tensor(rng.integers(0, shape[1] // each, (shape[0], each)) + shape[1] // each * np.arange(each))
    crow = torch.arange(0, shape[0] * each + 1, each)
    x = _sparse.tensor(crow, column.flatten(), torch.ones(shape[0] * each), size=shape)
    monkeypatch.setattr(torch.Tensor, "to_dense", lambda *_: pytest.fail("made dense"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for guide in ("mean_field", Amortized(hidden=4)):
        fit = ci.SVI(guide=guide, steps=3, batch_size=64).fit(lda_model(2, shape[1]), x, progress=False)
        assert torch.isfinite(fit.elbo).all()
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20 < 0.2, "GB beyond what was in use"


def test_automatic_batches_cost_about_a_draw_of_the_topics():
    model = lda_model(20, 2000)
    counts = torch.ones(1000, 2000)
    assert documents_a_step(model, Data(x=counts)) == 16
    assert documents_a_step(model, Data(x=counts[:10])) is None
    thin = torch.zeros(1000, 2000)
    thin[:, :80] = 1
    assert documents_a_step(model, Data(x=_sparse.from_dense(thin))) == 400
    assert documents_a_step(lda_model(20_000, 2000), Data(x=_sparse.from_dense(thin))) == 16


def _points(values, total):
    """A guide of points of every site, in the model's own plate."""

    def guide(x, mask=None, batch_size=None):
        pyro.sample("topic", dist.Delta(values["topic"], event_dim=2))
        with pyro.plate("data", total, subsample_size=batch_size, dim=-1) as index:
            pyro.sample("topic_proportion", dist.Delta(values["topic_proportion"][index], event_dim=1))

    return guide


@pytest.mark.parametrize("kind", ["dense", "sparse", "masked"])
@pytest.mark.parametrize("batch_size", [None, 7])
def test_enumerating_the_tokens_topics_gives_lda(kind, batch_size):
    """TraceEnum_ELBO at points of all other sites is the log joint with the indicators summed out, (27.22)."""
    example = LDA.example()
    x, total = example.data.x, len(example.data)
    mask = torch.rand(x.shape) > 0.3 if kind == "masked" else None
    given = _sparse.from_dense(x) if kind == "sparse" else x
    guide, values = _points(example.truth, total), []
    kept = LDAIndicator(num_topics=3, vocabulary_size=9, priors=example.model.priors)
    for model, loss in ((kept, TraceEnum_ELBO(max_plate_nesting=1)), (example.model, Trace_ELBO())):
        pyro.set_rng_seed(11)  # the same documents in the minibatch
        values.append(-loss.loss(model, guide, given, mask=mask, batch_size=batch_size))
    assert np.isclose(*values, rtol=1e-12)
    if batch_size is None:
        truth = {site: example.truth[site].numpy() for site in ("topic", "topic_proportion")}
        priors = {"topic": ("dirichlet", 0.05), "topic_proportion": ("dirichlet", 0.1)}
        observed = None if mask is None else mask.numpy()
        params = {"topic": truth["topic"]}
        expected = reference.log_joint(params, x.numpy(), truth["topic_proportion"], observed, priors)
        assert np.isclose(values[0], expected, rtol=1e-10)


def test_fits_of_the_tokens_topics_are_fits_of_lda(tmp_path):
    example = LDA.example()
    kept = LDAIndicator(num_topics=3, vocabulary_size=9).with_concentration(alpha=0.7)
    data = example.data.rows(slice(0, 10))
    for method in (ci.SVI(steps=5), ci.SVI(guide="delta", steps=5), ci.NUTS(num_samples=4, warmup=2, chains=1)):
        fit = method.fit(kept, data, progress=False)
        assert type(fit.model) is LDA and torch.equal(
            fit.model.priors["topic_proportion"].concentration[:1], torch.tensor([0.7])
        )
        assert fit.predictive(2).shape == (2, 10, 9) and fit.log_likelihood().shape == (10,)
        assert ci.Fit.load(fit.save(tmp_path / "fit")).params["topic"].shape == (3, 9)


def test_posteriors_of_topics_in_files_and_in_arviz(tmp_path):
    model = lda_model(3, 20)
    _, x = planted(0, 40)
    fit = ci.SVI(steps=10).fit(model, _sparse.from_dense(x), progress=False)
    path = fit.save(tmp_path / "fit")
    loaded = ci.Fit.load(path)
    assert torch.equal(loaded.global_posterior["topic"].concentration, fit.global_posterior["topic"].concentration)
    assert torch.equal(loaded.model.priors["topic"].concentration, model.priors["topic"].concentration)
    tree = fit.to_arviz(num_draws=64)
    draws = tree.posterior["topic"]
    assert draws.dims == ("chain", "draw", "component", "word") and draws.shape == (1, 64, 3, 20)
    assert tree.posterior.attrs["globals"] == "approximate posterior"
    error = draws.values[0].std(0) / 8
    assert (np.abs(draws.values[0].mean(0) - fit.params["topic"].numpy()) < 5 * error).all()
    assert np.array_equal(tree.observed_data["x"].values, x.numpy())


def test_symmetric_priors_take_no_space_in_files(tmp_path):
    sizes = []
    for words in (100, 20_000):
        x = torch.zeros(2, words)
        x[:, :5] = 1
        model = PLSA(num_topics=1, vocabulary_size=words)
        fit = given(model, {"topic": torch.ones(1, 1)}, Data(x=_sparse.from_dense(x)))
        sizes.append(fit.save(tmp_path / "fit").stat().st_size)
    assert sizes[1] - sizes[0] < 20
    uneven = LDA(num_topics=2, vocabulary_size=3).with_concentration(gamma=[0.1, 0.2, 0.3])
    fit = ci.SVI(steps=1).fit(uneven, torch.ones(2, 3), progress=False)
    loaded = ci.Fit.load(fit.save(tmp_path / "fit")).model
    assert torch.equal(loaded.priors["topic"].concentration, torch.tensor([0.1, 0.2, 0.3]))


def test_nuts_draws_from_the_exact_posterior():
    """E[sum_k pi_ik b_kv | x], which no labelling of the topics moves, against the sum over all assignments.

    Given the tokens' topics pi and b are independent Dirichlets (002, eqs. 27.31 and 27.32).
    """
    x, alpha, gamma = np.array([[2.0, 1.0], [0.0, 2.0]]), 1.2, 0.7
    model = lda_model(2, 2, alpha=alpha, gamma=gamma)
    fit = ci.NUTS(num_samples=200, warmup=80, chains=1, max_tree_depth=4).fit(model, x, seed=1, progress=False)
    documents = _topics.tokens_of(x)
    every, log_weight = _collapsed.table(documents, 2, 2, alpha, gamma)
    exact = np.zeros((2, 2))
    for weight, q in zip(np.exp(log_weight - np.logaddexp.reduce(log_weight)), every, strict=True):
        shares = _collapsed.one_hot(_collapsed.split(q, documents), 2)
        document, word = _collapsed.tables(documents, shares, 2)
        document, word = document + alpha, word + gamma
        exact += weight * (document / document.sum(1, keepdims=True)) @ (word / word.sum(1, keepdims=True))
    found = (fit.draws["topic_proportion"] @ fit.draws["topic"]).numpy()
    for i, v in np.ndindex(2, 2):
        draws = found[:, :, i, v]
        assert az.ess(draws) > 50
        assert abs(draws.mean() - exact[i, v]) < 4 * np.asarray(az.mcse(draws)).item(), (i, v)
