"""Models whose sizes come from the data: ``NOCA(num_components=4)``."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import numpy as np
import pandas as pd
import pyro.distributions as dist
import pytest
import torch

from custom_inference import EM, choose, compare, fit, methods_for
from ppl_models import LDA, MODELS, NOCA, LabeledLDA, MixtureOfCategoricals, ModelError, SupervisedLDA
from ppl_models.core.unsized import UnsizedModel, with_sizes

#: Whose sizes are a field of another kind: the layers, the features of the nodes.
OTHERS = ("helmholtz_machine", "covariate_sbm")
TEXTS = ["gas lamp gas", "lamp horse gas", "tram bulb tram", "bulb tram motor"] * 3


@pytest.mark.quick
@pytest.mark.parametrize("name", [name for name in MODELS if name not in OTHERS])
def test_every_model_takes_its_sizes_from_the_data(name):
    """Those of what is given beside x too, whether it comes with x or beside it."""
    kind, example = MODELS[name], MODELS[name].example()
    field = kind.axes["component"]
    made = kind(**{field: getattr(example.model, field)})
    assert type(made) is UnsizedModel and repr(made).startswith(f"{kind.__name__}({field}=")
    assert all(lacking in repr(made) for lacking in made.missing)
    for data, beside in ((example.data, {}), (replace(example.data, others={}), example.data.others)):
        model, _ = with_sizes(made, data, {**beside, "seed": 3})
        assert type(model) is kind and model.sizes == example.model.sizes
        model.prepare(data, **beside)


@pytest.mark.quick
def test_fit_takes_a_frame_and_so_do_what_compares():
    frame = pd.DataFrame(NOCA.example().data.x.numpy().astype(int), columns=list("abcdef"))
    quick = EM(search=None, max_iterations=2)
    sized = quick.fit(NOCA(num_components=2, num_features=6), frame, progress=False)
    for found in (
        quick.fit(NOCA(num_components=2), frame, progress=False),
        fit(NOCA(num_components=2), frame, method="em", search=None, max_iterations=2, progress=False),
    ):
        assert found.model.num_features == 6 and torch.equal(found.params["loading"], sized.params["loading"])
    assert NOCA.for_data(frame, 2).sizes == NOCA.for_data(frame, num_components=2).sizes == sized.model.sizes
    assert not compare(["exact"], NOCA(num_components=2), frame[:8], at=sized, progress=False).refused
    chosen = choose(NOCA(num_components=1), frame, [1, 2], criteria=["bic"], progress=False)
    assert chosen.model.num_features == 6


def test_priors_are_those_that_were_asked_for():
    frame = NOCA.example().data.x.numpy()
    made = NOCA(num_components=2, priors={"leak": 0.01}).with_priors(loading=dist.Beta(2.0, 2.0))
    model = made.for_data(frame)
    assert set(model.chosen_priors) == {"leak", "loading"}
    assert model.known["leak"].unique().tolist() == pytest.approx([0.01])


def test_names_beside_the_rows_say_how_many_there_are():
    tags = [["old"], ["old", "horses"], ["new"], []] * 3
    assert with_sizes(LabeledLDA(num_topics=4), TEXTS, {"labels": tags})[0].num_labels == 3
    stars = SupervisedLDA(num_topics=2, response="categorical")
    assert with_sizes(stars, TEXTS, {"response": [0, 1, 2, 2] * 3})[0].num_classes == 3
    weather = ["dry", "wet", "snow", None] * 3
    assert with_sizes(stars, TEXTS, {"response": weather})[0].num_classes == 3
    known = pd.Series(pd.Categorical(weather, categories=["dry", "hail", "snow", "wet"]))  # one never occurs
    assert with_sizes(stars, TEXTS, {"response": known})[0].num_classes == 4
    marks = pd.DataFrame({"first": np.arange(12.0), "second": np.ones(12)})
    assert with_sizes(SupervisedLDA(num_topics=2, response="real"), TEXTS, {"response": marks})[0].num_responses == 2
    words = pd.DataFrame({"by": ["bus", "car", "tram"] * 2, "yes": ["y", "n", "n"] * 2})
    assert with_sizes(MixtureOfCategoricals(num_components=2), words, {})[0].num_categories == (3, 2)


@pytest.mark.quick
@pytest.mark.parametrize("use", [lambda m: m(), lambda m: m.shapes, lambda m: m.prepare([[0, 1]]), methods_for])
def test_what_needs_sizes_says_so(use):
    with pytest.raises(ModelError, match=r"NOCA\(num_components=4; num_features: those of the data\) has no sizes yet"):
        use(NOCA(num_components=4))


@pytest.mark.quick
def test_settings_that_are_lacking_unknown_or_unnamed_are_refused_by_name():
    expected = r"expected NOCA\(num_components=\.\.\., num_features=\.\.\.\), or NOCA\.for_data\(x, \.\.\.\)"
    with pytest.raises(ModelError, match=f"^NOCA without num_components; {expected}"):
        NOCA(num_features=4)
    with pytest.raises(
        ModelError, match=r"unknown setting of NOCA 'num_componets' \(did you mean 'num_components'\?\)"
    ):
        NOCA(num_componets=3, num_features=4)
    for kind in MODELS.values():
        with pytest.raises(ModelError, match=f"unknown setting of {kind.__name__} 'magic'; valid: "):
            kind(**kind.example().model.settings(), magic=3)
        with pytest.raises(
            ModelError, match=rf"^{kind.__name__}\(3\): settings have names; expected {kind.__name__}\("
        ):
            kind(3)
        if kind is not MODELS["helmholtz_machine"]:  # whose sizes all have defaults
            with pytest.raises(ModelError, match=rf"^{kind.__name__} without .*{kind.__name__}\.for_data\(x"):
                kind()


def test_copies_stay_what_they_are():
    sized, unsized = LDA(num_topics=2, vocabulary_size=5), LDA(num_topics=2)
    for again in (copy.copy(sized), copy.deepcopy(sized), pickle.loads(pickle.dumps(sized)), replace(sized)):
        assert type(again) is LDA and again.sizes == sized.sizes
    for again in (copy.deepcopy(unsized), pickle.loads(pickle.dumps(unsized))):
        assert again.for_data(np.ones((3, 4))).sizes == {"component": 2, "word": 4}
