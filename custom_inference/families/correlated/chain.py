"""Gibbs sampling of correlated topic models, the words' topics integrated out: one chain, and its sampler.

Topics of the tokens given the logits; logits given the topics of the tokens by slice moves; their Gaussian given the
logits (``kernels``, ``seen``).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from custom_inference.core.local_inference import Local, solve_local
from custom_inference.core.posteriors import GaussianPosterior
from custom_inference.core.threads import count_shards, map_in_threads
from custom_inference.families.common.explicit import Explicit
from custom_inference.families.conjugate.dirichlet import Dirichlet
from custom_inference.families.correlated.common import CorrelatedRows, split_location
from custom_inference.families.correlated.propose import propose_globals
from custom_inference.families.correlated.seen import SeenGaussian
from custom_inference.families.topics.chain import LdaChain, TokenList
from custom_inference.families.topics.gibbs import add_hyper_parameters, words_prior
from custom_inference.gibbs.protocol import Chain, Params, Sampler, no_bound
from ppl_models import Data, PriorError
from ppl_models.core.hierarchy import is_function
from ppl_models.ctm import LogisticNormalTopics

#: Slice moves of every logit a sweep.
MOVES = 2
#: Tokens of a shard, at least: of fewer the sampler is the exact one. And shards, at most. On 200,000 tokens two lower
#: log p(x, q) by 0.003 nats a token, and raise the perplexity of held-out tokens by 0.03 %.
_SHARD_TOKENS, _MOST_SHARDS = 5e4, 2
#: Single precision holds no smaller shares in products with others.
_SMALLEST = 1e-30
#: Tokens that every topic of a document is taken to have beside its own where its first logits are made.
_FIRST = 0.5


class CorrelatedChain(LdaChain):
    """The topics of all tokens, the logits of all documents, and their Gaussian.

    rows, gamma, seed, explicit as in :class:`LdaChain`. start: values of the globals to begin with.
        Large corpora are swept in shards.
    logit: (N, K), of sum 0 in each document.
    """

    def __init__(
        self,
        model: LogisticNormalTopics,
        rows: CorrelatedRows,
        gamma: Any,
        seed: int,
        start: Params | None,
        explicit: Explicit | None,
    ):
        given = None if start is None else start["topic"]
        settings: Any = {"given": given, "constant": float(rows.log_coefficient.double().sum()), "explicit": explicit}
        tokens = TokenList.of(rows)
        shards = count_shards(len(tokens), tokens.vocabulary_size * model.num_topics / 4, _SHARD_TOKENS)
        shards = min(shards, _MOST_SHARDS)
        super().__init__(tokens, model.num_topics, 1.0, gamma, seed, shards=shards, **settings)
        self.model, self.gaussian = model, SeenGaussian(model)
        law = (*model.location_sites, "covariance")
        #: Known values themselves: those in the Gaussian's coordinates are rounded.
        self._held = {site: value.double() for site, value in model.known.items() if site in law}
        self._free = [site for site in law if site not in self._held]
        self._design, self._scale = (part.double().cpu().numpy() for part in (rows.design, rows.scale))
        self._length = rows.lengths.double().cpu().numpy()
        if start is not None:
            self.gaussian.settle(model.location(start).double().numpy(), start["covariance"].double().numpy())
        mean = self._design @ self.gaussian.location @ self._seen.T
        first = self.document_topic if given is not None else np.zeros_like(mean)
        logit = np.log(first + _FIRST) if given is not None else mean + self._noise()
        self.logit = np.ascontiguousarray(logit - logit.mean(1, keepdims=True))
        self._unseen: Params | None = None

    @property
    def _seen(self) -> NDArray[np.float64]:
        return self.gaussian.basis[:, :-1]

    def _noise(self) -> NDArray[np.float64]:
        """A draw of every document's logits less their mean, (N, K)."""
        if self.num_topics == 1:
            return np.zeros((len(self._length), 1))
        root = self._seen @ np.linalg.cholesky(self.gaussian.covariance)
        noise = self._generator.standard_normal((len(self._length), self.num_topics - 1))
        return np.sqrt(self._scale)[:, None] * (noise @ root.T)

    def sweep(self) -> None:
        """Draw topics of all tokens, new values of explicit topics, logits, and their Gaussian."""
        from custom_inference.families.correlated import kernels

        super().sweep()
        self._unseen = None
        count = self.document_topic.astype(np.float64)
        mean = self._design @ self.gaussian.location @ self._seen.T
        if self.num_topics > 1:
            precision = self._seen @ np.linalg.inv(self.gaussian.covariance) @ self._seen.T

            def move(shard: tuple[tuple[int, int], NDArray[np.uint64]]) -> None:
                own, random = slice(*shard[0]), shard[1]
                scale, length = self._scale[own], self._length[own]
                for _ in range(MOVES):
                    kernels.move_logits(self.logit[own], mean[own], precision, scale, count[own], length, random)

            streams: Any = self._random if len(self._shards) > 1 else [self._rng]
            map_in_threads(move, zip(self._shards, streams, strict=True))
        self.gaussian.update(self.logit @ self._seen, self._design, self._scale, self._generator)

    def _shares(self) -> NDArray[np.float64]:
        """exp z (N, K), up to a factor of each document."""
        return np.exp(self.logit - self.logit.max(1, keepdims=True))

    def _sweep_integrated(self) -> None:
        from custom_inference.families.correlated import kernels

        share = self._in_single(self._shares().clip(_SMALLEST))
        gamma = self.gamma.clip(_SMALLEST).astype(np.float32)

        def sweep(documents: tuple[int, int], *state: NDArray[Any]) -> None:
            low, high = documents
            given: Any = (self.tokens.word, self.topic, self.tokens.start[low : high + 1], share[low:high], gamma)
            kernels.sweep_tokens(*given, *state)

        self._sweep_shards(sweep)

    def _draw_given(self, topics: Tensor) -> None:
        by_word = topics.double().numpy().T.clip(_SMALLEST)  # given these the tokens are independent of each other
        weight = self._shares().clip(_SMALLEST)[self.tokens.document] * by_word[self.tokens.word]
        cumulative = weight.cumsum(1)
        level = self._generator.random(len(weight)) * cumulative[:, -1]
        self.assign((cumulative[:, :-1] <= level[:, None]).sum(1).astype(np.int32))

    def _log_documents(self) -> float:
        """Compute log p(q | z) p(z | B, Sigma) p(B) p(Sigma), of z, B and Sigma in the coordinates that the tokens
        see."""
        count, top = self.document_topic, self.logit.max(1)
        log_sum = top + np.log(np.exp(self.logit - top[:, None]).sum(1))
        tokens = float((count * self.logit).sum() - self._length @ log_sum)
        return tokens + self.gaussian.log_density(self.logit @ self._seen, self._design, self._scale)

    def means(self) -> Params:
        weight = self.word_topic.T + self.gamma
        location, covariance = map(torch.as_tensor, self.gaussian.means())
        topic = torch.as_tensor(weight / weight.sum(1, keepdims=True))
        law = {**split_location(self.model, location), "covariance": covariance}
        return {"topic": topic, **law, **self._held, **self._values()}

    def draw(self) -> Params:
        topic = Dirichlet(torch.as_tensor(self.word_topic.T + self.gamma)).draw(self._generator)
        return {"topic": topic, **self._draw_unseen(), "topic_logit": self.locals()} | self._values()

    def _draw_unseen(self) -> Params:
        """Return B and Sigma with what is not seen drawn, the same until the next sweep."""
        if self._unseen is None:
            location, covariance = map(torch.as_tensor, self.gaussian.draw(self._generator))
            self._unseen = {**split_location(self.model, location), "covariance": covariance, **self._held}
        return self._unseen

    def locals(self) -> Tensor:
        """z (N, K), a draw of it from p(z | rest): with the part that the tokens do not see."""
        drawn, basis = self._draw_unseen(), self.gaussian.basis
        covariance = basis.T @ drawn["covariance"].numpy() @ basis
        mean = self._design @ self.model.location(drawn).numpy() @ basis
        off, slope = self.logit @ self._seen - mean[:, :-1], np.zeros(self.num_topics - 1)
        if self.num_topics > 1:
            slope = np.linalg.solve(covariance[:-1, :-1], covariance[:-1, -1])
        variance = max(covariance[-1, -1] - covariance[-1, :-1] @ slope, 0.0)
        noise = self._generator.standard_normal(len(off)) * np.sqrt(self._scale * variance)
        return torch.as_tensor(self.logit + (mean[:, -1] + off @ slope + noise)[:, None] * basis[:, -1])

    def list_sampled(self) -> dict[str, str]:
        found = {"topic_logit": "topic_logit by slice moves"}
        if self._free:
            found[self._free[-1]] = f"{' and '.join(self._free)} given the logits"
        held = {site: f"{site} held at its known value" for site in self._held}
        return super().list_sampled() | found | held

    def learn(self) -> None:
        """Nothing: the Gaussian is sampled, and the topics' concentration stays."""

    def with_fitted_priors(self, model: LogisticNormalTopics) -> Any:
        return model


