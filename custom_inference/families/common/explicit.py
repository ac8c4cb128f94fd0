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

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.distributions import constraints

from custom_inference.families.common.scales import SCALES, Parameters, Scale
from custom_inference.families.common.slices import accept_proposals, elliptical_step, slice_step
from ppl_models import Model, PriorError
from ppl_models.core.hierarchy import arguments_of
from ppl_models.core.priors import is_flat, move_prior, support_of, value_if_known
from ppl_models.distributions import Flat

Kind = TypeVar("Kind", bound=Model)

#: Slice steps of every element in each sweep.
_SLICES = 1
#: Draws that the moments of a prior are taken of, of so many numbers at most.
_DRAWS, _ENTRIES = 1000, 2**22


class Explicit:
    """One site, kept as a value under its own prior.

    prior: of one element or row, unexpanded. mirrored: of a matrix only entries on and above the diagonal are free.
    reason: why the site is not integrated out, for a fit's status; steps: how it is sampled.
    ``reference``: the parameters of its conjugate prior, broadcastable to the site.
    """

    steps = "slice steps"

    def __init__(
        self, site: str, prior: Any, scale: Scale, shape: tuple[int, ...], *, mirrored: bool = False, reason: str = ""
    ):
        self.site, self.scale, self.shape, self.reason = site, scale, shape, reason
        self.known = value_if_known(prior) is not None
        like = torch.zeros((), dtype=torch.float64)
        draws = (prior.v.unsqueeze(0) if self.known else _draws(prior)).to(like)
        self.reference: Parameters = scale.match_moments(draws)
        self._free = torch.triu_indices(*shape) if mirrored else None
        self._event = 0 if self.known else len(prior.event_shape)
        self.prior = prior if self.known else move_prior(prior, like).expand(shape[: len(shape) - self._event])
        #: Somewhere in the prior's support; of a known site its value.
        self._spare = self._full(self._free_entries(draws[0]))
        self.u = scale.unconstrain(self._free_entries(self._spare))

    def exchange_prior(self, prior: Any) -> None:
        """Use another prior of the same kind from now on."""
        like = torch.zeros((), dtype=torch.float64)
        self.prior = move_prior(_independent(prior), like).expand(self.shape[: len(self.shape) - self._event])

    @property
    def value(self) -> Tensor:
        """The present value, of the site's shape."""
        return self._spare if self.known else self._full(self.scale.value(self.u))

    @property
    def note(self) -> str:
        """How the site is sampled, for a fit's status."""
        if self.known:
            return f"{self.site} held at its known value"
        return f"{self.site} by {self.steps}" + (f": its prior {self.reason}" if self.reason else "")

    def log_prior(self) -> float:
        """Compute the log prior density of the present value; 0 of a known one."""
        return 0.0 if self.known else float(self.log_prior_of(self.u).sum())

    def log_joint(self, statistics: Parameters) -> float:
        """Compute the log prior plus the statistics times the features."""
        features = zip(map(self._free_entries, statistics), self.scale.features(self.u), strict=True)
        return self.log_prior() + sum(float(torch.where(one == 0, 0.0, one * part).sum()) for one, part in features)

    def begin(self, statistics: Parameters, generator: np.random.Generator) -> None:
        """Set a first value: drawn under the reference prior, or from the prior where that is outside its support."""
        u = self.scale.draw(self._posterior(tuple(map(self._free_entries, statistics))), generator)
        self.settle(self._full(self.scale.value(u)))

    def settle(self, value: Tensor) -> None:
        """Continue from this value, or one inside the prior's support."""
        if not self.known:
            u, spare = (self.scale.unconstrain(self._free_entries(one)) for one in (value, self._spare))
            self.u = torch.where(self._on_rows(torch.isfinite(self.log_prior_of(u))), u, spare)

    def update(self, statistics: Parameters, generator: np.random.Generator) -> None:
        """Draw new values by steps that leave p(value | statistics) as it is.

        statistics: each of the site's shape; of mirrored sites symmetric.
        """
        if self.known:
            return
        statistics = tuple(map(self._free_entries, statistics))
        posterior, reference = self._posterior(statistics), [-self._free_entries(part) for part in self.reference]
        proposed = self.scale.draw(posterior, generator)
        # log prior - log reference, up to a constant, of the proposal and of what there is.
        ratio = self._log_density(proposed, reference) - self._log_density(self.u, reference)
        self.u = torch.where(self._on_rows(accept_proposals(ratio, generator)), proposed, self.u)
        centre, spread = self.scale.moments(posterior)
        if self._event:
            self._move_rows(statistics, centre, spread, generator)
            return
        for _ in range(_SLICES):
            here = self.u
            moved = slice_step(lambda t, u=here: self._log_density(u + t, statistics), 2 * spread, generator)
            self.u = here + moved

    def _move_rows(
        self, statistics: Parameters, centre: Tensor, spread: Tensor, generator: np.random.Generator
    ) -> None:
        """Move the elements of a row together: they depend on each other under the prior."""
        start = -self._event
        centre, spread = (part.flatten(start) for part in (centre, spread))
        if self.scale.shifts:
            self.u = _draw_shift(self.u, *self.scale.moments(self._posterior(statistics)), generator)

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
        return tuple(one + self._free_entries(part) for one, part in zip(statistics, self.reference, strict=True))

    def _log_density(self, u: Tensor, statistics: Sequence[Tensor]) -> Tensor:
        """Compute log p(u | q, x) up to a constant, by element or row."""
        powers = (one + power for one, power in zip(statistics, self.scale.jacobian, strict=True))
        each = (power * one for power, one in zip(powers, self.scale.features(u), strict=True))
        total = sum(each, torch.zeros_like(u))
        return self.log_prior_of(u) + (total.flatten(-self._event).sum(-1) if self._event else total)

    def log_prior_of(self, u: Tensor) -> Tensor:
        """Compute log p(value), by element or row; minus infinity outside the prior's support."""
        value = self._full(self.scale.value(u))
        inside = self.prior.support.check(value)
        inside = inside.reshape(*self.prior.batch_shape, -1).all(-1)
        wide = inside.reshape((*inside.shape, *[1] * self._event))
        found = self.prior.log_prob(torch.where(wide, value, self._spare)).detach()
        return self._free_entries(torch.where(inside & ~torch.isnan(found), found, -torch.inf))

    def _on_rows(self, value: Tensor) -> Tensor:
        """Reshape values of elements or rows so that they broadcast to the site."""
        return value.reshape((*value.shape, *[1] * self._event))

    def _free_entries(self, value: Tensor) -> Tensor:
        """Select the free entries of a matrix, (F,); other values as they are."""
        return value.expand(self.shape)[tuple(self._free)] if self._free is not None else value

    def _full(self, value: Tensor) -> Tensor:
        """Return the value of the site's shape with these free entries."""
        if self._free is None:
            return value.expand(self.shape)
        matrix = value.new_zeros(self.shape)
        matrix[tuple(self._free)] = value
        return torch.triu(matrix) + torch.triu(matrix, 1).mT


