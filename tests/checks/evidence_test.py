"""Evidence of whole models against closed forms, sums over all assignments, and quadrature."""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import stats
from scipy.special import betaln, gammaln, logsumexp
from torch import Tensor
from torch.distributions import constraints

from custom_inference import marginal_likelihood
from custom_inference.checks.evidence import chib, labelings, tempered
from custom_inference.checks.evidence.chib import log_permanent
from custom_inference.checks.evidence.coordinates import Globals, _coordinate_of
from custom_inference.checks.evidence.exact import _sum_partitions
from custom_inference.checks.evidence.likelihood import Target
from custom_inference.checks.evidence.result import combine
from ppl_models import (
    CVQ,
    LDA,
    MMSB,
    NOCA,
    RTM,
    SBM,
    MethodError,
    MixtureOfBernoullis,
    MixtureOfMultinomials,
    MixtureOfPoissons,
    PoissonSBM,
    PriorError,
    graph,
)
from ppl_models.core.row_models import RowModel
from ppl_models.core.sites import Site
from tests.references import _collapsed, mixture_evidence

GAMMA = {"rate": dist.Gamma(1.0, 0.5)}


def counts(rows: int, columns: int = 2, seed: int = 0) -> np.ndarray:
    """Counts of two classes."""
    rng = np.random.default_rng(seed)
    rate = np.array([[1.0, 6.0, 9.0], [7.0, 2.0, 1.0]])[rng.integers(0, 2, rows), :columns]
    return rng.poisson(rate).astype(float)


def poissons(classes: int, columns: int = 2, **priors: Any) -> MixtureOfPoissons:
    return MixtureOfPoissons(num_components=classes, num_features=columns, priors={**GAMMA, **priors})


def run(model, x, **settings):
    return marginal_likelihood(model, x, **{"progress": False, **settings})


# ----- exact ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [1, 2, 3])
def test_poissons_by_all_assignments(classes):
    x, mask = counts(8), np.random.default_rng(1).random((8, 2)) > 0.2
    reference = mixture_evidence.log_evidence(x, np.full(classes, 0.7), mixture_evidence.of_poissons(1.0, 0.5), mask)
    model = poissons(classes, mixing_proportion=dist.Dirichlet(torch.full((classes,), 0.7)))
    found = run(model, x, mask=mask)
    assert found.is_exact and found.standard_error == 0
    assert found.log_evidence == pytest.approx(reference, abs=1e-9)


def test_priors_that_tell_classes_apart():
    x, concentration = counts(7), np.array([0.3, 2.0, 1.0])
    reference = mixture_evidence.log_evidence(x, concentration, mixture_evidence.of_poissons(1.0, 0.5))
    model = poissons(3, mixing_proportion=dist.Dirichlet(torch.tensor(concentration)))
    assert run(model, x).log_evidence == pytest.approx(reference, abs=1e-9)


@pytest.mark.parametrize("classes", [1, 2])
def test_bernoullis_and_words_by_all_assignments(classes):
    x = (np.random.default_rng(2).random((9, 3)) < 0.4).astype(float)
    reference = mixture_evidence.log_evidence(x, np.ones(classes), mixture_evidence.of_bernoullis(2.0, 1.5))
    model = MixtureOfBernoullis(num_components=classes, num_features=3, priors={"probability": dist.Beta(2.0, 1.5)})
    assert run(model, x).log_evidence == pytest.approx(reference, abs=1e-9)

    words = counts(6, 3)
    topic = np.array([0.5, 1.0, 2.0])
    reference = mixture_evidence.log_evidence(words, np.ones(classes), mixture_evidence.of_words(topic))
    prior = {"topic": dist.Dirichlet(torch.tensor(topic))}
    model = MixtureOfMultinomials(num_topics=classes, vocabulary_size=3, priors=prior)
    assert run(model, words).log_evidence == pytest.approx(reference, abs=1e-9)


def test_partitions_of_many_classes():
    tables = np.random.default_rng(0).normal(size=(4, 2**4))
    terms = []
    for z in itertools.product(range(4), repeat=4):
        places = [sum(1 << n for n, one in enumerate(z) if one == k) for k in range(4)]
        terms.append(sum(tables[k, place] for k, place in enumerate(places)))
    assert _sum_partitions(tables) == pytest.approx(logsumexp(terms), abs=1e-12)


