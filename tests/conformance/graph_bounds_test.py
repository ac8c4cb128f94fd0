"""Every graph model at given globals: exact posteriors, and bounds below the evidence."""

import numpy as np
import torch

import custom_inference as ci
from custom_inference.core.local_inference import is_feasible, solve_local
from custom_inference.core.registry import engines_of
from tests.conformance.graphs_test import BLOCKS, DIRECTED, LOOPS, NAMES
from tests.references import _graphs
from tests.support.cases import globals_of
from tests.support.graphs import exact_evidence, exact_graph, small_problem


@BLOCKS
@DIRECTED
@LOOPS
def test_enumeration_is_the_references(name, directed, self_loops):
    """All K^N labelings by Pyro's enumeration, and by the engine where there is one: evidence, marginals, pairs."""
    for hidden in (0.0, 0.2):
        problem = small_problem(name, directed=directed, self_loops=self_loops, hidden=hidden)
        params = globals_of(problem)
        exact = exact_graph(problem.model, params, problem.data)
        q, weight = exact.posterior()
        for generic in (True, False):
            local = ci.Exact(generic=generic).local_posterior(problem.model, params, problem.data)
            assert local.bound.shape == (1,)
            assert np.isclose(float(local.bound), exact.log_evidence(), rtol=1e-12)
            assert np.allclose(local.posterior.mean.numpy(), _graphs.marginals(q, weight, 2), atol=1e-12)
            assert np.allclose(local.posterior.together().numpy(), _graphs.coassignment(q, weight), atol=1e-12)
            best = local.posterior.mode
            assert np.isclose(float(local.posterior.log_prob(best)), np.log(weight.max()), rtol=1e-10)
            assert np.array_equal(best.argmax(-1).numpy(), q[weight.argmax()])


@NAMES
@DIRECTED
@LOOPS
def test_bounds_at_given_globals_stay_below_the_evidence(name, directed, self_loops):
    for seed, hidden in ((0, 0.0), (1, 0.3)):
        size = 4 if name == "mmsb" else 7
        problem = small_problem(
            name, directed=directed, self_loops=self_loops, hidden=hidden, seed=seed, num_nodes=size
        )
        evidence = exact_evidence(problem.model, globals_of(problem), problem.data)
        for bound in [b for b in engines_of(problem.model) if b not in ("vb", "map", "bethe")]:
            local = solve_local(problem.model, globals_of(problem), problem.data, bound=bound)
            assert local.bound.shape == (1,) and local.posterior.mean.shape == (size, 2)
            assert torch.allclose(local.posterior.mean.sum(-1), torch.ones(size), atol=1e-8)
            gap = evidence - float(local.bound)
            assert gap >= -1e-8, bound
            if bound == "exact":
                assert gap <= 1e-8
            if bound == "mean_field":
                exact = exact_graph(problem.model, globals_of(problem), problem.data)
                phi = local.posterior.mean.numpy()
                assert np.isclose(float(local.bound), exact.elbo(phi), rtol=1e-8)
                # a fixed point: no node alone can do better
                for node in range(size):
                    assert np.allclose(exact.coordinate_optimum(phi, node), phi[node], atol=1e-3)


@NAMES
@DIRECTED
def test_probabilities_at_the_edge_give_finite_answers(name, directed):
    """0 and 1 are legal values of a probability, and 0 of a rate in effect."""
    problem = small_problem(name, directed=directed, num_nodes=4 if name == "mmsb" else 7)
    params = globals_of(problem)
    for site, low, high in (("edge_probability", 0.0, 1.0), ("edge_rate", 1e-300, 1e3), ("weight", -800.0, 800.0)):
        if site in params:
            params[site] = params[site].clone()
            params[site][0, 0], params[site][-1, -1] = high, low
    if "block_proportion" in params:
        params["block_proportion"] = torch.tensor([1.0, 0.0])
    engines = [b for b in engines_of(problem.model) if b != "exact" or is_feasible(problem.model)]
    for bound in [b for b in engines if b != "vb"]:
        local = solve_local(problem.model, params, problem.data, bound=bound)
        assert torch.isfinite(local.posterior.mean).all(), bound
        assert bound == "map" or torch.isfinite(local.bound).all(), bound
    if not problem.model.has_continuous_locals:
        local = ci.Exact(generic=True).local_posterior(problem.model, params, problem.data)
        assert torch.isfinite(local.posterior.mean).all() and torch.isfinite(local.bound).all()
