"""The default fit of every model beside the other methods that it has: who predicts best what was not seen?

    python -m benchmarks.quality.defaults [--models NAME ...] [--quick]

Writes ``benchmarks/results/defaults.{md,json}``; rows of models that are not run keep what the report had of them. One
thread; CPU seconds of the fit and its score.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

import custom_inference as ci
from benchmarks._report import QUICK, RESULTS, Table, read_tables, write_report
from benchmarks.quality._common import cpu_seconds, quiet_and_single_threaded
from custom_inference.checks.model_choice.held import make_folds, score_held_out
from ppl_models import IRM, MODELS, Data, Model, PPLError, datasets

TITLE = "The default beside the best method of each model"
COLUMNS = ["model", "data", "score of a", "best method", "its score", "default's", "short by, %", "CPU s", "others' s"]
#: Methods that are no rivals: sums over all states and draws of all sites, for reference, and general guides.
_LEFT_OUT = ("default", "exact", "nuts", "mean_field", "amortized", "gaussian")
#: Parts of the items, of which one is held out; components; the percentage that is no matter.
_PARTS, _COMPONENTS, _WITHIN = 5, 4, 1.0
ALL = {**MODELS, "irm": IRM}


def data_sets(name: str) -> Iterator[tuple[str, Callable[[], tuple[Model, Data]]]]:
    """Three sets for a model: of generators for its kind of data, or its example in three divisions of its items."""
    example = ALL[name].example()
    beside = example.model.other_sites or getattr(example.model, "covariates", None) is not None
    made = [] if beside else _GENERATED.get("graph" if example.model.is_graph else example.model.data_kind, [])
    for title, generate in made:
        yield title, partial(_of_generator, ALL[name], generate)
    for number in range(3 - len(made)):
        yield f"example, division {number}", lambda: (example.model, example.data)


def _of_generator(kind: type[Model], generate: Callable[[], Any]) -> tuple[Model, Data]:
    generated = generate()
    model = kind.for_data(generated.data, _COMPONENTS)  # pyright: ignore[reportAttributeAccessIssue]
    return model, generated.data


_GENERATED: dict[str, list[tuple[str, Callable[[], Any]]]] = {
    "binary": [
        ("images of patterns", partial(datasets.image_patterns, 400, seed=0)),
        ("images of aspects", partial(datasets.aspect_images, 400, seed=0)),
        ("admixture", partial(datasets.admixture, 200, 100, seed=0)),
    ],
    "documents": [(f"topics {seed}", partial(datasets.topic_corpus, 150, 500, seed=seed)) for seed in range(3)],
    "graph": [
        ("karate club", datasets.karate),
        ("ring of blocks", datasets.ring_graph),
        ("hierarchy of blocks", datasets.hierarchy_graph),
    ],
}


def rivals(model: Model) -> list[str]:
    """The methods that the default is put beside."""
    return [name for name in ci.methods_for(model) if name not in _LEFT_OUT and not name.startswith("svi")]


def measure(name: str, *, sets: int = 3) -> Iterator[list[Any]]:
    """The rows of a model; of a set that cannot be scored, why."""
    for number, (title, make) in enumerate([*data_sets(name)][:sets]):
        try:
            model, x = make()
            data = model.prepare(x, dtype=torch.float64)
            folds = make_folds(model, data, _PARTS, number)._replace(number=1)
            score = partial(score_held_out, model, data, folds, seed=0, progress=False)
            default, seconds = cpu_seconds(score)
        except PPLError as error:
            yield [name, title, "", str(error).partition("\n")[0], None, None, None, None, None]
            continue
        best, highest, spent = "default", default.mean, 0.0
        for method in rivals(model):
            try:
                found, own = cpu_seconds(partial(score, method=method))
            except PPLError:  # it does not take these data
                continue
            spent += own
            best, highest = (method, found.mean) if found.mean > highest else (best, highest)
        short = 100 * (highest - default.mean) / abs(highest)
        yield [name, title, default.unit, best, highest, default.mean, short, seconds, spent]


def summarise(rows: Sequence[Sequence[Any]]) -> str:
    """How many models fall short by no more than 1 % on every set, and which others do."""
    shortest: dict[str, float] = {}
    for name, *_, short, _, _ in rows:
        if short is not None:
            shortest[name] = max(shortest.get(name, 0.0), short)
    others = [name for name, short in shortest.items() if short > _WITHIN]
    found = f"Within {_WITHIN:g} %: {len(shortest) - len(others)} of {len(shortest)}"
    return f"{found}; not {', '.join(others)}." if others else f"{found}."


def main(arguments: Sequence[str] | None = None, *, results: Path = RESULTS) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=[*ALL], default=[*ALL], metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="one set a model, to try the script out")
    given = parser.parse_args(arguments)
    quiet_and_single_threaded()
    results = QUICK if given.quick and results == RESULTS else results
    kept = read_tables("defaults", folder=results).get(TITLE)
    rows = {name: [row for row in (kept.rows if kept else []) if row[0] == name] for name in ALL}
    for name in given.models:
        rows[name] = [*measure(name, sets=1 if given.quick else 3)]
        for row in rows[name]:
            print(*row, sep=" | ", flush=True)
        every = [row for part in rows.values() for row in part]
        table = Table(TITLE, COLUMNS, every, note=NOTE + summarise(every))
        write_report("defaults", "Defaults", [table], folder=results)


NOTE = (
    "A fifth of the rows, ratings, or pairs of nodes is held out, and scored by log p given the fitted globals; of "
    "documents the words of one half given the other. Every method by its defaults with seed 0; sums over all states, "
    "NUTS and general guides by SVI are left out. Short by: the best score minus the default's, in percent of the "
    "size of the best. "
)


if __name__ == "__main__":
    main()
