"""Probabilistic matrix factorisation: the rating of an item by a user is a product of their factors, and noise.

Murphy (2012), section 27.6.2 (Salakhutdinov & Mnih,
*Probabilistic matrix factorization*, NIPS 2008; Ilin & Raiko, *Practical approaches to PCA in the presence of missing
values*, JMLR 11, 2010). User n, item j:

    p(r_nj | u_n, v_j) = Normal(u_n' v_j + mu + f_n + g_j, sigma^2)                                (eqs. 27.86, 27.93)
    u_n ~ Normal(m_u, Sigma_u),   v_j ~ Normal(m_v, Sigma_v)                                             (eq. 27.90)

Of the pairs only those that were rated are observed. Given the items, users are independent: they are the rows, as in
PCA with missing entries, and a user's profile (f_n, u_n) is one latent vector, whose entries depend on each other given
the ratings. Factors are identified up to a rotation, where their priors do not tell directions apart.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self, Unpack

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models.core.errors import ModelError
from ppl_models.core.model import Example, Model
from ppl_models.core.plates import Plate, Rows
from ppl_models.core.profiles import normal, profile_hyper_priors, profile_prior, profile_units, values_of_known
from ppl_models.core.sites import Site
from ppl_models.core.units import require_units, set_centre_and_unit
from ppl_models.data import sparse as _sparse
from ppl_models.data.matrix import Data
from ppl_models.data.ratings.data import Ratings
from ppl_models.data.times import numbers_of
from ppl_models.distributions import OrderedRating, SparseRatings, VaryingRatings
from ppl_models.kinds.ratings import RatedItems


@dataclass(frozen=True, kw_only=True, eq=False)
class PMF(RatedItems):
    """Probabilistic matrix factorisation: ratings as products of factors of users and items.

    likelihood: of a rating with the predictor eta = u_n' v_j + mu + f_n + g_j: "gaussian", Normal(eta, sigma);
        "logistic", 0 or 1 with the log-odds eta; "ordinal", whole numbers from ``levels[0]`` to ``levels[1]``, a
        logistic variable with location eta and scale sigma that is rounded to them.
    biases: whether there are f_n and g_j; without them profiles are factors alone (27.86).
    adaptive: learn means and full covariances of the profiles and of (g_j, v_j) (27.90): m and Sigma are sites. None:
        where there are biases, which of ratings that are not Gaussian do not change in time.
    varying_noise: s of noise that differs between users and items: the variance is sigma^2 / (a_n h_j), a_n, h_j ~
        Gamma(s, s), of which the a_n are integrated out: the ratings of a user have one multivariate t distribution.
        None: 20 where priors are learned of Gaussian ratings with biases; elsewhere as ``math.inf``, one sigma for all.
    num_user_covariates, num_item_covariates: P, Q, of the covariates beside the ratings, if there are any. They move
        profiles: eta has (f_n, u_n) + x_n B and (g_j, v_j) + z_j A in place of what they are called.
    centre, unit: c and s of ratings (r - c) / s on whose scale the default priors below hold; None: the mean and the
        standard deviation of the ratings that are fitted, or 0 and 1 where the program runs by itself. Not of the
        logistic likelihood. Values of all sites, and priors that are given, are those of the ratings as they are.
    user_blocks, item_blocks: how many of the covariates belong to each block of them: where priors are learned, the
        weights of every block have a spread of their own. They say P and Q too. None: one block.
    time_edges: inner edges, increasing numbers (or dates, as days since 1970), of the bins of ``time`` in which biases
        may differ, the overall one and those of items: eta has b_t + g_jt beside the rest; none: no such biases.
    user_time_edges: of those in which biases of users may differ, which have bins of their own: eta has f_nt beside.

    Sites
    -----
    mean: mu, the overall mean; Normal(c, 10 s) by default.
    item: V (I, K); Normal(0, .1 s) by default. item_bias: g (I,); Normal(0, .5 s) by default.
    scale: sigma; LogNormal(log s, 1) by default; not of the logistic likelihood.
    user_profile: (f_n, u_n), (U, K + 1), local: the latent vector of a user. Its parts are user_bias, f (U,), and user
        (U, K); their priors are Normal(0, .5 s) and Normal(0, 1) by default, and fits report them by these names.
    user_mean, user_covariance, item_mean, item_covariance: (K + 1) and (K + 1, K + 1), with ``adaptive``, in place of
        priors of the factors and biases: by default Sigma ~ InverseWishart(K + 1, .3 (K + 1) D^2), m ~ Normal(0,
        Sigma), and scale^-2 ~ Gamma(1, s^2); D is diagonal, s of biases and of items, 1 of the factors of users.
    item_precision: h (I,), where noise varies.
    user_weight: B (P, K + 1), item_weight: A (Q, K + 1); Normal(0, .3) by default, times D of the side.
    bin_bias: b (T,), of all ratings of a bin, item_bin_bias: (I, T), and user_bin_bias: (U, T'), row n that of user n;
        Normal(0, .2 s) by default. In bins without ratings of theirs users and items have the prior.
    x: (U, I), observed: ``ppl_models.ratings``, all that it takes, or a matrix with NaN where nothing was rated.
    user_covariates: (U, P), item_covariates: (I, Q), time: (M,), given, by their names; covariates as matrices, or as
        blocks by name, ``{"age": (U, P_1), "job": (U, P_2)}`` (``ppl_models.data.ratings.covariate_blocks``).

    Raises ModelError for unknown likelihoods, levels and edges that do not increase.
    """

    likelihood: str = "gaussian"  # pyright: ignore[reportIncompatibleVariableOverride]
    biases: bool = True
    adaptive: bool | None = None
    varying_noise: float | None = None
    levels: tuple[int, int] | None = None  # pyright: ignore[reportIncompatibleVariableOverride]
    time_edges: tuple[float, ...] | None = None
    user_time_edges: tuple[float, ...] | None = None
    user_blocks: tuple[int, ...] | None = None  # pyright: ignore[reportIncompatibleVariableOverride]
    item_blocks: tuple[int, ...] | None = None  # pyright: ignore[reportIncompatibleVariableOverride]
    centre: float | None = None
    unit: float | None = None

    def __post_init__(self) -> None:
        if self.adaptive is None:
            object.__setattr__(self, "adaptive", self.biases and (self.likelihood == "gaussian" or not self.timed))
        if self.varying_noise is not None and not (self.varying_noise > 0 and self.likelihood == "gaussian"):
            found = f"varying_noise = {self.varying_noise!r} of the likelihood '{self.likelihood}'"
            raise ModelError(f"{found}, expected a positive number of a Gaussian one")
        for name in ("time_edges", "user_time_edges"):
            if (given := getattr(self, name)) is None:
                continue
            edges = tuple(float(edge) for edge in numbers_of(list(given)))
            if not edges or any(after <= before for before, after in itertools.pairwise(edges)):
                raise ModelError(f"{name} = {given!r}, expected increasing numbers")
            object.__setattr__(self, name, edges)
        require_units(self.centre, self.unit)
        if self.likelihood == "logistic" and (self.centre, self.unit) != (None, None):
            found = f"centre = {self.centre!r}, unit = {self.unit!r} of the likelihood 'logistic'"
            raise ModelError(f"{found}, expected None: yes and no have no unit")
        super().__post_init__()

    @property
    def noise_shape(self) -> float | None:
        """s of the precisions of users and items; None where noise does not vary."""
        if self.varying_noise is None:
            return 20.0 if self.adaptive and self.biases and self.likelihood == "gaussian" else None
        return self.varying_noise if math.isfinite(self.varying_noise) else None

    @property
    def timed(self) -> bool:
        """Whether there are biases that change in time."""
        return self.time_edges is not None or self.user_time_edges is not None

    @property
    def sizes(self) -> dict[str, int]:
        size = self.num_components + self.biases
        own = {"coordinate": size, "to_coordinate": size, "bin": len(self.time_edges or ()) + 1}
        own |= {"known_user": self.num_users, "user_bin": len(self.user_time_edges or ()) + 1}
        return super().sizes | own

    @property
    def sites(self) -> Mapping[str, Site]:
        square = Site("global", ("coordinate", "to_coordinate"), support=constraints.positive_definite)
        users, items, timed = self.num_user_covariates, self.num_item_covariates, self.time_edges
        wanted: list[tuple[str, Site, Any]] = [
            ("mean", Site("global"), True),
            ("user_covariance", square, self.adaptive),
            ("user_mean", Site("global", ("coordinate",)), self.adaptive),
            ("item_covariance", square, self.adaptive),
            ("item_mean", Site("global", ("coordinate",)), self.adaptive),
            ("item", Site("global", ("item", "component")), True),
            ("item_bias", Site("global", ("item",)), self.biases),
            ("user_weight", Site("global", ("user_covariate", "coordinate")), users),
            ("item_weight", Site("global", ("item_covariate", "coordinate")), items),
            ("bin_bias", Site("global", ("bin",)), timed),
            ("item_bin_bias", Site("global", ("item", "bin")), timed),
            ("user_bin_bias", Site("global", ("known_user", "user_bin")), self.user_time_edges),
            ("scale", Site("global", support=constraints.positive), self.likelihood != "logistic"),
            ("item_precision", Site("global", ("item",), support=constraints.positive), self.noise_shape is not None),
            ("user_profile", Site("latent", ("coordinate",), ("user",), constraints.real), True),
            ("user", Site("latent", ("component",), ("user",), constraints.real), True),
            ("user_bias", Site("latent", (), ("user",), constraints.real), self.biases),
            ("x", Site("observed", ("item",), ("user",), constraints.real, sparse=True), True),
            ("user_covariates", Site("given", ("user_covariate",), ("user",)), users),
            ("item_covariates", Site("given", ("item", "item_covariate")), items),
            ("time", Site("given", (), ("rating",)), self.timed),
        ]
        return {name: site for name, site, present in wanted if present}

    @property
    def part_sites(self) -> tuple[str, ...]:
        return ("user", "user_bias") if self.biases else ("user",)

    @property
    def before_components(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return ("bias",) if self.biases else ()

    def default_priors(self) -> dict[str, Any]:
        sites, (centre, unit), size = self.sites, self.units, self.sizes["coordinate"]
        scale = dist.LogNormal(math.log(unit), 1.0)
        priors: dict[str, Any] = {"mean": dist.Normal(centre, 10.0 * unit), "scale": scale}
        for side, one in zip(("user", "item"), profile_units(size, self.biases, unit), strict=True):
            priors[f"{side}_weight"] = dist.Normal(torch.zeros(size), (0.3 * one).to(torch.zeros(())))
        priors |= dict.fromkeys(("bin_bias", "item_bin_bias", "user_bin_bias"), dist.Normal(0.0, 0.2 * unit))
        if self.adaptive:
            priors |= profile_hyper_priors(size, self.biases, unit)
        else:
            priors |= {"item": dist.Normal(0.0, 0.1 * unit), "item_bias": dist.Normal(0.0, 0.5 * unit)}
            priors |= {"user": dist.Normal(0.0, 1.0), "user_bias": dist.Normal(0.0, 0.5 * unit)}
        if (shape := self.noise_shape) is not None:
            priors["item_precision"] = dist.Gamma(shape, shape)
        return {site: priors[site] for site in sites if site in priors}

    @property
    def units(self) -> tuple[float, float]:
        """``centre`` and ``unit``, 0 and 1 where they are left open."""
        return self.centre or 0.0, self.unit or 1.0

    @property
    def site_units(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Centre and unit of the ratings, and of profiles those of each entry."""
        if self.units == (0.0, 1.0):
            return {}
        (centre, unit), zero = (torch.tensor(one, dtype=torch.float64) for one in self.units), torch.zeros(())
        rated = ("item", "item_bias", "bin_bias", "item_bin_bias", "user_bin_bias")
        found: dict[str, Any] = dict.fromkeys(rated, (zero, unit))
        both = profile_units(self.sizes["coordinate"], self.biases, float(unit))
        for side, one in zip(("user", "item"), both, strict=True):
            found |= dict.fromkeys((f"{side}_{of}" for of in ("profile", "mean", "covariance", "weight")), (zero, one))
        return {**found, "mean": (centre, unit)}

    def on_scale_of(self, data: Data | None, *, like: Model | None = None, weights: Tensor | None = None) -> Self:
        """Return this model with mean and standard deviation of the ratings as ``centre`` and ``unit``, where open."""
        return self if self.likelihood == "logistic" else set_centre_and_unit(self, data, weights)

    def prior(self, site: str, *, like: Tensor | None = None, values: Mapping[str, Tensor] | None = None) -> Any:
        """Return a prior; that of ``user_profile`` by those of its parts, or ``user_mean`` and ``user_covariance``."""
        if site != "user_profile":
            return super().prior(site, like=like, values=values)
        if self.adaptive:
            if not {"user_mean", "user_covariance"} <= set(values or {}):
                return super().prior("user_mean", like=like)
            assert values is not None
            return normal(values["user_mean"], values["user_covariance"])
        user = super().prior("user", like=like, values=values)
        if not self.biases:
            return user
        return profile_prior(super().prior("user_bias", like=like, values=values), user)

    def __call__(
        self,
        x: Tensor | None = None,
        *,
        user_covariates: Tensor | None = None,
        item_covariates: Tensor | None = None,
        time: Tensor | None = None,
        **plate: Unpack[Plate],
    ) -> Tensor:
        """Run the program; x: dense with times (U, I), or CSR, whose stored entries alone are observed, with (M,)."""
        stated = (
            "mean",  # mu
            "user_covariance", "user_mean", "item_covariance", "item_mean",  # of profiles, where they are learned
            "item", "item_bias",  # v_j, g_j
            "user_weight", "item_weight",  # B, A
            "bin_bias", "item_bin_bias", "user_bin_bias",  # b_t, g_jt, f_nt
            "scale", "item_precision",  # sigma, h_j
        )  # fmt: skip
        present = self.sites  # the settings say which there are
        site = {name: self.sample(name) for name in stated if name in present}
        loading, offset = self.coefficients(site, item_covariates)  # (1, v_j), mu + g_j
        with self.rows(x, **plate) as users:
            profile = self.sample("user_profile")  # (f_n, u_n)
            pyro.deterministic("user", profile[..., 1:] if self.biases else profile, event_dim=1)
            if self.biases:
                pyro.deterministic("user_bias", profile[..., 0], event_dim=0)
            profile = self.profiles(site, profile, users.of(user_covariates))
            if x is not None and _sparse.is_sparse(x):
                each, stored = self._law_of_stored(site, users, profile, loading, offset, time)
                return pyro.sample("x", each, obs=stored)
            eta = profile @ loading.mT + offset.unsqueeze(-2)
            if time is not None:
                item, user = torch.arange(self.num_items, device=time.device), users.places.unsqueeze(-1)
                eta = eta + self.time_bias(site, users.of(time), item, user)
            if self.noise_shape is None:
                return users.observe("x", self.entry(site, eta))
            each = VaryingRatings(eta, self._precision(site), self.noise_shape, users.of(users.mask))
            return pyro.sample("x", each, obs=users.of(x))

    def local_parts(self, local: Tensor) -> dict[str, Tensor]:
        """Split profiles (..., U, K + 1) into user_bias (..., U) and user (..., U, K)."""
        return {"user": local[..., 1:], "user_bias": local[..., 0]} if self.biases else {"user": local}

    def coefficients(self, site: Mapping[str, Tensor], item_covariates: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return what profiles are multiplied by, (1, v_j) or v_j (..., I, K + 1), and mu + g_j (..., I)."""
        item, offset = site["item"], site["mean"].unsqueeze(-1).expand(*site["item"].shape[:-1])
        bias = site["item_bias"] if self.biases else torch.zeros_like(offset)
        if item_covariates is not None:
            moved = item_covariates.to(item) @ site["item_weight"]
            item = item + (moved[..., 1:] if self.biases else moved)
            bias = bias + moved[..., 0] if self.biases else bias
        loading = torch.cat([torch.ones_like(item[..., :1]), item], -1) if self.biases else item
        return loading, offset + bias

    def profiles(self, site: Mapping[str, Tensor], local: Tensor, user_covariates: Tensor | None) -> Tensor:
        """Add to profiles what the covariates of users say."""
        return local if user_covariates is None else local + user_covariates.to(local) @ site["user_weight"]

    def entry(self, site: Mapping[str, Tensor], predictor: Tensor) -> Any:
        """Return p(r | eta) for linear predictors of any shape."""
        if self.likelihood == "logistic":
            return dist.Bernoulli(logits=predictor)
        scale = site["scale"].unsqueeze(-1) if site["scale"].ndim else site["scale"]
        if self.levels is not None:
            return OrderedRating(predictor, scale, *self.levels)
        return dist.Normal(predictor, scale)

    def bins(self, time: Tensor) -> tuple[Tensor, Tensor]:
        """Return the bins of times, of the biases of items and of users."""
        given = (torch.tensor(edges or (), dtype=time.dtype, device=time.device)
                 for edges in (self.time_edges, self.user_time_edges))  # fmt: skip
        one, two = (torch.bucketize(time.contiguous(), edges, right=True) for edges in given)
        return one, two

    def time_bias(self, site: Mapping[str, Tensor], time: Tensor, item: Tensor, user: Tensor) -> Tensor:
        """Return b_t + g_jt + f_nt of ratings at times; 0 of unknown items and users, numbered from I and U."""
        place, own = self.bins(time)
        found = torch.zeros_like(time, dtype=site["item"].dtype)
        if self.time_edges is not None:
            found = site["bin_bias"][..., place] + values_of_known(site["item_bin_bias"], item, place)
        if self.user_time_edges is not None:
            found = found + values_of_known(site["user_bin_bias"], user, own)
        return found

    def _law_of_stored(
        self, site: Mapping[str, Tensor], users: Rows, profile: Tensor, loading: Tensor, offset: Tensor,
        time: Tensor | None,
    ) -> tuple[Any, Tensor]:  # fmt: skip
        """Return the distribution of the stored ratings of these users, and the ratings in CSR."""
        x: Any = users.x
        if users.index is not None:
            chosen = Ratings(x=x, others={} if time is None else {"time": time}).rows(users.index)
            x, time = chosen.x, chosen.time

        def predict(user: Tensor, item: Tensor) -> Tensor:
            eta = (profile[..., user, :] * loading[..., item, :]).sum(-1) + offset[..., item]
            return eta if time is None else eta + self.time_bias(site, time, item, users.places[user])

        shape = (*profile.shape[:-1], self.num_items)
        if self.noise_shape is None:
            return SparseRatings(predict, lambda eta: self.entry(site, eta), shape), x
        return VaryingRatings(predict, self._precision(site), self.noise_shape, shape=shape), x

    def _precision(self, site: Mapping[str, Tensor]) -> Tensor:
        """Return h_j / sigma^2 of every item, where noise varies."""
        return site["item_precision"] / site["scale"].square().unsqueeze(-1)

    @classmethod
    def example(cls) -> Example:
        """Thirty-two users who rated all of six items, two factors."""
        generator = torch.Generator().manual_seed(3)
        item = torch.tensor([[1.0, 0.2], [0.8, -0.5], [-0.6, 0.9], [0.1, 1.1], [-1.0, -0.2], [0.3, -0.8]])
        truth = {"mean": torch.tensor(3.0), "item": item, "scale": torch.tensor(0.5)}
        truth["item_bias"] = torch.tensor([0.5, -0.5, 0.2, 0.0, 0.3, -0.6])
        profile = truth["user_profile"] = torch.randn((32, 3), generator=generator).to(item)
        x = profile[:, :1] + profile[:, 1:] @ item.T + truth["mean"] + truth["item_bias"]
        x = x + truth["scale"] * torch.randn(x.shape, generator=generator).to(x)
        return Example.of(cls(adaptive=False, num_components=2, num_users=32, num_items=6), x, truth)
