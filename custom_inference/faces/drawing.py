"""Drawing that the figures share: sizes, colours, labelled heat maps, galleries of pictures."""

from __future__ import annotations

import io
from collections.abc import Collection, Sequence
from itertools import islice
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

Array = NDArray[Any]

#: Perceptually uniform, and read the same with any kind of colour vision.
COLORMAP, SIGNED = "cividis", "RdBu_r"
INK, MUTED = "#00336f", "#9a9a9a"


class Picture(Figure):
    """A figure outside pyplot's registry: nothing to close and no window, yet a notebook shows it."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png")
        return buffer.getvalue()


def new_figure(width: float, height: float) -> Figure:
    """An empty figure; sizes in inches, bounded so that any number of components can be saved."""
    return Picture(figsize=(min(width, 26.0), min(height, 26.0)), dpi=110, layout="constrained")


def panels(count: int, columns: int, width: float, height: float, beside: float) -> tuple[Figure, list[Axes]]:
    """A figure of so many panels in rows of a height; the places of the last row that are left over are empty.

    beside: the height of what is not panels.
    """
    rows = -(-count // columns)
    figure = new_figure(width, beside + height * rows)
    places = figure.subplots(rows, columns, squeeze=False).flatten().tolist()
    for axes in places[count:]:
        axes.set_axis_off()
    return figure, places[:count]


def as_image(values: Array, place: Array) -> Array:
    """Values (D,) put at their rows and columns (2, D); NaN where there is no feature."""
    picture = np.full(place.max(1) + 1, np.nan)
    picture[place[0], place[1]] = values
    return picture


def colours(values: Array, top: float | None = None) -> dict[str, Any]:
    """Colour map and its ends: 0 to ``top`` (1) for probabilities, 0 to the maximum, or symmetric about 0 if signed."""
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    if low < -1e-9:
        return {"cmap": SIGNED, "vmin": -max(-low, high), "vmax": max(-low, high)}
    if high > 1 + 1e-9:
        return {"cmap": COLORMAP, "vmin": 0, "vmax": high}
    return {"cmap": COLORMAP, "vmin": 0, "vmax": 1.0 if top is None else top}


def gallery(
    pictures: Sequence[Array],
    captions: Sequence[str],
    title: str,
    bar: str,
    *,
    columns: int | None = None,
    muted: Collection[int] = (),
) -> Figure:
    """Pictures in a grid, one scale for all; muted: the numbers of those that mean little."""
    columns = columns or num_columns(len(pictures))
    height, width = pictures[0].shape
    ratio = float(np.clip(height / width, 0.4, 2.5))
    width = 1.2 + max(1.35 * columns, 0.085 * len(title))
    figure, places = panels(len(pictures), columns, width, 1.25 * ratio + 0.45, 0.9)
    image, range_ = None, colours(np.stack(list(pictures)))
    for i, (axes, picture, caption) in enumerate(zip(places, pictures, captions, strict=True)):
        axes.set(xticks=[], yticks=[])
        image = axes.imshow(picture, **range_, interpolation="nearest")
        axes.set_title(caption, fontsize=8, color=MUTED if i in muted else "black")
    if image is not None:
        scale(figure, image, figure.axes, bar)
    figure.suptitle(title)
    return figure


def scale(figure: Figure, image: Any, axes: Any, label: str) -> None:
    """The colour scale, equally wide whatever the size of the figure and never taller than it need be."""
    width, height = figure.get_size_inches()
    tall = min(1.0, 4.0 / height)
    bar = figure.colorbar(image, ax=axes, shrink=tall, aspect=tall * height / 0.16, pad=0.12 / width)
    bar.set_label(label, fontsize=9)
    bar.ax.tick_params(labelsize=8)


def num_columns(count: int) -> int:
    """Columns of a grid for ``count`` pictures: wider than high, with few places left empty."""

    def cost(columns: int) -> float:
        rows = -(-count // columns)
        return (rows * columns - count) / count + 0.5 * abs(np.log(columns / rows / 1.6))

    return min(range(1, min(count, 10) + 1), key=cost)


def heat_map(
    axes: Axes, values: Array, rows: Sequence[Any] | None, columns: Sequence[Any], *, top: float | None = None
) -> Any:
    """Values as an image with labelled axes; ``rows`` None leaves the rows without labels.

    top: the end of the colour scale of probabilities; by default the next tenth above the largest value, because
        loadings of sparse data stay far below 1.
    """
    if top is None:
        top = float(np.clip(np.ceil(np.round(10 * np.nanmax(values), 6)) / 10, 0.1, 1.0))
    image = axes.imshow(values, **colours(values, top), aspect="auto", interpolation="nearest")
    names = [shortened(c) for c in columns]
    upright = max(map(len, names)) * len(names) > 45
    axes.set_xticks(range(len(names)), names, rotation=90 if upright else 0, fontsize=8)
    if rows is None:
        axes.set_yticks([])
    else:
        axes.set_yticks(range(len(rows)), [shortened(r) for r in rows], fontsize=8)
    return image


def shortened(label: Any, length: int = 24) -> str:
    text = str(label)
    return text if len(text) <= length else f"{text[: length - 1]}…"


def strongest(loading: Array, top: int, *, total: int = 0) -> Array:
    """The ``top`` strongest features of every component (K, D), grouped by the component they fit best.

    Filled up to ``total`` features with the strongest of the others.
    """
    loading = np.abs(loading)
    chosen = {j for row in loading for j in np.argsort(-row, kind="stable")[:top].tolist()}
    owner, strength = loading.argmax(0), loading.max(0)
    rest = (j for j in np.argsort(-strength, kind="stable").tolist() if j not in chosen)
    chosen |= set(islice(rest, max(0, total - len(chosen))))
    return np.array(sorted(chosen, key=lambda j: (owner[j], -loading[owner[j], j])))


def trace(axes: Axes, iteration: Array, values: Array) -> None:
    """A line; where it is long and noisy, faint with its running median on top."""
    noisy = len(values) > 100 and np.mean(np.diff(values) < 0) > 0.2
    axes.plot(iteration, values, color=MUTED if noisy else INK, linewidth=0.6 if noisy else 1.6)
    if noisy:
        window = max(5, len(values) // 40)
        around = [slice(max(0, i - window), i + window + 1) for i in range(len(values))]
        smooth = [np.median(values[part]) for part in around]
        axes.plot(iteration, smooth, color=INK, linewidth=1.6, label="running median")
        axes.legend(loc="lower right", fontsize=8, frameon=False)
    # Values such as -16.6165, whole: an offset in a corner of the axis is overlooked.
    axes.ticklabel_format(axis="y", useOffset=False, style="plain")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True, min_n_ticks=1))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
