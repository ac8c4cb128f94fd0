"""The evidence of every row between a lower and an upper bound, without sampling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from custom_inference.core.fit import Fit, check_values
from custom_inference.core.local_inference import IMPORTANCE, bounds_of, is_feasible, log_likelihood
from custom_inference.core.registry import family_of
from ppl_models import Data, MethodError, Model
from ppl_models.core.model import require_model


@dataclass(frozen=True, repr=False)
class Bracket:
    """log p(x_n) between ``lower`` and ``upper``, each (N,), in nats; exact (N,): the rows where the two are the
    evidence itself."""

    lower: Tensor
    upper: Tensor
    exact: Tensor

    @property
    def width(self) -> Tensor:
        """How far apart the two are, (N,), in nats: at most so far is either from the evidence."""
        return self.upper - self.lower

    def __repr__(self) -> str:
        rows, exact = len(self.exact), int(self.exact.sum())
        total = f"{float(self.lower.sum()):.2f} <= log p(x) <= {float(self.upper.sum()):.2f}"
        if not rows or exact == rows:
            return f"{total}: exact for all of {rows} rows"
        widths = f"{float(self.width.mean()):.3g} nats a row, {float(self.width.max()):.3g} at most"
        return f"{total}: width {widths}; exact for {exact} of {rows} rows"


def bracket(
    model: Model,
    params: Fit | Mapping[str, Tensor],
    x: Data | Tensor | ArrayLike,
    *,
    mask: ArrayLike | None = None,
    exact_ones: int = 10,
    seed: int = 0,
    **others: Any,
) -> Bracket:
    """Bound log p(x_n | params) of every row from both sides.

    From below by the best of the model's bounds (``Fit.bounds``); from above by what its family has: of ``NOCA``
    Jaakkola & Jordan, *Variational probabilistic inference and the QMR-DT network*, JAIR 10 (1999), beside ones of each
    row that are summed over exactly. Where exact sums are cheap both sides are the evidence, of every model.

    Parameters
    ----------
    model: the model, or that of a fit.
    params: the globals: a fit, or a mapping site -> tensor.
    x: rows (N, D), as every method's ``fit`` takes them; mask: True where an entry was observed.
    exact_ones: how many ones of a row are exact: each doubles the time, and narrows the bracket. Rows that have no more
        are exact.
    others: what the model observes or conditions on beside x, by the names of its sites.

    Returns
    -------
    A :class:`Bracket`: ``lower``, ``upper`` and ``width`` of every row, (N,).

    Raises MethodError where nothing bounds the evidence of the model from above; ModelError for globals that it cannot
    have.
    """
    model = require_model(model)
    if exact_ones < 0:
        raise MethodError(f"exact_ones = {exact_ones}, expected a whole number from 0 on")
    data = model.as_read(model.prepare(x, mask=mask, dtype=torch.float64, **others))
    chosen, values = (params.model, params.params) if isinstance(params, Fit) else (model, params)
    at = {site: value.to(data.x) for site, value in check_values(chosen, values, called="params").items()}
    above = family_of(chosen).above
    with torch.no_grad():
        if is_feasible(chosen, data):
            evidence = log_likelihood(chosen, at, data, seed=seed)
            return Bracket(evidence, evidence, torch.ones_like(evidence, dtype=torch.bool))
        if above is None:
            kind, known = type(chosen).__name__, " or ".join(f"bound='{one}'" for one in bounds_of(chosen))
            raise MethodError(f"nothing bounds log p(x_n) of {kind} from above; from below: {known or 'nothing'}")
        upper, exact = above(chosen, at, data, exact_ones=exact_ones)
        lower, rest = upper.clone(), (~exact).nonzero().flatten()
        if len(rest):
            some, names = (data.rows(rest), [one for one in bounds_of(chosen) if one not in ("exact", IMPORTANCE)])
            every = [log_likelihood(chosen, at, some, bound=name, seed=seed) for name in names]
            lower[rest] = torch.stack(every).amax(0)
    return Bracket(lower, torch.maximum(upper, lower), exact)
