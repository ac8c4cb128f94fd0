"""Weights of rows in the fits that people make: the default method of every model that weighs rows, with a search."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import custom_inference as ci
from custom_inference.core import evaluate
from custom_inference.core.engine import POINT
from custom_inference.core.method import to_ask_with
from custom_inference.faces.sklearn import AspectBernoulliEstimator
from custom_inference.methods import default_method
from ppl_models import MODELS, RBM, DirichletMultinomialRegression, MethodError, RandomEffectsLDA, SupervisedLDA

#: Of twelve rows, how often each counts, and as many rows as they count for.
COUNT = torch.arange(12) % 4
COUNT[0] = 1  # of a row that engines may set sizes by
REPEATED = torch.arange(12).repeat_interleave(COUNT)
#: Few starts and iterations, which still go through every part of a fit.
SEARCH = ci.Search(restarts=1, settle=2, climb=2, random=0)


def weighs(kind):
    """Whether the default weighs rows; of several numbers of a row (DTM) it says only later that it does not. The
    proposals of Helmholtz machines take long, and read no weights."""
    if kind in (MODELS["dtm"], MODELS["helmholtz_machine"]):
        return False
    model = kind.example().model
    try:
        default_method(model, None).check_weights(model)
    except MethodError:
        return False
    return True


@pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")
@pytest.mark.parametrize("name", [name for name, kind in MODELS.items() if weighs(kind)])
def test_default_fits_take_whole_weights_as_repeated_rows(name):
    """The search is of the repeated rows, from the same seed: the same objective, criteria and scale of the priors."""
    model, data = to_ask_with(MODELS[name].example().model)
    data, method = data.rows(slice(0, 12)), replace(default_method(model, None), search=SEARCH, max_iterations=5)
    points = method.engine(model).name == POINT  # which a search hands on with its rows alone: the ends agree
    method = replace(method, max_iterations=300, tolerance=1e-6) if points else method
    fit = method.fit(model, data, weights=COUNT, progress=False)
    other = method.fit(model, data.rows(REPEATED), progress=False)
    least = 2e-2 if points else 1e-5 * max(1.0, abs(float(other.elbo[-1])))
    assert float(fit.elbo[-1]) == pytest.approx(float(other.elbo[-1]), abs=least)
    assert fit.bic() == pytest.approx(other.bic(), abs=3 * least)
    assert evaluate.num_parameters(fit) == evaluate.num_parameters(other)


@pytest.mark.parametrize("model, others", [
    (RBM(num_hidden=1, num_features=3, visible="gaussian"), {}),
    (MODELS["pmf"](num_components=1, num_users=12, num_items=3), {}),
    (SupervisedLDA(num_topics=2, vocabulary_size=3, response="real"), {"response": (12,)}),
    (RandomEffectsLDA(num_topics=2, vocabulary_size=3, num_covariates=2), {"covariates": (12, 2)}),
    (DirichletMultinomialRegression(num_topics=2, vocabulary_size=3, num_covariates=2), {"covariates": (12, 2)}),
], ids=lambda value: type(value).__name__)  # fmt: skip
def test_scales_are_those_of_the_rows_as_often_as_they_count(model, others):
    """Centres and units of weighted rows are those of repeated rows; rows of weight 0 do not count, however far."""
    rng = np.random.default_rng(5)
    given = {name: torch.as_tensor(rng.normal(7.0, 3.0, size)) for name, size in others.items()}
    for value in given.values():
        value[0], value[4] = torch.nan if "response" in given else 3.0, 1e9  # row 4 counts for none
    x = rng.random((12, 3)).round() if others else rng.normal(50.0, 4.0, (12, 3))
    data = model.prepare(x, dtype=torch.float64, **given)
    found, expected = model.on_scale_of(data, weights=COUNT.double()), model.on_scale_of(data.rows(REPEATED))
    assert np.allclose(found.centre, expected.centre, rtol=1e-9) and np.allclose(found.unit, expected.unit, rtol=1e-9)
    if not others or "response" in given:
        assert not np.allclose(found.unit, model.on_scale_of(data).unit, rtol=1e-3)


@pytest.mark.parametrize("hidden", ["binary", "gaussian"])
def test_machines_of_real_data_weigh_rows_in_their_scale(hidden):
    rng = np.random.default_rng(7)
    x, count = rng.normal(size=(30, 3)) * [[1.0, 2.0, 0.5]] + 2000, np.arange(30) % 3
    model = RBM(num_hidden=1, num_features=3, visible="gaussian", hidden=hidden)
    fit, other = (ci.fit(model, a, weights=w, progress=False) for a, w in ((x, count), (x.repeat(count, 0), None)))
    assert float(fit.elbo[-1]) == pytest.approx(float(other.elbo[-1]), abs=1e-2)


def test_estimators_of_points_take_sample_weight():
    """Of aspects: whose last climb is by Newton steps, which read the rows with their weights."""
    x = (np.random.default_rng(0).random((40, 4)) < 0.5) * 1.0
    count = np.arange(40) % 3
    weighted = AspectBernoulliEstimator(2, random_state=0).fit(x, sample_weight=count).fit_
    repeated = AspectBernoulliEstimator(2, random_state=0).fit(x.repeat(count, 0)).fit_
    assert float(weighted.elbo[-1]) == pytest.approx(float(repeated.elbo[-1]), abs=1e-2)
    assert weighted.bic() == pytest.approx(repeated.bic(), abs=3e-2)
