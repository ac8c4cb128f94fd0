"""Block models of small graphs: exact posteriors over the labelings, mean field at given globals."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import custom_inference as ci
from custom_inference.core.local_inference import LocalSolver, is_feasible
from custom_inference.core.posterior_bounds import bound_of
from custom_inference.core.registry import engine_for
from custom_inference.core.states import PointsWithLocals
from custom_inference.families.blocks.rows import BlockCounts
from custom_inference.families.blocks.sweep import BlockExpectations, _match_by_swaps
from custom_inference.graphs import icl, integrated_log_likelihood
from custom_inference.mcmc import log_joint_potential
from ppl_models import SBM, CapacityError, DataError, DegreeCorrectedSBM, MethodError, PoissonSBM
from tests.support.sbm_cases import KINDS, case, planted

pytestmark = pytest.mark.filterwarnings("ignore:.*have no edge.*")


@pytest.mark.parametrize(("kind", "directed", "loops"), KINDS)
def test_mean_field_bound_and_sweeps_are_the_references(kind, directed, loops):
    one = case(kind, directed, loops)
    steps = engine_for(one.model, "mean_field")
    rows, share = steps.rows(one.model, one.data), torch.as_tensor(one.shares)
    assert float(steps.bound(one.model, one.params, rows, share)) == pytest.approx(one.graph.elbo(one.shares), abs=1e-9)
    step = steps.e_step(one.model, PointsWithLocals(one.params, {"responsibility": share}), rows)
    found = step.locals["responsibility"]
    np.testing.assert_allclose(found, one.graph.mean_field(one.shares, sweeps=5), atol=1e-9)
    assert one.graph.elbo(one.shares) < float(step.bound) <= one.graph.log_evidence() + 1e-9
    posterior = steps.posterior(one.model, one.params, rows, step)
    assert float(bound_of(one.model, one.params, one.data, posterior)) == pytest.approx(float(step.bound), abs=1e-6)


@pytest.mark.parametrize(("kind", "directed", "loops"), KINDS)
def test_exact_em_rises_to_a_stationary_point(kind, directed, loops):
    one = case(kind, directed, loops, size=5, blocks=2, seed=4)
    fit = ci.EM(search=None, max_iterations=2000, tolerance=1e-13).fit(one.model, one.data, seed=1, progress=False)
    assert float(fit.elbo.diff().min()) > -1e-8
    potential, transforms = log_joint_potential(one.model, one.model.as_read(one.data))
    values = {site: transforms[site](value).detach().requires_grad_() for site, value in fit.globals.items()}

    def log_joint(flat: dict[str, torch.Tensor]) -> torch.Tensor:
        volume = sum(transforms[s].inv.log_abs_det_jacobian(v, transforms[s].inv(v)).sum() for s, v in flat.items())
        return -potential(flat) - volume

    slope = torch.autograd.grad(log_joint(values), list(values.values()))
    worst = max(float(one.abs().max()) for one in slope)
    assert worst < 2e-3  # entries on their way to 0 or 1 have slopes of the size of what is left


def test_finite_differences_of_the_differentiable_evidence():
    one = case(DegreeCorrectedSBM, False, True, size=4, blocks=2)
    steps = engine_for(one.model, "exact")
    rows = steps.rows(one.model, one.data)
    for site in ("propensity", "block_proportion"):
        value = one.params[site].clone().requires_grad_()
        slope = torch.autograd.grad(steps.log_evidence(one.model, {**one.params, site: value}, rows).sum(), value)[0]
        for k in range(len(value)):
            moved = [one.params[site].clone() for _ in range(2)]
            moved[0][k], moved[1][k] = moved[0][k] + 1e-6, moved[1][k] - 1e-6
            up, down = (float(steps.log_evidence(one.model, {**one.params, site: v}, rows)) for v in moved)
            assert float(slope[k]) == pytest.approx((up - down) / 2e-6, rel=1e-5, abs=1e-6)


def test_capacity_is_refused_with_what_would_fit():
    model = SBM(num_blocks=4, num_nodes=30)
    assert not is_feasible(model) and is_feasible(SBM(num_blocks=2, num_nodes=14))
    x = (np.random.default_rng(0).random((30, 30)) < 0.3).astype(float)
    np.fill_diagonal(x, 0)
    with pytest.raises(CapacityError, match=r"4\^30 labelings.*with 4 blocks up to \d+ nodes fit"):
        ci.EM().fit(model, x, progress=False)


def test_a_cold_start_names_the_blocks_as_the_globals_do():
    matrix = np.array([[0.8, 0.1, 0.4], [0.1, 0.6, 0.05], [0.2, 0.05, 0.3]])
    x, block = planted(matrix, [12, 9, 8], seed=2)
    model = SBM(num_blocks=3, num_nodes=29)
    order = [2, 0, 1]
    params = {
        "block_proportion": torch.tensor([12.0, 9.0, 8.0])[order] / 29,
        "edge_probability": torch.as_tensor(matrix[order][:, order]),
    }
    local = LocalSolver(engine=engine_for(model, "mean_field")).solve(
        model, params, model.prepare(x, dtype=torch.float64)
    )
    assert (local.posterior.mean.argmax(-1).numpy() == np.argsort(order)[block]).all()


def test_naming_more_blocks_than_can_be_listed():
    rng = np.random.default_rng(3)
    blocks = 9
    lift, base, size = rng.normal(size=(blocks, blocks)) * 3, -rng.random((blocks, blocks)), np.full(blocks, 5.0)
    order = rng.permutation(blocks)
    at = BlockExpectations(np.log(np.full(blocks, 1 / blocks)), lift, base, None, "poisson")  # type: ignore[arg-type]
    edges = np.exp(lift[order][:, order]) * 5
    found = _match_by_swaps(at, BlockCounts(edges, np.full((blocks, blocks), 5.0), size))
    score = [(edges * lift[p][:, p] + 5 * base[p][:, p]).sum() for p in (found, order)]
    assert score[0] >= score[1] - 1e-6


@pytest.mark.quick
@pytest.mark.parametrize("kind", [SBM, PoissonSBM])
@pytest.mark.parametrize("directed", [True, False])
def test_integrated_likelihood_is_the_references(kind, directed):
    one = case(kind, directed, True)
    label = one.shares.argmax(1)
    value = integrated_log_likelihood(one.model, one.data, label)
    wanted = one.reference.log_joint_integrated(label, one.x, 3, mask=one.mask, **one.settings)
    assert value == pytest.approx(wanted, abs=1e-9)
    with pytest.raises(DataError, match="whole numbers from 0 to 2"):
        integrated_log_likelihood(one.model, one.data, label + 1)
    with pytest.raises(DataError, match="shape"):
        integrated_log_likelihood(one.model, one.data, label[:-1])


def test_icl_is_the_formula_and_refuses_other_models():
    example = SBM.example()
    fit = ci.fit(example.model, example.data, progress=False)
    value = {site: part.numpy() for site, part in fit.globals.items()}
    q, x = fit.params["block"].numpy(), example.data.dense().x.numpy()
    eta = value["edge_probability"][q][:, q]
    off = ~np.eye(24, dtype=bool)
    joint = np.log(value["block_proportion"][q]).sum() + (x * np.log(eta) + (1 - x) * np.log1p(-eta))[off].sum()
    assert icl(fit) == pytest.approx(joint - np.log(24) - 4.5 * np.log(24 * 23), abs=1e-8)
    with pytest.raises(MethodError, match="no exact integrated likelihood"):
        integrated_log_likelihood(DegreeCorrectedSBM.example().model, DegreeCorrectedSBM.example().data, q)
