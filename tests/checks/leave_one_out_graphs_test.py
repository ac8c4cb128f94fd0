"""Leave-one-out of the dyads of a graph: in closed form, by summing labelings, and the weights factor by factor."""

from itertools import product

import numpy as np
import pytest
from scipy.special import betaln, logsumexp
from scipy.stats import bernoulli, beta, dirichlet

import custom_inference as ci
from custom_inference import integrated_log_likelihood
from custom_inference.checks import pointwise as _pointwise
from custom_inference.core.draws import PosteriorDraws
from ppl_models import SBM, graph
from tests.checks.leave_one_out_test import TOLD, run


def test_dyads_of_one_block_against_the_closed_form():
    """Beta(1, 1): P(x_ij = 1 | the others) = (1 + other edges) / (2 + other dyads)."""
    matrix = np.triu(np.random.default_rng(3).random((10, 10)) < 0.5, 1)
    data = graph(1.0 * (matrix + matrix.T), directed=False)
    fit = ci.VariationalEM(guide="vb").fit(SBM(num_blocks=1, num_nodes=10, directed=False), data, progress=False)
    found = run(fit, num_draws=300)
    x, edges = matrix[np.triu_indices(10, 1)], matrix.sum()
    share = (1 + edges - x) / (2 + 44)
    assert np.allclose(found.pointwise, np.where(x, np.log(share), np.log1p(-share)), atol=0.03)
    assert found.unit == "dyad" and found.labels[0] == "0 -- 1" and len(found.labels) == 45


@TOLD
def test_dyads_of_two_blocks_against_the_sum_over_labelings():
    """log p(x_ij | the others) = log p(x) - log p(x without x_ij), each a sum over 2^6 labelings."""
    x = np.zeros((6, 6))
    for i, j in [(0, 1), (0, 2), (1, 2), (3, 4), (3, 5), (4, 5), (2, 3)]:
        x[i, j] = x[j, i] = 1.0
    data = graph(x, directed=False, mask=[(0, 5)])
    model = SBM(num_blocks=2, num_nodes=6, directed=False)

    i, j = np.triu_indices(6, 1)
    dyads = [(a, b) for a, b in zip(i.tolist(), j.tolist(), strict=True) if (a, b) != (0, 5)]
    for z in LABELINGS[5::19]:
        assert _integrated(x, dyads, z) == pytest.approx(integrated_log_likelihood(model, data, z))
    whole = _evidence(x, dyads)
    expected = np.array([whole - _evidence(x, [other for other in dyads if other != dyad]) for dyad in dyads])
    sampler = ci.CollapsedGibbs(num_samples=250, warmup=50, thin=4, chains=2, align=False)
    found = run(sampler.fit(model, data, progress=False))
    # Effective draws are a few hundred; the relative sd of 1 / p(x_ij | draw) is below 1.5.
    assert np.allclose(found.pointwise, expected, atol=0.35) and abs(found.elpd - expected.sum()) < 1.0
    assert found.labels == [f"{a} -- {b}" for a, b in dyads]


def test_weights_of_a_graph_are_the_log_joint_less_log_q():
    """Each factor by scipy: labels and dyads, and the distributions that the draws are from."""
    example = SBM.example()
    fit = ci.VariationalEM(guide="vb", max_iterations=10).fit(example.model, example.data, progress=False)
    scores = _pointwise.pointwise(fit, 25, 3, False)
    x, q = example.data.x.to_dense().numpy(), fit.global_posterior
    off = ~np.eye(24, dtype=bool)
    for number, (params, local) in enumerate(PosteriorDraws(fit, 25, 3)):
        pi, eta, z = params["block_proportion"].numpy(), params["edge_probability"].numpy(), local.numpy()
        dyads = bernoulli.logpmf(x, eta[z][:, z])[off]
        joint = np.log(pi[z]).sum() + dyads.sum()  # the priors are flat
        shares = q["block_proportion"].concentration.numpy()
        log_q = dirichlet.logpdf(pi, shares)
        log_q += beta.logpdf(eta, q["edge_probability"].on, q["edge_probability"].off).sum()
        log_q += np.log(fit.posterior.mean.numpy()[np.arange(24), z]).sum()
        assert np.allclose(scores.log_likelihood[0, number], dyads)
        assert scores.log_ratio[number] == pytest.approx(joint - log_q, abs=1e-6)


LABELINGS = list(product([0, 1], repeat=6))


def _integrated(x, dyads, z):
    """log p(x, z) of the dyads, Beta(1, 1) of edges and Dirichlet(1, 1) of the two blocks integrated out."""
    edges, others = np.zeros((2, 2)), np.zeros((2, 2))
    for a, b in dyads:
        (edges if x[a, b] else others)[min(z[a], z[b]), max(z[a], z[b])] += 1
    return betaln(1 + edges, 1 + others)[np.triu_indices(2)].sum() + betaln(1 + sum(z), 7 - sum(z))


def _evidence(x, dyads):
    return logsumexp([_integrated(x, dyads, z) for z in LABELINGS])
