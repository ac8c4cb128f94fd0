"""Supports of sites: what values they have, and whether one lies within another."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from ppl_models.core.errors import digits

#: Supports whose values are vectors or matrices, none of whose entries is a value by itself.
_OF_VECTORS = (constraints.simplex, constraints.one_hot, constraints.positive_definite)
#: Support -> what it is in words, where the name of the constraint does not say it.
_WORDS = {
    constraints.boolean: "0 or 1",
    constraints.nonnegative_integer: "whole numbers of at least 0",
    constraints.positive_integer: "whole numbers of at least 1",
    constraints.nonnegative: "finite numbers of at least 0",
    constraints.positive: "finite numbers above 0",
    constraints.unit_interval: "numbers from 0 to 1",
    constraints.real: "finite numbers",
}

#: Support -> a value well within it, to stand where an entry is missing, of those that 0 is no such value of.
INSIDE = {constraints.positive: 1.0, constraints.positive_integer: 1.0, constraints.unit_interval: 0.5}


def describe_support(support: constraints.Constraint) -> str:
    """Say in words what values a support has."""
    low, high = getattr(support, "lower_bound", None), getattr(support, "upper_bound", None)
    ends = [None if end is None or torch.as_tensor(end).numel() > 1 else digits(float(end)) for end in (low, high)]
    if support in _WORDS or None in ends:
        return _WORDS.get(support, f"values within {support}")
    return f"{'whole ' if support.is_discrete else ''}numbers from {ends[0]} to {ends[1]}"


@dataclass(frozen=True)
class Entries:
    """What entries of x are valid by the support that its site declares; None: finite numbers.

    It says so as likelihoods do, for models that have none of :mod:`ppl_models.likelihoods`.
    """

    support: constraints.Constraint | None
    said_by: str = "the support of the site"

    def valid(self, x: Tensor) -> Tensor:
        """Whether entries have values within the support, bool; of vectors all entries of one alike."""
        finite = torch.isfinite(x)
        if self.support is None:
            return finite
        found: Tensor = self.support.check(x)
        return finite & found[(..., *(None for _ in range(x.ndim - found.ndim)))]

    @property
    def refusal(self) -> tuple[str, str]:
        """What is said of entries that are not valid, and what is expected."""
        expected = "finite numbers" if self.support is None else describe_support(self.support)
        return f"are not {expected}", f"{expected}, as {self.said_by} says, or NaN where an entry is missing"


def lies_within(found: constraints.Constraint | None, support: constraints.Constraint | None) -> bool:
    """Whether what a distribution draws lies within the support that a site declares, where both say where they end."""
    if found is support or support is None or found is None:
        return True
    if support in _OF_VECTORS:
        return False
    found = constraints.unit_interval if found is constraints.simplex else found
    for end, sign in (("lower_bound", 1.0), ("upper_bound", -1.0)):
        declared, own = getattr(support, end, None), getattr(found, end, None)
        if declared is not None and (
            own is None or bool((sign * torch.as_tensor(own) < sign * torch.as_tensor(declared)).any())
        ):
            return False
    return True


def is_fixed(law: Distribution) -> bool:
    """Whether the support of a distribution depends on no value of its parameters: of a number of categories, or a
    support that has no bounds of its own."""
    try:
        support = getattr(law, "support", None)
    except NotImplementedError:
        return False
    return type(law).__name__ == "Categorical" or any(support is one for one in (*_WORDS, *_OF_VECTORS))
