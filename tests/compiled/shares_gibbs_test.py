"""Gibbs sampling of programs of shares: draws against the posterior by weighted draws of the prior, whose evidence is a
sum over choices or an integral over shares in NumPy."""

import itertools

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import gammaln, logsumexp, roots_jacobi

import custom_inference as ci
from custom_inference.compiled.admixture.labels import find_axes
from custom_inference.compiled.admixture.reader import admixture_of
from custom_inference.core.diagnostics import effective_size
from custom_inference.gibbs.shares import SharesSampler
from custom_inference.methods import methods_for
from tests.compiled._shares import ALPHA, AddedActivations, BetaOfBits, EvenTopics, SharesOfRates, TopicOfTokens

RNG = np.random.default_rng(2)
ROWS, LENGTH, DRAWS, SWEEPS = 4, 3, 4000, 1500
A, B = ALPHA[:2]
TOKENS = np.array([[0.0, 0, 1], [1, 1, 1], [0, 1, 1], [0, 0, 0]])
COUNTS = np.array([[5.0, 1], [0, 4], [3, 3]])


@pytest.fixture(autouse=True)
def doubles():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def nodes():
    """The second share and weights of Beta(A, B) averages over the first."""
    place, weight = roots_jacobi(60, B - 1, A - 1)
    return (1 + place) / 2, weight / weight.sum()


def evidence_of_tokens(topic):
    """log p(x | topic) (S,) by sums over all choices."""
    choice, total = np.array(list(itertools.product(range(2), repeat=LENGTH))), 0.0
    number = np.stack([(choice == k).sum(1) for k in range(2)], 1)
    alpha = np.array([A, B])
    prior = (gammaln(alpha + number) - gammaln(alpha)).sum(1) + gammaln(A + B) - gammaln(A + B + LENGTH)
    for row in TOKENS.astype(int):
        words = np.log(topic[:, choice, row]).sum(-1)  # (S, choices)
        total = total + logsumexp(prior + words, 1)
    return total


def evidence_of_rates(rate):
    """log p(x | rate) (S,) by Gauss-Jacobi nodes of the first share."""
    share, weight = nodes()
    mean = share[:, None] * rate[:, None, 0] + (1 - share[:, None]) * rate[:, None, 1]  # (S, nodes, D)
    each = stats.poisson.logpmf(COUNTS[:, None, None], mean).sum(-1)
    return logsumexp(each + np.log(weight), -1).sum(0)


def evidence_of_bits(p):
    place, weight = roots_jacobi(60, 0.6 - 1, 0.8 - 1)
    share = ((1 + place) / 2)[:, None]
    chance = (1 - share) * p[:, None, 0] + share * p[:, None, 1]
    each = stats.bernoulli.logpmf(TOKENS[:, None, None], chance).sum(-1)
    return logsumexp(each + np.log(weight / weight.sum()), -1).sum(0)


def evidence_of_sums(rate):
    """log p(x | rate) (S,) of one count a row, a sum of two negative binomials."""
    total = 0.0
    for count in COUNTS[:, 0].astype(int):
        number = np.arange(count + 1)
        law = [stats.nbinom.logpmf(number, a, 0.7 / (0.7 + rate[:, k, None])) for k, a in enumerate((A, B))]
        total = total + logsumexp(law[0] + law[1][:, ::-1], 1)
    return total


TOYS = {
    "tokens": (TopicOfTokens, {"num_features": LENGTH, "num_categories": 2}, TOKENS, "topic", evidence_of_tokens),
    "rates": (SharesOfRates, {"num_features": 2}, COUNTS, "rate", evidence_of_rates),
    "bits": (BetaOfBits, {"num_features": LENGTH}, TOKENS, "p", evidence_of_bits),
    "activations": (AddedActivations, {"num_features": 1}, COUNTS[:, :1], "rate", evidence_of_sums),
}  # fmt: skip


@pytest.mark.parametrize("name", TOYS)
def test_draws_are_those_of_the_posterior(name):
    kind, settings, x, site, evidence_of = TOYS[name]
    model = kind(num_components=2, **settings)
    torch.manual_seed(1)
    prior, shape = model.prior(site), model.shapes[site]
    drawn = prior.expand(shape[: len(shape) - len(prior.event_shape)]).sample((DRAWS,)).numpy()
    evidence = evidence_of(drawn if name != "activations" else drawn[..., 0])
    weight = np.exp(evidence - evidence.max())
    weight /= weight.sum()

    def summarise(value, height):
        flat = np.log(np.asarray(value).reshape(len(height), -1))
        return np.concatenate([flat, flat**2, height[:, None]], 1)

    expected = summarise(drawn, evidence)
    mean = weight @ expected
    error = np.sqrt(weight**2 @ (expected - mean) ** 2)
    chain = SharesSampler().chain(model, model.prepare(x, dtype=torch.float64), 3, None)
    kept = []
    for number in range(SWEEPS + 50):
        chain.sweep()
        kept += [chain.draw()[site].numpy()] if number >= 50 else []
    own = np.array(kept)
    numbers = summarise(own, evidence_of(own if name != "activations" else own[..., 0]))
    spread = numbers.std(0) / np.sqrt(effective_size(numbers[None]))
    assert (np.abs(numbers.mean(0) - mean) < 3.5 * np.hypot(spread, error)).all()


def test_log_joints_are_the_program_s():
    """At any state: of rates by their formula."""
    model = SharesOfRates(num_components=2, num_features=2)
    chain = SharesSampler().chain(model, model.prepare(COUNTS, dtype=torch.float64), 0, None)
    chain.sweep()
    share, rate = chain.share.numpy(), chain.values["rate"].numpy()
    expected = stats.poisson.logpmf(COUNTS, share @ rate).sum() + stats.gamma.logpdf(rate, 1.5, scale=1 / 0.3).sum()
    expected += sum(stats.beta.logpdf(row[0], A, B) for row in share)
    assert np.isclose(chain.log_joint(), expected, rtol=1e-9)


def test_fits_by_chains_have_posteriors_of_all_latents():
    rng = np.random.default_rng(0)
    model = EvenTopics(num_components=2, num_features=12, num_categories=6)
    topic = np.array([[0.4, 0.4, 0.15, 0.02, 0.02, 0.01], [0.01, 0.02, 0.02, 0.15, 0.4, 0.4]])
    choice = [rng.choice(2, 12, p=s) for s in rng.dirichlet([0.5, 0.5], 40)]
    x = np.array([[rng.choice(6, p=topic[k]) for k in row] for row in choice]).astype(float)
    assert "gibbs" in methods_for(model)
    fit = ci.fit(model, x, method="gibbs", progress=False)
    assert fit.draws["topic"].shape[2:] == (2, 6) and fit.details["agreeing"] >= 2
    order = np.argsort(fit.params["topic"][:, 0].numpy())[::-1]
    assert np.allclose(fit.params["topic"].numpy()[order], topic, atol=0.12)
    assert fit.transform().shape == (40, 2) and fit.posteriors["z"].mean.shape == (40, 12, 2)
    (axes,) = find_axes(admixture_of(model, fit.data))
    assert axes.sites == {"topic": (0,)}
    assert not find_axes(admixture_of(TopicOfTokens(num_components=2, num_features=12, num_categories=6), fit.data))
