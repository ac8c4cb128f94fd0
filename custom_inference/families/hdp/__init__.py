"""The hierarchical Dirichlet process as a topic model: sampler of the process, variational Bayes, point estimates."""

from custom_inference.core.registry import Family
from custom_inference.families.hdp.engine import HdpDirichlet
from custom_inference.families.hdp.gibbs import HdpSampler
from custom_inference.families.hdp.propose import HdpProposals
from custom_inference.families.hdp.variational import HdpVB
from custom_inference.families.topics import OF_TOPICS
from custom_inference.families.topics.tokens import token_filter
from ppl_models import HDP

FAMILIES = (
    Family(
        model=HDP,
        engines={"dirichlet": HdpDirichlet, "vb": HdpVB},
        default=lambda model, _: "vb" if HdpVB.suits(model) else "dirichlet",
        search=HdpProposals,
        stages=("Gibbs sampling of topics and their number",),
        sampler=HdpSampler,
        estimator=token_filter,
        presentation=OF_TOPICS,
    ),
)
