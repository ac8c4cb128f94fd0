"""Posteriors over all latents of a row, of whatever kinds, by their codes; and that of one latent among them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from torch import Tensor

from custom_inference.core.posteriors import ContinuousPosterior, LocalPosterior
from custom_inference.core.posteriors.protocol import WeightedValues, draw_slots
from custom_inference.core.programs.density import RowDensity
from custom_inference.core.programs.importance import Weighted
from custom_inference.core.programs.latents import Latent
from custom_inference.core.programs.modes import Gaussians, log_shares
from custom_inference.core.programs.quadrature import Integral
from ppl_models import MethodError, Model

#: Cells an axis of the grid that draws come from, by the number of axes, and how far it goes in standard deviations.
_CELLS, _REACH = {1: 400, 2: 72, 3: 28}, {1: 9.0, 2: 8.0, 3: 6.0}
#: Entries of the (code, place, row) arrays of a block of rows that draws are made of.
_BLOCK = 2**21


class ProgramPosterior(ContinuousPosterior):
    """A posterior whose density is that of the program: log p(x_n, s_n) - log p(x_n). Files do not hold it, since the
    globals and the data give it."""

    density: RowDensity
    log_evidence: Tensor

    stored = False

    def log_prob(self, local: Tensor) -> Tensor:
        """Evaluate the log density at codes (..., N, W)."""
        flat = local.reshape(-1, *local.shape[-2:]).to(self.density.like)
        with torch.no_grad():
            found = self.density(flat) - self.log_evidence
        return found.reshape(local.shape[:-1])

    def to(self, device: torch.device | str) -> Any:
        if self.log_evidence.device == torch.device(device):
            return self
        density = replace(self.density, data=self.density.data.to(device=device))
        density = density.at({name: value.to(device) for name, value in self.density.params.items()})
        return replace(self, density=density, **{name: getattr(self, name).to(device) for name in self.layout()})  # type: ignore[type-var]

    def rows(self, index: Tensor | slice) -> Any:
        return replace(self, density=self.density.rows(index), **self._of_rows(index))  # type: ignore[type-var]


@dataclass(frozen=True)
class IntegratedPosterior(ProgramPosterior):
    """The posterior by quadrature.

    average, square (N, W): of the codes and of their squares; log_weight (N, K C): of the values of the finite latents,
    in K parts that belong to separate maxima; centre (N, K C, R), root (N, K C, R, R): where the real numbers are,
    given each of them.
    """

    density: RowDensity
    average: Annotated[Tensor, "*"]
    square: Annotated[Tensor, "*"]
    log_evidence: Annotated[Tensor, "n"]
    error: Annotated[Tensor, "n"]
    log_weight: Annotated[Tensor, "nc"]
    centre: Annotated[Tensor, "ncr"]
    root: Annotated[Tensor, "ncrr"]

    @classmethod
    def of(cls, density: RowDensity, found: Integral) -> IntegratedPosterior:
        weight = torch.log_softmax(found.log_joint, -1)
        about = (one.transpose(0, 1) for one in found.gaussians)
        return cls(density, found.mean, found.square, found.log_evidence, found.error, weight, *about)

    @property
    def mean(self) -> Tensor:
        return self.average

    @property
    def variance(self) -> Tensor:
        """The posterior variance of every entry of the code, (N, W)."""
        return (self.square - self.average.square()).clamp_min(0)

    @property
    def gaussians(self) -> Gaussians:
        """The normals of the real numbers, with values of the finite latents as the first axis."""
        return Gaussians(self.centre.transpose(0, 1), self.root.transpose(0, 1))

    @property
    def codes(self) -> Tensor:
        """Values of the finite latents (K C, W), all of them as often as there are Gaussians for each."""
        found = self.density.layout.configurations(self.density.like)
        return found.repeat(self.centre.shape[1] // len(found), 1)

    @property
    def mode(self) -> Tensor:
        """The most probable value of the finite latents, and beside it the mean of the real numbers given it: a point
        of high density, not the exact maximum."""
        best = self.log_weight.argmax(-1)
        reals = self.centre[torch.arange(len(best), device=best.device), best]
        return self.density.constrain(self.codes[best], reals)[0]

    def sample(self, num_samples: int = 1, *, seed: int = 0) -> Tensor:
        """Draws from the values of the density on a fine grid, evenly within its cells."""
        generator = torch.Generator().manual_seed(seed)
        rows, number, _ = self.centre.shape
        grid, width = self._grid()
        block = max(1, _BLOCK // (len(grid) * number * self.average.shape[-1]))
        parts = [
            self.rows(slice(start, start + block))._draw_on_grid(num_samples, grid, width, generator)
            for start in range(0, rows, block)
        ]
        return torch.cat(parts, 1)

    def weigh_values(self, number: int, *, seed: int = 0) -> WeightedValues:
        """Return codes (N, M, W) of the middles of the cells of a fine grid, and the probabilities (N, M) of these."""
        grid, _ = self._grid()
        u, log_weight = self._on_grid(grid)
        codes = self.density.layout.constrain(self.codes.repeat_interleave(len(grid), 0)[:, None], u.flatten(0, 1))[0]
        return WeightedValues(codes.transpose(0, 1), log_weight.exp(), False)

    def _grid(self) -> tuple[Tensor, float]:
        """The middles (Q, R) of its cells in standard deviations, and their width."""
        size = self.centre.shape[-1]
        cells, reach = _CELLS[size], _REACH[size]
        width = 2 * reach / cells
        axis = (torch.arange(cells, dtype=torch.float64) + 0.5) * width - reach
        return torch.cartesian_prod(*[axis] * size).reshape(-1, size).to(self.centre), width

    def _on_grid(self, grid: Tensor) -> tuple[Tensor, Tensor]:
        """The real numbers (K C, Q, N, R) of a grid, and the logarithms of its cells' probabilities (N, K C Q)."""
        rows, number, _ = self.centre.shape
        u = self.centre.transpose(0, 1)[:, None] + torch.einsum("ncrs,qs->cqnr", self.root, grid)
        code = self.codes.repeat_interleave(len(grid), 0)[:, None]
        with torch.no_grad():
            value = self.density.real(code, u.flatten(0, 1)).reshape(number, len(grid), rows)
            shares = log_shares(self.gaussians, int(self.density.layout.num_configurations), u)
            value = value if shares is None else value + shares
            value = value + torch.linalg.slogdet(self.root)[1].T[:, None]
        return u, torch.log_softmax(value.flatten(0, 1).T, -1)

    def _draw_on_grid(self, num_samples: int, grid: Tensor, width: float, generator: torch.Generator) -> Tensor:
        rows, _, size = self.centre.shape
        with torch.no_grad():
            u, log_weight = self._on_grid(grid)
            slot = draw_slots(log_weight, num_samples, generator).T  # (S, N)
            chosen, cell = slot // len(grid), slot % len(grid)
            within = torch.rand(*slot.shape, size, generator=generator, dtype=torch.float64).to(u) - 0.5
            every = torch.arange(rows, device=slot.device)
            place = grid[cell] + width * within
            drawn = self.centre[every, chosen] + (self.root[every, chosen] @ place.unsqueeze(-1)).squeeze(-1)
            return self.density.constrain(self.codes[chosen], drawn)[0]


