"""Regression test number one: a binary code enumerated as a plate of components gives a wrong evidence in Pyro."""

import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import TraceEnum_ELBO, config_enumerate
from torch.distributions import constraints

from custom_inference import SVI, Exact
from custom_inference.core import capacity
from custom_inference.core.enumeration import enumerate_log_joint
from custom_inference.core.local_inference import solve_local
from ppl_models import NOCA, SBM, CapacityError, DataWarning, MethodError, Model, ModelError
from ppl_models.core.sites import Site
from ppl_models.distributions import NoisyOr
from tests.references import noca as reference

pytestmark = pytest.mark.quick


def _globals(example):
    return {site: example.truth[site] for site in example.model.global_sites}


@dataclass(frozen=True, kw_only=True, eq=False)
class PlateOfComponents(NOCA):
    """NOCA written the tempting way: one Bernoulli per component, in a plate."""

    def __call__(self, x=None, *, mask=None, batch_size=None, num_rows=1):
        site = self.sample_globals(like=x)
        with pyro.plate("data", x.shape[0], dim=-1):
            with pyro.plate("component", self.num_components, dim=-2):
                bit = pyro.sample("source", dist.Bernoulli(site["source_prior"][:, None]))
            noisy = NoisyOr(bit.transpose(-1, -2), site["loading"], site["leak"])
            return pyro.sample("x", noisy.to_event(1), obs=x)


@dataclass(frozen=True, kw_only=True, eq=False)
class SiteOfEachComponent(NOCA):
    """NOCA written with one site per component: also right."""

    def __call__(self, x=None, *, mask=None, batch_size=None, num_rows=1):
        site = self.sample_globals(like=x)
        with pyro.plate("data", x.shape[0], dim=-1):
            bits = [pyro.sample(f"s{i}", dist.Bernoulli(site["source_prior"][i])) for i in range(self.num_components)]
            activation = NoisyOr(torch.zeros(self.num_components), site["loading"], site["leak"]).activation
            for i, bit in enumerate(bits):
                activation = activation - bit[..., None] * torch.log1p(-site["loading"][i])
            on = -torch.expm1(-activation)
            return pyro.sample("x", dist.Bernoulli(on).to_event(1), obs=x)


def test_a_plate_of_components_is_refused():
    example = NOCA.example()
    model = PlateOfComponents(num_components=3, num_features=6)
    with pytest.raises(ModelError, match="plate 'component'.*wrong evidence"):
        enumerate_log_joint(model, _globals(example), example.data)
    with pytest.raises(ModelError, match="BernoulliVector"):
        Exact(generic=True).local_posterior(model, _globals(example), example.data)


def test_and_would_have_been_wrong():
    """Pyro itself runs the plate of components without a word; this is why it must be refused here."""
    example = NOCA.example()
    params = _globals(example)
    exact = reference.log_evidence({k: v.numpy() for k, v in params.items()}, example.data.x.numpy()).sum()

    def evidence(model, depth):
        conditioned = config_enumerate(pyro.condition(model, data=params), default="parallel")
        return -TraceEnum_ELBO(max_plate_nesting=depth).loss(conditioned, lambda x: None, example.data.x)

    assert np.isclose(evidence(NOCA.example().model, 1), exact, rtol=1e-10)
    try:
        wrong = evidence(PlateOfComponents(num_components=3, num_features=6), 2)
    except (RuntimeError, ValueError):
        return  # a later Pyro refuses it too
    assert abs(wrong - exact) > 1


def test_one_site_per_component_agrees_with_the_event_vector():
    example = NOCA.example()
    params = _globals(example)
    _, table = enumerate_log_joint(SiteOfEachComponent(num_components=3, num_features=6), params, example.data)
    _, vector = enumerate_log_joint(example.model, params, example.data)
    assert table.shape == (60, 8)
    assert torch.allclose(table.logsumexp(-1), vector.logsumexp(-1), atol=1e-10)


def test_generic_enumeration_equals_the_plain_sum_and_the_fast_steps():
    example = NOCA.example()
    params = _globals(example)
    numpy_params = {k: v.numpy() for k, v in params.items()}
    generic = Exact(generic=True).local_posterior(example.model, params, example.data)
    fast = Exact().local_posterior(example.model, params, example.data)
    expected = reference.log_evidence(numpy_params, example.data.x.numpy())
    assert np.allclose(generic.bound, expected, atol=1e-8) and np.allclose(fast.bound, expected, atol=1e-8)
    assert torch.allclose(generic.posterior.mean, fast.posterior.mean, atol=1e-10)