def test_toy_corpus_of_lda():
    documents = [np.array([0, 0, 1]), np.array([2, 1]), np.array([2, 2])]
    x = np.array([[2.0, 1, 0], [0, 1, 1], [0, 0, 2]])
    alpha, gamma = np.array([0.5, 0.8]), np.array([0.3, 0.3, 0.6])
    priors = {"topic_proportion": dist.Dirichlet(torch.tensor(alpha)), "topic": dist.Dirichlet(torch.tensor(gamma))}
    found = run(LDA(num_topics=2, vocabulary_size=3, priors=priors), x)
    assert found.is_exact
    assert found.log_evidence == pytest.approx(_collapsed.log_evidence(documents, 2, 3, alpha, gamma), abs=1e-9)


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("poisson", [False, True])
def test_block_models_by_all_labelings(directed, poisson):
    rng, size = np.random.default_rng(3), 5
    x = rng.poisson(1.0, (size, size)) if poisson else (rng.random((size, size)) < 0.5).astype(int)
    x = x * (1 - np.eye(size, dtype=int))
    x = x if directed else np.triu(x) + np.triu(x).T
    seen = 1 - np.eye(size)
    terms = []
    for z in itertools.product(range(2), repeat=size):
        code = np.eye(2)[list(z)]
        number = code.sum(0)
        total = gammaln(2.0) - gammaln(2.0 + size) + gammaln(1.0 + number).sum()
        once = np.ones((size, size)) if directed else np.triu(np.ones((size, size)))
        m, n = (code.T @ (part * once) @ code for part in (x, seen))
        pairs = [(m[a, b], n[a, b]) for a in range(2) for b in range(2)]
        if not directed:  # both orders of two blocks are one
            pairs = [
                (m[a, b] + (a != b) * m[b, a], n[a, b] + (a != b) * n[b, a]) for a in range(2) for b in range(a, 2)
            ]
        for edges, dyads in pairs:
            if poisson:
                total += gammaln(1.0 + edges) - (1.0 + edges) * np.log(1.0 + dyads)
            else:
                total += betaln(1.0 + edges, 1.0 + dyads - edges)
        total -= (gammaln(x + 1) * once).sum()
        terms.append(total)
    kind = PoissonSBM if poisson else SBM
    model = kind(num_blocks=2, num_nodes=size, directed=directed)
    found = run(model, graph(x, directed=directed))
    assert found.is_exact
    assert found.log_evidence == pytest.approx(logsumexp(terms), abs=1e-9)


def test_permanent_against_all_permutations():
    table = np.random.default_rng(0).normal(size=(5, 5))
    table[0, 1] = -np.inf
    every = [sum(table[j, k] for j, k in enumerate(p)) for p in itertools.permutations(range(5))]
    assert log_permanent(table) == pytest.approx(logsumexp(every), abs=1e-12)


# ----- coordinates ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "prior",
    [
        dist.Gamma(0.4, 2.0),
        dist.Beta(0.6, 2.5),
        dist.Normal(1.0, 2.0),
        dist.LogNormal(0.0, 0.5),
        dist.Uniform(-1.0, 3.0),
    ],
)
def test_priors_in_unconstrained_coordinates(prior):
    """They are densities: they integrate to one, have the prior's mean, and draws of it have their law."""
    coordinate = _coordinate_of(prior)
    u = torch.linspace(-80.0, 80.0, 200_001)
    density = torch.func.vmap(lambda one: coordinate.log_density(prior, one))(u).exp().nan_to_num()
    values = torch.func.vmap(lambda one: coordinate.value(prior, one))(u)
    step = float(u[1] - u[0])
    assert float(density.sum()) * step == pytest.approx(1.0, abs=1e-4)
    mean = float((density * values).nan_to_num(posinf=0.0).sum()) * step
    assert mean == pytest.approx(float(prior.mean), abs=1e-3)
    generator = torch.Generator().manual_seed(0)
    drawn = np.array([float(coordinate.draw(prior, generator)) for _ in range(500)])
    below = np.cumsum(density.numpy()) * step
    assert stats.kstest(drawn, lambda at: np.interp(at, u.numpy(), below)).pvalue > 1e-3


def test_a_simplex_has_the_law_of_its_dirichlet():
    prior = dist.Dirichlet(torch.tensor([0.05, 0.5, 3.0]))
    coordinate, generator = _coordinate_of(prior), torch.Generator().manual_seed(0)
    drawn = torch.stack([coordinate.value(prior, coordinate.draw(prior, generator)) for _ in range(4000)])
    for k in range(3):  # marginals are Betas
        law = stats.beta(float(prior.concentration[k]), float(prior.concentration.sum() - prior.concentration[k]))
        assert stats.kstest(drawn[:, k].numpy(), law.cdf).pvalue > 1e-3
    # Independent Gamma variables: the density is a product of three, each of which is tested above.
    u = torch.tensor([-3.0, 0.2, 1.0])
    expected = sum(float(_gamma_density(a, v)) for a, v in zip([0.05, 0.5, 3.0], u.tolist(), strict=True))
    assert float(coordinate.log_density(prior, u)) == pytest.approx(expected)


