"""Priors that are not conjugate by every method, for every global of every model: what ran.

    python -m benchmarks.quality.priors_by_engine
    python -m benchmarks.quality.priors_by_engine --quick    # two models, no result

Writes benchmarks/results/priors_by_engine.{json,md}.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pyro.distributions as dist
import torch
from torch.distributions import constraints
from torch.distributions.transforms import AffineTransform, SigmoidTransform

from benchmarks._report import QUICK, RESULTS, Table, write_report
from custom_inference import NUTS, SVI, Exact
from custom_inference.methods import methods_for, resolve_method
from ppl_models import MODELS, PPLError, graph

HALVES = dist.Categorical(torch.tensor([0.5, 0.5]))
#: Where narrow priors are centred, by support; on simplexes at equal probabilities. Their spread, and how near to that
#: a method's estimates have to come, at most so much of the entries' range.
CENTRES, SPREAD, NEAR = {"unit": 0.3, "positive": 0.7, "real": 0.3}, 0.01, 0.1
NARROW = "narrow"


def _dirichlets(size: int) -> Any:
    return dist.MixtureSameFamily(
        HALVES, dist.Dirichlet(torch.stack([torch.full((size,), 2.0), torch.arange(size) + 1.0]))
    )


#: Support of a site -> name of a prior -> the prior of one element, of a simplex of so many entries.
PRIORS: dict[Any, dict[str, Callable[[int], Any]]] = {
    constraints.unit_interval: {
        "logit-normal": lambda _: dist.TransformedDistribution(dist.Normal(-1.0, 1.0), [SigmoidTransform()]),
        "Kumaraswamy": lambda _: dist.Kumaraswamy(2.0, 3.0),
        "uniform": lambda _: dist.Uniform(0.1, 0.8),
        "mixture": lambda _: dist.MixtureSameFamily(
            HALVES, dist.Beta(torch.tensor([2.0, 8.0]), torch.tensor([8.0, 2.0]))
        ),
        NARROW: lambda _: dist.TransformedDistribution(dist.Normal(math.log(3 / 7), SPREAD), [SigmoidTransform()]),
        "known": lambda _: CENTRES["unit"],
    },
    constraints.simplex: {
        "logistic-normal": lambda size: dist.LogisticNormal(torch.zeros(size - 1), torch.ones(size - 1)),
        "mixture": _dirichlets,
        NARROW: lambda size: dist.LogisticNormal(torch.zeros(size - 1), torch.full((size - 1,), SPREAD)),
        "known": lambda size: torch.ones(size) / size,
    },
    constraints.positive: {
        "half-Cauchy": lambda _: dist.HalfCauchy(2.0),
        "log-normal": lambda _: dist.LogNormal(0.0, 1.0),
        NARROW: lambda _: dist.LogNormal(math.log(CENTRES["positive"]), SPREAD),
        "known": lambda _: CENTRES["positive"],
    },
    constraints.positive_definite: {
        "Wishart": lambda size: dist.Wishart(torch.tensor(size + 2.0), torch.eye(size)),
        NARROW: lambda size: dist.Wishart(
            torch.tensor(1 / SPREAD**2), torch.eye(size) * CENTRES["positive"] * SPREAD**2
        ),
        "known": lambda size: CENTRES["positive"] * torch.eye(size),
    },
    None: {
        "Laplace": lambda _: dist.Laplace(0.0, 1.0),
        "Student t": lambda _: dist.StudentT(3.0, 0.0, 1.0),
        "uniform": lambda _: dist.Uniform(-2.0, 2.0),
        NARROW: lambda _: dist.TransformedDistribution(
            dist.Normal(0.0, SPREAD), [AffineTransform(CENTRES["real"], 1.0)]
        ),
        "known": lambda _: CENTRES["real"],
    },
}
#: Of graphs.
NODES = 8
#: Runs that are as short as they can be: what is asked is whether a method takes the prior.
SHORT: dict[str, Any] = {
    "search": None, "max_iterations": 2, "steps": 3, "num_samples": 2, "warmup": 2, "chains": 1, "restarts": 1,
    "max_tree_depth": 2,
}  # fmt: skip
#: Of narrow priors: estimates have to come near; of those that take many small steps, so many.
LONGER = {"max_iterations": 15, "warmup": 40, "num_samples": 10, "steps": 300}
STEPS = {"cd": 1500, "pcd": 1500, "parallel_tempering": 1500}
NOTE = (
    "One line for each global site, and in it one prior for each method, which take turns, on the model's `example()` "
    "(of graphs its first eight nodes), in runs of two iterations. *closed form*: the engine's own M step; "
    "*numerical*: M steps under conjugate priors matched to this one where the iterations are, taken back where they "
    "lower the objective; *held*: a known value; *point*: a method that integrates the globals gave way to point "
    "estimates, and its status says so; *slice*: slice or Metropolis steps of the sampler; *generic*: Pyro's SVI, NUTS "
    "or enumeration, which take any; *stochastic*: steps along the slope of the log joint, the prior's with it; "
    "*honoured*: under a narrow prior, which has no closed form either, the estimates of a longer run are where it is; "
    "*refused*: with an error that says why."
)


def ran(model: Any, data: Any, method: str, site: str, kind: str) -> str:
    """What a method did with the prior of a site."""
    made = resolve_method(method, model=model)
    short = {**SHORT, **LONGER} if kind == NARROW else SHORT
    if kind == NARROW and method in STEPS:
        short = {**short, "max_iterations": STEPS[method]}
    settings = {one.name: short[one.name] for one in fields(made) if one.name in short}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fit = resolve_method(method, model=model, **settings).fit(model, data, progress=False)
            return _outcome(fit, site, kind)
    except PPLError as error:
        return "refused" if site in str(error) or "prior" in str(error) else f"refused: {error}".partition(",")[0]
    except Exception as error:  # a fault, to be shown
        return f"{type(error).__name__}: {error}"[:80]


def _outcome(fit: Any, site: str, kind: str) -> str:
    found = fit.params[site]
    if kind == "known":
        return "held" if torch.allclose(found, fit.model.known[site].to(found)) else "NOT HELD"
    if kind == NARROW:
        away = float((found - _centre(fit.model, site, found)).abs().max())
        return "honoured" if away < NEAR else f"IGNORED: {away:.2g} away"
    if "integrates the globals" in fit.status:
        return "point"
    if "slice" in fit.status and site in fit.status:
        return "slice"
    if f"numerical M steps of {site}" in fit.status:
        return "numerical"
    if fit.method_name.startswith(("SVI", "NUTS", "Exact")):
        return "generic"
    return "stochastic" if fit.objective == "estimate" else "closed form"


def _centre(model: Any, site: str, like: torch.Tensor) -> torch.Tensor:
    """Where a narrow prior of a site is centred."""
    support = model.sites[site].support
    if support is constraints.positive_definite:
        return CENTRES["positive"] * torch.eye(like.shape[-1]).to(like)
    if support is constraints.simplex:
        return torch.full_like(like, 1 / like.shape[-1])
    where = {constraints.unit_interval: "unit", constraints.positive: "positive"}.get(support, "real")
    return torch.full_like(like, CENTRES[where])


def small(name: str) -> tuple[Any, Any]:
    """A model and its data: the example, of graphs its first nodes, over whose labelings the exact engines can sum."""
    model: Any = MODELS[name].example().model
    data = MODELS[name].example().data
    if not model.is_graph:
        return model, data
    fewer: dict[str, Any] = {"num_nodes": NODES}
    if hasattr(model, "covariates"):
        fewer["covariates"] = model.covariates[:NODES]
    adjacency = data.x.to_dense()[:NODES, :NODES].numpy()
    return replace(model, **fewer), graph(adjacency, directed=model.directed)


def asked(plain: Any) -> list[tuple[str, str, Callable[[int], Any]]]:
    """(site, prior, what makes it) of every global of a model."""
    supports = {site: plain.sites[site].support for site in plain.global_sites}
    return [
        (site, kind, make)
        for site, support in supports.items()
        for kind, make in PRIORS.get(None if support is constraints.real else support, {}).items()
    ]


def lines(name: str, before: int) -> list[dict[str, str]]:
    """A row for every site of a model, after so many rows: for every method a prior, and what ran."""
    plain, data = small(name)
    priors: dict[str, dict[str, Callable[[int], Any]]] = {}
    for site, kind, make in asked(plain):
        priors.setdefault(site, {})[kind] = make
    rows = []
    for number, (site, kinds) in enumerate(priors.items(), before):
        row = {"model": name, "site": site}
        for turn, method in enumerate(one for one in methods_for(plain) if one != "default"):
            # Narrow priors take longer runs, and tell nothing of methods that take any prior.
            fitting = [kind for kind in kinds if kind != NARROW or not _is_generic(plain, method)]
            kind = fitting[(number + turn) % len(fitting)]
            row[method] = f"{kind}: {_tried(plain, data, method, site, kind, kinds[kind])}"
        rows.append(row)
    return rows


def _tried(plain: Any, data: Any, method: str, site: str, kind: str, make: Callable[[int], Any]) -> str:
    """What a method does with a prior of a site, where the model takes it."""
    shape = plain.shapes[site]
    try:
        model = plain.with_priors(**{site: make(shape[-1] if shape else 1)})
    except PPLError:
        return "refused"
    return ran(model, data, method, site, kind) if method in methods_for(model) else "not offered"


def _is_generic(model: Any, method: str) -> bool:
    return isinstance(resolve_method(method, model=model), SVI | NUTS | Exact)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two models: does it run?")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    rows: list[dict[str, str]] = []
    for name in [*MODELS][: 2 if quick else None]:
        started = time.process_time()
        rows += lines(name, len(rows))
        print(f"{name}: {time.process_time() - started:.0f} s", flush=True)
    columns = list(dict.fromkeys(column for row in rows for column in row))
    outcomes = [row[column].partition(": ")[2] for row in rows for column in columns[2:] if column in row]
    counts = [[what, outcomes.count(what)] for what in sorted(set(outcomes))]
    table = Table("By site and method", columns, [[row.get(column) for column in columns] for row in rows], note=NOTE)
    often, folder = Table("What ran, how often", ["what", "times"], counts), QUICK if quick else RESULTS
    write_report("priors_by_engine", "Priors by methods", [often, table], folder=folder)


if __name__ == "__main__":
    main()
