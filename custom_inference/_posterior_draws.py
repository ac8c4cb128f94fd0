"""Draws of globals and locals, jointly where a fit has a joint posterior: what checks of models are made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from custom_inference.engines import engines_of, is_feasible, solve_local
from custom_inference.posterior import PointPosterior
from custom_inference.steps._protocol import EXACT_UP_TO
from ppl_models import MethodError, Model

if TYPE_CHECKING:
    from custom_inference.fit import Fit

Params = dict[str, Tensor]

#: Locals are drawn so many entries at a time.
_ENTRIES = 2**24
#: Locals are inferred anew at every draw of the globals where that takes at most so many products.
_CHEAP = 2e10


@dataclass(frozen=True)
class PosteriorDraws:
    """Pairs (globals, local value) from a fit, made as they are iterated over; the same seed gives the same ones.

    source: in words, where the two come from. markov: whether the globals are states of a chain, in their order.
    ``local`` is the value that the program's local site takes: one-hot rows, codes, memberships; of block models (N,).
    """

    fit: Fit
    num_samples: int
    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.num_samples, bool) or not isinstance(self.num_samples, int) or self.num_samples < 1:
            raise MethodError(f"num_samples = {self.num_samples!r}, expected a whole number of at least 1")

    @property
    def markov(self) -> bool:
        return self._has_draws and bool(self.fit.sample_stats)

    @property
    def source(self) -> str:
        fit = self.fit
        if self._has_draws:
            total = int(np.prod(_leading(fit)))
            how = f"{min(self.num_samples, total)} of {total} draws by {fit.method}"
            return f"globals: {how}; locals: {self._locals_source}"
        points = isinstance(fit.posterior, PointPosterior)
        family = "point estimates" if points else "their posterior at these globals"
        if not fit.global_posterior:
            return f"globals: plugged in, a point estimate by {fit.method}; locals: {family}"
        fixed = [site for site in fit.globals if site not in fit.global_posterior]
        beside = f" ({', '.join(fixed)}: a point estimate)" if fixed else ""
        family = "point estimates" if points else "their approximate posterior"
        return f"globals: the approximate posterior by {fit.method}{beside}; locals: {family}"

    @property
    def _has_draws(self) -> bool:
        draws = self.fit.draws
        return draws is not None and all(site in draws for site in self.fit.model.global_sites)

    @property
    def _locals_source(self) -> str:
        if self._joint:
            return "drawn with the globals"
        return "from their posterior given each draw" if self._inferred else "drawn apart from the globals"

    @property
    def _joint(self) -> bool:
        return self.fit.draws is not None and self.fit.model.local_site in self.fit.draws

    @property
    def _inferred(self) -> bool:
        """Whether the exact posterior of the locals at every draw of the globals is at hand and cheap."""
        fit = self.fit
        if engines_of(fit.model) and not is_feasible(fit.model):
            return False
        entries = fit.data.x.values().numel() if fit.data.is_sparse else fit.data.x.numel()
        return self.num_samples * entries * _num_values(fit.model) <= _CHEAP

    def __iter__(self) -> Iterator[tuple[Params, Tensor]]:
        with torch.no_grad():
            yield from self._of_draws() if self._has_draws else self._of_posterior()

    def __len__(self) -> int:
        return self.num_samples

    def globals_alone(self) -> Iterator[Params]:
        """The same draws of the globals, without locals."""
        with torch.no_grad():
            yield from self._of_chain() if self._has_draws else self._of_globals()

    def _of_chain(self) -> Iterator[Params]:
        assert self.fit.draws is not None
        for number in range(self.num_samples):
            chain, draw = self._place(number)
            yield {name: self.fit.draws[name][chain, draw] for name in self.fit.model.global_sites}

    def _place(self, number: int) -> tuple[int, int]:
        """The chain and the draw: evenly over all chains, in order; again and again where there are too few."""
        chains, length = _leading(self.fit)
        return divmod(number * chains * length // self.num_samples, length)

    def _of_globals(self) -> Iterator[Params]:
        """Of an approximate posterior; sites without one stay at their point estimates."""
        fit = self.fit
        largest = max((fit.globals[site].numel() for site in fit.global_posterior), default=1)
        size = max(1, min(self.num_samples, _ENTRIES // largest))
        for start in range(0, self.num_samples, size):
            count = min(size, self.num_samples - start)
            # Seeds of their own: two sites drawn from one random state would depend on each other.
            drawn = {
                site: posterior.sample(count, seed=self.seed_of(site, start))
                for site, posterior in fit.global_posterior.items()
            }
            for number in range(count):
                yield {site: drawn[site][number] if site in drawn else value for site, value in fit.globals.items()}

    def _of_draws(self) -> Iterator[tuple[Params, Tensor]]:
        fit, site = self.fit, self.fit.model.local_site
        assert fit.draws is not None
        apart = None if self._joint or self._inferred else self._locals()
        for number, params in enumerate(self._of_chain()):
            if self._joint:
                local = fit.draws[site][self._place(number)]
            elif apart is None:
                posterior = solve_local(fit.model, params, fit.data, seed=fit.seed).posterior
                local = fit.model.local_value(posterior.sample(1, seed=self.seed_of("local", number))[0])
            else:
                local = next(apart)
            yield params, local

    def _of_posterior(self) -> Iterator[tuple[Params, Tensor]]:
        yield from zip(self._of_globals(), self._locals(), strict=True)

    def _locals(self) -> Iterator[Tensor]:
        posterior = self.fit.posterior
        size = max(1, min(self.num_samples, _ENTRIES // max(1, posterior.mean.numel())))
        for start in range(0, self.num_samples, size):
            drawn = posterior.sample(min(size, self.num_samples - start), seed=self.seed_of("local", start))
            yield from self.fit.model.local_value(drawn)

    def seed_of(self, name: str, number: int) -> int:
        """A seed for one of the things that are drawn."""
        key = [self.seed % 2**64, *name.encode(), number]
        return int(np.random.SeedSequence(key).generate_state(1)[0])


def _leading(fit: Fit) -> tuple[int, int]:
    assert fit.draws is not None
    chains, length = fit.draws[fit.model.global_sites[0]].shape[:2]
    return int(chains), int(length)


def _num_values(model: Model) -> float:
    """How many values the exact posterior of a local is a sum over, about: of graphs and densities a large number."""
    if model.code_bits is not None:
        return 2.0**model.code_bits
    return 2.0**EXACT_UP_TO if model.is_graph or model.has_continuous_locals else model.local_shape[0]
