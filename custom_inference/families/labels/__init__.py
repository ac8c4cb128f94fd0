"""Documents with labels, classes or covariates: labelled and discriminative LDA, Dirichlet-multinomial and multinomial
regression."""

from dataclasses import replace
from functools import partial

from custom_inference.core.registry import Family
from custom_inference.families.labels.discriminative import ClassDirichlet, ClassProposals, predict_classes, token_share
from custom_inference.families.labels.engines import LabelledCvb0, LabelledDirichlet, LabelledVB, predict_labels
from custom_inference.families.labels.experts import ExpertsExact, ExpertsProposals, TwoStage, predict_words
from custom_inference.families.labels.gibbs import LabelledProposals, LabelledSampler
from custom_inference.families.labels.regression import RegressionDirichlet
from custom_inference.families.labels.regression_gibbs import RegressionSampler
from custom_inference.families.rows.documents import ByCells
from custom_inference.families.topics import OF_TOPICS
from custom_inference.families.topics.propose import TopicProposals
from custom_inference.families.topics.tokens import token_filter
from custom_inference.gibbs import CollapsedGibbs
from ppl_models import (
    DirichletMultinomialRegression,
    DiscriminativeLDA,
    LabeledLDA,
    MultinomialRegressionLDA,
    PartiallyLabeledLDA,
)

#: One chain: topics that complete documents better than those of the bounds, in less time. Of labels with a topic each
#: the bound predicts labels better.
SAMPLED = partial(CollapsedGibbs, chains=1, warmup=100, num_samples=30, thin=3)
#: What was stated of the priors stays.
LEARNING = partial(SAMPLED, learn="defaults")

_REGRESSION = Family(
    model=DirichletMultinomialRegression,
    engines={"dirichlet": RegressionDirichlet},
    methods={"gibbs": SAMPLED},
    default="gibbs",
    by_size=ByCells("dirichlet"),
    search=TopicProposals,
    stages=("collapsed Gibbs sampling, topics merged",),
    sampler=RegressionSampler,
    estimator=token_filter,
    presentation=OF_TOPICS,
)
_DISCRIMINATIVE = Family(
    model=DiscriminativeLDA,
    engines={"dirichlet": ClassDirichlet},
    default="dirichlet",
    search=ClassProposals,
    stages=("collapsed Gibbs sampling, topics merged",),
    estimator=token_filter,
    presentation=replace(OF_TOPICS, share=token_share(OF_TOPICS.share)),
    predict=predict_classes,
    otherwise=Family(model=DiscriminativeLDA),
)
_EXPERTS = Family(
    model=MultinomialRegressionLDA,
    engines={"exact": ExpertsExact},
    default="exact",
    search=ExpertsProposals,
    stages=("collapsed Gibbs sampling, and random starts in turns",),
    methods={"two_stage": TwoStage},
    presentation=OF_TOPICS,
    predict=predict_words,
    reads_queries=True,
)
FAMILIES = (
    _REGRESSION,
    _DISCRIMINATIVE,
    _EXPERTS,
    *(
        Family(
            model=model,
            engines={"dirichlet": LabelledDirichlet, "vb": LabelledVB, "cvb0": LabelledCvb0},
            methods={"gibbs": LEARNING},
            default=default,
            by_size=None if default == "vb" else ByCells("vb"),
            search=LabelledProposals,
            stages=("collapsed Gibbs sampling within labels, topics merged",),
            sampler=LabelledSampler,
            estimator=token_filter,
            presentation=OF_TOPICS,
            predict=predict_labels,
        )
        for model, default in ((LabeledLDA, "vb"), (PartiallyLabeledLDA, "gibbs"))
    ),
)
