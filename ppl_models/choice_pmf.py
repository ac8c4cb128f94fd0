"""Bilinear factors of choices: which of the items that they were shown users picked (an impression log).

Source 002: Murphy, *Machine Learning: a Probabilistic Perspective*, section 27.6.2; Yang et al., *Collaborative
competitive filtering* (SIGIR 2011). With the factors a_u and b_v of :class:`BilinearPMF`, by features of both sides,

    p(u picks v of the set S) = exp(a_u'b_v) / sum_(w in S) exp(a_u'b_w)

A pick says that its item is liked better than those beside it, not that it is liked and they are not: an item that is
always shown with better ones is not taken to be bad, and what all items have in common has no influence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models.bilinear_pmf import BilinearModel
from ppl_models.core.errors import DataError, ModelError, about
from ppl_models.core.model import Example
from ppl_models.core.row_models import Response
from ppl_models.core.sites import Site
from ppl_models.data.columns import check_columns
from ppl_models.data.containers import as_tensor, unpack
from ppl_models.data.matrix import Data, as_values_of
from ppl_models.likelihoods import Categorical

#: Log-odds of a place where nothing was shown.
_NOTHING = -1e9


@dataclass(frozen=True, kw_only=True, eq=False)
class ChoicePMF(BilinearModel):
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

    num_choices: int
    num_shown: int = 0

    axes: ClassVar[Mapping[str, str]] = {**BilinearModel.axes, "choice": "num_choices"}
    observed: ClassVar[Mapping[str, Site]] = {
        "x": Site("observed", ("choice",), ("user",), constraints.nonnegative_integer)
    }

    def __post_init__(self) -> None:
        shown = self.num_shown
        if isinstance(shown, bool) or not isinstance(shown, int) or shown == 1 or not 0 <= shown <= self.num_items:
            raise ModelError(f"num_shown = {shown!r}, expected 0 for all items, or 2 to num_items = {self.num_items}")
        if not isinstance(self.num_items, int) or self.num_items < 2:
            raise ModelError(f"num_items = {self.num_items!r}, expected at least two to choose from")
        super().__post_init__()

    @property
    def places(self) -> int:
        """L: how many items there are to choose from."""
        return self.num_shown or self.num_items

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

    def observe_rows(
        self, site: Mapping[str, Tensor], local: Tensor, x: Tensor | None, mask: Tensor | None, index: Tensor | None,
        shown: Tensor | None = None, user_covariates: Tensor | None = None, item_covariates: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        every = self.log_odds(site, local, index, user_covariates, item_covariates)
        if shown is None:
            item = torch.arange(self.places, device=every.device).expand(every.shape[-2], self.num_choices, -1)
        else:
            item = (shown if index is None else shown[index]).long()
        leading = every.shape[:-2]
        picked = every.gather(-1, item.clamp_min(0).flatten(1).expand(*leading, -1, -1))
        logits = picked.unflatten(-1, item.shape[1:]).masked_fill(item < 0, _NOTHING)
        if x is not None and mask is not None:
            # A place that does not exist would be looked up, masked or not.
            rows, seen = (x, mask) if index is None else (x[index], mask[index])
            x, mask, index = torch.where(seen, rows, torch.zeros_like(rows)), seen, None
        return self.observe(Response(logits=logits), x, mask, index)

    def prepare(
        self, data: Any, *, mask: Any = None, dtype=None, device=None, shown: Any = None, user_covariates: Any = None,
        item_covariates: Any = None,
    ) -> Data:  # fmt: skip
        """A matrix (U, T) of places, what was shown, and the features. Raises DataError for anything else."""
        plain = replace(data, others={}) if isinstance(data, Data) else data
        settings: dict[str, Any] = {"mask": mask, "dtype": dtype, "device": device}
        checked = as_values_of(self.likelihood, plain, num_features=self.num_choices, site="x", **settings)
        given = data.others.get("shown") if isinstance(data, Data) and shown is None else shown
        if given is not None:
            checked = replace(checked, others={"shown": self._read_choice_sets(given, checked)})
        return self._with_covariates(checked, data, user_covariates, item_covariates)

    def _read_choice_sets(self, value: Any, data: Data) -> Tensor:
        with about("shown"):
            found = as_tensor(unpack(value)[0], data.x.dtype).to(data.x.device)
            shape = (len(data), self.num_choices, self.places)
            if tuple(found.shape) != shape:
                raise DataError(f"shape {tuple(found.shape)}", expected=f"{shape}, the items shown at each choice")
            if bool(((found < -1) | (found >= self.num_items) | (found != found.round())).any()):
                expected = f"numbers of items, 0 to {self.num_items - 1}, and -1 for nothing"
                raise DataError("places that hold no item's number", expected=expected)
            seen = torch.ones_like(data.x, dtype=torch.bool) if data.mask is None else data.mask
            empty = seen & (found.gather(-1, data.x.long().unsqueeze(-1)).squeeze(-1) < 0)
            if bool(empty.any()):
                user, time = (int(part) for part in empty.nonzero()[0])
                raise DataError(f"{int(empty.sum())} picks of empty places (the first: user {user}, choice {time})",
                                expected="the place of an item that was shown")  # fmt: skip
        return found

    @property
    def data_kind(self) -> str:
        return "categories"

    def check_for_fitting(self, data: Data) -> None:
        """Refuses choices that nobody made; the same place may be picked always."""
        check_columns(data, constant=())

    @classmethod
    def for_data(cls, data: Data, num_components: int, **settings: Any) -> Self:
        """The model of the data's choices, with items up to the largest number that occurs."""
        shown = data.others.get("shown")
        largest = data.x.max() if shown is None else shown.max()
        settings.setdefault("num_shown", 0 if shown is None else shown.shape[-1])
        settings.setdefault("num_items", max(2, int(largest) + 1))
        return super().for_data(data, num_components, num_choices=data.num_features, **settings)

    @classmethod
    def example(cls) -> Example:
        """Two components, thirty-two users who choose three times among all of four items."""
        rng = np.random.default_rng(28)
        truth = {"item": 1.5 * rng.normal(size=(4, 2)), "user": rng.normal(size=(32, 2))}
        p = np.exp(truth["user"] @ truth["item"].T)
        p /= p.sum(1, keepdims=True)
        x = np.array([[rng.choice(4, p=row) for _ in range(3)] for row in p])
        return Example.of(cls(num_components=2, num_users=32, num_items=4, num_choices=3), x, truth)
