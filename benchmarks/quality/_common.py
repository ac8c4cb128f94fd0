"""What NOCA's quality benchmarks share: problems with known truth, CPU time, exact scores."""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from custom_inference import recovered
from custom_inference.core.local_inference import log_likelihood
from ppl_models import NOCA, Data, DataWarning
from ppl_models.datasets import Generated, read_matrix

GLOBALS = ("source_prior", "loading", "leak")
#: A fit is said to fall short where its log-likelihood per row is this far below EM's from the true parameters.
SHORT = 0.02


@dataclass(frozen=True)
class Known:
    """Data with the parameters that they were drawn from."""

    name: str
    data: Data
    truth: dict[str, Tensor]

    @classmethod
    def of(cls, name: str, generated: Generated) -> Known:
        truth = {site: generated.truth[site].to(torch.float64) for site in GLOBALS}
        return cls(name, generated.data.to(dtype=torch.float64), truth)

    @property
    def num_sources(self) -> int:
        return len(self.truth["source_prior"])

    def model(self, num_components: int | None = None) -> NOCA:
        return NOCA(num_components=num_components or self.num_sources, num_features=self.data.num_features)

    def found(self, params: dict[str, Tensor]) -> int:
        """True sources matched one-to-one with a cosine above .95."""
        return recovered(params["loading"], self.truth["loading"])

    def exact(self, params: dict[str, Tensor]) -> float:
        """Exact log-likelihood per row (of the observed entries).

        Sources that are off altogether are left out of the sum over codes: they change a row by less than 1e-5.
        """
        on = params["source_prior"] * params["loading"].sum(-1) > 1e-5
        on[0] = True
        kept = {"source_prior": params["source_prior"][on], "loading": params["loading"][on], "leak": params["leak"]}
        return float(log_likelihood(self.model(int(on.sum())), kept, self.data, bound="exact").mean())

    def rows(self, number: int) -> Known:
        return Known(self.name, self.data.rows(slice(0, number)), self.truth)


def load_known(folder: Path, name: str, number: int | None = None) -> Known:
    """A set of ``noisyor_bench``: the file holds P(a cause fails), the model wants P(it succeeds)."""
    path = folder / "noisyor_bench" / f"{name}.npz"
    with np.load(path, allow_pickle=False) as archive:
        parts = {k: torch.tensor(archive[k], dtype=torch.float64) for k in ("prior", "failure", "leak_failure")}
    truth = {"source_prior": parts["prior"], "loading": 1 - parts["failure"], "leak": 1 - parts["leak_failure"]}
    data = read_matrix(path, dtype=torch.float64)
    off = 1 - (1 - truth["leak"]) * (1 - truth["source_prior"][:, None] * truth["loading"]).prod(0)
    if float((off - data.x.mean(0)).abs().max()) > 0.02:
        raise ValueError(f"{path}: the marginal means do not agree with the parameters in the file")
    whole = Known(name, data, truth)
    return whole if number is None else whole.rows(number)


def cpu_seconds(call: Callable[[], Any]) -> tuple[Any, float]:
    """A call's result and its CPU seconds: wall time means little on a shared machine."""
    begin = time.process_time()
    result = call()
    return result, time.process_time() - begin


def counts(values: Sequence[int], of: int) -> str:
    """How often each number of sources was found: "8 x 19, 7 x 1"."""
    return ", ".join(f"{v} x {list(values).count(v)}" for v in sorted(set(values), reverse=True)) + f" (of {of})"


def spread(values: Sequence[float], digits: int = 3) -> str:
    """min / median / max, or the one value."""
    chosen = values if len(values) == 1 else [f(values) for f in (np.min, np.median, np.max)]
    # Adding 0 turns -0.0 into 0.0.
    return " / ".join(f"{round(float(value), digits) + 0.0:.{digits}f}" for value in chosen)


def quiet_and_single_threaded() -> None:
    """One thread, and no notes on constant columns, which these data have on purpose."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", DataWarning)


def add_data_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, default=os.environ.get("PPL_DATA"), help="folder; default: $PPL_DATA")


def require_data(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> Path:
    if arguments.data is None or not Path(arguments.data).is_dir():
        parser.error("no folder of data: set PPL_DATA or give --data DIR")
    return Path(arguments.data)
