"""Faces x containers x what people do to a table between a fit and what they ask of it: each gives what the plain array
gives, or an error that names what it was."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse
import torch
import xarray as xr

import custom_inference as ci
from custom_inference.faces.sklearn import (
    MixtureOfBernoullisEstimator,
    MixtureOfCategoricalsEstimator,
    MixtureOfPoissonsEstimator,
)
from ppl_models import (
    DataError,
    MixtureOfBernoullis,
    MixtureOfCategoricals,
    MixtureOfPoissons,
    PPLError,
    answers,
    as_matrix,
)

NAMES = list("abcde")
RNG = np.random.default_rng(0)
KIND = (RNG.random(60) < 0.5).astype(int)
ON = np.array([[0.95, 0.85, 0.7, 0.6, 0.5], [0.1, 0.2, 0.15, 0.4, 0.05]])[KIND]
TABLES = RNG.dirichlet([0.6] * 3, (2, 5))[KIND]
#: Data kind -> the model, its estimator, and a table; answers are 1, 2 and 4.
PROBLEMS: dict[str, tuple[Any, Any, pd.DataFrame]] = {
    "binary": (MixtureOfBernoullis, MixtureOfBernoullisEstimator, pd.DataFrame((RNG.random(ON.shape) < ON) * 1)),
    "counts": (MixtureOfPoissons, MixtureOfPoissonsEstimator, pd.DataFrame(RNG.poisson(6 * ON))),
    "answers": (
        MixtureOfCategoricals,
        MixtureOfCategoricalsEstimator,
        pd.DataFrame(np.array([1, 2, 4])[(TABLES.cumsum(-1) < RNG.random((60, 5, 1))).sum(-1).clip(max=2)]),
    ),
}
PROBLEMS = {kind: (*made, table.set_axis(NAMES, axis=1)) for kind, (*made, table) in PROBLEMS.items()}
QUIET: Any = {"progress": False}


@pytest.fixture(scope="module")
def fitted() -> dict[str, tuple[ci.Fit, Any]]:
    """Kind -> a fit to the table, and an estimator of it."""
    made = {}
    for kind, (model, estimator, table) in PROBLEMS.items():
        fit = ci.fit(model(num_components=2), table, method="em", **QUIET)
        made[kind] = fit, estimator(2, method="em", random_state=0).fit(table)
    return made


#: Face -> a number of every row, or one of all, from a fit, an estimator and a table.
FACES: dict[str, Callable[[ci.Fit, Any, Any], Any]] = {
    "transform": lambda fit, _, x: fit.transform(x),
    "log_likelihood": lambda fit, _, x: fit.log_likelihood(x),
    "plugin": lambda fit, _, x: fit.plugin_log_likelihood(x),
    "reconstruct": lambda fit, _, x: fit.reconstruct(x),
    "local_posterior": lambda fit, _, x: fit.local_posterior(x).posterior.mean,
    "compare": lambda fit, _, x: ci.compare([ci.Exact()], fit.model, x, at=fit, **QUIET).table["evidence"],
    "bracket": lambda fit, _, x: ci.bracket(fit.model, fit, x).lower,
    "empirical_bayes": lambda fit, _, x: ci.empirical_bayes_log_likelihood(fit, x),
    "init": lambda fit, _, x: ci.fit(fit.model, x, method="em", init=fit, max_iterations=1, **QUIET).elbo[0],
    "score_samples": lambda _, estimator, x: estimator.score_samples(x),
    "estimator": lambda _, estimator, x: estimator.transform(x),
}
#: Container -> the table in it; of NAMED with the names of the columns.
NAMED: dict[str, Callable[[pd.DataFrame], Any]] = {
    "frame": lambda table: table,
    "nullable": lambda table: table.astype("Int64"),
    "arrow-backed": lambda table: table.astype("int64[pyarrow]"),
    "sparse frame": lambda table: table.astype(pd.SparseDtype("int64", 0)),
    "small integers": lambda table: table.astype("int8"),
    "objects": lambda table: table.astype(object),
    "xarray": lambda table: xr.DataArray(
        table.to_numpy(), dims=("row", "feature"), coords={"row": table.index, "feature": list(table.columns)}
    ),
    "arrow": lambda table: pa.Table.from_pandas(table, preserve_index=False),
    "record batch": lambda table: pa.RecordBatch.from_pandas(table, preserve_index=False),
    "polars": lambda table: pl.from_pandas(table.reset_index(drop=True)),
}
PLAIN: dict[str, Callable[[pd.DataFrame], Any]] = {
    "array": lambda table: table.to_numpy(),
    "masked array": lambda table: np.ma.array(table.to_numpy()),
    "lists": lambda table: table.to_numpy().tolist(),
    "tuples": lambda table: tuple(map(tuple, table.to_numpy().tolist())),
    "torch": lambda table: torch.tensor(table.to_numpy()),
    "bytes": lambda table: table.to_numpy(np.uint8),
}
SPARSE = {
    name: getattr(scipy.sparse, f"{name}_array") for name in ("csr", "csc", "coo", "bsr", "dia", "lil", "dok")
} | {"coo matrix": scipy.sparse.coo_matrix, "csr matrix": scipy.sparse.csr_matrix}


def ask(face: str, made: tuple[ci.Fit, Any], x: Any) -> np.ndarray:
    with warnings.catch_warnings(action="ignore"):
        return np.asarray(FACES[face](*made, x), dtype=float)


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("kind", PROBLEMS)
def test_every_container_gives_what_the_array_gives(kind, face, fitted):
    table = PROBLEMS[kind][2].iloc[:20]
    expected = ask(face, fitted[kind], table.to_numpy())
    for name, hold in {**NAMED, **PLAIN}.items():
        np.testing.assert_allclose(ask(face, fitted[kind], hold(table)), expected, atol=1e-9, err_msg=name)
    if kind == "answers":
        read = answers(table)
        np.testing.assert_allclose(ask(face, fitted[kind], read), expected, atol=1e-9)
    elif face not in ("score_samples", "estimator"):
        for name, hold in SPARSE.items():
            found = ask(face, fitted[kind], hold(table.to_numpy().astype("int8")))
            np.testing.assert_allclose(found, expected, atol=1e-9, err_msg=name)
        np.testing.assert_allclose(ask(face, fitted[kind], as_matrix(table)), expected, atol=1e-9)


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("kind", PROBLEMS)
def test_columns_go_by_their_names_and_rows_as_they_come(kind, face, fitted):
    table = PROBLEMS[kind][2].iloc[:20]
    expected = ask(face, fitted[kind], table)
    shuffled = table.sample(frac=1, random_state=1)
    back = np.argsort(shuffled.index) if expected.ndim and len(expected) == len(table) else ...
    for name, hold in NAMED.items():
        found = ask(face, fitted[kind], hold(shuffled))
        np.testing.assert_allclose(found[back], expected, atol=1e-9, err_msg=name)
        try:
            found = ask(face, fitted[kind], hold(table[NAMES[::-1]]))
        except ValueError as error:  # scikit-learn wants columns in the order of the fit
            assert face in ("score_samples", "estimator") and "same order" in str(error)
        else:
            np.testing.assert_allclose(found, expected, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("kind", PROBLEMS)
def test_what_the_fit_does_not_know_is_named(kind, face, fitted):
    table = PROBLEMS[kind][2].iloc[:20]
    for hold in NAMED.values():
        with pytest.raises(ValueError, match="more|unseen"):
            ask(face, fitted[kind], hold(table.assign(more=1)))
        with pytest.raises(ValueError, match="'e'|- e"):
            ask(face, fitted[kind], hold(table[NAMES[:4]]))
        with pytest.raises(ValueError, match="'z'|- z"):
            ask(face, fitted[kind], hold(table.rename(columns={"e": "z"})))
    if kind == "answers":
        for hold in {**NAMED, **PLAIN}.values():
            with pytest.raises(DataError, match="column 'c'|those of 'c'|those of 2"):
                ask(face, fitted[kind], hold(table.assign(c=3)))


@pytest.mark.parametrize("face", [face for face in FACES if face != "init"])
def test_a_category_less_in_new_answers_is_none_less_in_the_fit(face, fitted):
    table = PROBLEMS["answers"][2]
    chosen = table[table.c != 2]
    expected, found = (ask(face, fitted["answers"], one) for one in (table, chosen))
    if expected.ndim and len(expected) == len(table):
        np.testing.assert_allclose(found, expected[chosen.index], atol=1e-9)


@pytest.mark.parametrize("kind", PROBLEMS)
def test_missing_entries_are_missing_in_every_container(kind, fitted):
    table = PROBLEMS[kind][2].iloc[:20]
    hidden = np.random.default_rng(1).random(table.shape) < 0.3
    gaps = table.where(~hidden)
    held = {
        "frame": gaps,
        "nullable": table.astype("Int64").mask(hidden),
        "arrow-backed": gaps.astype("Int64").astype("int64[pyarrow]"),
        "objects": table.astype(object).mask(hidden, pd.NA),
        "none": table.astype(object).mask(hidden, None),
        "masked array": np.ma.array(table.to_numpy(), mask=hidden),
        "masked floats": np.ma.array(table.to_numpy(float), mask=hidden),
        "arrow": pa.Table.from_pandas(table.astype("Int64").mask(hidden), preserve_index=False),
        "polars": pl.from_pandas(table.astype("Int64").mask(hidden)),
        "torch": torch.tensor(gaps.to_numpy()),
        "lists": gaps.to_numpy().tolist(),
        "xarray": xr.DataArray(gaps.to_numpy(), dims=("row", "feature"), coords={"feature": NAMES}),
    }
    if kind == "answers":
        held["categorical"] = gaps.astype("Int64").astype("category")
    for face in ("transform", "log_likelihood", "compare", "score_samples"):
        expected = ask(face, fitted[kind], gaps.to_numpy())
        for name, x in held.items():
            np.testing.assert_allclose(ask(face, fitted[kind], x), expected, atol=1e-9, err_msg=f"{face} {name}")


@pytest.mark.parametrize("kind", PROBLEMS)
def test_a_fit_and_what_is_saved_of_it_do_not_depend_on_the_container(kind, fitted, tmp_path):
    model, _, table = PROBLEMS[kind]
    first = ci.fit(model(num_components=2), table.to_numpy(), method="em", **QUIET)
    for name, hold in {**NAMED, **PLAIN}.items():
        again = ci.fit(model(num_components=2), hold(table), method="em", **QUIET)
        assert float(again.elbo[-1]) == pytest.approx(float(first.elbo[-1]), abs=1e-3), name
        assert again.model.num_parameters(0) == first.model.num_parameters(0), name
    fit = fitted[kind][0]
    loaded = ci.Fit.load(fit.save(tmp_path / "fit.safetensors"))
    assert repr(loaded.reader) == repr(fit.reader)
    np.testing.assert_allclose(loaded.transform(table[NAMES[::-1]]), fit.transform(table), atol=1e-6)


def test_what_stands_beside_rows_goes_by_their_labels():
    """Weights and masks with labels by these, others by position; foreign and missing labels are refused."""
    model, _, table = PROBLEMS["binary"]
    rows = table.set_axis([f"p{n}" for n in range(len(table))], axis=0)
    weights = pd.Series(np.random.default_rng(2).integers(1, 9, len(rows)).astype(float), index=rows.index)
    mask = pd.DataFrame(np.random.default_rng(3).random(rows.shape) < 0.8, rows.index, NAMES)

    def objective(x: Any, **beside: Any) -> float:
        return float(ci.fit(model(num_components=2), x, method="em", **beside, **QUIET).elbo[-1])

    for name, whole, part in (("weights", weights, weights.iloc[:-1]), ("mask", mask, mask.iloc[:-1])):
        expected = objective(rows, **{name: whole})
        shuffled = whole.sample(frac=1, random_state=0)
        labelled = [shuffled, shuffled.to_xarray() if name == "weights" else shuffled[NAMES[::-1]]]
        for held in [*labelled, whole.to_numpy(), torch.tensor(whole.to_numpy()), whole.to_numpy().tolist()]:
            assert objective(rows, **{name: held}) == pytest.approx(expected, rel=1e-6), (name, type(held))
        plain, numbered = rows.reset_index(drop=True), whole.reset_index(drop=True)
        by_size = plain.sort_values("a")
        assert objective(plain, **{name: numbered.sample(frac=1, random_state=0)}) == pytest.approx(expected, rel=1e-6)
        assert objective(by_size, **{name: numbered}) == pytest.approx(expected, rel=1e-6)
        with pytest.raises(DataError, match=r"unknown rows|1 of (60|the)"):
            objective(rows, **{name: whole.rename(index={"p3": "q3"})})
        with pytest.raises(PPLError, match=r"given of 1 of 60|lacks 1"):
            objective(rows, **{name: part})
