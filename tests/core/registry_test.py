"""The registry: which engines, sampler and methods a model has, and what a subclass inherits of them."""

from dataclasses import dataclass

import pyro.distributions as dist
import pytest
import torch

import custom_inference as ci
from custom_inference.core.engine import Engine
from custom_inference.core.registry import Family, engine_for, engines_of, family_of, register
from custom_inference.families.topics.vb import LdaVB
from custom_inference.methods import every_method, methods_for, methods_of
from ppl_models import LDA, MODELS, Data, MethodError

pytestmark = pytest.mark.quick
COMPILED = {"vb", "conjugate", "cvb0", "gibbs"}
GENERIC = {*COMPILED, "default", "exact", "mean_field", "amortized", "svi_delta", "svi_normal", "nuts"}


@dataclass(frozen=True, kw_only=True, eq=False)
class Tagged(LDA):
    """Another program: engines derived for LDA's would be wrong."""

    def __call__(self, x=None, *, mask=None, num_rows=None, batch_size=None):
        return super().__call__(x, mask=mask, num_rows=num_rows, batch_size=batch_size)


@dataclass(frozen=True, kw_only=True, eq=False)
class Sharper(LDA):
    """The same program by other default values."""

    def default_priors(self):
        return {**super().default_priors(), "topic": dist.Dirichlet(torch.full((self.vocabulary_size,), 0.5))}

    @classmethod
    def example(cls):
        return MODELS["lda"].example()


@dataclass(frozen=True, kw_only=True, eq=False)
class BelowTagged(Tagged):
    """Nothing of its own, but what it inherits is another program."""


def sized(kind, **settings):
    return kind(num_topics=2, vocabulary_size=4, **settings)


@pytest.mark.parametrize("kind", [Tagged, BelowTagged])
def test_another_program_has_generic_methods_only(kind):
    model = sized(kind)
    assert dict(engines_of(model)) == {} and family_of(model).sampler is None
    assert set(methods_for(model)) <= GENERIC and {"mean_field", "nuts", "svi_delta"} <= set(methods_for(model))
    x = torch.ones(3, 4)
    for method in (ci.EM(), ci.TemperedEM()):
        with pytest.raises(MethodError, match=kind.__name__):
            method.fit(model, x, progress=False)
    with pytest.raises(MethodError, match=f"{kind.__name__} has no closed-form engine"):
        engine_for(model, "vb")
    found = ci.fit(model, x, method="svi_delta", steps=2, progress=False)
    assert found.params["topic"].shape == (2, 4)


def test_other_defaults_and_examples_inherit():
    model = sized(Sharper)
    assert engines_of(model) == engines_of(sized(LDA)) and family_of(model).sampler is family_of(sized(LDA)).sampler
    assert methods_for(model) == methods_for(sized(LDA))
    assert float(model.priors["topic"].concentration[0]) == 0.5
    assert ci.fit(model, torch.ones(3, 4), max_iterations=2, progress=False).bound_name == "cvb0"


def test_a_record_says_what_a_subclass_has(monkeypatch):
    monkeypatch.setattr("custom_inference.core.registry._REGISTERED", {})
    register(Family(model=Tagged, engines={"vb": LdaVB}, default="vb"))
    for kind in (Tagged, BelowTagged):  # the latter changes nothing of the former
        assert list(engines_of(sized(kind))) == ["vb"] and "gibbs" not in methods_for(sized(kind))
        assert "vb" in methods_for(sized(kind))


#: Engines that integrate latents of an improper prior: they serve rows at given globals, and no fit.
OF_ROWS_ALONE = {"nmf": {"exact", "em", "gamma"}}


@pytest.mark.parametrize("name", MODELS)
def test_methods_are_those_of_the_record(name):
    model = MODELS[name].example().model
    family, methods = family_of(model), methods_of(model)
    refused = OF_ROWS_ALONE.get(name, set())
    assert [one for one in methods if one not in refused] == methods_for(model) and set(methods) <= set(every_method())
    assert {"em" if engine == "exact" else engine for engine in family.engines} <= set(methods)
    assert ("gibbs" in methods) == (family.sampler is not None)
    for method, make in methods.items():
        assert ci.methods_for(model).count(method) == (method not in refused) and callable(make().fit)
    rule = family.default if isinstance(family.default, str) else family.default(model, MODELS[name].example().data)
    assert rule in {**family.engines, **family.methods}


def test_names_that_there_are_not():
    with pytest.raises(MethodError, match="valid: .*vb"):
        engine_for(sized(LDA), "magic")
    with pytest.raises(MethodError, match="valid: .*gibbs"):
        ci.fit(sized(LDA), Data(x=torch.ones(3, 4)), method="magic")


class Unfinished(Engine):
    """An engine of which only one method is written."""

    name = "vb"

    def rows(self, model, data):
        return data


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"default": "eksact"}, "unknown default of Tagged 'eksact'; valid: vb"),
        ({"model": dict}, "expected a class of models"),
        ({"model": sized(Tagged)}, "expected a class of models"),
        ({"engines": {"vb": 3}}, r"engines\['vb'\] of Tagged is 3, expected a subclass of Engine"),
        ({"engines": {"vb": dict}}, "expected a subclass of Engine"),
        ({"engines": {"vb": Unfinished}}, "Unfinished, which lacks e_step, .*m_step"),
        ({"stages": "random starts"}, "expected a tuple of names"),
    ],
)
def test_records_that_could_not_serve_are_refused(record, said, monkeypatch):
    known = {}
    monkeypatch.setattr("custom_inference.core.registry._REGISTERED", known)
    with pytest.raises(MethodError, match=said):
        register(Family(**{"model": Tagged, "engines": {"vb": LdaVB}, "default": "vb", **record}))
    assert not known


@pytest.mark.parametrize("name", MODELS)
def test_the_records_of_the_suite_could_be_registered(name, monkeypatch):
    monkeypatch.setattr("custom_inference.core.registry._REGISTERED", {})
    register(family_of(MODELS[name].example().model))
