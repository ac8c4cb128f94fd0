"""NUTS on toy graphs: memberships sampled with the globals, blocks summed out."""

from __future__ import annotations

import arviz as az
import numpy as np
import pyro.distributions as dist
import pytest
import torch

import custom_inference as ci
from custom_inference.mcmc import log_joint_potential
from ppl_models import MMSB, SBM, CapacityError, CovariateSBM, DegreeCorrectedSBM, GraphData
from ppl_models.data import sparse as _sparse
from tests.references import sbm as reference

pytestmark = pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")


def two_groups(*, directed: bool, size: int = 6) -> GraphData:
    """Full within two halves but for one edge, one edge between them, one dyad hidden."""
    half = torch.arange(size) < size // 2
    x = (half[:, None] == half).double().fill_diagonal_(0)
    x[0, 1] = x[1, 0] = 0
    x[0, size - 1] = x[size - 1, 0] = 1
    hidden = torch.tensor([[1], [2]])
    x[1, 2] = 0
    if not directed:
        x[2, 1] = 0
    return GraphData(x=_sparse.from_dense(x), directed=directed, hidden=hidden)


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("kind", [SBM, DegreeCorrectedSBM, CovariateSBM])
def test_potential_is_the_log_joint_with_blocks_summed_out(kind, directed):
    """Against the exact steps (or the enumeration) at given globals, and finite with its gradient."""
    data = two_groups(directed=directed)
    settings = {"covariates": torch.randn(6, 1)} if kind is CovariateSBM else {"num_nodes": 6}
    model = kind(num_blocks=2, directed=directed, **settings)
    potential, transforms = log_joint_potential(model, model.as_read(data))
    params = {site: model.prior(site).sample() for site in model.global_sites}
    raw = {site: transforms[site](value).clone().requires_grad_() for site, value in params.items()}
    value = potential(raw)
    exact = ci.Exact(generic=True).local_posterior(model, params, model.as_read(data)).bound
    volume = sum(transforms[s].inv.log_abs_det_jacobian(z.detach(), params[s]).sum() for s, z in raw.items())
    prior = sum(model.prior(site).log_prob(v).sum() for site, v in params.items())
    assert np.isclose(float(value.detach()), -float(exact + prior + volume), rtol=1e-9)
    value.backward()
    assert all(torch.isfinite(z.grad).all() for z in raw.values())


def test_blocks_are_summed_out_and_densities_have_their_posterior_mean():
    """The mean of the summed densities, which no order of the blocks changes, against importance sampling."""
    data = two_groups(directed=False)
    model = SBM(num_blocks=2, num_nodes=6, directed=False)
    fit = ci.NUTS(num_samples=150, warmup=50, chains=1, max_tree_depth=4).fit(model, data, progress=False)
    eta = fit.draws["edge_probability"]
    assert eta.shape == (1, 150, 2, 2) and torch.equal(eta, eta.transpose(2, 3))
    assert set(fit.draws) == {"block_proportion", "edge_probability"} and "0 divergences" in fit.status
    drawn = [{s: model.prior(s).sample() for s in model.global_sites} for _ in range(1000)]
    dense, weight, value = data.dense(), [], []
    for params in drawn:
        arrays = {site: v.numpy() for site, v in params.items()}
        evidence = reference.graph(arrays, dense.x.numpy(), dense.mask.numpy(), directed=False).log_evidence()
        weight.append(float(np.sum(evidence)))
        value.append(float(params["edge_probability"].diagonal().sum()))
    share = np.exp(np.array(weight) - max(weight))
    share /= share.sum()
    effective = 1 / (share**2).sum()
    expected = float(share @ np.array(value))
    sigma = float(np.sqrt(share @ (np.array(value) - expected) ** 2))
    found = eta.diagonal(dim1=2, dim2=3).sum(-1)
    independent = float(az.ess(found.numpy()))
    assert effective > 30 and independent > 30
    assert abs(float(found.mean()) - expected) < 4 * sigma * (1 / effective + 1 / independent) ** 0.5
    assert fit.posterior.mean.shape == (6, 2)


@pytest.mark.parametrize("directed", [True, False])
def test_memberships_are_sampled_with_the_globals(directed):
    data = two_groups(directed=directed)
    model = MMSB(num_blocks=2, num_nodes=6, directed=directed)
    fit = ci.NUTS(num_samples=15, warmup=15, chains=1, max_tree_depth=3).fit(model, data, progress=False)
    membership, eta = fit.draws["membership"], fit.draws["edge_probability"]
    assert membership.shape == (1, 15, 6, 2) and torch.allclose(membership.sum(-1), torch.ones(1, 15, 6))
    assert directed or torch.equal(eta, eta.transpose(2, 3))
    assert fit.params["membership"].shape == (6, 2) and torch.isfinite(fit.elbo).all()


def test_labelings_that_cannot_be_summed_over_are_refused():
    model = SBM(num_blocks=3, num_nodes=40, directed=False)
    x = (torch.rand(40, 40) < 0.2).double().triu(1)
    data = GraphData(x=_sparse.from_dense(x + x.T), directed=False)
    for method in (ci.NUTS(), ci.SVI(guide="delta"), ci.SVI(guide="normal")):
        with pytest.raises(CapacityError, match="mean_field"):
            method.fit(model.with_priors(edge_probability=dist.Beta(2.0, 2.0)), data, progress=False)
