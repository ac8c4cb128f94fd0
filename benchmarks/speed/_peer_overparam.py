"""Driver for a peer: the recognition network of github clinicalml/overparam (Buhai et al. 2020), in its own process.

    python _peer_overparam.py CHECKOUT data.npz out.npz --sources 16 --epochs 250 --seed 0

Runs the checkout's own training script. That script is Python 2 and holds its settings in its text, so a temporary
copy is made in which print statements and scalar gradients are brought up to date and the numbers of epochs and of
held-out rows (none here) are set; the algorithm is untouched. Output as in ``_peer_tvo.py``; ``seconds`` are the CPU
seconds of the training process less those of a process that imports the same packages.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

_SCRIPT = "train_recognition_network.py"


def as_python3(text: str, settings: dict[str, int]) -> str:
    """The script with print calls and with other values in its table of settings."""
    text = re.sub(r"^(\s*)print (.+)$", r"\1print(\2)", text, flags=re.MULTILINE)
    # backward() of a scalar takes a scalar nowadays.
    text = text.replace(".backward(torch.tensor([1.0 / batch_size]))", ".backward(torch.tensor(1.0 / batch_size))")
    for name, value in settings.items():
        text, count = re.subn(rf"^(    '{name}': )[^,]+,", rf"\g<1>{value},", text, flags=re.MULTILINE)
        if count != 1:
            raise SystemExit(f"the training script has no setting '{name}': another version of the peer?")
    return text


def child_seconds(command: list[str], folder: Path) -> float:
    """Run a command on one thread and return its CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def read_model(path: Path) -> dict[str, np.ndarray]:
    """The script's output: sizes, priors, failure probabilities (K, D), leak failures (D)."""
    lines = [np.array(line.split(), dtype=float) for line in path.read_text().splitlines()]
    return {"prior": lines[1], "loading": 1 - np.stack(lines[2:-1]), "leak": 1 - lines[-1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--sources", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=250)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    training = options.checkout.resolve() / "noisyor" / "training"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for module in ("noisy_or_model.py", "logistic_regression_model.py"):
            shutil.copy(training / module, folder)
        settings = {"epochs": options.epochs, "heldout": 0, "save_every": options.epochs}
        (folder / _SCRIPT).write_text(as_python3((training / _SCRIPT).read_text(), settings))
        np.savetxt(folder / "samples.txt", np.load(options.data)["x"], fmt="%d")
        imports = "import numpy, torch, torch.nn, torch.optim"
        idle = child_seconds([sys.executable, "-c", imports], folder)
        arguments = ["samples.txt", ".", str(options.sources), str(options.seed)]
        seconds = child_seconds([sys.executable, _SCRIPT, *arguments], folder) - idle
        params = read_model(folder / f"model_epoch{options.epochs + 1}.dat")
    np.savez(options.out, seconds=seconds, **params)  # pyright: ignore[reportArgumentType]


if __name__ == "__main__":
    main()
