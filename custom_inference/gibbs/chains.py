"""Runs the chains of a sampler in threads and collects what their draws say."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

import torch
from torch import Tensor

from custom_inference.core.align import Alignment, match_components
from custom_inference.core.progress import Progress
from custom_inference.gibbs.protocol import Chain, Params, Sampler
from ppl_models import Model

#: Seconds between looks at the chains' progress.
_LOOK = 0.1


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How long each chain runs, and what of it is kept.

    keep: the sites whose draws are kept. local_every: of every how many draws the locals are.
    learn_every: sweeps between steps of the concentrations during the warm-up; 0 leaves them as they are.
    """

    warmup: int
    num_samples: int
    thin: int
    learn_every: int
    keep: tuple[str, ...]
    local_every: int
    indicators: bool
    align: bool


@dataclass
class Record:
    """What is known of one chain.

    trace: log p(x, q) every ``thin`` sweeps of the warm-up, then of every draw: lp. count: draws so far.
    mean: the running mean of the conditional means. profile: that of what components are matched by.
    draws, locals, indicators: what is kept of them.
    """

    chain: Chain
    sweeps: int = 0
    count: int = 0
    trace: list[float] = field(default_factory=list)
    lp: list[float] = field(default_factory=list)
    mean: Params = field(default_factory=dict)
    profile: Tensor = field(default_factory=lambda: torch.zeros(0))
    draws: dict[str, list[Tensor]] = field(default_factory=dict)
    locals: list[Tensor] = field(default_factory=list)
    indicators: list[Tensor] = field(default_factory=list)


def run_chain(record: Record, model: Model, sampler: Sampler, plan: Plan, stop: Callable[[], bool]) -> None:
    """Warm up, then collect draws, until the plan is done or ``stop`` says so."""
    chain = record.chain
    for done in range(1, plan.warmup + 1):
        if stop():
            return
        chain.sweep()
        record.sweeps += 1
        # Before the chain has found its topics, what its counts say of the concentrations is worth nothing.
        if plan.learn_every and done > plan.warmup // 4 and done % plan.learn_every == 0:
            chain.learn()
        if done % plan.thin == 0:
            record.trace.append(chain.log_joint())
    for _ in range(plan.num_samples):
        for _ in range(plan.thin):
            if stop():
                return
            chain.sweep()
            record.sweeps += 1
        collect(record, model, sampler, plan)


def collect(record: Record, model: Model, sampler: Sampler, plan: Plan) -> None:
    """Add the chain's present state to its record, in the labels of the mean so far."""
    chain, means = record.chain, record.chain.means()
    own = chain.profile()
    profile = means[model.component_site] if own is None else own
    same = Alignment(list(range(len(profile))), torch.ones(len(profile)))
    alignment = match_components(record.profile, profile) if plan.align and record.count else same
    means, order = alignment.apply(means, model.dims), torch.tensor(alignment.order)
    record.lp.append(chain.log_joint())
    record.profile = profile if not record.count else _running(record.profile, profile[order], record.count)
    for name, value in means.items():
        record.mean[name] = _running(record.mean.get(name, torch.zeros_like(value)), value, record.count)
    if plan.keep:
        drawn = {name: value for name, value in chain.draw().items() if name in plan.keep}
        for name, value in alignment.apply(drawn, model.dims).items():
            record.draws.setdefault(name, []).append(value)
    if record.count % plan.local_every == 0:
        record.locals.append(sampler.relabelled(chain.locals(), order))
    if plan.indicators:
        record.indicators.append(_renamed(chain.indicators(), order))
    record.count += 1


def _running(before: Tensor, value: Tensor, count: int) -> Tensor:
    """The mean of so many values and one more."""
    return before + (value - before) / (count + 1)


def _renamed(indicators: Tensor, order: Tensor) -> Tensor:
    """Components by their places in ``order``; negative numbers (no component) stay."""
    return torch.where(indicators < 0, indicators, torch.argsort(order)[indicators])


def relabel(record: Record, model: Model, sampler: Sampler, alignment: Alignment) -> None:
    """Reorder the components of everything that was collected."""
    order = torch.tensor(alignment.order)
    record.mean, record.profile = alignment.apply(record.mean, model.dims), record.profile[order]
    stacked = {name: torch.stack(values) for name, values in record.draws.items()}
    record.draws = {name: list(value) for name, value in alignment.apply(stacked, model.dims).items()}
    record.locals = [sampler.relabelled(one, order) for one in record.locals]
    record.indicators = [_renamed(one, order) for one in record.indicators]


def run_chains(
    chains: list[Chain], model: Model, sampler: Sampler, plan: Plan, *, threads: int, label: str, progress: bool
) -> tuple[list[Record], bool]:
    """The records of all chains, and whether Ctrl-C cut them short: they then hold what there was."""
    records = [Record(chain) for chain in chains]
    ended = threading.Event()
    total = len(chains) * (plan.warmup + plan.num_samples * plan.thin)
    interrupted = False
    running: list[Future[None]] = []
    with ThreadPoolExecutor(threads) as pool, Progress(total, label, enabled=progress) as bar:
        try:
            # Inside: a chain that was submitted must hear of an interrupt that comes before the next one is.
            for record in records:
                running.append(pool.submit(run_chain, record, model, sampler, plan, ended.is_set))
            _follow(running, records, bar)
        except KeyboardInterrupt:
            interrupted = True
        finally:
            ended.set()
            wait(running)
    for one in running:
        one.result()
    return records, interrupted


def _follow(running: list[Future[None]], records: list[Record], bar: Progress) -> None:
    shown = 0
    while wait(running, timeout=_LOOK).not_done:
        done = sum(record.sweeps for record in records)
        bar.advance(count=done - shown)
        shown = done
        if any(one.done() and one.exception() for one in running):
            return
