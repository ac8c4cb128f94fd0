"""Every test in float64, with an empty parameter store, on one thread."""

from __future__ import annotations

import os
from pathlib import Path

import matplotlib
import pyro
import pytest
import torch
from hypothesis import settings

matplotlib.use("Agg")
torch.set_num_threads(1)
#: The same examples in every run; ``--hypothesis-profile search`` draws new ones.
settings.register_profile("same", derandomize=True)
settings.register_profile("search", max_examples=200, deadline=None)
settings.load_profile("same")

#: The files that take longest go first: where a file is one worker's, the others would wait for it in the end.
LONGEST = ("notebooks_test.py", "distributed_test.py", "fits_test.py", "distributed_failures_test.py", "readme_test.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.name, len(order)))


@pytest.fixture(autouse=True)
def _clean_state():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    yield
    torch.set_default_dtype(before)
    pyro.clear_param_store()


@pytest.fixture
def real_data() -> Path:
    """The folder of real data sets, where there is one."""
    folder = os.environ.get("PPL_DATA")
    if not folder:
        pytest.skip("PPL_DATA is not set: no folder of real data to read")
    return Path(folder)
