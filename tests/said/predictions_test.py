"""A posterior of draws predicts by draws: edges, cells, labels and outputs, against sums and means over all of them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy.special import betaln
from scipy.stats import beta, gamma

import custom_inference as ci
from custom_inference import CollapsedGibbs
from custom_inference.core.predicted import Prediction
from custom_inference.graphs import link_probability
from ppl_models import IRM, MMSB, MODELS, SBM, CapacityError, graph
from tests.support.fits import given

QUIET: Any = {"progress": False}
SIZE, PAIRS = 5, [(0, 1), (1, 2), (3, 4), (0, 4)]
#: Dyads that were not seen.
HIDDEN = ((0, 4), (3, 4))


def block_model(size: int = SIZE, **settings: Any) -> SBM:
    model: Any = SBM(num_blocks=2, num_nodes=size, directed=True, **settings)
    flat = dist.Beta(torch.full((2, 2), 0.5), torch.full((2, 2), 1.5))
    return model.with_priors(edge_probability=flat, block_proportion=dist.Dirichlet(torch.full((2,), 2.0)))


def toy(size: int = SIZE, seed: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A graph drawn from the prior: edges, what was seen, blocks, and probabilities of blocks."""
    rng = np.random.default_rng(seed)
    block = (rng.random(size) < rng.beta(2, 2)).astype(int)
    eta = rng.beta(0.5, 1.5, (2, 2))
    x = (rng.random((size, size)) < eta[block][:, block]).astype(float)
    seen = ~np.eye(size, dtype=bool)
    for i, j in HIDDEN:
        seen[i, j] = False
    return x * seen, seen, block, eta


