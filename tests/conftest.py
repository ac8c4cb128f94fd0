"""Every test in float64, with an empty parameter store, on one thread."""

from __future__ import annotations

import os
from pathlib import Path

import matplotlib
import pyro
import pytest
import torch
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

from ppl_models import MODELS
from tests.support import budget, shuffle

matplotlib.use("Agg")
torch.set_num_threads(1)
#: The same examples in every run; ``--hypothesis-profile search`` draws new ones.
settings.register_profile("same", derandomize=True)
settings.register_profile("search", max_examples=200, deadline=None)
settings.load_profile("same")

#: The files that take longest go first: where a file is one worker's, the others would wait for it in the end.
LONGEST = (
    "notebooks_test.py", "distributed_test.py", "fits_test.py", "distributed_failures_test.py", "readme_test.py",
    "models_test.py", "documents_test.py", "own_model_test.py",
)  # fmt: skip
#: Those whose tests have nothing in common.
APART = ("notebooks_test.py", "readme_test.py")


class ByModelAndFile(LoadFileScheduling):
    """A file is one worker's. So are a family's tests, which share what it compiles, and the conformance tests of a
    model, which share its fits."""

    def _split_scope(self, nodeid: str) -> str:
        path, _, test = nodeid.partition("::")
        if path.endswith(APART):
            return nodeid
        named = [part for part in test.partition("[")[2].rstrip("]").split("-") if part in MODELS]
        if named and "conformance" in path:
            return f"conformance {named[0]}"
        return path.rpartition("/")[0] if "/families/" in path else path


def pytest_xdist_make_scheduler(config: pytest.Config, log) -> ByModelAndFile | None:
    return ByModelAndFile(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_addoption(parser: pytest.Parser) -> None:
    shuffle.pytest_addoption(parser)
    budget.pytest_addoption(parser)


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--measure"):
        config.pluginmanager.register(budget.Measure(Path(config.getoption("--measure"))))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    budget.mark_slow(items)
    if not shuffle.shuffled(config, items):
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
