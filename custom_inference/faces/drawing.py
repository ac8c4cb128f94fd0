"""Drawing that the figures share: what they are drawn on, sizes, colours, labelled heat maps, galleries of pictures."""

from __future__ import annotations

import contextlib
import io
import sys
import textwrap
import threading
import weakref
from collections.abc import Collection, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backend_bases import FigureManagerBase
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import Bbox
from numpy.typing import NDArray

from ppl_models import MethodError

Array = NDArray[Any]
#: What a plot of several panels can be drawn on.
Panels = Axes | Sequence[Axes] | NDArray[np.object_]

#: Perceptually uniform, and read the same with any kind of colour vision.
COLORMAP, SIGNED = "cividis", "RdBu_r"
INK, MUTED = "#00336f", "#9a9a9a"
#: Rows of a heat map up to this many are labelled: with more a figure would be higher than a screen.
LABELLED = 40


#: The last figure that pyplot was told of, and whether figures are for pyplot at all.
_LAST: list[weakref.ref[Figure]] = []
_APART: ContextVar[bool] = ContextVar("apart", default=False)


class Picture(Figure):
    """A figure that a notebook shows as what a cell returns."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png")
        return buffer.getvalue()


@contextlib.contextmanager
def apart_from_pyplot() -> Iterator[None]:
    """Figures made here are for a page, and pyplot does not hear of them."""
    token = _APART.set(True)
    try:
        yield
    finally:
        _APART.reset(token)


def new_figure(width: float, height: float) -> Figure:
    """An empty figure; sizes in inches, bounded so that any number of components can be saved.

    Where pyplot is in use it is the current one, so that ``plt.savefig`` and ``plt.show`` mean it. Without windows the
    one before it is closed, of which pyplot would keep every one; a notebook shows what a cell returns, and would show
    it twice.
    """
    settings: Any = {"figsize": (min(width, 26.0), min(height, 26.0)), "dpi": 110, "layout": "constrained"}
    pyplot = sys.modules.get("matplotlib.pyplot")
    in_main = threading.current_thread() is threading.main_thread()
    if pyplot is None or _APART.get() or not in_main or "ipykernel" in sys.modules:
        return Picture(**settings)
    figure = pyplot.figure(FigureClass=Picture, **settings)
    before = _LAST.pop()() if _LAST else None
    if before is not None and type(figure.canvas.manager) is FigureManagerBase:
        pyplot.close(before)
    _LAST.append(weakref.ref(figure))
    return figure


@dataclass(frozen=True)
class Sheet:
    """The panels that a plot is drawn on: of a figure of its own, or the axes that were given.

    given: the ``ax`` or ``axes`` of the caller, or None.
    """

    panels: list[Axes]
    given: Panels | None = None

    @classmethod
    def single(cls, ax: Axes | None, width: float, height: float, title: str = "") -> tuple[Sheet, Axes]:
        """The sheet, and its axes: those that were given, or those of a new figure, which is wide enough for its title.
        Raises MethodError for what is no Axes."""
        if ax is None:
            panel = new_figure(max(width, title_width(title)), height).subplots()
            return cls([panel]), panel
        if not isinstance(ax, Axes):
            raise MethodError(f"ax is {_describe(ax)}, expected one matplotlib Axes")
        return cls([ax], ax), ax

    @classmethod
    def grid(cls, axes: Panels | None, count: int, columns: int, width: float, height: float, **settings: Any) -> Sheet:
        """``count`` panels: of the axes that were given the first, or of a new figure in so many columns.

        Panels that are left over are switched off. settings: of ``Figure.subplots``. Raises MethodError for fewer axes
        than panels.
        """
        if axes is None:
            rows = -(-count // columns)
            places = new_figure(width, height).subplots(rows, columns, squeeze=False, **settings).flatten().tolist()
        else:
            places = np.asarray(axes, dtype=object).ravel().tolist()
            wrong = [one for one in places if not isinstance(one, Axes)]
            if wrong or len(places) < count:
                found = _describe(wrong[0]) if wrong else f"{len(places)} of them"
                raise MethodError(f"axes for a plot of {count} panels: {found}, expected {count} matplotlib Axes")
        for spare in places[count:]:
            spare.set_axis_off()
        return cls(places[:count], axes)

    @property
    def figure(self) -> Figure:
        return root(self.panels[0])

    @property
    def result(self) -> Any:
        """The result of a plotting function: its own figure, or what it was given."""
        return self.figure if self.given is None else self.given

    def title(self, title: str | None, default: str, **settings: Any) -> None:
        """Above the figure; above axes that were given alone. Above several, whose figure may hold more, only a title
        that was asked for."""
        if self.given is self.panels[0]:
            # Some thirteen letters of this size an inch: next to it there may be other axes.
            letters = max(16, int(13 * extent(self.panels[0])[0]))
            self.panels[0].set_title(title or textwrap.fill(default, letters), **{"fontsize": 10, **settings})
        elif self.given is None or title is not None:
            self.figure.suptitle(title or default, **settings)

    def finish(self, title: str | None, default: str, **settings: Any) -> Any:
        """Set the title, and return the result of the plotting function."""
        self.title(title, default, **settings)
        return self.result

    def labels(self, *, x: str = "", y: str = "", **settings: Any) -> None:
        """Labels of all panels: once for a figure of its own, else at each."""
        places: list[Any] = [self.figure] if self.given is None else self.panels
        for place in places:
            for side, text in (("x", x), ("y", y)):
                if text:
                    getattr(place, f"sup{side}label" if self.given is None else f"set_{side}label")(text, **settings)


def _describe(value: object) -> str:
    shape = f" of shape {value.shape}" if isinstance(value, np.ndarray) else ""
    return f"a {type(value).__name__}{shape}"


def extent(axes: Axes) -> tuple[float, float]:
    """Width and height of axes in inches."""
    box = axes.get_window_extent()
    return box.width / root(axes).dpi, box.height / root(axes).dpi


def root(axes: Axes) -> Figure:
    """The figure of axes, which may lie in a part of it."""
    figure: Any = axes.figure
    return figure.figure


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
    title: tuple[str | None, str],
    bar: str,
    *,
    columns: int | None = None,
    muted: Collection[int] = (),
    axes: Panels | None = None,
) -> Any:
    """Pictures in a grid, one scale for all. title: the one asked for, and the default one; muted: the numbers of
    those that mean little."""
    columns = columns or num_columns(len(pictures))
    height, width = pictures[0].shape
    ratio = float(np.clip(height / width, 0.4, 2.5))
    width = 1.2 + max(1.35 * columns, title_width(title[0] or title[1]))
    height = 0.9 + (1.25 * ratio + 0.45) * -(-len(pictures) // columns)
    sheet = Sheet.grid(axes, len(pictures), columns, width, height)
    image, range_ = None, colours(np.stack(list(pictures)))
    for i, (one, picture, caption) in enumerate(zip(sheet.panels, pictures, captions, strict=True)):
        one.set(xticks=[], yticks=[])
        image = one.imshow(picture, **range_, interpolation="nearest")
        one.set_title(caption, fontsize=8, color=MUTED if i in muted else "black")
    if image is not None:
        scale(image, sheet.panels if axes is not None else sheet.figure.axes, bar)
    return sheet.finish(*title)


def title_width(title: str) -> float:
    """Inches that a title takes."""
    return 0.095 * len(title)


def scale(image: ScalarMappable, axes: Panels, label: str) -> None:
    """The colour scale, equally wide whatever the size of its axes and never taller than it need be."""
    beside = list(np.ravel(np.asarray(axes, dtype=object)))
    figure, box = root(beside[0]), Bbox.union([one.get_position() for one in beside])
    # Axes without layout have margins, which are .77 of the figure's height and .775 of its width.
    width, height = figure.get_size_inches() * [min(1.0, box.width / 0.775), min(1.0, box.height / 0.77)]
    tall = min(1.0, 4.0 / height)
    bar = figure.colorbar(image, ax=beside, shrink=tall, aspect=tall * height / 0.16, pad=0.12 / width)
    bar.set_label(label, fontsize=9)
    bar.ax.tick_params(labelsize=8)


def thin(order: Array, most: int | None) -> Array:
    """Choose at most so many of an order, evenly spaced; None: all."""
    if most is None or most >= len(order):
        return order
    return order[np.linspace(0, len(order) - 1, most).round().astype(int)]


def num_columns(count: int) -> int:
    """Columns of a grid for ``count`` pictures: wider than high, with few places left empty."""

    def cost(columns: int) -> float:
        rows = -(-count // columns)
        return (rows * columns - count) / count + 0.5 * abs(np.log(columns / rows / 1.6))

    return min(range(1, min(count, 10) + 1), key=cost)


def heat_map(
    axes: Axes, values: Array, rows: Sequence[Any] | None, columns: Sequence[Any], *, top: float | None = None
) -> AxesImage:
    """Values as an image with labelled axes; ``rows`` None leaves the rows without labels.

    top: the end of the colour scale of probabilities; by default the next tenth above the largest value, because
        loadings of sparse data stay far below 1.
    """
    if top is None:
        top = float(np.clip(np.ceil(np.round(10 * np.nanmax(values), 6)) / 10, 0.1, 1.0))
    image = axes.imshow(values, **colours(values, top), aspect="auto", interpolation="nearest")
    names = [shorten(c) for c in columns]
    upright = max(map(len, names)) * len(names) > 10 * extent(axes)[0]
    axes.set_xlim(-0.5, len(names) - 0.5)
    name_ticks(axes, "x", names, 8, upright=upright)
    if rows is None:
        axes.set_yticks([])
    else:
        name_ticks(axes, "y", [shorten(r) for r in rows], 8)
    return image


def name_ticks(axes: Axes, side: str, names: Sequence[str], size: float, *, upright: bool = True) -> None:
    """Names at 0, 1, ... along an axis, every second or further one where all would lie on each other."""
    room = 72 * extent(axes)[side == "y"] / len(names)  # points for each
    every = max(1, int(np.ceil(size / room))) if upright or side == "y" else 1
    turned: dict[str, Any] = {"rotation": 90 if upright else 0} if side == "x" else {}
    ticks = axes.set_xticks if side == "x" else axes.set_yticks
    ticks(range(0, len(names), every), list(names[::every]), fontsize=size, **turned)


def shorten(label: Any, length: int = 24) -> str:
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
