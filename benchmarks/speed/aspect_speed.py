"""How fast is the aspect Bernoulli model's point estimate? Iterations, accelerations, whole fits, and other programs.

    python -m benchmarks.speed.aspect_speed [--peer-python EXE] [--problems img admix]

--peer-python is a Python with nbmf-mm, fastmixture and adamixture installed; without it they are skipped. Writes
``benchmarks/results/aspect_speed.{md,json}``. All times are CPU seconds of one thread.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import custom_inference
from benchmarks._report import Table, write_report
from benchmarks.speed import _aspect_peers as peers
from custom_inference.core.registry import proposals_for
from custom_inference.em.loop import run_em
from custom_inference.families.aspects.map import AspectMap
from ppl_models import AspectBernoulli, datasets
from ppl_models.datasets import Generated

COLUMNS = ("method", "iterations", "evaluations", "CPU s", "log-likelihood", "below the best")


class Problem(NamedTuple):
    """A data set, its size, and how many iterations the methods of the first table may take."""

    generated: Generated
    model: AspectBernoulli
    title: str
    most: dict[str, int]


def image_problem() -> Problem:
    model = AspectBernoulli(num_components=8, num_features=64)
    title = "img: 2000 images of 64 pixels, 8 aspects"
    return Problem(datasets.aspect_images(), model, title, {"em": 6000, "newton": 300})


def admixture_problem() -> Problem:
    generated = datasets.admixture()
    model = AspectBernoulli(num_components=5, num_features=9915, total_count=2)
    title = "admix: 500 genomes of 9915 sites, 5 populations, counts of two"
    return Problem(generated, model, title, {"em": 80, "newton": 40})


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    begin = time.process_time()
    value = call()
    return value, time.process_time() - begin


def updates(problem: Problem, constant: float) -> list[list[Any]]:
    """Every update with every acceleration, from one start, in double precision."""
    model, lines = problem.model, []
    for update, words in (("em", "EM"), ("newton", "block Newton")):
        for accelerate in (None, "squarem", "anderson"):
            steps = AspectMap(update=update)
            rows = steps.rows(model, problem.generated.data)
            start = proposals_for(model, steps).propose(model, rows, torch.Generator().manual_seed(0), 0)
            settings = {"max_iterations": problem.most[update], "tolerance": 1e-7, "accelerate": accelerate}
            with torch.no_grad():
                run, seconds = timed(lambda: run_em(steps, model, rows, start, **settings))  # noqa: B023
            name = f"{words}, {accelerate or 'plain'}"
            lines.append([name, len(run.trace), run.evaluations, seconds, run.objective - constant])
            print(lines[-1], flush=True)
    return lines


def whole_fits(problem: Problem, constant: float) -> list[list[Any]]:
    """``fit(model, x)`` with all its defaults, search included."""
    lines = []
    for seed in range(3):
        settings = {"seed": seed, "progress": False}
        fit, seconds = timed(lambda: custom_inference.fit(problem.model, problem.generated.data, **settings))  # noqa: B023
        total = float(fit.plugin_log_likelihood().sum()) - constant
        lines.append([f"fit(model, x), seed {seed}", len(fit.elbo), None, seconds, total])
        print(lines[-1], fit.status, flush=True)
    return lines


def others(problem: Problem, python: Path | None) -> list[list[Any]]:
    if python is None:
        return []
    x, size, count = problem.generated.x.numpy(), problem.model.num_components, problem.model.total_count
    calls: dict[str, Callable[[], peers.Outcome]] = {
        "adamixture 1.8.8": lambda: peers.adamixture(python, x, size, 1, count),
        "fastmixture 1.3.0": lambda: peers.fastmixture(python, x, size, 1, count),
    }
    if count == 1:
        calls["nbmf-mm 0.1.4"] = lambda: peers.nbmf(python, x, size, 1)
    lines = []
    for name, call in calls.items():
        try:
            found = call()
        except RuntimeError as error:
            lines.append([f"{name}: {error}", None, None, None, None])
        else:
            lines.append([name, None, None, found.seconds, peers.log_likelihood(found, x, count)])
        print(lines[-1], flush=True)
    return lines


def table(problem: Problem, python: Path | None) -> Table:
    rows = AspectMap().rows(problem.model, problem.generated.data)
    constant = float(rows.log_coefficient.sum())
    lines = whole_fits(problem, constant) + others(problem, python) + updates(problem, constant)
    best = max(line[-1] for line in lines if line[-1] is not None)
    for line in lines:
        line.append(None if line[-1] is None else best - line[-1])
    note = (
        "Log-likelihoods are without binomial coefficients. The whole fits and the other programs make their own "
        "starts; the updates below them share one (SVD and least squares), in double precision, until a cycle of "
        f"iterations gains less than 1e-7 a row or for at most {problem.most['em']} (EM) and {problem.most['newton']} "
        "(Newton) iterations. Other programs' seconds are of the whole process, with reading files; ours of the fit."
    )
    return Table(problem.title, COLUMNS, lines, note=note)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", type=Path)
    parser.add_argument("--problems", nargs="+", default=["img", "admix"], choices=["img", "admix"])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    np.set_printoptions(precision=4)
    problems = {"img": image_problem, "admix": admixture_problem}
    tables = [table(problems[name](), arguments.peer_python) for name in arguments.problems]
    print(write_report("aspect_speed", "Speed of the aspect Bernoulli model", tables))


if __name__ == "__main__":
    main()
