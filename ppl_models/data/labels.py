"""Labels of users, items, nodes, documents, entities, times: where they are among those of the data.

Whatever turns a label into a position does it here, so that an unknown one is an error everywhere. Where data have no
labels their numbers 0, 1, ... are labels and positions alike; where they have some, a position is never taken for one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np
import torch

from ppl_models.core.errors import DataError, list_some, warn_of_data
from ppl_models.data.held import Column, is_number, is_string, is_whole, labels_of, objects, plain, to_column
from ppl_models.data.lazy import pandas as pd


def places_of(
    given: Column, labels: Sequence[Any] | None, size: int, axis: str, *, new: bool = False, hint: str = ""
) -> np.ndarray:
    """The positions (M,) of labels among those of an axis of the data, which has ``size`` places.

    >>> places_of(["cleo", "ann"], ["ann", "bob", "cleo"], 3, "user").tolist()
    [2, 0]

    Parameters
    ----------
    given: (M,) labels: a list, an array, a column. Tensors hold positions, as those of ``Ratings.user``: beside labels
        they are refused.
    labels: of the data, in their order; None where they have none: then 0, ..., ``size`` - 1.
    axis: what the labels are of, for messages. hint: what else would have been accepted.
    new: unknown labels get the position ``size``; otherwise they are an error.

    Raises DataError for unknown labels, for labels that are unknown because of their type ("2010" beside 2010), for
    missing ones, and for labels that the data have twice.
    """
    if labels is not None and torch.is_tensor(given):
        found = f"a tensor of {axis}s, which holds positions, where the {axis}s of the data have labels"
        raise DataError(found, axis=axis, expected=_describe_valid(labels, size, hint))
    values = label_array(given, axis)
    place = _numbers(values, size) if labels is None else _look_up(values, labels, axis)
    unknown = place < 0
    if unknown.any():
        _refuse(values[unknown], labels, size, axis, new, hint)
    return np.where(unknown, size, place)


def number_labels(
    given: Column, axis: str, size: int | None = None, labels: Sequence[Hashable] | None = None
) -> tuple[np.ndarray, int, list[Any] | None]:
    """The places of users or items, how many there are, and their labels, None where these are 0, 1, ...

    size, labels: what is known of them. Raises DataError for others, by ``axis``.
    """
    given = _whole(to_column(given), axis)
    if labels is not None:
        names = plain(labels)
        if size is not None and size != len(names):
            raise DataError(f"{len(names)} labels", axis=axis, expected=f"{size}, as their number says")
        return places_of(given, names, len(names), axis), len(names), labels_of(names)
    if size is not None:
        if not is_whole(size) or size < 1:
            raise DataError(f"{size!r} of them", axis=axis, expected="a whole number of at least 1")
        out = np.ones(len(given), bool) if given.dtype.kind not in "iu" else (given < 0) | (given >= size)
        if out.any():
            found = f"{int(out.sum())} ratings of {axis}s out of range (the first: {plain(given[out])[0]!r})"
            raise DataError(found, axis=axis, expected=f"0 to {size - 1}, whole numbers; {axis}s=[...] gives labels")
        return given.astype(np.int64), int(size), None
    if given.dtype.kind in "iu" or all(map(is_whole, given.tolist())):
        names, place = np.unique(given, return_inverse=True)
        return place.astype(np.int64), len(names), labels_of(names)
    place, found = pd.factorize(given)
    warn_of_twins(found, axis)
    return place.astype(np.int64), len(found), labels_of(found)


def _whole(given: np.ndarray, axis: str) -> np.ndarray:
    """Whole numbers as such, where all are; otherwise labels, none of them missing."""
    if given.dtype.kind in "iu":
        return given
    if given.dtype.kind == "b":
        return given.astype(np.int64)
    missing = pd.isna(given)
    if missing.any():
        found = f"the {axis} of rating {int(np.flatnonzero(missing)[0])} is missing"
        raise DataError(found, axis=axis, expected="a label of every user and item")
    if given.dtype.kind == "O" and all(is_whole(one) and -(2**63) <= one < 2**63 for one in given.tolist()):
        return given.astype(np.int64)
    without_fractions = given.dtype.kind == "f" and bool((given == given.round()).all())
    return whole_labels(given, axis) if without_fractions else given


def whole_labels(given: np.ndarray, axis: str) -> np.ndarray:
    """Labels (M,) in floating point, all whole, as whole numbers. Raises DataError where they have been rounded."""
    if len(given) and np.abs(given).max() >= 2.0**53:
        found = f"{axis}s that are numbers of floating point, which round ids such as {given.max():.0f}"
        raise DataError(found, axis=axis, expected="whole numbers or texts, as read_csv(dtype=str) gives them")
    return given.astype(np.int64)


def order_of(own: Sequence[Any], labels: Sequence[Any], axis: str, what: str) -> np.ndarray:
    """The positions (N,) of all ``labels`` of an axis among those that something else has of it, in any order.

    what: a message for labels that ``own`` lacks, with ``{}`` for their number. Raises DataError for these, and for
    labels that are not among those of the axis.
    """
    places_of(own, labels, len(labels), axis)
    known = set(own)
    lacking = [label for label in labels if label not in known]
    if lacking:
        found = f"{what.format(len(lacking))} (the first: {list_some(lacking, 4, show=repr)})"
        raise DataError(found, axis=axis, expected=f"all of these {len(labels)} {axis}s")
    return places_of(labels, own, len(own), axis)


def order_beside(own: list[Any] | None, names: list[Any] | None, axis: str, what: str) -> np.ndarray | None:
    """Return where, in what stands beside an axis of the data, its places stand, (N,); None where they are in order.

    own, names: the labels of both, those of a default index (0, 1, ...) too; None where there are none. Labels on both
    sides are matched. Of default ones those of one side may be in another order, as sorting leaves them: then they are
    matched with the positions of the other. Numbers that are no labels of the data are positions.

    Raises DataError for labels that the data do not have, and, as ``what`` says it, for those that nothing is given of.
    """
    if own is None or own == names:
        return None
    numbers = list(range(len(own)))
    if names is None and (own == numbers or set(own) != set(numbers)):
        return None
    if names is not None and own == numbers and not set(own) & set(names):
        return None
    return order_of(own, numbers if names is None else names, axis, what)


def label_array(given: Column, axis: str) -> np.ndarray:
    """Labels (M,) as an array: whole numbers as such, all else as Python has them, dates as text.

    Raises DataError for missing ones, for what can be no label, and for more than one axis of them.
    """
    values = to_column(given if hasattr(given, "ndim") else list(given))
    if values.ndim != 1:
        raise DataError(f"{axis}s of shape {values.shape}", axis=axis, expected="one axis of them, (M,)")
    if values.dtype.kind in "iu":
        return values
    if values.dtype.kind == "M":
        values = values.astype(str)
    values = values if values.dtype.kind == "O" else objects(values.tolist())
    odd = next((value for value in values.tolist() if not isinstance(value, Hashable)), None)
    if odd is not None:
        raise DataError(f"a {type(odd).__name__} as a {axis}", axis=axis, expected="a label each")
    missing = np.flatnonzero(pd.isna(values))
    if len(missing):
        found = f"{len(missing)} {axis}s are missing (the first: at {int(missing[0])})"
        raise DataError(found, axis=axis, expected="a label each")
    return values


def warn_of_twins(labels: Iterable[Any], axis: str) -> None:
    """Warns of labels that are two only by their types: the text "2010" beside the number 2010."""
    texts = {label for label in labels if is_string(label)}
    twin = next((label for label in labels if label not in texts and str(label) in texts), None)
    if twin is not None:
        warn_of_data(f"the {axis}s {str(twin)!r} and {twin!r}, a text and a number, are taken for two")


def index_of(labels: Sequence[Any], axis: str) -> pd.Index:
    """Labels to be looked up. Raises DataError where one occurs twice."""
    index = pd.Index(objects(labels), tupleize_cols=False)
    if index.has_duplicates:
        twice = index[index.duplicated()][0]
        raise DataError(f"two {axis}s called {twice!r}", axis=axis, expected="labels that differ")
    return index


def _numbers(values: np.ndarray, size: int) -> np.ndarray:
    """Numbers from 0 to ``size`` - 1 as they are; -1 for anything else."""
    if values.dtype.kind == "O":
        numbers = [
            value if is_number(value) and value is not True and value is not False else -1 for value in values.tolist()
        ]
        values = np.array([int(value) if value == value // 1 else -1 for value in numbers], dtype=object)
    return np.where((values >= 0) & (values < size), values, -1).astype(np.int64)


def _look_up(values: np.ndarray, labels: Sequence[Any], axis: str) -> np.ndarray:
    place = index_of(labels, axis).get_indexer(pd.Index(objects(values.tolist()), tupleize_cols=False))
    if bool not in set(map(type, labels)):  # a mask is no list of labels, though True == 1
        place = np.where([value is True or value is False for value in values.tolist()], -1, place)
    return place.astype(np.int64)


def _refuse(values: np.ndarray, labels: Sequence[Any] | None, size: int, axis: str, new: bool, hint: str) -> None:
    """Raises DataError for unknown labels, but for those that may be new ones."""
    unknown = list(dict.fromkeys(values.tolist()))
    known: dict[str, Any] = {} if labels is None else {str(label): label for label in labels}
    if labels is None:  # as many numbers as somebody says: none is listed
        texts = [one for one in unknown if is_string(one) and one.isdecimal() and str(int(one)) == one]
        known = {one: int(one) for one in texts if int(one) < size}
    twin = next(((one, known[str(one)]) for one in unknown if str(one) in known), None)
    expected = _describe_valid(labels, size, hint)
    if twin is not None:
        one, label = twin
        expected += f"; the data have {_kind(label)} such as {label!r}, not {_kind(one)} such as {one!r}"
    elif new and (labels is not None or not any(is_number(one) and one < 0 for one in unknown)):
        return
    raise DataError(
        f"{len(unknown)} unknown {axis}s (the first: {list_some(unknown, 4, show=repr)})", axis=axis, expected=expected
    )


def _describe_valid(labels: Sequence[Any] | None, size: int, hint: str) -> str:
    if labels is None:
        return f"whole numbers from 0 to {size - 1}{hint}"
    return f"labels such as {labels[0]!r}{hint}"


def _kind(label: Hashable) -> str:
    named = {str: "strings", int: "numbers", float: "numbers", bool: "truth values"}
    return named.get(type(label), f"labels of type {type(label).__name__}")
