"""Topics and syntax: variational EM and collapsed Gibbs sampling of hidden Markov models with a state of topics."""

from functools import partial

from custom_inference.core.presentation import Presentation
from custom_inference.core.registry import Family
from custom_inference.families.syntax.dirichlet import SyntaxDirichlet, SyntaxVB
from custom_inference.families.syntax.gibbs import SyntaxSampler
from custom_inference.families.syntax.propose import SyntaxProposals
from custom_inference.families.syntax.tokens import content_share, tokens
from custom_inference.gibbs import CollapsedGibbs
from ppl_models import LDAHMM

#: One chain from near the optimum of variational Bayes: what the default runs.
SAMPLED = partial(CollapsedGibbs, chains=1, warmup=10, num_samples=60, thin=1)

FAMILIES = (
    Family(
        model=LDAHMM,
        engines={"dirichlet": SyntaxDirichlet, "vb": SyntaxVB},
        search=SyntaxProposals,
        stages=("a hidden Markov model, then Gibbs sampling of topics",),
        sampler=SyntaxSampler,
        methods={"gibbs": SAMPLED},
        default="gibbs",
        presentation=Presentation(value="P(word | topic)", local="topic proportion", share=content_share),
        tokens=tokens,
    ),
)
