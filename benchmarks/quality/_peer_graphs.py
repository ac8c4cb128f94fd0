"""Other Python programs that find blocks: python -m benchmarks.quality._peer_graphs PROGRAM IN OUT --num-blocks K.

Run by the Python that has the program (graph-tool or sparsebm, and NumPy). IN is a folder with ``edges.csv`` and
``nodes.csv`` (``_graph_peers.write_graph``); OUT gets ``membership.csv`` (N, K), ``seconds.csv`` (CPU seconds of the
fit alone, one thread) and ``version.txt``.
"""

from __future__ import annotations

import argparse
import importlib.metadata
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


def _sweeps(edges: Any, nodes: int, directed: bool, size: int, seed: int, *, sweeps: int = 20) -> Found:
    """One-node moves of its Markov chain from random blocks, with the number of blocks held; seconds: of one sweep."""
    import graph_tool.inference as inference  # pyright: ignore[reportMissingImports]
    from graph_tool import Graph, __version__, openmp_set_num_threads, seed_rng  # pyright: ignore

    openmp_set_num_threads(1)
    seed_rng(seed + 1)
    graph = Graph(directed=directed)
    graph.add_vertex(nodes)
    graph.add_edge_list(edges)
    start = np.random.default_rng(seed).integers(0, size, nodes)
    state = inference.BlockState(graph, b=graph.new_vertex_property("int", vals=start), deg_corr=False)
    begin = time.process_time()
    state.mcmc_sweep(niter=sweeps, d=0)  # d = 0: no new blocks
    seconds = (time.process_time() - begin) / sweeps
    block = np.unique(np.asarray(state.get_blocks().a), return_inverse=True)[1]
    return np.eye(size)[block], seconds, __version__.split(" ")[0]


def _sparsebm(edges: Any, nodes: int, directed: bool, size: int, seed: int) -> Found:
    import scipy.sparse as sp
    import sparsebm  # pyright: ignore[reportMissingImports]

    np.random.seed(seed)  # noqa: NPY002  (the program draws from it)
    x = sp.coo_matrix((np.ones(len(edges)), (edges[:, 0], edges[:, 1])), (nodes, nodes))
    x = x if directed else x + x.T
    model = sparsebm.SBM(size, n_init=20, verbosity=0)
    begin = time.process_time()
    model.fit(sp.coo_matrix(x), symmetric=not directed)
    seconds = time.process_time() - begin
    return np.eye(size)[np.asarray(model.labels)], seconds, importlib.metadata.version("sparsebm")


PROGRAMS: dict[str, Callable[..., Found]] = {
    "graph-tool": lambda *given: _graph_tool(*given, corrected=False),
    "graph-tool, degree-corrected": lambda *given: _graph_tool(*given, corrected=True),
    "graph-tool, sweeps": _sweeps,
    "sparsebm, 20 starts": _sparsebm,
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
