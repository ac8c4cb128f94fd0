"""NOCA summed exactly at any number of sources: news words, times, agreement with enumeration, brackets.

    python -m benchmarks.quality.noca_exact [--data DIR]

Writes ``benchmarks/results/noca_exact.{md,json}``. Of a row with M ones the subsets of these are summed over, at a cost
of K M 2^M, in place of the 2^K codes of its sources. The news words (16,242 postings, 100 words, 4 ones a posting) have
few ones: exact EM of 40 sources is compared there with EM on truncated posteriors, the default.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks._report import Table, write_report
from benchmarks.quality._common import add_data_option, cpu_seconds, quiet_and_single_threaded, require_data
from custom_inference import EM, Fit, bracket, compare, fit
from custom_inference.families.noca.posterior import SourceTables
from custom_inference.families.noca.subsets import Subsets
from custom_inference.families.rows.matrix import BinaryRows
from ppl_models import NOCA, Data
from ppl_models.datasets import read_matrix

#: Ones that a document has at most where exact EM runs on it: 98 % of them have no more.
MOST_ONES = 12
SOURCES, DOCUMENTS = 40, 4000
#: Rows on which times, posteriors and widths are measured.
TIMED, COMPARED, BRACKETED = 20, 200, 30


def read_news(folder: Path) -> tuple[Data, Data, Data]:
    """Read documents to fit and to test on, of at most ``MOST_ONES`` words, and longer ones; in a random order."""
    data = read_matrix(folder / "news_w100" / "news_w100.npz", dtype=torch.float64).dense()
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))
    short = data.x[order].sum(1) <= MOST_ONES
    few, many = order[short], order[~short]
    return data.rows(few[:DOCUMENTS]), data.rows(few[DOCUMENTS : DOCUMENTS * 3 // 2]), data.rows(many)


def score(found: Fit, data: Data) -> float:
    return float(found.log_likelihood(data, bound="exact").mean())


def fit_news(train: Data, test: Data) -> tuple[Table, Fit]:
    """Fit by truncated and by exact posteriors, and score both exactly."""
    table = Table(
        f"News words: {len(train)} documents to fit, {len(test)} to test, {SOURCES} sources",
        ["fit", "log p a document", "log p a new document", "its own bound, new", "iterations", "CPU s"],
        note=(
            f"Documents of at most {MOST_ONES} of the 100 words. log p(x) is exact in every line. The default is EM on "
            "truncated posteriors. `exact EM` is `EM()` with the search for starts that the default has; `from the "
            "default` goes on from that fit, by `EM(search=None, accelerate='squarem')`."
        ),
    )
    further = EM(search=None, accelerate="squarem")
    model = NOCA(num_components=SOURCES, num_features=train.num_features)
    default, seconds = cpu_seconds(lambda: fit(model, train, progress=False))
    runs = {
        "default (truncated)": (default, seconds),
        "exact EM from the default": cpu_seconds(lambda: further.fit(model, train, init=default, progress=False)),
        "exact EM": cpu_seconds(lambda: EM().fit(model, train, progress=False)),
    }
    for name, (found, taken) in runs.items():
        own = float(found.log_likelihood(test, bound=found.bound_name).mean())
        table.rows.append([name, score(found, train), score(found, test), own, len(found.elbo), round(taken, 1)])
        print(table.rows[-1], flush=True)
    return table, default


def compare_posteriors(found: Fit, test: Data) -> Table:
    """How far every family is from the exact posteriors of new documents, at the default fit's parameters."""
    columns = ["posterior", "gap a document", "KL a document", "largest error of a marginal", "wall s"]
    table = Table("Posteriors of new documents against the exact ones", columns)
    table.note = f"At the parameters of the default fit, by `compare`; of {COMPARED} documents."
    methods = ["exact", "truncated", "mean_field", "factorized"]
    lines = compare(methods, found.model, test.rows(slice(0, COMPARED)), at=found, progress=False).table
    numbers = lines[["gap_per_row", "kl_per_row", "worst_marginal_error", "seconds"]].to_numpy().tolist()
    table.rows = [[name, *line] for name, line in zip(methods, numbers, strict=True)]
    return table


