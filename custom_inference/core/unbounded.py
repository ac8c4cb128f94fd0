"""What tells an objective that has no maximum from one whose climb ended: it goes on rising, by as much for every
e-fold, and what a fit that went there says."""

from __future__ import annotations

from collections.abc import Callable

from ppl_models.core.errors import about, list_some, warn_of_data

#: Places on the way ahead, in units of unconstrained coordinates (e-folds of scales).
AHEAD = (0.0, 3.0, 6.0, 9.0)
#: The objective rises if it gains so much a unit, and steadily if two gains differ by no more than a part ``_STEADY``.
RATE, _STEADY = 0.01, 0.1


def rises_steadily(level: Callable[[float], float]) -> bool:
    """Say whether an objective, given at the places of a way, rises without end on it. Places are visited in their
    order, up to the first without a gain."""
    levels = [level(AHEAD[0])]
    gains: list[float] = []
    for place in AHEAD[1:]:
        levels.append(level(place))
        gains.append(levels[-1] - levels[-2])
        if not gains[-1] > RATE * AHEAD[1]:
            return False
    return abs(gains[-1] - gains[-2]) <= _STEADY * gains[-1]


def warn_of_unbounded(sites: tuple[str, ...]) -> str:
    """Warn that points of these sites maximise nothing, and return what a fit's status says of it."""
    named = list_some(sites, show=repr)
    found = f"the log joint has no maximum: it rises without end along {named}, and the values here maximise nothing"
    cure = "an integral over them (method='svi_normal', NUTS), or a prior bounded away from the edge"
    with about(sites[0]):
        warn_of_data(f"{found}; expected {cure}")
    return (
        f"; the log joint has no maximum along {named}: integrate over them, or bound their priors away from the edge"
    )
