"""Runs the chains of a sampler in threads and collects what their draws say.

They are ranked by the mode that each sampled. A mode's share of the posterior is in proportion to exp(E[log p(x, q)] +
H(q)), both within the mode. Where the sampler estimates that sum (``Chain.evidence``, of the mode that a chain has
ended in) chains are ranked by it: modes of low log joint may hold most of the posterior, by the number of their states.
Otherwise by the mean log joint of the draws, whose standard error is their spread over the root of their effective
number.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from custom_inference.core.align import Alignment, match_components
from custom_inference.core.diagnostics import effective_size
from custom_inference.core.progress import Progress
from custom_inference.core.threads import HeldLibraries, make_pool
from custom_inference.gibbs.protocol import Chain, Learn, Params, Sampler, may_learn
from ppl_models import Model

#: Seconds between looks at the chains' progress.
_LOOK = 0.1
#: Chains found the same components where every pair of matched ones is as similar as this (cosine).
SAME = 0.95
#: Sweeps between steps of the concentrations during the warm-up.
_LEARN = 5


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How long chains run, and what of them is kept: those of ``CollapsedGibbs``, which explains them."""

    num_samples: int = 50
    warmup: int = 50
    thin: int = 2
    chains: int = 4
    learn: Learn = False
    search: bool = True
    align: bool = True
    indicators: bool = False
    threads: int | None = None

    @property
    def sweeps(self) -> int:
        """The number of sweeps of each chain."""
        return self.warmup + self.num_samples * self.thin


