"""log p(x, all latents | globals) of programs whose rows depend on each other, at any values, many at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from custom_inference.core.programs.density import Function, RowDensity
from custom_inference.core.programs.statements import check_statements, layout_of_whole, run
from ppl_models import Data, MethodError, Model


@dataclass(frozen=True)
class WholeDensity(RowDensity):
    """log p(x, s | params) as a function of the codes (M, 1, W) of all latents of all rows, which are a single one."""

    @classmethod
    def of(cls, model: Model, params: Mapping[str, Tensor], data: Data) -> WholeDensity:
        """Make the density of a model at given globals.

        Raises ModelError where the program does not state what the model declares, or more; MethodError for latents
        that are not one for every row.
        """
        model, data = model.summed_out, model.as_read(data).dense()
        nodes = run(model, data, params)
        check_statements(model, nodes, params)
        layout = layout_of_whole(model, nodes)
        for latent in layout:
            if latent.shape[:1] != (len(data),):
                raise MethodError(
                    f"no moves for the latent '{latent.name}' of {type(model).__name__}: its values, of shape "
                    f"{latent.shape}, are not one for every of {len(data)} rows"
                )
        return cls(model, dict(params), data, layout)

    def __len__(self) -> int:
        return 1

    def rows(self, index: Tensor | slice) -> WholeDensity:
        del index  # there is one
        return self

    def _by_value(self, code: Tensor, function: Function) -> Tensor:
        """Evaluate a program that ``torch.vmap`` cannot run, one value after the other."""
        return torch.stack([self._at(one, function) for one in code])

    def _of_copies(self, code: Tensor, chunk: int, function: Function) -> Tensor:
        del chunk
        return self._by_value(code, function)

    def sum_statement(self, name: str, node: Mapping[str, Any]) -> Tensor:
        del name
        return node["log_prob"].sum().unsqueeze(-1)

    def as_stated(self, value: Tensor) -> Tensor:
        return value.squeeze(0)

    def as_rows(self, value: Tensor) -> Tensor:
        return value.unsqueeze(0)
