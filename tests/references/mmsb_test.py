"""The brute-force references of the mixed-membership block model against themselves."""

import itertools

import numpy as np
import pytest
from scipy import stats
from scipy.special import digamma, roots_jacobi

from tests.references import _graphs, mmsb, mmsb_integrated, sbm
from tests.references.graphs_test import DIRECTED, LOOPS, symmetric
from tests.references.rows_test import close, slopes

pytestmark = pytest.mark.quick

ALPHA, PRIOR = np.array([0.6, 1.7]), (1.4, 2.3)
RHO = pytest.mark.parametrize("rho", [0.0, 0.3, ("beta", 1.2, 2.0)])
FIXED = pytest.mark.parametrize("rho", [0.0, 0.3])


def problem(seed, directed=True, num_nodes=3, num_blocks=2, rho=0.0):
    rng = np.random.default_rng(seed)
    eta = symmetric(rng.uniform(0.05, 0.95, (num_blocks, num_blocks)), directed)
    x = symmetric((rng.random((num_nodes, num_nodes)) < 0.5).astype(float), directed)
    mask = np.ones(x.shape, bool)
    mask[0, 1] = False
    return {"edge_probability": eta, "sparsity": np.array(rho)}, x, mask, rng


def beta_rule(a, b, size):
    """Points and weights that integrate polynomials of degree up to 2 size - 1 over Beta(a, b)."""
    points, weights = roots_jacobi(size, b - 1, a - 1)
    return (points + 1) / 2, weights / weights.sum()


@DIRECTED
@LOOPS
@FIXED
def test_log_joints_dyad_by_dyad(directed, self_loops, rho):
    params, x, mask, rng = problem(0, directed, rho=rho)
    kind = {"directed": directed, "self_loops": self_loops}
    pi, eta = rng.dirichlet(np.ones(2), 3), params["edge_probability"]
    i, j, values = _graphs.dyads(x, mask, **kind)
    p = np.array([(1 - rho) * sum(pi[s, a] * eta[a, b] * pi[r, b] for a in range(2) for b in range(2))
                  for s, r in zip(i, j, strict=True)])  # fmt: skip
    expected = np.log(np.where(values > 0, p, 1 - p)).sum()
    priors = {"edge_probability": (2.0, 3.0), "membership": ("dirichlet", ALPHA), "sparsity": (2.0, 3.0)}
    assert close(mmsb.log_joint(params, np.where(mask, x, 9.0), pi, mask, **kind), expected)
    s, r = mmsb.indicators(2, len(i)) if len(i) < 6 else (rng.integers(0, 2, (200, len(i))) for _ in range(2))
    kept = [mmsb.log_joint_of_indicators(params, x, pi, a, b, mask, **kind) for a, b in zip(s, r, strict=True)]
    if len(i) < 6:  # all of their values
        assert close(np.logaddexp.reduce(kept), expected)
    assert max(kept) < expected
    density = sum(stats.dirichlet.logpdf(one, ALPHA) for one in pi)
    density += stats.beta.logpdf(eta, 2, 3)[_graphs.free_entries(2, directed=directed)].sum()
    if rho:
        density += stats.beta.logpdf(rho, 2, 3)
        assert close(mmsb.log_joint(params, x, pi, mask, priors, **kind), expected + density)


@DIRECTED
@FIXED
def test_evidence_and_means_by_enumeration_multiplication_and_quadrature(directed, rho):
    """p(x | memberships) is a polynomial in them, so Gauss's rule is exact."""
    params, x, mask, _ = problem(1, directed, rho=rho)
    summed = mmsb.log_evidence(params, x, ALPHA, mask, directed=directed)
    assert close(summed, mmsb.log_evidence_polynomial(params, x, ALPHA, mask, directed=directed))
    points, weights = beta_rule(*ALPHA, 5)
    mean, total = np.zeros((3, 2)), 0.0
    for places in itertools.product(range(len(points)), repeat=3):
        pi = np.stack([points[list(places)], 1 - points[list(places)]], axis=1)
        height = np.exp(mmsb.log_joint(params, x, pi, mask, directed=directed)) * weights[list(places)].prod()
        total, mean = total + height, mean + height * pi
    assert close(summed, np.log(total))
    for found in (mmsb.posterior_mean, mmsb.posterior_mean_polynomial):
        assert close(found(params, x, ALPHA, mask, directed=directed), mean / total)


