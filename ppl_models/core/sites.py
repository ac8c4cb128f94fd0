"""The declaration of a model's sites: what role each plays, its axes, its plates, its support."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Role = Literal["global", "latent", "observed", "given"]


@dataclass(frozen=True)
class Site:
    """One site of a model's program.

    role: "global" (one value for all data), "latent" (a value for every row, token, node, ...), "observed", or "given"
        (covariates, time: what the program conditions on).
    dims: names of the axes of one element, whose sizes the model's ``axes`` give.
    plates: names of the plates in front of it, as the axes of its values: ("row",), ("node",), ("token",).
    support: of one element, which the prior of a site must not leave.
    choice: the axis among whose places the site chooses one, as a whole number.
    sparse: of an observed site, whether the program takes a sparse value (torch's CSR layout) as it is.
    """

    role: Role
    dims: tuple[str, ...] = ()
    plates: tuple[str, ...] = ()
    support: Any = None
    choice: str | None = None
    sparse: bool = False

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of all axes of the site's values."""
        return (*self.plates, *self.dims)
