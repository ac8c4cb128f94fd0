"""Boltzmann machines: restricted ones and replicated softmax, by exact sums over a layer and by Markov chains."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from custom_inference.core.presentation import Presentation
from custom_inference.core.registry import Family
from custom_inference.families.boltzmann.annealing import AnnealedLikelihood
from custom_inference.families.boltzmann.exact import MOST_UNITS, ExactHarmonium, ExactOfRows, energy_of_shapes
from custom_inference.families.boltzmann.search import HarmoniumProposals
from custom_inference.families.boltzmann.stochastic import ContrastiveDivergence, ParallelTempering, PersistentCD
from ppl_models import RBM, Data, Model, ReplicatedSoftmax

#: log2 of (states, features) up to which exact gradients are the default.
_MOST_WORK = 15.0
_METHODS = {"cd": ContrastiveDivergence, "pcd": PersistentCD, "parallel_tempering": ParallelTempering}
_SHOWN = Presentation(
    value="weight on the log odds",
    local="P(hidden unit on | row)",
    prominence=lambda _, params: params["weight"].flatten(1).norm(dim=-1),
    columns=lambda _, params: {"norm": params["weight"].flatten(1).norm(dim=-1), "bias": params["hidden_bias"]},
)
_VALUES = {"binary": "log odds", "probability": "log odds", "categorical": "logit", "gaussian": "mean"}


@dataclass(frozen=True, kw_only=True)
class _Machines(Family):
    """What depends on the kinds of units."""

    def for_priors(self, model: Model) -> Family:
        assert isinstance(model, RBM)
        local = "P(hidden unit on | row)" if model.hidden == "binary" else "E[hidden unit | row]"
        baseline = None if model.visible == "categorical" else "visible_bias"
        shown = replace(
            self.presentation, value=f"weight on the {_VALUES[model.visible]}", local=local, baseline=baseline
        )
        engines = self.engines if model.missing == "summed" else {"exact": ExactOfRows}
        return replace(self, presentation=shown, engines=engines)


def choose_for_rows(model: RBM, data: Data | None) -> str:
    """Choose exact gradients where a sum over a layer costs little, else persistent chains; CD where rows have units of
    their own, each of which would need chains of its own."""
    energy = energy_of_shapes(model)
    work = min(energy.bits) + math.log2(energy.visible_bias.shape[-1])
    if energy.closed_form or (work <= _MOST_WORK and model.num_hidden <= MOST_UNITS):
        return "exact"
    return "pcd" if model.missing == "summed" else "cd"


FAMILIES = (
    _Machines(
        model=RBM,
        engines={"exact": ExactHarmonium},
        search=HarmoniumProposals,
        stages=("random starts that climb side by side",),
        default=choose_for_rows,
        methods=_METHODS,
        estimates={"ais": AnnealedLikelihood()},
        presentation=_SHOWN,
    ),
    Family(
        model=ReplicatedSoftmax,
        engines={"exact": ExactOfRows},
        search=HarmoniumProposals,
        stages=("random starts that climb side by side",),
        default=lambda model, _: "exact" if model.num_hidden + math.log2(model.num_features) <= _MOST_WORK else "cd",
        methods=_METHODS,
        estimates={"ais": AnnealedLikelihood()},
        presentation=replace(_SHOWN, value="weight on the logit", baseline="visible_bias"),
    ),
)
