"""Several data: whether two hold the same, and the rows of all, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import scipy.sparse
import torch

from ppl_models.data import sparse
from ppl_models.data.matrix import Data


def same_data(one: Data, other: Data) -> bool:
    """Whether two hold the same entries, observed or missing alike, and the same of what is beside them."""
    if one is other:
        return True
    if type(one) is not type(other) or one.x.shape != other.x.shape or one.x.dtype != other.x.dtype:
        return False
    if one.is_sparse != other.is_sparse:
        one, other = one.dense(), other.dense()
    first, second = one.parts(), other.parts()
    return first.keys() == second.keys() and all(_same(first[name], second[name]) for name in first)


def _same(one: Any, other: Any) -> bool:
    if not (torch.is_tensor(one) and torch.is_tensor(other)):
        return type(one) is type(other) and one == other
    if sparse.is_sparse(one):
        pairs = zip(sparse.triplets(one), sparse.triplets(other), strict=True)
        return all(len(a) == len(b) and torch.equal(a, b) for a, b in pairs)
    return one.shape == other.shape and torch.equal(one, other)


def concatenate(parts: Sequence[Data]) -> Data:
    """The rows of all, one after the other, with the labels that the first has of the columns."""
    masks = None
    if any(part.mask is not None for part in parts):
        parts = [part.dense() for part in parts]
        masks = [part.observed for part in parts]
    if all(part.is_sparse for part in parts):
        stacked: Any = scipy.sparse.vstack([sparse.to_scipy(part.x) for part in parts], format="csr")
        x = sparse.from_scipy(stacked, dtype=parts[0].x.dtype, device=parts[0].x.device)
    else:
        x = torch.cat([part.dense().x for part in parts])
    coords = {axis: labels for axis, labels in parts[0].coords.items() if axis != "row"}
    others = {name: torch.cat([part.others[name] for part in parts]) for name in parts[0].others}
    return Data(x=x, mask=None if masks is None else torch.cat(masks), coords=coords, others=others)
