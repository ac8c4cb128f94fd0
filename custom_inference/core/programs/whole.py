"""log p(x, all latents | globals) of programs whose rows depend on each other, at any values, many at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyro
import torch
from pyro import poutine
from torch import Tensor

from custom_inference.core.programs.density import RowDensity
from custom_inference.core.programs.statements import check_statements, is_statement, layout_of_whole, run
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

    def _by_value(self, code: Tensor, parts: tuple[frozenset[str] | None, ...]) -> Tensor:
        """Evaluate a program that ``torch.vmap`` cannot run, one value after the other."""
        return torch.stack([self._at(self.layout.decode(one), parts) for one in code])

    def _of_copies(self, code: Tensor, chunk: int, parts: tuple[frozenset[str] | None, ...]) -> Tensor:
        del chunk
        return self._by_value(code, parts)

    def _at(self, values: Mapping[str, Tensor], parts: tuple[frozenset[str] | None, ...]) -> Tensor:
        """(parts, 1) at one value of every latent."""
        held = {name: value.squeeze(0) for name, value in values.items()}
        program: Any = pyro.condition(self.model, data={**self.params, **held})
        trace: Any = poutine.trace(program).get_trace(self.data.x, **self.data.arguments)
        trace.compute_log_prob(site_filter=lambda name, _: name not in self.params)
        terms = {
            name: node["log_prob"].sum()
            for name, node in trace.nodes.items()
            if is_statement(node) and name not in self.params
        }
        zero = self.like.new_zeros(())
        each = [[term for name, term in terms.items() if part is None or name in part] for part in parts]
        return torch.stack([sum(some, zero) for some in each]).unsqueeze(-1)
