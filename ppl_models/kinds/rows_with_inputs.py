"""Models of rows whose inputs are given, on a scale of their own: the door for both."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from ppl_models.core.row_models import ComponentModel
from ppl_models.core.scales import OnOwnScale
from ppl_models.data.covariates import covariates_of, given_or_own
from ppl_models.data.matrix import Data


@dataclass(frozen=True, kw_only=True, eq=False)
class RowsWithInputs(OnOwnScale, ComponentModel):
    """Rows x (N, D) with inputs ``covariates`` (N, P), finite numbers."""

    num_covariates: int

    scaled_site: ClassVar[str] = "covariates"
    scaled_size: ClassVar[str] = "num_covariates"

    def prepare(self, data: Any, *, mask: Any = None, dtype=None, device=None, covariates: Any = None) -> Data:
        """Check outputs (N, D), and the inputs (N, P); without any at all inputs are at the centre, where the scores
        have their common mean. Raises DataError for anything else, single inputs that are missing too."""
        known = given_or_own(covariates, data, "covariates")
        checked = super().prepare(data, mask=mask, dtype=dtype, device=device)
        if known is None:
            known = self.scale_of_columns(checked.x)[0].expand(len(checked), -1)
        return replace(checked, others={"covariates": covariates_of(known, checked, self.num_covariates)})

    @classmethod
    def for_data(cls, data: Data, num_components: int, **settings: Any) -> Self:
        """Return the model with as many features and covariates as the data have, at least one covariate."""
        inputs = data.others.get("covariates")
        settings.setdefault("num_covariates", 1 if inputs is None else inputs.shape[1])
        return super().for_data(data, num_components, **settings)
