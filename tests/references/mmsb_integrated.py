"""MMSB with eta and rho integrated out too: the law of all indicators, and the variational bounds. No project code.

Notation of ``mmsb``. eta_ab ~ Beta(a, b); rho is a number, or ("beta", c, d) where it has that prior. z_ij says that a
dyad is background (eq. 27.79): x_ij = 0 then. Whether a background dyad draws indicators makes no difference to p(x),
but one to the space of q: ``drawn=False`` draws none.
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaln, digamma, logsumexp, xlog1py, xlogy

from tests.references import _graphs, _shared, mmsb
from tests.references._shared import Array, Maybe, Pair

Rho = float | tuple[str, float, float]


def log_background(z: ArrayLike, rho: Rho) -> Array:
    """log p(z) over the last axis, rho integrated out where it has a prior."""
    z = np.asarray(z, dtype=np.float64)
    some, none = z.sum(-1), (1 - z).sum(-1)
    if isinstance(rho, tuple):
        return betaln(rho[1] + some, rho[2] + none) - betaln(rho[1], rho[2])
    return xlogy(some, rho) + xlog1py(none, -rho)


def log_joint(
    s: ArrayLike, r: ArrayLike, z: Maybe, x: ArrayLike, num_blocks: int, alpha: ArrayLike,
    prior: Pair = (1.0, 1.0), rho: Rho = 0.0, mask: Maybe = None,
    *, directed: bool = True, self_loops: bool = False, drawn: bool = True,
) -> Array:  # fmt: skip
    """log p(x, s, r, z | alpha, a, b, rho) of indicators (..., E), memberships and eta integrated out, (...)."""
    i, j, values = _graphs.dyads(x, mask, directed=directed, self_loops=self_loops)
    s, r = np.asarray(s, dtype=int), np.asarray(r, dtype=int)
    z = np.zeros(s.shape, dtype=bool) if z is None else np.asarray(z, dtype=bool)
    counts = mmsb.member_counts(s, r, i, j, len(np.asarray(x)), num_blocks, None if drawn else ~z)
    one_hot = np.eye(num_blocks)
    edges = np.stack(
        [np.einsum("...e,...ea,...eb->...ab", ~z * one, one_hot[s], one_hot[r]) for one in (values, 1.0 - values)]
    )
    if not directed:
        edges = edges + np.swapaxes(edges, -1, -2) * (1 - one_hot)
    each = betaln(edges[0] + prior[0], edges[1] + prior[1]) - betaln(*prior)
    total = _shared.log_dirichlet_moment(counts, alpha).sum(-1) + log_background(z, rho)
    total = total + each[..., _graphs.free_entries(num_blocks, directed=directed)].sum(-1)
    return np.where((z & (values > 0)).any(-1), -np.inf, total)


def states(x: ArrayLike, num_blocks: int, rho: Rho, mask=None, *, directed=True, self_loops=False, drawn=True):
    """All values of (s, r, z) that can have given x, (M, E) each."""
    _, _, values = _graphs.dyads(x, mask, directed=directed, self_loops=self_loops)
    own = [(a, b, 0) for a in range(num_blocks) for b in range(num_blocks)]
    background = [(a, b, 1) for a, b, _ in own] if drawn else [(0, 0, 1)]
    choices = [own + (background if value == 0 and rho != 0.0 else []) for value in values]
    every = np.array(list(itertools.product(*choices)), dtype=int)
    return every[..., 0], every[..., 1], every[..., 2].astype(bool)


def table(x: ArrayLike, num_blocks: int, alpha, prior=(1.0, 1.0), rho: Rho = 0.0, mask=None, **keywords):
    """((s, r, z) (M, E) each, log p(x, s, r, z) (M,)) over all their values."""
    every = states(x, num_blocks, rho, mask, **keywords)
    return every, log_joint(*every, x, num_blocks, alpha, prior, rho, mask, **keywords)


def log_evidence(x: ArrayLike, num_blocks: int, *arguments, **keywords) -> float:
    """log p(x | alpha, a, b, rho): everything latent summed or integrated out."""
    return float(logsumexp(table(x, num_blocks, *arguments, **keywords)[1]))


def membership_mean(x: ArrayLike, num_blocks: int, alpha, prior=(1.0, 1.0), rho: Rho = 0.0, mask=None, **keywords):
    """E[pi_i | x], (N, K). Under exchangeable priors every block has the same: use an alpha that tells them apart."""
    (s, r, z), log_weight = table(x, num_blocks, alpha, prior, rho, mask, **keywords)
    seen = None if keywords.pop("drawn", True) else ~z
    i, j, _ = _graphs.dyads(x, mask, **keywords)
    return _shared.mean_given_counts(
        log_weight, mmsb.member_counts(s, r, i, j, len(np.asarray(x)), num_blocks, seen), alpha
    )


# ----- variational bounds ---------------------------------------------------------------------------------------------
#
# q(pi_i) = Dirichlet(gamma_i); of every dyad a table t (E, K, K), t_ab = q(s = a, r = b, z = 0), and of its background
# either background (E,) = q(z = 1), where it draws no indicators, or (E, K, K). All of a dyad's masses sum to 1.


def member_sums(tables: Array, background: Array | None, i, j, num_nodes: int) -> Array:
    """E[c_nk] (N, K) under q."""
    drawn = tables if background is None or background.ndim == 1 else tables + background
    total = np.zeros((num_nodes, tables.shape[1]))
    for one, s, r in zip(drawn, i, j, strict=True):
        total[s] += one.sum(1)
        total[r] += one.sum(0)
    return total


def terms(
    log_edges: Array, i, j, gamma: ArrayLike, tables: ArrayLike, alpha: ArrayLike,
    background: Maybe = None, log_rho: Pair = (-np.inf, 0.0),
) -> dict[str, float]:  # fmt: skip
    """Terms of E[log p(x, s, r, z, pi)] - E[log q] that the nodes and dyads bring, signs included.

    log_edges (E, K, K) is log p(x_ij | a, b, z = 0), or its expectation; log_rho = (log rho, log(1 - rho)), or theirs.
    With no ``background`` and a log_edges that has the background summed out: q(s, r) alone, log_rho left as it is.
    """
    gamma, tables = np.asarray(gamma, dtype=np.float64), np.asarray(tables, dtype=np.float64)
    background = None if background is None else np.asarray(background, dtype=np.float64)
    counts = member_sums(tables, background, i, j, len(gamma))
    far = 0.0 if background is None else background.sum()
    outside = 0.0 if background is None else xlogy(background, background).sum()
    return {
        "memberships": -float(_shared.dirichlet_divergence(gamma, alpha).sum()),
        "indicators": float((counts * _shared.expected_log_dirichlet(gamma)).sum()),
        "edges": float(np.where(tables > 0, tables * log_edges, 0.0).sum()),
        "background": float((far * log_rho[0] if far > 0 else 0.0) + tables.sum() * log_rho[1]),
        "entropy of indicators": -float(xlogy(tables, tables).sum() + outside),
    }


def vb_terms(
    x: ArrayLike, gamma: ArrayLike, tables: ArrayLike, a: ArrayLike, b: ArrayLike, alpha: ArrayLike,
    prior: Pair = (1.0, 1.0), background: Maybe = None, rho: Rho = 0.0,
    rho_weight: Pair | None = None, mask=None, *, directed: bool = True, self_loops: bool = False,
) -> dict[str, float]:  # fmt: skip
    """Every term of the bound on log p(x) with eta_ab ~ Beta(a_ab, b_ab) (K, K) and, where it has a prior, rho ~
    Beta(rho_weight) too."""
    i, j, values = _graphs.dyads(x, mask, directed=directed, self_loops=self_loops)
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    each = np.where(values[:, None, None] > 0, digamma(a), digamma(b)) - digamma(a + b)
    result = terms(each, i, j, gamma, tables, alpha, background, expected_log_rho(rho, rho_weight))
    free = _graphs.free_entries(len(a), directed=directed)
    result["edge probabilities"] = -float(_graphs.beta_divergence(a, b, prior)[free].sum())
    if isinstance(rho, tuple):
        result["sparsity"] = -float(_graphs.beta_divergence(*rho_weight, rho[1:]))
    return result


def expected_log_rho(rho: Rho, rho_weight: Pair | None = None) -> Pair:
    """(E[log rho], E[log(1 - rho)])."""
    if isinstance(rho, tuple):
        c, d = rho_weight
        return float(digamma(c) - digamma(c + d)), float(digamma(d) - digamma(c + d))
    with np.errstate(divide="ignore"):
        return float(np.log(rho)), float(np.log1p(-rho))


def table_optimum(
    log_edges: Array, i, j, values: Array, gamma: ArrayLike, log_rho=(-np.inf, 0.0), drawn: bool = False
) -> tuple[Array, Array]:
    """(tables (E, K, K), background (E,), or (E, K, K) where drawn) that maximise the bound, the rest held."""
    log_pi = _shared.expected_log_dirichlet(gamma)
    ends = log_pi[i][:, :, None] + log_pi[j][:, None, :]
    own = ends + log_edges + log_rho[1]
    far = np.where(values > 0, -np.inf, log_rho[0])
    far = far[:, None, None] + ends if drawn else far
    top = np.concatenate([own.reshape(len(own), -1), far.reshape(len(own), -1)], axis=1)
    norm = np.asarray(logsumexp(top, axis=1))
    return np.exp(own - norm[:, None, None]), np.exp(far - norm.reshape(-1, *[1] * (far.ndim - 1)))


def vb_globals(
    x: ArrayLike, tables: ArrayLike, prior: Pair = (1.0, 1.0), mask=None,
    *, directed: bool = True, self_loops: bool = False,
) -> tuple[Array, Array]:  # fmt: skip
    """(a, b) of eta that maximise the bound at q(s, r, z)."""
    _, _, values = _graphs.dyads(x, mask, directed=directed, self_loops=self_loops)
    result = []
    for start, one in zip(prior, (values, 1.0 - values), strict=True):
        total = np.einsum("e,eab->ab", one, np.asarray(tables, dtype=np.float64))
        result.append(start + (total if directed else total + total.T - np.diag(np.diag(total))))
    return result[0], result[1]
