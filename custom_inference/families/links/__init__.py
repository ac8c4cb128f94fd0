"""Topic models of documents with links: collapsed Gibbs sampling, variational EM, predicted links and words.

May import the rooms ``common``, ``topics`` and ``responses``.
"""

from dataclasses import replace
from functools import partial

from custom_inference.core.presentation import Presentation
from custom_inference.core.registry import Family
from custom_inference.families.links.predict import predict_links
from custom_inference.families.links.sampler import LinkSampler
from custom_inference.families.links.variational import LinkedDirichlet
from custom_inference.families.rows.documents import ByCells
from custom_inference.families.topics import OF_TOPICS, num_words
from custom_inference.families.topics.propose import TopicProposals
from custom_inference.families.topics.tokens import token_filter
from custom_inference.gibbs import CollapsedGibbs
from ppl_models import RTM

OF_LINKS: Presentation = replace(
    OF_TOPICS, columns=lambda model, params: {"words": num_words(params), "link weight": params["link_weight"]}
)
#: Chains that end in as many modes, over which predicted links are averaged: more of them help more than longer ones.
SAMPLED = partial(CollapsedGibbs, chains=8, warmup=40, num_samples=6, thin=4)

FAMILIES = (
    Family(
        model=RTM,
        engines={"dirichlet": LinkedDirichlet},
        search=TopicProposals,
        stages=("collapsed Gibbs sampling, topics merged",),
        sampler=LinkSampler,
        methods={"gibbs": SAMPLED},
        default="gibbs",
        by_size=ByCells("dirichlet"),
        estimator=token_filter,
        presentation=OF_LINKS,
        predict=predict_links,
        reads_queries=True,
    ),
)
