"""LDA with the proportions integrated out exactly, against sums over all K^L topics of the tokens."""

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from torch.distributions.transforms import StickBreakingTransform

from custom_inference import EM, NUTS, Exact, fit
from custom_inference.core.registry import engine_for
from custom_inference.families.topics.exact import LdaExact
from ppl_models import LDA, PLSA, CapacityError, Data, MethodError
from tests.references import _topics as reference


def problem(seed, num_topics=2, vocabulary_size=5, longest=5, num_rows=6, missing=0.0):
    """The first document is empty."""
    rng = np.random.default_rng(seed)
    topic = rng.dirichlet(np.ones(vocabulary_size), num_topics)
    lengths = [0, *rng.integers(1, longest + 1, num_rows - 1)]
    x = np.array([rng.multinomial(length, np.ones(vocabulary_size) / vocabulary_size) for length in lengths], float)
    mask = rng.random(x.shape) > missing if missing else None
    data = Data(x=torch.tensor(x), mask=None if mask is None else torch.tensor(mask))
    return topic, {"topic": torch.tensor(topic)}, x, mask, data


def model_of(kind, alpha, vocabulary_size, gamma=1.0):
    model = kind(num_topics=len(alpha), vocabulary_size=vocabulary_size)
    return model.with_concentration(alpha=torch.tensor(np.asarray(alpha)), gamma=gamma)


def engine_of(alpha, vocabulary_size, kind=LDA, **settings):
    model = model_of(kind, alpha, vocabulary_size)
    return engine_for(model, "exact", **settings), model


def test_many_topics_and_short_documents():
    """40 topics: the exponents of three tokens are looked up among 11480."""
    topic, params, x, _, data = problem(2, 40, 6, longest=3, num_rows=4)
    alpha = np.full(40, 0.1)
    engine, model = engine_of(alpha, 6)
    truth = reference.log_evidence_polynomial(topic, x, alpha)
    assert np.allclose(engine.log_evidence(model, params, engine.rows(model, data)), truth, atol=1e-11)


@pytest.mark.parametrize("alpha", [(1.0, 1.0), (0.05, 0.3), (2.5, 0.7)])
def test_long_documents_are_quadratures(alpha):
    topic, params, x, _, data = problem(3, 2, 8, longest=150, num_rows=4)
    engine, model = engine_of(alpha, 8)
    rows = engine.rows(model, data)
    assert np.allclose(
        engine.log_evidence(model, params, rows), reference.log_evidence_quadrature(topic, x, alpha), rtol=1e-9
    )
    mean = reference.posterior_mean_quadrature(topic, x, alpha)
    assert np.allclose(engine.posterior(model, params, rows).mean, mean, atol=1e-8)
    single = engine.rows(model, data.to(dtype=torch.float32))
    rounded = engine.log_evidence(model, {"topic": params["topic"].float()}, single)
    assert rounded.dtype == torch.float32
    # Of the empty document, log 1, what is left is the rounding of a sum in single precision.
    assert np.allclose(rounded, reference.log_evidence_quadrature(topic, x, alpha), rtol=1e-4, atol=1e-6)


def test_posterior_density_is_bayes_rule():
    alpha = (0.7, 1.0, 2.0)
    topic, params, x, _, data = problem(4, 3)
    engine, model = engine_of(alpha, 5)
    rows = engine.rows(model, data)
    point = np.random.default_rng(0).dirichlet(np.ones(3), len(x))
    prior = dist.Dirichlet(torch.tensor(alpha)).log_prob(torch.tensor(point))
    likelihood = torch.tensor(reference.log_likelihood(topic, x, point))
    expected = likelihood + prior - engine.log_evidence(model, params, rows)
    assert torch.allclose(engine.posterior(model, params, rows).log_prob(torch.tensor(point)), expected, atol=1e-10)


@pytest.mark.parametrize("num_topics", [1, 3])
def test_gradient(num_topics):
    """Of the brute-force evidence, entry by entry."""
    alpha = np.linspace(0.5, 1.2, num_topics)
    topic, params, x, _, data = problem(6, num_topics)
    engine, model = engine_of(alpha, 5)
    leaf = params["topic"].clone().requires_grad_()
    engine.log_evidence(model, {"topic": leaf}, engine.rows(model, data)).sum().backward()
    h = 1e-6
    for index in np.ndindex(topic.shape):
        shift = np.zeros_like(topic)
        shift[index] = h
        up, down = (reference.log_evidence(topic + sign * shift, x, alpha).sum() for sign in (1, -1))
        assert abs(float(leaf.grad[index]) - (up - down) / (2 * h)) < 1e-6


