"""The brute-force references of the block models against themselves: two roads to each exact number."""

import itertools

import numpy as np
import pytest
from scipy import stats
from scipy.special import expit

from tests.references import _graphs, covariate_sbm, degree_corrected_sbm, poisson_sbm, sbm
from tests.references.rows_test import close, masked, slopes

pytestmark = pytest.mark.quick

DIRECTED = pytest.mark.parametrize("directed", [True, False])
LOOPS = pytest.mark.parametrize("self_loops", [False, True])
MISSING = pytest.mark.parametrize("missing", [0.0, 0.3])
ALPHA, PRIOR = np.array([0.6, 1.7]), (1.4, 2.3)


def symmetric(value, directed):
    return value if directed else np.triu(value) + np.swapaxes(np.triu(value, 1), 0, 1)


def problem(seed, directed=True, missing=0.0, num_nodes=4, num_blocks=2):
    """Globals of all block models, an adjacency of edges and one of counts, a mask, and random numbers."""
    rng = np.random.default_rng(seed)
    params = {
        "block_proportion": rng.dirichlet(np.full(num_blocks, 3.0)),
        "edge_probability": symmetric(rng.uniform(0.05, 0.95, (num_blocks, num_blocks)), directed),
        "edge_rate": symmetric(rng.uniform(0.2, 3.0, (num_blocks, num_blocks)), directed),
        "propensity": rng.uniform(0.3, 2.0, num_nodes),
        "out_propensity": rng.uniform(0.3, 2.0, num_nodes),
        "in_propensity": rng.uniform(0.3, 2.0, num_nodes),
    }
    edges = symmetric((rng.random((num_nodes, num_nodes)) < 0.5).astype(float), directed)
    counts = symmetric(rng.poisson(1.5, (num_nodes, num_nodes)).astype(float), directed)
    mask = masked(rng, edges.shape, missing)
    return params, edges, counts, mask, rng


@DIRECTED
@LOOPS
def test_log_joint_dyad_by_dyad(directed, self_loops):
    params, edges, counts, mask, rng = problem(0, directed, 0.3)
    q, kind = rng.integers(0, 2, 4), {"directed": directed, "self_loops": self_loops}
    pi, eta, rate = params["block_proportion"], params["edge_probability"], params["edge_rate"]
    out, into = degree_corrected_sbm.propensities(params, directed=directed)
    expected = np.repeat(np.log(pi[q]).sum(), 3)
    for i, j in itertools.product(range(4), repeat=2):
        if not mask[i, j] or (i == j and not self_loops) or (i > j and not directed):
            continue
        expected[0] += stats.bernoulli.logpmf(edges[i, j], eta[q[i], q[j]])
        expected[1] += stats.poisson.logpmf(counts[i, j], rate[q[i], q[j]])
        expected[2] += stats.poisson.logpmf(counts[i, j], rate[q[i], q[j]] * out[i] * into[j])
    upper = np.ones((2, 2), bool) if directed else np.triu(np.ones((2, 2), bool))
    priors = {"edge_probability": (2.0, 3.0), "edge_rate": ("gamma", 2.0, 3.0), "block_proportion": ("dirichlet", 2.5)}
    density = stats.dirichlet.logpdf(pi, [2.5, 2.5])
    dense = {
        "edge_probability": density + stats.beta.logpdf(eta, 2, 3)[upper].sum(),
        "edge_rate": density + stats.gamma.logpdf(rate, 2, scale=1 / 3)[upper].sum(),
    }
    models = [(sbm, edges), (poisson_sbm, counts), (degree_corrected_sbm, counts)]
    for (module, x), value, site in zip(models, expected, ["edge_probability", "edge_rate", "edge_rate"], strict=True):
        filled = np.where(mask, x, 7.0) if directed else np.where(np.tril(np.ones((4, 4)), -1) > 0, 5.0, x)
        for values in (x, filled):  # neither what is hidden nor the lower triangle is looked at
            assert close(module.log_joint(params, values, q, mask, **kind), value)
        chosen = {name: prior for name, prior in priors.items() if name in (site, "block_proportion")}
        assert close(module.log_joint(params, x, q, mask, chosen, **kind), value + dense[site])


@DIRECTED
def test_evidence_sums_to_one_over_all_graphs(directed):
    params, _, _, _, _ = problem(1, directed)
    total, num_dyads = np.zeros(2), 6 if directed else 3
    i, j, _ = _graphs.dyads(np.zeros((3, 3)), directed=directed)
    for values in itertools.product([0.0, 1.0], repeat=num_dyads):
        x = np.zeros((3, 3))
        x[i, j] = values
        total[0] += np.exp(sbm.graph(params, x, directed=directed).log_evidence())
        total[1] += np.exp(sbm.log_evidence_integrated(x, 2, ALPHA, PRIOR, directed=directed))
    assert close(total, 1.0)


