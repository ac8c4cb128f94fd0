"""Figures: what they show, that nothing in them overlaps, and what they refuse."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import matplotlib.pyplot
import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from custom_inference.core.evaluate import component_order
from custom_inference.core.fit import Fit
from custom_inference.core.local_inference import Local
from custom_inference.core.posteriors import BernoulliPosterior
from custom_inference.faces import plots
from ppl_models import NOCA, Data, MethodError
from tests.support import results


def make_fit(
    num_components: int = 3,
    num_features: int = 6,
    num_rows: int = 40,
    *,
    coords: dict[str, list[Any]] | None = None,
    trace: Any = None,
) -> Fit:
    """A fit with invented parameters; its last source is shut off."""
    generator = torch.Generator().manual_seed(0)
    prior = 0.05 + 0.4 * torch.rand(num_components, generator=generator)
    prior[-1] = 0.001
    loading = torch.rand(num_components, num_features, generator=generator) ** 4
    probs = torch.rand(num_rows, num_components, generator=generator) ** 3
    elbo = torch.linspace(-30.0, -10.0, 25) if trace is None else torch.as_tensor(trace)
    return Fit(
        model=NOCA(num_components=num_components, num_features=num_features),
        params={"source_prior": prior, "loading": loading, "leak": torch.full((num_features,), 0.05)},
        elbo=elbo * num_rows,
        bound_name="mean_field",
        objective="bound",
        status="converged",
        method="VariationalEM(mean_field)",
        data=Data(x=torch.bernoulli(torch.full((num_rows, num_features), 0.3)), coords=coords or {}),
        seed=0,
        local=Local(BernoulliPosterior(probs), torch.zeros(num_rows)),
    )


def pixels(height: int, width: int) -> list[str]:
    return [f"r{i}c{j}" for i in range(height) for j in range(width)]


def comparison() -> pd.DataFrame:
    methods = ["Exact", "VariationalEM(truncated)", "VariationalEM(factorized)", "SVI(amortized)"]
    table = {"gap_per_row": [-1e-14, 0.03, 2.5, np.nan], "worst_marginal_error": [0.0, 0.02, 0.9, 0.4]}
    return pd.DataFrame(table, index=methods)


def overlapping(figure: Figure) -> list[tuple[str, str]]:
    """Pairs of texts of the drawn figure that lie on each other, and texts that are cut off."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    undrawn = set().union(*(undrawn_labels(axes) for axes in figure.axes))
    texts = [t for t in figure.findobj(Text) if t.get_visible() and t.get_text().strip() and t not in undrawn]
    boxes = [(t.get_text(), t.get_window_extent(renderer)) for t in texts]
    clashes = []
    for (first, a), (second, b) in itertools.combinations(boxes, 2):
        width, height = min(a.x1, b.x1) - max(a.x0, b.x0), min(a.y1, b.y1) - max(a.y0, b.y0)
        if width > 1 and height > 1:
            clashes.append((first, second))
    edge = figure.bbox
    outside = [t for t, b in boxes if b.x0 < -1 or b.y0 < -1 or b.x1 > edge.x1 + 1 or b.y1 > edge.y1 + 1]
    return clashes + [(text, "the edge") for text in outside]


def undrawn_labels(axes: Axes) -> set[Text]:
    """Labels of ticks that matplotlib keeps but does not draw: beyond the limits, minor, or of hidden axes."""
    labels = set()
    for axis in (axes.xaxis, axes.yaxis):
        low, high = sorted(axis.get_view_interval())
        for tick in axis.get_minor_ticks() + axis.get_major_ticks():
            drawn = axes.axison and low - 1e-9 <= tick.get_loc() <= high + 1e-9
            labels |= set() if drawn else {tick.label1, tick.label2}
    return labels


