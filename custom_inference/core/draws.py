"""Draws of a fit's globals and locals, jointly where it has a joint posterior: all that draws from a fit does it here.

Every site, and every draw of the locals, has a random stream of its own; the same seed gives the same draws.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from custom_inference.core.diagnostics import effective_size
from custom_inference.core.engine import EXACT_UP_TO
from custom_inference.core.isolation import seed_of
from custom_inference.core.latent_values import is_own_of_rows, latent_values, layout_of_model
from custom_inference.core.local_inference import is_feasible
from custom_inference.core.over_draws import posteriors_along
from custom_inference.core.programs.reference import count_reals, count_summed
from custom_inference.core.result import Result
from custom_inference.core.settings import require_whole
from custom_inference.core.states import Params
from ppl_models import Data, MethodError, Model

#: Draws are made so many entries at a time.
_ENTRIES = 2**24
#: Locals are inferred anew at every draw of the globals where that takes at most so many products.
_CHEAP = 2e10
#: What to use where the globals are points.
_USE = 'NUTS(), CollapsedGibbs(), VariationalEM(guide="vb"), SVI(guide="normal") or SVI(globals_="normal")'


def posterior_draws(
    fit: Result, num_draws: int = 100, *, seed: int = 0, locals_: bool = True, independent: bool = True
) -> dict[str, Tensor]:
    """Draws from the posterior of a fit: site -> (S, ...), of the globals and, with ``locals_``, of the local site.

    From ``Fit.draws`` (samplers, and guides with normals), evenly spaced over all chains: ``num_draws`` of them, or
    with ``independent`` no more than the smallest effective sample size over all entries of the globals and the log
    joint, so that those that are left are nearly independent. Otherwise from ``Fit.global_posterior`` (variational
    Bayes, Dirichlet guides), always ``num_draws``.

    The locals, as the program holds them: those of the same draws, where the fit has them; else one draw from their
    exact posterior given each draw of the globals, where that is feasible; else, and beside ``Fit.global_posterior``,
    from the fit's posterior of them, independent of the globals.

    Raises MethodError where the fit gives points of some of the globals, with the methods that give more.
    """
    require_fit(fit)
    require_whole("num_draws", num_draws)
    points = fit.point_estimates
    if points and not has_draws(fit):
        raise MethodError(
            f"{fit.method_name} gives points of {', '.join(points)}, not a posterior to draw from; methods that give "
            f"one, each for some of the models: {_USE}"
        )
    number = min(num_draws, num_independent(fit, independent)) if has_draws(fit) else num_draws
    source = PosteriorDraws(fit, number, seed)
    each = [source.at(*pair) for pair in source] if locals_ else list(source.globals_alone())
    return {name: torch.stack([one[name] for one in each]) for name in each[0]}


def has_global_posterior(method: Any, model: Model) -> bool:
    """Whether a method's fits of a model hold draws, or a posterior, of its globals: as its hook of this name says."""
    said = getattr(method, "has_global_posterior", None)
    return bool(said(model)) if said is not None else not hasattr(method, "local_posterior")


def num_independent(fit: Result, independent: bool = True) -> int:
    """All, or the smallest effective sample size of the globals' entries and log p; of short chains one draw each."""
    assert fit.draws is not None
    chains, length = chains_and_draws(fit)
    if not independent:
        return chains * length
    watched = [fit.draws[site].detach().double().cpu().reshape(chains, length, -1) for site in fit.model.unknown_sites]
    lp = fit.sample_stats.get("lp")
    if lp is not None and tuple(lp.shape) == (chains, length):
        watched.append(lp.double().cpu().unsqueeze(-1))
    sizes = np.concatenate([np.atleast_1d(effective_size(one.numpy())) for one in watched])
    sizes = sizes[np.isfinite(sizes)]
    return min(chains * length, max(1, int(sizes.min()))) if len(sizes) else chains


def require_fit(given: Any) -> None:
    """Raises MethodError for what is no fit."""
    if not isinstance(given, Result):
        raise MethodError(f"{given!r} is no fit; expected what a method's fit() gives")