class CorrelatedSampler(Sampler):
    """Chains of :class:`CorrelatedChain`."""

    def check(self, model: LogisticNormalTopics, data: Data) -> None:
        for site in (*model.location_sites, "covariance"):
            if is_function(model.priors[site]):
                raise PriorError(f"collapsed Gibbs sampling takes no prior of '{site}' that is a function; use NUTS")
        SeenGaussian(model)
        words_prior(model)

    def chain(self, model: LogisticNormalTopics, data: Data, seed: int, start: Params | None) -> Chain:
        _, gamma, explicit = words_prior(model)
        chain = CorrelatedChain(model, CorrelatedRows.read(model, data), gamma, seed, start, explicit)
        return add_hyper_parameters(model, chain, seed, start)

    def propose(self, model: LogisticNormalTopics, data: Data, seed: int) -> Params:
        """Topics from the best of short runs of EM, and the moments of their logits."""
        generator = torch.Generator().manual_seed(seed % 2**63)
        rows = CorrelatedRows.read(model, data).to(torch.float64)
        return propose_globals(model, rows, words_prior(model)[1], generator)

    def local_of_draws(self, model: LogisticNormalTopics, data: Data, locals_: Tensor) -> Local:
        """The Gaussian with the draws' mean and covariance; of few draws drawn to its diagonal."""
        draws = locals_.double()
        mean, number, size = draws.mean(0), len(draws), draws.shape[-1]
        off = draws - mean
        covariance = torch.einsum("snk,snl->nkl", off, off) / max(number - 1, 1)
        trust = number / (number + size + 1)
        own = covariance.diagonal(dim1=-2, dim2=-1).clamp_min(1e-6)
        shrunk = trust * covariance + (1 - trust) * torch.diag_embed(own)
        return Local(GaussianPosterior(mean.to(data.x), shrunk.to(data.x)), no_bound(len(data), data.x))

    def local_posterior(self, model: LogisticNormalTopics, params: Params, data: Data, *, seed: int = 0) -> Local:
        """Infer the locals at given globals by the Gaussian of the variational engine, with its bound."""
        return solve_local(model, params, data, bound="gaussian", seed=seed)
