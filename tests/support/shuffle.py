"""Tests in a random order: ``pytest --shuffle SEED``."""

from __future__ import annotations

import random

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run the tests in a random order")


def shuffled(config: pytest.Config, items: list[pytest.Item]) -> bool:
    """Whether an order was asked for, which the items then have."""
    seed = config.getoption("--shuffle")
    if seed is None:
        return False
    items.sort(key=lambda item: item.nodeid)  # of every worker alike
    random.Random(seed).shuffle(items)
    return True
