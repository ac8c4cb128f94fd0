"""Globals that a collapsed sampler keeps as values of its chain's state, since their priors are not conjugate.

Given the discrete latents q, the likelihood of such a site is an exponential family with few statistics,

    probabilities   p^n (1 - p)^m           reference Beta(a, b)
    rates           r^n exp(-m r)           reference Gamma(a, b)
    simplexes       prod_k p_k^(n_k)        reference Dirichlet(a)

and its conditional is that times the prior. The *reference* is a conjugate prior with about the moments of the prior:
chains begin under it, with the site integrated out. Then q is drawn at the site's value, and the value moves by

    a Metropolis step      proposed from the conjugate posterior under the reference, accepted by prior / reference,
    slice steps            of every element on the unconstrained scale (logit, logarithm), where elements are
                           independent under the prior; else of each row together, on ellipses and along a line,

which both leave p(site | q, x) as it is. Densities below are those of the unconstrained u (of a simplex its logits, up
to a shift): there the reference is p^a (1 - p)^b, r^a exp(-b r), prod_k p_k^(a_k).
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from custom_inference.families.common.slices import accepted, elliptical_step, slice_step
from ppl_models import Model, PriorError
from ppl_models.core.priors import is_flat, moved_like, support_of
from ppl_models.distributions import Flat

#: Slice steps of every element in each sweep.
_SLICES = 1
#: Draws that the moments of a prior are taken of, of so many numbers at most.
_DRAWS, _ENTRIES = 1000, 2**22
#: References are no more certain than so many observations.
_MOST = 1e4
_TINY, _EDGE = torch.finfo(torch.float64).tiny, torch.finfo(torch.float64).eps
Parameters = tuple[Tensor, ...]


class Scale(abc.ABC):
    """Values of one support on an unconstrained scale u, with what of them is linear in the statistics."""

    #: The kind of conjugate prior; and all priors under which samplers integrate the site out.
    kind: ClassVar[Any]
    conjugate: ClassVar[tuple[type[Any], ...]]
    #: Powers of the features in dv / du.
    jacobian: ClassVar[tuple[float, ...]]

    @abc.abstractmethod
    def value(self, u: Tensor) -> Tensor: ...

    @abc.abstractmethod
    def unconstrained(self, value: Tensor) -> Tensor: ...

    @abc.abstractmethod
    def features(self, u: Tensor) -> Parameters:
        """What the statistics multiply in log p(q, x | value)."""

    @abc.abstractmethod
    def draw(self, parameters: Parameters, generator: np.random.Generator) -> Tensor:
        """u of a draw from the conjugate law with these parameters."""

    @abc.abstractmethod
    def moments(self, parameters: Parameters) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of every u under it."""

    @abc.abstractmethod
    def matched(self, draws: Tensor) -> Parameters:
        """Parameters of about the moments of these draws (S, ...)."""


class Probabilities(Scale):
    """On the logit scale; statistics are successes and failures."""

    kind = dist.Beta
    conjugate = (torch.distributions.Beta,)
    jacobian = (1.0, 1.0)

    def value(self, u: Tensor) -> Tensor:
        return torch.sigmoid(u).clamp(_TINY, 1 - _EDGE)

    def unconstrained(self, value: Tensor) -> Tensor:
        return torch.logit(value.clamp(_TINY, 1 - _EDGE))

    def features(self, u: Tensor) -> Parameters:
        return torch.nn.functional.logsigmoid(u), torch.nn.functional.logsigmoid(-u)

    def draw(self, parameters: Parameters, generator: np.random.Generator) -> Tensor:
        return _log_gamma(parameters[0], generator) - _log_gamma(parameters[1], generator)

    def moments(self, parameters: Parameters) -> tuple[Tensor, Tensor]:
        (first, spread), (second, other) = (_log_moments(one) for one in parameters)
        return first - second, torch.hypot(spread, other)

    def matched(self, draws: Tensor) -> Parameters:
        mean = draws.mean(0).clamp(1e-6, 1 - 1e-6)
        total = (mean * (1 - mean) / _variance(draws) - 1).clamp(0.1, _MOST)
        return mean * total, (1 - mean) * total


