"""Laws of elements: their parameters as one vector, and log p as a product of features of a value and natural
parameters,

    log p(x | parameters) = sum_f features_f(x) natural_f(parameters) + base(x),

of exponential families by their formulas, of any other law with one feature for each of few values. Parameters are
clamped as torch's distributions clamp them, so that a factor is the program's own number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

#: What is said of a parameter: the part that entries play as it, and its counts, (...) each, of proportions (..., P).
Said = tuple[str, tuple[Tensor, ...]]
#: What is summed for entries in every part but the linear one.
COUNTED = {
    "chance": ("on", "off"), "proportion": ("count",), "rate": ("events", "exposure"), "place": ("pull", "precision"),
    "spread": ("squares", "number"),
}  # fmt: skip
#: A logarithm of nothing: a finite number, so that it times a count of 0 is 0.
NOTHING = -1e30


def safe_log(value: Tensor) -> Tensor:
    """Return logarithms, ``NOTHING`` in place of minus infinity."""
    return torch.log(value).clamp(min=NOTHING)


@dataclass(frozen=True)
class Law:
    """The law of an element: a class of distributions, and which numbers it is made by.

    kind: the class. names, sizes: its parameters, and how many numbers each is; a size of 0 is a plain number.
    """

    kind: type
    names: tuple[str, ...]
    sizes: tuple[int, ...]

    #: The parts that entries play as its parameters, by name, where these have counts (``counts``).
    kinds: ClassVar[Mapping[str, str]] = {}
    #: Whether values come with a number of trials of each.
    has_trials: ClassVar[bool] = False
    #: What a missing value is replaced by, where features must be finite.
    inside: ClassVar[float] = 0.0
    #: Whether features do not depend on which values there are.
    exponential: ClassVar[bool] = False

    @property
    def width(self) -> int:
        """How many numbers the parameters are."""
        return sum(max(size, 1) for size in self.sizes)

    def split(self, parameters: Tensor) -> dict[str, Tensor]:
        """Return the parameters (..., P) by name."""
        parts = parameters.split([max(size, 1) for size in self.sizes], -1)
        return {n: part if size else part[..., 0] for n, size, part in zip(self.names, self.sizes, parts, strict=True)}

    def log_prob(self, parameters: Tensor, value: Tensor) -> Tensor:
        """Evaluate the law at values that broadcast against the leading axes of the parameters (..., P)."""
        made: Any = self.kind(**self.split(parameters), validate_args=False)
        return made.log_prob(value)

    def say(self, counted: Tensor, parameters: Tensor) -> dict[str, Said]:
        """Return what expected features (..., F) say of every parameter (..., P) that has counts, by name."""
        del parameters
        return {name: (kind, tuple(counted.unbind(-1))) for name, kind in self.kinds.items()}

    #: Whether tables are made of values, which features that cancel would round.
    by_value: ClassVar[bool] = False

    def evaluate(self, parameters: Tensor, features: Tensor) -> Tensor:
        """Evaluate log p from parameters (..., P) and features (..., F) that broadcast, without ``base``."""
        return (self.natural(parameters) * features).sum(-1)

    def find_unknown(self, value: Tensor) -> Tensor:
        """Tell which values are not among those that there are features for."""
        return torch.zeros_like(value, dtype=torch.bool)

    def features(self, value: Tensor) -> Tensor:
        """Return the features (..., F) of values (...)."""
        raise NotImplementedError

    def natural(self, parameters: Tensor) -> Tensor:
        """Return the natural parameters (..., F)."""
        raise NotImplementedError

    def base(self, value: Tensor) -> Tensor:
        """Return what log p adds that no parameter changes."""
        return torch.zeros_like(value)


class Exponential(Law):
    """A law whose log density is linear in a few features of the value, whatever these are."""

    exponential = True


class BernoulliLaw(Exponential):
    """Features: x, 1 - x."""

    kinds: ClassVar[Mapping[str, str]] = {"probs": "chance"}

    def features(self, value: Tensor) -> Tensor:
        return torch.stack([value, 1 - value], -1)

    def natural(self, parameters: Tensor) -> Tensor:
        given = parameters[..., 0]
        if self.names == ("logits",):
            log = torch.nn.functional.logsigmoid
            return torch.stack([log(given), log(-given)], -1)
        probs = clamp_off(given)
        return torch.stack([torch.log(probs), torch.log1p(-probs)], -1)


class GeometricLaw(BernoulliLaw):
    """The number of failures before a success. Features: 1, x."""

    def features(self, value: Tensor) -> Tensor:
        return torch.stack([torch.ones_like(value), value], -1)


class BinomialLaw(BernoulliLaw):
    """Successes of a number of trials that rows give. Features: x, n - x; values are pairs (x, n)."""

    has_trials = True

    def features(self, value: Tensor) -> Tensor:
        return torch.stack([value[..., 0], value[..., 1] - value[..., 0]], -1)

    def base(self, value: Tensor) -> Tensor:
        x, n = value.unbind(-1)
        return torch.lgamma(n + 1) - torch.lgamma(x + 1) - torch.lgamma(n - x + 1)


class CategoricalLaw(Exponential):
    """Features: one for each category."""

    kinds: ClassVar[Mapping[str, str]] = {"probs": "proportion"}

    def say(self, counted: Tensor, parameters: Tensor) -> dict[str, Said]:
        del parameters
        return {"probs": ("proportion", (counted,))}

    def features(self, value: Tensor) -> Tensor:
        size = self.sizes[0]
        return torch.nn.functional.one_hot(value.long().clamp(0, size - 1), size).to(value)

    def natural(self, parameters: Tensor) -> Tensor:
        if self.names == ("logits",):
            return torch.log_softmax(parameters, -1)
        return torch.log(clamp_off(parameters / parameters.sum(-1, keepdim=True)))


class SignsLaw(CategoricalLaw):
    """Features: whether it is -1, 0, 1."""

    def features(self, value: Tensor) -> Tensor:
        return super().features(value + 1)


class MultinomialLaw(CategoricalLaw):
    """Counts of categories. Features: the counts; values are vectors."""

    def features(self, value: Tensor) -> Tensor:
        return value

    def base(self, value: Tensor) -> Tensor:
        return torch.lgamma(value.sum(-1) + 1) - torch.lgamma(value + 1).sum(-1)


class TokensLaw(MultinomialLaw):
    """Counts of categories, of draws in their order: without the number of orders."""

    def base(self, value: Tensor) -> Tensor:
        return torch.zeros_like(value[..., 0])


class PoissonLaw(Exponential):
    """Features: x, 1."""

    kinds: ClassVar[Mapping[str, str]] = {"rate": "rate"}

    def features(self, value: Tensor) -> Tensor:
        return torch.stack([value, torch.ones_like(value)], -1)

    def natural(self, parameters: Tensor) -> Tensor:
        rate = parameters[..., 0]
        return torch.stack([safe_log(rate), -rate], -1)

    def base(self, value: Tensor) -> Tensor:
        return -torch.lgamma(value + 1)


class ExponentialLaw(Exponential):
    """Waiting times. Features: 1, x."""

    kinds: ClassVar[Mapping[str, str]] = {"rate": "rate"}

    def features(self, value: Tensor) -> Tensor:
        return torch.stack([torch.ones_like(value), value], -1)

    def natural(self, parameters: Tensor) -> Tensor:
        rate = parameters[..., 0]
        return torch.stack([safe_log(rate), -rate], -1)


class NormalLaw(Exponential):
    """Features: x^2, x, 1."""

    kinds: ClassVar[Mapping[str, str]] = {"loc": "place", "scale": "spread"}

    by_value = True

    def evaluate(self, parameters: Tensor, features: Tensor) -> Tensor:
        """Evaluate log p; a third parameter is what is added to it (``moments``)."""
        loc, scale, *beside = parameters.unbind(-1)
        _, value, seen = features.unbind(-1)
        apart = (value - loc) / scale
        density = 0.5 * apart.square() + torch.log(scale) + 0.5 * math.log(2 * math.pi)
        return -seen * (density - beside[0] if beside else density)

    def say(self, counted: Tensor, parameters: Tensor) -> dict[str, Said]:
        squares, sums, number = counted.unbind(-1)
        loc, scale = parameters.unbind(-1)
        apart = (squares - 2 * loc * sums + loc.square() * number).clamp(min=0)
        return {"loc": ("place", (sums, number, scale**-2)), "scale": ("spread", (apart, number))}

    def features(self, value: Tensor) -> Tensor:
        return torch.stack([value.square(), value, torch.ones_like(value)], -1)

    def natural(self, parameters: Tensor) -> Tensor:
        loc, scale = parameters.unbind(-1)
        precision = scale**-2
        constant = -0.5 * loc.square() * precision - torch.log(scale) - 0.5 * math.log(2 * math.pi)
        return torch.stack([-0.5 * precision, loc * precision, constant], -1)


class GammaLaw(Exponential):
    """Features: x, log x, 1."""

    inside = 0.5

    def features(self, value: Tensor) -> Tensor:
        return torch.stack([value, torch.log(value), torch.ones_like(value)], -1)

    def natural(self, parameters: Tensor) -> Tensor:
        shape, rate = parameters.unbind(-1)
        return torch.stack([-rate, shape - 1, torch.xlogy(shape, rate) - torch.lgamma(shape)], -1)


class BetaLaw(Exponential):
    """Features: log x, log(1 - x), 1."""

    inside = 0.5

    def features(self, value: Tensor) -> Tensor:
        return torch.stack([torch.log(value), torch.log1p(-value), torch.ones_like(value)], -1)

    def natural(self, parameters: Tensor) -> Tensor:
        on, off = parameters.unbind(-1)
        constant = torch.lgamma(on + off) - torch.lgamma(on) - torch.lgamma(off)
        return torch.stack([on - 1, off - 1, constant], -1)


class FactorLaw(Exponential):
    """A term that the program adds to the log joint by ``pyro.factor``: its only parameter. Feature: 1."""

    def features(self, value: Tensor) -> Tensor:
        return torch.ones_like(value).unsqueeze(-1)

    def natural(self, parameters: Tensor) -> Tensor:
        return parameters


@dataclass(frozen=True)
class TabulatedLaw(Law):
    """Any other law of few values, each of which is a feature.

    values: (V,), all that there are.
    """

    values: Tensor = field(default_factory=lambda: torch.empty(0))

    exponential = True

    def find_unknown(self, value: Tensor) -> Tensor:
        return ~torch.isin(value, self.values.to(value))

    def features(self, value: Tensor) -> Tensor:
        return (value.unsqueeze(-1) == self.values.to(value)).to(value)

    def natural(self, parameters: Tensor) -> Tensor:
        values = self.values.to(parameters)
        found = self.log_prob(parameters.unsqueeze(-2), values)
        return torch.where(found > NOTHING, found, NOTHING)  # of NaN, beyond a support, too


def clamp_off(probs: Tensor) -> Tensor:
    """Keep probabilities off 0 and 1, as torch's distributions do."""
    eps = torch.finfo(probs.dtype).eps
    return probs.clamp(eps, 1 - eps)


