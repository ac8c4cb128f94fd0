"""Stochastic variational Bayes of the mixed-membership block model: unbiased; a batch iteration where it takes all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest
import torch

from custom_inference.core.registry import engine_for
from custom_inference.families.memberships.stochastic import StochasticMMSB, estimate_statistics, sides_of
from ppl_models import LDA, MMSB, MethodError


def problem(directed: bool, size: int = 12):
    """(steps, model, rows, params, data) of a random graph with hidden dyads and a sparsity to learn."""
    rng = np.random.default_rng(5)
    model: Any = MMSB(num_blocks=3, num_nodes=size, directed=directed, sparsity=None)
    model = model.with_priors(sparsity=dist.Beta(2.0, 3.0), membership=dist.Dirichlet(torch.full((3,), 0.4)))
    x, mask = (rng.random((size, size)) < 0.3).astype(float), rng.random((size, size)) < 0.85
    if not directed:
        x, mask = np.triu(x, 1) + np.triu(x, 1).T, np.triu(mask) | np.triu(mask, 1).T
    np.fill_diagonal(x, 0)
    np.fill_diagonal(mask, True)
    data = model.prepare(x, mask=mask)
    steps: Any = engine_for(model, "vb", zeros="each")
    rows = steps.rows(model, data)
    params = steps.initial(model, rows, torch.Generator().manual_seed(0))
    return steps, model, rows, steps.m_step(model, params, steps.e_step(model, params, rows), rows), data


@pytest.mark.parametrize("directed", [True, False])
def test_all_nodes_with_all_their_dyads_are_a_batch_iteration(directed):
    steps, model, rows, params, _ = problem(directed)
    everything = torch.arange(len(rows))
    method = StochasticMMSB(zeros=None, delay=1.0)
    visits, generator = torch.zeros(len(rows)), torch.Generator().manual_seed(0)
    moved = method.step(steps, model, rows, params, everything, sides_of(rows), visits, 1.0, generator)
    expected = steps.m_step(model, params, steps.e_step(model, params, rows), rows)
    for name, value in expected.tensors().items():
        torch.testing.assert_close(moved.tensors()[name], value)


@pytest.mark.parametrize("directed", [True, False])
def test_estimates_are_unbiased_over_nodes_and_draws(directed):
    steps, model, rows, params, _ = problem(directed)
    factors, sides, size = steps.factors(model, params), sides_of(rows), len(rows)
    full = steps.e_step(model, params, rows).statistics
    generator = torch.Generator().manual_seed(1)
    # Every sample of one node, all zeros: the mean over the samples is exact.
    each = [estimate_statistics(rows, sides, factors, torch.tensor([i]), None, generator) for i in range(size)]
    for name in ("links", "gaps", "background"):
        torch.testing.assert_close(torch.stack([one[name] for one in each]).mean(0), full[name])
    torch.testing.assert_close(torch.cat([one["members"] for one in each]), full["members"])
    # Zeros drawn: within their standard error.
    draws = [estimate_statistics(rows, sides, factors, torch.arange(size), 2, generator) for _ in range(2000)]
    for name, value in full.items():
        seen = torch.stack([one[name] for one in draws])
        error = seen.std(0) / len(draws) ** 0.5
        assert bool(((seen.mean(0) - value).abs() < 5 * error + 1e-9).all())


def test_planted_blocks_are_found():
    rng = np.random.default_rng(2)
    label = np.arange(120) % 3
    upper = np.triu(rng.random((120, 120)) < np.where(label[:, None] == label, 0.4, 0.03), 1)
    model = MMSB(num_blocks=3, num_nodes=120, directed=False)
    method = StochasticMMSB(batch_size=30, zeros=20, steps=60)
    fit = method.fit(model, (upper | upper.T).astype(float), seed=0, progress=False)
    found = fit.params["membership"].argmax(1).numpy()
    assert len(set(zip(found, label, strict=True))) == 3
    assert fit.bound_name == "vb" and fit.method_name == "StochasticMMSB" and "60 steps of 30 nodes" in fit.status


def test_refusals():
    with pytest.raises(MethodError, match="for MMSB without self loops"):
        StochasticMMSB().fit(MMSB(num_blocks=2, num_nodes=4, self_loops=True), np.eye(4), progress=False)
    with pytest.raises(MethodError, match="for MMSB without self loops"):
        StochasticMMSB().fit(LDA(num_topics=2, vocabulary_size=3), np.eye(3), progress=False)
    with pytest.raises(MethodError, match="at least 1"):
        StochasticMMSB(batch_size=0)
