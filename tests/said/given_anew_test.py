"""Some of the training rows given anew have the fit's own values, or the fit says by what they are inferred instead."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import custom_inference as ci
from custom_inference.core.registry import engines_of
from custom_inference.methods import default_method
from ppl_models import MODELS, Model

pytestmark = pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")
#: How far from its optimum a fit that converged may have left a row, by the largest value of the rows.
FAR = 5e-3
#: EM of point memberships ends while some of them are still on their way to an edge.
SLOW = {("plsa", "map"): 0.05}


#: Fits that say by what rows given anew are inferred.
TOLD = {("lda", "cvb0"), ("dtm", "cvb0"), ("poisson_pca", "bayesian"), ("bilinear_pmf", "default"), ("lda", "gibbs")}


def methods_for_rows(name: str, model: Model) -> list[str]:
    """The engines, a sampler, a guide of the rows for two models, and a default that is none of these."""
    methods = ci.methods_for(model)
    engines = [engine for engine in engines_of(model) if engine != "exact" and engine in methods]
    named = [method for method in ("gibbs", *["svi"] * (name in ("lda", "noca"))) if method in methods]
    usual = type(default_method(model, None))
    return [*engines, *named, *["default"] * (usual not in (ci.EM, ci.VariationalEM, ci.CollapsedGibbs))]


ROWS = {name: kind.example().model for name, kind in MODELS.items() if kind.example().model.rows_are_independent}
#: By every method, of which the first of a model is enough most of the time.
CASES = [
    pytest.param(name, method, marks=[pytest.mark.slow] * (number > 0 and (name, method) not in TOLD))
    for name, model in ROWS.items()
    for number, method in enumerate(methods_for_rows(name, model))
]
#: What a row is told by others (links) is not there in some of the rows.
LINKED = ("rtm",)


@pytest.mark.parametrize(("name", "method"), CASES)
def test_rows_given_anew_have_the_fits_values_or_the_fit_says_why_not(name, method):
    example = MODELS[name].example()
    settings: dict[str, Any] = {"gibbs": {"num_samples": 6, "warmup": 4, "chains": 1}, "svi": {"steps": 30}}
    chosen_method, brief = None if method == "default" else method, settings.get(method, {})
    fit: Any = ci.fit(example.model, example.data, method=chosen_method, seed=0, progress=False, **brief)
    chosen = torch.arange(0, len(example.data), 2)[:8]
    own, anew = fit.transform()[chosen], fit.transform(example.data.rows(chosen))
    assert torch.equal(fit.transform(example.data), fit.transform())
    away = float((own - anew).abs().max() / own.abs().max())
    engine = fit.bound_name
    if name in LINKED:
        return
    assert away < SLOW.get((name, engine), FAR) or fit.rows_given_anew, (fit.bound_name, away)
    assert ("rows given anew: by '" in " ".join(str(fit).split())) == bool(fit.rows_given_anew)


def test_collapsed_and_integrated_fits_name_what_is_in_their_place():
    lda, poisson = MODELS["lda"].example(), MODELS["poisson_pca"].example()
    found = ci.fit(lda.model, lda.data, method="cvb0", progress=False).rows_given_anew
    assert "by 'dirichlet' at the fitted globals" in found and "by cvb0" in found
    found = ci.fit(poisson.model, poisson.data, method="bayesian", progress=False).rows_given_anew
    assert "by 'variational'" in found and "by bayesian" in found
    for method in ("vb", "dirichlet"):
        assert not ci.fit(lda.model, lda.data, method=method, progress=False).rows_given_anew
