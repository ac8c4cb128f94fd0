"""Collapsed Gibbs sampling of latent Dirichlet allocation: the sampler of ``CollapsedGibbs``."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from custom_inference.core.local_inference import Local
from custom_inference.core.posteriors import DirichletDraws
from custom_inference.families.common.explicit import Explicit, with_references
from custom_inference.families.common.hyper import with_hyper_parameters
from custom_inference.families.conjugate.dirichlet import Dirichlet, normalise
from custom_inference.families.rows.documents import DocumentRows
from custom_inference.families.topics.chain import LdaChain, TokenList, sweep_topics, vector
from custom_inference.families.topics.propose import propose_topics
from custom_inference.gibbs.protocol import Chain, Params, Sampler, no_bound
from ppl_models import Data, Model
from ppl_models.core.document_model import TopicAdmixture

#: Passes, and draws, of the documents' topics at given globals.
LOCAL_WARMUP, LOCAL_DRAWS = 20, 100


class LdaSampler(Sampler):
    """Chains of :class:`LdaChain` for LDA and its variants."""

    learns: ClassVar[bool] = True

    def check(self, model: TopicAdmixture, data: Data) -> None:
        topic_priors(model)

    def chain(self, model: TopicAdmixture, data: Data, seed: int, start: Params | None) -> Chain:
        rows = DocumentRows.of(data, coefficient=model.coefficient)
        alpha, gamma, explicit = topic_priors(model)
        given = None if start is None else start["topic"]
        constant = float(rows.log_coefficient.double().sum())
        settings: Any = {"given": given, "constant": constant, "explicit": explicit}
        chain = LdaChain(TokenList.of(rows), model.num_topics, alpha, gamma, seed, **settings)
        return add_hyper_parameters(model, chain, seed, start)

    def propose(self, model: TopicAdmixture, data: Data, seed: int) -> Params:
        """Propose topics from a short run with some to spare, merged down (``propose``): every seed draws its own."""
        alpha, gamma, _ = topic_priors(model)
        generator = torch.Generator().manual_seed(seed % 2**63)
        counts = propose_topics(DocumentRows.of(data), alpha.expand(model.num_topics), gamma, generator)
        return {"topic": normalise(counts.double() + gamma)}

    def local_of_draws(self, model: Model, data: Data, locals_: Tensor) -> Local:
        return Local(DirichletDraws(locals_.to(data.x)), no_bound(len(data), data.x))

    def local_posterior(self, model: TopicAdmixture, params: Params, data: Data, *, seed: int = 0) -> Local:
        """Sample the tokens' topics by Gibbs steps at given topics, the proportions integrated out (no bound). Draws of
        q_il come from p(q_il = k | rest) ~ b_kv (c_ik + alpha_k); their Dirichlet(alpha + c_i) are mixed."""
        alpha = vector(Dirichlet.of(model, "topic_proportion", data.x).concentration, model.local_shape[0])
        return self.local_of_draws(model, data, local_draws(DocumentRows.of(data), alpha, params["topic"], seed))


def local_draws(rows: DocumentRows, alpha: NDArray[np.float64], topics: Tensor, seed: int) -> Tensor:
    """Draw alpha + c_i (S, N, K) at given topics; alpha (K,) or (N, K)."""
    tokens = TokenList.of(rows)
    rng, topic = np.array([seed % 2**64], np.uint64), np.full(len(tokens), -1, np.int32)
    draws = []
    sweep_topics(tokens, topic, alpha, topics, rng, passes=LOCAL_WARMUP)
    for _ in range(LOCAL_DRAWS):
        sweep_topics(tokens, topic, alpha, topics, rng)
        draws.append(torch.as_tensor(alpha + tokens.count_topics(topic, alpha.shape[-1])))
    return torch.stack(draws)


def topic_priors(model: TopicAdmixture) -> tuple[Tensor, Tensor, Explicit | None]:
    """Return alpha and gamma, of the Dirichlet priors or what stands for them, and the topics where they are explicit:
    where their prior is no Dirichlet, or not the same for all of them."""
    conjugate, gamma, explicit = words_prior(model)
    return Dirichlet.of(conjugate, "topic_proportion", gamma).concentration, gamma, explicit


def words_prior(model: Model) -> tuple[Model, Tensor, Explicit | None]:
    """Return the model with conjugate priors, gamma of the topics', (V,) or one number, and the topics where they are
    explicit."""
    conjugate, explicit = with_references(model, shared=("topic",))
    gamma = Dirichlet.of(conjugate, "topic", torch.zeros((), dtype=torch.float64)).concentration
    return conjugate, gamma if gamma.ndim < 2 else gamma.mean(0), explicit.get("topic")


def add_hyper_parameters(model: Model, chain: LdaChain, seed: int, start: Params | None) -> Chain:
    """Return the chain with the hyper-parameters of its model, if there are any."""
    return with_hyper_parameters(model, chain, {} if chain.explicit is None else {"topic": chain.explicit}, seed, start)
