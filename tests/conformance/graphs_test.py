"""Every model of graphs against the promises of the model protocol, on graphs whose labelings can all be listed."""

from __future__ import annotations

import numpy as np
import pyro
import pytest
import torch
from pyro import poutine

import custom_inference as ci
from custom_inference.core.local_inference import is_feasible, solve_local
from ppl_models import MODELS, CapacityError
from tests.references import _graphs
from tests.support.cases import at_subsample, globals_of, swapped_priors
from tests.support.graphs import (
    GRAPHS,
    arrays,
    keywords,
    reference_of,
    relabelled,
    reordered,
    reordered_data,
    reordered_model,
    small_problem,
)

pytestmark = pytest.mark.quick

NAMES = pytest.mark.parametrize("name", GRAPHS)
BLOCKS = pytest.mark.parametrize("name", [name for name in GRAPHS if name != "mmsb"])
DIRECTED = pytest.mark.parametrize("directed", [True, False])
LOOPS = pytest.mark.parametrize("self_loops", [False, True])


def log_joint(model, truth, data) -> float:
    """What the program says of all sites; data as it reads them."""
    read = model.as_read(data)
    trace = poutine.trace(pyro.condition(model, data=dict(truth))).get_trace(read.x, mask=read.mask)
    return float(trace.log_prob_sum())


@NAMES
@DIRECTED
@LOOPS
def test_log_joint_is_the_references(name, directed, self_loops):
    """The Pyro program against NumPy written from the math; dense and sparse, with hidden dyads, any priors."""
    for hidden in (0.0, 0.3):
        problem = small_problem(name, directed=directed, hidden=hidden, self_loops=self_loops)
        priors, spelled = swapped_priors(problem.model)
        model, local = problem.model.with_priors(**priors), problem.truth[problem.model.local_site]
        dense = problem.data.dense()
        assert (dense.mask is None) == (hidden == 0.0)
        mask = None if dense.mask is None else dense.mask.numpy()
        expected = reference_of(name).log_joint(
            arrays(problem.truth, model), dense.x.numpy(), local.numpy(), mask, spelled, **keywords(model)
        )
        assert np.isclose(log_joint(model, problem.truth, problem.data), expected, rtol=1e-12)
        trace = poutine.trace(pyro.condition(model, data=problem.truth)).get_trace(dense.x, mask=dense.mask)
        assert np.isclose(float(trace.log_prob_sum()), expected, rtol=1e-12)


@pytest.mark.parametrize("combine", ["product", "difference", "concatenate"])
def test_log_joint_of_combined_covariates_is_the_references(combine):
    problem = small_problem("covariate_sbm", directed=True, combine=combine)
    given = keywords(problem.model)
    expected = reference_of("covariate_sbm").log_joint(
        arrays(problem.truth, problem.model), problem.data.dense().x.numpy(), problem.truth["block"].numpy(), None,
        {"block_proportion": ("dirichlet", 1.0), "weight": ("normal", 0.0, 2.5)}, **given,
    )  # fmt: skip
    assert given["combine"] == combine
    assert np.isclose(log_joint(problem.model, problem.truth, problem.data), expected, rtol=1e-12)


@DIRECTED
@pytest.mark.parametrize("sparsity", [0.0, 0.2, None])
def test_log_joint_of_sparsity_and_of_kept_indicators_is_the_references(directed, sparsity):
    from ppl_models import MMSBIndicator

    problem = small_problem("mmsb", directed=directed, hidden=0.2, sparsity=sparsity)
    reference, model, dense = reference_of("mmsb"), problem.model, problem.data.dense()
    values = arrays(problem.truth, model)
    priors = {"membership": ("dirichlet", 0.1), "edge_probability": (1.0, 1.0), "sparsity": (1.0, 1.0)}
    priors = {site: prior for site, prior in priors.items() if site in model.priors}
    mask, pi = dense.mask.numpy(), problem.truth["membership"].numpy()
    expected = reference.log_joint(values, dense.x.numpy(), pi, mask, priors, **keywords(model))
    assert np.isclose(log_joint(model, problem.truth, problem.data), expected, rtol=1e-12)
    kept = MMSBIndicator(**model.settings(), priors=model.priors)
    sender, receiver = torch.randint(2, (2, model.num_dyads()))
    seen = dense.mask[model.dyads(torch.arange(model.num_dyads()))]
    both = {"sender": sender, "receiver": receiver}
    found = log_joint(kept, {**problem.truth, **both}, problem.data)
    expected = reference.log_joint_of_indicators(
        values, dense.x.numpy(), pi, sender[seen].numpy(), receiver[seen].numpy(), mask, priors, **keywords(model)
    )
    # the program draws indicators of unobserved dyads too
    i, j = (one[~seen] for one in model.dyads(torch.arange(model.num_dyads())))
    unseen = np.log(pi[i, sender[~seen]]).sum() + np.log(pi[j, receiver[~seen]]).sum()
    assert np.isclose(found, expected + unseen, rtol=1e-12)
    assert type(kept.summed_out) is MODELS["mmsb"] and kept.summed_out.settings() == model.settings()


