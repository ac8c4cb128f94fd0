"""ArviZ's own functions on fits of every kind: draws of chains, posteriors in closed form, guides, points, graphs."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr

import custom_inference as ci
from ppl_models import LDA, MODELS, NOCA, SBM, MixtureOfPoissons, Model
from tests.support.arviz_calls import NO_SCORES, OLD, arviz, drawn, group, group_names

# ArviZ 0.23 with matplotlib 3.11 and pandas 3, points without a variance to divide by, few draws: nothing of ours.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The inplace keyword:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Passing a dict or None as alias_mapping"),
    pytest.mark.filterwarnings("ignore:Your data appears to have a single value:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*Pareto:UserWarning"),
    pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:.*look binary:UserWarning"),
]

#: Kind -> model, method, a global of few entries.
KINDS: dict[str, tuple[type[Model], Any, str]] = {
    "nuts": (MixtureOfPoissons, ci.NUTS(num_samples=8, warmup=5, chains=2, max_tree_depth=3), "mixing_proportion"),
    "gibbs": (MixtureOfPoissons, ci.CollapsedGibbs(num_samples=30, warmup=10, chains=2), "mixing_proportion"),
    "vb": (LDA, ci.VariationalEM(guide="vb", search=None, max_iterations=10), "topic"),
    "svi_normal": (NOCA, ci.SVI(guide="normal", steps=10), "source_prior"),
    "points": (NOCA, ci.EM(search=None, max_iterations=5), "source_prior"),
    "graph": (SBM, ci.VariationalEM(guide="vb", search=None, max_iterations=10), "block_proportion"),
}
EACH = pytest.mark.parametrize("kind", KINDS)


@cache
def fitted(kind: str) -> ci.Fit:
    model, method, _ = KINDS[kind]
    example = model.example()
    data: Any = example.data
    if kind == "nuts":
        names = [f"site {n}" for n in range(12)]
        data = pd.DataFrame(data.x[:12].numpy(), index=names, columns=list("abcdef"))
    return method.fit(example.model, data, progress=False)


@cache
def converted(kind: str) -> Any:
    return fitted(kind).to_arviz(num_draws=30, num_copies=20, max_rows=5 if kind != "graph" else 200)


@EACH
def test_groups(kind):
    data = converted(kind)
    expected = {"posterior", "posterior_predictive", "prior", "prior_predictive", "observed_data"}
    sampled = kind in ("nuts", "gibbs")
    expected |= {"sample_stats", "log_likelihood"} if sampled else set()
    expected |= {"point_estimates"} if kind == "points" else set()
    assert group_names(data) - {"constant_data"} == expected
    assert (
        data.posterior_predictive["x"].dims[2:] == data.observed_data["x"].dims == data.prior_predictive["x"].dims[2:]
    )
    if not sampled and kind != "points":
        assert "those of an approximation" in data.posterior.attrs["log_likelihood"]
        assert "approximate posterior" in data.posterior.attrs["globals"]
        with pytest.raises(NO_SCORES):
            arviz.loo(data)
        with pytest.warns(UserWarning, match="without a warning; use custom_inference.loo"):
            data = fitted(kind).to_arviz(num_draws=30, num_copies=0, log_likelihood=True)
        assert "those of an approximation" in data.log_likelihood.attrs["approximation"]
    if kind != "points":
        scores, drawn = data.log_likelihood["x"], data.posterior.sizes
        assert (scores.sizes["chain"], scores.sizes["draw"]) == (drawn["chain"], drawn["draw"])
        assert float(scores.std(("chain", "draw")).min()) > 0


@EACH
def test_pictures(kind):
    data, site = converted(kind), KINDS[kind][2]
    found = group(data, "point_estimates" if kind == "points" else "posterior")
    first = {axis: found[axis].values[:2] for axis in found[site].dims[2:]}
    for plot in ("plot_trace", "plot_forest", "plot_pair")[: 2 if kind == "points" else 3]:
        drawn(plot, found, var_names=[site], coords=first)
    for copies in ("posterior", "prior") if OLD else ("posterior_predictive", "prior_predictive"):
        drawn("plot_ppc", data, num_pp_samples=5, group=copies)


def test_energy_and_divergences_are_those_of_the_trajectories():
    """The kinetic energy, what the energy exceeds the potential at the draw before by, has half a unit a dimension."""
    method = ci.NUTS(num_samples=60, warmup=40, chains=1, max_tree_depth=4)
    fit = method.fit(NOCA(num_components=1, num_features=2), torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]]),
                     progress=False)  # fmt: skip
    data = fit.to_arviz(num_copies=0)
    stats = data.sample_stats
    assert set(stats) == {"lp", "energy", "diverging", "tree_depth", "n_steps", "acceptance_rate", "step_size"}
    kinetic = (stats["energy"].values[0, 1:] + stats["lp"].values[0, :-1]) * 2 / 5  # chi-square / dimensions
    assert (kinetic > 0).all() and abs(kinetic.mean() - 1) < 5 * (2 / 5 / 59) ** 0.5
    rate, depth, steps = (stats[name].values for name in ("acceptance_rate", "tree_depth", "n_steps"))
    assert ((rate > 0) & (rate <= 1)).all() and rate.mean() > 0.5
    assert ((depth >= 1) & (depth <= 4)).all() and ((steps >= 2 ** (depth - 1)) & (steps < 2**depth)).all()
    assert stats["diverging"].dtype == bool and f"{int(stats['diverging'].sum())} divergences" in fit.status
    drawn("plot_energy", data)


@EACH
def test_files(kind, tmp_path):
    data = converted(kind)
    data.to_netcdf(str(tmp_path / "fit.nc"))
    back = arviz.from_netcdf(str(tmp_path / "fit.nc"))
    assert group_names(back) == group_names(data) and back.attrs["objective"] == fitted(kind).objective
    for name in group_names(data):
        xr.testing.assert_identical(group(back, name), group(data, name))


def test_models_are_compared():
    """The same data under one class and under three: ArviZ ranks the fits as ``compare_loo`` does."""
    data = MixtureOfPoissons.example().data
    sampler = ci.CollapsedGibbs(num_samples=100, warmup=10, chains=1)
    one = sampler.fit(MixtureOfPoissons(num_components=1, num_features=6), data, progress=False)
    fits = {"one": one, "three": fitted("gibbs")}
    table = arviz.compare({name: fit.to_arviz(num_draws=100, num_copies=0) for name, fit in fits.items()})
    ours = ci.compare_loo(fits, num_draws=100, progress=False)
    assert list(table.index) == list(ours.index) == ["three", "one"]
    assert (table["p_loo" if OLD else "p"] > 1).all()
    error = 0.2 * float(table["dse"].max())
    assert np.allclose(table["elpd_loo" if OLD else "elpd"], ours["elpd_loo"], atol=error)


def test_labels_of_a_frame_are_coordinates_everywhere():
    data, frame = converted("nuts"), fitted("nuts").data
    for name in ("posterior_predictive", "observed_data", "prior_predictive", "log_likelihood"):
        assert data[name]["row"].values.tolist() == [f"site {n}" for n in range(12)] == frame.coords["row"]
    assert data.posterior["rate"]["feature"].values.tolist() == list("abcdef")
    assert data.posterior["assignment"]["row"].values.tolist() == [f"site {n}" for n in range(5)]


#: They need responses or times, have no density, or columns that are places in sentences.
WITHOUT = ("supervised_lda", "dtm", "spike_gamma_poisson", "labeled_lda", "partially_labeled_lda", "ldahmm", "rtm",
           "discriminative_lda", "multinomial_regression_lda")  # fmt: skip
ROWS = [name for name, model in MODELS.items() if name not in WITHOUT and not model.example().model.is_graph]


@pytest.mark.filterwarnings("ignore:.*documents without covariates")
@pytest.mark.parametrize("name", ROWS)
def test_a_frame_is_transformed_to_a_frame(name):
    """With its index, and a column for every component; the numbers are those of the same rows without labels."""
    example = MODELS[name].example()
    dense = example.data.dense().x.numpy()
    frame = pd.DataFrame(dense, index=pd.Index([f"r{n}" for n in range(len(dense))], name="who"))
    frame.columns = [f"c{j}" for j in range(dense.shape[1])]
    fit = ci.SVI(guide="delta", steps=2).fit(example.model, frame, progress=False)
    found = fit.transform(frame)
    assert found.index.equals(frame.index) and list(found.columns) == fit.local_names
    assert fit.component_names == [f"s{k}" for k in range(example.model.sizes["component"])]
    np.testing.assert_allclose(found.to_numpy(), fit.transform(dense).numpy(), rtol=1e-9)
    part = fit.transform(frame.iloc[[3, 1]])
    assert list(part.index) == ["r3", "r1"] and part.shape == (2, found.shape[1])
    coords = fit.to_arviz(num_draws=2, num_copies=0, max_rows=3).observed_data.coords
    rows, columns = (
        f"{axis}_id" if axis in fit.model.dims else axis for axis in (fit.model.row_axis, fit.model.feature_axis)
    )
    assert coords[columns].values.tolist() == list(frame.columns)
    assert coords[rows].values.tolist() == list(frame.index)


def test_other_labelled_rows_keep_their_labels():
    """A DataArray gives a DataArray, a Series of texts a frame; what has no labels gives a tensor."""
    example = NOCA.example()
    array = xr.DataArray(example.data.x.numpy(), dims=("place", "kind"), coords={"place": np.arange(60) * 2})
    fit = ci.EM(search=None, max_iterations=3).fit(example.model, array, progress=False)
    found = fit.transform(array[:5])
    assert found.dims == ("place", "component") and found["place"].values.tolist() == [0, 2, 4, 6, 8]
    assert found["component"].values.tolist() == fit.component_names
    texts = pd.Series(["sea sun sun", "fog fog sea", "sun sea sea"], index=["x", "y", "z"])
    fit = ci.EM(search=None, max_iterations=3).fit(LDA(num_topics=2, vocabulary_size=3), list(texts), progress=False)
    assert list(fit.transform(texts[["z", "x"]]).index) == ["z", "x"]
    assert isinstance(fit.transform(list(texts)), torch.Tensor)


def test_a_graph_from_a_frame_is_transformed_to_a_frame_of_its_nodes():
    example = SBM.example()
    names = [f"node {i}" for i in range(24)]
    frame = pd.DataFrame(example.data.x.to_dense().numpy(), index=names, columns=names)
    fit = ci.VariationalEM(guide="vb", search=None, max_iterations=3).fit(example.model, frame, progress=False)
    assert list(fit.transform(frame).index) == names
