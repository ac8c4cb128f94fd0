"""The programs' densities and their references are the same numbers, and the references' integrals have converged."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from scipy.special import gammaln

from ppl_models.core.row_models import RowModel
from tests.programs.mixtures import StudentMixture
from tests.programs.zoo import DIGITS, PROGRAMS, as_numpy, case_of

pytestmark = pytest.mark.quick

NAMES = pytest.mark.parametrize("name", PROGRAMS)


@NAMES
@pytest.mark.parametrize("swapped", [False, True], ids=["own", "swapped"])
@pytest.mark.parametrize("missing", [None, True], ids=["example", "missing"])
def test_the_program_is_its_reference(name, missing, swapped):
    """log p(globals, latents, x), by Pyro and by NumPy; where an entry is missing its value has no influence."""
    case = case_of(name, missing=missing)
    case = case.swapped() if swapped else case
    spaces = case.reference.spaces(as_numpy(case.globals), case.table)
    latents = {site: case.truth[site] for site in case.model.sites_of("latent")}
    rows = {site: value.reshape(-1, *spaces[site].values.shape[1:]) for site, value in latents.items()}
    expected = case.reference.log_joint(as_numpy(case.globals), as_numpy(rows), case.table)
    for fill in (0.0, 1.0):
        data = case.data
        x = data.x if data.mask is None else torch.where(data.mask, data.x, torch.full_like(data.x, fill))
        trace = poutine.trace(pyro.condition(case.model, data=case.truth)).get_trace(x, mask=data.mask, **data.others)
        assert abs(float(trace.log_prob_sum()) - expected) < max(1e-10, DIGITS.get(name, 0.0) * data.x.numel())
    assert set(trace.nodes) >= set(case.model.sites) - set(case.model.sites_of("given"))


@NAMES
def test_sums_and_integrals_are_right(name):
    """Half the nodes give the same; of rows of which nothing is seen the evidence is 1, the prior's whole mass."""
    case = case_of(name)
    for one in (case, case.swapped()):
        params, reference = as_numpy(one.globals), one.reference
        few = {site: value[:8] for site, value in one.table.items()}
        evidence, marginals = reference.evidence(params, few), reference.marginals(params, few)
        assert np.isfinite(evidence).all()
        if not reference.is_finite(params, few):
            coarse = reference.coarser()
            assert np.allclose(coarse.evidence(params, few), evidence, rtol=0, atol=1e-8)
            other = coarse.marginals(params, few)
            for site, mean in marginals.mean.items():
                assert np.allclose(other.mean[site], mean, rtol=0, atol=1e-8)
                assert np.allclose(other.spread[site], marginals.spread[site], rtol=0, atol=1e-7)
        beside = [site for site in case.model.sites_of("observed") if site != case.model.observed_site]
        nothing = {**few, "mask": np.zeros_like(few["mask"]), **{s: np.full_like(few[s], np.nan) for s in beside}}
        assert np.allclose(reference.evidence(params, nothing), 0, rtol=0, atol=1e-9)


def test_a_frailty_is_a_negative_binomial():
    """sum_j x_nj given the frailty is Poisson, so that evidence and posterior have closed forms."""
    case = case_of("frailty")
    params, table = as_numpy(case.globals), case.table
    x, mask = table["x"], table["mask"]
    shape, rate = params["shape"], params["rate"]
    events, exposure = (x * mask).sum(1), (rate * mask).sum(1)
    terms = np.where(mask, x * np.log(rate) - gammaln(x + 1), 0.0).sum(1)
    gain = gammaln(shape + events) - gammaln(shape) - (shape + events) * np.log(shape + exposure)
    expected = terms + shape * np.log(shape) + gain
    assert np.allclose(case.reference.evidence(params, table), expected, rtol=0, atol=1e-10)
    marginals = case.reference.marginals(params, table)
    assert np.allclose(marginals.mean["frailty"][:, 0], (shape + events) / (shape + exposure), rtol=0, atol=1e-10)
    spread = np.sqrt(shape + events) / (shape + exposure)
    assert np.allclose(marginals.spread["frailty"][:, 0], spread, rtol=0, atol=1e-9)


def test_choices_report_the_probabilities_of_their_values():
    case = case_of("annotators", missing=False)
    one = case.reference.marginals(as_numpy(case.globals), case.table)
    assert one.mean["truth"].shape == (60, 3) and np.allclose(one.mean["truth"].sum(1), 1, rtol=0, atol=1e-12)


class KnownShares(StudentMixture):
    """The mixture with the shares of its classes as the prior of the choice itself."""

    def default_priors(self):
        return {**super().default_priors(), "kind": dist.Categorical(torch.tensor([0.5, 0.3, 0.2]))}

    def draw_locals(self, site):
        return RowModel.draw_locals(self, site)


def test_a_choice_may_have_a_prior_of_its_own():
    case = case_of("student_mixture")
    model = KnownShares(num_components=3, num_features=3)
    assert model.prior("kind").shape() == () and case_of("skill").model.prior("skill").shape() == ()
    one, other = (
        poutine.trace(pyro.condition(model, data=case.truth)).get_trace(case.data.x) for model in (case.model, model)
    )
    assert float(one.log_prob_sum()) == pytest.approx(float(other.log_prob_sum()), rel=1e-12)
