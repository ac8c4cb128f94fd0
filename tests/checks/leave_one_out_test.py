"""Leave-one-out cross-validation against exact leave-one-out: in closed form, by quadrature, by summing labelings."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import betaln, logsumexp, roots_legendre

import custom_inference as ci
from custom_inference import compare_loo, loo
from custom_inference.checks import pointwise as _pointwise
from custom_inference.core.posteriors import DirichletPosterior
from custom_inference.faces.arviz_library import arviz
from custom_inference.methods import methods_for, resolve_method
from ppl_models import (
    MODELS,
    NOCA,
    SBM,
    CapacityError,
    DataWarning,
    MethodError,
    MixtureOfCategoricals,
    MixtureOfPoissons,
)

#: Few rows, or approximations that are meant to be bad: said to the user, and looked at where it matters.
TOLD = pytest.mark.filterwarnings("ignore:.*Pareto:UserWarning")


def run(fit, **settings):
    return loo(fit, **{"progress": False, **settings})


@pytest.fixture(scope="module")
def answers():
    return (np.random.default_rng(0).random((30, 4)) < 0.3).astype(float)


@pytest.fixture(scope="module")
def one_class(answers):
    """Variational Bayes of one class, which is exact: Dirichlet(1 + counts)."""
    with torch.random.fork_rng():
        torch.set_default_dtype(torch.float64)
        model = MixtureOfCategoricals(num_components=1, num_features=4, num_categories=2)
        return ci.VariationalEM(guide="vb").fit(model, answers, progress=False)


def exact_answers(x):
    """log p(x_n | x_-n) of Beta(1, 1)-Bernoulli columns, and the relative sd of 1 / p(x_n | theta) a posteriori."""
    on = x.sum(0) + 1.0
    off = len(x) - x.sum(0) + 1.0
    moments = [(betaln(on - r * x, off - r * (1 - x)) - betaln(on, off)).sum(1) for r in (1, 2)]  # log E[p^-r]
    return -moments[0], np.sqrt(np.exp(moments[1] - 2 * moments[0]) - 1)


@pytest.mark.quick
def test_the_closed_form_is_leaving_one_out(answers):
    n, on = len(answers), answers.sum(0)
    by_counting = [
        sum(np.log((1 + (on[j] - v if v else n - on[j] - 1)) / (n + 1)) for j, v in enumerate(one)) for one in answers
    ]
    assert np.allclose(exact_answers(answers)[0], by_counting)


@pytest.mark.parametrize("method", ["vb", "gibbs"])
def test_against_the_closed_form(method, answers, one_class):
    """Every row within 5 Monte Carlo standard errors (of independent draws, as both have here)."""
    fit = one_class
    if method == "gibbs":
        settings = {"num_samples": 400, "warmup": 5, "thin": 1, "chains": 2}
        fit = ci.CollapsedGibbs(**settings).fit(one_class.model, answers, progress=False)
    found = run(fit, num_draws=800)
    expected, spread = exact_answers(answers)
    assert (np.abs(found.pointwise - expected) < 5 * spread / 800**0.5 + 1e-3).all()
    assert found.elpd == pytest.approx(found.pointwise.sum()) and found.bound == "exact"
    assert found.num_draws == 800 and found.unit == "row" and len(found.table) == 30
    assert (found.approximation_k is None) == (method == "gibbs")
    assert found.p_loo == pytest.approx(4.0, abs=1.0)  # four free parameters
    assert (found.pareto_k < found.good_k).all()


@pytest.mark.filterwarnings("ignore:The inplace keyword:DeprecationWarning")
def test_arviz_compares_fits_as_we_do(answers, one_class):
    """The same posterior twice, in closed form and by a chain: neither is preferred beyond Monte Carlo error."""
    settings = {"num_samples": 400, "warmup": 5, "thin": 1, "chains": 2}
    chain = ci.CollapsedGibbs(**settings).fit(one_class.model, answers, progress=False)
    fits, (expected, spread) = {"vb": one_class, "gibbs": chain}, exact_answers(answers)
    with pytest.warns(UserWarning, match="those of an approximation"):
        approximate = one_class.to_arviz(num_draws=800, num_copies=0, log_likelihood=True)
    theirs = arviz().compare({"vb": approximate, "gibbs": chain.to_arviz(num_copies=0)})
    ours = compare_loo(fits, num_draws=800, progress=False)
    assert (ours["largest_k"] < ours["good_k"]).all()
    error = float(np.sqrt((spread**2).sum() / 800))
    for table in (theirs, ours):
        assert (table["elpd_loo"] - expected.sum()).abs().max() < 5 * error < 1.0
        assert (table["p_loo"] - 4.0).abs().max() < 1.0  # four free parameters


@pytest.mark.parametrize("method", ["vb", "gibbs"])
def test_a_row_all_of_which_is_missing_says_nothing(method, answers, one_class):
    """Its likelihood is 1 at every draw: nothing to reweight, and no warning of ArviZ's, which finds k = inf there."""
    empty = np.vstack([answers, np.full_like(answers[:1], np.nan, dtype=float)])
    settings = {"num_samples": 400, "warmup": 5, "thin": 1, "chains": 2}
    chosen = ci.CollapsedGibbs(**settings) if method == "gibbs" else ci.VariationalEM(guide="vb")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.simplefilter("ignore", DataWarning)
        found = run(chosen.fit(one_class.model, empty, progress=False), num_draws=800)
    assert found.pointwise[-1] == pytest.approx(0.0, abs=1e-9) and found.pareto_k[-1] < 0.1


