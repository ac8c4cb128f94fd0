"""Chains that are too long to enumerate, chains beside each other, and classes of chains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models import Example
from ppl_models.core.row_models import RowModel
from ppl_models.core.sites import Site
from ppl_models.likelihoods import Poisson
from tests.programs._draw import drawn


@dataclass(frozen=True, kw_only=True, eq=False)
class HiddenChain(RowModel):
    """A hidden Markov chain a row: a choice at every step, z0, z1, ..., and all symbols stated at once."""

    num_states: int
    num_symbols: int
    num_steps: int

    axes: ClassVar[Mapping[str, str]] = {
        "state": "num_states", "to_state": "num_states", "symbol": "num_symbols", "step": "num_steps"
    }  # fmt: skip

    @property
    def sites(self) -> Mapping[str, Site]:
        return {
            "start": Site("global", ("state",), support=constraints.simplex),
            "move": Site("global", ("state", "to_state"), support=constraints.simplex),
            "emit": Site("global", ("state", "symbol"), support=constraints.simplex),
            **{f"z{t}": Site("latent", (), ("row",), choice="state") for t in range(self.num_steps)},
            "x": Site("observed", ("step",), ("row",), constraints.nonnegative_integer),
        }

    def default_priors(self) -> dict[str, Any]:
        return {**super().default_priors(), "move": dist.Dirichlet(torch.full((self.num_states,), 1.5))}

    def __call__(
        self, x: Tensor | None = None, *, mask: Tensor | None = None, batch_size: int | None = None, num_rows: int = 1
    ) -> Tensor:
        start, move, emit = self.sample("start"), self.sample("move"), self.sample("emit")
        with self.rows(x, mask, batch_size, num_rows) as rows:
            every = [pyro.sample("z0", dist.Categorical(start))]
            for t in range(1, self.num_steps):
                every.append(pyro.sample(f"z{t}", dist.Categorical(move[every[-1]])))
            return rows.observe("x", dist.Categorical(torch.stack([emit[z] for z in every], -2)))

    @classmethod
    def example(cls) -> Example:
        truth = {
            "start": [0.6, 0.3, 0.1],
            "move": [[0.8, 0.15, 0.05], [0.1, 0.8, 0.1], [0.2, 0.1, 0.7]],
            "emit": [[0.7, 0.15, 0.1, 0.05], [0.1, 0.7, 0.1, 0.1], [0.05, 0.1, 0.15, 0.7]],
        }
        return drawn(cls(num_states=3, num_symbols=4, num_steps=40), truth, 30, seed=31)


@dataclass(frozen=True, kw_only=True, eq=False)
class BrokenChain(HiddenChain):
    """The same of rows of unequal lengths, of which some steps are missing."""

    @classmethod
    def example(cls) -> Example:
        example = super().example()
        generator = torch.Generator().manual_seed(32)
        length = torch.randint(4, 61, (len(example.data), 1), generator=generator)  # a third of them whole
        mask = (torch.arange(40) < length) & (torch.rand(example.data.x.shape, generator=generator) > 0.1)
        x = torch.where(mask, example.data.x, torch.zeros_like(example.data.x))
        return replace(example, data=replace(example.data, x=x, mask=mask))


@dataclass(frozen=True, kw_only=True, eq=False)
class AddedChains(RowModel):
    """Two hidden chains of bits a row, each with what it adds to the mean of a step: factorial hidden Markov models."""

    num_steps: int
    num_chains: int = 2

    axes: ClassVar[Mapping[str, str]] = {"chain": "num_chains", "feature": "num_steps"}
    support: ClassVar[Any] = constraints.real
    of_emissions: ClassVar[Mapping[str, Site]]

    @property
    def sites(self) -> Mapping[str, Site]:
        bits = {
            f"{chain}{t}": Site("latent", (), ("row",), constraints.boolean)
            for chain in ("a", "b")
            for t in range(self.num_steps)
        }
        return {
            "begin": Site("global", ("chain",), support=constraints.unit_interval),
            "rise": Site("global", ("chain",), support=constraints.unit_interval),
            "stay": Site("global", ("chain",), support=constraints.unit_interval),
            **self.of_emissions,
            **bits,
            "x": Site("observed", ("feature",), ("row",), self.support),
        }

    def draw_locals(self, site: Mapping[str, Tensor]) -> list[Tensor]:
        """The bits (..., N, T) of both chains."""
        found = []
        for number, chain in enumerate(("a", "b")):
            chance, bits = site["begin"][number], []
            for t in range(self.num_steps):
                bits.append(pyro.sample(f"{chain}{t}", dist.Bernoulli(chance)))
                chance = torch.where(bits[-1] == 1, site["stay"][number], site["rise"][number])
            found.append(torch.stack(torch.broadcast_tensors(*bits), -1))
        return found


CHANCES = {"begin": [0.4, 0.5], "rise": [0.2, 0.4], "stay": [0.8, 0.6]}


@dataclass(frozen=True, kw_only=True, eq=False)
class AddedLevels(AddedChains):
    """Normal steps about the level that both chains make."""

    of_emissions: ClassVar[Mapping[str, Site]] = {
        "level": Site("global", (), support=constraints.real),
        "step": Site("global", ("chain",), support=constraints.real),
        "noise": Site("global", (), support=constraints.positive),
    }

    def default_priors(self) -> dict[str, Any]:
        wide = dist.Normal(0.0, 3.0)
        return {**super().default_priors(), "level": wide, "step": wide, "noise": dist.LogNormal(-0.5, 0.5)}

    def entries(self, site: Mapping[str, Tensor], local: list[Tensor]) -> Any:
        a, b = local
        return dist.Normal(site["level"] + a * site["step"][0] + b * site["step"][1], site["noise"])

    @classmethod
    def example(cls) -> Example:
        truth = {**CHANCES, "level": -0.5, "step": [2.0, -1.0], "noise": 0.6}
        return drawn(cls(num_steps=4), truth, 60, seed=33, missing=0.1)


@dataclass(frozen=True, kw_only=True, eq=False)
class AddedRates(AddedChains):
    """Counts, to whose rate each chain adds its own while it is on."""

    likelihood: ClassVar[Any] = Poisson()
    support: ClassVar[Any] = constraints.nonnegative_integer
    of_emissions: ClassVar[Mapping[str, Site]] = {
        "base": Site("global", (), support=constraints.positive),
        "rate": Site("global", ("chain",), support=constraints.positive),
    }

    def default_priors(self) -> dict[str, Any]:
        return {**super().default_priors(), "base": dist.Gamma(2.0, 2.0), "rate": dist.Gamma(2.0, 0.5)}

    def entries(self, site: Mapping[str, Tensor], local: list[Tensor]) -> Any:
        a, b = local
        return dist.Poisson(site["base"] + a * site["rate"][0] + b * site["rate"][1])

    @classmethod
    def example(cls) -> Example:
        truth = {**CHANCES, "base": 0.7, "rate": [6.0, 2.5]}
        return drawn(cls(num_steps=4), truth, 60, seed=34, missing=0.1)


@dataclass(frozen=True, kw_only=True, eq=False)
class ClassesOfChains(RowModel):
    """Classes of Markov chains: the law of a symbol is looked up by the class and by the symbol before, in x itself.

    A symbol whose predecessor is missing is drawn as a first one.
    """

    num_classes: int
    num_symbols: int
    num_steps: int

    axes: ClassVar[Mapping[str, str]] = {
        "class": "num_classes", "symbol": "num_symbols", "to_symbol": "num_symbols", "feature": "num_steps"
    }  # fmt: skip
    sites: ClassVar[Mapping[str, Site]] = {
        "weight": Site("global", ("class",), support=constraints.simplex),
        "first": Site("global", ("class", "symbol"), support=constraints.simplex),
        "move": Site("global", ("class", "symbol", "to_symbol"), support=constraints.simplex),
        "z": Site("latent", (), ("row",), choice="class"),
        "x": Site("observed", ("feature",), ("row",), constraints.nonnegative_integer),
    }

    def default_priors(self) -> dict[str, Any]:
        return {**super().default_priors(), "move": dist.Dirichlet(torch.full((self.num_symbols,), 1.5))}

    def __call__(
        self, x: Tensor | None = None, *, mask: Tensor | None = None, batch_size: int | None = None, num_rows: int = 1
    ) -> Tensor:
        weight, first, move = self.sample("weight"), self.sample("first"), self.sample("move")
        with self.rows(x, mask, batch_size, num_rows) as rows:
            z = pyro.sample("z", dist.Categorical(weight))
            if x is None:
                drawn = [dist.Categorical(first[z]).sample()]
                for _ in range(1, self.num_steps):
                    drawn.append(dist.Categorical(move[z, drawn[-1]]).sample())
                own, seen = torch.stack(drawn, -1), None
            else:
                own, seen = rows.of(x).long(), rows.of(mask)
            known = torch.ones_like(own, dtype=torch.bool) if seen is None else seen
            before = torch.where(known, own, torch.zeros_like(own))[:, :-1]
            begin = first[z].unsqueeze(-2)
            later = torch.where(known[:, :-1, None], move[z.unsqueeze(-1), before], begin)
            law = dist.Categorical(torch.cat([begin, later], -2))
            if x is None:
                return pyro.sample("x", law.to_event(1), obs=own.to(weight))
            return rows.observe("x", law)

    @classmethod
    def example(cls) -> Example:
        truth = {
            "weight": [0.6, 0.4],
            "first": [[0.6, 0.2, 0.2], [0.2, 0.3, 0.5]],
            "move": [
                [[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.2, 0.1, 0.7]],
                [[0.1, 0.8, 0.1], [0.1, 0.1, 0.8], [0.7, 0.2, 0.1]],
            ],
        }
        return drawn(cls(num_classes=2, num_symbols=3, num_steps=8), truth, 60, seed=35, missing=0.1)
