"""Beta, Gamma and Dirichlet pairs against quadrature and scipy.stats, over tiny and large parameters."""

import itertools

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy import integrate, optimize, special, stats

from custom_inference.families.conjugate.beta import Beta, interior
from custom_inference.families.conjugate.dirichlet import Dirichlet, log_marginal_of_table, normalise
from custom_inference.families.conjugate.gamma import Gamma
from ppl_models import LDA, GammaPoisson, MixtureOfBernoullis, PriorError

SIZES = [0.02, 0.7, 1.0, 3.5, 400.0]
PAIRS = [(a, b) for a in SIZES for b in SIZES]
KINDS = {"beta": (Beta, stats.beta, special.expit), "gamma": (Gamma, lambda a, b: stats.gamma(a, scale=1 / b), np.exp)}
EACH = pytest.mark.parametrize("kind", KINDS)


def number(value):
    return torch.tensor(value, dtype=torch.float64)


def integral(function, q, value):
    """E[function(x)] under q, integrated over u, x = value(u) the logistic or exponential function."""
    volume = (lambda x: x * (1 - x)) if value is special.expit else (lambda x: x)

    def at(u):
        x = value(u)
        with np.errstate(all="ignore"):
            found = function(x) * np.exp(q.logpdf(x)) * volume(x)
        return found if np.isfinite(found) else 0.0

    middle = q.median()
    middle = special.logit(middle) if value is special.expit else np.log(max(middle, 1e-300))
    edges = [
        (-36.0 if value is special.expit else -690.0),
        *(middle + np.array([-30, -8, -2, -0.3, 0, 0.3, 2, 8, 30])),
        36.0,
    ]
    edges = np.unique(np.clip(edges, edges[0], 36.0))
    return sum(integrate.quad(at, a, b, limit=200, epsabs=1e-12)[0] for a, b in itertools.pairwise(edges))


@EACH
@pytest.mark.parametrize(("a", "b"), [(0.7, 3.5), (3.5, 0.7), (1.0, 1.0), (400.0, 3.5), (3.5, 400.0)])
def test_expectations_divergences_and_marginals_are_integrals(kind, a, b):
    make, scipys, value = KINDS[kind]
    pair, q = make(number(a), number(b)), scipys(a, b)
    second = integral(np.log, scipys(b, a), value) if kind == "beta" else integral(lambda x: x, q, value)
    expected = [integral(np.log, q, value), second]  # 1 - p of a Beta(a, b) is a Beta(b, a)
    assert [float(one) for one in pair.expected()] == pytest.approx(expected, rel=1e-6)
    assert float(pair.mean) == pytest.approx(q.mean())
    other, p = make(number(2.0), number(0.8)), scipys(2.0, 0.8)
    apart = integral(lambda x: q.logpdf(x) - p.logpdf(x), q, value)
    assert float(pair.kl(other)) == pytest.approx(apart, rel=1e-6, abs=1e-8)
    assert float(pair.kl(pair)) == pytest.approx(0.0, abs=1e-9)
    likelihood = (lambda x: x**2 * (1 - x) ** 3) if kind == "beta" else (lambda x: x**2 * np.exp(-3 * x))
    marginal = np.log(integral(likelihood, q, value))
    assert float(pair.log_marginal(number(2.0), number(5.0 if kind == "beta" else 3.0))) == pytest.approx(
        marginal, rel=1e-6
    )


@EACH
@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_densities_are_scipys_and_bayes_theorem_holds(kind, a, b):
    """p(x) p(data | x) = p(data) p(x | data), at any x; in the basis of the mode, a shape below 1 has a factor more."""
    make, scipys, _ = KINDS[kind]
    pair, statistics = make(number(a), number(b)), (number(7.0), number(9.0 if kind == "beta" else 2.0))
    x = number(float(np.clip(scipys(a + 7, b + 2).median(), 1e-6, 1 - 1e-6)))
    shift = torch.log(x) if kind == "gamma" and a < 1 else 0.0
    assert float(pair.log_density(x) - shift) == pytest.approx(scipys(a, b).logpdf(float(x)), rel=1e-9, abs=1e-9)
    likelihood = 7 * torch.log(x) + (2 * torch.log1p(-x) if kind == "beta" else -2 * x)
    after = pair.update(*statistics)
    evidence = scipys(a, b).logpdf(float(x)) + likelihood - scipys(*map(float, after)).logpdf(float(x))
    assert float(pair.log_marginal(*statistics)) == pytest.approx(float(evidence), rel=1e-8, abs=1e-8)


