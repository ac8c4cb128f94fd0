"""Mixtures: posteriors of the globals by variational Bayes and by Gibbs sampling."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from scipy.special import logsumexp

import custom_inference as ci
from custom_inference.core.registry import engine_for
from ppl_models import DataWarning
from tests.families.mixtures.counts_test import EVERY, MISSING, planted, prior_of, problem, with_priors
from tests.support.mixtures import assignments, collapsed


@EVERY
@MISSING
def test_variational_bayes_climbs_and_stays_below_the_evidence(name, share):
    """The evidence by the sum over all K^N assignments, everything else integrated out."""
    model, _, x, mask, data = problem(name, seed=8, share=share, num_rows=5)
    alpha, prior = [0.8, 1.5, 1.0], prior_of(name, strong=False)
    model = with_priors(model, alpha, prior)
    evidence = logsumexp(collapsed(name, model, x, mask, np.array(alpha), prior))
    steps = engine_for(model, "vb")
    rows = steps.rows(model, data)
    for seed in range(3):
        params, trace = steps.initial(model, rows, torch.Generator().manual_seed(seed)), []
        for _ in range(60):
            step = steps.e_step(model, params, rows)
            trace.append(steps.objective_at(model, params, step.bound))
            params = steps.m_step(model, params, step, rows)
        assert np.diff(trace).min() > -1e-10 and trace[-1] < evidence
    means, posteriors = params.values(model), params.posteriors(model)
    assert {site: value.shape for site, value in means.items()} == {s: torch.Size(v) for s, v in model.shapes.items()}
    draws = posteriors[model.component_site].sample(4000, seed=1)
    assert torch.allclose(draws.mean(0), means[model.component_site], atol=0.12 * float(draws.std(0).max()))


@EVERY
def test_variational_bayes_bound_is_exact_with_one_class(name):
    """With K = 1 there is nothing to approximate: the bound is the log marginal likelihood."""
    model, _, x, _, _ = problem(name, seed=9)
    one = type(model).for_data(model.prepare(x), 1)
    one = with_priors(one, [1.0], prior_of(name, strong=False))
    data = one.prepare(x, dtype=torch.float64)
    expected = collapsed(name, one, x, None, np.array([1.0]), prior_of(name, strong=False))[0]
    with pytest.warns(DataWarning, match="empty") if "multi" in name else nullcontext():
        fit = ci.VariationalEM(guide="vb", search=None).fit(one, data, progress=False)
    assert np.isclose(float(fit.elbo[-1]), expected, rtol=0, atol=1e-8)


@EVERY
@MISSING
def test_the_sampler_draws_from_the_collapsed_law(name, share):
    """log p(x, z), conditionals, and which rows share a class, against the sum over all K^N assignments."""
    from custom_inference.gibbs import sampler_of

    model, _, x, mask, data = problem(name, seed=10, share=share, num_rows=5)
    alpha, prior = [0.8, 1.5, 1.0], prior_of(name, strong=False)
    model = with_priors(model, alpha, prior)
    logs = collapsed(name, model, x, mask, np.array(alpha), prior)
    weight, every = np.exp(logs - logsumexp(logs)), assignments(len(x), 3)
    together = np.einsum("s,sik,sjk->ij", weight, every, every)
    chain = sampler_of(model).chain(model, data, 3, None)
    place = 3 ** np.arange(len(x))[::-1]
    for _ in range(30):
        chain.sweep()
        z = chain.assignment
        assert np.isclose(chain.log_joint(), logs[z @ place], rtol=0, atol=1e-9)
        # The last row was drawn at the present classes of all others.
        others = logs[z[:-1] @ place[:-1] + np.arange(3)]
        assert np.allclose(chain.responsibility[-1], np.exp(others - logsumexp(others)), rtol=0, atol=1e-10)
    same, sweeps = np.zeros_like(together), 8000
    for _ in range(sweeps):
        chain.sweep()
        same += chain.assignment[:, None] == chain.assignment[None]
    # Five standard errors of independent draws, twice that for their autocorrelation.
    assert np.abs(same / sweeps - together).max() < 10 * 0.5 / np.sqrt(sweeps)


@EVERY
def test_gibbs_finds_the_planted_classes(name):
    model, x, label = planted(name)
    fit = ci.CollapsedGibbs(chains=2, warmup=40, num_samples=10).fit(model, x, seed=1, progress=False)
    table = np.zeros((6, 6))
    np.add.at(table, (label, fit.posterior.mean.argmax(-1).numpy()), 1)
    assert table.max(1).sum() > 0.75 * len(x)  # a chain may rest in a mode with two classes in one
    again = ci.CollapsedGibbs(chains=2, warmup=40, num_samples=10).fit(model, x, seed=1, progress=False)
    assert torch.equal(fit.params[model.component_site], again.params[model.component_site])
