"""How fast programs of one's own are: beside listed models, EM by hand and other programs, and at several sizes.

    pip install --target DIR numpyro funsor pomegranate hmmlearn
    python -m benchmarks.quality.own_programs --tables beside sizes peers [--data DIR] [--packages DIR]

Every case is a process of its own on one thread, in which a fit of a few rows is made first. Models are made anew for
every fit, so that finding what a program is made of counts. PPL_SMOKE=1: a few rows and one seed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import custom_inference as ci
from benchmarks import _processes
from benchmarks._report import Table, environment
from benchmarks.quality import _own_by_hand as by_hand
from benchmarks.quality import _own_data as drawn
from benchmarks.quality import _own_models as own
from benchmarks.quality import _own_peers as others
from benchmarks.quality._common import add_data_option, cpu_seconds, quiet_and_single_threaded, spread
from benchmarks.quality._own_data import Array, Rows
from benchmarks.quality._peer_rows_of import version_of
from benchmarks.speed._stream_worker import Watch
from ppl_models import NOCA, Data, MixtureOfBernoullis, MixtureOfPoissons, Model, row_blocks

SMOKE = os.environ.get("PPL_SMOKE") == "1"
SEEDS, _FEW = (1, 40) if SMOKE else (3, 60)
BESIDE, SIZES, PEERS = "Beside listed models and EM by hand", "Sizes", "Beside other programs"
_COLUMNS: Mapping[str, tuple[str, ...]] = {
    BESIDE: ("program", "rows", "draw", "method", "CPU s", "log-likelihood of a row", "found", "beside",
             "its CPU s", "its log-likelihood", "it found", "CPU s over its", "a climb from the truth"),
    SIZES: ("rows", "how they are read", "CPU s", "MB at the peak", "log-likelihood of a row", "listed: CPU s",
            "listed: MB", "listed: log-likelihood", "CPU s over listed"),
    PEERS: ("data", "program", "method", "CPU s", "log-likelihood of a row", "CPU s over ours", "measured"),
}  # fmt: skip
_NOTES: Mapping[str, str] = {
    BESIDE: f"CPU seconds of a fit on one thread, log-likelihood of a row, and sources found: lowest / median / "
    f"highest of {SEEDS} seeds; the last column is of medians. By hand: plain NumPy EM of the same model, "
    f"{by_hand.STARTS} random starts. A source is found where all its log failures are within 1 of those that the rows "
    "were drawn from, and its prior is above .02, of sources matched one-to-one. A climb from the truth: where EM of "
    "the listed model ends that starts at what the rows were drawn from, which is what these rows can tell.",
    SIZES: "Five classes of 20 counts, one fit each in a process of its own. MB: anonymous memory at the peak of the "
    "fit, less that of the process with the data in it; blocks and minibatches are of 1,000 rows, blocks read from a "
    "file; ten passes of minibatches.",
    PEERS: f"Lowest / median / highest of {SEEDS} seeds; compiling counts. Ours is the default fit of the same "
    "program. nan: the fit ended at no number, in pomegranate where a class has a column of zeros alone.",
}


# ----- beside listed models, and by hand --------------------------------------------------------------------------


class Outcome(NamedTuple):
    """Log-likelihood of a row, what was found, and the method's name."""

    score: float
    found: int | None = None
    method: str = ""


@dataclass(frozen=True)
class Case:
    """draw: rows from a folder of data and the number of the draw; model: made anew for every fit; beside: the name and
    the fit of what the program is timed beside, from rows and a seed; sources: the sites of sources, where counted."""

    draw: Callable[[Path, int], Rows]
    model: Callable[[], Model]
    beside: str
    rival: Callable[[Rows, int], Outcome]
    draws: int = 1
    sources: tuple[str, str] | None = None
    needs_data: bool = False


def fitted(
    model: Model, rows: Rows, seed: int, method: Any, sources: tuple[str, str] | None = None, **settings: Any
) -> Outcome:
    """A fit by a method, None for the default; sources: the sites of their loadings and priors."""
    given = {**settings, **{name: torch.as_tensor(one) for name, one in rows.given.items()}}
    given |= {} if method is None else {"method": method}
    fit = ci.fit(model, rows.x, seed=seed, progress=False, **given)
    found = None
    if sources and rows.truth:
        p, prior = (np.asarray(fit.params[site], float) for site in sources)
        found = drawn.sources_found(p, prior, rows.truth["p"])
    return Outcome(float(np.asarray(fit.log_likelihood()).mean()), found, fit.method_name)