@dataclass
class Record:
    """One chain, and what is known of it.

    sets: the components that may change places in a draw (``Sampler.exchangeable``), of the model with the
        concentrations that the chain has learned.
    keep: the sites whose draws are kept, of every ``draw_every``. local_every: of every how many draws the locals are.
    watched: what the chain watches, of every draw.
    learned: whether the concentrations have taken a step.
    trace: log p(x, q) every ``thin`` sweeps of the warm-up, then of every draw: lp. count: draws so far.
    mean: the running mean of the conditional means. profile: that of what components are matched by; spread: the sum of
        the squares of its differences from that.
    draws, locals, indicators: what is kept of them.
    """

    chain: Chain
    settings: Settings
    model: Model
    sampler: Sampler
    keep: tuple[str, ...]
    local_every: int
    draw_every: int = 1
    sweeps: int = 0
    count: int = 0
    trace: list[float] = field(default_factory=list)
    lp: list[float] = field(default_factory=list)
    mean: Params = field(default_factory=dict)
    profile: Tensor = field(default_factory=lambda: torch.zeros(0))
    spread: Tensor = field(default_factory=lambda: torch.zeros(0))
    draws: dict[str, list[Tensor]] = field(default_factory=dict)
    locals: list[Tensor] = field(default_factory=list)
    indicators: list[Tensor] = field(default_factory=list)
    watched: list[dict[str, float]] = field(default_factory=list)
    sets: list[list[int]] = field(default_factory=list)
    learned: bool = False

    def run(self, stop: Callable[[], bool]) -> None:
        """Warm up, then collect draws, until all are there or ``stop`` says so."""
        settings, model = self.settings, self.model
        while self.sweeps < settings.sweeps and not stop():
            self.chain.sweep()
            self.sweeps += 1
            drawing = self.sweeps > settings.warmup
            # Before the chain has found its topics, what its counts say of the concentrations is worth nothing.
            if settings.learn and settings.warmup // 4 < self.sweeps <= settings.warmup and self.sweeps % _LEARN == 0:
                both = (may_learn(settings.learn, model, site) for site in (model.local_site, model.component_site))
                self.chain.learn(**dict(zip(("latents", "components"), both, strict=True)))
                self.learned = True
            if drawing and (self.sweeps - settings.warmup) % settings.thin == 0:
                self.collect()
            elif not drawing and self.sweeps % settings.thin == 0:
                self.trace.append(self.chain.log_joint())

    def list_learned(self) -> dict[str, Any]:
        """The priors that the chain has learned, by site."""
        before = self.model.chosen_priors
        found = self.chain.with_fitted_priors(self.model).chosen_priors if self.learned else {}
        own = [site for site, prior in found.items() if prior is not before.get(site)]
        return {site: found[site] for site in own if may_learn(self.settings.learn, self.model, site)}

    def collect(self) -> None:
        """Add the chain's present state, in the labels of the mean so far."""
        if not self.sampler.matched:
            self._collect_as_they_are()
            return
        chain, dims, means, own = self.chain, self.model.dims, self.chain.means(), self.chain.profile()
        profile = means[self.model.component_site] if own is None else own
        if not self.count:
            self._begin(profile)
        alignment = Alignment(list(range(len(profile))), torch.ones(len(profile)))
        if self.sets and self.count:
            alignment = match_components(self.profile, profile, within=self.sets, by_distance=True)
        order = torch.tensor(alignment.order)
        self.lp.append(chain.log_joint())
        self.watched.append(chain.watch())
        before, self.profile = self.profile, _running(self.profile, profile[order], self.count)
        self.spread += (profile[order] - before) * (profile[order] - self.profile)
        for name, value in alignment.apply(means, dims).items():
            self.mean[name] = _running(self.mean.get(name, torch.zeros_like(value)), value, self.count)
        keep = self.keep if self.count % self.draw_every == 0 else ()
        drawn = {name: value for name, value in chain.draw().items() if name in keep} if keep else {}
        for name, value in alignment.apply(drawn, dims).items():
            self.draws.setdefault(name, []).append(value)
        if self.count % self.local_every == 0:
            self.locals.append(self.sampler.relabel(chain.locals(), order))
        if self.settings.indicators:
            self.indicators.append(_rename_indicators(chain.indicators(), order))
        self.count += 1

    def _begin(self, profile: Tensor) -> None:
        settings = self.settings
        if settings.align:
            self.sets = self.sampler.exchangeable(self.model.with_priors(**self.list_learned()))
        self.profile, self.spread = (torch.zeros_like(profile) for _ in range(2))

    def _collect_as_they_are(self) -> None:
        chain, drawing = self.chain, self.count % self.draw_every == 0
        for name, value in chain.means().items():
            self.mean[name] = _running(self.mean[name], value, self.count) if self.count else value.clone()
        self.lp.append(chain.log_joint())
        self.watched.append(chain.watch())
        for name, value in chain.draw().items() if drawing else ():
            self.draws.setdefault(name, []).append(value)
        if self.count % self.local_every == 0:
            self.locals.append(chain.locals())
        self.count += 1

    def relabel(self, alignment: Alignment) -> None:
        """Reorder the components of everything that was collected."""
        order, dims = torch.tensor(alignment.order), self.model.dims
        self.mean = alignment.apply(self.mean, dims)
        self.profile, self.spread = self.profile[order], self.spread[order]
        stacked = {name: torch.stack(values) for name, values in self.draws.items()}
        self.draws = {name: list(value) for name, value in alignment.apply(stacked, dims).items()}
        self.locals = [self.sampler.relabel(one, order) for one in self.locals]
        self.indicators = [_rename_indicators(one, order) for one in self.indicators]

    def agrees(self, other: Record, sets: Sequence[Sequence[int]]) -> bool:
        """Whether the chain has found the components of another, with which it has been matched within these sets.

        They are as similar as ``SAME``, or, of components that nothing can be taken for, no further from each other
        than draws are from their mean: few draws of a posterior that is wide tell no modes from each other.
        """
        similar = torch.cosine_similarity(self.profile, other.profile, dim=-1) > SAME
        named = torch.ones_like(similar)
        named[[component for one in sets for component in one]] = False
        apart = (self.profile - other.profile).square().sum(-1)
        within = (self.spread / self.count + other.spread / other.count).sum(-1) / 2
        return bool((similar | (named & (apart <= within))).all())


