"""Bilinear factors of clicks and choices: what users do with items by features of both.

Source 002: Murphy, *Machine Learning: a Probabilistic Perspective*, section 27.6.2, eq. 27.94; Stern, Herbrich and
Graepel, *Matchbox: large scale Bayesian recommendations* (WWW 2009). User u has features x_u (P,), item v x_v (Q,):

    user_u ~ Normal(0, I_K)                                                                          u = 1..U
    a_u    = W'(x_u - c) + user_u,    b_v = V'(x_v - d) + item_v              W = user_weight, V = item_weight
    R(u, v) ~ Bernoulli(sigmoid(a_u'b_v))                                                            BilinearPMF
    R(u, t) ~ Categorical(softmax over the items v shown at time t of a_u'b_v)                       ChoicePMF

The source writes Ber(R | a_u'b_v), which is no probability as it stands: the bilinear form is unbounded, so that it is
the log-odds here. ``user`` and ``item`` are the weights of the users' and the items' own indicators, which the source
has among the features; a 1 among the features gives offsets, and then it makes no difference about which centres c
and d the others are taken. What is given by the features alone holds for users and items that were never seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
import pyro.distributions as dist
import scipy.sparse
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models.core.errors import DataError, ModelError, about
from ppl_models.core.model import Example, Model
from ppl_models.core.rating_model import RatingModel
from ppl_models.core.scales import beside_an_intercept, check_scale
from ppl_models.core.sites import Site
from ppl_models.data import sparse
from ppl_models.data.columns import in_columns_of
from ppl_models.data.covariates import beside
from ppl_models.data.lazy import is_pandas
from ppl_models.data.matrix import Data, as_values_of
from ppl_models.data.ratings.data import Ratings
from ppl_models.data.ratings.door import is_matrix, ratings
from ppl_models.data.ratings.model import of_same_items, read_ratings
from ppl_models.distributions import ScaledNormal
from ppl_models.likelihoods import Bernoulli


def constant_feature(like: Tensor, size: int, num_features: int) -> Tensor:
    """What stands for features that are not given, (size, num_features): the constant 1, the others 0."""
    features = like.new_zeros(size, num_features)
    features[:, :1] = 1.0
    return features


@dataclass(frozen=True, kw_only=True, eq=False)
class BilinearModel(RatingModel):
    """Users with factors a_u, items with factors b_v, by their features and their own; rows are users.

    num_user_covariates, num_item_covariates: P and Q, of the features; a side without any has no weights. Features that
        are not given with the data are a constant 1 followed by zeros, as are their differences from the centre.
    centre, unit: "user" or "item" -> of each of the side's features, one number or P (Q). Where none are said, those of
        the features that are fitted: beside a constant feature means and standard deviations (of features with two
        values how far these are apart), else 0 and root mean squares; 0 and 1 where the program runs by itself.

    Raises ModelError for centres and units that are no numbers of a side's features.
    """

    centre: Mapping[str, Any] = field(default_factory=dict)
    unit: Mapping[str, Any] = field(default_factory=dict)

    #: What users did, and what is given of it beside the features.
    observed: ClassVar[Mapping[str, Site]]

    def __post_init__(self) -> None:
        sizes = {"user": self.num_user_covariates, "item": self.num_item_covariates}
        for name in ("centre", "unit"):
            given = dict(getattr(self, name))
            for side, value in given.items():
                if not sizes.get(side):
                    raise ModelError(
                        f"{name} of {side!r}, expected those of 'user' or 'item', where they have features"
                    )
                given[side] = check_scale(f"{name} of '{side}'", value, f"num_{side}_covariates", sizes[side])
            object.__setattr__(self, name, given)
        super().__post_init__()

    def settings(self) -> dict[str, Any]:
        """The dataclass fields other than ``priors``, with lists in place of tuples."""
        named = {name: {side: list(of) for side, of in getattr(self, name).items()} for name in ("centre", "unit")}
        return {**super().settings(), **named}

    @property
    def sites(self) -> Mapping[str, Site]:
        users, items = self.num_user_covariates, self.num_item_covariates
        wanted: list[tuple[str, Site, int]] = [
            ("item", Site("global", ("item", "component")), 1),
            ("item_weight", Site("global", ("item_covariate", "component")), items),
            ("user_weight", Site("global", ("user_covariate", "component")), users),
            ("user", Site("latent", ("component",), ("user",), constraints.real), 1),
            *((name, site, 1) for name, site in self.observed.items()),
            ("user_covariates", Site("given", ("user_covariate",), ("user",)), users),
            ("item_covariates", Site("given", ("item", "item_covariate")), items),
        ]
        return {name: site for name, site, present in wanted if present}

    def default_priors(self) -> dict[str, Any]:
        priors: dict[str, Any] = {site: dist.Normal(0.0, 1.0) for site in (*self.global_sites, "user")}
        for side in self.unit:
            unit = self.scale(side)[1].unsqueeze(-1)
            priors[f"{side}_weight"] = ScaledNormal(torch.zeros_like(unit), 1 / unit)
        return priors

    def scale(self, side: str, like: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """centre and unit of the features of users or items, each (P,), in the type of ``like``; 0 and 1 where they are
        not known."""
        size = getattr(self, f"num_{side}_covariates")
        kind: Any = {} if like is None else {"dtype": like.dtype, "device": like.device}
        centre, unit = self.centre.get(side, (0.0,) * size), self.unit.get(side, (1.0,) * size)
        return torch.tensor(centre, **kind), torch.tensor(unit, **kind)

    def about_centre(self, side: str, features: Tensor | None) -> Tensor | None:
        """What is given of users or items, (N, P), less its centre; None where nothing is given."""
        return None if features is None else features - self.scale(side, features)[0]

    def on_scale_of(self, data: Data | None, *, like: Model | None = None, weights: Tensor | None = None) -> Self:
        """With the centres and units of the model ``like``, or of the features of the data, where they are open."""
        centre, unit = dict(self.centre), dict(self.unit)
        for side in ("user", "item"):
            size = getattr(self, f"num_{side}_covariates")
            value = None if data is None else data.others.get(f"{side}_covariates")
            if not size or (data is not None and value is None) or (side in centre and side in unit):
                continue
            found: Any = (0.0,) * size, (1.0,) * size
            if value is not None:
                counted = weights if side == "user" else None
                found = beside_an_intercept(value.double() if counted is None else value.double()[counted > 0],
                                            None if counted is None else counted[counted > 0])  # fmt: skip
            known = (
                like if isinstance(like, BilinearModel) and getattr(like, f"num_{side}_covariates") == size else self
            )
            centre.setdefault(side, known.centre.get(side, tuple(map(float, found[0]))))
            unit.setdefault(side, known.unit.get(side, tuple(map(float, found[1]))))
        if (centre, unit) == (self.centre, self.unit):
            return self
        return replace(self, centre=centre, unit=unit, priors=self.chosen_priors)

    def item_factors(self, site: Mapping[str, Tensor], item_covariates: Tensor | None) -> Tensor:
        """b_v of items with these features less their centre, (I, K)."""
        if not self.num_item_covariates:
            return site["item"]
        if item_covariates is None:
            item_covariates = constant_feature(site["item"], self.num_items, self.num_item_covariates)
        return site["item"] + item_covariates @ site["item_weight"]

    def user_offsets(self, site: Mapping[str, Tensor], user_covariates: Tensor | None, num_users: int) -> Tensor:
        """W'(x_u - c) of every user, of features less their centre, (U, K)."""
        if not self.num_user_covariates:
            return site["item"].new_zeros(num_users, self.num_components)
        if user_covariates is None:
            user_covariates = constant_feature(site["item"], num_users, self.num_user_covariates)
        return user_covariates @ site["user_weight"]

    def log_odds(
        self,
        site: Mapping[str, Tensor],
        local: Tensor,
        index: Tensor | None,
        user_covariates: Tensor | None,
        item_covariates: Tensor | None,
    ) -> Tensor:
        """a_u'b_v of the users in ``index`` (None: all) and all items, (..., U, I)."""
        user_covariates = self.about_centre("user", user_covariates)
        item_covariates = self.about_centre("item", item_covariates)
        if user_covariates is not None and index is not None:
            user_covariates = user_covariates[index]
        a = local + self.user_offsets(site, user_covariates, local.shape[-2])
        return a @ self.item_factors(site, item_covariates).mT

    # ----- data ---------------------------------------------------------------------------------------------------

    def _with_covariates(self, checked: Data, source: Any, user_covariates: Any, item_covariates: Any) -> Data:
        """The data with the features of users and items; those of ``source`` where none are given."""
        known = source.others if isinstance(source, Data) else {}
        sizes = {
            "user_covariates": (user_covariates, (len(checked), self.num_user_covariates)),
            "item_covariates": (item_covariates, (self.num_items, self.num_item_covariates)),
        }
        others = {name: value for name, value in checked.others.items() if name not in sizes}
        for name, (value, shape) in sizes.items():
            given = known.get(name) if value is None else value
            if given is not None and (shape[1] or value is not None):
                others[name] = _features(name, given, shape, checked)
        return replace(checked, others=others)

    def prepare_new(self, data: Any, like: Data, *, item_covariates: Any = None, **settings: Any) -> Data:
        """Further users of the same items, whose features are those of the data ``like``."""
        features = like.others.get("item_covariates") if item_covariates is None else item_covariates
        mask = settings.pop("mask", None)
        if is_pandas(data, "DataFrame") and not is_matrix(data):
            data = read_ratings(self, (data,), like)
        elif isinstance(data, Ratings):
            data = of_same_items(data, like)
        else:
            data, mask = in_columns_of(data, mask, like.coords.get("feature"))
        prepare: Any = self.prepare
        return prepare(data, mask=mask, item_covariates=features, **settings)

    @classmethod
    def for_data(cls, data: Any, num_components: int, **settings: Any) -> Self:
        """The model of the data's items, with as many features as the data have."""
        data = data if isinstance(data, Data) else ratings(data)
        for axis in ("user", "item"):
            features = data.others.get(f"{axis}_covariates")
            settings.setdefault(f"num_{axis}_covariates", 0 if features is None else features.shape[1])
        sizes = {"num_users": len(data), "num_items": data.num_features, **settings}
        return cls(num_components=num_components, **sizes)


