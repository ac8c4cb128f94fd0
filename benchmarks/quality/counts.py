"""Counts of words, thinned: Poisson PCA and other factorisations by the log-likelihood of the tokens left out.

    python -m benchmarks.quality.counts [--data DIR] [--lines "Poisson PCA 10;Poisson PCA 20"]

Lines that are not measured again keep what the report had of them. CPU seconds are of one thread and of the fit alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from benchmarks._report import RESULTS, Table, read_tables, write_report
from benchmarks.quality._common import add_data_option, cpu_seconds, quiet_and_single_threaded, require_data
from benchmarks.quality._counts_data import Counts, counts, rank_one, score
from custom_inference import CollapsedGibbs, VariationalBayes, VariationalEM
from custom_inference.em.search import Search
from custom_inference.families.factors.poisson_rows import PoissonRows
from custom_inference.families.factors.poisson_updates import Globals, Scores, rates
from ppl_models import NMF, GammaPoisson, PoissonPCA

TITLE = "Four newsgroups, thinned"
NOTE = (
    "Poisson log-likelihood a test token of the rates fitted to four fifths of the tokens (constants left out, 1 % of "
    "the unigram mixed in); higher is better. Poisson PCA with K factors learns an offset of every row beside them."
)
COLUMNS = ("method", "factors", "log-likelihood a token", "CPU s")

Rate = NDArray[Any]


def poisson_pca(train: Counts, *, num_factors: int, guide: str, iterations: int) -> tuple[Rate, float]:
    """Ten iterations from the principal components, then so many of the guide's, in single precision."""
    model = PoissonPCA(num_components=num_factors, num_features=train.shape[1]).with_row_offsets()
    method = VariationalEM(guide=guide, max_iterations=iterations, search=Search(settle=10, climb=0))
    settings: dict[str, Any] = {"offset": "total", "dtype": torch.float32, "progress": False, "seed": 0}
    fit, seconds = cpu_seconds(lambda: method.fit(model, train, **settings))
    posterior: Any = fit.local.posterior
    at = Globals(fit.params["weight"], fit.params["bias"])
    rate = rates(PoissonRows.of(fit.data).counts, at, Scores(posterior.mean, posterior.covariance))
    return rate.double().numpy(), seconds


def nmf(train: Counts, *, num_factors: int) -> tuple[Rate, float]:
    """scikit-learn's, of the Kullback-Leibler divergence."""
    import scipy.sparse as sp
    from sklearn.decomposition import NMF

    settings: dict[str, Any] = {
        "n_components": num_factors,
        "solver": "mu",
        "beta_loss": "kullback-leibler",
        "init": "nndsvda",
        "max_iter": 300,
    }
    made, x = NMF(tol=1e-5, random_state=0, **settings), sp.csr_matrix(train.astype(float))
    activation, seconds = cpu_seconds(lambda: made.fit_transform(x))
    return activation @ made.components_, seconds


def gamma_poisson(train: Counts, *, num_factors: int, method: Any, flat: bool = False) -> tuple[Rate, float]:
    """The mean rate: over the draws where the method samples, else at the posterior means."""
    import scipy.sparse as sp

    made = (NMF if flat else GammaPoisson)(num_components=num_factors, num_features=train.shape[1])
    x, settings = sp.csr_matrix(train.astype(float)), {"dtype": torch.float32, "progress": False, "seed": 0}
    fit, seconds = cpu_seconds(lambda: _mean_rate(method.fit(made, x, **settings)))
    return fit.double().numpy(), seconds


def _mean_rate(fit: Any) -> torch.Tensor:
    if fit.draws is None:
        return fit.transform() @ fit.params["loading"]
    activation, loading = (fit.draws[site].flatten(0, 1) for site in ("activation", "loading"))
    total = activation[0] @ loading[0]
    for one, other in zip(activation[1:], loading[1:], strict=True):
        total.addmm_(one, other)
    return total / len(loading)


