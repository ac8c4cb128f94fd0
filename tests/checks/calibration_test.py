"""Simulation-based calibration: right methods pass, wrong ones fail and are told apart, for every model."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyro.distributions as dist
import pytest
import torch

import custom_inference as ci
from benchmarks.quality._calibration_cases import explaining_away, one_rate
from benchmarks.quality._calibration_methods import OneRate, Spoiled
from custom_inference import Calibration, simulation_based_calibration
from custom_inference.checks.calibration import run as calibration_run
from custom_inference.methods import resolve_method
from ppl_models import CVQ, MODELS, NOCA, SBM, DataError, FileFormatError, GraphModel, MethodError, ModelError
from tests.support.calibration import proper_priors, tiny

#: A cheap method for whole fits of the models that have one.
WHOLE = {
    **dict.fromkeys(
        ("mixture_of_categoricals", "mixture_of_multinomial_counts", "mixture_of_multinomials", "mixture_of_poissons",
         "lda", "multinomial_pca", "user_rating_profile", "sbm", "infinite_sbm", "poisson_sbm",
         "degree_corrected_sbm", "mmsb", "gamma_poisson", "spike_gamma_poisson", "ldahmm", "labeled_lda",
         "partially_labeled_lda"),
        ci.VariationalEM(guide="vb", search=None, max_iterations=20),
    ),
    **dict.fromkeys(
        ("noca", "cvq", "mixture_of_bernoullis", "categorical_pca", "discriminative_categorical_pca", "gaussian_pca",
         "poisson_pca", "softmax_pca", "pmf", "bilinear_pmf", "choice_pmf"),
        ci.SVI(guide="normal", steps=10),
    ),
    **dict.fromkeys(("aspect_bernoulli", "logistic_pca", "plsa", "covariate_sbm", "rbm", "ctm", "dtm", "supervised_lda",
                     "replicated_softmax", "random_effects_lda", "nmf", "dirichlet_multinomial_regression", "hdp",
                     "helmholtz_machine", "discriminative_lda"),
                    ci.SVI(guide="mean_field", globals_="normal", steps=10)),
    "rtm": ci.CollapsedGibbs(chains=1, warmup=25, num_samples=6, thin=1),
}  # fmt: skip
#: Models whose globals all methods estimate as points.
POINTS = ("multinomial_regression_lda",)


def check(model, method, **settings) -> Calibration:
    return simulation_based_calibration(model, method, progress=False, **settings)


@pytest.fixture(scope="module")
def small() -> Calibration:
    return check(tiny("mixture_of_poissons"), "exact", num_simulations=6, num_rows=4, of="locals")


@pytest.mark.parametrize("name", ["noca", "cvq"])
def test_exact_posteriors_pass_and_mean_field_is_over_confident(name):
    """Sources that explain each other away are dependent given x; independent ones commit to one of them."""
    model = explaining_away(name)
    exact, mean_field = (check(model, method, of="locals", num_simulations=30) for method in ("exact", "mean_field"))
    assert exact.passed and exact.verdict.startswith("calibrated: ") and (exact.table["ranks"] == 600).all()
    assert not mean_field.passed and mean_field.verdict.startswith("over-confident: ")
    assert (exact.coverage["agrees"]).all() and not mean_field.coverage["agrees"].all()


@pytest.mark.parametrize(
    ("name", "method"),
    [("lda", "exact"), ("aspect_bernoulli", "exact"), ("mixture_of_multinomials", "em"), ("sbm", "exact"),
     ("covariate_sbm", "exact"), ("poisson_sbm", "gibbs")],
)  # fmt: skip
def test_exact_engines_pass(name, method):
    """Documents, memberships, classes; graphs, whose nodes are one observation: one rank of each is tested."""
    size = {"num_simulations": 50} if issubclass(MODELS[name], GraphModel) else {"num_simulations": 10, "num_rows": 20}
    found = check(tiny(name), method, of="locals", num_draws=99, **size)
    assert found.passed, found
    assert (found.table["ranks"] == (50 if issubclass(MODELS[name], GraphModel) else 200)).all()


@pytest.mark.parametrize(
    ("method", "verdict"),
    [(Spoiled(), "calibrated: "), (Spoiled(power=3.0), "over-confident: "),
     (Spoiled(power=0.3), "under-confident: |draws fit worse"),
     (Spoiled(hidden=-1), "draws fit worse than the truth: ")],
)  # fmt: skip
def test_spoiled_posteriors_of_codes_are_told_apart(method, verdict):
    """Too narrow, too wide, and the prior, which only quantities that depend on the data can tell from a posterior."""
    found = check(explaining_away("noca"), method, num_simulations=30)
    assert any(found.verdict.startswith(one) for one in verdict.split("|")), found
    if method.hidden:
        sites = found.table[found.table.index.str.startswith("source")]
        assert (sites["finding"] == "calibrated").all()


@pytest.mark.parametrize(
    ("method", "verdict"),
    [(OneRate(), "calibrated: "), (OneRate(narrow=6.0), "over-confident: "), (OneRate(narrow=0.2), "under-confident: "),
     (OneRate(shift=1.3), "biased (too high): "), (OneRate(shift=0.7), "biased (too low): ")],
)  # fmt: skip
def test_whole_fits_pass_where_they_are_exact_and_fail_where_spoiled(method, verdict):
    """Counts of one rate, whose Gamma posterior is known: variational Bayes is exact."""
    found = check(one_rate(), method, num_simulations=60, num_rows=5)
    assert found.verdict.startswith(verdict), found
    assert found.ranks.attrs["of"] == "globals" and (found.table["ranks"] == 60).all()


@pytest.mark.parametrize("prior", [dist.Gamma(2.0, 0.5), dist.LogNormal(1.0, 0.7)])
def test_a_collapsed_sampler_of_two_classes_passes(prior):
    """The rates integrated out, or values of the chain's state."""
    sampler = ci.CollapsedGibbs(chains=1, warmup=10, num_samples=40, thin=1)
    found = check(tiny("mixture_of_poissons").with_priors(rate=prior), sampler, num_simulations=25, num_rows=6,
                  num_draws=19)  # fmt: skip
    assert found.passed and found.ranks.attrs["of"] == "globals", found


