"""Cooperative vector quantizer (CVQ), also known as binary sparse coding.

Diab, *Latent Variable Generative Models II*, lecture slides (2020), after Hauskrecht.

    s_i   ~ Bernoulli(pi_i)                                            i = 1..K
    x | s ~ Normal(sum_i s_i w_i, sigma^2 I)                           x in R^D

so that, with the printed normalisation corrected (the slides have 2^{-d/2} sigma^{-d/2} and Sigma = sigma I),

    p(x, s) = (2 pi sigma^2)^{-D/2} exp[-(x - s W)'(x - s W) / (2 sigma^2)] prod_i pi_i^{s_i} (1 - pi_i)^{1 - s_i}.

There is no constant term: a row without active sources is noise around 0. Here it is noise around ``centre``, a number
that is known, 0 by default: x - centre is what the source calls x. Data with another baseline need one source more,
whose prior goes to 1 (centred data have a baseline too: minus the mean of what the sources add).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self, Unpack

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models.core.model import Example, Model
from ppl_models.core.plates import Plate
from ppl_models.core.sites import Site
from ppl_models.core.units import centre_and_unit_of
from ppl_models.data.matrix import Data
from ppl_models.datasets.images import sample_cvq
from ppl_models.distributions import BernoulliVector, Flat
from ppl_models.kinds.noisy_rows import NoiseAboutCentre


@dataclass(frozen=True, kw_only=True, eq=False)
class CVQ(NoiseAboutCentre):
    """Cooperative vector quantizer: x is the sum of the weights of K binary sources, and noise.

    centre: what every entry of a row without active sources is expected to be; None: the mean of the entries that are
        fitted, or 0 where the program runs by itself. The sources that are learned from a x + b about a c + b are those
        that are learned from x about c, in these units.

    Sites
    -----
    source_prior: pi (K,), P(s_i = 1); prior flat on [0, 1] by default.
    weight: w (K, D), what source i adds to feature j; improper flat by default.
    scale: sigma, the standard deviation of the noise: (), or (D,) with ``per_feature_scale``; improper flat in
        sigma by default.
    source: s (N, K), one event vector a row.
    x: (N, D), observed.

    The flat defaults give maximum likelihood. ``Flat`` distributions can be drawn from, so the program runs forwards:
    weights from Normal(0, 1), sigma from LogNormal(-1, 0.5). Closed-form steps take Beta, Normal, and LogNormal or
    InverseGamma priors: ``model.with_priors(weight=dist.Normal(0., 2.), scale=dist.InverseGamma(3., 1.))``. The prior
    of ``scale`` is one on sigma, not on sigma^2.
    """

    def on_scale_of(self, data: Data | None, *, like: Model | None = None, weights: Tensor | None = None) -> Self:
        """Return this model with an open centre as that of the model ``like``, or the mean of the observed entries."""
        if self.centre is not None:
            return self
        if isinstance(like, CVQ) and like.centre is not None:
            return replace(self, centre=like.centre)
        return replace(self, centre=centre_and_unit_of(data, weights)[0])

    @property
    def sites(self) -> Mapping[str, Site]:
        return {
            "source_prior": Site("global", ("component",), support=constraints.unit_interval),
            "weight": Site("global", ("component", "feature")),
            "scale": Site("global", ("feature",) if self.per_feature_scale else (), support=constraints.positive),
            "source": Site("latent", ("component",), ("row",), constraints.boolean),
            "x": Site("observed", ("feature",), ("row",), constraints.real),
        }

    def default_priors(self) -> dict[str, Any]:
        return {
            **super().default_priors(),
            "weight": Flat(dist.Normal(0.0, 1.0)),
            "scale": Flat(dist.LogNormal(-1.0, 0.5)),
        }

    def __call__(self, x: Tensor | None = None, **plate: Unpack[Plate]) -> Tensor:
        source_prior = self.sample("source_prior")
        weight = self.sample("weight")
        scale = self.sample("scale")
        with self.rows(x, **plate) as rows:
            source = pyro.sample("source", BernoulliVector(source_prior))
            mean = (self.centre or 0.0) + (source.unsqueeze(-2) @ weight).squeeze(-2)
            return rows.observe("x", dist.Normal(mean, scale if self.per_feature_scale else scale.unsqueeze(-1)))

    @classmethod
    def example(cls) -> Example:
        """Three overlapping sources over six features, sixty rows."""
        weight = torch.tensor(
            [[0.9, 0.8, 0.1, 0.1, 0.05, 0.1], [0.1, 0.6, 0.9, 0.7, 0.1, 0.05], [0.05, 0.1, 0.1, 0.5, 0.9, 0.95]]
        ).to(torch.get_default_dtype())
        truth = {
            "source_prior": torch.tensor([0.3, 0.4, 0.25]).to(weight),
            "weight": weight,
            "scale": torch.tensor(0.2).to(weight),
        }
        drawn = sample_cvq(truth, 60, seed=11)
        return Example(model=cls(num_components=3, num_features=6), data=drawn.data, truth=drawn.truth)