def _listed(kind: Callable[..., Model], sources: tuple[str, str] | None = None, **sizes: Any) -> Any:
    return lambda rows, seed: fitted(kind(**sizes), rows, seed, "em", sources)


def _hand(climb: Callable[[Rows, int], Array]) -> Any:
    return lambda rows, seed: Outcome(float(climb(rows, seed).mean()))


_BITS: dict[str, Any] = {"num_components": 10, "num_features": 64}
_TABLE: dict[str, Any] = {"num_components": 5, "num_features": 20}
_IMAGES: dict[str, Any] = {"num_components": 8, "num_features": 64}
_HAND = "EM by hand"
CASES: Mapping[str, Case] = {
    "classes of bits (digits), K 10": Case(
        lambda folder, draw: drawn.digits(), lambda: own.Bits(**_BITS), "MixtureOfBernoullis, em",
        _listed(MixtureOfBernoullis, **_BITS)),
    "classes of counts, K 5": Case(
        lambda folder, draw: drawn.counts(1000, draw), lambda: own.Counts(**_TABLE), "MixtureOfPoissons, em",
        _listed(MixtureOfPoissons, **_TABLE), draws=2),
    "zero-inflated classes, K 3": Case(
        lambda folder, draw: drawn.zero_inflated(500, draw),
        lambda: own.ZeroInflated(num_components=3, num_features=10),
        _HAND, _hand(by_hand.zero_inflated)),
    "classes and kinds, 3 x 2": Case(
        lambda folder, draw: drawn.two_level(500, draw),
        lambda: own.TwoLevel(num_components=3, num_kinds=2, num_features=12), _HAND, _hand(by_hand.two_level)),
    "mixture of regressions, K 3": Case(
        lambda folder, draw: drawn.regressions(500, draw), lambda: own.Regressions(num_classes=3, num_covariates=3),
        _HAND, _hand(by_hand.regressions)),
    "hidden Markov chain, 20 steps": Case(
        lambda folder, draw: drawn.chains(1000, 20, draw), lambda: own.make_chain(20),
        _HAND, _hand(by_hand.chain)),
    "hidden Markov chain, 100 steps": Case(
        lambda folder, draw: drawn.chains(1000, 100, draw), lambda: own.make_chain(100),
        _HAND, _hand(by_hand.chain)),
    "noisy-or of images, K 8": Case(
        lambda folder, draw: drawn.images(folder, 500, draw), lambda: own.NoisyOr(**_IMAGES), "NOCA, em",
        _listed(NOCA, ("loading", "source_prior"), **_IMAGES), draws=5, sources=("p", "prior"), needs_data=True),
    "noisy-or, leaks by group, K 4": Case(
        lambda folder, draw: drawn.grouped(500, draw),
        lambda: own.NoisyOrOfGroups(num_components=4, num_features=16, num_groups=2), _HAND, _hand(by_hand.noisy_or),
        sources=("p", "prior")),
}  # fmt: skip


def measure_beside(name: str, draw: int, folder: Path, seeds: int = SEEDS) -> list[Any]:
    """A line of the first table, measured in this process."""
    case = CASES[name]
    rows = case.draw(folder, draw)
    rows = rows.first(_FEW) if SMOKE else rows
    sides: list[Callable[[Rows, int], Outcome]] = [
        lambda some, seed: fitted(case.model(), some, seed, None, case.sources), case.rival
    ]  # fmt: skip
    for side in sides:  # imports, and compiles
        side(rows.first(_FEW), seeds)
    every = [[cpu_seconds(partial(side, rows, seed)) for side in sides] for seed in range(seeds)]
    mine, theirs = ([one[side] for one in every] for side in range(2))
    cells = [[_seconds(side), spread([one.score for one, _ in side]), _founds(side)] for side in (mine, theirs)]
    ratio = _ratio([seconds for _, seconds in mine], [seconds for _, seconds in theirs])
    size, method = " x ".join(map(str, rows.x.shape)), mine[0][0].method
    climbed = _from_truth(rows) if case.needs_data else ""
    return [name, size, draw, method, *cells[0], case.beside, *cells[1], ratio, climbed]


