"""Models of counts whose rows have known exposures: the door for both."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from ppl_models.core.errors import DataError, about
from ppl_models.core.row_models import ComponentModel
from ppl_models.data import sparse
from ppl_models.data.covariates import beside
from ppl_models.data.matrix import Data


@dataclass(frozen=True, kw_only=True, eq=False)
class ExposedCounts(ComponentModel):
    """Counts x (N, D), dense or sparse, with a log exposure ``offset`` (N,) of every row, if there is one."""

    keeps_sparse: ClassVar[bool] = True

    def prepare(self, data: Any, *, mask: Any = None, dtype=None, device=None, offset: Any = None) -> Data:
        """Check counts, and the offsets (N,), numbers or "total". Raises DataError for anything else."""
        known = data.others.get("offset") if isinstance(data, Data) and offset is None else offset
        checked = super().prepare(data, mask=mask, dtype=dtype, device=device)
        if known is None:
            return replace(checked, others={})
        if isinstance(known, str):
            if known != "total":
                raise DataError(f"{known!r}", site="offset", expected='numbers (N,), or "total"')
            return replace(checked, others={"offset": sparse.row_sums(checked.observed_x).clamp(min=1).log()})
        with about("offset"):
            given = beside(known, checked)
            if given.shape != (len(checked),):
                raise DataError(f"shape {tuple(given.shape)}", expected=f"({len(checked)},), one a row")
            wrong = (~torch.isfinite(given)).nonzero().flatten()
            if len(wrong):
                found = f"{len(wrong)} values are not finite (the first: that of row {int(wrong[0])})"
                raise DataError(found, expected="logarithms of positive exposures")
        return replace(checked, others={"offset": given})

    def prepare_new(self, data: Any, like: Data, *, offset: Any = None, **settings: Any) -> Data:
        """Check counts as :meth:`prepare` does.

        Raises DataError for rows without offsets where those of the fit had some.
        """
        own = isinstance(data, Data) and "offset" in data.others
        if "offset" in like.others and offset is None and not own:
            raise DataError("no offsets, which the rows of the fit had", site="offset", expected="offset=...")
        return self.prepare(data, offset=offset, **settings)
