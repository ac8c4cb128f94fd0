"""The cooperative vector quantizer (source 003): all codes, mean field, truncated posteriors; starts that find it."""

from custom_inference.core.registry import EXACT_EM_UP_TO, Family
from custom_inference.families.cvq.exact import CvqExact
from custom_inference.families.cvq.mean_field import CvqMeanField
from custom_inference.families.cvq.presentation import PRESENTATION
from custom_inference.families.cvq.propose import CvqProposals
from custom_inference.families.cvq.truncated import CvqTruncated
from ppl_models import CVQ

FAMILIES = (
    Family(
        model=CVQ,
        engines={"exact": CvqExact, "mean_field": CvqMeanField, "truncated": CvqTruncated},
        search=CvqProposals,
        default=lambda model, _: "exact" if model.num_components <= EXACT_EM_UP_TO else "mean_field",
        presentation=PRESENTATION,
    ),
)
