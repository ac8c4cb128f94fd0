"""Starts of compiled programs of every kind of law are values within the supports, that EM goes on from; and moves find
what EM cannot."""

import numpy as np
import pytest
import torch

from benchmarks.quality._own_models import NoisyOr
from custom_inference.compiled.engine import CompiledExact
from custom_inference.compiled.moves import _bear, find_exchangeable
from custom_inference.em.loop import run_em
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


def test_a_source_that_is_lost_is_born_again():
    """Two of four sources are the same, which EM leaves late; a birth from what is explained worst finds the other."""
    rng = np.random.default_rng(0)
    p, leak = np.full((4, 24), 0.02), torch.full((24,), 0.02, dtype=torch.float64)
    for k in range(4):
        p[k, 6 * k : 6 * k + 6] = 0.9
    s = rng.random((300, 4)) < 0.3
    x = (rng.random((300, 24)) > 0.98 * np.where(s[:, :, None], 1 - p, 1.0).prod(1)).astype(float)
    model = NoisyOr(num_components=4, num_features=24)
    engine = CompiledExact()
    rows = engine.rows(model, model.prepare(x))
    truth = {"prior": torch.full((4,), 0.3, dtype=torch.float64), "p": torch.as_tensor(p), "leak": leak}
    twice = {site: value[[1, 1, 2, 3]] if site != "leak" else value for site, value in truth.items()}
    settings = {"max_iterations": 30, "tolerance": 1e-9}
    reached, without = (run_em(engine, model, rows, start, **settings) for start in (truth, twice))
    assert without.objective < reached.objective - 20
    (places,) = find_exchangeable(rows.structure)
    moved = _bear(places, engine, model, rows, without.state, 0, torch.Generator().manual_seed(0))
    found = run_em(engine, model, rows, moved, **settings)
    assert found.objective > reached.objective - 1.0
