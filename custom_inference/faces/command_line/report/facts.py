"""What a report says of the data, of how the fit was made, and of where it was made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

import torch

from custom_inference import __version__
from custom_inference.core.fit import Fit
from custom_inference.faces.command_line.report.neighbours import Neighbours
from ppl_models import Data, GraphData, Ratings, Sequences
from ppl_models.data import sparse


@dataclass(frozen=True)
class Occasion:
    """What is known of a fit only where it was made, all of it optional: a report of a saved fit does without.

    file: what was read. command: the line that made the fit. choose: the one that compares numbers of components.
    num_rows: of rows read block by block, all of them. neighbours: fits with fewer and more components, or why there
    are none. written: what -> path, of the files beside the page.
    """

    file: str | None = None
    command: str | None = None
    choose: str | None = None
    num_rows: int | None = None
    neighbours: Neighbours | str = ""
    written: dict[str, str] = field(default_factory=dict)


def describe_making(fit: Fit, occasion: Occasion) -> dict[str, str | None]:
    """Return what file, command and version made a fit, when, and how long it took."""
    seconds = fit.details.get("seconds")
    made = None if occasion.command is None else f"{datetime.now():%Y-%m-%d %H:%M}"
    return {
        "file": occasion.file,
        "command": None if occasion.command is None else f"`{occasion.command}`",
        "version": f"ppl-models {__version__}, torch {torch.__version__}",
        "made": made,
        "took": None if seconds is None else f"{write_seconds(float(seconds))}, the fit alone",
        "seed": str(fit.seed),
    }


def write_seconds(seconds: float) -> str:
    """Write a time as a person says it."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} minutes"


def describe_data(fit: Fit, num_rows: int | None = None) -> dict[str, str | None]:
    """Return the size of the data, how dense they are, and how much is missing."""
    data = fit.data
    kinds: dict[str, Callable[..., dict[str, str | None]]] = {
        "graph": _describe_graph, "ratings": _describe_ratings, "sequences": _describe_sequences
    }  # fmt: skip
    if data.container in kinds:
        return kinds[data.container](data)
    if data.container == "relations":
        return {}
    found = _describe_documents(data) if fit.model.data_kind == "documents" else _describe_rows(data, fit)
    if num_rows is not None:
        found["rows" if "rows" in found else "documents"] = f"{num_rows}, of which the first {len(data)} are shown here"
    return found


def _describe_graph(graph: GraphData) -> dict[str, str | None]:
    edges, pairs = graph.num_edges, max(graph.num_dyads, 1)
    return {
        "nodes": str(len(graph)),
        "edges": f"{edges}, {'directed' if graph.directed else 'undirected'}",
        "density": f"{_write_part(edges, pairs)} of the {pairs} known pairs of nodes have an edge",
        "missing": f"{graph.num_hidden} pairs of nodes" if graph.num_hidden else "none",
    }


def _describe_ratings(data: Ratings) -> dict[str, str | None]:
    value, users, items = data.value, data.num_users, data.num_items
    return {
        "users": str(users),
        "items": str(items),
        "ratings": f"{len(value)}, from {float(value.min()):g} to {float(value.max()):g}, "
        f"mean {float(value.double().mean()):.2f}",
        "density": f"{_write_part(len(value), users * items)} of all pairs of a user and an item are rated",
    }


def _describe_sequences(data: Sequences) -> dict[str, str | None]:
    return {
        "documents": str(len(data)),
        "sentences": str(data.num_sentences),
        "words": str(data.num_words),
        "tokens": str(data.num_tokens),
    }


def _describe_documents(data: Data) -> dict[str, str | None]:
    tokens = float(data.stored.sum())
    return {
        "documents": str(len(data)),
        "words": str(data.num_features),
        "tokens": f"{tokens:.0f}, {tokens / max(len(data), 1):.0f} a document",
        "density": f"{_write_part(_count_entries(data), data.x.numel())} of words occur in a document, on average",
    }


def _describe_rows(data: Data, fit: Fit) -> dict[str, str | None]:
    size = data.x.numel()
    hidden = 0 if data.mask is None else int((~data.mask).sum())
    found: dict[str, str | None] = {"rows": str(len(data))}
    if data.x.ndim == 2:
        found["columns"] = str(data.num_features)
    if fit.model.data_kind in ("binary", "counts"):
        found["density"] = f"{_write_part(_count_entries(data), size - hidden)} of the known entries are not 0"
    found["missing"] = f"{hidden} entries, {_write_part(hidden, size)}" if hidden else "none"
    return found


def _count_entries(data: Data) -> int:
    """Return how many known entries are not 0."""
    if data.is_sparse:
        return len(sparse.triplets(data.x)[2])
    known = data.x != 0 if data.mask is None else (data.x != 0) & data.mask
    return int(known.sum())


def _write_part(part: float, whole: float) -> str:
    return f"{100 * part / max(whole, 1):.3g} %"
