"""The worked example of CONTRIBUTING.md, run as it is printed."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

import ppl_models
from custom_inference import EM, SVI, Exact, Fit, VariationalEM, engines
from custom_inference._methods import methods_for
from ppl_models import MethodError
from tests._documents import module_for, python_blocks, run


@pytest.fixture
def worked(monkeypatch):
    """The module in which the model's file was run; the model is registered as the text says."""
    torch.set_default_dtype(torch.float32)  # as a reader's session has it
    module = module_for("bernoulli_mixture")
    run(python_blocks("CONTRIBUTING.md")[0], module, "CONTRIBUTING.md: the model")
    monkeypatch.setitem(ppl_models.MODELS, "bernoulli_mixture", module.BernoulliMixture)
    yield module
    del sys.modules["bernoulli_mixture"]


def _with_steps(module, monkeypatch):
    run(python_blocks("CONTRIBUTING.md")[2], module, "CONTRIBUTING.md: the steps")
    monkeypatch.setitem(engines._ENGINES, module.BernoulliMixture, {"evidence": module.BernoulliMixtureExact})


def _accuracy(fit, example) -> float:
    """Posterior probability of the true class, at the better of the two labellings."""
    truth, found = example.truth["membership"].double(), fit.transform().double()
    return max(float((found[:, order] * truth).sum(-1).mean()) for order in ([0, 1], [1, 0]))


def test_the_whole_text_runs_as_printed(worked, monkeypatch, capsys):
    blocks = python_blocks("CONTRIBUTING.md")
    assert len(blocks) == 4
    run(blocks[1], worked, "CONTRIBUTING.md: generic methods")
    assert _accuracy(worked.fit, worked.example) > 0.95
    assert np.allclose(worked.table["gap_per_row"], 0, atol=1e-10)
    _with_steps(worked, monkeypatch)
    run(blocks[3], worked, "CONTRIBUTING.md: closed-form steps")
    assert "('chain', 'draw', 'component', 'feature')" in capsys.readouterr().out


def test_generic_evidence_equals_a_plain_sum(worked):
    example = worked.BernoulliMixture.example()
    params = {site: example.truth[site].double() for site in example.model.global_sites}
    data = example.model.prepare(example.data, dtype=torch.float64)
    weight, rate, x = (value.numpy() for value in (params["weight"], params["rate"], data.x))
    likelihood = np.where(x[:, None] == 1, rate, 1 - rate).prod(-1)
    found = Exact(generic=True).local_posterior(example.model, params, data)
    assert np.allclose(found.bound, np.log(likelihood @ weight), atol=1e-10)


def test_generic_methods_and_steps_reach_the_same_optimum(worked, monkeypatch):
    example = worked.BernoulliMixture.example()
    generic = Exact(generic=True).fit(example.model, example.data, progress=False)
    assert _accuracy(generic, example) > 0.95
    _with_steps(worked, monkeypatch)
    fast = EM().fit(example.model, example.data, progress=False)
    assert abs(float(fast.elbo[-1] - generic.elbo[-1])) < 0.1
    plain = VariationalEM(guide="exact", search=None, tolerance=1e-9).fit(example.model, example.data, progress=False)
    assert bool((plain.elbo.diff() > -1e-8).all())
    online = EM(batch_size=20).fit(example.model, example.data, progress=False)
    assert abs(float(online.evidence.sum() - fast.evidence.sum())) < 0.5
    assert "em" in methods_for(example.model)


def test_steps_refuse_other_priors(worked, monkeypatch):
    _with_steps(worked, monkeypatch)
    example = worked.BernoulliMixture.example()
    with pytest.raises(MethodError, match="Beta prior for 'rate', not Uniform"):
        EM().fit(example.model.with_priors(rate=torch.distributions.Uniform(0.1, 0.9)), example.data, progress=False)


def test_a_saved_fit_comes_back(worked, tmp_path):
    example = worked.BernoulliMixture.example()
    fit = SVI(guide="delta", steps=20).fit(example.model, example.data, progress=False)
    again = Fit.load(fit.save(tmp_path / "mixture.fit"))
    assert torch.equal(again.params["rate"], fit.params["rate"])
    assert torch.allclose(again.transform(), fit.transform())
