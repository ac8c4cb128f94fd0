"""What the fuzzing tests share: how many examples they try, and what may come out."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, Phase, settings

from ppl_models import DataError
from ppl_models.core.errors import CapacityError, FileFormatError, MethodError, ModelError

#: Multiplies the number of examples: 1 in everyday runs; PPL_FUZZ=100 for a long search.
SCALE = int(os.environ.get("PPL_FUZZ", "1"))

#: Everything that may be raised on purpose. PPLError itself is not: it would say nothing of the kind of fault.
OURS = (DataError, ModelError, MethodError, CapacityError, FileFormatError)


def fuzz(examples: int) -> Any:
    """So many examples, the same ones at every run; in a long search (PPL_FUZZ above 1) others each time."""
    return settings(
        max_examples=examples * SCALE,
        derandomize=SCALE == 1,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )


def says_something(error: Exception) -> bool:
    """Whether a message is one line that says what was found."""
    text = str(error)
    return len(text) > 10 and "Traceback" not in text and "\n" not in text
