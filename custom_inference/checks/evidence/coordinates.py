"""Globals in unconstrained coordinates in which their priors are smooth, can be drawn from, and are normalised.

Stick-breaking of a Dirichlet with small concentrations loses all digits of the last proportions, and a Gamma of shape
.1 has draws of 1e-80. In logarithms of independent Gamma variables neither happens, and no label stands out:

    simplex    p_k = e^(u_k) / sum_j e^(u_j),     e^(u_k) ~ Gamma(a_k, 1)      p ~ Dirichlet(a), the sum independent
    rate       lambda = e^u / b,                  e^u ~ Gamma(a, 1)
    chance     p = 1 / (1 + e^(-u)),              u = log G_a - log G_b, Gamma variables of shapes a and b

A simplex of K has K coordinates: their sum over-parametrises the model, which p(x) does not depend on. All other
priors have the coordinates of ``torch.distributions.biject_to``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Distribution, biject_to

from custom_inference.core.isolation import seed_of
from ppl_models import Data, Model, PriorError
from ppl_models.core.hierarchy import typical_values
from ppl_models.core.priors import element_of
from ppl_models.distributions import Flat


class Coordinate(NamedTuple):
    """One kind of site. draw: (prior, generator) -> u. log_density: (prior, u) -> log density of u, (). value: of u."""

    draw: Callable[[Distribution, torch.Generator], Tensor]
    log_density: Callable[[Distribution, Tensor], Tensor]
    value: Callable[[Distribution, Tensor], Tensor]


def _log_gamma(shape: Tensor, generator: torch.Generator) -> Tensor:
    """Draw the logarithm of a Gamma(shape, 1) variable, however small: G_a = G_(a + 1) U^(1 / a)."""
    boosted = torch._standard_gamma(shape + 1, generator=generator).log()
    uniform = torch.rand(shape.shape, generator=generator, dtype=shape.dtype)
    return boosted + (1 - uniform).log() / shape


def _log_gamma_density(shape: Tensor, u: Tensor) -> Tensor:
    return (shape * u - u.exp() - torch.lgamma(shape)).sum()


def _parameters(prior: Distribution, *names: str) -> tuple[Tensor, ...]:
    """The parameters of one element, expanded to the site."""
    element: Any = element_of(prior)
    return tuple(getattr(element, name) for name in names)


def _draw_simplex(prior: Distribution, generator: torch.Generator) -> Tensor:
    (concentration,) = _parameters(prior, "concentration")
    return _log_gamma(concentration, generator)


def _draw_rate(prior: Distribution, generator: torch.Generator) -> Tensor:
    shape, rate = _parameters(prior, "concentration", "rate")
    return _log_gamma(shape, generator) - rate.log()


def _rate_density(prior: Distribution, u: Tensor) -> Tensor:
    shape, rate = _parameters(prior, "concentration", "rate")
    return _log_gamma_density(shape, u + rate.log())


def _draw_chance(prior: Distribution, generator: torch.Generator) -> Tensor:
    on, off = _parameters(prior, "concentration1", "concentration0")
    return _log_gamma(on, generator) - _log_gamma(off, generator)


def _chance_density(prior: Distribution, u: Tensor) -> Tensor:
    on, off = _parameters(prior, "concentration1", "concentration0")
    normaliser = torch.lgamma(on + off) - torch.lgamma(on) - torch.lgamma(off)
    logs = torch.nn.functional.logsigmoid
    return (normaliser + on * logs(u) + off * logs(-u)).sum()


def _tiny(like: Tensor) -> float:
    return torch.finfo(like.dtype).tiny


def _draw_any(prior: Distribution, generator: torch.Generator) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
        return biject_to(prior.support).inv(prior.sample())


def _any_density(prior: Distribution, u: Tensor) -> Tensor:
    transform = biject_to(prior.support)
    value = transform(u)
    return prior.log_prob(value) + transform.log_abs_det_jacobian(u, value).sum()


_SIMPLEX = Coordinate(
    _draw_simplex,
    lambda prior, u: _log_gamma_density(_parameters(prior, "concentration")[0], u),
    lambda prior, u: torch.softmax(u, -1).clamp(min=_tiny(u)),
)
_RATE = Coordinate(_draw_rate, _rate_density, lambda prior, u: u.exp().clamp(min=_tiny(u)))
_CHANCE = Coordinate(
    _draw_chance, _chance_density, lambda prior, u: u.sigmoid().clamp(_tiny(u), 1 - torch.finfo(u.dtype).eps)
)
_ANY = Coordinate(_draw_any, _any_density, lambda prior, u: biject_to(prior.support)(u))
#: Kind of prior, exactly -> coordinates; Pyro's classes are subclasses of torch's under the same names.
_KINDS = {"Dirichlet": _SIMPLEX, "Gamma": _RATE, "Beta": _CHANCE}


def _coordinate_of(prior: Distribution) -> Coordinate:
    """Kinds are told by their own modules: a distribution of people's own may have the same name."""
    kind = type(element_of(prior))
    known = kind.__module__.startswith(("torch.distributions", "pyro.distributions"))
    return _KINDS.get(kind.__name__, _ANY) if known else _ANY


