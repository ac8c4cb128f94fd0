"""Variational inference of the mixed-membership block model against brute force (002, eqs. 27.77-27.79)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy.special import digamma
from torch import Tensor

from custom_inference import VariationalEM
from custom_inference.core.local_inference import solve_local
from custom_inference.core.registry import engine_for
from custom_inference.em.loop import run_em
from custom_inference.families.memberships.common import MembershipPosteriors, exp_with_floor
from custom_inference.families.memberships.shared import update_shared_zeros
from ppl_models import MMSB, MethodError
from tests.references import _graphs, mmsb, mmsb_integrated

ALPHA, PRIOR, RHO_PRIOR = 0.4, (1.5, 2.0), (1.2, 3.0)
KINDS = pytest.mark.parametrize(
    ("directed", "self_loops"), [(True, False), (False, False), (True, True), (False, True)]
)
SPARSITIES = pytest.mark.parametrize("sparsity", [0.0, 0.3, None])


def problem(size: int, *, directed: bool, self_loops: bool = False, sparsity: float | None = 0.0, blocks: int = 2):
    """(model, x, mask, data): random edges, some dyads hidden."""
    rng = np.random.default_rng(size + 7 * directed)
    model: Any = MMSB(
        num_blocks=blocks, num_nodes=size, directed=directed, self_loops=self_loops, sparsity=sparsity
    ).with_priors(edge_probability=dist.Beta(*PRIOR), membership=dist.Dirichlet(torch.full((blocks,), ALPHA)))
    if sparsity is None:
        model = model.with_priors(sparsity=dist.Beta(*RHO_PRIOR))
    x, mask = (rng.random((size, size)) < 0.4).astype(float), rng.random((size, size)) < 0.8
    if not directed:
        x, mask = np.triu(x) + np.triu(x, 1).T, np.triu(mask) | np.triu(mask, 1).T
    if not self_loops:
        np.fill_diagonal(x, 0)
        np.fill_diagonal(mask, True)
    return model, x, mask, model.prepare(x, mask=mask)


def random_params(steps: Any, model: Any, rows: Any, seed: int = 0) -> MembershipPosteriors:
    generator = torch.Generator().manual_seed(seed)
    params = steps.initial(model, rows, generator)
    moved = steps.m_step(model, params, steps.e_step(model, params, rows), rows)
    if moved.background is None:
        return moved
    return replace(moved, background=moved.background + torch.tensor([1.3, 0.4]))


def reference_setting(model: Any, params: MembershipPosteriors) -> dict[str, Any]:
    rho: Any = ("beta", *RHO_PRIOR) if model.sparsity is None else model.sparsity
    weight = tuple(params.background.tolist()) if model.sparsity is None else None
    return {"rho": rho, "weight": weight, "kind": reference_kind(model)}


def reference_kind(model: Any) -> dict[str, bool]:
    return {"directed": model.directed, "self_loops": model.self_loops}


def expected_edges(x: np.ndarray, mask: np.ndarray, params: MembershipPosteriors, kind: dict[str, bool]):
    i, j, values = _graphs.dyads(x, mask, **kind)
    a, b = params.links.numpy(), params.gaps.numpy()
    return i, j, values, np.where(values[:, None, None] > 0, digamma(a), digamma(b)) - digamma(a + b)


@KINDS
@SPARSITIES
def test_bound_and_statistics_are_those_of_the_tables_written_out(directed, self_loops, sparsity):
    model, x, mask, data = problem(6, directed=directed, self_loops=self_loops, sparsity=sparsity, blocks=3)
    steps = engine_for(model, "vb", zeros="each")
    rows = steps.rows(model, data)
    params = random_params(steps, model, rows)
    step, setting = steps.e_step(model, params, rows), reference_setting(model, params)
    i, j, values, log_edges = expected_edges(x, mask, params, setting["kind"])
    log_rho = mmsb_integrated.expected_log_rho(setting["rho"], setting["weight"])
    gamma = params.concentration.numpy()
    tables, background = mmsb_integrated.table_optimum(log_edges, i, j, values, gamma, log_rho)
    terms = mmsb_integrated.vb_terms(
        x, gamma, tables, params.links.numpy(), params.gaps.numpy(), ALPHA, PRIOR, background,
        setting["rho"], setting["weight"], mask, **setting["kind"],
    )  # fmt: skip
    assert steps.objective_at(model, params, step.bound) == pytest.approx(sum(terms.values()), abs=1e-9)
    learned = steps.m_step(model, params, step, rows)
    a, b = mmsb_integrated.vb_globals(x, tables, PRIOR, mask, **setting["kind"])
    np.testing.assert_allclose(learned.links.numpy(), a, atol=1e-10)
    np.testing.assert_allclose(learned.gaps.numpy(), b, atol=1e-10)
    members = mmsb_integrated.member_sums(tables, background, i, j, len(x))
    np.testing.assert_allclose(learned.concentration.numpy(), ALPHA + members, atol=1e-10)
    if sparsity is None:
        split = np.array([background.sum(), tables.sum()])
        np.testing.assert_allclose(learned.background.numpy(), np.array(RHO_PRIOR) + split, atol=1e-10)


@KINDS
@SPARSITIES
def test_shared_zeros_are_a_restriction_of_the_tables(directed, self_loops, sparsity):
    model, x, mask, data = problem(6, directed=directed, self_loops=self_loops, sparsity=sparsity, blocks=3)
    shared, each = (engine_for(model, "vb", zeros=zeros) for zeros in ("shared", "each"))
    rows = shared.rows(model, data)
    params = random_params(each, model, rows)
    step, setting = shared.e_step(model, params, rows), reference_setting(model, params)
    i, j, values, log_edges = expected_edges(x, mask, params, setting["kind"])
    log_rho = mmsb_integrated.expected_log_rho(setting["rho"], setting["weight"])
    gamma, role = params.concentration.numpy(), step.locals["role"].numpy()
    tables, background = mmsb_integrated.table_optimum(log_edges, i, j, values, gamma, log_rho)
    factors = shared.factors(model, params)  # pyright: ignore[reportAttributeAccessIssue]
    exact = update_shared_zeros(
        rows, factors.share, factors.gap, exp_with_floor(factors.share), exp_with_floor(factors.gap),
        (factors.background, factors.foreground), step.locals["role"],
    )  # fmt: skip
    # The sweep goes on from phi: what it leaves is what its sums are of.
    role, off = exact.role.numpy(), (values == 0) & (i != j)
    near = float(exact.foreground - tables[(values == 0) & (i == j)].sum()) / max(off.sum(), 1)
    tables[off] = near * role[i[off]][:, :, None] * role[j[off]][:, None, :]
    background[off] = 1 - near
    terms = mmsb_integrated.vb_terms(
        x, gamma, tables, params.links.numpy(), params.gaps.numpy(), ALPHA, PRIOR, background,
        setting["rho"], setting["weight"], mask, **setting["kind"],
    )  # fmt: skip
    again = shared.e_step(model, params, rows, step.locals)
    assert shared.objective_at(model, params, again.bound) == pytest.approx(sum(terms.values()), abs=1e-9)
    members = mmsb_integrated.member_sums(tables, background, i, j, len(x))
    np.testing.assert_allclose(again.statistics["members"].numpy(), members, atol=1e-10)
    a, b = mmsb_integrated.vb_globals(x, tables, PRIOR, mask, **setting["kind"])
    learned = shared.m_step(model, params, again, rows)
    np.testing.assert_allclose(learned.links.numpy(), a, atol=1e-10)
    np.testing.assert_allclose(learned.gaps.numpy(), b, atol=1e-10)
    assert float(again.bound) >= float(step.bound) - 1e-10
    assert float(again.bound) <= float(each.e_step(model, params, rows).bound) + 1e-10


@pytest.mark.quick
@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("sparsity", [0.0, None])
def test_restricted_bound_below_full_below_evidence(directed, sparsity):
    model, x, mask, data = problem(3, directed=directed, sparsity=sparsity)
    reached = {}
    for zeros in ("shared", "each"):
        steps = engine_for(model, "vb", zeros=zeros)
        rows = steps.rows(model, data)
        runs = [
            run_em(steps, model, rows, random_params(steps, model, rows, seed), max_iterations=100, tolerance=1e-9)
            for seed in range(2)
        ]
        reached[zeros] = max(run.objective for run in runs)
    rho: Any = ("beta", *RHO_PRIOR) if sparsity is None else sparsity
    evidence = mmsb_integrated.log_evidence(x, 2, ALPHA, PRIOR, rho, mask, directed=directed, drawn=False)
    assert reached["shared"] <= reached["each"] + 1e-9 <= evidence + 2e-9


@pytest.mark.parametrize("zeros", ["each", "shared"])
@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("sparsity", [0.0, None])
def test_bound_never_falls_and_ends_where_it_is_flat(zeros, directed, sparsity):
    model, _, _, data = problem(9, directed=directed, self_loops=True, sparsity=sparsity)
    steps = engine_for(model, "vb", zeros=zeros)
    rows = steps.rows(model, data)
    run = run_em(steps, model, rows, random_params(steps, model, rows), max_iterations=600, tolerance=1e-12)
    assert np.diff(run.trace).min() > -1e-9

    def value(name: str, direction: Tensor, length: float) -> float:
        parts = run.state.tensors()
        moved = MembershipPosteriors.of({**parts, name: parts[name] * torch.exp(length * direction)})
        return steps.objective_at(model, moved, steps.e_step(model, moved, rows, dict(run.step.locals)).bound)

    generator = torch.Generator().manual_seed(1)
    for name, found in run.state.tensors().items():
        direction = torch.randn(found.shape, generator=generator, dtype=found.dtype)
        if name in ("links", "gaps") and not directed:
            direction = direction + direction.mT
        slope = (value(name, direction, 1e-4) - value(name, direction, -1e-4)) / 2e-4
        assert abs(slope) < 5e-3


def test_acceleration_reaches_the_same_bound_sooner():
    model, data, truth = planted(seed=0)
    steps: Any = engine_for(model, "vb")
    rows = steps.rows(model, data)
    start = steps.from_membership(model, rows, torch.as_tensor(0.9 * truth + 0.1 / 3))
    plain, quick = (
        run_em(steps, model, rows, start, max_iterations=2000, tolerance=1e-7, accelerate=name)
        for name in (None, "squarem")
    )
    assert quick.evaluations < plain.evaluations / 2
    assert quick.objective > plain.objective - 0.01 * len(rows)  # a node tied between two blocks may fall to either


@pytest.mark.parametrize("zeros", ["each", "shared"])
def test_hidden_dyads_are_not_looked_at(zeros):
    model, x, mask, data = problem(8, directed=True)
    steps = engine_for(model, "vb", zeros=zeros)
    filled = model.prepare(np.where(mask, x, 1 - x), mask=mask)
    rows, other = steps.rows(model, data), steps.rows(model, filled)
    params = random_params(steps, model, rows)
    first, second = steps.e_step(model, params, rows), steps.e_step(model, params, other)
    for name, value in first.statistics.items():
        torch.testing.assert_close(value, second.statistics[name])


def test_blocks_of_rows_add_up_to_all_of_them(monkeypatch):
    from custom_inference.families.memberships import dyads as _mmsb_dyads

    model, _, _, data = problem(40, directed=False, self_loops=True, sparsity=0.2)
    steps = engine_for(model, "vb")
    rows = steps.rows(model, data)
    params = random_params(steps, model, rows)
    whole = steps.e_step(model, params, rows)
    monkeypatch.setattr(_mmsb_dyads, "_CHUNK", 50)
    parts = steps.e_step(model, params, steps.rows(model, data))
    torch.testing.assert_close(whole.bound, parts.bound)
    for name, value in whole.statistics.items():
        torch.testing.assert_close(value, parts.statistics[name])


@pytest.mark.quick
@KINDS
@SPARSITIES
def test_bound_at_given_globals_climbs_to_that_of_the_references_below_the_evidence(directed, self_loops, sparsity):
    model, x, mask, data = problem(4, directed=directed, self_loops=self_loops, sparsity=sparsity)
    rho = 0.2 if sparsity is None else sparsity
    eta = torch.tensor([[0.7, 0.2], [0.2, 0.5]])
    params = {"edge_probability": eta} | ({"sparsity": torch.tensor(rho)} if sparsity is None else {})
    given, kind = {"edge_probability": eta.numpy(), "sparsity": np.array(rho)}, reference_kind(model)
    evidence = mmsb.log_evidence_polynomial(given, x, ALPHA, mask, **kind)
    for zeros in ("each", "shared"):
        steps = engine_for(model, "dirichlet", zeros=zeros)
        rows, step, bounds = steps.rows(model, data), None, []
        for _ in range(60):
            step = steps.e_step(model, params, rows, None if step is None else step.locals)
            bounds.append(float(step.bound))
        assert min(np.diff(bounds)) > -1e-9
        assert bounds[-1] < evidence < bounds[-1] + 8
    local = solve_local(model, params, data, bound="dirichlet")
    i, j, values = _graphs.dyads(x, mask, **kind)
    plain, log_rho = mmsb.log_edges({**given, "sparsity": 0.0}, values), mmsb_integrated.expected_log_rho(rho)
    gamma = local.posterior.concentration.numpy()
    tables, background = mmsb_integrated.table_optimum(plain, i, j, values, gamma, log_rho)
    terms = mmsb_integrated.terms(plain, i, j, gamma, tables, ALPHA, background, log_rho)
    assert float(local.bound) == pytest.approx(sum(terms.values()), abs=1e-7)


def test_blocks_found_again_at_given_globals():
    """From nothing but the block matrix, whose blocks are told apart by it."""
    model, data, _ = planted(seed=1)
    fit = VariationalEM(guide="vb").fit(model, data, seed=0, progress=False)
    found = fit.transform(data)
    assert float((found - fit.params["membership"]).abs().mean()) < 0.02


def planted(seed: int, size: int = 90):
    """Three assortative blocks of unlike density, two thirds of the nodes in one and the others in two."""
    rng = np.random.default_rng(seed)
    first = np.arange(size) % 3
    second = np.where(np.arange(size) < size // 3, (first + 1) % 3, first)
    truth = (np.eye(3)[first] + np.eye(3)[second]) / 2
    eta = np.full((3, 3), 0.03) + np.diag([0.6, 0.75, 0.9])
    upper = np.triu(rng.random((size, size)) < truth @ eta @ truth.T, 1)
    model = MMSB(num_blocks=3, num_nodes=size, directed=False)
    return model, model.prepare((upper | upper.T).astype(float)), truth


@pytest.mark.parametrize("seed", range(3))
def test_planted_memberships_are_recovered(seed):
    model, data, truth = planted(seed)
    fit = VariationalEM(guide="vb").fit(model, data, seed=seed, progress=False)
    found = fit.params["membership"].numpy()
    order = [int(np.argmax(found.T @ truth[:, k])) for k in range(3)]
    assert sorted(order) == [0, 1, 2]
    assert np.abs(found[:, order] - truth).mean() < 0.08
    eta = fit.params["edge_probability"]
    assert torch.equal(eta, eta.mT)
    assert np.abs(np.diag(eta.numpy())[order] - [0.63, 0.78, 0.93]).max() < 0.12


def test_refusals():
    model, _, _, data = problem(5, directed=True)
    with pytest.raises(MethodError, match="zeros"):
        engine_for(model, "vb", zeros="some")
    with pytest.raises(MethodError, match="StochasticMMSB"):
        VariationalEM(guide="vb", batch_size=2).fit(model, data, progress=False)
    odd = model.with_priors(edge_probability=dist.Uniform(0.1, 0.9))
    fit = VariationalEM(guide="vb", max_iterations=2).fit(odd, data, progress=False)
    assert "since 'vb' integrates the globals" in fit.status
