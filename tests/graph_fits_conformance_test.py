"""Every model of graphs x every method that applies: what fits promise, on graphs whose labelings can all be listed."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from typing import Any

import numpy as np
import pyro
import pytest
import torch

import custom_inference as ci
from custom_inference.core.local_inference import is_feasible
from custom_inference.core.posteriors import PointPosterior
from custom_inference.core.registry import engines_of
from custom_inference.methods import every_method, methods_for
from ppl_models import MODELS, SBM, MethodError
from tests._graphs import (
    GRAPHS,
    arrays,
    exact_evidence,
    exact_graph,
    informative,
    keywords,
    reference_of,
    reordered_data,
    reordered_model,
    small_problem,
)
from tests.references import _graphs, mmsb_integrated

#: Fewer of whatever costs time, by the name of the setting.
SMALL = {
    "max_iterations": 40, "steps": 15, "num_samples": 5, "warmup": 5, "chains": 2, "max_tree_depth": 2,
}  # fmt: skip
#: Those that are others by another name.
LEFT_OUT = ("default", "exact", "amortized")
#: The methods that draw globals and sum over all labelings for each draw run on one model.
DRAWN, SAMPLED = {"nuts", "svi_normal"}, "sbm"


def small_method(name: str) -> Any:
    method = every_method()[name]()
    known = {field.name for field in fields(method)}
    return replace(method, **{setting: value for setting, value in SMALL.items() if setting in known})


def problem_of(model: str):
    """Directed where the model's example is; with hidden dyads and nodes by name."""
    directed = MODELS[model].example().model.directed
    size = 4 if model == "mmsb" else 7
    return small_problem(model, directed=directed, hidden=0.15, num_nodes=size)


def applying(model: str) -> list[str]:
    instance = MODELS[model].example().model
    left_out = {*LEFT_OUT} if model == SAMPLED else {*LEFT_OUT, *DRAWN}
    return [name for name in methods_for(instance) if name not in left_out]


PAIRS = [(model, method) for model in GRAPHS for method in applying(model)]
MONOTONE = [(model, method) for model, method in PAIRS if isinstance(every_method()[method](), ci.VariationalEM)]
EACH = pytest.mark.parametrize(("model", "method"), PAIRS)


@cache
def fitted(model: str, method: str) -> ci.Fit:
    """Fits are shared by the tests of this module (they are only read)."""
    problem = problem_of(model)
    return small_method(method).fit(problem.model, problem.data, seed=3, progress=False)


def evidence_of(fit: ci.Fit) -> float:
    return exact_evidence(fit.model, fit.globals, fit.data)


@EACH
def test_a_fit_keeps_its_promises(model, method):
    fit, problem = fitted(model, method), problem_of(model)
    size, blocks, site = problem.model.num_nodes, problem.model.num_blocks, problem.model.local_site
    local_shape = (size,) if site == "block" else (size, blocks)
    shapes = {**problem.model.shapes, site: local_shape}
    assert fit.posterior is not None  # found at the first look; from then on among the parameters
    assert {name: tuple(value.shape) for name, value in fit.params.items()} == shapes
    for name, value in fit.params.items():
        assert torch.isfinite(value).all() and value.dtype == (torch.int64 if name == "block" else torch.float64)
    if not fit.model.directed:
        for name in fit.model.pair_sites:
            assert torch.equal(fit.params[name], fit.params[name].transpose(0, 1))
    assert fit.elbo.ndim == 1 and torch.isfinite(fit.elbo).all() and fit.status and fit.bound_name
    mean = fit.posterior.mean
    assert mean.shape == (size, blocks) and ((mean >= 0) & (mean <= 1)).all()
    assert torch.allclose(mean.sum(-1), torch.ones(size), atol=1e-6)
    if site == "membership":
        assert torch.allclose(fit.params[site], mean, atol=1e-8)
    elif isinstance(every_method()[method](), ci.VariationalEM):
        assert torch.equal(fit.params[site], mean.argmax(-1))
    assert fit.transform().shape == (size, blocks) and fit.transform(problem.data).shape == (size, blocks)
    assert fit.posterior.sample(5).shape == (5, size, blocks) and fit.posterior.mode.shape == (size, blocks)
    assert fit.plugin_log_likelihood().shape == (1,) and torch.isfinite(fit.plugin_log_likelihood()).all()
    assert len(fit.report()) == blocks and np.isfinite(fit.bic()) and np.isfinite(fit.aic())
    assert "Fit of" in repr(fit)


@EACH
def test_graphs_that_a_fit_makes(model, method):
    fit = fitted(model, method)
    size = fit.model.num_nodes
    new = fit.sample(size)
    assert new["x"].shape == (size, size) and len(new[fit.model.local_site]) == size
    made = [*fit.predictive(2), new["x"], fit.reconstruct(), fit.reconstruct(how="mean")]
    for x in made:
        assert x.shape == (size, size) and not x.diagonal().any() and (x >= 0).all() and torch.isfinite(x).all()
        assert fit.model.directed or torch.equal(x, x.T)
        assert fit.model.edge_kind == "counts" or (x <= 1).all()
    assert all(torch.equal(x, x.round()) for x in made[:3])


