"""Block models with features of the nodes: steps against sums over labelings, finite differences and scikit-learn."""

from __future__ import annotations

import itertools
from typing import Any

import arviz as az
import numpy as np
import pyro.distributions as dist
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import adjusted_rand_score

import custom_inference as ci
from custom_inference.core.posterior_bounds import row_log_joint
from custom_inference.core.registry import engine_for
from custom_inference.core.states import values_of
from custom_inference.families.blocks.mean_field import RESPONSIBILITY
from custom_inference.families.blocks.weighted_logistic import fit_weighted, objectives
from ppl_models import CapacityError, CovariateSBM, GraphData
from ppl_models.data import sparse as _sparse
from ppl_models.distributions import Flat

pytestmark = pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")
CASES = [(directed, loops) for directed in (True, False) for loops in (False, True)]


def problem(*, directed: bool = True, loops: bool = False, size: int = 4, blocks: int = 3, seed: int = 0, **settings):
    """A small random graph with two hidden dyads, its model, and globals drawn from the prior."""
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((size, 2))
    model = CovariateSBM(num_blocks=blocks, covariates=features, directed=directed, self_loops=loops, **settings)
    x = (rng.random((size, size)) < 0.5).astype(float)
    x = x if directed else np.triu(x) + np.triu(x, 1).T
    hidden = np.array([[0, 1], [2, 3]])
    x[hidden[0], hidden[1]] = 0
    if not directed:
        x[hidden[1], hidden[0]] = 0
    if not loops:
        np.fill_diagonal(x, 0)
    data = GraphData(x=_sparse.from_dense(torch.as_tensor(x)), directed=directed, hidden=torch.as_tensor(hidden))
    torch.manual_seed(seed)
    return model, data, {site: model.prior(site).sample() for site in model.global_sites}


def tabled(model, data, params) -> dict[tuple[int, ...], float]:
    """log p(x, labels) of every labeling, each from the program."""
    read = model.as_read(data)
    every = itertools.product(range(model.num_blocks), repeat=len(data))
    return {labels: float(row_log_joint(model, params, read, torch.tensor(labels))) for labels in every}


def bound_of(table: dict[tuple[int, ...], float], share: torch.Tensor) -> float:
    total = 0.0
    for labels, log_p in table.items():
        log_q = float(share[torch.arange(len(share)), list(labels)].log().sum())
        total += np.exp(log_q) * (log_p - log_q)
    return total


def log_evidence(table: dict[tuple[int, ...], float]) -> float:
    return float(np.logaddexp.reduce(list(table.values())))


@pytest.mark.parametrize(("directed", "loops"), CASES)
def test_bound_is_the_sum_over_labelings(directed, loops):
    model, data, params = problem(directed=directed, loops=loops)
    table, steps = tabled(model, data, params), engine_for(model, "mean_field")
    rows = steps.rows(model, data)
    share = dist.Dirichlet(torch.ones(3)).sample(torch.Size([4]))
    assert np.isclose(float(steps.bound(model, params, rows, share)), bound_of(table, share), rtol=1e-10)
    step = steps.e_step(model, params, rows)
    assert np.isclose(float(step.bound), bound_of(table, step.locals[RESPONSIBILITY]), rtol=1e-10)
    assert float(step.bound) <= log_evidence(table) + 1e-10


@pytest.mark.parametrize(("directed", "loops"), CASES)
def test_exact_steps_are_the_sum_over_labelings(directed, loops):
    model, data, params = problem(directed=directed, loops=loops)
    table, steps = tabled(model, data, params), engine_for(model, "exact")
    rows = steps.rows(model, data)
    step = steps.e_step(model, params, rows)
    assert np.isclose(float(step.bound), log_evidence(table), rtol=1e-12)
    assert np.isclose(float(steps.log_evidence(model, params, rows)), log_evidence(table), rtol=1e-12)
    weight = {labels: np.exp(log_p - log_evidence(table)) for labels, log_p in table.items()}
    pairs = np.zeros((4, 3, 4, 3))
    for labels, p in weight.items():
        one_hot = np.eye(3)[list(labels)]
        pairs += p * np.einsum("ia,jb->iajb", one_hot, one_hot)
    assert np.allclose(step.statistics["pairs"].numpy(), pairs, atol=1e-12)
    posterior = steps.posterior(model, params, rows, step)
    assert np.allclose(posterior.mean.numpy(), pairs.diagonal(axis1=0, axis2=2).diagonal(axis1=0, axis2=1), atol=1e-12)


