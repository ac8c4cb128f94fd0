"""Mixture of Poissons: every row of counts belongs to one of K classes, each with its own rates of the features.

Source 002: Murphy, *Machine Learning: a Probabilistic Perspective*, section 27.2.1, eq. 27.5.

    q_n ~ Categorical(pi)                                           n = 1..N
    p(n_n | q_n = k) = prod_j Poisson(n_nj | lambda_kj)             j = 1..D        (eq. 27.5)

The total L_n of a row is modelled too: L_n | q_n = k ~ Poisson(sum_j lambda_kj). Given the totals it is the mixture of
multinomials of eq. 27.4 with b_kj = lambda_kj / sum_j' lambda_kj', and proportions of the classes that depend on L_n.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyro.distributions as dist
import torch
from torch.distributions import constraints

from ppl_models.core.model import Example
from ppl_models.core.row_models import ComponentModel, MixtureOf
from ppl_models.core.sites import Site
from ppl_models.data.matrix import Data
from ppl_models.likelihoods import Poisson


@dataclass(frozen=True, kw_only=True, eq=False)
class MixtureOfPoissons(MixtureOf, ComponentModel):
    """Mixture of Poissons: each row of counts is drawn from one of K classes.

    Sites
    -----
    mixing_proportion: pi (K,) on the simplex; flat (Dirichlet of ones) by default.
    rate: lambda (K, D), expected counts in class k; Gamma(.1, .1) by default.
    assignment: q (N, K), one-hot.
    x: (N, D), observed, whole numbers of at least 0, dense or sparse; masked entries drop out of the product.

    A Gamma(a, b) prior with a < 1 adds a events to b rows: EM's estimate is then
    (a + sum_n r_nk x_nj) / (b + sum_n r_nk m_nj), the mode in the basis of log lambda; with a >= 1 it is the mode of
    lambda, which has a - 1 in place of a.
    """

    likelihood: ClassVar[Any] = Poisson()
    keeps_sparse: ClassVar[bool] = True
    sites: ClassVar[Mapping[str, Site]] = {
        **MixtureOf.sites,
        "rate": Site("global", ("component", "feature"), support=constraints.positive),
        "x": Site("observed", ("feature",), ("row",), constraints.nonnegative_integer),
    }

    def default_priors(self) -> dict[str, Any]:
        return {**super().default_priors(), "rate": dist.Gamma(0.1, 0.1)}

    @classmethod
    def example(cls) -> Example:
        """Three classes over six features, sixty rows."""
        generator = torch.Generator().manual_seed(4)
        proportion = torch.tensor([0.5, 0.3, 0.2])
        rate = torch.tensor(
            [[3.0, 2.0, 3.0, 0.5, 0.3, 0.5], [0.4, 0.3, 1.0, 3.0, 4.0, 2.0], [6.0, 4.5, 6.0, 4.0, 1.0, 1.0]]
        )
        assignment = torch.eye(3)[torch.multinomial(proportion, 60, replacement=True, generator=generator)]
        x = torch.poisson(assignment @ rate, generator=generator)
        truth = {"mixing_proportion": proportion, "rate": rate, "assignment": assignment}
        return Example(model=cls(num_components=3, num_features=6), data=Data(x=x), truth=truth)