def require_proper(model: Model) -> None:
    """Refuse a prior that is no distribution: under it the evidence is not defined. Raises PriorError."""
    for site in model.unknown_sites:
        if type(element_of(model.priors[site])) is Flat:
            raise PriorError(
                f"the prior of '{site}' of {type(model).__name__} is flat and has no normaliser, so that p(x) is "
                f"defined up to a constant alone; expected a proper prior: with_priors({site}=...)"
            )


@dataclass(frozen=True)
class Globals:
    """The unknown globals of a model as one vector u (d,), for data of the type and device of ``like``.

    coordinates: site -> its kind; shapes: site -> the shape of its part of u.
    """

    model: Model
    like: Tensor
    coordinates: Mapping[str, Coordinate]
    shapes: Mapping[str, torch.Size]

    @classmethod
    def of(cls, model: Model, data: Data) -> Globals:
        """Read the globals of a model. Raises PriorError for a prior that is improper."""
        require_proper(model)
        like = torch.zeros((), dtype=data.x.dtype, device=data.x.device)
        typical = {name: value.to(like) for name, value in typical_values(model).items()}
        priors = {site: model.prior(site, like=like, values=typical) for site in model.unknown_sites}
        coordinates = {site: _coordinate_of(prior) for site, prior in priors.items()}
        shapes = {
            site: biject_to(prior.support).inverse_shape(prior.shape()) if coordinates[site] is _ANY else prior.shape()
            for site, prior in priors.items()
        }
        sizes = {site: torch.Size(one) for site, one in shapes.items()}
        return cls(model, like, coordinates, sizes)

    @property
    def size(self) -> int:
        """How many coordinates there are."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    def draw(self, count: int, seed: int) -> Tensor:
        """Draw from the prior, (count, d): all at once where no prior is a function of others."""
        generator = torch.Generator().manual_seed(seed_of(seed, "globals"))
        if not self.model.has_functions:
            return self._draw((count,), generator)
        return torch.cat([self._draw((1,), generator) for _ in range(count)])

    def _draw(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        values, parts = dict(self._known), []
        for site, coordinate in self.coordinates.items():
            prior = self.model.prior(site, like=self.like, values=values)
            u = coordinate.draw(prior.expand(shape), generator)
            values[site] = coordinate.value(prior, u[0])
            parts.append(u.reshape(shape[0], math.prod(u.shape[1:])))
        return torch.cat(parts, 1)

    def evaluate(self, u: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Return the globals at u (d,), known ones among them, and the log prior density of u, ()."""
        values, total, start = dict(self._known), u.new_zeros(()), 0
        for site, coordinate in self.coordinates.items():
            shape = self.shapes[site]
            part = u[start : start + math.prod(shape)].reshape(shape)
            start += math.prod(shape)
            prior = self.model.prior(site, like=self.like, values=values)
            values[site] = coordinate.value(prior, part)
            total = total + coordinate.log_density(prior, part)
        return values, total

    @property
    def _known(self) -> dict[str, Tensor]:
        return {site: value.to(self.like) for site, value in self.model.known.items()}
