"""One door to draws from a fit's posterior of the globals, whatever the method left it as."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from custom_inference.engines import is_feasible, solve_local
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

    The locals, as the program holds them: the sampler's own of the same draws, or, where it keeps none, one draw from
    their exact posterior given each draw of the globals, as also where a guide has the locals summed out; otherwise,
    and where that is not feasible, draws from the fit's posterior of them, independent of the globals.

    Raises
    ------
    MethodError: the fit gives points of some of the globals; which methods give more.
    """
    if num_draws < 1:
        raise MethodError(f"num_draws = {num_draws}, expected at least 1")
    model, sites = fit.model, fit.model.global_sites
    state = np.random.SeedSequence(seed % 2**64).generate_state(len(sites) + 1)
    *seeds, last = (int(one) for one in state)
    if fit.draws is not None and all(site in fit.draws for site in sites):
        return _of_chains(fit, fit.draws, num_draws, last, locals_, independent)
    points = [site for site in sites if site not in fit.global_posterior]
    if points:
        raise MethodError(
            f"{fit.method} gives points of {', '.join(points)}, not a posterior to draw from; methods that give one, "
            f"each for some of the models: {_USE}"
        )
    draws = {s: fit.global_posterior[s].sample(num_draws, seed=one) for s, one in zip(sites, seeds, strict=True)}
    if locals_:
        draws[model.local_site] = model.local_value(fit.posterior.sample(num_draws, seed=last))
    return draws


def has_global_posterior(method: Any, model: Model) -> bool:
    """Whether a method's fits of a model hold draws, or a posterior, of its globals: as its hook of this name says."""
    said = getattr(method, "has_global_posterior", None)
    return bool(said(model)) if said is not None else not hasattr(method, "local_posterior")


def _of_chains(
    fit: Fit, draws: dict[str, Tensor], num_draws: int, seed: int, locals_: bool, independent: bool
) -> dict[str, Tensor]:
    model, site = fit.model, fit.model.local_site
    chains, length = draws[model.global_sites[0]].shape[:2]
    number = min(num_draws, chains * length)
    if independent:
        number = min(number, max(1, int(_smallest_effective_size(fit, draws))))
    index = torch.as_tensor(np.floor((np.arange(number) + 0.5) * chains * length / number).astype(np.int64))
    chosen = {name: draws[name].flatten(0, 1)[index] for name in (*model.global_sites, site) if name in draws}
    if not locals_:
        chosen.pop(site, None)
    elif site not in chosen:
        chosen[site] = _locals_of(fit, chosen, number, seed)
    return chosen


def _locals_of(fit: Fit, chosen: dict[str, Tensor], number: int, seed: int) -> Tensor:
    sampled = bool(fit.sample_stats)  # by a sampler: its draws are of globals and locals together
    if fit.local is not None and not (sampled and is_feasible(fit.model)):
        return fit.model.local_value(fit.local.posterior.sample(number, seed=seed))
    seeds = np.random.SeedSequence(seed).generate_state(number).tolist()
    found = []
    with torch.no_grad():
        for i, one in enumerate(seeds):
            params = {name: value[i] for name, value in chosen.items()}
            local = solve_local(fit.model, params, fit.data, bound="evidence", seed=one)
            found.append(local.posterior.sample(1, seed=one)[0])
    return fit.model.local_value(torch.stack(found))


def _smallest_effective_size(fit: Fit, draws: dict[str, Tensor]) -> float:
    """Over the entries of the globals and log p; of chains too short to tell, one draw each."""
    shape = tuple(draws[fit.model.global_sites[0]].shape[:2])
    watched = [draws[site].detach().double().cpu().reshape(*shape, -1).numpy() for site in fit.model.global_sites]
    lp = fit.sample_stats.get("lp")
    if lp is not None and tuple(lp.shape) == shape:
        watched.append(lp.double().cpu().numpy()[..., None])
    sizes = np.concatenate([np.atleast_1d(effective_size(one)) for one in watched])
    sizes = sizes[np.isfinite(sizes)]
    return float(sizes.min()) if len(sizes) else float(shape[0])
