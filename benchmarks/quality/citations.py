"""Citation analysis of Singliar & Hauskrecht (2006, 5.4): NOCA beside LDA, PLSA, a mixture and logistic PCA.

    python -m benchmarks.quality.citations [--data DIR]

Writes ``benchmarks/results/citations.{md,json}`` and figures. The paper had CiteSeer papers x 40 authors of five
communities; here are NIPS 0-12 papers x 201 surnames found in their texts, and communities written down before any fit,
from general knowledge of the field (``_citations.COMMUNITIES``). A document is the set of names it cites.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from benchmarks._report import RESULTS, Table, write_report
from benchmarks.quality import _citation_figures as draw
from benchmarks.quality._citation_methods import FEW, METHODS, Learned
from benchmarks.quality._citations import (
    COMMUNITIES,
    GOOD,
    MEDIOCRE,
    TOP,
    citations,
    community_vectors,
    score,
    successes,
    top_names,
    weighted_cosines,
)
from benchmarks.quality._common import add_data_option, quiet_and_single_threaded, require_data
from ppl_models import Data

#: Of every method but logistic PCA.
STARTS = 20


class Runs(NamedTuple):
    """Every method's fits from all starts, and the CPU seconds of one."""

    learned: dict[str, list[Learned]]
    seconds: dict[str, float]

    def typical(self, name: str) -> Learned:
        """The start with the best objective."""
        return max(self.learned[name], key=lambda one: float(one.fit.elbo[-1]))


def runs(data: Data, size: int) -> Runs:
    """LDA's starts differ in alpha, .01 to 10 (the paper, 5.4: its components hardly depend on the start)."""
    learned, seconds = {}, {}
    alphas = np.geomspace(0.01, 10, STARTS)
    for name, method in METHODS.items():
        begin, number = time.process_time(), FEW if name == "logistic PCA" else STARTS
        extra: list[dict[str, Any]] = [{"alpha": a} if name == "LDA" else {} for a in alphas]
        learned[name] = [method(data, size, seed, **extra[seed]) for seed in range(number)]
        seconds[name] = (time.process_time() - begin) / number
        print(f"K = {size}: {name}, {seconds[name]:.2f} s a fit", flush=True)
    return Runs(learned, seconds)


# ----- Table 1, Figs. 12 to 14 ----------------------------------------------------------------------------------------


def success_table(found: Runs, names: Sequence[str], size: int) -> Table:
    table = Table(
        f"Communities recovered (Table 1), K = {size}",
        ["method", *COMMUNITIES, "all", "CPU s a fit"],
        note=(
            f"Percent of the {len(found.learned['NOCA'])} starts. The paper judged by eye; here a component speaks "
            f"for the community that most of its {TOP} strongest names belong to, and scores 1 where at least {GOOD} "
            f"of them do (good purity), 1/2 at {MEDIOCRE} or {GOOD - 1} (mediocre), else 0; a community counts its "
            "best component. LDA's runs differ in alpha, .01 to 10, as in the paper. K components find at most K "
            "communities."
        ),
    )
    for name, learned in found.learned.items():
        scores = [successes(one.components.vectors, names) for one in learned]
        mean = [100 * float(np.mean([s[c] for s in scores])) for c in COMMUNITIES]
        table.rows.append([name, *(f"{v:.1f}" for v in [*mean, float(np.mean(mean))]), f"{found.seconds[name]:.2f}"])
    return table


def names_table(found: Runs, names: Sequence[str], size: int) -> Table:
    table = Table(
        f"Strongest names of each component (Fig. 13), K = {size}",
        ["method", "weight", "strongest names", "community"],
        note=(
            "The best of the starts by its objective. Weight: the source's prior (NOCA), share of the tokens (LDA, "
            "PLSA) or of the documents (mixture); logistic PCA's components have none."
        ),
    )
    for name in METHODS:
        fit, components = found.typical(name)
        weight = fit.params["source_prior"].numpy() if name == "NOCA" else components.weight
        for position, k in enumerate(np.argsort(-weight)):
            listed = top_names(components.vectors[k], names)
            which = max(COMMUNITIES, key=lambda c: len(set(listed) & set(COMMUNITIES[c])))
            purity = {1.0: which, 0.5: f"{which}?", 0.0: "?"}[score(listed, COMMUNITIES[which])]
            start = name if position == 0 else ""
            table.rows.append([start, f"{weight[k]:.3f}", ", ".join(listed), purity])
    return table


def similarity_table(found: dict[int, Runs], names: Sequence[str], file: str) -> Table:
    """Fig. 14, against the communities; and between starts."""
    reference = community_vectors(names)
    table = Table(
        "Weighted cosine similarity (Fig. 14)",
        ["K", "method", "L = 1", "L = 2", "L = 3", "L = 5", "all matched", "between starts"],
        note=(
            "Each component is matched one-to-one to a community's 0/1 vector so that the sum of u_i cos is largest "
            "(linear assignment; u_i: weights of the components, which sum to 1). L: sum over the L largest terms, "
            "mean over the starts. Between starts: the same similarity of two consecutive starts' components."
        ),
    )
    curves: dict[int, dict[str, np.ndarray]] = {}
    for size, run in found.items():
        curves[size] = {}
        for name, learned in run.learned.items():
            each = [np.cumsum(weighted_cosines(one.components, reference)) for one in learned]
            curve = curves[size][name] = np.mean(each, axis=0)
            pairs = pairwise(learned)
            between = [weighted_cosines(a.components, b.components.vectors).sum() for a, b in pairs]
            at = [float(curve[min(length, len(curve)) - 1]) for length in (1, 2, 3, 5)]
            last = float(np.mean(between)) if between else None
            table.rows.append([size, name, *(f"{v:.3f}" for v in at), f"{curve[-1]:.3f}", last and f"{last:.3f}"])
    table.figures = [draw.save(draw.similarity(curves), RESULTS, file)]
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_data_option(parser)
    data, empty = citations(require_data(parser, parser.parse_args()))
    quiet_and_single_threaded()
    names = [str(name) for name in data.coords["feature"]]
    found = {size: runs(data, size) for size in (5, 10)}
    tables = []
    for size, run in found.items():
        tables += [success_table(run, names, size), names_table(run, names, size)]
    shown = {size: run.typical("NOCA").components for size, run in found.items()}
    tables[1].figures = [draw.save(draw.loadings(shown, names), RESULTS, "citations_loadings")]
    tables.append(similarity_table(found, names, "citations_similarity"))
    meta = {"documents": len(data), "left out without citation": empty, "names": len(names), "starts": STARTS}
    print(write_report("citations", "Citation analysis", tables, meta, intro=INTRO))


INTRO = (__doc__ or "").split("\n\n", 2)[2].strip()


if __name__ == "__main__":
    main()
