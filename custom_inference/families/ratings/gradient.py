"""Stochastic gradient descent as a method of PMF (Murphy 2012, section 27.6.2.2): the log joint at points, pair by
pair.

With priors Normal(0, s_u^2) of u and so on, the regularisers of eq. 27.92 are lambda_U = sigma^2 / s_u^2, once a user.
``sgd`` has them once a rating, and so takes lambda_U / n_i for user i with n_i ratings: its fixed points are those of
alternating least squares with the same sigma.

Steps are those of ratings (r - centre) / unit in the units of the model, so that a learning rate is good for any scale.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from custom_inference.core.ended import Ended
from custom_inference.core.engine import POINT
from custom_inference.core.fit import Fit
from custom_inference.core.local_inference import WHAT, Local, LocalSolver
from custom_inference.core.method import Call, Method
from custom_inference.core.posteriors import PointPosterior
from custom_inference.core.progress import Progress
from custom_inference.core.settings import require_between, require_positive, require_whole
from custom_inference.families.conjugate.normal import Normal
from custom_inference.families.ratings.gaussian import RatingsMap
from custom_inference.families.ratings.implicit import triplets
from custom_inference.families.ratings.sgd import Array, Places, SGDFactors, descent
from ppl_models import PMF, Data, MethodError, Model, PriorError
from ppl_models.core.priors import describe_prior, is_flat

#: sigma of the regularisers, in standard deviations of the ratings, where the model does not know it.
_SCALE = 0.7


@dataclass(frozen=True, kw_only=True)
class RatingsSGD(Method):
    """Stochastic gradient descent of PMF: points for all, by steps for one rating after the other (27.87-27.89).

    ``init`` gives the items to start from, in place of random ones, beside the users at their best given these.
    passes: over all ratings, each in an order of its own. learning_rate: of the first pass, multiplied by ``decay``
    after each. regularisation: lambda of all factors and biases, once a rating, of ratings in the model's unit; None:
    what the priors say, of a user with n ratings sigma^2 / (n s^2), and at most 1 / learning_rate, beyond which steps
    go too far. There sigma is that of the model if it is fixed, else .7 standard deviations of the ratings.

    The overall mean is that of the ratings, and sigma, unless fixed, the root mean square error of training. ``elbo``
    has the log joint of each pass. The fit is the pass with the greatest, or, where ``regularisation`` is given, with
    the least 1/2 sum [e^2 + lambda (|u_i|^2 + |v_j|^2 + f_i^2 + g_j^2)].
    """

    passes: int = 60
    learning_rate: float = 0.02
    decay: float = 0.96
    regularisation: float | None = None

    def __post_init__(self) -> None:
        require_whole("passes", self.passes, 1)
        require_positive("learning_rate", self.learning_rate)
        require_between("decay", self.decay, "(0, 1]")
        if self.regularisation is not None:
            require_between("regularisation", self.regularisation, "[0, inf)", why=", or None")

    @property
    def name(self) -> str:
        return "SGD"

    def check(self, model: Model) -> None:
        """Raises MethodError for ratings that are not Gaussian, learned priors and what is given beside ratings;
        PriorError for priors that are not Normal(0, s^2), with one s a site, and for priors of the mean and of the
        scale that are neither the default ones nor flat."""
        given = model.sites_of("given")
        if not isinstance(model, PMF) or model.likelihood != "gaussian" or given or model.noise_shape or model.adaptive:
            raise MethodError(f"{self.name} takes PMF of Gaussian ratings alone, without learned priors")
        fixed = [site for site in model.known if site != "scale"]
        if fixed:
            raise PriorError(f"gradient descent moves all sites, and {fixed[0]!r} is fixed; use EM")
        native = model.default_priors()
        for site in ("mean", "scale"):
            prior = model.priors[site]
            if site not in model.known and not is_flat(prior) and describe_prior(prior) != describe_prior(native[site]):
                how = f"estimates {site!r} from the ratings alone, and its prior is {describe_prior(prior)}; use EM"
                raise PriorError(f"gradient descent {how}")
        _precisions(model)

    def _fit(self, model: Model, data: Data, call: Call) -> Fit:
        assert isinstance(model, PMF)
        ratings = _standard(model, data)
        start = _start(model, data, call, float(np.mean(ratings[2])))
        passes = descent(*ratings, **self._settings(model, data, call.seed), start=start)
        best, trace, ended, most, prior = None, [], f"{self.passes} passes", -math.inf, 0.0
        cut = False
        try:
            with Progress(self.passes, self.name, enabled=call.progress) as bar:
                for found in passes:
                    params, profile = _values(model, data, found)
                    error = model.units[1] * float(found.trace[-1])
                    value = _log_joint(model, params, profile, error, len(ratings[2]))
                    prior = float(model.log_prior(params))
                    score = value
                    if self.regularisation is not None:  # -1/2 sum_pairs [e^2 + lambda (|u|^2 + |v|^2 + f^2 + g^2)]
                        sides = (found.user, found.user_bias), (found.item, found.item_bias)
                        sizes = [np.square(bias) + np.square(rows).sum(1) for rows, bias in sides]
                        total = sum(float(one[at].sum()) for one, at in zip(sizes, ratings[:2], strict=True))
                        score = -0.5 * (len(ratings[2]) * float(found.trace[-1]) ** 2 + self.regularisation * total)
                    if score >= most:
                        best, most = (params, profile, len(found.trace)), score
                    trace.append(value)
                    bar.advance(value / len(data))
        except KeyboardInterrupt:
            if best is None:
                raise
            ended, cut = f"interrupted after {len(trace)} passes", True
        assert best is not None
        params, profile, number = best
        engine = RatingsMap()
        params, locals_ = engine.canonical(model, params, {"user_profile": profile})
        bound = torch.full((len(data),), torch.nan).to(profile)
        local = Local(PointPosterior(locals_["user_profile"]), bound, what=WHAT["log joint"], family=POINT)
        return Fit(
            model=model,
            params={site: params[site] for site in model.global_sites} | locals_,
            elbo=torch.tensor(trace, dtype=torch.float64),
            bound_name=POINT,
            objective="log joint",
            prior_term=prior,
            status=ended if number == len(trace) else f"{ended}, the best after {number}",
            ended=Ended.INTERRUPTED if cut else Ended.COMPLETE,
            method=self,
            data=data,
            seed=call.seed,
            local=local,
            solver=LocalSolver(engine=engine),
        )

    def _settings(self, model: PMF, data: Data, seed: int) -> dict[str, Any]:
        """Return the arguments of ``descent`` beside the ratings."""
        sizes = {"num_users": len(data), "num_items": data.num_features, "num_factors": model.num_components}
        found = {"passes": self.passes, "learning_rate": self.learning_rate, "decay": self.decay, "seed": seed}
        return {**sizes, **found, "biases": model.biases, **self._regularizers(model, data)}

    def _regularizers(self, model: PMF, data: Data) -> dict[str, Any]:
        if self.regularisation is not None:
            return {f"{one}_regularizer": self.regularisation for one in ("user", "item", "bias")}
        user, item, value = _standard(model, data)
        counts = np.bincount(user, minlength=len(data)), np.bincount(item, minlength=data.num_features)
        variance = _SCALE**2 * float(np.var(value))
        if "scale" in model.known:
            variance = (float(model.known["scale"]) / model.units[1]) ** 2
        found, precision = {}, _precisions(model)
        for site, count in zip(("user", "item", "user_bias", "item_bias"), counts * 2, strict=True):
            each = variance * precision.get(site, 0.0) / np.maximum(count, 1)
            found[site] = np.minimum(each, 1 / self.learning_rate)
        biases = found["user_bias"], found["item_bias"]
        return {"user_regularizer": found["user"], "item_regularizer": found["item"], "bias_regularizer": biases}


def _standard(model: PMF, data: Data) -> tuple[Places, Places, Array]:
    """Return user, item and (r - centre) / unit (M,) of the ratings."""
    (user, item, value), (centre, unit) = triplets(data), model.units
    return user.astype(np.int64), item.astype(np.int64), (value.astype(np.float64) - centre) / unit


def _start(model: PMF, data: Data, call: Call, mean: float) -> tuple[Any, ...] | None:
    """Return the factors and biases of given globals, with the users' at their best there; what the overall mean is
    beside that of the ratings is part of the items' biases."""
    params = call.start(model)
    if params is None:
        return None
    params = {site: value.to(data.x) for site, value in params.items()}
    with torch.no_grad():
        profile = LocalSolver(engine=RatingsMap()).solve(model, params, data).posterior.mean
    item, bias = params["item"], params.get("item_bias", params["item"].new_zeros(len(params["item"])))
    user, shift = (profile[:, 1:], profile[:, 0]) if model.biases else (profile, profile.new_zeros(len(profile)))
    centre, unit = model.units
    bias = bias + (params["mean"] - (centre + unit * mean)) if model.biases else bias
    return tuple(one.double().cpu().numpy() for one in (user, item / unit, shift / unit, bias / unit))