@pytest.mark.parametrize("name", MODELS)
def test_every_model_can_be_checked(name):
    model = tiny(name)
    found = check(model, "default", of="locals", num_simulations=1, num_rows=None if model.is_graph else 3, num_draws=9)
    assert set(found.ranks) == {model.local_site, "log_likelihood", "log_joint"} and len(found) == 1
    values = np.concatenate([array.values.ravel() for array in found.ranks.values()])
    assert ((values > 0) & (values < 1)).all()
    if name in POINTS:
        return
    whole = check(proper_priors(model), WHOLE[name], of="globals", num_simulations=1, num_draws=5,
                  num_rows=None if model.is_graph else 12)  # fmt: skip
    assert set(whole.ranks) == {*model.global_sites, model.local_site, "log_likelihood", "log_joint"}
    for site, shape in model.shapes.items():
        # An axis of what is a site too, as of users, has a name of its own.
        axes = tuple(f"{axis}_id" if axis in model.sites else axis for axis in model.dims[site])
        assert whole.ranks[site].shape == (1, *shape) and whole.ranks[site].dims[1:] == axes


def test_the_level_follows_from_the_method():
    model = tiny("mixture_of_poissons").with_priors(rate=dist.Gamma(2.0, 0.5))
    levels = {
        method: calibration_run._level("auto", resolve_method(method), model, None)
        for method in ("em", "exact", "vb", "gibbs", "nuts", "svi_normal", "svi_delta", "default")
    }
    whole = {method for method, level in levels.items() if level == "globals"}
    assert whole == {"vb", "gibbs", "nuts", "svi_normal"}
    assert calibration_run._level("auto", resolve_method("default"), tiny("sbm"), None) == "globals"


