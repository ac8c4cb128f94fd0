"""Programs whose rows have shares of their own: bounds by their formula, below the evidence by enumeration, stationary;
the same numbers however a model is written; what was not observed left out; what is something else refused."""

import itertools

import numpy as np
import pyro
import pytest
import torch
from scipy import integrate, stats
from scipy.special import digamma, gammaln, logsumexp, softmax

import custom_inference as ci
from custom_inference.compiled.admixture import engines
from custom_inference.compiled.admixture.engine import AdmixturePoints, AdmixtureVB
from custom_inference.compiled.programs import engines_of_program
from custom_inference.compiled.reading import NotCompiled
from custom_inference.families.topics.cvb0 import LdaCvb0, TopicCounts
from custom_inference.methods import methods_for
from ppl_models import LDA
from tests.compiled._shares import (
    ALPHA,
    AddedActivations,
    AspectOfBits,
    Documents,
    LinkedShares,
    MeansOfChoices,
    SumsOfBits,
    SumsOfTokens,
    TopicOfTokens,
)

RNG = np.random.default_rng(3)
SIZE, WORDS, LENGTH, ROWS = 3, 3, 4, 6
TOPIC = RNG.dirichlet(np.ones(WORDS), SIZE)
TOKENS = RNG.integers(0, WORDS, (ROWS, LENGTH)).astype(float)
CHANCE = RNG.uniform(0.1, 0.9, (SIZE, LENGTH))
BITS = RNG.integers(0, 2, (ROWS, LENGTH)).astype(float)


@pytest.fixture(autouse=True)
def doubles():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def made(kind, **settings):
    return kind(num_components=SIZE, num_features=LENGTH, **settings)


def solved(model, x, engine=None, **params):
    """Rows and an E step until nothing moves, at these globals."""
    engine = (engine or AdmixturePoints()).at_length()
    rows = engine.rows(model, model.prepare(x, dtype=torch.float64))
    values = {site: torch.as_tensor(value) for site, value in params.items()}
    return rows, engine.e_step(model, values, rows)


def counts_of(x, size=WORDS):
    return np.stack([np.bincount(row[~np.isnan(row)].astype(int), minlength=size) for row in x]).astype(float)


def log_rising(counts, alpha):
    """log E prod theta^counts, theta ~ Dirichlet(alpha)."""
    rise = (gammaln(alpha + counts) - gammaln(alpha)).sum(-1)
    return rise + gammaln(alpha.sum()) - gammaln(alpha.sum() + counts.sum(-1))


def enumerate_evidence(scores, alpha):
    """log p(x_n), from log p of every token under every component (L, K): a sum over the choices of all tokens."""
    terms = []
    for z in itertools.product(range(len(alpha)), repeat=len(scores)):
        number = np.bincount(z, minlength=len(alpha))
        terms.append(log_rising(number, alpha) + sum(scores[place, k] for place, k in enumerate(z)))
    return logsumexp(terms)


def formula(scores, concentration, alpha):
    """E[log p(x, z, theta)] - E[log q] with the choices at their best given the concentration."""
    mean_log = digamma(concentration) - digamma(concentration.sum())
    share = softmax(scores + mean_log, -1)
    log_prior = gammaln(alpha.sum()) - gammaln(alpha).sum() + ((alpha - 1) * mean_log).sum()
    log_q = gammaln(concentration.sum()) - gammaln(concentration).sum() + ((concentration - 1) * mean_log).sum()
    return (share * (scores + mean_log - np.log(share))).sum() + log_prior - log_q


def scores_of(kind, row):
    """log p of every token (L, K)."""
    if kind in (AspectOfBits, SumsOfBits):
        return np.log(np.where(row == 1, CHANCE, 1 - CHANCE)).T
    return np.log(TOPIC[:, row.astype(int)]).T


WRITINGS = {
    "choices": (TopicOfTokens, TOKENS, {"topic": TOPIC}), "sums": (SumsOfTokens, TOKENS, {"topic": TOPIC}),
    "bits": (AspectOfBits, BITS, {"p": CHANCE}), "sums of bits": (SumsOfBits, BITS, {"p": CHANCE}),
}  # fmt: skip