class ZeroInflatedPoissonLaw(Exponential):
    """Counts that are 0 with probability ``gate``, else Poisson. Features: [x = 0], x, [x > 0]."""

    kinds: ClassVar[Mapping[str, str]] = {"rate": "rate", "gate": "chance"}

    def say(self, counted: Tensor, parameters: Tensor) -> dict[str, Said]:
        """Return the counts by the expected number of zeros in excess of the Poisson's."""
        zero, events, rest = counted.unbind(-1)
        rate, gate = parameters.unbind(-1)
        gate = clamp_off(gate)
        excess = zero * gate / (gate + (1 - gate) * torch.exp(-rate))
        return {"rate": ("rate", (events, zero - excess + rest)), "gate": ("chance", (excess, zero - excess + rest))}

    def features(self, value: Tensor) -> Tensor:
        zero = (value == 0).to(value)
        return torch.stack([zero, value, 1 - zero], -1)

    def natural(self, parameters: Tensor) -> Tensor:
        rate, gate = parameters.unbind(-1)
        gate = clamp_off(gate)
        zero = torch.logaddexp(torch.log(gate), torch.log1p(-gate) - rate)
        return torch.stack([zero, safe_log(rate), torch.log1p(-gate) - rate], -1)

    def base(self, value: Tensor) -> Tensor:
        return -torch.lgamma(value + 1)
