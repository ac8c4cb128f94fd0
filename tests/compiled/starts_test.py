"""Starts of compiled programs of every kind of law are values within the supports, that EM goes on from."""

import pytest
import torch

from custom_inference.compiled.engine import CompiledExact
from tests.programs.zoo import case_of


@pytest.mark.parametrize("name", ["student_mixture", "von_mises_mixture", "beta_binomial_mixture", "added_rates"])
def test_starts_at_few_rows_are_values_of_the_globals(name):
    """Of laws without features, too, of which probabilities are kept by row."""
    case, engine = case_of(name), CompiledExact()
    rows = engine.rows(case.model, case.data)
    for seed in range(3):
        state = engine._centres(case.model, rows, torch.Generator().manual_seed(seed))
        for site, value in state.items():
            assert bool(case.model.prior(site, values=state).support.check(value).all()), site
        step = engine.e_step(case.model, state, rows)
        after = engine.m_step(case.model, state, step, rows)
        assert engine.objective_at(case.model, after, engine.e_step(case.model, after, rows).bound) > (
            engine.objective_at(case.model, state, step.bound) - 1e-6
        )
