"""Numbers that stand together are written so that one can tell them apart."""

from __future__ import annotations

import math

import numpy as np
import pytest

from custom_inference import fit
from custom_inference.core.evaluate import component_order
from ppl_models import LDA, NOCA
from ppl_models.core.displays import choose_decimals, write_numbers


@pytest.mark.parametrize(
    ("values", "written"),
    [
        ([0.0012, 0.0013], ["0.0012", "0.0013"]),
        ([0.012, 0.0103, 0.0041], ["0.0120", "0.0103", "0.0041"]),
        ([-28.409, -28.413], ["-28.409", "-28.413"]),
        ([5192.04, 5210.96], ["5192", "5211"]),
        ([0.99999, 0.99998, 0.86], ["1.00", "1.00", "0.86"]),
        ([-15.6652, -15.6652], ["-15.7", "-15.7"]),
        ([3.0, 4.0, 10.0], ["3", "4", "10"]),
        ([0.5, 1e-12], ["0.50", "0.00"]),
        ([0.25, math.nan], ["0.25", ""]),
        ([0.0, 0.0], ["0", "0"]),
        ([], []),
    ],
)
def test_different_numbers_look_different(values, written):
    assert write_numbers(values) == written


def test_random_numbers_are_told_apart():
    rng = np.random.default_rng(0)
    for scale in (1e-5, 1.0, 1e4):
        values = np.sort(scale * rng.random(8))
        told = np.diff(values) > 1e-3 * np.ptp(values)
        different = [a != b for a, b in zip(write_numbers(values), write_numbers(values)[1:], strict=False)]
        assert np.array(different)[told].all() or choose_decimals(values) == 8


def test_words_of_topics_differ_in_what_is_shown():
    example = LDA.example()
    found = fit(example.model, example.data, progress=False)
    for line in found.report(top=3)["strongest"]:
        digits = [part.rsplit(" ", 1)[1].lstrip("0.") for part in line.split(", ")]
        assert all(len(one) >= 2 for one in digits)


def test_the_report_and_the_order_of_components_are_one():
    example = NOCA.example()
    found = fit(example.model, example.data, progress=False)
    assert component_order(found) == found.report().index.tolist()
