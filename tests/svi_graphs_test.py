"""Pyro's SVI of graphs: the bound of independent blocks against sums over labelings, minibatches of dyads, fits."""

from __future__ import annotations

import itertools

import numpy as np
import pyro
import pytest
import torch
from pyro import poutine
from pyro.distributions import Dirichlet
from torch.distributions import kl_divergence

import custom_inference as ci
from custom_inference._dyads import DyadSample, dyad_number, sampled_bound, sampled_log_joint
from custom_inference.engines import bound_of, enumerate_local, row_log_joint
from custom_inference.guides import MeanField
from custom_inference.guides.graphs import LabellingBound
from ppl_models import (
    MMSB,
    MODELS,
    SBM,
    CovariateSBM,
    DegreeCorrectedSBM,
    GraphData,
    PoissonSBM,
    _sparse,
)
from ppl_models.distributions import Labelling

pytestmark = pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")
GRAPHS = {name: kind for name, kind in MODELS.items() if kind.is_graph}
COVARIATES = torch.tensor([[0.5, -1.0], [1.5, 0.2], [-0.7, 0.4], [0.1, -2.0], [1.0, 1.0]])


def toy(kind, *, directed: bool = True, hidden: bool = False, size: int = 5, blocks: int = 2, seed: int = 0):
    """A random small graph, and a model of it."""
    torch.manual_seed(seed)
    settings = {"covariates": COVARIATES[:size]} if kind is CovariateSBM else {"num_nodes": size}
    model = kind(num_blocks=blocks, directed=directed, **settings)
    x = torch.poisson(torch.full((size, size), 0.6))
    x = x if model.edge_kind == "counts" else x.clamp(max=1.0)
    x = (x.triu(1) if not directed else x).fill_diagonal_(0)
    x = x if directed else x + x.T
    left_out = None
    if hidden:
        left_out = torch.tensor([[0, 1], [1, 3]])
        x[left_out[0], left_out[1]] = 0
        if not directed:
            x[left_out[1], left_out[0]] = 0
    return model, GraphData(x=_sparse.from_dense(x), directed=directed, hidden=left_out)


def drawn_globals(model, data) -> dict[str, torch.Tensor]:
    return {site: model.prior(site).sample() for site in model.global_sites}


def bound_by_labelings(model, params, data, probs) -> float:
    """sum over all labelings q of phi(q) (log p(x, q) - log phi(q)), every term from the program."""
    read, total = model.as_read(data), 0.0
    for labels in itertools.product(range(model.num_blocks), repeat=len(data)):
        log_q = float(probs[torch.arange(len(data)), list(labels)].log().sum())
        log_p = float(row_log_joint(model, params, read, torch.tensor(labels)))
        total += np.exp(log_q) * (log_p - log_q)
    return total


BLOCK_MODELS = [(kind, directed) for kind in (SBM, PoissonSBM, DegreeCorrectedSBM, CovariateSBM)
                for directed in (True, False)]


# ----- the bound of independent blocks ----------------------------------------------------------------------------


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize(("kind", "directed"), BLOCK_MODELS)
def test_bound_of_independent_blocks_is_the_sum_over_labelings(kind, directed, hidden):
    model, data = toy(kind, directed=directed, hidden=hidden, size=4, blocks=3)
    params, read = drawn_globals(model, data), model.as_read(data)
    probs = Dirichlet(torch.ones(3)).sample(torch.Size([4]))
    expected = bound_by_labelings(model, params, data, probs)
    assert np.isclose(float(sampled_bound(model, params, data, probs, batch_size=10**6)), expected, rtol=1e-10)
    guide = MeanField().bind(model, data, globals_=params)
    guide.block_logit = probs.log()
    program = pyro.condition(model, data=params)
    assert np.isclose(-LabellingBound().loss(program, guide, read.x, mask=read.mask), expected, rtol=1e-10)
    posterior = guide.posterior(data, params)
    assert np.isclose(float(bound_of(model, params, read, posterior)), expected, rtol=1e-10)
    exact = enumerate_local(model, params, read)
    gap = float(exact.bound) - expected
    assert np.isclose(gap, float(ci.posterior.kullback_leibler(posterior, exact.posterior)), rtol=1e-8)


