"""Programs of shares with terms beside their words: rates by shares, and responses by averages of choices or of shares.
Bounds by their formula in NumPy, stationary, below the evidence by sums and integrals; a Beta is a Dirichlet of two."""

import itertools

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from scipy.special import digamma, gammaln, logsumexp, softmax

import custom_inference as ci
from custom_inference.compiled.admixture.engine import AdmixturePoints, AdmixtureVB
from custom_inference.compiled.reading import NotCompiled
from tests.compiled._shares import (
    ALPHA,
    BetaOfBits,
    BetaOfChoices,
    ExposedRates,
    SharesOfRates,
    SquaredResponse,
    Supervised,
    TopicOfTokens,
)

RNG = np.random.default_rng(5)
SIZE, LENGTH, ROWS = 3, 3, 4
RATE, TOPIC = RNG.gamma(1.0, 3.0, (SIZE, LENGTH)), RNG.dirichlet(np.ones(3), SIZE)
COUNTS, TOKENS = RNG.poisson(3.0, (ROWS, LENGTH)).astype(float), RNG.integers(0, 3, (ROWS, LENGTH)).astype(float)
ANSWER = {"weight": np.array([-1.5, 0.5, 2.0]), "scale": np.array(0.6)}
Y = RNG.normal(0.0, 1.5, ROWS)


@pytest.fixture(autouse=True)
def doubles():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def solved(model, x, y=None, exposure=None, **params):
    """The E step where nothing moves any more, at these globals."""
    engine = AdmixturePoints().at_length()
    others = {name: value for name, value in (("y", y), ("exposure", exposure)) if value is not None}
    rows = engine.rows(model, model.prepare(x, dtype=torch.float64, **others))
    values = {site: torch.as_tensor(value) for site, value in params.items()}
    return engine.e_step(model, values, rows)


def made(kind, size=SIZE, **settings):
    return kind(num_components=size, num_features=LENGTH, **settings)


def divergence(concentration, alpha):
    """KL(Dirichlet(concentration) || Dirichlet(alpha)), and E log theta."""
    mean_log = digamma(concentration) - digamma(concentration.sum())
    norm = [gammaln(one.sum()) - gammaln(one).sum() for one in (concentration, alpha)]
    return norm[0] - norm[1] + ((concentration - alpha) * mean_log).sum(), mean_log


def bound_of_rates(concentration, x, rate, alpha):
    """E[log p(x, events, theta)] - E[log q], the events shared out at their best."""
    away, mean_log = divergence(concentration, alpha)
    words = (x * logsumexp(mean_log[:, None] + np.log(rate), 0)).sum() - gammaln(x + 1).sum()
    return words - away - concentration / concentration.sum() @ rate.sum(1)


def bound_of_answers(concentration, log_share, x, y, by_tokens, alpha):
    """The same with a response, at choices proportional to exp(log_share) times the topics' probabilities."""
    away, mean_log = divergence(concentration, alpha)
    score = np.log(TOPIC[:, x.astype(int)]).T
    choice = softmax(log_share + score, -1)
    words = (choice * (score + mean_log - np.log(choice))).sum()
    weight, scale = ANSWER["weight"], ANSWER["scale"]
    if by_tokens:  # E[eta^2] from above by Cauchy and Schwarz
        mean, apart = choice.mean(0), 1 / LENGTH
    else:
        mean, apart = concentration / concentration.sum(), 1 / (concentration.sum() + 1)
    square = (1 - apart) * (mean @ weight) ** 2 + apart * mean @ weight**2
    error = y**2 - 2 * y * mean @ weight + square
    return words - away - 0.5 * error / scale**2 - np.log(scale) - 0.5 * np.log(2 * np.pi)


def assert_stationary(height, place, step=1e-4):
    """No step raises it, by central differences."""
    for direction in np.eye(len(place)):
        slope = (height(place + step * direction) - height(place - step * direction)) / (2 * step)
        assert abs(slope) < 1e-4


def test_rates_by_shares_have_their_bound():
    step = solved(made(SharesOfRates), COUNTS, rate=RATE)
    for n in range(ROWS):
        concentration = step.locals["concentration"][n].numpy()

        def height(at, n=n):
            return bound_of_rates(at, COUNTS[n], RATE, np.array(ALPHA))

        assert np.isclose(float(step.bound[n]), height(concentration), rtol=1e-9)
        assert_stationary(height, concentration)


