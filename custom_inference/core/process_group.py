"""The processes that work on one fit together, as the driver and the steps see them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

Item = TypeVar("Item", list[Any], Tensor)
Result = TypeVar("Result")


class Pool:
    """The group of a single process; ``distributed`` has the one of several.

    Every process calls the same methods in the same order; what they return is the same in all of them, to the bit, so
    that all take the same decisions.
    """

    rank: int = 0
    size: int = 1

    def total(self, *values: Tensor) -> tuple[Tensor, ...]:
        """The sums over the processes of tensors that have the same shapes in all of them."""
        return values

    def count(self, number: float) -> float:
        """The sum over the processes of a number."""
        if self.size == 1:
            return number
        return float(self.total(torch.tensor(float(number), dtype=torch.float64))[0])

    def shard(self, items: Item) -> Item:
        """This process's part of work that is listed (a list, a tensor): every ``size``-th item."""
        return items if self.size == 1 else items[self.rank :: self.size]

    def split(self, length: int) -> slice:
        """This process's part of ``length`` rows: consecutive ones, as many as the others have, or one more."""
        return slice(length * self.rank // self.size, length * (self.rank + 1) // self.size)

    def from_first(self, make: Callable[[], Result]) -> Result:
        """Return in all processes what the first one makes; errors of this suite are passed on too."""
        return make()

    def all_of(self, value: Any) -> list[Any]:
        """Return in all processes what each of them has."""
        return [value]

    def report(self) -> dict[str, float]:
        """What adding up took, for the details of a fit."""
        return {}

    def wait(self) -> None:
        """Until every process has come this far."""


#: What steps have unless they are told otherwise.
ALONE = Pool()
