"""Cooperative vector quantizer (CVQ), also known as binary sparse coding.

Source 003: A. Diab, slides "Latent Variable Generative Models II" (2020), after M. Hauskrecht.

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
from typing import Any, ClassVar, Self

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models.core.errors import DataError, ModelError, warn_of_data
from ppl_models.core.model import Example, Model
from ppl_models.core.row_models import ComponentModel
from ppl_models.core.sites import Site
from ppl_models.core.units import centre_and_unit, centre_and_unit_of, require_units, values_of_entries
from ppl_models.data.columns import check_columns
from ppl_models.data.matrix import Data
from ppl_models.datasets.images import sample_cvq
from ppl_models.distributions import BernoulliVector, Flat
from ppl_models.likelihoods import Gaussian


@dataclass(frozen=True, kw_only=True, eq=False)
class CVQ(ComponentModel):
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

    per_feature_scale: bool = False
    centre: float | None = 0.0

    likelihood: ClassVar[Any] = Gaussian()  # with another scale; it says which data are valid

    def __post_init__(self) -> None:
        if not isinstance(self.per_feature_scale, bool):
            raise ModelError(f"per_feature_scale = {self.per_feature_scale!r}, expected True or False")
        require_units(self.centre, None)
        super().__post_init__()

    def on_scale_of(self, data: Data | None, *, like: Model | None = None, weights: Tensor | None = None) -> Self:
        """With the centre of the model ``like``, or else the mean of the observed entries, where it is left open."""
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

    def draw_locals(self, site: Mapping[str, Tensor]) -> Tensor:
        return pyro.sample("source", BernoulliVector(site["source_prior"]))

    def entries(self, site: Mapping[str, Tensor], local: Tensor) -> Any:
        mean = (self.centre or 0.0) + (local.unsqueeze(-2) @ site["weight"]).squeeze(-2)
        scale = site["scale"] if self.per_feature_scale else site["scale"].unsqueeze(-1)
        return dist.Normal(mean, scale.expand(mean.shape))

    def check_for_fitting(self, data: Data) -> None:
        """Columns without any entry are refused, and constant ones where every feature has its own scale.

        There the likelihood is unbounded: the scale of a constant feature goes to 0. With one shared scale they only
        carry no information, which is warned of, as is a centre that is farther from all entries than they are apart.
        """
        check_columns(data)
        self._warn_of_far_centre(data)
        observed = torch.ones_like(data.x, dtype=torch.bool) if data.mask is None else data.mask
        low = data.x.masked_fill(~observed, torch.inf).amin(0)
        high = data.x.masked_fill(~observed, -torch.inf).amax(0)
        constant = (low == high).nonzero().flatten().tolist()
        if not constant or len(data) == 1:
            return
        first = data.feature_names[constant[0]]
        problem = f"{len(constant)} of {data.num_features} columns are constant (the first: {first!r})"
        if len(constant) == data.num_features:
            raise DataError(problem, site="x", axis="feature", expected="at least one column that varies")
        if self.per_feature_scale:
            problem += ", and with a scale for every feature the likelihood is unbounded as theirs goes to 0"
            raise DataError(problem, site="x", axis="feature", expected="columns that vary, or per_feature_scale=False")
        warn_of_data(f"{problem}; they carry no information about the sources and lower the shared scale")

    def _warn_of_far_centre(self, data: Data) -> None:
        """Of data that are all on one side of the centre, and far: a source is spent on how far."""
        if self.centre is None:
            return
        value = values_of_entries(data).double()
        least, most, (mean, spread) = float(value.min()), float(value.max()), centre_and_unit(value)
        if max(least - self.centre, self.centre - most) > spread and least < most:
            found = f"entries of x lie between {least:.6g} and {most:.6g}, far from centre = {self.centre:.6g}"
            means = "which those of a row without active sources are about"
            warn_of_data(f"{found}, {means}; expected such a value, or centre=None, their mean {mean:.6g}")

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
