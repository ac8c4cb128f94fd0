"""Collapsed Gibbs sampling of gamma-Poisson factor analysis: the sampler of ``CollapsedGibbs``."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from custom_inference.core.local_inference import Local
from custom_inference.core.posteriors import GammaTerms
from custom_inference.families.common.explicit import Explicit, with_references
from custom_inference.families.common.hyper import with_hyper_parameters
from custom_inference.families.gamma_poisson.chain import GapChain
from custom_inference.families.gamma_poisson.common import EventRows, activation_parameters
from custom_inference.families.gamma_poisson.engines import GapGamma
from custom_inference.families.gamma_poisson.propose import propose_loading
from custom_inference.gibbs.protocol import Chain, Params, Sampler, draw_locals, no_bound
from ppl_models import Data, GammaPoisson, PriorError

#: Passes, and draws, of the components of the events at given globals.
_LOCAL_WARMUP, _LOCAL_DRAWS = 20, 100


class GapSampler(Sampler):
    """Chains of :class:`GapChain`."""

    learns: ClassVar[bool] = True

    def check(self, model: GammaPoisson, data: Data) -> None:
        _priors(model, data)

    def chain(self, model: GammaPoisson, data: Data, seed: int, start: Params | None) -> Chain:
        (shape, rate, spike), prior, explicit = _priors(model, data)
        settings: Any = {"spike": spike, "given": None if start is None else start["loading"], "explicit": explicit}
        chain = GapChain(EventRows.of(data), shape, rate, prior, seed, **settings)
        return with_hyper_parameters(model, chain, {} if explicit is None else {"loading": explicit}, seed, start)

    def propose(self, model: GammaPoisson, data: Data, seed: int) -> Params:
        """Loadings from a short run with some to spare, merged down: every seed draws its own."""
        generator = torch.Generator().manual_seed(seed % 2**63)
        return propose_loading(GapGamma(), model, EventRows.of(data), generator)

    def local_of_draws(self, model: GammaPoisson, data: Data, locals_: Tensor) -> Local:
        found = locals_.to(data.x.dtype).to(data.x.device)
        return Local(GammaTerms.of_draws(found[..., 0, :], found[..., 1, :]), no_bound(len(data), data.x))

    def local_posterior(self, model: GammaPoisson, params: Params, data: Data, *, seed: int = 0) -> Local:
        """Gibbs sampling of the events' components at given loadings, the activations integrated out (no bound). Their
        Gammas given the components are mixed."""
        known = model.with_priors(loading=params["loading"].double())
        chain = self.chain(known, data, seed, {"loading": params["loading"]})
        return self.local_of_draws(model, data, draw_locals(chain, _LOCAL_WARMUP, _LOCAL_DRAWS))


def _priors(model: GammaPoisson, data: Data) -> tuple[tuple[Any, ...], tuple[float, float], Explicit | None]:
    """alpha, beta and rho; c and d of the loadings' prior or what stands for it, and the loadings where they are
    explicit: where entries are missing, their prior is no Gamma, or not the same for all entries."""
    like = torch.zeros((), dtype=torch.float64)
    forced = () if data.is_complete else ("loading",)
    conjugate, explicit = with_references(model, shared=("loading",), forced=forced)
    shape, rate, spike = (part.numpy().copy() for part in activation_parameters(model, like))
    if not bool((rate > 0).all()):
        raise PriorError("the prior of 'activation' is flat: no proper posterior to sample; use a Gamma, or EM")
    c, d = (float(part.mean()) for part in GapGamma().loading_prior(conjugate, like))
    return (shape, rate, spike), (c, d), explicit.get("loading")
