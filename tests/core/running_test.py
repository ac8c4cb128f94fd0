"""Programs run in the type of their data, whatever torch's default is: through every method, and all that is asked of
fits; and with as many rows as are given."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Predictive
from pyro.infer.autoguide import AutoNormal

from custom_inference import (
    NUTS,
    SVI,
    Exact,
    Fit,
    compare,
    loo,
    mcmc,
    posterior_draws,
    posterior_predictive_check,
    simulation_based_calibration,
)
from custom_inference.core.posterior_bounds import evaluate_posterior, row_log_joint
from custom_inference.svi.guides import own
from ppl_models import MODELS, RTM, ModelError, SupervisedLDA
from ppl_models.core.running import default_dtype, rows_of
from tests.support.cases import problem_of
from tests.support.literal_programs import Ability, Flags

#: (torch's default, that of the data)
TYPES = [(torch.float32, torch.float64), (torch.float64, torch.float32)]
BRIEF = {"num_samples": 4, "warmup": 3, "chains": 1, "max_tree_depth": 2}


@pytest.fixture(autouse=True)
def few_draws(monkeypatch):
    """Of guides, what fits hold of them."""
    monkeypatch.setattr(own, "_DRAWS", 12)


def own_guide(x, mask=None, batch_size=None):
    """A guide with numbers in it."""
    rate = pyro.param("rate_at", torch.full((2, 4), 2.0, dtype=x.dtype), constraint=dist.constraints.positive)
    pyro.sample("rate", dist.Delta(rate, event_dim=2))
    code = pyro.param("code", torch.zeros(len(x), 2, dtype=x.dtype))
    with pyro.plate("data", len(x)):
        pyro.sample("flag", dist.Independent(dist.Bernoulli(logits=code + dist.Normal(0.0, 1.0).mean), 1))


METHODS = {
    "points": lambda: SVI(guide="delta", steps=5),
    "mean_field": lambda: SVI(steps=5),
    "normal": lambda: SVI(guide="normal", steps=5),
    "auto": lambda: SVI(guide=AutoNormal, steps=5),
    "nuts": lambda: NUTS(**BRIEF),
}


def _start(example):
    latent = [example.model.local_site] if example.model.has_continuous_locals else []
    return {site: example.truth[site] for site in (*example.model.global_sites, *latent)}


def fitted(kind, method, default, dtype):
    torch.set_default_dtype(default)
    example = kind.example()
    with mock.patch.object(mcmc, "_mode", return_value=_start(example)):  # to find it takes longer than the rest
        return METHODS[method]().fit(example.model, example.data.x, dtype=dtype, progress=False), example


@pytest.mark.parametrize(("default", "dtype"), TYPES, ids=["float64", "float32"])
@pytest.mark.parametrize("method", METHODS)
def test_constants_are_of_the_type_of_the_data(method, default, dtype, tmp_path):
    fit, example = fitted(Flags, method, default, dtype)
    new = example.data.x[:4].double()
    assert fit.params["rate"].dtype == fit.transform().dtype == fit.transform(new).dtype == dtype
    assert fit.log_likelihood().dtype == fit.log_likelihood(new).dtype == dtype
    assert fit.local_posterior(new).bound.dtype == fit.reconstruct().dtype == dtype
    assert all(value.dtype == dtype for value in fit.sample(3).values())
    assert fit.predictive(3).dtype == dtype and torch.isfinite(fit.plugin_log_likelihood()).all()
    assert fit.bic() > 0 and len(fit.report()) == 2
    groups = fit.to_arviz(num_draws=3, num_copies=2)
    assert all(hasattr(groups, name) for name in ("posterior", "prior_predictive", "posterior_predictive"))
    assert len(posterior_predictive_check(fit, num_samples=3, progress=False).table)
    loaded = Fit.load(fit.save(tmp_path / "fit"), model=Flags)
    assert torch.allclose(loaded.log_likelihood(), fit.log_likelihood())
    assert torch.get_default_dtype() == default


@pytest.mark.parametrize(("default", "dtype"), TYPES, ids=["float64", "float32"])
def test_comparisons_and_calibration(default, dtype):
    fit, example = fitted(Flags, "points", default, dtype)
    found = compare([Exact(), SVI(steps=5)], example.model, example.data.x, at=fit, progress=False)
    assert torch.isfinite(torch.tensor(found.table["bound"].to_numpy())).all() and not found.refused
    sizes: dict[str, Any] = {"num_simulations": 3, "num_rows": 6, "num_draws": 3, "processes": 1}
    for made, settings in ((Exact(), {"at": example.truth}), (SVI(guide="normal", steps=5), {})):
        found = simulation_based_calibration(example.model, made, progress=False, **sizes, **settings)
        assert len(found.table)


@pytest.mark.parametrize(("default", "dtype"), TYPES, ids=["float64", "float32"])
@pytest.mark.parametrize("method", ["points", "mean_field", "normal", "nuts"])
def test_continuous_latents_too(method, default, dtype):
    fit, _ = fitted(Ability, method, default, dtype)
    assert fit.transform().dtype == dtype and fit.transform().shape == (40, 1)
    assert all(value.dtype == dtype for value in fit.sample(3).values())
    joint = row_log_joint(fit.model, fit.globals, fit.data, fit.transform())
    assert joint.dtype == dtype and joint.shape == (40,)
    if method != "nuts":
        assert evaluate_posterior(fit.model, fit.globals, fit.data, fit.posterior).bound.dtype == dtype
        assert fit.predictive(2).dtype == dtype
    assert hasattr(fit.to_arviz(num_draws=3, num_copies=2), "prior_predictive")


@pytest.mark.parametrize(("default", "dtype"), TYPES, ids=["float64", "float32"])
def test_in_the_users_own_hands(default, dtype):
    """Pyro's tools run the instance, and guides with numbers in them."""
    torch.set_default_dtype(default)
    example = Flags.example()
    x = example.data.x.to(dtype)
    trace = pyro.poutine.trace(example.model).get_trace(x)
    assert trace.nodes["x"]["fn"].base_dist.rate.dtype == dtype
    fit = SVI(guide=own_guide, steps=5).fit(example.model, x, dtype=dtype, progress=False)
    assert fit.transform().dtype == fit.predictive(2).dtype == dtype
    with default_dtype(dtype):
        assert Predictive(example.model, num_samples=2)(num_rows=3)["x"].dtype == dtype