@pytest.mark.parametrize("name", WRITINGS)
def test_bounds_are_their_formula_below_the_evidence_and_stationary(name):
    kind, x, params = WRITINGS[name]
    _, step = solved(made(kind), x, **params)
    alpha = np.array(ALPHA)
    for n in range(ROWS):
        scores, concentration = scores_of(kind, x[n]), step.locals["concentration"][n].numpy()
        assert np.isclose(float(step.bound[n]), formula(scores, concentration, alpha), rtol=1e-10)
        evidence = enumerate_evidence(scores, alpha)
        assert evidence - 1.0 < float(step.bound[n]) < evidence
        for k in range(SIZE):
            moved = [concentration + sign * 1e-4 * np.eye(SIZE)[k] for sign in (1, -1)]
            slope = (formula(scores, moved[0], alpha) - formula(scores, moved[1], alpha)) / 2e-4
            assert abs(slope) < 1e-5


def test_evidence_by_quadrature_is_above_the_bound():
    """Of two components: an integral over the simplex."""
    model = SumsOfBits(num_components=2, num_features=LENGTH)
    _, step = solved(model, BITS, p=CHANCE[:2])
    for n, row in enumerate(BITS):

        def density(s, row=row):
            p = s * CHANCE[0] + (1 - s) * CHANCE[1]
            return stats.beta.pdf(s, *ALPHA[:2]) * np.prod(np.where(row == 1, p, 1 - p))

        evidence = np.log(integrate.quad(density, 0, 1)[0])
        assert evidence - 0.6 < float(step.bound[n]) < evidence


def test_however_a_model_is_written_its_numbers_are_the_same():
    found = [solved(made(kind), TOKENS, topic=TOPIC)[1] for kind in (TopicOfTokens, SumsOfTokens)]
    found.append(solved(made(Documents), counts_of(TOKENS), topic=TOPIC)[1])
    for other in found[1:]:
        assert torch.allclose(found[0].bound, other.bound, rtol=1e-8)
        assert torch.allclose(found[0].locals["concentration"], other.locals["concentration"], atol=1e-5)
        for name in ("0", "rows"):
            assert torch.allclose(found[0].statistics[name], other.statistics[name], atol=1e-5)
    one, two = (solved(made(kind), BITS, p=CHANCE)[1] for kind in (AspectOfBits, SumsOfBits))
    assert torch.allclose(one.bound, two.bound, rtol=1e-8)
    assert torch.allclose(one.statistics["0"], two.statistics["0"], atol=1e-5)


def test_the_order_of_tokens_and_missing_ones_have_no_influence():
    whole = solved(made(TopicOfTokens), TOKENS, topic=TOPIC)[1]
    turned = solved(made(TopicOfTokens), TOKENS[:, ::-1].copy(), topic=TOPIC)[1]
    assert torch.allclose(whole.bound, turned.bound, rtol=1e-9)
    for kind, x, params, short in (
        (TopicOfTokens, TOKENS, {"topic": TOPIC}, {"topic": TOPIC}),
        (SumsOfTokens, TOKENS, {"topic": TOPIC}, {"topic": TOPIC}),
        (AspectOfBits, BITS, {"p": CHANCE}, {"p": CHANCE[:, 1:]}),
        (SumsOfBits, BITS, {"p": CHANCE}, {"p": CHANCE[:, 1:]}),
    ):
        hidden = np.where(np.arange(LENGTH) == 0, np.nan, x)
        _, less = solved(made(kind), hidden, **params)
        _, without = solved(kind(num_components=SIZE, num_features=LENGTH - 1), x[:, 1:], **short)
        assert torch.allclose(less.bound, without.bound, rtol=1e-8)
        assert torch.allclose(less.locals["concentration"], without.locals["concentration"], atol=1e-5)