def with_references(
    model: Kind, *, shared: tuple[str, ...] = (), forced: tuple[str, ...] = ()
) -> tuple[Kind, dict[str, Explicit]]:
    """Return the model with a conjugate prior of every global, and the globals that keep another one as explicit
    values.

    shared: sites that are integrated out only where all components have the same prior. forced: sites that are explicit
    under any prior.

    Sites whose priors are functions of hyper-parameters are explicit, with their priors at ``first_values``.

    Raises PriorError for improper priors that data may leave improper, and functions of other sites than
    hyper-parameters.
    """
    dependent = dependent_sites(model)
    model = model.at(first_values(model)) if dependent else model
    priors: dict[str, Any] = {}
    explicit: dict[str, Explicit] = {}
    for site, shape in model.shapes.items():
        scale = next((scale for support, scale in SCALES if model.sites[site].support is support), None)
        if scale is None:
            continue
        prior = _proper(site, model.priors[site])
        conjugate = isinstance(prior, scale.conjugate)
        support = support_of(prior) if scale.bounded and not conjugate and is_flat(prior) else None
        if support is not None and (scale.shifts or (support.lower_bound, support.upper_bound) == (0, 1)):
            # Uniform on all of the simplex or of [0, 1], which a conjugate one is too.
            conjugate = True
            prior = scale.kind(*[torch.ones((shape[-1],) if scale.shifts else ())] * len(scale.jacobian))
        apart = conjugate and site in shared and prior.batch_shape.numel() > 1
        if apart or site in (*forced, *dependent) or not conjugate:
            if model.possible(site) is not None:
                raise PriorError(
                    f"no steps for '{site}', parts of which are 0, under a prior that is no Dirichlet; use NUTS"
                )
            reason = f"is no {scale.kind.__name__}" if not conjugate else ""
            reason = "differs by component" if apart else "is a function" if site in dependent else reason
            mirrored = site in getattr(model, "pair_sites", ()) and not getattr(model, "directed", True)
            explicit[site] = Explicit(site, prior, scale, shape, mirrored=mirrored, reason=reason)
            prior = scale.kind(*explicit[site].reference)
        if prior is not model.priors[site]:
            priors[site] = prior
    return model.with_priors(**priors) if priors else model, explicit


