"""What a fit knows of every number that it learned: values, deviations, intervals, and of chains whether they agree."""

from __future__ import annotations

import itertools
from typing import Any

from numpy.typing import NDArray

from custom_inference.core.diagnostics import describe_draws
from custom_inference.core.draws import PosteriorDraws
from custom_inference.core.result import Result
from ppl_models import PPLError
from ppl_models.data.held import to_numpy
from ppl_models.data.lazy import pandas as pd

Array = NDArray[Any]
#: The ends of the central intervals.
_ENDS = 0.05, 0.95
#: Deviations and intervals are of sites of at most so many numbers.
_MOST = 2_000_000


def describe_globals(fit: Result) -> pd.DataFrame:
    """Return a line for every entry of the globals, by its name, with what is known of it (``describe_sites``)."""
    parts = []
    for site, columns in describe_sites(fit).items():
        labels = [[str(v) for v in fit.coords[axis]] for axis in fit.model.dims[site]]
        names = [f"{site}[{', '.join(key)}]" if key else site for key in itertools.product(*labels)]
        parts.append(pd.DataFrame({name: numbers.ravel() for name, numbers in columns.items()}, names))
    return pd.concat(parts)


def describe_sites(fit: Result) -> dict[str, dict[str, Array]]:
    """Return site -> column -> values of the globals: what the draws or the posterior say of them; of those that have
    neither the "estimate" alone, and the value of those that are "known"."""
    found = {}
    for site, value in fit.globals.items():
        alone = "known" if site in fit.model.known else "estimate" if site in fit.point_estimates else ""
        found[site] = {alone: to_numpy(value)} if alone else _describe_site(fit, site)
    return found


def _describe_site(fit: Result, site: str) -> dict[str, Array]:
    """Describe a site by its draws, with effective sizes where these are a chain's, or by its posterior: in closed form
    where this has one."""
    mean = to_numpy(fit.globals[site])
    if fit.draws is not None and site in fit.draws:
        columns = describe_draws(to_numpy(fit.draws[site]))
        if not PosteriorDraws(fit, 1).markov:  # of independent draws both would say nothing of the approximation
            del columns["ess"], columns["r_hat"]
        return columns
    posterior = fit.global_posterior.get(site)
    if posterior is None or mean.size > _MOST or posterior.mean.shape != mean.shape:
        return {"mean": mean}
    try:
        (low, high), deviation = posterior.quantiles(_ENDS), posterior.variance.sqrt()
    except PPLError:
        return {"mean": mean}
    return {"mean": mean, "sd": to_numpy(deviation), "q5": to_numpy(low), "q95": to_numpy(high)}
