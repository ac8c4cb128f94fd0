"""Variational Bayes and Gibbs sampling of PMF with learned priors (002, eqs. 27.90-27.93), as methods of the suite.

The arrays are those of ``variational`` and ``gibbs``; here a model and its data become these, and what they find a fit.
Both give draws of all sites, from which predictions and their spread are averages. Factors of draws are turned, each by
the rotation that brings the items closest to the variational means: the posterior does not tell rotations apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from custom_inference.core.diagnostics import convergence, rounded
from custom_inference.core.fit import Fit
from custom_inference.core.local_inference import Local
from custom_inference.core.method import Call, Method
from custom_inference.core.posteriors import GaussianPosterior
from custom_inference.core.settings import require_whole
from custom_inference.families.ratings import gibbs as _gibbs
from custom_inference.families.ratings import variational as _variational
from custom_inference.families.ratings.hyper import PriorSettings, RowPrior, drawn
from custom_inference.families.ratings.implicit import SIDES, added, blocks_of, incidence
from custom_inference.families.ratings.incidence import Array, Incidence
from custom_inference.families.ratings.sides import Settings, unpacked
from ppl_models import PMF, Data, MethodError, Model, PriorError, Ratings
from ppl_models.distributions import InverseRootGamma, InverseWishart

#: Draws are kept up to so many entries.
_ENTRIES = 2**25


def settings_of(model: PMF, rank: int) -> Settings:
    """The priors of the model as the array-level code has them. Raises PriorError for others than it has."""
    prior: Any = model.priors["scale"]
    if not isinstance(prior, InverseRootGamma):
        raise PriorError("learned priors need an InverseRootGamma prior of 'scale', the default; use SVI or NUTS")
    noise: dict[str, Any] = {"noise_shape": float(prior.concentration), "noise_rate": float(prior.rate)}
    sides = {side: _prior_settings(model, side) for side in ("user", "item")}
    return Settings(**sides, **noise, unit_shape=model.varying_noise, rank=rank)


def _prior_settings(model: PMF, side: str) -> PriorSettings:
    size, prior = model.sizes["coordinate"], model.priors[f"{side}_covariance"]
    identity = torch.eye(size)
    if not isinstance(prior, InverseWishart) or not torch.equal(prior.scale.to(identity), prior.scale[0, 0] * identity):
        needed = f"an InverseWishart(df, c I) prior of '{side}_covariance'"
        raise PriorError(f"learned priors need {needed}; use SVI or NUTS for others")
    mean: Any = model.prior(f"{side}_mean", like=identity, values={f"{side}_covariance": identity})
    degrees = float(prior.df)
    base = getattr(mean, "covariance_matrix", None)
    if base is None or not torch.allclose(base, base[0, 0] * identity) or bool((mean.mean != 0).any()):
        raise PriorError(f"learned priors need '{side}_mean' ~ Normal(0, covariance / strength), the default")
    spread = float(prior.scale[0, 0]) / degrees
    return PriorSettings(strength=1 / float(base[0, 0]), degrees=degrees - size + 1, spread=spread)


@dataclass(frozen=True, kw_only=True)
class RatingsVB(Method):
    """Variational Bayes of PMF with learned priors: a Gaussian with full covariance for each user and each item.

    sweeps: at most so many over all users and items. tolerance: a sweep that raises the bound by less a rating ends.
    draws: of the posterior, of all sites, for predictions and their spread; fewer where memory is short.
    rank: of covariates the principal coordinates that are used. threads: of the sweeps.
    implicit: learn from who rated what, too. The program is then that of covariates 1 / sqrt(n) (and less of popular
        ones) for each of the n items that a user rated and 0 for others, and likewise of items: m + z_n B in place of
        the mean m of a profile. What z_n B adds is part of ``user_profile``, ``item`` and ``item_bias``, and
        ``user_covariance``, ``item_covariance`` are those of the whole. Of new users and items ``predict`` reads it
        off the ratings that it is given; those without any have the prior of all, and so has ``transform``.

    Covariates have coefficients with a ridge that is learned, in place of their prior; feedback has its own. The
    overall mean is that of the ratings.

    Ilin & Raiko, *Practical approaches to PCA in the presence of missing values*, JMLR 11 (2010).
    """

    sweeps: int = 30
    tolerance: float = 1e-5
    draws: int = 100
    rank: int = 40
    threads: int = 1
    implicit: bool = False

    draws_globals = True

    def __post_init__(self) -> None:
        for name in ("sweeps", "draws", "rank", "threads"):
            require_whole(name, getattr(self, name), 1)
        if not isinstance(self.implicit, bool):
            raise MethodError(f"implicit = {self.implicit!r}, expected True or False")

    @property
    def name(self) -> str:
        return "VariationalBayes"

    def check(self, model: Model) -> None:
        """Raises MethodError for models without learned priors and biases, or of ratings that are not Gaussian."""
        adaptive = isinstance(model, PMF) and model.adaptive and model.biases
        if not isinstance(model, PMF) or not adaptive or model.likelihood != "gaussian" or model.time_edges:
            raise MethodError(f"{self.name} takes PMF(adaptive=True) with biases and Gaussian ratings")
        settings_of(model, self.rank)

    def _found(self, model: PMF, data: Data, seeds: Sequence[int]) -> list[_variational.Factors]:
        """Fits from starts of these seeds, which share the columns of their features."""
        (ratings, beside), found = _listed(data, self.implicit), []
        for seed in seeds:
            at = _variational.variational(
                ratings, model.num_components, settings=settings_of(model, self.rank), sweeps=self.sweeps,
                tolerance=self.tolerance, threads=self.threads, seed=seed, **beside,
            )  # fmt: skip
            beside = {f"{side}_features": getattr(at, side).design or () for side in SIDES}
            found.append(at)
        return found

    def _fit(self, model: Model, data: Data, call: Call) -> Fit:
        assert isinstance(model, PMF)
        (at,) = self._found(model, data, [call.seed])
        generator = np.random.default_rng(call.seed)
        count = min(self.draws, _ENTRIES // max(1, at.user.mean.size + at.item.mean.size))
        found = [_drawn_sites(model, data, at, generator) for _ in range(count)]
        ridges = [_feedback_ridges((at.user.prior, at.item.prior))]
        draws = {site: torch.stack([one[site] for one in found])[None] for site in found[0]} if found else None
        local = _user_posterior(model, data, at)
        ended = "converged" if len(at.bounds) < self.sweeps else "stopped at the limit"
        gain = (at.bounds[-1] - at.bounds[-2]) / at.ratings.num_ratings if len(at.bounds) > 1 else float("nan")
        status = f"{ended} after {len(at.bounds)} sweeps (last gain {gain:.1e} a rating)"
        return _fit_of(self, model, data, call, means_of(model, data, at), draws, local, at.bounds, status, ridges)


@dataclass(frozen=True, kw_only=True)
class RatingsGibbs(RatingsVB):
    """Gibbs sampling of PMF with learned priors (Bayesian PMF), from a short run of variational Bayes.

    num_samples: sweeps of each chain whose draws are kept, after ``warmup``, thinned where they take too much memory.
    chains: independent ones, from variational fits with seeds of their own; they run in threads. The status has their
        R-hat and effective size, of sigma, the mean rating of a typical pair and the log likelihood, which do not tell
        rotations apart; ``sample_stats`` has the last.

    Draws predict stars somewhat better under a narrower prior than the default, which suits variational Bayes:
    ``InverseWishart(K + 1, .1 (K + 1) I)`` of ``user_covariance`` and ``item_covariance``.

    Salakhutdinov & Mnih, *Bayesian probabilistic matrix factorization using MCMC*, ICML 2008.
    """

    num_samples: int = 100
    warmup: int = 20
    chains: int = 2
    sweeps: int = 10
    rank: int = 75

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("num_samples", "warmup", "chains"):
            require_whole(name, getattr(self, name), 0 if name == "warmup" else 1)

    @property
    def name(self) -> str:
        return "Gibbs"

    def _fit(self, model: Model, data: Data, call: Call) -> Fit:
        assert isinstance(model, PMF)
        seeds = np.random.SeedSequence([call.seed]).generate_state(self.chains, np.uint32).tolist()
        starts = self._found(model, data, seeds)
        length, room = self.warmup + self.num_samples, 4 * _ENTRIES // self.chains

        def run(pair: tuple[_variational.Factors, int]) -> _gibbs.Draws:
            return _gibbs.gibbs(pair[0], sweeps=length, burn_in=self.warmup, room=room, seed=pair[1])

        with ThreadPoolExecutor(min(self.chains, self.threads)) as pool:
            chains = list(pool.map(run, zip(starts, seeds, strict=True)))
        target = starts[0].item.mean[:, 1:]
        stacked = [[_sites_of_draw(model, data, one, s, target) for s in range(len(one))] for one in chains]
        draws = {
            site: torch.stack([torch.stack([one[site] for one in chain]) for chain in stacked])
            for site in stacked[0][0]
        }
        params = {site: value.mean((0, 1)) for site, value in draws.items()}
        profile = params["user_profile"]
        centred = draws["user_profile"].flatten(0, 1) - profile
        covariance = torch.einsum("snk,snl->nkl", centred, centred) / max(1, len(centred) - 1)
        ridge = 1e-9 * torch.eye(profile.shape[1]).to(profile)
        ridges = [_feedback_ridges(pair) for one in chains for pair in zip(one.user.prior, one.item.prior, strict=True)]
        local = GaussianPosterior(profile, covariance + ridge)
        likelihood = np.array([_gibbs.log_likelihoods(one, starts[0].ratings) for one in chains])
        typical = draws["mean"] + draws["user_mean"][..., 0] + draws["item_mean"][..., 0]
        watched = {"scale": draws["scale"].double().cpu().numpy(), "mean": typical.double().cpu().numpy()}
        agreed = convergence({**watched, "log likelihood": likelihood})
        each = f"{self.chains} chain{'s' if self.chains > 1 else ''} of {len(chains[0])} draws"
        status = f"{each}, after {self.warmup} sweeps of warm-up; {agreed}"
        fit = _fit_of(self, model, data, call, params, draws, local, starts[0].bounds, status, ridges)
        fit.sample_stats = {"log_likelihood": torch.as_tensor(likelihood)}
        worst = {"r_hat": rounded(agreed.r_hat), "r_hat_of": agreed.r_hat_of}
        fit.details |= {**worst, "ess": rounded(agreed.ess), "ess_of": agreed.ess_of}
        return fit


def _listed(data: Data, implicit: bool) -> tuple[Incidence, dict[str, Any]]:
    """The ratings as arrays, and the blocks of covariates, the last of each side that of implicit feedback."""
    ratings = incidence(data)
    feedback = blocks_of(ratings) if implicit else (None, None)
    found = {}
    for side, block in zip(SIDES, feedback, strict=True):
        given = data.others.get(f"{side}_covariates")
        blocks = [None if given is None else given.cpu().double().numpy(), block]
        found[f"{side}_features"] = [one for one in blocks if one is not None]
    return ratings, {name: blocks for name, blocks in found.items() if blocks}


def _feedback_ridges(priors: Any) -> list[float]:
    return [float(prior.ridges[-1]) if len(prior.ridges) else 0.0 for prior in priors]


def _weights(side: Any, prior: RowPrior, given: bool) -> tuple[Array, Array]:
    """m and B of m + x B from what the columns of a design are multiplied by; given: whether there are covariates x."""
    if not given:
        return prior.coefficient[0], np.zeros((0, prior.coefficient.shape[1]))
    weight = side.design.backs[0] @ prior.coefficient[1:][side.design.block == 0]
    return prior.coefficient[0] - side.design.centres[0] @ weight, weight


def _sites(
    model: PMF, data: Data, centre: float, tau: float, sides: Any, rows: Any, gains: Any, priors: Any
) -> dict[str, Tensor]:
    """Values of all sites from rows (N, d) of users and of items, gains and priors."""
    found: dict[str, Any] = {"mean": centre, "scale": tau**-0.5}
    for name, side, row, gain, prior in zip(("user", "item"), sides, rows, gains, priors, strict=True):
        given = data.others.get(f"{name}_covariates")
        mean, weight = _weights(side, prior, given is not None)
        rest = np.asarray(row, np.float64) - (0 if given is None else given.cpu().double().numpy() @ weight)
        covariance = np.linalg.inv(prior.precision)
        if side.design is not None and len(side.design.backs) > (given is not None):
            covariance = covariance + added(prior, side.design)
        found |= {
            f"{name}_mean": mean,
            f"{name}_covariance": 0.5 * (covariance + covariance.T),
            f"{name}_weight": weight,
        }
        found |= {"user_profile": rest} if name == "user" else {"item": rest[:, 1:], "item_bias": rest[:, 0]}
        found |= {"item_precision": np.asarray(gain)} if name == "item" else {}
    like = data.value if isinstance(data, Ratings) else data.x
    wanted = (*model.global_sites, model.local_site)
    return {site: torch.as_tensor(np.array(found[site])).to(like) for site in wanted}


def means_of(model: PMF, data: Data, at: _variational.Factors) -> dict[str, Tensor]:
    """The posterior means of a variational fit."""
    sides = at.user, at.item
    priors = [side.prior for side in sides]
    rows, gains = [side.mean for side in sides], [side.gain for side in sides]
    return _sites(model, data, at.ratings.centre, at.tau, sides, rows, gains, priors)


def _drawn_sites(model: PMF, data: Data, at: _variational.Factors, generator: np.random.Generator) -> dict[str, Tensor]:
    """A draw of all sites from the variational posterior, in which its factors are independent."""
    rows, gains, priors = [], [], []
    for side in (at.user, at.item):
        assert side.prior is not None
        root = np.linalg.cholesky(unpacked(side.covariance, side.mean.shape[1]))
        rows.append(side.mean + np.einsum("nij,nj->ni", root, generator.standard_normal(side.mean.shape)))
        shape = (at.settings.unit_shape or 0.0) + 0.5 * side.ratings.counts
        gains.append(side.gain * generator.standard_gamma(shape) / shape if at.settings.unit_shape else side.gain)
        priors.append(drawn(side.prior, side.design, side.settings, generator))
    tau = float(generator.gamma(at.tau_shape) / at.tau_rate)
    return _sites(model, data, at.ratings.centre, tau, (at.user, at.item), rows, gains, priors)


def _sites_of_draw(model: PMF, data: Data, draws: _gibbs.Draws, number: int, target: Array) -> dict[str, Tensor]:
    """A draw of a chain, its factors turned so that those of the items are close to the target (I, K)."""
    left, _, right = np.linalg.svd(draws.item.row[number, :, 1:].T @ target)
    turn = np.eye(len(left) + 1)
    turn[1:, 1:] = left @ right
    sides = draws.user, draws.item
    rows = [side.row[number] @ turn for side in sides]
    priors = [
        replace(p, precision=turn.T @ p.precision @ turn, coefficient=p.coefficient @ turn)
        for p in (side.prior[number] for side in sides)
    ]
    gains = [side.gain[number] for side in sides]
    return _sites(model, data, draws.centre, float(draws.tau[number]), sides, rows, gains, priors)


def _user_posterior(model: PMF, data: Data, at: _variational.Factors) -> GaussianPosterior:
    mean = means_of(model, data, at)["user_profile"]
    return GaussianPosterior(mean, torch.as_tensor(unpacked(at.user.covariance, mean.shape[1])).to(mean))


def _fit_of(
    method: RatingsVB, model: PMF, data: Data, call: Call, params: Any, draws: Any, local: Any, bounds: Any,
    status: str, ridges: list[list[float]],
) -> Fit:  # fmt: skip
    bound = torch.full((len(data),), torch.nan, dtype=local.mean.dtype, device=local.mean.device)
    return Fit(
        model=model,
        params={**params, **model.local_parts(params["user_profile"])},
        elbo=torch.tensor(bounds, dtype=torch.float64),
        bound_name="variational",
        objective="bound",
        status=status,
        method=method.name,
        data=data,
        seed=call.seed,
        local=Local(local, bound, what="variational" if method.name != "Gibbs" else "draws", family=method.name),
        draws=draws,
        details={"implicit": {"rank": method.rank, "ridges": ridges}} if method.implicit else {},
    )
