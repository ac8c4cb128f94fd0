"""The correlated topic model's engine against brute-force integrals, and what makes it EM."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import custom_inference as ci
from custom_inference.core.local_inference import solve_local
from ppl_models import CTM, ModelError
from tests.references import ctm as reference


def problem(size: int, seed: int):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(size, size))
    params = {
        "topic": rng.dirichlet(np.full(5, 0.5), size),
        "mean": rng.normal(size=size),
        "covariance": root @ root.T + 0.3 * np.eye(size),
    }
    x = rng.poisson(1.2, (6, 5)).astype(float)
    x[0] = 0  # a document without tokens
    return CTM(num_topics=size, vocabulary_size=5), params, x


@pytest.mark.quick
@pytest.mark.parametrize(("size", "seed"), [(2, 0), (2, 1), (3, 2)])
def test_bound_is_below_the_integral_and_close_to_it(size, seed):
    model, params, x = problem(size, seed)
    mask = np.random.default_rng(seed).random(x.shape) > 0.2
    tensors = {site: torch.as_tensor(value) for site, value in params.items()}
    for observed in (None, mask):
        data = model.prepare(x, mask=observed, dtype=torch.float64)
        local = solve_local(model, tensors, data, bound="gaussian")
        evidence = reference.log_evidence(params, x, observed)
        gap = evidence - local.bound.numpy()
        assert (gap > -1e-8).all() and gap.max() < 2.0
        means, spread = reference.posterior_logit(params, x, observed)
        centred = local.posterior.mean.numpy() - local.posterior.mean.numpy().mean(-1, keepdims=True)
        off = np.abs(centred - (means - means.mean(-1, keepdims=True)))
        assert (off < 1.5 * np.sqrt(np.diagonal(spread, axis1=1, axis2=2))).all() and off.mean() < 0.4
    assert abs(float(local.bound[0])) < 1e-8  # nothing observed: the posterior is the prior


def test_em_climbs_to_where_nothing_has_a_slope():
    example = CTM.example()
    model, data = example.model, example.model.prepare(example.data, dtype=torch.float64)
    method = ci.VariationalEM(guide="gaussian", tolerance=1e-11, max_iterations=3000, search=ci.Search(restarts=1))
    fit = method.fit(model, data, progress=False)
    assert float(fit.elbo.diff().min()) > -1e-6

    def objective(params):
        sites = ("mean", "covariance")
        rest = sum(float(model.prior(site, like=params[site]).log_prob(params[site])) for site in sites)
        return float(solve_local(model, params, data, bound="gaussian").bound.sum()) + rest

    generator = torch.Generator().manual_seed(0)
    for site in ("mean", "covariance"):
        way = torch.randn(fit.params[site].shape, generator=generator, dtype=torch.float64)
        way = 1e-4 * (way + way.T if way.ndim == 2 else way)
        up, down = (objective({**fit.params, site: fit.params[site] + sign * way}) for sign in (1, -1))
        assert abs(up - down) / 2e-4 < 0.05, site


def test_recovers_which_topics_go_together():
    example = CTM.example()
    fit = ci.VariationalEM(guide="gaussian").fit(example.model, example.data, progress=False)
    found = ci.align(fit, example.truth).apply(fit.params, example.model.dims)
    assert float((found["topic"] - example.truth["topic"]).abs().sum(-1).max()) < 0.35
    _, covariance = reference.identified({site: value.numpy() for site, value in found.items()})
    _, truth = reference.identified({site: value.double().numpy() for site, value in example.truth.items()})
    assert np.corrcoef(covariance.ravel(), truth.ravel())[0, 1] > 0.8


def test_refusals():
    import pyro.distributions as dist

    model = CTM(num_topics=2, vocabulary_size=3)
    with pytest.raises(ModelError, match=r"Normal of 'covariance' is not over positive definite|batch shape"):
        model.with_priors(covariance=dist.Normal(0.0, 1.0))