def test_gradient_of_the_evidence_is_that_of_finite_differences():
    model, data, params = problem(directed=False, blocks=2)
    steps = engine_for(model, "exact")
    rows = steps.rows(model, data)
    weight = params["weight"].clone().requires_grad_()
    steps.log_evidence(model, {**params, "weight": weight}, rows).sum().backward()
    for place in itertools.product(range(2), range(2), range(3)):
        change = torch.zeros(2, 2, 3)
        change[place] = 1e-5
        up, down = (
            float(steps.log_evidence(model, {**params, "weight": params["weight"] + s * change}, rows)) for s in (1, -1)
        )
        assert np.isclose(float(weight.grad[place]), (up - down) / 2e-5, atol=1e-7)


@pytest.mark.parametrize("bound", ["mean_field", "exact"])
@pytest.mark.parametrize(("directed", "loops"), CASES)
def test_m_step_is_where_the_gradient_vanishes(bound, directed, loops):
    """The objective at fixed posteriors: sum of P(z_i = a, z_j = b) l_ij(a, b) plus the log prior, by autograd."""
    model, data, params = problem(directed=directed, loops=loops, size=6, blocks=2)
    model = model.with_priors(weight=dist.Normal(0.3, 1.5), block_proportion=dist.Dirichlet(torch.tensor([2.0, 3.0])))
    steps = engine_for(model, bound)
    rows = steps.rows(model, data)
    step = steps.e_step(model, params, rows)
    new = steps.m_step(model, params, step, rows)
    new = values_of(model, steps.m_step(model, new, step, rows))  # Newton's steps are limited in number
    if bound == "exact":
        pairs = step.statistics["pairs"][rows.i, :, rows.j]
    else:
        pairs = steps._dyad_weights(step.locals[RESPONSIBILITY], rows)
    free = new["weight"].clone().requires_grad_()
    upper = torch.ones(2, 2).triu().bool()[..., None]
    weight = free if directed else torch.where(upper, free, free.transpose(0, 1))
    expected = (pairs * rows.log_probabilities(weight).permute(2, 0, 1)).sum()
    (expected + model.prior("weight").log_prob(weight)).backward()
    assert float(free.grad.abs().max()) < 1e-6
    share = step.locals.get(RESPONSIBILITY, steps.posterior(model, params, rows, step).mean)
    assert torch.allclose(new["block_proportion"], (share.sum(0) + torch.tensor([1.0, 2.0])) / (6 + 3))
    if not directed:
        assert torch.equal(new["weight"], new["weight"].transpose(0, 1))


def test_weighted_regressions_are_those_of_scikit_learn():
    rng = np.random.default_rng(0)
    design = np.column_stack([np.ones(200), rng.standard_normal((200, 2))])
    x = (rng.random(200) < 1 / (1 + np.exp(-design @ [0.5, 1.0, -2.0]))).astype(float)
    weight = rng.random((3, 200))
    mean, precision = torch.zeros(3, 3), torch.full((3, 3), 0.5)
    args = torch.as_tensor(x), torch.as_tensor(design), torch.as_tensor(weight), mean, precision
    beta = torch.zeros(3, 3)
    found = fit_weighted(beta, *args)
    assert (objectives(found, *args) > objectives(beta, *args)).all()
    for p in range(3):
        expected = LogisticRegression(C=2.0, fit_intercept=False, tol=1e-10, max_iter=1000)
        expected.fit(design, x, sample_weight=weight[p])
        assert np.allclose(found[p].numpy(), expected.coef_[0], atol=1e-5)


def test_separable_dyads_under_a_flat_prior_stay_finite():
    design = torch.tensor([[1.0, -1.0], [1.0, -2.0], [1.0, 1.0], [1.0, 2.0]])
    x, weight, zero = torch.tensor([0.0, 0.0, 1.0, 1.0]), torch.ones(1, 4), torch.zeros(1, 2)
    beta, last = zero, float(objectives(zero, x, design, weight, zero, zero))
    for _ in range(5):
        beta = fit_weighted(beta, x, design, weight, zero, zero)
        value = float(objectives(beta, x, design, weight, zero, zero))
        assert torch.isfinite(beta).all() and value >= last
        last = value


def test_one_block_is_a_logistic_regression():
    example = CovariateSBM.example()
    model = CovariateSBM(num_blocks=1, covariates=example.model.covariates, directed=False)
    fit: Any = ci.fit(model, example.data, progress=False)
    i, j = np.triu_indices(22, 1)
    unit = fit.model.weight_units().numpy()
    design = fit.model.dyad_features(torch.as_tensor(i), torch.as_tensor(j)).numpy() / unit
    expected = LogisticRegression(C=2.5**2, fit_intercept=False, tol=1e-10)
    expected.fit(design, example.data.dense().x.numpy()[i, j])
    assert np.allclose(fit.params["weight"][0, 0].numpy() * unit, expected.coef_[0], atol=1e-5)
    assert fit.bound_name == "mean_field" and np.isclose(float(fit.local.bound), float(fit.evidence))


