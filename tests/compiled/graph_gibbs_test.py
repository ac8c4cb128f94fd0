"""Gibbs sampling of programs of graphs: against sums over all labellings at many draws of the globals."""

import itertools

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import bernoulli, norm, poisson

import custom_inference as ci
from custom_inference.compiled.graphs.gibbs import GraphSampler
from custom_inference.core.diagnostics import effective_size
from ppl_models import PriorError
from ppl_models.distributions import Flat
from tests.programs.graphs import Affine, Blocks, Degrees, Rates, TwoPart, Weighted, planted

SIZE, BLOCKS, DRAWS = 4, 2, 30_000
LABELS = np.array([*itertools.product(range(BLOCKS), repeat=SIZE)])


def of_blocks(v, a, b, i, j, x):
    return bernoulli.logpmf(x, v["p"][:, a, b]), v["p"][:, a, b]


def of_affine(v, a, b, i, j, x):
    chance = 1 / (1 + np.exp(-v["base"] - v["within"] * (a == b)))
    return bernoulli.logpmf(x, chance), chance


def of_two_parts(v, a, b, i, j, x):
    there = bernoulli.logpmf(x != 0, v["p"][:, a, b])
    return there + (norm.logpdf(x, v["mean"][:, a, b], v["spread"]) if x else 0.0), v["spread"]


def of_degrees(v, a, b, i, j, x):
    rate = v["rate"][:, a, b] * v["often"][:, i] * v["often"][:, j]
    return poisson.logpmf(x, rate), rate


def draw_priors(rng, kind, directed):
    """Values of the globals (S, ...) from their priors, in NumPy."""
    pair = (DRAWS, BLOCKS, BLOCKS)
    found = {"size": rng.dirichlet(np.ones(BLOCKS), DRAWS)}
    if kind is Affine:
        found |= {"base": rng.normal(0, 2, DRAWS), "within": rng.normal(0, 2, DRAWS)}
    elif kind is Degrees:
        found |= {"rate": rng.gamma(1, 1, pair), "often": rng.gamma(1, 1, (DRAWS, SIZE))}
    else:
        found["p"] = rng.random(pair)
    if kind is TwoPart:
        found |= {"mean": rng.normal(0, 5, pair), "spread": np.exp(rng.normal(size=DRAWS))}
    for site in () if directed else {"p", "rate", "mean"} & set(found):
        found[site][:, 1, 0] = found[site][:, 0, 1]
    return found


@pytest.mark.parametrize(
    ("kind", "of", "directed", "hidden"),
    [
        (Blocks, of_blocks, True, True),
        (Degrees, of_degrees, False, True),
        *(pytest.param(*case, False, marks=pytest.mark.slow) for case in (
            (Affine, of_affine, False), (TwoPart, of_two_parts, False), (Degrees, of_degrees, True)
        )),
    ],
)  # fmt: skip
def test_chains_have_the_posterior(kind, of, directed, hidden):
    rng = np.random.default_rng(3)
    x = planted(kind, SIZE, BLOCKS, 5, directed=directed)
    dyads = [(i, j) for i in range(SIZE) for j in range(SIZE) if (i != j if directed else i < j)]
    if hidden:
        x[0, 1] = np.nan
        x[1, 0] = x[1, 0] if directed else np.nan
    values = draw_priors(rng, kind, directed)
    log = np.zeros((DRAWS, len(LABELS)))
    theirs = np.zeros((DRAWS, len(LABELS)))
    for place, label in enumerate(LABELS):
        log[:, place] = np.log(values["size"][:, label]).sum(1)
        for i, j in dyads:
            given, parameter = of(values, label[i], label[j], i, j, 0.0 if np.isnan(x[i, j]) else x[i, j])
            log[:, place] += 0.0 if np.isnan(x[i, j]) else given
            theirs[:, place] += np.log(parameter) / len(dyads)
    each = np.exp(log - logsumexp(log))  # of draws and labellings together, 1 in all
    same = [(LABELS[:, n] == LABELS[:, 0]) for n in range(1, SIZE)]
    statistics = [theirs, *(np.broadcast_to(one, log.shape) for one in same)]
    exact = [float((each * one).sum()) for one in statistics]
    weight = each.sum(1)
    apart = [(each * (one - mean)).sum(1) for one, mean in zip(statistics, exact, strict=True)]
    errors = [np.sqrt((one**2).sum()) for one in apart]
    assert 1 / (weight**2).sum() > 300

    model = kind(num_blocks=BLOCKS, num_nodes=SIZE, directed=directed)
    chain = GraphSampler().chain(model, model.prepare(x, dtype=torch.float64), 1, None)
    drawn = []
    for sweep in range(800):
        chain.sweep()
        if sweep >= 50:
            state = {s: v.numpy()[None] for s, v in chain.draw().items()}
            label = state["block"][0]
            mean = np.mean([np.log(of(state, label[i], label[j], i, j, 0.0)[1]) for i, j in dyads])
            drawn.append([float(mean), *(label[1:] == label[0])])
    drawn = np.array(drawn, dtype=float)
    for column, mean, error in zip(drawn.T, exact, errors, strict=True):
        own = column.std() / np.sqrt(effective_size(column[None]))
        assert column.mean() == pytest.approx(mean, abs=3 * np.hypot(own, error))


def test_a_fit_by_gibbs_is_in_one_labelling():
    x = planted(Weighted, 20, 2, 0, directed=False)
    model = Weighted(num_blocks=2, num_nodes=20, directed=False)
    found = ci.fit(model, x, method="gibbs", num_samples=40, warmup=30, thin=1, chains=2, progress=False)
    other = ci.fit(model, x, progress=False)
    assert found.details["agreeing"] == 2 and found.details["r_hat"] < 1.2
    assert np.allclose(found.params["mean"].diagonal(), 0.5, atol=0.3) and float(found.params["mean"][0, 1]) < -0.2
    label, its = (one.transform().argmax(1) for one in (found, other))
    assert ((label == its).double().mean() - 0.5).abs() > 0.4
    assert found.draws["block"].shape == (2, 40, 20) and found.draws["block"].dtype == torch.int64
    assert torch.equal(found.draws["mean"], found.draws["mean"].mT)


class Named(Blocks):
    """Blocks that the program tells apart."""

    def law(self, values, a, b, i, j):
        return dist.Bernoulli(values["p"][a, b] * torch.tensor([1.0, 0.5])[a])


def test_names_that_the_program_gives_stay():
    sampler = GraphSampler()
    for kind, expected in ((Blocks, [[0, 1]]), (Named, [])):
        model = kind(num_blocks=2, num_nodes=8)
        sampler.chain(model, model.prepare(planted(Blocks, 8, 2, 0, directed=True), dtype=torch.float64), 0, None)
        assert sampler.exchangeable(model) == expected


def test_improper_priors_are_refused():
    model = Rates(num_blocks=2, num_nodes=6).with_priors(rate=Flat(dist.Gamma(1.0, 1.0)))
    with pytest.raises(PriorError, match="the prior of 'rate' is improper"):
        ci.fit(model, planted(Rates, 6, 2, 0, directed=True), method="gibbs", progress=False)