def test_rates_are_multiplied_by_what_rows_are_exposed_to():
    exposure = np.array([0.5, 1.0, 2.0, 3.0])
    step = solved(made(ExposedRates), COUNTS, exposure=exposure, rate=RATE)
    for n in range(ROWS):
        own = solved(made(SharesOfRates), COUNTS[n : n + 1], rate=RATE * exposure[n])
        assert np.isclose(float(step.bound[n]), float(own.bound), rtol=1e-8)
        assert torch.allclose(step.locals["concentration"][n], own.locals["concentration"][0], atol=1e-4)


def test_rates_by_shares_are_bounded_below_their_evidence():
    step = solved(made(SharesOfRates, 2), COUNTS, rate=RATE[:2])
    for n in range(ROWS):

        def density(s, n=n):
            law = stats.poisson(s * RATE[0] + (1 - s) * RATE[1])
            return stats.beta.pdf(s, *ALPHA[:2]) * np.prod(law.pmf(COUNTS[n]))

        evidence = np.log(integrate.quad(density, 0, 1)[0])
        assert evidence - 1.0 < float(step.bound[n]) < evidence


@pytest.mark.parametrize("by_tokens", [True, False])
def test_responses_have_their_bound(by_tokens):
    step = solved(made(Supervised, by_tokens=by_tokens), TOKENS, Y, topic=TOPIC, **ANSWER)
    for n in range(ROWS):
        concentration, log_share = (step.locals[name][n].numpy() for name in ("concentration", "log_share"))

        def height(both, n=n):
            return bound_of_answers(both[:SIZE], both[SIZE:], TOKENS[n], Y[n], by_tokens, np.array(ALPHA))

        both = np.concatenate([concentration, log_share])
        assert np.isclose(float(step.bound[n]), height(both), rtol=1e-9)
        assert_stationary(height, both)


def evidence_of_tokens(x, y):
    """Sum over the choices of all tokens, theta integrated out."""
    alpha, terms = np.array(ALPHA), []
    for z in itertools.product(range(SIZE), repeat=LENGTH):
        number = np.bincount(z, minlength=SIZE)
        rise = (gammaln(alpha + number) - gammaln(alpha)).sum() + gammaln(alpha.sum()) - gammaln(alpha.sum() + LENGTH)
        words = np.log(TOPIC[list(z), x.astype(int)]).sum()
        answer = stats.norm.logpdf(y, ANSWER["weight"][list(z)].mean(), ANSWER["scale"])
        terms.append(rise + words + answer)
    return logsumexp(terms)


def test_bounds_with_responses_are_below_the_evidence():
    whole = solved(made(Supervised), TOKENS, Y, topic=TOPIC, **ANSWER)
    for n in range(ROWS):
        evidence = evidence_of_tokens(TOKENS[n], Y[n])
        assert evidence - 1.5 < float(whole.bound[n]) < evidence
    two = {**ANSWER, "weight": ANSWER["weight"][:2]}
    of_shares = solved(made(Supervised, 2, by_tokens=False), TOKENS, Y, topic=TOPIC[:2], **two)
    for n in range(ROWS):

        def density(s, n=n):
            theta = np.array([s, 1 - s])
            words = np.prod(theta @ TOPIC[:2][:, TOKENS[n].astype(int)])
            answer = stats.norm.pdf(Y[n], theta @ two["weight"], two["scale"])
            return stats.beta.pdf(s, *ALPHA[:2]) * words * answer

        evidence = np.log(integrate.quad(density, 0, 1)[0])
        assert evidence - 1.5 < float(of_shares.bound[n]) < evidence


def test_a_row_without_a_response_is_a_row_of_tokens():
    """Missing responses add nothing; missing tokens count among the choices of a response alone."""
    plain = solved(made(Supervised), TOKENS, np.full(ROWS, np.nan), topic=TOPIC, **ANSWER)
    without = solved(made(TopicOfTokens), TOKENS, topic=TOPIC)
    assert torch.allclose(plain.bound, without.bound, rtol=1e-8)
    hidden = np.where(np.arange(LENGTH) == 0, np.nan, TOKENS)
    lone = solved(made(Supervised), hidden, np.full(ROWS, np.nan), topic=TOPIC, **ANSWER)
    short = TopicOfTokens(num_components=SIZE, num_features=LENGTH - 1)
    assert torch.allclose(lone.bound, solved(short, TOKENS[:, 1:], topic=TOPIC).bound, rtol=1e-8)
    answered = solved(made(Supervised), hidden, Y, topic=TOPIC, **ANSWER)
    for n in range(ROWS):
        seen = [evidence_of_tokens(np.array([v, *TOKENS[n, 1:]]), Y[n]) for v in range(3)]
        assert float(answered.bound[n]) < logsumexp(seen)


