"""Documents in shards: the same result for any number of threads, the same fixed points, counts that add up."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from custom_inference.core import threads
from custom_inference.core.threads import count_shards, cut_evenly, map_in_threads
from custom_inference.families.rows.documents import DocumentRows
from custom_inference.families.topics import kernels
from custom_inference.families.topics.chain import LdaChain, TokenList
from ppl_models.datasets import topic_corpus

pytestmark = pytest.mark.quick

TOPICS = 4


@pytest.fixture(scope="module")
def rows() -> DocumentRows:
    return DocumentRows.of(topic_corpus(120, num_topics=TOPICS, vocabulary_size=50, length=40, seed=0).data)


def on_threads(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: number)


def test_ranges_cover_the_rows_evenly():
    ends = np.concatenate([[0], np.random.default_rng(0).integers(0, 9, 200).cumsum()])
    cuts = cut_evenly(ends, 3)
    assert cuts[0][0] == 0 and cuts[-1][1] == 200 and all(a[1] == b[0] for a, b in pairwise(cuts))
    assert all(abs(ends[last] - ends[first] - ends[-1] / 3) < 9 for first, last in cuts)
    assert cut_evenly([0, 5], 4) == [(0, 1)] and cut_evenly([0], 3) == []


def test_small_work_is_not_cut():
    assert count_shards(1e4, 10, 1e5) == count_shards(1e6, 1e6, 1e5) == 1
    assert count_shards(3e5, 10, 1e5) == 2 and count_shards(1e9, 10, 1e5) == threads.MOST_SHARDS


def test_values_come_in_order_and_errors_are_raised(monkeypatch):
    on_threads(monkeypatch, 3)
    assert map_in_threads(lambda i: i * i, range(7)) == [i * i for i in range(7)]
    with pytest.raises(ZeroDivisionError):
        map_in_threads(lambda i: 1 // i, range(3))


def passes(rows: DocumentRows, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Make so many passes of CVB0; return the counts and the shares."""
    generator = torch.Generator().manual_seed(0)
    topic = torch.rand(rows.counts.shape[1], TOPICS, generator=generator, dtype=torch.float64)
    alpha = torch.full((TOPICS,), 0.1, dtype=torch.float64)
    share = kernels.start_documents(rows, topic / topic.sum(0), alpha, 3)
    counts = rows.sum_shares(share)
    for _ in range(number):
        bound = torch.zeros_like(rows.lengths)
        counts = kernels.refresh_documents(rows, share, alpha, counts + 0.05, bound, 1.0)
    return counts, share


def test_passes_in_shards_do_not_depend_on_threads_and_end_where_one_pass_ends(rows, monkeypatch):
    whole, shares = passes(rows, 400)
    monkeypatch.setattr(kernels, "count_shards", lambda *_: 3)
    on_threads(monkeypatch, 1)
    alone, found = passes(rows, 400)
    on_threads(monkeypatch, 3)
    several, same = passes(rows, 400)
    assert alone.equal(several) and found.equal(same)
    assert torch.allclose(alone, rows.sum_shares(found), atol=1e-9)
    # From one start both end in a fixed point; here it is the same one.
    assert float((whole - alone).abs().max()) < 1e-3 and float((shares - found).abs().max()) < 1e-3


def chain(rows: DocumentRows, shards: int, sweeps: int) -> LdaChain:
    made = LdaChain(TokenList.of(rows), TOPICS, 0.1, 0.05, 3, shards=shards)
    for _ in range(sweeps):
        made.sweep()
    return made


def test_chains_in_shards_do_not_depend_on_threads_and_keep_their_counts(rows, monkeypatch):
    on_threads(monkeypatch, 1)
    alone = chain(rows, 3, 20)
    on_threads(monkeypatch, 3)
    several = chain(rows, 3, 20)
    assert np.array_equal(alone.topic, several.topic) and np.array_equal(alone.word_topic, several.word_topic)
    counted = np.zeros_like(alone.word_topic)
    np.add.at(counted, (alone.tokens.word, alone.topic), 1)
    assert np.array_equal(counted, alone.word_topic) and np.array_equal(alone._total[:TOPICS], counted.sum(0))


def test_chains_in_shards_come_as_far_as_whole_ones(rows):
    """Means over 60 sweeps of log p(y, q): what the approximation costs is less than chains differ by."""

    def level(shards: int) -> float:
        made = chain(rows, shards, 60)
        values = []
        for _ in range(60):
            made.sweep()
            values.append(made.log_joint())
        return float(np.mean(values))

    assert abs(level(1) - level(3)) < 0.01 * abs(level(1))