def test_weights_correct_an_approximation_that_is_too_wide(answers, one_class):
    """Concentrations at 60% of the posterior's: the weights p / q take it back to the exact result."""
    wide = DirichletPosterior(0.6 * one_class.global_posterior["response"].concentration)
    fit = replace(one_class, global_posterior={**one_class.global_posterior, "response": wide})
    found = run(fit, num_draws=2000)
    expected, spread = exact_answers(answers)
    uncorrected = run(replace(fit, sample_stats={"lp": torch.zeros(1, 1)}, draws=_drawn(wide)), num_draws=2000)
    assert abs(found.elpd - expected.sum()) < 0.25 < abs(uncorrected.elpd - expected.sum())
    assert found.approximation_k is not None and found.approximation_k < 0.7
    # The weights of a draw spread the error of independent draws about 1.5-fold.
    assert (np.abs(found.pointwise - expected) < 5 * 1.5 * spread / 2000**0.5).all()


def _drawn(posterior):
    return {"response": posterior.sample(2000)[None], "mixing_proportion": torch.ones(1, 2000, 1)}


def test_an_approximation_that_is_far_too_narrow_is_told(one_class):
    """Ten times the posterior's concentration: its own Pareto k is above .7, and the user is warned."""
    narrow = DirichletPosterior(10 * one_class.global_posterior["response"].concentration)
    fit = replace(one_class, global_posterior={**one_class.global_posterior, "response": narrow})
    with pytest.warns(UserWarning, match=r"Pareto k of the approximate posterior itself is .*use NUTS"):
        found = run(fit)
    assert found.approximation_k is not None and found.approximation_k > 0.7
    assert f"itself: {found.approximation_k:.2f}" in repr(found)


