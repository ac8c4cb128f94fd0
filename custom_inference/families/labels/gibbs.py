"""Collapsed Gibbs sampling of labelled LDA: LDA's sampler, with concentrations of 0 where a topic is not allowed."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from custom_inference.core.local_inference import Local
from custom_inference.families.common.explicit import Explicit
from custom_inference.families.common.hyper import with_hyper_parameters
from custom_inference.families.labels.engines import restrict_to_labels
from custom_inference.families.labels.propose import propose_labelled
from custom_inference.families.topics.chain import LdaChain, TokenList
from custom_inference.families.topics.gibbs import LdaSampler, local_draws, topic_priors
from custom_inference.gibbs.protocol import Chain, Params
from ppl_models import Data, Model


class LabelledChain(LdaChain):
    """LDA's chain, whose topics are matched within their label only.

    alpha: (N, K), 0 of topics that a document lacks. label: that of every topic (K,), -1 of common ones.
    """

    def __init__(self, tokens: TokenList, alpha: Tensor, gamma: Tensor, seed: int, label: Tensor, **settings: Any):
        self._label = torch.nn.functional.one_hot(label + 1).double()
        super().__init__(tokens, alpha.shape[1], alpha, gamma, seed, **settings)

    def profile(self) -> Tensor:
        """Topics of different labels have nothing in common by which they could be exchanged."""
        topic = torch.nn.functional.normalize(self.means()["topic"], dim=-1)
        return torch.cat([topic, self._label.to(topic)], -1)

    def with_fitted_priors(self, model: Any) -> Model:
        gamma = None if self.explicit is not None else torch.as_tensor(self.gamma)
        return model.with_concentration(alpha=torch.as_tensor(self.alpha.max(0)), gamma=gamma)


class LabelledSampler(LdaSampler):
    """Chains of :class:`LabelledChain`."""

    def chain(self, model: Any, data: Data, seed: int, start: Params | None) -> Chain:
        rows = restrict_to_labels(model, data)
        alpha, gamma, explicit = topic_priors(model)
        own = torch.as_tensor(concentrations(model, rows.weight, alpha, len(rows)))
        settings: Any = {"given": None if start is None else start["topic"], "explicit": explicit}
        chain = LabelledChain(TokenList.of(rows), own, gamma, seed, model.label_of_topic(), **settings)
        explicits: dict[str, Explicit] = {} if explicit is None else {"topic": explicit}
        return with_hyper_parameters(model, chain, explicits, seed, start)

    def propose(self, model: Any, data: Data, seed: int) -> Params:
        """Propose topics from a short run within every label, with some to spare, merged down."""
        alpha, gamma, _ = topic_priors(model)
        generator = torch.Generator().manual_seed(seed % 2**63)
        counts = propose_labelled(
            model, restrict_to_labels(model, data), alpha.expand(model.num_topics), gamma, generator
        )
        weight = counts.double() + gamma
        return {"topic": weight / weight.sum(-1, keepdim=True)}

    def local_posterior(self, model: Model, params: Params, data: Data, *, seed: int = 0) -> Local:
        rows = restrict_to_labels(model, data)  # pyright: ignore[reportArgumentType]
        alpha, _, _ = topic_priors(model)
        own = concentrations(model, rows.weight, alpha, len(rows))
        return self.local_of_draws(model, data, local_draws(rows, own, params["topic"], seed))


def concentrations(model: Any, weight: Tensor | None, alpha: Tensor, size: int) -> NDArray[np.float64]:
    """Return (N, K): alpha, 0 where a topic is not allowed."""
    own = alpha.double().expand(size, model.num_topics)
    return np.ascontiguousarray((own if weight is None else own * weight.double()).numpy())
