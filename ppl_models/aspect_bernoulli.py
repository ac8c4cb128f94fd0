"""The aspect Bernoulli model (AB); with counts of two, the ADMIXTURE model of genetics.

Bingham, Kaban & Fortelius, *The aspect Bernoulli model: multiple causes of presences and absences*,
Pattern Analysis and Applications (2007), sections 2.1-2.2. With K aspects, rows n and features t:

    s_n          ~ Dirichlet(alpha)            membership; uniform on the simplex by default    (below eq. 1)
    z_nt | s_n   ~ Categorical(s_n)            which aspect generates the entry                 (below eq. 1)
    x_nt | z, a  ~ Bernoulli(a_{z_nt, t})                                                       (below eq. 1)

Every entry draws its own aspect. Summing z out leaves a Bernoulli whose mean is a convex combination (eqs. 10-11):

    p(x_n | s_n, a) = prod_t p_nt^x_nt (1 - p_nt)^(1 - x_nt),       p_nt = sum_k s_nk a_kt

With ``total_count`` m > 1 an entry is the sum of m such draws, each with its own aspect: Binomial(m, p_nt). Genotypes
are counts of m = 2; this is then the model of Alexander, Novembre & Lange, Genome Research 19 (2009).
The source writes a_tk and s_kn; here ``aspect_probability[k, t]`` and ``membership[n, k]``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Unpack

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models.core.errors import ModelError
from ppl_models.core.model import Example
from ppl_models.core.plates import Plate
from ppl_models.core.row_models import ComponentModel
from ppl_models.core.sites import Site
from ppl_models.data.columns import check_columns
from ppl_models.data.matrix import Data
from ppl_models.likelihoods import Bernoulli, Binomial


@dataclass(frozen=True, kw_only=True, eq=False)
class AspectBernoulli(ComponentModel):
    """Aspect Bernoulli: every entry of a row comes from one of K aspects, in the row's own mix.

    total_count: draws per entry, m; 1 for binary data, 2 for genotypes.

    Sites
    -----
    aspect_probability: a (K, D), P(entry = 1 | aspect); flat on [0, 1] by default.
    membership: s (N, K), each row on the simplex, local; uniform, Dirichlet(1, ..., 1), by default.
    x: (N, D), observed, whole numbers from 0 to ``total_count``.

    The entries' aspects z are summed out; :class:`AspectBernoulliIndicator` keeps them. Swap a prior with
    ``model.with_priors(aspect_probability=dist.Beta(1.2, 1.6), membership=dist.Dirichlet(torch.full((K,), 1.5)))``.
    """

    total_count: int = 1

    keeps_sparse: ClassVar[bool] = True
    whole_fields: ClassVar[tuple[str, ...]] = ("total_count",)
    sites: ClassVar[Mapping[str, Site]] = {
        "aspect_probability": Site("global", ("component", "feature"), support=constraints.unit_interval),
        "membership": Site("latent", ("component",), ("row",), constraints.simplex),
        "x": Site("observed", ("feature",), ("row",), constraints.nonnegative_integer),
    }

    @property
    def likelihood(self) -> Bernoulli | Binomial:
        # Bernoulli for one draw: the same distribution, without Binomial's gamma functions.
        return Bernoulli() if self.total_count == 1 else Binomial(self.total_count)

    def __call__(self, x: Tensor | None = None, **plate: Unpack[Plate]) -> Tensor:
        aspect = self.sample("aspect_probability")
        with self.rows(x, **plate) as rows:
            membership = self.sample("membership")
            mean = (membership @ aspect).clamp(0.0, 1.0)  # rounding can push a convex combination of ones past 1
            return rows.observe("x", self.likelihood.with_mean(mean))

    def check_for_fitting(self, data: Data) -> None:
        """Binary rules; counts, which may be constant without harm, only need an observed entry in every column."""
        if self.total_count == 1:
            super().check_for_fitting(data)
        else:
            check_columns(data)

    @classmethod
    def example(cls) -> Example:
        """Three aspects over nine features, sixty rows."""
        aspect = torch.full((3, 9), 0.05)
        for k in range(3):
            aspect[k, 3 * k : 3 * k + 3] = 0.9
        aspect[2, 0] = 0.5
        membership = torch.as_tensor(np.random.default_rng(7).dirichlet([0.5] * 3, 60), dtype=aspect.dtype)
        generator = torch.Generator().manual_seed(7)
        x = torch.bernoulli(membership @ aspect, generator=generator)
        truth = {"aspect_probability": aspect, "membership": membership}
        return Example(model=cls(num_components=3, num_features=9), data=Data(x=x), truth=truth)


@dataclass(frozen=True, kw_only=True, eq=False)
class AspectBernoulliIndicator(AspectBernoulli):
    """The same model with the aspect of every entry kept as a site, for enumeration and attribution.

    indicator: z (N, D), the aspect that generated the entry (eq. 1); marked for parallel enumeration. Summed out it
    leaves :class:`AspectBernoulli`. Binary data only: with m > 1 an entry would have m indicators.
    """

    sites: ClassVar[Mapping[str, Site]] = {
        **AspectBernoulli.sites,
        "indicator": Site("latent", (), ("row", "feature"), choice="component"),
    }
    listed: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.total_count != 1:
            raise ModelError(f"total_count = {self.total_count}, expected 1: an entry has one indicator")

    def __call__(self, x: Tensor | None = None, **plate: Unpack[Plate]) -> Tensor:
        aspect = self.sample("aspect_probability")
        with self.rows(x, **plate) as rows:
            membership = self.sample("membership")
        feature, mask = torch.arange(self.num_features, device=membership.device), rows.of(rows.mask)
        # The entries lie on two axes; this plate repeats the rows drawn above, so that both are scaled alike.
        again = pyro.plate("row", rows.plate.size, subsample=rows.places, dim=-2)
        with again, pyro.plate("feature", self.num_features, dim=-1):
            categorical = dist.Categorical(membership.unsqueeze(-2))
            indicator = pyro.sample("indicator", categorical, infer={"enumerate": "parallel"})
            likelihood: Any = dist.Bernoulli(aspect[indicator, feature])
            return pyro.sample("x", likelihood if mask is None else likelihood.mask(mask), obs=rows.of(rows.x))
