"""Supports of sites as people write them: as Pyro's distributions say them, of vectors and of single numbers."""

import pickle

import pyro.distributions as dist
import pytest
import torch
from torch.distributions import constraints

from custom_inference.core.method import to_ask_with
from ppl_models import MODELS, ModelError
from ppl_models.core.sites import Site, of_element
from tests.support.literal_programs import Ability, Flags

pytestmark = pytest.mark.quick

#: What is declared -> what it is of one element.
WRITTEN = [
    (constraints.real_vector, constraints.real),
    (dist.Normal(0.0, 1.0).expand([2, 3]).to_event(2).support, constraints.real),
    (constraints.independent(constraints.independent(constraints.positive, 1), 1), constraints.positive),
    (dist.Gamma(1.0, 1.0).support, constraints.nonnegative),
    (constraints.greater_than(0), constraints.positive),
    (constraints.interval(0, 1), constraints.unit_interval),
    (constraints.interval(torch.tensor(0.0), torch.tensor(1.0)), constraints.unit_interval),
    (dist.Bernoulli(torch.ones(3) / 2).to_event(1).support, constraints.boolean),
    (dist.Poisson(torch.ones(3)).to_event(1).support, constraints.nonnegative_integer),
    (dist.Dirichlet(torch.ones(4, 3)).to_event(1).support, constraints.simplex),
    (dist.OneHotCategorical(torch.ones(4, 3)).to_event(1).support, constraints.one_hot),
    (constraints.positive_definite, constraints.positive_definite),
]


@pytest.mark.parametrize(("written", "expected"), WRITTEN)
def test_supports_are_of_one_element(written, expected):
    site = Site("global", ("feature",), support=written)
    assert site.support is expected
    assert pickle.loads(pickle.dumps(site)).support is expected, "as another process reads it"


def test_others_stay_as_they_are():
    bounds = constraints.interval(torch.zeros(2), torch.ones(2))
    for support in (None, bounds, constraints.lower_cholesky, constraints.interval(0, 2)):
        assert of_element(support) is support
    for model in MODELS.values():
        for name, site in model.example().model.sites.items():
            assert of_element(site.support) is site.support, (model, name)


def test_models_know_what_their_sites_are():
    flags, ability = Flags.example().model, Ability.example().model
    assert flags.code_bits == 2 and flags.data_kind == "counts"
    assert ability.has_continuous_locals and ability.data_kind == "binary" and not ability.has_components
    with pytest.raises(ModelError, match="'slope' is positive; the prior Normal"):
        ability.with_priors(slope=dist.Normal(0.0, 1.0))
    with pytest.raises(ModelError, match="Ability has no components: none of its globals has the axis 'component'"):
        _ = ability.component_site


def test_a_class_without_an_example_says_what_needs_one():
    class Unlisted(Ability):
        @classmethod
        def example(cls):
            return super(Ability, cls).example()

    with pytest.raises(ModelError, match="Unlisted has no example: estimators and the command line"):
        Unlisted.example()
    assert to_ask_with(Unlisted(num_components=1, num_features=3)) is None