# ----- data -------------------------------------------------------------------------------------------------------


def test_simulated_data_are_like_the_data_given():
    """Their lengths, their missing entries, their labels."""
    lengths = torch.tensor([0.0, 2.0, 7.0])
    corpus = torch.stack([lengths, torch.ones(3), torch.zeros(3), torch.zeros(3)], 1)
    seen = []

    def watch(values, data):
        seen.append((values, data))
        return 0.0

    check(tiny("lda"), "exact", of="locals", like=corpus, num_simulations=3, num_draws=1, quantities={"watch": watch})
    assert all(torch.equal(data.dense().x.sum(1), lengths + 1) for _, data in seen)
    x = torch.tensor([[1.0, torch.nan, 0.0], [0.0, 1.0, torch.nan]])
    at = {"source_prior": torch.full((2,), 0.5), "loading": torch.full((2, 3), 0.5), "leak": torch.full((3,), 0.1)}
    found = check(tiny("noca"), "exact", like=x, at=at, num_simulations=3, num_draws=4, quantities={"watch": watch})
    assert torch.equal(seen[-1][1].mask, ~torch.isnan(x)) and found.ranks["source"].shape == (3, 2, 2)
    assert torch.equal(seen[-1][0]["loading"], at["loading"]) and seen[-1][0]["source"].shape == (2, 2)
    with pytest.raises(DataError, match="documents with missing entries"):
        check(tiny("lda"), "exact", of="locals", like=torch.where(corpus > 5, torch.nan, corpus))


def test_data_that_a_method_refuses_are_drawn_anew():
    """By a rule about the data alone: given these the posterior is the same, whether others are refused or not."""

    class Choosy(OneRate):
        def fit(self, model, data, **settings):
            if float(data.x[:, 0].sum()) < least:
                raise DataError("too few events", site="x")
            return super().fit(model, data, **settings)

    least = 15.0
    found = check(one_rate(), Choosy(), num_simulations=60, num_rows=5)
    assert 20 < found.ranks["refused"].values.sum() < 200 and found.passed
    least = torch.inf
    with pytest.raises(DataError, match="too few events") as caught:
        check(one_rate(), Choosy(), num_simulations=1)
    assert any("50 simulated data sets in a row" in note for note in caught.value.__notes__)
    assert any("in simulation 0" in note for note in caught.value.__notes__)


def test_missing_entries_and_given_globals_keep_exact_posteriors_calibrated():
    x = torch.where(torch.rand(20, 4) < 0.4, torch.nan, 1.0)
    example = explaining_away("noca")
    fit = ci.EM(search=None, max_iterations=5).fit(example, torch.bernoulli(torch.full((40, 4), 0.6)), progress=False)
    assert check(example, "exact", at=fit, like=x, num_simulations=15).passed


def test_simulations_depend_on_the_seed_and_their_number_alone(small):
    model, settings = tiny("mixture_of_poissons"), {"num_rows": 4, "of": "locals"}
    torch.manual_seed(3)
    first = check(model, "exact", num_simulations=3, seed=0, **settings)
    assert first.ranks.drop_attrs().equals(small.ranks.isel(simulation=slice(0, 3)).drop_attrs())
    other = check(model, "exact", num_simulations=3, seed=1, **settings)
    assert not np.array_equal(first.ranks["assignment"], other.ranks["assignment"])
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    check(one_rate(), OneRate(), num_simulations=1)
    assert torch.equal(torch.rand(2), expected), "the caller's random state was changed"


