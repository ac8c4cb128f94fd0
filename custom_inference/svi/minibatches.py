"""Minibatches of SVI, of rows or of a graph's dyads; and Adam for parameters of which a step sees a few rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyro
import torch
from pyro.optim import PyroOptim
from torch import Tensor

from custom_inference.core.capacity import memory_limit, require, require_labelings
from custom_inference.core.dyads import DyadSample
from custom_inference.core.fit import Fit, check_init
from custom_inference.svi.guides.protocol import ENUMERATE_UP_TO
from custom_inference.svi.initialisation import clamp_to_interior, graph_start, initial_values, local_of_labels
from ppl_models import Data, MethodError, Model

#: A step sees at most about so many (dyad, block of one end, block of the other) terms of a graph by default; of
#: memberships (dyad, block) terms. And no fewer dyads than the second number.
_DYAD_TERMS, _FEWEST_DYADS = 2**21, 2**12
#: Starts of a graph's nodes at given globals beside the matched partition.
_RANDOM_STARTS = 5
#: A draw of a topic's word probability with its gradient costs about as much as so many (cell, topic) products.
_DRAW_COST = 16
#: Arrays over (code, row, feature) that a step holds at once, gradients included.
_COPIES = 4
#: Products of a minibatch's cells with the topics are held in at most this many numbers.
_MOST_PRODUCTS = 2**24


@dataclass(frozen=True)
class OfRows:
    """Rows. model: as given. batch_size: as the method has it.

    summed_by: the name of the guide of the globals beside which the codes are summed out by enumeration, else None.
    enumerates: whether a step sums over the codes of its rows, or samples them.
    """

    model: Any
    batch_size: int | str | None
    summed_by: str | None
    enumerates: bool
    random_start: ClassVar[Callable[..., dict[str, Tensor]]] = staticmethod(initial_values)

    def as_read(self, data: Data) -> Data:
        """Return the data as the program reads them."""
        return self.model.as_read(data)

    def batches(self, program: Callable[..., Any], data: Data) -> tuple[Any, int | None, Tensor | None]:
        """The program as it is run, how many rows or dyads it is asked for a step (None: all), and its mask."""
        return program, self.batch(data), data.mask

    def start(self, data: Data, init: Fit | Mapping[str, Tensor] | None, seed: int) -> dict[str, Tensor]:
        """Return the given starting values, or random ones: at the prior medians all components are equal, a saddle."""
        given = check_init(self.model, init)
        if given is None:
            return self.random_start(self.model, data, seed)
        return clamp_to_interior(self.model, {site: value.to(data.x) for site, value in given.items()}, 1e-6)

    def local_starts(self, data: Data) -> list[dict[str, Tensor]]:
        """Return the starts of guides of the locals at given globals; {} stands for the guide's own start."""
        del data
        return [{}]

    def total(self, data: Data) -> int:
        """How many rows (dyads) there are."""
        return len(data)

    def batch(self, data: Data) -> int | None:
        """Rows (dyads) a step; None for all."""
        model, size = self.model, self.batch_size
        if self.summed_by is not None and model.has_continuous_locals:
            # Pyro's automatic guides hold the locals of the rows that they first saw, and no others.
            if isinstance(size, int) and size < len(data):
                found = f'guide="{self.summed_by}" keeps a value of the {model.local_site} of every row'
                raise MethodError(f'{found} and takes no minibatches; use batch_size=None or guide="mean_field"')
            return None
        if not isinstance(size, str):
            return size if size is None or size < len(data) else None
        if "num_tokens" in model.given(data):
            return documents_a_step(model, data)
        large = model.code_bits is not None and model.code_bits > ENUMERATE_UP_TO and self.summed_by is None
        if model.code_bits is None or large or not self.enumerates:
            return None
        per_row = 2**model.code_bits * data.num_features
        return None if per_row * len(data) <= 2**22 else max(16, 2**20 // per_row)


def require_codes(model: Model, rows: int, features: int) -> None:
    """Raise CapacityError where a sum over all codes of so many rows does not fit into memory."""
    bits = model.code_bits or 0
    what = f"summing over the 2^{bits} codes of {rows} rows"
    fits = 'sum over fewer, or use SVI(guide="mean_field")'
    require(what, _COPIES * 8.0 * 2.0**bits * rows * features, allowed=memory_limit(), fits=fits)


def documents_a_step(model: Model, data: Data) -> int | None:
    """So many that their words cost about as much as a draw of all topics, and fit into memory; None for all."""
    *slices, vocabulary = model.shapes[model.component_site]
    num_topics = math.prod(slices)
    cells = data.x.values().numel() / len(data) if data.is_sparse else vocabulary
    size = int(min(_DRAW_COST * vocabulary, _MOST_PRODUCTS / num_topics) / max(cells, 1.0))
    return None if size >= len(data) else max(size, 16)


class OfGraph(OfRows):
    """A graph, of which steps may see some dyads."""

    random_start = staticmethod(graph_start)

    def as_read(self, data: Data) -> Data:
        """Keep a graph sparse for minibatches of dyads, which never contain hidden ones; else read it as the model."""
        return data if self.batch(data) is not None else self.model.as_read(data)

    def start(self, data: Data, init: Fit | Mapping[str, Tensor] | None, seed: int) -> dict[str, Tensor]:
        """Nodes start where ``init`` has them, if it is of these nodes."""
        start, site = super().start(data, init, seed), self.model.local_site
        local = (init.params if isinstance(init, Fit) else init or {}).get(site)
        if local is not None and len(local) == len(data):
            local = clamp_to_interior(self.model, {site: torch.as_tensor(local)}, 1e-6)[site]
            start[site] = local.to(data.x if local.is_floating_point() else data.x.device)
        return start

    def total(self, data: Data) -> int:
        return self.model.num_dyads(len(data))

    def batch(self, data: Data) -> int | None:
        """All, unless they times the values of their ends are more than ``_DYAD_TERMS``."""
        model, asked = self.model, self.batch_size
        total = model.num_dyads(len(data))
        if asked == "auto":
            size = max(_FEWEST_DYADS, _DYAD_TERMS // model.num_blocks ** (1 if model.has_continuous_locals else 2))
        else:
            size = total if asked is None else int(asked)
        if size >= total:
            return None
        if model.summed_out is not model or self._sums_blocks:
            if asked == "auto":
                return None
            raise MethodError("where blocks are enumerated there are no minibatches of dyads; use batch_size=None")
        return size

    @property
    def _sums_blocks(self) -> bool:
        return self.summed_by is not None and not self.model.has_continuous_locals

    def batches(self, program: Callable[..., Any], data: Data) -> tuple[Any, int | None, Tensor | None]:
        if self._sums_blocks:
            require_labelings(self.model, len(data), instead='guide="mean_field"')
        size = self.batch(data)
        if size is None:
            return program, None, data.mask
        sample = DyadSample(self.model, data, size)
        return sample(program), sample.batch_size, None

    def local_starts(self, data: Data) -> list[dict[str, Tensor]]:
        """A matched partition, and random ones."""
        labels = torch.randint(self.model.num_blocks, (_RANDOM_STARTS, len(data)), device=data.x.device)
        return [{}, *({self.model.local_site: local_of_labels(self.model, one, data)} for one in labels)]


class RowAdam(PyroOptim):
    """Adam (Kingma & Ba 2015) with a decaying rate; of sparse gradients it moves, and pays for, their rows alone.

    The averages of a row and their bias are counted in that row's own steps: a row that few minibatches see takes steps
    of the full size, and none from the momentum of others.

    rate: name of a parameter -> its learning rate; decay: the factor on all rates at every step.
    """

    _BETAS, _EPSILON = (0.9, 0.999), 1e-8

    def __init__(self, rate: Callable[[str], float], *, decay: float = 1.0):
        # The wrapped optimiser is never made: torch's base class imports its compiler, which takes seconds.
        super().__init__(torch.optim.Adam, {})
        self.rate, self.decay, self.factor = rate, decay, 1.0
        self._averages: dict[Tensor, dict[str, Tensor]] = {}

    @torch.no_grad()
    def __call__(self, params: Iterable[Tensor], *args: Any, **kwargs: Any) -> None:
        """Take one step for every parameter that has a gradient."""
        self.factor *= self.decay
        for param in params:
            if param.grad is not None:
                name = pyro.get_param_store().param_name(param)
                self._move(param, param.grad, self.rate(name or "") * self.factor)

    def _move(self, param: Tensor, grad: Tensor, rate: float) -> None:
        state, (first, second) = self._averages.get(param), self._BETAS
        if state is None:
            steps = param.new_zeros((len(param),) if grad.is_sparse else ())
            state = {"steps": steps, "mean": torch.zeros_like(param), "square": torch.zeros_like(param)}
            self._averages[param] = state
        index: Any = ...
        if grad.is_sparse:
            grad = grad.coalesce()
            index, grad = grad.indices()[0], grad.values()
        state["steps"][index] += 1
        mean = state["mean"][index].lerp(grad, 1 - first)
        square = state["square"][index].mul(second).addcmul_(grad, grad, value=1 - second)
        state["mean"][index], state["square"][index] = mean, square
        steps = state["steps"][index]
        steps = steps.reshape(-1, *[1] * (param.dim() - 1)) if steps.ndim else steps
        size = rate / (1 - first**steps)
        param[index] -= size * mean / (square / (1 - second**steps)).sqrt().add_(self._EPSILON)
