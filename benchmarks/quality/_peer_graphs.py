"""graph-tool, which finds blocks: python -m benchmarks.quality._peer_graphs PROGRAM IN OUT --num-blocks K.

Run by the Python that has graph-tool and NumPy. IN is a folder with ``edges.csv`` and
``nodes.csv`` (``_graph_peers.write_graph``); OUT gets ``membership.csv`` (N, K), ``seconds.csv`` (CPU seconds of the
fit alone, one thread) and ``version.txt``.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Found = tuple[Any, float, str]


def _graph_tool(edges: Any, nodes: int, directed: bool, size: int, seed: int, *, corrected: bool) -> Found:
    import graph_tool.inference as inference  # pyright: ignore[reportMissingImports]
    from graph_tool import Graph, __version__, openmp_set_num_threads, seed_rng  # pyright: ignore

    openmp_set_num_threads(1)
    seed_rng(seed + 1)
    np.random.seed(seed)  # noqa: NPY002  (the program draws from it)
    graph = Graph(directed=directed)
    graph.add_vertex(nodes)
    graph.add_edge_list(edges)
    begin = time.process_time()
    settings = {"B_min": size, "B_max": size}
    state = inference.minimize_blockmodel_dl(graph, state_args={"deg_corr": corrected}, multilevel_mcmc_args=settings)
    seconds = time.process_time() - begin
    block = np.unique(np.asarray(state.get_blocks().a), return_inverse=True)[1]
    return np.eye(size)[block], seconds, __version__.split(" ")[0]


PROGRAMS: dict[str, Callable[..., Found]] = {
    "graph-tool": lambda *given: _graph_tool(*given, corrected=False),
    "graph-tool, degree-corrected": lambda *given: _graph_tool(*given, corrected=True),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", choices=list(PROGRAMS))
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--num-blocks", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    edges = np.loadtxt(given.source / "edges.csv", delimiter=",", dtype=int, ndmin=2)
    nodes, directed = np.loadtxt(given.source / "nodes.csv", delimiter=",", dtype=int)
    found = PROGRAMS[given.program](edges, int(nodes), bool(directed), given.num_blocks, given.seed)
    membership, seconds, version = found
    np.savetxt(given.target / "membership.csv", membership, delimiter=",")
    np.savetxt(given.target / "seconds.csv", [seconds])
    (given.target / "version.txt").write_text(version)


if __name__ == "__main__":
    main()
