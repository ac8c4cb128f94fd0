"""The posterior of the locals and log p(x_n) at given globals by annealing, and how far off such estimates are on rows
that are drawn from the model; and what gives such estimates."""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from custom_inference.core.annealing.chains import Chains
from custom_inference.core.annealing.estimate import Budget, Estimated, Sandwich, estimate_log_evidence, prepare
from custom_inference.core.annealing.program import ProgramChains, WholeChains
from custom_inference.core.annealing.tempering import anneal, anneal_back, refine
from custom_inference.core.posteriors import CodePosterior, LabellingPosterior, LocalPosterior
from custom_inference.core.programs.density import RowDensity
from custom_inference.core.programs.evidence import bind_rows
from custom_inference.core.programs.importance import Weighted
from custom_inference.core.programs.posteriors import DrawnTogether, WeightedPosterior
from custom_inference.core.programs.whole import WholeDensity
from custom_inference.core.programs.windows import settle
from custom_inference.core.registry import engines_of, family_of
from ppl_models import Data, MethodError, Model, ModelError
from ppl_models.core.errors import warn_of_data


class Estimator(abc.ABC):
    """Estimates of log p(x_n) of rows: by chains along paths of densities, or in a family's own way."""

    @abc.abstractmethod
    def __len__(self) -> int:
        """The number of rows."""

    @property
    @abc.abstractmethod
    def sizes(self) -> Tensor:
        """How many numbers a chain or particle of each row takes, (N,)."""

    @property
    def members(self) -> int:
        """How many rows of the data, whose codes stand beside each other, are one row here, as the nodes of a graph."""
        return 1

    @abc.abstractmethod
    def rows(self, index: Tensor) -> Self:
        """Give the estimator of some rows."""

    @abc.abstractmethod
    def estimate(self, budget: Budget, seed: int) -> Estimated:
        """Estimate log p(x_n) of every row, and draw from the posteriors."""

    @abc.abstractmethod
    def bound(self, code: Tensor, budget: Budget, steps: int, seed: int) -> Sandwich:
        """Estimate log p(x_n) from below and from above, given exact draws (N, W) from the posteriors; along paths of
        about ``steps`` steps, where there are paths."""


@dataclass(frozen=True)
class Annealed(Estimator):
    """Estimates by chains along paths of densities."""

    chains: Chains

    def __len__(self) -> int:
        return len(self.chains)

    @property
    def sizes(self) -> Tensor:
        return torch.full((len(self),), max(1, int(self.chains.options.sum()) + self.chains.num_reals))

    @property
    def members(self) -> int:
        return self.chains.members

    def rows(self, index: Tensor) -> Annealed:
        return Annealed(self.chains.rows(index))

    def estimate(self, budget: Budget, seed: int) -> Estimated:
        return estimate_log_evidence(self.chains, budget, seed=seed)

    def bound(self, code: Tensor, budget: Budget, steps: int, seed: int) -> Sandwich:
        generator = torch.Generator().manual_seed(seed)
        chains, path, budget = prepare(self.chains, budget, generator)
        powers, tunings = refine(path, max(1, math.ceil(steps / len(path.tunings))))
        _, forward = anneal(chains, powers, tunings, budget.chains, generator)
        start = chains.at(code.reshape(len(chains), -1).expand(budget.chains, len(chains), -1), generator)
        backward = anneal_back(chains, start, powers, tunings, generator)
        return Sandwich.of(forward, backward)._replace(members=chains.members)


#: What an estimate has an entry of for every entry of a code.
_OF_CODES = ("codes", "mean", "variance", "mean_error")
#: Numbers of the states of all chains of a block of rows.
_BLOCK = 2**23


def chains_of(model: Model, params: Mapping[str, Tensor], data: Data) -> Chains:
    """Return the chains over the locals of a model: its family's own, or those of its program. Rows that depend on each
    other, as the nodes of a graph, are one row there.

    Raises MethodError for latents without a move, which it names.
    """
    own = family_of(model).chains
    params = {name: value.double() if value.is_floating_point() else value for name, value in params.items()}
    found = None if own is None else own(model, params, data)
    if found is not None:
        return found
    data = data.to(dtype=torch.float64)
    try:
        if depend_on_each_other(model, data):
            found = WholeChains(WholeDensity.of(model, params, data))
        else:
            density = RowDensity.of(model, params, data)
            density = settle(density)
            factors = None if density.layout.moving else bind_rows(density, sums=False)
            found = ProgramChains(density, factors=factors)
    except NotImplementedError as error:
        raise _without_moves(model, str(error) or "they have no density") from error
    except ModelError as error:
        if not engines_of(model):
            raise  # a program of one's own that states something else than it declares
        raise _without_moves(model, str(error)) from error
    if not found.density.layout.latents:
        raise MethodError(f"{type(model).__name__} has no latents of its rows")
    return found