def _precisions(model: PMF) -> dict[str, float]:
    """Return 1 / s^2 of the factors and biases, of ratings in the model's unit."""
    found, like = {}, torch.zeros(1, dtype=torch.float64)
    for site in ("user", "item", *(("user_bias", "item_bias") if model.biases else ())):
        shape = model.shapes.get(site, model.shape_of(site))
        prior = Normal.of(model, site, shape or (1,), like).map(lambda part: part.reshape(-1))
        if not prior.is_central(0):
            raise PriorError(f"gradient descent needs a prior Normal(0, s) of '{site}', one s for all; use EM")
        unit = 1.0 if site == "user" else model.units[1]  # the factors of users have no unit
        found[site] = float(prior.precision[0]) * unit**2
    return found


def _values(model: PMF, data: Data, found: SGDFactors) -> tuple[dict[str, Tensor], Tensor]:
    centre, unit = model.units
    scale = model.known.get("scale", unit * max(float(found.trace[-1]), 1e-6))
    values: dict[str, Any] = {"mean": centre + unit * found.mean, "item": unit * found.item, "scale": scale}
    values["item_bias"] = unit * found.item_bias
    profile = np.concatenate([unit * found.user_bias[:, None], found.user], 1) if model.biases else found.user
    like = data.stored
    params = {site: torch.as_tensor(values[site]).clone().to(like) for site in model.global_sites}
    return params, torch.as_tensor(profile).clone().to(like)


def _log_joint(model: PMF, params: dict[str, Tensor], profile: Tensor, error: float, number: int) -> float:
    """Compute log p(r, profiles, globals) where ``number`` ratings have this root mean square error."""
    scale = float(params["scale"])
    ratings = -0.5 * number * ((error / scale) ** 2 + math.log(2 * math.pi * scale**2))
    prior: Any = model.prior("user_profile", like=profile, values=params)
    return ratings + float(prior.log_prob(profile).sum() + model.log_prior(params))
