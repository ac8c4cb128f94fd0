"""What SVI does differently for rows, which are independent, and for a graph, which is one observation."""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import pyro
import torch
from torch import Tensor

from custom_inference.core.capacity import require_labelings
from custom_inference.core.dyads import DyadSample
from custom_inference.core.fit import Fit, check_init
from custom_inference.svi.graph_starts import graph_start, random_locals
from custom_inference.svi.guides.protocol import ENUMERATE_UP_TO
from custom_inference.svi.initialisation import documents_a_step, initial_values, off_the_edges
from ppl_models import Data, MethodError, Model

#: A step sees at most about so many (dyad, block of one end, block of the other) terms of a graph by default; of
#: memberships (dyad, block) terms. And no fewer dyads than the second number.
_DYAD_TERMS, _FEWEST_DYADS = 2**21, 2**12
#: Starts of a graph's nodes at given globals beside the matched partition.
_RANDOM_STARTS = 5

#: A guide from starting values of globals and locals (None: its own), and the trace that it has after a brief run.
MakeGuide = Callable[[dict[str, Tensor]], Any]
Judge = Callable[[Any], list[float]]


class Settings(Protocol):
    """What is asked of an ``SVI`` here."""

    @property
    def guide(self) -> Any: ...

    @property
    def batch_size(self) -> int | str | None: ...

    @property
    def sums_codes(self) -> bool:
        """Whether the codes are summed out by enumeration."""
        ...

    def enumerates(self, model: Model) -> bool:
        """Whether a step sums over the codes of its rows, or samples them."""
        ...


@dataclass(frozen=True)
class Batches:
    """The program that is run, how many rows or dyads it is asked for a step (None: all), and the mask that it gets."""

    program: Any
    size: int | None
    mask: Tensor | None


@dataclass(frozen=True)
class SviData(abc.ABC):
    """settings: the :class:`SVI`; model: as given."""

    settings: Settings
    model: Any

    @staticmethod
    def of(settings: Settings, model: Model) -> SviData:
        return OfGraph(settings, model) if model.is_graph else OfRows(settings, model)

    def as_read(self, data: Data) -> Data:
        """What the program reads."""
        return self.model.as_read(data)

    @abc.abstractmethod
    def batch(self, data: Data) -> int | None:
        """Rows (dyads) a step; None for all."""

    @abc.abstractmethod
    def random_start(self, data: Data, seed: int) -> dict[str, Tensor]:
        """Random starting values: at the priors' medians the components are equal, a saddle point."""

    def batches(self, program: Any, data: Data) -> Batches:
        """How a program's steps see the data."""
        return Batches(program, self.batch(data), data.mask)

    def start(self, data: Data, init: Any, seed: int) -> dict[str, Tensor]:
        """Starting values: random ones, or those given."""
        given = check_init(self.model, init)
        if given is None:
            return self.random_start(data, seed)
        return off_the_edges(self.model, {site: value.to(data.x) for site, value in given.items()}, 1e-6)

    def guide_at(self, params: dict[str, Tensor], data: Data, make: MakeGuide, judge: Judge) -> Any:
        """A guide of the locals at given globals."""
        del data, judge
        return make(params)


class OfRows(SviData):
    """Rows."""

    def random_start(self, data: Data, seed: int) -> dict[str, Tensor]:
        return initial_values(self.model, data, seed)

    def batch(self, data: Data) -> int | None:
        settings, model = self.settings, self.model
        if settings.sums_codes and model.has_continuous_locals:
            # Pyro's automatic guides hold the locals of the rows that they first saw, and no others.
            if isinstance(settings.batch_size, int) and settings.batch_size < len(data):
                found = f'guide="{settings.guide}" keeps a value of the {model.local_site} of every row'
                raise MethodError(f'{found} and takes no minibatches; use batch_size=None or guide="mean_field"')
            return None
        if not isinstance(settings.batch_size, str):
            return settings.batch_size if settings.batch_size is None or settings.batch_size < len(data) else None
        if "num_tokens" in model.given(data):
            return documents_a_step(model, data)
        large = model.code_bits is not None and model.code_bits > ENUMERATE_UP_TO and not settings.sums_codes
        if model.code_bits is None or large or not settings.enumerates(model):
            return None
        per_row = 2**model.code_bits * data.num_features
        return None if per_row * len(data) <= 2**22 else max(16, 2**20 // per_row)


class OfGraph(SviData):
    """A graph, of which steps may see some dyads."""

    def as_read(self, data: Data) -> Data:
        """In minibatches of dyads it stays sparse, hidden dyads being never drawn."""
        return data if self.batch(data) is not None else self.model.as_read(data)

    def random_start(self, data: Data, seed: int) -> dict[str, Tensor]:
        return graph_start(self.model, data, seed)

    def start(self, data: Data, init: Any, seed: int) -> dict[str, Tensor]:
        """Nodes start where ``init`` has them, if it is of these nodes."""
        start, site = super().start(data, init, seed), self.model.local_site
        values = init.params if isinstance(init, Fit) else init
        local = None if values is None else values.get(site)
        if local is not None and len(local) == len(data):
            local = off_the_edges(self.model, {site: torch.as_tensor(local)}, 1e-6)[site]
            start[site] = local.to(data.x if local.is_floating_point() else data.x.device)
        return start

    def batch(self, data: Data) -> int | None:
        """All, unless they times the values of their ends are more than ``_DYAD_TERMS``."""
        model, asked = self.model, self.settings.batch_size
        total = model.num_dyads(len(data))
        if asked == "auto":
            size = max(_FEWEST_DYADS, _DYAD_TERMS // model.num_blocks ** (1 if model.has_continuous_locals else 2))
        else:
            size = total if asked is None else int(asked)
        if size >= total:
            return None
        if model.summed_out is not model or (self.settings.sums_codes and not model.has_continuous_locals):
            if asked == "auto":
                return None
            raise MethodError("where blocks are enumerated there are no minibatches of dyads; use batch_size=None")
        return size

    def batches(self, program: Any, data: Data) -> Batches:
        if self.settings.sums_codes and not self.model.has_continuous_locals:
            require_labelings(self.model, len(data), instead='guide="mean_field"')
        size = self.batch(data)
        if size is None:
            return Batches(program, None, data.mask)
        sample = DyadSample(self.model, data, size)
        return Batches(sample(program), sample.batch_size, None)

    def guide_at(self, params: dict[str, Tensor], data: Data, make: MakeGuide, judge: Judge) -> Any:
        """Of a matched partition and of random starts the best after a while: most end in local optima."""
        found = []
        for local in (None, *random_locals(self.model, data, _RANDOM_STARTS)):
            guide = make(params if local is None else {**params, self.model.local_site: local})
            with pyro.get_param_store().scope():  # parameters of all guides have the same names
                trace = judge(guide)
            found.append((sum(trace[-10:]), len(found), guide))
        return max(found)[2]
