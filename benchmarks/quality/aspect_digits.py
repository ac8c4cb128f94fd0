"""Aspect Bernoulli on handwritten digits: what a phantom aspect removes, against five baselines (the paper, 3.6.2).

    python -m benchmarks.quality.aspect_digits [--data DIR]

Writes ``benchmarks/results/aspect_digits.{md,json}`` and figures. 2000 digits of 16 x 15 pixels (UCI mfeat-pix, on
where at least 3 of 6 fine pixels are); every pixel of an image is set to 0 with a probability of the image's own, drawn
from Uniform[0, 0.4]. No method is told which zeros were added. The noise removal rate is 1 - (fp + fn) / 2: fp is the
share of true zeros (0 in the original) that a reconstruction turns to 1, fn the share of false zeros (1 in the
original, 0 now) that it leaves at 0. Changing nothing scores 0.5. Reconstructed means are rounded at 1/2. "AB, phantom
removed" drops the aspect of the smallest sum over pixels, as Bingham et al. (2007) does, whether or not it is blank.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

from benchmarks._report import RESULTS, Table, write_report
from benchmarks.quality import _aspect_figures as draw
from benchmarks.quality._aspect_data import Corrupted, digits, flipped, removal_rate, set_to
from benchmarks.quality._aspect_methods import (
    RECONSTRUCTIONS,
    Aspects,
    default_aspects,
    logistic_pca,
    mixture,
    nmf,
    plsa,
    random_start,
)
from benchmarks.quality._common import add_data_option, cpu_seconds, quiet_and_single_threaded, require_data

SIZES = (2, 6, 10, 14, 20)
#: Disjoint subsets, of so many images each; images of the other tables.
SUBSETS, EACH, IMAGES = 3, 400, 600
#: Random starts in the search for white and for black phantoms, and default fits, which differ little between seeds.
RANDOM, RANDOM_BLACK, DEFAULTS = 10, 4, 2
REMOVED = "AB, phantom removed"
#: As in Bingham et al.'s Figs. 10 and 11.
NUM_BASES = 14


def rates(corrupted: Corrupted, k: int, seed: int) -> dict[str, tuple[float, float, float]]:
    """(removal, fp, fn) of every method."""
    fit = default_aspects(corrupted.x, k, seed)
    means = {REMOVED: fit.without(fit.lightest), "AB": fit.mean}
    means |= {name: f(corrupted.x, k, seed) for name, f in RECONSTRUCTIONS.items()}
    return {name: removal_rate(mean > 0.5, corrupted) for name, mean in means.items()}


def curves(x: np.ndarray, sizes: Sequence[int]) -> dict[str, np.ndarray]:
    """Every method's (len(sizes), SUBSETS, 3): removal, fp, fn."""
    order = np.random.default_rng(0).permutation(len(x))
    parts = [set_to(0, x[order[i * EACH : (i + 1) * EACH]], seed=i) for i in range(SUBSETS)]
    found = [[rates(part, k, seed=i) for i, part in enumerate(parts)] for k in sizes]
    return {name: np.array([[f[name] for f in line] for line in found]) for name in found[0][0]}


def curve_table(results: dict[str, np.ndarray], sizes: Sequence[int]) -> Table:
    table = Table(
        "Noise removal against the number of components (Fig. 9)",
        ["method", *(f"K = {k}" for k in sizes)],
        note=(
            f"Mean ± standard error over {SUBSETS} disjoint subsets of {EACH} images, each corrupted and "
            "fitted on its own."
        ),
        figures=["aspect_digits_removal.png"],
    )
    for name, values in results.items():
        mean, error = values[..., 0].mean(1), values[..., 0].std(1, ddof=1) / SUBSETS**0.5
        table.rows.append([name, *(f"{m:.3f} ± {e:.3f}" for m, e in zip(mean, error, strict=True))])
    return table


def error_table(results: dict[str, np.ndarray], sizes: Sequence[int]) -> Table:
    shown = [i for i, k in enumerate(sizes) if k in (6, 10, 14, 20)]
    heads = [f"{e}, K = {sizes[i]}" for i in shown for e in ("fp", "fn")]
    table = Table("False positives and false negatives", ["method", *heads], note="Means over the same subsets.")
    for name, values in results.items():
        table.rows.append([name, *(f"{values[i, :, e].mean():.3f}" for i in shown for e in (1, 2))])
    return table


def phantom_table(whole: Corrupted, black: Corrupted) -> Table:
    table = Table(
        f"Is a phantom found? {IMAGES} images, K = {NUM_BASES}",
        ["corruption", "starts", "phantom found", "largest mean of the phantom", "its largest entry", "CPU s a fit"],
        note=(
            "Found, by the thresholds of ``phantoms``: the lightest aspect has mean P(on | aspect) at most 0.02 and no "
            "entry above 0.5 (white phantom), or the darkest the same of 1 - P (black). Median / worst of the fits; "
            "for a black phantom the mean and the largest entry are of 1 - P. Bingham et al. (2007): 28 of 30 random "
            "starts on its other two data sets."
        ),
    )
    for label, corrupted, is_black in (("zeros added", whole, False), ("ones added", black, True)):
        number_random = RANDOM_BLACK if is_black else RANDOM
        for starts, run, number in (("random", random_start, number_random), ("default", default_aspects, DEFAULTS)):
            fits = [cpu_seconds(lambda s=s, run=run, x=corrupted.x: run(x, NUM_BASES, s)) for s in range(number)]
            table.rows.append([label, starts, *_phantom_cells([f for f, _ in fits], is_black)])
            table.rows[-1].append(float(np.median([seconds for _, seconds in fits])))
    return table