def _rank_one(train: Counts) -> tuple[Rate, float]:
    return cpu_seconds(lambda: rank_one(train))


#: Shapes and rates are learned; 200 sweeps, and 560; two chains of 70 sweeps, in whichever modes they are: of a rate
#: the mean over modes has a meaning, and predicts better than as many draws of one.
_LEARNED = VariationalBayes(learn="activation")
_SAMPLED = CollapsedGibbs(chains=1, threads=1, learn=True, num_samples=30, warmup=80, thin=4, search=False)
_LONGER = replace(_SAMPLED, num_samples=120)
_TWO = replace(_SAMPLED, chains=2, num_samples=10, warmup=40, thin=3, align=False)

#: Beyond the sixty of the search.
_POINTS = VariationalEM(guide="map", max_iterations=90)

#: Line -> the number of factors, and what gives the rate (N, V) and the CPU seconds of the fit.
LINES: dict[str, tuple[int, Callable[[Counts], tuple[Rate, float]]]] = {
    "row total x unigram": (0, _rank_one),
    "NMF-KL (scikit-learn) 10": (10, partial(nmf, num_factors=10)),
    "NMF-KL (scikit-learn) 20": (20, partial(nmf, num_factors=20)),
    "NMF 20": (20, partial(gamma_poisson, num_factors=20, method=_POINTS, flat=True)),
    "GaP, points 20": (20, partial(gamma_poisson, num_factors=20, method=VariationalEM(guide="map"))),
    "GaP, VB 20": (20, partial(gamma_poisson, num_factors=20, method=VariationalEM(guide=_LEARNED))),
    "GaP, Gibbs 20": (20, partial(gamma_poisson, num_factors=20, method=_SAMPLED)),
    "GaP, Gibbs, two chains of 70 sweeps 20": (20, partial(gamma_poisson, num_factors=20, method=_TWO)),
    "GaP, Gibbs, 560 sweeps 20": (20, partial(gamma_poisson, num_factors=20, method=_LONGER)),
    "Poisson PCA 10": (10, partial(poisson_pca, num_factors=10, guide="variational", iterations=8)),
    "Poisson PCA 20": (20, partial(poisson_pca, num_factors=20, guide="variational", iterations=8)),
    "Poisson PCA, uncertain weights 10": (10, partial(poisson_pca, num_factors=10, guide="bayesian", iterations=8)),
    "Poisson PCA, uncertain weights 20": (20, partial(poisson_pca, num_factors=20, guide="bayesian", iterations=14)),
}


def measured(names: Sequence[str], folder: Path) -> Table:
    """The lines asked for."""
    table, (train, test) = Table(TITLE, COLUMNS, note=NOTE), counts(folder)
    for name in names:
        number, fitted = LINES[name]
        rate, seconds = fitted(train)
        table.rows.append([name, number or None, score(rate, train, test), seconds])
        print(table.rows[-1], flush=True)
    return table


def merged(table: Table, before: dict[str, Table]) -> Table:
    """With the lines of an earlier report that were not measured again, in the order of LINES."""
    old, fresh = before.get(TITLE), {row[0] for row in table.rows}
    if old is not None and list(old.columns) == list(COLUMNS):
        table.rows += [row for row in old.rows if row[0] not in fresh and row[0] in LINES]
    table.rows.sort(key=lambda row: [*LINES].index(row[0]))
    return table


def main(arguments: Sequence[str] | None = None, *, results: Path = RESULTS) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data_option(parser)
    parser.add_argument("--lines", help="names, separated by ';'; by default all")
    given = parser.parse_args(arguments)
    folder = require_data(parser, given)
    quiet_and_single_threaded()
    table = measured(given.lines.split(";") if given.lines else [*LINES], folder)
    table = merged(table, read_tables("counts", folder=results))
    write_report("counts", "Counts: Poisson PCA and other factorisations", [table], folder=results)


if __name__ == "__main__":
    main()
