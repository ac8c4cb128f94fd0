"""Annealed estimates of graphs under block models: scores and sweeps, evidence and posteriors against enumeration."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

import custom_inference as ci
from custom_inference.core.annealing.chains import State, Tuning
from custom_inference.core.annealing.estimate import Budget
from custom_inference.core.annealing.local import Sandwich, anneal_locals, chains_of, sandwich
from custom_inference.core.annealing.program import WholeChains
from custom_inference.core.local_inference import log_likelihood
from custom_inference.core.posteriors import LabellingPosterior
from custom_inference.core.predictive import sample_rows
from custom_inference.core.programs.whole import WholeDensity
from ppl_models import SBM
from tests.support.graphs import small_problem
from tests.support.sbm_cases import KINDS, case

NAMES = ["sbm", "poisson_sbm", "degree_corrected_sbm", "infinite_sbm", "covariate_sbm"]
NONE = Tuning(torch.zeros(0), torch.zeros(0, 0))
#: What an estimate of a graph of eight nodes may cost.
SMALL = Budget(error=0.05, seconds=2.0, chains=32)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def problem(name: str, directed: bool, loops: bool, **settings):
    """A graph of eight nodes in three blocks of which some dyads are hidden."""
    settings = {"num_nodes": 8, "num_blocks": 3, "hidden": 0.15, "seed": 1, **settings}
    example = small_problem(name, directed=directed, self_loops=loops, **settings)
    model = example.model
    data = model.as_read(model.prepare(example.data, dtype=torch.float64))
    return model, {site: example.truth[site].double() for site in model.global_sites}, data


@pytest.mark.parametrize(("kind", "directed", "loops"), KINDS)
def test_scores_of_labels_are_those_of_the_math(kind, directed, loops):
    one = case(kind, directed, loops)
    chains = chains_of(one.model, one.params, one.data)
    state = chains.begin(20, generator())
    expected = [one.graph.log_joint(labels.numpy()) for labels in state.place[:, 0]]
    np.testing.assert_allclose(state.joint[:, 0], expected, atol=1e-9)
    prior = np.log(one.params["block_proportion"].numpy())[state.place[:, 0]].sum(-1)
    np.testing.assert_allclose(state.base[:, 0], prior, atol=1e-9)


@pytest.mark.parametrize("loops", [False, True])
@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_scores_are_those_of_the_program(name, directed, loops):
    model, params, data = problem(name, directed, loops)
    chains, program = chains_of(model, params, data), WholeChains(WholeDensity.of(model, params, data))
    state = chains.begin(7, generator())
    same = program.at(chains.code(state), generator())
    assert torch.allclose(state.joint, same.joint, atol=1e-9) and torch.allclose(state.base, same.base, atol=1e-9)


@pytest.mark.parametrize(("directed", "loops"), [(True, True), (False, True), (False, False)])
@pytest.mark.parametrize("name", ["degree_corrected_sbm", "sbm", "covariate_sbm"])
def test_moves_leave_a_tempered_density_as_it_is(name, directed, loops):
    """Frequencies of all 2^4 labelings after moves of draws from the tempered density are its probabilities."""
    model, params, data = problem(name, directed, loops, num_nodes=4, num_blocks=2)
    chains, power, number = chains_of(model, params, data), torch.tensor([0.6], dtype=torch.float64), 40_000
    every = torch.tensor(list(itertools.product(range(2), repeat=4)))
    code = torch.nn.functional.one_hot(every, 2).double().flatten(1)[:, None]
    share = torch.softmax(chains.at(code, generator()).temper(power)[:, 0], 0)
    drawn = torch.multinomial(share, number, replacement=True, generator=generator(2))
    state, _ = chains.move(chains.at(code[drawn], generator()), power, NONE, generator(3))
    found = torch.bincount(state.place[:, 0] @ torch.tensor([8, 4, 2, 1]), minlength=16) / number
    assert bool(((found - share).abs() < 5 * (share * (1 - share) / number).sqrt() + 1e-9).all())


def test_one_sweep_draws_from_the_conditional_distributions():
    """From a far labeling the first node's new label, names left alone, has the probabilities of all its values."""
    model, params, data = problem("degree_corrected_sbm", True, True)
    chains, number, heat = chains_of(model, params, data), 30_000, 0.7
    labels = np.tile(np.array([0, 1, 2, 2, 1, 0, 1, 2]), (number, 1))
    places = torch.as_tensor(labels[:3]).clone()
    places[:, 0] = torch.arange(3)
    at: State = chains.at(torch.nn.functional.one_hot(places, 3).double().flatten(1)[:, None], generator())
    share = torch.softmax(at.temper(torch.tensor([heat], dtype=torch.float64))[:, 0], 0).numpy()
    field = np.tile(chains.proportion.numpy(), (8, 1))  # the base is the prior
    chains.sweep(labels, field, heat, np.array([5], np.uint64))
    found = np.bincount(labels[:, 0], minlength=3) / number
    assert np.all(np.abs(found - share) < 5 * np.sqrt(share * (1 - share) / number) + 1e-9)


