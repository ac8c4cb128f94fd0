"""What the lines of a comparison are, what it says without an exact answer, and what it keeps of refusals."""

from __future__ import annotations

import matplotlib
import numpy as np
import pytest
import torch

import custom_inference as ci
from custom_inference.core import posterior_bounds
from custom_inference.core.posterior_bounds import evaluate_posterior, row_log_joint
from custom_inference.core.posteriors import CodePosterior, DirichletPosterior
from custom_inference.methods import methods_for
from ppl_models import MMSB, SBM, CapacityError, MethodError, ModelError
from tests.support.cases import globals_of, problem_of, small_method
from tests.svi.graphs_test import drawn_globals, toy

matplotlib.use("agg")
LINES = {
    "lda": {
        "exact": ("exact", "exact"),
        "em": ("exact", "exact"),
        "nuts": ("exact, not sampled", "exact"),
        "svi_normal": ("exact, not fitted", "exact"),
        **dict.fromkeys(("dirichlet", "vb", "cvb0"), ("variational", "dirichlet")),
        **dict.fromkeys(("map", "tempered", "svi_delta"), ("point", "map")),
        "svi": ("variational", "SVI(mean_field)"),
        "gibbs": ("draws", "CollapsedGibbs"),
    },
    "mixture_of_poissons": {
        "default": ("exact", "exact"),
        "vb": ("exact", "exact"),
        "nuts": ("exact, not sampled", "exact"),
        "gibbs": ("exact, not sampled", "exact"),
        "svi_delta": ("exact, not fitted", "exact"),
    },
    "sbm": dict.fromkeys(("mean_field", "vb"), ("variational", "mean_field")),
    "mmsb": dict.fromkeys(("dirichlet", "vb", "cvb0"), ("variational", "dirichlet")),
}


def compared(name: str, methods: list, **settings) -> ci.Comparison:
    problem = problem_of(name)
    chosen = [small_method(name, one) if isinstance(one, str) else one for one in methods]
    return ci.compare(chosen, problem.model, problem.data, at=globals_of(problem), progress=False, **settings)


@pytest.mark.parametrize("name", LINES)
def test_every_line_says_what_it_is_and_equal_posteriors_have_one_name(name):
    """Whatever differs in its globals alone has the same posterior of the locals at given ones."""
    found = compared(name, list(LINES[name]))
    table = found.table.assign(place=range(len(found.table)))
    assert [tuple(line) for line in table[["what", "posterior"]].to_numpy()] == list(LINES[name].values())
    for _, same in table.groupby("posterior"):
        first = same.iloc[0]
        assert np.allclose(same["bound"], first["bound"], atol=1e-6, equal_nan=True)
        means = [list(found.locals.values())[place].posterior.mean for place in same["place"]]
        assert all(torch.allclose(mean, means[0], atol=1e-4) for mean in means)


def test_enumeration_by_pyro_is_the_exact_posterior():
    line = compared("sbm", [ci.Exact(generic=True)]).table.iloc[0]
    assert tuple(line[["what", "posterior"]]) == ("enumeration", "exact") and abs(line["gap_per_row"]) < 1e-10


def test_other_settings_have_another_name():
    guides = [ci.Truncated(free=free) for free in (2, 6, 7)]  # up to six are six at given globals
    table = compared("noca", [ci.VariationalEM(guide=guide) for guide in guides]).table
    assert list(table["posterior"]) == ["truncated", "truncated", "truncated(free=7)"]


def test_methods_by_name_beside_objects():
    problem = problem_of("noca")
    methods = ["em", ci.EM(), "mean_field", "em"]
    found = ci.compare(methods, problem.model, problem.data, at=globals_of(problem), progress=False)
    assert list(found.table.index) == ["em", "EM", "mean_field", "em #2"] == list(found.locals)
    assert found.table["bound"].nunique() == 2
    model = problem_of("mixture_of_poissons").model
    every = ci.compare(methods_for(model), model, problem_of("mixture_of_poissons").data, progress=False)
    assert list(every.table.index) == methods_for(model) and every.refused == {}


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        (["em", "magic"], "unknown method of NOCA 'magic'; valid: .*truncated"),
        ("em", "a list of methods"),
        ([], "no met"),
    ],
)
def test_unknown_names_are_refused_before_anything_is_computed(methods, message, monkeypatch):
    problem = problem_of("noca")
    monkeypatch.setattr(ci.EM, "local_posterior", lambda *_, **__: pytest.fail("computed"))
    with pytest.raises(MethodError, match=message):
        ci.compare(methods, problem.model, problem.data, progress=False)