def test_continuous_locals_are_refused():
    def model(x, mask=None):
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("x", dist.Normal(z[:, None], 1.0).to_event(1), obs=x)

    with pytest.raises(MethodError, match=r"'z' \(Normal\) has no finite support"):
        enumerate_log_joint(model, {}, NOCA.example().data)


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoresOfOnesOwn(NOCA):
    """Rows with a continuous latent, and no engines."""

    sites: ClassVar[Any] = {**NOCA.sites, "source": Site("latent", ("component",), ("row",), constraints.real)}

    def __call__(self, x=None, *, mask=None, batch_size=None, num_rows=1):
        site = self.sample_globals(like=x)
        with pyro.plate("data", len(x), subsample_size=batch_size) as index:
            score = pyro.sample("source", dist.Normal(0.0, 1.0).expand([self.num_components]).to_event(1))
            logits = score @ site["loading"]
            return pyro.sample("x", dist.Bernoulli(logits=logits).to_event(1), obs=x[index])


def test_a_likelihood_that_no_sum_gives_is_integrated_or_estimated():
    """Three scores a row by quadrature; of four there is an estimate, and nothing exact."""
    example = NOCA.example()
    model: Model = ScoresOfOnesOwn(num_components=3, num_features=6)
    fit = SVI(guide="mean_field", steps=5).fit(model, example.data, progress=False)
    local = fit.local_posterior()
    assert local.what == "quadrature" and torch.equal(local.bound, fit.log_likelihood())
    larger = ScoresOfOnesOwn(num_components=4, num_features=6)
    params = {site: torch.full(shape, 0.3) for site, shape in larger.shapes.items()}
    with pytest.raises(MethodError, match=r"'source' \(4\).*up to 3 by quadrature.*importance sampling"):
        Exact().local_posterior(larger, params, example.data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # of Pareto's k, in a row at the limit
        estimate = solve_local(larger, params, example.data)
    assert estimate.what == "estimate" and estimate.standard_error is not None
    assert 0 < float(estimate.standard_error.max()) < 0.1


def graph_of(num_nodes: int, num_blocks: int):
    """A model, data without edges, and globals under which all labelings are as good: log p(x) = dyads log (1 / 2)."""
    model = SBM(num_blocks=num_blocks, num_nodes=num_nodes, directed=False)
    params = {site: torch.full(shape, 0.5) for site, shape in model.shapes.items()}
    return model, {**params, "block_proportion": torch.full((num_blocks,), 1 / num_blocks)}


@pytest.mark.parametrize("generic", [False, True])
@pytest.mark.parametrize(("num_nodes", "num_blocks", "most"), [(24, 2, 22), (23, 2, 22), (14, 3, 13), (400, 5, 9)])
def test_more_labelings_than_can_be_summed_over_are_refused(generic, num_nodes, num_blocks, most, monkeypatch):
    monkeypatch.setattr(capacity.psutil, "virtual_memory", lambda: type("Memory", (), {"available": 2**42}))
    model, params = graph_of(num_nodes, num_blocks)
    data = model.prepare(torch.zeros(num_nodes, num_nodes).double())
    text = rf"{num_blocks}\^{num_nodes} labelings .*{num_blocks} blocks (up to|at most) {most} nodes"
    with pytest.raises(CapacityError, match=text) as caught:
        Exact(generic=generic).local_posterior(model, params, data)
    assert caught.value.needed_bytes > caught.value.allowed_bytes


def test_as_many_labelings_as_there_is_memory_for():
    model, params = graph_of(8, 3)
    data = model.prepare(torch.zeros(8, 8))
    local = Exact().local_posterior(model, params, data)
    assert np.isclose(float(local.bound), -28 * np.log(2)) and len(local.posterior.table()[0]) == 3**8
    assert torch.allclose(local.posterior.mean, torch.tensor(1 / 3))


def test_codes_that_do_not_fit_into_memory_are_refused_before_they_are_summed_over(monkeypatch):
    example = NOCA.example()
    exact = Exact(generic=True)
    free = {"bytes": 2.0 * 8 * 8 * (60 + 60 * 6)}  # half of it is allowed
    monkeypatch.setattr(capacity.psutil, "virtual_memory", lambda: type("M", (), {"available": 2 * free["bytes"]}))
    exact.local_posterior(example.model, _globals(example), example.data)
    free["bytes"] *= 0.5
    with pytest.raises(
        CapacityError, match=r"8 values of the locals of 60 rows.*30 rows at a time would fit"
    ) as caught:
        exact.local_posterior(example.model, _globals(example), example.data)
    assert caught.value.needed_bytes == 2 * caught.value.allowed_bytes
