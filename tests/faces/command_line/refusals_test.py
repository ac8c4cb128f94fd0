"""What the command line refuses: one line, the right exit code, no traceback. And methods by their names."""

from __future__ import annotations

from pathlib import Path

import pytest

import custom_inference
from custom_inference.em.method import EM, VariationalEM
from custom_inference.methods import methods_for, resolve_method
from ppl_models import NOCA, MethodError, ModelError
from tests.faces.command_line.app_test import QUICK, done, example_frame, ppl

pytestmark = pytest.mark.quick


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    example_frame().to_csv(tmp_path / "animals.csv")
    return tmp_path / "animals.csv"


def bad_files(folder: Path) -> dict[str, tuple[Path, str]]:
    contents = {
        "counts": ("count.csv", "a,b\n0,3\n1,0\n", "neither 0 nor 1"),
        "words": ("words.csv", "a,b\n1,red\n0,blue\n1,green\n", "numbers"),
        "empty column": ("column.csv", "a,b\n1,\n0,\n1,\n", "without any observed entry"),
        "all zero": ("zero.csv", "a,b\n0,0\n0,0\n", "every observed entry is 0"),
        "no rows": ("none.csv", "a,b\n", "no rows"),
        "nothing": ("nothing.csv", "", "not readable as csv"),
        "not an npz": ("broken.npz", "hello", "not readable as npz"),
        "ending": ("data.xyz", "1 0", "unknown ending"),
    }
    found = {"missing": (folder / "nowhere.csv", "no such file")}
    for case, (name, text, message) in contents.items():
        (folder / name).write_text(text)
        found[case] = (folder / name, message)
    return found


CASES = ["missing", "counts", "words", "empty column", "all zero", "no rows", "nothing", "not an npz", "ending"]


@pytest.mark.parametrize("case", CASES)
def test_bad_data_is_one_line_and_exit_code_1(case, tmp_path):
    path, message = bad_files(tmp_path)[case]
    result = ppl("fit", "noca", path, "-k", 1, *QUICK, "--out", tmp_path / "out")
    assert result.exit_code == 1, result.output
    lines = [line for line in result.output.splitlines() if not line.startswith("warning: ")]
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert message in lines[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fit", "noka", "FILE", "-k", 2], "unknown model 'noka' (did you mean 'noca'?); valid: aspect_bernoulli, "),
        (["fit", "noca", "FILE", "-k", 7], "num_components = 7 exceeds num_features = 6"),
        (["fit", "noca", "FILE", "-k", 2, "--method", "magic"], "unknown method of NOCA 'magic'; valid: "),
        (["fit", "noca", "FILE", "-k", 2, "--set", "speed=3"], "unknown setting of EM 'speed'; valid: "),
        (["fit", "noca", "FILE", "-k", 2, "--set", "speed"], "expected NAME=VALUE"),
        (["fit", "noca", "FILE", "-k", 2, "--out", "FILE"], "is not a folder"),
        (["fit", "noca", "FILE", "-k", 2, "--json", "FOLDER"], "is a folder"),
        (["compare", "noca", "FILE", "-k", 2, "--methods", "exact,magic"], "unknown method 'magic'; valid: "),
        (["compare", "noca", "FILE", "-k", 2, "--methods", ","], "no methods"),
    ],
)
def test_bad_names_and_values_are_one_line_and_exit_code_1(arguments, message, csv, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    replaced = {"FILE": csv, "FOLDER": tmp_path}
    result = ppl(*[replaced.get(a, a) if isinstance(a, str) else a for a in arguments])
    assert result.exit_code == 1, result.output
    assert result.output.count("\n") == 1
    assert result.output.startswith("error: ")
    assert message in result.output


@pytest.mark.parametrize(
    "arguments",
    [
        ["fit", "noca", "FILE"],
        ["fit", "noca"],
        ["fit", "noca", "FILE", "-k", "three"],
        ["fit", "noca", "FILE", "-k", 0],
        ["fit", "noca", "FILE", "-k", 2, "--image-shape", "8by8"],
        ["fit", "noca", "FILE", "-k", 2, "--colour", "red"],
        ["compare", "noca", "FILE", "-k", 2, "--rows", 0],
        ["learn"],
    ],
)
def test_wrong_options_are_exit_code_2(arguments, csv):
    result = ppl(*[csv if a == "FILE" else a for a in arguments])
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_warnings_about_the_data_are_one_line_each(tmp_path, no_figures):
    example_frame().assign(gnu=0).to_csv(tmp_path / "constant.csv")
    output = done("fit", "noca", tmp_path / "constant.csv", "-k", 2, *QUICK, "--out", tmp_path / "out")
    assert output.startswith("warning: 1 of 7 columns are always 0 (the first: 'gnu')")


def test_methods_come_by_name_with_settings():
    assert resolve_method("em", max_iterations=7) == EM(max_iterations=7)
    assert resolve_method("factorized") == VariationalEM(guide="factorized")
    method = EM()
    assert resolve_method(method) is method
    assert resolve_method(method, tolerance=0.5).tolerance == 0.5
    with pytest.raises(MethodError, match="unknown setting of EM 'speed'; valid: "):
        resolve_method("em", speed=1)
    with pytest.raises(MethodError, match="is not a method"):
        resolve_method(EM)


def test_every_method_that_is_listed_for_noca_has_its_steps():
    model = NOCA.example().model
    assert {"default", "exact", "em", "factorized", "mean_field"} <= set(methods_for(model))
    assert custom_inference.methods_for is methods_for
    for wrong, message in ((NOCA, "the class NOCA is not a model"), ("noca", "'noca' is not a model")):
        with pytest.raises(ModelError, match=message):
            methods_for(wrong)
