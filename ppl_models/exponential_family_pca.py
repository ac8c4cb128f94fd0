"""Exponential-family PCA: rows of any kind of data, whose natural parameters are linear in a few Gaussian scores.

Source 002: Murphy, *Machine Learning: a Probabilistic Perspective*, section 27.2.2. Collins, Dasgupta & Schapire, *A
generalization of principal component analysis to the exponential family* (NIPS 2002), estimate scores and weights as
points; Tipping, *Probabilistic visualisation of high-dimensional binary data* (NIPS 1999) integrates the scores out, as
in eq. 27.10. Rows n = 1..N, features j = 1..D, components k = 1..K:

    s_n        ~ Normal(0, I_K)
    eta_nj     = b_j + sum_k s_nk w_kj
    x_nj | s_n ~ p(x | eta_nj)      log p(x | eta) = (T(x) . eta - A(eta)) / phi + log h(x)

Nothing changes if the scores are turned by an orthogonal matrix and the weights with them: only the space that the
weights span and their lengths in it are identified. Fits by closed-form steps are turned so that the rows of the weight
are orthogonal, the longest first, and the largest entry of each is positive.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models.core.errors import ModelError, unknown_name
from ppl_models.core.model import Example, Model
from ppl_models.core.row_models import ComponentModel, RowModel
from ppl_models.core.sites import Site
from ppl_models.core.turns import canonical_turn
from ppl_models.core.units import require_units, set_centre_and_unit
from ppl_models.data.matrix import Data
from ppl_models.likelihoods import Bernoulli, Binomial, Gaussian, Likelihood, Poisson


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearScores(RowModel):
    """Rows whose natural parameters are linear in K Gaussian scores: what the models of this kind share.

    They say which ``likelihood`` their entries have and may change the shapes of the sites: ``weight`` (K, D) or
    (K, D, C), ``bias`` (D,) or (D, C), ``score`` (N, K).
    """

    #: About Fisher's of an entry on its natural parameter.
    information: ClassVar[float] = 1.0

    sites: ClassVar[Mapping[str, Site]] = {
        "weight": Site("global", ("component", "feature")),
        "bias": Site("global", ("feature",)),
        "score": Site("latent", ("component",), ("row",), constraints.real),
        "x": Site("observed", ("feature",), ("row",), constraints.real),
    }

    def natural(self, site: Mapping[str, Tensor], local: Tensor) -> Tensor:
        """eta of rows with scores (..., N, K): (..., N, D), or (..., N, D, C)."""
        weight = site["weight"]
        return site["bias"] + (local @ weight.flatten(1)).unflatten(-1, weight.shape[1:])

    def entries(self, site: Mapping[str, Tensor], local: Tensor) -> Any:
        return self.likelihood.distribution(self.natural(site, local))

    def standard_form(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Weights with orthogonal rows, the longest first, the largest entry of each positive; scores turned alike."""
        weight = values["weight"]
        turn = canonical_turn(weight.flatten(1))
        turned = {"weight": (turn @ weight.flatten(1)).view_as(weight)}
        if "score" in values:
            turned["score"] = values["score"] @ turn.T
        return {**values, **turned}

    def with_learned_scales(self, num_rows: int) -> Self:
        """The same model whose components learn how large their weights are, so that surplus ones go to 0: set K high.

        A hyper-prior, InverseGamma(1, M f^2 / 2) on the variance of the M weights of a component, which is the site
        ``weight_variance`` (K,), with f^2 = 1 / (num_rows I), I the ``information`` of an entry: about the squared
        standard error of a weight that is learned from so many rows. Maximised over, it makes the log prior of the
        weights -(M / 2 + 2) log(|w_k|^2 + M f^2): to keep a component costs about M / 2 log(mean of its squared weights
        / f^2), as BIC has it. Automatic relevance determination: MacKay, *Bayesian methods for backpropagation
        networks* (1994); as a mode: Tan & Fevotte, IEEE TPAMI 35 (2013).

        Raises ModelError for a number of rows that is no whole number of at least 1.
        """
        if isinstance(num_rows, bool) or not isinstance(num_rows, int) or num_rows < 1:
            raise ModelError(f"num_rows = {num_rows!r}, expected a whole number of at least 1")
        shape = self.shapes["weight"]
        rate = torch.full((shape[0],), math.prod(shape[1:]) / (2 * num_rows * self.information))
        hyper = dist.InverseGamma(torch.ones(shape[0]), rate)
        return self.with_priors(weight_variance=hyper, weight=_RowScales(len(shape)))

    @property
    def num_natural(self) -> int:
        """M: natural parameters of a row that the data can tell apart."""
        return self.sizes["feature"]

    def num_parameters(self, num_rows: int) -> int:
        """KM + M - K (K - 1) / 2 for M natural parameters a row: weights and biases less the rotations.

        With the scores of ``num_rows`` rows estimated as points too: M + K (N + M) - K^2, as any invertible matrix can
        then be moved from the scores to the weights.
        """
        k, m = self.sizes["component"], self.num_natural
        return m + k * (num_rows + m) - k**2 if num_rows else k * m + m - k * (k - 1) // 2


@dataclass(frozen=True)
class _RowScales:
    """The prior of weights with so many axes whose rows have variances of their own."""

    num_axes: int

    def __call__(self, weight_variance: Tensor) -> Any:
        return dist.Normal(0.0, weight_variance.sqrt().view(-1, *[1] * (self.num_axes - 1)))


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
        named = (given, {}) if isinstance(given, str) else given
        if isinstance(named, tuple | list) and len(named) == 2:
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
        if not isinstance(self.likelihood, Gaussian) and (self.centre, self.unit) != (None, None):
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
        """With mean and standard deviation of real entries for ``centre`` and ``unit``, where these are open."""
        return set_centre_and_unit(self, data, weights) if isinstance(self.likelihood, Gaussian) else self

    def default_priors(self) -> dict[str, Any]:
        centre, unit = self.units
        weight, bias = dist.Normal(0.0, unit), dist.Normal(centre, 10.0 * unit)
        return {"weight": weight, "bias": bias, "score": dist.Normal(0.0, 1.0)}

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
