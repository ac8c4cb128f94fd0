"""Driver for a peer: the NoisyOR model of github tvlearn/tvo (evolutionary truncated posteriors), in its own process.

    python _peer_tvo.py CHECKOUT data.npz out.npz --sources 9 --epochs 60 --seed 0

Reads ``x`` (N, D) from data.npz; writes ``prior`` (H,), ``loading`` (H, D), ``leak`` (D,) and ``seconds``: CPU seconds
of the training on one thread, without imports and without reading the data. The model has no leak; it bounds its
probabilities by eps = 1e-7, which is written as the leak. Settings are those of the checkout's bars test, with
more states per row and, for speed, larger batches and as little logging as it allows.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch


def train(x: torch.Tensor, options: argparse.Namespace) -> dict[str, np.ndarray]:
    """Fit, and return the parameters in our parametrisation."""
    import h5py
    from tvo.exp import EVOConfig, ExpConfig, Training  # pyright: ignore[reportMissingImports]
    from tvo.models import NoisyOR  # pyright: ignore[reportMissingImports]
    from tvo.utils.param_init import init_W_data_mean  # pyright: ignore[reportMissingImports]

    size = options.sources
    start = init_W_data_mean(data=x, H=size, dtype=torch.float32).contiguous().clamp(0.01, 0.99)
    prior = torch.full((size,), 1.0 / size)
    model = NoisyOR(H=size, D=x.shape[1], W_init=start, pi_init=prior, precision=torch.float32)
    states = EVOConfig(
        n_states=options.states, n_parents=5, n_children=3, n_generations=2, parent_selection="fitness", crossover=False
    )
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data.h5"
        with h5py.File(data, "w") as file:
            file.create_dataset("data", data=x.numpy().astype(np.uint8))
        settings = ExpConfig(
            batch_size=options.batch,
            output=str(Path(folder) / "log.h5"),
            log_blacklist=["train_states", "train_lpj"],
            log_only_latest_theta=True,
            rollback_if_F_decreases=["W"],
        )
        training = Training(conf=settings, estep_conf=states, model=model, train_data_file=str(data))
        for _ in training.run(options.epochs):
            pass
    found = {name: value.detach().double().numpy() for name, value in model.theta.items()}
    return {"prior": found["pies"], "loading": found["W"].T, "leak": np.full(x.shape[1], model.eps)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--sources", type=int, default=9)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--states", type=int, default=32)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    sys.path.insert(0, str(options.checkout.resolve()))
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    np.random.seed(options.seed)  # noqa: NPY002 (the peer draws from the global generator)
    x = torch.tensor(np.load(options.data)["x"], dtype=torch.uint8)
    begin = time.process_time()
    with contextlib.redirect_stdout(io.StringIO()):
        params = train(x, options)
    np.savez(options.out, seconds=time.process_time() - begin, **params)  # pyright: ignore[reportArgumentType]


if __name__ == "__main__":
    main()
