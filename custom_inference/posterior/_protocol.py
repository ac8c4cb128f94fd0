"""What every posterior over the local latents provides."""

from __future__ import annotations

import abc
from typing import ClassVar

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