@EACH
def test_bounds_stay_below_the_evidence(model, method):
    fit = fitted(model, method)
    exact = evidence_of(fit)
    for bound in fit.bounds:
        value = fit.log_likelihood(bound=bound)
        assert value.shape == (1,) and float(value) <= exact + 1e-8, bound
    if is_feasible(fit.model) or not fit.model.has_continuous_locals:
        assert np.isclose(float(fit.evidence), exact, rtol=1e-10)
    local = fit.local_posterior() if fit.local is None else fit.local
    assert local.bound.shape == (1,)
    pointwise = isinstance(local.posterior, PointPosterior) or not hasattr(local.posterior, "mean")
    if pointwise:
        assert torch.isnan(local.bound).all()
    with pytest.raises(MethodError, match="valid: " if engines_of(fit.model) else "no closed-form steps"):
        fit.log_likelihood(bound="nonsense")


@pytest.mark.parametrize(("model", "method"), [pair for pair in MONOTONE if pair[1] != "cvb0"])  # no bound climbs
@pytest.mark.parametrize("directed", [True, False])
def test_traces_climb(model, method, directed):
    """From a random start without a search, in both kinds of graphs, under informative priors."""
    problem = small_problem(model, directed=directed, hidden=0.2, num_nodes=4 if model == "mmsb" else 7)
    settings = replace(small_method(method), search=None, accelerate=None)
    for seed in range(2):
        fit = settings.fit(informative(problem.model), problem.data, seed=seed, progress=False)
        assert (fit.elbo.diff() >= -1e-9).all() and len(fit.elbo) > 1


@pytest.mark.parametrize("model", [name for name in GRAPHS if "vb" in engines_of(MODELS[name].example().model)])
@pytest.mark.parametrize("directed", [True, False])
def test_vb_bound_is_below_the_evidence_with_the_globals_integrated_out(model, directed):
    size = (3 if directed else 4) if model == "mmsb" else 6
    problem = small_problem(model, directed=directed, hidden=0.2, num_nodes=size)
    for chosen in (problem.model, informative(problem.model)):
        fit = small_method("vb").fit(chosen, problem.data, seed=0, progress=False)
        exact = integrated_evidence(chosen, fit.data)
        if exact is not None:
            assert float(fit.elbo[-1]) <= exact + 1e-8
            # at a poor optimum it would be further off: every node brings less than this
            assert exact - float(fit.elbo[-1]) < 1.5 * chosen.num_nodes


def integrated_evidence(model, data) -> float | None:
    """log p(x), globals integrated out, where the references have it."""
    name = next(name for name, kind in MODELS.items() if kind is type(model))
    dense = data.dense()
    mask = None if dense.mask is None else dense.mask.numpy()
    kind = {"directed": model.directed, "self_loops": model.self_loops}
    if name == "mmsb":
        prior = model.priors["edge_probability"]
        pair = float(prior.concentration1), float(prior.concentration0)
        alpha = model.priors["membership"].concentration.numpy()
        return mmsb_integrated.log_evidence(dense.x.numpy(), 2, alpha, pair, model.sparsity, mask, drawn=False, **kind)
    if name not in ("sbm", "poisson_sbm"):
        return None
    prior = model.priors[model.component_site]
    names = ("concentration1", "concentration0") if name == "sbm" else ("concentration", "rate")
    pair = tuple(float(getattr(prior, one)) for one in names)
    alpha = model.priors["block_proportion"].concentration.numpy()
    return reference_of(name).log_evidence_integrated(dense.x.numpy(), model.num_blocks, alpha, pair, mask, **kind)


@EACH
def test_same_seed_same_result_and_no_side_effects(model, method):
    problem = problem_of(model)
    pyro.param("bystander", torch.tensor(1.0))
    torch.manual_seed(5)
    np.random.seed(6)  # noqa: NPY002
    expected = torch.rand(3), np.random.rand(3)  # noqa: NPY002
    torch.manual_seed(5)
    np.random.seed(6)  # noqa: NPY002
    again = small_method(method).fit(problem.model, problem.data, seed=3, progress=False)
    assert torch.equal(torch.rand(3), expected[0]), "the caller's random state was changed"
    assert np.array_equal(np.random.rand(3), expected[1]), "the caller's NumPy random state was changed"  # noqa: NPY002
    assert list(pyro.get_param_store().keys()) == ["bystander"], "the caller's parameter store was changed"
    for site, value in fitted(model, method).params.items():
        assert torch.equal(value, again.params[site]), site
    assert torch.equal(fitted(model, method).elbo, again.elbo)