def test_a_refusal_leaves_the_lines_of_the_others():
    problem = problem_of("noca")
    methods = ["em", "gibbs", ci.CollapsedGibbs(), "mean_field"]
    found = ci.compare(methods, problem.model, problem.data, at=globals_of(problem), progress=False)
    assert list(found.table.index) == ["em", "mean_field"] and not found.interrupted
    assert (
        list(found.refused) == ["gibbs", "CollapsedGibbs"] and "no collapsed Gibbs" in found.refused["CollapsedGibbs"]
    )
    assert "gibbs refused: unknown method of NOCA 'gibbs'" in repr(found)
    with pytest.raises(MethodError, match="unknown method of NOCA 'gibbs'"):
        ci.compare(methods[1:3], problem.model, problem.data, at=globals_of(problem), progress=False)


def test_a_refusal_among_integrated_comparisons():
    problem = problem_of("lda")
    model = type(problem.model)(num_topics=2, vocabulary_size=4)
    x = torch.tensor([[1.0, 1, 0, 1], [0, 1, 1, 0]])
    vb = ci.VariationalEM(guide="vb", max_iterations=5, search=None)
    found = ci.compare([ci.SVI(guide="delta", steps=2), vb], model, x, at="integrated", progress=False)
    assert list(found.table["what"]) == ["variational"] and list(found.table["posterior"]) == ["vb"]
    assert "single tokens" in found.refused["SVI(delta)"]


@pytest.mark.filterwarnings("ignore:.*annealing. the standard error")
@pytest.mark.parametrize("name", ["ctm", "supervised_lda"])
def test_models_without_an_exact_posterior_are_compared_by_their_bounds(name):
    problem = problem_of(name)
    engine = next(one for one in methods_for(problem.model) if one in ("gaussian", "dirichlet"))
    methods = [small_method(name, one) for one in ("exact", "svi", engine, "nuts") if one != "exact"]
    x, beside = problem.data.x, problem.data.others
    found = ci.compare([ci.Exact(), *methods], problem.model, x, at=globals_of(problem), progress=False, **beside)
    table = found.table
    assert list(table.index) == ["SVI(mean_field)", f"VariationalEM({engine})"]
    assert list(found.refused) == ["Exact", "NUTS"] and "no closed form" in found.no_exact
    assert table["evidence"].nunique() == 1 and table["evidence"].notna().all()  # by annealing, the same for all
    assert np.isfinite(table["bound"]).all() and table["standard_error"].iloc[0] > 0 == table["standard_error"].iloc[1]
    assert found.best_bound == f"VariationalEM({engine})" == table["bound"].idxmax()
    assert found.no_exact in repr(found) and f"closest to the evidence: {found.best_bound}" in repr(found)
    gap, error = found.plot().axes
    assert [bar.get_width() for bar in gap.patches] == pytest.approx(table["gap_per_row"].tolist())
    assert [bar.get_width() for bar in error.patches] == pytest.approx(table["worst_marginal_error"].tolist())
    again = ci.compare([engine], problem.model, problem.data, at=globals_of(problem), progress=False)
    assert again.table["bound"].iloc[0] == table["bound"].iloc[1]


def test_no_room_for_the_exact_posterior_leaves_the_bounds(monkeypatch):
    def refuse(*_, **__):
        raise CapacityError("2^99 labelings\nand shapes", needed_bytes=2.0, allowed_bytes=1.0)

    monkeypatch.setattr(ci.Exact, "local_posterior", refuse)
    found = compared("sbm", ["mean_field", "svi"])
    assert found.no_exact == "2^99 labelings" and found.table["evidence"].nunique() == 1  # by annealing
    assert found.best_bound == found.table["bound"].idxmax()


def test_bounds_that_the_errors_do_not_tell_apart_are_named():
    found = compared("user_rating_profile", ["svi", "dirichlet"])
    table = found.table.assign(bound=[-10.0, -10.5], standard_error=[0.3, 0.0])
    tied = ci.Comparison(table, no_exact="no room")
    assert "within two standard errors: VariationalEM(dirichlet)" in repr(tied)
    clear = ci.Comparison(table.assign(bound=[-10.0, -10.7]), no_exact="no room")
    assert clear.best_bound == "SVI(mean_field)" and "standard errors" not in "".join(clear.remarks)
    estimated = ci.Comparison(table.assign(what=["estimate", "variational"]), no_exact="no room")
    assert estimated.best_bound == "VariationalEM(dirichlet)", "an estimate may exceed the evidence"