def _gamma_density(shape: float, u: float) -> float:
    return float(stats.gamma.logpdf(math.exp(u), shape)) + u


# ----- sampling ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class Shift(RowModel):
    """Numbers about 0 or about mu, of which nobody knows which: one unknown number in all."""

    axes: ClassVar[Mapping[str, str]] = {}
    sites: ClassVar[Mapping[str, Site]] = {
        "mu": Site("global", (), support=constraints.real),
        "on": Site("latent", (), ("row",), constraints.boolean),
        "x": Site("observed", (), ("row",), constraints.real),
    }

    def default_priors(self) -> dict[str, Any]:
        return {"mu": dist.Normal(0.0, 3.0)}

    def __call__(
        self, x: Tensor | None = None, *, mask: Tensor | None = None, batch_size: int | None = None, num_rows: int = 1
    ) -> Tensor:
        mu = self.sample("mu")
        with self.rows(x, mask, batch_size, num_rows) as rows:
            on = pyro.sample("on", dist.Bernoulli(torch.tensor(0.4)))
            return rows.observe("x", dist.Normal(mu * on, 1.0))


X = np.array([0.1, 2.2, -0.7, 3.1, 1.9, 0.4])


def shift_evidence() -> float:
    """By a dense sum over mu."""
    mu = np.linspace(-30, 30, 60_001)
    each = np.logaddexp(
        np.log(0.4) + stats.norm.logpdf(X[:, None], mu, 1), np.log(0.6) + stats.norm.logpdf(X[:, None], 0.0, 1)
    ).sum(0)
    return float(logsumexp(each + stats.norm.logpdf(mu, 0, 3)) + np.log(mu[1] - mu[0]))


def test_a_program_of_ones_own_against_quadrature(monkeypatch):
    monkeypatch.setattr(tempered, "PARTICLES", 4096)  # of one number: they cost little
    found = run(Shift(), X, seconds=300.0)
    assert found.method == "smc" and not found.remarks
    assert abs(found.log_evidence - shift_evidence()) < min(0.05, 3 * found.standard_error)
    assert 0.9 < found.r_hat < 1.05 and found.ess > 500


def test_errors_are_calibrated(monkeypatch):
    """Three standard errors hold the truth; estimates are neither high nor low on average."""
    monkeypatch.setattr(tempered, "PARTICLES", 64)
    monkeypatch.setattr(tempered, "MOST", 4)
    x = torch.tensor(X)[:, None]

    def log_likelihood(values: Mapping[str, Tensor]) -> Tensor:
        on = dist.Normal(values["mu"], 1.0).log_prob(x) + math.log(0.4)
        return torch.logaddexp(on, dist.Normal(0.0, 1.0).log_prob(x) + math.log(0.6)).sum()

    model = Shift()
    target = Target(Globals.of(model, model.prepare(X, dtype=torch.float64)), log_likelihood, 10_000)
    settings = {"deadline": math.inf, "progress": False, "enough": lambda _: False}
    runs = [tempered.sample(target, seed=10 * seed, **settings)[0] for seed in range(8)]
    found = [combine(one.log_estimates) for one in runs]
    z = np.array([(value - shift_evidence()) / error for value, error in found])
    assert (np.abs(z) < 3).all()
    pooled = np.concatenate([one.log_estimates for one in runs])
    value, error = combine(pooled)
    assert abs(value - shift_evidence()) < 3 * error < 0.15


@pytest.mark.parametrize("spread", [0.05, 0.5])
def test_two_errors_hold_the_truth_in_19_of_20_cases(spread):
    """Also of four estimates, whose spread is hardly known."""
    rng = np.random.default_rng(0)
    found = [combine(rng.normal(-(spread**2) / 2, spread, 4)) for _ in range(3000)]
    assert np.mean([abs(value) < 2 * error for value, error in found]) > 0.93


@pytest.fixture
def few_draws(monkeypatch):
    monkeypatch.setattr(chib, "_MOST", 200)


@pytest.mark.usefixtures("few_draws")
@pytest.mark.parametrize("classes", [2, 3])
def test_chib_against_all_assignments(classes):
    """Ten rows: all relabelings count, which a chain does not visit."""
    x = counts(10)
    exact = run(poissons(classes), x).log_evidence
    found = run(poissons(classes), x, method="chib", seconds=300.0)
    assert abs(found.log_evidence - exact) < min(0.05, 3 * found.standard_error)
    assert found.chains.shape == (8,) and found.r_hat < 1.05


