"""Own models whose rows are one number, a vector over an axis of another name, or a table: their door, the sizes that
data say, and everything from a fit to a saved file, against the mathematics in NumPy."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch
import xarray as xr
from scipy.special import softmax
from torch.distributions import constraints

from custom_inference import SVI, Exact, Fit, compare, loo, posterior_predictive_check
from ppl_models import DataError, ModelError
from ppl_models.core.sites import Site
from ppl_models.data.columns import check_columns
from ppl_models.data.matrix import Data, as_array
from ppl_models.data.several import concatenate
from ppl_models.distributions import BernoulliVector
from tests.support.array_programs import Answers, Numbers, Tables, evidence, log_joint

KINDS = pytest.mark.parametrize("kind", [Numbers, Answers, Tables])


def with_holes(example):
    """The data as an array with NaN where entries are missing, and what is left."""
    x = example.data.x.numpy().copy()
    mask = np.random.default_rng(0).random(x.shape) > 0.15
    mask[:2] = True
    return np.where(mask, x, np.nan), mask


def fitted(kind, method=None):
    example = kind.example()
    x, mask = with_holes(example)
    return (method or SVI(guide="delta", steps=60)).fit(example.model, x, progress=False), x, mask


@KINDS
def test_evidence_and_posterior_are_those_of_numpy(kind):
    fit, x, mask = fitted(kind)
    filled = np.where(mask, x, 0.0)
    assert fit.data.x.shape == x.shape and np.array_equal(fit.data.mask.numpy(), mask)
    assert np.allclose(fit.log_likelihood().numpy(), evidence(fit.model, fit.params, filled, mask), atol=1e-10)
    posterior = softmax(log_joint(fit.model, fit.params, filled, mask), -1)
    assert np.allclose(fit.transform().numpy(), posterior, atol=1e-10)
    assert np.allclose(fit.transform(x[5:9]), posterior[5:9], atol=1e-10)
    assert np.allclose(fit.log_likelihood(filled, mask=mask), fit.log_likelihood(), atol=1e-12)
    assert np.allclose(fit.log_likelihood(x[3:4]), fit.log_likelihood()[3:4], atol=1e-12)


@KINDS
def test_all_that_is_asked_of_a_fit(kind, tmp_path):
    fit, x, mask = fitted(kind)
    site, shape = fit.model.observed_site, x.shape[1:]
    assert fit.sample(7)[site].shape == (7, *shape) and fit.sample(7)["label"].shape == (7, 2)
    assert fit.predictive(3).shape == (3, *x.shape) and fit.reconstruct().shape == x.shape
    assert fit.plugin_log_likelihood().shape == (40,) and np.isfinite(fit.bic())
    groups = fit.to_arviz(num_draws=3, num_copies=4)
    dims = ("row", *fit.model.sites[site].dims)
    assert groups.observed_data[site].dims == dims
    assert np.array_equal(np.isnan(groups.observed_data[site].values), ~mask)
    assert groups.posterior_predictive[site].dims == ("chain", "draw", *dims)
    assert groups.posterior["label"].shape == (1, 3, 40, 2)
    loaded = Fit.load(fit.save(tmp_path / "fit"), model=kind)
    assert torch.equal(loaded.data.x, fit.data.x) and torch.equal(loaded.data.mask, fit.data.mask)
    assert torch.allclose(loaded.transform(), fit.transform()) and loaded.coords == fit.coords
    check = posterior_predictive_check(fit, num_samples=4, progress=False)
    assert np.isfinite(check.table["p_value"]).all()
    assert "rows" in fit.data._repr_html_() and repr(fit)


@KINDS
@pytest.mark.filterwarnings("ignore:Estimated shape parameter", "ignore:.*effective sample size")
def test_other_methods(kind):
    example = kind.example()
    x, mask = with_holes(example)
    for method in (SVI(guide="delta", steps=5, batch_size=10), SVI(guide="normal", steps=5)):
        fit = method.fit(example.model, x, progress=False)
        assert torch.isfinite(fit.transform()).all() and fit.transform(x[:3]).shape == (3, 2)
    assert np.isfinite(loo(fit, num_draws=25, progress=False).elpd)
    at = {site: example.truth[site] for site in ("share", "centre")}
    table = compare([Exact(), SVI(guide="delta")], example.model, x, at=at, progress=False).table
    expected = evidence(example.model, at, np.where(mask, x, 0.0), mask).sum()
    assert np.allclose(table["evidence"], expected) and abs(table["gap_per_row"].iloc[0]) < 1e-9


@KINDS
def test_sizes_follow_from_data(kind):
    example = kind.example()
    assert kind.for_data(example.data, 2).settings() == example.model.settings()
    assert kind.for_data(example.data, num_classes=2).settings() == example.model.settings()
    with pytest.raises(ModelError, match=f"{kind.__name__} for these data: known .*; give the other sizes, num_c"):
        kind.for_data(example.data)
    wrong = Data(x=torch.zeros(3, 2, 2, 2))
    with pytest.raises(ModelError, match=rf"{kind.__name__} for data of shape \(3, 2, 2, 2\); expected \(N,"):
        kind.for_data(wrong, 2)


def test_an_unclear_number_of_components_is_refused():
    sites = {**Answers.sites, "label": Site("latent", (), ("row",), Answers.sites["centre"].support)}
    kind = type("Lone", (Answers,), {"sites": sites, "__annotations__": {}})
    with pytest.raises(ModelError, match="no axis is called 'component', and the latent has no axis of its own; g"):
        kind.for_data(Answers.example().data, 2)
    assert kind.for_data(Answers.example().data, num_classes=2).num_items == 3


@pytest.mark.parametrize(
    ("kind", "x", "message"),
    [
        (Numbers, np.zeros((5, 1)), r"site 'height': 2 dimensions, shape \(5, 1\); expected \('row',\), shape \(N,\)"),
        (Answers, np.zeros((5, 4)), "site 'answer', axis 'item': 4 columns where the model has num_items = 3"),
        (Answers, np.zeros(5), "site 'answer': 1 dimensions"),
        (Tables, np.zeros((5, 12)), r"2 dimensions, shape \(5, 12\); expected \('row', 'day', 'hour'\), shape \(N, 3"),
        (Tables, np.zeros((5, 3, 5)), r"axis 'hour': 5 places where the model has num_hours = 4; expected shape \(N"),
        (Tables, np.zeros((5, 2, 4)), "axis 'day': 2 places where the model has num_days = 3"),
        (Tables, np.full((5, 3, 4), -1.0), r"site 'visits': 60 of 60 entries .*the first: -1 in row 0, at \(0, 0\)"),
        (Tables, np.zeros((0, 3, 4)), "site 'visits': no entries"),
        (Numbers, np.array(["a", "b"]), "entries of type"),
    ],
)  # fmt: skip
def test_the_door_names_what_is_wrong(kind, x, message):
    with pytest.raises(DataError, match=message):
        kind.example().model.prepare(x)


def test_masks_have_the_shape_of_the_data():
    model, x = Tables.example().model, Tables.example().data.x
    with pytest.raises(DataError, match=r"mask of shape \(40, 3\) for data of shape \(40, 3, 4\)"):
        model.prepare(x, mask=torch.ones(40, 3, dtype=torch.bool))
    seen = torch.rand(x.shape, generator=torch.Generator().manual_seed(0)) > 0.2
    read = model.prepare(x, mask=seen)
    again = model.prepare(read)
    assert torch.equal(read.mask, seen) and torch.equal(again.x, x * seen)
    assert torch.equal(model.prepare(torch.where(seen, x, torch.nan)).mask, seen)
    part = read.rows(slice(3, 8))
    assert torch.equal(part.x, read.x[3:8]) and torch.equal(part.mask, seen[3:8])
    both = concatenate([part, read.rows(torch.tensor([0, 1]))])
    assert torch.equal(both.x, torch.cat([read.x[3:8], read.x[:2]])) and both.num_features == 12
    with pytest.raises(DataError, match=r"1 column\(s\) without any observed entry \(the first: \(2, 1\)\)"):
        hidden = torch.ones_like(seen)
        hidden[:, 2, 1] = False
        check_columns(model.prepare(x, mask=hidden))


class Codes(Tables):
    """Two causes that add up, in place of two classes."""

    sites: ClassVar[Any] = Tables.sites | {"label": Site("latent", ("class",), ("row",), constraints.boolean)}

    def draw_locals(self, site):
        return pyro.sample("label", BernoulliVector(site["share"]))

    def entries(self, site, local):
        return dist.Poisson(0.5 + torch.tensordot(local, site["centre"], 1))


def test_guides_of_codes():
    model, example = Codes(num_classes=2, num_days=3, num_hours=4), Tables.example()
    for guide in ("mean_field", "amortized"):
        fit = SVI(guide=guide, steps=4, batch_size=10).fit(model, with_holes(example)[0], progress=False)
        assert fit.transform().shape == (40, 2) and torch.isfinite(fit.transform()).all()
        assert fit.transform(example.data.x[:3]).shape == (3, 2)


def test_labels_are_kept_by_their_axes(tmp_path):
    example = Tables.example()
    days, hours = ["Mon", "Tue", "Wed"], [8, 12, 16, 20]
    coords = {"row": [f"shop {n}" for n in range(40)], "day": days, "hour": hours}
    array = xr.DataArray(example.data.x.numpy(), dims=("row", "day", "hour"), coords=coords)
    fit = SVI(guide="delta", steps=5).fit(example.model, array, progress=False)
    assert fit.coords["day"] == days and fit.coords["hour"] == hours and fit.coords["row"][3] == "shop 3"
    assert fit.column_names[:2] == ["Mon, 8", "Mon, 12"] and len(fit.column_names) == 12
    observed = fit.to_arviz(num_draws=2, num_copies=0).observed_data
    assert float(observed["visits"].sel(row="shop 2", day="Wed", hour=16)) == float(array[2, 2, 2])
    assert Fit.load(fit.save(tmp_path / "fit"), model=Tables).coords == fit.coords
    assert fit.data.rows(slice(1, 3)).coords["row"] == ["shop 1", "shop 2"]
    with pytest.raises(DataError, match=r"dimensions \('row', 'hour', 'day'\)"):
        example.model.prepare(array.transpose("row", "hour", "day"))
    numbers = Numbers.example()
    series = pd.Series(numbers.data.x.numpy(), index=[f"p{n}" for n in range(40)])
    fit = SVI(guide="delta", steps=5).fit(numbers.model, series, progress=False)
    assert fit.coords["row"][:2] == ["p0", "p1"] and list(fit.transform(series).index[:2]) == ["p0", "p1"]
    assert fit.transform(series).shape == (40, 2)


def test_entries_that_are_vectors():
    """Law with events of its own: an entry is missing as a whole, or an error says that it is not."""

    class Turned(Tables):
        def entries(self, site, local):
            rate = torch.tensordot(local, site["centre"], 1)
            return dist.Poisson(rate).to_event(1)

    model, example = Turned(num_classes=2, num_days=3, num_hours=4), Tables.example()
    x, seen = example.data.x, torch.ones(40, 3, 4, dtype=torch.bool)
    seen[5, 1] = False
    of_both = []
    for program in (model, example.model):
        data = program.prepare(x, mask=seen)
        trace = pyro.poutine.trace(pyro.condition(program, data=example.truth)).get_trace(data.x, mask=data.mask)
        of_both.append(float(trace.log_prob_sum()))
    assert of_both[0] == pytest.approx(of_both[1], abs=1e-9)
    seen[7, 2, 3] = False
    with pytest.raises(DataError, match=r"'visits': 1 entries of which a part is missing \(the first: at \(7, 2\)\)"):
        model(x, mask=seen)


def test_axes_of_any_size_are_taken():
    read = as_array(np.ones((4, 2, 5)), {"word": None, "place": ("num_places", 5)})
    assert read.x.shape == (4, 2, 5) and read.mask is None
    with pytest.raises(DataError, match="a sparse matrix; expected a dense array of shape"):
        as_array(torch.eye(3).to_sparse(), {"a": None, "b": None})
    with pytest.raises(DataError, match="3 labels"):
        as_array(Data(x=torch.ones(2, 2, 2), coords={"a": [1, 2, 3]}), {"a": None, "b": None})
