"""EM of compiled programs against references in NumPy: M steps, ascent, where it ends, weights, rows in blocks."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import logsumexp
from torch.distributions import biject_to, constraints

import custom_inference as ci
from custom_inference.compiled.engine import CompiledExact
from custom_inference.compiled.steps import steps_of
from custom_inference.em.steps import EMStep
from ppl_models import RowBlocks
from tests.compiled._problems import KINDS, PRIORS, problem, state_of
from tests.programs.zoo import as_numpy

ENGINE = CompiledExact()
EVERY = [pytest.param(name, priors, id=f"{name}-{priors}") for name in KINDS for priors in PRIORS]
PROBLEMS = pytest.mark.parametrize("name, priors", EVERY)


@pytest.fixture(autouse=True)
def doubles():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@cache
def case(name, priors):
    """The problem, and its rows as the engine reads them."""
    one = problem(name, priors)
    return one, ENGINE.rows(one.model, one.data)


def log_posterior(one, state):
    """log p(x | globals) + log p(globals) by sums over all values."""
    params = as_numpy(state)
    return float(one.reference.evidence(params, one.table).sum()) + one.reference.log_prior(params)


def expected_log_joint(one, state):
    """Q(globals) + log p(globals), with the posterior at a state."""
    before = one.reference.table(as_numpy(state), one.table)[1]
    share = np.exp(before - logsumexp(before, axis=0))

    def value(other):
        params = as_numpy(other)
        after = one.reference.table(params, one.table)[1]
        return float(np.where(share > 0, share * after, 0.0).sum()) + one.reference.log_prior(params)

    return value


class Coordinates:
    """Globals as one vector without constraints."""

    def __init__(self, model, state):
        self.maps = {site: biject_to(model.prior(site).support) for site in state}
        self.parts = {site: self.maps[site].inv(value.double()) for site, value in state.items()}

    def vector(self):
        return np.concatenate([part.reshape(-1).numpy() for part in self.parts.values()])

    def state(self, vector):
        found, start = {}, 0
        for site, part in self.parts.items():
            own = torch.as_tensor(vector[start : start + part.numel()]).reshape(part.shape)
            found[site], start = self.maps[site](own), start + part.numel()
        return found


def slopes(value, coordinates, step=1e-5):
    """The gradient of a function of states, by central differences."""
    at = coordinates.vector()
    moved = np.eye(len(at)) * step
    return np.array([
        (value(coordinates.state(at + one)) - value(coordinates.state(at - one))) / (2 * step) for one in moved
    ])  # fmt: skip


@PROBLEMS
def test_an_m_step_is_the_maximum_of_the_expected_log_joint(name, priors):
    """Where causes are hidden once more, or the priors are not conjugate: no lower than before. What has no closed form
    is there after some steps from the same expectations."""
    one, rows = case(name, priors)
    state = state_of(one.model, 1)
    value, step = expected_log_joint(one, state), ENGINE.e_step(one.model, state, rows)
    found = ENGINE.m_step(one.model, state, step, rows)
    assert value(found) > value(state)
    if not one.exact or priors == "other":
        return
    for _ in range(0 if set(steps_of(one.model, rows).roles) == steps_of(one.model, rows).closed else 8):
        found = ENGINE.m_step(one.model, found, step, rows)
    coordinates = Coordinates(one.model, state)
    best = minimize(lambda v: -value(coordinates.state(v)), coordinates.vector(), method="BFGS", options={"gtol": 1e-6})
    assert value(found) > -best.fun - 1e-6


@PROBLEMS
def test_the_objective_never_falls_and_is_that_of_the_reference(name, priors):
    one, rows = case(name, priors)
    state, before = state_of(one.model, 2), -np.inf
    for _ in range(15):
        step = ENGINE.e_step(one.model, state, rows)
        assert np.allclose(step.bound, one.reference.evidence(as_numpy(state), one.table), rtol=0, atol=1e-8)
        after = log_posterior(one, state)
        assert after > before - 1e-8
        state, before = ENGINE.m_step(one.model, state, step, rows), after


@PROBLEMS
def test_it_ends_where_the_log_posterior_is_flat(name, priors):
    """The slopes on unconstrained scales are those of a maximum, or of what an edge of the support holds."""
    one, _ = case(name, priors)
    method = ci.EM(search=None, tolerance=1e-12, max_iterations=3000)
    fit = method.fit(one.model, one.data, init=state_of(one.model, 3), progress=False)
    inside = dict(fit.globals)
    found = slopes(lambda state: log_posterior(one, state), Coordinates(one.model, inside))
    at = Coordinates(one.model, inside).vector()
    free = np.abs(at) < 8
    assert free.any() and np.abs(found[free]).max() < 0.02, found


@PROBLEMS
def test_whole_weights_are_repeated_rows(name, priors):
    one, _ = case(name, priors)
    count = torch.arange(len(one.data)) % 3 + 1
    count[5] = 0
    rows = ENGINE.rows(one.model, one.data)
    repeated = ENGINE.rows(one.model, one.data.rows(torch.arange(len(one.data)).repeat_interleave(count)))
    state = state_of(one.model, 4)
    weighted = ENGINE.e_step_weighted(one.model, state, rows, count.double())
    plain = ENGINE.e_step(one.model, state, repeated)
    assert float(weighted.statistics["rows"]) == float(count.sum()) == float(plain.statistics["rows"])
    assert torch.allclose((weighted.bound * count).sum(), plain.bound.sum(), rtol=1e-10)
    first, second = (
        ENGINE.m_step(one.model, state, step, some) for step, some in ((weighted, rows), (plain, repeated))
    )
    for site, value in first.items():
        assert torch.allclose(value, second[site], rtol=1e-7, atol=1e-9), site


@pytest.mark.parametrize("name", KINDS)
def test_statistics_of_parts_add_up(name):
    """Where covariates differ between rows the parts have cells of their own; then a whole pass is of all rows."""
    one, rows = case(name, "conjugate")
    state = state_of(one.model, 5)
    whole = ENGINE.e_step(one.model, state, rows)
    parts = [ENGINE.e_step(one.model, state, rows.select(part)) for part in (slice(0, 13), slice(13, None))]
    for key, value in whole.statistics.items():
        assert torch.allclose(value, sum(part.statistics[key] for part in parts), rtol=1e-9, atol=1e-9), key
    assert torch.allclose(whole.bound, torch.cat([part.bound for part in parts]))


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if not kind.covariates])
def test_rows_in_blocks_are_those_of_memory(name):
    """The same minibatches from blocks and from memory."""
    one = problem(name, "conjugate", missing=False)
    method = ci.EM(batch_size=10, max_iterations=3, search=None, shuffle=False)
    settings = {"init": state_of(one.model, 6), "progress": False}
    memory = method.fit(one.model, RowBlocks.of(one.data.x.numpy(), 40), **settings)
    blocks = method.fit(one.model, RowBlocks.of(one.data.x.numpy(), 20), **settings)
    for site, value in memory.globals.items():
        assert torch.allclose(value, blocks.globals[site], rtol=1e-6, atol=1e-9), site
    assert torch.allclose(memory.elbo, blocks.elbo, rtol=1e-8)


@pytest.mark.parametrize("name", KINDS)
def test_minibatches_run(name):
    one, _ = case(name, "conjugate")
    start = state_of(one.model, 7)
    fit = ci.EM(batch_size=10, max_iterations=8, search=None).fit(one.model, one.data, init=start, progress=False)
    assert log_posterior(one, fit.globals) > log_posterior(one, start)


@pytest.mark.parametrize("declared", [None, constraints.real])
@PROBLEMS
def test_globals_without_a_declared_support_have_that_of_their_priors(name, priors, declared):
    """They have the same closed forms, and one M step reaches the same values."""
    one, rows = case(name, priors)
    sites = {
        site: replace(own, support=declared) if own.role == "global" else own for site, own in one.model.sites.items()
    }
    bare = type("Undeclared", (type(one.model),), {"sites": sites})(**one.model.settings(), priors={**one.model.priors})
    undeclared = ENGINE.rows(bare, one.data)
    declared, found = steps_of(one.model, rows), steps_of(bare, undeclared)
    assert (found.roles, found.climbing) == (declared.roles, declared.climbing)
    state = state_of(one.model, 9)
    expected = ENGINE.m_step(one.model, state, ENGINE.e_step(one.model, state, rows), rows)
    moved = ENGINE.m_step(bare, state, ENGINE.e_step(bare, state, undeclared), undeclared)
    for site, value in expected.items():
        assert torch.allclose(value, moved[site], rtol=1e-6, atol=1e-8), site


def test_the_driver_has_the_objective_of_the_engine():
    one, rows = case("poisson", "conjugate")
    state = state_of(one.model, 8)
    step = EMStep(ENGINE, one.model, rows, generator=torch.Generator().manual_seed(0))
    assert step is not None
    found = ENGINE.objective_at(one.model, state, ENGINE.e_step(one.model, state, rows).bound)
    assert float(found) == pytest.approx(log_posterior(one, state), abs=1e-8)
