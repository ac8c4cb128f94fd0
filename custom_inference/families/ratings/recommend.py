"""Which items users will like best of those that they have not rated: ``Fit.recommend`` of models of ratings."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from custom_inference.core.fit import Fit
from custom_inference.core.settings import require_whole
from custom_inference.families.ratings.asked import RequestSide
from custom_inference.families.ratings.implicit import triplets
from custom_inference.families.ratings.predict import NEW_IS_PRIOR, of_new_users
from custom_inference.families.ratings.prediction import ChancePrediction, RatingPrediction, Scale
from ppl_models.data.held import Column, to_list, to_numpy
from ppl_models.data.labels import places_of
from ppl_models.data.lazy import pandas as pd

#: Pairs that are predicted at a time.
_BLOCK = 2**18


def recommend_items(
    fit: Fit, users: Column | None = None, n: int = 10, *, exclude_seen: bool = True, new: str | None = None,
    uncertainty: bool = False, clip: Scale = False, **given: Any,
) -> pd.DataFrame:  # fmt: skip
    """Return a table with a line for each user and item, the best first: user, rank, item, and mean, the prediction.

    users: their labels, numbers 0, 1, ... where the data have none; None: all. n: items a user, fewer where there are
        no more. exclude_seen: leave out items that a user has rated, among the ratings of the fit or those given.
    uncertainty: sd, low and high, the ends of the 90 % interval, too. new, clip, given: as ``Fit.predict`` takes them;
        the order is that of the predictions before they are clipped.

    Raises DataError for unknown users, MethodError for what ``Fit.predict`` does not take.
    """
    require_whole("n", n, 1)
    others = of_new_users(fit, given.get("ratings"), given.get("user_covariates"))
    data, size = others or fit.data, fit.data.num_features
    side = RequestSide.users(data, given=others is not None)
    named = to_list(range(len(data)) if side.labels is None else side.labels) if users is None else to_list(users)
    place = np.asarray(places_of(named, side.labels, side.size, "user", **side.new(new, NEW_IS_PRIOR)))
    user, item, _ = triplets(data)
    seen = scipy.sparse.csr_array((np.ones(len(user), bool), (user, item)), (len(data) + 1, size))
    tables = []
    for rows in np.array_split(np.arange(len(place)), len(place) * size // _BLOCK + 1):
        part = torch.as_tensor(place[rows]).long()
        pairs = part.repeat_interleave(size), torch.arange(size).repeat(len(part))
        found = fit.predict(positions=pairs, new=new, uncertainty=True, **given)
        score = found.mean.cpu()
        if clip is not False:
            found = fit.predict(positions=pairs, new=new, uncertainty=True, clip=clip, **given)
        left = torch.as_tensor(seen[place[rows]].toarray() * exclude_seen)
        tables.append(
            _rank(found, score, left, n).assign(user=lambda table, rows=rows: [named[rows[u]] for u in table["user"]])
        )
    table = pd.concat(tables, ignore_index=True)
    labels = fit.data.coords.get("feature")
    table["item"] = table["item"] if labels is None else [labels[v] for v in table["item"]]
    return table if uncertainty else table.drop(columns=["sd", "low", "high"])


def _rank(found: RatingPrediction | ChancePrediction, score: Tensor, left_out: Tensor, n: int) -> pd.DataFrame:
    """Make lines, with users and items by their numbers, from predictions of all items, and from what these are ranked
    by, (U I,) each. left_out: (U, I)."""
    score = score.reshape(left_out.shape).masked_fill(left_out, -torch.inf)
    best = torch.argsort(score, dim=1, descending=True, stable=True)[:, :n]
    user, rank = torch.isfinite(score.gather(1, best)).nonzero(as_tuple=True)
    item, ends = best[user, rank], found.interval()
    values = {"mean": found.mean, "sd": found.sd, "low": ends[0], "high": ends[1]}
    chosen = {name: to_numpy(one.cpu()[user * score.shape[1] + item]) for name, one in values.items()}
    return pd.DataFrame({"user": user.numpy(), "rank": rank.numpy() + 1, "item": item.numpy(), **chosen})
