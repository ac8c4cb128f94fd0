"""Every model x every method that it has: what fits promise, on problems whose exact posteriors are known."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from unittest import mock

import numpy as np
import pyro
import pytest
import torch
from torch.distributions import constraints

import custom_inference as ci
from custom_inference.core import expected
from custom_inference.core.local_inference import is_feasible
from custom_inference.core.posteriors import (
    GaussianPosterior,
    LogisticPosterior,
    PointPosterior,
    ScorePosterior,
    finite,
)
from custom_inference.core.registry import engine_for, engines_of
from custom_inference.methods import methods_of
from ppl_models import MODELS, Data, MethodError
from tests.references import _graphs, mmsb_integrated
from tests.support.cases import (
    AGAIN,
    DEFAULTS,
    EXACT,
    FEW,
    GENERIC,
    MARKED,
    PAIRS,
    ROWS,
    VARIANTS,
    fitted,
    globals_of,
    methods_at,
    problem_of,
    small_fit,
    small_method,
)
from tests.support.graphs import (
    GRAPHS,
    exact_evidence,
    exact_graph,
    informative,
    reference_of,
    reordered_data,
    reordered_model,
    small_problem,
)
from tests.support.objectives import check_parts

#: Models without an exact engine, whose latents cannot be enumerated.
WITHOUT_EVIDENCE = [name for name in ROWS if "exact" not in methods_of(problem_of(name).model)]
#: Models whose tokens, or responses, each have a component of their own.
ADMIXTURES = ("lda", "multinomial_pca", "plsa", "user_rating_profile")
EACH = pytest.mark.parametrize(("model", "method"), MARKED)
#: What makes seeds of a method is one code for all models.
BY_SEED = pytest.mark.parametrize(
    ("model", "method"), [pair if pair[0] in FEW else pytest.param(*pair, marks=pytest.mark.slow) for pair in AGAIN]
)
ROWS_AGAIN = pytest.mark.parametrize(("model", "method"), [pair for pair in AGAIN if pair[0] in ROWS])
OF_GRAPHS = pytest.mark.parametrize(("model", "method"), [pair for pair in PAIRS if pair[0] in GRAPHS])
CLIMBING = [pair for pair in PAIRS if pair[0] in GRAPHS and isinstance(small_method(*pair), ci.VariationalEM)]
OTHERS = [*EXACT, *(pytest.param(*pair, marks=pytest.mark.quick) for pair in DEFAULTS)]
WITH_DEFAULTS = pytest.mark.parametrize(("model", "method"), [*MARKED, *OTHERS])
BOUNDED = pytest.mark.parametrize(("model", "method"), [*AGAIN, *OTHERS])


def is_estimate(engine):
    """Whether what an engine says of the evidence may lie on either side of it."""
    return engine.objective == "estimate"


@WITH_DEFAULTS
def test_a_fit_keeps_its_promises(model, method):
    fit, problem = fitted(model, method), problem_of(model)
    program, rows, mean = problem.model, len(problem.data), fit.posterior.mean
    local, shapes = program.local_site, dict(program.shapes)
    if local in fit.params or model in GRAPHS:  # of graphs, once the posterior was asked for
        shapes[local] = tuple(problem.truth[local].shape)
    shapes |= {part: (rows, *program.shape_of(part)) for part in program.part_sites}
    assert {site: tuple(value.shape) for site, value in fit.params.items()} == shapes
    for site, value in fit.params.items():
        assert torch.isfinite(value).all() and value.dtype == (torch.int64 if site == "block" else torch.float64)
    assert fit.elbo.ndim == 1 and torch.isfinite(fit.elbo).all() and fit.status and fit.bound_name
    assert mean.shape == (rows, *program.local_shape) and torch.isfinite(mean).all()
    unbounded = isinstance(fit.posterior, GaussianPosterior | LogisticPosterior | PointPosterior | ScorePosterior)
    if program.sites[local].support is constraints.positive or program.has_atoms:
        assert (mean >= 0).all()
    elif program.code_bits is not None or not unbounded:
        assert ((mean >= 0) & (mean <= 1)).all()
    new = problem.data if model in GRAPHS else problem.data.x[:4]
    assert fit.transform(new, **({} if model in GRAPHS else given_rows(problem, 4))).shape == (len(new), mean.shape[1])
    assert fit.posterior.sample(5).shape == (5, *mean.shape) and fit.posterior.mode.shape == mean.shape
    assert len(fit.report()) == program.sizes["component"] and np.isfinite(fit.bic()) and np.isfinite(fit.aic())
    assert torch.isfinite(fit.plugin_log_likelihood()).all()
    assert "Fit of" in repr(fit)
    (_promises_of_a_graph if model in GRAPHS else _promises_of_rows)(fit, method)


def given_rows(problem, number):
    """What the model's rows are given with, of the first of them."""
    others = problem.data.others
    return {site: others[site][:number] for site in problem.model.sites_of("given") if site in others}


