"""E[x_n | what is given of row n] under programs without engines: their latents summed or integrated out, or drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from custom_inference.core import predictive
from custom_inference.core.latent_values import latent_values
from custom_inference.core.local_inference import is_feasible, solve_local
from custom_inference.core.posteriors import LocalPosterior
from custom_inference.core.programs.checked import check_program
from custom_inference.core.result import Result
from ppl_models import Data, MethodError, Model
from ppl_models.data.adapt import adapt
from ppl_models.data.containers import axis_labels

#: Draws of the latents that are averaged over where they are neither summed nor integrated out.
_DRAWS = 2000
#: So many numbers of x, and of latents, are held at once.
_NUMBERS = 2**22


def predict_given(fit: Result, given: Mapping[str, Any]) -> Tensor:
    """Return E[x_n | what row n is given, and observed with beside x] at the fit's globals, (N, ...); where nothing is
    given, for the rows of the fit.

    Exact where latents are summed or integrated out, with nothing known of x; else the mean over draws of them by the
    fit's seed.

    Raises DataError for what is lacking or does not suit the model; ModelError for a program in which missing entries
    count, or with factors that draws leave out; MethodError where x has no mean.
    """
    model, params, data = fit.model, fit.globals, _without_x(fit, given)
    check_program(model, data)
    with torch.no_grad():
        if is_feasible(model, data) or len(model.sites_of("observed")) > 1:
            posterior = solve_local(model, params, data, seed=fit.seed).posterior
            predictive.require_copies(model, params, posterior.mode, data)
            size = max(1, _NUMBERS // (_number_of(posterior) * posterior.mode.shape[-1]))
            blocks = [slice(start, start + size) for start in range(0, len(data), size)]
            found = [_average(model, params, data.rows(b), *_values_of(posterior.rows(b), fit.seed)) for b in blocks]
        else:
            predictive.refuse_draws(model, params, data)
            found = [_average(model, params, data, None, data.x.new_full((len(data), _DRAWS), 1 / _DRAWS), fit.seed)]
    mean = torch.cat(found)
    if not bool(torch.isfinite(mean).all()):
        raise MethodError(
            f"no prediction of '{model.observed_site}' of {type(model).__name__}: its distribution has no finite mean"
        )
    return mean


def _without_x(fit: Result, given: Mapping[str, Any]) -> Data:
    """The rows with what they are given, and nothing known of x."""
    own = fit.data.dense()
    if not given:
        return replace(own, mask=torch.zeros_like(own.x, dtype=torch.bool))
    sizes = fit.model.rows_of({site: torch.empty(len(value)) for site, value in given.items() if np.ndim(value)})
    x = torch.full((sizes.get("num_rows", 1), *own.x.shape[1:]), torch.nan, dtype=own.x.dtype)
    labels = next((rows for value in given.values() if (rows := axis_labels(adapt(value))[0]) is not None), None)
    return fit.read(Data(x=x, coords={} if labels is None else {"row": labels}), **given)


def _number_of(posterior: LocalPosterior) -> int:
    """How many values of a row's latents stand for its posterior."""
    own: Any = posterior
    if hasattr(posterior, "num_cells"):
        return own.num_cells
    return own.log_weight.shape[1] if hasattr(posterior, "log_weight") else _DRAWS


def _values_of(posterior: LocalPosterior, seed: int) -> tuple[Tensor, Tensor]:
    """Values (N, M, W) of the rows' latents that stand for their posterior, and weights (N, M)."""
    own: Any = posterior
    if hasattr(posterior, "cells"):
        return own.cells()
    if not hasattr(posterior, "log_weight"):
        drawn = posterior.sample(_DRAWS, seed=seed).transpose(0, 1)
        return drawn, torch.full(drawn.shape[:2], 1 / _DRAWS).to(drawn)
    codes, weight = own.codes, own.log_weight.exp()
    return (codes.expand(len(weight), *codes.shape) if codes.ndim == 2 else codes).to(weight), weight


def _average(
    model: Model, params: Mapping[str, Tensor], data: Data, codes: Tensor | None, weight: Tensor, seed: int = 0
) -> Tensor:
    """Average E[x_n | latents] over their values (N, M, W) with weights (N, M), copies of the rows at once; None: over
    as many that the program draws."""
    rows, number = weight.shape
    total: Any = 0.0
    step = max(1, _NUMBERS // max(1, data.x.numel()))
    plain, every = replace(data, coords={}), torch.arange(rows, device=data.x.device)
    for start in range(0, number, step):
        some = slice(start, min(start + step, number))
        copies = plain.rows(every.repeat_interleave(some.stop - start))
        local = {} if codes is None else latent_values(model, params, copies, codes[:, some].flatten(0, 1))
        mean = predictive.expect_generated(model, {**params, **local}, copies, seed=seed + start)
        mean = mean.reshape(rows, -1, *mean.shape[1:])
        share = weight[:, some].reshape(rows, -1, *[1] * (mean.ndim - 2))
        total = total + torch.where(share > 0, share * mean, 0.0).sum(1)
    return total
