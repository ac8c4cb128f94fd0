"""Programs with finite latents as their users would write them, to be fitted by EM of what is compiled from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models import ComponentModel, RowModel, Site
from tests.programs.chains import HiddenChain

_ROW = ("row",)
_CLASS = Site("latent", (), _ROW, choice="component")
_WEIGHT = Site("global", ("component",), support=constraints.simplex)
_BIT = Site("observed", ("feature",), _ROW, constraints.boolean)
_COUNT = Site("observed", ("feature",), _ROW, constraints.nonnegative_integer)


@dataclass(frozen=True, kw_only=True, eq=False)
class Bits(ComponentModel):
    """Classes of rows of bits."""

    sites: ClassVar[Mapping[str, Site]] = {
        "weight": _WEIGHT,
        "p": Site("global", ("component", "feature"), support=constraints.unit_interval),
        "z": _CLASS,
        "x": _BIT,
    }

    def __call__(self, x=None, *, mask=None, batch_size=None, num_rows=1):
        weight, p = self.sample("weight"), self.sample("p")
        with self.rows(x, mask, batch_size, num_rows) as rows:
            z = pyro.sample("z", dist.Categorical(weight))
            return rows.observe("x", dist.Bernoulli(p[z]))


@dataclass(frozen=True, kw_only=True, eq=False)
class Counts(ComponentModel):
    """Classes of rows of counts, with the vague prior of the listed mixture."""

    sites: ClassVar[Mapping[str, Site]] = {
        "weight": _WEIGHT,
        "rate": Site("global", ("component", "feature"), support=constraints.positive),
        "z": _CLASS,
        "x": _COUNT,
    }

    def default_priors(self):
        return {**super().default_priors(), "rate": dist.Gamma(0.1, 0.1)}

    def __call__(self, x=None, *, mask=None, batch_size=None, num_rows=1):
        weight, rate = self.sample("weight"), self.sample("rate")
        with self.rows(x, mask, batch_size, num_rows) as rows:
            z = pyro.sample("z", dist.Categorical(weight))
            return rows.observe("x", dist.Poisson(rate[z]))


@dataclass(frozen=True, kw_only=True, eq=False)
class ZeroInflated(ComponentModel):
    """Classes of rows of counts, of which every column leaves out a share."""

    sites: ClassVar[Mapping[str, Site]] = {
        **Counts.sites,
        "gate": Site("global", ("feature",), support=constraints.unit_interval),
    }

    def default_priors(self):
        return {**super().default_priors(), "rate": dist.Gamma(1.0, 0.1)}

    def __call__(self, x=None, *, mask=None, batch_size=None, num_rows=1):
        weight, rate, gate = self.sample("weight"), self.sample("rate"), self.sample("gate")
        with self.rows(x, mask, batch_size, num_rows) as rows:
            z = pyro.sample("z", dist.Categorical(weight))
            return rows.observe("x", dist.ZeroInflatedPoisson(rate[z], gate=gate))


@dataclass(frozen=True, kw_only=True, eq=False)
class TwoLevel(ComponentModel):
    """A class, a kind within it, and bits of both."""

    num_kinds: int

    axes: ClassVar[Mapping[str, str]] = {**ComponentModel.axes, "kind": "num_kinds"}
    sites: ClassVar[Mapping[str, Site]] = {
        "weight": _WEIGHT,
        "share": Site("global", ("component", "kind"), support=constraints.simplex),
        "p": Site("global", ("component", "kind", "feature"), support=constraints.unit_interval),
        "z": _CLASS,
        "kind": Site("latent", (), _ROW, choice="kind"),
        "x": _BIT,
    }

    def __call__(self, x=None, *, mask=None, batch_size=None, num_rows=1):
        weight, share, p = self.sample("weight"), self.sample("share"), self.sample("p")
        with self.rows(x, mask, batch_size, num_rows) as rows:
            z = pyro.sample("z", dist.Categorical(weight))
            kind = pyro.sample("kind", dist.Categorical(share[z]))
            return rows.observe("x", dist.Bernoulli(p[z, kind]))


@dataclass(frozen=True, kw_only=True, eq=False)
class Regressions(RowModel):
    """Classes of rows, each with a line of its own through the covariates u."""

    num_classes: int
    num_covariates: int

    axes: ClassVar[Mapping[str, str]] = {"class": "num_classes", "covariate": "num_covariates"}
    sites: ClassVar[Mapping[str, Site]] = {
        "weight": Site("global", ("class",), support=constraints.simplex),
        "slope": Site("global", ("class", "covariate"), support=constraints.real),
        "base": Site("global", ("class",), support=constraints.real),
        "noise": Site("global", ("class",), support=constraints.positive),
        "u": Site("given", ("covariate",), _ROW),
        "z": Site("latent", (), _ROW, choice="class"),
        "x": Site("observed", (), _ROW, constraints.real),
    }

    def default_priors(self):
        line = dist.Normal(0.0, 5.0)
        return {**super().default_priors(), "slope": line, "base": line, "noise": dist.Gamma(2.0, 2.0)}

    def __call__(self, x=None, *, u=None, mask=None, batch_size=None, num_rows=1):
        weight, slope, base, noise = (self.sample(site) for site in ("weight", "slope", "base", "noise"))
        with self.rows(x, mask, batch_size, num_rows) as rows:
            z = pyro.sample("z", dist.Categorical(weight))
            return rows.observe("x", dist.Normal(base[z] + (slope[z] * rows.of(u)).sum(-1), noise[z]))


@dataclass(frozen=True, kw_only=True, eq=False)
class NoisyOr(ComponentModel):
    """Sources, each of which turns an entry on with a probability of its own, and a leak."""

    sites: ClassVar[Mapping[str, Site]] = {
        "prior": Site("global", ("component",), support=constraints.unit_interval),
        "p": Site("global", ("component", "feature"), support=constraints.unit_interval),
        "leak": Site("global", ("feature",), support=constraints.unit_interval),
        "s": Site("latent", ("component",), _ROW, constraints.boolean),
        "x": _BIT,
    }

    def __call__(self, x=None, *, mask=None, batch_size=None, num_rows=1):
        prior, p, leak = self.sample("prior"), self.sample("p"), self.sample("leak")
        with self.rows(x, mask, batch_size, num_rows) as rows:
            s = pyro.sample("s", dist.Bernoulli(prior).to_event(1))
            return rows.observe("x", dist.Bernoulli(_on(s, p, leak)))


@dataclass(frozen=True, kw_only=True, eq=False)
class NoisyOrOfGroups(ComponentModel):
    """A noisy-or whose leaks are those of the row's group, which is given."""

    num_groups: int

    axes: ClassVar[Mapping[str, str]] = {**ComponentModel.axes, "group": "num_groups"}
    sites: ClassVar[Mapping[str, Site]] = {
        **NoisyOr.sites,
        "leak": Site("global", ("group", "feature"), support=constraints.unit_interval),
        "group": Site("given", (), _ROW, constraints.nonnegative_integer),
    }

    def __call__(self, x=None, *, group=None, mask=None, batch_size=None, num_rows=1):
        prior, p, leak = self.sample("prior"), self.sample("p"), self.sample("leak")
        with self.rows(x, mask, batch_size, num_rows) as rows:
            s = pyro.sample("s", dist.Bernoulli(prior).to_event(1))
            return rows.observe("x", dist.Bernoulli(_on(s, p, leak[rows.of(group).long()])))


def _on(s: Tensor, p: Tensor, leak: Any) -> Tensor:
    return 1 - torch.exp(s @ torch.log1p(-p) + torch.log1p(-leak))


def make_chain(steps: int) -> HiddenChain:
    """A hidden Markov chain of the tests' programs, all of whose priors are uniform."""
    moves = dist.Dirichlet(torch.ones(4))
    return HiddenChain(num_states=4, num_symbols=8, num_steps=steps, priors={"move": moves})