@DIRECTED
@FIXED
def test_evidence_sums_to_one_over_all_graphs(directed, rho):
    params, x, mask, _ = problem(2, directed, rho=rho)
    i, j, _ = _graphs.dyads(x, mask, directed=directed)
    total = np.zeros(2)
    for values in itertools.product([0.0, 1.0], repeat=len(i)):
        x[i, j] = values
        total[0] += np.exp(mmsb.log_evidence_polynomial(params, x, ALPHA, mask, directed=directed))
        total[1] += np.exp(mmsb_integrated.log_evidence(x, 2, ALPHA, PRIOR, rho, mask, directed=directed, drawn=False))
    assert close(total, 1.0)


def test_evidence_sums_to_one_over_all_graphs_of_four_nodes():
    params, x, _, _ = problem(3, False, num_nodes=4)
    i, j, _ = _graphs.dyads(x, directed=False)
    total = 0.0
    for values in itertools.product([0.0, 1.0], repeat=6):
        x[i, j] = values
        total += np.exp(mmsb.log_evidence_polynomial(params, x, 0.4, directed=False)) if values[0] == values[1] else 0.0
    # half of the graphs: P(x_01 = x_02), where pi_0 is shared
    m, second = np.full(2, 1 / 2), (np.full((2, 2), 0.4 * 0.4) + np.diag(np.full(2, 0.4))) / (0.8 * 1.8)
    edge = params["edge_probability"] @ m
    assert close(total, edge @ second @ edge + (1 - edge) @ second @ (1 - edge))


@FIXED
def test_posterior_of_indicators_gives_the_slope_of_the_evidence(rho):
    params, x, mask, _ = problem(4, True, rho=rho)
    share = mmsb.indicator_posterior(params, x, ALPHA, mask)
    assert close(share.sum((1, 2)), 1.0)
    _, _, values = _graphs.dyads(x, mask)
    eta = params["edge_probability"]
    each = np.where(values[:, None, None] > 0, 1 / eta, -(1 - rho) / (rho + (1 - rho) * (1 - eta)))
    found = slopes(lambda e: mmsb.log_evidence_polynomial({**params, "edge_probability": e}, x, ALPHA, mask), eta)
    assert np.allclose(found, (share * each).sum(0), rtol=1e-7)


@DIRECTED
def test_at_concentrations_of_zero_it_is_the_block_model(directed):
    """alpha -> 0 puts every node in one block, all of them alike likely a priori."""
    params, x, mask, _ = problem(5, directed)
    params["block_proportion"] = ALPHA / ALPHA.sum()
    found = mmsb.log_evidence_polynomial(params, x, 1e-9 * ALPHA, mask, directed=directed)
    assert close(found, sbm.graph(params, x, mask, directed=directed).log_evidence(), atol=1e-7)


@DIRECTED
@FIXED
def test_integrated_evidence_by_quadrature_over_the_edge_probabilities(directed, rho):
    """p(x | eta) is a polynomial in eta of the degree of the dyads."""
    params, x, mask, _ = problem(6, directed, rho=rho)
    points, weights = beta_rule(*PRIOR, 3)
    free, total = _graphs.free_entries(2, directed=directed), 0.0
    for places in itertools.product(range(len(points)), repeat=int(free.sum())):
        eta = np.zeros((2, 2))
        eta[free] = points[list(places)]
        one = {**params, "edge_probability": symmetric(eta, directed)}
        height = mmsb.log_evidence_polynomial(one, x, ALPHA, mask, directed=directed)
        total += weights[list(places)].prod() * np.exp(height)
    found = mmsb_integrated.log_evidence(x, 2, ALPHA, PRIOR, rho, mask, directed=directed, drawn=False)
    assert close(found, np.log(total))