def test_standard_errors_are_those_of_the_estimates():
    """Documents under Dirichlets off their posteriors: by 20 estimates at other draws, and by a long one."""
    problem = problem_of("lda")
    model, params, data = problem.model, globals_of(problem), problem.data.rows(slice(0, 4))
    q = DirichletPosterior(1.0 + 3.0 * torch.rand(4, 3))
    found = evaluate_posterior(model, params, data, q)
    draws = q.sample(3000, seed=5)
    gains = torch.stack([row_log_joint(model, params, data, one) - q.log_prob(one) for one in draws])
    assert found.standard_error is not None
    spread = gains.std(0) / 200**0.5
    assert torch.allclose(found.standard_error, spread, rtol=0.25)
    off = (found.bound - gains.mean(0)) / (spread**2 + gains.var(0) / len(draws)).sqrt()
    assert float(off.abs().max()) < 4


def test_a_bound_that_equals_the_evidence_has_no_error():
    """Of the exact posterior log p(x, s) - log q(s) is the same number at every draw."""
    problem = problem_of("user_rating_profile")
    exact = ci.Exact().local_posterior(problem.model, globals_of(problem), problem.data)
    found = evaluate_posterior(problem.model, globals_of(problem), problem.data, exact.posterior)
    assert torch.allclose(found.bound, exact.bound, atol=1e-8)
    assert found.standard_error is not None and float(found.standard_error.max()) < 1e-8


def test_estimated_bounds_come_with_their_errors_in_table_and_picture():
    found = compared("user_rating_profile", ["dirichlet", "svi", "map"])
    error = found.table["standard_error"]
    assert error.iloc[0] == 0 < error.iloc[1] and np.isnan(error.iloc[2])
    local = found.locals["SVI(mean_field)"]
    assert local.standard_error is not None and error.iloc[1] == pytest.approx(float(local.standard_error.norm()))
    gap = found.plot().axes[0]
    assert "standard errors" in gap.get_xlabel()
    [line] = [one for one in gap.collections if len(one.get_segments())]
    [(left, right)] = [sorted(point[0] for point in segment) for segment in line.get_segments()]
    assert (right - left) / 4 == pytest.approx(error.iloc[1] / len(local.bound))


@pytest.mark.parametrize("kind", [SBM, MMSB])
def test_sampled_dyads_are_part_of_the_standard_error(kind, monkeypatch):
    """Of graphs too large for all dyads."""
    model, data = toy(kind, directed=True, size=12, blocks=2)
    params = {site: value.clamp(0.2, 0.8) for site, value in drawn_globals(model, data).items()}
    share = 40.0 + 10 * torch.rand(12, 2)
    q = DirichletPosterior(share) if kind is MMSB else CodePosterior(torch.eye(2), torch.log_softmax(share, -1))
    every = evaluate_posterior(model, params, data, q)
    monkeypatch.setattr(posterior_bounds, "_DRAWN_TERMS", 160)
    monkeypatch.setattr(posterior_bounds, "_GRAPH_TERMS", 320)
    some = evaluate_posterior(model, params, data, q)  # 80 of 132 dyads
    assert some.standard_error is not None
    before = 0.0 if every.standard_error is None else float(every.standard_error)
    assert (before == 0) == (kind is SBM) and float(some.standard_error) > before + 0.1
    assert 0 < abs(float(some.bound - every.bound)) < 4 * (float(some.standard_error) ** 2 + before**2) ** 0.5


def test_log_likelihood_without_an_exact_engine_says_what_is_possible():
    for name, bound in (("ctm", "gaussian"), ("supervised_lda", "dirichlet")):
        problem = problem_of(name)
        fit = small_method(name, bound).fit(problem.model, problem.data, progress=False)
        with pytest.raises(MethodError, match=f"no closed form here; lower bounds: bound='{bound}'"):
            fit.log_likelihood()
        assert torch.isfinite(fit.log_likelihood(bound=bound)).all()


def test_globals_that_the_model_cannot_have_are_refused():
    """As by ``init``: at a probability of 1.5 an evidence would be a number without a meaning."""
    problem = problem_of("mixture_of_poissons")
    good = globals_of(problem)
    for site, value, said in (
        ("rate", -good["rate"], "at of 'rate' has values outside its support"),
        ("mixing_proportion", good["mixing_proportion"] + 0.3, "at of 'mixing_proportion' has values outside"),
        ("rate", torch.full_like(good["rate"], torch.nan), "at of 'rate' has .* not finite"),
        ("speed", good["rate"], "at: unknown site .* 'speed'"),
    ):
        with pytest.raises(ModelError, match=said):
            ci.compare(["em"], problem.model, problem.data, at=good | {site: value}, progress=False)
        with pytest.raises(ModelError, match=said):
            ci.simulation_based_calibration(
                problem.model, ci.Exact(), of="locals", at=good | {site: value}, progress=False
            )