def dependent_sites(model: Model) -> list[str]:
    """List the globals of the model itself whose priors are functions; PriorError for functions that are not
    sampled."""
    found = [site for site in model.priors if arguments_of(model.priors[site]) and site not in model.hyper_sites]
    for site in found:
        others = [one for one in arguments_of(model.priors[site]) if one not in model.hyper_sites]
        if others or site not in model.global_sites:
            what = f"of '{others[0]}'" if others else "for a latent of the rows"
            raise PriorError(f"collapsed Gibbs sampling takes no prior of '{site}' that is a function {what}; use NUTS")
    return found


def first_values(model: Model) -> dict[str, Tensor]:
    """Return typical values of the hyper-parameters under their priors, always the same ones."""
    values: dict[str, Tensor] = {}
    for site in model.hyper_sites:
        prior = model.prior(site, values=values)
        draws = _draws(_independent(prior)).double()
        values[site] = draws[0] if _independent(prior).event_shape else draws.median(0).values
    return values


def _independent(prior: Any) -> Any:
    """Strip a prior of axes that are declared dependent but are not."""
    while isinstance(prior, torch.distributions.Independent):
        prior = prior.base_dist
    return prior


def _proper(site: str, prior: Any) -> Any:
    """Return the prior of one element, of elements that are independent; PriorError for flat ones on unbounded
    supports."""
    prior = _independent(prior)
    if isinstance(prior, Flat) and support_of(prior) is not constraints.simplex:
        highest = torch.as_tensor(getattr(support_of(prior), "upper_bound", torch.inf))
        if not bool(torch.isfinite(highest).all()):
            what = f"the prior of '{site}' is improper (Flat), and so is its posterior where a component is empty"
            raise PriorError(f"{what}; expected a proper one, or use EM")
    return prior


def notes(explicit: Mapping[str, Explicit]) -> dict[str, str]:
    """Return what a fit's status says of each site."""
    return {site: one.note for site, one in explicit.items()}


def _draws(prior: Any) -> Tensor:
    """Draw (S, ...) values of a prior, always the same ones."""
    size = prior.batch_shape.numel() * prior.event_shape.numel()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        return prior.sample((int(max(50, min(_DRAWS, _ENTRIES // size))),)).cpu()


def _draw_shift(u: Tensor, mean: Tensor, spread: Tensor, generator: np.random.Generator) -> Tensor:
    """Draw the shift of logits, which has no meaning, under the Gaussian of ellipses given the rest; return the
    logits."""
    precision = spread.pow(-2)
    total = precision.sum(-1, keepdim=True)
    best = (precision * (mean - u)).sum(-1, keepdim=True) / total
    return u + best + torch.as_tensor(generator.standard_normal(tuple(best.shape))) / total.sqrt()


def log_density_within(prior: Any, value: Tensor) -> float:
    """Sum log p(value), -inf outside of the support."""
    inside = bool(prior.support.check(value).all())
    return float(prior.log_prob(value).sum()) if inside else -math.inf