class Rates(Scale):
    """Logarithms; statistics are events and exposure."""

    kind = dist.Gamma
    conjugate = (torch.distributions.Gamma, torch.distributions.Exponential)
    jacobian = (1.0, 0.0)

    def value(self, u: Tensor) -> Tensor:
        return torch.exp(u.clamp(-690, 690))

    def unconstrained(self, value: Tensor) -> Tensor:
        return torch.log(value.clamp(min=_TINY))

    def features(self, u: Tensor) -> Parameters:
        return u, -self.value(u)

    def draw(self, parameters: Parameters, generator: np.random.Generator) -> Tensor:
        return _log_gamma(parameters[0], generator) - torch.log(parameters[1])

    def moments(self, parameters: Parameters) -> tuple[Tensor, Tensor]:
        mean, spread = _log_moments(parameters[0])
        return mean - torch.log(parameters[1]), spread

    def matched(self, draws: Tensor) -> Parameters:
        """Of the logarithms: the moments of the rates themselves may be infinite."""
        logs = self.unconstrained(draws)
        variance = _variance(logs).clamp(min=1 / _MOST)
        shape = (1 + torch.sqrt(1 + 2 * variance)) / (2 * variance)  # trigamma(a) is about 1 / a + 1 / (2 a^2)
        return shape, torch.exp(torch.digamma(shape) - logs.mean(0))


class Simplexes(Scale):
    """Logits, up to a shift; statistics are counts."""

    kind = dist.Dirichlet
    conjugate = (torch.distributions.Dirichlet,)
    jacobian = (1.0,)

    def value(self, u: Tensor) -> Tensor:
        return torch.softmax(u, -1).clamp(min=_TINY)

    def unconstrained(self, value: Tensor) -> Tensor:
        return torch.log(value.clamp(min=_TINY))

    def features(self, u: Tensor) -> Parameters:
        return (torch.log_softmax(u, -1),)

    def draw(self, parameters: Parameters, generator: np.random.Generator) -> Tensor:
        return _log_gamma(parameters[0], generator)

    def moments(self, parameters: Parameters) -> tuple[Tensor, Tensor]:
        return _log_moments(parameters[0])

    def matched(self, draws: Tensor) -> Parameters:
        mean = draws.mean(0).clamp(min=1e-9)
        spread = (mean * (1 - mean)).sum(-1, keepdim=True)
        total = spread / _variance(draws).sum(-1, keepdim=True) - 1
        return (mean * total.clamp(0.1 * mean.shape[-1], _MOST * mean.shape[-1]),)


_SCALES: tuple[tuple[Any, Scale], ...] = (
    (constraints.unit_interval, Probabilities()),
    (constraints.positive, Rates()),
    (constraints.simplex, Simplexes()),
)