def test_rates_that_add_up_are_bounded_below_their_evidence():
    """A row with one feature: its count is a sum of negative binomials."""
    model, rate = AddedActivations(num_components=2, num_features=1), np.array([[1.5], [0.4]])
    x = np.array([[0.0], [1], [3], [7]])
    _, step = solved(model, x, rate=rate)
    for n, count in enumerate(x[:, 0].astype(int)):
        law = [
            stats.nbinom.pmf(np.arange(count + 1), a, 0.7 / (0.7 + r)) for a, r in zip(ALPHA, rate[:, 0], strict=False)
        ]
        evidence = np.log((law[0] * law[1][::-1]).sum())
        assert evidence - 0.6 < float(step.bound[n]) < evidence + 1e-9
    hidden = solved(
        AddedActivations(num_components=2, num_features=2), np.c_[x, np.full(4, np.nan)], rate=np.c_[rate, rate]
    )
    assert torch.allclose(hidden[1].bound, step.bound, rtol=1e-8)
    assert torch.allclose(hidden[1].locals["rate"], step.locals["rate"])


def test_gamma_posteriors_are_stationary():
    """alpha + expected events, beta + rates, with events shared out by exp(E log z + log b)."""
    model, rate = AddedActivations(num_components=SIZE, num_features=3), RNG.gamma(1.0, 1.0, (SIZE, 3))
    x = RNG.poisson(3.0, (5, 3)).astype(float)
    _, step = solved(model, x, rate=rate)
    shape, after = (step.locals[name].numpy() for name in ("concentration", "rate"))
    assert np.allclose(after, 0.7 + rate.sum(1))
    weight = np.exp(digamma(shape) - np.log(after))[:, :, None] * rate
    events = (x[:, None] * weight / weight.sum(1, keepdims=True)).sum(-1)
    assert np.allclose(shape, np.array(ALPHA) + events, atol=1e-4)
    log_prior = (0.7 * 0 + np.array(ALPHA) * np.log(0.7) - gammaln(ALPHA)).sum()
    mean, mean_log = shape / after, digamma(shape) - np.log(after)
    entropy = (shape - np.log(after) + gammaln(shape) + (1 - shape) * digamma(shape)).sum(1)
    prior = log_prior + ((np.array(ALPHA) - 1) * mean_log - 0.7 * mean).sum(1)
    data = (x * np.log(weight.sum(1))).sum(1) - (mean @ rate).sum(1) - gammaln(x + 1).sum(1)
    assert np.allclose(step.bound.numpy(), prior + entropy + data, rtol=1e-8)


def test_variational_bayes_bounds_the_evidence_of_everything_and_is_stationary():
    """Of two short rows: a sum over the topics of all tokens, with the topics integrated out."""
    model, x = TopicOfTokens(num_components=2, num_features=3, num_categories=2), np.array([[0.0, 0, 1], [1, 1, 1]])
    terms = []
    for z in itertools.product(range(2), repeat=6):
        topic = np.array(z).reshape(2, 3)
        term = sum(log_rising(np.bincount(row, minlength=2), np.array(ALPHA[:2])) for row in topic)
        for k in range(2):
            term += log_rising(np.bincount(x[topic == k].astype(int), minlength=2), np.full(2, 0.4))
        terms.append(term)
    fit = ci.fit(model, x, method="vb", tolerance=1e-10, max_iterations=2000, search=None, progress=False)
    assert logsumexp(terms) - 2.0 < float(fit.elbo[-1]) < logsumexp(terms)
    engine = AdmixtureVB().at_length()
    rows = engine.rows(model, fit.data)
    state = engine.state.of_posteriors(fit.global_posterior)
    for place in itertools.product(range(2), range(2)):
        height = []
        for sign in (1, -1):
            moved = state.concentration["topic"].clone()
            moved[place] += sign * 1e-4
            other = type(state)(concentration={"topic": moved})
            height.append(engine.objective_at(model, other, engine.e_step(model, other, rows).bound))
        assert abs(height[0] - height[1]) / 2e-4 < 1e-3