def _promises_of_rows(fit, method):
    assert (fit.posterior.log_prob(fit.posterior.mode) > -torch.inf).all()
    assert fit.sample(7)[fit.model.observed_site].shape == (7, fit.data.num_features)
    assert fit.predictive(2).shape == (2, *fit.data.x.shape) and fit.reconstruct().shape == fit.data.x.shape
    assert method != "default" or averaged(fit).shape == fit.data.x.shape


def averaged(fit):
    """A reconstruction by the mean over few draws."""
    with mock.patch.object(expected, "_DRAWS", 20):
        return fit.reconstruct(how="mean")


def _promises_of_a_graph(fit, method):
    size, site, mean = fit.model.num_nodes, fit.model.local_site, fit.posterior.mean
    assert torch.allclose(mean.sum(-1), torch.ones(size), atol=1e-6)
    assert site == "block" or torch.allclose(fit.params[site], mean, atol=1e-8)
    if site == "block" and isinstance(small_method("sbm", method), ci.VariationalEM):
        assert torch.equal(fit.params[site], mean.argmax(-1))
    for name in () if fit.model.directed else fit.model.pair_sites:
        assert torch.equal(fit.params[name], fit.params[name].transpose(0, 1))
    new = fit.sample(size)
    assert len(new[site]) == size
    made = [*fit.predictive(2), new["x"], fit.reconstruct()]
    made += [averaged(fit)] if method == "default" else []
    for x in made:
        assert x.shape == (size, size) and not x.diagonal().any() and (x >= 0).all() and torch.isfinite(x).all()
        assert fit.model.directed or torch.equal(x, x.T)
        assert fit.model.edge_kind == "counts" or (x <= 1).all()
    assert all(torch.equal(x, x.round()) for x in made[:3])


@WITH_DEFAULTS
def test_the_parts_of_the_objective_are_what_they_are_called(model, method):
    fit, evidence = fitted(model, method), torch.zeros(())
    if fit.objective in ("evidence", "log posterior"):
        known = fit.log_likelihood() if model in ROWS else exact_evidence(fit.model, fit.globals, fit.data)
        evidence = torch.as_tensor(known).sum()
    check_parts(fit, evidence)


@WITH_DEFAULTS
def test_locals_of_the_data_of_a_fit_are_what_it_found(model, method):
    """Given again, in whatever form, and left out; of points, of draws and of graphs ``params`` holds the same."""
    fit, problem = fitted(model, method), problem_of(model)
    found, held = fit.transform(), fit.params.get(fit.model.local_site)
    for data in (problem.data, fit.data) if method == "default" else (problem.data,):
        assert torch.equal(fit.transform(data, **({} if model in GRAPHS else problem.data.others)), found)
    assert torch.equal(found, fit.posterior.mean if held is None or held.ndim == 1 else held)


