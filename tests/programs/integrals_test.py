"""Integrals while globals are learned: gradients in parts of the rows are those of all at once, and memory is asked
for first."""

import pytest
import torch
from torch.distributions import constraints

from custom_inference import SVI
from custom_inference.core.programs import quadrature
from custom_inference.core.programs.density import RowDensity
from custom_inference.methods import default_method
from ppl_models import CapacityError, Site
from tests.programs._own import ROW, observed, own_program
from tests.programs.factors import OrdinalFactors
from tests.programs.zoo import case_of


def slopes(name):
    """log p(x_n) of every row, and the gradient of their sum in the globals."""
    case = case_of(name).few(8)
    params = {site: value.double().clone().requires_grad_() for site, value in case.globals.items()}
    fixed = {site: value.detach() for site, value in params.items()}
    found = quadrature.integrate(RowDensity.of(case.model, fixed, case.data).at(params)).log_evidence
    return found.detach(), torch.autograd.grad(found.sum(), list(params.values()))


@pytest.mark.parametrize("name", ["random_effects", "ordinal_factors", "frailty"])
def test_gradients_in_parts_of_the_rows_are_those_of_all_at_once(name, monkeypatch):
    whole = slopes(name)
    monkeypatch.setattr(quadrature, "_LEARNED", 2**14)
    apart = []
    again = quadrature._apply_again
    monkeypatch.setattr(quadrature, "_apply_again", lambda *given: apart.append(given) or again(*given))
    parts = slopes(name)
    assert apart
    torch.testing.assert_close(parts[0], whole[0], rtol=1e-10, atol=1e-10)
    for one, other in zip(parts[1], whole[1], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-7)


def test_what_does_not_fit_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(quadrature, "_LEARNED", 16)
    monkeypatch.setattr(quadrature, "memory_limit", lambda: 1e4)
    with pytest.raises(CapacityError, match=r"the integral over 'first' \(1\), 'second' \(1\) beside 1 values"):
        slopes("ordinal_factors")


def test_three_real_numbers_are_not_integrated_out_by_default():
    assert default_method(OrdinalFactors(num_features=4), None).guide == "delta"
    sites = {"f": Site("latent", ("column",), ROW, constraints.unit_interval), "x": observed(constraints.real, 3)}
    other = default_method(own_program(sites, lambda plate: plate, columns=3), None)
    assert type(other) is SVI
    assert other.guide == "gaussian"
