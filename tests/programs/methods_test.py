"""Every method that applies to a program, against the program's reference: bounds, gaps, divergences, errors."""

import math
from dataclasses import fields, replace

import numpy as np
import pytest
import torch

import custom_inference as ci
from custom_inference.compiled.reading import NotCompiled
from custom_inference.methods import methods_of
from tests.programs.zoo import DIGITS, as_numpy, case_of, some

#: Fewer of whatever costs time, by the name of the setting.
SMALL = {"steps": 8, "num_samples": 4, "warmup": 3, "chains": 1, "max_tree_depth": 2, "restarts": 1}
#: What every program has, and programs with continuous latents too.
ALWAYS, CONTINUOUS = {"exact", "mean_field", "amortized", "svi_delta", "svi_normal", "nuts"}, {"gaussian"}
#: Programs of more values of their latents than guides sum over.
LONG = ("hidden_chain", "broken_chain")
#: Engines that a program may have as declared, and has not as it is read: an entry stands in a sum with a number.
REFUSED = {"skill": "vb"}
#: One program of each kind.
COMPARED = some("annotators", "two_flags", "noisy_and", "abundance", "rasch", "spike_and_slab", "speeds", without=LONG)
FITTED = some("annotators", "two_flags", "noisy_and", without=LONG)


def small(method):
    known = {field.name for field in fields(method)}
    return replace(method, **{setting: value for setting, value in SMALL.items() if setting in known})


def methods_at(case):
    found = methods_of(case.model)
    expected = ALWAYS if case.is_finite else ALWAYS | CONTINUOUS
    assert expected <= set(found), found
    return {name: make() if name == "exact" else small(make()) for name, make in found.items() if name != "default"}


@COMPARED
def test_every_method_is_measured_against_the_reference(name):
    """Bounds are below the evidence, the gap of a guide is its divergence from the exact posterior."""
    case = case_of(name).few(25)
    named = set(methods_at(case))
    closed = (
        {"vb", "conjugate", "cvb0", "variational"} & named if "conjugate" in named else set()
    )  # of shares: choices are bounded, too
    approximate = {"mean_field", "gaussian", "amortized"} & named
    compared = ci.compare(list(methods_at(case).values()), case.model, case.data, at=case.globals, progress=False)
    table, rows = compared.table, len(case.data)
    assert not compared.refused and not compared.no_exact
    evidence = case.reference.evidence(as_numpy(case.globals), case.table).sum()
    close = rows * (1e-8 + DIGITS.get(name, 0.0) * case.data.num_features if case.is_finite else 1e-4)
    assert np.allclose(table["evidence"], evidence, rtol=0, atol=close)
    exact = table.iloc[0]
    assert abs(exact["bound"] - evidence) < close
    assert exact["worst_marginal_error"] == 0 and abs(exact["kl_per_row"]) < 1e-6
    guides = table[table["what"] == "variational"]
    assert len(guides) == len(approximate) + len(closed)
    assert (guides["bound"] <= evidence + 4 * guides["standard_error"] + close).all(), guides
    noise = 1e-6 if case.is_finite else 0.1
    assert (guides["gap_per_row"] > guides["kl_per_row"] - noise).all(), guides
    guides = guides[~guides.index.str.startswith("VariationalEM")]
    assert np.allclose(guides["gap_per_row"], guides["kl_per_row"], rtol=0.1, atol=noise), guides


@FITTED
def test_every_method_fits(name):
    """In a few steps: finite values of everything, the posterior of every latent, no more."""
    case = case_of(name).few(25)
    shapes = {
        site: mean.shape for site, mean in case.reference.marginals(as_numpy(case.globals), case.table).mean.items()
    }
    for registered, method in methods_at(case).items():
        if registered == REFUSED.get(name):
            with pytest.raises(NotCompiled):
                method.fit(case.model, case.data, init=case.globals, progress=False)
            continue
        fit = method.fit(case.model, case.data, init=case.globals, progress=False, seed=3)
        assert all(torch.isfinite(value).all() for value in fit.globals.values()), registered
        assert fit.transform().shape == shapes[case.model.local_site] and torch.isfinite(fit.transform()).all()
        assert math.isfinite(float(fit.elbo[-1])), registered
        assert {site: posterior.mean.shape for site, posterior in fit.posteriors.items()} == shapes, registered
        assert np.isfinite(fit.log_likelihood().numpy()).all(), registered


def test_chains_begin_at_given_globals_whatever_the_latents_are():
    """Real numbers beside finite latents are integrated out, real numbers alone are drawn with the globals."""
    for name, latents in (("spike_and_slab", set()), ("rasch", {"ability"})):
        case = case_of(name).few(10)
        method = ci.NUTS(num_samples=2, warmup=1, chains=1, max_tree_depth=1)
        fit = method.fit(case.model, case.data, init=case.globals, progress=False)
        assert set(fit.draws) == {*case.model.global_sites, *latents}
        assert fit.transform().shape == (10, 1) and torch.isfinite(fit.transform()).all()
