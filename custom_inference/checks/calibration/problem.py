"""What is simulated: parameters from the prior, latents and data from the program."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyro.distributions as dist
import torch
from torch import Tensor

from custom_inference.core.isolation import default_dtype, isolated
from custom_inference.core.predictive import sample_rows
from custom_inference.core.settings import require_whole
from ppl_models import Data, DataError, DataWarning, MethodError, Model, ModelError
from ppl_models.distributions import Flat

#: A test quantity of the user's: f(values of every site, data) -> one number.
Quantity = Callable[[dict[str, Tensor], Data], Any]
#: Random numbers of one simulation, each with a state of its own.
_PURPOSES = ("globals", "data", "method", "draws", "ties", "labels")


class Simulated(NamedTuple):
    """One simulation: where the truth ranks among the draws, by quantity, in [0, 1]; how many draws; data sets that the
    method refused before this one."""

    ranks: dict[str, np.ndarray]
    num_draws: int
    refused: int


class Drawn(NamedTuple):
    """Globals and locals (as the program holds them), and the data drawn at them."""

    params: dict[str, Tensor]
    local: Tensor
    data: Data


@dataclass(frozen=True, kw_only=True)
class Problem:
    """All that a simulation needs, so that it can run in a process of its own.

    at: the globals, or None to draw them. like: data whose rows, lengths and missing entries are those of the
    simulated data.
    """

    model: Model
    method: Any
    of: str
    num_rows: int
    num_draws: int
    seed: int
    at: dict[str, Tensor] | None = None
    like: Data | None = None
    quantities: Mapping[str, Quantity] = field(default_factory=dict)

    def seeds(self, index: int, attempt: int = 0) -> dict[str, int]:
        """Seeds by purpose of the simulation of this number, whatever the others are."""
        state = np.random.SeedSequence([self.seed % 2**64, index, attempt]).generate_state(len(_PURPOSES))
        return dict(zip(_PURPOSES, map(int, state), strict=True))

    def draw(self, seeds: Mapping[str, int]) -> Drawn:
        model, like = self.model, torch.zeros((), dtype=torch.float64)
        params = self.at
        if params is None:
            with isolated(seeds["globals"]), default_dtype(torch.float64), torch.no_grad():
                params = {site: model.prior(site, like=like).sample() for site in model.global_sites}
        with torch.no_grad():
            drawn = sample_rows(model, params, self.num_rows, seed=seeds["data"], like=self.like)
        mask = None if self.like is None else model.as_read(self.like).mask
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)  # of simulated data nobody can do anything about
            x, *others = model.sites_of("observed")
            data = model.prepare(drawn[x], mask=mask, dtype=torch.float64, **{site: drawn[site] for site in others})
        return Drawn(params, drawn[model.local_site], data)


def rows_of(model: Model, num_rows: int | None, like: Data | None) -> int:
    """How many rows (nodes) a simulated data set has."""
    if like is not None:
        if num_rows not in (None, len(like)):
            raise MethodError(f"num_rows = {num_rows}, but the data given as like= have {len(like)} rows")
        if like.mask is not None and "num_tokens" in model.given(like):
            problem = "documents with missing entries: how many tokens those have is not known, so none can be drawn"
            raise DataError(problem, site=model.observed_site, expected="like= without missing entries")
        return len(like)
    nodes = model.settings().get("num_nodes")
    if nodes is not None:
        if num_rows not in (None, nodes):
            raise MethodError(f"num_rows = {num_rows}, but the model is of graphs of {nodes} nodes")
        return nodes
    rows = 20 if num_rows is None else num_rows
    require_whole("num_rows", rows)
    return rows


def require_proper(model: Model) -> None:
    """Refuse improper priors: what posterior follows from them, no simulation from a prior can show."""
    improper = [site for site, prior in model.priors.items() if isinstance(prior, Flat | dist.ImproperUniform)]
    if improper:
        example = ", ".join(f"{site}=..." for site in improper)
        raise ModelError(
            f"improper priors cannot be simulated from: {', '.join(improper)}; give these sites proper ones by "
            f'model.with_priors({example}), or check the posteriors of the locals alone by of="locals"'
        )


def randomised_rank(truth: Tensor, draws: Tensor, generator: torch.Generator) -> np.ndarray:
    """Where the truth (...) ranks among draws (n, ...), in [0, 1]: (#less + U (#equal + 1)) / (n + 1), U uniform.

    If the truth and the draws are exchangeable, its place among the n + 1 in order is uniform, ties being broken at
    random, and U spreads the place over its share of [0, 1]: the rank is uniform whether values are continuous or
    discrete, for any n. ``floor((n + 1) rank)`` is the usual integer rank, 0 .. n.
    """
    less, equal = (draws < truth).sum(0), (draws == truth).sum(0)
    uniform = torch.rand(truth.shape, generator=generator, dtype=torch.float64)
    return ((less + uniform * (equal + 1)) / (len(draws) + 1)).numpy()
