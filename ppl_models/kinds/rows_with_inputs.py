"""Models of rows whose inputs are given, on a scale of their own: the door for both."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from torch import Tensor

from ppl_models.core.row_models import ComponentModel, RowsBeside
from ppl_models.core.scales import OnOwnScale
from ppl_models.data.covariates import covariates_of
from ppl_models.data.held import MatrixLike
from ppl_models.data.matrix import Data


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
