"""How many blocks: the integrated classification likelihood of block models, exact and asymptotic."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from custom_inference.core.registry import engine_for, engines_of
from custom_inference.families.blocks.likelihoods import likelihood_of
from custom_inference.families.blocks.rows import SbmRows, Weights
from custom_inference.families.common.dirichlet import dirichlet_prior, log_moment
from custom_inference.families.common.gamma import gamma_log_marginal
from ppl_models import DataError, MethodError, Model

if TYPE_CHECKING:
    from custom_inference.core.fit import Fit


def integrated_log_likelihood(model: Any, graph: Any, labels: ArrayLike) -> float:
    """log p(x, z) of a division z of the nodes, proportions and block matrix integrated out: the exact ICL.

        log E[prod_a pi_a^(n_a)] + sum_ab log B(a + m_ab, b + n_ab - m_ab) / B(a, b)                  (Bernoulli)
        log E[prod_a pi_a^(n_a)] + sum_ab log E[eta^(m_ab) e^(-n_ab eta)] - sum log x_ij!             (Poisson)

    with m edges among n observed dyads of blocks a and b, a <= b if undirected (Come & Latouche, *Model selection and
    clustering in stochastic block models based on the exact integrated complete data likelihood*, Statistical
    Modelling 15, 2015, eq. 8).

    labels: (N,) whole numbers below K. Larger is better, over z and over K.

    Raises MethodError for other models than SBM and PoissonSBM, and priors that are not conjugate; DataError for labels
    that do not fit.
    """
    if not edges_follow_blocks(model):
        raise MethodError(f"no exact integrated likelihood of {type(model).__name__}: only of SBM and PoissonSBM")
    rows = SbmRows.of(model, model.prepare(graph, dtype=torch.float64))
    label = _labels(labels, len(rows), model.num_blocks)
    counts = rows.counts(np.eye(model.num_blocks)[label], Weights.ones(len(rows)))
    matrix, size = likelihood_of(model), torch.as_tensor(counts.size)
    edges, exposure = torch.as_tensor(counts.edges), torch.as_tensor(counts.exposure)
    value = float(log_moment(size, dirichlet_prior(model, "block_proportion", size).expand_as(size)))
    if matrix.kind == "poisson":
        each = gamma_log_marginal(edges, exposure, matrix.prior())
        return value + float(matrix.free(each).sum()) - rows.log_factorials
    on, off = (part.expand_as(edges) for part in matrix.prior())
    both = torch.stack([edges, exposure - edges], -1)
    return value + float(matrix.free(log_moment(both, torch.stack([on, off], -1))).sum())


def icl(fit: Fit) -> float:
    """log p(x, z | globals) at the most probable blocks, less half the price of the globals; larger is better.

        ICL = log p(x, z | pi, eta) - (K - 1) / 2 log N - F / 2 log D

    F entries of the block matrix, K (K + 1) / 2 if undirected, and D observed dyads (Daudin, Picard & Robin, Statistics
    and Computing 18, 2008, eq. 11). pi and eta are those of the fit. Of propensities N more, one degree of freedom for
    the scale of every block less, count as 1 / 2 log D each.
    """
    model: Any = fit.model
    if not _has_block_matrix(model):
        raise MethodError(f"no ICL of {type(model).__name__}: only of block models with one block a node")
    engine: Any = engine_for(model, "mean_field")
    rows = engine.rows(model, fit.data)
    share = torch.nn.functional.one_hot(fit.params["block"].long(), model.num_blocks).double()
    joint = float(engine.bound(model, fit.globals, rows, share))
    seen = rows.counts(np.ones((len(rows), 1)), Weights.ones(len(rows))).exposure.item()
    free = len(likelihood_of(model).free(torch.zeros(model.num_blocks, model.num_blocks)))
    if propensities_of(model):
        free += len(propensities_of(model)) * (len(rows) - model.num_blocks)
    return joint - 0.5 * (model.num_blocks - 1) * math.log(len(rows)) - 0.5 * free * math.log(max(seen, 1.0))


def _has_block_matrix(model: Model) -> bool:
    """Whether a node has one block, and the block matrix a conjugate prior."""
    return model.local_site == "block" and "vb" in engines_of(model)


def propensities_of(model: Model) -> set[str]:
    """The sites of the nodes' propensities, if the model has such."""
    return set(getattr(model, "propensity_sites", ()))


def edges_follow_blocks(model: Model) -> bool:
    """Whether nothing but the blocks of its ends tells one dyad from another."""
    return _has_block_matrix(model) and not propensities_of(model)


def _labels(labels: ArrayLike, size: int, blocks: int) -> np.ndarray:
    found = np.asarray(labels)
    if found.shape != (size,):
        raise DataError(f"labels of shape {found.shape}", site="block", axis="row", expected=f"shape ({size},)")
    if not np.issubdtype(found.dtype, np.integer) or found.min() < 0 or found.max() >= blocks:
        raise DataError("not a block", site="block", expected=f"whole numbers from 0 to {blocks - 1}")
    return found