@pytest.mark.parametrize("num_components", [1, 10, 40])
@pytest.mark.parametrize("kind", ["components", "loading", "source", "elbo"])
def test_nothing_overlaps_from_1_to_40_components(kind, num_components):
    num_features = max(8, 5 * num_components)
    names = [f"a longer feature name {j}" for j in range(num_features)]
    figure = plots.plot(make_fit(num_components, num_features, coords={"feature": names}), kind)
    assert overlapping(figure) == []


@pytest.mark.parametrize("num_components", [1, 8, 40])
def test_pictures_have_a_panel_for_every_component_and_the_leak_last(num_components):
    fit = make_fit(num_components, 64, coords={"feature": pixels(8, 8)})
    figure = plots.plot(fit, "components")
    panels = [axes for axes in figure.axes if axes.images and axes.axison]
    assert len(panels) == num_components + 1
    assert panels[-1].get_title() == "leak"
    assert "shut off" in panels[num_components - 1].get_title()
    first = component_order(fit)[0]
    assert f"prior = {float(fit.params['source_prior'][first]):.3f}" in panels[0].get_title()
    np.testing.assert_allclose(panels[0].images[0].get_array(), fit.params["loading"][first].reshape(8, 8))
    assert overlapping(figure) == []


def test_pixels_are_put_where_their_labels_say():
    fit = make_fit(2, 6, coords={"feature": ["r1c2", "r0c0", "r0c1", "r0c2", "r1c0", "r1c1"]})
    picture = plots.plot(fit, "components").axes[0].images[0].get_array()
    assert picture.shape == (2, 3)
    assert picture[1, 2] == pytest.approx(float(fit.params["loading"][0, 0]))
    assert picture[0, 0] == pytest.approx(float(fit.params["loading"][0, 1]))


def test_an_image_shape_makes_pictures_of_unlabelled_features():
    figure = plots.plot(make_fit(3, 6), "components", image_shape=(3, 2))
    assert figure.axes[0].images[0].get_array().shape == (3, 2)
    with pytest.raises(MethodError, match="does not hold 6 features"):
        plots.plot(make_fit(3, 6), "components", image_shape=(4, 2))


@pytest.mark.quick
def test_the_heat_map_of_components_names_the_strongest_features():
    names = [f"word{j}" for j in range(50)]
    fit = make_fit(3, 50, coords={"feature": names})
    axes = plots.plot(fit, "components", top=2).axes[1]
    shown = {label.get_text() for label in axes.get_yticklabels()}
    for row in fit.params["loading"]:
        assert names[int(row.argmax())] in shown
    assert [label.get_text() for label in axes.get_xticklabels()] == ["s0", "s1", "s2 (off)", "leak"]


def test_the_loading_keeps_only_the_strongest_of_many_features():
    fit = make_fit(3, 200, coords={"feature": [f"word{j}" for j in range(200)]})
    axes = plots.plot(fit, "loading", max_features=20).axes[0]
    assert axes.images[0].get_array().shape == (4, 20)
    assert axes.get_xlabel() == "feature (strongest 20 of 200)"
    shown = {label.get_text() for label in axes.get_xticklabels()}
    assert f"word{int(fit.params['loading'].max(0).values.argmax())}" in shown


def test_long_names_are_shortened():
    axes = plots.plot(make_fit(2, 3, coords={"feature": ["x" * 100, "b", "c"]}), "loading").axes[0]
    assert axes.get_xticklabels()[0].get_text() == "x" * 23 + "…"


def test_the_objective_names_its_bound_and_shows_the_later_half_where_the_start_hides_it():
    plain = plots.plot(make_fit(), "elbo")
    assert [axes.get_ylabel() for axes in plain.axes] == ["objective per row, nats\n(bound, mean_field)"]
    steep = [-1000.0, *np.linspace(-10.1, -10.0, 40).tolist()]
    figure = plots.plot(make_fit(trace=steep), "elbo")
    assert [axes.get_title() for axes in figure.axes] == ["all iterations", "later half"]
    assert overlapping(figure) == []


