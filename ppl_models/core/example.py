"""Tiny problems with known truth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ppl_models.core import displays
from ppl_models.data.matrix import Data

if TYPE_CHECKING:
    from ppl_models.core.model import Model


@dataclass(frozen=True)
class Example:
    """A tiny problem with known truth: what the conformance tests run every model and method on."""

    model: Model
    data: Data
    truth: dict[str, Tensor]

    def _repr_html_(self) -> str:
        parts = self.model._repr_html_(), self.data._repr_html_()
        return displays.with_truth("Example", self.truth, *parts)

    @classmethod
    def of(cls, model: Model, data: Any, truth: Mapping[str, Any], **others: Any) -> Example:
        """Make an example from arrays: x (or prepared data) and ``others`` are cast to the default dtype, and so are
        the real values of the truth."""
        dtype = torch.get_default_dtype()
        if not isinstance(data, Data):
            given = {site: torch.as_tensor(value).to(dtype) for site, value in others.items()}
            data = Data(x=torch.as_tensor(data).to(dtype), others=given)
        values = {site: torch.as_tensor(value) for site, value in truth.items()}
        truth = {site: value.to(dtype) if value.is_floating_point() else value for site, value in values.items()}
        return cls(model=model, data=data, truth=truth)
