"""Rows as dataclasses of tensors: choosing some, changing their type, and adding up what blocks of them give."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from custom_inference.core.engine import EStep
from ppl_models.data import sparse


@dataclass(frozen=True)
class Rows:
    """Observations as an engine reads them: the first axis of every tensor is the rows; other fields are settings.

    The first field is the data; a tensor in torch's CSR layout is chosen from as a dense one is.
    """

    #: Tensors that belong to all rows together, not to one each.
    shared: ClassVar[tuple[str, ...]] = ()

    @property
    def like(self) -> Tensor:
        """A tensor with the data's dtype and device."""
        return getattr(self, fields(self)[0].name)

    def __len__(self) -> int:
        return getattr(self, fields(self)[0].name).shape[0]

    def select(self, index: Tensor | slice) -> Self:
        """Return the chosen rows."""
        return self._change(lambda value: sparse.select_rows(value, index), self.shared)

    def to(self, dtype: torch.dtype) -> Self:
        """Return the rows with numbers of another type; counts of places and masks stay as they are."""
        if dtype == self.like.dtype:
            return self
        return self._change(lambda value: value.to(dtype) if value.is_floating_point() else value)

    def _change(self, change: Callable[[Tensor], Tensor], kept: tuple[str, ...] = ()) -> Self:
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in kept}
        return replace(self, **{k: change(v) for k, v in values.items() if isinstance(v, Tensor)})


def add_statistics(total: Mapping[str, Tensor], more: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Add statistics to those so far, which may be none."""
    return {name: total[name] + value if name in total else value for name, value in more.items()}


class BlockSteps:
    """E steps of consecutive blocks of rows, put together: statistics are added up, the rest is side by side."""

    def __init__(self) -> None:
        self.statistics: dict[str, Tensor] = {}
        self._locals: list[Mapping[str, Tensor]] = []
        self._bounds: list[Tensor] = []

    def add(self, statistics: Mapping[str, Tensor], bound: Tensor, **locals_: Tensor) -> None:
        """Take in a block's statistics, its bound (rows,), and what is kept of its rows."""
        self.statistics = add_statistics(self.statistics, statistics)
        self._bounds.append(bound)
        self._locals.append(locals_)

    def join(self) -> EStep:
        """Return the E step of all rows."""
        locals_ = {name: torch.cat([one[name] for one in self._locals]) for name in self._locals[0]}
        return EStep(self.statistics, locals_, torch.cat(self._bounds))
