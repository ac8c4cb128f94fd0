"""Driver for a peer: binary sparse coding of github tvlearn/tvo (evolved truncated posteriors), in its own process.

    python _peer_bsc_tvo.py CHECKOUT data.npz out.npz --sources 16 --epochs 80 --seed 0

Reads ``x`` (N, D) from data.npz; writes ``prior`` (H,), ``weight`` (H, D), ``scale`` () and ``seconds``: CPU seconds of
the training on one thread, without imports. Settings are those of the checkout's bars test, with larger batches.
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
    from tvo.models import BSC  # pyright: ignore[reportMissingImports]
    from tvo.utils.param_init import init_sigma2_default, init_W_data_mean  # pyright: ignore[reportMissingImports]

    size = options.sources
    start = init_W_data_mean(data=x, H=size, dtype=torch.float32).contiguous()
    noise = init_sigma2_default(x, torch.float32, torch.device("cpu"))
    prior = torch.full((size,), 1.0 / size)
    model = BSC(H=size, D=x.shape[1], W_init=start, sigma2_init=noise, pies_init=prior, precision=torch.float32)
    states = EVOConfig(
        n_states=options.states, n_parents=5, n_children=3, n_generations=2, parent_selection="fitness", crossover=False
    )
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data.h5"
        with h5py.File(data, "w") as file:
            file.create_dataset("data", data=x.numpy())
        settings = ExpConfig(
            batch_size=options.batch,
            output=str(Path(folder) / "log.h5"),
            log_blacklist=["train_states", "train_lpj"],
            log_only_latest_theta=True,
        )
        for _ in Training(conf=settings, estep_conf=states, model=model, train_data_file=str(data)).run(options.epochs):
            pass
    found = {name: value.detach().double().numpy() for name, value in model.theta.items()}
    return {"prior": found["pies"], "weight": found["W"].T, "scale": np.sqrt(found["sigma2"][0])}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--sources", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=80)
    parser.add_argument("--states", type=int, default=32)
    parser.add_argument("--batch", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    sys.path.insert(0, str(options.checkout.resolve()))
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    np.random.seed(options.seed)  # noqa: NPY002 (the peer draws from the global generator)
    x = torch.tensor(np.load(options.data)["x"], dtype=torch.float32)
    begin = time.process_time()
    with contextlib.redirect_stdout(io.StringIO()):
        params = train(x, options)
    np.savez(options.out, seconds=time.process_time() - begin, **params)  # pyright: ignore[reportArgumentType]


if __name__ == "__main__":
    main()
