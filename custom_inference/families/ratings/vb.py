"""Variational Bayes of PMF with learned priors (Murphy 2012, eqs. 27.90-27.93), as a method of the suite.

The arrays are those of ``variational``; here a model and its data become these, and what they find a fit, with draws of
all sites, from which predictions and their spread are averages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from custom_inference.core.ended import Ended
from custom_inference.core.fit import Fit
from custom_inference.core.local_inference import Local
from custom_inference.core.method import Call, Method
from custom_inference.core.posteriors import GaussianPosterior
from custom_inference.core.progress import Progress
from custom_inference.core.settings import require_between, require_whole
from custom_inference.core.threads import HeldLibraries, map_in_threads
from custom_inference.families.ratings.fold_in import profiles_given
from custom_inference.families.ratings.priors import drift_prior, settings_of, units_of_rows
from custom_inference.families.ratings.sides import unpack_symmetric
from custom_inference.families.ratings.translate import RatingsProblem, Values, log_volume, sites_of, variational_draws
from custom_inference.families.ratings.variational import RatingFactors
from ppl_models import PMF, Data, MethodError, Model

#: Draws are kept up to so many entries.
_ENTRIES = 2**25
#: So many ratings are few: noise of some users and items may explain them as well as factors do.
_FEW = 20_000


def require_ratings(method: str, model: Model) -> PMF:
    """Raises MethodError for models without learned priors and biases, or with biases by time of ratings that are not
    Gaussian."""
    if not (isinstance(model, PMF) and model.adaptive and model.biases) or (
        model.timed and model.likelihood != "gaussian"
    ):
        raise MethodError(
            f"{method} takes PMF(adaptive=True) with biases, which change in time of Gaussian ratings only"
        )
    for site in ("bin_bias", "item_bin_bias", "user_bin_bias"):
        if site in model.shapes:
            drift_prior(model, site)
    return model


@dataclass(frozen=True, kw_only=True)
class RatingsVB(Method):
    """Variational Bayes of PMF with learned priors: a Gaussian with full covariance for each user and each item.

    restarts: fits from random starts; predictions are those of an equal mixture of their posteriors, which is better
        than any one, and everything else is that of the fit with the greatest bound. Not with ``init``, which gives the
        items and the priors of the one start.
    sweeps: of each at most so many over all users and items. tolerance: a sweep that raises the bound by less a rating
        ends. Each start of at most 20,000 ratings, unless from ``init``, is fitted twice: as of more ratings, and with
        twice the sweeps, in the first third of which all users and items have equal noise, which may else explain what
        factors have not yet come to. The fit with the greater bound is kept.
    draws: of the posterior, of all sites, for predictions and their spread; fewer where memory is short.
    rank: of covariates the principal coordinates that are used. threads: of the sweeps; by default as many as torch
        uses. The result does not depend on it.
    implicit: learn from who rated what, too. The program is then that of covariates 1 / sqrt(n) (and less of popular
        ones) for each of the n items that a user rated and 0 for others, and likewise of items: m + z_n B in place of
        the mean m of a profile. What z_n B adds is part of ``user_profile``, ``item`` and ``item_bias``, and
        ``user_covariance``, ``item_covariance`` are those of the whole. Of new users and items ``predict`` reads it
        off the ratings that it is given; those without any have the prior of all, and so has ``transform``.

    Covariates have coefficients with a ridge that is learned, in place of their prior, each block of them its own
    (``PMF.user_blocks``); feedback is one more block. The overall mean, unless known, is that of the ratings. Ctrl-C
    ends the fit with the best state so far.

    Ilin & Raiko, *Practical approaches to PCA in the presence of missing values*, JMLR 11 (2010).
    """

    restarts: int = 1
    sweeps: int = 30
    tolerance: float = 1e-5
    draws: int = 48
    rank: int = 50
    threads: int | None = None
    implicit: bool = False

    draws_globals = True

    def __post_init__(self) -> None:
        for name in ("restarts", "sweeps", "draws", "rank", *(["threads"] if self.threads is not None else [])):
            require_whole(name, getattr(self, name), 1)
        require_between("tolerance", self.tolerance, "[0, inf)")
        require_flag(self.implicit)

    @property
    def name(self) -> str:
        return "VariationalBayes"

    def check(self, model: Model) -> None:
        settings_of(require_ratings(self.name, model), self.rank)

    def _fit(self, model: Model, data: Data, call: Call) -> Fit:
        model = require_ratings(self.name, model)
        problem = RatingsProblem.of(model, data, self.rank, self.implicit)
        start = call.start(model)
        number = self.restarts - 1 if start is None else 0  # starts are alike where they are given
        seeds = [call.seed, *np.random.SeedSequence([call.seed]).generate_state(number).tolist()]
        few = model.noise_shape is not None and problem.ratings.num_ratings <= _FEW and start is None
        with Progress(self.restarts * self.sweeps * (3 if few else 1), self.name, enabled=call.progress) as bar:
            settings: dict[str, Any] = {
                "sweeps": self.sweeps,
                "noise_after": (0, 2 * self.sweeps // 3) if few else (0,),
                "tolerance": self.tolerance,
                "threads": self.threads or HeldLibraries.count_threads(),
            }
            settings["start"] = problem.start(start)
            starts = problem.fits(seeds, **settings, watch=lambda at: bar.advance(at.bounds[-1] / len(data)))
        starts.sort(key=lambda one: -one.bounds[-1])
        return self._build_fit(model, data, call, starts)

    def local_posterior(self, model: Model, params: dict[str, Tensor], data: Data, *, seed: int = 0) -> Local:
        """The profiles of users at given globals; its bound is not computed."""
        return profiles_given(require_ratings(self.name, model), params, data, self.name)

    def _build_fit(self, model: PMF, data: Data, call: Call, starts: list[RatingFactors]) -> Fit:
        best, generator = starts[0], np.random.default_rng(call.seed)
        count = min(self.draws, _ENTRIES // max(1, best.user.mean.size + best.item.mean.size))
        each, target = max(1, count // len(starts)), best.item.mean[:, 1:]
        each_drawn = [one for at in starts for one in variational_draws(at, each, generator)]
        drawn = map_in_threads(lambda one: one.rotate_to(target), each_drawn, self.threads)
        found = map_in_threads(lambda one: sites_of(model, data, one, best), drawn, self.threads)
        params, units = sites_of(model, data, Values.means(best), best), units_of_rows(model)["user"]
        covariance = torch.as_tensor(unpack_symmetric(best.user.covariance, len(units))) * torch.outer(units, units)
        mean, (ended, status) = params["user_profile"], self._describe_end(starts)
        local = Local(GaussianPosterior(mean, covariance.to(mean)), torch.full_like(mean[:, 0], torch.nan),
                      what="variational", family=self.name)  # fmt: skip
        return Fit(
            model=model,
            params={**params, **model.local_parts(mean)},
            elbo=torch.tensor(best.bounds, dtype=torch.float64) + log_volume(model, data),
            bound_name="variational",
            objective="bound",
            status=status,
            ended=ended,
            method=self,
            data=data,
            seed=call.seed,
            local=local,
            draws={site: torch.stack([one[site] for one in found])[None] for site in found[0]},
            details=feedback_details(self.implicit, self.rank, [one.ridges for one in drawn])
            | {"bounds": [one.bounds[-1] + log_volume(model, data) for one in starts]},
        )

    def _describe_end(self, starts: list[RatingFactors]) -> tuple[Ended, str]:
        """Return how the fits ended, and the status that says so."""
        best = starts[0]
        ended, how = Ended.LIMIT, "stopped at the limit"
        if any(one.interrupted for one in starts):
            ended, how = Ended.INTERRUPTED, "interrupted: the best state so far,"
        elif len(best.bounds) < (2 if best.settings.noise_after else 1) * self.sweeps:
            ended, how = Ended.CONVERGED, "converged"
        gain = (best.bounds[-1] - best.bounds[-2]) / best.ratings.num_ratings if len(best.bounds) > 1 else float("nan")
        many = f"the best of {len(starts)} starts, all of which predict; " if len(starts) > 1 else ""
        return ended, f"{many}{how} after {len(best.bounds)} sweeps (last gain {gain:.1e} a rating)"


def require_flag(implicit: object) -> None:
    if not isinstance(implicit, bool):
        raise MethodError(f"implicit = {implicit!r}, expected True or False")


def feedback_details(implicit: bool, rank: int, ridges: list[list[float]]) -> dict[str, object]:
    """What predictions of new users and items read of a fit with implicit feedback."""
    return {"implicit": {"rank": rank, "ridges": ridges}} if implicit else {}
