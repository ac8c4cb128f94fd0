"""Factors, texts and the shell: what a fit learned of words among its data, in another process too."""

from __future__ import annotations

import gzip
import warnings
from typing import Any, ClassVar, cast

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from torch.distributions import constraints
from typer.testing import CliRunner

import custom_inference as ci
import ppl_models
from custom_inference.core.reader import Reader
from custom_inference.faces.command_line.app import app
from custom_inference.faces.sklearn import DirichletMultinomialRegressionEstimator, MixtureOfBernoullisEstimator
from ppl_models import Data, DataError, DataWarning, Site, answers, documents, graph, ratings
from ppl_models.core.row_models import RowModel
from ppl_models.data.factors import Factors

RNG = np.random.default_rng(0)
N = 24
PARTY = np.array(["blue", "green", "red"])[np.arange(N) % 3]
ROWS = [f"d{n}" for n in range(N)]
TEXTS = pd.Series([" ".join(RNG.choice(["tax", "oil", "gas"], 8)) for _ in ROWS], ROWS)
AGE = RNG.normal(size=N)
GIVEN = pd.DataFrame({"age": AGE, "party": PARTY}, ROWS)
CODED = np.column_stack([AGE, PARTY == "green", PARTY == "red"]).astype(float)
MODELS: Any = ppl_models  # made without the sizes that data have
QUIET: Any = {"progress": False}
FEW: dict[Any, dict[str, Any]] = {
    MODELS.CTM: {"method": "laplace", "max_iterations": 2},
    MODELS.DirichletMultinomialRegression: {"method": "dirichlet", "max_iterations": 2},
}


def ppl(*words: Any) -> Any:
    return CliRunner().invoke(app, list(map(str, words)))


def read_words(given: Any, like: Data | None = None) -> Data:
    """Words with covariates, as a model of three covariates reads them."""
    model = MODELS.DirichletMultinomialRegression(num_topics=2, vocabulary_size=3, num_covariates=3)
    if like is None:
        return model.prepare(documents(TEXTS), covariates=given)
    return Reader(model, like).read(TEXTS, covariates=given)


@pytest.mark.parametrize("hold", [
    lambda: GIVEN, lambda: GIVEN.astype({"party": "category"}), lambda: GIVEN.astype({"party": "string"}),
    lambda: GIVEN.sample(frac=1, random_state=0), lambda: pl.from_pandas(GIVEN.reset_index(drop=True)),
    lambda: pa.Table.from_pandas(GIVEN, preserve_index=False), lambda: GIVEN.astype({"party": object}),
    lambda: GIVEN.convert_dtypes(dtype_backend="pyarrow"),
])  # fmt: skip
def test_words_among_covariates_are_factors_whose_levels_stay(hold):
    first = read_words(hold())
    np.testing.assert_allclose(first.others["covariates"], CODED)
    assert first.coords["covariate"] == ["age", "party = green", "party = red"]
    few = hold()[:5] if not isinstance(hold(), pd.DataFrame) else GIVEN
    found = read_words(few if isinstance(few, pd.DataFrame) else hold(), first)
    np.testing.assert_allclose(found.others["covariates"], CODED)


def test_new_rows_have_the_levels_and_the_columns_of_the_fit():
    first = read_words(GIVEN)
    only_red = GIVEN.assign(party="red")
    found = read_words(only_red[["party", "age"]], first)
    np.testing.assert_allclose(found.others["covariates"], np.column_stack([AGE, np.zeros(N), np.ones(N)]))
    for wrong, named in (
        (GIVEN.assign(party="amber"), "column 'party' has 1 levels that the fit does not have .'amber'.*'blue', 'gre"),
        (GIVEN.assign(party=[None, *PARTY[1:]]), "1 cells of column 'party' are empty .the first: of row 0"),
        (GIVEN[["age"]], "missing .the first: 'party'"),
        (GIVEN.assign(more=1.0), "unknown covariates .the first: 'more'"),
        (GIVEN.assign(age="old"), "column 'age' has words .the first: 'old'. where the fit has numbers"),
        (GIVEN.assign(age=np.nan), "24 cells of column 'age' are empty or not finite"),
    ):
        with pytest.raises(DataError, match=named):
            read_words(wrong, first)
    with pytest.raises(DataError, match="one level alone"):
        read_words(only_red)
    with pytest.raises(DataError, match="column 'party' of dates.*dt.year"):
        read_words(GIVEN.assign(party=pd.Timestamp("2020-01-01")))
    ordered = GIVEN.assign(party=pd.Categorical(PARTY, ["red", "blue", "green"]))
    assert read_words(ordered).coords["covariate"] == ["age", "party = blue", "party = green"]
    assert Factors().encode("u", [1.0, 2.0]) == [1.0, 2.0]


