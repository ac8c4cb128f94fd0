"""The bounds of block models' engines, recomputed by the references at the posteriors that the engines report."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import custom_inference as ci
from tests.references.rows_test import close
from tests.support.graphs import exact_graph, informative, reference_of, small_problem

DIRECTED = pytest.mark.parametrize("directed", [True, False])
LOOPS = pytest.mark.parametrize("self_loops", [False, True])
NAMES = ("sbm", "poisson_sbm", "degree_corrected_sbm")


def observed(fit):
    dense = fit.data.dense()
    return dense.x.numpy(), None if dense.mask is None else dense.mask.numpy()


def pair_of(posterior) -> tuple[np.ndarray, np.ndarray]:
    """The parameters of Betas or Gammas."""
    names = ("on", "off") if hasattr(posterior, "on") else ("shape", "rate")
    return tuple(getattr(posterior, name).numpy() for name in names)  # pyright: ignore[reportReturnType]


def prior_pair(model, site) -> tuple[float, float]:
    prior = model.priors[site]
    names = ("concentration1", "concentration0") if hasattr(prior, "concentration1") else ("concentration", "rate")
    return tuple(float(getattr(prior, name)) for name in names)  # pyright: ignore[reportReturnType]


def propensities(fit) -> list[tuple[np.ndarray, np.ndarray]]:
    """(shape, rate) of the sender's and the receiver's, one and the same if undirected; none without them."""
    names = ("out_propensity", "in_propensity") if fit.model.directed else ("propensity", "propensity")
    return [pair_of(fit.global_posterior[name]) for name in names if name in fit.global_posterior]


@pytest.mark.parametrize("name", NAMES)
@DIRECTED
@LOOPS
@pytest.mark.parametrize("hidden", [0.0, 0.25])
def test_vb_bound_is_that_of_the_references(name, directed, self_loops, hidden):
    """Every term, every constant: E[log p] - E[log q] at the engine's own q, converged or not."""
    problem = small_problem(name, directed=directed, self_loops=self_loops, hidden=hidden)
    model, reference = informative(problem.model), reference_of(name)
    for iterations in (1, 2, 60):
        fit = ci.VariationalEM(guide="vb", max_iterations=iterations, search=None).fit(
            model, problem.data, seed=1, progress=False
        )
        x, mask = observed(fit)
        phi = fit.posterior.mean.numpy()
        weight = fit.global_posterior["block_proportion"].concentration.numpy()
        arguments = [*pair_of(fit.global_posterior[model.component_site]), *propensities(fit)]
        priors = [model.priors["block_proportion"].concentration.numpy(), prior_pair(model, model.component_site)]
        if name == "degree_corrected_sbm":
            priors.append(prior_pair(model, "out_propensity" if directed else "propensity"))
        kind = {"directed": directed, "self_loops": self_loops}
        expected = reference.vb_bound(x, phi, weight, *arguments, *priors, mask, **kind)
        assert close(float(fit.elbo[-1]), expected, atol=1e-8)
        means = fit.global_posterior["block_proportion"].mean
        assert torch.allclose(fit.params["block_proportion"], means)
    # where it stands still no node and no site can do better alone
    at = reference.vb_graph(x, weight, *arguments, mask, **kind)
    for node in range(len(phi)):
        assert np.allclose(at.coordinate_optimum(phi, node), phi[node], atol=1e-2)
    if name != "degree_corrected_sbm":
        best = reference.vb_globals(x, phi, *priors, mask, **kind)
        for found, one in zip((weight, *arguments), best, strict=True):
            assert np.allclose(found, one, rtol=1e-2)


@pytest.mark.parametrize("name", NAMES)
@DIRECTED
@LOOPS
def test_mean_field_objective_is_that_of_the_references(name, directed, self_loops):
    problem = small_problem(name, directed=directed, self_loops=self_loops, hidden=0.2)
    model = informative(problem.model)
    fit = ci.VariationalEM(guide="mean_field", max_iterations=3, search=None).fit(
        model, problem.data, seed=1, progress=False
    )
    elbo = exact_graph(model, fit.globals, fit.data).elbo(fit.posterior.mean.numpy())
    assert close(float(fit.elbo[-1]), elbo + float(model.log_prior(fit.globals)), atol=1e-8)
    assert elbo <= exact_graph(model, fit.globals, fit.data).log_evidence()
