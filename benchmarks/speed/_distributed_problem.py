"""What is fitted by several processes, the numbers that an iteration adds up, and one process of a measurement."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import scipy.sparse
import torch

from custom_inference.core.processes import Surroundings, begin_worker
from custom_inference.core.registry import engine_for
from custom_inference.em.steps import EMStep, Position
from custom_inference.faces import distributed
from ppl_models import CVQ, LDA, MMSB, NOCA, AspectBernoulli, Data, Model
from ppl_models.datasets import sample_mmsb

#: Bytes of a number in double precision.
WIDTH = 8


@dataclass(frozen=True)
class Engine:
    """name of the bound; numbers: how many double precision numbers an iteration adds up, and in how many messages."""

    model: Model
    bound: str
    rows: Callable[[int, int], Data]
    formula: str
    numbers: Callable[[int], tuple[int, int]]
    settings: tuple[tuple[str, Any], ...] = ()
    all_rows: bool = False


def noca_exact(size: int, features: int, *, holes: bool = False) -> int:
    """The expected number of rows with each code, and of ones, and of observed entries where some are missing."""
    return 2**size * (1 + features * (2 if holes else 1)) + 1


def cvq(size: int, features: int, *, holes: bool = False) -> int:
    """<s>, rows, <ss'> (of each feature where entries are missing), <s>'x, x'x, observed, bound."""
    return size + 1 + size**2 * (features if holes else 1) + size * features + 2 * features + 1


