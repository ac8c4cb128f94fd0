"""Programs are run by one thread at a time: what Pyro keeps, it keeps for the process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

import custom_inference as ci
from ppl_models import NOCA


def fit(method: str) -> ci.Fit:
    example = NOCA.example()
    settings = {"steps": 30} if method.startswith("svi") else {"num_samples": 4, "warmup": 4, "chains": 1}
    if method == "em":
        settings = {}
    return ci.fit(example.model, example.data, method=method, progress=False, **settings)


@pytest.mark.parametrize("methods", [("svi_normal", "svi_normal"), ("nuts", "svi_delta"), ("em", "svi_delta")])
def test_fits_by_pyro_in_several_threads_are_those_of_one(methods):
    alone = [fit(method) for method in methods]
    with ThreadPoolExecutor(2) as pool:
        beside = list(pool.map(fit, methods))
    for one, other in zip(alone, beside, strict=True):
        assert all(value.equal(other.params[site]) for site, value in one.params.items())
