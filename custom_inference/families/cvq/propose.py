"""Starts for CVQ: random ones, climbed by mean-field EM, their superfluous sources reseated."""

from __future__ import annotations

from typing import Any

import torch

from custom_inference.core.align import match_components
from custom_inference.core.engine import Params
from custom_inference.core.proposals import Proposals
from custom_inference.families.common.rows import RealRows
from custom_inference.families.cvq.common import random_start
from custom_inference.families.cvq.reseat import Climber
from ppl_models import Model
from ppl_models.core.priors import is_flat


class CvqProposals(Proposals):
    """Starts of every CVQ engine."""

    def propose(self, model: Model, rows: RealRows, generator: torch.Generator, attempt: int) -> Params:
        """A random start climbed by mean-field EM, its superfluous sources reseated.

        Every third start gives one source to the mean of the data: a baseline is hard to find by jumps.
        """
        start = random_start(model, rows, generator)
        if attempt % 3 == 1 and model.shapes["source_prior"][0] > 1:
            start = with_baseline(start, rows)
        found = Climber(model, rows).start(start)
        return upright(found) if all(is_flat(model.priors[site]) for site in ("source_prior", "weight")) else found

    def search_size(self, model: Model, num_rows: int) -> tuple[int, int]:
        """Starts agree more often than not: three are tried, more only where no two of them agree."""
        return 6, max(2000, 60 * model.shapes["source_prior"][0])

    def same_solution(self, model: Model, first: Any, second: Any) -> bool:
        """Every source of one has its own counterpart in the other, with cosine of the weights above .9."""
        return bool((match_components(first["weight"], second["weight"]).similarity > 0.9).all())


def with_baseline(params: Params, rows: RealRows) -> Params:
    """The first source on in nearly every row with the features' means, the others relative to it."""
    mean = rows.x.sum(0) / rows.observed_count
    weight, prior = params["weight"] - 0.5 * mean, params["source_prior"].clone()
    weight[0], prior[0] = mean, 0.99
    centred = rows.square.sum() - (rows.observed_count * mean.square()).sum()
    spread = (centred.clamp(min=0) / rows.observed_count.sum()).sqrt().clamp(min=1e-6)
    return {**params, "weight": weight, "source_prior": prior, "scale": spread.expand_as(params["scale"]).clone()}


def upright(params: Params, *, always: float = 0.999) -> Params:
    """The same density with priors of at most a half, where one source is always on.

    With such a baseline b, a source and its opposite say the same: s_i w_i + b = (1 - s_i)(-w_i) + (b + w_i).
    """
    prior = params["source_prior"]
    base = int(prior.argmax())
    flipped = prior > 0.5
    flipped[base] = False
    if float(prior[base]) < always or not bool(flipped.any()):
        return params
    weight = torch.where(flipped[:, None], -params["weight"], params["weight"])
    weight[base] += params["weight"][flipped].sum(0)
    return {**params, "source_prior": torch.where(flipped, 1 - prior, prior), "weight": weight}
