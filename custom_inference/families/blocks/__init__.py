"""Stochastic block models: all labelings, mean field, variational Bayes, collapsed Gibbs; partitions to start from.

Three rooms read graphs, and differ in what their loops keep for each node. Here that is one block, with sums over a
matrix of few blocks; in ``memberships`` it is a pair of blocks for each of its dyads; in ``relations`` one cluster out
of any number, of entities of several types in several relations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from custom_inference.core.presentation import Presentation, block_labels
from custom_inference.core.registry import Family
from custom_inference.families.blocks.annealed import block_chains, covariate_chains
from custom_inference.families.blocks.bethe import SbmBethe, propagates
from custom_inference.families.blocks.covariates import CovariateExact, CovariateMeanField
from custom_inference.families.blocks.exact import SbmExact
from custom_inference.families.blocks.gibbs import BlockSampler
from custom_inference.families.blocks.mean_field import SbmMeanField
from custom_inference.families.blocks.propose import BlockProposals, CovariateProposals
from custom_inference.families.blocks.vb import SbmVB
from custom_inference.families.rows.graph import GraphRows
from ppl_models import SBM, CovariateSBM, Data, DegreeCorrectedSBM, GraphModel, InfiniteSBM, PoissonSBM

_PRESENTATION = Presentation(
    value="P(edge)",
    local="P(block | graph)",
    prominence=lambda _, params: params["block_proportion"],
    columns=lambda _, params: {"proportion": params["block_proportion"]},
    labels=block_labels,
)


def _covariate_labels(model: CovariateSBM, features: Sequence[Any]) -> list[Any]:
    """Return the columns of the component matrix (K, K F): the blocks, and the entries of f(x_i, x_j)."""
    entries = ["constant", *(f"{model.combine} {f}" for f in range(model.num_weights - 1))]
    return [f"{block}, {entry}" for block in block_labels(model, features) for entry in entries]


def _bethe_proposals(engine: Any) -> Any:
    """Loaded where they are used: with the compiler."""
    from custom_inference.families.blocks.bethe_starts import BetheProposals

    return BetheProposals(engine)


def _divide_nodes(model: GraphModel, data: Data, seed: int) -> NDArray[np.int64]:
    """Loaded where they are used: with the compiler."""
    from custom_inference.families.blocks.partitions import propose_partition

    likelihood = "poisson" if model.edge_kind == "counts" else "bernoulli"
    if any(site.endswith("propensity") for site in model.shapes):
        likelihood = "degree_corrected"
    return propose_partition(GraphRows.of(model, data), model.num_blocks, likelihood, seed, attempt=0)


FAMILIES = (
    Family(model=GraphModel, partition=_divide_nodes),
    *(
        Family(
            model=model,
            engines={"exact": SbmExact, "mean_field": SbmMeanField, "vb": SbmVB, "bethe": SbmBethe},
            search={**dict.fromkeys(("exact", "mean_field", "vb"), BlockProposals), "bethe": _bethe_proposals},
            stages={
                **dict.fromkeys(("exact", "mean_field", "vb"), ("partitions of high integrated likelihood",)),
                "bethe": ("partitions of the highest log Z",),
            },
            default=lambda model, _: "bethe" if propagates(model) else "vb",
            sampler=BlockSampler,
            own_threads=True,
            chains=block_chains,
            presentation=replace(_PRESENTATION, value=value),
        )
        for model, value in (
            (SBM, "P(edge)"),
            (InfiniteSBM, "P(edge)"),
            (PoissonSBM, "expected edges"),
            (DegreeCorrectedSBM, "expected edges"),
        )
    ),
    Family(
        model=CovariateSBM,
        engines={"exact": CovariateExact, "mean_field": CovariateMeanField},
        search=dict.fromkeys(("exact", "mean_field"), CovariateProposals),
        stages=("a partition of high integrated likelihood, without the features",),
        default="mean_field",
        chains=covariate_chains,
        own_threads=True,
        presentation=replace(_PRESENTATION, value="weight", labels=_covariate_labels),
    ),
)