def test_simulations_travel_to_processes_and_back(small, monkeypatch):
    """By a pool that pickles as real ones do, and ends its tasks out of order."""

    class Pool(ThreadPoolExecutor):
        def __init__(self, processes, **settings):
            super().__init__(1)

        def submit(self, function, content, index):
            copies = pickle.loads(pickle.dumps((function, content, 5 - index)))
            return super().submit(*copies)

    monkeypatch.setattr(calibration_run, "ProcessPoolExecutor", Pool)
    settings = {"num_simulations": 6, "num_rows": 4, "of": "locals"}
    found = check(tiny("mixture_of_poissons"), "exact", processes=2, **settings)
    reversed_ = small.ranks.isel(simulation=slice(None, None, -1)).assign_coords(simulation=range(6))
    assert found.ranks.equals(reversed_)
    with pytest.raises(MethodError, match="cannot be handed to other processes"):
        check(tiny("noca"), "exact", quantities={"none": lambda values, data: 0.0}, processes=2, of="locals")


@pytest.mark.slow
def test_processes_do_not_change_the_result(small):
    found = check(tiny("mixture_of_poissons"), "exact", num_simulations=6, num_rows=4, of="locals", processes=2)
    assert found.ranks.identical(small.ranks)


def test_interrupted_simulations_count():
    calls = []

    def interrupt(values, data):
        calls.append(0)
        if len(calls) > 25:
            raise KeyboardInterrupt
        return float(values["source"].sum())

    settings = {"of": "locals", "num_draws": 9, "quantities": {"active": interrupt}, "num_simulations": 5}
    found = check(explaining_away("noca"), "exact", **settings)
    assert len(found) == 2 and found.status == "interrupted after 2 of 5 simulations"
    assert found.ranks["active"].dims == ("simulation",) and "few show gross errors only" in found.verdict
    with pytest.raises(KeyboardInterrupt):
        check(explaining_away("noca"), "exact", **settings)


def test_what_cannot_be_checked_is_refused():
    noca, cvq = NOCA(num_components=2, num_features=3), CVQ(num_components=2, num_features=3)
    at = {"source_prior": torch.full((2,), 0.5), "loading": torch.full((2, 3), 0.5), "leak": torch.full((3,), 0.1)}
    refused = [
        (ModelError, r"improper .* weight, scale; .*with_priors\(weight=\.\.\., scale", cvq, "svi_normal", {}),
        (MethodError, 'points of source_prior, loading, leak, .*NUTS', noca, "em",
         {"of": "globals", "max_iterations": 2, "search": None}),
        (MethodError, "unknown level 'rows'; valid: auto, globals, locals", noca, "em", {"of": "rows"}),
        (MethodError, 'at= gives the globals', noca, "nuts", {"of": "globals", "at": at}),
        (MethodError, "exact posterior has no fit", noca, Spoiled(), {"of": "globals"}),
        (MethodError, "conjugate posterior has no local_posterior", noca, OneRate(), {"at": at}),
        (MethodError, "unknown method 'nonsense'", noca, "nonsense", {}),
        (MethodError, "is not a method", noca, ci.EM, {}),
        (MethodError, "unknown setting of Exact 'depth'", noca, "exact", {"depth": 3}),
        (MethodError, "num_simulations = 0, expected a whole number", noca, "exact", {"num_simulations": 0}),
        (MethodError, "num_draws = 1.5, expected a whole number", noca, "exact", {"num_draws": 1.5}),
        (MethodError, "num_rows = 0, expected a whole number", noca, "exact", {"num_rows": 0}),
        (MethodError, "num_rows = 9, but the model is of graphs of 6 nodes", tiny("sbm"), "exact", {"num_rows": 9}),
        (MethodError, "num_rows = 9, but the data given as like= have 2", noca, "exact",
         {"num_rows": 9, "like": torch.eye(3)[:2]}),
        (MethodError, "significance = 5", noca, "exact", {"significance": 5}),
        (MethodError, "seed = None, expected a whole number", noca, "exact", {"seed": None}),
        (MethodError, "at = 5, expected a fit, or values of the globals", noca, "exact", {"at": 5}),
        (ModelError, "the class NOCA is not a model", NOCA, "exact", {}),
        (MethodError, "quantity 'source' has a name that is taken", noca, "exact", {"quantities": {"source": len}}),
        (MethodError, r"quantity 'rows' has shape \(20, 2\)", noca, "exact",
         {"quantities": {"rows": lambda values, data: values["source"]}}),
    ]  # fmt: skip
    for kind, message, model, method, settings in refused:
        with pytest.raises(kind, match=message):
            check(model, method, **{"num_simulations": 1, **settings})


