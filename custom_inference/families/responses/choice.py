"""The weight of prediction-constrained training, chosen by responses that are held out.

A response that is seen c times pulls each of the L_n tokens of its document by c / L_n times its slope, so the weights
to choose from are shares of the mean number of tokens a document.

The words of all documents are read, a third of the responses are not, one third after the other. C' = 2 short searches
for every weight begin at the same topics, of the words alone; the mean of what they predict of the held responses is
compared with these by its squared error, of classes by that of their probabilities (Brier's score). That of an average
over C chains, as the fit takes, is less by what chains differ: v being their variance,

    E (y - mean of C)^2 = E (y - mean of C')^2 - (1 / C' - 1 / C) v

which large weights need most. Likelihoods would not do: so few states are too sure of themselves, the more the larger
the weight is.

Where documents are few, the weight with the least error is one of several that differ by chance, and a large one
repeats the noise of the responses. So the least weight is taken that is within one standard error of the best (Breiman,
Friedman, Olshen & Stone 1984, section 3.4.3): 0, topics of the words alone, unless the responses of documents that
were not seen say otherwise.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from custom_inference.core.threads import map_in_threads
from custom_inference.families.responses.searches import ConstrainedSearch, propose_start, shares
from custom_inference.gibbs.protocol import Params
from ppl_models import Data, SupervisedLDA
from ppl_models.data import sparse as _sparse

#: The weights to choose from, as shares of the documents' mean length.
SHARES = (0.0, 0.1, 0.3, 1.0)
#: The responses are divided into so many parts; so many tokens are read at most.
_PARTS, _TOKENS = 3, 200_000
#: Searches for every weight.
_CHAINS = 2


class _Short:
    """How long a search is."""

    sweeps: int = 26
    begin: int = 3
    average: int = 14
    learn: bool = True
    steps: int = 3


class WeightScores(NamedTuple):
    """R2 of the held responses by weight: 1 less the squared error over that of their mean; chosen: the weight."""

    held_out: dict[float, float]
    chosen: float


def score_weights(model: SupervisedLDA, data: Data, seed: int, start: Params | None, chains: int) -> WeightScores:
    """Score every weight by the responses of one part after the other, for an average of so many chains; choose one."""
    length = float(data.observed_x.sum()) / max(len(data), 1)
    weights = [length * share for share in SHARES]
    parts = [hold_out(model, data, seed, part) for part in range(_PARTS)]
    start = start or propose_start(model, parts[0][0], seed)  # of the words, which are the same in all parts
    found = [_errors(model, *part, seed, start, weights, chains) for part in parts]
    errors, spread = torch.cat([one for one, _ in found]), sum(one for _, one in found)
    total = (errors.sum(0) / max(spread, 1e-300)).tolist()
    held_out = {weight: 1 - one for weight, one in zip(weights, total, strict=True)}
    return WeightScores(held_out, weights[choose(errors)])


def choose(errors: torch.Tensor) -> int:
    """Choose the first column of the errors (M, weights) of the held documents whose sum is within a standard error of
    the smallest, documents being paired."""
    more = errors - errors[:, [int(errors.sum(0).argmin())]]
    size = len(more)
    error = math.sqrt(size / max(size - 1, 1)) * (more - more.mean(0)).square().sum(0).sqrt()
    return int((more.sum(0) <= error).int().argmax())


def _errors(
    model: SupervisedLDA, part: Data, held: torch.Tensor, seed: int, start: Params, weights: list[float], chains: int
) -> tuple[torch.Tensor, float]:
    """Compute the squared error of every held document by weight, and the sum of those of the mean response."""
    known, likelihood = ~torch.isnan(held), model.response_likelihood
    truth = torch.nan_to_num(held)
    if likelihood.is_vector:
        truth = torch.nn.functional.one_hot(truth[:, 0].long(), model.num_classes).double()
        known = known.expand(truth.shape)
    seen = known.sum(0).clamp(min=1)
    spread = torch.where(known, truth - (truth * known).sum(0) / seen, 0.0).square().sum()

    def predict(trial: tuple[float, int]) -> torch.Tensor:
        run, found = ConstrainedSearch(_Short(), trial[0], model, part, trial[1], start), []
        for number in range(_Short.sweeps):
            run.sweep(number)
            if number >= _Short.sweeps - _Short.average and run.found is not None:
                found.append(likelihood.mean(shares(run.found) @ run.weight.T))
        return torch.stack(found).mean(0)

    trials = [(weight, seed + 1 + chain) for weight in weights for chain in range(_CHAINS)]
    means = torch.stack(map_in_threads(predict, trials)).unflatten(0, (len(weights), _CHAINS))
    error = (means.mean(1) - truth).square() - (1 / _CHAINS - 1 / chains) * means.var(1)
    return torch.where(known, error, 0.0).sum(2).T[known.any(1)], float(spread)


def hold_out(model: SupervisedLDA, data: Data, seed: int, part: int = 0) -> tuple[Data, torch.Tensor]:
    """Return documents without the responses of one of the parts, and these responses alone (N, R), NaN elsewhere."""
    generator = np.random.default_rng(seed)
    response = data.others["response"]
    known = (~torch.isnan(response.reshape(len(response), -1))).any(1)
    order = torch.as_tensor(generator.permutation(len(data)))
    tokens = _sparse.row_sums(data.observed_x)[order].cumsum(0)
    order = order[: max(int((tokens <= _TOKENS).sum()), 1)]
    places = order[known[order]]
    if len(places) < _PARTS:  # few responses are known: all of their documents are read
        order, places = torch.arange(len(data)), known.nonzero().flatten()
    held = torch.zeros(len(data), dtype=torch.bool)
    held[places[part::_PARTS]] = True
    given = response.clone()
    given[held] = torch.nan
    read = replace(data, others={**data.others, "response": given}).rows(order)
    hidden = response.clone()
    hidden[~held] = torch.nan
    return read, model.standard(hidden.reshape(len(data), -1)[order].double())