def draw_globals(rng: np.random.Generator, size: int, features: int) -> dict[str, Tensor]:
    links = rng.random((size, features)) < 0.4
    return {
        "source_prior": torch.tensor(rng.uniform(0.02, 0.6, size)),
        "loading": torch.tensor(rng.uniform(0.0, 0.95, (size, features)) * links),
        "leak": torch.tensor(rng.uniform(0.001, 0.1, features)),
    }


def time_rows() -> Table:
    """Milliseconds a row, by sources and ones."""
    table = Table("Time of a row of 100 features", ["K", "ones", "log p(x), CPU ms", "posterior and counts, CPU ms"])
    table.note = f"Mean of {TIMED} random rows, which are all different."
    rng = np.random.default_rng(0)
    Subsets.of(draw_globals(rng, 2, 4), BinaryRows(torch.ones(1, 4, dtype=torch.float64))).expect()  # compiles
    for size in (60, 200):
        params = draw_globals(rng, size, 100)
        for ones in (4, 8, 10, 12, 14, 16):
            x = torch.zeros(TIMED, 100, dtype=torch.float64)
            for row in x:
                row[torch.tensor(rng.permutation(100)[:ones])] = 1
            sums = Subsets.of(params, BinaryRows(x))
            times = [cpu_seconds(call)[1] for call in (sums.log_evidence, sums.expect)]
            table.rows.append([size, ones, *(1000 * one / TIMED for one in times)])
    return table


def check_agreement() -> Table:
    """Largest differences from the sums over all codes."""
    table = Table("1,000 random rows against all 2^K codes", ["K", "rows", "log p(x) off by", "a marginal off by"])
    rng = np.random.default_rng(1)
    for size in (1, 2, 4, 5, 7, 8, 10, 12, 13, 14):
        params, mask = draw_globals(rng, size, 15), torch.tensor(rng.random((100, 15)) < 0.9)
        rows = BinaryRows(torch.tensor((rng.random((100, 15)) < 0.4) * 1.0) * mask, mask)
        tables, found = SourceTables.of(params, rows), Subsets.of(params, rows).expect()
        joint = tables.joint(rows)
        evidence = float((found.log_evidence - joint.logsumexp(-1)).abs().max())
        marginal = float((found.mean - torch.softmax(joint, -1) @ tables.codes).abs().max())
        table.rows.append([size, len(rows), f"{evidence:.1e}", f"{marginal:.1e}"])
    return table


def bracket_long(found: Fit, long: Data) -> Table:
    """Widths of the brackets of documents with many ones."""
    number, some = len(found.params["source_prior"]), long.rows(slice(0, BRACKETED))
    ones = some.x.sum(1)
    table = Table(
        f"Brackets of {len(some)} documents of {int(ones.min())} to {int(ones.max())} words, K = {number}",
        ["exact ones", "mean width, nats", "largest width", "lower side below", "upper side above", "wall s"],
        note=(
            "By `bracket`: the best lower bound of the engines, and Jaakkola & Jordan's upper bound beside so many "
            "exact ones. Sides against log p(x) on average, of the documents of at most 16 words, where it is exact."
        ),
    )
    near = ones <= 16
    evidence = Subsets.of(found.params, BinaryRows(some.x[near])).log_evidence()
    for exact_ones in (0, 4, 8, 12):
        begin = time.perf_counter()
        both = bracket(found.model, found, some, exact_ones=exact_ones)
        seconds = time.perf_counter() - begin
        sides = [float((evidence - both.lower[near]).mean()), float((both.upper[near] - evidence).mean())]
        table.rows.append([exact_ones, float(both.width.mean()), float(both.width.max()), *sides, seconds])
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_data_option(parser)
    folder = require_data(parser, parser.parse_args())
    quiet_and_single_threaded()
    train, test, long = read_news(folder)
    table, found = fit_news(train, test)
    tables = [table, compare_posteriors(found, test), bracket_long(found, long), time_rows(), check_agreement()]
    print(write_report("noca_exact", "NOCA summed exactly", tables, intro=(__doc__ or "").split("\n\n", 2)[2].strip()))


if __name__ == "__main__":
    main()