def test_evidence_of_two_nodes_by_hand():
    params, _, _, _, _ = problem(2, directed=False)
    pi, eta = params["block_proportion"], params["edge_probability"]
    at = sbm.graph(params, np.array([[0.0, 1.0], [1.0, 0.0]]), directed=False)
    assert close(at.log_evidence(), np.log(pi @ eta @ pi))
    _, weight = at.posterior()
    assert close(weight.reshape(2, 2), np.outer(pi, pi) * eta / (pi @ eta @ pi))
    # E[pi_a pi_b] of a Dirichlet, and E[eta] alike for every pair of blocks
    assert close(sbm.log_evidence_integrated([[0, 1], [1, 0]], 2, ALPHA, PRIOR, directed=False), np.log(1.4 / 3.7))


@DIRECTED
@LOOPS
@MISSING
def test_posterior_gives_the_slope_of_the_evidence(directed, missing, self_loops):
    """d log p(x) / d eta_ab = sum over dyads of P(q_i = a, q_j = b | x) d log p(x_ij | a, b) / d eta_ab."""
    params, edges, _, mask, _ = problem(3, True, missing)  # no symmetry: every entry is moved alone
    kind = {"directed": directed, "self_loops": self_loops}
    at = sbm.graph(params, edges, mask, **kind)
    q, weight = at.posterior()
    _, _, values = _graphs.dyads(edges, mask, **kind)
    eta, expected = params["edge_probability"], np.zeros((2, 2))
    for a, b in itertools.product(range(2), repeat=2):
        both = weight @ ((q[:, at.i] == a) & (q[:, at.j] == b))
        expected[a, b] = both @ np.where(values > 0, 1 / eta[a, b], -1 / (1 - eta[a, b]))
    found = slopes(lambda e: sbm.graph({**params, "edge_probability": e}, edges, mask, **kind).log_evidence(), eta)
    assert np.allclose(found, expected, rtol=1e-7, atol=1e-7)
    marginal = _graphs.marginals(q, weight, 2)
    assert close(marginal.sum(1), 1.0)
    pi = params["block_proportion"]
    found = slopes(lambda p: sbm.graph({**params, "block_proportion": p}, edges, mask, **kind).log_evidence(), pi)
    assert np.allclose(found, marginal.sum(0) / pi, rtol=1e-7)
    together = _graphs.coassignment(q, weight)
    assert close(np.diag(together), 1.0) and close(together, together.T) and (together[0, 1] < 1)


@DIRECTED
@LOOPS
@MISSING
def test_names_of_nodes_and_blocks_do_not_matter(directed, missing, self_loops):
    params, edges, _, mask, rng = problem(4, directed, missing)
    mask = None if mask is None else (mask if directed else symmetric(mask.astype(float), False) > 0)
    kind = {"directed": directed, "self_loops": self_loops}
    at = sbm.graph(params, edges, mask, **kind)
    other = sbm.graph(_graphs.relabelled(params, [1, 0]), edges, mask, **kind)
    assert close(other.log_evidence(), at.log_evidence())
    assert close(_graphs.marginals(*other.posterior(), 2)[:, [1, 0]], _graphs.marginals(*at.posterior(), 2))
    assert close(_graphs.coassignment(*other.posterior()), _graphs.coassignment(*at.posterior()))
    order = rng.permutation(4)
    grid = np.ix_(order, order)
    moved = sbm.graph(params, edges[grid], None if mask is None else mask[grid], **kind)
    assert close(moved.log_evidence(), at.log_evidence())
    assert close(_graphs.marginals(*moved.posterior(), 2), _graphs.marginals(*at.posterior(), 2)[order])


