"""NOCA on real input: who is cited together at NIPS 0-12, and which fossil mammals occur together.

    python -m benchmarks.quality.noca_real [--data DIR]

Writes ``benchmarks/results/noca_real.{md,json}`` and figures. There is no truth here: what can be checked is whether
sources mean something to a reader (their strongest features), whether they agree with labels that the fit has not seen
(category and year of a paper; age and place of a site), and whether other seeds find the same.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyro.distributions as dist
import torch

from benchmarks._report import RESULTS, Table, write_report
from benchmarks.quality import _real_figures as draw
from benchmarks.quality._common import add_data_option, cpu_seconds, quiet_and_single_threaded, require_data
from custom_inference import EM, Fit, Search, fit, match_components
from ppl_models import NOCA, Data
from ppl_models.datasets import read_matrix

#: Seeds of every default fit.
SEEDS = 3
WEAK_PRIORS = {"loading": dist.Beta(1.2, 1.4), "leak": dist.Beta(1.5, 8.0)}


@dataclass(frozen=True)
class Runs:
    """The best of the default fits from several seeds, sources the most important first, and the rest."""

    best: Fit
    others: list[Fit]
    seconds: list[float]

    @property
    def order(self) -> list[int]:
        weight = self.best.params["source_prior"] * self.best.params["loading"].sum(-1)
        return torch.argsort(weight, descending=True).tolist()

    def stability(self) -> torch.Tensor:
        """Mean cosine of each source's loading with its match in the other seeds' fits, (K,)."""
        loading = self.best.params["loading"]
        every = [match_components(loading, other.params["loading"]).similarity for other in self.others]
        return torch.stack(every).mean(0)


def default_runs(data: Data, num_sources: int) -> Runs:
    model = NOCA(num_components=num_sources, num_features=data.num_features)
    runs = [cpu_seconds(lambda seed=seed: fit(model, data, seed=seed, progress=False)) for seed in range(SEEDS)]
    fits = sorted((f for f, _ in runs), key=lambda f: float(f.elbo[-1]), reverse=True)
    return Runs(fits[0], fits[1:], [s for _, s in runs])


def named(values: torch.Tensor, names: Sequence[str], top: int) -> str:
    """The ``top`` largest values with their names: "sutton 0.70, barto 0.61"."""
    return ", ".join(f"{names[j]} {float(values[j]):.2f}" for j in values.argsort(descending=True)[:top].tolist())


def strongest(of: Fit, source: int, top: int) -> str:
    return named(of.params["loading"][source], of.data.coords["feature"], top)


def search_table(runs: Runs, title: str) -> Table:
    """Is there a better optimum than the default fit finds?"""
    rows, model, data = len(runs.best.data), runs.best.model, runs.best.data
    line = sorted((float(f.elbo[-1]) / rows for f in (runs.best, *runs.others)), reverse=True)
    table = Table(title, ["search", "log-likelihood per row", "CPU s a fit"])
    shown = f"{line[0]:.3f} / {line[-1]:.3f}"
    table.rows.append([f"default, best / worst of {len(line)} seeds", shown, float(np.median(runs.seconds))])
    random_starts = EM(search=Search(informed=False, restarts=20, agree=20, settle=60, rows=rows))
    result, seconds = cpu_seconds(lambda: random_starts.fit(model, data, seed=0, progress=False))
    table.rows.append(["exact EM, best of 20 random starts", f"{float(result.elbo[-1]) / rows:.3f}", seconds])
    return table


# ----- NIPS -----------------------------------------------------------------------------------------------------------


def nips(folder: Path) -> list[Table]:
    path = folder / "nips" / "nips_cited_surnames.npz"
    data = read_matrix(path, dtype=torch.float64)
    with np.load(path, allow_pickle=False) as archive:
        year, label, label_names = archive["year"], archive["label"], archive["label_names"]
    runs = default_runs(data, 10)
    active = runs.best.transform().numpy()
    table = Table(
        f"NIPS 0-12: {len(data)} papers x {data.num_features} cited surnames, K = 10",
        ["source", "prior", "names on", "strongest names (loading)", "categories (lift)", "year", "stable"],
        note=(
            "Default fit. Names on: expected number that the source turns on. Categories and years were not seen by "
            "the fit: lift = share of a category among the papers with the source over its share overall (categories "
            "of at least 10 papers); year = posterior mean year of the source's papers. Stable: mean cosine with the "
            f"matching source of the other {SEEDS - 1} seeds."
        ),
    )
    stable = runs.stability()
    for position, i in enumerate(runs.order):
        prior, links = runs.best.params["source_prior"][i], runs.best.params["loading"][i]
        mean_year = float((active[:, i] * year).sum() / active[:, i].sum())
        lifts = lift(active[:, i], label, label_names)
        start = [position, float(prior), float(links.sum()), strongest(runs.best, i, 9)]
        table.rows.append([*start, lifts, f"{mean_year:.1f}", float(stable[i])])
    leak = named(runs.best.params["leak"], data.coords["feature"], 8)
    table.note += f" The leak, names cited whatever the subject: {leak}."
    captions = [strongest_names(runs.best, i, 3) for i in runs.order]
    figure = draw.by_year(active[:, runs.order], year, captions, "NIPS 0-12: share of papers with each source, by year")
    loadings = draw.loadings(runs.best, runs.order, 5, "NIPS 0-12: the strongest names of each source")
    table.figures = [draw.save(figure, RESULTS, "noca_real_nips_years"), draw.save(loadings, RESULTS, "noca_real_nips")]
    return [table, search_table(runs, "NIPS: how good is the optimum?")]


def strongest_names(of: Fit, source: int, top: int) -> str:
    names, loading = of.data.coords["feature"], of.params["loading"][source]
    return ", ".join(str(names[j]) for j in loading.argsort(descending=True)[:top].tolist())


def lift(active: np.ndarray, label: np.ndarray, names: np.ndarray, top: int = 2) -> str:
    """The categories that papers with the source fall into more often than papers do."""
    share = {
        k: float(active[label == k].mean() / active.mean()) for k in range(len(names)) if int((label == k).sum()) >= 10
    }
    best = sorted(share, key=lambda k: share[k], reverse=True)[:top]
    return ", ".join(f"{names[k]} x{share[k]:.1f}" for k in best)


# ----- fossil mammals -------------------------------------------------------------------------------------------------


def mammals(folder: Path) -> list[Table]:
    path = folder / "now_mammals" / "now_miocene.npz"
    data = read_matrix(path, columns="genera", dtype=torch.float64)
    with np.load(path, allow_pickle=False) as archive:
        place = {name: archive[name] for name in ("lat", "lon", "max_age", "min_age", "country", "order")}
    age = (place["max_age"] + place["min_age"]) / 2
    choice, chosen = selection_table(data, range(1, 9))
    tables = [choice]
    for size in dict.fromkeys((chosen, 6)):
        runs = default_runs(data, size)
        active = runs.best.transform().numpy()[:, runs.order]
        tables.append(_mammal_sources(runs, active, age, place))
        if size == 6:
            captions = [strongest_names(runs.best, i, 2) for i in runs.order]
            figures = {
                "noca_real_mammals": draw.loadings(runs.best, runs.order, 6, "Miocene mammals: strongest genera"),
                "noca_real_mammals_sites": draw.sites(active, age, place["lon"], place["lat"], captions),
            }
            tables[-1].figures = [draw.save(figure, RESULTS, name) for name, figure in figures.items()]
            tables.append(search_table(runs, "Mammals, K = 6: how good is the optimum?"))
    return tables


def selection_table(data: Data, sizes: Sequence[int]) -> tuple[Table, int]:
    """BIC and held-out log-likelihood for every number of sources."""
    table = Table(
        f"Miocene mammals: {len(data)} sites x {data.num_features} genera: how many sources?",
        ["k", "BIC", "log-likelihood per site", "held out, flat priors", "held out, weak priors"],
        note=(
            f"Best of {SEEDS} seeds. BIC as in Singliar & Hauskrecht (2006), half of the usual one. "
            "Held out: mean log-likelihood of each fifth of the sites under the fit to the "
            "others, with flat priors (maximum likelihood) and with loading ~ Beta(1.2, 1.4), leak ~ Beta(1.5, 8)."
        ),
    )
    scores = {}
    for k in sizes:
        best = default_runs(data, k).best
        scores[k] = best.bic() / 2  # as Singliar & Hauskrecht (2006) prints it
        flat = NOCA(num_components=k, num_features=data.num_features)
        held = [held_out(model, data) for model in (flat, flat.with_priors(**WEAK_PRIORS))]
        table.rows.append([k, f"{scores[k]:.0f}", float(best.elbo[-1]) / len(data), *held])
    chosen = min(scores, key=lambda k: scores[k])
    table.note += f" BIC is smallest at k = {chosen}."
    return table, chosen


def held_out(model: NOCA, data: Data, folds: int = 5) -> float:
    part = torch.randperm(len(data), generator=torch.Generator().manual_seed(0)) % folds
    scores = []
    for fold in range(folds):
        result = fit(model, data.rows((part != fold).nonzero().flatten()), seed=0, progress=False)
        scores.append(result.log_likelihood(data.rows((part == fold).nonzero().flatten())))
    return float(torch.cat(scores).mean())


def _mammal_sources(runs: Runs, active: np.ndarray, age: np.ndarray, place: dict[str, Any]) -> Table:
    table = Table(
        f"Miocene mammals, K = {active.shape[1]}",
        ["source", "prior", "genera on", "strongest genera (loading)", "age, Ma", "longitude", "countries", "stable"],
        note=(
            "Age (middle of the site's range), longitude and country were not seen by the fit: posterior mean ± sd "
            f"over the sites with the source. All sites: {age.mean():.1f} ± {age.std():.1f} Ma, "
            f"{place['lon'].mean():.0f} ± {place['lon'].std():.0f} degrees east."
        ),
    )
    stable = runs.stability()
    for position, i in enumerate(runs.order):
        weight = active[:, position] / active[:, position].sum()
        columns = [weighted(age, weight, 1), weighted(place["lon"], weight, 0)]
        country = {name: float(weight[place["country"] == name].sum()) for name in np.unique(place["country"])}
        most = sorted(country, key=lambda name: country[name], reverse=True)[:3]
        countries = ", ".join(f"{name} {100 * country[name]:.0f}%" for name in most)
        prior, links = runs.best.params["source_prior"][i], runs.best.params["loading"][i]
        start = [position, float(prior), float(links.sum()), strongest(runs.best, i, 8)]
        table.rows.append([*start, *columns, countries, float(stable[i])])
    return table


def weighted(values: np.ndarray, weight: np.ndarray, digits: int) -> str:
    mean = float((weight * values).sum())
    return f"{mean:.{digits}f} ± {float((weight * (values - mean) ** 2).sum()) ** 0.5:.{digits}f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_data_option(parser)
    folder = require_data(parser, parser.parse_args())
    quiet_and_single_threaded()
    print(write_report("noca_real", "NOCA on real input", [*nips(folder), *mammals(folder)], intro=INTRO))


INTRO = (__doc__ or "").split("\n\n", 2)[2].strip()


if __name__ == "__main__":
    main()