def test_a_beta_is_a_dirichlet_of_two():
    chance, bits = RNG.uniform(0.1, 0.9, (2, LENGTH)), RNG.integers(0, 2, (ROWS, LENGTH)).astype(float)
    summed, chosen = (solved(made(kind, 2), bits, p=chance) for kind in (BetaOfBits, BetaOfChoices))
    assert torch.allclose(summed.bound, chosen.bound, rtol=1e-8)
    for n in range(ROWS):

        def density(s, n=n):
            p = (1 - s) * chance[0] + s * chance[1]
            return stats.beta.pdf(s, 0.8, 0.6) * np.prod(np.where(bits[n] == 1, p, 1 - p))

        evidence = np.log(integrate.quad(density, 0, 1)[0])
        assert evidence - 0.6 < float(summed.bound[n]) < evidence
    for kind in (BetaOfBits, BetaOfChoices):
        known = made(kind, 2).with_priors(p=torch.tensor(chance))
        fit = ci.fit(known, bits, method="conjugate", progress=False)
        share = summed.locals["concentration"]
        expected = share[:, 1] / share.sum(1)
        assert np.allclose(fit.posteriors["share"].mean.reshape(-1), expected, atol=1e-3)
        posterior = fit.local.posterior
        draws = posterior.sample(2000, seed=1)
        assert np.allclose(draws.mean(0), posterior.mean, atol=0.05)
        assert torch.isfinite(posterior.log_prob(draws[0])).all()


@pytest.mark.parametrize("by_tokens", [True, False])
def test_objectives_of_supervised_fits_never_fall_and_scale_with_the_response(by_tokens):
    heights = {}
    for shift in (0.0, 1000.0):
        model, engine = made(Supervised, by_tokens=by_tokens), AdmixturePoints().at_length()
        model = model.with_priors(topic=torch.tensor(TOPIC))
        rows = engine.rows(model, model.prepare(TOKENS, dtype=torch.float64, y=Y + shift))
        state = {"topic": torch.tensor(TOPIC), "weight": torch.tensor(ANSWER["weight"]) + shift,
                 "scale": torch.tensor(ANSWER["scale"])}  # fmt: skip
        warm, before = None, -np.inf
        for _ in range(4):
            step = engine.e_step(model, state, rows, warm)
            height = engine.objective_at(model, state, step.bound)
            assert height >= before - 1e-7
            heights.setdefault(shift, float(step.bound.sum()))
            state, warm, before = engine.m_step(model, state, step, rows), step.locals, height
    assert np.isclose(heights[0.0], heights[1000.0], rtol=1e-6)


def test_variational_bayes_of_rates_by_shares_never_falls():
    model, engine = made(SharesOfRates), AdmixtureVB().at_length()
    rows = engine.rows(model, model.prepare(COUNTS, dtype=torch.float64))
    state, warm, before = engine.initial(model, rows, torch.Generator().manual_seed(0)), None, -np.inf
    for _ in range(8):
        step = engine.e_step(model, state, rows, warm)
        height = engine.objective_at(model, state, step.bound)
        assert height >= before - 1e-7
        state, warm, before = engine.m_step(model, state, step, rows), step.locals, height


def test_responses_are_predicted_by_words_alone():
    """Weights that data were made with, and responses of rows that have none."""
    rng, size, length, words = np.random.default_rng(0), 3, 30, 12
    topic, weight = rng.dirichlet(np.full(words, 0.1), size), np.array([-2.0, 1.0, 4.0])
    choice = np.array([rng.choice(size, length, p=s) for s in rng.dirichlet(ALPHA, 150)])
    x = np.array([[rng.choice(words, p=topic[k]) for k in row] for row in choice]).astype(float)
    y = weight[choice].mean(1) + 0.2 * rng.normal(size=150)
    model = Supervised(num_components=size, num_features=length, num_categories=words)
    start = {"topic": torch.tensor(topic), "weight": torch.zeros(3), "scale": torch.tensor(1.0)}
    fit = ci.fit(model, x[:100], y=y[:100], method="conjugate", init=start, progress=False)
    assert np.allclose(fit.params["weight"], weight, atol=0.5)
    share = fit.transform(torch.tensor(x[100:])).numpy()[:, :size]
    error = share @ fit.params["weight"].numpy() - y[100:]
    assert error.var() < 0.2 * y[100:].var()


def test_other_responses_are_refused():
    model = made(SquaredResponse)
    with pytest.raises(NotCompiled, match="SquaredResponse is not compiled"):
        AdmixturePoints().rows(model, model.prepare(TOKENS, dtype=torch.float64, y=Y))
