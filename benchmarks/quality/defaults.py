"""The default fit of every model beside the other methods that it has: who predicts best what was not seen?

    python -m benchmarks.quality.defaults [--models NAME ...] [--quick]

Writes ``benchmarks/results/defaults.{md,json}``; rows of models that are not run keep what the report had of them. One
thread; CPU seconds of all fits and scores.
"""

from __future__ import annotations

import argparse
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch

import custom_inference as ci
from benchmarks._freshness import digest
from benchmarks._report import QUICK, RESULTS, Table, read_tables, write_report
from benchmarks.quality._common import cpu_seconds, quiet_and_single_threaded
from benchmarks.quality._default_sets import ALL, FOLDS, SLOW, Scorer, data_sets, scorer, unit_of
from benchmarks.stale import ENGINES
from custom_inference.checks.model_choice.held import Scores, ratio_error
from custom_inference.core.registry import engines_of
from custom_inference.methods import default_method, resolve_method
from ppl_models import Model, PPLError

MODELS_TITLE, SETS_TITLE = "Models", "Data sets"
MODEL_COLUMNS = ["model", "default", "short by, %", "error, %", "sets short beyond two errors", "best on each set"]
SET_COLUMNS = ["model", "data", "score of a", "default", "its score", "scores of others", "best", "short by, %",
               "error, %", "CPU s", "others' CPU s", "without a score", ENGINES]  # fmt: skip
#: Methods that are no rivals: sums over all states and draws of all sites, for reference, and general guides.
_LEFT_OUT = {"default", "exact", "nuts", "svi", "amortized"}
#: General guides too, where a model has no closed-form steps by this name.
_GENERAL = ("mean_field", "gaussian")
#: CPU seconds of a method on a data set, and of the default; the percentage that is no matter.
_SECONDS, _OF_DEFAULT, _WITHIN = 10.0, 40.0, 1.0


class Found(NamedTuple):
    """Scores of every fold by a method, and the CPU seconds; or why there are none."""

    scores: list[Scores]
    seconds: float
    refusal: str = ""

    @property
    def mean(self) -> float:
        """The score of a unit over all folds."""
        return mean(self.scores)


def mean(scores: Sequence[Scores]) -> float:
    return float(sum(one.value.sum() for one in scores) / sum(one.weight.sum() for one in scores))


def default_of(model: Model) -> str:
    """The name of the method that fits by default."""
    default = default_method(model, None)
    names = (name for name in ci.methods_for(model) if name != "default")
    return next(name for name in names if resolve_method(name, model=model) == default)


def rivals(model: Model) -> list[str]:
    """The methods that the default is put beside: other than it, and fast."""
    general = {name for name in _GENERAL if name not in engines_of(model)}
    others = [name for name in ci.methods_for(model) if name not in _LEFT_OUT | general and name[:4] != "svi_"]
    default = default_method(model, None)
    return [name for name in others if resolve_method(name, model=model) != default]


def run(score: Scorer, method: str | None, *, slow: bool = False) -> Found:
    """Score all folds by a method, within the CPU seconds that one has, or a slow one."""

    def stop(*_: Any) -> NoReturn:
        raise TimeoutError

    before = signal.signal(signal.SIGPROF, stop)
    seconds = _OF_DEFAULT if slow or method is None else _SECONDS
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        return Found(*cpu_seconds(lambda: [score(fold, method) for fold in range(FOLDS)]))
    except PPLError as error:
        return Found([], 0.0, str(error).partition("\n")[0])
    except TimeoutError:
        return Found([], seconds, f"more than {seconds:g} CPU s")
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def compare(found: Mapping[str, Found]) -> tuple[float, float]:
    """What the first method, the default, is short of the best one by, in percent, and the standard error of that.

    The best of a fold is the one that does best on the others: the largest of several noisy scores is too large.
    """
    default = next(iter(found.values())).scores
    gap, value, weight = [], [], []
    for fold, own in enumerate(default):
        others = {name: [*one.scores[:fold], *one.scores[fold + 1 :]] for name, one in found.items()}
        best = found[max(others, key=lambda name: mean(others[name]))].scores[fold]
        gap.append(best.value - own.value)
        value.append(best.value)
        weight.append(own.weight)
    difference, weights = np.concatenate(gap), np.concatenate(weight)
    size = abs(np.concatenate(value).sum() / weights.sum())
    return 100 * difference.sum() / weights.sum() / size, 100 * ratio_error(difference, weights) / size


def measure(name: str, *, sets: int = 3) -> Iterator[list[Any]]:
    """The rows of a model; of a set that cannot be scored, why."""
    code = f"{ALL[name].__name__} {digest(ALL[name].__name__)}"
    for title, make in [*data_sets(name)][:sets]:
        try:
            model, x = make()
            data = model.prepare(x, dtype=torch.float64)
            score = scorer(name, model, data)
        except PPLError as error:
            yield [name, title, *[None] * (len(SET_COLUMNS) - 4), str(error).partition("\n")[0], code]
            continue
        found = {default_of(model): run(score, None)}
        found |= {method: run(score, method, slow=name in SLOW) for method in rivals(model)}
        yield [*_row(name, title, unit_of(name, model), found), code]


