"""Brute-force reference for the infinite relational model (source 002, eqs. 27.82-27.85). No project code.

Types are names; ``sizes`` says how many entities each has. A relation is (types of its axes, kind of its cells, array
with NaN where missing, hyper-parameters): of "categorical" (0/1 cells too) Dirichlet parameters of the categories, of
"poisson" (shape, rate), of "gaussian" (mean, strength, shape, rate) of

    precision ~ Gamma(shape, rate),   mean | precision ~ Normal(mean, 1 / (strength precision)).

A fifth element, True, makes it symmetric: (i, j) and (j, i) are one cell, of the entries i <= j alone, and blocks
(a, b) and (b, a) are one. Cells that there are not, such as (i, i), are NaN.

Labels z: type -> whole numbers. p(z) is that of the Chinese restaurant with concentration c, computed seat by seat;
with K clusters of proportions Dirichlet(c, ..., c) that of the Polya urn.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from scipy import integrate, stats
from scipy.special import gammaln, logsumexp

Labels = Mapping[str, Any]
Relation = tuple[Any, ...]


def log_partition(z: Any, c: float, clusters: int | None = None) -> float:
    """log p(z | c), one entity after the other."""
    total, seen = 0.0, {}
    for i, k in enumerate(np.asarray(z).tolist()):
        n = seen.get(k, 0)
        if clusters is None:
            total += math.log((n or c) / (i + c))
        else:
            total += math.log((n + c) / (i + clusters * c))
        seen[k] = n + 1
    return total


def blocks(relation: Relation, z: Labels) -> dict[tuple[int, ...], list[float]]:
    """The observed cells of every block."""
    types, _, x, _, *symmetric = relation
    found: dict[tuple[int, ...], list[float]] = {}
    for place in itertools.product(*(range(n) for n in np.shape(x))):
        value = float(np.asarray(x)[place])
        block = [int(z[t][i]) for t, i in zip(types, place, strict=True)]
        if symmetric and place[0] > place[1]:
            continue
        if not math.isnan(value):
            found.setdefault(tuple(sorted(block) if symmetric else block), []).append(value)
    return found


def log_cells_integrated(values: list[float], kind: str, hyper: Any) -> float:
    """log p(values) of one block, its table integrated out: products of one predictive probability after another."""
    total, hyper = 0.0, np.array(hyper, dtype=float)
    for x in values:
        if kind == "categorical":
            total += math.log(hyper[int(x)] / hyper.sum())
            hyper[int(x)] += 1
        elif kind == "poisson":
            shape, rate = hyper
            total += float(stats.nbinom.logpmf(x, shape, rate / (1 + rate)))
            hyper = np.array([shape + x, rate + 1])
        else:
            mean, k, a, b = hyper
            total += float(stats.t.logpdf(x, 2 * a, mean, math.sqrt(b * (k + 1) / (a * k))))
            hyper = np.array([(k * mean + x) / (k + 1), k + 1, a + 0.5, b + k * (x - mean) ** 2 / (2 * (k + 1))])
    return total


def log_joint_integrated(
    relations: Mapping[str, Relation], z: Labels, c: Mapping[str, float], clusters: Mapping[str, int] | None = None
) -> float:
    """log p(x, z | c), all tables integrated out."""
    total = sum(log_partition(z[t], c[t], (clusters or {}).get(t)) for t in c)
    for relation in relations.values():
        for values in blocks(relation, z).values():
            total += log_cells_integrated(values, relation[1], relation[3])
    return total


def log_cells(values: Any, kind: str, table: Any) -> float:
    """log p(values | table of the block): category probabilities, rate, or (precision, mean)."""
    x = np.asarray(values)
    if kind == "categorical":
        return float(np.log(np.asarray(table)[x.astype(int)]).sum())
    if kind == "poisson":
        return float(stats.poisson.logpmf(x, table).sum())
    return float(stats.norm.logpdf(x, table[1], table[0] ** -0.5).sum())


def log_table(kind: str, table: Any, hyper: Any) -> float:
    """log density of the prior of one block's table."""
    if kind == "categorical":
        return float(stats.dirichlet.logpdf(table, hyper))
    if kind == "poisson":
        return float(stats.gamma.logpdf(table, hyper[0], scale=1 / hyper[1]))
    precision, mean = table
    spread = (hyper[1] * precision) ** -0.5
    return float(
        stats.gamma.logpdf(precision, hyper[2], scale=1 / hyper[3]) + stats.norm.logpdf(mean, hyper[0], spread)
    )


def log_joint(
    relations: Mapping[str, Relation], tables: Mapping[str, Mapping[tuple[int, ...], Any]], z: Labels,
    c: Mapping[str, float], clusters: Mapping[str, int] | None = None,
) -> float:  # fmt: skip
    """log p(x, tables, z | c), tables by relation and block."""
    total = sum(log_partition(z[t], c[t], (clusters or {}).get(t)) for t in c)
    for name, relation in relations.items():
        found = blocks(relation, z)
        for block, table in tables[name].items():
            total += log_table(relation[1], table, relation[3])
            total += log_cells(found.get(block, []), relation[1], table)
    return total


def set_partitions(size: int) -> Iterator[tuple[int, ...]]:
    """Every partition once: of all labelings those whose labels appear in their order."""
    for labels in itertools.product(range(size), repeat=size):
        if all(k <= max(labels[:i], default=-1) + 1 for i, k in enumerate(labels)):
            yield labels


def posterior(
    relations: Mapping[str, Relation], sizes: Mapping[str, int], c: Mapping[str, float],
    clusters: Mapping[str, int] | None = None,
) -> tuple[list[dict[str, tuple[int, ...]]], np.ndarray, float]:  # fmt: skip
    """All labelings that differ (of a fixed number of clusters all K^N), their probabilities, and log p(x)."""
    fixed = clusters or {}
    each = [
        list(itertools.product(range(fixed[t]), repeat=n)) if t in fixed else list(set_partitions(n))
        for t, n in sizes.items()
    ]
    every = [dict(zip(sizes, one, strict=True)) for one in itertools.product(*each)]
    score = np.array([log_joint_integrated(relations, z, c, clusters) for z in every])
    total = float(logsumexp(score))
    return every, np.exp(score - total), total


def together(every: list[dict[str, tuple[int, ...]]], share: np.ndarray, kind: str) -> np.ndarray:
    """P(two entities share a cluster), (N, N)."""
    labels = np.array([one[kind] for one in every])
    return np.einsum("c,cij->ij", share, labels[:, :, None] == labels[:, None, :])


def log_partition_learned(z: Any, shape: float, rate: float) -> float:
    """log of the integral of p(z | c) over c ~ Gamma(shape, rate)."""
    size, used = len(z), len(set(np.asarray(z).tolist()))
    counts = np.unique(np.asarray(z), return_counts=True)[1]

    def density(log_c: float) -> float:
        c = math.exp(log_c)
        each = used * log_c + gammaln(c) - gammaln(c + size)
        return math.exp(each + stats.gamma.logpdf(c, shape, scale=1 / rate) + log_c)

    return math.log(integrate.quad(density, -25.0, 8.0, limit=400)[0]) + float(gammaln(counts).sum())