@dataclass(frozen=True)
class PosteriorDraws:
    """Pairs (globals, local value) from a fit, made as they are iterated over; the same seed gives the same ones.

    num_rows: of the locals only those of so many rows, the first; None for all.
    source: in words, where the two come from. markov: whether the globals are states of a chain, in their order.
    ``local`` is the value that the program's local site takes: one-hot rows, codes, memberships; of block models (N,);
    of a program without engines the codes of all its latents, which :meth:`at` makes the program's values of.
    """

    fit: Result
    num_samples: int
    seed: int = 0
    num_rows: int | None = None

    def __post_init__(self) -> None:
        require_fit(self.fit)
        require_whole("num_samples", self.num_samples)

    @property
    def markov(self) -> bool:
        return has_draws(self.fit) and bool(self.fit.sample_stats)

    @property
    def source(self) -> str:
        fit, approximate = self.fit, bool(self.fit.global_posterior)
        if has_draws(fit):
            total = math.prod(chains_and_draws(fit))
            given = "from their posterior given each draw" if self.infers_locals else "drawn apart from the globals"
            how = f"{min(self.num_samples, total)} of {total} draws by {fit.method_name}"
            return f"globals: {how}; locals: {'drawn with the globals' if self._joint else given}"
        family = "their approximate posterior" if approximate else "their posterior at these globals"
        locals_ = "point estimates" if fit.posterior.is_point else family
        if not approximate:
            return f"globals: plugged in, a point estimate by {fit.method_name}; locals: {locals_}"
        fixed = ", ".join(fit.point_estimates)
        beside = f" ({fixed}: a point estimate)" if fixed else ""
        return f"globals: the approximate posterior by {fit.method_name}{beside}; locals: {locals_}"

    @property
    def _joint(self) -> bool:
        return self.fit.draws is not None and all(site in self.fit.draws for site in self._sites)

    @property
    def _sites(self) -> tuple[str, ...]:
        """The latents that draws of locals consist of."""
        model = self.fit.model
        return model.row_latents if is_own_of_rows(model) else (model.local_site,)

    def at(self, params: Params, local: Tensor) -> Params:
        """The values of a draw as the program holds them: the globals, and every latent of the rows."""
        if not is_own_of_rows(self.fit.model):
            return {**params, self.fit.model.local_site: local}
        return {**params, **latent_values(self.fit.model, self.fit.globals, self.fit.data, local)}

    @property
    def infers_locals(self) -> bool:
        """Whether the exact posterior of the locals at every draw of the globals is at hand and cheap."""
        fit = self.fit
        if not is_feasible(fit.model, fit.data):
            return False
        entries = fit.data.x.values().numel() if fit.data.is_sparse else fit.data.x.numel()
        part = 1.0 if self._rows is None else min(1.0, self._rows / max(1, len(fit.data)))
        return self.num_samples * entries * part * num_values(fit.model, fit.data) <= _CHEAP

    @property
    def _rows(self) -> int | None:
        """How many rows the locals are inferred of: a graph's nodes depend on each other."""
        return self.num_rows if self.fit.model.rows_are_independent else None

    def __iter__(self) -> Iterator[tuple[Params, Tensor]]:
        fit, site = self.fit, self.fit.model.local_site
        with torch.no_grad():
            if has_draws(fit) and self._joint:
                for params in self._of_chain((*fit.model.global_sites, *self._sites)):
                    drawn = {site: params.pop(site) for site in self._sites}
                    local = drawn[site]
                    if is_own_of_rows(fit.model):
                        local = layout_of_model(fit.model, fit.globals, fit.data).encode(drawn, fit.data.x)
                    yield params, local[: self.num_rows]
            elif has_draws(fit) and self.infers_locals:
                data = fit.data if self._rows is None else fit.data.rows(slice(0, self._rows))
                every, again = itertools.tee(self.globals_alone())
                along = posteriors_along(fit.model, again, data, seed=fit.seed)
                for number, (params, posterior) in enumerate(zip(every, along, strict=True)):
                    drawn = posterior.sample(1, seed=self.seed_of(site, number))[0]
                    yield (
                        params,
                        (drawn if is_own_of_rows(fit.model) else fit.model.local_value(drawn))[: self.num_rows],
                    )
            else:
                yield from zip(self.globals_alone(), self.locals_apart(), strict=True)

    def __len__(self) -> int:
        return self.num_samples

    def globals_alone(self) -> Iterator[Params]:
        """Yield the draws of the globals alone, without locals."""
        sites = self.fit.model.global_sites
        with torch.no_grad():
            if has_draws(self.fit):
                yield from self._of_chain(sites)
            else:
                for values in zip(*(self.of_site(site) for site in sites), strict=True):
                    yield dict(zip(sites, values, strict=True))

    def of_site(self, site: str) -> Iterator[Tensor]:
        """Draws of a global from its approximate posterior; its point estimate where it has none."""
        posterior = self.fit.global_posterior.get(site)
        if posterior is None:
            yield from itertools.repeat(self.fit.globals[site], self.num_samples)
            return
        stream = "drawn together" if posterior.drawn_together else site
        for start, count in self._chunks(math.prod(posterior.noise_shape)):
            yield from posterior.sample(count, seed=self.seed_of(stream, start))

    def locals_apart(self) -> Iterator[Tensor]:
        """Draws of the locals from the fit's posterior of them, whatever the globals."""
        posterior = self.fit.posterior
        if self.num_rows is not None:
            posterior = posterior.rows(slice(0, self.num_rows))
        for start, count in self._chunks(posterior.mean.numel()):
            drawn = posterior.sample(count, seed=self.seed_of(self.fit.model.local_site, start))
            yield from drawn if is_own_of_rows(self.fit.model) else self.fit.model.local_value(drawn)

    def seed_of(self, name: str, number: int = 0) -> int:
        """A seed for one of the things that are drawn."""
        return seed_of(self.seed, name, number)

    def _of_chain(self, sites: Sequence[str]) -> Iterator[Params]:
        """Evenly over all chains, in order; again and again where there are too few."""
        assert self.fit.draws is not None
        chains, length = chains_and_draws(self.fit)
        for number in range(self.num_samples):
            chain, draw = divmod(number * chains * length // self.num_samples, length)
            known = {name: self.fit.params[name] for name in sites if name not in self.fit.draws}
            drawn = {name: self.fit.draws[name][chain, draw] for name in sites if name not in known}
            yield {name: known[name] if name in known else drawn[name] for name in sites}

    def _chunks(self, entries: int) -> Iterator[tuple[int, int]]:
        """(first draw, number of draws) of what is drawn at once, of so many entries a draw."""
        size = max(1, min(self.num_samples, _ENTRIES // max(1, entries)))
        for start in range(0, self.num_samples, size):
            yield start, min(size, self.num_samples - start)


def has_draws(fit: Result) -> bool:
    """Whether the fit holds draws of all its globals but the known ones."""
    return bool(fit.draws) and all(site in fit.draws for site in fit.model.unknown_sites)


def draw_globals(fit: Result, most: int = 100) -> Iterator[Params]:
    """Give so many draws of the globals, evenly spaced where the fit has them, or the point: what predictions are
    averaged over."""
    number = 1
    if has_draws(fit):
        number = min(most, math.prod(chains_and_draws(fit)))
    elif fit.global_posterior:
        number = most
    for params in PosteriorDraws(fit, number, fit.seed).globals_alone():
        yield {site: value.double().cpu() for site, value in params.items()}


def chains_and_draws(fit: Result) -> tuple[int, int]:
    """How many chains there are, and how many draws of each."""
    assert fit.draws is not None
    chains, length = next(iter(fit.draws.values())).shape[:2]
    return int(chains), int(length)


def num_values(model: Model, data: Data) -> float:
    """How many values the exact posterior of a local is a sum over, about: of graphs and densities a large number."""
    if is_own_of_rows(model):
        return count_summed(model, data) * 25.0 ** min(count_reals(model), 3)
    if model.code_bits is not None:
        return 2.0**model.code_bits
    return 2.0**EXACT_UP_TO if not model.rows_are_independent or model.has_continuous_locals else model.local_shape[0]
