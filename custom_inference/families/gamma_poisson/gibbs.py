"""Collapsed Gibbs sampling of gamma-Poisson factor analysis: the sampler of ``CollapsedGibbs``."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from custom_inference.core.local_inference import Local
from custom_inference.core.posteriors import GammaDraws
from custom_inference.families.common.documents import DocumentRows
from custom_inference.families.common.explicit import Explicit, with_references
from custom_inference.families.common.hyper import with_hyper_parameters
from custom_inference.families.gamma_poisson.chain import GapChain
from custom_inference.families.gamma_poisson.common import EventRows
from custom_inference.families.gamma_poisson.engines import GapGamma
from custom_inference.families.gamma_poisson.propose import propose_loading
from custom_inference.families.topics.chain import TokenList, sweep_topics
from custom_inference.gibbs.protocol import Chain, Params, Sampler, no_bound
from ppl_models import Data, Model, PriorError

#: Passes, and draws, of the components of the events at given globals.
_LOCAL_WARMUP, _LOCAL_DRAWS = 20, 100


class GapSampler(Sampler):
    """Chains of :class:`GapChain`."""

    learns: ClassVar[bool] = True

    def check(self, model: Model, data: Data) -> None:
        _priors(model, data)

    def chain(self, model: Any, data: Data, seed: int, start: Params | None) -> Chain:
        shape, rate, prior, explicit = _priors(model, data)
        given = None if start is None else start["loading"]
        chain = GapChain(EventRows.of(data), shape, rate, prior, seed, given=given, explicit=explicit)
        return with_hyper_parameters(model, chain, {} if explicit is None else {"loading": explicit}, seed, start)

    def propose(self, model: Any, data: Data, seed: int) -> Params:
        """Loadings from a short run with some to spare, merged down: every seed draws its own."""
        generator = torch.Generator().manual_seed(seed % 2**63)
        return propose_loading(GapGamma(), model, EventRows.of(data), generator)

    def local_of_draws(self, model: Model, data: Data, locals_: Tensor) -> Local:
        found = locals_.to(data.x.dtype).to(data.x.device)
        return Local(GammaDraws(found[..., 0, :], found[..., 1, :]), no_bound(len(data), data.x))

    def local_posterior(self, model: Model, params: Params, data: Data, *, seed: int = 0) -> Local:
        """Gibbs sampling of the events' components at given loadings, the activations integrated out (no bound). Their
        Gammas given the components are mixed."""
        rows, like = EventRows.of(data), params["loading"].double()
        tokens = TokenList.of(DocumentRows(rows.counts))
        shape, rate = (part.numpy() for part in GapGamma().activation_prior(model, like))
        after = rate + rows.exposure(params["loading"]).double().numpy()
        rng, topic = np.array([seed % 2**64], np.uint64), np.full(len(tokens), -1, np.int32)
        settings: dict[str, Any] = {"weight": 1 / after}
        sweep_topics(tokens, topic, shape, like, rng, passes=_LOCAL_WARMUP, **settings)
        draws = []
        for _ in range(_LOCAL_DRAWS):
            sweep_topics(tokens, topic, shape, like, rng, **settings)
            draws.append(torch.as_tensor(np.stack([shape + tokens.counted(topic, len(shape)), after], 1)))
        return self.local_of_draws(model, data, torch.stack(draws))


def _priors(model: Any, data: Data) -> tuple[Any, Any, tuple[float, float], Explicit | None]:
    """alpha and beta; c and d of the loadings' prior or what stands for it, and the loadings where they are explicit:
    where entries are missing, their prior is no Gamma, or not the same for all entries."""
    like = torch.zeros((), dtype=torch.float64)
    forced = () if data.is_complete else ("loading",)
    conjugate, explicit = with_references(model, shared=("loading",), forced=forced)
    shape, rate = (part.numpy().copy() for part in GapGamma().activation_prior(model, like))
    if not bool((rate > 0).all()):
        raise PriorError("the prior of 'activation' is flat: no proper posterior to sample; use a Gamma, or EM")
    c, d = (float(part.mean()) for part in GapGamma().loading_prior(conjugate, like))
    return shape, rate, (c, d), explicit.get("loading")