def _row(name: str, title: str, unit: str, every: Mapping[str, Found]) -> list[Any]:
    default = next(iter(every))
    found = {method: one for method, one in every.items() if one.scores}
    without = "; ".join(f"{method}: {one.refusal}" for method, one in every.items() if one.refusal)
    if default not in found:
        return [name, title, unit, default, *[None] * (len(SET_COLUMNS) - 6), without]
    others = ", ".join(f"{method} {one.mean:.4f}" for method, one in found.items() if method != default)
    best = max(found, key=lambda method: found[method].mean)
    spent = sum(one.seconds for method, one in every.items() if method != default)
    short, error = compare(found)
    return [name, title, unit, default, found[default].mean, others, best, short, error, every[default].seconds, spent,
            without]  # fmt: skip


def by_model(rows: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """A row for every model: the mean of its sets, the furthest behind first."""
    found = []
    for name in dict.fromkeys(row[0] for row in rows):
        own = [dict(zip(SET_COLUMNS, row, strict=True)) for row in rows if row[0] == name]
        short, error = (np.array([row[column] for row in own if row[column] is not None], dtype=float)
                        for column in ("short by, %", "error, %"))  # fmt: skip
        if not len(short):
            found.append([name, own[0]["default"], None, None, None, own[0]["without a score"]])
            continue
        beyond = int((short - 2 * error > _WITHIN).sum())
        best = ", ".join(str(row["best"]) for row in own if row["best"])
        both = float(short.mean()), float(np.sqrt((error**2).sum()) / len(error))
        found.append([name, own[0]["default"], *both, f"{beyond} of {len(short)}", best])
    return sorted(found, key=lambda row: np.inf if row[2] is None else -row[2])


def summarise(models: Sequence[Sequence[Any]]) -> str:
    """How many models fall short by no more than 1 %, and which others do."""
    scored = [row for row in models if row[2] is not None]
    others = [f"{row[0]} ({row[2]:.1f} ± {row[3]:.1f})" for row in scored if row[2] > _WITHIN]
    found = f"Within {_WITHIN:g} %: {len(scored) - len(others)} of {len(scored)}"
    found = f"{found}; not {', '.join(others)}." if others else f"{found}."
    unscored = [row[0] for row in models if row[2] is None]
    return f"{found} Without a score: {', '.join(unscored)}." if unscored else found


def main(arguments: Sequence[str] | None = None, *, results: Path = RESULTS) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=[*ALL], default=[*ALL], metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="one set a model, to try the script out")
    given = parser.parse_args(arguments)
    quiet_and_single_threaded()
    results = QUICK if given.quick and results == RESULTS else results
    kept = read_tables("defaults", folder=results).get(SETS_TITLE)
    rows = {name: [row for row in (kept.rows if kept else []) if row[0] == name] for name in ALL}
    for name in given.models:
        rows[name] = [*measure(name, sets=1 if given.quick else 3)]
        for row in rows[name]:
            print(*row, sep=" | ", flush=True)
        every = [row for part in rows.values() for row in part]
        models = by_model(every)
        tables = [
            Table(MODELS_TITLE, MODEL_COLUMNS, models, note=summarise(models)),
            Table(SETS_TITLE, SET_COLUMNS, every, note=NOTE),
        ]
        write_report("defaults", "The default beside the other methods of each model", tables, intro=INTRO,
                     folder=results)  # fmt: skip


INTRO = (
    f"Each of {FOLDS} parts of the rows, ratings, cells or pairs of nodes is scored by log p given a fit to the "
    "others; of documents the words of one half given the other, of supervised LDA the response and of "
    "discriminative LDA the class given the words; where there are no topics, "
    "whole documents, by a bound if the sum is out of reach. Every method by its defaults; sums over all states, NUTS "
    "and general guides by SVI are left out. Short by: the score of the best method minus that of the default, in "
    "percent of the size of the best. The best method of a part is the one that does best on the other parts, "
    "since the best of several by the same data that are scored would look better than it is; it may be the "
    "default, or do worse than that. Error: the standard error of the difference, items being paired; of means "
    "over sets, sets being independent. It knows nothing of other draws of the data that are fitted."
)
NOTE = (
    "Generated data of the model's kind, or the model's example, and 200 rows (of graphs three times as many "
    "nodes) drawn from its program at the globals of that. Best: of all parts together. Percentages of log "
    f"densities depend on the units of the data. A method has {_SECONDS:g} CPU seconds for a set, the default "
    f"and those of Boltzmann and Helmholtz machines {_OF_DEFAULT:g}; without a score are those that take longer, and "
    "those that refuse the model or the data, with the reason."
)


if __name__ == "__main__":
    main()