@dataclass(frozen=True)
class WeightedPosterior(ProgramPosterior):
    """Weighted draws by importance sampling: codes (N, S, W), log_weight (N, S) normalised, pareto_k (N,)."""

    density: RowDensity
    codes: Annotated[Tensor, "nsk"]
    log_weight: Annotated[Tensor, "ns"]
    log_evidence: Annotated[Tensor, "n"]
    pareto_k: Annotated[Tensor, "n"]

    @classmethod
    def of(cls, density: RowDensity, found: Weighted) -> WeightedPosterior:
        return cls(density, found.codes, found.log_weight, found.log_evidence, found.pareto_k)

    @property
    def mean(self) -> Tensor:
        return torch.einsum("ns,nsw->nw", self.log_weight.exp(), self.codes)

    @property
    def variance(self) -> Tensor:
        """The posterior variance of every entry of the code, (N, W)."""
        apart = self.codes - self.mean[:, None]
        return torch.einsum("ns,nsw->nw", self.log_weight.exp(), apart.square())

    def weigh_values(self, number: int, *, seed: int = 0) -> WeightedValues:
        return WeightedValues(self.codes, self.log_weight.exp(), True)

    @property
    def mode(self) -> Tensor:
        """The draw of the largest weight: a point of high density, not the exact maximum."""
        return self.codes[torch.arange(len(self.codes)), self.log_weight.argmax(-1)]

    def sample(self, num_samples: int = 1, *, seed: int = 0) -> Tensor:
        slot = draw_slots(self.log_weight, num_samples, torch.Generator().manual_seed(seed)).T
        return self.codes[torch.arange(len(self.codes)), slot]


