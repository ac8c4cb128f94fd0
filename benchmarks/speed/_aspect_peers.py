"""Another program for the aspect Bernoulli (ADMIXTURE) model, run as a process of its own on one thread."""

from __future__ import annotations

import os
import resource
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Outcome(NamedTuple):
    """Estimates (N, K) and (K, D), and the CPU seconds of the whole process, its start and file reading included."""

    membership: Array
    aspect: Array
    seconds: float


def write_plink(x: Array, prefix: Path) -> None:
    """Genotypes (N, D) of 0, 1, 2 as PLINK .bed, .bim and .fam, features on chromosome 1."""
    # Two bits a genotype, lowest first: 00 two copies of the first allele, 10 one, 11 none.
    code = np.array([3, 2, 0], dtype=np.uint8)[x.astype(int)].T
    padded = np.zeros((code.shape[0], -(-code.shape[1] // 4) * 4), dtype=np.uint8)
    padded[:, : code.shape[1]] = code
    packed = padded[:, 0::4] | padded[:, 1::4] << 2 | padded[:, 2::4] << 4 | padded[:, 3::4] << 6
    prefix.with_suffix(".bed").write_bytes(bytes([0x6C, 0x1B, 0x01]) + packed.astype(np.uint8).tobytes())
    prefix.with_suffix(".bim").write_text("".join(f"1\ts{j}\t0\t{j + 1}\tA\tG\n" for j in range(x.shape[1])))
    prefix.with_suffix(".fam").write_text("".join(f"f{i} i{i} 0 0 0 -9\n" for i in range(x.shape[0])))


def _timed(command: list[str], folder: Path) -> float:
    """CPU seconds. Raises RuntimeError with the program's last words where it fails."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    environment.pop("PYTHONPATH", None)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {(done.stderr or done.stdout).strip().splitlines()[-3:]}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _from_files(folder: Path, seconds: float, x: Array, total_count: int) -> Outcome:
    membership, aspect = (np.loadtxt(next(folder.rglob(f"*.{kind}"))) for kind in ("Q", "P"))
    sides = [Outcome(membership, a.T, seconds) for a in (aspect, 1 - aspect)]  # whichever allele is counted
    return max(sides, key=lambda side: log_likelihood(side, x, total_count))


def adamixture(python: Path, x: Array, num_components: int, seed: int, total_count: int) -> Outcome:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_plink(x * (2 // total_count), folder / "data")
        options = ["--data_path", "data.bed", "-k", str(num_components), "-s", str(seed), "--save_dir", "result"]
        seconds = _timed([str(python.parent / "adamixture"), *options, "--name", "result"], folder)
        return _from_files(folder, seconds, x, total_count)


def log_likelihood(found: Outcome, x: Array, total_count: int) -> float:
    """sum log p(x | s, a) without binomial coefficients, with probabilities kept off 0 and 1."""
    membership = found.membership / found.membership.sum(1, keepdims=True)
    p = np.clip(membership @ found.aspect, 1e-9, 1 - 1e-9)
    return float((x * np.log(p) + (total_count - x) * np.log1p(-p)).sum())
