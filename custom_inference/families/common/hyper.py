"""Hyper-parameters in collapsed samplers: values of a chain's state, moved by slice steps.

Given the sites whose priors are functions of it, a hyper-parameter depends on nothing else. Those sites are explicit
(``explicit``), with the priors that the present values make of the functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import biject_to

from custom_inference.families.common.explicit import Explicit, dependent_sites, first_values
from custom_inference.families.common.slices import slice_step
from custom_inference.gibbs.protocol import Chain, Params
from ppl_models import Model


class HierarchicalChain(Chain):
    """A chain with the hyper-parameters of its model.

    inner: the chain at their values. explicit: its explicit sites. start: values to begin with.
    """

    def __init__(
        self, model: Model, inner: Chain, explicit: Mapping[str, Explicit], seed: int, start: Params | None = None
    ):
        self.model, self.inner, self.explicit = model, inner, explicit
        self._generator = np.random.default_rng([seed % 2**64, 1])
        self._hyper = first_values(model)
        self._hyper |= {site: value.double() for site, value in (start or {}).items() if site in self._hyper}
        self._exchange_priors()

    def sweep(self) -> None:
        """Make a sweep of the chain, then a slice step of every number of every hyper-parameter."""
        self.inner.sweep()
        for site in self._free():
            self._move(site)
        self._exchange_priors()

    def _move(self, site: str) -> None:
        scale: Any = biject_to(self.model.prior(site, values=self._hyper).support)
        u = scale.inv(self._hyper[site])
        for place in np.ndindex(*u.shape):

            def density(t: Tensor, u: Tensor = u, place: Any = place) -> Tensor:
                moved = u.clone()
                moved[place] += t
                value = scale(moved)
                volume = scale.log_abs_det_jacobian(moved, value).sum()
                found = self.model.log_prior({**self._values(), site: value}).detach() + volume
                return torch.where(torch.isnan(found), -torch.inf, found)

            u[place] += slice_step(density, torch.ones((), dtype=u.dtype), self._generator)
        self._hyper[site] = scale(u)

    def _values(self) -> Params:
        """Return the values of the hyper-parameters and of all sites that have a prior here; others do not depend on
        them."""
        return self.inner.means() | {site: one.value for site, one in self.explicit.items()} | self._hyper

    def _exchange_priors(self) -> None:
        at = self.model.at(self._hyper)
        for site in dependent_sites(self.model):
            self.explicit[site].exchange_prior(at.priors[site])

    def log_joint(self) -> float:
        priors = [self.model.prior(site, values=self._hyper).log_prob(self._hyper[site]) for site in self._free()]
        return self.inner.log_joint() + sum(float(one.sum()) for one in priors)

    def _free(self) -> list[str]:
        return [site for site in self._hyper if site in self.model.unknown_sites]

    def means(self) -> Params:
        return self.inner.means() | self._copy_hyper()

    def draw(self) -> Params:
        return self.inner.draw() | self._copy_hyper()

    def _copy_hyper(self) -> Params:
        return {site: value.clone() for site, value in self._hyper.items()}

    def indicators(self) -> Tensor:
        return self.inner.indicators()

    def locals(self) -> Tensor:
        return self.inner.locals()

    def profile(self) -> Tensor | None:
        return self.inner.profile()

    def list_sampled(self) -> dict[str, str]:
        return self.inner.list_sampled() | {site: f"{site} by slice steps" for site in self._free()}

    def learn(self, *, latents: bool = True, components: bool = True) -> None:
        self.inner.learn(latents=latents, components=components)

    def with_fitted_priors(self, model: Model) -> Model:
        return self.inner.with_fitted_priors(model)


def with_hyper_parameters(
    model: Model, chain: Chain, explicit: Mapping[str, Explicit], seed: int, start: Params | None
) -> Chain:
    """Wrap a chain with the hyper-parameters of its model; return the chain itself where the model has none."""
    return HierarchicalChain(model, chain, explicit, seed, start) if model.has_functions else chain
