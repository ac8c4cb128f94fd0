"""Documents that come with labels or covariates: labelled LDA, partially labelled LDA, Dirichlet-multinomial regression."""

from custom_inference.core.registry import Family
from custom_inference.families.labels.engines import LabelledCvb0, LabelledDirichlet, LabelledVB
from custom_inference.families.labels.gibbs import LabelledSampler
from custom_inference.families.labels.predict import predicted_labels
from custom_inference.families.labels.propose import LabelledProposals
from custom_inference.families.topics import OF_TOPICS
from ppl_models import LabeledLDA, PartiallyLabeledLDA

FAMILIES = tuple(
    Family(
        model=model,
        engines={"dirichlet": LabelledDirichlet, "vb": LabelledVB, "cvb0": LabelledCvb0},
        default="vb",
        search=LabelledProposals,
        sampler=LabelledSampler,
        presentation=OF_TOPICS,
        predict=predicted_labels,
    )
    for model in (LabeledLDA, PartiallyLabeledLDA)
)
