"""Mixed memberships of a graph's nodes: variational Bayes, CVB0, tiny graphs exactly, stochastic steps, Gibbs."""

from custom_inference.core.registry import Family
from custom_inference.families.memberships.cvb0 import MmsbCvb0, few_tables
from custom_inference.families.memberships.dirichlet import MmsbDirichlet
from custom_inference.families.memberships.exact import MmsbExact
from custom_inference.families.memberships.gibbs import MmsbSampler
from custom_inference.families.memberships.presentation import PRESENTATION
from custom_inference.families.memberships.propose import CountProposals, MembershipProposals, PosteriorProposals
from custom_inference.families.memberships.vb import MmsbVB
from ppl_models import MMSB

#: Of small graphs collapsed variational Bayes is the default: "vb" is too sure of their memberships.
FAMILIES = (
    Family(
        model=MMSB,
        engines={"exact": MmsbExact, "dirichlet": MmsbDirichlet, "vb": MmsbVB, "cvb0": MmsbCvb0},
        search={"dirichlet": MembershipProposals, "vb": PosteriorProposals, "cvb0": CountProposals},
        default=lambda model, _: "cvb0" if few_tables(model) else "vb",
        sampler=MmsbSampler,
        presentation=PRESENTATION,
    ),
)