def _running(before: Tensor, value: Tensor, count: int) -> Tensor:
    """The mean of so many values and one more."""
    return before + (value - before) / (count + 1)


def _rename_indicators(indicators: Tensor, order: Tensor) -> Tensor:
    """Components by their places in ``order``; negative numbers (no component) stay."""
    return torch.where(indicators < 0, indicators, torch.argsort(order)[indicators])


def run_chains(records: list[Record], *, label: str, progress: bool) -> bool:
    """Runs all chains; whether Ctrl-C cut them short: the records then hold what there was."""
    settings, ended = records[0].settings, threading.Event()
    threads = min(settings.threads or HeldLibraries.count_threads(), len(records))
    interrupted = False
    running: list[Future[None]] = []
    with make_pool(threads) as pool, Progress(len(records) * settings.sweeps, label, enabled=progress) as bar:
        try:
            # Inside: a chain that was submitted must hear of an interrupt that comes before the next one is.
            for record in records:
                running.append(pool.submit(record.run, ended.is_set))
            _follow(running, records, bar)
        except KeyboardInterrupt:
            interrupted = True
        finally:
            ended.set()
            wait(running)
    for one in running:
        one.result()
    return interrupted


def _follow(running: list[Future[None]], records: list[Record], bar: Progress) -> None:
    shown = 0
    while wait(running, timeout=_LOOK).not_done:
        done = sum(record.sweeps for record in records)
        bar.advance(count=done - shown)
        shown = done
        if any(one.done() and one.exception() for one in running):
            return


#: Means of log joints differ where they are further apart than so many standard errors.
_ERRORS = 3.0
#: Estimates of evidence differ where they are further apart than this.
_NATS = 5.0


@dataclass(frozen=True, eq=False)
class Mode:
    """The mode that a chain sampled. level: the estimate, or the mean log joint; error: of the latter."""

    record: Record
    level: float
    error: float
    estimated: bool
    remark: str

    @classmethod
    def of(cls, record: Record) -> Mode:
        lp, evidence = np.array(record.lp), record.chain.evidence()
        size = effective_size(lp[None])
        error = float(lp.std() / np.sqrt(size if np.isfinite(size) else 1.0))
        level = float(lp.mean()) if evidence is None else evidence
        return cls(record, level, error, evidence is not None, record.chain.remark())

    def below(self, best: Mode) -> bool:
        """Tell whether the mode is less probable than another, by more than the estimates' errors."""
        spread = _NATS if self.estimated else _ERRORS * float(np.hypot(best.error, self.error))
        return best.level - self.level > spread

    def lower(self, best: Mode) -> str:
        """How much less probable the mode is than another."""
        apart, below = best.level - self.level, self.below(best)
        if self.estimated:
            return f"log evidence {apart:.1f} lower" if below else "about as probable"
        return f"log p(x, q) {apart:.1f} lower" + ("" if below else ", within the chains' spread")


def rank_modes(records: Sequence[Record]) -> list[Mode]:
    """The most probable first; of modes that are as probable the one whose draws have settled best."""
    modes = sorted(map(Mode.of, records), key=lambda mode: -mode.level)  # stable: equal ones stay in order
    top = [mode for mode in modes if mode.estimated and mode.level > modes[0].level - _NATS]
    return [*sorted(top, key=lambda mode: mode.error), *modes[len(top) :]]


def say_lower(modes: Sequence[Mode]) -> str:
    """Remark on chains that found the components of the first but are less probable, or nothing."""
    below = [mode for mode in modes if mode.below(modes[0])]
    if not below:
        return ""
    return f" ({len(below)} of them less probable: {min(below, key=lambda one: one.level).lower(modes[0])})"


def left_out(best: Mode, others: Sequence[Mode]) -> list[str]:
    """Remarks on chains in other modes than the best one, and on that one."""
    found = [f"{mode.remark or 'other components'} ({mode.lower(best)})" for mode in others]
    parts = [f"{len(found)} left out: {', '.join(found)}"] if found else []
    return [*parts, best.remark] if best.remark else parts
