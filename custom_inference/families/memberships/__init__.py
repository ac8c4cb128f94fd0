"""Mixed memberships of a graph's nodes: variational Bayes, CVB0, tiny graphs exactly, stochastic steps, Gibbs."""

from custom_inference.core.presentation import Presentation, block_labels, mean_membership
from custom_inference.core.registry import Family
from custom_inference.families.memberships.annealed import pair_chains
from custom_inference.families.memberships.cvb0 import FEASIBLE_UP_TO, MmsbCvb0, table_size
from custom_inference.families.memberships.exact import MmsbExact
from custom_inference.families.memberships.gibbs import MmsbSampler
from custom_inference.families.memberships.initialisation import MembershipProposals
from custom_inference.families.memberships.variational import MmsbDirichlet, MmsbVB
from ppl_models import MMSB

#: Of small graphs collapsed variational Bayes is the default: "vb" is too sure of their memberships.
FAMILIES = (
    Family(
        model=MMSB,
        otherwise=Family(model=MMSB),
        engines={"exact": MmsbExact, "dirichlet": MmsbDirichlet, "vb": MmsbVB, "cvb0": MmsbCvb0},
        search=dict.fromkeys(("dirichlet", "vb", "cvb0"), MembershipProposals),
        stages=dict.fromkeys(("dirichlet", "vb", "cvb0"), ("partitions and overlapping communities in turns",)),
        default=lambda model, _: "cvb0" if table_size(model, model.num_nodes) <= FEASIBLE_UP_TO else "vb",
        sampler=MmsbSampler,
        own_threads=True,
        chains=pair_chains,
        presentation=Presentation(value="P(edge)", local="membership", share=mean_membership, labels=block_labels),
    ),
)
