"""The command line under arbitrary arguments: exit code 0, 1 or 2, one line that says why, valid JSON or none."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from custom_inference.faces.command_line import demo as _demo
from custom_inference.faces.command_line import output as _cli_output
from custom_inference.faces.command_line.app import app
from ppl_models import MODELS
from tests.support.fuzz import fuzz

X = (np.random.default_rng(0).random((12, 5)) < 0.5).astype(int)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Files of every kind, good and bad, and a folder that is in the way."""
    made = tmp_path_factory.mktemp("cli")
    pd.DataFrame(X, columns=list("uvwxy")).to_csv(made / "rows.csv", index=False)
    pd.DataFrame(X[:5, :5] | X[:5, :5].T).to_csv(made / "graph.csv", index=False)
    np.savez(made / "two.npz", A=X, B=X[:, :3], names=np.array(list("uvwxy")))
    texts = {"texts.txt": "the river bank\nbank and loan\nriver river flow\n", "c.ldac": "2 0:1 3:2\n1 1:1\n",
             "edges.txt": "a b\nb c\nc a\nc d\n", "empty.csv": "", "header.csv": "a,b\n", "words.csv": "a,b\nx,y\n",
             "broken.npz": "no zip", "broken.parquet": "PAR1", "broken.gml": "graph [", "data.xyz": "1",
             "vocabulary.txt": "river\nbank\n", "huge.ldac": "1 999999999999:1\n"}  # fmt: skip
    for name, text in texts.items():
        (made / name).write_text(text)
    (made / "taken").mkdir()
    (made / "taken" / "fit.safetensors").mkdir()
    return made


FILES = ["rows.csv", "graph.csv", "two.npz", "texts.txt", "c.ldac", "edges.txt", "empty.csv", "header.csv",
         "words.csv", "broken.npz", "broken.parquet", "broken.gml", "data.xyz", "huge.ldac", "nowhere.csv", "taken",
         ".", ""]  # fmt: skip
NAMES = st.sampled_from(["A", "B", "names", "nothing", ""])
NUMBERS = st.sampled_from(["0", "1", "2", "3", "-1", "7", "1e9", "nan", "inf", "three", "", "99999999999999999999"])
METHODS = st.sampled_from(["default", "em", "exact", "mean_field", "vb", "svi", "gibbs", "magic", "", "em,exact", ","])
SETTINGS = st.sampled_from(["max_iterations=2", "max_iterations=0", "max_iterations=x", "tolerance=-1", "search=null",
                            "speed=3", "=", "x", "steps=2", "guide=os.system", "max_iterations=[1]", "search=3",
                            "batch_size=4", "batch_size=0", "tolerance=NaN", "accelerate=eval"])  # fmt: skip
OPTIONS: dict[str, Any] = {
    "--seed": NUMBERS, "--columns": NAMES, "--matrix": NAMES, "--labels": NAMES, "--mask-value": NUMBERS,
    "--threshold": NUMBERS, "--min-count": NUMBERS, "--max-share": NUMBERS,
    "--stop-words": st.sampled_from(["english", "klingon"]),
    "--vocabulary": st.sampled_from(["FOLDER/vocabulary.txt", "FOLDER/nowhere.txt", "FOLDER/taken"]),
    "--transpose": st.just(None), "--drop-empty-rows": st.just(None), "--directed": st.just(None),
    "--undirected": st.just(None), "--colour": NUMBERS,
}  # fmt: skip
OF_FIT: dict[str, Any] = {
    "--image-shape": st.sampled_from(["1x5", "5x1", "8x8", "x", "0x5", "1x5x1"]),
    "--method": METHODS,
    "--set": SETTINGS,
    "--top": NUMBERS,
    "--out": st.sampled_from(["FOLDER/out", "FOLDER/rows.csv", "FOLDER/taken"]),
}
OF_COMPARE: dict[str, Any] = {"--methods": METHODS, "--rows": NUMBERS}