def test_a_noisy_objective_gets_its_running_median():
    noisy = -10 + np.random.default_rng(0).normal(0, 1, 300)
    axes = plots.plot(make_fit(trace=noisy), "elbo").axes[0]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["running median"]


def test_a_fit_without_a_trace_has_no_objective_to_plot():
    with pytest.raises(MethodError, match="no objective trace"):
        plots.plot(make_fit(trace=[]), "elbo")


def test_rows_with_the_same_code_lie_together():
    fit = make_fit(3, 6, 40, coords={"row": [f"site {n}" for n in range(40)]})
    axes = plots.plot(fit, "source").axes[0]
    bits = np.asarray(axes.images[0].get_array()) > 0.5
    codes = [tuple(row) for row in bits.tolist()]
    assert len(list(itertools.groupby(codes))) == len(set(codes))
    assert len(axes.get_yticklabels()) == 40
    shown = axes.get_yticklabels()[0].get_text()
    order = [int(label.get_text()[1:]) for label in axes.get_xticklabels()]
    mean = fit.posterior.mean[int(shown.split()[1]), order]
    np.testing.assert_allclose(axes.images[0].get_array()[0], mean)


def test_many_rows_are_counted_rather_than_labelled():
    axes = plots.plot(make_fit(num_rows=500), "source").axes[0]
    assert axes.get_ylabel() == "500 rows, ordered by their sources"
    assert plots.plot(make_fit(num_rows=500), "source", max_rows=30).axes[0].images[0].get_array().shape == (30, 3)


def test_a_comparison_shows_every_method_and_says_what_is_missing():
    figure = plots.plot_comparison(comparison())
    gap, error = figure.axes
    assert [bar.get_width() for bar in gap.patches] == pytest.approx([0, 0.03, 2.5, 0])
    assert [bar.get_width() for bar in error.patches] == pytest.approx([0, 0.02, 0.9, 0.4])
    assert [text.get_text() for text in gap.texts] == ["0", "0.03", "2.5", "not available"]
    assert overlapping(figure) == []
    with pytest.raises(MethodError, match="worst_marginal_error"):
        plots.plot_comparison(comparison().drop(columns="worst_marginal_error"))


def test_a_comparison_with_an_estimate_shows_errors_and_says_what_has_no_bound():
    names = ["truncated", "mean_field", "SVI(delta)", "CollapsedGibbs"]
    columns = {
        "what": ["variational", "variational", "point", "draws, not all"],
        "evidence": [-200.0] * 4,
        "gap_per_row": [0.2, 1.0, np.nan, np.nan],
        "gap_error": [0.01, 0.02, np.nan, np.nan],
        "standard_error": [0.0, 6.0, 0.0, 0.0],
        "kl_per_row": [0.2, 1.0, np.inf, np.nan],
        "worst_marginal_error": [0.3, 0.5, 0.9, 0.1],
        "marginal_error": [0.05, 0.05, 0.05, 0.05],
    }
    table = pd.DataFrame(columns, index=names)
    table.attrs |= {"num_rows": 100, "reference": "ais", "reference_error": 0.034, "reference_spread": 0.02}
    figure = plots.plot_comparison(table)
    gap, error = figure.axes
    said = [text.get_text() for text in gap.texts]
    assert said[:2] == ["0.2 \u00b1 0.02", "1 \u00b1 0.1"]  # of the second the bound's own error is the larger
    assert said[2:] == ["a point: no bound, infinite divergence", "draws: no bound"]
    assert [text.get_text() for text in error.texts][2] == "0.9 \u00b1 0.1"
    assert "2 standard errors" in gap.get_xlabel() and "2 standard errors" in error.get_xlabel()
    title = " ".join(figure.get_suptitle().split())
    assert "annealed importance sampling" in title and "0.034 \u00b1 0.04 nats a row" in title
    assert overlapping(figure) == []
    table.attrs["reference_error"] = float("nan")
    assert "unchecked" in plots.plot_comparison(table).get_suptitle()