@pytest.mark.parametrize(("model", "method"), [pair for pair in PAIRS if pair[0] in ADMIXTURES])
def test_shares_are_those_of_the_tokens(model, method):
    """Every token, or response, by itself: the mean of its topic's probabilities at the posterior means."""
    fit = fitted(model, method)
    theta, total, tokens = fit.transform().numpy(), 0.0, 0.0
    x, mask = fit.data.dense().x.numpy(), fit.data.dense().mask
    for n, row in enumerate(x):
        for j, value in enumerate(row):
            if mask is not None and not mask[n, j]:
                continue
            words = model != "user_rating_profile"
            b = fit.params["topic"][:, j] if words else fit.params["response"][:, j, int(value)]
            r = theta[n] * b.numpy()
            total, tokens = total + (value if words else 1.0) * r / r.sum(), tokens + (value if words else 1.0)
    share = fit.report()["share"].sort_index()
    assert np.allclose(share, total / tokens, atol=6e-5) and share.sum() == pytest.approx(1.0, abs=2e-4)


@pytest.mark.parametrize("model", WITHOUT_EVIDENCE)
def test_models_without_an_exact_engine_say_what_they_have(model):
    fit, data = fitted(model, "default"), problem_of(model).data
    name = next(iter(engines_of(fit.model)))
    for ask in (
        lambda: fit.log_likelihood(),
        lambda: fit.local_posterior(bound="exact"),
        lambda: ci.Exact().local_posterior(fit.model, fit.globals, data),
    ):
        with pytest.raises(MethodError, match=f"no closed form here; lower bounds: bound='{name}'"):
            ask()
    with pytest.raises(MethodError, match=f"no engine 'exact'; valid: {name}.*guide='{name}'"):
        ci.EM().fit(fit.model, data, progress=False)


@BOUNDED
def test_bounds_stay_below_the_evidence(model, method):
    fit, is_graph = fitted(model, method), model in GRAPHS
    if model in WITHOUT_EVIDENCE:  # their own tests hold their bounds against references
        bounds = fit.bounds if method == "default" else fit.bounds[:1]
        assert all(torch.isfinite(fit.log_likelihood(bound=bound)).all() for bound in bounds)
        with pytest.raises(MethodError, match=f"lower bounds: bound='{fit.bounds[0]}'"):
            fit.log_likelihood()
        return
    evidence = torch.tensor([exact_evidence(fit.model, fit.globals, fit.data)]) if is_graph else fit.log_likelihood()
    for bound in fit.bounds:
        assert (
            is_estimate(engine_for(fit.model, bound)) or (fit.log_likelihood(bound=bound) <= evidence + 1e-8).all()
        ), bound
    if is_graph and (is_feasible(fit.model) or not fit.model.has_continuous_locals):
        assert torch.allclose(fit.evidence, evidence, rtol=1e-10, atol=0)
    local = fit.local_posterior() if fit.local is None and is_graph else fit.local
    if local is not None:
        # Points, posteriors averaged over draws of the globals, and CVB0 have no bound; the ELBO of a sampled
        # continuous guide is an estimate, exact only in its mean.
        without = isinstance(local.posterior, PointPosterior) or not hasattr(local.posterior, "mean")
        without |= not is_graph and (fit.bound_name == "cvb0" or method == "cvb0" or "Gibbs" in fit.method_name)
        missing = bool(torch.isnan(local.bound).all())
        assert without == missing or (is_graph and not without)
        # Where it is a mean over draws, it lies within six standard errors in each of the rows.
        slack = 1e-8 + (0.0 if local.standard_error is None else 6 * local.standard_error)
        without_error = fit.objective == "estimate" and local.standard_error is None
        assert is_graph or without_error or not (local.bound > evidence + slack).any()
    with pytest.raises(MethodError, match="valid: " if engines_of(fit.model) else "no closed-form"):
        fit.log_likelihood(bound="nonsense")


