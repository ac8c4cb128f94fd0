"""An infinite relational model and its data as the kernels read them; tables from clusters."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyro.distributions as dist
import torch
from scipy.special import gammaln, logsumexp
from torch import Tensor

from custom_inference.families.relations.arrays import CATEGORIES, COUNTS, REALS, Cells, Floats, Wholes
from custom_inference.families.relations.state import Clusters, PartitionPrior
from ppl_models import IRM, PriorError, Relations
from ppl_models.core.hierarchy import is_function
from ppl_models.core.priors import describe_prior, value_if_known
from ppl_models.data.relations.data import of_one_type

_KINDS = {"bernoulli": CATEGORIES, "categorical": CATEGORIES, "poisson": COUNTS, "gaussian": REALS}
#: Concentrations are summed over a grid of so many between the exponentials of plus and minus this.
_GRID, _REACH = 200, 9.0


def clusters_of(model: IRM, data: Relations, seed: int) -> Clusters:
    """Without labels so far. Real cells are less the mean of their prior: squares of numbers far from 0 leave few
    digits. Raises PriorError for tables whose priors are not conjugate."""
    names, kinds = list(model.types), [_KINDS[model.cells[name]] for name in model.relations]
    x = data.x.double().cpu().numpy()
    relation, entity, value = x[:, 0].astype(np.int64), x[:, 1:-1].astype(np.int64), x[:, -1]
    closed, hypers = [data.closed(r) for r in range(len(kinds))], [_hyper(model, name) for name in model.relations]
    for r, kind in enumerate(kinds):
        if kind == REALS and not closed[r]:  # of cells that are not listed, and 0, there are no values to move
            value = np.where(relation == r, value - hypers[r][0], value)
            hypers[r][0] = 0.0
    symmetric = [name in model.symmetric for name in model.relations]
    cells = Cells.of(
        list(model.types.values()), [[names.index(t) for t in types] for types in model.relations.values()], kinds,
        hypers, closed, *_both_ways(model, closed, relation, entity, value), symmetric,
    )  # fmt: skip
    counts = value[np.isin(relation, [r for r, kind in enumerate(kinds) if kind == COUNTS]) & ~np.isnan(value)]
    fixed = model.num_clusters or {}
    numbers = [fixed.get(t, 0) for t in model.types]
    prior = PartitionPrior.of(list(model.types.values()), numbers, *concentration_grid(model))
    return Clusters(cells, prior, seed, -float(gammaln(counts + 1).sum()))


def _both_ways(
    model: IRM, closed: list[bool], relation: Wholes, entity: Wholes, value: Floats
) -> tuple[Wholes, Wholes, Floats, Floats]:
    """The listed cells with their relations, entities, values and counts as the kernels read them: those of symmetric
    relations in both directions. A closed relation counts the products of the sizes of its clusters, n_a^2 where a
    block is on the diagonal; cells without values make that n_a (n_a - 1), or n_a (n_a + 1) where there are both
    directions of self loops."""
    count = ~np.isnan(value) - np.array(closed, dtype=np.float64)[relation]
    parts = [(relation, entity, value, count)]
    for r, (name, types) in enumerate(model.relations.items()):
        own, loops = relation == r, name in model.self_loops
        if name in model.symmetric:
            parts.append((relation[own], entity[own][:, [1, 0, *range(2, entity.shape[1])]], value[own], count[own]))
        if closed[r] and of_one_type(types) and (name in model.symmetric or not loops):
            size = model.types[types[0]]
            there = np.full((size, entity.shape[1]), -1)
            there[:, :2] = np.arange(size)[:, None]
            sign = 1.0 if loops else -1.0
            parts.append((np.full(size, r), there, np.full(size, np.nan), np.full(size, sign)))
    found: Any = tuple(map(np.concatenate, zip(*parts, strict=True)))
    return found


def concentration_grid(model: IRM) -> tuple[Floats, Floats]:
    """Values of the concentrations (T, G), and the logarithms of their shares of the prior."""
    prior, number = model.priors["concentration"], len(model.types)
    if is_function(prior):
        raise PriorError("a function as the prior of 'concentration'; give a distribution, or a number")
    value = value_if_known(prior)
    if value is not None:
        return value.expand(number).double().numpy()[:, None], np.zeros((number, 1))
    log = torch.linspace(-_REACH, _REACH, _GRID, dtype=torch.float64)
    each = [prior.expand((number,)).log_prob(one.exp().expand(number)) + one for one in log]
    weight = torch.stack(each, -1).double().numpy()
    return np.tile(log.exp().numpy(), (number, 1)), weight - logsumexp(weight, axis=1, keepdims=True)


def _hyper(model: IRM, relation: str) -> list[float]:
    expected = {"bernoulli": (dist.Beta,), "categorical": (dist.Dirichlet,), "poisson": (dist.Gamma,)}
    kinds = expected.get(model.cells[relation], (dist.Gamma, dist.Normal))
    priors = {site: model.priors[site] for site in model.tables(relation)}
    for (site, prior), kind in zip(priors.items(), kinds, strict=True):
        if not isinstance(prior, kind) or len(prior.batch_shape) > 0:
            found_one = "a function" if is_function(prior) else describe_prior(prior)
            raise PriorError(f"the prior of '{site}' is {found_one}; its tables are integrated out, which needs one "
                             f"{kind.__name__} for all of them")  # fmt: skip
    first: Any = next(iter(priors.values()))
    if model.cells[relation] == "bernoulli":
        return [float(first.concentration0), float(first.concentration1)]
    if model.cells[relation] == "categorical":
        return first.concentration.tolist()
    own = [float(first.concentration), float(first.rate)]
    if model.cells[relation] == "poisson":
        return own
    mean: Any = priors[f"edge_mean_{relation}"]
    return [float(mean.loc), float(mean.scale) ** -2, *own]


def block_sums(clusters: Clusters, r: int) -> tuple[Floats, Floats]:
    """Return the sums (K_1, ..., K_A, S) and observed cells (K_1, ..., K_A) of relation r at the present clusters."""
    g, w = clusters.cells, clusters.work
    types = g.types[r, : g.arity[r]]
    rooms, width = [int(w.room[t]) for t in types], int(g.width[r])
    blocks = math.prod(rooms)
    sums = w.sums[w.sums_at[r] : w.sums_at[r] + blocks * width].reshape(*rooms, width)
    listed = w.listed[w.base[r] : w.base[r] + blocks].reshape(rooms)
    used = np.ix_(*(np.sort(w.active[t, : w.number[t]]) for t in types))
    number = np.full((), float(g.closed[r]))
    for t, labels in zip(types, used, strict=True):
        number = number[..., None] * w.size[t, labels.ravel()]
    found, number = sums[used], listed[used] + number
    if g.symmetric[r]:  # on the diagonal every cell is there twice
        part = 1.0 - 0.5 * np.eye(len(number))
        return found * part[..., None], number * part
    return found, number


def tables(model: IRM, clusters: Clusters) -> dict[str, Tensor]:
    """Posterior means of the tables at the present clusters, by site."""
    found: dict[str, Tensor] = {}
    for r, name in enumerate(model.relations):
        sums, number = block_sums(clusters, r)
        hyper = clusters.cells.hyper[r]
        kind, sites = model.cells[name], model.tables(name)
        if kind in ("bernoulli", "categorical"):
            counts = np.concatenate([(number - sums.sum(-1))[..., None], sums], -1)
            share = counts + hyper[: counts.shape[-1]]
            share = share / share.sum(-1, keepdims=True)
            found[sites[0]] = torch.as_tensor(share[..., 1] if kind == "bernoulli" else share)
        elif kind == "poisson":
            found[sites[0]] = torch.as_tensor((hyper[0] + sums[..., 0]) / (hyper[1] + number))
        else:
            mean, strength, shape, rate = hyper[:4]
            k, off = strength + number, sums[..., 0] - number * mean
            scale = rate + (sums[..., 1] - 2 * mean * sums[..., 0] + number * mean**2 - off**2 / k) / 2
            found[sites[0]] = torch.as_tensor((shape + number / 2) / scale)
            centre = 0.0 if clusters.cells.closed[r] else _hyper(model, name)[0]
            found[sites[1]] = torch.as_tensor(centre + mean + off / k)
    return found


def draw_tables(model: IRM, clusters: Clusters, name: str, number: int, rng: np.random.Generator) -> Floats:
    """Draw what cells of a relation are expected to be in every block, (number, K, ...), from the posterior at the
    present clusters: Beta, Dirichlet, Gamma, or Student's t of means."""
    r = list(model.relations).index(name)
    sums, cells = block_sums(clusters, r)
    hyper, kind = clusters.cells.hyper[r], model.cells[name]
    if kind in ("bernoulli", "categorical"):
        counts = np.concatenate([(cells - sums.sum(-1))[..., None], sums], -1)
        share = rng.standard_gamma(counts + hyper[: counts.shape[-1]], (number, *counts.shape))
        share = share / share.sum(-1, keepdims=True)
        return share[..., 1] if kind == "bernoulli" else share
    if kind == "poisson":
        return rng.standard_gamma(hyper[0] + sums[..., 0], (number, *cells.shape)) / (hyper[1] + cells)
    mean, strength, shape, rate = hyper[:4]
    k, off = strength + cells, sums[..., 0] - cells * mean
    scale = rate + (sums[..., 1] - 2 * mean * sums[..., 0] + cells * mean**2 - off**2 / k) / 2
    precision = rng.standard_gamma(shape + cells / 2, (number, *cells.shape)) / scale
    centre = 0.0 if clusters.cells.closed[r] else _hyper(model, name)[0]
    return centre + mean + off / k + rng.standard_normal(precision.shape) / np.sqrt(k * precision)
