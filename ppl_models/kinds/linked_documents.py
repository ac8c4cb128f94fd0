"""Models of documents with links between them: pairs, matrices or graphs beside the words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from ppl_models.core.document_model import DocumentModel
from ppl_models.core.errors import DataError, ModelError
from ppl_models.core.row_models import RowsBeside
from ppl_models.data import sparse as _sparse
from ppl_models.data.covariates import beside, places_beside
from ppl_models.data.graphs.data import GraphData
from ppl_models.data.graphs.door import graph
from ppl_models.data.held import MatrixLike
from ppl_models.data.matrix import Data

#: What stands for a pair of documents of which it is not known whether they are linked.
UNKNOWN = -1.0


@dataclass(frozen=True, kw_only=True, eq=False)
class LinkedDocuments(RowsBeside, DocumentModel):
    """A topic model of documents with ``links`` (N, N) between them, symmetric unless ``directed``."""

    directed: bool = False

    beside_site: ClassVar[str] = "links"

    @property
    def most_links(self) -> float:
        """The largest number that stands for a pair of documents."""
        return torch.inf

    def rows_of(self, given: Mapping[str, Any]) -> dict[str, int]:
        """Return ``num_rows``; where links are a value for each pair, the documents that have so many pairs."""
        links = given.get("links")
        if torch.is_tensor(links) and links.ndim == 1:
            pairs = len(links) if self.directed else 2 * len(links)
            size = (1 + math.isqrt(1 + 4 * pairs)) // 2
            if size * (size - 1) != pairs:
                raise ModelError(f"{len(links)} values of 'links', expected one for every pair of documents")
            given = {**given, "links": links.new_empty(size)}
        return super().rows_of(given)

    def read_beside(self, given: MatrixLike, data: Data, names: list[Any] | None) -> Data:
        """Read the links between the documents. Raises DataError for anything else."""
        del names
        found = _matrix(given, data, self.directed)
        values = _sparse.stored(found)
        wrong = (values != values.round()) | (values < UNKNOWN) | (values > self.most_links)
        if bool(wrong.any()):
            expected = "0 or 1" if self.most_links == 1 else "whole numbers of at least 0"
            raise DataError(f"{int(wrong.sum())} values such as {float(values[wrong][0]):g}", expected=expected)
        among = ("links",) if found.shape[0] == found.shape[1] else ()
        return replace(data, others={"links": found}, between=among)

    def check_for_fitting(self, data: Data) -> None:
        """Refuse what LDA refuses, and data without any link."""
        super().check_for_fitting(data)
        links = data.others.get("links")
        if links is None or not bool((_sparse.stored(links) > 0).any()):
            raise DataError("no links", site="links", expected="fit(model, words, links=...), pairs of documents")
        if links.shape[0] != links.shape[1]:
            raise DataError(f"shape {tuple(links.shape)}", site="links", expected="links between the documents")

    @classmethod
    def for_data(cls, data: Data, num_components: int, **settings: Any) -> Self:
        """Return the model of as many words as the data, whose links are directed where those of a graph are."""
        links: Any = data.others.get("links")
        settings.setdefault("directed", getattr(links, "directed", False))
        return super().for_data(data, num_components, **settings)


def all_pairs(size: int, directed: bool) -> Tensor:
    """Return the pairs (2, P) i < j, or i != j, row by row."""
    if not directed:
        return torch.triu_indices(size, size, 1)
    return (torch.ones(size, size) - torch.eye(size)).nonzero().T


def of_pairs(value: Tensor, size: int, directed: bool) -> Tensor:
    """Return the matrix (N, N) of values of all pairs."""
    i, j = all_pairs(size, directed).to(value.device)
    found = value.new_zeros(size, size)
    found[i, j] = value
    return found if directed else found + found.T


def _matrix(given: MatrixLike, data: Data, directed: bool) -> Tensor:
    """Return links as a matrix, dense or CSR, with -1 for what is unknown; rows are the data's documents."""
    like, size = data.x, len(data)
    made: GraphData | None = given if isinstance(given, GraphData) else None
    held: Any = given
    shape: tuple[int, ...] = () if made is not None else tuple(np.shape(held))
    if torch.is_tensor(given) and given.ndim == 1:
        if len(given) != all_pairs(size, directed).shape[1]:
            raise DataError(f"{len(given)} values for the pairs of {size} documents", expected="one for every pair")
        found = of_pairs(given.to(like), size, directed)
    elif _sparse.is_matrix(given):
        found = _sparse.from_scipy(_sparse.scipy_of(given), dtype=like.dtype, device=like.device)
    elif shape == (size, size) != (2, 2) or (len(shape) == 2 and shape[1] > 3):
        found = beside(given, data).nan_to_num(nan=UNKNOWN)
        order = places_beside(given, data.coords.get("row"), place=1) if shape == (size, size) else None
        found = found if order is None else found[:, torch.as_tensor(order, device=like.device)]
    else:
        names = data.coords.get("row", size)
        pairs = len(shape) == 2 and shape[1] in (2, 3)
        source: Any = {"edges": given} if pairs else {"source": given}
        made = made or graph(**source, directed=directed, nodes=names)
        matrix: Any = _sparse.to_scipy(made.x).tolil()
        if made.hidden is not None:
            i, j = made.hidden.cpu().numpy()
            matrix[i, j] = UNKNOWN
            if not made.directed:
                matrix[j, i] = UNKNOWN
        found = _sparse.from_scipy(matrix.tocsr(), dtype=like.dtype, device=like.device)
    if found.ndim != 2 or found.shape[0] != size:
        raise DataError(f"shape {tuple(found.shape)}", expected=f"({size}, {size}), or pairs of the {size} documents")
    if found.shape[0] == found.shape[1] and not directed:
        part: Any = _sparse.to_scipy(found) if _sparse.is_sparse(found) else found.cpu().numpy()
        if abs(part - part.T).max() > 0:
            raise DataError("links that differ by direction", expected="a symmetric matrix, or directed=True")
    return found