def _from_truth(rows: Rows) -> str:
    """Where EM of the listed noisy-or ends from what images were drawn from."""
    p = torch.as_tensor(rows.truth["p"]).clamp(1e-3, 1 - 1e-3)
    start = {"source_prior": torch.full((8,), 0.25), "loading": p, "leak": torch.full((64,), 0.01)}
    end = fitted(NOCA(**_IMAGES), rows, 0, ci.EM(search=None), ("loading", "source_prior"), init=start)
    return f"{end.score:.3f}, {end.found} found"


def _seconds(side: Sequence[tuple[Outcome, float]]) -> str:
    return spread([seconds for _, seconds in side], 2)


def _founds(side: Sequence[tuple[Outcome, float]]) -> str:
    found = [one.found for one, _ in side if one.found is not None]
    return spread(found, 0) if found else ""


def _ratio(mine: Sequence[float], theirs: Sequence[float]) -> str:
    return f"{np.median(mine) / np.median(theirs):.1f}"


# ----- sizes ------------------------------------------------------------------------------------------------------

_BLOCK = 1000
_ONLINE = ci.EM(batch_size=_BLOCK, max_iterations=10)
_HOW: Mapping[str, Callable[[Model, Any], Any]] = {
    "in memory": lambda model, x: ci.fit(model, x, method="em", progress=False),
    "in memory, minibatches": lambda model, x: _ONLINE.fit(model, x, progress=False),
    "from blocks": lambda model, x: ci.fit(model, x, method="em", progress=False),
    "from blocks, minibatches": lambda model, x: _ONLINE.fit(model, x, progress=False),
}
NUMBERS = (200,) if SMOKE else (1_000, 10_000, 100_000)


def measure_size(side: str, how: str, number: int) -> dict[str, float]:
    """Seconds, memory in MB and the log-likelihood of a row of one fit, in this process."""
    kind = own.Counts if side == "own" else MixtureOfPoissons
    x = drawn.counts(number, 0).x
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.npy"
        np.save(path, x)
        of_blocks = how.startswith("from")
        _HOW[how](kind(**_TABLE), x[:200])
        data = row_blocks(path, block_rows=_BLOCK) if of_blocks else x
        if of_blocks:
            del x
        with Watch() as watch:
            fit, seconds = cpu_seconds(lambda: _HOW[how](kind(**_TABLE), data))
        score = np.asarray(fit.log_likelihood(Data(x=torch.as_tensor(np.load(path))))).mean()
    return {"seconds": seconds, "memory": (watch.peak - watch.before) / 2**20, "score": float(score)}


def _size_line(how: str, number: int) -> list[Any]:
    mine, theirs = (_in_a_process("sizes", side, how, str(number)) for side in ("own", "listed"))
    cells = [[f"{one['seconds']:.2f}", f"{one['memory']:.0f}", one["score"]] for one in (mine, theirs)]
    return [number, how, *cells[0], *cells[1], _ratio([mine["seconds"]], [theirs["seconds"]])]


# ----- other programs ---------------------------------------------------------------------------------------------

_OURS = "this suite"
#: Kind of data -> its name, the rows, and our program.
_DATA: Mapping[str, tuple[str, Callable[[], Rows], Callable[[], Model]]] = {
    "bits": ("classes of bits (digits), K 10", drawn.digits, lambda: own.Bits(**_BITS)),
    "counts": ("classes of counts, K 5", lambda: drawn.counts(1000, 0), lambda: own.Counts(**_TABLE)),
    "chain": ("hidden Markov chain, 20 steps", lambda: drawn.chains(1000, 20, 0),
              lambda: own.make_chain(20)),
}  # fmt: skip


def measure_peer(kind: str, program: str, seeds: int = SEEDS) -> dict[str, Any]:
    """CPU seconds and log-likelihoods of a row of all seeds, in this process."""
    _, draw, model = _DATA[kind]
    rows = draw().first(_FEW) if SMOKE else draw()
    found, method, seconds = [], "", []
    if program == _OURS:
        fitted(model(), rows.first(_FEW), 0, None)
    for seed in range(seeds):
        if program == _OURS:
            outcome, spent = cpu_seconds(partial(fitted, model(), rows, seed, None))
            method = outcome.method
            found.append(outcome.score)
        else:
            peer = next(one for one in others.PROGRAMS if one.name == program)
            params, spent = cpu_seconds(partial(others.run, peer, kind, rows.x, seed, 5 if SMOKE else None))
            method = peer.method
            found.append(others.evidence(kind, rows.x, params))
        seconds.append(spent)
    return {"scores": found, "seconds": seconds, "method": method}


