"""The choice of the chains that sampled the mode that matters, and remarks on the others.

A mode's share of the posterior is in proportion to exp(E[log p(x, q)] + H(q)), both within the mode. Where the sampler
estimates that sum (``Chain.evidence``, of the mode that a chain has ended in) chains are ranked by it: modes of low log
joint may hold most of the posterior, by the number of their states. Otherwise by the mean log joint of the draws, whose
standard error is their spread over the root of their effective number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from custom_inference.core.diagnostics import effective_size
from custom_inference.gibbs.chains import Record

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
