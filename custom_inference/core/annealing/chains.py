"""What annealing asks of a model: values of the latents of many rows, in many chains, and moves that leave a tempered
density as it is."""

from __future__ import annotations

import abc
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_PARTS = ("place", "reals", "joint", "base")


@dataclass(frozen=True)
class State:
    """Values of the latents of N rows in M chains, and the two ends of the path there.

    place: (M, N, F) positions of the finite elements among their options. reals: (M, N, R) the real numbers that stand
    for continuous latents. joint: (M, N) log p(x_n, s_n) as a density of these; base: (M, N) the log density that the
    path begins at.
    """

    place: Tensor
    reals: Tensor
    joint: Tensor
    base: Tensor

    @property
    def gain(self) -> Tensor:
        """The log ratio of the ends, (M, N): what the weight of a chain grows by along the path."""
        gain = self.joint - self.base
        return torch.where(self.joint > -torch.inf, gain, -torch.inf).nan_to_num(nan=-torch.inf)

    def temper(self, power: Tensor) -> Tensor:
        """The log density (M, N) at a power (N,) between the ends."""
        found = (1 - power) * self.base + power * self.joint
        return torch.where(power > 0, found, self.base).nan_to_num(nan=-torch.inf)

    def where(self, other: State, accepted: Tensor) -> State:
        """Take the other values where they are accepted, (M, N)."""
        wide = accepted.unsqueeze(-1)
        return State(
            torch.where(wide, other.place, self.place),
            torch.where(wide, other.reals, self.reals),
            torch.where(accepted, other.joint, self.joint),
            torch.where(accepted, other.base, self.base),
        )

    def accept(self, other: State, power: Tensor, generator: torch.Generator) -> State:
        """Go over to other values with the probability of Metropolis at a power (N,), where proposals are symmetric."""
        ratio = other.temper(power) - self.temper(power)
        return self.where(other, draw_log_uniform(ratio, generator) < ratio)

    def gather(self, chain: Tensor) -> State:
        """Take the chains (M', N) of every row."""
        every = torch.arange(chain.shape[1], device=chain.device)
        return State(*(getattr(self, name)[chain, every] for name in _PARTS))

    def rows(self, index: Tensor) -> State:
        return State(*(getattr(self, name)[:, index] for name in _PARTS))

    @staticmethod
    def stack(states: list[State]) -> State:
        """Put the chains of several states of the same rows together."""
        return State(*(torch.cat([getattr(one, name) for one in states]) for name in _PARTS))

    @staticmethod
    def beside(states: list[State]) -> State:
        """Put rows of several states beside each other."""
        return State(*(torch.cat([getattr(one, name) for one in states], 1) for name in _PARTS))


class Tuning(NamedTuple):
    """What moves of real numbers are scaled by at a temperature: step (N,), scale (N, R)."""

    step: Tensor
    scale: Tensor

    def rows(self, index: Tensor) -> Tuning:
        return Tuning(self.step[index], self.scale[index])


