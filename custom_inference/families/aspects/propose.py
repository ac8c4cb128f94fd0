"""Starting values for the aspect Bernoulli model: truncated SVD, then alternating least squares within the domain.

The probability matrix is s a, of rank K, with the rows of s on the simplex and a in [0, 1]. Least squares in the space
of the data's leading singular vectors costs (N + D) K^2 an iteration, and its end is close to the likelihood's
(Cabreros & Storey, Genetics 212, 2019).
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from custom_inference.core.align import match_components
from custom_inference.core.engine import Params
from custom_inference.core.proposals import Proposals
from custom_inference.families.aspects.map import AspectMap
from custom_inference.families.rows.counts import CountRows
from ppl_models import Model

#: The search makes one start where the data have this many entries: least squares then starts near one optimum.
_MANY_ENTRIES = 2**20
#: Alternations of least squares.
_ITERATIONS = 50
#: Below so many entries of x the default search makes more starts.
_FEW_ENTRIES = 2**18


class AspectProposals(Proposals):
    """Starts of the engines that integrate the memberships out."""

    random_rows = 500
    #: How far starts stay from 0 and 1.
    margin = 0.02

    def propose(self, model: Model, rows: CountRows, generator: torch.Generator, attempt: int) -> Params:
        """Least squares within the domain, from random aspects, which is how the attempts differ."""
        shape = model.shapes["aspect_probability"]
        left, right = leading_space(rows, shape[0], generator)
        aspect = torch.rand(shape, generator=generator, dtype=torch.float64).to(left)
        for _ in range(_ITERATIONS):
            membership = simplex_projection(left @ (right @ torch.linalg.pinv(aspect)))
            aspect = ((torch.linalg.pinv(membership) @ left) @ right).clamp(0.0, 1.0)
        return {"aspect_probability": aspect.clamp(self.margin, 1 - self.margin)}

    def same_solution(self, model: Model, first: Params, second: Params) -> bool:
        """The aspects match one to one.

        A pair matches with a cosine above .95, or a root mean square difference below .05: the cosine alone would tell
        two phantoms apart, whose few faint entries differ.
        """
        one, other = first["aspect_probability"], second["aspect_probability"]
        matched = match_components(one, other)
        apart = (one - other[torch.tensor(matched.order, device=other.device)]).square().mean(1).sqrt().cpu()
        return bool(((matched.similarity > 0.95) | (apart < 0.05)).all())


class AspectPointProposals(AspectProposals):
    """Starts of the point estimates."""

    margin = 0.01

    def search_size(self, model: Model, num_rows: int) -> tuple[int, int]:
        """Few data have many optima, and starts are cheap there; with many data for an aspect starts agree."""
        entries = num_rows * model.shapes["aspect_probability"][1]
        if entries >= _MANY_ENTRIES:
            return 1, num_rows
        return (12 if entries < _FEW_ENTRIES else 3), num_rows

    def random_starts(self, model: Model, num_rows: int) -> int:
        """None where least squares starts near the one optimum, and a start takes as long as the whole fit."""
        entries = num_rows * model.shapes["aspect_probability"][1]
        return 0 if entries >= _MANY_ENTRIES else super().random_starts(model, num_rows)

    def finishing(self) -> AspectMap:
        return replace(self.engine, update="newton") if self.engine.update == "auto" else self.engine


def fill_missing(rows: CountRows, block: CountRows) -> Tensor:
    """Return proportions of ones, with the columns' means where entries are missing."""
    value = block.ones / rows.total_count
    if rows.mask is None or block.mask is None:
        return value
    mean = rows.ones.sum(0) / (rows.total_count * rows.observed_count).clamp(min=1)
    return torch.where(block.mask, value, mean)


def leading_space(rows: CountRows, rank: int, generator: torch.Generator, *, passes: int = 4) -> tuple[Tensor, Tensor]:
    """(left (N, K), right (K, D)) with left right the best approximation of rank K, nearly, by subspace iteration."""
    size = min(rank + 10, *rows.like.shape)
    probe = torch.randn((rows.like.shape[1], size), generator=generator, dtype=torch.float64).to(rows.like)
    image = probe
    for _ in range(passes):
        basis = torch.linalg.qr(probe)[0]
        image, probe = probe.new_zeros(len(rows), size), torch.zeros_like(probe)
        for at, block in rows.blocks:
            values = fill_missing(rows, block)
            image[at] = values @ basis
            probe += values.T @ image[at]
    basis = torch.linalg.qr(probe)[0]
    for at, block in rows.blocks:
        image[at] = fill_missing(rows, block) @ basis
    u, scale, v = torch.linalg.svd(image, full_matrices=False)
    rank = min(rank, size)
    return u[:, :rank] * scale[:rank], v[:rank] @ basis.T


def simplex_projection(values: Tensor) -> Tensor:
    """The nearest point of the simplex to every row (Euclidean; Duchi et al., ICML 2008)."""
    ordered = values.sort(-1, descending=True)[0]
    excess = ordered.cumsum(-1) - 1
    rank = torch.arange(1, values.shape[-1] + 1, device=values.device, dtype=values.dtype)
    support = (ordered * rank > excess).sum(-1, keepdim=True).clamp(min=1)
    return (values - excess.gather(-1, support - 1) / support).clamp(min=0)
