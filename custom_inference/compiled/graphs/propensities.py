"""Numbers of nodes that the rates of their dyads are multiplied with, as under degree correction.

    x_ij | a, b ~ Poisson(r_i s_j w_ab),    r and s products of sites over nodes, t = one of these

Given w and the labels, with d_i the edges of a node and e_i t_i its expected ones, t_i has the mode of a rate with d_i
events and exposure e_i. A site that both ends of a dyad have is updated in all nodes at once, under the bound

    t_i t_j <= (t_i^2 u_j / u_i + t_j^2 u_i / u_j) / 2,

tight at u, the values before: t_i solves (e_i / u_i) t^2 + rate t = d_i + powers, with e_i at u.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import constraints

from custom_inference.compiled.probes import alike
from custom_inference.compiled.reading import NotCompiled
from custom_inference.families.blocks.nodes import find_scales
from custom_inference.families.conjugate.gamma import Gamma
from ppl_models import GraphModel, Model, PriorError

Floats = NDArray[np.float64]
#: Given numbers (N,) of nodes and the side of a node, the sum over its observed dyads on that side of the other's
#: number times E[w], (N,).
Partners = Callable[[Floats, int], Floats]
#: Propensities are kept this far from 0.
_FLOOR = 1e-10
#: Updates of a site that both ends have, in one M step.
_PASSES = 4


@dataclass(frozen=True)
class Propensities:
    """Sites over nodes that rates are multiplied with. ends: site -> the ends of dyads whose number it is: of their
    first nodes (0), their second ones (1), or both. modes: of two-mode graphs how many nodes are first ones, of which
    alone r is not 0, as s is of the others."""

    ends: Mapping[str, tuple[int, ...]]
    modes: int | None = None

    def weights(self, values: Mapping[str, Tensor], size: int) -> Floats:
        """Return r and s, (2, N)."""
        found = np.ones((2, size))
        if self.modes is not None:
            found[0, self.modes :] = found[1, : self.modes] = 0.0
        for site, ends in self.ends.items():
            for end in ends:
                found[end] *= values[site].detach().cpu().double().numpy()
        return found

    def check(self, model: Model) -> None:
        """Raise NotCompiled for priors without closed forms."""
        for site in self.ends:
            if site not in model.known:
                try:
                    Gamma.of(model, site, torch.zeros(0, dtype=torch.float64))
                except PriorError as error:
                    raise NotCompiled(f"{type(model).__name__} is not compiled: {error}") from None

    def update(
        self, model: Model, values: Mapping[str, Tensor], degrees: Floats, partners: Partners
    ) -> dict[str, Tensor]:
        """Return better values of the sites, one after the other. degrees (2, N): the edges of nodes, as first nodes of
        dyads and as second."""
        found = dict(values)
        for site, ends in self.ends.items():
            if site not in model.known:
                found[site] = torch.as_tensor(self._update(model, site, ends, found, degrees, partners))
        return found

    def _update(
        self, model: Model, site: str, ends: tuple[int, ...], values: Mapping[str, Tensor], degrees: Floats,
        partners: Partners,
    ) -> Floats:  # fmt: skip
        value = values[site].double().numpy()
        prior = Gamma.of(model, site, torch.zeros(0, dtype=torch.float64))
        others = replace(self, ends={name: one for name, one in self.ends.items() if name != site})
        rest = others.weights(values, len(value))
        events = degrees[list(ends)].sum(0)
        if len(ends) == 1:
            end = ends[0]
            exposure = rest[end] * partners(rest[1 - end], end)
            return prior.mode(torch.as_tensor(events), torch.as_tensor(exposure), floor=_FLOOR).numpy()
        powers, rate = (part.expand(len(value)).numpy() for part in (prior.powers, prior.rate))
        for _ in range(_PASSES):
            exposure = sum((rest[end] * partners(rest[1 - end] * value, end) for end in ends), np.zeros(len(value)))
            square = np.maximum(exposure / value, 0)
            # The positive root, written so that square = 0 is no special case.
            root = rate + np.sqrt(rate**2 + 4 * square * np.maximum(events + powers, 0))
            value = np.maximum(2 * (events + powers) / np.maximum(root, _FLOOR), _FLOOR)
        return value

    @property
    def scales(self) -> tuple[str, ...]:
        """The sites whose scale in a block may be exchanged for that of w: one that both ends have, or one of each;
        none of others."""
        every = sorted(self.ends.items(), key=lambda one: one[1])
        return tuple(site for site, _ in every) if [ends for _, ends in every] in ([(0, 1)], [(0,), (1,)]) else ()

    def rescale(
        self, model: Model, values: Mapping[str, Tensor], label: NDArray[np.int64], matrix: Floats,
        prior: tuple[Floats, Floats],
    ) -> dict[str, Tensor]:  # fmt: skip
        """Rescale the propensities block by block to the scale that suits the priors, were labels (N,) certain: there
        the likelihood is the same for t_i c_a, w_ab / (c_a c_b), and coordinate ascent would crawl.

        prior: of w, (power, rate) (K, K).
        """
        sums, blocks = list[Any](), len(matrix)
        for site in self.scales:
            own, value = Gamma.of(model, site, torch.zeros(0, dtype=torch.float64)), values[site].double().numpy()
            powers, rate = (part.expand(len(value)).numpy() for part in (own.powers, own.rate))
            sums.append([np.bincount(label, powers, blocks), np.bincount(label, rate * value, blocks)])
        linear, growing = np.array(sums).transpose(1, 0, 2)
        moves = np.exp(find_scales(linear, growing, matrix, prior))
        moved = {s: values[s].double() * torch.as_tensor(own[label]) for s, own in zip(self.scales, moves, strict=True)}
        return {**values, **moved}


def candidates(model: GraphModel) -> list[str]:
    """Sites that may be propensities: positive numbers of nodes."""
    return [s for s in model.shapes if model.dims[s] == ("node",) and model.supports[s] is constraints.positive]


def find_ends(
    model: GraphModel, ratio: Tensor, params: Mapping[str, Tensor], i: Tensor, j: Tensor
) -> dict[str, tuple[int, ...]] | None:
    """Find the ends whose numbers multiply the rates of dyads (i, j), from what these are in excess of others, (M,);
    None where nothing fits."""
    sites = candidates(model)
    for chosen in itertools.product(((), (0, 1), (0,), (1,)), repeat=len(sites)):
        product = torch.ones_like(ratio)
        for site, ends in zip(sites, chosen, strict=True):
            for end in ends:
                product = product * params[site][(i, j)[end]]
        if bool(alike(ratio, product).all()):
            return {site: ends for site, ends in zip(sites, chosen, strict=True) if ends}
    return None