@pytest.mark.usefixtures("few_draws")
def test_chib_where_priors_tell_classes_apart():
    concentration = dist.Dirichlet(torch.tensor([0.5, 3.0]))
    x = counts(8)
    exact = run(poissons(2, mixing_proportion=concentration), x).log_evidence
    found = run(poissons(2, mixing_proportion=concentration), x, method="chib", seconds=300.0)
    assert abs(found.log_evidence - exact) < max(0.02, 3 * found.standard_error)


@pytest.mark.parametrize(("kind", "directed"), [(SBM, False), (SBM, True), (PoissonSBM, False)])
def test_annealing_over_labelings_against_all_of_them(kind, directed, monkeypatch):
    monkeypatch.setattr(labelings, "MOST", 200)
    rng, size = np.random.default_rng(5), 8
    block = np.arange(size) % 2
    x = (rng.random((size, size)) < np.where(block[:, None] == block, 0.8, 0.2)).astype(int)
    x = x * (1 - np.eye(size, dtype=int))
    x = x if directed else np.triu(x) + np.triu(x).T
    model, data = kind(num_blocks=2, num_nodes=size, directed=directed), graph(x, directed=directed)
    data = data.without(np.array([[0, 2], [1, 5]]))
    exact = run(model, data)
    found = run(model, data, method="labelings", seconds=300.0)
    assert exact.is_exact and found.method == "labelings"
    assert abs(found.log_evidence - exact.log_evidence) < 3 * found.standard_error < 0.6


@pytest.mark.slow
@pytest.mark.parametrize("classes", [2, 3])
def test_tempered_sampling_against_all_assignments(classes):
    x = counts(10)
    exact = run(poissons(classes), x).log_evidence
    found = run(poissons(classes), x, method="smc", seconds=600.0)
    assert abs(found.log_evidence - exact) < min(0.05, 3 * found.standard_error)


def test_tempered_sampling_with_few_particles(monkeypatch):
    monkeypatch.setattr(tempered, "PARTICLES", 64)
    monkeypatch.setattr(tempered, "MOST", 4)
    x = counts(5, 1)
    exact = run(poissons(2, 1), x).log_evidence
    found = run(poissons(2, 1), x, method="smc", seconds=300.0)
    assert abs(found.log_evidence - exact) < 3 * found.standard_error < 1.0


@pytest.mark.usefixtures("few_draws")
def test_bayes_factor_of_two_against_three_components():
    x = counts(40, 3, seed=4)
    one, two, three = (run(poissons(k, 3), x, method="chib", seconds=120.0) for k in (1, 2, 3))
    gain = two.log_bayes_factor(three)
    assert gain.log > 2 * gain.standard_error
    assert two.log_bayes_factor(one).log > 20
    assert gain.standard_error == pytest.approx(math.hypot(two.standard_error, three.standard_error))


def test_known_globals_leave_nothing_to_integrate():
    rate = torch.tensor([[1.0, 6.0], [7.0, 2.0]])
    model = poissons(2, rate=rate, mixing_proportion=torch.tensor([0.5, 0.5]))
    x = counts(4)
    each = stats.poisson.logpmf(x[:, None], rate.numpy()).sum(-1) + np.log(0.5)
    assert run(model, x).log_evidence == pytest.approx(np.asarray(logsumexp(each, 1)).sum())


# ----- what cannot be done -------------------------------------------------------------------------------------


def test_flat_priors_are_named():
    example = CVQ.example()
    with pytest.raises(PriorError, match="prior of 'weight' of CVQ is flat"):
        run(example.model, example.data)


def test_latents_that_cannot_be_summed_out_are_named():
    example = RTM.example()
    with pytest.raises(MethodError, match="'topic_proportion' cannot be summed or integrated out"):
        run(example.model, example.data)
    example = MMSB.example()
    with pytest.raises(MethodError, match="'membership' of MMSB meet in every entry"):
        run(example.model, example.data)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"method": "guess"}, "method of the evidence"),
        ({"seconds": 0.0}, "seconds"),
        ({"method": "exact"}, "no exact evidence"),
        ({"method": "chib"}, "Chib"),
    ],
)
def test_unsuitable_settings(settings, match):
    example = NOCA.example()
    with pytest.raises(MethodError, match=match):
        run(example.model, example.data, **settings)


def test_too_few_seconds_are_told():
    example = NOCA.example()
    found = run(example.model, example.data, seconds=0.05)
    assert math.isnan(found.log_evidence) and "allow more" in repr(found)


def test_a_sentence():
    found = run(poissons(2), counts(6))
    assert repr(found).startswith("log p(x) = ") and "MixtureOfPoissons of 2 components" in repr(found)
    with pytest.raises(MethodError, match="expected what marginal_likelihood returns"):
        found.log_bayes_factor(cast(Any, None))
