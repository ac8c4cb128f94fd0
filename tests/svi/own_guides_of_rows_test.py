"""Guides of one's own of programs whose plates stand in others: sums that Pyro has right, and those that it has not."""

from __future__ import annotations

import itertools

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoMultivariateNormal
from torch.distributions import constraints

import custom_inference as ci
from custom_inference.svi.guides import at_globals, own
from ppl_models import MethodError
from tests.programs.zoo import as_numpy, case_of


@pytest.fixture(autouse=True)
def _few_draws(monkeypatch):
    monkeypatch.setattr(own, "_DRAWS", 5)
    monkeypatch.setattr(at_globals, "_RUNS", 20)


def state_globals(case):
    for site, value in case.globals.items():
        at = pyro.param(f"{site}_at", value, constraint=case.model.sites[site].support)
        pyro.sample(site, dist.Delta(at, event_dim=value.ndim))


def guide_of_skills(case, *, enumerates, leaves_out=False):
    rows, skills = len(case.data), case.model.num_skills

    def guide(x):
        state_globals(case)
        share = torch.full((rows, skills), 0.4, dtype=x.dtype)
        share = pyro.param("share", share, constraint=constraints.unit_interval)
        with pyro.plate("data", rows, dim=-2), pyro.plate("skills", skills, dim=-1):
            if not leaves_out:
                pyro.sample("skill", dist.Bernoulli(share), infer={"enumerate": enumerates} if enumerates else {})

    return guide


def bound_of_skills(case, share):
    """sum_n E_q[log p(x_n, skills) - log q] of independent bits, over all their values, in NumPy."""
    given, x, seen = {s: v.numpy() for s, v in case.globals.items()}, case.data.x.numpy(), np.ones(case.data.x.shape)
    seen = seen if case.data.mask is None else case.data.mask.numpy()
    total = 0.0
    for bits in map(np.array, itertools.product((0, 1), repeat=share.shape[1])):
        able = (np.array(case.model.needed) @ (1 - bits) == 0).astype(float)
        right = able * (1 - given["slip"]) + (1 - able) * given["guess"]
        joint = (np.log(np.where(x == 1, right, 1 - right)) * seen).sum(1)
        joint += np.log(np.where(bits == 1, given["mastery"], 1 - given["mastery"])).sum()
        log_q = np.log(np.where(bits == 1, share, 1 - share)).sum(1)
        total += np.exp(log_q) * (joint - log_q)
    return total.sum()


@pytest.mark.parametrize("enumerates", ["parallel", "sequential"])
def test_enumeration_in_an_inner_plate_is_refused(enumerates):
    """Pyro would give all bits of a row one value at a time."""
    case = case_of("skill_plate").few(12)
    method = ci.SVI(guide=guide_of_skills(case, enumerates=enumerates), steps=5)
    message = "site 'skill': the guide enumerates it in a plate beside that of the rows"
    with pytest.raises(MethodError, match=message):
        method.fit(case.model, case.data, progress=False)
    compared = ci.compare(["exact", method], case.model, case.data, at=case.globals, progress=False)
    assert list(compared.table.index) == ["exact"] and message in str(compared)


def test_latents_of_an_inner_plate_are_drawn_where_the_guide_draws_them():
    """The bound is that of the guide, whose parameters of rows are its means, up to its standard error."""
    case = case_of("skill_plate").few(12)
    method = ci.SVI(guide=guide_of_skills(case, enumerates=None), steps=20)
    local = method.local_posterior(case.model, case.globals, case.data, seed=0)
    expected = bound_of_skills(case, local.posterior.mean.numpy())
    error = float(local.standard_error.square().sum().sqrt())
    assert abs(float(local.bound.sum()) - expected) < 5 * error + 1e-6 and error < 1.0


def test_latents_of_an_inner_plate_are_summed_out_rightly_beside_a_guide_of_the_globals():
    """Also where the guide is not by name: AutoMultivariateNormal, and a function of points."""
    case = case_of("skill_plate").few(12)
    points = ci.SVI(guide=guide_of_skills(case, enumerates=None, leaves_out=True), steps=3)
    fit = points.fit(case.model, case.data, progress=False)
    given = as_numpy(fit.globals)
    total, prior = case.reference.evidence(given, case.table).sum(), case.reference.log_prior(given)
    assert fit.bound_name == "exact" and np.isclose(float(fit.elbo[-1]), total + prior, rtol=1e-6)
    normal = ci.SVI(guide=AutoMultivariateNormal, steps=3).fit(case.model, case.data, progress=False)
    assert torch.isfinite(normal.elbo).all() and normal.draws is not None


def guide_of_truths(case, enumerates):
    def guide(x):
        state_globals(case)
        logits = pyro.param("logits", torch.linspace(-1, 1, 3 * len(x), dtype=x.dtype).reshape(len(x), 1, 3))
        with pyro.plate("data", len(x), dim=-2):
            pyro.sample("truth", dist.Categorical(logits=logits), infer={"enumerate": enumerates})

    return guide


@pytest.mark.parametrize("enumerates", ["parallel", "sequential"])
def test_a_plate_of_rows_left_of_another_is_enumerated_rightly(enumerates):
    """sum_nk q_nk (log p(x_n, k) - log q_nk) at the guide's own q, which no noise is in."""
    case = case_of("annotators").few(12)
    q = np.exp(np.linspace(-1, 1, 36).reshape(12, 3))
    q /= q.sum(1, keepdims=True)
    given, x, seen = as_numpy(case.globals), case.data.x.numpy().astype(int), case.data.mask.numpy()
    each = [np.where(seen[:, j, None], np.log(given["confusion"][j][:, x[:, j]].T), 0.0) for j in range(5)]
    expected = (q * (np.log(given["weight"]) + sum(each) - np.log(q))).sum()
    method = ci.SVI(guide=guide_of_truths(case, enumerates), steps=2, learning_rate=1e-12)
    fit = method.fit(case.model, case.data, progress=False)
    assert np.isclose(float(fit.elbo[-1]), expected + case.reference.log_prior(given), rtol=1e-6)
    local = method.local_posterior(case.model, case.globals, case.data, seed=0)
    error = float(local.standard_error.square().sum().sqrt())
    assert abs(float(local.bound.sum()) - expected) < 5 * error