@NAMES
@DIRECTED
def test_fill_value_of_hidden_dyads_does_not_matter(name, directed):
    problem = small_problem(name, directed=directed, hidden=0.3)
    dense, model = problem.data.dense(), problem.model
    program, joints, prepared = pyro.condition(model, data=problem.truth), [], []
    for fill in (0.0, 1.0):
        x = torch.where(dense.mask, dense.x, torch.full_like(dense.x, fill))
        joints.append(float(poutine.trace(program).get_trace(x, mask=dense.mask).log_prob_sum()))
        prepared.append(model.prepare(x, mask=dense.mask, dtype=torch.float64))
    prepared.append(model.prepare(dense.x.masked_fill(~dense.mask, torch.nan), dtype=torch.float64))
    assert joints[0] == joints[1]
    for one in prepared:
        assert torch.equal(one.dense().x, dense.x) and torch.equal(one.hidden, problem.data.hidden)


@NAMES
@DIRECTED
@LOOPS
def test_subsampling_dyads_is_unbiased(name, directed, self_loops):
    """The mean of the subsampled log joint over a partition of the dyads, each part by its size, is the full one."""
    problem = small_problem(name, directed=directed, self_loops=self_loops)
    program = pyro.condition(problem.model, data=problem.truth)
    x, total = problem.data.dense().x, problem.model.num_dyads()
    mean = 0.0
    for index in torch.randperm(total).split(5):
        trace = poutine.trace(at_subsample(program, index)).get_trace(x, batch_size=len(index))
        mean += len(index) / total * float(trace.log_prob_sum())
    assert np.isclose(mean, log_joint(problem.model, problem.truth, problem.data), rtol=1e-12)


@NAMES
@DIRECTED
def test_dyads_are_numbered_once_and_back(name, directed):
    for size in (1, 2, 7, 40):
        for self_loops in (False, True):
            model = MODELS["sbm"](num_blocks=1, num_nodes=size, directed=directed, self_loops=self_loops)
            i, j = model.dyads(torch.arange(model.num_dyads()))
            expected = _graphs.dyads(np.zeros((size, size)), directed=directed, self_loops=self_loops)
            assert np.array_equal(i.numpy(), expected[0]) and np.array_equal(j.numpy(), expected[1])
            value = 1.0 + torch.arange(len(i))
            matrix = model.as_data(value)
            assert torch.equal(matrix[i, j], value) and (directed or torch.equal(matrix, matrix.T))
            assert int((matrix > 0).sum()) == len(i) * (1 if directed else 2) - (int((i == j).sum()) * (not directed))
    large = MODELS["sbm"](num_blocks=1, num_nodes=100_000, directed=directed)
    index = torch.tensor([0, 99_998, 99_999, large.num_dyads() // 2, large.num_dyads() - 1])
    i, j = large.dyads(index)
    rows = i * (i + 1) // 2
    back = i * 99_999 + j - (j > i).long() if directed else i * 100_000 - rows + j - i - 1
    assert torch.equal(back, index) and bool((i < j).all() or directed)


@NAMES
@DIRECTED
def test_names_of_nodes_do_not_matter(name, directed):
    problem = small_problem(name, directed=directed, hidden=0.2)
    order = torch.randperm(problem.model.num_nodes)
    model = reordered_model(problem.model, order)
    truth = reordered(problem.truth, model, order)
    data = reordered_data(model, problem.data, order)
    before = log_joint(problem.model, problem.truth, problem.data)
    assert np.isclose(log_joint(model, truth, data), before, rtol=1e-12)
    if is_feasible(model):  # mean fields have several optima
        one = solve_local(problem.model, globals_of(problem), problem.data, bound="exact")
        other = solve_local(model, {s: truth[s] for s in model.global_sites}, data, bound="exact")
        assert torch.allclose(one.bound, other.bound, atol=1e-10, rtol=0)
        assert torch.allclose(one.posterior.mean[order], other.posterior.mean, atol=1e-8)


@NAMES
@DIRECTED
def test_names_of_blocks_do_not_matter(name, directed):
    problem = small_problem(name, directed=directed, num_blocks=3, num_nodes=6)
    model, order = problem.model, [2, 0, 1]
    moved = relabelled(problem.truth, model, order)
    before = log_joint(model, problem.truth, problem.data)
    assert np.isclose(log_joint(model, moved, problem.data), before, rtol=1e-12)
    again = {site: moved[site] for site in model.global_sites}
    if not model.has_continuous_locals:
        exact = [ci.Exact(generic=True).local_posterior(model, p, problem.data) for p in (globals_of(problem), again)]
        assert torch.allclose(exact[0].bound, exact[1].bound, atol=1e-10)
        assert torch.allclose(exact[0].posterior.mean[:, order], exact[1].posterior.mean, atol=1e-10)


@BLOCKS
def test_too_many_labelings_are_refused_with_what_would_fit(name):
    """Before they are listed: the table of 2^22 labelings by some hundred dyads alone would take gigabytes."""
    for num_nodes, num_blocks in ((30, 3), (800, 2)):
        problem = small_problem(name, directed=True, num_nodes=num_nodes, num_blocks=num_blocks)
        for generic in (True, False):
            with pytest.raises(CapacityError, match=r"\d+ nodes"):
                ci.Exact(generic=generic).local_posterior(problem.model, globals_of(problem), problem.data)