@EACH
@pytest.mark.parametrize(("a", "b"), [(1.0, 1.0), (1.0, 2.5), (4.0, 1.5), (0.3, 2.0)])
def test_modes_maximise_likelihood_and_prior_in_their_basis(kind, a, b):
    if kind == "beta" and min(a, b) < 1:
        pytest.skip("unbounded at the edge: refused")
    make, _, value = KINDS[kind]
    pair, on, off = make(number(a), number(b)), number(3.0), number(5.0)

    def negative(u):
        x = number(float(value(u)))
        likelihood = on * torch.log(x) + (off * torch.log1p(-x) if kind == "beta" else -off * x)
        return -float(likelihood + pair.log_density(x))

    best = optimize.minimize_scalar(negative, bounds=(-6, 6), method="bounded", options={"xatol": 1e-10})
    assert float(pair.mode(on, on + off if kind == "beta" else off, floor=1e-9)) == pytest.approx(
        float(value(best.x)), rel=1e-5
    )


@EACH
@pytest.mark.parametrize(("a", "b"), [(1.0, 1.0), (1.0, 2.5), (4.0, 1.5)])
def test_what_nothing_was_observed_of_is_not_never(kind, a, b):
    """It has the prior's mode, and its mean where everything is a mode."""
    make, nothing = KINDS[kind][0], number(0.0)
    found = float(make(number(a), number(b)).mode(nothing, nothing, floor=1e-4))
    mode = (a - 1) / ((a + b - 2) if kind == "beta" and a + b > 2 else b)
    assert found == pytest.approx(0.5 if kind == "beta" and a == b == 1 else max(mode, 1e-4))


def test_rates_without_exposure_under_a_flat_prior_are_those_of_the_column_or_of_all():
    flat = Gamma(number(1.0), number(0.0))
    events = torch.tensor([[3.0, 0.0], [0.0, 0.0]])
    exposure = torch.tensor([[2.0, 0.0], [0.0, 0.0]])
    assert torch.allclose(flat.mode(events, exposure, floor=1e-9), torch.full((2, 2), 1.5))
    assert float(flat.mode(number(0.0), number(0.0), floor=1e-9)) == 1


@EACH
@pytest.mark.parametrize(("a", "b"), [(0.05, 2.0), (3.0, 0.5), (50.0, 70.0)])
def test_draws_have_the_law(kind, a, b):
    make, scipys, _ = KINDS[kind]
    size = torch.ones(2000, dtype=torch.float64)
    drawn = make(a * size, b * size).draw(np.random.default_rng(3)).numpy()
    assert drawn.min() > 0
    cut = np.maximum(drawn, 2e-16 if kind == "beta" else 0.0)
    assert stats.kstest(cut[cut > 1e-15], scipys(a, b).cdf).pvalue > 1e-3 or a < 0.1
    error = scipys(a, b).std() / np.sqrt(len(drawn))
    assert abs(drawn.mean() - scipys(a, b).mean()) < 4.5 * error


def test_flat_rates_count_as_a_tenth_of_a_row():
    flat, weak = Gamma(number(1.0), number(0.0)), Gamma(number(1.0), number(0.1))
    statistics = number(4.0), number(2.0)
    assert float(flat.log_marginal(*statistics)) == pytest.approx(float(weak.log_marginal(*statistics)))
    assert float(flat.log_density(number(3.0))) == 0.0


GROUPS = pytest.mark.parametrize("groups", [1, 3, (1, 2, 3)])


