"""Leave-one-out cross-validation by importance sampling, through ArviZ."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from custom_inference.checks.pointwise import FEWEST, Array, Pointwise, pointwise
from custom_inference.core.draws import require_fit
from custom_inference.core.fit import Fit
from custom_inference.core.local_inference import describe_stand_in
from custom_inference.core.settings import require_whole
from custom_inference.faces.arviz_library import POOR, Elpd, arviz
from ppl_models import DataWarning, MethodError


@dataclass(frozen=True)
class LeaveOneOut:
    """Leave-one-out predictive accuracy of a fit; see :func:`custom_inference.loo`.

    elpd: sum_n log p(x_n | x_-n), se its standard error, p_loo the effective number of parameters.
    pointwise, pareto_k: (N,), of every observation; labels name them, unit says what they are ("row", "dyad", ...).
    good_k: above this Pareto k an estimate is not to be relied on: min(1 - 1 / log10(draws), 0.7).
    approximation_k: Pareto k of the weights p / q of an approximate posterior; None of draws by a Markov chain.
    bound: "exact", or the name of what stands in for log p(x_n | globals); stand_in: what that is, in words.
    source: where the draws came from. arviz: the ``ELPDData`` that ArviZ's functions take.
    """

    elpd: float
    se: float
    p_loo: float
    pointwise: Array
    pareto_k: Array
    good_k: float
    approximation_k: float | None
    num_draws: int
    bound: str
    unit: str
    labels: list[str]
    source: str
    arviz: Any
    stand_in: str = ""

    @property
    def num_bad(self) -> int:
        """Observations whose estimates are not to be relied on."""
        return int((self.pareto_k > self.good_k).sum())

    def __repr__(self) -> str:
        bad = f"{self.num_bad} of {len(self.pareto_k)}"
        lines = [
            f"elpd_loo {self.elpd:.2f} ± {self.se:.2f}, p_loo {self.p_loo:.2f}; {len(self.pointwise)} x {self.unit}",
            f"Pareto k above {self.good_k:.2f}: {bad} (largest {self.pareto_k.max():.2f})",
            f"{self.num_draws} draws; {self.source}",
        ]
        if self.approximation_k is not None:
            lines.append(f"Pareto k of the approximate posterior itself: {self.approximation_k:.2f}")
        if self.bound != "exact":
            lines.append(f"log p(x_n | globals) replaced by {self.stand_in}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from custom_inference.faces import displays

        return displays.report("Leave-one-out cross-validation", repr(self), plot=self.plot)

    @property
    def table(self) -> pd.DataFrame:
        """elpd and pareto_k of every observation, by its label."""
        index = pd.Index(self.labels, name=self.unit)
        return pd.DataFrame({"elpd": self.pointwise, "pareto_k": self.pareto_k}, index=index)

    def plot(self, **settings: Any) -> Any:
        """Pareto k of every observation; settings: ``title``, and ``ax`` to draw on. Returns that, or a new Figure."""
        from custom_inference.checks.plots import plot_khat

        return plot_khat(self, **settings)


def loo(fit: Fit, *, num_draws: int = 1000, seed: int = 0, progress: bool = True) -> LeaveOneOut:
    """Leave-one-out cross-validation without refits: sum_n log p(x_n | x_-n), by Pareto-smoothed importance sampling.

    With draws theta_s of the globals, the locals of each row summed out of p(x_n | theta),

        p(x_n | x_-n) = sum_s w_sn p(x_n | theta_s),    w_sn prop. to r_s / p(x_n | theta_s), smoothed,

    where r_s = 1 for draws from the posterior (Vehtari, Gelman & Gabry, *Practical Bayesian model evaluation using
    leave-one-out cross-validation and WAIC*, Statistics and Computing 27, 2017: ``arviz.loo``), and
    r_s = p(theta_s, x) / q(theta_s) for draws from an approximate posterior q with a density: variational Bayes, or a
    guide of the globals (Magnusson, Andersen, Jonasson & Vehtari, *Bayesian leave-one-out cross-validation for large
    data*, ICML 2019, eq. 7). Smoothing is ArviZ's ``psislw``. Pareto k of the weights r_s alone says how far q is from
    the posterior (Yao, Vehtari, Simpson & Gelman, *Yes, but did it work? Evaluating variational inference*, ICML 2018):
    ``LeaveOneOut.approximation_k``.

    p(x_n | theta) is exact where that is feasible, else the bound or estimate that ``LeaveOneOut.bound`` names. Sites
    of an approximation that are points stay fixed, as if they were known. A graph is one observation: there each known
    dyad is left out in turn, and what it is predicted by are draws of globals AND nodes' latents given all dyads, which
    are reweighted together. Nodes are not left out.

    num_draws: draws to take from an approximation; of a chain's at most so many, evenly.

    Warns (UserWarning, as ``arviz.loo`` does) of Pareto k above min(1 - 1 / log10(num_draws), 0.7).

    Raises MethodError where the globals are points, saying what to use instead, or a chain has fewer than 25 draws;
    CapacityError where it would take long.
    """
    require_fit(fit)
    require_whole("num_draws", num_draws, FEWEST, why=", to fit a tail to")
    scores = pointwise(fit, num_draws, seed, progress)
    found, own_k = _of_chain(scores) if scores.log_ratio is None else _of_approximation(scores, scores.log_ratio)
    _warn_of_tails(found, own_k)
    numbers = found._asdict()
    about: Any = {"arviz": numbers.pop("data"), "bound": scores.bound, "unit": scores.unit}
    about |= {} if scores.bound == "exact" else {"stand_in": describe_stand_in(fit.model, scores.bound)}
    return LeaveOneOut(**numbers, **about, labels=scores.labels, source=scores.source, approximation_k=own_k)


def compare_loo(fits: Mapping[str, Fit | LeaveOneOut], **settings: Any) -> pd.DataFrame:
    """Models by their leave-one-out predictive accuracy, the best first: ``arviz.compare``, weights by stacking.

    fits: name -> a fit, or what :func:`loo` found of it. settings: of :func:`loo`. Columns of ArviZ and: ``bad_k``, how
    many Pareto k are above the limit, ``good_k``; the ``largest_k``; ``approximation_k``; ``bound``. A difference in
    which one side is a lower bound is one of bounds.

    Raises MethodError for fewer than two, and where they are not of the same observations.
    """
    if len(fits) < 2:
        raise MethodError(f"{len(fits)} fits to compare, expected at least 2, by name")
    found = {name: one if isinstance(one, LeaveOneOut) else loo(one, **settings) for name, one in fits.items()}
    first_name, first = next(iter(found.items()))
    for name, one in found.items():
        if (one.unit, one.labels) != (first.unit, first.labels):
            raise MethodError(
                f"'{name}' is of {len(one.labels)} x {one.unit}, '{first_name}' of {len(first.labels)} x {first.unit}: "
                "expected the same observations, with the same labels"
            )
    table = arviz().compare({name: one.arviz for name, one in found.items()})
    listed = [found[name] for name in table.index]
    return table.assign(
        bad_k=[one.num_bad for one in listed],
        largest_k=[float(one.pareto_k.max()) for one in listed],
        **{name: [getattr(one, name) for one in listed] for name in ("good_k", "approximation_k", "bound")},
    )


def _of_chain(scores: Pointwise) -> tuple[Elpd, None]:
    values = xr.Dataset({"x": (("chain", "draw", scores.unit), scores.log_likelihood)})
    # How many independent draws the likelihoods are worth, of which the weights are reciprocals.
    size = arviz().mean_size(np.exp(values - values.max(("chain", "draw"))))
    finite = size[np.isfinite(size)]
    total = values.sizes["chain"] * values.sizes["draw"]
    efficiency = float(np.clip(finite.mean() / total, 0.01, 1.0)) if finite.size else 1.0
    return arviz().loo(values, efficiency), None


def _of_approximation(scores: Pointwise, ratio: Array) -> tuple[Elpd, float]:
    if not np.isfinite(ratio).all():
        raise MethodError(f"log p - log q is {ratio[~np.isfinite(ratio)][0]} at a draw; the prior has no mass there")
    values = xr.Dataset({"x": (("chain", "draw", scores.unit), scores.log_likelihood)})
    _, own_k = arviz().smooth(ratio[None])
    return arviz().loo(values, log_ratio=ratio), float(own_k[0])


def _warn_of_tails(found: Elpd, own_k: float | None) -> None:
    bad, parts = int((found.pareto_k > found.good_k).sum()), []
    if bad:
        parts.append(
            f"Estimated shape parameter of Pareto distribution is greater than {found.good_k:.2f} for {bad} of "
            f"{len(found.pareto_k)} observations: their estimates, and elpd_loo, are not to be relied on"
        )
    if own_k is not None and own_k > POOR:
        parts.append(
            f"Pareto k of the approximate posterior itself is {own_k:.2f}, above {POOR}: it is too far from the "
            "posterior to be corrected by importance weights; use NUTS or CollapsedGibbs"
        )
    if parts:
        warnings.warn("; ".join(parts), DataWarning, stacklevel=3)
