"""The weight of prediction-constrained training, chosen by responses that are held out.

The words of all documents are read, a third of the responses are not. Two short searches for every weight begin at the
same topics, of the words alone; the mean of what their last states predict of the held responses is compared with these
by its squared error, of classes by that of their probabilities (Brier's score). Likelihoods would not do: so few states
are too sure of themselves, the more the larger the weight is, and the average over longer searches is not.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from custom_inference.core.threads import map_in_threads
from custom_inference.families.responses.searches import ConstrainedSearch, propose_start, shares
from custom_inference.gibbs.protocol import Params
from ppl_models import Data, SupervisedLDA
from ppl_models.data import sparse as _sparse

#: The weights to choose from.
WEIGHTS = (0.0, 10.0, 30.0, 100.0, 300.0)
#: Every so many responses one is held out; so many tokens are read at most.
_PARTS, _TOKENS = 3, 300_000
#: Searches for every weight.
_CHAINS = 2


class _Short:
    """How long a search is."""

    sweeps: int = 26
    begin: int = 3
    average: int = 14
    learn: bool = True
    steps: int = 3


def score_weights(model: SupervisedLDA, data: Data, seed: int, start: Params | None) -> dict[float, float]:
    """Return R2 of the held responses by weight: 1 less the squared error over that of their mean."""
    part, held = hold_out(model, data, seed)
    known, number, likelihood = ~torch.isnan(held), len(WEIGHTS), model.response_likelihood
    start = start or propose_start(model, part, seed)
    truth = torch.nan_to_num(held)
    if likelihood.is_vector:
        truth = torch.nn.functional.one_hot(truth[:, 0].long(), model.num_classes).double()
        known = known.expand(truth.shape)
    seen = known.sum(0).clamp(min=1)
    spread = torch.where(known, truth - (truth * known).sum(0) / seen, 0.0).square().sum().clamp(min=1e-300)

    def predict(trial: tuple[float, int]) -> torch.Tensor:
        run, found = ConstrainedSearch(_Short(), trial[0], model, part, trial[1], start), []
        for number in range(_Short.sweeps):
            run.sweep(number)
            if number >= _Short.sweeps - _Short.average and run.found is not None:
                found.append(likelihood.mean(shares(run.found) @ run.weight.T))
        return torch.stack(found).mean(0)

    trials = [(weight, seed + 1 + chain) for chain in range(_CHAINS) for weight in WEIGHTS]
    means = map_in_threads(predict, trials)
    error = [torch.where(known, sum(means[k::number]) / _CHAINS - truth, 0.0).square().sum() for k in range(number)]
    return {weight: float(1 - one / spread) for weight, one in zip(WEIGHTS, error, strict=True)}


def hold_out(model: SupervisedLDA, data: Data, seed: int) -> tuple[Data, torch.Tensor]:
    """Return documents without the responses that are held out, and these responses alone (N, R), NaN elsewhere."""
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
    held[places[::_PARTS]] = True
    given = response.clone()
    given[held] = torch.nan
    part = replace(data, others={**data.others, "response": given}).rows(order)
    hidden = response.clone()
    hidden[~held] = torch.nan
    return part, model.standard(hidden.reshape(len(data), -1)[order].double())