def _features(name: str, value: Any, shape: tuple[int, int], data: Data) -> Tensor:
    with about(name):
        found = beside(value, data, axis="row" if name == "user_covariates" else "feature")
        if tuple(found.shape) != shape:
            raise DataError(f"shape {tuple(found.shape)}", expected=f"{shape}, a row each, a column a feature")
        wrong = (~torch.isfinite(found)).nonzero()
        if len(wrong):
            raise DataError(f"{len(wrong)} values are not finite (the first in row {int(wrong[0, 0])})",
                            expected="finite numbers")  # fmt: skip
    return found


@dataclass(frozen=True, kw_only=True, eq=False)
class BilinearPMF(BilinearModel):
    """Bilinear factors of clicks: yes or no of users to items, by features of both.

    Sites
    -----
    item: (I, K), user: (U, K), local; Normal(0, 1) each by default.
    item_weight: V (Q, K), user_weight: W (P, K), where there are features; Normal(0, 1 / unit) by default.
    x: (U, I), observed, 0 or 1: :func:`ppl_models.ratings`, or a dense matrix with NaN where nothing is known. A sparse
        one is refused: it does not say whether what is not stored is a 0 or unknown, as it is in ratings.
    user_covariates: (U, P), item_covariates: (I, Q): given, ``fit(model, clicks, user_covariates=...)``.

    Factors can be turned by any orthogonal matrix and nothing changes.
    """

    likelihood: ClassVar[Any] = Bernoulli()
    observed: ClassVar[Mapping[str, Site]] = {"x": Site("observed", ("item",), ("user",), constraints.boolean)}

    def observe_rows(
        self, site: Mapping[str, Tensor], local: Tensor, x: Tensor | None, mask: Tensor | None, index: Tensor | None,
        user_covariates: Tensor | None = None, item_covariates: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        log_odds = self.log_odds(site, local, index, user_covariates, item_covariates)
        return self.observe(self.likelihood.distribution(log_odds), x, mask, index)

    def prepare(
        self, data: Any, *, mask: Any = None, dtype=None, device=None, user_covariates: Any = None,
        item_covariates: Any = None,
    ) -> Data:  # fmt: skip
        """Ratings, or a matrix (U, I), of 0 and 1, and the features. Raises DataError for anything else."""
        if is_pandas(data, "DataFrame") and not is_matrix(data):
            data = read_ratings(self, (data,))
        if isinstance(data, Ratings) and mask is None:
            checked: Data = data.to(dtype=dtype, device=device)
            wrong = ~self.likelihood.valid(data.value)
            if data.num_items != self.num_items or bool(wrong.any()):
                bad = f"{int(wrong.sum())} ratings that are neither 0 nor 1"
                found = bad if bool(wrong.any()) else f"{data.num_items} items"
                raise DataError(found, site="x", axis="item", expected=f"0 and 1, of {self.num_items} items")
        else:
            if scipy.sparse.issparse(data) or sparse.is_tensor(data):
                found = "a sparse matrix, which does not say whether what is not stored is a no or is unknown"
                raise DataError(found, site="x", expected="ratings(x) for unknown, x.toarray() for no")
            settings = {"mask": mask, "dtype": dtype, "device": device}
            rows = data.dense() if isinstance(data, Ratings) else data
            plain = replace(rows, others={}) if isinstance(rows, Data) else rows
            checked = as_values_of(self.likelihood, plain, num_features=self.num_items, site="x", **settings)
        return self._with_covariates(checked, data, user_covariates, item_covariates)

    def check_for_fitting(self, data: Data) -> None:
        """Refuses data in which everything observed is the same. Items without ratings have their features."""
        value = data.value if isinstance(data, Ratings) else data.x if data.mask is None else data.x[data.mask]
        if not value.numel() or bool((value == value.flatten()[0]).all()):
            raise DataError("every observed entry is the same, or there is none", site="x", expected="both 0 and 1")

    @classmethod
    def example(cls) -> Example:
        """Two components, thirty-two users, eight items; no features."""
        rng = np.random.default_rng(27)
        truth = {"item": 1.5 * rng.normal(size=(8, 2)), "user": rng.normal(size=(32, 2))}
        log_odds = truth["user"] @ truth["item"].T
        x = rng.random(log_odds.shape) < 1 / (1 + np.exp(-log_odds))
        return Example.of(cls(num_components=2, num_users=32, num_items=8), x, truth)
