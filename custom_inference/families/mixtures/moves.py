"""Split and merge: out of local optima of a mixture by moving one of its classes to where it is needed more.

EM cannot move a class across a region that no rows come from: two classes share one of the truth's while a third holds
two of it. A move merges two classes that might well be one (the marginal likelihood says which), splits another between
two distant rows of its own, lets EM settle, and is kept where the objective gains.

Source: Ueda, Nakano, Ghahramani & Hinton, *SMEM algorithm for mixture models*, Neural Computation 12 (2000); pairs are
chosen by marginal likelihoods here (see ``common``), halves by distance.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from custom_inference.core.engine import EStep
from custom_inference.core.isolation import seed_of
from custom_inference.core.threads import HeldLibraries, map_in_threads
from custom_inference.em.loop import Run, run_em
from custom_inference.families.common.distances import distant_rows
from custom_inference.families.mixtures.common import Density, of_classes, pair_gains
from custom_inference.families.mixtures.rows import MixtureRows
from ppl_models import Model

#: EM iterations after a move, those of its halves, and those more where it is nearly as good as before.
_SETTLE, _HALVES, _LONGER = 12, 5, 50
#: What a row may lose at most, in nats, after the first of these.
_NEARLY = 2e-3
#: The chance that a pair is passed over for the next best.
_NEXT = 0.7


def split_and_merge(
    engine: Any, model: Model, prior: Any, density: Density, patience: int, generator: torch.Generator,
    rows: MixtureRows, state: Any,
) -> Any:  # fmt: skip
    """Return the state after the moves that gained something. prior: of any class, (1, F). patience: so many moves that
    gain nothing, one after the other, end it.

    Raises KeyboardInterrupt where one ended a run of EM.
    """
    best, seed = continue_em(engine, model, rows, state), int(torch.randint(2**62, (), generator=generator))
    tried, failures = 0, 0
    while failures < patience:
        # Each move has random numbers of its own, so that those tried at once find what they would one by one.
        ahead = range(tried, tried + min(HeldLibraries.count_threads(), patience - failures))
        seeds = [seed_of(seed, "move", number) for number in ahead]
        for run in map_in_threads(partial(_try_move, engine, model, prior, density, rows, best), seeds):
            if run is None:
                return best.state
            tried, failures = tried + 1, failures + 1
            if run.objective > best.objective + 1e-6 * abs(best.objective):
                best, failures = run, 0
                break  # what was tried beside it began where it did
    return best.state


def _try_move(
    engine: Any, model: Model, prior: Any, density: Density, rows: MixtureRows, best: Run, seed: int
) -> Run | None:
    """Return where a move from the best run leads; None where no class can be split."""
    share = torch.softmax(engine.log_joint(model, best.state, rows), -1)
    moved = _propose_move(best.step, share, rows, prior, density, torch.Generator().manual_seed(seed))
    if moved is None:
        return None
    run = continue_em(engine, model, rows, engine.m_step(model, best.state, moved, rows), _SETTLE)
    if run.objective > best.objective - _NEARLY * len(rows):
        run = continue_em(engine, model, rows, run.state)
    return run


def continue_em(engine: Any, model: Model, rows: MixtureRows, state: Any, iterations: int = _LONGER) -> Run:
    """Run EM from a state. Raises KeyboardInterrupt where one ends it."""
    run = run_em(engine, model, rows, state, max_iterations=iterations, tolerance=1e-5)
    if run.interrupted:
        raise KeyboardInterrupt
    return run


def _propose_move(
    step: EStep, share: Tensor, rows: MixtureRows, prior: Any, density: Density, generator: torch.Generator
) -> EStep | None:
    """Merge two classes in the statistics and split another; None where no class can be split."""
    found = step.statistics
    size = found["rows"]
    pairs = torch.triu_indices(len(size), len(size), 1)
    gain = pair_gains(*density.marginal(prior, *of_classes(found)), pairs)
    passed = int(torch.empty(()).geometric_(1 - _NEXT, generator=generator)) - 1
    one, other = pairs[:, gain.argsort(descending=True)[min(passed, len(gain) - 1)]].tolist()
    odds = size.double().clone()
    odds[[one, other]] = 0
    if float(odds.sum()) < 2:
        return None
    divided = int(torch.multinomial(odds, 1, generator=generator))
    halves = _halves(share[:, divided], rows, prior, density, generator)
    moved = {name: part.clone() for name, part in found.items()}
    for name, part in moved.items():
        part[one] += part[other]
        part[[divided, other]] = halves[name]
    return step._replace(statistics=moved)


def _halves(
    share: Tensor, rows: MixtureRows, prior: Any, density: Density, generator: torch.Generator
) -> dict[str, Tensor]:
    """Split a class with responsibilities (N,) into two: statistics after a few iterations of EM on its rows, from two
    distant ones."""
    distances, weight = density.distances(rows)
    index = distant_rows(distances, weight * share, 2, generator).to(rows.like.device)
    value = density.centres(rows, index)
    for settled in range(_HALVES):
        table = rows.temperature ** (1 - (settled + 1) / _HALVES) * rows.table(*density.natural(value))
        found = rows.statistics(torch.softmax(table, -1) * share.unsqueeze(-1))
        value = density.mode(prior, *of_classes(found))
    return found  # pyright: ignore[reportPossiblyUnbound]
