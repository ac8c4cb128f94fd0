"""``--with`` on tables as people have them: responses of every kind, covariates, labels and weights in columns."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from custom_inference import Fit, fit
from custom_inference.faces.command_line import output
from custom_inference.faces.command_line.app import app
from ppl_models import MixtureOfPoissons

WORDS = ["river", "bank", "loan", "money", "water"]


@pytest.fixture(autouse=True)
def _brief(monkeypatch):
    monkeypatch.setattr(output, "figures", lambda *_: {})
    monkeypatch.setattr(output, "_DRAWS", 4)
    monkeypatch.setattr(output, "_COPIES", 2)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Texts about rivers or banks, and what stands beside them."""
    rng = np.random.default_rng(0)
    share = rng.dirichlet([0.4, 0.4], 30)
    topics = np.array([[0.45, 0.2, 0.02, 0.03, 0.3], [0.02, 0.3, 0.33, 0.33, 0.02]])
    counts = np.stack([rng.multinomial(14, p @ topics) for p in share])
    frame = pd.DataFrame({"text": [" ".join(np.repeat(WORDS, row)) for row in counts]})
    frame["stars"] = np.clip(np.rint(1 + 4 * share[:, 0] + 0.3 * rng.standard_normal(30)), 1, 5).astype(int)
    frame["score"] = np.round(100 * share[:, 0] + rng.standard_normal(30), 2)
    frame["mood"] = np.where(share[:, 0] > 0.5, "good", "bad")
    frame["place"] = np.array(["sea", "town", "wood"])[np.digitize(share[:, 0], [0.3, 0.7])]
    frame["likes"] = rng.poisson(np.exp(2 * share[:, 0]))
    frame["age"] = rng.integers(18, 80, 30)
    frame["sex"] = rng.choice(["f", "m"], 30)
    frame["tags"] = np.where(share[:, 0] > 0.7, "nature", np.where(share[:, 0] < 0.3, "trade", "nature|trade"))
    frame["change"] = rng.standard_normal(30)
    frame["w"] = rng.integers(0, 3, 30)
    path = tmp_path_factory.mktemp("beside") / "reviews.csv"
    frame.to_csv(path, index=False)
    return path


def ppl(*arguments):
    result = CliRunner().invoke(app, [*map(str, arguments), "--no-progress"])
    return result.exit_code, " ".join(result.output.split())


def fitted(out, model, table, *options):
    short = {
        "supervised_lda": ("sweeps=16", "average=8", "chains=1"),
        "dirichlet_multinomial_regression": ("warmup=5", "num_samples=4"),
    }.get(model, ("max_iterations=3",))
    settings = [part for one in short for part in ("--set", one)]
    code, said = ppl("fit", model, table, "-k", 2, *settings, "--out", out, *options)
    assert code == 0, said
    return Fit.load(out / "fit.safetensors")


@pytest.mark.parametrize(
    ("where", "kind", "names"),
    [
        ("score:real", "real", None),
        ("stars:real", "real", None),
        ("stars:categorical", "categorical", [1, 2, 3, 4, 5]),
        ("likes:counts", "counts", None),
        ("mood", "binary", ["bad", "good"]),
        ("mood:binary", "binary", ["bad", "good"]),
        ("place", "categorical", ["sea", "town", "wood"]),
        ("score,age:real", "real", None),
    ],
)
def test_responses_of_every_kind(table, tmp_path, where, kind, names):
    found = fitted(tmp_path / "out", "supervised_lda", table, "--text", "text", "--with", f"response={where}")
    assert found.model.response == kind and found.data.coords.get("class") == names
    frame = pd.read_csv(table)
    columns = where.partition(":")[0].split(",")
    assert found.model.num_responses == len(columns)
    if kind in ("real", "counts"):
        assert np.array_equal(found.data.others["response"], frame[columns].to_numpy(float).squeeze())
    else:
        given = [names[int(c)] for c in found.data.others["response"]]
        assert given == frame[columns[0]].tolist()
        assert set(found.predict(frame["text"].tolist()[:5], names=True)) <= set(names)


