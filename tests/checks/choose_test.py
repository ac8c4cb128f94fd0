"""How many components: what the sentence says, and that the number is that of the data."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyro.distributions as dist
import pytest
from typer.testing import CliRunner

from custom_inference import Choice, choose
from custom_inference.faces.command_line.app import app
from ppl_models import DataError, MethodError, MixtureOfBernoullis, MixtureOfPoissons


def two_classes(rows: int = 60) -> np.ndarray:
    rng = np.random.default_rng(0)
    chance = np.array([[0.9] * 4 + [0.1] * 4, [0.1] * 4 + [0.9] * 4])
    return (rng.random((rows, 8)) < chance[rng.integers(0, 2, rows)]).astype(float)


QUICK = {"criteria": ("heldout", "bic"), "folds": 2, "progress": False}


@pytest.mark.parametrize("model", ["mixture_of_bernoullis", MixtureOfBernoullis])
def test_the_number_is_that_of_the_data(model):
    found = choose(model, pd.DataFrame(two_classes()), range(1, 5), **QUICK)
    assert found.num_components == 2 and found.model.sizes["component"] == 2
    assert found.fit.model is found.model and list(found.table.index) == ["1", "2", "3", "4"]
    assert found.sentence.startswith("2 components: the held-out score is highest at ")
    assert repr(found).count(found.sentence) == 1 and "best by" not in repr(found)


def test_settings_and_priors_are_those_of_the_model():
    model = MixtureOfPoissons(num_components=7, num_features=8, priors={"rate": dist.Gamma(2.0, 0.5)})
    found = choose(model, two_classes(), [1, 2], criteria=("bic",), progress=False)
    assert [float(one.priors["rate"].concentration) for one in found.models.values()] == [2.0, 2.0]
    assert [one.sizes["component"] for one in found.models.values()] == [1, 2]


def choice(**columns: list[float]) -> Choice:
    """A comparison of as many numbers of components, without errors."""
    table = pd.DataFrame(columns)
    table.index = pd.Index([str(number + 1) for number in range(len(table))])
    return Choice(table, tuple(columns), "row", {name: None for name in table.index})  # type: ignore[dict-item]


def test_ties_are_broken_by_the_next_criterion_and_then_the_fewest():
    nan = float("nan")
    assert choice(bic=[5.0, 3.0, 3.0]).num_components == 2
    assert choice(bic=[5.0, 3.0, 2.0]).sentence == (
        "3 components: BIC is lowest at 3. No more were tried: there may be better ones."
    )
    with pytest.raises(MethodError, match="no criterion has a number"):
        _ = choice(bic=[nan, nan]).num_components
    assert choice(bic=[nan, nan]).sentence == "No criterion has a number, so that nothing follows."


def test_reasons_that_all_numbers_share_are_said_once():
    found = choose("cvq", np.random.default_rng(0).normal(size=(12, 3)), [1, 2], criteria=("evidence",), progress=False)
    assert sum("is flat" in remark for remark in found.remarks) == 1
    with pytest.raises(MethodError, match="no criterion"):
        _ = found.fit


def test_unsuitable_input():
    x = two_classes(10)
    for sizes, match in (([], "no numbers of components"), ([0], "num_components"), ([1.5], "num_components")):
        with pytest.raises(MethodError, match=match):
            choose("mixture_of_bernoullis", x, sizes, **QUICK)
    with pytest.raises(MethodError, match="unknown model 'mixture'"):
        choose("mixture", x, **QUICK)
    with pytest.raises(DataError, match="^1: site 'x'"):
        choose(MixtureOfBernoullis(num_components=1, num_features=8), x + 0.5, [1], **QUICK)


def test_the_command_prints_the_sentence_and_writes_the_figure(tmp_path):
    file = tmp_path / "rows.csv"
    pd.DataFrame(two_classes(40).astype(int), columns=list("abcdefgh")).to_csv(file, index=False)
    options = ["-k", "1,2", "--criteria", "heldout,bic", "--folds", "2", "--no-progress"]
    command = ["choose", "mixture_of_bernoullis", str(file), *options, "--figure", str(tmp_path / "choice.png")]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0 and "2 components: the held-out score" in result.output
    assert (tmp_path / "choice.png").stat().st_size > 1000
    for sizes in ("3-1", "x", "0-2", "2-"):
        result = CliRunner().invoke(app, ["choose", "mixture_of_bernoullis", str(file), "-k", sizes, "--no-progress"])
        assert result.exit_code == 1 and "expected numbers such as 2-8" in result.output
