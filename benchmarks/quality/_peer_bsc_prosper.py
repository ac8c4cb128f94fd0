"""Driver for a peer: binary sparse coding of github ml-uol/prosper (expectation truncation), in its own process.

    python _peer_bsc_prosper.py CHECKOUT data.npz out.npz --sources 16 --steps 100 --seed 0

Reads ``x`` (N, D) from data.npz; writes ``prior`` (H,), ``weight`` (H, D), ``scale`` () and ``seconds``: CPU seconds of
the training on one thread, without imports. Settings and annealing schedule are those of the checkout's bars test. The
program is written for MPI and an older NumPy: the few names that it needs of both are supplied here, for one process.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import time
import types
from pathlib import Path
from typing import Any

import numpy as np


class _OneProcess:
    """The calls of an MPI communicator, for one process."""

    rank, size = 0, 1

    def allreduce(self, value: Any) -> Any:
        return value

    def bcast(self, value: Any) -> Any:
        return value

    def Allreduce(self, source: Any, target: Any) -> None:
        self.Allgather(source, target)

    def Allgather(self, source: Any, target: Any) -> None:
        target[0][...] = source[0]

    def Bcast(self, value: Any) -> None:
        pass

    def Barrier(self) -> None:
        pass


def supply_missing_names() -> None:
    mpi: Any = types.ModuleType("mpi4py.MPI")
    mpi.COMM_WORLD = _OneProcess()
    mpi.__getattr__ = lambda name: name  # the names of number types
    package: Any = types.ModuleType("mpi4py")
    package.MPI = mpi
    sys.modules |= {"mpi4py": package, "mpi4py.MPI": mpi, "tables": types.ModuleType("tables")}
    for name, value in {"int": int, "float": float, "bool": bool, "object": object}.items():
        if name not in vars(np):
            setattr(np, name, value)


def train(x: np.ndarray, options: argparse.Namespace) -> dict[str, np.ndarray]:
    """Fit, and return the parameters in our parametrisation."""
    from prosper.em import EM  # pyright: ignore[reportMissingImports]
    from prosper.em.annealing import LinearAnnealing  # pyright: ignore[reportMissingImports]
    from prosper.em.camodels.bsc_et import BSC_ET  # pyright: ignore[reportMissingImports]

    model = BSC_ET(x.shape[1], options.sources, options.preselected, options.gamma)
    anneal = LinearAnnealing(options.steps)
    anneal["T"] = [(0, 5.0), (0.8, 1.0)]
    anneal["Ncut_factor"] = [(0, 0.0), (2.0 / 3, 1.0)]
    anneal["anneal_prior"] = False
    em = EM(model=model, anneal=anneal)
    em.data = {"y": x}
    em.lparams = model.standard_init(em.data)
    em.run()
    found = em.lparams
    prior = np.full(options.sources, float(found["pi"]))
    return {"prior": prior, "weight": np.asarray(found["W"]).T, "scale": np.asarray(float(found["sigma"]))}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--sources", type=int, default=16)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--preselected", type=int, default=8)
    parser.add_argument("--gamma", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    sys.path.insert(0, str(options.checkout.resolve()))
    supply_missing_names()
    np.random.seed(options.seed)  # noqa: NPY002 (the peer draws from the global generator)
    x = np.load(options.data)["x"].astype(np.float64)
    begin = time.process_time()
    with contextlib.redirect_stdout(io.StringIO()):
        params = train(x, options)
    np.savez(options.out, seconds=time.process_time() - begin, **params)  # pyright: ignore[reportArgumentType]


if __name__ == "__main__":
    main()