@pytest.mark.parametrize("model", [MODELS.DirichletMultinomialRegression, MODELS.CTM])
def test_a_saved_fit_keeps_levels_and_how_texts_were_cut(model, tmp_path):
    words = documents(TEXTS, lowercase=False, token_pattern=r"(?u)\b\w+\b", ngram_range=(1, 2))
    fit = ci.fit(model(num_topics=2), words, covariates=GIVEN, **FEW[model], **QUIET)
    loaded = ci.Fit.load(fit.save(tmp_path / "fit.safetensors"))
    assert repr(loaded.reader).replace("[1, 2]", "(1, 2)") == repr(fit.reader)
    few = {"covariates": GIVEN.iloc[:4, ::-1]}
    np.testing.assert_allclose(loaded.transform(TEXTS[:4], **few), fit.transform(TEXTS[:4], **few), atol=1e-6)
    assert list(fit.transform(TEXTS[:4], **few).index) == ROWS[:4]
    with pytest.raises(DataError, match="'amber'"):
        loaded.transform(TEXTS[:4], covariates=GIVEN.iloc[:4].assign(party="amber"))


def test_texts_are_cut_as_those_of_the_fit_were(tmp_path):
    words = documents(["a B c", "c d E"] * 4, tokenizer=str.split, token_pattern=None, lowercase=False)
    fit = ci.fit(MODELS.LDA(num_topics=2), words, **QUIET)
    assert float(fit.read(["B c E"]).dense().x.sum()) == 3
    with pytest.warns(DataWarning, match="outside the vocabulary.*'e'"):
        assert float(fit.read(["B c e"]).dense().x.sum()) == 2
    loaded = ci.Fit.load(fit.save(tmp_path / "fit.safetensors"))
    with pytest.raises(DataError, match="cut by tokenizer = str.split, which its file does not hold"):
        loaded.read(["B c"])
    again = documents(["B c E"], vocabulary=fit.data)
    assert torch.equal(again.x.to_dense(), fit.read(["B c E"]).x.to_dense())
    with pytest.warns(DataWarning, match=r"6 of 8 words have one character .*'C', 'R'.*--token-pattern"):
        documents(["C beside R", "R beside C C R"])


def test_covariates_of_users_of_nodes_and_of_estimators():
    users = pd.DataFrame({"job": list("abcab"), "age": range(5)}, list("uvwxy"))
    listed = ratings([(u, i, float(n % 5 + 1)) for n, (u, i) in enumerate((u, i) for u in "uvwxy" for i in "pqr")])
    read = [
        ci.fit(MODELS.PMF(num_components=1), listed, user_covariates=one, sweeps=2, **QUIET).data
        for one in (users, users.sample(frac=1, random_state=0))
    ]
    assert torch.equal(*(one.others["user_covariates"] for one in read))
    assert read[0].recipe["levels"] == {"user_covariates": [["job", ["a", "b", "c"]], ["age", None]]}
    nodes = graph([("u", "v"), ("v", "w"), ("x", "y"), ("y", "u")], directed=False)
    made = [MODELS.CovariateSBM.for_data(nodes, 2, covariates=one).covariates for one in (users, users.iloc[::-1])]
    assert torch.equal(*made) and made[0].shape == (5, 3)
    counts = documents(TEXTS).dense().x.numpy()
    fit = DirichletMultinomialRegressionEstimator(2, max_iter=3).fit(counts, covariates=GIVEN)
    assert fit.transform(counts[:3], covariates=GIVEN.iloc[:3, ::-1]).shape == (3, 2)
    with pytest.raises(DataError, match="'amber'"):
        fit.transform(counts[:3], covariates=GIVEN.iloc[:3].assign(party="amber"))


