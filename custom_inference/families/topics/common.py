"""What the engines of LDA and PLSA share that estimate the topics as points: data, priors, M step, starts.

Given c_kv, the expected number of tokens of word v that topic k wrote, the M step is b_kv proportional to c_kv plus
the prior's pseudo-counts (Murphy, eqs. 27.42 and 27.46): gamma_v - 1 where every gamma_v >= 1, so that flat priors give
maximum likelihood, and else gamma_v as printed, which is the mode in the softmax basis (see ``conjugate.pair``).
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from custom_inference.core.engine import Engine, EStep, Params
from custom_inference.core.states import State
from custom_inference.families.conjugate.dirichlet import Dirichlet, Groups
from custom_inference.families.rows.documents import DocumentRows
from ppl_models import Data, Model
from ppl_models.data import sparse as _sparse

#: Word probabilities and proportions are kept this far from 0: nothing meets log 0, and no number becomes so small that
#: the processor slows down.
FLOOR = 1e-12


class TopicEngine(Engine):
    """Base of the engines with topics: ``rows``, ``check``, ``initial`` and ``m_step``."""

    #: The site of the topics b; where it is (K, R, C), R groups of words side by side make a topic.
    site: ClassVar[str] = "topic"
    #: How even random starts are: the words of the topics are multiplied by Gamma variables of this shape.
    noise_shape: ClassVar[int] = 1

    def alpha(self, model: Model, like: Tensor) -> Tensor:
        """Return the concentration of the proportions' prior, (K,). Raises MethodError where that is not a
        Dirichlet."""
        return Dirichlet.of(model, model.local_site, like).concentration.expand(model.local_shape)

    def document_alpha(self, model: Model, state: Params | State, rows: DocumentRows) -> Tensor:
        """Return the concentration of the documents at a state: (K,), or (N, K) where it depends on what is given with
        them."""
        return self.alpha(model, rows.like.values())

    def words_prior(self, model: Model, like: Tensor) -> Tensor:
        """Return the concentration gamma of the topics' prior, broadcastable to (K, V)."""
        return Dirichlet.of(model, self.site, like).concentration

    def groups(self, model: Model) -> Groups:
        """Return the number of groups of words in each of which a topic's probabilities add up to 1."""
        return 1

    def topics(self, model: Model, params: Params) -> Tensor:
        """Return the topics b, (K, V)."""
        return params[self.site].flatten(1)

    def to_site_shape(self, model: Model, topic: Tensor) -> Tensor:
        """Reshape b (K, V) to the shape of its site."""
        return topic.view(model.shapes[self.site])

    def rows(self, model: Model, data: Data) -> DocumentRows:
        return DocumentRows.of(data, coefficient=bool(getattr(model, "coefficient", False)))

    def check(self, model: Model, rows: DocumentRows) -> None:
        """Raises MethodError for priors without closed-form updates."""
        like = rows.like.values()
        self.alpha(model, like)
        self.words_prior(model, like)

    def random_counts(self, model: Model, rows: DocumentRows, generator: torch.Generator) -> Tensor:
        """Multiply the corpus' word frequencies by a Gamma(noise_shape) variable in every topic, (K, V)."""
        frequency = _sparse.column_sums(rows.counts) + 1
        weight = torch.zeros(model.shapes[self.site][0], len(frequency), dtype=torch.float64)
        for _ in range(self.noise_shape):
            weight -= torch.log1p(-torch.rand(weight.shape, generator=generator, dtype=weight.dtype) * (1 - 1e-6))
        return frequency * weight.to(frequency)

    def initial(self, model: Model, rows: DocumentRows, generator: torch.Generator) -> Any:
        weight = self.random_counts(model, rows, generator)
        return self.complete(model, {self.site: weight / weight.sum(-1, keepdim=True)})

    def from_counts(self, model: Model, counts: Tensor) -> Any:
        """Compute the parameters to start from at given expected tokens of every word in every topic, (K, V)."""
        return self.complete(model, self.best_topics(model, counts), counts)

    def complete(self, model: Model, params: Params, counts: Tensor | None = None) -> Params:
        """Add what starts have beside the topics; by default nothing."""
        del model, counts
        return params

    def best_topics(self, model: Model, counts: Tensor) -> Params:
        """Compute the topics at their best given the expected tokens."""
        topic = Dirichlet(self.words_prior(model, counts), self.groups(model)).mode(counts, floor=FLOOR)
        return {self.site: self.to_site_shape(model, topic)}

    def m_step(self, model: Model, params: Params, step: EStep, rows: DocumentRows) -> Params:
        return {**params, **self.best_topics(model, step.statistics["topic"])}

    def prior_term(self, model: Model, params: Params) -> Tensor | float:
        """Sum the log prior densities, that of the topics in the basis in which the M step takes its mode."""
        topic = self.topics(model, params)
        others = [site for site in model.global_sites if site in params and site != self.site]
        density = Dirichlet(self.words_prior(model, topic), self.groups(model)).log_density(topic).double()
        return density + sum(model.prior(site, like=params[site]).log_prob(params[site]) for site in others)
