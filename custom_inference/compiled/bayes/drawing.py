"""Draws of the globals of a compiled program given counts of all rows' codes.

Sites with counts have conjugate conditionals under conjugate priors; of single numbers under any other prior, and of
standard deviations, slice steps of every entry leave the conditional as it is. Linear predictors of normals are drawn
together. Causes, and shares of events, that are hidden once more are drawn first. What has none of these, such as
logistic regressions, moves by slice steps along random directions, on a scale on which the density is about round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import biject_to, constraints

from custom_inference.compiled.bayes.beliefs import SAID, entry_prior
from custom_inference.compiled.bayes.hidden import draw_hidden, draw_said
from custom_inference.compiled.blocks import Block
from custom_inference.compiled.laws import COUNTED
from custom_inference.compiled.newton import solve_normal
from custom_inference.compiled.open_sites import OpenSites
from custom_inference.compiled.steps import Steps, steps_of
from custom_inference.compiled.structure import Bound
from custom_inference.core.states import Params
from custom_inference.families.common.slices import slice_step
from custom_inference.families.conjugate.beta import Beta
from custom_inference.families.conjugate.dirichlet import Dirichlet
from custom_inference.families.conjugate.gamma import Gamma
from custom_inference.families.conjugate.normal import Normal
from ppl_models import Model, PriorError
from ppl_models.core.hierarchy import arguments_of, is_function
from ppl_models.core.priors import is_flat, support_of

#: Sweeps after which the scale of open sites is found anew: at first chains are far from where they end.
_SCALED = (1, 8, 25)
#: Directions of slice steps in a sweep, for each open number, and at most; entries that have a scale of their own.
_EACH, _MOST, _CURVED = 1.0, 40, 300


def require_proper(model: Model) -> None:
    """Raise PriorError for flat priors without an integral."""
    for site in model.unknown_sites:
        prior = model.priors[site]
        support = support_of(prior)
        finite = support is constraints.simplex or bool(
            torch.isfinite(torch.as_tensor(getattr(support, "upper_bound", torch.inf))).all()
            and torch.isfinite(torch.as_tensor(getattr(support, "lower_bound", -torch.inf))).all()
        )
        if is_flat(prior) and not finite:
            what = f"the prior of '{site}' is improper (Flat), and so may its posterior be"
            raise PriorError(f"{what}; expected a proper one, or use EM")


class GlobalsDrawer:
    """Draws the globals given expected features of codes that are drawn."""

    def __init__(self, model: Model, rows: Bound, generator: np.random.Generator):
        self.model, self.rows, self.generator = model, rows, generator
        self.sweeps, self._root = 0, torch.zeros(0, 0, dtype=torch.float64)

    @property
    def steps(self) -> Steps:
        return steps_of(self.model, self.rows)

    def draw(self, values: Params, counted: Sequence[Tensor]) -> Params:
        """Return new values of all globals that are learned, from those before and the features (G, C, U, F) of every
        block."""
        steps, found = self.steps, dict(values)
        self.sweeps += 1
        found |= self._draw_counted(found, counted, steps.sites_in("chance", "proportion", "rate", "place"))
        found |= self._draw_linear(found, counted)
        found |= self._draw_counted(found, counted, steps.sites_in("spread"))
        found |= {site: self._draw_prior(site, found) for site in self._list_idle()}
        return self._draw_open(found, counted)

    def _draw_counted(self, values: Params, counted: Sequence[Tensor], sites: Sequence[str]) -> Params:
        """Draw sites with counts."""
        sums = self._count(values, counted, sites)
        return {site: self._draw_site(site, self.steps.roles[site], sums, values[site]) for site in sites}

    def _list_idle(self) -> list[str]:
        """The sites that no statement of these rows depends on: their conditional is their prior."""
        used = {site for block in self.rows.blocks for site in block.sites}
        return [site for site in self.model.unknown_sites if site not in used]

    def _draw_prior(self, site: str, values: Params) -> Tensor:
        prior: Any = self.model.prior(site, like=values[site], values=values)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(self.generator.integers(2**62)))
            return prior.sample().to(values[site]).reshape(values[site].shape)

    def _count(self, values: Params, counted: Sequence[Tensor], sites: Sequence[str]) -> dict[str, Tensor]:
        """Sum what is counted of every entry of some sites over all places where it stands, hidden causes drawn."""
        steps = self.steps
        flat = steps.entries.flatten(values)
        total = {name: torch.zeros_like(flat) for site in sites for name in COUNTED[steps.roles[site]]}
        for block, features in zip(self.rows.blocks, counted, strict=True):
            if block.sites & set(sites):
                self._count_block(block, features, flat, sites, total)
        return total

    def _count_block(
        self, block: Block, features: Tensor, flat: Tensor, sites: Sequence[str], total: dict[str, Tensor]
    ) -> None:
        parameters = block.parameters(flat)
        said = draw_said(block.law, features, parameters, self.generator)
        for name, source, part in block.take_apart(parameters):
            if name in said and source.sites & set(sites):
                draw_hidden(source, said[name], part, flat, total, self.generator)

    def _draw_site(self, site: str, role: str, sums: Mapping[str, Tensor], value: Tensor) -> Tensor:
        """Draw the entries of a site from their conditional; where it is not in closed form, by a slice step."""
        shape = value.shape
        own = [sums[name][self.steps.entries.slices[site]].reshape(shape) for name in COUNTED[role]]
        if role == "spread" or site not in self.steps.closed:
            return self._move_entries(site, role, own, value)
        if role == "chance":
            return Beta.of(self.model, site, value).update(own[0], own[0] + own[1]).draw(self.generator)
        if role == "proportion":
            flat = is_flat(self.model.priors[site])
            prior = Dirichlet(torch.ones_like(value)) if flat else Dirichlet.of(self.model, site, value)
            return prior.update(own[0]).draw(self.generator)
        if role == "rate":
            return Gamma.of(self.model, site, value).update(*own).draw(self.generator)
        prior = Normal.of(self.model, site, tuple(shape), value)
        precision = prior.precision + own[1]
        noise = torch.as_tensor(self.generator.standard_normal(tuple(shape)))
        return (prior.precision * prior.mean + own[0]) / precision + noise * precision.rsqrt()

    def _move_entries(self, site: str, role: str, own: Sequence[Tensor], value: Tensor) -> Tensor:
        """Take slice steps of every entry on the unconstrained scale."""
        prior = entry_prior(self.steps.model, site, value)
        transform: Any = biject_to(constraints.real if role == "place" else prior.support)
        free = transform.inv(value)

        def log_density(moved: Tensor) -> Tensor:
            at = transform(free + moved)
            found = SAID[role](own, at) + prior.log_prob(at) + transform.log_abs_det_jacobian(free + moved, at)
            return torch.where(found.isnan(), -torch.inf, found)

        number = own[1] if role in ("place", "spread") else own[0] + own[1] if role == "chance" else own[0]
        width = 2 * (1 + number.abs()).rsqrt()
        return transform(free + slice_step(log_density, width, self.generator))

    def _draw_linear(self, values: Params, counted: Sequence[Tensor]) -> Params:
        """Draw all entries of linear predictors of normals together."""
        sites = self.steps.sites_in("linear")
        if not sites:
            return {}
        mean, root = solve_normal(*self.steps.system(counted, values, sites))
        drawn = mean + root @ torch.as_tensor(self.generator.standard_normal(len(mean)))
        parts = drawn.split([values[site].numel() for site in sites])
        return {site: part.reshape(values[site].shape) for site, part in zip(sites, parts, strict=True)}

    def _draw_open(self, values: Params, counted: Sequence[Tensor]) -> Params:
        """Move the sites without closed forms along random directions."""
        steps = self.steps
        climbing = tuple(site for site in steps.climbing if site not in self._list_idle())
        if not climbing:
            return values
        sites = steps.open_sites(values, counted, self.rows.parts)
        density, start = self._open_density(sites), torch.cat([v.reshape(-1) for v in sites.start.values()])
        size = len(start)
        if self.sweeps in _SCALED or len(self._root) != size:
            self._root = _find_root(density, start)
        for _ in range(min(_MOST, max(1, int(_EACH * size)))):
            direction = torch.as_tensor(self.generator.standard_normal(size))
            direction = self._root @ (direction / direction.norm())

            def along(moved: Tensor, direction: Tensor = direction, here: Tensor = start) -> Tensor:
                return density(here + moved.reshape(()) * direction).reshape(moved.shape)

            start = start + slice_step(along, torch.full((), 2.0).double(), self.generator) * direction
        return {**values, **sites.values(sites.split(start))}

    def _open_density(self, sites: OpenSites) -> Callable[[Tensor], Tensor]:
        """Return the log density of the open sites on the unconstrained scale as a function of one vector."""
        moved, priors = {*sites.maps}, self.model.priors
        unknown = [site for site in self.model.unknown_sites if not is_flat(priors[site])]
        priced = [site for site in unknown if ({site} | {*arguments_of(priors[site])}) & moved]
        plain = {s: self.model.prior(s, like=sites.fixed[s]) for s in priced if not is_function(priors[s])}
        others = [site for site in priced if site not in plain]

        def density(vector: Tensor) -> Tensor:
            free = sites.split(vector)
            volume = torch.stack([
                sites.maps[s].log_abs_det_jacobian(sites.units[s] * v, sites.maps[s](sites.units[s] * v)).sum()
                for s, v in free.items()
            ]).sum()  # fmt: skip
            try:
                values = {**sites.fixed, **sites.values(free)}
                prior = self.model.log_prior(values, others) if others else vector.new_zeros(())
                prior = sum((own.log_prob(values[site]) for site, own in plain.items()), prior)
            except ValueError:  # where no prior is defined
                return vector.new_tensor(-torch.inf)
            found = sites.expect(free) + prior + volume
            return torch.where(found.isnan(), -torch.inf, found)

        return density


def _find_root(density: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """Return R with R R' about the covariance: minus the inverse of the curvature where there are few numbers, else of
    its diagonal alone."""
    with torch.enable_grad():
        if len(start) > _CURVED:
            leaf = start.detach().requires_grad_()
            (slope,) = torch.autograd.grad(density(leaf), leaf, create_graph=True)
            noise = torch.randn(start.shape, generator=torch.Generator().manual_seed(0), dtype=start.dtype).sign()
            (product,) = torch.autograd.grad((slope * noise).sum(), leaf)
            return torch.diag((1e-3 + (noise * product).abs()).rsqrt())
        slopes: Any = torch.autograd.functional.hessian(density, start.detach())
    curvature = -0.5 * (slopes + slopes.mT).nan_to_num(0.0, 0.0, 0.0)
    value, vector = torch.linalg.eigh(curvature)
    return vector * value.abs().clamp(min=1e-3).rsqrt()
