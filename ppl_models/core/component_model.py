"""What the models of rows by features with K components share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ppl_models.core.errors import ModelError
from ppl_models.core.model import Model


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

    axes: ClassVar[Mapping[str, str]] = {"component": "num_components", "feature": "num_features"}
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.wide_reason is not None and self.num_components > self.num_features:
            raise ModelError(
                f"num_components = {self.num_components} exceeds num_features = {self.num_features}: "
                f"{self.wide_reason}; expected K <= D"
            )
