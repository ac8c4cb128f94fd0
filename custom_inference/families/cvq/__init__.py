"""The cooperative vector quantizer (Diab 2020): all codes, mean field, truncated posteriors; starts that find it."""

from custom_inference.core.presentation import Presentation
from custom_inference.core.registry import EXACT_EM_UP_TO, Family
from custom_inference.families.common.bits import normal_chains
from custom_inference.families.cvq.engines import CvqExact, CvqMeanField, CvqTruncated
from custom_inference.families.cvq.propose import CvqProposals
from ppl_models import CVQ

FAMILIES = (
    Family(
        model=CVQ,
        engines={"exact": CvqExact, "mean_field": CvqMeanField, "truncated": CvqTruncated},
        search=CvqProposals,
        stages=("mean-field EM of random starts, sources reseated",),
        default=lambda model, _: "exact" if model.num_components <= EXACT_EM_UP_TO else "mean_field",
        chains=normal_chains,
        presentation=Presentation(
            value="weight: what a present source adds",
            local="P(source present | row)",
            # What each source adds to the expected square of a row, pi_i |w_i|^2.
            prominence=lambda _, params: params["source_prior"] * params["weight"].square().sum(-1),
            columns=lambda _, params: {"prior": params["source_prior"], "norm": params["weight"].norm(dim=-1)},
        ),
    ),
)