@TOLD
def test_same_seed_same_result(one_class):
    first, again, other = (run(one_class, num_draws=50, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(first.pointwise, again.pointwise) and not np.array_equal(first.pointwise, other.pointwise)


def test_a_normal_guide_against_quadrature():
    """One source and one feature, P(x = 1) = 1 - (1 - leak)(1 - prior loading), all three uniform: 40^3 points."""
    x = np.array([[1.0], [0.0], [0.0], [1.0], [1.0], [0.0], [0.0], [1.0]])
    point, weight = roots_legendre(40)
    point, weight = (point + 1) / 2, weight / 2
    prior, loading, leak = np.meshgrid(point, point, point, indexing="ij")
    volume = np.log(weight[:, None, None] * weight[:, None] * weight)
    on = np.log1p(-(1 - leak) * (1 - prior * loading))
    off = np.log1p(-leak) + np.log1p(-prior * loading)
    each = [on if value else off for value in x[:, 0]]
    whole = logsumexp(volume + sum(each))
    expected = [whole - logsumexp(volume + sum(each) - one) for one in each]
    model = NOCA(num_components=1, num_features=1)
    fit = ci.SVI(guide="normal", steps=150, learning_rate=0.1).fit(model, x, progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        found = run(fit, num_draws=400)
    moments = [[logsumexp(volume + sum(each) - r * one) - whole for one in each] for r in (1, 2)]
    spread = np.sqrt(np.exp(np.array(moments[1]) - 2 * np.array(moments[0])) - 1)
    # Five standard errors of independent draws, twice as many of weighted ones.
    assert (np.abs(found.pointwise - expected) < 10 * spread / 400**0.5).all() and spread.max() < 0.6
    assert "guide of SVI(normal)" in found.source and found.approximation_k is not None


@pytest.mark.parametrize("method", ["vb", "gibbs"])
def test_an_outlier_has_a_large_pareto_k_and_is_told(method):
    rng = np.random.default_rng(2)
    x = rng.poisson(2.0, (20, 3)).astype(float)
    x[7] = 60.0
    model = MixtureOfPoissons(num_components=1, num_features=3)
    settings = {"num_samples": 200, "warmup": 5, "chains": 2} if method == "gibbs" else {}
    fit = resolve_method(method, **settings).fit(model, x, progress=False)
    with pytest.warns(UserWarning, match="shape parameter of Pareto distribution is greater than"):
        found = run(fit)
    assert found.pareto_k.argmax() == 7 and found.pareto_k[7] > found.good_k
    assert (np.delete(found.pareto_k, 7) < found.good_k).all() and found.table["pareto_k"].idxmax() == "7"
    assert "1 of 20" in repr(found) and found.arviz.warning
    assert "1 of 20 above" in found.plot().axes[0].get_title()


@TOLD
def test_the_better_model_comes_first():
    rng = np.random.default_rng(3)
    x = rng.poisson(np.array([[1.0, 8.0, 2.0], [7.0, 1.0, 2.0]])[rng.integers(2, size=60)]).astype(float)
    fits = {
        str(k): ci.VariationalEM(guide="vb").fit(MixtureOfPoissons(num_components=k, num_features=3), x, progress=False)
        for k in (1, 2)
    }
    first = {name: run(fit, num_draws=200) for name, fit in fits.items()}
    table = compare_loo(first)
    assert list(table.index) == ["2", "1"] and table.loc["1", "elpd_diff"] > 3 * table.loc["1", "dse"]
    assert table.loc["2", "weight"] > 0.9 and (table["bound"] == "exact").all()
    difference = first["2"].pointwise - first["1"].pointwise
    assert table.loc["1", "elpd_diff"] == pytest.approx(difference.sum())
    assert compare_loo(fits, num_draws=200, progress=False)["elpd_loo"].equals(table["elpd_loo"])
    other = ci.VariationalEM(guide="vb").fit(fits["1"].model, x[:40], progress=False)
    with pytest.raises(MethodError, match="'other' is of 40 x row, '1' of 60 x row"):
        compare_loo({"1": first["1"], "other": run(other, num_draws=50)})
    with pytest.raises(MethodError, match="at least 2"):
        compare_loo({"1": first["1"]})


SCORED = ["aspect_bernoulli", "covariate_sbm", "cvq", "lda", "mixture_of_poissons", "mmsb", "noca", "sbm",
          "user_rating_profile"]  # fmt: skip


@TOLD
@pytest.mark.parametrize("name", SCORED)
def test_models_can_be_scored_by_an_approximate_posterior(name):
    """Rows and graphs, locals that are summed, integrated or bounded; posteriors in closed form and guides."""
    example = MODELS[name].example()
    able = methods_for(example.model)
    method = ci.SVI(guide="normal", steps=20)
    if "vb" in able:
        method = ci.VariationalEM(guide="vb", max_iterations=20)
    elif "svi" in able:
        method = ci.SVI(guide="mean_field", globals_="normal", steps=20)
    fit = method.fit(example.model, example.data, progress=False)
    found = run(fit, num_draws=25)
    assert np.isfinite(found.pointwise).all() and found.approximation_k is not None
    observations = example.model.num_dyads() if example.model.is_graph else len(example.data)
    assert len(found.pointwise) == len(found.pareto_k) == observations
    assert found.bound == "exact" or (found.bound in fit.bounds and f"'{found.bound}'" in repr(found))


def test_points_are_refused_with_what_to_use(answers):
    model = MixtureOfCategoricals(num_components=1, num_features=4, num_categories=2)
    with pytest.raises(MethodError, match=r'EM estimated the globals as a point; .*guide="vb"\), CollapsedGibbs\(\)'):
        run(ci.EM().fit(model, answers, progress=False))


def test_a_guide_that_was_not_saved_is_refused(tmp_path):
    example = NOCA.example()
    fit = ci.SVI(guide="normal", steps=10).fit(example.model, example.data, progress=False)
    loaded = ci.Fit.load(fit.save(tmp_path / "fit"))
    with pytest.raises(MethodError, match=r"not saved with a fit.*NUTS\(\)"):
        run(loaded)


def test_other_refusals(one_class, monkeypatch):
    with pytest.raises(MethodError, match="num_draws = 5"):
        run(one_class, num_draws=5)
    with pytest.raises(MethodError, match="'x' is no fit"):
        loo("x")  # pyright: ignore[reportArgumentType]
    brief = {"draws": {site: value[:, :24] for site, value in _drawn(one_class.global_posterior["response"]).items()}}
    with pytest.raises(MethodError, match="24 draws by .*, expected at least 25"):
        run(replace(one_class, sample_stats={"lp": torch.zeros(1, 24)}, **brief))
    example = SBM.example()
    fit = ci.VariationalEM(guide="vb", max_iterations=5).fit(example.model, example.data, progress=False)
    monkeypatch.setattr(_pointwise, "_TERMS", 1e4)
    with pytest.raises(CapacityError, match="lower num_draws to 18"):
        run(fit)
