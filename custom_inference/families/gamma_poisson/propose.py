"""Starts for gamma-Poisson factor analysis: those of topic models, scaled; for NMF, singular vectors.

The latter are those of Boutsidis & Gallopoulos (*SVD based initialization: a head start for nonnegative matrix
factorization*, Pattern Recognition 41, 2008): of each singular triple (s, u, v) the positive parts u+ v+ or the
negative ones u- v-, whichever product is the larger. Entries start at the mean of the counts at least (NNDSVDa: zeros).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from custom_inference.families.gamma_poisson.common import EventRows, GapEngine
from custom_inference.families.topics.propose import PointProposals, propose_topics
from ppl_models import GammaPoisson
from ppl_models.data import sparse as _sparse

#: The largest concentrations that starts are sampled under: under flat priors a sampler hardly tells components apart.
_MOST_SHAPE, _MOST_LOADING = 0.1, 0.05
#: Of rows that are few in NMF, the random starts that a start is the best of, and the iterations they have.
_FEW_ROWS, _RANDOM, _OWN_ITERATIONS = 500, 4, 40
#: Smaller matrices are decomposed whole.
_DENSE = 100


def propose_loading(engine: GapEngine, model: GammaPoisson, rows: EventRows, generator: torch.Generator) -> Any:
    """Sampled components of the events, more than asked for and merged: as topics of documents are."""
    like = rows.like.values()
    shape = engine.activation_prior(model, like)[0].clamp(max=_MOST_SHAPE)
    counts = propose_topics(rows, shape, like.new_tensor(_MOST_LOADING), generator)
    return engine.from_counts(model, counts, len(rows))


def singular_loading(counts: Tensor, number: int) -> Tensor:
    """Expected events of so many components, (K, D), from the singular vectors of counts (N, D) in CSR layout."""
    from scipy.sparse.linalg import svds

    matrix: Any = _sparse.to_scipy(counts).astype(np.float64)
    if min(matrix.shape) <= max(_DENSE, 3 * number):
        u, s, v = np.linalg.svd(matrix.toarray(), full_matrices=False)
    else:
        triples: Any = svds(matrix, number, v0=np.ones(min(matrix.shape)))
        u, s, v = triples
    largest = np.argsort(-s)[:number]
    u, s, v = u.T[largest], s[largest], v[largest]
    signs = np.array([1.0, -1.0])[:, None, None]
    left, right = (signs * u).clip(0), (signs * v).clip(0)
    size = np.linalg.norm(left, axis=-1) * np.linalg.norm(right, axis=-1)  # (2, K)
    sign, every = size.argmax(0), np.arange(len(s))
    activation, loading = np.zeros((number, matrix.shape[0])), np.zeros((number, matrix.shape[1]))
    for part, chosen in ((activation, left[sign, every]), (loading, right[sign, every])):
        norm = np.linalg.norm(chosen, axis=-1, keepdims=True)
        part[: len(s)] = np.sqrt(s * size[sign, every])[:, None] * chosen / np.maximum(norm, np.finfo(float).tiny)
        part.clip(matrix.mean(), out=part)
    return torch.from_numpy(activation.sum(1, keepdims=True) * loading).to(counts)


class GapProposals(PointProposals):
    """Starts of the engines of gamma-Poisson factor analysis."""

    random_rows = 250
    site = "loading"

    def propose(self, model: GammaPoisson, rows: EventRows, generator: torch.Generator, attempt: int) -> Any:
        """Sampled components; of few rows, two times in three, random ones."""
        if super().at_random(attempt, len(rows)):
            return self.engine.initial(model, rows, generator)
        return propose_loading(self.engine, model, rows, generator)

    def at_random(self, attempt: int, num_rows: int) -> bool:
        return super().at_random(attempt, num_rows) and type(self).propose is GapProposals.propose


class NmfProposals(GapProposals):
    """Starts for NMF; with many rows singular vectors alone: sampled components have too many zeros that updates
    keep."""

    alike = 0.999  # optima are close to each other

    def propose(self, model: GammaPoisson, rows: EventRows, generator: torch.Generator, attempt: int) -> Any:
        """Singular vectors at first; of few rows the best of these, random and sampled components after iterations of
        their own: optima are many there, and told from each other late."""
        if not self.engine.has_point_locals:  # dear E steps, and fewer optima
            return super().propose(model, rows, generator, attempt)
        engine: Any = self.engine
        singular = []
        if not attempt:
            loading = singular_loading(rows.counts, model.local_shape[0])
            singular = [engine.from_counts(model, loading, len(rows))]
            if len(rows) >= _FEW_ROWS:
                return singular[0]
        random = [engine.initial(model, rows, generator) for _ in range(_RANDOM)]
        # Entries that are no counts have no events whose components could be sampled.
        sampled = [propose_loading(engine, model, rows, generator)] if rows.whole else []
        settled = [self._run_iterations(model, rows, state) for state in (*singular, *random, *sampled)]
        return max(settled, key=lambda found: found[0])[1]

    def _run_iterations(self, model: GammaPoisson, rows: EventRows, state: Any) -> tuple[float, Any]:
        """Run some iterations; return the bound, and the state it is of."""
        step = self.engine.e_step(model, state, rows)
        for _ in range(_OWN_ITERATIONS):
            state = self.engine.m_step(model, state, step, rows)
            step = self.engine.e_step(model, state, rows, step.locals)
        return float(step.bound.sum()), state

    def search_size(self, model: GammaPoisson, num_rows: int) -> tuple[int, int]:
        """Return the number of starts and of rows; with many rows one start: the starts that lead after a few
        iterations are sharp, and end lower."""
        starts, size = super().search_size(model, num_rows)
        alone = num_rows >= _FEW_ROWS and self.engine.has_point_locals
        return (1 if alone else starts), size
