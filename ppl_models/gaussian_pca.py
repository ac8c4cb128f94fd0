"""Gaussian PCA, which is probabilistic PCA: real rows whose means are linear in a few Gaussian scores.

Source 002, section 27.2.2 (Tipping & Bishop, *Probabilistic principal component analysis*, JRSS B 61, 1999):

    s_n        ~ Normal(0, I_K)                                                   n = 1..N
    x_nj | s_n ~ Normal(b_j + sum_k s_nk w_kj, sigma^2)                           j = 1..D

The scores can be summed out: x_n ~ Normal(b, W'W + sigma^2 I). Under flat priors the maximum of the likelihood has b
the mean and W the K leading eigenvectors of the covariance, of squared lengths lambda_k - sigma^2, with sigma^2 the
mean of the other eigenvalues. With a scale for every feature it is factor analysis.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models.core.errors import DataError, ModelError
from ppl_models.core.model import Example
from ppl_models.core.priors import is_flat
from ppl_models.core.row_models import ComponentModel
from ppl_models.core.sites import Site
from ppl_models.data.columns import check_columns
from ppl_models.data.matrix import Data
from ppl_models.distributions import Flat
from ppl_models.exponential_family_pca import LinearScores
from ppl_models.likelihoods import Gaussian


@dataclass(frozen=True, kw_only=True, eq=False)
class GaussianPCA(LinearScores, ComponentModel):
    """Gaussian PCA (probabilistic PCA): the means of x are linear in K Gaussian scores.

    per_feature_scale: a scale for every feature, which makes it factor analysis.

    Sites
    -----
    weight: w (K, D); improper flat by default.
    bias: b (D,), the mean at score 0; improper flat by default.
    scale: sigma, the standard deviation of the noise: (), or (D,) with ``per_feature_scale``; improper flat in
        sigma by default. ``with_priors(scale=0.5)`` holds it there.
    score: s (N, K), one event vector a row; Normal(0, 1) by default.
    x: (N, D), observed.

    Raises ModelError for K > D: the weights would not be identified.
    """

    per_feature_scale: bool = False

    likelihood: ClassVar[Any] = Gaussian()  # with another scale; it says which data are valid
    wide_reason: ClassVar[str | None] = "the weights span no more than D dimensions"

    def __post_init__(self) -> None:
        if not isinstance(self.per_feature_scale, bool):
            raise ModelError(f"per_feature_scale = {self.per_feature_scale!r}, expected True or False")
        super().__post_init__()

    @property
    def sites(self) -> Mapping[str, Site]:
        known = dict(LinearScores.sites)
        axes = ("feature",) if self.per_feature_scale else ()
        scale = Site("global", axes, support=constraints.positive)
        return {"weight": known["weight"], "bias": known["bias"], "scale": scale, **known}

    def default_priors(self) -> dict[str, Any]:
        flat = Flat(dist.Normal(0.0, 1.0))
        scale = Flat(dist.LogNormal(-1.0, 0.5))
        return {"weight": flat, "bias": flat, "scale": scale, "score": dist.Normal(0.0, 1.0)}

    def entries(self, site: Mapping[str, Tensor], local: Tensor) -> Any:
        mean = self.natural(site, local)
        scale = site["scale"] if self.per_feature_scale else site["scale"].unsqueeze(-1)
        return dist.Normal(mean, scale.expand(mean.shape))

    def check_for_fitting(self, data: Data) -> None:
        """Refuses columns without any observed entry, and data in which none varies where the scale is to be learned
        under a flat prior: the likelihood is unbounded as the scale goes to 0."""
        check_columns(data)
        seen = torch.ones_like(data.x, dtype=torch.bool) if data.mask is None else data.mask
        low, high = data.x.masked_fill(~seen, torch.inf).amin(0), data.x.masked_fill(~seen, -torch.inf).amax(0)
        if bool((low == high).all()) and is_flat(self.priors["scale"]):
            found = "one row" if len(data) == 1 else f"all {data.num_features} columns are constant"
            expected = "columns that vary, or a proper prior of 'scale': the likelihood is unbounded as that goes to 0"
            raise DataError(found, site="x", axis="row" if len(data) == 1 else "feature", expected=expected)

    def num_parameters(self, num_rows: int) -> int:
        """As of other likelihoods, and the scales."""
        scales = self.num_features if self.per_feature_scale else 1
        return super().num_parameters(num_rows) + scales * ("scale" in self.unknown_sites)

    @classmethod
    def example(cls) -> Example:
        """Two components over six features, sixty rows."""
        generator = torch.Generator().manual_seed(23)
        truth = {
            "weight": torch.tensor([[1.5, 1.2, -1.0, -1.5, 0.3, 0.0], [0.3, -0.3, 0.4, -0.2, 1.0, -1.0]]),
            "bias": torch.tensor([0.0, -0.5, 2.5, 0.0, -1.0, 0.5]),
            "scale": torch.tensor(0.6),
            "score": torch.randn((60, 2), generator=generator),
        }
        mean = truth["bias"] + truth["score"] @ truth["weight"]
        x = mean + truth["scale"] * torch.randn((60, 6), generator=generator)
        return Example(model=cls(num_components=2, num_features=6), data=Data(x=x), truth=truth)
