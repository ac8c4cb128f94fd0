"""Aspect Bernoulli on fossil mammals: true and false absences (Bingham et al. 2007, 3.4 and 3.6.1).

    python -m benchmarks.quality.aspect_mammals [--data DIR]

Writes ``benchmarks/results/aspect_mammals.{md,json}`` and figures. 351 Miocene sites x 104 genera of the NOW database
(Bingham et al.: 501 x 139 over 2-23 million years; that matrix was not found). The fit sees neither ages nor the order
of the sites.
"""

from __future__ import annotations

import argparse
from itertools import combinations

import numpy as np
from scipy import stats

from benchmarks._report import RESULTS, Table, write_report
from benchmarks.quality import _aspect_plots as draw
from benchmarks.quality._aspect_data import Fossils, mammals, set_to
from benchmarks.quality._aspect_explain import added_ones, added_table, aic_table, starts_table
from benchmarks.quality._aspect_methods import RECONSTRUCTIONS, Aspects, best_aspects
from benchmarks.quality._common import add_data_option, quiet_and_single_threaded, require_data

SIZES = (2, 3, 4, 6, 8, 10)
#: Fits in the search for phantoms; default fits and random starts of which the best is taken.
STARTS, SEEDS = 30, 2
REMOVED = "AB, phantom removed"


def false_absences(x: np.ndarray, age: np.ndarray) -> np.ndarray:
    """Absences between presences: the genus is seen at an older and at a younger site, (N, D) booleans.

    Sites of one age (the same dating unit) do not bound one another, so that the order of ties does not matter.
    """
    seen, column = x > 0, age[:, None]
    oldest = np.where(seen, column, -np.inf).max(0)
    youngest = np.where(seen, column, np.inf).min(0)
    return ~seen & (column < oldest) & (column > youngest)


def filling(mean: np.ndarray, fossils: Fossils) -> dict[str, float]:
    """What a rounded reconstruction does to the false absences."""
    x, absent = fossils.x, false_absences(fossils.x, fossils.age)
    rounded = (mean > 0.5).astype(float)
    kept = np.maximum(rounded, x)
    return {
        "kept": float(absent.sum() - false_absences(kept, fossils.age).sum()),
        "literal": float(absent.sum() - false_absences(rounded, fossils.age).sum()),
        "filled": float(rounded[absent].sum()),
        "outside": float(rounded[(x == 0) & ~absent].sum()),
        "lost": float((1 - rounded)[x == 1].sum()),
    }


def means(fossils: Fossils, k: int) -> dict[str, np.ndarray]:
    fit = best_aspects(fossils.x, k, SEEDS)
    found = {REMOVED: fit.without(fit.lightest), "AB": fit.mean}
    return found | {name: f(fossils.x, k, 0) for name, f in RECONSTRUCTIONS.items()}


def filling_table(fossils: Fossils, by_size: dict[int, dict[str, np.ndarray]], chosen: int) -> Table:
    absent = false_absences(fossils.x, fossils.age)
    outside = (fossils.x == 0) & ~absent
    table = Table(
        f"False absences filled (Table 4), K = {chosen}",
        [
            "method",
            "decrease",
            "false absences filled",
            "absences outside the range filled",
            "presences lost",
            "literal",
        ],
        note=(
            f"A false absence: a genus is missing at a site, yet seen at an older and at a younger one ({absent.sum()} "
            f"of {(fossils.x == 0).sum()} zeros). Decrease: their number in the data less their number after the "
            "rounded reconstruction has been added to the recorded presences; presences set outside a genus's range "
            "widen it and make new false absences, so it can be negative. Literal: the same where the reconstruction "
            "replaces the data; it rewards methods that erase presences (all zeros would score "
            f"{absent.sum()}), hence the other columns. In Bingham et al. (2007), "
            "AB with the phantom removed is first and PLSA last."
        ),
    )
    for name, mean in by_size[chosen].items():
        f = filling(mean, fossils)
        shares = [f"{f['filled'] / absent.sum():.1%}", f"{f['outside'] / outside.sum():.1%}"]
        lost = f"{f['lost'] / fossils.x.sum():.1%}"
        table.rows.append([name, f"{f['kept']:.0f}", *shares, lost, f"{f['literal']:.0f}"])
    return table


def size_table(fossils: Fossils, by_size: dict[int, dict[str, np.ndarray]]) -> Table:
    table = Table(
        "The decrease against the number of components",
        ["method", *(f"K = {k}" for k in by_size)],
        note="Recorded presences kept. In AB the aspect of the smallest sum is removed, whether or not it is blank.",
    )
    for name in next(iter(by_size.values())):
        table.rows.append([name, *(f"{filling(m[name], fossils)['kept']:.0f}" for m in by_size.values())])
    return table


