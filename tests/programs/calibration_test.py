"""Simulation-based calibration of programs: exact posteriors pass, spoiled ones do not."""

import pytest

import custom_inference as ci
from tests.programs.zoo import case_of, some

#: In every run; the others' are slow.
SOME = some("two_flags", "annotators", "noisy_max", "rasch")


def check(name, method, **settings):
    case = case_of(name)
    arguments = {"of": "locals", "num_simulations": 12, "num_rows": 10, "num_draws": 99, "at": case.globals}
    return ci.simulation_based_calibration(case.model, method, progress=False, **{**arguments, **settings})


@SOME
def test_exact_posteriors_are_calibrated(name):
    """For every latent: the quantities of the check name each of them."""
    found = check(name, "exact")
    assert found.passed, found.table
    named = {line.partition("[")[0] for line in found.table.index}
    assert set(case_of(name).model.sites_of("latent")) <= named


@pytest.mark.slow
def test_missing_entries_leave_them_so():
    assert check("mixed_rasch", "exact", like=case_of("mixed_rasch").few(10).data).passed


class Elsewhere(ci.Exact):
    """Exact posteriors under twice the rates: wrong ones."""

    def local_posterior(self, model, params, data, *, seed=0):
        return super().local_posterior(model, {**params, "rate": 2 * params["rate"]}, data, seed=seed)


@pytest.mark.parametrize("name", ["two_flags", "two_state_chain"])
def test_posteriors_under_other_rates_are_not(name):
    assert not check(name, Elsewhere()).passed


def test_whole_fits_by_compiled_gibbs_are_calibrated():
    """Of latents, too, whose rows the program holds along an axis of its own."""
    gibbs = ci.CollapsedGibbs(chains=1, warmup=20, num_samples=60, search=False)
    case = case_of("annotators").few(10)
    found = check("annotators", gibbs, of="globals", at=None, like=case.data, num_simulations=8, num_draws=49)
    assert found.passed, found.table
    assert {"weight", "confusion", "truth"} <= {line.partition("[")[0] for line in found.table.index}
