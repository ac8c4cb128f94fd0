"""What a fit of a topic model had found after how many passes and CPU seconds: its topics after every M step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.speed._topic_evaluator import Array
from custom_inference.families.topics.vb import TopicPosteriors


@dataclass
class Trace:
    """Topics after every M step; the clock stands still while they are copied.

    rows: documents of a whole pass. passes, seconds, topics: one entry an M step.
    """

    rows: int
    begin: float = field(default_factory=time.process_time)
    stopped: float = 0.0
    passes: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    topics: list[Array] = field(default_factory=list)

    def now(self) -> float:
        return time.process_time() - self.begin - self.stopped

    def take(self, rows: int, topic: torch.Tensor) -> None:
        at, entered = self.now(), time.process_time()
        self.passes.append((self.passes[-1] if self.passes else 0.0) + rows / self.rows)
        self.seconds.append(at)
        self.topics.append(topic.to(torch.float32).numpy(force=True).copy())
        self.stopped += time.process_time() - entered


def _topics(state: Any) -> torch.Tensor:
    """Topics, or what is proportional to them."""
    if isinstance(state, dict):
        return state["topic"]
    return state.concentration if isinstance(state, TopicPosteriors) else state.counts


@contextmanager
def recorded(trace: Trace, *kinds: type) -> Iterator[Trace]:
    """While this lasts, every M step of these steps leaves its topics in ``trace``."""
    with _patched("m_step", kinds, lambda _, result, given: trace.take(len(given[-1]), _topics(result))):
        yield trace


@contextmanager
def recorded_sweeps(trace: Trace, kind: type) -> Iterator[Trace]:
    """The same for the sweeps of a chain: its topics' means given the tokens' topics."""

    def take(chain: Any, result: Any, given: Any) -> None:
        del result, given
        trace.take(trace.rows, torch.as_tensor(chain.word_topic.T + chain.gamma))

    with _patched("sweep", (kind,), take):
        yield trace


@contextmanager
def _patched(name: str, kinds: tuple[type, ...], after: Callable[[Any, Any, Any], None]) -> Iterator[None]:
    """``after(self, result, arguments)`` follows every call of a method of these classes."""
    before = {kind: kind.__dict__.get(name) for kind in kinds}

    def wrapped(original: Callable[..., Any]) -> Callable[..., Any]:
        def method(self: Any, *arguments: Any) -> Any:
            result = original(self, *arguments)
            after(self, result, arguments)
            return result

        return method

    for kind in kinds:
        setattr(kind, name, wrapped(getattr(kind, name)))
    try:
        yield
    finally:
        for kind, original in before.items():
            if original is None:
                delattr(kind, name)
            else:
                setattr(kind, name, original)
