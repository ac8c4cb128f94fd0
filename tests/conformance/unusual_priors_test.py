"""Priors of unusual kinds, of one site at a time: what is listed runs, what is not refuses, and plain fits do not."""

from dataclasses import fields, replace

import pyro.distributions as dist
import pytest
import torch
from torch.distributions import SigmoidTransform, StickBreakingTransform, constraints

from custom_inference import fit
from custom_inference.core.method import refusal
from custom_inference.em.method import VariationalEM
from custom_inference.methods import Default, methods_for, methods_of
from ppl_models import MODELS, AspectBernoulli, MethodError, ModelError, PriorError
from tests.support.cases import SMALL, problem_of, small_computations

pytestmark = [
    pytest.mark.filterwarnings("ignore::ppl_models.DataWarning", "ignore:Converting a tensor with requires_grad")
]


def logit_normal():
    return dist.TransformedDistribution(dist.Normal(-1.0, 1.0), [SigmoidTransform()])


def logistic_normal(size):
    sticks = dist.MultivariateNormal(torch.zeros(size - 1), torch.eye(size - 1))
    return dist.TransformedDistribution(sticks, [StickBreakingTransform()])


#: Support -> priors of one element, given its size.
UNUSUAL = {
    constraints.simplex: [
        lambda k: dist.Dirichlet(torch.linspace(0.7, 1.9, k)),
        lambda k: dist.Dirichlet(torch.linspace(1.4, 2.6, k)),
        lambda k: logistic_normal(k),
    ],
    constraints.positive: [
        lambda _: dist.Gamma(0.5, 0.5),
        lambda _: dist.Gamma(2.0, 1.0),
        lambda _: dist.LogNormal(0.0, 0.5),
    ],
    constraints.unit_interval: [lambda _: dist.Beta(0.7, 1.9), lambda _: dist.Beta(1.5, 2.0), lambda _: logit_normal()],
    constraints.real: [lambda _: dist.StudentT(4.0, 0.0, 0.5)],
}


def changed(model):
    """(site, model) with the priors of one site exchanged."""
    for site in model.priors:
        declared = model.sites[site].support
        shape = model.shape_of(site)
        for make in UNUSUAL.get(constraints.real if declared is None else declared, ()):
            try:
                yield site, model.with_priors(**{site: make(shape[-1] if shape else 1)})
            except ModelError:  # a site whose prior the program fixes, or of another form
                continue


def brief(method):
    """The method with few iterations from a random start."""
    known = {field.name for field in fields(method)}
    few = {"max_iterations": 2, "search": None, "steps": 2, "restarts": 1, "num_samples": 2, "warmup": 1, "chains": 1}
    return replace(method, **{name: value for name, value in {**SMALL, **few}.items() if name in known})


@pytest.mark.parametrize("name", MODELS)
def test_what_is_listed_takes_the_priors_and_what_is_not_refuses(name):
    example = problem_of(name)
    for site, model in changed(example.model):
        listed = methods_for(model)
        for other, make in methods_of(model).items():
            method = make()
            if not isinstance(method, VariationalEM):
                continue
            if other in listed:
                with small_computations(name, other):
                    found = brief(method).fit(model, example.data, progress=False)
                assert bool(torch.isfinite(found.elbo).all()), (site, other)
            else:
                with pytest.raises(MethodError):
                    method.fit(model, example.data, progress=False)


@pytest.mark.parametrize("name", MODELS)
def test_the_default_gives_way_where_it_has_no_steps_for_the_priors(name):
    example = problem_of(name)
    for site, model in changed(example.model):
        if (name, site) == ("rtm", "topic_proportion") and "gibbs" not in methods_for(model):
            assert not methods_for(model)  # its own prior has no density, for which others could be exchanged
            with pytest.raises(PriorError, match="no method of RTM has steps for its priors"):
                fit(model, example.data, progress=False)
            continue
        chosen = Default().choose(model)
        assert refusal(chosen, model) is None, site
        if "since" in getattr(chosen, "said", ""):
            with small_computations(name, "default"):
                found = replace(chosen, method=brief(chosen.method)).fit(model, example.data, progress=False)
            assert "since the default refuses" in found.status


def test_aspects_under_concentrations_on_both_sides_of_one():
    example = AspectBernoulli.example()
    model = AspectBernoulli(num_components=2, num_features=example.data.num_features)
    model = model.with_priors(membership=dist.Dirichlet(torch.tensor([0.7, 1.9])))
    assert "map" not in methods_for(model) and "em" in methods_for(model)
    found = fit(model, example.data.x[:8], max_iterations=3, progress=False)
    assert (
        found.method_name == "EM" and "since the default refuses: the Dirichlet prior of 'membership'" in found.status
    )
    with pytest.raises(PriorError, match="concentration below 1"):
        VariationalEM(guide="map").fit(model, example.data.x[:8], progress=False)
