"""Tempered chains of any program of rows, by its own density: bits are flipped, other finite latents drawn among their
options, and real numbers moved along slopes.

Flips are accepted with the probability of Metropolis, elements of more options are drawn from their conditional
distribution (Gibbs), real numbers move by Hamiltonian dynamics (Neal, *MCMC using Hamiltonian dynamics*, 2011) in
coordinates without bounds, scaled by how far chains are apart.
"""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from custom_inference.compiled.structure import Bound, flatten
from custom_inference.core.annealing.chains import Chains, Product, State, Tuning, draw_log_uniform
from custom_inference.core.isolation import torch_seeded
from custom_inference.core.programs.density import RowDensity
from custom_inference.core.programs.latents import Latent
from custom_inference.core.programs.modes import find_modes
from custom_inference.core.programs.statements import run
from custom_inference.core.programs.sticks import PreciseSticks
from custom_inference.core.programs.whole import WholeDensity
from ppl_models import MethodError

#: Steps of a move along the slopes, and how much of a step's length is left to chance.
_STEPS, _JITTER = 5, 0.25
#: How much wider than the curvature at a mode says the normal there is.
_WIDER = 1.5
#: As far as real numbers go that stand for values at the end of their support.
_FAR = 600.0
#: Entries of x in runs that draw from the prior.
_ENTRIES = 2**22


