"""Models of rows with something beside them, and the doors for both: counts with known exposures, and rows with inputs
on a scale of their own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from torch import Tensor

from ppl_models.core.errors import DataError
from ppl_models.core.row_models import ComponentModel, RowsBeside
from ppl_models.core.scales import OnOwnScale
from ppl_models.data import sparse
from ppl_models.data.covariates import covariates_of, finite_beside, given_or_own
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


@dataclass(frozen=True, kw_only=True, eq=False)
class RowsWithInputs(RowsBeside, OnOwnScale, ComponentModel):
    """Rows x (N, D) with inputs ``covariates`` (N, P), finite numbers."""

    num_covariates: int

    beside_site: ClassVar[str] = "covariates"
    scaled_site: ClassVar[str] = "covariates"
    scaled_size: ClassVar[str] = "num_covariates"

    def read_beside(self, given: MatrixLike, data: Data, names: list[Any] | None) -> Data:
        """Read the inputs (N, P). Raises DataError for anything else, single inputs that are missing too."""
        del names
        return replace(data, others={"covariates": covariates_of(given, data, self.num_covariates)})

    def without_beside(self, data: Data) -> dict[str, Tensor]:
        """Return inputs at the centre, where the scores have their common mean."""
        return {"covariates": self.scale_of_columns(data.x)[0].expand(len(data), self.num_covariates)}

    @classmethod
    def for_data(cls, data: Data, num_components: int, **settings: Any) -> Self:
        """Return the model with as many features and covariates as the data have, at least one covariate."""
        inputs = data.others.get("covariates")
        settings.setdefault("num_covariates", 1 if inputs is None else inputs.shape[1])
        return super().for_data(data, num_components, **settings)
