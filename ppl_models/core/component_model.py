"""What the models of rows by features with K components share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ppl_models.core.errors import ModelError
from ppl_models.core.likelihood import Likelihood
from ppl_models.core.model import Model
from ppl_models.data.matrix import Data, as_matrix, as_values_of


@dataclass(frozen=True, kw_only=True, eq=False)
class ComponentModel(Model):
    """A model of a matrix x (N, D) with a latent of K components a row.

    Raises
    ------
    ModelError: a size below 1; more components than features where those are not identified (``wide_reason``).
    """

    num_components: int
    num_features: int

    #: Why K > D makes no sense, for models that refuse it.
    wide_reason: ClassVar[str | None] = None
    #: Whether scipy's sparse matrices stay sparse.
    keeps_sparse: ClassVar[bool] = False

    axes: ClassVar[Mapping[str, str]] = {"component": "num_components", "feature": "num_features"}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.wide_reason is not None and self.num_components > self.num_features:
            raise ModelError(
                f"num_components = {self.num_components} exceeds num_features = {self.num_features}: "
                f"{self.wide_reason}; expected K <= D"
            )

    @property
    def likelihood(self) -> Likelihood | None:
        """That of one entry, where the model has one of :mod:`ppl_models.likelihoods`: it says which data are valid."""
        return None

    @property
    def data_kind(self) -> str:
        return super().data_kind if self.likelihood is None else self.likelihood.kind

    def prepare(self, data: Any, *, mask: Any = None, dtype=None, device=None) -> Data:
        """A matrix; NaN is missing. Raises DataError for entries that the likelihood gives no probability."""
        settings: dict[str, Any] = {"mask": mask, "num_features": self.num_features, "dtype": dtype, "device": device}
        settings["keep_sparse"] = self.keeps_sparse
        likelihood = self.likelihood
        return as_matrix(data, **settings) if likelihood is None else as_values_of(likelihood, data, **settings)