@EACH
def test_save_and_load(model, method, tmp_path):
    fit = fitted(model, method)
    loaded = ci.Fit.load(fit.save(tmp_path / "fit.safetensors"))
    for site, value in fit.params.items():
        assert torch.equal(value, loaded.params[site]) and value.dtype == loaded.params[site].dtype
    assert torch.equal(fit.elbo, loaded.elbo) and fit.status == loaded.status and fit.method == loaded.method
    assert torch.allclose(fit.posterior.mean, loaded.posterior.mean, atol=1e-9)
    assert repr(fit) == repr(loaded) and loaded.coords == fit.coords
    assert loaded.data.directed == fit.data.directed
    before, after = fit.data.dense(), loaded.data.dense()
    assert torch.equal(before.x, after.x) and torch.equal(before.mask, after.mask)
    for bound in fit.bounds:
        assert torch.allclose(fit.log_likelihood(bound=bound), loaded.log_likelihood(bound=bound))


@EACH
def test_to_arviz_names_nodes_and_blocks(model, method):
    fit = fitted(model, method)
    if fit.draws is not None:
        fit = replace(fit, draws={site: value[:, :7] for site, value in fit.draws.items()})
    tree = fit.to_arviz(num_draws=7)
    posterior, names = tree.posterior, [f"node {n}" for n in range(fit.model.num_nodes)]
    for site, axes in fit.model.dims.items():
        if site in posterior:
            assert posterior[site].dims == ("chain", "draw", *axes), site
    assert set(fit.model.global_sites) <= set(posterior.data_vars)
    if "block" in posterior:
        block = posterior["block"]
        assert np.issubdtype(block.dtype, np.integer) and list(block.coords["node"].values) == names
        assert int(block.max()) < fit.model.num_blocks
    observed = tree.observed_data["x"]
    assert observed.dims == ("node", "to_node")
    assert list(observed.coords["node"].values) == names == list(observed.coords["to_node"].values)
    dense = fit.data.dense()
    assert np.array_equal(np.isnan(observed.values), ~dense.mask.numpy()), "hidden dyads are NaN"
    assert np.allclose(observed.values[dense.mask.numpy()], dense.x[dense.mask].numpy())
    values = tree.log_likelihood["x"]
    first, second = fit.model.dyads(torch.arange(fit.model.num_dyads()))
    assert values.dims == ("chain", "draw", "dyad") and values.shape[2] == int(dense.mask[first, second].sum())
    assert np.isfinite(values.values).all() and " node " in str(values.coords["dyad"].values[0])


@pytest.mark.parametrize(("model", "method"), MONOTONE)
def test_nodes_in_another_order_give_the_same_fit(model, method):
    """Searches draw other numbers then: the optimum, not the way to it, is the same."""
    problem = problem_of(model)
    order = torch.randperm(problem.model.num_nodes)
    settings = replace(small_method(method), max_iterations=400, tolerance=1e-9)
    one = settings.fit(problem.model, problem.data, seed=0, progress=False)
    data = reordered_data(problem.model, problem.data, order)
    other = settings.fit(reordered_model(problem.model, order), data, seed=0, progress=False)
    assert np.isclose(float(one.elbo[-1]), float(other.elbo[-1]), atol=1e-5)
    together = [fit.posterior.mean @ fit.posterior.mean.T for fit in (one, other)]
    assert torch.allclose(together[0][order][:, order], together[1], atol=1e-2)


@pytest.mark.parametrize("model", GRAPHS)
def test_every_family_at_the_truth_against_the_exact_posterior(model):
    problem = problem_of(model)
    params = {site: problem.truth[site] for site in problem.model.global_sites}
    if problem.model.has_continuous_locals and not is_feasible(problem.model):
        pytest.skip("no exact posterior of memberships of this size")
    methods = [ci.Exact(), *(small_method(name) for name in applying(model) if name != "nuts")]
    table = ci.compare(methods, problem.model, problem.data, at=params).table
    assert list(table.columns) == ["bound", "evidence", "gap_per_row", "kl_per_row", "worst_marginal_error", "seconds"]
    assert np.allclose(table["evidence"], exact_evidence(problem.model, params, problem.data), rtol=1e-10)
    bounded = table[~table["bound"].isna()]
    slack = 0.05 if problem.model.has_continuous_locals else 1e-6
    assert (bounded["gap_per_row"] > -1e-8).all() and (table["worst_marginal_error"] >= 0).all()
    assert (bounded["gap_per_row"] - bounded["kl_per_row"] > -slack).all()
    assert table.loc["Exact", "gap_per_row"] == 0
    if not problem.model.has_continuous_locals:
        exact, found = exact_graph(problem.model, params, problem.data), "VariationalEM(mean_field)"
        if found in table.index:
            marginal = _graphs.marginals(*exact.posterior(model), 2)
            assert table.loc[found, "worst_marginal_error"] <= np.abs(1 - marginal).max() + 1e-8


def test_keywords_of_the_references_are_those_of_the_models():
    problem = small_problem("covariate_sbm", directed=False)
    assert set(keywords(problem.model)) == {"directed", "self_loops", "covariates", "combine"}
    assert set(arrays(problem.truth, problem.model)) == {"block_proportion", "weight"}
    assert SBM in MODELS.values()
