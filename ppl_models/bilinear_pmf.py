"""Bilinear factors of clicks and choices: what users do with items by features of both.

Murphy (2012), section 27.6.2, eq. 27.94; Stern, Herbrich and
Graepel, *Matchbox: large scale Bayesian recommendations* (WWW 2009). User u has features x_u (P,), item v x_v (Q,):

    user_u ~ Normal(0, I_K)                                                                          u = 1..U
    a_u    = W'(x_u - c) + user_u,    b_v = V'(x_v - d) + item_v              W = user_weight, V = item_weight
    R(u, v) ~ Bernoulli(sigmoid(a_u'b_v))                                                            BilinearPMF
    R(u, t) ~ Categorical(softmax_v(a_u'b_v))    of the items v shown at time t                      ChoicePMF

The source writes Ber(R | a_u'b_v), which is no probability as it stands: the bilinear form is unbounded, so that it is
the log-odds here. ``user`` and ``item`` are the weights of the users' and the items' own indicators, which the source
has among the features; a 1 among the features gives offsets, and then it makes no difference about which centres c
and d the others are taken. What is given by the features alone holds for users and items that were never seen.

A choice (Yang et al., *Collaborative competitive filtering*, SIGIR 2011) says that its item is liked better than those
beside it, not that it is liked and they are not: an item that is always shown with better ones is not taken to be bad,
and what all items have in common has no influence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self, Unpack

import numpy as np
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models.core.errors import ModelError, require_whole
from ppl_models.core.model import Example, Model
from ppl_models.core.plates import Plate
from ppl_models.core.row_models import Response
from ppl_models.core.scales import beside_an_intercept, check_scale
from ppl_models.core.sites import Site
from ppl_models.data.matrix import Data
from ppl_models.distributions import ScaledNormal
from ppl_models.kinds.clicks import Choices, Clicks, ItemsWithFeatures
from ppl_models.likelihoods import Bernoulli, Categorical

#: The log-odds of a place where nothing was shown.
_NOTHING = -1e9


def constant_feature(like: Tensor, size: int, num_features: int) -> Tensor:
    """What stands for features that are not given, (size, num_features): the constant 1, the others 0."""
    features = like.new_zeros(size, num_features)
    features[:, :1] = 1.0
    return features


@dataclass(frozen=True, kw_only=True, eq=False)
class BilinearModel(ItemsWithFeatures):
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
        """Return this model with open centres and units as those of the model ``like``, or of the data's features."""
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


@dataclass(frozen=True, kw_only=True, eq=False)
class BilinearPMF(Clicks, BilinearModel):
    """Bilinear factors of clicks: yes or no of users to items, by features of both.

    Sites
    -----
    item: factors of the items, (I, K); Normal(0, 1) by default. user: factors of the users beside what their features
        say, (U, K), local; Normal(0, 1) by default.
    item_weight: V (Q, K), user_weight: W (P, K), where there are features; Normal(0, 1 / unit) by default.
    x: (U, I), observed, 0 or 1: :func:`ppl_models.ratings`, or a dense matrix with NaN where nothing is known. A sparse
        one is refused: it does not say whether what is not stored is a 0 or unknown, as it is in ratings.
    user_covariates: (U, P), item_covariates: (I, Q): given, ``fit(model, clicks, user_covariates=...)``.

    Factors can be turned by any orthogonal matrix and nothing changes.
    """

    likelihood: ClassVar[Any] = Bernoulli()
    observed: ClassVar[Mapping[str, Site]] = {"x": Site("observed", ("item",), ("user",), constraints.boolean)}

    def __call__(
        self,
        x: Tensor | None = None,
        *,
        user_covariates: Tensor | None = None,
        item_covariates: Tensor | None = None,
        **plate: Unpack[Plate],
    ) -> Tensor:
        site = {"item": self.sample("item")}
        if self.num_item_covariates:
            site["item_weight"] = self.sample("item_weight")
        if self.num_user_covariates:
            site["user_weight"] = self.sample("user_weight")
        b = self.item_factors(site, self.about_centre("item", item_covariates))
        with self.rows(x, **plate) as users:
            user = self.sample("user")
            a = user + self.user_offsets(site, self.about_centre("user", users.of(user_covariates)), users.number)
            return users.observe("x", dist.Bernoulli(logits=a @ b.mT))

    @classmethod
    def example(cls) -> Example:
        """Two components, thirty-two users, eight items; no features."""
        rng = np.random.default_rng(27)
        truth = {"item": 1.5 * rng.normal(size=(8, 2)), "user": rng.normal(size=(32, 2))}
        log_odds = truth["user"] @ truth["item"].T
        x = rng.random(log_odds.shape) < 1 / (1 + np.exp(-log_odds))
        return Example.of(cls(num_components=2, num_users=32, num_items=8), x, truth)