@pytest.mark.parametrize("kind", [AspectOfBits, AddedActivations, Documents, MeansOfChoices])
@pytest.mark.parametrize("engine", ["vb", "conjugate"])
def test_objectives_never_fall(kind, engine):
    model = made(kind)
    if engine not in engines_of_program(model):
        return
    x = {AspectOfBits: BITS, MeansOfChoices: RNG.normal(0, 2, (ROWS, LENGTH))}.get(kind, counts_of(TOKENS, LENGTH))
    x = x[:, :WORDS] if kind is Documents else x
    made_engine = engines_of_program(model)[engine]().at_length()
    rows = made_engine.rows(model, model.prepare(x, dtype=torch.float64))
    state, warm, before = made_engine.initial(model, rows, torch.Generator().manual_seed(0)), None, -np.inf
    for _ in range(6):
        step = made_engine.e_step(model, state, rows, warm)
        height = made_engine.objective_at(model, state, step.bound)
        assert height >= before - 1e-7
        state, warm, before = made_engine.m_step(model, state, step, rows), step.locals, height


def test_points_of_means_are_weighted_means():
    """The M step of normals whose means are chosen, by the responsibilities in NumPy."""
    model, x = made(MeansOfChoices), RNG.normal(0, 2, (ROWS, LENGTH))
    loc, scale = RNG.normal(0, 2, (SIZE, LENGTH)), np.full(LENGTH, 0.9)
    rows, step = solved(model, x, loc=loc, scale=scale)
    concentration = step.locals["concentration"].numpy()
    mean_log = digamma(concentration) - digamma(concentration.sum(1, keepdims=True))
    share = softmax(mean_log[:, :, None] + stats.norm.logpdf(x[:, None], loc, scale), 1)
    state = {"loc": torch.tensor(loc), "scale": torch.tensor(scale)}
    found = AdmixturePoints().m_step(model, state, step, rows)
    pull, number = (share * x[:, None]).sum(0) / scale**2, share.sum(0) / scale**2
    assert np.allclose(found["loc"].numpy(), pull / (number + 1 / 9), atol=1e-5)


def test_posteriors_have_every_latent():
    """Means, draws and densities of shares and choices; a choice that nothing was observed of follows its share."""
    x = TOKENS.copy()
    x[0, 1] = np.nan
    model = made(TopicOfTokens)
    fit = ci.fit(model.with_priors(topic=torch.tensor(TOPIC)), x, method="conjugate", progress=False)
    posterior = fit.local.posterior
    share, choice = fit.posteriors["share"].mean, fit.posteriors["z"].mean
    concentration = posterior.share.concentration.numpy()
    mean_log = digamma(concentration) - digamma(concentration.sum(1, keepdims=True))
    expected = softmax(mean_log[:, None] + np.log(TOPIC.T[np.nan_to_num(x).astype(int)]), -1)
    expected[0, 1] = concentration[0] / concentration[0].sum()
    assert np.allclose(choice.numpy(), expected, atol=1e-6) and np.allclose(share.numpy().sum(1), 1)
    draws = posterior.sample(4000, seed=1)
    assert np.allclose(draws.mean(0).numpy(), posterior.mean.numpy(), atol=0.05)
    own = draws[0, :, SIZE:].reshape(ROWS, LENGTH, SIZE).numpy()
    each = (own * np.log(expected)).sum(-1)
    each[0, 1] = (own[0, 1] * np.log(draws[0, 0, :SIZE].numpy())).sum()
    of_share = [
        stats.dirichlet.logpdf(d[:SIZE] / d[:SIZE].sum(), c)
        for d, c in zip(draws[0].numpy(), concentration, strict=True)
    ]
    assert np.allclose(posterior.log_prob(draws[0]).numpy(), each.sum(1) + of_share, atol=1e-5)
    assert posterior.mode.shape == posterior.mean.shape == posterior.variance.shape


