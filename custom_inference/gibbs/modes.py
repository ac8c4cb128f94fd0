"""Which of several chains sampled the mode that matters, and what is said of the others.

A mode's share of the posterior is in proportion to exp(E[log p(x, q)] + H(q)), both within the mode; H(q) is the
chain's own estimate (``Chain.entropy``). E[log p(x, q)] is the mean over the draws; its standard error is their spread
over the root of their effective number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from custom_inference.core.diagnostics import effective_size
from custom_inference.gibbs.chains import Record

#: Levels differ where they are further apart than so many standard errors.
_ERRORS = 3.0


@dataclass(frozen=True)
class Mode:
    """What a chain sampled. level: log of the mass, up to what all have in common; error: of its mean log joint."""

    record: Record
    level: float
    error: float
    entropy: float
    remark: str

    @classmethod
    def of(cls, record: Record) -> Mode:
        entropy, lp = record.chain.entropy(record.profile), np.array(record.lp)
        size = effective_size(lp[None])
        error = lp.std() / np.sqrt(size if np.isfinite(size) else 1.0)
        return cls(record, float(lp.mean()) + entropy, float(error), entropy, record.chain.remark(record.profile))

    def lower(self, best: Mode) -> str:
        """How much less probable the mode is than another."""
        apart, spread = best.level - self.level, _ERRORS * float(np.hypot(best.error, self.error))
        name = "log evidence" if best.entropy or self.entropy else "log p(x, q)"
        return f"{name} {apart:.1f} lower" + ("" if apart > spread else ", within the chains' spread")


def ranked(records: Sequence[Record]) -> list[Mode]:
    """The most probable first; equal ones stay in order."""
    return sorted(map(Mode.of, records), key=lambda mode: -mode.level)


def left_out(best: Mode, others: Sequence[Mode]) -> list[str]:
    """Remarks on chains in other modes than the best one, and on that one."""
    found = [f"{mode.remark or 'other components'} ({mode.lower(best)})" for mode in others]
    parts = [f"{len(found)} left out: {', '.join(found)}"] if found else []
    return [*parts, best.remark] if best.remark else parts
