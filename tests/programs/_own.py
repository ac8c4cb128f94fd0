"""Programs of rows made from a few functions: their sites, and what is stated in the plate of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch.distributions import constraints

from ppl_models import RowModel
from ppl_models.core.sites import Site

ROW = ("row",)
COUNT = Site("latent", (), ROW, support=constraints.nonnegative_integer)
POSITIVE = Site("latent", (), ROW, support=constraints.positive)
UNIT = Site("latent", (), ROW, support=constraints.unit_interval)


def own_program(
    of: Mapping[str, Site], rows: Callable[..., Any], priors: Mapping[str, Any] | None = None, columns: int = 0,
    classes: int = 0,
) -> RowModel:  # fmt: skip
    """Make a program. rows: what is stated in the plate ``rows``, called with it and the globals, and what is given.
    columns: of x (N, D), 0 where a row is one number. classes: the size of the axis "class", if there is one."""

    @dataclass(frozen=True, kw_only=True, eq=False)
    class Own(RowModel):
        """A program of a test."""

        num_columns: int = max(columns, 1)
        num_classes: int = max(classes, 1)

        axes: ClassVar[Mapping[str, str]] = {
            **({"column": "num_columns"} if columns else {}), **({"class": "num_classes"} if classes else {})
        }  # fmt: skip
        sites: ClassVar[Mapping[str, Site]] = of

        def default_priors(self):
            return dict(priors or {})

        def __call__(self, x=None, *, mask=None, batch_size=None, num_rows=1, **given):
            values = self.sample_globals()
            with self.rows(x, mask, batch_size, num_rows) as plate:
                return rows(plate, **values, **given)

    return Own()


def observed(support: Any, columns: int = 0) -> Site:
    """The site x, or another that is observed."""
    return Site("observed", ("column",) if columns else (), ROW, support=support)
