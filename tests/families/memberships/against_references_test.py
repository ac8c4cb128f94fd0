"""The bounds of MMSB's engines, recomputed by the references at the posteriors that the engines report."""

import numpy as np
import pytest
from scipy.special import digamma

import custom_inference as ci
from custom_inference.core.local_inference import solve_local
from tests.references import _graphs, mmsb, mmsb_integrated
from tests.references.rows_test import close
from tests.support.graphs import arrays, exact_evidence, informative, small_problem

pytestmark = pytest.mark.quick

DIRECTED = pytest.mark.parametrize("directed", [True, False])
LOOPS = pytest.mark.parametrize("self_loops", [False, True])
SPARSITY = pytest.mark.parametrize("sparsity", [0.0, 0.2, None])


def problem_of(directed, self_loops, sparsity, num_nodes=5):
    problem = small_problem(
        "mmsb", directed=directed, self_loops=self_loops, hidden=0.15, num_nodes=num_nodes, sparsity=sparsity
    )
    model, dense = informative(problem.model), problem.data.dense()
    x, mask = dense.x.numpy(), None if dense.mask is None else dense.mask.numpy()
    return model, problem, x, mask, {"directed": directed, "self_loops": self_loops}


@DIRECTED
@LOOPS
@SPARSITY
def test_vb_bound_is_that_of_the_references_at_the_best_tables(directed, self_loops, sparsity):
    model, problem, x, mask, kind = problem_of(directed, self_loops, sparsity)
    alpha, prior = model.priors["membership"].concentration.numpy(), (1.3, 2.1)
    rho = ("beta", 1.5, 6.0) if sparsity is None else sparsity
    i, j, values = _graphs.dyads(x, mask, **kind)
    for iterations in (1, 2, 300):
        fit = ci.VariationalEM(guide="vb", max_iterations=iterations, search=None).fit(
            model, problem.data, seed=1, progress=False
        )
        gamma = fit.posterior.concentration.numpy()
        eta = fit.global_posterior["edge_probability"]
        a, b = eta.on.numpy(), eta.off.numpy()
        weight = None
        if sparsity is None:
            weight = tuple(float(getattr(fit.global_posterior["sparsity"], name)) for name in ("on", "off"))
        at = mmsb_integrated.expected_log_rho(rho, weight)
        each = np.where(values[:, None, None] > 0, digamma(a), digamma(b)) - digamma(a + b)
        tables, background = mmsb_integrated.table_optimum(each, i, j, values, gamma, at)
        terms = mmsb_integrated.vb_terms(x, gamma, tables, a, b, alpha, prior, background, rho, weight, mask, **kind)
        assert close(float(fit.elbo[-1]), sum(terms.values()), atol=1e-8)
    assert np.allclose(gamma, alpha + mmsb_integrated.member_sums(tables, background, i, j, len(x)), atol=0.02)
    for found, best in zip((a, b), mmsb_integrated.vb_globals(x, tables, prior, mask, **kind), strict=True):
        assert np.allclose(found, best, atol=0.02)


@DIRECTED
@LOOPS
@SPARSITY
def test_bound_at_given_globals_is_that_of_the_references_and_below_the_evidence(directed, self_loops, sparsity):
    model, problem, x, mask, kind = problem_of(directed, self_loops, sparsity, num_nodes=4)
    params = {site: problem.truth[site] for site in model.global_sites}
    local = solve_local(model, params, problem.data, bound="dirichlet")
    i, j, values = _graphs.dyads(x, mask, **kind)
    given = arrays(params, model)
    rho = mmsb.sparsity_of(given)
    plain = mmsb.log_edges({**given, "sparsity": 0.0}, values)
    log_rho, gamma = mmsb_integrated.expected_log_rho(rho), local.posterior.concentration.numpy()
    tables, background = mmsb_integrated.table_optimum(plain, i, j, values, gamma, log_rho)
    alpha = model.priors["membership"].concentration.numpy()
    terms = mmsb_integrated.terms(plain, i, j, gamma, tables, alpha, background, log_rho)
    assert close(float(local.bound), sum(terms.values()), atol=1e-8)
    evidence = exact_evidence(model, params, problem.data)
    assert float(local.bound) <= evidence and evidence - float(local.bound) < 4
