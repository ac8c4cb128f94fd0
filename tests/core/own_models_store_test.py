"""Fits of models that are not of the suite: saved by import path, loaded by the class that the reader gives."""

import dataclasses
import json
import sys

import pyro.distributions as dist
import pytest
import torch
from pyro.distributions import transforms
from safetensors import safe_open
from safetensors.torch import save_file

from custom_inference import EM, NUTS, SVI, Fit
from ppl_models import NOCA, FileFormatError, ModelError
from ppl_models.core.sites import Site
from tests.support.own_models import NoisyAnd, Peaked


def fitted(model=None, steps=30):
    example = NoisyAnd.example()
    return SVI(guide="delta", steps=steps).fit(model or example.model, example.data, progress=False)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        fit = fitted()
        return fit, fit.save(tmp_path_factory.mktemp("own") / "fit.safetensors")
    finally:
        torch.set_default_dtype(before)


def variant(**changes):
    """A class with the import path of NoisyAnd and something else in it."""
    body = {"__module__": NoisyAnd.__module__, "__qualname__": "NoisyAnd", **changes}
    made = type("NoisyAnd", (NoisyAnd,), body)
    return dataclasses.dataclass(frozen=True, kw_only=True, eq=False)(made)


@pytest.mark.parametrize("given", [NoisyAnd, NoisyAnd(num_components=2, num_features=6)], ids=["class", "instance"])
def test_the_class_brings_the_fit_back(given, saved):
    fit, path = saved
    loaded = Fit.load(path, model=given)
    assert type(loaded.model) is NoisyAnd and repr(loaded.model) == repr(fit.model)
    assert isinstance(loaded.model.priors["veto"], Peaked)
    for site, value in fit.params.items():
        assert torch.equal(value, loaded.params[site])
    assert torch.allclose(loaded.transform(), fit.transform())
    assert torch.allclose(loaded.log_likelihood(), fit.log_likelihood())
    assert float(loaded.model.log_prior(loaded.params)) == pytest.approx(float(fit.model.log_prior(fit.params)))
    assert repr(loaded) == repr(fit)


def test_draws_come_back(tmp_path):
    example = NoisyAnd.example()
    method, start = NUTS(num_samples=3, warmup=2, chains=1, max_tree_depth=2), example.truth
    fit = method.fit(example.model, example.data, init=start, progress=False)
    loaded = Fit.load(fit.save(tmp_path / "fit"), model=NoisyAnd)
    assert all(torch.equal(value, loaded.draws[site]) for site, value in fit.draws.items())


def test_without_the_class_the_error_says_how(saved):
    with pytest.raises(FileFormatError, match=r"'tests.support.own_models:NoisyAnd'.*Fit.load\(path, model=NoisyAnd\)"):
        Fit.load(saved[1])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (NOCA, "a fit of 'tests.support.own_models:NoisyAnd', not of noca"),
        (NoisyAnd(num_components=3, num_features=6), "num_components = 2, not 3"),
        (NoisyAnd(num_components=2, num_features=6, noise=0.1), "noise = 0.05, not 0.1"),
        (variant(sites={**NoisyAnd.sites, "rate": Site("global", ("component",))},
                 default_priors=lambda self: {**NoisyAnd.default_priors(self), "rate": dist.Normal(0.0, 1.0)}),
         "the site 'rate', which only NoisyAnd here has"),
        (variant(sites={**NoisyAnd.sites, "presence": Site("global", ("feature",))}), "the site 'presence' as"),
    ],
)  # fmt: skip
def test_other_models_sizes_and_sites_are_refused(given, message, saved):
    with pytest.raises(FileFormatError, match=message) as refused:
        Fit.load(saved[1], model=given)
    assert str(saved[1]) in str(refused.value)


@pytest.mark.parametrize("given", ["tests.support.own_models:NoisyAnd", Fit, 3])
def test_what_is_no_model_is_refused(given, saved):
    with pytest.raises(ModelError, match="expected the class of a model"):
        Fit.load(saved[1], model=given)


def test_classes_of_the_suite_may_be_given_too(tmp_path):
    example = NOCA.example()
    path = EM(search=None, max_iterations=2).fit(example.model, example.data, progress=False).save(tmp_path / "fit")
    assert Fit.load(path, model=NOCA).model.num_components == example.model.num_components
    with pytest.raises(FileFormatError, match="not of tests.support.own_models:NoisyAnd"):
        Fit.load(path, model=NoisyAnd)


def test_a_class_of_a_script_is_the_same_where_the_script_is_imported(tmp_path):
    script = variant(__module__="__main__")
    fit = fitted(script(num_components=2, num_features=6), steps=3)
    assert type(Fit.load(fit.save(tmp_path / "fit"), model=NoisyAnd).model) is NoisyAnd


def test_nothing_is_imported_because_a_file_names_it(saved, tmp_path, monkeypatch):
    (tmp_path / "trap_for_files.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with safe_open(saved[1], framework="pt") as archive:
        tensors = {key: archive.get_tensor(key) for key in archive.keys()}  # noqa: SIM118
        meta = json.loads(archive.metadata()["fit"])
    path = tmp_path / "fit"
    for name in ("trap_for_files:NoisyAnd", "trap_for_files:", "trap_for_files", "os:system"):
        header = {"format": "ppl-models fit 1", "fit": json.dumps({**meta, "model": name})}
        save_file(tensors, path, metadata=header)
        for given in (None, NoisyAnd):
            with pytest.raises(FileFormatError, match="no code is loaded|not known here|not of tests"):
                Fit.load(path, model=given)
    assert "trap_for_files" not in sys.modules


def test_priors_that_files_do_not_hold_are_the_given_models(tmp_path):
    prior = dist.TransformedDistribution(dist.Normal(0.0, 1.0), [transforms.SigmoidTransform()])
    model = NoisyAnd(num_components=2, num_features=6).with_priors(presence=prior)
    path = fitted(model, steps=3).save(tmp_path / "fit")
    assert Fit.load(path, model=model).model.priors["presence"] is prior
    with pytest.raises(FileFormatError, match="prior 'TransformedDistribution' of 'presence', which files do not hold"):
        Fit.load(path, model=NoisyAnd)


def test_settings_that_are_no_json_are_refused_before_anything_is_written(tmp_path):
    fit = fitted(NoisyAnd(num_components=2, num_features=6, noise=torch.tensor(0.05)), steps=3)
    with pytest.raises(ModelError, match="NoisyAnd: noise = tensor.* cannot be saved"):
        fit.save(tmp_path / "fit")
    assert not (tmp_path / "fit").exists()
