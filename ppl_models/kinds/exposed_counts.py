"""Models of counts whose rows have known exposures: the door for both."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ppl_models.core.errors import DataError
from ppl_models.core.row_models import ComponentModel, RowsBeside
from ppl_models.data import sparse
from ppl_models.data.covariates import finite_beside, given_or_own
from ppl_models.data.held import MatrixLike, Source, is_string
from ppl_models.data.matrix import Data


@dataclass(frozen=True, kw_only=True, eq=False)
class ExposedCounts(RowsBeside, ComponentModel):
    """Counts x (N, D), dense or sparse, with a log exposure ``offset`` (N,) of every row, if there is one."""

    keeps_sparse: ClassVar[bool] = True
    beside_site: ClassVar[str] = "offset"

    def read_beside(self, given: MatrixLike, data: Data, names: list[Any] | None) -> Data:
        """Read the offsets (N,), numbers or "total". Raises DataError for anything else."""
        del names
        if is_string(given):
            if given != "total":
                raise DataError(f"{given!r}", expected='numbers (N,), or "total"')
            found = sparse.row_sums(data.observed_x).clamp(min=1).log()
        else:
            expected = "logarithms of positive exposures"
            found = finite_beside(given, data, "offset", (len(data),), "one a row", expected=expected)
        return replace(data, others={"offset": found})

    def prepare_new(self, data: Source, like: Data, **settings: Any) -> Data:
        """Check counts as :meth:`prepare` does.

        Raises DataError for rows without offsets where those of the fit had some.
        """
        if "offset" in like.others and given_or_own(settings.get("offset"), data, "offset") is None:
            raise DataError("no offsets, which the rows of the fit had", site="offset", expected="offset=...")
        return super().prepare_new(data, like, **settings)