@pytest.mark.filterwarnings("ignore:Estimated shape parameter")
def test_draws_and_leave_one_out():
    fit, _ = fitted(Flags, "normal", torch.float32, torch.float64)
    assert posterior_draws(fit, 3)["flag"].dtype == torch.float64
    assert np.isfinite(loo(fit, num_draws=30, progress=False).elpd)


@pytest.mark.parametrize("name", MODELS)
def test_rows_follow_from_what_is_given(name):
    """Every model generates as many rows as what is given has, whichever of it is given."""
    problem = problem_of(name)
    model, data = problem.model, problem.data
    given = {site: value for site, value in (data.others | model.given(data)).items() if site != "unlisted"}
    several = [{site: value} for site, value in given.items() if isinstance(value, torch.Tensor)]
    for each in [*several, model.given(data)] if several else []:
        drawn = Predictive(model, num_samples=2)(None, **each)
        for site in (model.local_site, model.observed_site):
            assert drawn[site].shape[:2] == (2, len(data)), (site, list(each))
        assert torch.isfinite(drawn[model.observed_site]).all()


def test_rows_that_differ_are_refused():
    model: Any = SupervisedLDA.example().model
    lengths = torch.full((7,), 5)
    with pytest.raises(ModelError, match="rows to generate: num_tokens has 7; expected num_rows = 3 of each"):
        model(num_rows=3, num_tokens=lengths)
    with pytest.raises(ModelError, match="num_tokens has 7, response has 4; expected the same number of each"):
        model(num_tokens=lengths, response=torch.ones(4))
    assert model(num_rows=3, num_tokens=torch.tensor([5])).shape == (3, 9)
    assert rows_of({"num_tokens": 5, "mask": None}) == {} and rows_of({"a": torch.ones(1)}) == {"num_rows": 1}


def test_links_say_how_many_documents_there_are():
    example = RTM.example()
    model: Any = example.model
    links = example.data.others["links"]
    i, j = torch.triu_indices(30, 30, 1)
    values = links[i, j]
    for given in (links, values):
        trace = pyro.poutine.trace(model).get_trace(None, links=given)
        assert trace.nodes["x"]["value"].shape == (30, 9) and torch.equal(trace.nodes["links"]["value"], values)
    with pytest.raises(ModelError, match="434 values of 'links', expected one for every pair"):
        model(None, links=values[1:])
    one = pyro.poutine.trace(model).get_trace(None)  # of one document, which has no pair
    assert one.nodes["links"]["value"].shape == (0,) and torch.isfinite(one.log_prob_sum())
