"""Other programs for binary components, run in processes of their own from checkouts that the caller gives."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

HERE = Path(__file__).parent


class Outcome(NamedTuple):
    """Parameters, and CPU seconds of the training alone."""

    params: dict[str, Tensor]
    seconds: float


def _noisy_or() -> dict[str, str]:
    return {"source_prior": "prior", "loading": "loading", "leak": "leak"}


@dataclass(frozen=True)
class Peer:
    """A program, the driver that runs it, its settings, and the option that names its checkout.

    names: our sites -> the driver's arrays. dtype: that of the data in its file.
    """

    name: str
    driver: str
    option: str
    arguments: tuple[str, ...]
    names: Mapping[str, str] = field(default_factory=_noisy_or)
    dtype: str = "uint8"

    def run(self, checkout: Path, python: str, x: Tensor, seed: int) -> Outcome:
        """Train on x (N, D) on one thread. Raises RuntimeError with the driver's last words where it fails."""
        with tempfile.TemporaryDirectory() as folder:
            data, out = Path(folder) / "data.npz", Path(folder) / "out.npz"
            np.savez(data, x=x.numpy().astype(self.dtype))
            command = [python, str(HERE / self.driver), str(checkout.resolve()), str(data), str(out)]
            command += [*self.arguments, "--seed", str(seed)]
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
            done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"{self.name} failed: {done.stderr.strip().splitlines()[-1:]}")
            with np.load(out) as found:
                params = {ours: torch.tensor(found[theirs]) for ours, theirs in self.names.items()}
                return Outcome(params, float(found["seconds"]))


PEERS = (Peer("tvo NoisyOR, S = 32, 60 epochs, H = 9", "_peer_tvo.py", "tvo", ("--sources", "9", "--epochs", "60")),)
