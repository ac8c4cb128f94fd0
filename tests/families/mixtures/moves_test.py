"""Moves out of local optima: a class that is split in two beside one that holds two of the truth's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from custom_inference import Search, fit
from custom_inference.families.mixtures import moves
from custom_inference.families.mixtures.densities import density_of
from custom_inference.families.mixtures.engines import MixtureExact, MixtureVB
from ppl_models import MixtureOfBernoullis, MixtureOfMultinomials

SIZE, FEATURES, ROWS = 5, 12, 400


def planted(kind: str):
    """Model, data, true responsibilities; of Bernoullis a tenth is missing."""
    rng = np.random.default_rng(3)
    row, own = rng.integers(SIZE, size=ROWS), 0.1 + 0.8 * (rng.random((SIZE, FEATURES)) < 0.5)
    if kind == "counts":
        x = np.stack([rng.multinomial(25, own[k] / own[k].sum()) for k in row])
        return MixtureOfMultinomials(num_topics=SIZE, vocabulary_size=FEATURES), x, torch.eye(SIZE)[row]
    x = (rng.random((ROWS, FEATURES)) < own[row]).astype(float)
    x[rng.random(x.shape) < 0.1] = np.nan
    return MixtureOfBernoullis(num_components=SIZE, num_features=FEATURES), x, torch.eye(SIZE)[row]


def trapped(engine, model, rows, share):
    """A state in which one class holds two of the truth's, and another's rows are halved; and one at the truth."""
    alternate = (torch.arange(len(share)) % 2).to(share)
    bad = torch.stack(
        [share[:, 0] + share[:, 1], share[:, 2] * alternate, share[:, 2] * (1 - alternate), *share.T[3:]], 1
    )
    exact, found = MixtureExact(), []
    for part in (bad, share):
        step = exact.e_step(model, exact.initial(model, rows, torch.Generator().manual_seed(0)), rows)
        statistics = rows.statistics(part)
        found.append(
            moves.continue_em(
                engine, model, rows, engine.m_step(model, None, step._replace(statistics=statistics), rows)
            )
        )
    return found


@pytest.mark.parametrize("kind", ["bernoullis", "counts"])
@pytest.mark.parametrize("engine", [MixtureExact(), MixtureVB()], ids=["exact", "vb"])
def test_moves_lead_out_of_a_trap(kind, engine):
    model, x, share = planted(kind)
    rows = engine.rows(model, model.prepare(x, dtype=torch.float64))
    bad, good = trapped(engine, model, rows, share.double())
    assert bad.objective < good.objective - 20  # EM alone stays there
    density = density_of(model)
    prior = density.prior(model, rows.like).map(lambda part: part.mean(0, keepdim=True))
    state = moves.split_and_merge(engine, model, prior, density, 10, torch.Generator().manual_seed(1), rows, bad.state)
    assert moves.continue_em(engine, model, rows, state).objective >= good.objective - 0.5


def test_a_move_keeps_every_row():
    """Sums over the classes of what a move makes are those of all rows."""
    model, x, share = planted("bernoullis")
    engine = MixtureExact()
    rows = engine.rows(model, model.prepare(x, dtype=torch.float64))
    bad, _ = trapped(engine, model, rows, share.double())
    density, own = density_of(model), torch.softmax(engine.log_joint(model, bad.state, rows), -1)
    prior = density.prior(model, rows.like).map(lambda part: part.mean(0, keepdim=True))
    moved = moves._propose_move(bad.step, own, rows, prior, density, torch.Generator().manual_seed(0))
    assert moved is not None
    for name, value in moved.statistics.items():
        torch.testing.assert_close(value.sum(0), bad.step.statistics[name].sum(0))
    changed = (moved.statistics["rows"] - bad.step.statistics["rows"]).abs() > 1e-6
    assert int(changed.sum()) == 3


def test_the_default_moves_where_starts_disagree():
    """Digits have many classes: moves from what informed starts find lead to more, and never to less."""
    from sklearn.datasets import load_digits

    on = (load_digits().data[:500] > 7).astype(float)
    on = on[:, on.var(0) > 0]
    model, gains = MixtureOfBernoullis(num_components=10, num_features=on.shape[1]), []
    for seed in range(3):
        still, moved = (
            fit(model, on, seed=seed, search=Search(refine=one, random=0), progress=False) for one in (False, True)
        )
        gains.append(float(moved.elbo[-1] - still.elbo[-1]))
    assert min(gains) > -0.1 and max(gains) > 20, gains
