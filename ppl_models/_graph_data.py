"""One door for graphs (the data type, and a first reader of matrices)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ppl_models import _sparse
from ppl_models._data import Data, as_matrix


@dataclass(frozen=True, kw_only=True)
class GraphData(Data):
    """A graph: x (N, N) CSR; hidden (2, M) dyads that were not observed."""

    hidden: Tensor | None = None
    directed: bool = True

    def dense(self) -> Data:
        x, mask = _sparse.dense(self.x), None
        if self.hidden is not None:
            mask = torch.ones(x.shape, dtype=torch.bool)
            mask[self.hidden[0], self.hidden[1]] = False
            if not self.directed:
                mask[self.hidden[1], self.hidden[0]] = False
        return Data(x=x, mask=mask, coords=self.coords)


def as_graph(
    data: Any,
    *,
    mask: Any = None,
    num_nodes: int | None = None,
    directed: bool | None = None,
    self_loops: bool = False,
    kind: str = "binary",
    site: str = "x",
    dtype: torch.dtype | None = None,
    device: Any = None,
) -> GraphData:
    """A matrix as a graph."""
    del num_nodes, kind, site
    if isinstance(data, GraphData):
        return replace(data, x=data.x.to(dtype=dtype, device=device))
    matrix = as_matrix(data, mask=mask, dtype=dtype or torch.get_default_dtype())
    x, hidden = matrix.x.clone(), None
    if not self_loops:
        x.fill_diagonal_(0)
    if matrix.mask is not None:
        i, j = (~matrix.mask).nonzero().T
        keep = (i != j) if directed else (i < j)
        hidden = torch.stack([i[keep], j[keep]])
        x = torch.where(matrix.mask, x, torch.zeros_like(x))
    return GraphData(x=_sparse.from_dense(x), hidden=hidden, directed=bool(directed), coords=matrix.coords)


def check_graph_for_fitting(data: Data, *, site: str = "x") -> None:
    """Nothing is refused yet."""