@DIRECTED
def test_background_may_draw_indicators_or_not(directed):
    _, x, mask, _ = problem(7, directed)
    for rho in (0.3, ("beta", 1.2, 2.0)):
        values = [
            [f(x, 2, ALPHA, PRIOR, rho, mask, directed=directed, drawn=drawn) for drawn in (True, False)]
            for f in (mmsb_integrated.log_evidence, mmsb_integrated.membership_mean)
        ]
        assert close(*values[0]) and close(*values[1])
    points, weights = beta_rule(1.2, 2.0, 4)
    each = [
        mmsb_integrated.log_evidence(x, 2, ALPHA, PRIOR, float(one), mask, directed=directed, drawn=False)
        for one in points
    ]
    assert close(values[0][0], mmsb_integrated.log_evidence(x, 2, ALPHA, PRIOR, rho, mask, directed=directed))
    assert close(values[0][0], np.log(weights @ np.exp(each)))


@DIRECTED
@LOOPS
@RHO
def test_integrated_joint_is_joint_over_posterior_at_any_globals(directed, self_loops, rho):
    params, x, mask, rng = problem(8, directed)
    kind = {"directed": directed, "self_loops": self_loops}
    i, j, values = _graphs.dyads(x, mask, **kind)
    s, r = rng.integers(0, 2, (2, len(i)))
    z = (values == 0) & (rng.random(len(i)) < 0.5) if rho != 0.0 else np.zeros(len(i), bool)
    pi, eta, level = rng.dirichlet(np.ones(2), 3), params["edge_probability"], 0.4 if isinstance(rho, tuple) else rho
    counts = mmsb.member_counts(s, r, i, j, 3, 2)
    assert close(counts.sum(), 2 * len(i))
    tables = np.zeros((len(i), 2, 2))
    tables[np.arange(len(i)), s, r] = ~z
    a, b = mmsb_integrated.vb_globals(x, tables, PRIOR, mask, **kind)
    joint = np.log(pi[i, s]).sum() + np.log(pi[j, r]).sum()
    joint += np.where(z, 0.0, stats.bernoulli.logpmf(values, eta[s, r])).sum()
    joint += np.where(z, np.log(level) if level else 0.0, np.log1p(-level)).sum()
    free = _graphs.free_entries(2, directed=directed)
    for place in range(3):
        joint += stats.dirichlet.logpdf(pi[place], ALPHA) - stats.dirichlet.logpdf(pi[place], ALPHA + counts[place])
    joint += (stats.beta.logpdf(eta, *PRIOR) - stats.beta.logpdf(eta, a, b))[free].sum()
    if isinstance(rho, tuple):
        joint += stats.beta.logpdf(level, *rho[1:]) - stats.beta.logpdf(level, rho[1] + z.sum(), rho[2] + (~z).sum())
    assert close(mmsb_integrated.log_joint(s, r, z, x, 2, ALPHA, PRIOR, rho, mask, **kind), joint)


def vb_state(x, mask, rng, rho, drawn, kind):
    """Random gamma, tables and backgrounds, posteriors of eta and rho."""
    i, _, values = _graphs.dyads(x, mask, **kind)
    size = 8 if drawn else 5
    mass = rng.dirichlet(np.ones(size), len(i))
    if rho == 0.0:
        mass[:, 4:] = 0
    mass[values > 0, 4:] = 0
    mass /= mass.sum(1, keepdims=True)
    background = mass[:, 4:].reshape(-1, 2, 2) if drawn else mass[:, 4]
    a, b = (symmetric(rng.uniform(0.5, 3, (2, 2)), kind["directed"]) for _ in range(2))
    return rng.uniform(0.5, 3, (3, 2)), mass[:, :4].reshape(-1, 2, 2), background, a, b, rng.uniform(0.5, 3, 2)


