"""Replacing units of Helmholtz machines on few different rows: what is climbed, and where it leads."""

from __future__ import annotations

import numpy as np
import pyro.distributions as dist
import pytest
import torch

import custom_inference as ci
from custom_inference.core.registry import engine_for
from custom_inference.families.helmholtz.improve import Ascent, count_replacements, improve
from custom_inference.families.helmholtz.tables import Patterns
from ppl_models import HelmholtzMachine
from ppl_models.distributions import Flat
from tests.references import helmholtz_machine as reference

PRIORS = {
    "default": {},
    "flat": {"weight_1": Flat(dist.Normal(0.0, 1.0))},
    "heavy": {"bias_1": dist.StudentT(3.0, 0.5, 2.0)},
}


def ascent_of(layers, *, masked=False, priors=None):
    rng, model = np.random.default_rng(0), HelmholtzMachine(layers=layers)
    model = model.with_priors(**(priors or {}))
    x = (rng.random((9, layers[-1])) < 0.5).astype(float)
    x[4] = x[1]
    mask = rng.random(x.shape) > 0.3 if masked else None
    rows = engine_for(model, "exact").rows(model, model.prepare(x, mask=mask, dtype=torch.float64))
    return model, x, mask, Ascent(model, rows.different)


@pytest.mark.quick
@pytest.mark.parametrize("layers", [(2, 3, 4), (3, 5), (1, 2, 2, 4)])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("priors", PRIORS.values(), ids=PRIORS)
def test_what_is_climbed_is_the_log_posterior(layers, masked, priors):
    """Differences between two points against the reference and the model's priors; slopes by finite differences."""
    model, x, mask, ascent = ascent_of(layers, masked=masked, priors=priors)

    def log_posterior(flat):
        at = ascent.parts(flat)
        prior = float(model.log_prior({site: torch.as_tensor(value) for site, value in at.items()}))
        return (reference.log_evidence(at, x, mask).sum() + prior) / len(x)

    rng = np.random.default_rng(1)
    one, other = rng.normal(size=(2, ascent.slices[-1].stop))
    gained = ascent(other)[0] - ascent(one)[0]
    assert abs(gained - (log_posterior(other) - log_posterior(one))) < 1e-10
    direction = rng.normal(size=one.shape)
    sides = log_posterior(one + 1e-5 * direction), log_posterior(one - 1e-5 * direction)
    assert abs((sides[0] - sides[1]) / 2e-5 - ascent(one)[1] @ direction) < 1e-7


@pytest.mark.quick
def test_one_unit_is_replaced():
    _, _, _, ascent = ascent_of((1, 2, 3, 6))
    before, rng = np.zeros(ascent.slices[-1].stop), np.random.default_rng(0)
    reached = set()
    for _ in range(60):
        at = ascent.parts(ascent.replace_unit(before, rng))
        below = [
            layer
            for layer in (1, 2, 3)
            if at[f"weight_{layer}"].any(1).sum() == 1 and at[f"weight_{layer}"].all(1).any()
        ]
        layer = below[-1]
        reached.add(layer)
        assert np.count_nonzero(at[f"bias_{layer - 1}"]) == 1
        assert sum(np.count_nonzero(value) for site, value in at.items() if site.startswith("bias")) == 1
    assert reached >= {2, 3}
    assert not before.any()


def test_replacements_never_lose_and_leave_large_tables_alone():
    model, _, _, ascent = ascent_of((2, 3, 4))
    generator = torch.Generator().manual_seed(0)
    start = {site: torch.zeros(tuple(shape), dtype=torch.float64) for site, shape in model.shapes.items()}
    plain = ascent.climb(ascent.join(start), 40)[1]
    assert ascent(ascent.join(improve(ascent, [start], 6, generator)))[0] >= plain
    eye = Patterns(torch.eye(300), None, torch.ones(300), torch.arange(300))
    assert count_replacements(HelmholtzMachine(layers=(1, 12, 300)), eye) == 0


def test_three_by_three_bars_reach_the_best_known_optimum():
    """log p(x) + log p(theta) a row of -18.3598 is the best of hundreds of starts; one start in ten came within .03."""
    code = (np.arange(7)[:, None] >> np.arange(3)) & 1
    bars = np.concatenate([np.repeat(code, 3, axis=1), np.tile(code, 3)]).astype(float)
    model = HelmholtzMachine(layers=(1, 5, 9))
    fit = ci.fit(model, bars, seed=0, progress=False)
    value = float(fit.log_likelihood(bars).sum()) + float(model.log_prior(fit.params))
    assert value / len(bars) > -18.3598 - 1e-3
