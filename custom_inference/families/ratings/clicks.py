"""What users will do with items: ``Fit.predict`` of clicks.

With a ~ Normal(m, V) and b ~ Normal(n, S), independent, and T = L Q, V = L L', T'S T = D diagonal, g = T'n, c = T'S m,
eta = a'b has the characteristic function

    phi(w) = e^(i w m'n - w^2 m'S m / 2) prod_k (1 + w^2 D_k)^(-1/2) e^((i w g_k - w^2 c_k)^2 / 2 (1 + w^2 D_k)),

and as that of the logistic density is pi w / sinh(pi w), for s = sigmoid(eta)

    E s = 1/2 + int_0^inf Im phi(w) / sinh(pi w) dw,    E s - E s^2 = int_0^inf w Re phi(w) / sinh(pi w) dw,

which the midpoint rule gives to rounding.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from custom_inference.core.result import Result
from custom_inference.families.ratings.asked import RequestSide, resolve_pairs
from custom_inference.families.ratings.bilinear import Factors, factor_states
from custom_inference.families.ratings.predict import NEW_IS_PRIOR, of_new_users
from custom_inference.families.ratings.prediction import ChancePrediction

#: Where 1 / sinh(pi w) is next to nothing; the widest step of the rule, for predictors within +-_NEAR.
_END, _STEP, _NEAR = 9.0, 0.1, 25.0
#: Pairs that are predicted at a time.
_BLOCK = 2**14


def predict_clicks(
    fit: Result, pairs: Any = None, *, positions: Any = None, new: str | None = None, ratings: Any = None,
    user_covariates: Any = None, uncertainty: bool = False,
) -> Any:  # fmt: skip
    """Compute P(click) of pairs of a user and an item, (M,).

    pairs: a tuple (users, items), (M,) labels each: the numbers 0, 1, ... where the data have no labels; a list of
    pairs, an array (M, 2) or a frame of them. Or ``Ratings``: their users and items, by their labels. positions: pairs
    by their numbers in the data, in place of pairs.
    new: "prior": unknown users and items are new ones and have their prior, without features. By default they are an
        error.
    ratings: clicks of users in place of those of the fit, on its items; their labels or positions are then meant.
    user_covariates: (U, P), of these users; without ratings= of users of whom nothing else is known: numbered by the
        rows, or called by the index of a DataFrame.
    uncertainty: give a :class:`ChancePrediction` instead of the means, with intervals of P(click).

    Raises DataError for unknown users and items, and for pairs of different lengths.
    """
    others = of_new_users(fit, ratings, user_covariates)
    sides = RequestSide.users(others or fit.data, given=others is not None), RequestSide.items(fit.data)
    asked = resolve_pairs(pairs, positions, sides, new=new, hint=NEW_IS_PRIOR)
    user, item = (place.to(fit.params["item"].device) for place in asked)
    moments = [_chances(at, user, item) for at in factor_states(fit, others)]
    first, second = (torch.stack(part).mean(0) for part in zip(*moments, strict=True))
    found = ChancePrediction(first, (second - first.square()).clamp(min=0).sqrt())
    return found if uncertainty else found.mean


def _chances(at: Factors, user: Tensor, item: Tensor) -> tuple[Tensor, Tensor]:
    """Return E s and E s^2 of the chance s of a click, (M,) each."""
    points = [side.covariance is None or bool((place < side.first).all())
              for side, place in zip(at, (user, item), strict=True)]  # fmt: skip
    if all(points):
        chance = torch.sigmoid((at.users.mean[user] * at.items.mean[item]).sum(-1))
        return chance, chance.square()
    parts = zip(user.split(_BLOCK), item.split(_BLOCK), strict=True)
    found = [mean_sigmoid(*at.users.dense(u), *at.items.dense(v)) for u, v in parts]
    first, second = (torch.cat(part) for part in zip(*found, strict=True))
    return first, second


def mean_sigmoid(m: Tensor, v: Tensor, n: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """Compute E sigmoid(a'b) and E sigmoid(a'b)^2, (M,), of a ~ Normal(m, v) and b ~ Normal(n, s), (M, K) and (M, K,
    K)."""
    values, vectors = torch.linalg.eigh(v)
    root = vectors * values.clamp(min=0).sqrt().unsqueeze(-2)
    d, turn = torch.linalg.eigh(root.mT @ s @ root)
    root, d = root @ turn, d.clamp(min=0)
    moved = (s @ m.unsqueeze(-1)).squeeze(-1)
    g, c = ((root.mT @ one.unsqueeze(-1)).squeeze(-1) for one in (n, moved))
    centre, beside = (m * n).sum(-1), (m * moved).sum(-1)
    reach = float((centre.abs() + 8 * ((g.square() + c.square() + d.square()).sum(-1) + beside).sqrt()).max())
    step = _STEP * min(1.0, _NEAR / max(reach, 1.0))
    first, second = torch.full_like(centre, 0.5), torch.zeros_like(centre)
    for w in (step * (torch.arange(math.ceil(_END / step), dtype=torch.float64) + 0.5)).tolist():
        wide = 1 + w**2 * d
        p = torch.complex(-(w**2) * c, w * g)
        log = torch.complex(-0.5 * w**2 * beside - 0.5 * wide.log().sum(-1), w * centre)
        phi = torch.exp(log + (p.square() / (2 * wide)).sum(-1)) * (step / math.sinh(math.pi * w))
        first, second = first + phi.imag, second + w * phi.real
    return first, first - second
