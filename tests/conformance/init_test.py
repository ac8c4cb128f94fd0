"""Every model x every method: ``init=`` is where the fit starts, or is refused in a sentence."""

from __future__ import annotations

from unittest import mock

import pytest
import torch

import custom_inference as ci
from custom_inference.svi.initialisation import graph_start, initial_values
from ppl_models import CVQ, MODELS, NOCA, MethodError, ModelError
from tests.support import cases
from tests.support.cases import AGAIN, DEFAULTS, MARKED, PAIRS, fitted, problem_of, small_fit, small_method
from tests.support.graphs import GRAPHS

#: Next to no iterations: what a fit starts at shows.
FEW = {**cases.SMALL, "max_iterations": 1, "steps": 2, "passes": 1, "num_samples": 1, "warmup": 0, "chains": 1}
FEW |= {"start_sweeps": 1, "rounds": 1, "draws": 2}
EACH = pytest.mark.parametrize(("model", "method"), [*MARKED, *DEFAULTS])
STARTED = pytest.mark.parametrize(
    ("model", "method"), [pair for pair in AGAIN if pair[1] not in (*cases.VARIANTS, "nuts", "svi_normal")]
)
SUMMING = [pair for pair in AGAIN if pair[1] == "em" and isinstance(small_method(*pair), ci.EM)]


def truth_of(model: str) -> dict[str, torch.Tensor]:
    problem = problem_of(model)
    return {site: problem.truth[site] for site in problem.model.global_sites}


def elsewhere(model: str, seed: int) -> dict[str, torch.Tensor]:
    problem = problem_of(model)
    make = graph_start if model in GRAPHS else initial_values
    found = make(problem.model, problem.data, seed)
    return {site: found[site].double() for site in problem.model.global_sites}


@EACH
def test_what_no_fit_can_start_from_is_named(model, method):
    """Before anything is computed, by every method alike."""
    truth, problem = truth_of(model), problem_of(model)
    site = problem.model.unknown_sites[0]
    value = truth[site].double()
    wrong = {
        f"'{site}' has shape \\(1, 2, 3\\), expected": {**truth, site: torch.ones(1, 2, 3)},
        f"'{site}' has {value.numel()} of {value.numel()} values that are not finite": {
            **truth,
            site: value * torch.nan,
        },
        "'nonsense'; valid: ": {**truth, "nonsense": value},
        f"no value for site '{site}'": {name: one for name, one in truth.items() if name != site},
        f"'{site}' is a str, expected numbers": {**truth, site: "three"},
        "a list, expected a fit": [value],
    }
    fit = small_method(model, method).fit
    for message, init in wrong.items():
        with pytest.raises((MethodError, ModelError), match=message):
            fit(problem.model, problem.data, init=init, progress=False)


@STARTED
def test_the_start_is_not_ignored(model, method):
    """From the truth, and from elsewhere, the same seed leads to different first steps. Few nodes are divided alike
    from wherever samplers start; the larger part has the name of the larger proportion."""
    with mock.patch.object(cases, "SMALL", FEW):
        first = small_fit(model, method, init=truth_of(model), seed=1)
        starts = [elsewhere(model, 5)]
        if "block_proportion" in starts[0]:
            named = 1e-6 + (1 - 2e-6) * torch.eye(len(starts[0]["block_proportion"]), dtype=torch.float64)
            starts += [{**truth_of(model), "block_proportion": one} for one in named]
        assert any(differ(first, small_fit(model, method, init=start, seed=1)) for start in starts)


def differ(first: ci.Fit, second: ci.Fit) -> bool:
    same = [torch.allclose(value, second.params[site], rtol=1e-12) for site, value in first.globals.items()]
    return not all(same) or not torch.allclose(first.elbo, second.elbo, rtol=1e-12)


@pytest.mark.parametrize(("model", "method"), SUMMING)
def test_exact_em_goes_on_where_a_fit_ended(model, method):
    """Of engines whose E step finds the locals anew whole: the first objective is the last of the fit given."""
    fit = fitted(model, method)
    again = small_fit(model, method, init=fit, seed=9)
    assert float(again.elbo[0]) == pytest.approx(float(fit.elbo[-1]), rel=1e-8)


def test_a_fit_of_another_model_is_named():
    first, second = NOCA.example(), CVQ.example()
    fit = ci.EM(max_iterations=1, search=None).fit(first.model, first.data, progress=False)
    with pytest.raises(MethodError, match="init is a fit of NOCA, and CVQ is fitted; expected a fit of that, or a map"):
        ci.fit(second.model, second.data, init=fit, progress=False)


def test_values_outside_the_support_are_named():
    example, truth = NOCA.example(), truth_of("noca")
    with pytest.raises(ModelError, match="init of 'leak' has values outside its support"):
        ci.fit(example.model, example.data, init={**truth, "leak": truth["leak"] + 1}, progress=False)


def test_every_model_is_here():
    assert {model for model, _ in PAIRS} == set(MODELS)
