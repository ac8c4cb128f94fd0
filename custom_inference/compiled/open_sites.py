"""Sites without closed forms: the expected log joint as a function of their unconstrained values."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from custom_inference.compiled.blocks import Block, Part
from custom_inference.compiled.sources import Entries, ProgramSource


@dataclass(frozen=True)
class OpenSites:
    """Q plus the log prior as a function of unconstrained values of some sites.

    fixed: values of all sites. involved: the blocks that these are in, with their expected features, and what of the
    rows they read. maps, units: of every site from the unconstrained scale.
    """

    entries: Entries
    fixed: Mapping[str, Tensor]
    involved: Sequence[tuple[Block, Tensor, Part | None]]
    maps: Mapping[str, Any]
    units: Mapping[str, Tensor | float]
    log_prior: Callable[[dict[str, Tensor]], Tensor]

    @cached_property
    def start(self) -> dict[str, Tensor]:
        """The unconstrained values that the sites have now."""
        return {
            site: transform.inv(self.fixed[site]).nan_to_num(0.0, 20.0, -20.0) / self.units[site]
            for site, transform in self.maps.items()
        }

    def split(self, vector: Tensor) -> dict[str, Tensor]:
        """Return the unconstrained values of the sites from one vector of all of them."""
        parts = vector.split([value.numel() for value in self.start.values()])
        return {s: part.reshape(v.shape) for (s, v), part in zip(self.start.items(), parts, strict=True)}

    def values(self, free: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the values of the sites."""
        return {site: self.maps[site](self.units[site] * value) for site, value in free.items()}

    def expect(self, free: dict[str, Tensor]) -> Tensor:
        """Return Q, but for what does not depend on these sites."""
        return self.expect_at(self.values(free))

    def expect_at(self, values: Mapping[str, Tensor]) -> Tensor:
        """Return the same at values of the sites."""
        return self.expect_over({site: value.unsqueeze(0) for site, value in values.items()})[0]

    def expect_over(self, draws: Mapping[str, Tensor]) -> Tensor:
        """Return the same at several values (S, *shape) of the sites, (S,)."""
        number = len(next(iter(draws.values())))
        every = {site: value.expand(number, *value.shape) for site, value in self.fixed.items()} | dict(draws)
        flats = torch.cat([every[site].reshape(number, -1) for site in self.entries.shapes], 1)
        total = flats.new_zeros(number)
        for block, counted, part in self.involved:
            expect = functools.partial(block.expect, counted=counted, part=part)
            runs = any(type(source) is ProgramSource for source in block.sources)
            if number == 1 or runs or block.is_direct:
                total = total + torch.stack([expect(flat) for flat in flats])
            else:
                total = total + torch.func.vmap(expect)(flats)
        return total

    def density(self, free: dict[str, Tensor]) -> Tensor:
        """Return Q plus the log prior."""
        try:
            prior = self.log_prior({**self.fixed, **self.values(free)})
        except ValueError:  # a line search that goes where no prior is defined
            return next(iter(free.values())).new_tensor(torch.inf)
        return self.expect(free) + prior