def test_covariates_labels_and_weights(table, tmp_path):
    frame = pd.read_csv(table)
    text = ["--text", "text"]
    found = fitted(tmp_path / "a", "dirichlet_multinomial_regression", table, *text, "--with", "covariates=age,sex")
    assert np.array_equal(found.data.others["covariates"], np.column_stack([frame["age"], frame["sex"] == "m"]))
    assert found.data.coords["covariate"] == ["age", "sex = m"]
    weight = found.to_arviz(num_draws=2, num_copies=0).posterior["prevalence_weight"]
    assert weight["covariate"].values.tolist() == ["age", "sex = m"]
    found = fitted(tmp_path / "b", "labeled_lda", table, *text, "--with", "labels=tags")
    assert found.data.coords["label"] == ["nature", "trade"]
    assert found.data.others["labels"].sum(1).tolist() == [1 + ("|" in tag) for tag in frame["tags"]]
    found = fitted(tmp_path / "c", "discriminative_lda", table, *text, "--with", "labels=place")
    assert found.data.coords["class"] == ["sea", "town", "wood"]


def test_weights_are_how_often_rows_count(tmp_path):
    rng = np.random.default_rng(1)
    x = rng.poisson(np.where(rng.random(40) < 0.5, 1.0, 6.0)[:, None] * np.array([1, 0.5, 2]))
    frame = pd.DataFrame(x, columns=["a", "b", "c"]).assign(w=rng.integers(1, 4, 40))
    frame.to_csv(tmp_path / "t.csv", index=False)
    code, said = ppl(
        "fit", "mixture_of_poissons", tmp_path / "t.csv", "-k", 2, "--with", "weights=w", "--out", tmp_path / "o"
    )
    assert code == 0, said
    found = Fit.load(tmp_path / "o" / "fit.safetensors")
    model = MixtureOfPoissons(num_components=2, num_features=3)
    same = fit(model, x, weights=frame["w"].to_numpy(), progress=False)
    assert found.data.num_features == 3
    assert np.allclose(found.elbo[-1], same.elbo[-1], rtol=1e-6)


@pytest.mark.parametrize(
    ("model", "beside", "problem"),
    [
        ("supervised_lda", "response=stars", "column 'stars' of"),
        ("supervised_lda", "response=stars:rael", "unknown kind of response 'rael'"),
        ("supervised_lda", "response=star:real", "unknown column 'star'"),
        ("supervised_lda", "response=mood:real", "column 'mood' holds words (the first: "),
        ("supervised_lda", "response=score:counts", "column 'score' of"),
        ("dirichlet_multinomial_regression", "covariates=age:real", "no kind"),
        ("dirichlet_multinomial_regression", "covariates=age,nobody", "unknown column 'nobody'"),
        ("lda", "weights=mood", "weights in 'mood', which hold no numbers"),
        ("lda", "weights=change", "weights in column 'change' are negative or not finite"),
    ],
)
def test_errors_name_the_column(table, tmp_path, model, beside, problem):
    given = ["-k", 2, "--text", "text", "--with", beside, "--out", tmp_path / "out"]
    code, said = ppl("fit", model, table, *given)
    assert code == 1 and problem in said, said


def test_missing_covariates_are_said(table, tmp_path):
    frame = pd.read_csv(table)
    frame.loc[3, "age"] = np.nan
    frame.to_csv(tmp_path / "r.csv", index=False)
    given = ["-k", 2, "--text", "text", "--with", "covariates=sex,age", "--out", tmp_path / "out"]
    code, said = ppl("fit", "dirichlet_multinomial_regression", tmp_path / "r.csv", *given)
    assert code == 1 and "1 cells of column 'age' are empty or not finite (the first: of row 3)" in said


def test_weights_are_those_of_fits_alone(table, tmp_path):
    given = ["-k", 2, "--text", "text", "--with", "weights=w"]
    code, said = ppl("compare", "lda", table, *given)
    assert code == 1 and "weights=... of ppl compare" in said
    code, said = ppl("suggest", table, *given)
    assert code == 1 and "weights=... of ppl suggest" in said
    code, said = ppl("fit", "lda", table, *given, "--method", "nuts", "--out", tmp_path / "o")
    assert code == 1 and "cannot weigh rows" in said
