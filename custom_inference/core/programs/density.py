"""log p(x_n, latents of row n | globals) of any program, at any values, many at once."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyro
import torch
from pyro import poutine
from torch import Tensor

from custom_inference.core.isolation import default_dtype
from custom_inference.core.programs.latents import Layout, sum_but_rows
from custom_inference.core.programs.row_plates import row_dim_of
from custom_inference.core.programs.statements import (
    check_statements,
    is_statement,
    layout_of,
    own_parameters,
    row_plates_on,
    run,
)
from ppl_models import Data, Model, ModelError
from ppl_models.core.errors import own_errors, warn_of_data

#: Runs of a program whose course depends on the values of its latents, at most.
MOST_RUNS = 4096
#: So many (value, entry of x) pairs are evaluated at once.
_PAIRS = 2**22


@dataclass(frozen=True)
class RowDensity:
    """log p(x_n, s_n | params) as a function of the codes s of the rows' latents.

    The program is run once for many values by ``torch.vmap``; one that cannot is run on copies of the rows, and one
    whose course depends on the values of finite latents (Python's ``if``) once for each of these, all rows alike.
    """

    model: Model
    params: Mapping[str, Tensor]
    data: Data
    layout: Layout
    #: The names of the program's plates of rows.
    plates: frozenset[str] = frozenset()

    @classmethod
    def of(cls, model: Model, params: Mapping[str, Tensor], data: Data) -> RowDensity:
        """Make the density of a model at given globals.

        Raises ModelError where the program does not state what the model declares, or more, or has a latent outside
        the plate of rows.
        """
        model, data = model.summed_out, model.as_read(data).dense()
        nodes = run(model, data, params)
        check_statements(model, nodes, params)
        plates = row_plates_on(model, data, params)
        density = cls(model, dict(params), data, layout_of(model, nodes, plates), plates)
        density.require_independent_rows(nodes)
        return density

    def require_independent_rows(self, nodes: Mapping[str, Any]) -> None:
        """Refuse a program in which the density of a row depends on the rows beside it; nodes: of a run of it.

        Raises ModelError, which names a row.
        """
        rows, model = len(self), self.model
        if rows < 2 or not self.layout.latents:
            return
        values = {name: nodes[name]["value"] for name in self.layout.names}
        some = torch.arange(0, rows, 2, device=self.data.x.device)
        with torch.no_grad():
            code = self.layout.encode(values, self.like)
            together, apart = self(code[None])[0, some], self.rows(some)(code[None, some])[0]
        scale = math.sqrt(torch.finfo(together.dtype).eps) * (1 + together.abs())
        differs = torch.nonzero((together.nan_to_num() - apart.nan_to_num()).abs() > 10 * scale)[:, 0]
        if len(differs):
            n = int(some[differs[0]])
            raise ModelError(
                f"rows of {type(model).__name__} depend on each other: log p(x, latents) of row {n} is "
                f"{float(together[differs[0]]):.6g} beside all rows and {float(apart[differs[0]]):.6g} beside every "
                "second; what a row's statements are made of must be of that row alone (no mean, sum or any over rows)"
            )

    def __len__(self) -> int:
        return len(self.data)

    @property
    def like(self) -> Tensor:
        """A tensor of the type and device of codes and densities."""
        return self.data.x.new_zeros(0, dtype=self.data.x.dtype if self.data.x.is_floating_point() else None)

    def rows(self, index: Tensor | slice) -> RowDensity:
        """Give the density of some rows."""
        return replace(self, data=self.data.rows(index))

    def at(self, params: Mapping[str, Tensor]) -> RowDensity:
        """Give the density at other globals."""
        return replace(self, params=dict(params))

    def double(self) -> RowDensity:
        """Give the density in double precision; gradients flow to the globals as they are."""
        params = {name: value.double() if value.is_floating_point() else value for name, value in self.params.items()}
        return replace(self, data=self.data.to(dtype=torch.float64), params=params)

    def __call__(self, code: Tensor) -> Tensor:
        """Evaluate log p(x_n, s_n | params) at codes (M, N, W), giving (M, N)."""
        return self._evaluate(code, (None,))[:, 0]

    def split(self, code: Tensor) -> tuple[Tensor, Tensor]:
        """Evaluate log p(s_n) and log p(x_n | s_n) at codes (M, N, W), both (M, N)."""
        latents = frozenset(self.layout.names)
        joint, prior = self._evaluate(code, (None, latents)).unbind(1)
        return prior, torch.where(prior > -torch.inf, joint - prior, -torch.inf)

    def _evaluate(self, code: Tensor, parts: tuple[frozenset[str] | None, ...]) -> Tensor:
        """Add up the statements of some sites, None for all but those of the globals: (M, parts, N)."""
        at = functools.partial(self._at, parts=parts)
        values = self.layout.decode(code)
        chunk = max(1, _PAIRS // max(1, self.data.x.numel()))
        with (
            own_errors(),
            own_parameters(),
            default_dtype(code.dtype),
            pyro.validation_enabled(False),
            warnings.catch_warnings(),
        ):
            # Of functions that torch evaluates one value after the other: right, if slow.
            warnings.filterwarnings("ignore", "There is a performance drop")
            try:
                return torch.vmap(at, chunk_size=chunk)(values)
            except (RuntimeError, ValueError) as error:
                if "vmap" not in str(error) and "data-dependent" not in str(error):
                    raise
                branches = "control flow" in str(error) or ".item()" in str(error)
            code = code.expand(-1, len(self), -1)
            return self._by_value(code, parts) if branches else self._of_copies(code, chunk, parts)

    def _by_value(self, code: Tensor, parts: tuple[frozenset[str] | None, ...]) -> Tensor:
        """Evaluate a program whose course depends on values, which must be those of finite latents alone: at each by
        itself, the same in all rows."""
        values, place = torch.unique(code.flatten(0, 1), dim=0, return_inverse=True)
        course = f"the course of {type(self.model).__name__} depends on values of its latents (if, float() or .item())"
        if self.layout.num_reals:
            named = ", ".join(f"'{latent.name}'" for latent in self.layout.continuous)
            raise ModelError(
                f"{course}, of which {named} is continuous; write it with torch.where, for all rows at once"
            )
        if len(values) > MOST_RUNS:
            raise ModelError(f"{course}, which are {len(values)}, of at most {MOST_RUNS}; write it with torch.where")
        warn_of_data(f"{course}: it is run for each of them, and draws of several rows at once take one course")
        every = torch.stack([
            self._at(self.layout.decode(value.expand(len(self), -1)), parts) for value in values
        ])  # fmt: skip
        return every[place.reshape(code.shape[:-1]), :, torch.arange(len(self), device=code.device)].transpose(1, 2)

    def _of_copies(self, code: Tensor, chunk: int, parts: tuple[frozenset[str] | None, ...]) -> Tensor:
        """Evaluate a program that ``torch.vmap`` cannot run on as many copies of the rows, which do not depend on
        each other, as there are values."""
        index, plain = torch.arange(len(self), device=code.device), replace(self, data=replace(self.data, coords={}))
        found = []
        for some in code.split(chunk):
            values = self.layout.decode(some.flatten(0, 1))
            each = plain.rows(index.repeat(len(some)))._at(values, parts)
            found.append(each.reshape(len(parts), len(some), -1).transpose(0, 1))
        return torch.cat(found)

    def real(self, code: Tensor, reals: Tensor) -> Tensor:
        """The density (M, N) of real numbers (M, N, R) that stand for the continuous latents, beside the finite ones
        of ``code`` (M or 1, N or 1, W)."""
        code, volume = self.layout.constrain(code, reals)
        return self(code) + volume

    def _at(self, values: Mapping[str, Tensor], parts: tuple[frozenset[str] | None, ...]) -> Tensor:
        """(parts, N) at one value of every latent."""
        program: Any = pyro.condition(self.model, data={**self.params, **values})
        trace: Any = poutine.trace(program).get_trace(self.data.x, **self.data.arguments)
        trace.compute_log_prob(site_filter=lambda name, _: name not in self.params)
        rows = len(self.data)
        total = [self.like.new_zeros(rows) for _ in parts]
        for name, node in trace.nodes.items():
            if is_statement(node) and name not in self.params:
                dim = row_dim_of(node, self.plates)
                if dim is None:
                    raise ModelError(f"'{name}' of {type(self.model).__name__} is stated outside the plate of rows")
                term = sum_but_rows(node["log_prob"], dim)
                total = [
                    sum_ + term if part is None or name in part else sum_
                    for sum_, part in zip(total, parts, strict=True)
                ]
        return torch.stack(total)
