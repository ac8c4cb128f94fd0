"""Models all of whose globals are known: the default fit is its engine's posterior at these values."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import custom_inference as ci
from custom_inference.core.local_inference import LocalSolver
from custom_inference.core.registry import engine_for, engines_of
from custom_inference.em.known import has_points
from custom_inference.em.method import VariationalEM
from custom_inference.methods import default_method
from ppl_models import MODELS, PMF
from tests.support.cases import globals_of, problem_of

pytestmark = pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")
#: Whose default is a sampler, which ``tests/gibbs/named_components_test.py`` has, or trained for predictions, in whose
#: place another method fits then; of relations nothing is known.
SAMPLED = (
    "ctm", "dirichlet_multinomial_regression", "ldahmm", "partially_labeled_lda", "random_effects_lda", "rtm", "irm",
    "supervised_lda",
)  # fmt: skip


@pytest.mark.parametrize("name", [name for name in MODELS if name not in SAMPLED])
def test_the_default_is_the_posterior_at_the_known_values(name):
    problem = problem_of(name)
    values = globals_of(problem)
    model = problem.model.with_priors(**values)
    default: Any = default_method(model, problem.data)
    assert isinstance(default, VariationalEM)
    fit: Any = ci.fit(model, problem.data, progress=False)
    assert all(torch.equal(fit.params[site], value) for site, value in values.items())
    assert "default refuses" not in fit.status
    engine: Any = fit.solver.engine
    if has_points(engine):
        assert "known: " in fit.status
        return
    assert fit.status.startswith("all globals are known") and len(fit.elbo) == 1
    found = LocalSolver(engine=engine).solve(fit.model, values, problem.data)
    assert torch.allclose(fit.transform(), found.posterior.mean, atol=1e-7)
    assert torch.allclose(fit.local.bound, found.bound, atol=1e-6, equal_nan=True)


def test_ratings_whose_covariances_are_known_have_exact_users():
    example = MODELS["pmf"].example()
    rows, items = example.data.x.shape
    model = PMF(num_components=2, num_users=rows, num_items=items, adaptive=True, varying_noise=math.inf)
    generator = torch.Generator().manual_seed(0)
    values: dict[str, Any] = {}
    for site, shape in model.shapes.items():
        values[site] = torch.eye(shape[0]) if "covariance" in site else torch.rand(shape, generator=generator)
    fit: Any = ci.fit(model.with_priors(**values), example.data, progress=False)
    assert "all globals are known" in fit.status and fit.bound_name == "exact"
    found = LocalSolver(engine=engine_for(model, "exact")).solve(fit.model, values, example.data)
    assert torch.equal(fit.transform(), found.posterior.mean)


def test_every_engine_of_a_family_holds_all_globals_and_the_fit_is_saved(tmp_path):
    """Those that integrate the globals too: of dynamic topics neither had steps for known ones."""
    for name in ("dtm", "lda", "sbm"):
        problem = problem_of(name)
        values = globals_of(problem)
        model = problem.model.with_priors(**values)
        for engine in engines_of(model):
            if has_points(engine_for(model, engine)):
                continue
            method = VariationalEM(guide=engine)
            fit: Any = method.fit(model, problem.data, progress=False)
            local = method.local_posterior(model, values, problem.data)
            assert torch.allclose(fit.transform(), local.posterior.mean, atol=1e-7), (name, engine)
            assert not method.has_global_posterior(model)
        loaded = ci.Fit.load(fit.save(tmp_path / f"{name}.safetensors"))
        assert torch.equal(loaded.transform(), fit.transform()) and loaded.status == fit.status
