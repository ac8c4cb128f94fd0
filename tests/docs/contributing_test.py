"""The worked example of CONTRIBUTING.md, run as it is printed."""

from __future__ import annotations

import sys

import numpy as np
import pyro.distributions as dist
import pytest
import scipy.stats
import torch

import ppl_models
from custom_inference import EM, SVI, Exact, Fit, VariationalEM
from custom_inference import fit as fit_default
from custom_inference.core import registry
from custom_inference.methods import methods_for
from ppl_models import DataError, PriorError
from tests.support.documentation import module_for, python_blocks, run


@pytest.fixture
def worked(monkeypatch):
    """The module in which the model's file was run; the model is registered as the text says."""
    torch.set_default_dtype(torch.float32)  # as a reader's session has it
    module = module_for("zero_inflated_mixture")
    run(python_blocks("CONTRIBUTING.md")[0], module, "CONTRIBUTING.md: the model")
    monkeypatch.setitem(ppl_models.MODELS, "zero_inflated_mixture", module.ZeroInflatedMixture)
    yield module
    del sys.modules["zero_inflated_mixture"]


def _with_engine(module, monkeypatch):
    run(python_blocks("CONTRIBUTING.md")[2], module, "CONTRIBUTING.md: the engine")
    monkeypatch.setattr(registry, "_REGISTERED", {})  # what is registered is forgotten again
    run(python_blocks("CONTRIBUTING.md")[3], module, "CONTRIBUTING.md: registering the engine")


def _accuracy(fit, example) -> float:
    """Posterior probability of the true class, at the better of the two labellings."""
    truth, found = example.truth["membership"].double(), fit.transform().double()
    return max(float((found[:, order] * truth).sum(-1).mean()) for order in ([0, 1], [1, 0]))


def test_the_whole_text_runs_as_printed(worked, monkeypatch, capsys):
    blocks = python_blocks("CONTRIBUTING.md")
    assert len(blocks) == 5
    run(blocks[1], worked, "CONTRIBUTING.md: generic methods")
    assert _accuracy(worked.fit, worked.example) > 0.95
    assert np.allclose(worked.table["gap_per_row"], 0, atol=1e-10)
    assert {"prominence", "strongest"} <= set(worked.fit.report().columns)
    assert worked.model.num_parameters(60) == 2 * 6 + 6 + 1
    _with_engine(worked, monkeypatch)
    run(blocks[4], worked, "CONTRIBUTING.md: the engine in use")
    assert "('chain', 'draw', 'component', 'feature')" in capsys.readouterr().out


def _log_of_sum(example, params, observed) -> np.ndarray:
    """log p(x_n) by a plain sum over the classes, of the observed entries."""
    weight, rate, gate = (params[site].double().numpy() for site in ("weight", "rate", "gate"))
    x = example.data.x.double().numpy()[:, None]
    each = gate * (x == 0) + (1 - gate) * scipy.stats.poisson.pmf(x, rate)
    return np.log(np.where(observed[:, None], each, 1.0).prod(-1) @ weight)


@pytest.mark.parametrize("missing", [False, True])
def test_evidence_equals_a_plain_sum(worked, monkeypatch, missing):
    example = worked.ZeroInflatedMixture.example()
    params = {site: example.truth[site].double() for site in example.model.global_sites}
    observed = torch.rand(example.data.x.shape, generator=torch.Generator().manual_seed(0)) > 0.3 * missing
    data = example.model.prepare(example.data.x, mask=observed, dtype=torch.float64)
    expected = _log_of_sum(example, params, observed.numpy())
    found = Exact(generic=True).local_posterior(example.model, params, data)
    assert np.allclose(found.bound, expected, atol=1e-10)
    _with_engine(worked, monkeypatch)
    assert np.allclose(Exact().local_posterior(example.model, params, data).bound, expected, atol=1e-10)


def test_generic_methods_and_the_engine_reach_the_same_optimum(worked, monkeypatch):
    example = worked.ZeroInflatedMixture.example()
    generic = SVI(guide="delta", optimizer="lbfgs").fit(example.model, example.data, progress=False)
    assert _accuracy(generic, example) > 0.95
    _with_engine(worked, monkeypatch)
    fast = EM().fit(example.model, example.data, progress=False)
    assert abs(float(fast.elbo[-1] - generic.elbo[-1])) < 0.1
    plain = VariationalEM(guide="exact", search=None, tolerance=1e-9).fit(example.model, example.data, progress=False)
    assert bool((plain.elbo.diff() > -1e-8).all())
    online = EM(batch_size=20, max_iterations=60).fit(example.model, example.data, progress=False)
    assert abs(float(online.evidence.sum() - fast.evidence.sum())) < 0.5
    assert "em" in methods_for(example.model)


def test_m_step_is_stationary(worked, monkeypatch):
    """At the end the gradient of the evidence plus log prior vanishes in rates and gates, with entries missing."""
    _with_engine(worked, monkeypatch)
    example = worked.ZeroInflatedMixture.example()
    model = example.model.with_priors(rate=dist.Gamma(2.0, 0.5))
    observed = torch.rand(example.data.x.shape, generator=torch.Generator().manual_seed(0)) > 0.2
    fit = EM(tolerance=1e-12, max_iterations=2000).fit(model, example.data.x, mask=observed, progress=False)
    engine, params = worked.ZeroInflatedExact(), {site: v.clone() for site, v in fit.params.items()}
    free = [params[site].requires_grad_() for site in ("rate", "gate")]
    bound = engine.log_joint(model, params, engine.rows(model, fit.data)).logsumexp(-1)
    for gradient in torch.autograd.grad(bound.sum() + model.log_prior(params), free):
        assert float(gradient.abs().max()) < 1e-3


def test_engine_takes_other_priors_and_refuses_those_without_a_mode(worked, monkeypatch):
    _with_engine(worked, monkeypatch)
    example = worked.ZeroInflatedMixture.example()
    fit = EM().fit(example.model.with_priors(rate=dist.LogNormal(0.0, 1.0)), example.data, progress=False)
    assert "numerical M steps of rate" in fit.status
    without_mode = example.model.with_priors(rate=dist.Gamma(0.5, 1.0))
    with pytest.raises(PriorError, match="no mode"):
        EM().fit(without_mode, example.data, progress=False)
    instead = fit_default(without_mode, example.data, progress=False)
    assert instead.method_name == "SVI(delta)" and "since the default refuses" in instead.status


def test_entries_that_are_no_counts_are_refused(worked):
    model = worked.ZeroInflatedMixture.example().model
    for wrong in (-1.0, 0.5, float("inf")):
        x = torch.ones(4, 6)
        x[2, 1] = wrong
        with pytest.raises(DataError, match=f"the first: {wrong:g} in row 2.*whole numbers"):
            model.prepare(x)
    with pytest.raises(DataError, match="without any observed entry"):
        EM().fit(model, torch.ones(4, 6), mask=torch.arange(6).expand(4, 6) > 0, progress=False)


def test_a_saved_fit_comes_back(worked, tmp_path):
    example = worked.ZeroInflatedMixture.example()
    fit = SVI(guide="delta", steps=20).fit(example.model, example.data, progress=False)
    again = Fit.load(fit.save(tmp_path / "mixture.fit"))
    assert torch.equal(again.params["rate"], fit.params["rate"])
    assert torch.allclose(again.transform(), fit.transform())
