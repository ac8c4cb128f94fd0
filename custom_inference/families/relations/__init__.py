"""Relational models: clusters of the entities of several types, by search, collapsed Gibbs sampling,
variational Bayes, or all of them."""

from custom_inference.core.presentation import Presentation
from custom_inference.core.registry import Family
from custom_inference.families.relations.exact import FEW, number_of_clusterings
from custom_inference.families.relations.methods import ExactPartitions, PartitionSearch, RelationGibbs, RelationVB
from custom_inference.families.relations.result import RelationFit, predict
from ppl_models import IRM

FAMILIES = (
    Family(
        model=IRM,
        methods={"search": PartitionSearch, "gibbs": RelationGibbs, "vb": RelationVB, "exact": ExactPartitions},
        alone=True,
        own_threads=True,
        default=lambda model, _: "exact" if number_of_clusterings(model) <= FEW else "search",
        presentation=Presentation(value="posterior mean of a cell", local="cluster"),
        predict=predict,
        reads_queries=True,
        result=RelationFit,
    ),
)
