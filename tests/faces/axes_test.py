"""Every public plotting function draws on the axes that it is given, and otherwise on one figure of its own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import matplotlib.pyplot
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import custom_inference
from custom_inference import Choice, render
from custom_inference.documents.plots import plot_cross_validation
from custom_inference.faces import plots
from ppl_models import MethodError
from tests.support import results

#: What is public -> how to call it, with further arguments.
SINGLE: dict[str, Callable[..., Any]] = {
    "plot": lambda **on: plots.plot(results.noca(), "source", **on),
    "plot_loading": lambda **on: plots.plot_loading(results.noca(), **on),
    "plot_elbo": lambda **on: plots.plot_elbo(results.noca(), **on),
    "plot_source": lambda **on: plots.plot_source(results.noca(), **on),
    "plot_documents": lambda **on: plots.plot_documents(results.topics(), **on),
    "plot_adjacency": lambda **on: plots.plot_adjacency(results.memberships(), **on),
    "plot_memberships": lambda **on: plots.plot_memberships(results.memberships(), **on),
    "plot_pie_graph": lambda **on: plots.plot_pie_graph(results.memberships(), **on),
    "plot_block_graph": lambda **on: plots.plot_block_graph(results.memberships(), **on),
    "plot_topic_graph": lambda **on: plots.plot_topic_graph(results.correlated(), **on),
    "plot_roles": lambda **on: plots.plot_roles(results.sentences(), **on),
    "plot_words_over_time": lambda **on: plots.plot_words_over_time(results.dated(), 0, **on),
    "Fit.plot": lambda **on: results.noca().plot("elbo", **on),
    "Bracket.plot": lambda **on: results.bracketed().plot(**on),
    "LeaveOneOut.plot": lambda **on: results.left_out().plot(**on),
    "CrossValidation.plot": lambda **on: results.folds().plot(**on),
    "PredictiveCheck.plot of counts": lambda **on: results.counted().plot("rootogram", **on),
    "render": lambda **on: render(results.noca().model, **on),
}
#: And how many panels it has.
SEVERAL: dict[str, tuple[int, Callable[..., Any]]] = {
    "plot_components": (2, lambda **on: plots.plot_components(results.noca(), **on)),
    "plot_components of pixels": (4, lambda **on: plots.plot_components(results.noca(pixels=True), **on)),
    "plot_pictures": (3, lambda **on: plots.plot_pictures(np.eye(3, 6), (2, 3), "abc", **on)),
    "plot_topics": (2, lambda **on: plots.plot_topics(results.topics(), **on)),
    "plot_shares_over_time": (3, lambda **on: plots.plot_shares_over_time(results.dated(), **on)),
    "plot_comparison": (2, lambda **on: plots.plot_comparison(results.comparison().table, **on)),
    "Comparison.plot": (2, lambda **on: results.comparison().plot(**on)),
    "ModelComparison.plot": (2, lambda **on: results.chosen().plot(**on)),
    "Choice.plot": (2, lambda **on: Choice(**vars(results.chosen())).plot(**on)),
    "PredictiveCheck.plot": (2, lambda **on: results.check().plot(**on)),
    "Calibration.plot": (3, lambda **on: results.calibration().plot(**on)),
}
#: Pages, which are drawn on figures of their own.
PAGES = {"plot_topic_over_time"}


@pytest.fixture
def made(monkeypatch) -> Iterator[list[Figure]]:
    """The figures that are made from here on, of which pyplot keeps the last alone."""
    figures: list[Figure] = []
    before = Figure.__init__

    def init(self, *args: Any, **settings: Any) -> None:
        figures.append(self)
        before(self, *args, **settings)

    monkeypatch.setattr(Figure, "__init__", init)
    kept = matplotlib.pyplot.get_fignums()
    yield figures
    assert len(matplotlib.pyplot.get_fignums()) <= len(kept) + 1


def new_axes(*shape: int) -> Any:
    """Axes of a figure that nothing else knows of."""
    return Figure(figsize=(10, 4), layout="constrained").subplots(*shape)


def drawn_on(axes: Axes) -> bool:
    return axes.has_data() or bool(axes.texts)


def require_nothing_else(given: list[Axes]) -> None:
    """Everything of the figure is in the axes, but for a colour scale; laying it out gives no warning."""
    (figure,) = {axes.figure for axes in given}
    FigureCanvasAgg(figure).draw()
    others = set(figure.axes) - set(given)
    assert {axes.get_label() for axes in others} <= {"<colorbar>"}


def test_everything_that_plots_is_here():
    functions = {name for name, value in vars(plots).items() if name.startswith("plot") and inspect.isfunction(value)}
    public = {name: getattr(custom_inference, name) for name in custom_inference.__all__}
    methods = {f"{name}.plot" for name, value in public.items() if inspect.isclass(value) and hasattr(value, "plot")}
    assert functions | methods | {"render"} <= set(SINGLE) | set(SEVERAL) | PAGES
    assert functions == set(plots.__all__)


@pytest.mark.parametrize("name", SINGLE)
def test_a_plot_is_drawn_on_the_axes_that_it_is_given(name, made):
    SINGLE[name]()  # what is computed on the way is there from here on
    ax = new_axes()
    made.clear()
    assert SINGLE[name](ax=ax) is ax
    assert made == [] and drawn_on(ax)
    require_nothing_else([ax])


@pytest.mark.parametrize("name", SEVERAL)
def test_panels_are_drawn_on_the_axes_that_they_are_given(name, made):
    count, draw = SEVERAL[name]
    draw()
    axes = new_axes(1, count + 1)
    made.clear()
    assert draw(axes=axes) is axes
    assert made == [] and all(map(drawn_on, axes[:count]))
    assert not drawn_on(axes[count]) and not axes[count].axison  # the one that is left over
    assert axes[0].figure.get_suptitle() == ""  # the figure may show more than this
    require_nothing_else(list(axes))
    with pytest.raises(MethodError, match=f"of {count} panels: {count - 1} of them, expected {count} matplotlib Axes"):
        draw(axes=axes[1:count])


@pytest.mark.parametrize("name", [*SINGLE, *SEVERAL])
def test_otherwise_one_figure_of_a_fair_size_is_made(name, made):
    draw = SINGLE[name] if name in SINGLE else SEVERAL[name][1]
    draw()
    made.clear()
    figure = draw()
    assert made == [figure]
    width, height = figure.get_size_inches()
    assert 3 <= width <= 13 and 2 <= height <= 10


def test_titles_and_labels_are_those_of_the_axes():
    ax = new_axes()
    assert results.noca().plot("loading", ax=ax, title="mine").get_title() == "mine"
    axes = results.check().plot(axes=new_axes(1, 2), title="both")
    assert axes[0].figure.get_suptitle() == "both"
    labels = [one.get_xlabel() for one in results.topics().plot("topics", axes=new_axes(1, 2))]
    assert labels == ["P(word | topic)"] * 2


def test_the_parts_of_a_figure_can_be_given():
    figure = Figure(figsize=(10, 5), layout="constrained")
    left, right = figure.subfigures(1, 2)
    results.noca(pixels=True).plot(axes=left.subplots(2, 2))
    results.noca().plot("source", ax=right.subplots())
    FigureCanvasAgg(figure).draw()
    assert [axes.get_label() for axes in figure.axes].count("<colorbar>") == 2


def test_names_are_left_out_where_there_is_no_room():
    figure = Figure(figsize=(3, 1))
    ax = plots.plot_adjacency(results.memberships(), ax=figure.subplots())
    assert 2 <= len(ax.get_yticklabels()) < 18
    assert len(plots.plot_adjacency(results.memberships()).axes[0].get_yticklabels()) == 18


def test_a_picture_of_a_model_keeps_its_proportions():
    large, small = (render(results.noca().model, ax=Figure(figsize=(s, s)).subplots()) for s in (8, 4))
    sizes = [ax.texts[0].get_fontsize() for ax in (large, small)]
    assert sizes[0] == pytest.approx(2 * sizes[1])


def test_what_cannot_be_drawn_on_is_refused(tmp_path):
    with pytest.raises(MethodError, match=r"ax is a ndarray of shape \(2,\), expected one matplotlib Axes"):
        results.noca().plot("elbo", ax=new_axes(1, 2))
    with pytest.raises(MethodError, match="a plot of 2 panels: a str, expected 2 matplotlib Axes"):
        results.topics().plot("topics", axes=["left", "right"])
    with pytest.raises(MethodError, match="ax beside the file"):
        render(results.noca().model, tmp_path / "a.png", ax=new_axes())
    with pytest.raises(MethodError, match="ax beside engine='graphviz'"):
        render(results.noca().model, engine="graphviz", ax=new_axes())
    with pytest.raises(MethodError, match="expected one matplotlib Axes"):
        plot_cross_validation(results.folds(), ax=Figure())
