"""Topic models of documents with responses: variational and Monte Carlo EM, collapsed Gibbs sampling,
prediction-constrained training.

May import the rooms ``common`` and ``topics``.
"""

from dataclasses import replace

from custom_inference.core.presentation import Params, Presentation
from custom_inference.core.registry import Family
from custom_inference.families.responses.constrained import PredictionConstrained
from custom_inference.families.responses.gibbs import SupervisedSampler
from custom_inference.families.responses.monte_carlo import MonteCarloEM
from custom_inference.families.responses.predict import predict_response
from custom_inference.families.responses.supervised import SupervisedDirichlet
from custom_inference.families.topics import OF_TOPICS
from custom_inference.families.topics.propose import TopicProposals
from custom_inference.families.topics.tokens import token_filter
from ppl_models import Model, SupervisedLDA


def _weights(model: Model, params: Params) -> dict:
    """A column of the report for every response or class."""
    weight = params["response_weight"]
    if weight.ndim == 1:
        return {"weight": weight}
    return {f"weight of {place}": one for place, one in enumerate(weight)}


OF_RESPONSES: Presentation = replace(OF_TOPICS, columns=_weights)

FAMILIES = (
    Family(
        model=SupervisedLDA,
        otherwise=Family(model=SupervisedLDA, predict=predict_response),
        engines={"dirichlet": SupervisedDirichlet},
        search=TopicProposals,
        stages=("collapsed Gibbs sampling, topics merged",),
        sampler=SupervisedSampler,
        methods={"prediction_constrained": PredictionConstrained, "monte_carlo_em": MonteCarloEM},
        default="prediction_constrained",
        estimator=token_filter,
        presentation=OF_RESPONSES,
        predict=predict_response,
    ),
)