def test_words_are_places_and_values_of_programs_of_ones_own():
    class Grouped(RowModel):
        """Only what is declared matters: nothing is fitted."""

        sites: ClassVar[Any] = {
            "level": Site("global", ("feature",), support=constraints.real),
            "z": Site("latent", (), ("row",), constraints.boolean),
            "group": Site("given", (), ("row",), constraints.nonnegative_integer),
            "dose": Site("given", (), ("row",), constraints.real),
            "x": Site("observed", ("feature",), ("row",), constraints.real),
        }

    assert Grouped.factor_sites.fget is not None  # a property
    factors = Factors()
    assert factors.number("group", pd.Series(list("bca")), real=False).tolist() == [1, 2, 0]
    assert factors.number("group", pd.Series(["c", "b"]), real=False).tolist() == [2, 1]
    with pytest.raises(DataError, match="'d'"):
        factors.number("group", pd.Series(["d"]), real=False)
    assert factors.number("dose", ["high", "low"], real=True).tolist() == [0, 1]
    with pytest.raises(DataError, match="3 levels .*two levels, or a site with an axis"):
        Factors().number("dose", list("abc"), real=True)


def test_columns_of_two_words_are_binary():
    table = pd.DataFrame({"smokes": ["yes", "no", "no", None] * 6, "drinks": [0, 1, 1, 0] * 6})
    coded = table.assign(smokes=[1.0, 0.0, 0.0, np.nan] * 6)
    model = MODELS.MixtureOfBernoullis(num_components=1)
    with pytest.warns(DataWarning, match="'smokes' is read as 0 = 'no' and 1 = 'yes'"):
        fit = ci.fit(model, table, method="em", **QUIET)
    assert float(fit.elbo[-1]) == pytest.approx(float(ci.fit(model, coded, method="em", **QUIET).elbo[-1]))
    only = table[table.smokes == "yes"]
    np.testing.assert_allclose(fit.log_likelihood(only), fit.log_likelihood(coded[coded.smokes == 1]))
    with pytest.raises(DataError, match="'perhaps'"):
        fit.transform(table.replace("no", "perhaps"))
    with pytest.warns(DataWarning, match="column 0 is read as"):  # columns that are called by numbers, too
        numbered = Factors().number_two_valued("x", table.set_axis([0, 1], axis=1))
    assert numbered[0].tolist()[:3] == [1, 0, 0] and table["smokes"].iloc[0] == "yes"
    with pytest.warns(DataWarning, match="'smokes'"):
        estimator = MixtureOfBernoullisEstimator(1, method="em").fit(table)
    assert estimator.score(only) == pytest.approx(float(fit.log_likelihood(only).mean()), abs=1e-6)
    ordered = table.assign(smokes=pd.Categorical(table.smokes, ["yes", "no"]))
    with pytest.warns(DataWarning, match="0 = 'yes' and 1 = 'no'"):
        assert Factors().number_two_valued("x", ordered)["smokes"].tolist()[:2] == [0, 1]
    with pytest.raises(DataError, match="'1,5'|holds"):
        ci.fit(model, table.assign(smokes=["1,5", "2,5"] * 12), **QUIET)


def test_categories_are_those_that_occur():
    table = pd.DataFrame(RNG.choice([1, 2, 4], (40, 3)), columns=list("uvw")).assign(flag=RNG.integers(0, 2, 40))
    fit = ci.fit(MODELS.MixtureOfCategoricals(num_components=2), table, **QUIET)
    assert cast(Any, fit.model).categories == (3, 3, 3, 2) and fit.reader.like.coords["answers"][0] == (1, 2, 4)
    told = ci.fit(MODELS.MixtureOfCategoricals(num_components=2), answers(table.astype(str)), **QUIET)
    assert fit.bic() == pytest.approx(told.bic(), abs=1e-2)
    with pytest.warns(DataWarning, match=r"'u' has the answers? -9.*probably codes of missing ones.*--mask-value"):
        ci.fit(MODELS.MixtureOfCategoricals(num_components=2), table.replace({"u": {4: -9}}), **QUIET)
    sized = MODELS.MixtureOfCategoricals(num_components=2, num_features=4, num_categories=3)
    with pytest.raises(DataError, match="none of the 3 categories"):
        sized.prepare(table.assign(u=0))
    assert sized.prepare(table.clip(1, 3)).coords["answers"][0] == (1, 2, 3)  # counted from 1


