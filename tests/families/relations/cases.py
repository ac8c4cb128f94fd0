"""Small relational problems of every kind of cells and arity, as the model and as the reference read them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyro.distributions as dist
import torch

from ppl_models import IRM, Relations, relations

C = {"a": 1.3, "b": 0.6}


class Problem(NamedTuple):
    model: IRM
    data: Relations
    relations: dict[str, Any]
    sizes: dict[str, int]
    c: dict[str, float]
    clusters: dict[str, int]


def arrays(seed: int = 0) -> dict[str, np.ndarray]:
    """Arities 1, 2 and 3, types on several axes of one relation, symmetric ones with the diagonal and without, missing
    cells."""
    rng = np.random.default_rng(seed)
    found = {
        "flags": (rng.random(5) < 0.5).astype(float),
        "links": (rng.random((5, 5)) < 0.4).astype(float),
        "triples": (rng.random((5, 4, 5)) < 0.3).astype(float),
        "grades": rng.integers(0, 3, (5, 4)).astype(float),
        "counts": rng.poisson(2.0, (4, 4)).astype(float),
        "sizes": rng.normal(1.0, 2.0, (4, 5)),
    }
    for name in ("links", "triples", "grades", "sizes"):
        found[name][rng.random(found[name].shape) < 0.2] = np.nan
    np.fill_diagonal(found["links"], np.nan)
    found["sizes"][rng.random((4, 5)) < 0.5] = np.nan  # most are missing: unlisted cells are
    found |= {
        "friends": (rng.random((5, 5)) < 0.4).astype(float),
        "meets": rng.poisson(2.0, (4, 4)).astype(float),
        "signs": rng.integers(0, 3, (5, 5)).astype(float),
        "ties": rng.normal(1.0, 2.0, (4, 4)),
    }
    found["ties"][rng.random((4, 4)) < 0.4] = np.nan
    found["meets"][2, 1] = found["friends"][3, 1] = found["signs"][4, 0] = np.nan
    for name in SYMMETRIC:
        lower = np.tril_indices(len(found[name]), -1)
        found[name].T[lower] = found[name][lower]
        if name not in LOOPS:
            np.fill_diagonal(found[name], np.nan)
    return found


TYPES = {"flags": ("a",), "links": ("a", "a"), "triples": ("a", "b", "a"), "grades": ("a", "b"), "counts": ("b", "b"),
         "sizes": ("b", "a"), "friends": ("a", "a"), "meets": ("b", "b"), "signs": ("a", "a"),
         "ties": ("b", "b")}  # fmt: skip
SYMMETRIC, LOOPS = ("friends", "meets", "signs", "ties"), ("counts", "meets", "ties")
_CELLS = {"grades": "categorical", "counts": "poisson", "sizes": "gaussian", "meets": "poisson",
          "signs": "categorical", "ties": "gaussian"}  # fmt: skip
_HYPER = {"flags": (0.7, 1.2), "links": (1.0, 2.0), "triples": (1.0, 1.0), "grades": (0.5, 1.5, 1.0),
          "counts": (2.0, 0.7), "sizes": (0.4, 0.25, 1.5, 2.0), "friends": (0.7, 1.2), "meets": (2.0, 0.7),
          "signs": (0.5, 1.5, 1.0), "ties": (0.4, 0.25, 1.5, 2.0)}  # fmt: skip


def problem(names: tuple[str, ...] = tuple(TYPES), *, clusters: dict[str, int] | None = None, seed: int = 0) -> Problem:
    """Under priors that are nowhere flat, with known concentrations."""
    x, kinds = arrays(seed), {name: _CELLS.get(name, "bernoulli") for name in names}
    priors: dict[str, Any] = {"concentration": torch.tensor(list(C.values()), dtype=torch.float64)}
    for name, kind in kinds.items():
        hyper = [torch.tensor(one, dtype=torch.float64) for one in _HYPER[name]]
        if kind == "bernoulli":  # the reference has the parameter of 0 first
            priors[f"edge_probability_{name}"] = dist.Beta(hyper[1], hyper[0])
        elif kind == "categorical":
            priors[f"edge_probability_{name}"] = dist.Dirichlet(torch.stack(hyper))
        elif kind == "poisson":
            priors[f"edge_rate_{name}"] = dist.Gamma(hyper[0], hyper[1])
        else:
            priors[f"edge_mean_{name}"] = dist.Normal(hyper[0], hyper[1] ** -0.5)
            priors[f"edge_precision_{name}"] = dist.Gamma(hyper[2], hyper[3])
    sizes = {"a": 5, "b": 4}
    symmetric, loops = ([n for n in names if n in those] for those in (SYMMETRIC, LOOPS))
    model = IRM(
        types=sizes, relations={name: TYPES[name] for name in names}, cells=kinds, num_clusters=clusters, priors=priors,
        num_categories={n: 3 for n, kind in kinds.items() if kind == "categorical"}, symmetric=symmetric,
        self_loops=loops,
    )  # fmt: skip
    held = relations({n: x[n] for n in names}, TYPES, types=sizes, symmetric=symmetric, self_loops=loops)
    data = model.prepare(held, dtype=torch.float64)
    read = {}
    for n in names:
        kind = "categorical" if kinds[n] == "bernoulli" else kinds[n]
        read[n] = (TYPES[n], kind, x[n], _HYPER[n], *([True] if n in symmetric else []))
    return Problem(model, data, read, sizes, C, clusters or {})


def labels_of(problem: Problem, z: dict[str, Any]) -> np.ndarray:
    return np.concatenate([np.asarray(z[t]) for t in problem.sizes])