@dataclass(frozen=True, kw_only=True, eq=False)
class ChoicePMF(Choices, BilinearModel):
    """Bilinear factors of choices: what users picked of the items that they were shown, by features of both.

    num_choices: T, the choices of a user; of fewer the others are missing. num_shown: L, the items shown at a time, of
    fewer some places are empty; 0: always all items, in their order.

    Sites
    -----
    item, item_weight, user_weight, user: as :class:`BilinearPMF`'s.
    x: (U, T), observed, the place of what was picked, 0 to L - 1; NaN where a choice is missing.
    shown: (U, T, L), given, the numbers of the items at each place, -1 where a place is empty, with ``num_shown``.
        Without it the first L items are shown. :func:`ppl_models.impressions` makes both from a log.
    user_covariates, item_covariates: as :class:`BilinearPMF`'s.

    Raises ModelError for one item to choose from, and for more shown than there are.
    """

    axes: ClassVar[Mapping[str, str]] = {**BilinearModel.axes, "choice": "num_choices"}
    observed: ClassVar[Mapping[str, Site]] = {
        "x": Site("observed", ("choice",), ("user",), constraints.nonnegative_integer)
    }

    def __post_init__(self) -> None:
        shown = self.num_shown
        require_whole({"num_items": self.num_items, "num_shown": shown}, 0)
        if self.num_items < 2:
            raise ModelError(f"num_items = {self.num_items!r}, expected at least two to choose from")
        if shown == 1 or shown > self.num_items:
            raise ModelError(f"num_shown = {shown!r}, expected 0 for all items, or 2 to num_items = {self.num_items}")
        super().__post_init__()

    @property
    def sizes(self) -> dict[str, int]:
        return super().sizes | {"place": self.places}

    @property
    def sites(self) -> Mapping[str, Site]:
        shown = {"shown": Site("given", ("choice", "place"), ("user",))} if self.num_shown else {}
        return {**super().sites, **shown}

    @property
    def likelihood(self) -> Categorical:
        return Categorical(self.places)

    def __call__(
        self,
        x: Tensor | None = None,
        *,
        user_covariates: Tensor | None = None,
        item_covariates: Tensor | None = None,
        shown: Tensor | None = None,
        **plate: Unpack[Plate],
    ) -> Tensor:
        site = {"item": self.sample("item")}
        if self.num_item_covariates:
            site["item_weight"] = self.sample("item_weight")
        if self.num_user_covariates:
            site["user_weight"] = self.sample("user_weight")
        b = self.item_factors(site, self.about_centre("item", item_covariates))
        with self.rows(x, **plate) as users:
            user = self.sample("user")
            a = user + self.user_offsets(site, self.about_centre("user", users.of(user_covariates)), users.number)
            item = torch.arange(self.places, device=a.device).expand(users.number, self.num_choices, -1)
            item = item if shown is None else users.of(shown).long()  # (U, T, L), -1 where a place is empty
            picked = (a @ b.mT).gather(-1, item.clamp_min(0).flatten(1).expand(*a.shape[:-2], -1, -1))
            logits = picked.unflatten(-1, item.shape[1:]).masked_fill(item < 0, _NOTHING)
            return users.observe("x", Response(logits=logits))

    @classmethod
    def example(cls) -> Example:
        """Two components, thirty-two users who choose three times among all of four items."""
        rng = np.random.default_rng(28)
        truth = {"item": 1.5 * rng.normal(size=(4, 2)), "user": rng.normal(size=(32, 2))}
        p = np.exp(truth["user"] @ truth["item"].T)
        p /= p.sum(1, keepdims=True)
        x = np.array([[rng.choice(4, p=row) for _ in range(3)] for row in p])
        return Example.of(cls(num_components=2, num_users=32, num_items=4, num_choices=3), x, truth)