def test_special_cases():
    params, edges, counts, mask, rng = problem(5, True, 0.3)
    ones = {**params, "out_propensity": np.ones(4), "in_propensity": np.ones(4)}
    expected = poisson_sbm.graph(params, counts, mask).log_evidence()
    assert close(degree_corrected_sbm.graph(ones, counts, mask).log_evidence(), expected)
    weight = np.stack([rng.normal(size=(2, 2)), rng.normal(size=(2, 2))], -1)
    flat = {**params, "weight": weight, "edge_probability": expit(weight.sum(-1))}
    for combine in ("product", "concatenate"):
        extra = np.zeros((2, 2, 1 if combine == "concatenate" else 0))
        at = covariate_sbm.graph(
            {**flat, "weight": np.concatenate([weight, extra], -1)}, edges, np.ones((4, 1)), combine, mask
        )
        assert close(at.log_evidence(), sbm.graph(flat, edges, mask).log_evidence())
    assert close(covariate_sbm.features([[2.0], [5.0]], [0], [1], "difference"), [[1.0, 3.0]])
    q, priors = rng.integers(0, 2, 4), {"weight": ("normal", 0.0, 2.5)}
    joint = covariate_sbm.log_joint(flat, edges, q, mask, priors, covariates=np.ones((4, 1)))
    density = stats.norm.logpdf(weight, 0, 2.5).sum()
    assert close(joint, sbm.log_joint(flat, edges, q, mask) + density)


@DIRECTED
@LOOPS
@MISSING
def test_integrated_joint_is_joint_over_posterior_at_any_globals(directed, missing, self_loops):
    """log p(x, q) = log p(x, q, globals) - log p(globals | x, q), the latter conjugate, whatever the globals."""
    params, edges, counts, mask, rng = problem(7, directed, missing)
    kind, q = {"directed": directed, "self_loops": self_loops}, rng.integers(0, 2, 4)
    free = _graphs.free_entries(2, directed=directed)
    pi, phi = params["block_proportion"], np.eye(2)[q]
    weight, a, b = sbm.vb_globals(edges, phi, ALPHA, PRIOR, mask, **kind)
    posterior = stats.dirichlet.logpdf(pi, weight)
    eta = params["edge_probability"]
    priors = {"block_proportion": ("dirichlet", ALPHA), "edge_probability": PRIOR, "edge_rate": ("gamma", *PRIOR)}
    one = {site: params[site] for site in ("block_proportion", "edge_probability")}
    joint = sbm.log_joint(one, edges, q, mask, priors, **kind)
    found = sbm.log_joint_integrated(q, edges, 2, ALPHA, PRIOR, mask, **kind)
    assert close(found, joint - posterior - stats.beta.logpdf(eta, a, b)[free].sum())
    rate = params["edge_rate"]
    _, shape, divisor = poisson_sbm.vb_globals(counts, phi, ALPHA, PRIOR, mask, **kind)
    one = {site: params[site] for site in ("block_proportion", "edge_rate")}
    joint = poisson_sbm.log_joint(one, counts, q, mask, priors, **kind)
    density = stats.gamma.logpdf(rate, shape, scale=1 / divisor)[free].sum()
    found = poisson_sbm.log_joint_integrated(q, counts, 2, ALPHA, PRIOR, mask, **kind)
    assert close(found, joint - posterior - density)
    joint = degree_corrected_sbm.log_joint(params, counts, q, mask, {**priors}, **kind)
    joint -= stats.beta.logpdf(eta, *PRIOR)[free].sum()  # the dictionary holds every model's sites
    i, j, _ = _graphs.dyads(counts, mask, **kind)
    out, into = degree_corrected_sbm.propensities(params, directed=directed)
    exposure = PRIOR[1] + _graphs.block_sums(phi, out[i] * into[j], i, j, directed=directed)
    density = stats.gamma.logpdf(rate, shape, scale=1 / exposure)[free].sum()
    found = degree_corrected_sbm.log_joint_integrated(q, counts, params, 2, ALPHA, PRIOR, mask, **kind)
    assert close(found, joint - posterior - density)


@DIRECTED
def test_integrated_evidence_by_draws_of_the_globals(directed):
    """The mean of p(x | globals) over the prior, within four standard errors."""
    _, edges, counts, _, rng = problem(8, directed, num_nodes=3)
    size = 1500
    pi = rng.dirichlet(ALPHA, size)
    eta = rng.beta(*PRIOR, (size, 2, 2))
    rate = rng.gamma(PRIOR[0], 1 / PRIOR[1], (size, 2, 2))
    models = [
        (sbm, "edge_probability", eta, edges, sbm.log_evidence_integrated),
        (poisson_sbm, "edge_rate", rate, counts, poisson_sbm.log_evidence_integrated),
    ]
    for module, site, values, x, evidence in models:
        draws = [
            module.graph({"block_proportion": p, site: symmetric(v, directed)}, x, directed=directed).log_evidence()
            for p, v in zip(pi, values, strict=True)
        ]
        weight, exact = np.exp(draws), np.exp(evidence(x, 2, ALPHA, PRIOR, directed=directed))
        assert abs(weight.mean() - exact) <= 4 * weight.std() / np.sqrt(size)