@BY_SEED
def test_same_seed_same_result_and_no_side_effects(model, method):
    pyro.param("bystander", torch.tensor(1.0))
    torch.manual_seed(5)
    np.random.seed(6)  # noqa: NPY002
    expected = torch.rand(3), np.random.rand(3)  # noqa: NPY002
    torch.manual_seed(5)
    np.random.seed(6)  # noqa: NPY002
    again = small_fit(model, method, seed=3)
    assert torch.equal(torch.rand(3), expected[0]), "the caller's random state was changed"
    assert np.array_equal(np.random.rand(3), expected[1]), "the caller's NumPy random state was changed"  # noqa: NPY002
    assert list(pyro.get_param_store().keys()) == ["bystander"], "the caller's parameter store was changed"
    for site, value in fitted(model, method).globals.items():
        assert torch.equal(value, again.params[site]), site
    # Sums may depend on where in memory their terms lie, by their last digits.
    torch.testing.assert_close(again.elbo, fitted(model, method).elbo)


@EACH
def test_save_and_load(model, method, tmp_path):
    fit = fitted(model, method)
    loaded = ci.Fit.load(fit.save(tmp_path / "fit.safetensors"))
    assert list(tmp_path.iterdir()) == [tmp_path / "fit.safetensors"], "no temporary file may stay behind"
    for site, value in fit.params.items():
        assert torch.equal(value, loaded.params[site]) and value.dtype == loaded.params[site].dtype
    assert torch.equal(fit.elbo, loaded.elbo) and fit.status == loaded.status and fit.ended is loaded.ended
    assert fit.method_name == loaded.method_name and fit.method == loaded.method
    assert fit.objective == loaded.objective
    assert torch.allclose(fit.posterior.mean, loaded.posterior.mean, atol=1e-9)
    assert repr(fit) == repr(loaded) and loaded.coords == fit.coords
    bound = fit.bounds[0] if model in {*GRAPHS, *WITHOUT_EVIDENCE} else None
    new = (None, {}) if model in GRAPHS else (problem_of(model).data.x[:4], given_rows(problem_of(model), 4))
    scores = [one.log_likelihood(new[0], bound=bound, **new[1]) for one in (fit, loaded)]
    assert torch.allclose(*scores)
    if model in GRAPHS:
        before, after = fit.data.dense(), loaded.data.dense()
        assert torch.equal(before.x, after.x) and torch.equal(before.mask, after.mask)
        assert loaded.data.directed == fit.data.directed


@ROWS_AGAIN
def test_missing_entries_work(model, method):
    problem = problem_of(model)
    x = problem.data.x.clone()
    x[torch.rand(x.shape) < 0.2] = float("nan")
    fit = small_fit(model, method, x, seed=0, **problem.data.others)
    assert all(torch.isfinite(value).all() for value in fit.params.values())
    scores = fit.log_likelihood(bound=fit.bounds[0]) if model in WITHOUT_EVIDENCE else fit.evidence
    assert torch.isfinite(scores).all() and torch.isfinite(fit.transform(x[:3], **given_rows(problem, 3))).all()


