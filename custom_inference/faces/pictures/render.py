"""``render(model)``: the picture of a model, drawn here or by Graphviz."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from custom_inference.faces.pictures.structure import Structure, structure_of
from ppl_models import MethodError, Model, PPLError
from ppl_models.core.errors import unknown_name
from ppl_models.core.model import require_model
from ppl_models.data.atomic import write_atomically, write_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Files that hold Graphviz' own language: written without its program.
_SOURCES = (".gv", ".dot")


def render(
    model: Model,
    filename: str | Path | None = None,
    *,
    engine: str = "matplotlib",
    distributions: bool = True,
    ax: Axes | None = None,
) -> Any:
    """A picture of a model: its sites (observed ones shaded), what depends on what, plates, priors, axes.

    It is read off the Pyro program, whose plates are drawn; axes of a site beyond those of its plates are named below
    it ("component × feature"), with the distribution it is drawn from above.

    filename: where to save it; the ending says as what (.svg, .pdf, .png; of Graphviz also .gv, its source).
    engine: "matplotlib" needs no other program, and gives a matplotlib Figure; "graphviz" gives a ``graphviz.Digraph``,
        whose ``source`` can be used without Graphviz' program ``dot``, which it needs to be drawn.
    distributions: whether to name the distributions.
    ax: matplotlib axes to draw on, of any size and in any figure, which are then what is returned.

    Raises MethodError for an unknown engine, and for ``ax`` beside a file name or with Graphviz; ImportError without
    the Python package ``graphviz``; PPLError without the program ``dot`` to draw a file with.
    """
    if engine not in ("graphviz", "matplotlib"):
        raise MethodError(unknown_name("engine", engine, ("graphviz", "matplotlib")))
    if ax is not None and (engine != "matplotlib" or filename is not None):
        beside = "engine='graphviz'" if engine != "matplotlib" else f"the file {filename}"
        raise MethodError(f"ax beside {beside}; expected ax alone, which matplotlib draws on, to save its figure")
    structure, path = structure_of(require_model(model)), None if filename is None else Path(filename)
    if engine == "graphviz":
        return _by_graphviz(structure, path, distributions)
    return _by_matplotlib(structure, path, distributions, ax)


def _by_matplotlib(structure: Structure, path: Path | None, distributions: bool, ax: Axes | None) -> Any:
    # Here and not above: whoever imports the package need not want to draw.
    import matplotlib

    from custom_inference.faces.pictures.drawing import draw

    figure = draw(structure, distributions=distributions, ax=ax)
    if path is None:
        return figure
    target = path if path.suffix else path.with_suffix(".png")
    kinds = figure.canvas.get_supported_filetypes()
    if target.suffix[1:].lower() not in kinds:
        raise MethodError(unknown_name("ending of a picture", target.suffix, [f".{kind}" for kind in kinds]))
    # No date and no random names, so that the same picture is the same file.
    metadata = {"Date": None} if target.suffix == ".svg" else None
    with matplotlib.rc_context({"svg.hashsalt": structure.title}), write_atomically(target) as temporary:
        figure.savefig(temporary, format=target.suffix[1:], metadata=metadata)
    return figure


def _by_graphviz(structure: Structure, path: Path | None, distributions: bool) -> Any:
    try:
        import graphviz
    except ImportError as error:
        message = "engine='graphviz' needs the Python package graphviz: pip install graphviz, or engine='matplotlib'"
        raise ImportError(message) from error
    graph = _digraph(graphviz, structure, distributions)
    if path is not None and path.suffix in _SOURCES:
        write_text(path, graph.source)
    elif path is not None:
        if shutil.which("dot") is None:
            raise PPLError(
                f"{path}: Graphviz' program dot, which draws it, is not on the PATH; install Graphviz, write its "
                f"source ({path.with_suffix('.gv').name}), or take engine='matplotlib'"
            )
        graph.render(outfile=path, cleanup=True)
    return graph


def _digraph(graphviz: Any, structure: Structure, distributions: bool) -> Any:
    graph = graphviz.Digraph(structure.title, graph_attr={"rankdir": "LR", "label": structure.title, "labelloc": "t"})
    groups: dict[str | None, Any] = {None: graph}
    for name, plate in structure.plates.items():
        attributes = {"label": plate.label, "labeljust": "r", "labelloc": "b", "style": "rounded"}
        groups[name] = graphviz.Digraph(f"cluster_{name}", graph_attr=attributes)
    for name, site in structure.sites.items():
        lines = [name, *([site.distribution] if distributions else []), " × ".join(site.axes)]
        fill = "lightgrey" if site.observed else "white"
        label = "\n".join(line for line in lines if line)
        inner = structure.plates_of(name)
        groups[inner[-1] if inner else None].node(name, label=label, style="filled", fillcolor=fill)
    # From the innermost plate outwards: a subgraph is copied when it is added.
    for name in sorted(structure.plates, key=structure.depth, reverse=True):
        groups[structure.plates[name].parent].subgraph(groups[name])
    graph.edges(structure.edges)
    return graph
