"""Supervised LDA with every kind of response: program, bound, sampler, prediction-constrained training, refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pyro import poutine

import custom_inference as ci
from custom_inference.core.local_inference import solve_local
from custom_inference.core.registry import engine_for
from custom_inference.families.responses.expansions import expand_bound
from custom_inference.families.responses.gibbs import SupervisedSampler
from custom_inference.families.responses.regression import fit_regression, residuals
from ppl_models import CapacityError, DataError, MethodError, ModelError, SupervisedLDA
from ppl_models.distributions.tokens import Cells
from ppl_models.distributions.topic_means import TopicMeanResponse, draw_means, law_of
from ppl_models.likelihoods import Bernoulli, Categorical, Gaussian, Poisson
from tests.references import supervised_lda as reference

#: Some documents are empty.
pytestmark = pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")

#: Name -> kind, number of responses.
KINDS = {
    "binary": ("binary", 1),
    "categorical": ("categorical", 1),
    "real": ("real", 1),
    "counts": ("counts", 1),
    "two binary": ("binary", 2),
    "two real": ("real", 2),
}


def problem(name: str, *, documents: int = 6, length: int = 5, seed: int = 1):
    """(model, params, x, responses) of two topics over four words; some responses are unknown."""
    kind, several = KINDS[name]
    rng, size = np.random.default_rng(seed), 2
    x = rng.multinomial(length, np.full(4, 0.25), documents).astype(float)
    x[-1] = 0
    outputs = (3,) if kind == "categorical" else (several,) if several > 1 else ()
    params = {"topic": rng.dirichlet(np.full(4, 0.6), size), "response_weight": 1.5 * rng.normal(size=(*outputs, size))}
    shape = (documents, *(() if kind == "categorical" else outputs))
    if kind == "real":
        params["response_scale"] = rng.uniform(0.3, 1.0, () if several == 1 else (several,))
        response = rng.normal(size=shape)
    else:
        response = rng.integers(0, {"binary": 2, "categorical": 3, "counts": 5}[kind], shape).astype(float)
    response[1] = np.nan
    if several > 1:
        response[2, 0] = np.nan
    settings = {"response": kind, "num_responses": several, "num_classes": 3 if kind == "categorical" else 1}
    settings |= {"centre": 0.0, "unit": 1.0} if kind == "real" else {}
    return SupervisedLDA(num_topics=size, vocabulary_size=4, **settings), params, x, response


def tensors(params):
    return {site: torch.as_tensor(value) for site, value in params.items()}


@pytest.mark.parametrize("name", KINDS)
def test_the_program_is_the_sum_over_all_assignments(name):
    model, params, x, response = problem(name)
    proportion = np.random.default_rng(2).dirichlet(np.full(2, 0.7), len(x))
    data = model.prepare(x, response=response, dtype=torch.float64)
    values = tensors({**params, "topic_proportion": proportion})
    trace = poutine.trace(poutine.condition(model, values)).get_trace(data.x, response=data.others["response"])
    found = trace.log_prob_sum(lambda site, _: site in ("x", "response"))
    expected = reference.log_joint(params, x, proportion, None, {}, response, model.response)
    assert np.isclose(float(found), expected, atol=1e-8)


@pytest.mark.parametrize("kind", ["real", "counts", "categorical", "two real"])
def test_gradients_of_the_law_of_a_response(kind):
    model, params, x, _ = problem(kind)
    shape = (6, 2) if kind == "two real" else (6,)
    values, counts = tensors(params), torch.as_tensor(x)
    y = torch.ones(shape)
    proportion = torch.as_tensor(np.random.default_rng(0).dirichlet(np.ones(2), 6)).requires_grad_()
    weight, scale = values["response_weight"].requires_grad_(), values.get("response_scale", torch.tensor(1.0))

    def total(proportion, weight, scale):
        law = TopicMeanResponse(model.response, proportion, values["topic"], counts, weight, scale)
        return law.log_prob(y).sum()

    given = proportion, weight, scale.clone().requires_grad_(model.response == "real")
    assert torch.autograd.gradcheck(total, given, atol=1e-6, rtol=1e-4)


def test_a_long_document_takes_no_sum_over_its_topics_and_several_responses_say_so():
    _, params, x, _ = problem("counts")
    values, many = tensors(params), torch.as_tensor(300.0 * x[:3])
    proportion = torch.full((3, 2), 0.5)
    law = TopicMeanResponse("counts", proportion, values["topic"], many, values["response_weight"])
    # At this length qbar is nearly its mean.
    eta = Cells.of(many)
    mean = (law.phi * eta.count[:, None]).new_zeros(3, 2).index_add(0, eta.row, law.phi * eta.count[:, None]) / 1500
    nearly = law_of("counts", mean @ values["response_weight"]).log_prob(torch.ones(3))
    assert torch.allclose(law.log_prob(torch.ones(3)), nearly, atol=1e-3)
    wide = torch.full((3, 9), 1 / 9), torch.full((9, 4), 0.25), many, torch.ones(3, 9)
    with pytest.raises(CapacityError, match="vectors of counts in 3 documents"):
        TopicMeanResponse("categorical", *wide).log_prob(torch.ones(3))
    assert TopicMeanResponse("categorical", *wide).sample().shape == (3,)


@pytest.mark.parametrize("name", ["real", "categorical", "two binary"])
def test_draws_have_the_means_of_the_law(name):
    model, params, x, _ = problem(name)
    values = tensors(params)
    proportion, parts = torch.full((6, 2), 0.5), (values["response_weight"], values.get("response_scale"))
    law = TopicMeanResponse(model.response, proportion, values["topic"], torch.as_tensor(x), *parts)
    torch.manual_seed(0)
    drawn = law.sample((3000,))
    drawn = torch.nn.functional.one_hot(drawn.long(), 3).to(law.phi) if name == "categorical" else drawn
    assert torch.allclose(drawn.mean(0), law.mean, atol=0.08)
    assert torch.allclose(draw_means(law.phi, law.cells).sum(1)[:-1], torch.ones(5))


@pytest.mark.parametrize("name", KINDS)
def test_the_bound_is_below_the_evidence_and_its_m_step_climbs(name):
    model, params, x, response = problem(name, seed=3)
    data = model.prepare(x, response=response, dtype=torch.float64)
    bound = solve_local(model, tensors(params), data, bound="dirichlet").bound.numpy()
    evidence = reference.log_evidence(params, x, response, 0.1, None, model.response)
    assert (bound <= evidence + 1e-8).all() and (evidence - bound).max() < 3.0
    engine, state = engine_for(model, "dirichlet"), tensors(params)
    rows, trace, warm = engine.rows(model, data), [], None
    for _ in range(12):
        step = engine.e_step(model, state, rows, warm)
        trace.append(float(step.bound.sum() + engine.prior_term(model, state)))
        warm, state = step.locals, engine.m_step(model, state, step, rows)
    assert np.diff(trace).min() > -1e-7 and trace[-1] > trace[0]


@pytest.mark.parametrize("name", KINDS)
def test_expansions_touch_and_stay_below(name):
    kind, several = KINDS[name]
    rng = np.random.default_rng(0)
    size = 3 if kind == "categorical" else several
    y = torch.as_tensor(rng.integers(0, 2, (40, several)).astype(float))
    weight, scale = torch.full((size, 2), 1.5), torch.full((several,), 0.7)
    at, eta = (torch.as_tensor(rng.uniform(-1.5, 1.5, (40, size))) for _ in range(2))

    def exact(eta):
        found = law_of(kind, eta, scale).log_prob(y[:, 0] if kind == "categorical" else y)
        return found if kind == "categorical" else found.sum(1)

    bound = expand_bound(kind, y, at, at.square(), weight, scale)
    value = lambda eta: bound.constant + (bound.slope * eta - 0.5 * bound.curvature * eta.square()).sum(1)  # noqa: E731
    assert torch.allclose(value(at), exact(at)) and bool((value(eta) <= exact(eta) + 1e-10).all())
    none = expand_bound(kind, torch.full_like(y, torch.nan), at, at.square(), weight, scale)
    assert all(not part.any() for part in none)


@pytest.mark.parametrize("likelihood", [Bernoulli(), Poisson(), Gaussian(), Categorical(3)])
def test_regression_ends_where_the_gradient_is_zero(likelihood):
    rng = np.random.default_rng(1)
    size, width = (3, 3) if likelihood.is_vector else (3, 1)
    q = torch.as_tensor(rng.dirichlet(np.ones(3), 50))
    y = torch.as_tensor(rng.integers(0, 2, (50, 1)).astype(float))
    y[0] = torch.nan
    centre, precision = torch.full((width, size), 0.3), torch.full((width, size), 0.5)
    scale = torch.tensor([0.5]) if isinstance(likelihood, Gaussian) else None
    found = fit_regression(likelihood, y, q, centre, precision, centre, scale=scale, tolerance=0.0)
    slope = residuals(likelihood, y, q @ found.weight.T, scale).T @ q - precision * (found.weight - centre)
    assert float(slope.abs().max()) < 1e-6
    weight = found.weight.clone().requires_grad_()
    eta = q[1:] @ weight.T
    own = torch.distributions.Normal(eta, scale).log_prob(y[1:]) if scale is not None else (
        likelihood.log_prob(y[1:, 0], eta) if likelihood.is_vector else likelihood.log_prob(y[1:], eta)
    )  # fmt: skip
    total = own.sum() - 0.5 * (precision * (weight - centre).square()).sum()
    assert float(torch.autograd.grad(total, weight)[0].abs().max()) < 1e-6


@pytest.mark.parametrize("name", KINDS)
def test_the_samplers_topics_follow_the_exact_posterior(name):
    """Four tokens in two documents, weights known: all sixteen assignments."""
    model, params, _, _ = problem(name)
    x = np.array([[1.0, 1.0, 0.0, 0.0], [0.0, 1.0, 0.0, 1.0]])
    kind, several = KINDS[name]
    response = np.array([1.0, 0.0]) if several == 1 else np.array([[1.0, 0.0], [np.nan, 1.0]])
    known = tensors({site: value for site, value in params.items() if site != "topic"})
    model = model.with_priors(**known).with_concentration(alpha=0.5, gamma=0.5)
    data = model.prepare(x, response=response, dtype=torch.float64)
    chain = SupervisedSampler().chain(model, data, 3, None)
    seen, joint, sweeps = np.zeros(16), np.zeros(16), 3000
    for state in range(16):
        q = [state >> bit & 1 for bit in range(4)]
        joint[state] = reference.log_joint_of_topics(x, q, response, params, 0.5, 0.5, kind)
    for _ in range(sweeps):
        chain.sweep()
        state = int((chain.topic * (1 << np.arange(4))).sum())
        seen[state] += 1
        if seen[state] == 1:
            assert np.isclose(chain.log_joint(), joint[state], atol=1e-9)
    exact = np.exp(joint - joint.max()) / np.exp(joint - joint.max()).sum()
    assert np.abs(seen / sweeps - exact).max() < 0.035


@pytest.mark.parametrize("name", ["binary", "real"])
def test_the_samplers_weights_follow_their_posterior_given_the_topics(name):
    """Topics that are certain (words of their own): a regression with K = 2, on a grid of weights."""
    kind, _ = KINDS[name]
    rng = np.random.default_rng(5)
    topic = np.array([[0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.5, 0.5]]).clip(1e-12)
    x = np.concatenate([rng.multinomial(4, [w / 2, w / 2, (1 - w) / 2, (1 - w) / 2], 1) for w in rng.random(12)]) * 1.0
    response = (rng.random(12) < 0.5).astype(float) if kind == "binary" else rng.normal(size=12)
    scale = {"response_scale": torch.tensor(0.8)} if kind == "real" else {}
    model = SupervisedLDA(num_topics=2, vocabulary_size=4, response=kind)
    model = model.with_priors(topic=torch.as_tensor(topic), **scale)
    settings = {"num_samples": 600, "warmup": 20, "thin": 1, "chains": 1, "search": False, "align": False}
    fit = ci.CollapsedGibbs(**settings).fit(model, x, response=response, progress=False, init={
        "topic": torch.as_tensor(topic), "response_weight": torch.zeros(2), **scale})  # fmt: skip
    grid = np.linspace(-14, 14, 281)
    first, second = np.meshgrid(grid, grid, indexing="ij")
    mean = x[:, :2].sum(1) / 4
    eta = mean[:, None, None] * first + (1 - mean)[:, None, None] * second
    sd = 5.0 if kind == "binary" else 10.0
    each = law_of(kind, torch.as_tensor(eta), torch.tensor(0.8)).log_prob(torch.as_tensor(response)[:, None, None])
    log = each.sum(0).numpy() - 0.5 * (first**2 + second**2) / sd**2
    chance = np.exp(log - log.max()) / np.exp(log - log.max()).sum()
    expected = np.array([(chance * first).sum(), (chance * second).sum()])
    spread = np.sqrt([(chance * first**2).sum(), (chance * second**2).sum()] - expected**2)
    assert fit.draws is not None
    draws = fit.draws["response_weight"][0].numpy()
    assert (np.abs(draws.mean(0) - expected) < 0.15 * spread).all()
    assert (np.abs(draws.std(0) / spread - 1) < 0.12).all()


@pytest.mark.parametrize("name", ["categorical", "real", "counts", "two real"])
def test_every_method_fits_and_predicts(name):
    model, _, x, response = problem(name, documents=30, length=8)
    shape = {"categorical": (30, 3), "two real": (30, 2)}.get(name, (30,))
    methods = {
        "dirichlet": {"max_iterations": 5},
        "gibbs": {"num_samples": 4, "warmup": 4, "chains": 2},
        "prediction_constrained": {"sweeps": 12, "begin": 5, "average": 6},
    }
    for method, settings in methods.items():
        fit = ci.fit(model, x, response=response, method=method, progress=False, **settings)
        found = fit.predict(x)
        assert tuple(found.shape) == shape and bool(torch.isfinite(found).all())
        if name == "categorical":
            assert torch.allclose(found.sum(1), torch.ones(30).to(found))
        assert fit.transform(x[:3]).shape == (3, 2)
        assert fit.sample(4)["response"].shape[0] == 4


@pytest.mark.parametrize("name", ["binary", "categorical", "counts", "real"])
def test_predictions_are_near_the_exact_posterior_means(name):
    model, params, x, _ = problem(name, seed=7)
    data = model.prepare(x, response=np.r_[np.zeros(3), np.ones(3)], dtype=torch.float64)
    fit = ci.VariationalEM(guide="dirichlet", max_iterations=1, search=None).fit(
        model, data, init=tensors(params), progress=False
    )
    fit.params.update(tensors(params))
    exact = reference.mean_response(params, x, 0.1, model.response)
    assert np.abs(fit.predict(x).numpy() - exact).max() < (0.8 if name == "counts" else 0.3)


def drawn(number: int, seed: int = 0):
    """Documents whose first topic of two is what they respond to, among words that tell of a third."""
    rng = np.random.default_rng(seed)
    share = rng.dirichlet(np.full(3, 0.4), number)
    topic = np.kron(np.eye(3), np.ones(10)) + 0.05
    x = np.stack([rng.multinomial(40, p) for p in share @ (topic / topic.sum(1, keepdims=True))]).astype(float)
    return x, share @ np.array([3.0, 0.0, -3.0])


def test_prediction_constrained_training_predicts_and_sampling_with_a_known_weight_is_kept():
    x, eta = drawn(300)
    response = eta + 0.3 * np.random.default_rng(1).normal(size=300)
    model = SupervisedLDA(num_topics=3, vocabulary_size=30, response="real")
    settings = {"sweeps": 40, "begin": 15, "average": 10, "weight": 1.0}
    fit = ci.fit(model, x[:200], response=response[:200], method="prediction_constrained", progress=False, **settings)
    left = response[200:] - fit.predict(x[200:]).numpy()
    assert 1 - left.var() / response[200:].var() > 0.85
    assert "not a posterior" in fit.status and fit.draws is not None and fit.draws["topic"].shape == (4, 5, 3, 30)
    again = ci.fit(model, x[:200], response=response[:200], method="prediction_constrained", progress=False, **settings)
    assert torch.equal(fit.params["topic"], again.params["topic"])


def test_a_fit_is_saved_with_what_it_predicts_by(tmp_path):
    model, _, x, response = problem("binary", documents=20)
    settings = {"sweeps": 12, "begin": 5, "average": 6}
    fit = ci.fit(model, x, response=response, method="prediction_constrained", progress=False, **settings)
    again = ci.Fit.load(fit.save(tmp_path / "fit.safetensors"))
    assert torch.allclose(fit.predict(x), again.predict(x))


@pytest.mark.parametrize(
    ("kind", "settings", "response", "message"),
    [
        ("categorical", {"num_classes": 3}, [0, 1, 3], r"none of the 3 categories .the first: 3 of document 2"),
        ("counts", {}, [0, 1, 1.5], "are no counts .the first: 1.5 of document 2"),
        ("real", {}, [0.0, np.inf, 1.0], "are infinite"),
        ("real", {}, [2.0, 2.0, np.nan], "all 2 values are 2.*at least two different"),
        ("binary", {}, [1, 1, 1], "all 3 values are 1"),
        ("binary", {}, [np.nan] * 3, "all 3 responses are missing.*0 or 1, or one of two names"),
        ("real", {}, [np.nan] * 3, "all 3 responses are missing.*response=...., a number of some"),
        ("binary", {"num_responses": 2}, [0, 1, 0], r"shape \(3,\).*2 a document"),
        ("binary", {"num_responses": 2}, [[0, 1], [1, 1], [0, 1]], "all 3 values of response 1 are 1"),
        ("binary", {"num_responses": 2}, [[0, np.nan], [1, np.nan], [0, np.nan]], "no value of response 1 is known"),
    ],
)
def test_refusals_of_responses(kind, settings, response, message):
    model = SupervisedLDA(num_topics=2, vocabulary_size=3, response=kind, **settings)
    with pytest.raises(DataError, match=message):
        ci.fit(model, torch.ones(3, 3), response=response, progress=False)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"response": "categorical", "num_classes": 1}, "num_classes = 1, expected at least 2"),
        ({"response": "categorical", "num_classes": 3, "num_responses": 2}, "num_responses = 2 categorical responses"),
    ],
)
def test_refusals_of_settings(settings, message):
    with pytest.raises(ModelError, match=message):
        SupervisedLDA(num_topics=2, vocabulary_size=3, **settings)
    example = SupervisedLDA.example()
    with pytest.raises(MethodError, match="weight = -1"):
        ci.fit(example.model, example.data, method="prediction_constrained", weight=-1.0)
