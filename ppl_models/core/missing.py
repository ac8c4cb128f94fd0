"""What is missing of the sites that programs observe beside x: entries that are NaN have no influence.

Of x the plate of rows sees to it, by its mask. Other sites a program may state as it likes, ``rows.observe("y", law)``
or ``pyro.sample("y", law, obs=rows.of(y))``: whoever runs it, entries of theirs that are NaN are masked as it runs.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.distributions import Distribution, constraints

from ppl_models.core.errors import DataError, ModelError
from ppl_models.core.priors import support_of


class Missing(Messenger):
    """Masks the missing entries of some sites in a run of a program."""

    def __init__(self, sites: Collection[str]):
        super().__init__()
        self.sites = sites

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        site, value = msg["name"], msg["value"]
        if site not in self.sites or not msg["is_observed"]:
            return
        if not value.is_floating_point():
            raise ModelError(
                f"'{site}' has missing entries, which its statement turns into whole numbers; expected "
                f"obs=rows.of({site})"
            )
        missing = torch.isnan(value)
        law: Any = msg["fn"]
        if bool(missing.any()) and not _leaves_out(law):
            axes = getattr(law, "reinterpreted_batch_ndims", 0)
            law = law.base_dist if axes else law
            seen = of_entries(~missing, law.event_dim, site)
            msg["fn"] = law.mask(seen).to_event(axes)
            msg["value"] = torch.where(missing, _inside(law, value), value)


def _leaves_out(law: Any) -> bool:
    """Whether a distribution, or that which it masks, says that it leaves out what is NaN in an entry."""
    while not getattr(law, "leaves_out_missing", False) and hasattr(law, "base_dist"):
        law = law.base_dist
    return getattr(law, "leaves_out_missing", False)


def of_entries(mask: Tensor, axes: int, site: str) -> Tensor:
    """Return the mask of entries that have so many axes of their own: one number each.

    Raises DataError for a part of an entry that is missing.
    """
    if not axes:
        return mask
    seen = mask.flatten(-axes)
    partly = (seen.any(-1) & ~seen.all(-1)).nonzero()
    if len(partly):
        found = f"{len(partly)} entries of which a part is missing (the first: at {tuple(partly[0].tolist())})"
        raise DataError(found, site=site, expected="all or none of an entry that is a vector")
    return seen.all(-1)


def _inside(law: Distribution, like: Tensor) -> Tensor:
    """Values well within the support of a distribution, to stand where an entry is missing: there it has a density."""
    support = support_of(law)
    if support is constraints.simplex:
        return torch.full_like(like, 1 / like.shape[-1])
    low, high = (getattr(support, f"{end}_bound", None) for end in ("lower", "upper"))
    if low is not None and high is not None:
        value = low if getattr(support, "is_discrete", False) else (low + high) / 2
    else:
        value = low + 1 if low is not None else high - 1 if high is not None else 0.0
    return torch.as_tensor(value).to(like).expand_as(like)
