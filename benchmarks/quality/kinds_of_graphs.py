"""Kinds of graphs that block models generate and find again (Murphy 2012, section 27.5.1, Figs. 27.18 to 27.20).

    python -m benchmarks.quality.kinds_of_graphs [--quick]

Writes ``benchmarks/results/kinds_of_graphs.{md,json}`` and a figure. Rings, dominance hierarchies, common causes and
common effects of Fig. 27.20, and the nine nodes of Figs. 27.18 and 27.19, whose blocks {1, 4, 6}, {2, 3, 5, 8} and
{7, 9} form a ring. The source prints pictures only, so that graphs are drawn anew, with nodes in random order. Effects
(or causes) of equal strength would be one block, as nothing tells them apart: their arrows have .1, .5 and .9.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.special import betaln, gammaln, logsumexp

from benchmarks._report import QUICK, RESULTS, Table, write_report
from benchmarks.quality import _graph_ours as ours
from benchmarks.quality._common import quiet_and_single_threaded, spread
from benchmarks.quality._graph_data import Array, KnownGraph, Labels, agreement
from benchmarks.quality._graph_figures import block_graphs, save

OFF = 0.02


class Kind(NamedTuple):
    """eta (K, K): probability of an edge from a block to another; sizes of the blocks."""

    name: str
    eta: Array
    sizes: tuple[int, ...]


def _ring(size: int, on: float) -> Array:
    return np.where(np.roll(np.eye(size), 1, axis=1) > 0, on, OFF)


def _cause() -> Array:
    eta = np.full((4, 4), OFF)
    eta[0, 1:] = (0.1, 0.5, 0.9)
    return eta


KINDS = (
    Kind("ring", _ring(4, 0.5), (15, 15, 15, 15)),
    Kind("dominance hierarchy", np.where(np.triu(np.ones((4, 4)), 1) > 0, 0.5, OFF), (15, 15, 15, 15)),
    Kind("common cause", _cause(), (60, 20, 20, 20)),
    Kind("common effect", _cause().T, (60, 20, 20, 20)),
)
NINE = Kind("nine nodes", _ring(3, 0.9), (3, 4, 2))
#: 002: B1 = {1, 4, 6}, B2 = {2, 3, 5, 8}, B3 = {7, 9}.
NINE_BLOCKS = np.array([0, 1, 1, 0, 1, 0, 2, 1, 2])


def drawn(kind: Kind, seed: int) -> KnownGraph:
    """A directed graph without self loops."""
    rng = np.random.default_rng(seed)
    block = NINE_BLOCKS if kind is NINE else rng.permutation(np.repeat(np.arange(len(kind.sizes)), kind.sizes))
    x = rng.random((len(block),) * 2) < kind.eta[block][:, block]
    np.fill_diagonal(x, False)
    return KnownGraph(kind.name, np.argwhere(x), len(block), True, {"block": block})


def fitted(known: KnownGraph, size: int, seed: int) -> ours.Ours:
    return ours.default_fit(ours.model_of("SBM", known, size), ours.data_of(known), seed)


def kinds_table(seeds: int) -> tuple[Table, dict[str, tuple[Array, Array, Labels]]]:
    """Also what the figure shows of the first draw of each: true probabilities, adjacency, and blocks found."""
    table = Table(
        f"Blocks found in {seeds} graphs of each kind",
        ["kind", "blocks", "ARI 1.00", "truth's own", "no worse mode", "ARI", "largest error of eta", "CPU s"],
        note=(
            "SBM with the true K, fit(model, x) as it comes; a new graph for each seed. Truth's own: the same of the "
            "mode of log p(x, q) that is reached by moving one node at a time from the true blocks; no worse mode: "
            "graphs in which the blocks of the fit have at least its log p(x, q). Largest error: of the probabilities "
            "of edges against the true ones, blocks matched, median over the graphs."
        ),
    )
    shown = {}
    for kind in KINDS:
        fitted(drawn(kind, seeds), len(kind.sizes), 0)  # compiles what is compiled
        known = [drawn(kind, seed) for seed in range(seeds)]
        fits = [fitted(graph, len(kind.sizes), seed) for seed, graph in enumerate(known)]
        ari = [agreement(f.block, g.groups["block"])["ARI"] for f, g in zip(fits, known, strict=True)]
        modes = [climbed(g.adjacency.toarray(), g.groups["block"], len(kind.sizes)) for g in known]
        own = [agreement(mode, g.groups["block"])["ARI"] for mode, g in zip(modes, known, strict=True)]
        as_good = sum(_as_good(f.block, mode, g) for f, mode, g in zip(fits, modes, known, strict=True))
        error = np.median([_error(f, g, kind) for f, g in zip(fits, known, strict=True)])
        perfect = [f"{sum(value > 1 - 1e-9 for value in values)} of {seeds}" for values in (ari, own)]
        cells = [", ".join(map(str, kind.sizes)), *perfect, f"{as_good} of {seeds}", spread(ari), f"{error:.2f}"]
        table.rows.append([kind.name, *cells, spread([f.seconds for f in fits])])
        print(table.rows[-1], flush=True)
        shown[kind.name] = kind.eta, known[0].adjacency.toarray(), in_order(fits[0].block, known[0].groups["block"])
    return table, shown


def in_order(found: Labels, truth: Labels) -> Labels:
    """The blocks found under the numbers of those true ones that they share most nodes with, one-to-one."""
    return matching(found, truth)[found]


def matching(found: Labels, truth: Labels) -> Labels:
    """The true block of each found one, one-to-one."""
    from scipy.optimize import linear_sum_assignment

    size = 1 + max(int(found.max()), int(truth.max()))
    shared = np.zeros((size, size))
    np.add.at(shared, (found, truth), 1)
    return linear_sum_assignment(-shared)[1]


def log_joint(x: Array, block: Labels, size: int) -> float:
    """log p(x, q) with the globals integrated out, as in :func:`log_joints`."""
    one = np.eye(size)[block]
    edges, count = one.T @ x @ one, one.sum(0)
    pairs = np.outer(count, count) - np.diag(count)
    prior = gammaln(size) - gammaln(len(x) + size) + gammaln(count + 1).sum()
    return float(prior + betaln(edges + 1, pairs - edges + 1).sum())


def climbed(x: Array, block: Labels, size: int) -> Labels:
    """The blocks after moving single nodes for as long as log p(x, q) grows."""
    block, best, before = block.copy(), log_joint(x, block, size), -np.inf
    while best > before:
        before = best
        for node in range(len(x)):
            tried = np.repeat(block[None], size, 0)
            tried[:, node] = np.arange(size)
            values = [log_joint(x, one, size) for one in tried]
            if max(values) > best + 1e-9:
                best, block = max(values), tried[int(np.argmax(values))]
    return block


def _as_good(found: Labels, mode: Labels, known: KnownGraph) -> bool:
    x, size = known.adjacency.toarray(), 1 + int(known.groups["block"].max())
    return log_joint(x, found, size) >= log_joint(x, mode, size) - 1e-6


def _error(fit: ours.Ours, known: KnownGraph, kind: Kind) -> float:
    truth = matching(fit.block, known.groups["block"])
    eta = fit.fit.params["edge_probability"].numpy(force=True)
    return float(np.abs(eta - kind.eta[np.ix_(truth, truth)][: len(eta), : len(eta)]).max())


# ----- nine nodes -----------------------------------------------------------------------------------------------------


def log_joints(x: Array, size: int) -> tuple[Labels, Array]:
    """All K^N labelings q (S, N), and log p(x, q) with the globals integrated out.

    p(q) = Gamma(K) / Gamma(N + K) prod_a n_a!, and B(e_ab + 1, m_ab - e_ab + 1) for each pair of blocks, with e_ab
    edges among m_ab ordered pairs of nodes: priors Dirichlet(1) and Beta(1, 1).
    """
    q = np.array(list(product(range(size), repeat=len(x))))
    one = np.eye(size)[q]
    edges = np.einsum("sia,ij,sjb->sab", one, x, one, optimize=True)
    count = one.sum(1)
    pairs = count[:, :, None] * count[:, None, :] - np.eye(size) * count[:, :, None]
    prior = gammaln(size) - gammaln(len(x) + size) + gammaln(count + 1).sum(1)
    return q, prior + betaln(edges + 1, pairs - edges + 1).sum((1, 2))


def nine_table(seeds: int) -> tuple[Table, dict[str, tuple[Array, Array, Labels]]]:
    table = Table(
        f"Nine nodes, {seeds} graphs",
        ["estimate of the blocks", "ARI 1.00", "ARI", "same as the exact mode", "log p(x) less the bound"],
        note=(
            "Against the sum over all 3^9 labelings with the globals integrated out. Bound: on log p(x), of the fit; "
            "log 6 = 1.79 of the difference is that a fit describes one of the 3! equal modes."
        ),
    )
    fits, modes, gaps, truth = [], [], [], NINE_BLOCKS
    known = [drawn(NINE, seed) for seed in range(seeds)]
    for seed, graph in enumerate(known):
        q, joint = log_joints(graph.adjacency.toarray(), 3)
        modes.append(q[joint.argmax()])
        fits.append(fitted(graph, 3, seed))
        gaps.append(float(logsumexp(joint)) - fits[-1].bound)
    same = sum(agreement(f.block, m)["ARI"] > 1 - 1e-9 for f, m in zip(fits, modes, strict=True))
    for name, blocks, cells in (
        ("exact mode", modes, ["", ""]),
        ("fit(model, x)", [f.block for f in fits], [f"{same} of {seeds}", spread(gaps)]),
    ):
        ari = [agreement(b, truth)["ARI"] for b in blocks]
        perfect = f"{sum(value > 1 - 1e-9 for value in ari)} of {seeds}"
        table.rows.append([name, perfect, spread(ari), *cells])
        print(table.rows[-1], flush=True)
    shown = NINE.eta, known[0].adjacency.toarray(), in_order(fits[0].block, truth)
    return table, {"nine nodes (Fig. 27.18)": shown}


def report(seeds: int, folder: Path) -> Path:
    kinds, shown = kinds_table(seeds)
    nine, last = nine_table(seeds)
    kinds.figures = _figures(shown | last, folder)
    return write_report("kinds_of_graphs", "Kinds of graphs", [kinds, nine], intro=INTRO, folder=folder)


def _figures(shown: dict[str, Any], folder: Path) -> Sequence[str]:
    return [save(block_graphs(shown), folder, "kinds_of_graphs")]


INTRO = (__doc__ or "").split("\n\n", 2)[2].strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two graphs of each kind: does it run?")
    arguments = parser.parse_args()
    quiet_and_single_threaded()
    print(report(2, QUICK) if arguments.quick else report(20, RESULTS))


if __name__ == "__main__":
    main()
