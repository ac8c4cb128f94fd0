"""The evidence of every row between a lower and an upper bound, without sampling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from custom_inference.core.fit import Fit, check_globals
from custom_inference.core.local_inference import Local, is_feasible, log_likelihood
from custom_inference.core.reader import read_at
from custom_inference.core.registry import engines_of, family_of
from ppl_models import Data, MethodError, Model
from ppl_models.core.model import require_model

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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

    def plot(self, estimate: Local | None = None, *, title: str | None = None, ax: Axes | None = None) -> Any:
        """Draw every row's bracket above its lower bound, from the narrowest to the widest.

        Parameters
        ----------
        estimate: of the same rows, as ``AIS().local_posterior(model, params, data)`` returns it: its log p(x_n) as
            points in the brackets, with two standard errors.
        title, ax: a title of one's own, and axes to draw on.

        Returns
        -------
        The axes that were given, or a new Figure.

        Raises MethodError for an estimate of another number of rows.
        """
        from custom_inference.checks.comparison_plots import plot_bracket

        points, errors = (None, None) if estimate is None else (estimate.bound, estimate.standard_error)
        if points is not None and points.shape != self.lower.shape:
            raise MethodError(f"an estimate of {len(points)} rows beside brackets of {len(self.lower)}")
        given = [None if one is None else one.cpu().numpy() for one in (points, errors)]
        return plot_bracket(self.lower.cpu().numpy(), self.upper.cpu().numpy(), *given, title=title, ax=ax)

    def _repr_html_(self) -> str:
        from custom_inference.faces import displays

        return displays.report(repr(self), plot=self.plot)

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
    data = read_at(model, params, x, mask, others)
    chosen, at = check_globals(model, params, data, called="params")
    above = family_of(chosen).above
    with torch.no_grad():
        if is_feasible(chosen, data):
            evidence = log_likelihood(chosen, at, data, seed=seed)
            return Bracket(evidence, evidence, torch.ones_like(evidence, dtype=torch.bool))
        if above is None:
            kind, known = type(chosen).__name__, " or ".join(f"bound='{one}'" for one in _bounds_below(chosen))
            raise MethodError(f"nothing bounds log p(x_n) of {kind} from above; from below: {known or 'nothing'}")
        upper, exact = above(chosen, at, data, exact_ones=exact_ones)
        lower, rest = upper.clone(), (~exact).nonzero().flatten()
        if len(rest):
            some, names = data.rows(rest), _bounds_below(chosen)
            every = [log_likelihood(chosen, at, some, bound=name, seed=seed) for name in names]
            lower[rest] = torch.stack(every).amax(0)
    return Bracket(lower, torch.maximum(upper, lower), exact)


def _bounds_below(model: Model) -> list[str]:
    """The names of the model's lower bounds; estimates, which may exceed the evidence, are none."""
    engines = {name: make() for name, make in engines_of(model).items()}
    return [name for name, one in engines.items() if one.objective == "bound" and not one.integrates_globals]
