"""Starts for NOCA that find the good optimum: sources are grown one by one under a leak that is held high, or, where
there are many of them, split and pruned.

What fails from random starts looks alike: one source becomes the union of two true ones (prior = their sum, p ~ 1/2)
and another dies. The cause is the leak. While it is small, an unexplained one costs so much that the union of two
patterns beats either of them; under a leak of .3 a pattern has to fit before it pays, and unions never form. So the
leak is held at .2, .3 or .4 during growth (dense patterns want more, weak and sparse ones less; the starts try several
and the evidence chooses), and released at the end. No annealing and no surplus sources are needed
(``benchmarks/quality/noca_recovery.py`` measures this).

A birth. Let silent_nj = P(x_nj = 0 | best code of row n). Switching on a candidate pattern c, with loading p on its
features, changes the log-likelihood of row n by sum_j c_j gain_nj,

    gain_nj = log[(1 - (1 - p) silent_nj) / (1 - silent_nj)]   if x_nj = 1,      log(1 - p)   if x_nj = 0,

so all rows x all candidates are scored by one matrix product; a row uses the new source if that pays. Candidates are
what single rows leave unexplained.
"""

from __future__ import annotations

import math

import torch
from torch.nn.functional import softplus

from custom_inference.core.align import match_components
from custom_inference.core.engine import Params
from custom_inference.core.proposals import Proposals
from custom_inference.families.conjugate.beta import FLOOR
from custom_inference.families.noca.common import any_size, thetas
from custom_inference.families.noca.exact import NocaExact
from custom_inference.families.noca.split import shut_off, split_and_prune
from custom_inference.families.rows.matrix import BinaryRows
from ppl_models import Model

#: The starts, in turn: growth under this held leak, or split-and-prune (None).
TURNS = (0.3, 0.4, 0.2, None, 0.1, 0.03)
#: Growth enumerates the codes of the sources born so far: beyond this many it is too slow.
GROW_UP_TO = 12
#: Loading and prior of a source when it is born, and how many rows offer a candidate.
BIRTH_LOADING, BIRTH_PRIOR, CANDIDATES = 0.8, 0.15, 600


class NocaProposals(Proposals):
    """Starts of the NOCA engines: growth, or split-and-prune; pruning by evidence."""

    random_rows = 250

    def propose(self, model: Model, rows: BinaryRows, generator: torch.Generator, attempt: int) -> Params:
        """Return, with up to ``GROW_UP_TO`` sources, the start whose turn it is; beyond, split and prune."""
        held_leak = TURNS[attempt % len(TURNS)]
        if model.shapes["source_prior"][0] <= GROW_UP_TO and held_leak is not None:
            return grow(model, rows, generator, held_leak)
        return split_and_prune(model, rows, generator)

    def refine(
        self, model: Model, rows: BinaryRows, params: Params, generator: torch.Generator, agreed: bool
    ) -> Params:
        """Shut off, beyond ``GROW_UP_TO`` sources, those that are not worth their price on all rows."""
        del generator, agreed
        return params if model.shapes["source_prior"][0] <= GROW_UP_TO else shut_off(model, rows, params)

    def same_solution(self, model: Model, first: Params, second: Params) -> bool:
        """Tell whether every source of one has its own counterpart in the other, with cosine of the loadings above .9.

        Equal scores are not enough: on data with weak links wrong solutions score alike.
        """
        return bool((match_components(first["loading"], second["loading"]).similarity > 0.9).all())

    def search_size(self, model: Model, num_rows: int) -> tuple[int, int]:
        """Return one start for each held leak and one split-and-prune; beyond ``GROW_UP_TO`` only that, twice, on more
        rows."""
        num_components = model.shapes["source_prior"][0]
        return (len(TURNS), 1000) if num_components <= GROW_UP_TO else (2, max(1500, 48 * num_components))


def grow(model: Model, rows: BinaryRows, generator: torch.Generator, held_leak: float, *, climb: int = 2) -> Params:
    """Grow a start for ``model``: births under the held leak, each followed by ``climb`` EM steps.

    The leak keeps its held value here; EM releases it afterwards.
    """
    ones = rows.ones
    leak = ones.new_full((ones.shape[1],), held_leak)
    params: Params = {"source_prior": ones.new_zeros(0), "loading": ones.new_zeros(0, ones.shape[1]), "leak": leak}
    engine = NocaExact(inner_steps=2)
    prior_model = any_size(model)
    for _ in range(model.shapes["source_prior"][0]):
        params = birth(params, rows, generator)
        for _ in range(climb):
            step = engine.e_step(prior_model, params, rows)
            params = engine.m_step(prior_model, params, step, rows) | {"leak": leak}
    return params


def birth(params: Params, rows: BinaryRows, generator: torch.Generator) -> Params:
    """Add the source that most raises the likelihood, every row's other sources held at their best code."""
    (theta, theta0), ones, zeros = thetas(params), rows.ones, rows.zeros
    activation = theta0.expand_as(ones)  # a_j at the most probable code of every row, (N, D)
    if len(theta):
        codes, joint = NocaExact().log_joint(params, rows)
        activation = theta0 + codes[joint.argmax(-1)] @ theta
    silent = torch.exp(-activation)
    up = torch.log((1 - (1 - BIRTH_LOADING) * silent) / (1 - silent).clamp(min=FLOOR))
    gain = ones * up + zeros * math.log(1 - BIRTH_LOADING)
    left = ones * (up > math.log(2.0))  # what the row leaves unexplained
    pick = torch.randperm(len(rows), generator=generator)[:CANDIDATES].to(ones.device)
    offset = math.log(BIRTH_PRIOR / (1 - BIRTH_PRIOR))
    best = left[pick][softplus(gain @ left[pick].T + offset).sum(0).argmax()]
    users = torch.sigmoid(gain @ best + offset)
    pattern = ((users @ left + 0.05) / (users.sum() + 1)).clamp(0.01, 0.95)
    prior = torch.cat([params["source_prior"], ones.new_full((1,), BIRTH_PRIOR)])
    return {**params, "source_prior": prior, "loading": torch.cat([params["loading"], pattern[None]])}
