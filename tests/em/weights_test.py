"""Weights of rows: whole ones are repeated rows, over all models of rows and their engines."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

import custom_inference as ci
from custom_inference.core.method import to_ask_with
from custom_inference.core.registry import engines_of
from custom_inference.core.states import values_of
from custom_inference.em import weights as room
from custom_inference.em.steps import EMStep, Position
from custom_inference.em.weights import WeightedRows, require_weighable
from custom_inference.faces.sklearn import MixtureOfBernoullisEstimator
from custom_inference.families.dynamics.cvb0 import DynamicCvb0
from ppl_models import MODELS, DataError, MethodError, MixtureOfBernoullis


def weighable(engine):
    if isinstance(engine, DynamicCvb0):  # which keeps what it goes on from of every word
        return False
    try:
        require_weighable(engine)
    except MethodError:
        return False
    return True


CASES = [
    (kind, name)
    for kind in MODELS.values()
    if kind.example().model.rows_are_independent
    for name, make in engines_of(kind.example().model).items()
    if weighable(make())
]


@pytest.fixture(params=["groups", "digits"])
def way(request, monkeypatch):
    """Rows of one weight together, or the weights' binary digits; engines that weigh rows themselves do that alike."""
    if request.param == "digits":
        monkeypatch.setattr(room, "_GROUPS", 0)


@pytest.mark.parametrize("kind, name", CASES, ids=[f"{kind.__name__}-{name}" for kind, name in CASES])
def test_whole_weights_are_repeated_rows(kind, name, way):
    """Two iterations, from one state: the same objectives and the same globals."""
    model, data = to_ask_with(kind.example().model)
    data = data.rows(slice(0, 12))
    engine = engines_of(model)[name]()
    count = torch.arange(12) % 4
    count[0] = 1  # of a row that engines may set sizes by
    rows, repeated = engine.rows(model, data), engine.rows(model, data.rows(torch.arange(12).repeat_interleave(count)))
    state, found = engine.initial(model, repeated, torch.Generator().manual_seed(0)), []
    with torch.no_grad():
        for some in (WeightedRows(rows, count.double()), repeated):
            step = EMStep(engine, model, some, generator=torch.Generator().manual_seed(0))
            at = Position((state, None))
            for _ in range(2):
                taken = step.evaluate(at, 1.0)
                at.start, _ = step.advance(taken, 1.0)
            found.append((taken.value, values_of(model, at.start[0])))
    (first, one), (second, other) = found
    assert abs(first - second) < 1e-6 * max(1.0, abs(second))
    for site in other:
        assert torch.allclose(one[site], other[site], rtol=1e-5, atol=1e-7), site


ROWS = np.random.default_rng(3).random((40, 6)) < np.repeat([[0.8] * 3 + [0.2] * 3, [0.2] * 3 + [0.8] * 3], 20, 0)
X, COUNT = ROWS * 1.0, np.arange(40) % 4
REPEATED = np.repeat(X, COUNT, 0)
MODEL = MixtureOfBernoullis(num_components=2, num_features=6)


def test_fits_search_weigh_and_save_alike(tmp_path):
    """By default settings: parameters, objective and BIC are those of the repeated rows, and of a file."""
    fit, other = (ci.fit(MODEL, x, weights=w, progress=False) for x, w in ((X, COUNT), (REPEATED, None)))
    for site, value in other.params.items():
        assert torch.allclose(fit.params[site], value, atol=1e-4), site
    assert float(fit.elbo[-1]) == pytest.approx(float(other.elbo[-1]), abs=1e-2)
    assert fit.bic() == pytest.approx(other.bic(), abs=1e-2) and fit.aic() == pytest.approx(other.aic(), abs=1e-2)
    assert fit.transform().shape == (40, 2) and "of weight 60 in all" in repr(fit)
    loaded = ci.Fit.load(fit.save(tmp_path / "fit.safetensors"))
    assert torch.equal(loaded.weights, torch.as_tensor(COUNT * 1.0)) and loaded.bic() == pytest.approx(fit.bic())


def test_any_weights_have_the_weighted_mean():
    """Of one class under flat priors p_j = sum_n w_n x_nj / sum_n w_n; of a row without weight nothing is learned."""
    weights = np.random.default_rng(0).gamma(1.0, size=40)
    weights[5] = 0.0
    one = MixtureOfBernoullis(num_components=1, num_features=6)
    fit = ci.EM().fit(one, X, weights=pd.Series(weights), progress=False)
    assert np.allclose(fit.params["probability"], weights @ X / weights.sum(), atol=1e-6)
    worth = weights * weights.sum() / (weights**2).sum()  # they say how much rows matter, not how many there are
    assert fit.aic() == pytest.approx(-2 * worth @ fit.log_likelihood().numpy() + 12, rel=1e-9)
    assert np.allclose(ci.EM().fit(one, X, weights=7 * weights, progress=False).params["probability"],
                       fit.params["probability"], atol=1e-6)  # fmt: skip


def test_estimators_take_sample_weight():
    weighted = MixtureOfBernoullisEstimator(2, random_state=0).fit(X, sample_weight=COUNT)
    repeated = MixtureOfBernoullisEstimator(2, random_state=0).fit(REPEATED)
    assert np.allclose(weighted.components_, repeated.components_, atol=1e-4)
    assert weighted.score(X, sample_weight=COUNT) == pytest.approx(repeated.score(REPEATED), abs=1e-4)


@pytest.mark.parametrize("weights, message", [
    ([1.0] * 39, "shape"), ([-1.0] + [1.0] * 39, "of row 0"), ([1.0] * 39 + [np.nan], "of row 39"), ([0.0] * 40, "all"),
    (["many"] * 40, "no numbers"),
])  # fmt: skip
def test_wrong_weights_are_refused(weights, message):
    with pytest.raises(DataError, match=message):
        ci.EM().fit(MODEL, X, weights=weights, progress=False)


@pytest.mark.parametrize("method", [
    ci.NUTS(), ci.CollapsedGibbs(), ci.SVI(), ci.EM(batch_size=10), ci.EM(checkpoint="never"),
])  # fmt: skip
def test_methods_that_cannot_weigh_rows_say_so(method):
    with pytest.raises(MethodError, match="weigh"):
        method.fit(MODEL, X, weights=COUNT, progress=False)


def test_engines_that_cannot_weigh_rows_say_so():
    """Of an M step that reads rows, and of graphs."""
    noca, sbm = MODELS["noca"].example(), MODELS["sbm"].example()
    with pytest.raises(MethodError, match="M step reads every row"):
        ci.VariationalEM(guide="factorized").fit(noca.model, noca.data, weights=[1.0] * len(noca.data), progress=False)
    with pytest.raises(MethodError, match="not independent"):
        ci.VariationalEM().fit(sbm.model, sbm.data, weights=[1.0] * len(sbm.data), progress=False)
