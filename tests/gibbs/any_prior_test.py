"""Chains under priors that are not conjugate, against sums over all discrete latents and integrals on grids."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy.special import gammaln, softmax

import custom_inference as ci
from custom_inference import CollapsedGibbs, Fit
from custom_inference.gibbs import sampler_of
from ppl_models import (
    LDA,
    MMSB,
    SBM,
    DegreeCorrectedSBM,
    MixtureOfBernoullis,
    MixtureOfMultinomials,
    MixtureOfPoissons,
    Model,
    PoissonSBM,
    PriorError,
)
from ppl_models.distributions import Flat
from tests.references import _graphs, mmsb, mmsb_integrated
from tests.support.priors import PRIORS, OnGrid, logit_normal

SWEEPS = 250
LOGITS_OF_TWO = dist.LogisticNormal(torch.tensor([0.7]), torch.tensor([0.8]))
RNG = np.random.default_rng(5)


@pytest.fixture(autouse=True)
def same_data():
    """In whatever order the tests run."""
    RNG.bit_generator.state = np.random.default_rng(5).bit_generator.state


class Part(NamedTuple):
    """A site whose elements all have one prior, on a grid. counts: of every element, (..., C), given the latents."""

    site: str
    grid: OnGrid
    counts: Callable[[Any], np.ndarray]


class Case(NamedTuple):
    """A model with data small enough for a sum over its discrete latents, and what else weighs these. free: the entries
    of the block matrix."""

    model: Model
    x: np.ndarray
    parts: list[Part]
    latents: Callable[[], Iterator[Any]]
    log_rest: Callable[[Any], float] = lambda z: 0.0
    free: Any = slice(None)


def polya(counts: np.ndarray, alpha: np.ndarray) -> float:
    """log E[prod_k p_k^counts_k] of every row, summed, p ~ Dirichlet(alpha)."""
    total = gammaln(alpha.sum()) - gammaln(alpha.sum() + counts.sum(-1))
    return float((total + (gammaln(alpha + counts) - gammaln(alpha)).sum(-1)).sum())


def exact_means(case: Case) -> dict[str, np.ndarray]:
    logs, means = [], {part.site: [] for part in case.parts}
    for z in case.latents():
        log = case.log_rest(z)
        for site, grid, counts in case.parts:
            table = counts(z)
            found = [grid.integral(tuple(row)) for row in table.reshape(-1, table.shape[-1])]
            log += sum(one[0] for one in found)
            mean = np.array([one[1] for one in found])
            means[site].append(mean.reshape((*table.shape[:-1], *mean.shape[1:])))
        logs.append(log)
    weight = softmax(logs)
    return {site: np.tensordot(weight, np.array(values), 1) for site, values in means.items()}


def classes(rows: int) -> Callable[[], Iterator[np.ndarray]]:
    return lambda: (np.eye(2)[list(z)] for z in itertools.product(range(2), repeat=rows))


ALPHA = np.array([0.7, 2.0])


def mixture(kind: Any, site: str, what: str, name: str) -> Case:
    """Five rows in two classes, whose proportions have a Dirichlet."""
    prior, grid = PRIORS[what][name], OnGrid(PRIORS[what][name], what)
    x = RNG.integers(0, 2, (5, 2)) if what == "probability" else RNG.poisson(2.0, (5, 3 if what == "simplex" else 2))
    x = x.astype(float)
    size = {"vocabulary_size": 3} if what == "simplex" else {"num_features": 2}
    components = {"num_topics": 2} if what == "simplex" else {"num_components": 2}
    model = kind(**components, **size).with_priors(
        **{site: prior}, mixing_proportion=dist.Dirichlet(torch.tensor(ALPHA))
    )

    def counts(z: np.ndarray) -> np.ndarray:
        if what == "simplex":
            return z.T @ x
        other = z.sum(0)[:, None] - (z.T @ x if what == "probability" else 0)
        return np.stack(np.broadcast_arrays(z.T @ x, other), -1)

    return Case(model, x, [Part(site, grid, counts)], classes(5), lambda z: polya(z.sum(0), ALPHA))


def proportions() -> Case:
    x = RNG.integers(0, 2, (5, 2)).astype(float)
    priors = {"mixing_proportion": LOGITS_OF_TWO, "probability": dist.Beta(1.5, 0.8)}
    model = MixtureOfBernoullis(num_components=2, num_features=2).with_priors(**priors)
    parts = [
        Part("mixing_proportion", OnGrid(LOGITS_OF_TWO, "simplex", 2), lambda z: z.sum(0)),
        Part(
            "probability",
            OnGrid(priors["probability"], "probability"),
            lambda z: np.stack([z.T @ x, z.sum(0)[:, None] - z.T @ x], -1),
        ),
    ]
    return Case(model, x, parts, classes(5))


def topics(prior: Any, grid: OnGrid) -> Case:
    """Two documents of three tokens."""
    x, word = np.array([[2.0, 1, 0], [0, 1, 2]]), np.array([0, 0, 1, 1, 2, 2])
    model = LDA(num_topics=2, vocabulary_size=3).with_priors(topic=prior).with_concentration(alpha=ALPHA)

    def rest(z: np.ndarray) -> float:
        return polya(np.stack([z[:3].sum(0), z[3:].sum(0)]), ALPHA)

    return Case(model, x, [Part("topic", grid, lambda z: z.T @ np.eye(3)[word])], classes(6), rest)


def memberships() -> Case:
    x = np.array([[0.0, 1, 0], [1, 0, 1], [0, 0, 0]])
    priors = {"edge_probability": logit_normal(0.5, 1.2), "sparsity": dist.Uniform(0.0, 0.6)}
    model = MMSB(num_blocks=2, num_nodes=3, sparsity=None).with_priors(**priors).with_concentration(torch.tensor(ALPHA))
    i, j, values = _graphs.dyads(x, None, directed=True, self_loops=False)

    def counts(state: Any) -> np.ndarray:
        s, r, z = state
        cells = np.zeros((2, 2, 2))
        np.add.at(cells, (s[~z], r[~z], np.where(values[~z] > 0, 0, 1)), 1)
        return cells

    def rest(state: Any) -> float:
        s, r, z = state
        return polya(mmsb.member_counts(s, r, i, j, 3, 2, ~z), ALPHA)

    parts = [
        Part("edge_probability", OnGrid(priors["edge_probability"], "probability"), counts),
        Part("sparsity", OnGrid(priors["sparsity"], "probability"), lambda s: np.array([s[2].sum(), (~s[2]).sum()])),
    ]
    drawn = mmsb_integrated.states(x, 2, 0.5, drawn=False)
    return Case(model, x, parts, lambda: zip(*drawn, strict=True), rest)


def blocks(kind: Any, name: str, directed: bool) -> Case:
    """Four nodes in two blocks; proportions and block matrix explicit."""
    what = "probability" if kind is SBM else "rate"
    prior, site = PRIORS[what][name], "edge_probability" if kind is SBM else "edge_rate"
    x = RNG.integers(0, 2 if kind is SBM else 3, (4, 4)).astype(float)
    x = x if directed else np.triu(x) + np.triu(x, 1).T
    settings = {"directed": directed, "self_loops": True}
    model = kind(num_blocks=2, num_nodes=4, **settings).with_priors(**{site: prior, "block_proportion": LOGITS_OF_TWO})
    i, j, values = _graphs.dyads(x, None, **settings)
    free = _graphs.free_entries(2, directed=directed)

    def counts(z: np.ndarray) -> np.ndarray:
        other = 1.0 - values if kind is SBM else np.ones_like(values)
        return np.stack([_graphs.block_sums(z, one, i, j, directed=directed) for one in (values, other)], -1)[free]

    parts = [
        Part("block_proportion", OnGrid(LOGITS_OF_TWO, "simplex", 2), lambda z: z.sum(0)),
        Part(site, OnGrid(prior, what), counts),
    ]
    return Case(model, x, parts, classes(4), free=free)


CASES: dict[str, Callable[[], Case]] = {
    **{
        f"Bernoullis, {name}": lambda name=name: mixture(MixtureOfBernoullis, "probability", "probability", name)
        for name in ("logit-normal", "interval", "mixture of Betas")
    },
    "Poissons, log-normal": lambda: mixture(MixtureOfPoissons, "rate", "rate", "log-normal"),
    "multinomials, logistic-normal": lambda: mixture(MixtureOfMultinomials, "topic", "simplex", "logistic-normal"),
    "proportions, logistic-normal": proportions,
    "LDA, logistic-normal": lambda: topics(
        PRIORS["simplex"]["logistic-normal"], OnGrid(PRIORS["simplex"]["logistic-normal"], "simplex")
    ),
    "LDA, a Dirichlet for each topic": lambda: topics(
        dist.Dirichlet(torch.tensor([[0.6, 2.0, 1.0]] * 2)), OnGrid(PRIORS["simplex"]["Dirichlet"], "simplex")
    ),
    "MMSB": memberships,
    "SBM, undirected": lambda: blocks(SBM, "mixture of Betas", False),
    "Poisson SBM, directed": lambda: blocks(PoissonSBM, "log-normal", True),
}


def series_of(model: Model, x: np.ndarray, sites: list[str], sweeps: int) -> dict[str, np.ndarray]:
    chain = sampler_of(model).chain(model, model.prepare(x, dtype=torch.float64), 3, None)
    found: dict[str, list[np.ndarray]] = {site: [] for site in sites}
    for _ in range(sweeps):
        chain.sweep()
        means = chain.means()
        assert math.isfinite(chain.log_joint())
        for site in sites:
            found[site].append(means[site].numpy())
    return {site: np.array(values[sweeps // 20 :]) for site, values in found.items()}


def assert_mean(series: np.ndarray, expected: np.ndarray) -> None:
    """Within the error by 20 batches."""
    batches = np.stack([part.mean(0) for part in np.array_split(series, 20)])
    error = batches.std(0, ddof=1) / math.sqrt(20) + 1e-3
    assert (np.abs(series.mean(0) - expected) / error).max() < 5, (series.mean(0), expected, error)


@pytest.mark.parametrize("name", CASES)
def test_means_are_those_of_the_exact_posterior(name):
    case = CASES[name]()
    expected = exact_means(case)
    for site, series in series_of(case.model, case.x, list(expected), SWEEPS).items():
        if "edge" in site and not isinstance(case.free, slice):
            series = np.stack([one[case.free] for one in series])
        assert_mean(series, expected[site])


@pytest.mark.parametrize("directed", [True, False])
def test_propensities_follow_their_posterior(directed):
    """Under log-normal priors: a sum over the labels of two nodes, and a grid over their propensities."""
    x = np.array([[2.0, 3.0], [0.0, 1.0]]) if directed else np.array([[2.0, 3.0], [3.0, 0.0]])
    sites = ["out_propensity", "in_propensity"] if directed else ["propensity"]
    size = 1 if directed else 2
    settings = {"directed": directed, "self_loops": True}
    model = DegreeCorrectedSBM(num_blocks=size, num_nodes=2, **settings).with_priors(
        edge_rate=dist.Gamma(2.0, 1.5), **{site: dist.LogNormal(0.2, 0.6) for site in sites}
    )
    u = np.linspace(-2.4, 2.8, 17 if directed else 61)
    grid = np.stack(np.meshgrid(*[u] * 2 * len(sites), indexing="ij"), -1).reshape(-1, len(sites), 2)
    i, j, values = _graphs.dyads(x, None, **settings)
    scale = grid[:, 0, i] + grid[:, -1, j]  # logarithms, (G, E)
    logs = scale @ values - ((grid - 0.2) ** 2 / (2 * 0.6**2)).sum((1, 2))
    weight = np.zeros(len(grid))
    for q in itertools.product(range(size), repeat=2):
        z, log = np.eye(size)[list(q)], logs + polya(np.eye(size)[list(q)].sum(0), np.ones(size))
        for cell in zip(*np.nonzero(_graphs.free_entries(size, directed=directed)), strict=True):
            inside = (z[i, cell[0]] * z[j, cell[1]] > 0) | (not directed) & (z[i, cell[1]] * z[j, cell[0]] > 0)
            events, exposure = values[inside].sum(), np.exp(scale[:, inside]).sum(1)
            log = log + gammaln(2.0 + events) - (2.0 + events) * np.log(1.5 + exposure) + 2.0 * np.log(1.5)
        weight += np.exp(log)
    weight /= weight.sum()
    found = series_of(model, x, sites, 600)
    for place, site in enumerate(sites):
        assert_mean(np.log(found[site]), weight @ grid[:, place])


def test_fits_say_what_they_sampled_and_can_be_saved(tmp_path):
    model = MixtureOfPoissons(num_components=2, num_features=3).with_priors(rate=dist.LogNormal(0.0, 1.0))
    rates = np.array([[1.0, 8.0, 1.0], [8.0, 1.0, 4.0]])
    x = RNG.poisson(np.repeat(rates, 15, 0)).astype(float)
    fit = CollapsedGibbs(num_samples=20, warmup=20, chains=2).fit(model, x, seed=0, progress=False)
    assert fit.status.endswith("rate by slice steps: its prior is no Gamma")
    assert fit.bound_name == "log p(x, q, rate), all else integrated out"
    assert fit.draws is not None and torch.allclose(fit.draws["rate"].mean((0, 1)), fit.params["rate"])
    again = CollapsedGibbs(num_samples=20, warmup=20, chains=2, threads=1).fit(model, x, seed=0, progress=False)
    assert torch.equal(fit.params["rate"], again.params["rate"])
    assert torch.equal(Fit.load(fit.save(tmp_path / "fit.safetensors")).draws["rate"], fit.draws["rate"])  # pyright: ignore
    order = fit.params["rate"][:, 0].argsort()
    assert torch.allclose(fit.params["rate"][order], torch.as_tensor(x.reshape(2, 15, 3).mean(1)), atol=0.8)
    started = CollapsedGibbs(num_samples=5, warmup=0, chains=1).fit(model, x, init=fit, seed=0, progress=False)
    assert torch.allclose(started.params["rate"], fit.params["rate"], atol=1.5)


def test_a_prior_that_leaves_the_posterior_improper_is_refused():
    model, x = MixtureOfPoissons(num_components=2, num_features=3), np.ones((4, 3))
    with pytest.raises(PriorError, match="'rate' is improper"):
        ci.fit(model.with_priors(rate=Flat(dist.Gamma(1.0, 1.0))), x, method="gibbs", progress=False)


@pytest.mark.parametrize("site", ["probability", "mixing_proportion"])
def test_known_values_are_held(site):
    value = torch.tensor([[0.2, 0.7], [0.6, 0.1]]) if site == "probability" else torch.tensor([0.25, 0.75])
    model = MixtureOfBernoullis(num_components=2, num_features=2).with_priors(**{site: value})
    x = RNG.integers(0, 2, (12, 2)).astype(float)
    fit = CollapsedGibbs(num_samples=30, warmup=5, chains=1, align=False).fit(model, x, seed=0, progress=False)
    assert torch.allclose(fit.params[site], value) and fit.status.endswith(f"{site} held at its known value")
    if site == "probability":  # rows given both globals, at the posterior mean of the other: about the same
        exact = ci.Exact().local_posterior(model, fit.params, model.prepare(x))
        assert (exact.posterior.mean - fit.posterior.mean).abs().max() < 0.15


def test_hyper_parameters_follow_their_posterior():
    """One class, whose rates are Gamma(2, scale) with scale ~ Gamma(3, 2): a grid over the scale."""
    model = MixtureOfPoissons(num_components=1, num_features=4).with_priors(
        scale=dist.Gamma(3.0, 2.0), rate=lambda scale: dist.Gamma(2.0, scale)
    )
    x = np.array([[1.0, 1, 3, 5], [0, 0, 2, 4]])
    u = np.linspace(-6, 4, 2001)
    scale, events = np.exp(u), x.sum(0)[:, None]
    logs = 3 * u - 2 * scale + (2 * u - (2 + events) * np.log(scale + 2)).sum(0)
    expected = softmax(logs) @ u
    found = series_of(model, x, ["scale", "rate"], 350)
    assert_mean(np.log(found["scale"]), expected)
    assert_mean(found["rate"], softmax(logs) @ ((2 + events) / (scale + 2)).T)
    fit = CollapsedGibbs(num_samples=10, warmup=10, chains=2).fit(model, x, seed=0, progress=False)
    assert fit.params["scale"].shape == () and "scale by slice steps" in fit.status
    chained = model.with_priors(rate=lambda mixing_proportion: dist.Gamma(2.0, mixing_proportion[..., :1]))
    with pytest.raises(PriorError, match="'rate' that is a function of 'mixing_proportion'"):
        CollapsedGibbs().fit(chained, x, progress=False)
