"""Units do not matter: what is learned from a x + b is what is learned from x, transformed."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.distributions import biject_to

import custom_inference as ci
from custom_inference.families.boltzmann.sampling import complete
from custom_inference.svi.guides.scaled import _MatrixInUnits
from ppl_models import (
    CVQ,
    IRM,
    PMF,
    RBM,
    DataWarning,
    ExponentialFamilyPCA,
    GaussianPCA,
    Model,
    ModelError,
    ratings,
    relations,
)
from ppl_models.distributions import InverseWishart
from ppl_models.likelihoods import Binomial, Gaussian

UNITS = [(0.01, 2000.0), (20.0, -3.0), (1e4, 0.0)]
RNG = np.random.default_rng(0)
ROWS = 1.5 * RNG.standard_normal((40, 2)) @ RNG.standard_normal((2, 5)) + 0.4 * RNG.standard_normal((40, 5)) + 1.0
HOLES = np.where(RNG.random(ROWS.shape) < 0.15, np.nan, ROWS)
USER, ITEM = np.nonzero(RNG.random((24, 10)) < 0.7)
FACTORS = RNG.standard_normal((24, 2)), RNG.standard_normal((10, 2))
RATED = 3 + 0.7 * (FACTORS[0][USER] * FACTORS[1][ITEM]).sum(1) + 0.4 * RNG.standard_normal(len(USER))
TIME = RNG.random(len(USER))
TABLE = np.array([[0.0, 2.0, -2.0], [2.0, -1.0, 1.0]])[np.arange(8) % 2][:, np.arange(7) % 3]
TABLE = TABLE + 0.5 * RNG.standard_normal(TABLE.shape)


@dataclass(frozen=True)
class Case:
    """model: to fit; fit: of a model to x a + b; read: what it says of x, in the units of x, (M,)."""

    model: Model
    fit: Callable[..., Any]
    read: Callable[[Any], np.ndarray]


def of_ratings(method: str | None = None, timed: bool = False, **settings: Any) -> Case:
    edges = {"time_edges": (0.5,), "user_time_edges": (0.4,)} if timed else {}
    given = {"time": TIME} if timed else {}
    few = {"num_samples": 20, "warmup": 10, "chains": 1} if method == "gibbs" else {}

    def fitted(model, a, b, dtype):
        data = ratings(USER, ITEM, a * RATED + b, num_users=24, num_items=10, **given)
        return ci.fit(model, data, method=method, dtype=dtype, progress=False, **few)

    model = PMF(num_components=2, num_users=24, num_items=10, **edges, **settings)
    return Case(model, fitted, lambda fit: np.asarray(fit.predict((USER, ITEM), **given)))


def of_rows(model: Model, read: Callable[[Any], Any], method: str | None = None) -> Case:
    def fitted(model, a, b, dtype):
        return ci.fit(model, a * HOLES + b, method=method, dtype=dtype, progress=False)

    return Case(model, fitted, read)


def of_factors(method: str | None = None) -> Case:
    """Of entries whose noise is known in their units."""

    def fitted(model, a, b, dtype):
        model = replace(model, likelihood=Gaussian(0.5 * a))
        return ci.fit(model, a * HOLES + b, method=method, dtype=dtype, progress=False)

    model = ExponentialFamilyPCA(num_components=2, num_features=5, likelihood=Gaussian())
    return Case(model, fitted, means_of_rows)


def of_relation(method: str) -> Case:
    def fitted(model, a, b, dtype):
        few = {"gibbs": {"num_samples": 20, "warmup": 10, "chains": 1}, "vb": {"starts": 1}}.get(method, {})
        return ci.fit(model, {"r": a * TABLE + b}, method=method, dtype=dtype, progress=False, **few)

    def read(fit):
        row, column = (fit.params[f"cluster_{one}"].long() for one in ("p", "q"))
        return fit.params["edge_mean_r"][row][:, column].numpy().ravel()

    return Case(IRM(types={"p": 8, "q": 7}, relations={"r": ("p", "q")}, cells={"r": "gaussian"}), fitted, read)


def means_of_rows(fit):
    return (fit.posterior.mean @ fit.params["weight"] + fit.params["bias"]).numpy().ravel()


def means_of_sources(fit):
    return (fit.model.centre + fit.posterior.mean @ fit.params["weight"]).numpy().ravel()


def completed(fit):
    return complete(fit).numpy().ravel()


CASES = {
    "PMF": of_ratings(),
    "PMF by Gibbs": of_ratings("gibbs"),
    "PMF with noise that varies": of_ratings(varying_noise=5.0),
    "PMF in time": of_ratings(timed=True),
    "PMF with fixed priors": of_ratings(adaptive=False),
    "PMF at points": of_ratings("map", adaptive=False),
    "PMF by gradients": of_ratings("sgd", adaptive=False),
    "PMF without biases": of_ratings(biases=False),
    "Gaussian PCA": of_rows(GaussianPCA(num_components=2, num_features=5), means_of_rows),
    "factor analysis": of_rows(GaussianPCA(num_components=1, num_features=5, per_feature_scale=True), means_of_rows),
    "PCA of known noise": of_factors(),
    "PCA of known noise at points": of_factors("map"),
    "CVQ": of_rows(CVQ(num_components=2, num_features=5, centre=None), means_of_sources),
    "CVQ by mean field, a scale each": of_rows(
        CVQ(num_components=2, num_features=5, centre=None, per_feature_scale=True), means_of_sources, "mean_field"
    ),
    "RBM": of_rows(RBM(num_hidden=2, num_features=5, visible="gaussian"), completed),
    "RBM of two Gaussian layers": of_rows(
        RBM(num_hidden=1, num_features=5, visible="gaussian", hidden="gaussian"), completed
    ),
    "IRM": of_relation("search"),
    "IRM by Gibbs": of_relation("gibbs"),
    "IRM by variational Bayes": of_relation("vb"),
}
#: Those whose iterations end, by their own tolerance of 1e-5 nats a row, only as near as this to where they go, in
#: standard deviations of the data: they go slowly.
ROUGH = {"factor analysis": 1e-2, "RBM of two Gaussian layers": 5e-3}


def size_and_spread(name: str) -> tuple[int, float]:
    if name.startswith("IRM"):
        return TABLE.size, float(TABLE.std())
    seen = RATED if name.startswith("PMF") else HOLES[np.isfinite(HOLES)]
    return len(seen), float(seen.std())


@pytest.mark.parametrize("name", CASES)
def test_predictions_for_other_units_are_those_for_these_transformed(name):
    case, near, (size, spread) = CASES[name], ROUGH.get(name, 1e-6), size_and_spread(name)
    first = case.fit(case.model, 1.0, 0.0, torch.float64)
    expected = case.read(first)
    for a, b in UNITS:
        fit = case.fit(case.model, a, b, torch.float64)
        digits = 100 * 2.2e-16 * (b / a) ** 2  # that sums of squares of numbers about b leave of their spread a
        error = np.abs((case.read(fit) - b) / a - expected).max()
        assert error < max(near, digits) * spread, (a, b)
        if not name.startswith("IRM") and not fit.model.has_functions:  # densities of x, in the units of x
            change = float(fit.log_likelihood().sum() - first.log_likelihood().sum()) + size * math.log(a)
            assert abs(change) < 1e-4 * size, (a, b)


@pytest.mark.parametrize(
    "name", ["PMF", "PMF with fixed priors", "Gaussian PCA", "PCA of known noise", "CVQ", "RBM", "IRM"]
)
def test_so_are_they_in_single_precision(name):
    """Numbers about 2000 have seven digits, of which four are of how they differ."""
    case = CASES[name]
    expected = case.read(case.fit(case.model, 1.0, 0.0, torch.float64))
    found = case.read(case.fit(case.model, 1.0, 2000.0, torch.float32))
    assert np.abs(found - 2000 - expected).max() < 0.01 * size_and_spread(name)[1]


def test_the_bound_of_learned_priors_is_one_on_the_density_of_the_ratings():
    case = CASES["PMF"]
    first, other = (case.fit(case.model, a, b, torch.float64) for a, b in ((1.0, 0.0), (20.0, 7.0)))
    expected = float(first.elbo[-1]) - len(RATED) * math.log(20)
    assert float(other.elbo[-1]) == pytest.approx(expected, abs=1e-4)


GENERIC: dict[str, dict[str, Any]] = {
    "svi": {"steps": 4},
    "svi_delta": {"steps": 4},
    "svi_normal": {"steps": 4},
    "amortized": {"steps": 4},
    "nuts": {"num_samples": 2, "warmup": 2, "chains": 1, "max_tree_depth": 2},
}


@pytest.mark.parametrize("method", GENERIC)
def test_generic_methods_search_in_the_units_of_the_data(method):
    """After a few steps, which would be longer or shorter in other coordinates: ratings and rows."""
    cases: list[tuple[Model, Callable[[float, float], Any], Callable[[Any], Any]]] = [
        (
            PMF(num_components=2, num_users=24, num_items=10),
            lambda a, b: ratings(USER, ITEM, a * RATED + b, num_users=24, num_items=10),
            lambda fit: np.asarray(fit.predict((USER, ITEM))),
        ),
        (
            ExponentialFamilyPCA(num_components=2, num_features=5, likelihood=Gaussian()),
            lambda a, b: a * HOLES + b,
            means_of_rows,
        ),
    ]
    slow = method in ("svi_normal", "amortized", "nuts")
    for model, data, read in cases[slow:]:
        found = []
        for a, b in ((1.0, 0.0), (0.01, 2000.0)) if isinstance(model, PMF) else ((1.0, 0.0), *UNITS[::2]):
            known = model if isinstance(model, PMF) else replace(cast(Any, model), likelihood=Gaussian(0.5 * a))
            fit = ci.fit(known, data(a, b), method=method, dtype=torch.float64, progress=False, **GENERIC[method])
            found.append((read(fit) - b) / a)
        assert all(np.abs(one - found[0]).max() < 1e-5 for one in found[1:]), type(model)


def test_coordinates_in_units_are_those_of_the_values_in_them():
    unit = torch.tensor([2.0, 0.1, 30.0])
    covariance = InverseWishart(3.0, torch.eye(3)).sample()
    matrix, plain = (
        biject_to(one) for one in (_MatrixInUnits(unit), torch.distributions.constraints.positive_definite)
    )
    at = plain.inv(covariance)
    value = matrix(at)
    assert torch.allclose(value, unit * covariance * unit[:, None]) and torch.allclose(matrix.inv(value), at)
    assert torch.allclose(plain.inv(matrix(matrix.inv(covariance))), at)
    places = torch.tril_indices(3, 3)
    change = torch.autograd.functional.jacobian(lambda z: matrix(z)[places[0], places[1]], at)
    assert float(matrix.log_abs_det_jacobian(at, value)) == pytest.approx(float(torch.linalg.slogdet(change)[1]))


@pytest.mark.parametrize("method", [None, "gibbs"])
def test_levels_may_begin_anywhere(method):
    """Stars from 1 to 5 are what is learned from 0 to 4, from -2 to 2, and from 2001 to 2005."""
    stars = np.clip(np.round(RATED), 1, 5)
    few: Any = {"num_samples": 5, "warmup": 5, "chains": 1} if method else {}

    def expected_of(shift: int) -> np.ndarray:
        data = ratings(USER, ITEM, stars + shift, num_users=24, num_items=10)
        model = PMF.for_data(data, 2, likelihood="ordinal", levels=(1 + shift, 5 + shift))
        return np.asarray(ci.fit(model, data, method=method, progress=False, **few).predict((USER, ITEM))) - shift

    first = expected_of(0)
    for shift in (-1, -3, 2000):
        assert np.abs(expected_of(shift) - first).max() < 1e-6, shift


def test_units_are_those_of_the_data_unless_they_are_given(tmp_path):
    """By ``fit``, by ``for_data`` and in files alike; without data the program is that of centre 0 and unit 1."""
    data = ratings(USER, ITEM, 20 * RATED + 5, num_users=24, num_items=10)
    centre, unit = float((20 * RATED + 5).mean()), float(20 * RATED.std())
    plain, quiet = PMF(num_components=2, num_users=24, num_items=10, adaptive=False), {"progress": False}
    fits = [ci.fit(model, data, **quiet) for model in (plain, PMF.for_data(data, 2, adaptive=False))]
    for fit in (*fits, ci.Fit.load(fits[0].save(tmp_path / "fit"))):
        assert (fit.model.centre, fit.model.unit) == (pytest.approx(centre), pytest.approx(unit))
        assert torch.equal(fit.predict((USER, ITEM)), fits[0].predict((USER, ITEM)))
        assert float(fit.model.priors["item"].scale) == pytest.approx(0.1 * unit)
    assert plain.unit is None and float(plain.priors["mean"].scale) == 10
    held = ci.fit(replace(plain, centre=0.0, unit=1.0), data, **quiet)
    assert held.model.unit == 1 and float(held.model.priors["item"].scale) == pytest.approx(0.1)


def test_priors_that_are_given_are_of_the_data_as_they_are():
    data = ratings(USER, ITEM, 20 * RATED + 5, num_users=24, num_items=10)
    model = PMF(num_components=2, num_users=24, num_items=10, adaptive=False)
    fit = ci.fit(model.with_priors(item=dist.Normal(0.0, 0.1)), data, progress=False)
    assert float(fit.model.priors["item"].scale) == pytest.approx(0.1) and set(fit.model.chosen_priors) == {"item"}
    assert float(fit.model.priors["item_bias"].scale) == pytest.approx(0.5 * fit.model.unit)
    assert fit.params["item"].abs().max() < 2  # that prior says so, of ratings that differ by tens
    assert ci.fit(model.with_priors(mean=95.0), data, progress=False).params["mean"] == 95


def test_units_of_what_has_none_are_refused():
    with pytest.raises(ModelError, match="unit = 0, expected a finite number above 0"):
        PMF(num_components=2, num_users=3, num_items=3, unit=0)
    with pytest.raises(ModelError, match="yes and no have no unit"):
        PMF(num_components=2, num_users=3, num_items=3, likelihood="logistic", unit=2.0)
    with pytest.raises(ModelError, match="only gaussian ones have a scale"):
        RBM(num_hidden=2, num_features=3, unit=2.0)
    with pytest.raises(ModelError, match="centre = inf, expected a finite number, or None"):
        CVQ(num_components=2, num_features=3, centre=math.inf)
    with pytest.raises(ModelError, match="unit = 2.0 of Binomial entries, expected None: only real ones have a scale"):
        ExponentialFamilyPCA(num_components=2, num_features=3, likelihood=Binomial(2), unit=2.0)
    with pytest.raises(ModelError, match="expected real cells"):
        IRM(types={"p": 3}, relations={"r": ("p", "p")}, unit={"r": 2.0})


def test_sources_about_a_centre_are_those_of_the_source_about_nothing(tmp_path):
    """By the program and by closed-form steps; 0 unless something else is given, and data far from it are warned of."""
    x = torch.as_tensor(HOLES)
    few: Any = {"num_components": 2, "num_features": 5}
    values = {"source_prior": torch.tensor([0.3, 0.6]), "weight": torch.tensor(ROWS[:2]), "scale": torch.tensor(0.7)}
    values["source"] = (x[:, :2].nan_to_num() > 1).double()
    found, fit = [], cast(Any, ci.fit)
    for model, rows in ((CVQ(**few), x), (CVQ(**few, centre=100.0), x + 100)):
        data, params = model.prepare(rows), {site: values[site] for site in model.global_sites}
        trace = pyro.poutine.trace(pyro.condition(model, values)).get_trace(data.x, mask=data.mask)
        exact = cast(Any, ci.Exact()).local_posterior(model, params, data)
        found.append((float(trace.log_prob_sum()), float(exact.bound.sum())))
    assert found[0] == pytest.approx(found[1])
    with pytest.warns(DataWarning, match="lie between 826.* far from centre = 0, .* centre=None, their mean"):
        assert fit(CVQ(**few), 30 * HOLES + 1000, progress=False).model.centre == 0
    about = fit(CVQ(**few, centre=None), 30 * HOLES + 1000, progress=False)
    assert about.model.centre == pytest.approx(30 * np.nanmean(HOLES) + 1000)
    again: Any = ci.Fit.load(about.save(tmp_path / "fit"))
    assert again.model.centre == about.model.centre
    assert torch.allclose(again.transform(30 * HOLES + 1000), about.posterior.mean)
    more = fit(CVQ(**few, centre=None), 30 * HOLES[:20] + 1000, init=about, progress=False)
    assert more.model.centre == about.model.centre  # the weights are about it


def test_the_program_is_that_of_the_units():
    """log p(x | h, everything) of an RBM is that of (x - centre) / unit less log unit an entry, and IRM's tables have
    the priors of their unit."""
    model = RBM(num_hidden=2, num_features=5, visible="gaussian", centre=3.0, unit=20.0)
    standard = replace(model, centre=0.0, unit=1.0)
    values = {"weight": torch.ones(2, 5), "visible_bias": torch.zeros(5), "hidden_bias": torch.zeros(2)}
    x, found = torch.as_tensor(ROWS), []
    for one, rows in ((model, 20 * x + 3), (standard, x)):
        program = pyro.condition(one, {**values, "hidden": torch.ones(40, 2)})
        trace = pyro.poutine.trace(program).get_trace(rows)
        found.append(float(trace.log_prob_sum()))
    assert found[0] == pytest.approx(found[1] - ROWS.size * math.log(20))
    table = IRM.for_data(relations({"r": 20 * TABLE}, {"r": ("p", "q")}))
    assert float(table.priors["edge_precision_r"].rate) == pytest.approx((20 * TABLE).var())
    assert float(table.priors["edge_mean_r"].loc) == pytest.approx((20 * TABLE).mean())
