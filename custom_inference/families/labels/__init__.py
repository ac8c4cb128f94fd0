"""Documents with labels or covariates: labelled and partially labelled LDA, Dirichlet-multinomial regression."""

from custom_inference.core.registry import Family
from custom_inference.families.labels.engines import LabelledCvb0, LabelledDirichlet, LabelledVB
from custom_inference.families.labels.gibbs import LabelledSampler
from custom_inference.families.labels.predict import predicted_labels
from custom_inference.families.labels.propose import LabelledProposals
from custom_inference.families.labels.regression import RegressionDirichlet
from custom_inference.families.labels.regression_gibbs import RegressionSampler
from custom_inference.families.topics import OF_TOPICS
from custom_inference.families.topics.propose import TopicProposals
from ppl_models import DirichletMultinomialRegression, LabeledLDA, PartiallyLabeledLDA

_REGRESSION = Family(
    model=DirichletMultinomialRegression,
    engines={"dirichlet": RegressionDirichlet},
    default="dirichlet",
    search=TopicProposals,
    sampler=RegressionSampler,
    presentation=OF_TOPICS,
)
FAMILIES = (
    _REGRESSION,
    *(
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
    ),
)
