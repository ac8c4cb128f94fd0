"""Fits that divide their work among threads: the same bits for any number of them, and settings put back."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

import custom_inference as ci
from custom_inference.core.threads import HeldLibraries, map_in_threads
from custom_inference.em import starts
from custom_inference.families.blocks import pairs
from custom_inference.families.correlated import chain
from custom_inference.families.mixtures import rows
from custom_inference.families.noca import truncated
from ppl_models import CTM, IRM, MMSB, NOCA, SBM, MixtureOfBernoullis, relations
from ppl_models.datasets import sample_mmsb, sample_sbm

RATE = (np.full((2, 2), 1.0) + 9 * np.eye(2)) / 40


def fit_blocks() -> ci.Fit:
    return ci.fit(SBM(num_blocks=2, num_nodes=400, directed=False), sample_sbm(RATE, 400, directed=False, seed=0).data)


def fit_memberships() -> ci.Fit:
    x = sample_mmsb(RATE, 90, directed=False, seed=0).data
    return ci.VariationalEM(guide="vb", max_iterations=5).fit(MMSB(num_blocks=2, num_nodes=90, directed=False), x)


def fit_relations() -> ci.Fit:
    x, axes = {"likes": np.random.default_rng(0).integers(2, size=(12, 12))}, {"likes": ("person", "person")}
    data = relations(x, axes, self_loops=True)
    return ci.fit(IRM.for_data(data), data, method="search", rounds=20, num_samples=6)


def fit_mixture() -> ci.Fit:
    x = np.random.default_rng(0).integers(2, size=(300, 6))
    return ci.fit(MixtureOfBernoullis(num_components=4, num_features=6), x)


def fit_sources() -> ci.Fit:
    x = np.random.default_rng(0).integers(2, size=(150, 12))
    return ci.VariationalEM(guide="truncated", max_iterations=5).fit(NOCA(num_components=3, num_features=12), x)


def fit_correlated() -> ci.Fit:
    x = np.random.default_rng(0).multinomial(30, np.full(20, 0.05), size=60)
    return ci.CollapsedGibbs(chains=1, warmup=4, num_samples=4).fit(CTM(num_topics=2, vocabulary_size=20), x)


FITS = {
    "SBM": fit_blocks,
    "MMSB": fit_memberships,
    "IRM": fit_relations,
    "mixture": fit_mixture,
    "NOCA": fit_sources,
    "CTM": fit_correlated,
}


@pytest.mark.parametrize("name", FITS)
def test_the_number_of_threads_changes_no_bit(name, monkeypatch):
    from custom_inference.families.blocks import bethe_sweeps

    monkeypatch.setattr(bethe_sweeps, "_LARGE", 0)  # groups of nodes, parts and shards, of small data too
    monkeypatch.setattr(pairs, "_LARGE", 0)
    monkeypatch.setattr(starts, "_LONG", 0)  # starts too are made in threads
    monkeypatch.setattr(rows, "_PART", 300)
    monkeypatch.setattr(truncated, "_LEAST", 100)
    monkeypatch.setattr(chain, "_SHARD_TOKENS", 100)
    found: list[Any] = []
    for number in (1, 3):
        torch.set_num_threads(number)
        try:
            found.append(FITS[name]())
            assert torch.get_num_threads() == number
        finally:
            torch.set_num_threads(1)
    first, second = found
    assert first.elbo.equal(second.elbo)
    assert all(value.equal(second.params[site]) for site, value in first.params.items())


def test_libraries_have_one_thread_while_fits_hold_them():
    torch.set_num_threads(3)
    try:
        HeldLibraries.hold()
        HeldLibraries.hold()
        assert torch.get_num_threads() == 1 and HeldLibraries.count_threads() == 3
        HeldLibraries.release()
        assert torch.get_num_threads() == 1
        HeldLibraries.release()
        assert torch.get_num_threads() == HeldLibraries.count_threads() == 3
    finally:
        torch.set_num_threads(1)


def test_libraries_keep_their_threads_where_an_engine_divides_nothing(monkeypatch):
    """Exact sums over few codes are products of matrices, which libraries divide."""
    held, x = [], np.random.default_rng(0).integers(2, size=(30, 5))
    monkeypatch.setattr(HeldLibraries, "hold", lambda: held.append(None))
    for guide in ("exact", "truncated"):
        ci.VariationalEM(guide=guide, max_iterations=2).fit(NOCA(num_components=2, num_features=5), x)
    assert len(held) == 1


def test_threads_that_share_work_divide_no_further():
    inner = map_in_threads(lambda _: map_in_threads(lambda _: threading.get_ident(), range(4), 4), "ab", 2)
    assert all(len(set(one)) == 1 for one in inner)


def test_threads_take_gradients_as_the_one_that_divides_its_work():
    both = threading.Barrier(2)

    def ask(_: int) -> bool:
        both.wait(timeout=30)
        return torch.is_grad_enabled()

    with torch.no_grad():
        assert map_in_threads(ask, range(2), 2) == [False, False]
    assert map_in_threads(ask, range(2), 2) == [True, True]


def test_what_a_part_raises_is_raised_and_ends_the_others():
    done = []

    def work(part: int) -> int:
        done.append(part)
        if part == 3:
            raise ValueError("three")
        return part

    with pytest.raises(ValueError, match="three"):
        map_in_threads(work, range(1000), 2)
    assert len(done) < 1000
    assert map_in_threads(lambda part: part**2, range(50), 3) == [part**2 for part in range(50)]


def test_work_of_several_callers_is_shared_by_the_same_helpers():
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda n: map_in_threads(lambda part: part + n, range(20), 2), range(8)))
    assert found == [[part + n for part in range(20)] for n in range(8)]


def count_in_both_threads() -> list[int]:
    """torch's number of threads in each of two that share work; neither takes both parts."""
    both = threading.Barrier(2)

    def count(_: int) -> int:
        both.wait(timeout=30)
        return torch.get_num_threads()

    return map_in_threads(count, range(2), 2)


def test_helpers_have_the_number_of_threads_that_libraries_have_now():
    torch.set_num_threads(2)
    try:
        assert count_in_both_threads() == [2, 2]
        HeldLibraries.hold()
        assert count_in_both_threads() == [1, 1]
        HeldLibraries.release()
        assert count_in_both_threads() == [2, 2]
    finally:
        torch.set_num_threads(1)