class Explicit:
    """One site, kept as a value under its own prior.

    prior: of one element or row, unexpanded. mirrored: of a matrix only entries on and above the diagonal count.
    ``reference``: the parameters of its conjugate prior, broadcastable to the site.
    """

    def __init__(self, site: str, prior: Any, scale: Scale, shape: tuple[int, ...], *, mirrored: bool = False):
        self.site, self.scale, self.shape, self.mirrored = site, scale, shape, mirrored
        self.known = isinstance(prior, dist.Delta)
        like = torch.zeros((), dtype=torch.float64)
        draws = (prior.v.unsqueeze(0) if self.known else _draws(prior)).to(like)
        self.reference: Parameters = scale.matched(draws)
        #: Somewhere in the prior's support; of a known site its value.
        self._spare = self._mirror(draws[0].expand(shape))
        self._event = 0 if self.known else len(prior.event_shape)
        self.prior = prior if self.known else moved_like(prior, like).expand(shape[: len(shape) - self._event])
        self.u = scale.unconstrained(self._spare)

    @property
    def value(self) -> Tensor:
        """The present value, of the site's shape."""
        return self._spare if self.known else self.scale.value(self.u)

    @property
    def note(self) -> str:
        """How the site is sampled, for a fit's status."""
        if self.known:
            return f"{self.site} held at its known value"
        kind = self.scale.kind.__name__
        reason = f"is no {kind}" if not isinstance(self.prior, self.scale.conjugate) else "differs by component"
        return f"{self.site} by slice steps: its prior {reason}"

    def log_joint(self, statistics: Parameters) -> float:
        """The log prior density of the present value (0 of a known one), and the statistics times the features."""
        features = zip(statistics, self.scale.features(self.u), strict=True)
        found = sum(float(self._once(torch.where(one == 0, 0.0, one * part)).sum()) for one, part in features)
        return found if self.known else found + float(self._once(self._log_prior(self.u)).sum())

    def begin(self, statistics: Parameters, generator: np.random.Generator, start: Tensor | None = None) -> None:
        """A first value: ``start``, or a draw under the reference prior; a draw of the prior where that is outside its
        support."""
        if not self.known:
            u = self.scale.draw(self._posterior(statistics), generator)
            u = self._mirror(u if start is None else self.scale.unconstrained(start.double().cpu()))
            inside = torch.isfinite(self._log_prior(u))
            self.u = torch.where(self._on_rows(inside), u, self.scale.unconstrained(self._spare))

    def update(self, statistics: Parameters, generator: np.random.Generator) -> None:
        """New values, drawn by steps that leave p(value | statistics) as it is.

        statistics: each of the site's shape; of mirrored sites symmetric.
        """
        if self.known:
            return
        posterior = self._posterior(statistics)
        self._propose(posterior, generator)
        centre, spread = self.scale.moments(posterior)
        if self._event:
            self._move_rows(statistics, centre, spread, generator)
            return
        for _ in range(_SLICES):
            here = self.u
            moved = slice_step(lambda t, u=here: self._log_density(u + t, statistics), 2 * spread, generator)
            self.u = self._mirror(here + moved)

    def _propose(self, posterior: Parameters, generator: np.random.Generator) -> None:
        proposed = self._mirror(self.scale.draw(posterior, generator))
        ratio = self._against_reference(proposed) - self._against_reference(self.u)
        chosen = self._mirror(self._on_rows(accepted(ratio, generator)))
        self.u = torch.where(chosen, proposed, self.u)

    def _against_reference(self, u: Tensor) -> Tensor:
        """log prior - log reference, up to a constant, by element or row."""
        powers = tuple(power - part for power, part in zip(self.scale.jacobian, self.reference, strict=True))
        return self._log_prior(u) + self._combined(u, powers)

    def _move_rows(self, statistics: Parameters, centre: Tensor, spread: Tensor, generator: np.random.Generator) -> None:
        """Elements of a row depend on each other under the prior: they move together."""
        start = -self._event
        centre, spread = (part.flatten(start) for part in (centre, spread))
        if isinstance(self.scale, Simplexes):
            self.u = _shifted(self.u, *self.scale.moments(self._posterior(statistics)), generator)

        def density(flat: Tensor) -> Tensor:
            return self._log_density(flat.unflatten(-1, self.shape[start:]), statistics)

        def ratio(flat: Tensor) -> Tensor:
            return density(flat) + 0.5 * ((flat - centre) / spread).square().sum(-1)

        flat = elliptical_step(ratio, self.u.flatten(start), centre, spread, generator)
        line = spread * torch.as_tensor(generator.standard_normal(tuple(flat.shape)))
        width = torch.full(tuple(flat.shape[:-1]), 2 / flat.shape[-1] ** 0.5, dtype=flat.dtype)
        moved = slice_step(lambda t: density(flat + t.unsqueeze(-1) * line), width, generator)
        self.u = (flat + moved.unsqueeze(-1) * line).unflatten(-1, self.shape[start:])

    def _posterior(self, statistics: Parameters) -> Parameters:
        return tuple(one + part for one, part in zip(statistics, self.reference, strict=True))

    def _log_density(self, u: Tensor, statistics: Parameters) -> Tensor:
        """log p(u | q, x) up to a constant, by element or row."""
        powers = tuple(one + power for one, power in zip(statistics, self.scale.jacobian, strict=True))
        return self._log_prior(u) + self._combined(u, powers)

    def _log_prior(self, u: Tensor) -> Tensor:
        """log p(value), by element or row; minus infinity outside the prior's support."""
        value = self.scale.value(u)
        inside = self.prior.support.check(value)
        inside = inside.reshape(*self.prior.batch_shape, -1).all(-1)
        safe = torch.where(self._on_rows(inside), value, self._spare)
        found = self.prior.log_prob(safe).detach()
        return self._mirror(torch.where(inside & ~torch.isnan(found), found, -torch.inf))

    def _combined(self, u: Tensor, powers: tuple[Any, ...]) -> Tensor:
        features = self.scale.features(u)
        total = sum((power * one for power, one in zip(powers, features, strict=True)), torch.zeros_like(u))
        return total.flatten(-self._event).sum(-1) if self._event else total

    def _on_rows(self, value: Tensor) -> Tensor:
        """Of elements or rows, as it broadcasts to the site."""
        return value.reshape(*value.shape, *[1] * self._event).expand(self.shape)

    def _once(self, value: Tensor) -> Tensor:
        return torch.triu(value) if self.mirrored else value

    def _mirror(self, value: Tensor) -> Tensor:
        return torch.triu(value) + torch.triu(value, 1).mT if self.mirrored else value


