"""Graphs of any size with planted blocks, drawn without an array of all dyads, and the cost of a sweep on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from benchmarks.quality._common import cpu_seconds
from benchmarks.quality._graph_data import KnownGraph, Labels
from benchmarks.quality._graph_ours import data_of, model_of
from custom_inference import CollapsedGibbs, VariationalBayes, VariationalEM


def planted(num_nodes: int, degree: float, num_blocks: int, seed: int, *, within: float = 0.8) -> KnownGraph:
    """About ``num_nodes * degree / 2`` undirected edges, a share of them within equal blocks, the others anywhere."""
    rng = np.random.default_rng(seed)
    block = rng.permutation(np.arange(num_nodes) % num_blocks)
    number = round(num_nodes * degree / 2)
    i, j = rng.integers(0, num_nodes, (2, number))
    inside = rng.random(number) < within
    j[inside] = _of_same_block(block, i[inside], rng)
    low, high = np.minimum(i, j), np.maximum(i, j)
    key = np.unique((low * num_nodes + high)[low < high])
    edges = np.stack(np.divmod(key, num_nodes), 1)
    return KnownGraph("planted", edges, num_nodes, False, {"block": block})


def _of_same_block(block: Labels, i: Labels, rng: np.random.Generator) -> Labels:
    order = np.argsort(block, kind="stable")
    size = np.bincount(block)
    first = np.cumsum(size) - size
    return order[first[block[i]] + rng.integers(0, size[block[i]])]


# ----- sweeps ---------------------------------------------------------------------------------------------------------


def _variational(
    kind: str, known: KnownGraph, size: int, iterations: int, guide: str | VariationalBayes = "vb"
) -> tuple[int, float]:
    method = VariationalEM(guide=guide, search=None, accelerate=None, max_iterations=iterations, tolerance=1e-300)
    model, data = model_of(kind, known, size), data_of(known)
    fit, seconds = cpu_seconds(lambda: method.fit(model, data, seed=0, progress=False))
    return len(fit.elbo), seconds


def _sampled(kind: str, known: KnownGraph, size: int, iterations: int) -> tuple[int, float]:
    method = CollapsedGibbs(chains=1, warmup=iterations, num_samples=1, thin=1, search=False)
    model, data = model_of(kind, known, size), data_of(known)
    return iterations, cpu_seconds(lambda: method.fit(model, data, seed=0, progress=False))[1]


def _stochastic(kind: str, known: KnownGraph, size: int, iterations: int) -> tuple[int, float]:
    from custom_inference.families.memberships.stochastic import StochasticMMSB

    method, model, data = StochasticMMSB(steps=iterations), model_of(kind, known, size), data_of(known)
    return iterations, cpu_seconds(lambda: method.fit(model, data, seed=0, progress=False))[1]


class Engine(NamedTuple):
    """run(graph, K, iterations): iterations done, CPU seconds. most: nodes of the largest graph it is measured on.

    lengths: iterations of the two runs whose difference is taken.
    """

    run: Callable[[KnownGraph, int, int], tuple[int, float]]
    most: int
    lengths: tuple[int, int] = (3, 13)


def sweep_seconds(engine: Engine, known: KnownGraph, size: int) -> float:
    """CPU seconds of an iteration: the difference of two runs, as preparing does not count, each the faster of two,
    since the first may compile. Raises RuntimeError where more iterations took no longer."""
    (few, first), (many, second) = (
        min((engine.run(known, size, number) for _ in range(2)), key=lambda run: run[1]) for number in engine.lengths
    )
    if second <= first:
        raise RuntimeError(f"{many} iterations took {second:g} s, {few} took {first:g} s: take longer runs")
    return (second - first) / max(many - few, 1)


_EACH, _SHARED = VariationalBayes(zeros="each"), VariationalBayes(zeros="shared")
ENGINES = {
    "SBM, VB": Engine(lambda *given: _variational("SBM", *given), 10**6),
    "SBM, collapsed Gibbs": Engine(lambda *given: _sampled("SBM", *given), 10**6, (3, 43)),
    "MMSB, VB": Engine(lambda *given: _variational("MMSB", *given, _EACH), 10**4),
    "MMSB, VB, shared zeros": Engine(lambda *given: _variational("MMSB", *given, _SHARED), 10**6),
    "MMSB, stochastic VB": Engine(lambda *given: _stochastic("MMSB", *given), 10**4, (100, 500)),
    "MMSB, collapsed Gibbs": Engine(lambda *given: _sampled("MMSB", *given), 2000, (3, 43)),
}
