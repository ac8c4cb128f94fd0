"""Starts of the Helmholtz machine that reach good optima.

The likelihood has many poor optima, in which units of the last hidden layer stand for parts of patterns or for noise;
gradient noise is not what keeps wake-sleep from the good ones, for exact gradients end there too. What helps is to
begin where the units of the last hidden layer act in one direction on the visible ones:

    rising   W_L >= 0, b_L = -2: units switch visible ones on       falling  W_L <= 0, b_L = 2: off
    free     W_L of either sign, b_L = logit(mean of x) - half of the sums of W_L

Many starts of each family climb side by side, signs kept, by Adam on exact gradients; in two rounds the best of each
family go on (families are not compared before their signs are released, which some gain much more by). What is left
climbs freely by L-BFGS, the best of each family to the end; on few different rows :mod:`.improve` goes on from there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from custom_inference.core.engine import Params
from custom_inference.core.optimize.lbfgs import maximise
from custom_inference.core.proposals import Proposals
from custom_inference.families.helmholtz.improve import Ascent, count_replacements, improve
from custom_inference.families.helmholtz.tables import LayerTables, PatternRows, Patterns
from custom_inference.families.rows.matrix import BinaryRows
from ppl_models import HelmholtzMachine, Model

#: Signs of the weights into the visible units, by family; 0: free.
_SIGNS = (1.0, -1.0, 0.0)
#: Starts a family that begin, and how many go on to the second and the third round; Adam's steps of the rounds.
_STARTS, _STEPS = (24, 6, 2), (60, 100, 150)
#: Deviations of the weights at the start, restricted to a sign and free ones; the bias that goes with a sign.
_WIDE, _FREE, _BIAS = 2.0, 1.0, 2.0
_RATE, _BETAS = 0.1, (0.9, 0.99)
#: Iterations of L-BFGS of what is left, and of the best of each family.
_BRIEF, _POLISH = 30, 500
#: Different rows that starts climb on, at most: of more, some at random.
_MOST_ROWS = 400
#: Starts times rows times states of the last hidden layer that climb side by side: 64 MB a table.
_MOST_CELLS = 2**24


class BeliefProposals(Proposals):
    """One start: the best of several families of random ones, and of units replaced."""

    def propose(self, model: HelmholtzMachine, rows: PatternRows, generator: torch.Generator, attempt: int) -> Params:
        return find_start(model, rows, generator)

    def at_random(self, attempt: int, num_rows: int) -> bool:
        return True

    def search_size(self, model: Model, num_rows: int) -> tuple[int, int]:
        """One proposal, which makes its starts itself, on all rows."""
        return 1, num_rows


def mean_log_likelihood(params: Params, layers: tuple[int, ...], rows: Patterns) -> Tensor:
    """(...,): the mean over the rows of log p(x_n | params)."""
    joint = LayerTables.of(params, layers).log_joint(rows.ones, rows.seen)
    return torch.logsumexp(joint, -1) @ (rows.count / rows.count.sum())


def random_start(
    model: HelmholtzMachine, rows: BinaryRows, generator: torch.Generator, signs: list[float], free: float = _FREE
) -> Params:
    """Starts of the families of these signs, with an axis of starts in front. free: the deviation of free weights."""
    layers, like, number = model.layers, rows.like, len(signs)
    last = len(layers) - 1
    sign = torch.tensor(signs, dtype=torch.float64)[:, None, None]
    found: dict[str, Tensor] = {"bias_0": torch.zeros(number, layers[0], dtype=torch.float64)}
    for below in range(1, last + 1):
        shape = number, layers[below - 1], layers[below]
        weight = torch.randn(shape, generator=generator, dtype=torch.float64)
        signed = _WIDE * sign * weight.abs() if below == last else _FREE * weight
        found[f"weight_{below}"] = torch.where(sign == 0, free * weight, signed)
        found[f"bias_{below}"] = torch.zeros(number, layers[below], dtype=torch.float64)
    chance = (rows.ones.double().sum(0) + 0.5) / (rows.observed_count.double() + 1)
    suited = torch.logit(chance).cpu() - 0.5 * found[f"weight_{last}"].sum(1)
    found[f"bias_{last}"] = torch.where(sign[:, 0] == 0, suited, -_BIAS * sign[:, 0])
    return {site: value.to(like) for site, value in found.items()}


def find_start(model: HelmholtzMachine, rows: PatternRows, generator: torch.Generator) -> Params:
    """Return the best of the starts, at a maximum of log p(x) + log p(theta)."""
    layers, last = model.layers, len(model.layers) - 1
    few = rows.sample(_MOST_ROWS, generator).to(torch.float32)
    signs = [one for one in _SIGNS for _ in range(_STARTS[0])]
    start = random_start(model, rows, generator, signs)
    at = {site: value.float() for site, value in start.items()}
    for round_, steps in enumerate(_STEPS):
        ending = round_ == len(_STEPS) - 1
        sign = torch.tensor(signs, dtype=torch.float32, device=rows.like.device)
        at, value = _climb(model, few, at, len(rows), sign, f"weight_{last}", steps, ending)
        if not ending:
            kept: list[int] = []
            for one in _SIGNS:
                of_family = [place for place, own in enumerate(signs) if own == one]
                of_family.sort(key=lambda place: -float(value[place]))
                kept += of_family[: _STARTS[round_ + 1]]
            at, signs = {site: tensor[kept] for site, tensor in at.items()}, [signs[place] for place in kept]
    every = rows.different.to(torch.float64)

    def objective(one: Params) -> Tensor:
        return mean_log_likelihood(one, layers, every) + model.log_prior(one) / len(rows)

    starts = [{site: value[place].to(rows.like) for site, value in at.items()} for place in range(len(signs))]
    if replacements := count_replacements(model, every):
        return improve(Ascent(model, every), starts, replacements, generator)
    brief = [maximise(objective, start, _BRIEF) for start in starts]
    families = [[pair for pair, own in zip(brief, signs, strict=True) if own == one] for one in _SIGNS]
    best = [max(family, key=lambda pair: pair[1])[0] for family in families]
    return max((maximise(objective, one, _POLISH) for one in best), key=lambda pair: pair[1])[0]


def _climb(
    model: HelmholtzMachine, rows: Patterns, at: Params, size: int, sign: Tensor, signed: str, steps: int, ending: bool
) -> tuple[Params, Tensor]:
    """Adam on all starts, in groups whose tables fit into memory."""
    units = model.layers[-2]
    number = max(1, _MOST_CELLS // (len(rows.ones) * 2**units))
    groups = zip(sign.split(number), *(value.split(number) for value in at.values()), strict=True)
    found = [
        _climb_together(model, rows, dict(zip(at, parts, strict=True)), size, own, signed, steps, ending)
        for own, *parts in groups
    ]
    return {site: torch.cat([part[site] for part, _ in found]) for site in at}, torch.cat([part for _, part in found])


def _climb_together(
    model: HelmholtzMachine, rows: Patterns, at: Params, size: int, sign: Tensor, signed: str, steps: int, ending: bool
) -> tuple[Params, Tensor]:
    """Side by side; the weights ``signed`` keep the signs of their families. ending: the rate falls to 0."""
    at = {site: value.clone().requires_grad_() for site, value in at.items()}
    adam = torch.optim.Adam(list(at.values()), lr=_RATE, betas=_BETAS)
    direction, value = sign[:, None, None], torch.zeros(len(sign))
    with torch.enable_grad():
        for step in range(steps):
            if ending:
                adam.param_groups[0]["lr"] = _RATE * (1 - step / steps)
            adam.zero_grad()
            value = mean_log_likelihood(at, model.layers, rows)
            value = value + model.log_prior(at) / size
            (-value.sum()).backward()
            adam.step()
            with torch.no_grad():
                weight = at[signed]
                weight.copy_(torch.where(weight * direction < 0, 0.0, weight))
    return {site: tensor.detach() for site, tensor in at.items()}, value.detach()
