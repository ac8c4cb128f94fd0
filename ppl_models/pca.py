"""Exponential-family PCA: rows of any kind of data, whose natural parameters are linear in a few Gaussian scores.

Murphy (2012), section 27.2.2. Collins, Dasgupta & Schapire, *A
generalization of principal component analysis to the exponential family* (NIPS 2002), estimate scores and weights as
points; Tipping, *Probabilistic visualisation of high-dimensional binary data* (NIPS 1999) integrates the scores out, as
in eq. 27.10. Rows n = 1..N, features j = 1..D, components k = 1..K:

    s_n        ~ Normal(0, I_K)
    eta_nj     = b_j + sum_k s_nk w_kj
    x_nj | s_n ~ p(x | eta_nj)      log p(x | eta) = (T(x) . eta - A(eta)) / phi + log h(x)

    LogisticPCA   Bernoulli(sigmoid(eta_nj))        the baseline of the papers on NOCA and aspect Bernoulli
    PoissonPCA    Poisson(exp(o_n + eta_nj))        eq. 27.9, with a known log exposure o_n of every row
    GaussianPCA   Normal(eta_nj, sigma^2)           probabilistic PCA, factor analysis with a scale for every feature

Nothing changes if the scores are turned by an orthogonal matrix and the weights with them: only the space that the
weights span and their lengths in it are identified. Fits by closed-form steps are turned so that the rows of the weight
are orthogonal, the longest first, and the largest entry of each is positive.

Schein, Saul & Ungar, *A generalized linear model for principal component analysis of binary data* (AISTATS 2003);
Townes, Hicks, Aryee & Irizarry, *Feature selection and dimension reduction for single-cell RNA-seq based on a
multinomial model* (2019); Tipping & Bishop, *Probabilistic principal component analysis*, JRSS B 61, 1999.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, Unpack

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models.core.errors import ModelError, unknown_name
from ppl_models.core.linear_scores import LinearScores
from ppl_models.core.model import Example, Model
from ppl_models.core.plates import Plate
from ppl_models.core.priors import describe_prior
from ppl_models.core.row_models import ComponentModel
from ppl_models.core.sites import Site
from ppl_models.core.units import require_units, set_centre_and_unit
from ppl_models.data.held import is_listed, is_string
from ppl_models.data.matrix import Data
from ppl_models.distributions import Flat
from ppl_models.kinds.noisy_rows import NoisyRows
from ppl_models.kinds.rows_beside import ExposedCounts
from ppl_models.likelihoods import Bernoulli, Binomial, Gaussian, Likelihood, Poisson

#: The likelihoods of one number a feature, by name, with what each needs to be known.
_LIKELIHOODS: dict[str, type[Likelihood]] = {
    "bernoulli": Bernoulli, "binomial": Binomial, "gaussian": Gaussian, "poisson": Poisson,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class ExponentialFamilyPCA(LinearScores, ComponentModel):
    """Exponential-family PCA: the natural parameters of x are linear in K Gaussian scores.

    likelihood: ``Bernoulli()``, ``Binomial(total)``, ``Poisson()`` or ``Gaussian(scale)``, of one entry each, from
        ``ppl_models.likelihoods``; or its name, "poisson", or a pair of that and what it needs, ("binomial", {"total":
        2}). The scale of real entries is in their units.
    centre, unit: c and u of real entries, (x - c) / u of which have the default priors below with c = 0 and u = 1;
        None: the mean and the standard deviation of the entries that are fitted, or 0 and 1 where the program runs by
        itself. Values of all sites, and priors that are given, are those of the entries as they are.

    Sites
    -----
    weight: w (K, D); Normal(0, u) by default, u = 1 of entries that are not real.
    bias: b (D,), the natural parameters at score 0; Normal(c, 10 u) by default, c = 0 of entries that are not real.
    score: s (N, K), one event vector a row; Normal(0, 1) by default. Its prior can be exchanged like those of globals.
    x: (N, D), observed.

    Raises ModelError for another likelihood, for K > D: the weights would not be identified, and for a centre or a unit
    of entries that are not real.
    """

    likelihood: Any  # pyright: ignore[reportIncompatibleVariableOverride]
    centre: float | None = None
    unit: float | None = None

    listed: ClassVar[bool] = False
    wide_reason: ClassVar[str | None] = "the weights span no more than D dimensions"

    def __post_init__(self) -> None:
        given = self.likelihood
        named = (given, {}) if is_string(given) else given
        if is_listed(named) and len(named) == 2:
            if named[0] not in _LIKELIHOODS:
                raise ModelError(unknown_name("likelihood", named[0], _LIKELIHOODS))
            try:
                object.__setattr__(self, "likelihood", _LIKELIHOODS[named[0]](**named[1]))
            except TypeError:
                expected = 'what it needs beside its name, as ("binomial", {"total": 2})'
                raise ModelError(f"likelihood = {given!r}, expected {expected}") from None
        if not isinstance(self.likelihood, tuple(_LIKELIHOODS.values())):
            expected = "Bernoulli(), Binomial(n), Gaussian(scale), Poisson() of ppl_models.likelihoods, or a name"
            raise ModelError(f"likelihood = {given!r}, expected {expected}")
        require_units(self.centre, self.unit)
        if self.likelihood.kind != "real" and (self.centre, self.unit) != (None, None):
            found = f"centre = {self.centre!r}, unit = {self.unit!r} of {type(self.likelihood).__name__} entries"
            raise ModelError(f"{found}, expected None: only real ones have a scale")
        super().__post_init__()

    def settings(self) -> dict[str, Any]:
        """The dataclass fields other than ``priors``; the likelihood by its name and what it needs."""
        known = self.likelihood
        return {**super().settings(), "likelihood": (type(known).__name__.lower(), dict(vars(known)))}

    @property
    def units(self) -> tuple[float, float]:
        """``centre`` and ``unit``, 0 and 1 where they are left open."""
        return self.centre or 0.0, self.unit or 1.0

    @property
    def site_units(self) -> dict[str, tuple[Tensor, Tensor]]:
        centre, unit = (torch.tensor(one) for one in self.units)
        return {"weight": (torch.zeros(()), unit), "bias": (centre, unit)} if self.units != (0.0, 1.0) else {}

    @property
    def information(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        return 1 / self.likelihood.dispersion

    def on_scale_of(self, data: Data | None, *, like: Model | None = None, weights: Tensor | None = None) -> Self:
        """Return this model with mean and standard deviation of real entries as ``centre`` and ``unit``, where open."""
        return set_centre_and_unit(self, data, weights) if self.likelihood.kind == "real" else self

    def default_priors(self) -> dict[str, Any]:
        centre, unit = self.units
        weight, bias = dist.Normal(0.0, unit), dist.Normal(centre, 10.0 * unit)
        return {"weight": weight, "bias": bias, "score": dist.Normal(0.0, 1.0)}

    def __call__(self, x: Tensor | None = None, **plate: Unpack[Plate]) -> Tensor:
        weight = self.sample("weight")
        bias = self.sample("bias")
        with self.rows(x, **plate) as rows:
            score = self.sample("score")
            return rows.observe("x", self.likelihood.distribution(bias + score @ weight))

    @classmethod
    def example(cls) -> Example:
        """Two components over six features of 4 draws each, sixty rows."""
        generator = torch.Generator().manual_seed(17)
        truth = {
            "weight": torch.tensor([[1.5, 1.2, -1.0, -1.5, 0.3, 0.0], [0.3, -0.3, 0.4, -0.2, 1.0, -1.0]]),
            "bias": torch.tensor([0.0, -0.5, 0.5, 0.0, -1.0, 0.5]),
            "score": torch.randn((60, 2), generator=generator),
        }
        chance = torch.sigmoid(truth["bias"] + truth["score"] @ truth["weight"])
        x = torch.bernoulli(chance.expand(4, 60, 6), generator=generator).sum(0)
        return Example(model=cls(likelihood=Binomial(4), num_components=2, num_features=6), data=Data(x=x), truth=truth)


@dataclass(frozen=True, kw_only=True, eq=False)
class LogisticPCA(LinearScores, ComponentModel):
    """Logistic PCA: the log-odds of x are linear in K Gaussian scores.

    Sites
    -----
    weight: w (K, D); Normal(0, 3) by default.
    bias: b (D,), the log-odds at score 0; Normal(0, 10) by default.
    score: s (N, K), one event vector a row; Normal(0, 1) by default. Its prior can be exchanged like those of globals.
    x: (N, D), observed.

    The default priors are wide for log-odds, yet proper: with flat ones the likelihood has no maximum whenever a
    feature is constant or the scores separate its ones from its zeros, and the estimates run off to infinity. Under
    point estimates of scores and weights ("map") the two Normal priors together are a penalty on the nuclear norm of
    S W, 1 / (scale of s * scale of w) times it, so that only the product of the scales matters.

    Raises ModelError for K > D: the weights would not be identified.
    """

    likelihood: ClassVar[Any] = Bernoulli()
    information: ClassVar[float] = 0.25
    wide_reason: ClassVar[str | None] = "the weights span no more than D dimensions"
    sites: ClassVar[Mapping[str, Site]] = {
        **LinearScores.sites,
        "x": Site("observed", ("feature",), ("row",), constraints.boolean),
    }

    def default_priors(self) -> dict[str, Any]:
        return {"weight": dist.Normal(0.0, 3.0), "bias": dist.Normal(0.0, 10.0), "score": dist.Normal(0.0, 1.0)}

    def __call__(self, x: Tensor | None = None, **plate: Unpack[Plate]) -> Tensor:
        weight = self.sample("weight")
        bias = self.sample("bias")
        with self.rows(x, **plate) as rows:
            score = self.sample("score")
            return rows.observe("x", dist.Bernoulli(logits=bias + score @ weight))

    @classmethod
    def example(cls) -> Example:
        """Two components over seven features, eighty rows."""
        generator = torch.Generator().manual_seed(13)
        truth = {
            "weight": torch.tensor([[2.5, 2.0, -2.0, -2.5, 0.5, 0.0, 1.0], [0.5, -0.5, 0.5, -0.5, 2.0, -1.5, -1.0]]),
            "bias": torch.tensor([0.0, -0.5, 0.5, 0.0, -1.0, 0.5, 0.0]),
            "score": torch.randn((80, 2), generator=generator),
        }
        log_odds = truth["bias"] + truth["score"] @ truth["weight"]
        x = torch.bernoulli(torch.sigmoid(log_odds), generator=generator)
        return Example(model=cls(num_components=2, num_features=7), data=Data(x=x), truth=truth)


@dataclass(frozen=True, kw_only=True, eq=False)
class PoissonPCA(LinearScores, ExposedCounts):
    """Poisson PCA: the log rates of counts x are linear in K Gaussian scores.

    Sites
    -----
    weight: w (K, D); Normal(0, 1) by default.
    bias: b (D,), the log rates at score 0 and offset 0; Normal(0, 5) by default.
    score: s (N, K), one event vector a row; Normal(0, 1) by default.
    offset: o (N,), given: the log exposure of every row, 0 where none is given. ``fit(model, x, offset=...)``.
    x: (N, D), observed, whole numbers of at least 0, dense or sparse.

    ``offset="total"`` is the logarithm of each row's total count, of at least 1: the rates are then shares of it.
    :meth:`with_row_offsets` makes a model that learns offsets beside what is given. Fits know by default how uncertain
    the weights are, and learn how large those of each component are ("bayesian"), which predicts better than points.

    Raises ModelError for K > D: the weights would not be identified.
    """

    likelihood: ClassVar[Any] = Poisson()
    wide_reason: ClassVar[str | None] = "the weights span no more than D dimensions"
    sites: ClassVar[Mapping[str, Site]] = {
        **LinearScores.sites,
        "offset": Site("given", (), ("row",), constraints.real),
        "x": Site("observed", ("feature",), ("row",), constraints.nonnegative_integer),
    }

    def default_priors(self) -> dict[str, Any]:
        return {"weight": dist.Normal(0.0, 1.0), "bias": dist.Normal(0.0, 5.0), "score": dist.Normal(0.0, 1.0)}

    def __call__(self, x: Tensor | None = None, *, offset: Tensor | None = None, **plate: Unpack[Plate]) -> Tensor:
        weight = self.sample("weight")
        bias = self.sample("bias")
        with self.rows(x, **plate) as rows:
            score = self.sample("score")
            log_rate = bias + score @ weight
            if offset is not None:
                log_rate = log_rate + rows.of(offset).unsqueeze(-1)
            return rows.observe("x", dist.Poisson(log_rate.exp()))

    def with_row_offsets(self, scale: float = 1.0) -> PoissonPCA:
        """Return this model with a learned offset Normal(0, scale) of every row: one more component, the last, whose
        weights are known to be 1 up to 1e-4. Raises ModelError for priors of weight or score that are not Normal."""
        size, found = self.num_components, {}
        for site, last in (("weight", (1.0, 1e-4)), ("score", (0.0, scale))):
            prior = self.priors[site]
            if not isinstance(prior, dist.Normal) or prior.batch_shape:
                raise ModelError(
                    f"learned offsets need a Normal prior of one element of '{site}', not {describe_prior(prior)}"
                )
            both: Any = torch.stack([prior.loc, prior.scale])
            parts = torch.cat([both[:, None].expand(2, size), both.new_tensor(last)[:, None]], 1)
            mean, deviation = parts.unsqueeze(-1) if site == "weight" else parts
            found[site] = dist.Normal(mean, deviation)
        return replace(self, num_components=size + 1, priors={**self.priors, **found})

    @classmethod
    def example(cls) -> Example:
        """Two components over six features, fifty-two rows."""
        generator = torch.Generator().manual_seed(19)
        truth = {
            "weight": torch.tensor([[0.9, 0.7, -0.8, -0.9, 0.2, 0.0], [0.2, -0.2, 0.3, -0.2, 0.8, -0.7]]),
            "bias": torch.tensor([0.5, 1.0, 0.0, 0.7, -0.3, 0.2]),
            "score": torch.randn((52, 2), generator=generator),
        }
        x = torch.poisson(torch.exp(truth["bias"] + truth["score"] @ truth["weight"]), generator=generator)
        return Example(model=cls(num_components=2, num_features=6), data=Data(x=x), truth=truth)


@dataclass(frozen=True, kw_only=True, eq=False)
class GaussianPCA(LinearScores, NoisyRows):
    """Gaussian PCA (probabilistic PCA): the means of x are linear in K Gaussian scores.

    The scores can be summed out: x_n ~ Normal(b, W'W + sigma^2 I). Under flat priors the maximum of the likelihood has
    b the mean and W the K leading eigenvectors of the covariance, of squared lengths lambda_k - sigma^2, with sigma^2
    the mean of the other eigenvalues.

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

    wide_reason: ClassVar[str | None] = "the weights span no more than D dimensions"

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

    def __call__(self, x: Tensor | None = None, **plate: Unpack[Plate]) -> Tensor:
        weight = self.sample("weight")
        bias = self.sample("bias")
        scale = self.sample("scale")
        with self.rows(x, **plate) as rows:
            score = self.sample("score")
            each = scale if self.per_feature_scale else scale.unsqueeze(-1)
            return rows.observe("x", dist.Normal(bias + score @ weight, each))

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
