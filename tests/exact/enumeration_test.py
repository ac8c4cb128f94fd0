"""Regression test number one: a binary code enumerated as a plate of components gives a wrong evidence in Pyro."""

from dataclasses import dataclass

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import TraceEnum_ELBO, config_enumerate

from custom_inference import Exact
from custom_inference.core.enumeration import enumerated_log_joint
from ppl_models import NOCA, MethodError, ModelError
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
        enumerated_log_joint(model, _globals(example), example.data)
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
    _, table = enumerated_log_joint(SiteOfEachComponent(num_components=3, num_features=6), params, example.data)
    _, vector = enumerated_log_joint(example.model, params, example.data)
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
        enumerated_log_joint(model, {}, NOCA.example().data)
