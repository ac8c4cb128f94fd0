"""What every posterior over the local latents provides.

Draws are made on the CPU, whatever device a posterior is on: the same seed gives the same values on every device.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

#: Field -> the axes of its tensor: "*" for those of the mean, "n" and "k" for the first and the last of these, other
#: letters for sizes of their own, the same in all fields; "|" between alternatives.
Layout = dict[str, str]


class LocalPosterior(abc.ABC):
    """q(s_n) for every row n; rows are independent, unless ``joint``."""

    #: Whether the rows (the nodes of a graph) depend on each other: ``log_prob`` is then that of all of them, (1,).
    joint: ClassVar[bool] = False
    #: The tensors that it consists of: what a file must hold to be read as one.
    layout: ClassVar[Layout] = {}

    @property
    @abc.abstractmethod
    def mean(self) -> Tensor:
        """Posterior means, (N, K): of a binary code the marginals P(s_ni = 1)."""

    @property
    @abc.abstractmethod
    def mode(self) -> Tensor:
        """The most probable value of each row, (N, K)."""

    @abc.abstractmethod
    def sample(self, num_samples: int = 1, *, seed: int = 0) -> Tensor:
        """Values drawn independently per row, (num_samples, N, K)."""

    def to(self, device: torch.device | str) -> Self:
        """The same posterior on another device; itself where it is there already."""
        made: Any = self  # a dataclass
        parts: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(made)}
        if all(part.device == torch.device(device) for part in parts.values()):
            return self
        return replace(made, **{name: part.to(device) for name, part in parts.items()})

    @abc.abstractmethod
    def log_prob(self, source: Tensor) -> Tensor:
        """log q(s_n = source_n), (N,)."""

    @abc.abstractmethod
    def rows(self, index: Tensor | slice) -> LocalPosterior:
        """The posterior of some of the rows."""

    @abc.abstractmethod
    def table(self) -> tuple[Tensor, Tensor]:
        """All values (C, K) and their log-probabilities (N, C); only for latents of few values.

        Raises MethodError for continuous latents, CapacityError for codes of many bits.
        """


def draw_slots(log_weight: Tensor, num_samples: int, generator: torch.Generator) -> Tensor:
    """Places drawn by their weights (N, C) or (C,): (N, num_samples) or (num_samples,)."""
    slot = torch.multinomial(log_weight.exp().cpu(), num_samples, replacement=True, generator=generator)
    return slot.to(log_weight.device)


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """A random state of the CPU's own for what takes no generator; no other device's is touched."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
