"""How far is an approximation from the truth? One call."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from custom_inference.core.fit import Fit, completed
from custom_inference.core.local_inference import Local
from custom_inference.core.posteriors import kullback_leibler
from custom_inference.exact import Exact
from ppl_models import MethodError, Model
from ppl_models.core.model import require_model


@dataclass(frozen=True)
class Comparison:
    """table: one line a method; locals: method -> its posterior and bound per row; params: the common globals.

    With ``at="integrated"`` there are no common globals: fits: method -> its own fit.
    interrupted: Ctrl-C ended the comparison; the table has the methods until then.
    """

    table: pd.DataFrame
    locals: dict[str, Local] = field(default_factory=dict)
    params: dict[str, Tensor] = field(default_factory=dict)
    fits: dict[str, Fit] = field(default_factory=dict)
    interrupted: bool = False

    def __repr__(self) -> str:
        return self.table.to_string(float_format=lambda value: f"{value:.4g}")

    def plot(self) -> Any:
        """Bars of the gap per row and of the worst marginal error."""
        from custom_inference.checks.plots import plot_comparison

        return plot_comparison(self.table)


def compare(
    methods: Sequence[Any],
    model: Model,
    x: Any,
    at: Fit | Mapping[str, Tensor] | str | None = None,
    seed: int = 0,
    *,
    mask: Any = None,
    progress: bool = True,
) -> Comparison:
    """Every method's posterior over the local latents at the SAME globals, against the exact one.

    at: the globals: a fit, or a mapping site -> tensor; by default those of the default fit. With "integrated" every
        method is fitted, and compared with the exact posterior of the tokens' topics, topics and proportions integrated
        out (toy corpora under LDA); see :mod:`custom_inference.checks.compare_integrated`.
    Columns of ``table``: ``bound`` (sum over the rows of the method's bound), ``evidence`` (exact),
    ``gap_per_row`` = (evidence - bound) / N, ``kl_per_row`` = mean KL(q || exact posterior),
    ``worst_marginal_error`` = max |E_q[s_ni] - E[s_ni | x_n]| (of codes: of the marginals), ``seconds`` (wall time of
    the local inference). Points have no bound (NaN) and an infinite divergence.

    Ctrl-C returns the methods that are done. Raises CapacityError where the exact posterior does not fit into memory.
    """
    if not methods:
        raise MethodError("no methods to compare")
    if isinstance(at, str):
        return _compare_integrated(methods, model, x, at, seed, mask, progress)
    require_model(model)
    data = model.as_read(model.prepare(x, mask=mask, dtype=torch.float64))
    if at is None:
        from custom_inference.methods import fit as default_fit

        at = completed(default_fit(model, data, seed=seed, progress=progress))
    # A fit may have fewer components than were asked for: its model is the one its parameters belong to.
    chosen = at.model if isinstance(at, Fit) else model
    params = {s: v.to(data.x) for s, v in chosen.check_params(at.params if isinstance(at, Fit) else at).items()}
    with torch.no_grad():
        exact = Exact().local_posterior(chosen, params, data)
    lines, found, interrupted = [], {}, False
    try:
        for method in methods:
            begin = time.perf_counter()
            local = method.local_posterior(chosen, params, data, seed=seed)
            seconds = time.perf_counter() - begin
            scores, name = _scores(local, exact), _distinct(method.name, found)
            found[name] = local
            lines.append({"method": name, **scores, "seconds": seconds})
    except KeyboardInterrupt:
        if not lines:
            raise
        interrupted = True
    return Comparison(pd.DataFrame(lines).set_index("method"), found, params, interrupted=interrupted)


def _compare_integrated(
    methods: Sequence[Any], model: Model, x: Any, at: str, seed: int, mask: Any, progress: bool
) -> Comparison:
    from custom_inference.checks.compare_integrated import compare_integrated

    if at != "integrated":
        raise MethodError(f'at = {at!r}, expected a fit, a mapping site -> tensor, "integrated", or nothing')
    fits: dict[str, Fit] = {}
    lines, interrupted = [], False
    try:
        for line, fit in compare_integrated(methods, model, x, seed=seed, mask=mask, progress=progress):
            name = _distinct(line.pop("method"), fits)
            fits[name] = fit
            lines.append({"method": name, **line})
    except KeyboardInterrupt:
        if not lines:
            raise
        interrupted = True
    return Comparison(pd.DataFrame(lines).set_index("method"), fits=fits, interrupted=interrupted)


def _scores(local: Local, exact: Local) -> dict[str, float]:
    rows = len(exact.posterior.mean)  # of a graph the nodes: its bound is one number
    return {
        "bound": float(local.bound.sum()),
        "evidence": float(exact.bound.sum()),
        "gap_per_row": float((exact.bound - local.bound).sum() / rows),
        "kl_per_row": float(kullback_leibler(local.posterior, exact.posterior).sum() / rows),
        "worst_marginal_error": float((local.posterior.mean - exact.posterior.mean).abs().max()),
    }


def _distinct(name: str, taken: Mapping[str, Any]) -> str:
    if name not in taken:
        return name
    return next(f"{name} #{i}" for i in range(2, len(taken) + 3) if f"{name} #{i}" not in taken)
