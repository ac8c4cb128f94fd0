"""Gamma-Poisson factor analysis (GaP): counts whose rates are sums of nonnegative components; and its flat limit, NMF.

Murphy (2012), section 27.2.4. With rows n, components k:

    z_nk ~ Gamma(alpha_k, beta_k)                               activation of a component             (eq. 27.15)
    b_kv ~ Gamma(c, d)                                          its rates of the features
    x_nv | z_n ~ Poisson(sum_k z_nk b_kv)                                                             (eq. 27.16)

(Canny, *GaP: a factor model for discrete data*, SIGIR 2004; Cemgil, *Bayesian inference for nonnegative matrix
factorisation models*, 2009; Gopalan, Hofman & Blei, *Scalable recommendation with Poisson factorization*, UAI 2015.)
Sparse activations (eq. 27.17) are 0 with probability rho_k, and Gamma(alpha_k, beta_k) otherwise.

Given its total L_n = sum_v x_nv, a row is multinomial with probabilities sum_k z_nk b_kv / sum_kv z_nk b_kv. Where all
rows of b add up to the same B and all rates beta_k are beta, the proportions z_n / sum_k z_nk ~ Dirichlet(alpha) do not
depend on the total, which is negative binomial: a row given its total is that of multinomial PCA.

With alpha_k = 1, beta_k = 0, and the same for b, the most probable values are the maximum of the likelihood, that is
the least generalised Kullback-Leibler divergence sum_nv [x log(x / y) - x + y], y = z b: nonnegative matrix
factorisation (Lee & Seung, *Algorithms for non-negative matrix factorization*, NIPS 2001). (The source prints alpha =
beta = 0: that is the same limit with the mode taken of log z.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self, Unpack

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models.core.model import Example
from ppl_models.core.plates import Plate
from ppl_models.core.priors import is_flat
from ppl_models.core.row_models import ComponentModel
from ppl_models.core.sites import Site
from ppl_models.data.matrix import Data
from ppl_models.distributions import Flat, SpikeGamma, nonnegative_with_atom
from ppl_models.likelihoods import Poisson, PoissonDivergence


@dataclass(frozen=True, kw_only=True, eq=False)
class GammaPoisson(ComponentModel):
    """Gamma-Poisson factor analysis (GaP): counts whose rates are sums of K nonnegative components.

    Sites
    -----
    loading: b (K, D), the rates of the features at an activation of 1; Gamma(.3, .3) by default.
    activation: z (N, K), local; Gamma(.3, .3) by default, which :meth:`with_activation` exchanges.
    x: (N, D), observed, whole numbers of at least 0, dense or sparse; masked entries drop out of the product.

    A factor moved from activations to loadings changes nothing but the priors: those decide their scales.
    """

    likelihood: ClassVar[Any] = Poisson()
    keeps_sparse: ClassVar[bool] = True
    sites: ClassVar[Mapping[str, Site]] = {
        "loading": Site("global", ("component", "feature"), support=constraints.positive),
        "activation": Site("latent", ("component",), ("row",), constraints.positive),
        "x": Site("observed", ("feature",), ("row",), constraints.nonnegative_integer),
    }

    def default_priors(self) -> dict[str, Any]:
        return {"loading": dist.Gamma(0.3, 0.3), "activation": dist.Gamma(0.3, 0.3)}

    def __call__(self, x: Tensor | None = None, **plate: Unpack[Plate]) -> Tensor:
        loading = self.sample("loading")
        with self.rows(x, **plate) as rows:
            activation = self.sample("activation")
            # A product of two tiny rates may be 0 in floating point, where a count above 0 would be impossible.
            rate = (activation @ loading).clamp(min=torch.finfo(loading.dtype).tiny)
            return rows.observe("x", self.likelihood.with_mean(rate))

    def with_activation(self, shape: float | Sequence[float] | Tensor, rate: float | Sequence[float] | Tensor) -> Self:
        """Return this model with Gamma(shape, rate) priors of the activations: numbers, or one of each for every
        component (K,)."""
        concentration, rates = self._of_components(shape, rate)
        return self.with_priors(activation=dist.Gamma(concentration, rates))

    def _of_components(self, *parameters: Any) -> list[Tensor]:
        """One of each for every component, (K,)."""
        found = [torch.as_tensor(one, dtype=torch.get_default_dtype()) for one in parameters]
        return [one.expand(self.num_components).clone() for one in found]

    def with_loading(self, shape: float, rate: float) -> Self:
        """Return this model with a Gamma(shape, rate) prior of the loadings."""
        return self.with_priors(loading=dist.Gamma(shape, rate))

    def num_unseen(self, num_rows: int) -> int:
        """Count the scales that can be moved between loadings and activations that are points, or have flat priors."""
        free = num_rows or is_flat(self.priors["activation"])
        return self.num_components if free and "loading" in self.unknown_sites else 0

    @classmethod
    def example(cls) -> Example:
        """Two components over six features, forty rows of some four events."""
        generator = torch.Generator().manual_seed(2)
        loading = torch.tensor([[0.9, 0.7, 0.5, 0.1, 0.1, 0.05], [0.05, 0.1, 0.2, 0.6, 0.9, 0.8]])
        uniform = torch.rand((40, 2), generator=generator, dtype=torch.float64).to(loading)
        activation = 0.05 - 1.6 * torch.log1p(-uniform)
        x = torch.poisson(activation @ loading, generator=generator)
        truth = {"loading": loading, "activation": activation}
        return Example(model=cls(num_components=2, num_features=6), data=Data(x=x), truth=truth)


@dataclass(frozen=True, kw_only=True, eq=False)
class SpikeGammaPoisson(GammaPoisson):
    """Sparse gamma-Poisson factor analysis: every row has only some of the components, the others exactly 0.

    Sites
    -----
    loading: b (K, D), the rates of the features at an activation of 1; Gamma(.3, .3) by default.
    activation: z (N, K), local; SpikeGamma(.5, 1, 1) by default: 0 with probability .5, else Gamma(1, 1).
    x: (N, D), observed, whole numbers of at least 0.

    An activation that is 0 has a probability, others have a density, so that there is no density for the generic
    methods: closed forms sum over which components a row has, 2^K, and ``CollapsedGibbs`` samples them.
    """

    sites: ClassVar[Mapping[str, Site]] = {
        **GammaPoisson.sites,
        "activation": Site("latent", ("component",), ("row",), nonnegative_with_atom),
        "x": GammaPoisson.sites["x"],
    }

    def default_priors(self) -> dict[str, Any]:
        return {**super().default_priors(), "activation": SpikeGamma(0.5, 1.0, 1.0)}

    def with_activation(
        self,
        shape: float | Sequence[float] | Tensor,
        rate: float | Sequence[float] | Tensor,
        spike: float | Sequence[float] | Tensor = 0.5,
    ) -> Self:
        """Return this model with SpikeGamma(spike, shape, rate) priors of the activations."""
        zero, concentration, rates = self._of_components(spike, shape, rate)
        return self.with_priors(activation=SpikeGamma(zero, concentration, rates))

    @classmethod
    def example(cls) -> Example:
        """The example of :class:`GammaPoisson`, with half of the activations 0."""
        example = GammaPoisson.example()
        generator = torch.Generator().manual_seed(4)
        truth = {site: example.truth[site] for site in ("loading", "activation")}
        kept = torch.rand(truth["activation"].shape, generator=generator, dtype=torch.float64) < 0.5
        truth["activation"] = truth["activation"] * kept
        x = torch.poisson(truth["activation"] @ truth["loading"], generator=generator)
        return Example(model=cls(num_components=2, num_features=6), data=Data(x=x), truth=truth)


@dataclass(frozen=True, kw_only=True, eq=False)
class NMF(GammaPoisson):
    """Nonnegative matrix factorisation under the Kullback-Leibler divergence: GaP with flat priors, fitted by points.

    Sites
    -----
    loading: (K, D); flat by default. Fits report rows that add up to 1.
    activation: (N, K), local, estimated as points (``Fit.params`` holds them); flat by default. Where a row of the
        loading adds up to 1, it is the expected number of events of that component in the row.
    x: (N, D), observed, numbers of at least 0, dense or sparse: counts, or others as of tf-idf.

    New rows are folded in: their activations are estimated with the loadings fixed.

    Of numbers that are not whole the log-likelihood is a constant of the data less the generalised Kullback-Leibler
    divergence sum_nv [x log(x / y) - x + y], as it is of counts, but no logarithm of a probability: points are
    estimated by it ("map", or SVI with "delta"); exact sums, fits of posteriors, AIC and BIC are refused.
    """

    likelihood: ClassVar[Any] = PoissonDivergence()
    sites: ClassVar[Mapping[str, Site]] = {
        **GammaPoisson.sites,
        "x": Site("observed", ("feature",), ("row",), constraints.nonnegative),
    }

    def default_priors(self) -> dict[str, Any]:
        return {"loading": Flat(dist.Gamma(1.0, 1.0)), "activation": Flat(dist.Gamma(1.0, 1.0))}

    def standard_form(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Loadings that add up to 1; as they are where a prior says how large they, or the activations, are."""
        if not all(is_flat(prior) for prior in self.priors.values()):
            return dict(values)
        total = values["loading"].sum(-1)
        found = {**values, "loading": values["loading"] / total.unsqueeze(-1)}
        return {**found, "activation": values["activation"] * total} if "activation" in values else found