def aspects(size: int, features: int, *, newton: bool) -> int:
    """on and off, bound; of Newton steps the curvature, the columns' parts of F before and after, too."""
    more = features * (size * (size + 1) // 2 + 2) if newton else 0
    return 2 * size * features + 1 + more


def topics(size: int, words: int) -> int:
    """Expected counts of every word in every topic, and the bound."""
    return size * words + 1


def memberships(size: int, nodes: int) -> int:
    """Expected counts of every node's blocks, of links and gaps between blocks, of the background; the bound."""
    return nodes * size + 2 * size**2 + 2


def binary_rows(features: int) -> Callable[[int, int], Data]:
    def rows(number: int, seed: int) -> Data:
        generator = torch.Generator().manual_seed(seed)
        source = (torch.rand(number, 8, generator=generator) < 0.3).double()
        loading = (torch.rand(8, features, generator=torch.Generator().manual_seed(99)) < 0.25).double() * 0.8
        off = (1 - loading).log()
        return Data(x=(torch.rand(number, features, generator=generator) < 1 - 0.97 * (source @ off).exp()).double())

    return rows


def real_rows(features: int) -> Callable[[int, int], Data]:
    def rows(number: int, seed: int) -> Data:
        x = binary_rows(features)(number, seed).x
        return Data(x=x + 0.1 * torch.randn(x.shape, generator=torch.Generator().manual_seed(seed)))

    return rows


def documents(words: int) -> Callable[[int, int], Data]:
    def rows(number: int, seed: int) -> Data:
        weight = 1 / torch.arange(1, words + 1, dtype=torch.float64)
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.multinomial(weight.expand(number, -1), 100, replacement=True, generator=generator)
        counts = torch.zeros(number, words).scatter_add_(1, drawn, torch.ones(number, 100))
        return LDA(num_topics=2, vocabulary_size=words).prepare(scipy.sparse.csr_matrix(counts.numpy()))

    return rows


def graph(size: int) -> Callable[[int, int], Data]:
    def rows(number: int, seed: int) -> Data:
        del seed  # every process has the whole graph
        within = 0.02 + 0.2 * torch.eye(size)
        return sample_mmsb(within, number, seed=0).data

    return rows


def engines(nodes: int) -> dict[str, Engine]:
    """The engines that are measured; ``nodes`` is the size of the graph."""
    return {
        "NOCA, exact": Engine(
            NOCA(num_components=8, num_features=64), "exact", binary_rows(64), "2^K (D + 1) + 1",
            lambda n: (noca_exact(8, 64), 1),
        ),
        "CVQ, exact": Engine(
            CVQ(num_components=8, num_features=64), "exact", real_rows(64), "K^2 + K (D + 1) + 2 D + 2",
            lambda n: (cvq(8, 64), 1),
        ),
        "aspect Bernoulli, map": Engine(
            AspectBernoulli(num_components=8, num_features=256), "map", binary_rows(256),
            "2 K D + D (K (K + 1) / 2 + 2) + 1", lambda n: (aspects(8, 256, newton=True), 2), (("update", "newton"),),
        ),
        "LDA, vb": Engine(
            LDA(num_topics=20, vocabulary_size=2000), "vb", documents(2000), "K V + 1", lambda n: (topics(20, 2000), 1)
        ),
        "MMSB, vb": Engine(
            MMSB(num_blocks=8, num_nodes=nodes), "vb", graph(8), "N K + 2 K^2 + 2",
            lambda n: (memberships(8, n), 1), (("zeros", "each"),), all_rows=True,
        ),
    }  # fmt: skip


# ----- on paper ---------------------------------------------------------------------------------------------------


def ring_bytes(size: int, processes: int) -> float:
    """What a worker sends, and receives, in a ring all-reduce of ``size`` bytes: 2 (P - 1) / P of them."""
    return 2 * (processes - 1) / processes * size


def seconds(size: int, messages: int, processes: int, *, bits: float, latency: float, tree: bool = False) -> float:
    """Of the all-reduces of an iteration: ``size`` bytes in so many messages, each of 2 (P - 1) steps in a ring, or of
    2 log2 P in a tree."""
    if processes == 1:
        return 0.0
    steps = 2 * math.ceil(math.log2(processes)) if tree else 2 * (processes - 1)
    return 8 * ring_bytes(size, processes) / bits + messages * steps * latency


def rows_for(communication: float, second_per_row: float, share: float = 0.1) -> float:
    """Rows a worker needs for communication to take ``share`` of its computing."""
    return communication / (share * second_per_row)


# ----- one process of a measurement -------------------------------------------------------------------------------


def member(rank: int, size: int, folder: Path, jobs: list[tuple[str, int, int]], iterations: int) -> None:
    """Takes part in all jobs (engine, rows of each process, nodes of the graph); the first writes what it measured."""
    begin_worker(Surroundings({}, 1, torch.float64), GLOO_SOCKET_IFNAME="lo")
    meeting = f"file://{folder}/meeting-{size}"
    with distributed.group(init_method=meeting, rank=rank, world_size=size) as pool, torch.no_grad():
        found = [_iterations(name, rows, nodes, pool, iterations) for name, rows, nodes in jobs]
    if rank == 0:
        (folder / f"{size}.json").write_text(json.dumps(found))


def _iterations(name: str, number: int, nodes: int, pool: Any, iterations: int) -> dict[str, Any]:
    engine = engines(nodes)[name]
    chosen = engine_for(engine.model, engine.bound, **dict(engine.settings))
    rows = chosen.rows(engine.model, engine.model.prepare(engine.rows(number, 7 * pool.rank), dtype=torch.float64))
    generator = torch.Generator().manual_seed(0)
    state = pool.from_first(lambda: chosen.initial(engine.model, rows, generator))  # starts are drawn alone
    driver = EMStep(chosen, engine.model, chosen.divide_rows(rows, pool), pool)
    at, lines = Position((state, None)), []
    for _ in range(iterations):
        pool.wait()
        before, begin = (pool.traffic, pool.calls, pool.seconds), time.perf_counter()
        at.start, _ = driver.advance(driver.evaluate(at, 1.0), 1.0)
        seconds = time.perf_counter() - begin
        lines.append([seconds, pool.seconds - before[2], pool.traffic - before[0], pool.calls - before[1]])
    warm = lines[len(lines) // 3 :]  # caches are filled, first E steps take longer
    middle = sorted(warm)[len(warm) // 2]
    names = ("seconds", "communication", "bytes", "messages")
    return {"engine": name, "rows": number, **dict(zip(names, middle, strict=True))}
