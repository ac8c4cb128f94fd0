"""Draws the picture of README.md: images, the sources that are found in them, and how far approximations are from the
exact posterior.

    python -m benchmarks.readme_picture           # benchmarks/results/first_picture.png
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from benchmarks._report import RESULTS
from custom_inference import Comparison, Exact, Fit, VariationalEM, compare, fit
from ppl_models import NOCA
from ppl_models.datasets import image_patterns

PICTURE = RESULTS / "first_picture.png"

#: By the names that the bars get.
_METHODS = {
    "exact": Exact(),
    "truncated": VariationalEM(guide="truncated"),
    "mean field": VariationalEM(guide="mean_field"),
    "factorized": VariationalEM(guide="factorized"),
}


def draw(images: Any, found: Fit, compared: Comparison) -> Any:
    """Two rows of pictures, and bars beside them."""
    import matplotlib.pyplot as plt

    rows = {"images": images.x.tolist(), "sources\nfound": found.params["loading"].tolist()}
    figure = plt.figure(figsize=(12, 2.6), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=[3.2, 1])
    panels = left.subplots(len(rows), len(found.params["loading"]))
    for line, (name, shown) in zip(panels, rows.items(), strict=True):
        line[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=12)
        for axes, values in zip(line, shown, strict=False):
            square = [values[start : start + 8] for start in range(0, len(values), 8)]
            axes.imshow(square, cmap="cividis", vmin=0, vmax=1)
            axes.set(xticks=[], yticks=[])
    axes = right.subplots()
    divergence = compared.table["kl_per_row"].to_numpy()
    bars = axes.barh(list(_METHODS), divergence, color="#31446b")
    axes.bar_label(bars, [f"{value:.2g}" for value in divergence.round(6)], padding=3, fontsize=11)
    axes.set_title("KL from the exact\nposterior, nats a row", fontsize=11)
    axes.tick_params(axis="y", labelsize=12)
    axes.set(xticks=[], xlim=(0, 1.3 * divergence.max()))
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.invert_yaxis()
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description="draw the picture of README.md")
    parser.add_argument("--out", type=Path, default=PICTURE, help="where it goes")
    arguments = parser.parse_args()
    images = image_patterns(500, seed=0)
    found = fit(NOCA(num_components=8, num_features=64), images.data, progress=False)
    compared = compare(list(_METHODS.values()), found.model, images.data, at=found, progress=False)
    print(found.status)
    print(compared.table)
    draw(images, found, compared).savefig(arguments.out, dpi=110)


if __name__ == "__main__":
    main()