@dataclass(frozen=True)
class ProgramChains(Chains):
    """Chains over the latents of a program of rows. factors: the rows as the compiled program reads them, if it is."""

    density: RowDensity
    base: Product | None = None
    factors: Bound | None = None

    @property
    def goes_back(self) -> bool:
        return any(type(latent.transform) is PreciseSticks for latent in self.density.layout)

    def __len__(self) -> int:
        return len(self.density)

    @functools.cached_property
    def elements(self) -> list[tuple[Latent, int]]:
        """Every finite element: its latent, and where its code begins within a row's."""
        slices = self.density.layout.slices
        return [
            (latent, slices[latent.name].start + at * latent.options.shape[1])  # type: ignore[union-attr]
            for latent in self.density.layout.finite
            for at in range(latent.elements)
        ]

    @functools.cached_property
    def options(self) -> Tensor:
        return torch.tensor([len(latent.options) for latent, _ in self.elements], dtype=torch.long)  # type: ignore[arg-type]

    @property
    def num_reals(self) -> int:
        return self.density.layout.num_reals

    def predict_seconds(self, state: State) -> float:
        self._evaluate(state.place[:1], state.reals[:1])  # what is done once for all
        begin = time.perf_counter()
        self._evaluate(state.place, state.reals)
        finite = int(torch.where(self.options == 2, 1, self.options).sum())
        return (time.perf_counter() - begin) * (finite + (3 * _STEPS if self.num_reals else 0))  # slopes are two more

    def rows(self, index: Tensor) -> Self:
        base = None if self.base is None else self.base.rows(index)
        factors = None if self.factors is None else self.factors.select(index)
        return replace(self, density=self.density.rows(index), base=base, factors=factors)

    @functools.cached_property
    def _tables(self) -> list[Tensor]:
        """The log tables of the factors."""
        assert self.factors is not None
        return self.factors.tables(self.factors.naturals(flatten(self.factors, self.density.params)))

    def begin(self, chains: int, generator: torch.Generator) -> State:
        if self.base is not None:
            return self._evaluate(*self.base.draw(chains, generator))
        seed = int(torch.randint(2**62, (1,), generator=generator))
        data, rows = self.density.data, len(self)
        size = max(1, _ENTRIES // max(1, data.x.numel()))
        index, parts = torch.arange(rows, device=data.x.device), []
        for start in range(0, chains, size):
            number = min(size, chains - start)
            copies = replace(data, coords={}).rows(index.repeat(number))
            parts.append(self.density.draw(seed + start, copies).reshape(number, rows, -1))
        return self.at(torch.cat(parts), generator)

    def at(self, code: Tensor, generator: torch.Generator) -> State:
        del generator
        place = []
        for latent, at in self.elements:
            assert latent.options is not None
            own = code[..., at : at + latent.options.shape[1]].unsqueeze(-2)
            place.append((own - latent.options.to(code)).abs().sum(-1).argmin(-1))
        no_place = torch.zeros(*code.shape[:-1], 0, dtype=torch.long, device=code.device)
        reals = self.density.unconstrain(code) if self.num_reals else code.new_zeros(*code.shape[:-1], 0)
        reals = reals.nan_to_num(0.0, _FAR, -_FAR)  # of values that were rounded to the end of their support
        return self._evaluate(torch.stack(place, -1) if place else no_place, reals)

    def guess_base(self) -> Product | None:
        """A normal about the highest mode of every row, where all latents are real numbers."""
        if self.elements or not self.num_reals:
            return None
        about = find_modes(self.density, self.density.layout.configurations(self.density.like))
        root = torch.linalg.qr(about.root[0].mT)[1].mT  # the triangular one of the same covariance
        root = root * torch.where(root.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).unsqueeze(-2)
        return Product(root.new_zeros(len(self), 0, 1), about.centre[0], _WIDER * root)

    def code(self, state: State) -> Tensor:
        return self._code(state.place, state.reals)[0]

    def _code(self, place: Tensor, reals: Tensor) -> tuple[Tensor, Tensor]:
        """Codes (M, N, W), and the logarithm of the volume (M, N) that the map of the real numbers stretches."""
        like, finite, start = self.density.like, {}, 0
        for latent in self.density.layout.finite:
            some = place[..., start : start + latent.elements]
            finite[latent.name] = latent.options.to(reals)[some].flatten(-2)  # type: ignore[union-attr]
            start += latent.elements
        parts = [
            finite.get(latent.name, reals.new_zeros(*place.shape[:-1], latent.width)) for latent in self.density.layout
        ]
        code = torch.cat(parts, -1)
        return (code, like.new_zeros(())) if not self.num_reals else self.density.constrain(code, reals)

    def _evaluate(self, place: Tensor, reals: Tensor) -> State:
        if self.factors is not None and self.base is None:
            prior, likelihood = self.factors.look_up(self._tables, place)
            return State(place, reals, prior + likelihood, prior.expand_as(likelihood))
        code, volume = self._code(place, reals)
        if self.base is None:
            prior, likelihood = self.density.split(code)
            base, joint = prior + volume, prior + likelihood + volume
        else:
            joint, base = self.density(code) + volume, self.base.log_prob(place, reals)
        return State(
            place,
            reals,
            joint.nan_to_num(nan=-torch.inf, posinf=-torch.inf),
            base.nan_to_num(nan=-torch.inf, posinf=-torch.inf),
        )

    def move(self, state: State, power: Tensor, tuning: Tuning, generator: torch.Generator) -> tuple[State, Tensor]:
        with torch.no_grad():
            for element in range(len(self.elements)):
                state = self._move_finite(state, element, power, generator)
        if not self.num_reals:
            return state, torch.ones_like(power)
        return self._move_reals(state, power, tuning, generator)

    def _move_finite(self, state: State, element: int, power: Tensor, generator: torch.Generator) -> State:
        options, own = int(self.options[element]), state.place[..., element]
        if options == 2:
            place = state.place.clone()
            place[..., element] = 1 - own
            return state.accept(self._evaluate(place, state.reals), power, generator)
        places = state.place.unsqueeze(0).repeat(options, 1, 1, 1)
        places[..., element] = torch.arange(options, device=own.device)[:, None, None]
        every = self._evaluate(places.flatten(0, 1), state.reals.repeat(options, 1, 1))
        weight = every.temper(power).reshape(options, *own.shape)
        uniform = torch.rand(options, *own.shape, generator=generator, dtype=torch.float64).to(weight)
        chosen = (weight - (-uniform.clamp_min(1e-300).log()).log()).argmax(0)  # the largest of Gumbel's numbers
        chain = chosen * len(own) + torch.arange(len(own), device=own.device).unsqueeze(-1)
        return every.gather(chain)

    def _slope(self, place: Tensor, reals: Tensor, power: Tensor) -> tuple[State, Tensor]:
        """The state at real numbers, and the slopes (M, N, R) of the tempered density."""
        with torch.enable_grad():
            reals = reals.detach().requires_grad_()
            state = self._evaluate(place, reals)
            value = state.temper(power)
            slope = torch.autograd.grad(value.sum(), reals)[0]
        parts = (one.detach() for one in (state.reals, state.joint, state.base))
        return State(place, *parts), slope.nan_to_num(0.0, 0.0, 0.0)

    def _move_reals(
        self, state: State, power: Tensor, tuning: Tuning, generator: torch.Generator
    ) -> tuple[State, Tensor]:
        """Move along the slopes, in coordinates in which the base is round; without one by how far chains are apart."""
        root = torch.diag_embed(tuning.scale) if self.base is None else self.base.root
        jitter = 1 + _JITTER * (2 * torch.rand(state.reals.shape[:2], generator=generator, dtype=torch.float64) - 1)
        step = (tuning.step * jitter.to(root)).unsqueeze(-1)
        momentum = torch.randn(state.reals.shape, generator=generator, dtype=torch.float64).to(root)
        before = state.temper(power) - 0.5 * momentum.square().sum(-1)
        reals, (_, slope) = state.reals, self._slope(state.place, state.reals, power)
        for _ in range(_STEPS):
            momentum = momentum + 0.5 * step * torch.einsum("nrq,mnr->mnq", root, slope)
            reals = reals + step * torch.einsum("nrq,mnq->mnr", root, momentum)
            other, slope = self._slope(state.place, reals, power)
            momentum = momentum + 0.5 * step * torch.einsum("nrq,mnr->mnq", root, slope)
        ratio = other.temper(power) - 0.5 * momentum.square().sum(-1) - before
        ratio = ratio.nan_to_num(nan=-torch.inf)
        accepted = draw_log_uniform(ratio, generator) < ratio
        return state.where(other, accepted), ratio.clamp_max(0.0).exp().mean(0)


@dataclass(frozen=True)
class WholeChains(ProgramChains):
    """Chains over the latents of all rows of a program whose rows depend on each other, which are one row here."""

    density: WholeDensity

    @property
    def members(self) -> int:
        return len(self.density.data)

    def begin(self, chains: int, generator: torch.Generator) -> State:
        if self.base is not None:
            return super().begin(chains, generator)
        density, parts = self.density, []
        seed = int(torch.randint(2**62, (1,), generator=generator))
        with torch_seeded(seed):
            for chain in range(chains):
                torch.default_generator.manual_seed(seed + chain)  # a run puts the state of random numbers back
                nodes = run(density.model, density.data, density.params)
                drawn = {name: nodes[name] for name in density.layout.names}
                values = {name: one["value"].expand(one["fn"].shape())[None] for name, one in drawn.items()}
                parts.append(density.layout.encode(values, density.like))
        return super().at(torch.stack(parts), generator)

    def at(self, code: Tensor, generator: torch.Generator) -> State:
        """Begin at codes of the main latent. Raises MethodError where there are others."""
        others = [name for name in self.density.layout.names if name != self.density.model.local_site]
        if others:
            model = type(self.density.model).__name__
            raise MethodError(f"values of '{others[0]}' are not known beside those of the main latent of {model}")
        return super().at(code, generator)

    def code(self, state: State) -> Tensor:
        layout = self.density.layout
        return super().code(state)[..., layout.slices[self.density.model.local_site]]
