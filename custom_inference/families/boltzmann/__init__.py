"""Boltzmann machines: the restricted one with binary units, by exact sums over its smaller layer."""

from custom_inference.core.presentation import Presentation
from custom_inference.core.registry import Family
from custom_inference.families.boltzmann.exact import ExactHarmonium, HarmoniumProposals
from ppl_models import RBM

FAMILIES = (
    Family(
        model=RBM,
        engines={"exact": ExactHarmonium},
        search=HarmoniumProposals,
        default="exact",
        presentation=Presentation(
            value="weight on the log odds",
            local="P(hidden unit on | row)",
            baseline="visible_bias",
            prominence=lambda _, params: params["weight"].norm(dim=-1),
            columns=lambda _, params: {"norm": params["weight"].norm(dim=-1), "bias": params["hidden_bias"]},
        ),
    ),
)
