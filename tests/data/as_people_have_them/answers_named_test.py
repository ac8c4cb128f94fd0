"""Answers by their names where models other than mixtures read them, and along the axes of ArviZ."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from custom_inference import Fit, fit
from ppl_models import RBM, DataError, MixtureOfCategoricals, answers

QUIET = {"progress": False}
OFTEN = ["never", "sometimes", "always"]


def survey(rows=50, *, alike=False):
    """Two kinds of people and two questions, about which they agree."""
    rng = np.random.default_rng(0)
    kind = rng.random(rows) < 0.5
    often = np.where(kind, rng.choice(OFTEN[1:], rows), "never")
    other = np.where(kind, "always", rng.choice(OFTEN[:2], rows)) if alike else np.where(kind, "yes", "no")
    table = pd.DataFrame({"smokes": pd.Categorical(often, OFTEN), "other": other})
    return table.assign(other=pd.Categorical(other, OFTEN)) if alike else table


def test_machines_read_words(tmp_path):
    table = survey()
    model = RBM.for_data(table, 1, visible="categorical")
    assert model.num_categories == (3, 2)
    found, numbers = fit(model, table, **QUIET), fit(model, answers(table).x, **QUIET)
    torch.testing.assert_close(found.params["weight"], numbers.params["weight"])
    assert found.data.coords["answers"] == [("never", "sometimes", "always"), ("no", "yes")]
    assert np.allclose(found.transform(table.iloc[:4]), found.transform(found.data.rows(slice(0, 4))))
    again = Fit.load(found.save(tmp_path / "fit.safetensors"))
    assert again.data.coords["answers"] == found.data.coords["answers"]
    assert "smokes = never" in str(found.report().to_string())
    with pytest.raises(DataError, match="none of those of 'other'.*'maybe'"):
        found.transform(table.iloc[:2].assign(other=["maybe", "no"]))


def test_axes_of_arviz_show_the_answers():
    table = survey(alike=True)
    posterior = fit(MixtureOfCategoricals.for_data(table, 2), table, **QUIET).to_arviz(num_draws=3).posterior
    assert posterior["category"].values.tolist() == OFTEN and posterior["feature"].values.tolist() == [
        "smokes",
        "other",
    ]
    table = survey()
    posterior = fit(MixtureOfCategoricals.for_data(table, 2), table, **QUIET).to_arviz(num_draws=3).posterior
    assert posterior["category"].values.tolist() == [0, 1, 2]
    assert posterior["answer"].sel(feature="other").values.tolist() == ["no", "yes", ""]
    assert posterior["answer"].sel(feature="smokes").values.tolist() == OFTEN
