"""Annealed estimates of graphs of mixed memberships: scores and moves of pairs of blocks, evidence, posteriors."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.special import gammaln

import custom_inference as ci
from custom_inference.core.annealing.chains import Tuning
from custom_inference.core.annealing.estimate import Budget
from custom_inference.core.annealing.local import anneal_locals, chains_of, sandwich
from custom_inference.core.annealing.program import WholeChains
from custom_inference.core.local_inference import log_likelihood
from custom_inference.core.predictive import sample_rows
from custom_inference.core.programs.posteriors import DrawnTogether
from custom_inference.families.memberships.annealed import PairChains
from ppl_models import MMSB, MethodError
from tests.support.graphs import small_problem

pytestmark = pytest.mark.filterwarnings("ignore:.*the adjacency matrix is symmetric")
KINDS = list(itertools.product((True, False), (False, True)))
NONE = Tuning(torch.zeros(0), torch.zeros(0, 0))
SMALL = Budget(error=0.05, seconds=2.0, chains=32)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def problem(directed: bool, loops: bool, **settings):
    settings = {"num_nodes": 4, "num_blocks": 2, "hidden": 0.15, "seed": 1, **settings}
    example = small_problem("mmsb", directed=directed, self_loops=loops, **settings)
    model = example.model
    data = model.as_read(model.prepare(example.data, dtype=torch.float64))
    return model, {site: example.truth[site].double() for site in model.global_sites}, data


@pytest.mark.parametrize(("directed", "loops"), KINDS)
def test_scores_of_pairs_are_those_of_the_math(directed, loops):
    """log p(x, s, r) = sum_ij log p(x_ij | s_ij, r_ij) + sum_i log B(alpha + c_i) / B(alpha), of dyads in order."""
    model, params, data = problem(directed, loops)
    chains, eta = chains_of(model, params, data), params["edge_probability"].numpy()
    state, x, seen = chains.begin(5, generator()), data.dense().x.numpy(), data.observed_mask().numpy()
    dyads = [
        (i, j) for i in range(4) for j in range(4)
        if seen[i, j] and (i < j or (i > j and directed) or (i == j and loops))
    ]  # fmt: skip
    for m in range(5):
        count, total = np.zeros((4, 2)), 0.0
        for (i, j), pair in zip(dyads, state.place[m, 0].tolist(), strict=True):
            a, b = divmod(pair, 2)
            count[i, a] += 1
            count[j, b] += 1
            total += math.log(eta[a, b] if x[i, j] else 1 - eta[a, b])
        total += (gammaln(0.1 + count).sum(1) - 2 * gammaln(0.1) + gammaln(0.2) - gammaln(0.2 + count.sum(1))).sum()
        assert float(state.joint[m, 0]) == pytest.approx(total, abs=1e-9)


@pytest.mark.parametrize(("directed", "loops"), KINDS)
def test_moves_leave_a_tempered_density_as_it_is(directed, loops):
    """Frequencies of all values of the pairs after moves of draws from the tempered density are its probabilities."""
    model, params, data = problem(directed, loops, num_nodes=2, hidden=0.0)
    chains, power, number = chains_of(model, params, data), torch.tensor([0.6], dtype=torch.float64), 40_000
    every = torch.tensor(list(itertools.product(range(4), repeat=len(chains.first))))
    share = torch.softmax(chains._score(every).temper(power)[:, 0], 0)
    drawn = torch.multinomial(share, number, replacement=True, generator=generator(2))
    state, _ = chains.move(chains._score(every[drawn]), power, NONE, generator(3))
    place = (state.place[:, 0] * 4 ** torch.arange(len(chains.first) - 1, -1, -1)).sum(-1)
    found = torch.bincount(place, minlength=len(every)) / number
    assert bool(((found - share).abs() < 5 * (share * (1 - share) / number).sqrt() + 2e-4).all())


@pytest.mark.parametrize(("directed", "loops"), KINDS)
def test_estimates_are_within_their_errors_of_the_sum_over_moments(directed, loops):
    model, params, data = problem(directed, loops)
    local, exact = (one.local_posterior(model, params, data) for one in (ci.AIS(seconds=2.0), ci.Exact()))
    assert local.bound.shape == exact.bound.shape == (1,)
    assert abs(float(local.bound - exact.bound)) < 4 * float(local.standard_error) < 1.0
    assert float((local.posterior.mean - exact.posterior.mean).abs().max()) < 0.15
    assert isinstance(local.posterior, DrawnTogether) and local.posterior.sample(3).shape == (3, 4, 2)
    with pytest.raises(MethodError, match="not at hand"):
        local.posterior.log_prob(local.posterior.mode)


def test_blocks_that_may_exchange_their_roles_are_all_found():
    """Blocks that are alike in eta: the modes differ in names alone, and a chain that begins in one gets to the
    others."""
    model = MMSB(num_blocks=2, num_nodes=10, directed=False)
    params = {"edge_probability": torch.tensor([[0.6, 0.05], [0.05, 0.6]]).double()}
    x = sample_rows(model, params, 10, seed=0)["x"]
    data = model.prepare(x, dtype=torch.float64)
    runs = [anneal_locals(model, params, data, SMALL, seed=seed) for seed in range(3)]
    value = torch.cat([run.log_evidence for run in runs])
    assert float(value.max() - value.min()) < 0.5  # a mode that is missed is log 2
    assert all(float((run.mean - 0.5).abs().max()) < 0.25 for run in runs)


def test_a_graph_that_was_drawn_from_the_model_is_bounded_from_both_sides():
    model, params, _ = problem(True, False)
    gaps = []
    for seed in range(6):
        drawn = sample_rows(model, params, 4, seed=seed)
        graph = model.prepare(drawn["x"], dtype=torch.float64)
        found = sandwich(model, params, graph, drawn["membership"], SMALL, 40)
        exact = float(log_likelihood(model, params, graph, bound="exact"))
        assert float(found.lower) < exact + 5 * float(found.lower_error) + 0.02
        gaps.append(found.gap)
    assert -0.05 < np.mean(gaps) < 0.15


def test_other_priors_take_the_chains_of_the_program():
    import pyro.distributions as dist

    model, params, data = problem(False, False)
    assert type(chains_of(model, params, data)) is PairChains
    even = dist.TransformedDistribution(
        dist.Normal(torch.zeros(1), 1.0).to_event(1), [dist.transforms.StickBreakingTransform()]
    )
    assert type(chains_of(model.with_priors(membership=even), params, data)) is WholeChains