@st.composite
def arguments(draw: st.DrawFn, command: str) -> list[str]:
    options = OPTIONS | (OF_FIT if command == "fit" else OF_COMPARE)
    model = draw(st.sampled_from([*MODELS, "noca", "mixture_of_bernoullis", "sbm", "lda", "NOCA", "magic", ""]))
    file = draw(st.sampled_from([*FILES, "rows.csv", "rows.csv", "edges.txt", "texts.txt"]))
    chosen = [command, model, f"FOLDER/{file}"]
    chosen += ["-k", draw(st.one_of(st.sampled_from(["1", "2"]), NUMBERS)), "--no-progress"]
    for name in draw(st.lists(st.sampled_from(sorted(options)), max_size=3, unique=True)):
        value = draw(options[name])
        chosen += [name] if value is None else [name, value]
    if draw(st.booleans()):
        chosen += ["--json", draw(st.sampled_from(["FOLDER/found.json", "FOLDER/taken", "FOLDER/deep/found.json"]))]
    return draw(st.permutations(chosen[:3]))[:3] + chosen[3:] if draw(st.integers(0, 19)) == 0 else chosen


def _constant(name: str) -> Any:
    raise AssertionError(f"{name} is no JSON")


def _run(given_: list[str], folder: Path) -> int:
    """The exit code, after everything that is printed and written was looked at."""
    for old in (folder / "found.json", folder / "deep" / "found.json"):
        old.unlink(missing_ok=True)
    words = [word.replace("FOLDER", str(folder)) for word in given_]
    if "--out" not in words and words[:1] == ["fit"]:
        words += ["--out", str(folder / "out")]
    result = CliRunner().invoke(app, words)
    shown = (words, result.output)
    assert result.exception is None or isinstance(result.exception, SystemExit), (words, repr(result.exception))
    assert result.exit_code in (0, 1, 2), shown
    assert "Traceback" not in result.output, shown
    errors = [line for line in result.output.splitlines() if line.startswith("error: ")]
    assert len(errors) == (result.exit_code == 1) and all(len(line) > 20 for line in errors), shown
    for found in (folder / "found.json", folder / "deep" / "found.json"):
        if found.exists():
            assert result.exit_code == 0, shown
            assert isinstance(json.loads(found.read_text(), parse_constant=_constant), dict)
    return result.exit_code


@pytest.fixture(autouse=True, scope="module")
def _quick(tmp_path_factory):
    """No figures, which take their time; they are tested by themselves. In a folder of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("here"))  # words make files too: --json --help
        patch.setattr(_cli_output, "figures", lambda *_, **__: {})
        yield


@pytest.mark.parametrize("command", ["fit", "compare"])
@given(data=st.data())
@fuzz(10)
@pytest.mark.filterwarnings("ignore")
def test_any_arguments_are_done_or_refused_in_one_line(command, data, folder):
    words = data.draw(arguments(command))
    if command == "fit" and "--set" not in words and words[:1] == ["fit"]:
        words += ["--method", "em", "--set", "search=null", "--set", "max_iterations=2"]
    _run(words, folder)


@given(words=st.lists(st.sampled_from(["fit", "compare", "models", "demo", "noca", "-k", "2", "--json", "--help", "-x",
                                       "--seed", "", "--rows", "0", "--components", "99"]), max_size=4))  # fmt: skip
@fuzz(15)
def test_any_words_are_done_or_refused(words, tmp_path_factory, folder):
    if "demo" in words[:1] and "--help" not in words:
        words = [*words, "--rows", "0"]  # the demonstration itself takes its time
    _run(words, folder)


@pytest.mark.filterwarnings("ignore")
def test_the_demonstration_refuses_what_it_cannot_write(folder, monkeypatch):
    assert _run(["demo", "--rows", "20", "--out", "FOLDER/rows.csv"], folder) == 1
    assert _run(["demo", "--rows", "20", "--out", "FOLDER/demo", "--json", "FOLDER/taken"], folder) == 1
    monkeypatch.setattr(_demo, "default_fit", lambda *_, **__: (_ for _ in ()).throw(MemoryError))
    assert _run(["demo", "--rows", "20", "--out", "FOLDER/demo"], folder) == 1


def test_json_has_no_numbers_that_are_none():
    assert _cli_output._plain({"a": math.nan, "b": [math.inf, 1.0]}) == {"a": None, "b": [None, 1.0]}