def test_gradients_of_the_bound_are_those_of_the_sum_over_labelings():
    model, data = toy(SBM, size=3)
    params = drawn_globals(model, data)
    guide = MeanField().bind(model, data, globals_=params)
    guide.block_logit = torch.randn(3, 2)
    program = pyro.condition(model, data=params)

    def value() -> float:
        return bound_by_labelings(model, params, data, torch.softmax(guide.block_logit.detach(), -1))

    LabellingBound().loss_and_grads(program, guide, data.x)
    gradient, step = guide.block_logit.grad.clone(), 1e-5
    for place in itertools.product(range(3), range(2)):
        change = torch.zeros(3, 2)
        change[place] = step
        with torch.no_grad():
            guide.block_logit += change
            above = value()
            guide.block_logit -= 2 * change
            below = value()
            guide.block_logit += change
        assert np.isclose(-float(gradient[place]), (above - below) / (2 * step), atol=1e-7)


def test_divergence_of_labelings():
    q, p = (Dirichlet(torch.ones(3)).sample(torch.Size([4])) for _ in range(2))
    every = Labelling(q).enumerate_support()
    log_q, log_p = Labelling(q).log_prob(every), Labelling(p).log_prob(every)
    assert torch.isclose(kl_divergence(Labelling(q), Labelling(p)), (log_q.exp() * (log_q - log_p)).sum())


# ----- minibatches of dyads ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("self_loops", [False, True])
@pytest.mark.parametrize("directed", [False, True])
def test_numbers_of_dyads_are_the_inverse_of_dyads(directed, self_loops):
    model = SBM(num_blocks=2, num_nodes=7, directed=directed, self_loops=self_loops)
    every = torch.arange(model.num_dyads())
    assert torch.equal(dyad_number(model, *model.dyads(every), 7), every)


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("batch_size", [4, 6, 9])
def test_weights_of_sampled_dyads_are_unbiased(directed, hidden, batch_size):
    model, data = toy(SBM, directed=directed, hidden=hidden)
    sample = DyadSample(model, data, batch_size)
    total, times = torch.zeros(model.num_dyads()), 4000
    for _ in range(times):
        index, weight = sample.draw()
        assert len(index) == sample.batch_size <= batch_size
        total.index_add_(0, index, weight)
    observed = torch.ones(5, 5, dtype=torch.bool) if data.hidden is None else data.dense().mask
    expected = observed[model.dyads(torch.arange(model.num_dyads()))].double()
    assert torch.equal(total > 0, expected > 0)  # what is hidden is never drawn
    # A dyad's weighted count has a variance of at most (weight - 1) a draw.
    sigma = (weight.max() / times) ** 0.5
    assert float((total / times - expected).abs().max()) < 5 * float(sigma)


def test_a_batch_of_everything_has_weights_of_one():
    model, data = toy(SBM)
    index, weight = DyadSample(model, data, 1000).draw()
    assert torch.equal(index.sort().values, torch.arange(20)) and torch.equal(weight, torch.ones(20))


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("kind", [SBM, MMSB])
def test_bounds_by_minibatches_are_unbiased(kind, dense):
    """Of graphs stored sparse, and dense with a mask; the same globals and locals in every draw."""
    model, data = toy(kind, hidden=True)
    read = model.as_read(data)
    assert read.mask is not None
    params = {site: value.clamp(0.2, 0.8) for site, value in drawn_globals(model, data).items()}
    local = torch.tensor([0, 1, 0, 1, 1]) if kind is SBM else Dirichlet(torch.ones(2)).sample(torch.Size([5]))
    exact = float(sampled_log_joint(model, params, data, local, batch_size=1000))
    assert np.isclose(exact, float(row_log_joint(model, params, read, local)))
    program = pyro.condition(model, data={**params, model.local_site: local})
    source = read if dense else data
    sample, values = DyadSample(model, source, 8), []
    for _ in range(1500):
        trace = poutine.trace(sample(program)).get_trace(source.x, batch_size=sample.batch_size)
        values.append(float(trace.log_prob_sum(lambda name, _: name in (model.local_site, "x"))))
    assert abs(np.mean(values) - exact) < 4 * np.std(values) / 1500**0.5


def test_gradient_of_the_bound_by_minibatches_is_unbiased():
    model, data = toy(SBM, directed=False)
    params = {site: value.clamp(0.2, 0.8) for site, value in drawn_globals(model, data).items()}
    guide = MeanField().bind(model, data, globals_=params)
    program = pyro.condition(model, data=params)

    def gradient(run, **settings):
        guide.block_logit.grad = None
        LabellingBound().loss_and_grads(run, guide, data.x, **settings)
        return guide.block_logit.grad.clone()

    exact, sample = gradient(program), DyadSample(model, data, 6)
    drawn = torch.stack([gradient(sample(program), batch_size=sample.batch_size) for _ in range(600)])
    assert float(((drawn.mean(0) - exact).abs() / (drawn.std(0) / 600**0.5 + 1e-9)).max()) < 4.5
