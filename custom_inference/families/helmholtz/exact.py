"""The Helmholtz machine by exact sums over the states of its hidden layers (:mod:`.tables`).

EM: the layers are a Markov chain given the row, so that its statistics are, for every state u of a layer and the layer
below, how often u is expected, and the expected sum of the units below it where it is:

    parents_l(u) = sum_n p(h_{l-1} = u | x_n),    children_l(u) = sum_n E[h_l 1(h_{l-1} = u) | x_n]

The M step is a weighted logistic regression of every unit on the layer above, concave where the log prior is:

    maximise sum_l sum_u [A_l(u)'children_l(u) - parents_l(u) sum_j softplus(A_l(u)_j)] + b_0'E[h_0] - N softplus(b_0)

EM alone is slow here; the start that :mod:`.search` gives is a maximum of log p(x) + log p(theta) already.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

from custom_inference.core.engine import EStep, ExactEngine, Params, Warm
from custom_inference.core.optimize.lbfgs import maximise
from custom_inference.core.posteriors import CodePosterior, LocalPosterior
from custom_inference.families.helmholtz.search import random_start
from custom_inference.families.helmholtz.tables import LayerTables, PatternRows, log_odds
from ppl_models import CapacityError, Data, HelmholtzMachine
from ppl_models.distributions import all_codes

#: Hidden units whose states are listed, at most.
_MOST_UNITS = 16
#: Iterations of L-BFGS of an M step.
_M_STEP = 40


@dataclass(frozen=True, kw_only=True)
class ExactBelief(ExactEngine):
    """The exact posterior of the hidden layers, a table of their states."""

    def rows(self, model: HelmholtzMachine, data: Data) -> PatternRows:
        return PatternRows.of(data)

    def check(self, model: HelmholtzMachine, rows: PatternRows) -> None:
        """Raises CapacityError where the states of the hidden layers are too many."""
        units = sum(model.layers[:-1])
        if units > _MOST_UNITS:
            needed = 8.0 * len(rows) * 2.0**units
            message = f"exact sums over the states of {units} hidden units; at most {_MOST_UNITS} are summed over"
            raise CapacityError(message, needed_bytes=needed, allowed_bytes=8.0 * len(rows) * 2.0**_MOST_UNITS)

    def initial(self, model: HelmholtzMachine, rows: PatternRows, generator: torch.Generator) -> Params:
        """Random weights; the visible biases suit the columns' means."""
        return {site: value[0] for site, value in random_start(model, rows, generator, [0.0]).items()}

    def e_step(
        self,
        model: HelmholtzMachine,
        params: Params,
        rows: PatternRows,
        warm: Warm = None,
        *,
        temperature=1.0,
        generator=None,
    ) -> EStep:
        tables, last = LayerTables.of(params, model.layers), len(model.layers) - 1
        different = rows.different
        joint = tables.log_joint(different.ones, different.seen, temperature)
        bound = torch.logsumexp(joint, -1)
        state = (joint - bound[:, None]).exp() * different.count[:, None]
        expected, on = state.sum(0), state.T @ different.ones
        seen = expected.unsqueeze(-1).expand_as(on) if different.seen is None else state.T @ different.seen
        # The likelihood of the visible units counts as often as the temperature says.
        statistics = {f"parents_{last}": temperature * seen, f"children_{last}": temperature * on}
        for layer in range(last - 1, 0, -1):
            pairs = tables.above(layer).exp() * expected
            statistics[f"children_{layer}"] = pairs @ tables.codes[layer]
            expected = pairs.sum(1)
            statistics[f"parents_{layer}"] = expected.unsqueeze(-1)
        statistics |= {"top": expected @ tables.codes[0], "rows": expected.sum()}
        return EStep(statistics, {}, bound[different.place])

    def m_step(self, model: HelmholtzMachine, params: Params, step: EStep, rows: PatternRows) -> Params:
        counts = {name: value.double() for name, value in step.statistics.items()}
        codes = [all_codes(size, dtype=torch.float64, device=rows.like.device) for size in model.layers[:-1]]
        size = float(counts["rows"])

        def objective(at: Params) -> Tensor:
            found = at["bias_0"] @ counts["top"] - counts["rows"] * softplus(at["bias_0"]).sum()
            for layer in range(1, len(model.layers)):
                odds = log_odds(at, layer, codes[layer - 1])
                found = found + (odds * counts[f"children_{layer}"]).sum()
                found = found - (softplus(odds) * counts[f"parents_{layer}"]).sum()
            return (found + model.log_prior(at)) / size

        return maximise(objective, params, _M_STEP)[0]

    def posterior(self, model: HelmholtzMachine, params: Params, rows: PatternRows, step: EStep) -> LocalPosterior:
        """Return p(all hidden layers | x_n), a table over their states."""
        tables, different = LayerTables.of(params, model.layers), rows.different
        state = torch.log_softmax(tables.log_joint(different.ones, different.seen), -1)
        codes = all_codes(sum(model.layers[:-1]), dtype=rows.like.dtype, device=rows.like.device)
        parts = codes.long().split(model.layers[:-1], -1)
        # The number of the state of every hidden layer in each code.
        place = [(part * 2 ** torch.arange(part.shape[-1], device=codes.device)).sum(-1) for part in parts]
        log_weight = state[:, place[-1]]
        for layer in range(1, len(model.layers) - 1):
            log_weight = log_weight + tables.above(layer)[place[layer - 1], place[layer]]
        return CodePosterior(codes, log_weight[different.place])

    def log_evidence(self, model: HelmholtzMachine, params: Params, rows: PatternRows) -> Tensor:
        different = rows.different
        joint = LayerTables.of(params, model.layers).log_joint(different.ones, different.seen)
        return torch.logsumexp(joint, -1)[different.place]