def every_labeling(x: np.ndarray, seen: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All labelings, their posterior, and the two parameters of the Beta posteriors of the blocks given each."""
    labels, log_p, counts = np.array(list(itertools.product(range(2), repeat=len(x)))), [], []
    for z in labels:
        n = np.bincount(z, minlength=2)
        code = np.eye(2)[z]
        ones, total = code.T @ (x * seen) @ code, code.T @ seen @ code
        counts.append((0.5 + ones, 1.5 + total - ones))
        log_p.append(betaln(*(2.0 + n)) + betaln(*counts[-1]).sum())
    weight = np.exp(np.array(log_p) - max(log_p))
    return labels, weight / weight.sum(), np.array(counts)


def as_graph(x: np.ndarray, seen: np.ndarray) -> Any:
    return graph(x, mask=seen | np.eye(len(x), dtype=bool), directed=True)


def sampled(x: np.ndarray, seen: np.ndarray, draws: int, seed: int = 0) -> Any:
    method = CollapsedGibbs(chains=1, warmup=50, num_samples=draws, thin=1)
    return method.fit(block_model(len(x)), as_graph(x, seen), seed=seed, **QUIET)


@pytest.mark.filterwarnings("ignore:.*have no edge")
def test_edges_of_block_models_have_the_posterior_of_their_probability():
    x, seen, *_ = toy()
    fit, (i, j) = sampled(x, seen, 1500), map(list, zip(*PAIRS, strict=True))
    found: Prediction = link_probability(fit, positions=(i, j), uncertainty=True)
    labels, weight, counts = every_labeling(x, seen)
    at = labels[:, i], labels[:, j]
    a, b = (part[np.arange(len(labels))[:, None], *at] for part in counts.swapaxes(0, 1))
    np.testing.assert_allclose(found.mean.numpy(), weight @ (a / (a + b)), atol=0.03)
    assert torch.allclose(found.mean, link_probability(fit, positions=(i, j)))
    second = weight @ (a * (a + 1) / ((a + b) * (a + b + 1)))
    np.testing.assert_allclose(found.sd.numpy(), np.sqrt(second - (weight @ (a / (a + b))) ** 2), atol=0.03)
    for end, place in zip(found.interval(0.9), (0.05, 0.95), strict=True):
        np.testing.assert_allclose(weight @ beta.cdf(end.numpy(), a, b), place, atol=0.04)
    draws = {site: value.flatten(0, 1).numpy() for site, value in fit.draws.items()}
    own = [eta[z[i], z[j]] for eta, z in zip(draws["edge_probability"], draws["block"], strict=True)]
    np.testing.assert_allclose(found.mean.numpy(), np.mean(own, 0), rtol=1e-5)


@pytest.mark.filterwarnings("ignore:.*have no edge")
def test_blocks_are_drawn_given_draws_of_the_globals_alone():
    """The two ends of an edge depend on each other, also after NUTS, which sums blocks out."""
    x, seen, *_ = toy(5)
    method = ci.NUTS(chains=1, num_samples=60, warmup=40, max_tree_depth=4)
    fit: Any = method.fit(block_model(5), as_graph(x, seen), **QUIET)
    draws = {site: value.flatten(0, 1).numpy() for site, value in fit.draws.items()}
    labels, want = np.array(list(itertools.product(range(2), repeat=5))), []
    for eta, share in zip(draws["edge_probability"], draws["block_proportion"], strict=True):
        at = eta[labels[:, :, None], labels[:, None]]
        log = (np.where(x > 0, np.log(at), np.log1p(-at)) * seen).sum((1, 2)) + np.log(share)[labels].sum(1)
        weight = np.exp(log - log.max()) / np.exp(log - log.max()).sum()
        want.append(weight @ at[:, [0, 1], [3, 2]])
    found = link_probability(fit, positions=([0, 1], [3, 2]))
    np.testing.assert_allclose(found.numpy(), np.mean(want, 0), atol=0.06)


@pytest.mark.filterwarnings("ignore:.*have no edge")
@pytest.mark.slow
def test_intervals_cover_what_graphs_were_drawn_with():
    inside = []
    for seed in range(30):
        x, seen, block, eta = toy(8, seed)
        i, j = map(list, zip(*PAIRS, strict=True))
        found = link_probability(sampled(x, seen, 100, seed), positions=(i, j), uncertainty=True)
        low, high = (end.numpy() for end in found.interval(0.9))
        truth = eta[block[i], block[j]]
        inside.append((low <= truth) & (truth <= high))
    assert 0.77 < np.mean(inside) < 0.99  # three standard errors, the pairs of a graph going together


@pytest.mark.parametrize("method", ["vb", "gibbs"])
def test_memberships_and_other_posteriors_have_intervals(method):
    example = MMSB.example()
    settings: Any = {"chains": 1, "warmup": 30, "num_samples": 60} if method == "gibbs" else {}
    fit: Any = ci.fit(example.model, example.data, method=method, **settings, **QUIET)
    i, j = [0, 3, 7], [1, 9, 2]
    found = link_probability(fit, positions=(i, j), uncertainty=True)
    low, high = found.interval(0.9)
    assert bool((low <= found.mean).all()) and bool((found.mean <= high).all()) and bool((found.sd > 0).all())
    assert torch.allclose(found.draws.double().mean(0), found.mean.double(), atol=0.03)
    with pytest.raises(CapacityError, match="uncertainty=True of 100000 dyads"):
        link_probability(fit, positions=([0] * 100_000, [1] * 100_000), uncertainty=True)


def test_cells_of_relations_are_predicted_by_sums_over_clusterings():
    example = IRM.example()
    fit: Any = ci.fit(example.model, example.data, starts=1, num_samples=20, **QUIET)
    found = fit.predict("likes", positions=([0, 3], [1, 9]), uncertainty=True)
    np.testing.assert_allclose(found.mean.numpy(), fit.predict("likes", positions=([0, 3], [1, 9])))
    np.testing.assert_allclose(found.draws.mean(0).numpy(), found.mean.numpy(), atol=0.02)
    x = np.array([[1.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    model: Any = IRM(types={"a": 2, "b": 3}, relations={"r": ("a", "b")}, num_clusters={"a": 1, "b": 1})
    one: Any = ci.fit(model, {"r": x}, **QUIET)
    at = one.predict("r", positions=([0], [0]), uncertainty=True)
    prior = model.priors["edge_probability_r"]
    a, b = float(prior.concentration1) + 3, float(prior.concentration0) + 3
    assert float(at.mean) == pytest.approx(a / (a + b), rel=1e-6)
    assert float(at.sd) == pytest.approx(beta.std(a, b), rel=0.08)
    for end, want in zip(at.interval(0.9), (0.05, 0.95), strict=True):
        assert beta.cdf(float(end), a, b) == pytest.approx(want, abs=0.03)


@pytest.mark.parametrize(
    ("kind", "x", "laws"),
    [("poisson", [[3, 0, 2], [5, 1, 4]], [gamma(16, scale=1 / 7)]),
     ("categorical", [[0, 1, 2], [2, 1, 2]], [beta(2, 7), beta(3, 6), beta(4, 5)])],
)  # fmt: skip
def test_tables_of_other_cells_have_their_conjugate_posteriors(kind, x, laws):
    sizes: Any = {"num_categories": {"r": 3}} if kind == "categorical" else {}
    types, relations = {"a": 2, "b": 3}, {"r": ("a", "b")}
    model = IRM(types=types, relations=relations, cells={"r": kind}, num_clusters={"a": 1, "b": 1}, **sizes)
    one: Any = ci.fit(model, {"r": np.array(x, dtype=float)}, **QUIET)
    at = one.predict("r", positions=([1], [2]), uncertainty=True)
    low, high = at.interval(0.9)
    for place, law in enumerate(laws):
        mean, sd = (part.flatten()[place] for part in (at.mean, at.sd))
        ends = torch.stack([low, high], -1).reshape(-1, 2)[place]
        assert float(mean) == pytest.approx(law.mean(), rel=1e-6) and float(sd) == pytest.approx(law.std(), rel=0.08)
        assert law.cdf(ends.numpy()) == pytest.approx([0.05, 0.95], abs=0.03)


def with_draws(name: str) -> tuple[Any, list[Any]]:
    """A fit that holds two draws of its globals, and fits at each of these."""
    example = MODELS[name].example()
    one = {site: example.truth[site].double() for site in example.model.global_sites}
    other = {site: value.flip(0) for site, value in one.items()}
    draws = {site: torch.stack([one[site], other[site]])[None] for site in one}
    middle = {site: value[0].mean(0) for site, value in draws.items()}
    data = example.model.prepare(example.data, dtype=torch.float64)
    alone = [given(example.model, each, data) for each in (one, other)]
    return given(example.model, middle, data, draws=draws), alone


@pytest.mark.parametrize(
    "name",
    ["labeled_lda", "discriminative_lda", "multinomial_regression_lda",
     "discriminative_categorical_pca", "supervised_lda"],
)  # fmt: skip
def test_predictions_of_draws_are_the_mean_of_those_at_each(name):
    fit, alone = with_draws(name)
    asked = fit.data.others["covariates"] if name == "multinomial_regression_lda" else fit.data.x
    asked = asked.to_dense() if asked.layout != torch.strided else asked
    beside: Any = {"covariates": fit.data.others["covariates"]} if name.endswith("categorical_pca") else {}
    if beside:  # of labels that are seen the prediction is of the others
        asked = asked.masked_fill(torch.rand(asked.shape, generator=torch.Generator().manual_seed(0)) < 0.3, torch.nan)
    found, want = fit.predict(asked, **beside), torch.stack([one.predict(asked, **beside) for one in alone]).mean(0)
    exact = name not in ("discriminative_categorical_pca", "supervised_lda")
    np.testing.assert_allclose(found.numpy(), want.numpy(), atol=1e-6 if exact else 0.12)
    plugged = given(fit.model, fit.globals, fit.data).predict(asked, **beside)
    assert float((plugged - want).abs().max()) > 3 * float((found - want).abs().max())
