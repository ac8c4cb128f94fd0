"""Recognition of rows of numbers: 0/1 entries, answers to questions, counts, words, ratings, a graph; and why."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from ppl_models import Data
from ppl_models.data import sparse
from ppl_models.data.answers import ANSWERS

#: A table of whole numbers of so many columns is taken for documents, one of fewer for counts.
_WORDS = 50
#: Rows below which nothing is concluded from values that do not occur.
_FEW = 5
#: Different answers to a question that are taken for categories, and the largest of them; different ratings.
_ANSWERS, _LARGEST, _STEPS = 7, 10, 21
#: Shares of missing cells from which rows may be ratings, and from which they are taken for these.
_MAYBE_RATED, _RATED = 0.08, 0.25
#: Rows from which on a column without two equal entries is taken for the number of the row.
_NUMBERED = 20


class Look(NamedTuple):
    """What data are taken for, what else they may be, and why, for those who know better; "" where it is plain."""

    kind: str
    others: tuple[str, ...] = ()
    why: str = ""


def look_of(data: Data) -> Look:
    """Recognise the kind of rows of numbers by their entries."""
    if ANSWERS in data.coords:
        return Look("categories")
    values = data.entries
    found = values.unique()
    whole = not bool((found != found.round()).any()) and not bool((found < 0).any())
    if whole and bool((found <= 1).all()):
        return _of_bits(data)
    share = 1 - values.numel() / max(1, data.x.shape[0] * data.x.shape[1])
    answered = _answers(data) if whole and not data.is_sparse and len(data) >= _FEW else 0
    complete = not data.is_sparse and len(data) >= _FEW and bool((found > 0).all())
    in_steps = complete and 2 < len(found) <= _STEPS and not bool((2 * found != (2 * found).round()).any())
    if in_steps and share >= _RATED:
        why = f"{share:.0%} of the cells are missing, and there are {len(found)} different values, none of them 0"
        return Look("ratings", ("categories", "counts") if whole else ("real",), why)
    maybe = ("ratings",) if in_steps and share >= _MAYBE_RATED else ()
    if not whole:
        return Look("real", maybe, "cells are missing, and values come in few steps" if maybe else "")
    if answered:
        return Look("categories", ("counts", *maybe), f"there are {answered} different whole numbers, and no 0")
    maybe = (*maybe, "categories") if in_steps and len(found) <= _LARGEST else maybe
    why = f"there are {len(found)} different whole numbers, and no 0" if maybe else ""
    if data.num_features >= _WORDS:
        return Look("documents", ("counts", *maybe), why)
    return Look("counts", ("documents", *maybe), why)


def _answers(data: Data) -> int:
    """How many different answers there are, few and none of them 0; 0 where these are no answers.

    Columns without two equal entries number the rows, and say nothing of the others.
    """
    observed = data.observed
    kept = [
        column[seen].unique()
        for column, seen in zip(data.x.T, observed.T, strict=True)
        if len(data) < _NUMBERED or len(column[seen].unique()) < len(data)
    ]
    found = torch.cat(kept).unique() if kept else data.x.new_empty(0)
    few = 2 < len(found) <= _ANSWERS and float(found.min()) > 0 and float(found.max()) <= _LARGEST
    return len(found) if few else 0


def _of_bits(data: Data) -> Look:
    """Rows of 0/1 entries, or the adjacency matrix of a graph."""
    if data.x.ndim != 2 or not (len(data) == data.x.shape[1] >= _FEW) or data.mask is not None:
        return Look("binary")
    matrix: Any = sparse.to_scipy(data.x) if data.is_sparse else data.x.cpu().numpy()
    if np.any(matrix.diagonal()) or not matrix.sum():
        return Look("binary")
    differs = matrix != matrix.T
    if differs.sum():
        return Look("binary", ("graph",), "it is a square with an empty diagonal")
    return Look("graph", ("binary",), "it is a symmetric square of 0/1 with an empty diagonal")