def test_fits_are_methods_and_read_further_rows(tmp_path):
    model, x = made(TopicOfTokens), TOKENS
    assert {"vb", "conjugate"} <= set(methods_for(model))
    fit = ci.fit(model, x, method="vb", search=None, progress=False)
    again = fit.transform(torch.tensor(x[:2]))
    assert torch.allclose(again, fit.transform()[:2], atol=1e-2)
    assert torch.allclose(fit.transform(torch.tensor(x[[1]])), again[1:], atol=1e-6)
    at_points = fit.log_likelihood(torch.tensor(x), bound="conjugate")
    exact = [enumerate_evidence(np.log(fit.params["topic"].numpy()[:, r.astype(int)]).T, np.array(ALPHA)) for r in x]
    assert (at_points.numpy() < np.array(exact)).all()
    fit.save(tmp_path / "fit.safetensors")
    loaded = ci.Fit.load(tmp_path / "fit.safetensors", model=model)
    assert torch.allclose(loaded.transform(torch.tensor(x[:2])), again, atol=1e-6)


def test_weights_count_rows():
    model, x = made(SumsOfBits), BITS
    weights = torch.tensor([1.0, 2, 1, 3, 1, 1])
    settings = {"method": "vb", "progress": False, "init": {"p": torch.tensor(CHANCE)}, "tolerance": 1e-9}
    fit = ci.fit(model, x, weights=weights, max_iterations=500, **settings)
    repeated = ci.fit(model, np.repeat(x, weights.int().numpy(), 0), max_iterations=500, **settings)
    assert torch.allclose(fit.params["p"], repeated.params["p"], atol=1e-3)


def test_what_is_something_else_is_refused():
    with pytest.raises(NotCompiled, match="LinkedShares is not compiled"):
        AdmixturePoints().rows(made(LinkedShares), made(LinkedShares).prepare(BITS, dtype=torch.float64))


def test_cvb0_is_that_of_the_listed_model():
    """From the same counts, a pass over tokens and one over documents end where that of latent Dirichlet allocation
    does; fits predict words as well."""
    rng, size, words = np.random.default_rng(1), 3, 12
    topic = rng.dirichlet(np.full(words, 0.2), size)
    x = np.array([[rng.choice(words, p=topic[k]) for k in rng.choice(size, 20, p=s)] for s in rng.dirichlet(ALPHA, 60)])
    counts, gamma = counts_of(x.astype(float), words), torch.full((words,), 0.4)
    listed = LDA(num_topics=size, vocabulary_size=words).with_priors(
        topic=pyro.distributions.Dirichlet(gamma), topic_proportion=pyro.distributions.Dirichlet(torch.tensor(ALPHA))
    )
    begin = torch.tensor(topic) * 100
    own = LdaCvb0()
    documents = own.rows(listed, listed.prepare(counts, dtype=torch.float64))
    expected = own.e_step(listed, TopicCounts(begin), documents)
    fits = []
    for kind, data in ((TopicOfTokens, x.astype(float)), (Documents, counts)):
        model = kind(num_components=size, num_features=20, num_categories=words)
        engine = engines_of_program(model)["cvb0"]()
        rows = engine.rows(model, model.prepare(data, dtype=torch.float64))
        state = engine.state(concentration={"topic": begin + gamma})
        step = engine.e_step(model, state, rows)
        assert torch.allclose(step.statistics["0"][0, :, 0], expected.statistics["topic"], rtol=1e-6)
        assert torch.allclose(step.bound, expected.bound, rtol=1e-6)
        fits.append(ci.fit(model, data, method="cvb0", progress=False))
    fits.append(ci.fit(listed, counts, method="cvb0", progress=False))
    score = [np.log(fit.params["topic"].numpy()) for fit in fits]
    bound = [solved(made(Documents, num_categories=words), counts, topic=np.exp(s))[1].bound.sum() for s in score]
    perplexity = np.exp([-float(b) / counts.sum() for b in bound])
    assert np.allclose(perplexity, perplexity[-1], rtol=0.02)
    assert fits[0].posteriors["z"].mean.shape == (60, 20, size)


def test_cvb0_is_of_tokens_alone():
    with pytest.raises(NotCompiled, match="CVB0"):
        engine = engines.ENGINES["cvb0"]()
        engine.rows(made(SumsOfBits), made(SumsOfBits).prepare(BITS, dtype=torch.float64))