def _peer_lines(kind: str, packages: Path | None, known: Mapping[tuple[str, str], list[Any]]) -> Iterator[list[Any]]:
    """Lines of a kind of data: ours, then those of programs that are there; of others what is known of them."""
    title, more = _DATA[kind][0], ["--packages", str(packages)] if packages else []
    ours = _in_a_process("peers", kind, _OURS)
    yield _peer_line(title, _OURS, ours, ours)
    for program in others.PROGRAMS:
        if kind not in program.runs:
            continue
        if all(version_of(name) is not None for name in program.needs):
            found = _in_a_process("peers", kind, program.name, *more)
            yield _peer_line(title, f"{program.name} {version_of(program.needs[0])}", found, ours)
        else:
            yield from (line for (data, name), line in known.items() if data == title and name == program.name)


def _peer_line(title: str, program: str, found: Mapping[str, Any], ours: Mapping[str, Any]) -> list[Any]:
    ratio = "" if found is ours else _ratio(found["seconds"], ours["seconds"])
    cells = [spread(found["seconds"], 2), spread(found["scores"]), ratio]
    return [title, program, found["method"], *cells, environment()["date"]]


# ----- tables -----------------------------------------------------------------------------------------------------


def tables(
    titles: Sequence[str], before: Mapping[str, Table], data: Path | None, packages: Path | None
) -> Iterator[Table]:
    """Yield every table after each of its lines. Lines for which there are no data, and those of programs that are not
    there, stay what they were."""
    if packages:
        sys.path.append(str(packages))
    makers = {BESIDE: _beside, SIZES: _sizes, PEERS: _peers}
    for title in titles:
        lines: list[list[Any]] = []
        for line in makers[title](before[title].rows if title in before else [], data, packages):
            lines.append(line)
            print(*line, sep=" | ", flush=True)
            yield Table(title, _COLUMNS[title], [*lines], _NOTES[title])


def _beside(before: Sequence[list[Any]], data: Path | None, packages: Path | None) -> Iterator[list[Any]]:
    del packages
    for name, case in list(CASES.items())[1:3] if SMOKE else CASES.items():
        for draw in range(1 if SMOKE else case.draws):
            if case.needs_data and data is None:
                yield from (line for line in before if line[0] == name and line[2] == draw)
            else:
                yield _in_a_process("beside", name, str(draw), *(["--data", str(data)] if data else []))


def _sizes(before: Sequence[list[Any]], data: Path | None, packages: Path | None) -> Iterator[list[Any]]:
    del before, data, packages
    yield from (_size_line(how, number) for number in NUMBERS for how in (list(_HOW)[:1] if SMOKE else _HOW))


def _peers(before: Sequence[list[Any]], data: Path | None, packages: Path | None) -> Iterator[list[Any]]:
    del data
    known = {(line[0], line[1].split(" ")[0]): line for line in before}
    for kind in ["counts"] if SMOKE else _DATA:
        yield from _peer_lines(kind, packages, known)


def _in_a_process(table: str, *arguments: str) -> Any:
    threads = {f"{library}_NUM_THREADS": "1" for library in ("MKL", "OPENBLAS", "NUMBA")}
    # Of all that XLA reads, this alone keeps it to one thread.
    flags = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"}
    module = "benchmarks.quality.own_programs_speed"
    return _processes.in_a_process(
        " ".join(arguments), module, table, *arguments, **_processes.HELD, **threads, **flags
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """One measurement in this process, printed as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("table", choices=("beside", "sizes", "peers"))
    parser.add_argument("what", nargs="+")
    parser.add_argument("--packages", type=Path)
    add_data_option(parser)
    given = parser.parse_args(arguments)
    quiet_and_single_threaded()
    warnings.simplefilter("ignore")
    if given.packages:
        sys.path.append(str(given.packages))
    first, *rest = given.what
    if given.table == "beside":
        print(json.dumps(measure_beside(first, int(rest[0]), Path(given.data or "."))))
    elif given.table == "sizes":
        print(json.dumps(measure_size(first, rest[0], int(rest[1]))))
    else:
        print(json.dumps(measure_peer(first, rest[0])))


if __name__ == "__main__":
    main()