@dataclass(frozen=True)
class DrawnTogether(ContinuousPosterior):
    """Draws (S, N, W) of all rows together, which depend on each other; their density is not known."""

    draws: Annotated[Tensor, "s*"]

    joint = True
    stored = False

    @property
    def mean(self) -> Tensor:
        return self.draws.mean(0)

    @property
    def variance(self) -> Tensor:
        """The posterior variance of every entry, (N, W)."""
        return self.draws.var(0, unbiased=False)

    @property
    def mode(self) -> Tensor:
        """The draw that is the nearest to the mean: a point amid the others, not the maximum of the density."""
        return self.draws[(self.draws - self.mean).square().sum((1, 2)).argmin()]

    def sample(self, num_samples: int = 1, *, seed: int = 0) -> Tensor:
        slot = torch.randint(len(self.draws), (num_samples,), generator=torch.Generator().manual_seed(seed))
        return self.draws[slot]

    def log_prob(self, source: Tensor) -> Tensor:
        del source
        raise MethodError("the density of rows that were drawn together is not at hand; use mean, variance and sample")


@dataclass(frozen=True)
class _OfPart(LocalPosterior):
    """The posterior of a part of what a row has, from that of all: means, variances, modes and draws of that part."""

    whole: LocalPosterior

    stored = False

    def _of(self, local: Tensor) -> Tensor:
        """The part of values of all (..., N, W)."""
        raise NotImplementedError

    @property
    def mean(self) -> Tensor:
        """Posterior means (N, ...): of a choice the probabilities of its places."""
        return self._of(self.whole.mean)

    @property
    def variance(self) -> Tensor:
        """Posterior variances (N, ...)."""
        return self._of(self.whole.variance)

    @property
    def mode(self) -> Tensor:
        """Its part of the joint mode."""
        return self._of(self.whole.mode)

    def sample(self, num_samples: int = 1, *, seed: int = 0) -> Tensor:
        return self._of(self.whole.sample(num_samples, seed=seed))

    def to(self, device: torch.device | str) -> Any:
        return replace(self, whole=self.whole.to(device))

    def rows(self, index: Tensor | slice) -> Any:
        return replace(self, whole=self.whole.rows(index))


@dataclass(frozen=True)
class OneLatent(_OfPart):
    """The posterior of one latent of a row, whose values are at its part of the codes of all."""

    latent: Latent
    part: slice

    def _of(self, local: Tensor) -> Tensor:
        return local[..., self.part].reshape(*local.shape[:-1], *self.latent.mean_shape)

    @property
    def mode(self) -> Tensor:
        """The most probable value of a finite latent; the part of the joint mode of others."""
        table = self._table()
        if table is None:
            return super().mode
        values, log_weight = table
        return values[log_weight.argmax(-1)].reshape(-1, *self.latent.mean_shape)

    def _table(self) -> tuple[Tensor, Tensor] | None:
        """Its values (S, w) and their log-probabilities (N, S), where the joint posterior lists the finite latents."""
        joint: Any = self.whole
        if hasattr(joint, "table_of"):
            return joint.table_of(self.latent.name)
        if self.latent.transform is not None or not hasattr(joint, "log_weight") or joint.codes.ndim != 2:
            return None
        values, place = torch.unique(joint.codes[:, self.part], dim=0, return_inverse=True)
        weight = joint.log_weight.new_zeros(len(joint.log_weight), len(values))
        return values.to(weight), weight.index_add(1, place, joint.log_weight.exp()).log()

    def table(self) -> tuple[Tensor, Tensor]:
        found = self._table()
        if found is None:
            raise MethodError(f"'{self.latent.name}' has no table of values here; use mean, variance and sample")
        return found

    def log_prob(self, source: Tensor) -> Tensor:
        """Evaluate log q at values (N, ...) of a finite latent, giving (N,)."""
        values, log_weight = self.table()
        same = (values == source.reshape(len(log_weight), 1, -1).to(values)).all(-1)
        return torch.where(same, log_weight, torch.full_like(log_weight, -torch.inf)).logsumexp(-1)


@dataclass(frozen=True)
class PartPosterior(_OfPart):
    """The posterior of a latent that is a part of the main one (:meth:`ppl_models.Model.local_parts`)."""

    model: Model
    part: str

    def _of(self, local: Tensor) -> Tensor:
        return self.model.local_parts(local)[self.part]

    def log_prob(self, source: Tensor) -> Tensor:
        raise MethodError(f"the density of '{self.part}' apart from the other parts is not at hand; use sample")

    def table(self) -> tuple[Tensor, Tensor]:
        raise MethodError(f"'{self.part}' has no table of values apart from the other parts; use sample")