@pytest.mark.parametrize(("directed", "loops"), [(True, False), (False, True)])
@pytest.mark.parametrize("name", NAMES)
def test_estimates_are_within_their_errors_of_the_sum_over_labelings(name, directed, loops):
    model, params, data = problem(name, directed, loops)
    found = anneal_locals(model, params, data, SMALL)
    exact = ci.Exact().local_posterior(model, params, data)
    assert found.log_evidence.shape == exact.bound.shape == (1,)
    assert abs(float(found.log_evidence - exact.bound)) < 4 * float(found.standard_error) < 0.5
    assert found.mean.shape == exact.posterior.mean.shape == (8, 3)
    assert bool(((found.mean - exact.posterior.mean).abs() < 4 * found.mean_error + 0.01).all())


def test_the_method_gives_a_posterior_of_labelings():
    model, params, data = problem("sbm", False, False)
    exact = ci.Exact().local_posterior(model, params, data)
    for method in (ci.AIS(seconds=2.0), ci.SMC(seconds=2.0)):
        local = method.local_posterior(model, params, data)
        assert isinstance(local.posterior, LabellingPosterior) and local.bound.shape == (1,)
        assert abs(float(local.bound - exact.bound)) < 0.3 and float(local.standard_error) < 0.15
        together = (local.posterior.together() - exact.posterior.together()).abs()
        assert float(together.max()) < 0.1
    assert log_likelihood(model, params, data, bound="ais").shape == (1,)


def test_a_graph_that_was_drawn_from_the_model_is_bounded_from_both_sides():
    model, params, _ = problem("sbm", True, False)
    gaps = []
    for seed in range(6):
        drawn = sample_rows(model, params, 8, seed=seed)
        graph = model.prepare(drawn["x"], dtype=torch.float64)
        code = torch.nn.functional.one_hot(drawn["block"], 3).double()
        found = sandwich(model, params, graph, code, SMALL, 40)
        exact = float(log_likelihood(model, params, graph, bound="exact"))
        assert float(found.lower) < exact + 5 * float(found.lower_error) + 0.02
        assert found.members == found.rows == 8 and found.gap == float(found.upper - found.lower) / 8
        gaps.append(found)
    every = Sandwich.beside(gaps)
    each = np.array([one.gap for one in gaps])
    assert every.rows == 48 and every.gap == pytest.approx(each.mean()) and -0.02 < every.gap < 0.1
    assert every.gap_error == pytest.approx(each.std(ddof=1) / np.sqrt(6))


@pytest.fixture(scope="module")
def large():
    """A graph of sixty nodes in three communities, whose 3^60 labelings nobody lists."""
    rate = torch.full((3, 3), 0.05) + torch.diag(torch.tensor([0.35, 0.3, 0.25]))
    params = {"block_proportion": torch.tensor([0.4, 0.35, 0.25]).double(), "edge_probability": rate.double()}
    model = SBM(num_blocks=3, num_nodes=60, directed=False)
    return model, params, sample_rows(model, params, 60, seed=4)["x"]


def test_a_comparison_has_a_reference_where_labelings_cannot_be_listed(large):
    model, params, x = large
    found = ci.compare(["mean_field", "ais"], model, x, at=params, progress=False, seconds=8.0)
    table = found.table
    columns = ["evidence", "gap_per_row", "gap_error", "worst_marginal_error", "marginal_error"]
    assert np.isfinite(table[columns].to_numpy()).all() and "3^60" in found.no_exact
    line = table.loc["mean_field"]
    assert line["gap_error"] > 0 and line["gap_per_row"] > -4 * line["gap_error"]
    assert line["kl_per_row"] == pytest.approx(line["gap_per_row"], abs=1e-6)
    assert math.isnan(table.loc["ais", "kl_per_row"]) and abs(found.reference_error) < 0.1
    assert any("for all rows together" in line for line in found.remarks)
    assert any("of 240 rows drawn from the model" in line for line in found.remarks)


def test_estimates_of_different_seeds_agree_within_their_errors(large):
    model, params, x = large
    data = model.prepare(x, dtype=torch.float64)
    budget = Budget(error=0.2, seconds=6.0, chains=16)
    runs = [anneal_locals(model, params, data, budget, seed=seed) for seed in range(4)]
    value, error = (torch.cat([getattr(run, name) for run in runs]) for name in ("log_evidence", "standard_error"))
    assert float((value - value.mean()).abs().max()) < 4 * float(error.max())
    assert float((runs[0].mean - runs[1].mean).abs().max()) < 0.15