def write(table: pd.DataFrame, path: Any) -> Any:
    if path.suffix == ".parquet":
        table.to_parquet(path)
    elif path.suffix == ".gz":
        with gzip.open(path, "wt") as file:
            table.to_csv(file, index=False)
    else:
        table.to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",")
    return path


@pytest.mark.parametrize("name", ["new.csv", "new.csv.gz", "new.tsv", "new.parquet"])
def test_the_shell_reads_what_was_fitted_whatever_its_ending(name, tmp_path):
    """Columns that were dropped or stood beside rows, and that the fit does not know; codes of missing ones."""
    table = pd.DataFrame(RNG.choice([1, 2, 4], (40, 3)), columns=list("uvw"))
    table.iloc[3, 1] = 99
    whole = table.assign(who=[f"0{n}" for n in range(40)], note="said this", weight=RNG.integers(1, 5, 40))
    told = ["--id", "who", "--drop", "note", "--with", "weights=weight", "--mask-value", 99]
    out, file = tmp_path / "out", write(whole, tmp_path / "whole.csv")
    made = ppl("fit", "mixture_of_categoricals", file, "-k", 2, *told, "--out", out, "--no-compare", "--no-progress")
    assert made.exit_code == 0, made.output
    fit = ci.Fit.load(out)
    assert fit.data.coords["row"] == list(whole.who) and cast(Any, fit.model).categories == (3, 3, 3)
    new = write(whole[["note", "w", "u", "v", "who"]].assign(more=1), tmp_path / name)
    shown = ppl("transform", out, new, "--out", tmp_path / "shown.csv")
    assert shown.exit_code == 0 and "does not know is left out: more" in shown.output.replace("\n", " ")
    found = pd.read_csv(tmp_path / "shown.csv", dtype={"row": str}).set_index("row")
    assert list(found.index) == list(whole.who)
    expected = pd.DataFrame(np.asarray(fit.transform()), columns=fit.local_names)[found.columns]
    np.testing.assert_allclose(found, expected, atol=1e-4)
    again = ppl("transform", out, file, "--out", tmp_path / "again.csv")
    assert again.exit_code == 0 and (tmp_path / "again.csv").read_text() == (tmp_path / "shown.csv").read_text()
    filled = ppl("predict", out, file, "--fill", "--out", tmp_path / "filled.csv")
    kept = pd.read_csv(tmp_path / "filled.csv")[["u", "v", "w"]]
    assert filled.exit_code == 0 and (kept.to_numpy()[table != 99] == table.to_numpy()[table != 99]).all()


def test_covariates_in_the_shell_go_by_the_ids_of_rows(tmp_path):
    texts = write(pd.DataFrame({"doc": ROWS, "text": TEXTS.to_numpy(), "party": PARTY}), tmp_path / "texts.csv")
    beside = write(pd.DataFrame({"doc": ROWS, "age": AGE}).sample(frac=1, random_state=0), tmp_path / "ages.csv")
    settings = ["-k", 2, "--text", "text", "--id", "doc", "--no-compare", "--no-progress", "--set", "max_iterations=2"]
    settings += ["--method", "laplace"]
    for n, where in enumerate(("party", beside)):
        made = ppl("fit", "ctm", texts, *settings, "--with", f"covariates={where}", "--out", tmp_path / f"out{n}")
        assert made.exit_code == 0, made.output
    first, second = (ci.Fit.load(tmp_path / f"out{n}").data for n in range(2))
    assert first.coords["row"] == second.coords["row"] == ROWS
    assert first.coords["covariate"] == ["party = green", "party = red"]
    np.testing.assert_allclose(second.others["covariates"][:, 0], AGE)
    assert ppl("transform", tmp_path / "out0", texts).exit_code == 0  # the very file, with nothing said
    other = write(pd.DataFrame({"doc": ["d0"], "text": ["tax oil"], "party": ["amber"]}), tmp_path / "other.csv")
    refused = ppl("transform", tmp_path / "out0", other)
    assert refused.exit_code == 1 and "'amber'" in refused.output
    with warnings.catch_warnings(action="ignore"):
        cut = ["--token-pattern", r"(?u)\b\w+\b", "--keep-case", "--ngrams", 2]
        made = ppl("fit", "lda", texts, *settings[:-4], "--drop", "party", *cut, "--out", tmp_path / "cut")
    assert made.exit_code == 0 and ci.Fit.load(tmp_path / "cut").data.recipe["texts"]["ngram_range"] == [1, 2]