@pytest.mark.parametrize("name", [name for name in MODELS if name not in WITHOUT_EVIDENCE])
def test_every_family_at_the_truth_against_the_exact_posterior(name):
    problem, params = problem_of(name), globals_of(problem_of(name))
    continuous, is_graph = problem.model.has_continuous_locals, name in GRAPHS
    if is_graph and continuous and not is_feasible(problem.model):
        pytest.skip("no exact posterior of memberships of this size")
    known = {"nuts", "em", *VARIANTS}  # of what has no posterior of its own at given globals
    known |= set() if name in FEW else GENERIC
    others = [one for one in methods_at(name) if one not in known]
    methods = [ci.Exact(), *(small_method(name, method) for method in others)]
    with mock.patch.object(finite, "DRAWS", 250):  # that divergences of continuous posteriors are means over
        table = ci.compare(methods, problem.model, problem.data, at=params).table
    measured = ["evidence", "gap_per_row", "gap_error", "kl_per_row", "worst_marginal_error", "marginal_error"]
    assert list(table.columns) == ["what", "posterior", "bound", "standard_error", *measured, "seconds"]
    assert table["evidence"].nunique() == 1
    assert table.loc["Exact", "gap_per_row"] == 0 and (table["worst_marginal_error"] >= 0).all()
    # Divergences of continuous posteriors, and the bounds of sampled guides, are estimates by draws of one quantity.
    drawn = 0.05 + 6 * table["standard_error"] / len(problem.data)
    slack = drawn if continuous else 1e-6 + 0 * drawn
    without = table["bound"].isna()
    estimates = [f"VariationalEM({one})" for one, made in engines_of(problem.model).items() if is_estimate(made())]
    bounded = table[~without & ~table.index.isin(estimates)]
    assert (bounded["gap_per_row"] > -4 * bounded["standard_error"] / len(problem.data) - 1e-8).all()
    exact = bounded["what"].str.startswith("exact")
    assert (bounded["gap_per_row"][exact] == 0).all() and (bounded["posterior"][exact] == "exact").all()
    # KL(q || p) is the gap of q's own ELBO, so no bound is tighter than its KL.
    assert (bounded["gap_per_row"] - bounded["kl_per_row"] > -slack[bounded.index]).all()
    if not is_graph:
        draws = without & (table.index == "CollapsedGibbs")  # a mixture of its draws: no bound, but a divergence
        assert (table["kl_per_row"][without & ~draws] == np.inf).all()
        assert table["kl_per_row"][draws].between(-0.05, 0.5).all()
        return
    assert np.allclose(table["evidence"], exact_evidence(problem.model, params, problem.data), rtol=1e-10)
    found = "VariationalEM(mean_field)"
    if not continuous and found in table.index:
        marginal = _graphs.marginals(*exact_graph(problem.model, params, problem.data).posterior(), 2)
        assert table.loc[found, "worst_marginal_error"] <= np.abs(1 - marginal).max() + 1e-8


#: No bounds: nothing has to climb.
ESTIMATES = ("cvb0", "bethe")


@pytest.mark.parametrize(("model", "method"), [pair for pair in CLIMBING if pair[1] not in ESTIMATES])
@pytest.mark.parametrize("directed", [True, False])
def test_traces_climb(model, method, directed):
    """From a random start without a search, in both kinds of graphs, under informative priors."""
    problem = small_problem(model, directed=directed, hidden=0.2, num_nodes=4 if model == "mmsb" else 7)
    settings = replace(small_method(model, method), search=None, accelerate=None)
    for seed in range(2):
        fit = settings.fit(informative(problem.model), problem.data, seed=seed, progress=False)
        assert (fit.elbo.diff() >= -1e-9).all() and len(fit.elbo) > 1


@pytest.mark.parametrize("model", [name for name in GRAPHS if "vb" in methods_at(name)])
@pytest.mark.parametrize("directed", [True, False])
def test_vb_bound_is_below_the_evidence_with_the_globals_integrated_out(model, directed):
    size = (3 if directed else 4) if model == "mmsb" else 6
    problem = small_problem(model, directed=directed, hidden=0.2, num_nodes=size)
    for chosen in (problem.model, informative(problem.model)):
        exact = integrated_evidence(chosen, problem.data)
        if exact is not None:
            fit = ci.VariationalEM(guide="vb", max_iterations=40).fit(chosen, problem.data, seed=0, progress=False)
            assert float(fit.elbo[-1]) <= exact + 1e-8
            # at a poor optimum it would be further off: every node brings less than this
            assert exact - float(fit.elbo[-1]) < 1.5 * chosen.num_nodes


def integrated_evidence(model, data: Data) -> float | None:
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


