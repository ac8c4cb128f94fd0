"""Labels of components are arbitrary: match them before comparing fits, chains, or a fit with the truth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from ppl_models import MODELS, ModelError

if TYPE_CHECKING:
    from custom_inference.fit import Fit


@dataclass(frozen=True)
class Alignment:
    """order[i] is the component of ``found`` that matches component i of ``reference``; similarity (K,) cosines.

    Where ``found`` has more components than the reference, the unmatched ones follow at the end of ``order``;
    where it has fewer, the reference's left-over components have similarity 0 and no entry in ``order``.
    """

    order: list[int]
    similarity: Tensor

    def apply(self, params: dict[str, Tensor], dims: dict[str, tuple[str, ...]]) -> dict[str, Tensor]:
        """The globals (or locals) with their component axes reordered; whole numbers are those of components."""
        index = torch.tensor(self.order)
        moved = {}
        for site, value in params.items():
            axes = dims.get(site, ())
            if value.dtype == torch.int64:
                value = torch.argsort(index).to(value.device)[value]
            for axis, name in enumerate(axes):
                if name in ("component", "to_component"):
                    # Draws carry (chain, draw) in front: count axes from the right.
                    value = value.index_select(value.ndim - len(axes) + axis, index.to(value.device))
            moved[site] = value
        return moved


def match_components(reference: Any, found: Any) -> Alignment:
    """Hungarian matching of rows by cosine similarity: the maximum-weight one-to-one matching (000, 5.4.2).

    Components that are matrices, as in (K, R, C), are taken entry by entry.
    """
    left, right = torch.as_tensor(reference), torch.as_tensor(found)
    if left.ndim < 2 or left.shape[1:] != right.shape[1:]:
        raise ModelError(f"cannot match components of shapes {tuple(left.shape)} and {tuple(right.shape)}")
    left, right = (side.to(torch.float64).cpu().flatten(1) for side in (left, right))
    unit = torch.nn.functional.normalize
    cosine = unit(left, dim=-1) @ unit(right, dim=-1).T
    chosen, partner = linear_sum_assignment(-cosine.numpy())
    similarity = torch.zeros(len(left), dtype=torch.float64)
    similarity[chosen] = cosine[chosen, partner]
    matched = np.asarray(partner).tolist()
    rest = [i for i in range(len(right)) if i not in set(matched)]
    return Alignment(order=matched + rest, similarity=similarity)


def align(
    found: Fit | dict[str, Tensor], to: Fit | dict[str, Tensor], *, site: str | None = None
) -> Alignment:
    """Match the components of one fit (or mapping of parameters) to those of another.

    site: the site (K, D) or (K, R, C) to match by; by default the component site of whichever of the two is a fit,
        or else the first site of that kind that both mappings have.
    """
    name = site or _component_site(found, to)

    def components(of: Fit | dict[str, Tensor]) -> Tensor:
        params = of if isinstance(of, dict) else of.params
        if name not in params:
            raise ModelError(f"no site '{name}' to align by; there are: {', '.join(params)}")
        return params[name]

    return match_components(components(to), components(found))


def _component_site(*sides: Fit | dict[str, Tensor]) -> str:
    for side in sides:
        if not isinstance(side, dict):
            return side.model.component_site
    known = [kind.component_site for kind in MODELS.values()]
    first, second = sides
    return next((name for name in known if name in first and name in second), known[0])  # pyright: ignore[reportOperatorIssue]


def align_draws(
    draws: dict[str, Tensor], dims: dict[str, tuple[str, ...]], *, site: str
) -> dict[str, Tensor]:
    """Reorder the components of every (chain, draw) to match the mean of the first chain's last draws.

    Removes label switching within and between chains; draws (chain, draw, ...).
    """
    if site not in draws or "component" not in dims.get(site, ()):
        return draws
    chains, length = draws[site].shape[:2]
    reference = draws[site][0, -max(1, length // 4) :].mean(0)
    aligned = {name: value.clone() for name, value in draws.items()}
    for chain in range(chains):
        for draw in range(length):
            alignment = match_components(reference, draws[site][chain, draw])
            moved = alignment.apply({name: value[chain, draw] for name, value in draws.items()}, dims)
            for name, value in moved.items():
                aligned[name][chain, draw] = value
    return aligned
