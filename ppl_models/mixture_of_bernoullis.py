"""Mixture of Bernoullis: every row belongs to one of K classes, each with its own probabilities of the features.

The baseline of source 001 (Bingham, Kaban & Fortelius, *The aspect Bernoulli model*, section 3), where a row has one
class, and not a mixture of them as in the aspect Bernoulli model.

    z_n        ~ OneHotCategorical(pi)                                            n = 1..N
    x_nt | z_n ~ Bernoulli(sum_k z_nk p_kt)                                       t = 1..D
    p(x_n)     = sum_k pi_k prod_t p_kt^x_nt (1 - p_kt)^(1 - x_nt)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch.distributions import constraints

from ppl_models.core.model import Example
from ppl_models.core.row_models import ComponentModel, MixtureOf
from ppl_models.core.sites import Site
from ppl_models.data.matrix import Data
from ppl_models.likelihoods import Bernoulli


@dataclass(frozen=True, kw_only=True, eq=False)
class MixtureOfBernoullis(MixtureOf, ComponentModel):
    """Mixture of Bernoullis: each row is drawn from one of K classes.

    Sites
    -----
    mixing_proportion: pi (K,) on the simplex; flat (Dirichlet of ones) by default.
    probability: p (K, D), P(x_nt = 1 | class k); flat on [0, 1] by default.
    assignment: z (N, K), one-hot.
    x: (N, D), observed.

    With the flat default priors EM gives maximum likelihood, under which a feature that no row of a class shows has
    probability 0 there; ``model.with_priors(probability=dist.Beta(1.1, 1.1))`` keeps off the edges.
    """

    likelihood: ClassVar[Any] = Bernoulli()
    sites: ClassVar[Mapping[str, Site]] = {
        **MixtureOf.sites,
        "probability": Site("global", ("component", "feature"), support=constraints.unit_interval),
        "x": Site("observed", ("feature",), ("row",), constraints.boolean),
    }

    @classmethod
    def example(cls) -> Example:
        """Three classes over six features, eighty rows."""
        generator = torch.Generator().manual_seed(11)
        proportion = torch.tensor([0.5, 0.3, 0.2])
        probability = torch.tensor(
            [[0.9, 0.85, 0.8, 0.1, 0.1, 0.15], [0.1, 0.1, 0.2, 0.8, 0.9, 0.9], [0.8, 0.2, 0.1, 0.1, 0.15, 0.9]]
        )
        chosen = torch.multinomial(proportion, 80, replacement=True, generator=generator)
        assignment = torch.eye(3)[chosen]
        x = torch.bernoulli(assignment @ probability, generator=generator)
        truth = {"mixing_proportion": proportion, "probability": probability, "assignment": assignment}
        return Example(model=cls(num_components=3, num_features=6), data=Data(x=x), truth=truth)
