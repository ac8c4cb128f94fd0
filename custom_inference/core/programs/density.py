"""log p(x_n, latents of row n | globals) of any program, at any values, many at once."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyro
import torch
from pyro import poutine
from torch import Tensor

from custom_inference.core.isolation import default_dtype, torch_seeded
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
from custom_inference.core.programs.supports import Held
from ppl_models import Data, Model, ModelError
from ppl_models.core.errors import own_errors, warn_of_data

#: What is made of a run of a program: of the density, the trace and what held the moving latents (K, N).
Function = Callable[..., Tensor]
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
        try:
            nodes = run(model, data, params)
        except IndexError as error:  # of new rows; those of a fit were tried before
            given = ", ".join(f"'{name}'" for name in data.others) or f"'{model.observed_site}'"
            raise ModelError(
                f"the program of {type(model).__name__} does not run on these rows: {error}; expected {given} as in "
                "the rows of the fit, whole numbers below the sizes of what they look up"
            ) from error
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
                "second; what a row's statements are made of must be of that row alone (no mean, sum or any over rows, "
                "no random numbers of torch's own)"
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

    def draw(self, seed: int, data: Data | None = None) -> Tensor:
        """Draw a code (N, W) of the latents by a run of the program, on other ``data`` than its own where there are."""
        with torch.no_grad(), torch_seeded(seed):
            nodes = run(self.model, self.data if data is None else data, self.params)
            values = {name: nodes[name]["value"].expand(nodes[name]["fn"].shape()) for name in self.layout.names}
            return self.layout.encode(values, self.like)

    def __call__(self, code: Tensor) -> Tensor:
        """Evaluate log p(x_n, s_n | params) at codes (M, N, W), giving (M, N): minus infinity where a latent is outside
        of its support at the values of the others."""
        return self._for_each(code, functools.partial(_add_up, parts=(None,)))[:, 0]

    def split(self, code: Tensor) -> tuple[Tensor, Tensor]:
        """Evaluate log p(s_n) and log p(x_n | s_n) at codes (M, N, W), both (M, N)."""
        latents = frozenset(self.layout.names)
        joint, prior = self._for_each(code, functools.partial(_add_up, parts=(None, latents))).unbind(1)
        return prior, torch.where(prior > -torch.inf, joint - prior, -torch.inf)

    def real(self, code: Tensor, reals: Tensor) -> Tensor:
        """The density (M, N) of real numbers (M, N, R) that stand for the continuous latents, beside the finite ones
        of ``code`` (M or 1, N or 1, W)."""
        code, volume = self.constrain(code, reals)
        return self(code) + volume

    def constrain(self, code: Tensor, reals: Tensor) -> tuple[Tensor, Tensor]:
        """Codes (..., N, W) with the continuous latents from real numbers (..., N, R), the others as they are in
        ``code`` (which broadcasts), and the logarithm of the stretched volume (..., N)."""
        found, volume = self.layout.constrain(code, reals)
        moving = [latent for latent in self.layout.moving if latent.transform is not None]
        if not moving:
            return found, volume
        every = torch.cat([found, reals.expand(*found.shape[:-1], -1)], -1)
        asked = self._for_each(every.reshape(-1, *every.shape[-2:]), _constrain_moving).movedim(1, -1)
        *own, more = asked.reshape(*found.shape[:-1], -1).split([*(latent.width for latent in moving), 1], -1)
        new = {latent.name: part for latent, part in zip(moving, own, strict=True)}
        parts = [new.get(one.name, found[..., self.layout.slices[one.name]]) for one in self.layout]
        return torch.cat(parts, -1), volume + more.squeeze(-1)

    def unconstrain(self, code: Tensor) -> Tensor:
        """The real numbers (..., N, R) of codes (..., N, W)."""
        layout = self.layout
        moving = [latent for latent in layout.moving if latent.transform is not None]
        new: dict[str, Tensor] = {}
        if moving:
            asked = self._for_each(code.reshape(-1, *code.shape[-2:]), _unconstrain_moving).movedim(1, -1)
            own = asked.reshape(*code.shape[:-1], -1).split([latent.num_reals for latent in moving], -1)
            new = {latent.name: part for latent, part in zip(moving, own, strict=True)}
        parts = [
            new[one.name] if one.name in new else one.unconstrain(code[..., layout.slices[one.name]])
            for one in layout.continuous
        ]
        return torch.cat(parts, -1)

    def ask_ranges(self, code: Tensor) -> Tensor:
        """The least and the largest value that every finite latent whose support moves may have at codes (M, N, W):
        (M, 2 L, N), infinite where there is no bound."""
        return self._for_each(code, _ask_ranges)

    def _for_each(self, code: Tensor, function: Function) -> Tensor:
        """What a function gives for a run at each of the codes (M, N, W), with real numbers behind them or not:
        (M, K, N) of its (K, N)."""
        at = functools.partial(self._at, function=function)
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
                return torch.vmap(at, chunk_size=chunk)(code)
            except (RuntimeError, ValueError) as error:
                if "vmap" not in str(error) and "data-dependent" not in str(error):
                    raise
                branches = "control flow" in str(error) or ".item()" in str(error)
            code = code.expand(-1, len(self), -1)
            return self._by_value(code, function) if branches else self._of_copies(code, chunk, function)

    def _by_value(self, code: Tensor, function: Function) -> Tensor:
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
        every = torch.stack([self._at(value.expand(len(self), -1), function) for value in values])
        return every[place.reshape(code.shape[:-1]), :, torch.arange(len(self), device=code.device)].transpose(1, 2)

    def _of_copies(self, code: Tensor, chunk: int, function: Function) -> Tensor:
        """Evaluate a program that ``torch.vmap`` cannot run on as many copies of the rows, which do not depend on
        each other, as there are values."""
        index, plain = torch.arange(len(self), device=code.device), replace(self, data=replace(self.data, coords={}))
        found = []
        for some in code.split(chunk):
            each = plain.rows(index.repeat(len(some)))._at(some.flatten(0, 1), function)
            found.append(each.reshape(len(each), len(some), -1).transpose(0, 1))
        return torch.cat(found)

    def _at(self, code: Tensor, function: Function) -> Tensor:
        """What a function gives, (K, N), for a run at one code (N, W) of every latent, with real numbers behind it or
        not."""
        layout, reals = self.layout, {}
        values = {name: self.as_stated(one) for name, one in layout.decode(code[..., : layout.width]).items()}
        if code.shape[-1] > layout.width:
            parts = layout.slices_of_reals
            reals = {
                latent.name: self.as_stated(latent.place_reals(code[..., layout.width :][..., parts[latent.name]]))
                for latent in layout.moving
                if latent.transform is not None
            }
        held = Held(layout, values, reals, inverts=function is _unconstrain_moving)
        still = {name: value for name, value in values.items() if name not in held.latents}
        program: Any = pyro.condition(self.model, data={**self.params, **still})
        with held:
            trace: Any = poutine.trace(program).get_trace(self.data.x, **self.data.arguments)
        return function(self, trace, held)

    def sum_statement(self, name: str, node: Mapping[str, Any]) -> Tensor:
        """The log-probability of a statement, row by row (N,)."""
        dim = row_dim_of(node, self.plates)
        if dim is None:
            raise ModelError(f"'{name}' of {type(self.model).__name__} is stated outside the plate of rows")
        return sum_but_rows(node["log_prob"], dim)

    def as_stated(self, value: Tensor) -> Tensor:
        """Values with an axis of rows as the program states them."""
        return value

    def as_rows(self, value: Tensor) -> Tensor:
        """Values as the program states them with an axis of rows."""
        return value


def _add_up(density: RowDensity, trace: poutine.Trace, held: Held, parts: tuple[frozenset[str] | None, ...]) -> Tensor:
    """The log-probabilities of the statements of some sites, None for all but those of the globals: (parts, N)."""
    trace.compute_log_prob(site_filter=lambda name, _: name not in density.params)
    total = [density.like.new_zeros(len(density)) for _ in parts]
    for name, node in trace.nodes.items():
        if is_statement(node) and name not in density.params:
            term = density.sum_statement(name, node)
            total = [
                sum_ + term if part is None or name in part else sum_ for sum_, part in zip(total, parts, strict=True)
            ]
    every = torch.stack(total)
    for name, outside in held.outside.items():
        some = held.latents[name].encode(density.as_rows(outside), density.like) > 0
        every = torch.where(some.any(-1), -torch.inf, every)
    return every


def _constrain_moving(density: RowDensity, trace: poutine.Trace, held: Held) -> Tensor:
    """Codes of the continuous latents whose support moves, and the logarithm of the volume: (W + 1, N)."""
    del trace
    moving = [latent for latent in density.layout.moving if latent.name in held.volume]
    volume = torch.stack([one.sum_volume(density.as_rows(held.volume[one.name])) for one in moving]).sum(0)
    own = [one.encode(density.as_rows(held.at[one.name]), density.like).mT for one in moving]
    return torch.cat([*own, volume[None]])


def _unconstrain_moving(density: RowDensity, trace: poutine.Trace, held: Held) -> Tensor:
    """The real numbers (R, N) of the continuous latents whose support moves."""
    del trace
    moving = [latent for latent in density.layout.moving if latent.transform is not None]
    return torch.cat([one.read_reals(density.as_rows(held.sources[one.name])).mT for one in moving])


def _ask_ranges(density: RowDensity, trace: poutine.Trace, held: Held) -> Tensor:
    """The bounds of the finite latents whose support moves, the least and the largest of a row's: (2 L, N)."""
    del trace
    found = []
    for latent in density.layout.moving:
        if latent.transform is None:
            low, high = (latent.encode(density.as_rows(end), density.like) for end in held.ends[latent.name])
            found += [low.amin(-1), high.amax(-1)]
    return torch.stack(found)
