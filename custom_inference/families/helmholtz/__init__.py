"""Helmholtz machines: exact sums over the hidden layers, and learning with a recognition network."""

from functools import partial

from custom_inference.core.annealing.estimate import Budget
from custom_inference.core.engine import EXACT_UP_TO
from custom_inference.core.local_inference import anneal_local
from custom_inference.core.presentation import Presentation
from custom_inference.core.registry import Family
from custom_inference.families.common.bits import logistic_chains
from custom_inference.families.helmholtz.exact import ExactBelief
from custom_inference.families.helmholtz.learning import ImportanceWeighted, Reinforce, ReweightedWakeSleep, WakeSleep
from custom_inference.families.helmholtz.search import BeliefProposals
from ppl_models import HelmholtzMachine

FAMILIES = (
    Family(
        model=HelmholtzMachine,
        engines={"exact": ExactBelief},
        search=BeliefProposals,
        stages=("the best of several families of random starts, and of units replaced",),
        default=lambda model, _: "exact" if sum(model.layers[:-1]) <= EXACT_UP_TO else "reweighted_wake_sleep",
        estimates={"ais": partial(anneal_local, budget=Budget(error=0.1, seconds=10.0))},  # it is a default
        methods={
            "wake_sleep": WakeSleep,
            "reweighted_wake_sleep": ReweightedWakeSleep,
            "importance_weighted": ImportanceWeighted,
            "reinforce": Reinforce,
        },
        chains=logistic_chains,
        presentation=Presentation(
            value="weight on the log odds",
            local="P(hidden unit on | row)",
            prominence=lambda model, params: params[model.component_site].norm(dim=-1),
            columns=lambda model, params: {"norm": params[model.component_site].norm(dim=-1)},
        ),
    ),
)
