"""What the aspect Bernoulli model is good for: true and false absences told apart (Bingham et al. 2007, sections
3.3-3.6).

A *white phantom* is an aspect with a_kt near 0 at every feature: it explains zeros that the other aspects of a row do
not, false absences. A *black phantom* has a_kt near 1 everywhere and explains false presences. Neither is imposed; they
are found where the data have such noise (3.3). The functions take a fit of :class:`ppl_models.AspectBernoulli` and use
the memberships s_n of its own posterior: the estimates where they are points, their posterior means otherwise.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch
import xarray as xr
from torch import Tensor

from custom_inference.core.capacity import memory_limit, require
from custom_inference.core.fit import Fit
from custom_inference.families.rows.counts import CountRows
from ppl_models import AspectBernoulli, Data, DataError, MethodError, ModelError
from ppl_models.core.errors import unknown_name

#: Arrays of rows by features by aspects below this are made without asking for the free memory.
_NEGLIGIBLE_BYTES = 2**26
_KINDS = ("white", "black")


def phantoms(fit: Fit, *, mean: float = 0.02, extreme: float = 0.5, relative: float = 0.5) -> pd.DataFrame:
    """The phantom aspects, one line each, the most used first (3.3).

    An aspect is a white phantom if the mean of a_kt over the features is at most ``mean`` and at most ``relative``
    times the data's own rate of ones (in sparse data every aspect's mean is small), and no a_kt is above ``extreme``.
    A black one is the same with 1 - a_kt in place of a_kt and zeros in place of ones.

    Returns
    -------
    DataFrame indexed by component: ``kind`` ("white" or "black"), ``mean``, ``max``, ``min`` and ``sum`` of a_kt over
    the features, and ``share``, the mean membership. Empty where there is none. With thresholds of 1, and ``relative``
    infinite, every aspect is listed under both kinds.
    """
    aspect, rows = _aspect(fit), CountRows.of(fit.data, fit.model.settings()["total_count"])
    rate = float(rows.ones.sum() / rows.draws.sum())
    columns = {
        "mean": aspect.mean(1), "max": aspect.amax(1), "min": aspect.amin(1), "sum": aspect.sum(1),
        "share": fit.posterior.mean.mean(0),
    }  # fmt: skip
    every = pd.DataFrame({name: value.double().cpu().numpy() for name, value in columns.items()})
    found = []
    for kind, value, own in (("white", aspect, rate), ("black", 1 - aspect, 1 - rate)):
        near = (value.mean(1) <= min(mean, relative * own)) & (value.amax(1) <= extreme)
        found.append(every[near.cpu().numpy()].assign(kind=kind))
    table: Any = pd.concat(found).sort_values("share", ascending=False).rename_axis("component")
    return table[["kind", *columns]]


def attribute(fit: Fit, x: Any = None, *, mask: Any = None, rows: Any = None) -> xr.DataArray:
    """q_{k,t,n}: the probability that aspect k generated entry t of row n, given the entry (eqs. 7 and 12).

    q = s_nk b_kt / sum_j s_nj b_jt with b = a where the entry is 1 and 1 - a where it is 0. Counts of several draws
    average over the draws; a missing entry, which says nothing, has q = s_nk.

    x: new rows; the training rows by default. rows: only these (a slice or an index array), for data whose array of
    aspects by rows by features would be too large: go through them in parts.

    Returns
    -------
    DataArray with dims ("component", "row", "feature") and the data's labels; it sums to 1 over the components.
    Raises :class:`ppl_models.CapacityError` where the array would not fit into memory, with an estimate.
    """
    aspect = _aspect(fit)
    data, membership = _rows(fit, x, mask)
    if rows is not None:
        index = rows if isinstance(rows, slice) else torch.as_tensor(np.asarray(rows))
        data, membership = data.rows(index), membership[index]
    size = aspect.element_size() * len(aspect) * data.x.numel()
    if 3 * size > _NEGLIGIBLE_BYTES:
        what = f"attribution of {data.x.numel()} entries to {len(aspect)} aspects"
        require(what, 3.0 * size, allowed=memory_limit(), fits="attribute a part of the rows at a time, with rows=")
    coords = {
        "component": range(len(aspect)),
        "row": data.coords.get("row", range(len(data))),
        "feature": data.coords.get("feature", range(data.num_features)),
    }
    q = _attribution(fit, membership, data)
    return xr.DataArray(q.cpu().numpy(), dims=("component", "row", "feature"), coords=coords, name="attribution")


def denoise(fit: Fit, x: Any = None, *, mask: Any = None, drop: str | int = "white", **thresholds: float) -> Tensor:
    """The means of the entries with the phantom dropped, (N, D), to be rounded to 0 or 1 (3.6.1, footnote 8).

    The dropped aspects' memberships are set to 0, the others' normalised again, and p_nt = sum_k s_nk a_kt. A row that
    only dropped aspects explain says nothing of the others and gets their average shares.

    drop: "white" or "black": every phantom of that kind (``thresholds`` as in :func:`phantoms`); or a component's
        number.

    Raises
    ------
    MethodError: there is no such phantom, or nothing is left once it is dropped.
    """
    dropped = _select_components(fit, drop, thresholds)
    return _reconstruct_without(fit, _rows(fit, x, mask)[1], dropped)


def expand(fit: Fit, row: Any, *, top: int = 10, phantom: str | int = "white", **thresholds: float) -> pd.DataFrame:
    """The entries of a row that the phantom is most responsible for (Table 3): for a white one the most likely false
    absences, which suggests what to add to a query; for a black one the most likely false presences.

    row: the label of a training row (its number where labels are no numbers), or a new row, one value a feature (NaN
        where missing).
    top: at most this many. phantom: "white", "black" or a component's number (then absences are listed).

    Returns
    -------
    DataFrame indexed by feature: ``probability`` q of the phantom(s), and ``mean``, the probability of a 1 with the
    phantom dropped (:func:`denoise`).
    """
    if top < 1:
        raise MethodError(f"top = {top}, expected at least 1")
    chosen = _select_components(fit, phantom, thresholds)
    data, membership = _one_row(fit, row)
    q = _attribution(fit, membership, data)[chosen].sum(0)[0]
    wanted = data.x[0] > 0 if phantom == "black" else data.x[0] == 0
    if data.mask is not None:
        wanted = wanted & data.mask[0]
    mean = _reconstruct_without(fit, membership, chosen)[0]
    order = torch.where(wanted, q, -torch.ones_like(q)).argsort(descending=True)[: min(top, int(wanted.sum()))]
    names = fit.data.coords.get("feature", range(data.num_features))
    index = pd.Index([names[t] for t in order.tolist()], name="feature")
    return pd.DataFrame({"probability": q[order].tolist(), "mean": mean[order].tolist()}, index=index)


def _one_row(fit: Fit, row: Any) -> tuple[Data, Tensor]:
    """The row as data, and its membership (1, K)."""
    if np.ndim(row) > 0:
        # A copy: pandas hands out read-only views.
        return _rows(fit, torch.tensor(np.asarray(row, dtype=np.float64))[None], None)
    labels, number = fit.data.coords.get("row", ()), row
    if row in labels:
        number = labels.index(row)
    elif (
        not np.issubdtype(type(row), np.integer) or not -len(fit.data) <= row < len(fit.data)
        or any(isinstance(label, int) for label in labels)  # a number would be taken for a label that is not there
    ):  # fmt: skip
        problem = f"no row {row!r} among the {len(fit.data)} training rows"
        raise DataError(problem, axis="row", expected="a row's number or label, or the values of a new row")
    at = slice(int(number) % len(fit.data), int(number) % len(fit.data) + 1)
    return fit.data.rows(at).dense(), fit.posterior.mean[at]


def _reconstruct_without(fit: Fit, membership: Tensor, dropped: list[int]) -> Tensor:
    """Compute the means of the entries (N, D) without some of the aspects."""
    aspect = _aspect(fit)
    if len(dropped) == len(aspect):
        raise MethodError(f"all {len(aspect)} aspects would be dropped; nothing is left to reconstruct from")
    gone = torch.tensor(dropped, device=aspect.device)
    kept, average = membership.index_fill(1, gone, 0.0), fit.posterior.mean.mean(0).index_fill(0, gone, 0.0)
    total = kept.sum(1, keepdim=True)
    explained = total > torch.finfo(kept.dtype).eps ** 0.5
    share = torch.where(explained, kept / torch.where(explained, total, 1.0), average / average.sum())
    return share @ aspect


def _attribution(fit: Fit, membership: Tensor, data: Data) -> Tensor:
    """q of every entry, (K, N, D)."""
    joint = membership.T[:, :, None] * _aspect(fit)[:, None, :]
    mean = joint.sum(0)
    present = joint / mean.clamp(min=torch.finfo(mean.dtype).tiny)
    absent = (membership.T[:, :, None] - joint).clamp(min=0)
    absent = absent / absent.sum(0).clamp(min=torch.finfo(mean.dtype).tiny)
    ones = data.x / fit.model.settings()["total_count"]
    q = ones * present + (1 - ones) * absent
    return q if data.mask is None else torch.where(data.mask, q, membership.T[:, :, None])


def _select_components(fit: Fit, which: str | int, thresholds: dict[str, float]) -> list[int]:
    """Return the components that a kind of phantom, or a number, stands for."""
    aspect = _aspect(fit)
    if which not in _KINDS:
        if isinstance(which, str):
            raise MethodError(unknown_name("kind of phantom", which, _KINDS) + ", or a component's number")
        if not 0 <= which < len(aspect):
            raise MethodError(f"no aspect {which}; there are {len(aspect)}, numbered from 0")
        return [int(which)]
    table: Any = phantoms(fit, **thresholds)
    found = table.index[table["kind"] == which].tolist()
    if not found:
        means = aspect.mean(1) if which == "white" else 1 - aspect.mean(1)
        nearest = int(means.argmin())
        mean, low, high = (float(value) for value in (aspect[nearest].mean(), *aspect[nearest].aminmax()))
        raise MethodError(
            f"the fit has no {which} phantom: the nearest is aspect {nearest}, whose probabilities have mean "
            f"{mean:.3g} and range {low:.3g} to {high:.3g}; raise the thresholds of phantoms(), or give its number"
        )
    return found


def _aspect(fit: Fit) -> Tensor:
    if not isinstance(fit.model, AspectBernoulli):
        raise ModelError(f"a fit of {type(fit.model).__name__}; phantoms are aspects of AspectBernoulli")
    return fit.params["aspect_probability"]


def _rows(fit: Fit, x: Any, mask: Any) -> tuple[Data, Tensor]:
    """Dense rows and their memberships (N, K): the training rows' where ``x`` is None."""
    if x is None:
        return fit.data.dense(), fit.posterior.mean
    data = fit.read(x, mask)
    return data.dense(), fit.posterior_of(data).mean
