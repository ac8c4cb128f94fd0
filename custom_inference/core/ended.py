"""How an inference ended."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import torch
from torch import Tensor

from ppl_models import MethodError


class Ended(StrEnum):
    """How a fit ended; ``Fit.status`` says it in a sentence, with what else there is to say."""

    #: The objective stood still.
    CONVERGED = "converged"
    #: At the most iterations, steps or seconds that its settings allow.
    LIMIT = "limit"
    #: Where the objective has no maximum, and rises without end: the values maximise nothing.
    UNBOUNDED = "unbounded"
    #: Short of a maximum, and not for want of steps: a line search found no higher point on a slope, or steps of EM
    #: lowered what they should raise.
    FAILED = "failed"
    #: All steps of a schedule were taken, which does not look whether the objective stands still.
    COMPLETE = "complete"
    #: Ctrl-C; the fit is the best state so far.
    INTERRUPTED = "interrupted"
    #: All draws were made.
    SAMPLED = "sampled"
    #: There was nothing to iterate: an exact answer, or globals that are all known.
    SOLVED = "solved"
    #: Nobody has said: a fit of one's own, or a file of an earlier version.
    UNKNOWN = "unknown"


def require_finite(method: str, **found: Mapping[str, Tensor]) -> None:
    """Raise MethodError for values of sites that are not finite, whichever method found them: no such fit has
    converged."""
    for what, values in found.items():
        for site, value in values.items():
            if value.is_floating_point() and not bool(torch.isfinite(value).all()):
                wrong = int((~torch.isfinite(value)).sum())
                left = f"{method} left the finite numbers: {wrong} of {value.numel()} {what} of '{site}'"
                hint = "data or priors of extreme size, or a step that is too large for the type of number"
                raise MethodError(f"{left} are NaN or infinite ({hint}; {value.dtype})")
