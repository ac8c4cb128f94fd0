"""Draws from a fit's posterior as tensors, thinned until they are nearly independent."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from custom_inference._posterior_draws import PosteriorDraws
from custom_inference.fit import Fit
from custom_inference.gibbs._diagnostics import effective_size
from ppl_models import MethodError, Model

_USE = 'NUTS(), CollapsedGibbs(), VariationalEM(guide="vb"), SVI(guide="normal") or SVI(globals_="normal")'


def posterior_draws(
    fit: Fit, num_draws: int = 100, *, seed: int = 0, locals_: bool = True, independent: bool = True
) -> dict[str, Tensor]:
    """Draws from the posterior of a fit: site -> (S, ...), of the globals and, with ``locals_``, of the local site.

    From ``Fit.draws`` (samplers, and guides with normals), evenly spaced over all chains: ``num_draws`` of them, or
    with ``independent`` no more than the smallest effective sample size over all entries of the globals and the log
    joint, so that those that are left are nearly independent. Otherwise from ``Fit.global_posterior`` (variational
    Bayes, Dirichlet guides), always ``num_draws``.

    The locals, as the program holds them: those of the same draws, where the fit has them; else one draw from their
    exact posterior given each draw of the globals, where that is feasible; else, and beside ``Fit.global_posterior``,
    from the fit's posterior of them, independent of the globals.

    Raises
    ------
    MethodError: the fit gives points of some of the globals; which methods give more.
    """
    if isinstance(num_draws, bool) or not isinstance(num_draws, int) or num_draws < 1:
        raise MethodError(f"num_draws = {num_draws!r}, expected a whole number of at least 1")
    number, has_draws = num_draws, fit.draws is not None and all(s in fit.draws for s in fit.model.global_sites)
    points = [] if has_draws else [site for site in fit.model.global_sites if site not in fit.global_posterior]
    if points:
        raise MethodError(
            f"{fit.method} gives points of {', '.join(points)}, not a posterior to draw from; methods that give one, "
            f"each for some of the models: {_USE}"
        )
    if has_draws:
        number = min(number, _number_of_draws(fit, independent))
    source = PosteriorDraws(fit, number, seed)
    if not locals_:
        return _stacked(list(source.globals_alone()))
    pairs = list(source)
    return {**_stacked([params for params, _ in pairs]), fit.model.local_site: torch.stack([one for _, one in pairs])}


def has_global_posterior(method: Any, model: Model) -> bool:
    """Whether a method's fits of a model hold draws, or a posterior, of its globals: as its hook of this name says."""
    said = getattr(method, "has_global_posterior", None)
    return bool(said(model)) if said is not None else not hasattr(method, "local_posterior")


def _stacked(each: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {site: torch.stack([one[site] for one in each]) for site in each[0]}


def _number_of_draws(fit: Fit, independent: bool) -> int:
    """All, or the smallest effective sample size of the globals' entries and log p; of short chains one draw each."""
    assert fit.draws is not None
    chains, length = fit.draws[fit.model.global_sites[0]].shape[:2]
    if not independent:
        return chains * length
    watched = [fit.draws[site].detach().double().cpu().reshape(chains, length, -1) for site in fit.model.global_sites]
    lp = fit.sample_stats.get("lp")
    if lp is not None and tuple(lp.shape) == (chains, length):
        watched.append(lp.double().cpu().unsqueeze(-1))
    sizes = np.concatenate([np.atleast_1d(effective_size(one.numpy())) for one in watched])
    sizes = sizes[np.isfinite(sizes)]
    return min(chains * length, max(1, int(sizes.min()))) if len(sizes) else chains
