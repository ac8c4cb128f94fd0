"""The variational bounds of the references of block models: two roads to each, exact cases, optima."""

import numpy as np
import pytest
from scipy import stats

from tests.references import _graphs, _shared, degree_corrected_sbm, poisson_sbm, sbm
from tests.references.graphs_test import ALPHA, DIRECTED, LOOPS, MISSING, PRIOR, problem, symmetric
from tests.references.rows_test import close, slopes

pytestmark = pytest.mark.quick


def graphs_of(seed, directed, missing, self_loops):
    """The same graph under every likelihood at given globals, and random numbers."""
    params, edges, counts, mask, rng = problem(seed, directed, missing)
    kind = {"directed": directed, "self_loops": self_loops}
    return [
        sbm.graph(params, edges, mask, **kind),
        poisson_sbm.graph(params, counts, mask, **kind),
        degree_corrected_sbm.graph(params, counts, mask, **kind),
    ], rng


def slopes_at(objective, values, place):
    """Slopes of an objective of several arrays in every coordinate of one of them."""
    return slopes(lambda one: objective([one if k == place else v for k, v in enumerate(values)]), values[place])


@DIRECTED
@LOOPS
@MISSING
def test_mean_field_by_pairs_and_by_labelings_below_the_evidence(directed, missing, self_loops):
    graphs, rng = graphs_of(6, directed, missing, self_loops)
    for at in graphs:
        phi = rng.dirichlet(np.ones(2), 4)
        value = at.elbo(phi)
        assert close(value, at.elbo_by_labelings(phi)) and value <= at.log_evidence() + 1e-12
        q = rng.integers(0, 2, 4)
        assert close(at.elbo(np.eye(2)[q]), at.log_joint(q))
        for node in range(4):
            phi[node] = at.coordinate_optimum(phi, node)
            for _ in range(5):
                other = phi.copy()
                other[node] = rng.dirichlet(np.ones(2))
                assert at.elbo(other) <= at.elbo(phi) + 1e-12
            assert at.elbo(phi) >= value - 1e-12
            value = at.elbo(phi)


@DIRECTED
@LOOPS
@MISSING
@pytest.mark.parametrize("module", [sbm, poisson_sbm])
def test_vb_is_exact_for_one_labeling_and_optimal_below_the_evidence(module, directed, missing, self_loops):
    _, edges, counts, mask, rng = problem(10, directed, missing)
    x, kind = edges if module is sbm else counts, {"directed": directed, "self_loops": self_loops}

    def bound(phi, weight, first, second):
        if not directed:
            first, second = symmetric(first, False), symmetric(second, False)
        return module.vb_bound(x, phi, weight, first, second, ALPHA, PRIOR, mask, **kind)

    q = rng.integers(0, 2, 4)
    certain = bound(np.eye(2)[q], *module.vb_globals(x, np.eye(2)[q], ALPHA, PRIOR, mask, **kind))
    assert close(certain, module.log_joint_integrated(q, x, 2, ALPHA, PRIOR, mask, **kind))
    phi, evidence = rng.dirichlet(np.ones(2), 4), module.log_evidence_integrated(x, 2, ALPHA, PRIOR, mask, **kind)
    before = -np.inf
    for _ in range(3):
        best = module.vb_globals(x, phi, ALPHA, PRIOR, mask, **kind)
        assert before - 1e-12 <= bound(phi, *best) <= evidence + 1e-12
        for place in range(3):
            assert np.abs(slopes_at(lambda values, phi=phi: bound(phi, *values), best, place)).max() < 1e-6
        at = module.vb_graph(x, *best, mask, **kind)
        divergence = bound(phi, *best) - at.elbo(phi)
        phi = at.mean_field(phi, sweeps=1)
        assert close(bound(phi, *best) - at.elbo(phi), divergence)  # the rest does not depend on phi
        before = bound(phi, *best)


@DIRECTED
@LOOPS
def test_vb_of_propensities_becomes_the_joint_at_sharp_posteriors(directed, self_loops):
    params, _, counts, mask, rng = problem(12, directed, 0.3)
    sharp, phi, kind = 1e9, np.eye(2)[rng.integers(0, 2, 4)], {"directed": directed, "self_loops": self_loops}
    points = [params["edge_rate"], *degree_corrected_sbm.propensities(params, directed=directed)]
    (shape, rate), out, into = [(sharp * value, np.full(value.shape, sharp)) for value in points]
    terms = degree_corrected_sbm.vb_terms(
        counts, phi, sharp * params["block_proportion"], shape, rate, out, into, mask=mask, **kind
    )
    expected = degree_corrected_sbm.log_joint(params, counts, phi.argmax(1), mask, **kind)
    assert close(terms["labels"] + terms["edges"], expected, atol=1e-6)
    assert terms["propensities"] < 0 and terms["edge rates"] < 0


def test_divergences_are_those_of_draws():
    rng = np.random.default_rng(13)
    pairs = [
        (stats.beta(2.5, 1.2), stats.beta(*PRIOR), _graphs.beta_divergence(2.5, 1.2, PRIOR)),
        (stats.gamma(2.5, scale=1 / 1.2), stats.gamma(PRIOR[0], scale=1 / PRIOR[1]),
         _graphs.gamma_divergence(2.5, 1.2, PRIOR)),
    ]  # fmt: skip
    for q, p, exact in pairs:
        assert close(q.expect(lambda v, q=q, p=p: q.logpdf(v) - p.logpdf(v)), exact, atol=1e-7)
    draws = rng.dirichlet([2.0, 3.0], 20000).T
    gain = stats.dirichlet.logpdf(draws, [2.0, 3.0]) - stats.dirichlet.logpdf(draws, ALPHA)
    exact = _shared.dirichlet_divergence([2.0, 3.0], ALPHA)
    assert abs(gain.mean() - exact) <= 4 * gain.std() / np.sqrt(len(gain))
