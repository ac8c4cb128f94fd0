"""Small graphs for the tests of block models, of every kind, and their references."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
import torch

from ppl_models import SBM, DegreeCorrectedSBM, PoissonSBM
from tests.references import degree_corrected_sbm, poisson_sbm, sbm

MODELS = {SBM: sbm, PoissonSBM: poisson_sbm, DegreeCorrectedSBM: degree_corrected_sbm}
#: Every model, directed or not, with self loops or without.
KINDS = list(itertools.product(MODELS, (True, False), (False, True)))


class Case(NamedTuple):
    model: Any
    x: np.ndarray
    mask: np.ndarray
    params: dict[str, torch.Tensor]
    shares: np.ndarray

    @property
    def settings(self) -> dict[str, bool]:
        return {"directed": self.model.directed, "self_loops": self.model.self_loops}

    @property
    def reference(self) -> Any:
        return MODELS[type(self.model)]

    @property
    def data(self) -> Any:
        return self.model.prepare(self.x, mask=self.mask, dtype=torch.float64)

    @property
    def graph(self) -> Any:
        """The reference at the globals."""
        values = {site: value.numpy() for site, value in self.params.items()}
        return self.reference.graph(values, self.x, self.mask, **self.settings)


def case(kind: Any, directed: bool, loops: bool, *, size: int = 6, blocks: int = 3, seed: int = 0) -> Case:
    """A random graph with hidden dyads, random globals, random shares."""
    rng = np.random.default_rng(seed)

    def symmetric(value: np.ndarray) -> np.ndarray:
        return value if directed else np.triu(value) + np.triu(value, 1).T

    x = symmetric(rng.integers(0, 2 if kind is SBM else 4, (size, size)).astype(float))
    mask = symmetric(rng.random((size, size)) > 0.15) > 0
    for i in range(size):  # no node without edges
        x[i, i - 1] = x[i - 1, i] = max(x[i, i - 1], 1)
        mask[i, i - 1] = mask[i - 1, i] = True
    if not loops:
        np.fill_diagonal(x, 0)
        np.fill_diagonal(mask, True)
    model = kind(num_blocks=blocks, num_nodes=size, directed=directed, self_loops=loops)
    params = {"block_proportion": rng.dirichlet(np.ones(blocks))}
    params[model.component_site] = symmetric(rng.uniform(0.1, 0.9, (blocks, blocks)))
    for site in getattr(model, "propensity_sites", ()):
        params[site] = rng.uniform(0.3, 1.5, size)
    tensors = {site: torch.as_tensor(value) for site, value in params.items()}
    return Case(model, x * mask, mask, tensors, rng.dirichlet(np.ones(blocks), size))


def planted(
    matrix: np.ndarray, sizes: list[int], seed: int, *, directed: bool = True, propensity: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """A graph with given edge probabilities between blocks of given sizes, and its blocks; nodes shuffled."""
    rng = np.random.default_rng(seed)
    block = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    mean = matrix[block][:, block]
    if propensity is not None:
        mean = np.minimum(mean * propensity[:, None] * propensity, 0.95)
    x = (rng.random(mean.shape) < mean).astype(float)
    np.fill_diagonal(x, 0)
    return (x if directed else np.triu(x) + np.triu(x).T), block
