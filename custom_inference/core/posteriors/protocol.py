"""The protocol of posteriors over the local latents.

Draws are made on the CPU, whatever device a posterior is on: the same seed gives the same values on every device.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, ClassVar, NamedTuple, Self, get_type_hints

import numpy as np
import torch
from scipy.special import betaincinv, ndtri
from torch import Tensor
from torch.distributions import constraints
from torch.distributions.constraints import Constraint

from ppl_models import CapacityError, MethodError

#: Draws that variances without a closed form are estimated by, and averages.
_DRAWS_OF_VARIANCE, _AVERAGED = 2000, 200


class _LogWeights(Constraint):
    """Logarithms of probabilities along the last axis; some may be 0."""

    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        return value.logsumexp(-1).abs() < 1e-3  # of NaN false


class _Covariances(Constraint):
    """Symmetric positive definite matrices, up to rounding of those that nearly are singular."""

    event_dim = 2

    def check(self, value: Tensor) -> Tensor:
        variance = value.diagonal(dim1=-2, dim2=-1)
        raised = value + 1e-6 * torch.diag_embed(variance)
        symmetric = ((value - value.mT).abs() <= 1e-3 * variance.amax(-1)[..., None, None]).all(-1).all(-1)
        return symmetric & (variance > 0).all(-1) & (torch.linalg.cholesky_ex(raised).info == 0)


#: What an annotation may say of the values of a field.
DOMAINS: dict[str, Constraint] = {
    "positive": constraints.positive, "nonnegative": constraints.nonnegative, "boolean": constraints.boolean,
    "unit_interval": constraints.unit_interval, "nonnegative_integer": constraints.nonnegative_integer,
    "positive_integer": constraints.positive_integer, "log_weights": _LogWeights(), "covariances": _Covariances(),
    "real": constraints.real,
}  # fmt: skip


class WeightedValues(NamedTuple):
    """Values of the latents that stand for a posterior: (C, K) of all rows or (N, C, K), and their weights (N, C).

    drawn: whether means over them are estimates, rather than sums or integrals.
    """

    value: Tensor
    weight: Tensor
    drawn: bool


class LocalPosterior(abc.ABC):
    """q(s_n) for every row n; rows are independent, unless ``joint``.

    A frozen dataclass of tensors, each annotated with its axes: "*" for those of the mean, "n" and "k" for the first
    and the last of these, "j" for one less than the last, other letters for sizes of their own, the same in all
    fields; "|" between alternatives.
    Where not every finite number may stand there, the name of a domain follows.
    """

    #: Whether the rows (the nodes of a graph) depend on each other: ``log_prob`` is then that of all of them, (1,).
    joint: ClassVar[bool] = False
    #: Whether all posteriors of a fit's globals that say so depend on each other: the same seed gives a joint draw.
    drawn_together: ClassVar[bool] = False
    #: Whether a saved fit may hold it: not what is more than tensors, and is made anew of the globals and the data.
    stored: ClassVar[bool] = True
    #: Whether it has a density, rather than probabilities of values; and all its mass on one value of each row.
    continuous: ClassVar[bool] = False
    is_point: ClassVar[bool] = False
    #: Whether finite values are few enough for ``table``; of others ``divergence_from`` is asked.
    tabulated: ClassVar[bool] = True
    #: Whether it lists labelings of all nodes of a graph.
    lists_labels: ClassVar[bool] = False

    @property
    def shared(self) -> bool:
        """Whether it is a table over the same codes for all rows."""
        return False

    def is_kept(self, *, exact: bool, by_engine: bool) -> bool:
        """Whether a saved fit holds it: not what is large, and cheap to compute again.

        exact: whether the fit's bound is the evidence. by_engine: whether an engine of the model gives it.
        """
        del exact, by_engine
        return self.stored

    def log_prob_of_labels(self, labels: Tensor) -> Tensor:
        """Return the log-probabilities (C,) of labelings (C, N), all different."""
        raise MethodError(f"no divergence between labelings and a {type(self).__name__}")

    @classmethod
    @functools.cache
    def layout(cls) -> dict[str, str]:
        """Field -> its axes: what a file must hold to be read as one."""
        return {name: marks[0] for name, marks in cls._annotations().items()}

    @classmethod
    @functools.cache
    def domain(cls) -> dict[str, str]:
        """Field -> the name of its domain in ``DOMAINS``."""
        return {name: (*marks, "real")[1] for name, marks in cls._annotations().items()}

    @classmethod
    def _annotations(cls) -> dict[str, tuple[Any, ...]]:
        made: Any = cls
        hints = get_type_hints(cls, include_extras=True)
        found = {one.name: getattr(hints[one.name], "__metadata__", None) for one in fields(made)}
        return {name: marks for name, marks in found.items() if marks is not None}

    @property
    @abc.abstractmethod
    def mean(self) -> Tensor:
        """Posterior means, (N, K): of a binary code the marginals P(s_ni = 1)."""

    @property
    def variance(self) -> Tensor:
        """Posterior variances of the same entries: by default those of draws, an estimate."""
        return self.sample(_DRAWS_OF_VARIANCE).var(0)

    def quantiles(self, levels: Sequence[float]) -> Tensor:
        """Return quantiles of every entry by itself, (len(levels), N, K): by default those of draws, an estimate."""
        drawn = self.sample(_DRAWS_OF_VARIANCE).detach().cpu().numpy()
        return torch.as_tensor(np.quantile(drawn, levels, axis=0)).to(self.mean)

    @property
    @abc.abstractmethod
    def mode(self) -> Tensor:
        """The most probable value of each row, (N, K)."""

    @property
    def noise_shape(self) -> tuple[int, ...]:
        """The shape of the numbers that a draw is made of."""
        return tuple(self.mean.shape)

    @abc.abstractmethod
    def sample(self, num_samples: int = 1, *, seed: int = 0) -> Tensor:
        """Values drawn independently per row, (num_samples, N, K)."""

    def sample_with_density(self, num_samples: int = 1, *, seed: int = 0) -> tuple[Tensor, Tensor]:
        """Draws, and log q of each: (num_samples, N), or (num_samples, 1) where the rows are drawn together."""
        draws = self.sample(num_samples, seed=seed)
        return draws, self.log_prob(draws)

    @abc.abstractmethod
    def log_prob(self, source: Tensor) -> Tensor:
        """log q(s_n = source_n), (N,)."""

    @abc.abstractmethod
    def table(self) -> tuple[Tensor, Tensor]:
        """Return all values (C, K) and their log-probabilities (N, C); only for latents of few values.

        Raises MethodError for continuous latents, CapacityError for codes of many bits.
        """

    def weigh_values(self, number: int, *, seed: int = 0) -> WeightedValues:
        """Return values that E[f(s_n)] is a weighted sum over: all that there are, or the nodes of a rule of
        integration, where the posterior has such; else ``number`` draws."""
        if not self.continuous and self.tabulated:
            try:
                value, log_weight = self.table()
                return WeightedValues(value, log_weight.exp(), False)
            except CapacityError:
                pass
        drawn = self.sample(number, seed=seed).transpose(0, 1)
        return WeightedValues(drawn, torch.full(drawn.shape[:2], 1 / number).to(drawn), True)

    def expect(self, value: Callable[[Tensor], Tensor], *, seed: int = 0) -> Tensor:
        """Return E[value(s_n)] of every row, (N,), of a function from (N, K) to (N,): by default an estimate, the mean
        over draws."""
        return torch.stack([value(one) for one in self.sample(_AVERAGED, seed=seed)]).mean(0)

    def divergence_from(self, q: LocalPosterior, *, seed: int = 0) -> Tensor:
        """Return KL(q || this) of every row, (N,), where this is not ``tabulated``.

        Raises MethodError where it has no way of its own.
        """
        del seed
        raise MethodError(f"no divergence of a {type(q).__name__} from a {type(self).__name__}")

    def to(self, device: torch.device | str) -> Self:
        """Move the posterior to another device; return itself if it is there already."""
        made: Any = self
        parts = {name: getattr(self, name) for name in self.layout()}
        if all(part.device == torch.device(device) for part in parts.values()):
            return self
        return replace(made, **{name: part.to(device) for name, part in parts.items()})

    def rows(self, index: Tensor | slice) -> LocalPosterior:
        """The posterior of some of the rows; where these depend on each other, their joint one."""
        made: Any = self
        return replace(made, **self._of_rows(index))

    def _of_rows(self, index: Tensor | slice) -> dict[str, Tensor]:
        """Select some rows of those of its tensors that have a row axis."""
        found: dict[str, Tensor] = {}
        for name, letters in self.layout().items():
            value: Tensor = getattr(self, name)
            options = letters.replace("*", "n").split("|")
            place = next((one for one in options if len(one) == value.ndim), options[0]).find("n")
            if place >= 0:
                found[name] = value[(slice(None),) * place + (index,)]
        return found


class ContinuousPosterior(LocalPosterior):
    """q(s_n) of every row n with a density; there is no table of values."""

    continuous = True

    @property
    def mode(self) -> Tensor:
        """The mode; by default the mean."""
        return self.mean

    def table(self) -> tuple[Tensor, Tensor]:
        raise MethodError("a continuous latent has no table of values; use sample and log_prob")


def beta_quantiles(on: Tensor, off: Tensor, levels: Sequence[float]) -> Tensor:
    """Return quantiles of Beta(on, off), (len(levels), ...): all mass is on 0 where ``on`` is 0, on 1 where ``off``."""
    a, b = (part.detach().double().cpu().numpy() for part in (on, off))
    inside = [betaincinv(np.where(a > 0, a, 1), np.where(b > 0, b, 1), level) for level in levels]
    return torch.as_tensor(np.where(a > 0, np.where(b > 0, np.stack(inside), 1.0), 0.0)).to(on)


def normal_quantiles(mean: Tensor, variance: Tensor, levels: Sequence[float]) -> Tensor:
    """Return quantiles of Normal(mean, variance), (len(levels), ...)."""
    return torch.stack([mean + float(ndtri(level)) * variance.sqrt() for level in levels])


def draw_slots(log_weight: Tensor, num_samples: int, generator: torch.Generator) -> Tensor:
    """Places drawn by their weights (N, C) or (C,): (N, num_samples) or (num_samples,)."""
    slot = torch.multinomial(log_weight.exp().cpu(), num_samples, replacement=True, generator=generator)
    return slot.to(log_weight.device)
