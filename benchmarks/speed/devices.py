"""What a GPU is worth to each engine: the same fit on the CPU and on the device, at sizes where it should pay.

    python -m benchmarks.speed.devices [--device cuda] [--runs 5] [--iterations 20] [--quick]

Every fit goes a fixed number of iterations from one random start (no search), timed by the wall clock with the device
synchronised before and after, the median of several runs after one that is not counted. The difference is that of the
final objectives, relative: closed-form engines draw their random numbers on the CPU, so that it is rounding, but for
documents, which are swept by other code on the CPU; SVI draws on the device, and its objectives are those of other
draws. Writes ``benchmarks/results/devices.{md,json}``; without a device the CPU's times alone, and says so.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks._report import RESULTS, Table, write_report
from custom_inference import EM, SVI, Fit, VariationalBayes, VariationalEM
from ppl_models import CVQ, LDA, MMSB, NOCA, AspectBernoulli, Data, DataWarning, Model
from ppl_models.datasets import sample_aspects, sample_cvq, sample_lda, sample_mmsb, sample_noca


@dataclass(frozen=True, kw_only=True)
class Case:
    """A fit to time. size: in words."""

    engine: str
    size: str
    model: Model
    data: Data
    method: Any

    def fit(self, device: str | None) -> Fit:
        return self.method.fit(self.model, self.data, seed=0, device=device, progress=False)


def _probabilities(rows: int, columns: int, share: float = 0.1) -> torch.Tensor:
    """Mostly low, some high."""
    generator = torch.Generator().manual_seed(rows + columns)
    high = torch.rand((rows, columns), generator=generator) < share
    return torch.where(high, 0.8, 0.02)


def noca_exact(scale: float, iterations: int) -> Case:
    bits, features, rows = (12, 128, round(5000 * scale)) if scale >= 1 else (4, 12, 40)
    truth = {
        "source_prior": torch.full((bits,), 0.2),
        "loading": _probabilities(bits, features),
        "leak": torch.full((features,), 0.02),
    }
    data = sample_noca(truth, rows, seed=0).data
    return Case(
        engine="NOCA, exact EM", size=f"K = {bits}, {rows} x {features}", data=data,
        model=NOCA(num_components=bits, num_features=features), method=EM(search=None, max_iterations=iterations),
    )  # fmt: skip


def lda_vb(scale: float, iterations: int) -> Case:
    model, data, size = _corpus(scale)
    method = VariationalEM(guide="vb", search=None, max_iterations=iterations)
    return Case(engine="LDA, variational Bayes", size=size, model=model, data=data, method=method)


def lda_svi(scale: float, iterations: int) -> Case:
    model, data, size = _corpus(scale)
    method = SVI(guide="mean_field", steps=5 * iterations)
    return Case(engine=f"LDA, SVI, {5 * iterations} steps", size=size, model=model, data=data, method=method)


def _corpus(scale: float) -> tuple[Model, Data, str]:
    topics, words, documents = (50, 5000, round(5000 * scale)) if scale >= 1 else (3, 30, 20)
    weight = _probabilities(topics, words, 0.05)
    data = sample_lda(weight / weight.sum(-1, keepdim=True), documents, length=150, seed=0).data
    return LDA(num_topics=topics, vocabulary_size=words), data, f"K = {topics}, {documents} x {words}"


def aspects_map(scale: float, iterations: int) -> Case:
    aspects, features, rows = (16, 1000, round(10000 * scale)) if scale >= 1 else (2, 12, 40)
    data = sample_aspects(_probabilities(aspects, features), rows, concentration=0.5, seed=0).data
    return Case(
        engine="AspectBernoulli, points", size=f"K = {aspects}, {rows} x {features}", data=data,
        model=AspectBernoulli(num_components=aspects, num_features=features),
        method=VariationalEM(guide="map", search=None, max_iterations=iterations),
    )  # fmt: skip


def cvq_mean_field(scale: float, iterations: int) -> Case:
    sources, features, rows = (32, 256, round(10000 * scale)) if scale >= 1 else (3, 12, 40)
    weight = torch.randn((sources, features), generator=torch.Generator().manual_seed(0))
    truth = {"source_prior": torch.full((sources,), 0.2), "weight": weight, "scale": torch.tensor(0.3)}
    data = sample_cvq(truth, rows, seed=0).data
    return Case(
        engine="CVQ, mean field", size=f"K = {sources}, {rows} x {features}", data=data,
        model=CVQ(num_components=sources, num_features=features),
        method=VariationalEM(guide="mean_field", search=None, max_iterations=iterations),
    )  # fmt: skip


def mmsb_vb(scale: float, iterations: int) -> Case:
    blocks, nodes = (16, round(3000 * scale)) if scale >= 1 else (2, 12)
    chance = torch.full((blocks, blocks), 0.002) + 0.1 * torch.eye(blocks)
    data = sample_mmsb(chance, nodes, alpha=0.1, seed=0).data
    method = VariationalEM(guide=VariationalBayes(zeros="each"), search=None, max_iterations=iterations)
    model = MMSB(num_blocks=blocks, num_nodes=nodes)
    size = f"K = {blocks}, {nodes} nodes, all dyads"
    return Case(engine='MMSB, variational Bayes, zeros="each"', size=size, model=model, data=data, method=method)


def noca_svi(scale: float, iterations: int) -> Case:
    case = noca_exact(scale, iterations)
    method = SVI(guide="mean_field", steps=5 * iterations)
    return Case(engine=f"NOCA, SVI, {5 * iterations} steps", size=case.size, model=case.model, data=case.data,
                method=method)  # fmt: skip


CASES: tuple[Callable[[float, int], Case], ...] = (
    noca_exact, lda_vb, aspects_map, cvq_mean_field, mmsb_vb, noca_svi, lda_svi,
)  # fmt: skip


def timed(case: Case, device: str | None, runs: int) -> tuple[float, Fit]:
    """Median wall seconds of ``runs`` fits after a first one, and the last fit."""
    moved = Case(**{**vars(case), "data": case.data.to(dtype=torch.float64, device=device)})
    seconds, fit = [], moved.fit(device)  # the first compiles kernels and fills caches
    for _ in range(runs):
        synchronise(device)
        begin = time.perf_counter()
        fit = moved.fit(device)
        synchronise(device)
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds), fit


def synchronise(device: str | None) -> None:
    """Wait until the device has done all that it was given."""
    if device is not None and torch.device(device).type == "cuda":
        torch.cuda.synchronize()


def line(case: Case, device: str | None, runs: int) -> list[Any]:
    """A row of the table: with a device its seconds, the ratio, and the difference of the objectives."""
    on_cpu, expected = timed(case, None, runs)
    row: list[Any] = [case.engine, case.size, on_cpu]
    if device is not None:
        there, found = timed(case, device, runs)
        last, other = float(expected.elbo[-1]), float(found.elbo[-1])
        row += [there, on_cpu / there, abs(last - other) / abs(last)]
    print(row, flush=True)
    return row


def table(device: str | None, runs: int, iterations: int, scale: float) -> Table:
    """CPU against the device; of the CPU alone where there is none."""
    columns = ["engine", "size", "CPU s"]
    note = f"Wall seconds of a fit of {iterations} iterations in double precision, median of {runs} runs."
    if device is None:
        note += " No GPU was to be had where this was measured, so there are no figures of one."
    else:
        columns += ["GPU s", "CPU / GPU", "relative difference"]
        note += f" GPU: {torch.cuda.get_device_name()}."
    rows = [line(make(scale, iterations), device, runs) for make in CASES]
    return Table("The same fit on the CPU and on a GPU" if device else "The fits on the CPU", columns, rows, note=note)


def main(arguments: list[str] | None = None, *, folder: Path = RESULTS) -> Path:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it runs")
    given = parser.parse_args(arguments)
    device = given.device if torch.cuda.is_available() else None
    if device is None:
        print("no GPU here: the CPU's times alone")
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)
            made = table(device, given.runs, given.iterations, 0.0 if given.quick else 1.0)
    finally:
        torch.set_default_dtype(before)
    return write_report("devices", "CPU and GPU", [made], folder=folder)


if __name__ == "__main__":
    main()
