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


PEERS = (
    Peer("tvo NoisyOR, S = 32, 60 epochs, H = 9", "_peer_tvo.py", "tvo", ("--sources", "9", "--epochs", "60")),
    Peer(
        "recognition network + REINFORCE, 250 epochs, K = 8",
        "_peer_overparam.py",
        "overparam",
        ("--sources", "8", "--epochs", "250"),
    ),
    Peer(
        "recognition network + REINFORCE, 100 epochs, K = 16",
        "_peer_overparam.py",
        "overparam",
        ("--sources", "16", "--epochs", "100"),
    ),
    Peer(
        "recognition network + REINFORCE, 250 epochs, K = 16",
        "_peer_overparam.py",
        "overparam",
        ("--sources", "16", "--epochs", "250"),
    ),
)

#: Name, CPU seconds, log-likelihood per row, found of 8: measured earlier, on other draws of the same problem;
#: these are not measured again here.
QUOTED = (
    ("recognition network + REINFORCE, K = 16, best earlier result", "54", "-13.83 / -13.82", "8 / 8"),
    ("tvo NoisyOR, S = 32, H = 16", "159", "-14.25", "6"),
    ("mean field of Buhai et al. 2020", "450", "-18.1", "4"),
    ("max-product belief propagation, Dedieu et al. 2023 (far below its paper's budget)", "202", "-17.94", "5"),
    ("variational baseline of the same code (Ji et al. 2020)", "172", "-21.97 / -20.55", "0"),
)
