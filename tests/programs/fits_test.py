"""The default fit of every program: a good one, with the posteriors of all latents, and what is asked of fits."""

from functools import cache

import numpy as np
import pyro.distributions as dist
import pytest
import torch

import custom_inference as ci
from custom_inference.compiled.programs import engines_of_program
from ppl_models import Data
from tests.programs.zoo import DIGITS, PROGRAMS, as_numpy, case_of, some

#: All programs; among the slow tests one whose integrals over two real numbers a row take long.
NAMES = some(*(name for name in PROGRAMS if name != "shares"))

#: Programs of each kind, whose default is fitted with all of its starts; that of the others is in the slow tests.
KINDS = ("two_flags", "rasch", "spike_and_slab")


@cache
def default(name) -> ci.Fit:
    case = case_of(name)
    return ci.fit(case.model, case.data, progress=False)


@cache
def fitted(name) -> ci.Fit:
    """A fit that all tests of a program share: the default's, of most programs from the truth alone."""
    case = case_of(name)
    # Of shares the default has a bound: here is their evidence.
    method = ci.SVI(guide="delta", optimizer="lbfgs") if "conjugate" in engines_of_program(case.model) else None
    if name in KINDS:
        return default(name)
    return ci.fit(case.model, case.data, method=method, init=case.globals, progress=False)


def far(one, other):
    return float(np.abs(np.asarray(one) - np.asarray(other)).max())


def tolerance(name, case):
    return (1e-6 + DIGITS.get(name, 0.0) * 10) if case.is_finite else 1e-4


def log_posterior(case, params) -> float:
    """log p(globals, x) by the reference."""
    params = as_numpy(params)
    return float(case.reference.evidence(params, case.table).sum()) + case.reference.log_prior(params)


@some(*KINDS)
def test_the_default_finds_what_the_climb_from_the_truth_finds(name):
    """It knows nothing of the truth, and ends no lower."""
    case = case_of(name)
    climbed = ci.fit(case.model, case.data, init=case.globals, progress=False)
    found = log_posterior(case, default(name).globals)
    assert found > log_posterior(case, climbed.globals) - 0.05, name
    assert "converged" in default(name).status


@NAMES
def test_posteriors_at_the_fitted_globals_are_right(name):
    """No lower a log posterior density than the truth's, posteriors and log p(x_n) at its globals exact."""
    case, fit = case_of(name), fitted(name)
    assert log_posterior(case, fit.globals) > log_posterior(case, case.globals) - 1e-3
    params, close = as_numpy(fit.globals), tolerance(name, case)
    expected = case.reference.marginals(params, case.table)
    assert far(fit.log_likelihood(), case.reference.evidence(params, case.table)) < close
    assert set(fit.posteriors) == set(case.model.sites_of("latent"))
    for site, posterior in fit.posteriors.items():
        assert far(posterior.mean, expected.mean[site]) < close, site
        assert far(posterior.variance.sqrt(), expected.spread[site]) < 10 * close, site
    first = expected.mean[case.model.local_site]
    assert fit.transform().shape == first.shape and far(fit.transform(), first) < close


@NAMES
def test_new_rows_are_as_those_of_the_fit(name):
    fit, close = fitted(name), tolerance(name, case_of(name))
    some = fit.data.rows(slice(3, 9))
    assert far(fit.transform(some), fit.transform()[3:9]) < close
    assert far(fit.log_likelihood(some), fit.log_likelihood()[3:9]) < close
    local = fit.local_posterior(some)
    assert local.bound.shape == (6,) and len(local.posterior.mean) == 6
    x = torch.where(some.mask, some.x, torch.nan) if some.mask is not None else some.x
    assert far(fit.transform(x.numpy(), **some.others), fit.transform()[3:9]) < close


@NAMES
def test_a_fit_draws_scores_and_reports_every_latent(name):
    fit, model = fitted(name), fitted(name).model
    drawn = fit.sample(5, seed=2)
    latents = model.sites_of("latent")
    assert set(drawn) >= {*latents, "x"} and drawn["x"].shape == (5, fit.data.num_features)
    assert all(len(drawn[site]) == 5 and torch.isfinite(drawn[site].double()).all() for site in latents)
    total = float(fit.log_likelihood().sum())
    free = model.num_parameters(0)
    assert np.isclose(fit.bic(), -2 * total + free * np.log(len(fit.data)), rtol=1e-9)
    exported = fit.to_arviz().posterior
    for site in latents:
        posterior = fit.posteriors[site]
        assert "row" in exported[site].dims and exported[site].sizes["row"] == len(fit.data), site
        assert np.isfinite(exported[site].to_numpy()).all()
        assert posterior.sample(3).shape == (3, *posterior.mean.shape) and posterior.mode.shape == posterior.mean.shape
    assert "objective" in repr(fit) and fit.status


@NAMES
def test_a_fit_comes_back_from_its_file(name, tmp_path):
    fit = fitted(name)
    loaded = ci.Fit.load(fit.save(tmp_path / "fit"), model=type(fit.model))
    assert repr(loaded.model) == repr(fit.model) and set(loaded.posteriors) == set(fit.posteriors)
    for site, value in fit.globals.items():
        assert torch.equal(value, loaded.params[site])
    for site, posterior in fit.posteriors.items():
        assert far(loaded.posteriors[site].mean, posterior.mean) < 1e-10, site
    assert far(loaded.transform(), fit.transform()) < 1e-10
    assert far(loaded.log_likelihood(), fit.log_likelihood()) < 1e-10


@pytest.mark.parametrize("name", ["two_flags", "rasch", "annotators", "spike_and_slab"])
def test_known_globals_are_held_and_others_are_learned(name):
    case = case_of(name)
    site, other = case.model.global_sites[-1], case.model.global_sites[0]
    known = case.model.with_priors(**{site: case.truth[site]})
    fit = ci.fit(known, case.data, progress=False)
    assert torch.equal(fit.params[site], case.truth[site]) and fit.params[other].isfinite().all()
    expected = case.reference.evidence(as_numpy(fit.globals), case.table)
    assert far(fit.log_likelihood(), expected) < tolerance(name, case)


def test_single_precision_does_as_well():
    """Constants in programs are of another type then than the data may be."""
    for name in ("two_flags", "rasch"):
        case = case_of(name)
        fit = ci.fit(case.model, Data(x=case.data.x.float(), mask=case.data.mask), progress=False)
        expected = case.reference.marginals(as_numpy(fit.globals), case.table)
        for site, posterior in fit.posteriors.items():
            assert far(posterior.mean, expected.mean[site]) < 1e-3, (name, site)


def test_priors_of_latents_can_be_exchanged():
    """In the fit, too: a latent whose prior is free has the given one."""
    case = case_of("probit_factors")
    wide = case.model.with_priors(factor=dist.Normal(0.0, 2.0))
    reference = case.reference.with_priors({"factor": ("normal", 0, 2)})
    fit = ci.fit(wide, case.data, init=case.globals, progress=False)
    expected = reference.marginals(as_numpy(fit.globals), case.table)
    assert far(fit.posteriors["factor"].mean, expected.mean["factor"]) < 1e-4
