"""The hierarchical Dirichlet process as a topic model: sampler of the process, variational EM of its truncation."""

from custom_inference.core.registry import Family
from custom_inference.families.hdp.engine import HdpDirichlet, HdpProposals
from custom_inference.families.hdp.gibbs import HdpSampler
from custom_inference.families.topics import OF_TOPICS
from custom_inference.families.topics.tokens import token_filter
from ppl_models import HDP

FAMILIES = (
    Family(
        model=HDP,
        engines={"dirichlet": HdpDirichlet},
        default="dirichlet",
        search=HdpProposals,
        stages=("collapsed Gibbs sampling of topics and their number",),
        sampler=HdpSampler,
        estimator=token_filter,
        presentation=OF_TOPICS,
    ),
)