def cut(value, groups):
    sizes = [value.shape[-1] // groups] * groups if isinstance(groups, int) else list(groups)
    return value.split(sizes, -1)


@GROUPS
def test_dirichlets_are_scipys_group_by_group(groups):
    generator = torch.Generator().manual_seed(1)
    a, b = (10 ** (4 * torch.rand(3, 6, generator=generator, dtype=torch.float64) - 1.5) for _ in range(2))
    pair, parts = Dirichlet(a, groups), [torch.distributions.Dirichlet(part) for part in cut(a, groups)]
    others = [torch.distributions.Dirichlet(part) for part in cut(b[0], groups)]
    apart = sum(torch.distributions.kl_divergence(q, p) for q, p in zip(parts, others, strict=True))
    torch.testing.assert_close(pair.kl(Dirichlet(b[0], groups)), apart)
    torch.testing.assert_close(pair.mean, torch.cat([part.mean for part in parts], -1))
    marginals = torch.cat([Beta(part, part.sum(-1, keepdim=True) - part).expected()[0] if part.shape[-1] > 1
                           else torch.zeros_like(part) for part in cut(a, groups)], -1)  # fmt: skip
    torch.testing.assert_close(pair.expected(), marginals, rtol=1e-9, atol=1e-9)
    counts = torch.randint(0, 5, (3, 6), generator=generator).double()
    each = np.zeros(3)
    for c, n in zip((one.numpy() for one in cut(a, groups)), (one.numpy() for one in cut(counts, groups)), strict=True):
        coefficient = special.gammaln(n.sum(1) + 1) - special.gammaln(n + 1).sum(1)
        laws = [
            stats.dirichlet_multinomial(*one).logpmf(k)
            for one, k in zip(zip(c, n.sum(1).astype(int), strict=True), n.astype(int), strict=True)
        ]
        each += np.array(laws) - coefficient
    assert pair.log_marginal(counts).numpy() == pytest.approx(each, rel=1e-8)
    if groups == 1:
        assert log_marginal_of_table(counts.numpy(), a.numpy()) == pytest.approx(each.sum(), rel=1e-8)
        value = a.clamp(max=9).softmax(-1)
        assert float(1 + pair.map(lambda c: c + 1).log_density(value)) == pytest.approx(
            1 + sum(stats.dirichlet(c + 1).logpdf(v) for c, v in zip(a.numpy(), value.numpy(), strict=True))
        )
        assert float(Dirichlet(torch.ones(6)).log_density(value)) == 0.0


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("smallest", [0.3, 1.0, 1.5])
def test_modes_of_dirichlets_maximise_their_density_in_their_basis(groups, smallest):
    """Any other point of the simplex scores less; in the softmax basis, the gradient by the logits vanishes."""
    counts, prior = torch.rand(3, 6) * 4, smallest + torch.rand(6)
    prior[0] = smallest
    pair = Dirichlet(prior, groups)
    mode = pair.mode(counts)

    def score(value):
        return torch.xlogy(counts, value).sum() + pair.log_density(value)

    logits = mode.log().requires_grad_()
    score(logits.unflatten(-1, (groups, -1)).softmax(-1).flatten(-2)).backward()
    assert logits.grad is not None
    assert float(logits.grad.abs().max()) < 1e-10
    for _ in range(20):
        other = normalise(mode * (1 + 0.1 * torch.rand(3, 6)), groups)
        assert float(score(other)) < float(score(mode))


def test_draws_of_dirichlets_have_the_moments():
    concentration = torch.tensor([0.3, 0.0, 2.0, 5.0], dtype=torch.float64)
    drawn = Dirichlet(concentration.expand(40_000, 4)).draw(np.random.default_rng(0))
    mean, total = concentration / concentration.sum(), concentration.sum()
    error = (mean * (1 - mean) / (total + 1) / len(drawn)).sqrt()
    assert bool((drawn[:, 1] == 0).all())
    assert bool(((drawn.mean(0) - mean).abs() <= 4.5 * error).all())


def test_priors_are_read_and_others_refused():
    like = torch.zeros((), dtype=torch.float64)
    model = MixtureOfBernoullis(num_components=2, num_features=3)
    assert [float(part) for part in Beta.of(model, "probability", like)] == [1.0, 1.0]
    poles = model.with_priors(probability=dist.Beta(0.5, 1.0))
    assert float(Beta.of(poles, "probability", like).on.max()) == 0.5
    with pytest.raises(PriorError, match="no maximum a posteriori"):
        Beta.with_mode(poles, "probability", like)
    with pytest.raises(PriorError, match="a Gamma prior for 'loading', not LogNormal"):
        Gamma.of(
            GammaPoisson(num_components=2, num_features=3).with_priors(loading=dist.LogNormal(0.0, 1.0)),
            "loading",
            like,
        )
    sparse = LDA(num_topics=2, vocabulary_size=3).with_priors(topic=dist.Dirichlet(torch.full((3,), 0.5)))
    with pytest.raises(PriorError, match="no maximum a posteriori"):
        Dirichlet.with_mode(sparse, "topic", like)
    assert float(interior(torch.ones(()))) < 1
