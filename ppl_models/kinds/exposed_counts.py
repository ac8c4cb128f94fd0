"""Models of counts whose rows have known exposures: the door for both."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ppl_models.core.errors import DataError
from ppl_models.core.row_models import ComponentModel
from ppl_models.data import sparse
from ppl_models.data.covariates import finite_beside, given_or_own
from ppl_models.data.matrix import Data


@dataclass(frozen=True, kw_only=True, eq=False)
class ExposedCounts(ComponentModel):
    """Counts x (N, D), dense or sparse, with a log exposure ``offset`` (N,) of every row, if there is one."""

    keeps_sparse: ClassVar[bool] = True

    def prepare(self, data: Any, *, mask: Any = None, dtype=None, device=None, offset: Any = None) -> Data:
        """Check counts, and the offsets (N,), numbers or "total". Raises DataError for anything else."""
        known = given_or_own(offset, data, "offset")
        checked = super().prepare(data, mask=mask, dtype=dtype, device=device)
        if known is None:
            return replace(checked, others={})
        if isinstance(known, str):
            if known != "total":
                raise DataError(f"{known!r}", site="offset", expected='numbers (N,), or "total"')
            given = sparse.row_sums(checked.observed_x).clamp(min=1).log()
        else:
            expected = "logarithms of positive exposures"
            given = finite_beside(known, checked, "offset", (len(checked),), "one a row", expected=expected)
        return replace(checked, others={"offset": given})

    def prepare_new(self, data: Any, like: Data, *, offset: Any = None, **settings: Any) -> Data:
        """Check counts as :meth:`prepare` does.

        Raises DataError for rows without offsets where those of the fit had some.
        """
        if "offset" in like.others and given_or_own(offset, data, "offset") is None:
            raise DataError("no offsets, which the rows of the fit had", site="offset", expected="offset=...")
        return self.prepare(data, offset=offset, **settings)
