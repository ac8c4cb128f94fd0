"""Displays of data: sizes, labels, a glance at the values; in notebooks as HTML, elsewhere as a few lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ppl_models.core import displays
from ppl_models.data import sparse
from ppl_models.data.lazy import pandas as pd

#: Rows, columns, and lines of what there is most of.
_ROWS, _COLUMNS, _LINES = 5, 12, 6


def _render(title: str, told: dict[str, Any], table: Callable[[], pd.DataFrame], text: bool) -> str:
    """The facts as lines of text, or with a table as HTML."""
    return (
        displays.lines(title, told) if text else displays.display(title, displays.facts(told), displays.table(table()))
    )


def of_data(data: Any, *, text: bool = False) -> str:
    """Rows (a ``Data``): sizes, labels, and a corner of them; of sparse ones the columns with most in them."""
    size, entries = data.x.numel(), data.stored
    hidden = 0 if data.mask is None else int((~data.mask).sum())
    seen = entries if data.mask is None else entries[data.mask]
    told = {
        "values": f"{float(seen.min()):g} to {float(seen.max()):g}" if seen.numel() else "none",
        "missing": f"{hidden} entries ({hidden / size:.2%})" if hidden else None,
        **{f"labels of {axis}": displays.list_labels(names) for axis, names in data.coords.items()},
        **data.others,
    }
    if data.is_sparse:
        told["stored"] = f"{len(entries)} entries ({len(entries) / size:.2%}), total {float(entries.sum()):g}"
    size = " x ".join([f"{len(data)} rows", *(map(str, data.x.shape[1:]) if data.x.ndim != 2 else [])])
    size += f" x {data.num_features} features" if data.x.ndim == 2 else ""
    title = f"Data: {size}{', sparse' if data.is_sparse else ''}"
    if not data.is_sparse:
        return _render(title, told, lambda: _corner(data.as_columns), text)
    return _render(title, told, lambda: _most("feature", data.feature_names, total=sparse.column_sums(data.x)), text)


def _most(axis: str, names: Sequence[Any], **values: torch.Tensor) -> pd.DataFrame:
    """What there is most of along an axis, by the first of the values (N,), and these."""
    most = torch.argsort(next(iter(values.values())), descending=True, stable=True)[:_LINES].tolist()
    index = pd.Index([str(names[n]) for n in most], name=axis)
    return pd.DataFrame({name: value[most].tolist() for name, value in values.items()}, index=index)


def _corner(data: Any) -> pd.DataFrame:
    x = data.x[:_ROWS, :_COLUMNS]
    x = x if data.mask is None else x.masked_fill(~data.mask[:_ROWS, :_COLUMNS], torch.nan)
    names = data.coords.get("row", range(len(data)))
    return pd.DataFrame(x.cpu().numpy(), index=names[:_ROWS], columns=data.feature_names[:_COLUMNS])


def of_graph(graph: Any, *, text: bool = False) -> str:
    """A ``GraphData``: sizes, labels, and the nodes with most edges."""
    value, degree = graph.edge_values(), graph.degrees()
    edges, kind = len(value), "directed" if graph.directed else "undirected"
    weighted = edges and float(value.min()) != float(value.max())
    told = {
        "density": f"{edges / max(graph.num_dyads, 1):.3g} of {graph.num_dyads} observed dyads",
        "hidden dyads": graph.num_hidden or None,
        "values of edges": f"{float(value.min()):g} to {float(value.max()):g}" if weighted else None,
        "degree": f"{int(degree.min())} to {int(degree.max())}, mean {float(degree.double().mean()):.3g}",
        "loops": "are dyads" if graph.self_loops else None,
        "labels of nodes": displays.list_labels(graph.coords["row"]) if graph.coords else None,
    }
    title = f"Graph: {len(graph)} nodes, {edges} edges, {kind}"
    return _render(title, told, lambda: _most("node", graph.nodes, edges=degree), text)


def of_ratings(ratings: Any, *, text: bool = False) -> str:
    """A ``Ratings``: sizes, the scale, labels, and the items with most ratings."""
    value, count = ratings.value, torch.bincount(ratings.item, minlength=ratings.num_items)
    of_user, each = ratings.x.crow_indices().diff(), value.double()
    told = {
        "observed": f"{len(value) / max(1, ratings.x.numel()):.3g} of all pairs",
        "values": f"{each.min():g} to {each.max():g}, mean {each.mean():.4g}" if len(value) else "none",
        "ratings of a user": f"{int(of_user.min())} to {int(of_user.max())}, mean {float(of_user.double().mean()):.3g}",
        **{f"labels of {axis}": displays.list_labels(names) for axis, names in ratings.coords.items()},
        **ratings.others,
    }
    mean = torch.zeros_like(count, dtype=value.dtype).index_add_(0, ratings.item, value) / count.clamp(min=1)
    title = f"Ratings: {len(value)} of {ratings.num_items} items by {ratings.num_users} users"
    return _render(title, told, lambda: _most("item", ratings.items, ratings=count, mean=mean), text)


def of_sequences(data: Any, *, text: bool = False) -> str:
    """A ``Sequences``: sizes, labels, and the words that occur most often."""
    told = {
        "words": data.num_words,
        "tokens of a sentence": f"mean {data.num_tokens / max(1, data.num_sentences):.3g}",
        **{f"labels of {axis}": displays.list_labels(names) for axis, names in data.coords.items()},
    }
    count = torch.bincount(data.tokens.word, minlength=data.num_words)
    title = f"Sequences: {len(data)} documents, {data.num_sentences} sentences, {data.num_tokens} tokens"
    return _render(title, told, lambda: _most("word", data.words, tokens=count), text)