@pytest.mark.parametrize("gamma", [0.4, 1.0, 1.8])
def test_em_ends_where_the_evidence_has_no_slope(gamma):
    """In the logits of the topics, whose density has the factor prod b_kv more where gamma < 1."""
    alpha = (0.8, 1.3)
    _, _, x, _, data = problem(7, 2, 4, longest=6, num_rows=20)
    x, data = x[1:], data.rows(slice(1, None))
    model = model_of(LDA, alpha, 4, gamma)
    result = EM(max_iterations=800, tolerance=1e-12, search=None).fit(model, data, progress=False)
    trace = result.elbo.numpy()
    assert np.diff(trace).min() > -1e-9
    assert trace[-1] > trace[0] + 1
    pseudo = gamma if gamma < 1 else gamma - 1

    def objective(logits):
        topic = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        return reference.log_evidence(topic, x, alpha).sum() + pseudo * np.log(topic).sum()

    logits, h = np.log(result.params["topic"].numpy()), 1e-4
    for index in np.ndindex(logits.shape):
        shift = np.zeros_like(logits)
        shift[index] = h
        assert abs(objective(logits + shift) - objective(logits - shift)) / (2 * h) < 1e-4, index


def test_blocks_change_nothing(monkeypatch):
    _, params, _, _, data = problem(8, 3, num_rows=30)
    engine, model = engine_of((0.5, 1.0, 2.0), 5)
    rows = engine.rows(model, data)
    whole, posterior = engine.e_step(model, params, rows), engine.posterior(model, params, rows)
    assert float(whole.statistics["topic"].sum()) == pytest.approx(float(rows.lengths.sum()))
    monkeypatch.setattr("custom_inference.families.topics.exact.BLOCK_ENTRIES", 1)
    assert torch.allclose(engine.e_step(model, params, rows).bound, whole.bound, atol=1e-12)
    assert torch.allclose(engine.log_evidence(model, params, rows), whole.bound, atol=1e-12)
    assert torch.allclose(engine.posterior(model, params, rows).log_weight, posterior.log_weight, atol=1e-10)


def test_exact_and_fits_use_it():
    example = LDA.example()
    result = Exact().fit(example.model, example.data, progress=False)
    assert result.bound_name == "exact"
    assert result.evidence.sum() == pytest.approx(float(result.local.bound.sum()), abs=1e-6)
    at_truth = {"topic": example.truth["topic"]}
    local = Exact().local_posterior(example.model, at_truth, example.data)
    assert torch.allclose(local.posterior.mean.sum(1), torch.ones(40))
    by_points = fit(PLSA(num_topics=3, vocabulary_size=9), example.data, method="map", progress=False)
    assert torch.isfinite(by_points.log_likelihood(bound="exact")).all()


def test_nuts_takes_its_gradient():
    _, _, _, _, data = problem(9, 2, 4, longest=4, num_rows=8)
    model = model_of(LDA, (0.5, 0.5), 4, 0.9)
    with pytest.warns(match="empty"):
        draws = NUTS(num_samples=5, warmup=5, chains=1).fit(model, data, progress=False)
    assert draws.draws["topic"].shape == (1, 5, 2, 4)
    assert torch.isfinite(draws.draws["topic"]).all()


def test_what_does_not_fit_is_refused():
    model = LDA(num_topics=20, vocabulary_size=50)
    engine = LdaExact()
    data = Data(x=torch.full((3, 50), 2.0))
    assert not engine.feasible(model)
    assert engine.feasible(LDA(num_topics=1, vocabulary_size=50))
    with pytest.raises(CapacityError, match=r'100 tokens in 20 topics.*GiB.*up to \d+ tokens.*"dirichlet"') as raised:
        engine.check(model, engine.rows(model, data))
    assert raised.value.needed_bytes > raised.value.allowed_bytes
    with pytest.raises(CapacityError):
        engine.log_evidence(model, {"topic": torch.full((20, 50), 0.02)}, engine.rows(model, data))
    with pytest.raises(CapacityError, match="e\\+"):
        engine.check(LDA(num_topics=400, vocabulary_size=50), engine.rows(model, Data(x=torch.full((1, 50), 1e4))))


def test_most_tokens_that_fit_do_fit():
    engine, model = LdaExact(max_bytes=1e5), LDA(num_topics=3, vocabulary_size=2)
    with pytest.raises(CapacityError) as raised:
        engine.check(model, engine.rows(model, Data(x=torch.tensor([[500.0, 0.0]]))))
    most = int(str(raised.value).split("up to ")[1].split()[0])
    params = {"topic": torch.full((3, 2), 0.5)}
    engine.e_step(model, params, engine.rows(model, Data(x=torch.tensor([[float(most), 0.0]]))))
    with pytest.raises(CapacityError):
        engine.e_step(model, params, engine.rows(model, Data(x=torch.tensor([[most + 1.0, 0.0]]))))


def test_priors_other_than_dirichlet_are_refused():
    normal = dist.Normal(torch.zeros(1), torch.ones(1)).to_event(1)
    other = dist.TransformedDistribution(normal, [StickBreakingTransform()])
    model = LDA(num_topics=2, vocabulary_size=5).with_priors(topic_proportion=other)
    with pytest.raises(MethodError, match="topic_proportion"):
        engine = LdaExact()
        engine.check(model, engine.rows(model, Data(x=torch.ones(2, 5))))
