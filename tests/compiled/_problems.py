"""Programs of every closed form of the M step, with their references in NumPy and priors of several kinds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from scipy import stats
from scipy.special import log_softmax
from torch.distributions import constraints

from ppl_models import Data, Model, Site
from ppl_models.distributions import Flat
from tests.programs._own import ROW, observed, own_program
from tests.programs.references import _reference as of
from tests.programs.references._reference import Reference, chosen, seen

SIZE, ROWS = 3, 40
UNIT, REAL, POSITIVE = constraints.unit_interval, constraints.real, constraints.positive
SIMPLEX, BOOLEAN, COUNT = constraints.simplex, constraints.boolean, constraints.nonnegative_integer

#: By the kind of prior and the support: the distribution of one element, and how references spell it; None: flat.
PRIORS: dict[str, dict[Any, tuple[Any, Any]]] = {
    "conjugate": {
        UNIT: (dist.Beta(2.0, 1.5), ("beta", 2, 1.5)),
        REAL: (dist.Normal(0.5, 1.5), ("normal", 0.5, 1.5)),
        POSITIVE: (dist.Gamma(2.0, 1.5), ("gamma", 2, 1.5)),
        SIMPLEX: (dist.Dirichlet(torch.full((SIZE,), 1.75)), ("dirichlet", 1.75)),
    },
    "other": {
        UNIT: (dist.Kumaraswamy(2.0, 3.0), ("kumaraswamy", 2, 3)),
        REAL: (dist.StudentT(4.0, 0.25, 1.0), ("student", 4, 0.25, 1)),
        POSITIVE: (dist.LogNormal(0.25, 0.75), ("lognormal", 0.25, 0.75)),
        SIMPLEX: (dist.Dirichlet(torch.tensor([1.5, 1.0, 2.5])), ("dirichlet", [1.5, 1, 2.5])),
    },
    "flat": {
        UNIT: (Flat(dist.Beta(1.0, 1.0)), None),
        REAL: (Flat(dist.Normal(0.0, 1.0)), None),
        POSITIVE: (Flat(dist.Gamma(2.0, 2.0)), None),
        SIMPLEX: (Flat(dist.Dirichlet(torch.ones(SIZE))), None),
    },
}


@dataclass(frozen=True)
class Problem:
    """A program with data and its reference. exact: whether one M step is the maximum, where priors are conjugate."""

    model: Model
    data: Data
    reference: Reference
    exact: bool

    @property
    def table(self) -> dict[str, np.ndarray]:
        mask = torch.ones_like(self.data.x, dtype=torch.bool) if self.data.mask is None else self.data.mask
        return {"x": self.data.x.numpy(), "mask": mask.numpy(), **{s: v.numpy() for s, v in self.data.others.items()}}


@dataclass(frozen=True)
class Kind:
    """What a problem is made of.

    globals: site -> (support, number of axes). law: of x given the values of the latents, and log p in NumPy. x: of
    which kind. latents: "class", a choice z with the shares ``weight``; "bits", two of known chance.
    """

    globals: Mapping[str, tuple[Any, int]]
    law: Any
    log_p: Any
    x: Any
    latents: str = "class"
    covariates: bool = False
    exact: bool = True


def _bits(value):
    return np.where(value == 1, np.log(0.4), np.log(0.6)).sum(-1)


KINDS = {
    "bernoulli": Kind(
        {"p": (UNIT, 2)},
        lambda z, p: dist.Bernoulli(p[z]),
        lambda x, z, p: stats.bernoulli.logpmf(x, p[z]), BOOLEAN,
    ),
    "categorical": Kind(
        {"p": (SIMPLEX, 3)},
        lambda z, p: dist.Categorical(p[z]),
        lambda x, z, p: chosen(np.log(p)[z], x), COUNT,
    ),
    "poisson": Kind(
        {"rate": (POSITIVE, 2)},
        lambda z, rate: dist.Poisson(rate[z]),
        lambda x, z, rate: stats.poisson.logpmf(x, rate[z]), COUNT,
    ),
    "scaled_poisson": Kind(
        {"rate": (POSITIVE, 1)},
        lambda z, rate: dist.Poisson(rate[z].unsqueeze(-1) * torch.tensor([0.5, 1.0, 2.0])),
        lambda x, z, rate: stats.poisson.logpmf(x, rate[z][..., None] * np.array([0.5, 1, 2])), COUNT,
    ),
    "exponential": Kind(
        {"rate": (POSITIVE, 2)},
        lambda z, rate: dist.Exponential(rate[z]),
        lambda x, z, rate: stats.expon.logpdf(x, scale=1 / rate[z]), POSITIVE,
    ),
    "geometric": Kind(
        {"p": (UNIT, 2)},
        lambda z, p: dist.Geometric(p[z]),
        lambda x, z, p: stats.geom.logpmf(x + 1, p[z]), COUNT,
    ),
    "means": Kind(
        {"loc": (REAL, 2)},
        lambda z, loc: dist.Normal(loc[z], 0.8),
        lambda x, z, loc: stats.norm.logpdf(x, loc[z], 0.8), REAL,
    ),
    "scales": Kind(
        {"scale": (POSITIVE, 2)},
        lambda z, scale: dist.Normal(torch.zeros(()), scale[z]),
        lambda x, z, scale: stats.norm.logpdf(x, 0, scale[z]), REAL,
    ),
    "normals": Kind(
        {"loc": (REAL, 2), "scale": (POSITIVE, 1)},
        lambda z, loc, scale: dist.Normal(loc[z], scale),
        lambda x, z, loc, scale: stats.norm.logpdf(x, loc[z], scale), REAL, exact=False,
    ),
    "predictors": Kind(
        {"base": (REAL, 1), "slope": (REAL, 1)},
        lambda z, base, slope, u: dist.Normal(base[z].unsqueeze(-1) + slope[z].unsqueeze(-1) * u, 0.8),
        lambda x, z, base, slope, u: stats.norm.logpdf(x, base[z][..., None] + slope[z][..., None] * u, 0.8),
        REAL, covariates=True,
    ),
    "zero_inflated": Kind(
        {"rate": (POSITIVE, 2), "gate": (UNIT, 1)},
        lambda z, rate, gate: dist.ZeroInflatedPoisson(rate[z], gate=gate.expand(rate[z].shape)),
        lambda x, z, rate, gate: np.where(
            x == 0, np.log(gate + (1 - gate) * np.exp(-rate[z])), np.log1p(-gate) + stats.poisson.logpmf(x, rate[z])
        ), COUNT, exact=False,
    ),
    "noisy_or": Kind(
        {"leak": (UNIT, 1), "one": (UNIT, 1), "two": (UNIT, 1)},
        lambda s, t, leak, one, two: dist.Bernoulli(1 - (1 - leak) * (1 - s * one) * (1 - t * two)),
        lambda x, s, t, leak, one, two: stats.bernoulli.logpmf(x, 1 - (1 - leak) * (1 - s * one) * (1 - t * two)),
        BOOLEAN, latents="bits", exact=False,
    ),
    "noisy_and": Kind(
        {"base": (UNIT, 1), "one": (UNIT, 1), "two": (UNIT, 1)},
        lambda s, t, base, one, two: dist.Bernoulli(base * (1 - s * one) * (1 - t * two)),
        lambda x, s, t, base, one, two: stats.bernoulli.logpmf(x, base * (1 - s * one) * (1 - t * two)),
        BOOLEAN, latents="bits", exact=False,
    ),
    "added_rates": Kind(
        {"base": (POSITIVE, 1), "one": (POSITIVE, 1), "two": (POSITIVE, 1)},
        lambda s, t, base, one, two: dist.Poisson(base + s * one + 2 * t * two),
        lambda x, s, t, base, one, two: stats.poisson.logpmf(x, base + s * one + 2 * t * two),
        COUNT, latents="bits", exact=False,
    ),
    "softmax": Kind(
        {"gate": (REAL, 1), "p": (UNIT, 2)}, None, None, BOOLEAN, latents="gated", covariates=True, exact=False,
    ),
}  # fmt: skip


def _program(kind: Kind, priors: str) -> Model:
    sites: dict[str, Site] = {}
    if kind.latents == "class":
        sites |= {"weight": Site("global", ("column",), support=SIMPLEX)}
    for name, (support, axes) in kind.globals.items():
        sites[name] = Site("global", ("column",) * axes, support=support)
    if kind.latents == "bits":
        sites |= {name: Site("latent", (), ROW, BOOLEAN) for name in ("s", "t")}
    else:
        sites["z"] = Site("latent", (), ROW, choice="column")
    if kind.covariates:
        sites["u"] = Site("given", ("column",), ROW, REAL)
    sites["x"] = observed(kind.x, SIZE)

    def rows(plate, u=None, weight=None, **values):
        given = {"u": plate.of(u)} if kind.covariates else {}
        if kind.latents == "bits":
            local = [pyro.sample(name, dist.Bernoulli(0.4)).unsqueeze(-1) for name in ("s", "t")]
            return plate.observe("x", kind.law(*local, **values, **given))
        if kind.latents == "gated":
            z = pyro.sample("z", dist.Categorical(logits=given["u"] * values["gate"]))
            return plate.observe("x", dist.Bernoulli(values["p"][z]))
        z = pyro.sample("z", dist.Categorical(weight))
        return plate.observe("x", kind.law(z, **values, **given))

    chosen_priors = {n: PRIORS[priors][one.support][0] for n, one in sites.items() if one.role == "global"}
    return own_program(sites, rows, chosen_priors, SIZE)


def _reference(kind: Kind, model: Model, priors: str) -> Reference:
    def rows(params, latents, data):
        own, given = {name: params[name] for name in kind.globals}, {"u": data["u"]} if kind.covariates else {}
        if kind.latents == "bits":
            s, t = (latents[name][..., None] for name in ("s", "t"))
            return _bits(np.concatenate([s, t], -1)) + seen(kind.log_p(data["x"], s, t, **own, **given), data)
        z = latents["z"].astype(int)
        if kind.latents == "gated":
            share = log_softmax(data["u"] * own["gate"], -1)
            prior = np.take_along_axis(share[None], z[..., None] + np.zeros((1, len(share), 1), dtype=int), -1)[..., 0]
            return prior + seen(stats.bernoulli.logpmf(data["x"], own["p"][z]), data)
        return np.log(params["weight"])[z] + seen(kind.log_p(data["x"], z, **own, **given), data)

    spaces = {"s": of.bit(), "t": of.bit()} if kind.latents == "bits" else {"z": of.choice(SIZE)}
    spelled = {n: PRIORS[priors][model.sites[n].support][1] for n in model.global_sites}
    return Reference(rows, lambda params, data: spaces, {n: one for n, one in spelled.items() if one is not None})


def state_of(model: Model, seed: int) -> dict[str, torch.Tensor]:
    """Values of all globals within their supports."""
    rng, found = np.random.default_rng(seed), {}
    for name, shape in model.shapes.items():
        drawn, support = torch.as_tensor(rng.normal(size=tuple(shape))), model.sites[name].support
        maps = {UNIT: torch.sigmoid, POSITIVE: torch.exp, SIMPLEX: lambda v: torch.softmax(v, -1)}
        found[name] = maps.get(support, lambda v: v)(0.8 * drawn)
    return found


def problem(name: str, priors: str, *, missing: bool = True) -> Problem:
    """Rows that the program draws, a tenth of whose entries is missing."""
    kind = KINDS[name]
    model, generator = _program(kind, priors), torch.Generator().manual_seed(3)
    others = {"u": torch.randn(ROWS, SIZE, generator=generator, dtype=torch.float64)} if kind.covariates else {}
    truth = state_of(model, 7)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        x = pyro.condition(model, data=truth)(num_rows=ROWS, **others).double()
    mask = torch.rand(x.shape, generator=generator) > 0.1 if missing else None
    fill = torch.full_like(x, 1.0)
    data = Data(x=x if mask is None else torch.where(mask, x, fill), mask=mask, others=others)
    return Problem(model, data, _reference(kind, model, priors), kind.exact)
