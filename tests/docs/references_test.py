"""The table of what approximations are compared with, in ``docs/exact_or_variational.md``, is that of the code."""

from __future__ import annotations

import re

import pytest
import torch

from custom_inference.core.annealing.local import chains_of
from custom_inference.core.registry import engines_of
from ppl_models import MODELS, PPLError
from tests.support.documentation import ROOT


def _table() -> dict[str, tuple[str, str]]:
    """Model -> what its exact posterior is of, and what there is beyond."""
    page = (ROOT / "docs" / "exact_or_variational.md").read_text("utf-8")
    lines = re.findall(r"^\| (`[A-Z].*?) \| (.*?) \| (.*?) \|$", page, re.MULTILINE)
    found = [(name, (exact, beyond)) for names, exact, beyond in lines for name in re.findall(r"`(\w+)`", names)]
    assert len(found) == len(dict(found))
    return dict(found)


def test_every_model_is_in_the_table_of_references():
    assert set(_table()) == {kind.__name__ for kind in MODELS.values()}


@pytest.mark.parametrize("name", MODELS)
def test_the_table_says_what_there_is(name):
    kind = MODELS[name]
    exact, beyond = _table()[kind.__name__]
    assert (exact == "none is known") == ("exact" not in engines_of(kind.example().model))
    if beyond.startswith("annealing"):
        assert _anneals(name)
    elif beyond == "bounds alone":
        assert not _anneals(name)


def _anneals(name: str) -> bool:
    """Whether there are chains over the locals of the model's example."""
    example = MODELS[name].example()
    model, data = example.model, example.data.to(dtype=torch.float64)
    try:
        chains_of(model, {site: example.truth[site] for site in model.global_sites}, model.as_read(data))
    except PPLError:
        return False
    return True
