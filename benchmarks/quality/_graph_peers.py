"""Other programs that find the blocks or communities of graphs, each run in its own process.

None of them is a dependency: a benchmark is told by options where they are, and leaves the others out. All are given
the number of blocks and one thread; a driver that a Python or R must run gets ``edges.csv`` and ``nodes.csv`` and
leaves its result in files beside them.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.quality._graph_data import Array, KnownGraph

ROOT = Path(__file__).resolve().parents[2]
_PYTHON, _R, _SVINET = "python", "r", "svinet"
#: Program -> what runs it.
PROGRAMS = {
    "graph-tool": _PYTHON,
    "graph-tool, degree-corrected": _PYTHON,
    "R lda": _R,
    "R blockmodels": _R,
    "svinet": _SVINET,
}


class Found(NamedTuple):
    """membership (N, K): of one block where they are not mixed; probability (K, K) where the program says it.

    seconds: CPU seconds of the user and the system; user: of the user alone, where both are known. passes: over the
    graph, where they are counted.
    """

    membership: Array
    seconds: float
    version: str
    probability: Array | None = None
    user: float | None = None
    communities: NDArray[np.bool_] | None = None
    passes: int = 0

    @property
    def block(self) -> NDArray[np.int64]:
        return self.membership.argmax(1)


@dataclass(frozen=True)
class Peers:
    """Where the programs are: None for those that are not there."""

    graph_tool: Path | None = None
    rscript: Path | None = None
    svinet: Path | None = None

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Peers:
        return cls(*(getattr(arguments, name) for name in ("graph_tool", "rscript", "svinet")))

    def has(self, program: str) -> bool:
        return self._runner(program) is not None

    def _runner(self, program: str) -> Path | None:
        kind = PROGRAMS[program]
        if kind == _PYTHON:
            return self.graph_tool
        return self.rscript if kind == _R else self.svinet

    def run(self, program: str, graph: KnownGraph, size: int, seed: int, *, iterations: int = 0) -> Found:
        """Raises RuntimeError with the program's last words where it fails. iterations: of a sampler."""
        runner = self._runner(program)
        if runner is None:
            raise ValueError(f"no {program}: see the options of the benchmark")
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            if PROGRAMS[program] == _SVINET:
                return _svinet(runner, graph, size, seed, folder)
            write_graph(graph, folder)
            if PROGRAMS[program] == _PYTHON:
                command = [str(runner), "-m", "benchmarks.quality._peer_graphs", program, name, name]
                command += ["--num-blocks", str(size), "--seed", str(seed)]
            else:
                script = Path(__file__).with_name("_peer_graphs.R")
                package = program.removeprefix("R ")
                command = [str(runner), str(script), package, name, name, str(size), str(seed + 1), str(iterations)]
            _run(program, command, ROOT)
            return _read(folder)


def add_peer_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("other programs, left out where they are not given")
    group.add_argument("--graph-tool", type=Path, metavar="PYTHON", help="a Python with graph-tool")
    rscript = "an Rscript whose library (R_LIBS) has lda and blockmodels"
    group.add_argument("--rscript", type=Path, metavar="RSCRIPT", help=rscript)
    group.add_argument("--svinet", type=Path, metavar="PROGRAM", help="the program svinet")


def write_graph(graph: KnownGraph, folder: Path) -> None:
    """``edges.csv``: two node numbers from 0 a line; ``nodes.csv``: how many nodes, 1 if directed."""
    np.savetxt(folder / "edges.csv", graph.edges, fmt="%d", delimiter=",")
    np.savetxt(folder / "nodes.csv", [[graph.num_nodes, int(graph.directed)]], fmt="%d", delimiter=",")


def _run(program: str, command: Sequence[str], folder: Path, *, chatty: bool = False) -> None:
    one = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    environment = {**os.environ, **one}
    environment.pop("PYTHONPATH", None)
    words = subprocess.DEVNULL if chatty else subprocess.PIPE
    done = subprocess.run(command, env=environment, cwd=folder, stdout=words, stderr=words, check=False)
    if done.returncode:
        said = b"" if chatty else done.stderr or done.stdout
        raise RuntimeError(f"{program} failed: {said.decode(errors='replace').strip().splitlines()[-3:]}")


def _read(folder: Path) -> Found:
    def table(name: str) -> Array:
        return np.loadtxt(folder / name, delimiter=",", ndmin=2)

    probability = table("probability.csv") if (folder / "probability.csv").exists() else None
    version = (folder / "version.txt").read_text().strip()
    return Found(table("membership.csv"), float(table("seconds.csv")[0, 0]), version, probability)


def _svinet(program: Path, graph: KnownGraph, size: int, seed: int, folder: Path) -> Found:
    """Link sampling with its defaults. It holds 1 % of the links out to know when to stop.

    membership: the mean of q(pi); communities: ``communities.txt``, the nodes with a link of each community.
    """
    np.savetxt(folder / "edges.txt", graph.edges, fmt="%d", delimiter="\t")
    options = {"-file": "edges.txt", "-n": graph.num_nodes, "-k": size, "-seed": seed + 1}
    command = [str(program.resolve()), *(str(part) for pair in options.items() for part in pair), "-link-sampling"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    _run("svinet", command, folder, chatty=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    user = after.ru_utime - before.ru_utime
    written = next(folder.glob("n*-linksampling"))
    table = np.loadtxt(written / "gamma.txt")
    gamma = np.full((graph.num_nodes, size), 1.0 / size)
    gamma[table[:, 1].astype(int)] = table[:, 2:]
    lines = (written / "communities.txt").read_text().splitlines()
    communities = as_sets([[int(node) for node in line.split()] for line in lines], graph.num_nodes)
    seconds = user + after.ru_stime - before.ru_stime
    mean = gamma / gamma.sum(1, keepdims=True)
    passes = 1 + int(np.loadtxt(written / "max.txt")[0])
    return Found(mean, seconds, "0.9", user=user, communities=communities, passes=passes)


def as_sets(nodes: Sequence[Sequence[int]], num_nodes: int) -> NDArray[np.bool_]:
    """Lists of nodes as columns, (N, number of lists)."""
    columns = np.zeros((num_nodes, len(nodes)), dtype=bool)
    for column, members in enumerate(nodes):
        columns[list(members), column] = True
    return columns