@pytest.mark.parametrize("bound", ["mean_field", "exact"])
@pytest.mark.parametrize("prior", ["normal", "flat", "sparse"])
def test_objective_climbs(bound, prior):
    changed = {
        "normal": {"weight": dist.Normal(0.2, 1.0)},
        "flat": {"weight": Flat(dist.Normal(0.0, 2.0))},
        "sparse": {"block_proportion": dist.Dirichlet(torch.full((2,), 0.5))},
    }[prior]
    for directed in (True, False):
        model, data, _ = problem(directed=directed, size=7, blocks=2)
        method = ci.VariationalEM(guide=bound, search=None, max_iterations=15, tolerance=1e-12)
        fit = method.fit(model.with_priors(**changed), data, seed=1, progress=False)
        assert (fit.elbo.diff() >= -1e-9).all() and len(fit.elbo) > 2


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_blocks_of_the_example_are_found(dtype):
    example = CovariateSBM.example()
    fit = ci.fit(example.model, example.data, seed=0, dtype=dtype, progress=False)
    assert adjusted_rand_score(example.truth["block"], fit.params["block"]) == 1
    assert fit.params["weight"].dtype == dtype and set(fit.params) == {"block_proportion", "weight", "block"}
    again = ci.fit(example.model, example.data, seed=1, dtype=dtype, progress=False)
    assert np.isclose(float(fit.elbo[-1]), float(again.elbo[-1]), atol=1e-3)


def test_features_tell_blocks_apart_that_edges_alone_do_not():
    """Edges are equally many in all blocks, but go with like features in one block and unlike ones in the other."""
    rng = np.random.default_rng(5)
    feature, block = rng.standard_normal(80), np.repeat([0, 1], 40)
    slope = np.array([[3.0, 0.0], [0.0, -3.0]])[block][:, block]
    chance = 1 / (1 + np.exp(-slope * np.outer(feature, feature)))
    x = np.triu(rng.random((80, 80)) < chance, 1)
    model = CovariateSBM(num_blocks=2, covariates=feature[:, None], directed=False, centre=0.0)
    data = model.prepare(torch.as_tensor((x + x.T).astype(float)))
    fit = ci.fit(model, data, seed=0, progress=False)
    assert adjusted_rand_score(block, fit.params["block"]) > 0.8


def test_a_fit_is_saved_and_read(tmp_path):
    example = CovariateSBM.example()
    fit = ci.fit(example.model, example.data, progress=False)
    loaded = ci.Fit.load(fit.save(tmp_path / "fit.safetensors"))
    assert torch.equal(loaded.model.covariates, fit.model.covariates) and loaded.model.combine == "product"
    assert torch.equal(loaded.params["weight"], fit.params["weight"])
    assert torch.allclose(loaded.transform(example.data), fit.transform(), atol=1e-6)
    assert torch.equal(loaded.transform(example.data), fit.transform(example.data))
    drawn = loaded.sample(22)
    assert drawn["x"].shape == (22, 22) and torch.equal(drawn["x"], drawn["x"].T) and drawn["block"].shape == (22,)
    posterior = fit.to_arviz(num_draws=3).point_estimates
    assert posterior["weight"].dims == ("chain", "draw", "component", "to_component", "covariate")
    assert az.extract(posterior, num_samples=1)["weight"].shape == (2, 2, 2, 1)


def test_what_does_not_fit_and_what_has_no_steps_is_refused():
    rng = np.random.default_rng(0)
    large = CovariateSBM(num_blocks=20, covariates=rng.standard_normal((20000, 1)), directed=False)
    empty = _sparse.tensor(torch.zeros(20001).long(), torch.zeros(0).long(), torch.zeros(0), size=(20000, 20000))
    with pytest.raises(CapacityError, match="SVI"):
        engine_for(large, "mean_field").rows(large, GraphData(x=empty, directed=False))
    model, data, _ = problem(size=4)
    changed = model.with_priors(weight=dist.StudentT(3.0, 0.0, 1.0))
    fit = ci.VariationalEM(guide="mean_field", max_iterations=2).fit(changed, data, progress=False)
    assert "numerical M steps of weight" in fit.status
    many = CovariateSBM(num_blocks=3, covariates=rng.standard_normal((40, 1)))
    with pytest.raises(CapacityError, match="mean_field"):
        ci.EM().fit(many, torch.ones(40, 40).triu(1), progress=False)