def depend_on_each_other(model: Model, data: Data) -> bool:
    """Whether p(x | globals) is no product over rows: of graphs, and of rows with links between them."""
    pairs = {site for site in model.sites_of("observed") if f"to_{model.row_axis}" in model.sites[site].dims}
    return not model.rows_are_independent or not pairs.isdisjoint(data.others)


def _without_moves(model: Model, reason: str) -> MethodError:
    sites = ", ".join(f"'{site}'" for site in model.row_latents)
    return MethodError(f"no moves for the latents {sites} of {type(model).__name__}: {reason}")


def estimator_of(model: Model, params: Mapping[str, Tensor], data: Data) -> Estimator:
    """Return what estimates log p(x_n): the family's own way, or chains over the locals.

    Raises what :func:`chains_of` raises.
    """
    own = family_of(model).estimator
    found = None if own is None else own(model, params, data)
    return Annealed(chains_of(model, params, data)) if found is None else found


def anneal_locals(
    model: Model, params: Mapping[str, Tensor], data: Data, budget: Budget, *, seed: int = 0
) -> Estimated:
    """Estimate log p(x_n) of all rows, in blocks, each with its part of the seconds."""
    with torch.no_grad():
        rows = estimator_of(model, params, data.to(device="cpu"))
        parts, sizes = [], rows.sizes.double()
        for at, some in enumerate(_split(sizes * 2 * budget.chains)):
            own = replace(budget, seconds=budget.seconds * float(sizes[some].sum() / sizes.sum()))
            parts.append(rows.rows(some).estimate(own, seed + at))
    most = min(len(part.codes) for part in parts)
    parts = [part._replace(codes=part.codes[:most]) for part in parts]
    axis = {"codes": 1}
    found = Estimated(*(
        torch.cat([getattr(part, name) for part in parts], axis.get(name, 0)).to(data.x.device)
        for name in Estimated._fields
    ))  # fmt: skip
    _warn(found, budget, len(rows))
    if rows.members > 1:  # what is beside each other in a code are the data's rows
        apart = {name: getattr(found, name).unflatten(-1, (rows.members, -1)) for name in _OF_CODES}
        found = found._replace(**{name: value.squeeze(-3) for name, value in apart.items()})
    return found


def _split(sizes: Tensor) -> list[Tensor]:
    """Split rows of such sizes into blocks that memory has room for."""
    block = (sizes.cumsum(0) - sizes).div(_BLOCK, rounding_mode="floor")
    return list(torch.arange(len(sizes)).split(block.unique_consecutive(return_counts=True)[1].tolist()))


def _warn(found: Estimated, budget: Budget, rows: int) -> None:
    wide = ~(found.standard_error <= 4 * budget.error)
    if bool(wide.any()):
        warn_of_data(
            f"annealing: the standard error of log p(x_n) is {float(found.standard_error.max()):.2g} at most, above "
            f"{4 * budget.error:g} in {int(wide.sum())} of {rows} rows, where it is likely to be too low; give it more "
            f"seconds than {budget.seconds:g}"
        )


def posterior_of(model: Model, params: Mapping[str, Tensor], data: Data, found: Estimated) -> LocalPosterior:
    """Return the posterior that draws stand for."""
    if depend_on_each_other(model, data):
        if model.sites[model.local_site].choice is not None:
            return LabellingPosterior.of_draws(found.codes.argmax(-1), found.codes.shape[-1])
        return DrawnTogether(found.codes)
    codes = found.codes.transpose(0, 1)
    weight = torch.full(codes.shape[:2], -math.log(codes.shape[1]), dtype=codes.dtype, device=codes.device)
    if bool(((codes == 0) | (codes == 1)).all()):
        return CodePosterior(codes, weight)
    none = torch.full_like(found.r_hat, math.nan)
    drawn = Weighted(codes, weight, found.log_evidence, found.standard_error, none)
    return WeightedPosterior.of(RowDensity.of(model, params, data), drawn)


def sandwich(
    model: Model, params: Mapping[str, Tensor], data: Data, code: Tensor, budget: Budget, steps: int, *, seed: int = 0
) -> Sandwich:
    """Estimate log p(x_n) of rows from both sides, with paths of about ``steps`` steps.

    code: (N, W) exact draws from the posteriors of the rows, such as the latents that the rows were drawn with; of rows
    that depend on each other one draw of all of them.
    """
    with torch.no_grad():
        return estimator_of(model, params, data).bound(code.double(), budget, steps, seed)
