"""Sentences through the command line: a text with a sentence a line and empty lines between documents."""

import pytest
from typer.testing import CliRunner

from custom_inference.core.fit import Fit
from custom_inference.faces.command_line.app import app

pytestmark = pytest.mark.usefixtures("no_figures")


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("\n\n".join(["the river met the stream\na stream fed the river", "the bank fed a loan"] * 6))
    return path


def test_texts_are_fitted_with_their_words(file, tmp_path):
    options = ["-k", 2, "--out", tmp_path / "out", "--no-progress", "--set", "num_samples=5"]
    result = run("fit", "ldahmm", file, *options)
    assert result.exit_code == 0, result.output
    fit = Fit.load(tmp_path / "out" / "fit.safetensors")
    assert fit.coords["word"] == ["a", "bank", "fed", "loan", "met", "river", "stream", "the"]
    assert len(fit.data) == 12 and list(fit.tokens()["word"][:5]) == ["the", "river", "met", "the", "stream"]
    assert "river" in result.output


@pytest.mark.parametrize(
    ("options", "message"), [(["--block-rows", 5], "needed at once"), (["--threshold", 1], "for sequences")]
)
def test_options_that_make_no_sense_are_refused(file, tmp_path, options, message):
    result = run("fit", "ldahmm", file, "-k", 2, "--out", tmp_path / "out", "--no-progress", *options)
    assert result.exit_code != 0 and message in " ".join(result.output.split())