@WITH_DEFAULTS
def test_points_have_no_deviations_and_all_else_has(model, method):
    """In ArviZ one draw, in a group of their own; in the summary an estimate alone; and words for it when printed."""
    fit = fitted(model, method)
    points, known = set(fit.point_estimates), set(fit.model.known)
    spread = set(fit.global_posterior) | set(fit.draws or {})
    assert points | known | (spread & set(fit.model.global_sites)) == set(fit.model.global_sites)
    assert not points & set(fit.global_posterior) and (not points or fit.draws is None)
    tree = fit.to_arviz(num_draws=5, num_copies=0, max_rows=2)
    groups = {name: tree[name] for name in tree.groups()}
    one, drawn, given = (groups.get(name, {}) for name in ("point_estimates", "posterior", "constant_data"))
    assert points <= set(one) and not (points & set(drawn) and set(one) != set(drawn)) and known <= set(given)
    assert (set(fit.model.unknown_sites) - points) <= set(drawn) - set(one)
    assert all(one[site].shape[:2] == (1, 1) for site in one)
    for site in (set(drawn) - set(one)) & set(fit.model.unknown_sites):
        assert float(drawn[site].std(("chain", "draw")).max()) > 0, site
    table = fit.summary()
    for site in fit.model.global_sites:
        own = table[table.index.str.startswith(f"{site}[") | (table.index == site)].dropna(axis=1, how="all")
        assert len(own) == fit.globals[site].numel()
        expected = ["known"] if site in known else ["estimate"] if site in points else ["mean", "sd", "q5", "q95"]
        chains = fit.draws is not None and bool(fit.sample_stats)
        assert [name for name in own if not chains or name not in ("ess", "r_hat")] == expected, site
    assert ("globals: point estimates" in repr(fit)) == bool(points)


@OF_GRAPHS
def test_to_arviz_names_nodes_and_blocks(model, method):
    fit = fitted(model, method)
    if fit.draws is not None:
        fit = replace(fit, draws={site: value[:, :5] for site, value in fit.draws.items()})
    approximate = fit.global_posterior or (fit.draws is not None and not fit.sample_stats)
    with pytest.warns(UserWarning, match="of an approximation") if approximate else contextlib.nullcontext():
        tree = fit.to_arviz(num_draws=5, log_likelihood=True if approximate else None)
    posterior, names = tree.posterior, [f"node {n}" for n in range(fit.model.num_nodes)]
    for site, axes in fit.model.dims.items():
        if site in posterior:
            assert posterior[site].dims == ("chain", "draw", *axes), site
    assert set(fit.model.unknown_sites) <= {*posterior.data_vars, *fit.point_estimates}
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
    if fit.draws is None and not fit.global_posterior:
        assert "log_likelihood" not in tree.groups() and "point estimate" in posterior.attrs["log_likelihood"]
        return
    values = tree.log_likelihood["x"]
    first, second = fit.model.dyads(torch.arange(fit.model.num_dyads()))
    assert values.dims == ("chain", "draw", "dyad") and values.shape[2] == int(dense.mask[first, second].sum())
    assert np.isfinite(values.values).all() and " node " in str(values.coords["dyad"].values[0])


@pytest.mark.parametrize(
    ("model", "method"),
    [pytest.param(*pair, marks=[] if pair[0] in ("sbm", "covariate_sbm") else pytest.mark.slow) for pair in CLIMBING],
)
def test_nodes_in_another_order_give_the_same_fit(model, method):
    """Searches draw other numbers then: the optimum, not the way to it, is the same. Of memberships of four nodes one
    search in eight ends elsewhere, and the best of three counts."""
    problem, seeds = problem_of(model), range(3 if model == "mmsb" else 1)
    program = informative(problem.model) if model == "mmsb" else problem.model
    order = torch.randperm(program.num_nodes)
    settings = replace(small_method(model, method), search=ci.Search(), max_iterations=400, tolerance=1e-9)

    def best(program, data):
        fits = [settings.fit(program, data, seed=seed, progress=False) for seed in seeds]
        return max(fits, key=lambda fit: float(fit.elbo[-1]))

    one = best(program, problem.data)
    other = best(reordered_model(program, order), reordered_data(program, problem.data, order))
    assert np.isclose(float(one.elbo[-1]), float(other.elbo[-1]), atol=1e-5)
    together = [fit.posterior.mean @ fit.posterior.mean.T for fit in (one, other)]
    assert torch.allclose(together[0][order][:, order], together[1], atol=1e-2)