def test_methods_that_change_the_models_shape_are_refused():
    class Smaller:
        name = "smaller"

        def fit(self, model, data, **settings):
            return ci.VariationalEM(guide="vb", search=None, max_iterations=2).fit(one_rate(), data, **settings)

    with pytest.raises(MethodError, match=r"changed the model's shapes to .*\(1, 3\)"):
        check(tiny("mixture_of_poissons").with_priors(rate=dist.Gamma(2.0, 0.5)), Smaller(), num_simulations=1)


def test_results_are_tables_figures_and_files(small, tmp_path):
    assert list(small.table.columns) == [
        "ranks", "p_value", "p_adjusted", "bias", "dispersion", "coverage_50", "coverage_80", "coverage_95", "finding",
    ]  # fmt: skip
    assert list(small.table.index) == ["assignment[0]", "assignment[1]", "log_likelihood", "log_joint"]
    assert small.ranks["assignment"].dims == ("simulation", "row", "component") and small.passed
    text = repr(small)
    assert "Calibration of MixtureOfPoissons by Exact" in text and small.verdict in text and "log_joint" in text
    for kind in ("ecdf", "ranks", "coverage"):
        small.plot(kind).savefig(tmp_path / f"{kind}.png")
    with pytest.raises(MethodError, match="unknown kind of plot 'x'; valid: coverage, ecdf, ranks"):
        small.plot("x")
    loaded = Calibration.load(small.save(tmp_path / "calibration.nc"))
    assert repr(loaded) == repr(small) and loaded.ranks.equals(small.ranks)
    (tmp_path / "wrong.nc").write_text("not a file of ranks")
    small.ranks["assignment"].drop_attrs().to_netcdf(tmp_path / "other.nc", engine="h5netcdf")
    for name in ("wrong.nc", "other.nc", "missing.nc"):
        with pytest.raises(FileFormatError, match=name):
            Calibration.load(tmp_path / name)


def test_one_rank_of_each_simulation_is_tested_where_entries_depend_on_each_other():
    found = check(SBM(num_blocks=2, num_nodes=4), "exact", of="locals", num_simulations=12, num_draws=9)
    line = found.lines()["block[0]"]
    assert found.ranks["block"].shape == (12, 4, 2) and line.shape == (12,)
    assert all(line[i] in found.ranks["block"].values[i, :, 0] for i in range(12))
    assert np.array_equal(line, found.lines()["block[0]"])


def test_points_are_over_confident():
    found = check(tiny("lda"), "map", of="locals", num_simulations=10)
    assert "over-confident: " in found.verdict and "hold the truth in 0 %" in found.verdict


@pytest.mark.parametrize(
    "method", [ci.VariationalEM(guide="vb"), ci.CollapsedGibbs(chains=1, num_samples=20, warmup=5)]
)
def test_the_proportion_of_one_component_is_a_tie(method):
    model = MODELS["mixture_of_poissons"](num_components=1, num_features=2).with_priors(rate=dist.Gamma(2.0, 0.5))
    found = simulation_based_calibration(model, method, num_simulations=12, num_rows=4, num_draws=9, progress=False)
    assert found.passed, found
    assert len(np.unique(np.floor(10 * found.ranks["mixing_proportion"].values))) > 3