def test_brackets_are_drawn_from_the_narrowest_to_the_widest_with_estimates_inside():
    found = results.bracketed()
    inside = found.lower + 0.5 * found.width
    error = torch.full((4,), 0.05, dtype=torch.float64)
    estimate = Local(BernoulliPosterior(torch.zeros(4, 1)), inside, error)
    figure = found.plot(estimate)
    (axes,) = figure.axes
    points = next(one.lines[0] for one in axes.containers)
    np.testing.assert_allclose(points.get_ydata(), [0.0, 0.1, 0.2, 0.75])
    upper = next(one for one in axes.patches if one.get_label() == "upper bound")
    np.testing.assert_allclose(upper.get_data().values, [0.0, 0.2, 0.4, 1.5])
    assert "1 of them exact" in axes.get_xlabel() and "1.5 at most" in axes.get_title()
    assert overlapping(figure) == []
    with pytest.raises(MethodError, match="an estimate of 3 rows beside brackets of 4"):
        found.plot(estimate._replace(bound=inside[:3]))


def test_unknown_kinds_are_refused_with_the_valid_ones():
    valid = "valid: adjacency, blocks, components, .*, pies, roles, .*, topics, words_over_time"
    with pytest.raises(MethodError, match=valid):
        plots.plot(make_fit(), "pie")


def test_pictures_must_fit_their_captions():
    with pytest.raises(MethodError, match="expected"):
        plots.plot_pictures(np.zeros((2, 6)), (2, 3), ["only one"], title="pictures")


def test_pictures_in_the_columns_asked_for():
    figure = plots.plot_pictures(np.zeros((6, 6)), (2, 3), list("abcdef"), title="pictures", columns=2)
    assert {axes.get_subplotspec().get_gridspec().ncols for axes in figure.axes if axes.get_title()} == {2}


@pytest.fixture
def pyplot() -> Iterator[Any]:
    """pyplot without figures, before and after."""
    matplotlib.pyplot.close("all")
    yield matplotlib.pyplot
    matplotlib.pyplot.close("all")


def test_pyplot_saves_the_figure_that_was_drawn_last(pyplot, tmp_path):
    """One of ours is kept at a time, and none of others is closed; one that was closed can still be saved."""
    own = pyplot.figure()
    figures = [plots.plot(make_fit(), kind) for kind in ("components", "loading", "elbo", "source")]
    assert pyplot.gcf() is figures[-1] and len(pyplot.get_fignums()) == 2
    assert pyplot.fignum_exists(own.number)
    pyplot.savefig(tmp_path / "pyplot.png")
    saved = pyplot.imread(tmp_path / "pyplot.png")
    assert saved.shape[:2] == tuple(figures[-1].bbox.size[::-1].astype(int)) and saved.std() > 0
    figures[0].savefig(tmp_path / "closed.png")
    axes = own.subplots()
    assert plots.plot(make_fit(), "elbo", ax=axes) is axes and pyplot.gcf() is figures[-1]


@pytest.mark.parametrize("case", ["notebook", "thread", "page"])
def test_pyplot_does_not_hear_of_what_it_would_show_twice_or_not_at_all(case, pyplot, monkeypatch):
    before = pyplot.get_fignums()
    if case == "notebook":
        monkeypatch.setitem(sys.modules, "ipykernel", sys)
    if case == "thread":
        thread = threading.Thread(target=plots.plot, args=(make_fit(), "elbo"))
        thread.start()
        thread.join()
    elif case == "page":
        assert "<img" in make_fit()._repr_html_()
    else:
        plots.plot(make_fit(), "elbo")
    assert pyplot.get_fignums() == before


def test_without_pyplot_none_is_loaded():
    code = "import sys; from custom_inference.faces import drawing; drawing.new_figure(2, 2)"
    code += "; assert 'matplotlib.pyplot' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


def test_a_notebook_shows_the_figure_that_a_cell_returns():
    assert plots.plot(make_fit(), "elbo")._repr_png_().startswith(b"\x89PNG")
