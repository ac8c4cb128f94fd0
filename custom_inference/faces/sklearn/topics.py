"""Estimators of documents: perplexity, and the parameters of scikit-learn's ``LatentDirichletAllocation``."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

from custom_inference.core.posteriors import DirichletPosterior
from custom_inference.documents import held_out
from custom_inference.faces.sklearn.base import Array, Column, Table
from custom_inference.faces.sklearn.estimators import RowEstimator
from ppl_models import MethodError, Model
from ppl_models.core.document_model import TopicAdmixture
from ppl_models.core.errors import unknown_name
from ppl_models.data.held import to_numpy

#: What scikit-learn calls the concentrations of topic models.
_PRIORS = {"alpha": "doc_topic_prior", "gamma": "topic_word_prior"}
_LEARNING = ("batch", "online")


@dataclass(eq=False, repr=False)
class DocumentEstimator(RowEstimator):
    """A model of documents: a :class:`RowEstimator` of word counts, with ``perplexity``.

    Topic models have the parameters ``doc_topic_prior`` and ``topic_word_prior``: concentrations of the Dirichlet
    priors of the topic proportions and of the topics, numbers or vectors, of the topics a matrix (K, V) too; None: the
    model's own.
    """

    @classmethod
    def _concentrations(cls) -> dict[str, str]:
        known = super()._concentrations()
        return {_PRIORS.get(k, k): v for k, v in known.items()} if issubclass(cls.model_type, TopicAdmixture) else known

    def perplexity(self, X: Table, **given: Any) -> float:
        """exp(-sum_i log q(y_i) / sum_i L_i) of documents of L_i tokens: lower is better.

        q is the probability of the tokens in their order at the fitted topics, or the bound on it that
        ``bound_name_`` names, so that this is an upper bound; ``custom_inference.held_out`` has closer estimates.
        given: what the model conditions on beside X, by the names of its sites.
        """
        check_is_fitted(self)
        given = self._with_rows(given)
        return held_out(self.fit_, self._data(X), how=self.bound_name_, **given).perplexity()


@dataclass(eq=False, repr=False)
class TopicEstimator(DocumentEstimator):
    """Latent Dirichlet allocation under the names of scikit-learn's ``LatentDirichletAllocation``.

    Parameters
    ----------
    learning_method: "batch", or "online": stepwise EM by minibatches of ``batch_size`` documents, as ``partial_fit``
        learns. The t-th minibatch, t = 0, 1, ..., has the weight (t + learning_offset)^-learning_decay in the averages.
    evaluate_every: with ``verbose`` the iterations are listed after the fit, every so many of them with the perplexity
        by the objective of the fit; 0 or less: none of them.
    n_jobs: threads of ``fit``, ``partial_fit`` and ``transform``; None: those that torch has; -1: one a core.
    Others: see :class:`DocumentEstimator` and :class:`RowEstimator`.

    Attributes
    ----------
    bound_: the perplexity of the documents that were fitted to.
    Others: see :class:`RowEstimator`; ``components_`` holds probabilities, so its rows add up to 1.
    """

    _: KW_ONLY
    learning_method: str = "batch"
    learning_decay: float = 0.7
    learning_offset: float = 10.0
    batch_size: int = 128
    evaluate_every: int = -1
    n_jobs: int | None = None

    def _settings(self, model: Model) -> dict[str, Any]:
        if self.learning_method not in _LEARNING:
            raise MethodError(unknown_name("learning_method", str(self.learning_method), _LEARNING))
        online = {"batch_size": self.batch_size, **self._rates} if self.learning_method == "online" else {}
        return {**online, **super()._settings(model)}

    @property
    def _rates(self) -> dict[str, Any]:
        return {"delay": float(self.learning_offset), "forgetting": float(self.learning_decay)}

    def _stepwise(self, model: Model) -> tuple[dict[str, Any], int | None]:
        return {**self._rates, **super()._stepwise(model)[0]}, int(self.batch_size)

    def fit(self, X: Table, y: Column = None, *, sample_weight: Column = None, **others: Any) -> Self:
        """Learn the topics from word counts X (N, V), each row as often as ``sample_weight`` says; ``y`` is ignored."""
        with self._threads():
            super().fit(X, y, sample_weight=sample_weight, **others)
        if self.verbose:
            tokens, every = float(self.fit_.data.x.sum()), int(self.evaluate_every)
            for number, objective in enumerate(self.fit_.elbo.tolist(), 1):
                shown = every > 0 and number % every == 0
                perplexity = f", perplexity: {np.exp(-objective / tokens):.4f}" if shown else ""
                print(f"iteration: {number} of max_iter: {self.max_iter}{perplexity}")
        return self

    def partial_fit(self, X: Table, y: Column = None, **others: Any) -> Self:
        """Go on learning from further documents X, by minibatches of ``batch_size``; see :class:`RowEstimator`."""
        with self._threads():
            return super().partial_fit(X, y, **others)

    def transform(self, X: Table, normalize: bool = True) -> Array:
        """The posterior means of the topic proportions, (N, K).

        normalize: False gives the concentrations of the proportions' Dirichlet posteriors, whose rows do not add up to
        1. Raises MethodError where the method has other posteriors.
        """
        with self._threads():
            if normalize:
                return super().transform(X)
            check_is_fitted(self)
            posterior = self.fit_.posterior_of(self._data(X))
        if not isinstance(posterior, DirichletPosterior):
            name = self.fit_.method_name
            raise MethodError(f"normalize=False: {name} has no Dirichlet posterior of the topic proportions")
        return to_numpy(posterior.concentration)

    @property
    def bound_(self) -> float:
        """The perplexity of the documents that were fitted to."""
        check_is_fitted(self, "fit_")
        return held_out(self.fit_, self.fit_.data, how=self.bound_name_).perplexity()

    @contextlib.contextmanager
    def _threads(self) -> Iterator[None]:
        before = torch.get_num_threads()
        try:
            if self.n_jobs is not None:
                cores = (os.cpu_count() or 1) + 1 + self.n_jobs  # as scikit-learn counts: -1 is all of them
                torch.set_num_threads(max(1, self.n_jobs if self.n_jobs > 0 else cores))
            yield
        finally:
            torch.set_num_threads(before)