def _phantom_cells(fits: Sequence[Aspects], black: bool) -> list[str]:
    index = [f.darkest if black else f.lightest for f in fits]
    rows = [1 - f.aspect[i] if black else f.aspect[i] for f, i in zip(fits, index, strict=True)]
    found = sum(f.is_phantom(i, black) for f, i in zip(fits, index, strict=True))
    mean, top = [r.mean() for r in rows], [r.max() for r in rows]
    cells = [f"{np.median(v):.4f} / {np.max(v):.4f}" for v in (mean, top)]
    return [f"{found} of {len(fits)}", *cells]


def removal_table(whole: Corrupted, black: Corrupted, seed: int = 0) -> Table:
    """Both corruptions at K = 14."""
    table = Table(
        f"Added zeros and added ones: {IMAGES} images, K = {NUM_BASES}",
        ["method", "zeros: removal", "fp", "fn", "ones: removal", "fp ", "fn "],
        note=(
            "Ones are added as zeros are; there fp is the share of true ones that a reconstruction turns to 0, fn the "
            "share of false ones that it leaves. For added ones the darkest aspect is dropped."
        ),
    )
    fits = default_aspects(whole.x, NUM_BASES, seed), default_aspects(black.x, NUM_BASES, seed)
    means = {REMOVED: [fits[0].without(fits[0].lightest), fits[1].without(fits[1].darkest)]}
    means["AB"] = [f.mean for f in fits]
    for name, reconstruct in RECONSTRUCTIONS.items():
        means[name] = [reconstruct(c.x, NUM_BASES, seed) for c in (whole, black)]
    for name, (of_white, of_black) in means.items():
        white = removal_rate(of_white > 0.5, whole)
        dark = removal_rate(~(of_black > 0.5), flipped(black))
        table.rows.append([name, *(f"{v:.3f}" for v in (*white, *dark))])
    return table


def best_of(x: np.ndarray, k: int, num_seeds: int) -> Aspects:
    return max((default_aspects(x, k, s) for s in range(num_seeds)), key=lambda f: f.log_likelihood)


def pictures(whole: Corrupted, black: Corrupted, label: np.ndarray, num_seeds: int) -> list[str]:
    """Figs. 10 and 11 in kind: bases, attribution of the pixels of six images, the baselines' bases."""
    names = []
    for corrupted, tag, title in ((whole, "white", "zeros added"), (black, "black", "ones added")):
        fit = best_of(corrupted.x, NUM_BASES, num_seeds)
        phantom = fit.lightest if tag == "white" else fit.darkest
        rows = shown_images(corrupted, label)
        by_use = np.argsort(-fit.membership[rows].max(0))
        order = [phantom, *by_use[by_use != phantom].tolist()]
        figure = draw.attribution(fit, corrupted.x, rows, order, f"Who explains each pixel? Digits with {title}")
        names.append(draw.save(figure, RESULTS, f"aspect_digits_attribution_{tag}"))
    bases = {
        "mixture of\nBernoullis": mixture(whole.x, NUM_BASES).params["probability"].numpy(),
        "logistic PCA": logistic_pca(whole.x, NUM_BASES).params["weight"].numpy(),
        "PLSA": plsa(whole.x, NUM_BASES).topic,
        "NMF": nmf(whole.x, NUM_BASES)[0],
    }
    names.append(draw.save(draw.bases(bases), RESULTS, "aspect_digits_bases"))
    return names


def shown_images(corrupted: Corrupted, label: np.ndarray) -> list[int]:
    """A 5, a 6 and an 8 with hardly any change, a 2, a 1 and a 4 of which about a sixth of the pixels changed."""
    share = corrupted.changed.mean(1)
    wanted = {5: 0.0, 6: 0.0, 8: 0.0, 2: 0.16, 1: 0.16, 4: 0.16}
    index = {d: np.flatnonzero(label == d) for d in wanted}
    return [int(index[d][np.abs(share[index[d]] - value).argmin()]) for d, value in wanted.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_data_option(parser)
    data = digits(require_data(parser, parser.parse_args()))
    quiet_and_single_threaded()
    results = curves(data.x, SIZES)
    draw.save(draw.removal(results, SIZES), RESULTS, "aspect_digits_removal")
    some = np.sort(np.random.default_rng(1).permutation(len(data.x))[:IMAGES])
    whole, black = set_to(0, data.x[some], seed=100), set_to(1, data.x[some], seed=101)
    shown = pictures(whole, black, data.groups[some], 1)
    tables = [curve_table(results, SIZES), error_table(results, SIZES), removal_table(whole, black)]
    tables += [
        phantom_table(whole, black),
        Table("Bases and attribution (Figs. 10 and 11)", note=PICTURES, figures=shown),
    ]
    print(write_report("aspect_digits", "Aspect Bernoulli on handwritten digits", tables, intro=INTRO))


PICTURES = (
    "Top row: the aspects, P(on | aspect) for every pixel, the phantom first. Left column: images with hardly any "
    "corruption (5, 6, 8) and with a sixth of the pixels changed (2, 1, 4). Beside each, the posterior probability "
    "q(k, t, n) that aspect k produced the observed value, 0 or 1, of each pixel (eq. 7). Last figure: the baselines' "
    "bases on the same images; logistic PCA's are signed (red on, blue off), PLSA's and NMF's scaled to their maximum."
)
INTRO = (__doc__ or "").split("\n\n", 2)[2].strip()


if __name__ == "__main__":
    main()