@dataclass(frozen=True)
class Product:
    """A density that a path begins at: independent finite elements, and a normal of the real numbers.

    table: (N, F, S) log-probabilities of the options; centre: (N, R); root: (N, R, R), whose square is the covariance.
    """

    table: Tensor
    centre: Tensor
    root: Tensor

    def rows(self, index: Tensor) -> Product:
        return Product(self.table[index], self.centre[index], self.root[index])

    def draw(self, chains: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw places (M, N, F) and real numbers (M, N, R)."""
        place = draw_places(self.table.exp(), (chains,), generator)
        normal = torch.randn(chains, len(self.centre), self.centre.shape[-1], generator=generator, dtype=torch.float64)
        reals = self.centre + torch.einsum("nrq,mnq->mnr", self.root, normal.to(self.centre))
        return place, reals

    def log_prob(self, place: Tensor, reals: Tensor) -> Tensor:
        """Evaluate at places and real numbers, (M, N)."""
        table = self.table.expand(len(place), *self.table.shape)
        finite = table.gather(-1, place.unsqueeze(-1)).squeeze(-1).sum(-1)
        if not reals.shape[-1]:
            return finite
        apart = torch.linalg.solve_triangular(self.root, (reals - self.centre).unsqueeze(-1), upper=False).squeeze(-1)
        volume = self.root.diagonal(dim1=-2, dim2=-1).log().sum(-1) + 0.5 * reals.shape[-1] * torch.log(
            torch.as_tensor(2 * torch.pi)
        ).to(reals)
        return finite - 0.5 * apart.square().sum(-1) - volume


def draw_log_uniform(like: Tensor, generator: torch.Generator) -> Tensor:
    """Draw logarithms of uniform numbers, of the shape of ``like``: what ratios of Metropolis are compared with."""
    return torch.rand(like.shape, generator=generator, dtype=torch.float64).clamp_min(1e-300).log().to(like)


def draw_places(weight: Tensor, leading: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Draw places (*leading, ...) among the options whose weights are (..., S)."""
    ends = weight.cumsum(-1)
    shape = (*leading, *weight.shape[:-1], 1)
    uniform = torch.rand(shape, generator=generator, dtype=torch.float64).to(weight)
    return (uniform * ends[..., -1:] >= ends[..., :-1]).sum(-1)


def draw_proportions(concentration: Tensor, generator: torch.Generator) -> Tensor:
    """Draw from Dirichlet distributions with concentrations (..., K) that may be 0."""
    rng = np.random.default_rng(int(torch.randint(2**62, (1,), generator=generator)))
    drawn = torch.from_numpy(rng.standard_gamma(concentration.numpy())).clamp_min(torch.finfo(torch.float64).tiny)
    drawn = torch.where(concentration > 0, drawn, 0.0)
    return drawn / drawn.sum(-1, keepdim=True)


def draw_seed(generator: torch.Generator) -> NDArray[np.uint64]:
    """Draw a seed (1,) of compiled loops."""
    return torch.randint(2**62, (1,), generator=generator).numpy().astype(np.uint64)


def exchange_names(number: int, chains: int, generator: torch.Generator) -> Tensor:
    """Draw permutations (M, K) of so many names that exchange two of them."""
    first = torch.randint(number, (chains, 1), generator=generator)
    second = (first + torch.randint(1, number, (chains, 1), generator=generator)) % number
    found = torch.arange(number).repeat(chains, 1)
    return found.scatter(1, first, second).scatter(1, second, first)


class Chains(abc.ABC):
    """Chains over the latents of rows, at given globals.

    base: the density that paths begin at; None for the prior.
    """

    base: Product | None

    @property
    def goes_back(self) -> bool:
        """Whether errors count what chains back from the posterior find: of points of a simplex no chain may have met
        the corners."""
        return False

    @abc.abstractmethod
    def __len__(self) -> int:
        """The number of rows."""

    @property
    def members(self) -> int:
        """How many rows of the data, whose codes stand beside each other, are one row here, as the nodes of a graph."""
        return 1

    @property
    @abc.abstractmethod
    def options(self) -> Tensor:
        """The number of options of every finite element, (F,)."""

    @property
    @abc.abstractmethod
    def num_reals(self) -> int:
        """How many real numbers a row has."""

    @abc.abstractmethod
    def rows(self, index: Tensor) -> Self:
        """Give the chains of some rows."""

    @abc.abstractmethod
    def begin(self, chains: int, generator: torch.Generator) -> State:
        """Draw from the density that the path begins at."""

    @abc.abstractmethod
    def at(self, code: Tensor, generator: torch.Generator) -> State:
        """Begin at codes (M, N, W); what they leave open is drawn given them."""

    @abc.abstractmethod
    def code(self, state: State) -> Tensor:
        """Give the codes (M, N, W) of a state, values as posteriors have them: their expectation given the state."""

    def draw(self, state: State, generator: torch.Generator) -> Tensor:
        """Draw codes (M, N, W) given a state; by default those that it has."""
        del generator
        return self.code(state)

    @abc.abstractmethod
    def move(self, state: State, power: Tensor, tuning: Tuning, generator: torch.Generator) -> tuple[State, Tensor]:
        """Move every chain so that the density at the powers (N,) stays as it is.

        Returns the state, and the mean probability (N,) with which moves of real numbers were accepted.
        """

    def guess_base(self) -> Product | None:
        """Return a density to begin at that is nearer to the posterior than the prior is, found in another way than by
        chains; None where there is none."""
        return None

    def predict_seconds(self, state: State) -> float:
        """Predict how long a move from here takes, without making one; 0 where that needs no prediction."""
        del state
        return 0.0

    def begin_at(self, base: Product | None) -> Self:
        """Give the chains whose path begins at another density."""
        return replace(self, base=base)  # type: ignore[type-var]


class GraphChains(Chains):
    """Chains over finite elements of a whole graph, whose nodes are one row. size: the number of nodes."""

    size: int

    def __len__(self) -> int:
        return 1

    @property
    def members(self) -> int:
        return self.size

    @property
    def num_reals(self) -> int:
        return 0

    def rows(self, index: Tensor) -> Self:
        del index  # there is one
        return self
