"""The evidence of whole models where it is a sum: mixtures of few rows, LDA of toy corpora, block models of few nodes.

Mixtures with conjugate priors: with m_k(T) the marginal likelihood of the rows T in class k, its component integrated
out, all K^N assignments of rows to classes sum to

    p(x) = G(A) / G(A + N)  sum over ordered partitions (T_1, ..., T_K) of the rows  prod_k g_k(T_k),
    g_k(T) = m_k(T) G(a_k + |T|) / G(a_k)

which is a product over subsets, f_j(S) = sum_(T in S) f_(j-1)(S - T) g_j(T), at a cost of 3^N a class rather than K^N:
the last class is only asked for at S = all rows, so that two classes cost 2^N. All terms are positive.

Block models: all K^N labelings of the nodes, proportions and block matrix integrated out
(:func:`custom_inference.integrated_log_likelihood`).
"""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp
from torch import Tensor
from torch.nn.functional import one_hot

from custom_inference.checks.evidence.result import Array
from custom_inference.core.registry import engines_of
from custom_inference.families.blocks.likelihoods import likelihood_of
from custom_inference.families.blocks.rows import SbmRows
from custom_inference.families.conjugate.dirichlet import Dirichlet
from custom_inference.families.conjugate.pair import array
from custom_inference.families.mixtures.densities import density_of
from custom_inference.families.mixtures.engines import MixtureExact
from custom_inference.families.topics.exact import MAX_ASSIGNMENTS, assignment_blocks, collapsed_posterior
from custom_inference.graphs.blocks import edges_follow_blocks
from ppl_models import LDA, Data, Model
from ppl_models.block_models import BlockModel
from ppl_models.data import sparse as _sparse

#: Pairs of subsets of rows, and labelings of nodes, that are summed over at most: seconds.
_MOST_PAIRS, _MOST_LABELINGS = 2.0e7, 2.0**18
#: Numbers of subsets' statistics that are held at once.
_ENTRIES = 2**22


def is_mixture(model: Model) -> bool:
    """Whether a model is a mixture whose classes can be integrated out, as far as its priors are conjugate."""
    return engines_of(model).get("exact") is MixtureExact


def exact_evidence(model: Model, data: Data) -> tuple[float, str] | None:
    """Return log p(x) and how it was found, or None where no sum is known or it is too long.

    Raises PriorError where the sum exists but for priors that are not conjugate.
    """
    if is_mixture(model):
        return _of_mixture(model, data)
    if model.is_graph and edges_follow_blocks(model):
        model_ = cast(BlockModel, model)
        few = len(data) * math.log2(model_.num_blocks) <= math.log2(_MOST_LABELINGS)
        return (_of_blocks(model_, data), f"exact: all {model_.num_blocks}^{len(data)} labelings") if few else None
    tokens = float(data.x.sum()) if model.data_kind == "documents" else math.inf
    topics = getattr(model, "num_topics", 0)
    few = tokens * math.log2(max(topics, 2)) <= math.log2(MAX_ASSIGNMENTS)
    if topics and few and issubclass(type(model.summed_out), LDA):
        found = float(collapsed_posterior(model, data).log_evidence)
        return found, f"exact: all {topics}^{tokens:.0f} topics of the tokens"
    return None


def _of_mixture(model: Model, data: Data) -> tuple[float, str] | None:
    classes, rows = model.local_shape[0], len(data)
    pairs = 0.0 if classes == 1 else 2.0 ** min(rows, 1000)
    pairs = max(pairs, 3.0 ** min(rows, 600) if classes > 2 else 0.0)
    if pairs > _MOST_PAIRS:
        return None
    density = density_of(model)
    held = density.rows(data)
    concentration = array(Dirichlet.of(model, "mixing_proportion", held.like).concentration.expand(classes))
    prior = density.prior(model, held.like)
    counts = _sparse.dense(held.counts)
    seen = held.observed_entries
    subsets = _all_subsets(rows) if classes > 1 else torch.ones(1, rows)
    tables = np.empty((classes, len(subsets)))
    step = max(1, _ENTRIES // counts.shape[1])
    for first in range(0, len(subsets), step):
        chosen = subsets[first : first + step].to(counts)
        size = chosen.sum(1, keepdim=True)
        observed = size if seen is None else chosen @ seen
        collected = chosen @ counts
        for k in range(classes):
            one = prior.map(lambda part, k=k: part[k])
            found = array(density.log_marginal(one, collected, observed))
            rise = gammaln(concentration[k] + array(size[:, 0])) - gammaln(concentration[k])
            tables[k, first : first + step] = found + rise
    total = float(held.base.double().sum()) + gammaln(concentration.sum()) - gammaln(concentration.sum() + rows)
    if classes == 1:
        return float(total + tables[0, 0]), "in closed form"
    return float(total + _sum_partitions(tables)), f"exact: all {classes}^{rows} assignments, by subsets of rows"


def _all_subsets(size: int) -> Tensor:
    """Return all subsets as rows of 0 and 1, (2^size, size); subset number s holds i where bit i of s is set."""
    return (torch.arange(2**size)[:, None] >> torch.arange(size)) & 1


def _sum_partitions(tables: Array) -> float:
    """Sum prod_k e^(tables[k, T_k]) over ordered partitions of all rows; tables (K, 2^N). Return its logarithm."""
    found, last = tables[0], tables.shape[1] - 1
    for table in tables[1:-1]:
        product = np.empty_like(found)
        for subset in range(len(found)):
            parts = _subsets_of(subset)
            product[subset] = logsumexp(found[subset - parts] + table[parts])
        found = product
    every = np.arange(last + 1)
    return float(np.asarray(logsumexp(found[last - every] + tables[-1])))


def _subsets_of(subset: int) -> NDArray[np.int64]:
    """Return the numbers of all subsets of a subset."""
    parts = np.zeros(1, np.int64)
    for bit in range(subset.bit_length()):
        if subset >> bit & 1:
            parts = np.concatenate([parts, parts + (1 << bit)])
    return parts


def _of_blocks(model: BlockModel, data: Data) -> float:
    rows: Any = SbmRows.of(model, data)
    matrix = likelihood_of(model)
    prior, (x, seen) = matrix.prior(), (torch.as_tensor(part, dtype=torch.float64) for part in rows.dense)
    proportions = Dirichlet.of(model, "block_proportion", x)
    free = torch.ones(matrix.shape, dtype=x.dtype) if model.directed else torch.ones(matrix.shape, dtype=x.dtype).triu()
    found = []
    for _, labels in assignment_blocks(model.num_blocks, len(rows)):
        code = one_hot(labels, model.num_blocks).to(x)
        edges, exposure = (_between(code, part, model.directed) for part in (x, seen))
        each = prior.log_marginal(edges, exposure) * free
        found.append(proportions.log_marginal(code.sum(1)) + each.sum((1, 2)))
    total = torch.cat(found).logsumexp(0)
    return float(total) - (rows.log_factorials if matrix.kind == "poisson" else 0.0)


def _between(code: Tensor, value: Tensor, directed: bool) -> Tensor:
    """Sum a number of every dyad (N, N) between blocks, (C, K, K), for labelings (C, N, K)."""
    found = code.mT @ (value @ code)
    return found if directed else found + found.mT - torch.diag_embed(found.diagonal(dim1=1, dim2=2))
