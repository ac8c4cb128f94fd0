"""MMSB with memberships integrated out exactly, against the sum over all indicators, and its joint posterior."""

from __future__ import annotations

import math

import numpy as np
import pyro.distributions as dist
import pytest
import torch

import custom_inference as ci
from custom_inference import EM, CollapsedGibbs, Exact
from custom_inference.core.enumeration import enumerate_log_joint
from custom_inference.core.posterior_bounds import row_log_joint
from custom_inference.core.posteriors import (
    DirichletMixture,
    DirichletPosterior,
    JointDirichletMixture,
    kullback_leibler,
)
from custom_inference.core.registry import engine_for
from ppl_models import MMSB, CapacityError, MMSBIndicator
from tests.references import mmsb as reference

pytestmark = pytest.mark.quick

ALPHA = [0.4, 0.9]
#: directed, nodes, dyads hidden, rho, self loops
CASES = [
    (True, 3, False, 0.0, False),
    (True, 3, True, 0.2, False),
    (False, 4, False, 0.0, False),
    (False, 4, True, 0.3, False),
    (False, 3, False, 0.1, True),
    (True, 2, False, 0.0, True),
]


def problem(directed, nodes, hidden=False, rho: float | None = 0.0, self_loops=False, seed=0, size=2):
    """(model, data, params, what the reference takes)."""
    rng = np.random.default_rng(seed)
    x = (rng.random((nodes, nodes)) < 0.5).astype(float)
    x = x if directed else np.triu(x) + np.triu(x, 1).T
    x[0, 1], x[1, 0] = 1.0, 1.0 - directed  # no directed graph that looks undirected
    x = x if self_loops else x * (1 - np.eye(nodes))
    mask = None
    if hidden:
        mask = np.ones((nodes, nodes), bool)
        mask[0, 1] = mask[1, 0] = False
    eta = rng.uniform(0.1, 0.9, (size, size))
    eta = eta if directed else np.triu(eta) + np.triu(eta, 1).T
    alpha = torch.tensor(ALPHA if size == 2 else np.linspace(0.4, 0.9, size))
    settings = {"num_blocks": size, "num_nodes": nodes, "directed": directed, "self_loops": self_loops}
    model = MMSB(**settings, sparsity=rho).with_concentration(alpha)
    params = {"edge_probability": torch.as_tensor(eta)}
    known = {"edge_probability": eta, "sparsity": rho}
    return model, model.prepare(x, mask=mask), params, (known, x, alpha.numpy(), mask, {
        "directed": directed, "self_loops": self_loops})  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_evidence_and_posterior_are_those_of_all_indicators(case):
    model, data, params, (known, x, alpha, mask, kind) = problem(*case)
    steps = engine_for(model, "exact")
    rows = steps.rows(model, data)
    expected = reference.log_evidence(known, x, alpha, mask, **kind)
    assert steps.log_evidence(model, params, rows).shape == (1,)
    assert float(steps.log_evidence(model, params, rows)) == pytest.approx(expected, rel=1e-12)
    local = Exact().local_posterior(model, params, data)
    assert float(local.bound) == pytest.approx(expected, rel=1e-12)
    mean = reference.posterior_mean(known, x, alpha, mask, **kind)
    assert np.allclose(local.posterior.mean.numpy(), mean, rtol=0, atol=1e-12)
    step, table = steps.e_step(model, params, rows), reference.indicator_posterior(known, x, alpha, mask, **kind)
    i, j = (np.ones_like(x) if kind["directed"] else np.triu(np.ones_like(x))).astype(bool).nonzero()
    keep = ((i != j) | kind["self_loops"]) & (True if mask is None else mask[i, j])
    values, rho = x[i[keep], j[keep]][:, None, None], known["sparsity"]
    inside = (1 - rho) * np.where(values > 0, known["edge_probability"], 1 - known["edge_probability"])
    seen = table * inside / (inside + rho * (1 - values))
    for name, part in (("links", seen * values), ("gaps", seen * (1 - values))):
        total = part.sum(0)
        total = total if kind["directed"] else total + total.T - np.diag(np.diag(total))
        assert np.allclose(step.statistics[name].numpy(), total, atol=1e-12)
    assert float(step.statistics["background"][0]) == pytest.approx((table - seen).sum(), abs=1e-12)


