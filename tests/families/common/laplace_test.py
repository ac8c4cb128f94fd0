"""Memberships under any prior: modes, evidence and moments against integrals over a grid, in plain NumPy."""

from __future__ import annotations

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy import stats
from scipy.special import logsumexp, softmax
from torch.distributions import transforms

from custom_inference.core.local_inference import LocalSolver
from custom_inference.core.posteriors import LogisticNormalPosterior
from custom_inference.core.posteriors.logistic_normal import Sticks
from custom_inference.core.posteriors.nodes import standard_nodes
from custom_inference.core.registry import engine_for
from custom_inference.families.common import laplace
from custom_inference.families.common.stick_prior import StickPrior
from custom_inference.families.rows.documents import DocumentRows
from ppl_models import LDA, AspectBernoulli, PriorError, UserRatingProfile
from tests.references import _topics

pytestmark = [pytest.mark.quick, pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")]

MEAN, SPREAD = np.array([0.4, -0.3]), np.array([[1.4, 0.5], [0.5, 0.8]])
CONCENTRATIONS = np.array([[4.0, 1.5, 1.2], [1.3, 1.4, 5.0]])


def logistic_normal(size: int):
    base = dist.MultivariateNormal(torch.tensor(MEAN[: size - 1]), torch.tensor(SPREAD[: size - 1, : size - 1]))
    return dist.TransformedDistribution(base, [transforms.StickBreakingTransform()])


def independent(size: int):
    return dist.LogisticNormal(torch.tensor(MEAN[: size - 1]), torch.tensor([1.2, 0.9][: size - 1]))


def mixture(size: int):
    weight = dist.Categorical(torch.tensor([0.3, 0.7]))
    return dist.MixtureSameFamily(weight, dist.Dirichlet(torch.tensor(CONCENTRATIONS[:, :size])))


def two_normals(size: int):
    weight, loc = dist.Categorical(torch.tensor([0.3, 0.7])), torch.tensor([[1.5, 0.0], [-1.0, 0.5]])[:, : size - 1]
    return dist.MixtureSameFamily(weight, dist.LogisticNormal(loc, torch.full_like(loc, 0.8)))


PRIORS = {"logistic": logistic_normal, "independent": independent, "dirichlets": mixture, "two normals": two_normals}


def sticks(u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """pi (M, K) and log |d pi / d u| (M,) of coordinates (M, K - 1), one stick after the other."""
    rest, volume, parts, size = np.ones(len(u)), np.zeros(len(u)), [], u.shape[1]
    for j in range(size):
        broken = 1 / (1 + np.exp(-(u[:, j] - np.log(size - j))))
        parts.append(rest * broken)
        volume += np.log(rest * broken * (1 - broken))
        rest = rest * (1 - broken)
    return np.stack([*parts, rest], 1), volume


def log_prior(name: str, u: np.ndarray) -> np.ndarray:
    """Of coordinates (M, K - 1), (M,)."""
    size = u.shape[1]
    if name == "logistic":
        return np.atleast_1d(stats.multivariate_normal.logpdf(u, MEAN[:size], SPREAD[:size, :size]))
    if name == "independent":
        return stats.norm.logpdf(u, MEAN[:size], [1.2, 0.9][:size]).sum(1)
    if name == "two normals":
        parts = [stats.norm.logpdf(u, np.array(m)[:size], 0.8).sum(1) for m in ([1.5, 0.0], [-1.0, 0.5])]
        return logsumexp(np.log([[0.3], [0.7]]) + np.stack(parts), axis=0)
    share, volume = sticks(u)
    share = share / share.sum(1, keepdims=True)
    parts = [stats.dirichlet.logpdf(share.T, alpha[: size + 1]) for alpha in CONCENTRATIONS]
    return logsumexp(np.log([[0.3], [0.7]]) + np.stack(parts), axis=0) + volume


def by_grid(name: str, topic: np.ndarray, x: np.ndarray, mask=None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """log p(x_n) (N,), and the mean and standard deviation of pi (N, K), by the trapezoid rule; K of 2 or 3."""
    size = len(topic)
    axis = np.linspace(-13, 11, 3001 if size == 2 else 261)
    u = np.stack(np.meshgrid(*[axis] * (size - 1), indexing="ij"), -1).reshape(-1, size - 1)
    share, _ = sticks(u)
    words = np.log(share @ topic)
    table = _topics.counts_of(x, mask) @ words.T + log_prior(name, u) + (size - 1) * np.log(axis[1] - axis[0])
    weight = softmax(table, axis=1)
    mean = weight @ share
    return logsumexp(table, axis=1), mean, np.sqrt(weight @ share**2 - mean**2)


def corpus(size: int, length: int, num_rows: int = 8, num_words: int = 12, even: float = 0.8):
    rng = np.random.default_rng(0)
    topic = 0.95 * rng.dirichlet(np.full(num_words, 0.3), size) + 0.05 / num_words
    proportion = rng.dirichlet(np.full(size, even), num_rows)
    x = np.stack([rng.multinomial(length, p) for p in proportion @ topic]).astype(float)
    x[0] = 0  # a document without tokens
    return topic, x


def solved(name: str, topic: np.ndarray, x, mask=None, **settings):
    model = LDA(num_topics=len(topic), vocabulary_size=topic.shape[1])
    model = model.with_priors(topic_proportion=PRIORS[name](len(topic)))
    solver = LocalSolver(engine=engine_for(model, "laplace", **settings))
    data = model.prepare(x, mask=mask, dtype=torch.float64)
    return solver.solve(model, {"topic": torch.tensor(topic)}, data)


@pytest.mark.parametrize("name", PRIORS)
@pytest.mark.parametrize("size", [2, 3])
def test_evidence_and_moments_are_those_of_a_grid(name, size):
    rng = np.random.default_rng(3)
    # Nodes about one mode see both of two normals: only somewhat less well.
    allowed = {
        "logistic": (1e-3, 0.01),
        "independent": (1e-3, 0.01),
        "dirichlets": (0.02, 0.03),
        "two normals": (0.02, 0.03),
    }
    for length in (6, 60):
        topic, x = corpus(size, length)
        for mask in (None, rng.random(x.shape) > 0.3):
            evidence, mean, spread = by_grid(name, topic, x, mask)
            found = solved(name, topic, x, mask)
            assert np.abs(found.bound.numpy() - evidence).max() < allowed[name][0]
            assert np.abs(found.posterior.mean.numpy() - mean).max() < allowed[name][1]
            drawn = found.posterior.sample(4000, seed=1).std(0).numpy()
            assert np.abs(drawn - spread).max() < allowed[name][1] + 0.01


@pytest.mark.parametrize("size", [2, 3])
def test_laplace_alone_improves_with_the_number_of_tokens(size):
    off = []
    for length in (10, 100, 1000):
        topic, x = corpus(size, length, num_rows=30, even=4.0)
        evidence, mean, _ = by_grid("logistic", topic, x)
        found = solved("logistic", topic, x, draws=1)
        error = (found.bound.numpy() - evidence)[1:]
        off.append((np.abs(error).mean(), np.abs(found.posterior.mean.numpy() - mean)[1:].mean()))
        assert abs(float(found.bound[0])) < 1e-9  # nothing observed: the posterior is the prior, a Gaussian
    assert off[0][0] < 0.1 and off[0][1] < 0.03
    assert off[2][0] < off[0][0] / 4 and off[2][1] < off[0][1] / 4


def test_draws_improve_on_laplace_and_agree_with_the_product_rule():
    topic, x = corpus(3, 20)
    rule, few, many = (solved("logistic", topic, x, draws=draws) for draws in (None, 1, 1024))
    assert float((many.bound - rule.bound).abs().max()) < 0.01 < float((few.bound - rule.bound).abs().max())
    assert float((many.posterior.mean - rule.posterior.mean).abs().max()) < 0.01


@pytest.mark.parametrize("name", PRIORS)
def test_derivatives_are_finite_differences(name, monkeypatch):
    """Of the height whose mode is sought, far from it and at it, under every prior."""
    topic, x = corpus(3, 15, num_rows=5)
    rows = laplace.TokenMoments(
        DocumentRows.of(LDA(num_topics=3, vocabulary_size=12).prepare(x, dtype=torch.float64)), torch.tensor(topic), 0.7
    )
    prior = StickPrior(PRIORS[name](3))
    at = torch.tensor(np.random.default_rng(1).normal(0, 1.0, (5, 2)))

    def height(u):
        made = Sticks.of(u)
        return rows.log_likelihood(made.log_share.exp()) + prior.log_prob(u, made)

    step = 1e-4 * torch.eye(2, dtype=torch.float64)
    slope = torch.stack([(height(at + one) - height(at - one)) / 2e-4 for one in step], -1)
    kept = []
    cholesky = torch.linalg.cholesky_ex
    monkeypatch.setattr(torch.linalg, "cholesky_ex", lambda matrix: kept.append(matrix) or cholesky(matrix))
    found, _ = laplace._quadratic(rows, prior, at)
    assert torch.allclose(found, slope, atol=1e-5)
    bend = torch.stack(
        [
            (laplace._quadratic(rows, prior, at + one)[0] - laplace._quadratic(rows, prior, at - one)[0]) / 2e-4
            for one in step
        ],
        -1,
    )
    assert torch.allclose(kept[0], -bend, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("size", [2, 5, 20])
def test_modes_have_no_slope(size, dtype):
    topic, x = corpus(size, 40, num_rows=12, num_words=30)
    data = LDA(num_topics=size, vocabulary_size=30).prepare(x, dtype=dtype)
    prior = StickPrior(dist.LogisticNormal(torch.zeros(size - 1, dtype=dtype), 2 * torch.ones(size - 1, dtype=dtype)))
    rows = laplace.TokenMoments(DocumentRows.of(data), torch.tensor(topic, dtype=dtype), 1.0)
    peak = laplace._peaks(rows, prior, torch.full((12, size - 1), 3.0, dtype=dtype), 60, 1e-9)
    slope, factor = laplace._quadratic(rows, prior, peak.u)
    assert float((peak.root.mT @ slope.unsqueeze(-1)).abs().max()) < (1e-4 if dtype == torch.float64 else 2e-2)
    identity = peak.root.mT @ factor @ factor.mT @ peak.root
    assert torch.allclose(identity, torch.eye(size - 1, dtype=dtype).expand_as(identity), atol=1e-3)


@pytest.mark.parametrize("size", [5, 20])
def test_many_components_are_near_to_many_draws(size):
    """The default's 64 to 152 draws a row against 20,000: log p(x) of 40 tokens, and the mean proportions."""
    topic, x = corpus(size, 40, num_rows=10, num_words=40)
    model = LDA(num_topics=size, vocabulary_size=40)
    model = model.with_priors(topic_proportion=dist.LogisticNormal(torch.zeros(size - 1), torch.ones(size - 1)))
    data, params = model.prepare(x, dtype=torch.float64), {"topic": torch.tensor(topic)}
    found, reference = (
        LocalSolver(engine=engine_for(model, "laplace", draws=draws)).solve(model, params, data)
        for draws in (None, 20_000)
    )
    assert float((found.bound - reference.bound).abs().max()) < 0.25
    assert float((found.posterior.mean - reference.posterior.mean).abs().max()) < 0.03


def test_expected_counts_are_the_slope_of_the_evidence_at_given_nodes():
    """d log p(x) / d log b_kv of the sum over the nodes, in which the modes stay where they are."""
    topic, x = corpus(3, 15)
    model = LDA(num_topics=3, vocabulary_size=12).with_priors(topic_proportion=PRIORS["logistic"](3))
    engine, data = engine_for(model, "laplace", draws=None), model.prepare(x, dtype=torch.float64)
    rows, at = engine.rows(model, data), torch.tensor(topic)
    step = engine.e_step(model, {"topic": at}, rows)
    # By the grid, where the nodes do not move at all: the two agree as far as the quadrature is right.
    for place in ((0, 1), (1, 7), (2, 3)):
        up, down = (topic.copy() for _ in range(2))
        up[place] *= 1 + 1e-4
        down[place] *= 1 - 1e-4
        slope = (by_grid("logistic", up, x)[0] - by_grid("logistic", down, x)[0]).sum() / 2e-4
        assert np.isclose(float(step.statistics["topic"][place]), slope, atol=2e-3)


@pytest.mark.parametrize("kind", ["aspects", "genotypes", "profiles"])
def test_rows_of_other_models_are_those_of_documents(kind):
    """Evidence and mean memberships of aspect models and profiles, two components, with missing entries."""
    rng = np.random.default_rng(5)
    if kind == "profiles":
        table = rng.dirichlet([0.6] * 3, (2, 5))
        x, params = rng.integers(0, 3, (6, 5)).astype(float), {"response": torch.tensor(table)}
        model = UserRatingProfile(num_components=2, num_features=5, num_categories=3)
    else:
        draws = 2 if kind == "genotypes" else 1
        aspect = rng.uniform(0.05, 0.95, (2, 7))
        x, params = rng.binomial(draws, 0.5, (6, 7)).astype(float), {"aspect_probability": torch.tensor(aspect)}
        model = AspectBernoulli(num_components=2, num_features=7, total_count=draws)
    mask = rng.random(x.shape) > 0.25
    mask[1] = False
    model = model.with_priors(membership=PRIORS["logistic"](2))
    data = model.prepare(x, mask=mask, dtype=torch.float64)
    found = LocalSolver(engine=engine_for(model, "laplace")).solve(model, params, data)
    axis = np.linspace(-14, 14, 6001)
    share = sticks(axis[:, None])[0]
    if kind == "profiles":
        chance = np.einsum("mk,krc->mrc", share, table)
        terms = np.stack([np.log(chance[:, np.arange(5), row.astype(int)]) for row in x])
    else:
        p = share @ aspect
        terms = np.stack([stats.binom.logpmf(row, draws, p) for row in x])
    joint = (terms * mask[:, None]).sum(-1) + log_prior("logistic", axis[:, None])
    assert np.allclose(found.bound, logsumexp(joint, axis=1) + np.log(axis[1] - axis[0]), atol=1e-3)
    assert np.allclose(found.posterior.mean, softmax(joint, axis=1) @ share, atol=0.01)
    assert abs(float(found.bound[1])) < 1e-9


def test_densities_and_means_of_logistic_normals_are_torchs():
    generator = torch.Generator().manual_seed(0)
    location = torch.randn(4, 2, generator=generator, dtype=torch.float64)
    posterior = LogisticNormalPosterior(
        location, torch.diag_embed(torch.tensor([[0.5, 2.0]], dtype=torch.float64)).expand(4, 2, 2)
    )
    torchs = torch.distributions.LogisticNormal(location, torch.tensor([0.5, 2.0], dtype=torch.float64).sqrt())
    point = posterior.sample(5, seed=3)
    assert torch.allclose(point.sum(-1), torch.ones(5, 4, dtype=torch.float64))
    assert torch.allclose(torch.stack([posterior.log_prob(one) for one in point]), torchs.log_prob(point), atol=1e-8)
    u, volume = torch.randn(9, 2, generator=generator, dtype=torch.float64), transforms.StickBreakingTransform()
    assert torch.allclose(Sticks.of(u).log_share.exp(), volume(u)) and torch.allclose(
        Sticks.of(u).log_volume, volume.log_abs_det_jacobian(u, volume(u))
    )
    for size in (1, 3, 6):
        nodes = standard_nodes(size)
        weight = nodes.log_weight.exp()
        assert torch.allclose(weight @ nodes.place, torch.zeros(size, dtype=torch.float64), atol=1e-12)
        second = nodes.place.T @ (weight[:, None] * nodes.place)
        assert torch.allclose(second, torch.eye(size, dtype=torch.float64), atol=1e-10)


def test_one_component_has_nothing_to_infer():
    model = LDA(num_topics=1, vocabulary_size=3)
    prior = dist.TransformedDistribution(
        dist.Normal(torch.zeros(0), torch.ones(0)).to_event(1), [transforms.StickBreakingTransform()]
    )
    topic = torch.tensor([[0.2, 0.3, 0.5]])
    model, x = model.with_priors(topic_proportion=prior), torch.tensor([[1.0, 0.0, 2.0], [0.0, 0.0, 0.0]])
    found = LocalSolver(engine=engine_for(model, "laplace")).solve(
        model, {"topic": topic.double()}, model.prepare(x, dtype=torch.float64)
    )
    assert np.allclose(found.bound, [np.log(0.2) + 2 * np.log(0.5), 0.0]) and torch.equal(
        found.posterior.mean, torch.ones(2, 1, dtype=torch.float64)
    )


def test_priors_without_a_density_are_refused():
    class Silent(dist.TorchDistribution):
        support, arg_constraints = torch.distributions.constraints.simplex, {}

        def __init__(self):
            super().__init__(torch.Size(), torch.Size([3]))

        def expand(self, batch_shape, _instance=None):
            return self

    model = LDA(num_topics=3, vocabulary_size=4).with_priors(topic_proportion=Silent())
    engine = engine_for(model, "laplace")
    data = model.prepare(torch.ones(2, 4), dtype=torch.float64)
    with pytest.raises(PriorError, match="prior Silent of 'topic_proportion' has no density with two derivatives"):
        engine.check(model, engine.rows(model, data))
