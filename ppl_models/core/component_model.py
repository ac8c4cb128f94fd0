"""What the models of rows by features with K components share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import pyro
from torch import Tensor

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

    #: The fields that are counts of at least 1.
    sizes: ClassVar[tuple[str, ...]] = ("num_components", "num_features")
    #: Why K > D makes no sense, for models that refuse it.
    wide_reason: ClassVar[str | None] = None
    #: Whether scipy's sparse matrices stay sparse.
    keeps_sparse: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name in self.sizes:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ModelError(f"{name} = {value!r}, expected a whole number of at least 1")
        if self.wide_reason is not None and self.num_components > self.num_features:
            raise ModelError(
                f"num_components = {self.num_components} exceeds num_features = {self.num_features}: "
                f"{self.wide_reason}; expected K <= D"
            )
        super().__post_init__()

    @property
    def local_shape(self) -> tuple[int, ...]:
        """(K,)."""
        return (self.num_components,)

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

    @classmethod
    def for_data(cls, data: Data, num_components: int, **settings: Any) -> Self:
        """The model whose number of features is the data's."""
        return cls(num_components=num_components, num_features=data.num_features, **settings)

    def observe(self, likelihood: Any, x: Tensor | None, mask: Tensor | None, index: Tensor | None) -> Tensor:
        """The statement of x in the program, inside the plate of rows.

        likelihood: batch shape (B, D) of the rows in ``index``, or of all where that is None. Entries that ``mask``
        leaves out have no influence, whatever ``x`` holds there.
        """
        if mask is not None:
            likelihood = likelihood.mask(mask if index is None else mask[index])
        rows = x if x is None or index is None else x[index]
        return pyro.sample(self.observed_site, likelihood.to_event(1), obs=rows)