def ages_of_genera(fossils: Fossils) -> np.ndarray:
    """Mean age of the sites where each genus was found."""
    return fossils.age @ fossils.x / fossils.x.sum(0)


def aspect_order(fit: Aspects, fossils: Fossils) -> list[int]:
    """The phantom first, then by age, oldest first."""
    weight = fit.membership / fit.membership.sum(0)
    age = fossils.age @ weight
    return [fit.lightest, *(int(k) for k in np.argsort(-age) if k != fit.lightest)]


def age_table(fit: Aspects, fossils: Fossils, order: list[int]) -> Table:
    ages = ages_of_genera(fossils)
    owner = np.array([max(order[1:], key=lambda k: fit.aspect[k, t]) for t in range(fossils.x.shape[1])])
    table = Table(
        "Ages of the genera by aspect (Fig. 5)",
        ["aspect", "sum of memberships", "genera", "median age, Ma (quartiles)", "most probable genera"],
        figures=["aspect_mammals_ages.png", "aspect_mammals_richness.png"],
    )
    for position, k in enumerate(order):
        top = ", ".join(f"{fossils.features[t]} {fit.aspect[k, t]:.2f}" for t in np.argsort(-fit.aspect[k])[:7])
        if position == 0:
            table.rows.append(["phantom", f"{fit.membership[:, k].sum():.0f}", "", "", top])
            continue
        low, middle, high = np.percentile(ages[owner == k], [25, 50, 75])
        spread = f"{middle:.1f} ({low:.1f} to {high:.1f})"
        table.rows.append([position, f"{fit.membership[:, k].sum():.0f}", int((owner == k).sum()), spread, top])
    p = {(i, j): stats.mannwhitneyu(ages[owner == order[i]], ages[owner == order[j]]).pvalue for i, j in _pairs(order)}
    written = ", ".join(f"{i} against {j}: {value:.1g}" for (i, j), value in p.items())
    table.note = (
        "A genus's age is the mean age of its sites, which the fit has not seen; a genus belongs to the aspect (other "
        f"than the phantom) that gives it the largest probability. Wilcoxon rank-sum p-values of the ages: {written}. "
        "Bingham et al. (2007): all pairs below 0.0201 (genera weighted by probability)."
    )
    return table


def _pairs(order: list[int]) -> list[tuple[int, int]]:
    return list(combinations(range(1, len(order)), 2))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_data_option(parser)
    fossils = mammals(require_data(parser, parser.parse_args()))
    quiet_and_single_threaded()
    paper = "Bingham et al. (2007), on its own matrix: K = 4."
    aic, chosen = aic_table(fossils.x, range(1, 9), SEEDS, paper)
    starts = starts_table(fossils.x, chosen, STARTS, "Bingham et al. (2007): 28 of 30 random starts.")
    fit = best_aspects(fossils.x, chosen, SEEDS)
    order = aspect_order(fit, fossils)
    by_size = {k: means(fossils, k) for k in dict.fromkeys(sorted((*SIZES, chosen)))}
    tables = [filling_table(fossils, by_size, chosen), size_table(fossils, by_size), starts]
    tables += [age_table(fit, fossils, order), aic]
    runs = {most: set_to(1, fossils.x, seed=7, most=most) for most in (0.4, 0.16)}
    divisions = {most: (added, added_ones(added, chosen + 1, SEEDS)) for most, added in runs.items()}
    names = [f"aspect_mammals_added_{round(100 * most)}" for most in divisions]
    paper = (
        "Bingham et al. (2007) have 5.1% ones before and 12.5% after, which is Uniform[0, 0.16] rather than the "
        "Uniform[0, 0.4] that they state; both are shown."
    )
    tables.append(added_table(divisions, paper, [f"{name}.png" for name in names]))
    for name, (most, (_, division)) in zip(names, divisions.items(), strict=True):
        draw.save(draw.divisions(division, f"Miocene mammals with ones added, Uniform[0, {most}]"), RESULTS, name)
    draw.save(draw.ages(fit, order, ages_of_genera(fossils)), RESULTS, "aspect_mammals_ages")
    figure = draw.richness(fit, order, fossils.x.sum(1), "genera found at the site", "Miocene mammals")
    draw.save(figure, RESULTS, "aspect_mammals_richness")
    rows = {name: [filling(m[name], fossils)["kept"] for m in by_size.values()] for name in by_size[chosen]}
    draw.save(draw.filled(rows, list(by_size)), RESULTS, "aspect_mammals_filled")
    tables[1].figures = ["aspect_mammals_filled.png"]
    print(write_report("aspect_mammals", "Aspect Bernoulli on fossil mammals", tables, intro=INTRO))


INTRO = (__doc__ or "").split("\n\n", 2)[2].strip()


if __name__ == "__main__":
    main()
