"""What the priors of a PMF say to the array-level code, and which priors draws are better off with."""

from __future__ import annotations

from typing import Any

import torch

from custom_inference.families.common.priors import normal_parameters
from custom_inference.families.ratings.hyper import PriorSettings
from custom_inference.families.ratings.incidence import Array
from custom_inference.families.ratings.sides import Settings
from ppl_models import PMF, PriorError
from ppl_models.distributions import InverseRootGamma, InverseWishart

#: Degrees of freedom times this is the scale of the default priors of covariances where all are drawn. Factorised
#: posteriors shrink rows, and want a wider prior than draws do.
SPREAD_OF_DRAWS = 0.1


def settings_of(model: PMF, rank: int) -> Settings:
    """The priors of the model as the array-level code has them. Raises PriorError for others than it has."""
    noise: dict[str, Any] = {}
    if model.likelihood == "gaussian":
        prior: Any = model.priors["scale"]
        if not isinstance(prior, InverseRootGamma):
            raise PriorError("learned priors need an InverseRootGamma prior of 'scale', the default; use SVI or NUTS")
        noise = {"noise_shape": float(prior.concentration), "noise_rate": float(prior.rate)}
    sides = {side: _prior_settings(model, side) for side in ("user", "item")}
    return Settings(**sides, **noise, unit_shape=model.varying_noise, rank=rank, centre=_mean_prior(model))


def _mean_prior(model: PMF) -> tuple[float, float] | None:
    """None where the mean is known. Raises PriorError for priors that are neither Normal nor flat."""
    if "mean" in model.known:
        return None
    mean, precision = normal_parameters(model, "mean", (), torch.zeros((), dtype=torch.float64))
    return float(mean), float(precision)


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


def drift_prior(model: PMF, site: str) -> tuple[Array, Array]:
    """Mean and precision of biases by bins. Raises PriorError where they are not Normal."""
    mean, precision = normal_parameters(model, site, model.shapes[site], torch.zeros((), dtype=torch.float64))
    if not bool((precision > 0).all()):
        raise PriorError(f"the prior of '{site}' is flat, expected a Normal one")
    return mean.numpy(), precision.numpy()


def for_draws(model: PMF) -> PMF:
    """The model with priors of covariances that suit draws, ``InverseWishart(K + 1, .1 (K + 1) I)``, in place of
    defaults; as it is where one was chosen."""
    native, size = model.default_priors(), model.sizes["coordinate"]
    sites = ("user_covariance", "item_covariance")
    if not all(_same(model.priors[site], native[site]) for site in sites if site in native) or sites[0] not in native:
        return model
    prior = InverseWishart(float(size), SPREAD_OF_DRAWS * size * torch.eye(size))
    return model.with_priors(**dict.fromkeys(sites, prior))


def _same(one: Any, other: Any) -> bool:
    both = isinstance(one, InverseWishart) and isinstance(other, InverseWishart)
    return both and bool(one.df == other.df) and torch.allclose(one.scale.to(other.scale), other.scale)


def block_sizes(model: PMF, side: str) -> tuple[int, ...]:
    """Of the covariates of a side, columns of each block that has a ridge of its own."""
    blocks, total = getattr(model, f"{side}_blocks"), getattr(model, f"num_{side}_covariates")
    return blocks or ((total,) if total else ())