def with_references(model: Model, *, shared: tuple[str, ...] = ()) -> tuple[Model, dict[str, Explicit]]:
    """The model with a conjugate prior of every global, and the globals that keep another one as explicit values.

    shared: sites that are integrated out only where all components have the same prior.

    Raises PriorError for improper priors that data may leave improper.
    """
    priors: dict[str, Any] = {}
    explicit: dict[str, Explicit] = {}
    for site, shape in model.shapes.items():
        scale = next((scale for support, scale in _SCALES if model.sites[site].support is support), None)
        if scale is None:
            continue
        prior = _proper(site, model.priors[site])
        if _is_flat_everywhere(scale, prior):
            size = (shape[-1],) if isinstance(scale, Simplexes) else ()
            prior = scale.kind(*[torch.ones(size)] * len(scale.jacobian))
        elif not isinstance(prior, scale.conjugate) or (site in shared and prior.batch_shape.numel() > 1):
            mirrored = site in getattr(model, "pair_sites", ()) and not model.directed  # pyright: ignore
            explicit[site] = Explicit(site, prior, scale, shape, mirrored=mirrored)
            prior = scale.kind(*explicit[site].reference)
        if prior is not model.priors[site]:
            priors[site] = prior
    return model.with_priors(**priors) if priors else model, explicit


def _proper(site: str, prior: Any) -> Any:
    """The prior of one element, of elements that are independent; PriorError for flat ones on unbounded supports."""
    while isinstance(prior, torch.distributions.Independent):
        prior = prior.base_dist
    if isinstance(prior, Flat) and support_of(prior) is not constraints.simplex:
        highest = torch.as_tensor(getattr(support_of(prior), "upper_bound", torch.inf))
        if not bool(torch.isfinite(highest).all()):
            what = f"the prior of '{site}' is improper (Flat), and so is its posterior where a component is empty"
            raise PriorError(f"{what}; expected a proper one, or use EM")
    return prior


def _is_flat_everywhere(scale: Scale, prior: Any) -> bool:
    """Whether a prior is uniform on all of the simplex or of [0, 1], which a conjugate one is too."""
    if isinstance(scale, Rates) or isinstance(prior, scale.conjugate) or not is_flat(prior):
        return False
    support = support_of(prior)
    return isinstance(scale, Simplexes) or (support.lower_bound, support.upper_bound) == (0, 1)


def notes(explicit: Mapping[str, Explicit]) -> dict[str, str]:
    """What a fit's status says of each site."""
    return {site: one.note for site, one in explicit.items()}


def _draws(prior: Any) -> Tensor:
    """(S, ...) draws of a prior, always the same ones."""
    size = prior.batch_shape.numel() * prior.event_shape.numel()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        return prior.sample((int(max(50, min(_DRAWS, _ENTRIES // size))),)).cpu()


def _variance(draws: Tensor) -> Tensor:
    return draws.var(0, correction=0).clamp(min=1e-12)


def _shifted(u: Tensor, mean: Tensor, spread: Tensor, generator: np.random.Generator) -> Tensor:
    """Logits with their shift, which has no meaning, drawn as it is under the Gaussian of ellipses given the rest."""
    precision = spread.pow(-2)
    total = precision.sum(-1, keepdim=True)
    best = (precision * (mean - u)).sum(-1, keepdim=True) / total
    return u + best + torch.as_tensor(generator.standard_normal(tuple(best.shape))) / total.sqrt()


def _log_gamma(shape: Tensor, generator: np.random.Generator) -> Tensor:
    """Logarithms of Gamma(a, 1) variables, of any a: Gamma(a) = Gamma(a + 1) U^(1 / a)."""
    shape = shape.double()
    more, uniform = generator.standard_gamma(shape.numpy() + 1), generator.random(tuple(shape.shape))
    return torch.log(torch.as_tensor(more)) + torch.log1p(-torch.as_tensor(uniform)) / shape


def _log_moments(shape: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the logarithm of a Gamma(a, 1) variable."""
    return torch.digamma(shape), torch.polygamma(1, shape).sqrt()