@DIRECTED
@LOOPS
@RHO
@pytest.mark.parametrize("drawn", [False, True])
def test_vb_is_exact_for_one_configuration_and_optimal_below_the_evidence(directed, self_loops, rho, drawn):
    _, x, mask, rng = problem(10, directed)
    kind = {"directed": directed, "self_loops": self_loops}
    i, j, values = _graphs.dyads(x, mask, **kind)
    prior_rho = rho[1:] if isinstance(rho, tuple) else None

    def bound(gamma, tables, background, a, b, weight):
        a, b = symmetric(a, directed), symmetric(b, directed)
        arguments = (x, gamma, tables, a, b, ALPHA, PRIOR, background, rho, weight, mask)
        return sum(mmsb_integrated.vb_terms(*arguments, **kind).values())

    def globals_of(tables, background):
        gamma = ALPHA + mmsb_integrated.member_sums(tables, background, i, j, 3)
        weight = prior_rho and np.array([prior_rho[0] + background.sum(), prior_rho[1] + tables.sum()])
        return gamma, *mmsb_integrated.vb_globals(x, tables, PRIOR, mask, **kind), weight

    gamma, tables, background, a, b, weight = vb_state(x, mask, rng, rho, drawn, kind)
    mass = np.concatenate([tables.reshape(len(i), -1), background.reshape(len(i), -1)], axis=1)
    one_hot = np.eye(mass.shape[1])[[rng.choice(len(one), p=one) for one in mass]]
    certain = one_hot[:, :4].reshape(-1, 2, 2), one_hot[:, 4:].reshape(background.shape)
    best = globals_of(*certain)
    place = one_hot.argmax(1)
    s, r = np.where(place == 4, 0, place % 4 // 2) if not drawn else place % 4 // 2, place % 2 * (drawn | (place < 4))
    exact = mmsb_integrated.log_joint(s, r, place > 3, x, 2, ALPHA, PRIOR, rho, mask, drawn=drawn, **kind)
    assert close(bound(best[0], *certain, *best[1:]), exact)
    evidence = None
    if len(i) <= 5:
        evidence = mmsb_integrated.log_evidence(x, 2, ALPHA, PRIOR, rho, mask, drawn=False, **kind)
    before = bound(gamma, tables, background, a, b, weight)
    for _ in range(3):
        each = np.where(values[:, None, None] > 0, digamma(a), digamma(b)) - digamma(a + b)
        log_rho = mmsb_integrated.expected_log_rho(rho, weight)
        tables, background = mmsb_integrated.table_optimum(each, i, j, values, gamma, log_rho, drawn)
        after = bound(gamma, tables, background, a, b, weight)
        assert after >= before - 1e-12
        other = vb_state(x, mask, rng, rho, drawn, kind)
        assert bound(gamma, *other[1:3], a, b, weight) <= after + 1e-12
        gamma, a, b, weight = globals_of(tables, background)
        before = bound(gamma, tables, background, a, b, weight)
        assert before >= after - 1e-12 and (evidence is None or before <= evidence + 1e-12)
    assert np.abs(slopes(lambda v: bound(v, tables, background, a, b, weight), gamma)).max() < 1e-6
    assert np.abs(slopes(lambda v: bound(gamma, tables, background, v, b, weight), a)).max() < 1e-6
    if prior_rho:
        assert np.abs(slopes(lambda v: bound(gamma, tables, background, a, b, v), weight)).max() < 1e-6


@DIRECTED
def test_bounds_at_given_globals_and_what_the_background_costs_them(directed):
    """Of three ways to treat the background at a fixed rho, drawing no indicators there is the tightest."""
    params, x, mask, rng = problem(11, directed, rho=0.3)
    i, j, values = _graphs.dyads(x, mask, directed=directed)
    plain = mmsb.log_edges({**params, "sparsity": 0.0}, values)
    evidence = mmsb.log_evidence_polynomial(params, x, ALPHA, mask, directed=directed)
    log_rho, reached = mmsb_integrated.expected_log_rho(0.3), {}
    for way in ("summed", "drawn", "not drawn"):
        gamma = rng.uniform(0.5, 3, (3, 2))
        for _ in range(300):
            if way == "summed":
                edges = mmsb.log_edges(params, values)
                tables, _ = mmsb_integrated.table_optimum(edges, i, j, values, gamma)
                parts = mmsb_integrated.terms(edges, i, j, gamma, tables, ALPHA)
                background = None
            else:
                tables, background = mmsb_integrated.table_optimum(plain, i, j, values, gamma, log_rho, way == "drawn")
                parts = mmsb_integrated.terms(plain, i, j, gamma, tables, ALPHA, background, log_rho)
            gamma = ALPHA + mmsb_integrated.member_sums(tables, background, i, j, 3)
        reached[way] = sum(parts.values())
        assert reached[way] <= evidence + 1e-12
    assert close(reached["summed"], reached["drawn"], atol=1e-8)  # q(z | s, r) is free in both
    assert reached["not drawn"] > reached["summed"]
