"""SVI on graphs by minibatches of dyads: unbiased bounds and gradients."""

from typing import Any

import numpy as np
import pyro
import pytest
import torch
from pyro import poutine
from pyro.distributions import Dirichlet

from custom_inference.core.dyads import DyadSample, dyad_number, estimate_bound, estimate_log_joint
from custom_inference.core.posterior_bounds import row_log_joint
from custom_inference.svi.guides.mean_field import LabellingBound, MeanField
from ppl_models import MMSB, SBM
from tests.svi.graphs_test import bound_by_labelings, drawn_globals, toy

pytestmark = pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")


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
    exact = float(estimate_log_joint(model, params, data, local, batch_size=1000))
    assert np.isclose(exact, float(row_log_joint(model, params, read, local)))
    program = pyro.condition(model, data={**params, model.local_site: local})
    source = read if dense else data
    sample, values, variances = DyadSample(model, source, 8), [], []
    for _ in range(600):
        trace: Any = poutine.trace(sample(program)).get_trace(source.x, batch_size=sample.batch_size)
        trace.compute_log_prob()
        values.append(float(trace.log_prob_sum(lambda name, _: name in (model.local_site, "x"))))
        variances.append(float(sample.variance(trace.nodes["x"]["log_prob"])))
    assert abs(np.mean(values) - exact) < 4 * np.std(values) / 600**0.5
    # The variance is estimated without bias too; that of a variance is about 2 / 600 of its square.
    assert abs(np.mean(variances) / np.var(values) - 1) < 5 * (2 / 600) ** 0.5


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


def test_self_loops_have_one_block_at_both_ends():
    model = SBM(num_blocks=2, num_nodes=4, directed=False, self_loops=True)
    x = (torch.rand(4, 4) < 0.5).double().triu()
    x = x + x.triu(1).T
    data = model.prepare(x)
    params = {site: model.prior(site).sample() for site in model.global_sites}
    probs = Dirichlet(torch.ones(2)).sample(torch.Size([4]))
    expected = bound_by_labelings(model, params, data, probs)
    assert np.isclose(float(estimate_bound(model, params, data, probs, batch_size=1000)[0]), expected, rtol=1e-10)
