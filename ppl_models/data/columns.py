"""Columns: those without an entry or that never vary, from which nothing can be learned; and those of further rows, in
the order of the rows before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ppl_models.core.errors import DataError, warn_of_data
from ppl_models.data import sparse
from ppl_models.data.containers import axis_labels
from ppl_models.data.covariates import read_before
from ppl_models.data.held import MatrixLike, is_number, labels_of
from ppl_models.data.labels import order_of
from ppl_models.data.lazy import is_pandas
from ppl_models.data.matrix import Data

#: Rows by which most columns are told to vary.
_FIRST_ROWS = 64


def check_for_fitting(data: Data) -> None:
    """Check that data can be learned from: raise on empty columns, warn of constant ones, legal as both are in a
    row."""
    check_columns(data, constant=(0, 1))
    empty_rows = int((sparse.row_sums(data.as_columns.observed_x) == 0).sum())
    if empty_rows == len(data):
        raise DataError("every observed entry is 0", expected="at least one 1 to learn from")
    if 2 * empty_rows > len(data):
        warn_of_data(f"{empty_rows} of {len(data)} rows are all zero; they say little but how rare ones are")


def check_columns(data: Data, *, constant: Iterable[int] = ()) -> None:
    """Raises on columns without any observed entry; warns of those that are always one of the values ``constant``."""
    names, axis = data.feature_names, "feature" if data.x.ndim == 2 else None
    data = data.as_columns
    empty = [] if data.mask is None else (~data.mask).all(0).nonzero().flatten().tolist()
    if empty:
        problem = f"{len(empty)} column(s) without any observed entry (the first: {names[empty[0]]!r})"
        raise DataError(problem, axis=axis, expected="at least one observed entry; drop the column")
    for value in constant if len(data) > 1 else ():
        columns = _always(data, value).nonzero().flatten().tolist()
        if columns:
            warn_of_data(
                f"{len(columns)} of {data.num_features} columns are always {value} (the first: {names[columns[0]]!r}); "
                "they carry no information about the latent variables"
            )


#: Rows and columns from which on a column may look like no count; how many times the next mean its own is.
_ROWS, _COLUMNS, _FAR = 20, 3, 30.0


def warn_of_ids(data: Data) -> None:
    """Warns of a column of counts that is probably none, but the number of a row, a year, an amount: all of its values
    differ, which those of other columns do not, or its mean is many times that of any other column."""
    if type(data) is not Data or data.x.ndim != 2 or len(data) < _ROWS or data.num_features < _COLUMNS:
        return
    observed = data.observed_x
    if not sparse.is_whole(observed):  # numbers of at least 0 that nobody takes for counts
        return
    means = (sparse.column_sums(observed) / len(data)).double().cpu()
    (most, second), (first, _) = (part.tolist() for part in means.topk(2))
    odd = {first: f"its mean is {_FAR:g} times that of any other column, or more"} if most > _FAR * second > 0 else {}
    matrix: Any = sparse.to_scipy(observed) if data.is_sparse else observed.cpu().numpy()
    filled = np.asarray((matrix != 0).sum(0)).ravel() >= len(data) - 1
    columns: np.ndarray = np.flatnonzero(filled)
    chosen = matrix[:, columns]
    dense = chosen.toarray() if data.is_sparse else chosen
    different = np.array([len(np.unique(column)) for column in dense.T], dtype=np.int64)
    distinct = columns[different == len(data)]
    if 4 * len(distinct) <= data.num_features and not (different[different < len(data)] * 2 > len(data)).any():
        odd = {int(j): "no two rows have the same in it" for j in distinct} | odd
    if odd:
        place, why = next(iter(odd.items()))
        more = f", and {len(odd) - 1} more" if len(odd) > 1 else ""
        name = data.feature_names[place]
        warn_of_data(
            f"column {name!r}{more} is probably no count: {why}; id={name!r} (--id) makes it the rows' names, "
            f"drop={name!r} (--drop) leaves it out"
        )


def warn_of_answers(data: Data) -> None:
    """Warns of a column of answers that is probably no question, as no two rows have the same in it; and of one of a
    single answer and missing ones, which say nothing: a tick and blanks."""
    if type(data) is not Data or data.is_sparse or data.x.ndim != 2:
        return
    seen = data.observed
    different = [len(column.unique()) for column in _list_observed(data)]
    known, names = seen.sum(0).tolist(), data.feature_names
    for name, number, answered in zip(names, different, known, strict=True):
        if number == answered == len(data) >= _ROWS:
            warn_of_data(
                f"column {name!r} is probably no question: no two rows have the same in it; id={name!r} (--id) makes "
                f"it the rows' names, drop={name!r} (--drop) leaves it out"
            )
    warn_of_codes(data)
    single = [j for j, number in enumerate(different) if number == 1 and known[j] < len(data)]
    if single:
        labels = data.coords.get("answers")
        place = single[0]
        value = labels[place][0] if labels else int(data.x[seen[:, place], place][0])
        warn_of_data(
            f"{len(single)} of {data.num_features} columns have one answer and blanks, which count as missing, not as "
            f"another answer (the first: {names[place]!r}, {value!r} in {known[place]} of {len(data)} rows); "
            "where a blank is an answer, give it a name in the table"
        )


def warn_of_codes(data: Data) -> None:
    """Warns of answers that are probably codes of missing ones: a negative number beside others, or 9, 99, 88, ... far
    above them."""
    every = data.coords.get("answers") or [tuple(column.unique().tolist()) for column in _list_observed(data)]
    for name, answers in zip(data.feature_names, every, strict=True):
        known = sorted(one for one in answers if is_number(one))
        if len(known) < 2 or len(known) < len(answers):
            continue
        usual = [one for one in known if one >= 0 and not _is_code(one, known)]
        odd = [one for one in known if one not in usual]
        if odd and usual:
            warn_of_data(
                f"column {name!r} has the answer{'s' if len(odd) > 1 else ''} {', '.join(f'{one:g}' for one in odd)} "
                f"beside {usual[0]:g} to {usual[-1]:g}, probably codes of missing ones, taken for categories; "
                f"x.replace({odd[0]:g}, numpy.nan) (--mask-value {odd[0]:g}) makes them missing"
            )
            return


def _is_code(answer: float, known: Sequence[float]) -> bool:
    """Whether an answer is 7, 8 or 9 alone, repeated (99, 888) or in 97, 98, and far above all that are not."""
    digits = f"{answer:g}"
    written = set(digits) <= set("789") and (len(set(digits)) == 1 or digits.startswith("9"))
    below = [one for one in known if one < answer and not set(f"{one:g}") <= set("789")]
    return written and bool(below) and answer > max(below) + 2


def _list_observed(data: Data) -> list[Tensor]:
    return [column[seen] for column, seen in zip(data.x.T, data.observed.T, strict=True)]


def _always(data: Data, value: int) -> Tensor:
    """Whether every observed entry of each column is ``value``, (D,)."""
    if data.is_sparse:
        stored = torch.zeros(data.num_features, dtype=torch.long, device=data.x.device)
        stored = stored.index_add(0, data.x.col_indices(), (data.x.values() == value).long())
        others = torch.zeros_like(stored).index_add(0, data.x.col_indices(), (data.x.values() != value).long())
        return others == 0 if value == 0 else stored == len(data)
    # Most columns are told to vary by the first rows, and are read no further.
    always = torch.ones(data.num_features, dtype=torch.bool, device=data.x.device)
    first, last = 0, _FIRST_ROWS
    while first < len(data) and bool(always.any()):
        columns = always.nonzero().flatten()
        differs = data.x[first:last, columns] != value
        always[columns] = ~(differs if data.mask is None else differs & data.mask[first:last, columns]).any(0)
        first, last = last, 2 * last
    return always


def in_columns_of(data: Any, mask: Any, labels: Sequence[Any] | None) -> tuple[Any, Any]:
    """Rows, and what masks them, with their columns in the order of ``labels``, by their own; as they are where they
    have none. labels: None where there were none: then columns called 0, 1, ... in another order are put in this one.

    Raises DataError for columns that are not among the labels, and for those that are missing.
    """
    own = _column_labels(data)
    if own is None or own == labels:
        return data, mask
    if labels is None:
        labels = list(range(len(own)))
        if set(map(str, own)) != set(map(str, labels)):
            return data, mask
        own = list(map(int, own))  # numbers of columns, also as files have them
    order = order_of(own, labels, "feature", "{} columns are missing")
    if mask is not None and not set((axis_labels(mask)[1:] or [None])[0] or ()) & set(own):
        mask = _in_order(mask, order)  # one that has their labels is put in order by these
    return _in_order(data, order), mask


def _column_labels(data: MatrixLike | None) -> list[Any] | None:
    own = read_before(data)
    own = [] if own is not None and type(own) is not Data else axis_labels(data)  # whose axes are no columns
    return labels_of(own[1]) if len(own) == 2 and own[1] is not None else None


def _in_order(data: Any, order: np.ndarray) -> Any:
    if is_pandas(data, "DataFrame"):
        return data.iloc[:, order]
    own = read_before(data)
    if own is not None:
        return replace(own.columns(order), others=own.others)
    return (data if hasattr(data, "ndim") else np.asarray(data))[:, order]