@pytest.mark.parametrize("directed, nodes, size", [(True, 4, 2), (False, 5, 2), (False, 4, 3)])
def test_larger_graphs_against_the_polynomial(directed, nodes, size):
    model, data, params, (known, x, alpha, mask, kind) = problem(directed, nodes, rho=0.1, size=size)
    local = Exact().local_posterior(model, params, data)
    expected = reference.log_evidence_polynomial(known, x, alpha, mask, **kind)
    assert float(local.bound) == pytest.approx(expected, rel=1e-12)
    mean = reference.posterior_mean_polynomial(known, x, alpha, mask, **kind)
    assert np.allclose(local.posterior.mean.numpy(), mean, rtol=0, atol=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_the_joint_density_is_log_joint_less_log_evidence(case):
    model, data, params, _ = problem(*case)
    local = Exact().local_posterior(model, params, data)
    for pi in local.posterior.sample(3, seed=1):
        joint = row_log_joint(model, params, data.dense(), pi)
        assert torch.allclose(local.posterior.log_prob(pi), joint - local.bound, atol=1e-9)


def test_the_evidence_is_differentiable():
    model, data, params, _ = problem(False, 4, hidden=True, rho=None)
    steps = engine_for(model, "exact")
    rows = steps.rows(model, data)
    eta, rho = params["edge_probability"].clone().requires_grad_(), torch.tensor(0.2, requires_grad=True)

    def evidence(eta, rho):
        return steps.log_evidence(model, {"edge_probability": eta, "sparsity": rho}, rows)

    assert torch.autograd.gradcheck(evidence, (eta, rho))


@pytest.mark.parametrize("directed, rho", [(True, 0.0), (False, None)])
def test_em_climbs_the_evidence_to_a_stationary_point(directed, rho):
    model, data, *_ = problem(directed, 4, rho=rho, seed=3)
    model = model.with_priors(edge_probability=dist.Beta(2.0, 2.0))
    model = model if rho is not None else model.with_priors(sparsity=dist.Beta(2.0, 4.0))
    method = EM(search=None, accelerate=None, max_iterations=400, tolerance=1e-12)
    fit = method.fit(model, data, seed=0, progress=False)
    gain = np.diff(fit.elbo.numpy())
    assert (gain > -1e-9).all() and fit.bound_name == "exact" and fit.log_likelihood().shape == (1,)
    steps = engine_for(model, "exact")
    params = {site: fit.params[site].clone().requires_grad_() for site in model.shapes}
    goal = steps.log_evidence(model, params, steps.rows(model, data)).sum() + model.log_prior(params)
    slopes = torch.autograd.grad(goal, list(params.values()))
    # Of symmetric matrices only the entries a <= b are free: the slopes of the mirrored ones add up.
    pairs = slopes[0] if directed else slopes[0] + slopes[0].T - torch.diag(slopes[0].diagonal())
    assert float(pairs.abs().max()) < 2e-4 and all(float(slope.abs().max()) < 2e-4 for slope in slopes[1:])
    assert fit.params["membership"].shape == (4, 2)


def test_refuses_what_does_not_fit():
    model, data, params, _ = problem(False, 12)
    with pytest.raises(CapacityError, match=r"complete graphs of up to \d+ nodes would fit.*dirichlet"):
        Exact().local_posterior(model, params, data)
    small, data, params, _ = problem(True, 4)
    steps = engine_for(small, "exact", max_bytes=2**18)
    with pytest.raises(CapacityError, match="up to 3 nodes would fit"):
        steps.log_evidence(small, params, steps.rows(small, data))


def test_a_joint_mixture_of_one_node_is_a_mixture():
    rng = np.random.default_rng(0)
    concentration = torch.as_tensor(rng.uniform(0.3, 4.0, (5, 2, 3)))
    log_weight = torch.log_softmax(torch.as_tensor(rng.normal(size=5)), 0)
    joint, pi = JointDirichletMixture(log_weight, concentration), torch.as_tensor(rng.dirichlet(np.ones(3), 2))
    assert torch.allclose(joint.rows(slice(0, 1)).log_prob(pi[:1]), joint.marginal(0).log_prob(pi[:1]))
    assert isinstance(joint.marginal(1), DirichletMixture)
    each = torch.stack([DirichletPosterior(c).log_prob(pi).sum() for c in concentration])
    assert torch.allclose(joint.log_prob(pi), (log_weight + each).logsumexp(0))
    draws = joint.sample(20000, seed=2)
    error = draws.std(0) / math.sqrt(len(draws))
    assert bool(((draws.mean(0) - joint.mean).abs() < 5 * error).all())
    # Nodes depend on each other: the draws' covariance across nodes is that of the components' means.
    means = concentration / concentration.sum(-1, keepdim=True) - joint.mean
    across = torch.einsum("m,ma,mb->ab", log_weight.exp(), means[:, 0], means[:, 1])
    found = torch.einsum("sa,sb->ab", draws[:, 0] - joint.mean[0], draws[:, 1] - joint.mean[1]) / len(draws)
    assert torch.allclose(found, across, atol=0.005)
    assert joint.mode.shape == (2, 3)


def test_the_divergence_from_a_joint_posterior_is_that_of_all_nodes():
    """log evidence - ELBO = KL(q || p): by draws of q, within their error."""
    model, data, params, _ = problem(True, 3)
    exact = Exact().local_posterior(model, params, data)
    q = DirichletPosterior(torch.tensor([[1.0, 2.0], [2.0, 1.5], [3.0, 1.0]]))
    draws = q.sample(1000, seed=0)
    i, j = model.dyads(torch.arange(model.num_dyads()))
    value, mean = data.dense().x[i, j], (draws[:, i] @ params["edge_probability"] * draws[:, j]).sum(-1)
    log_p = torch.where(value > 0, mean.log(), torch.log1p(-mean)).sum(-1)
    log_p += model.priors["membership"].log_prob(draws).sum(-1)
    gains = log_p - torch.stack([q.log_prob(one).sum() for one in draws])
    expected = exact.bound - gains.mean()
    assert torch.allclose(kullback_leibler(q, exact.posterior, seed=0), expected, atol=1e-9)
    assert float(kullback_leibler(exact.posterior, exact.posterior)) == 0.0


@pytest.mark.parametrize("case", CASES)
def test_summing_the_indicators_of_the_program_out_leaves_mmsb(case):
    nodes, hidden = case[1:3]
    model, data, params, _ = problem(*case)
    kept = MMSBIndicator(**model.settings(), priors=model.priors)
    pi = dist.Dirichlet(torch.full((2,), 0.7)).sample(torch.Size([nodes]))
    _, table = enumerate_log_joint(kept, {**params, "membership": pi}, data.dense())
    log_prior = model.priors["membership"].log_prob(pi).sum()
    expected = row_log_joint(model, params, data.dense(), pi) - log_prior
    total = table.logsumexp(-1)
    if hidden:  # an unobserved dyad still has indicators, whose probabilities sum to 1
        assert bool((total.abs() < 1e-12).any())
    assert table.shape == (model.num_dyads(), 4)
    assert torch.allclose(total.sum(), expected.sum(), atol=1e-10)


def test_compare_of_methods_on_a_toy_graph():
    model, data, params, _ = problem(True, 4, rho=0.1, seed=5)
    table = ci.compare([Exact(), CollapsedGibbs()], model, data, at=params, progress=False).table
    exact, gibbs = (table.iloc[row] for row in range(2))
    assert exact.gap_per_row == 0 and exact.kl_per_row == 0 and exact.worst_marginal_error == 0
    assert gibbs.worst_marginal_error < 0.06 and math.isnan(gibbs.bound)
    assert 0 <= gibbs.kl_per_row < 0.25
