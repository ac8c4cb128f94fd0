"""What the priors of a PMF say to the array-level code."""

from __future__ import annotations

from typing import Any

import torch

from custom_inference.families.conjugate.normal import Normal
from custom_inference.families.ratings.hyper import PriorSettings
from custom_inference.families.ratings.incidence import Array
from custom_inference.families.ratings.sides import Settings
from ppl_models import PMF, PriorError
from ppl_models.core.priors import describe_prior
from ppl_models.core.profiles import profile_units
from ppl_models.distributions import InverseRootGamma, InverseWishart

#: Sites whose priors are learned, and those of them whose stated priors give way to ridges that are learned.
_OF_COVARIATES = ("user_weight", "item_weight")
_OF_ROWS = ("item", "item_bias", "item_precision", *_OF_COVARIATES)


def settings_of(model: PMF, rank: int) -> Settings:
    """Convert the priors of the model to the array-level code's, of ratings (r - centre) / unit. Raises PriorError for
    others than it has, and for known values that it would learn."""
    native = model.default_priors()
    for site in (one for one in _OF_ROWS if one in model.shapes):
        own = site not in _OF_COVARIATES and describe_prior(model.priors[site]) != describe_prior(native[site])
        if own or site in model.known:
            what = "is known" if site in model.known else "has a prior of its own"
            raise PriorError(f"rows of users and items are learned together, and '{site}' {what}; use SVI or NUTS")
    noise: dict[str, Any] = {}
    if model.likelihood == "gaussian":
        prior: Any = model.priors["scale"]
        if not isinstance(prior, InverseRootGamma):
            raise PriorError("learned priors need an InverseRootGamma prior of 'scale', the default; use SVI or NUTS")
        noise = {"noise_shape": float(prior.concentration), "noise_rate": float(prior.rate) / model.units[1] ** 2}
    sides = {side: _prior_settings(model, side) for side in ("user", "item")}
    return Settings(**sides, **noise, unit_shape=model.noise_shape, rank=rank, centre=_mean_prior(model))


def _mean_prior(model: PMF) -> tuple[float, float] | None:
    """Read the prior of the mean; None where the mean is known. Raises PriorError for priors that are neither Normal
    nor flat."""
    if "mean" in model.known:
        return None
    mean, precision = Normal.of(model, "mean", (), torch.zeros((), dtype=torch.float64))
    centre, unit = model.units
    return (float(mean) - centre) / unit, float(precision) * unit**2


def _prior_settings(model: PMF, side: str) -> PriorSettings:
    size, prior = model.sizes["coordinate"], model.priors[f"{side}_covariance"]
    identity = torch.eye(size, dtype=torch.float64)
    wishart = isinstance(prior, InverseWishart)
    given = prior.scale.to(identity) if wishart else torch.zeros_like(identity)
    diagonal = given.diagonal()
    alike = torch.equal(given, torch.diag(diagonal)) and torch.equal(diagonal[1:], diagonal[-1:].expand(size - 1))
    if not wishart or not alike:
        needed = f"an InverseWishart(df, c I) prior of '{side}_covariance', or one with another number for the bias"
        raise PriorError(f"learned priors need {needed}; use SVI or NUTS for others")
    mean: Any = model.prior(f"{side}_mean", like=identity, values={f"{side}_covariance": identity})
    degrees = float(prior.df)
    base = getattr(mean, "covariance_matrix", None)
    if base is None or not torch.allclose(base, base[0, 0] * identity) or bool((mean.mean != 0).any()):
        raise PriorError(f"learned priors need '{side}_mean' ~ Normal(0, covariance / strength), the default")
    first, *_, rest = (diagonal / units_of_rows(model)[side].square() / degrees).tolist()
    return PriorSettings(strength=1 / float(base[0, 0]), degrees=degrees - size + 1, spread=(first, rest))


def units_of_rows(model: PMF) -> dict[str, torch.Tensor]:
    """Return the units of the entries of the rows of users and of items (K + 1,), by side: rows of the model are those
    of the array-level code times these."""
    both = profile_units(model.sizes["coordinate"], model.biases, model.units[1])
    return dict(zip(("user", "item"), both, strict=True))


def drift_prior(model: PMF, site: str) -> tuple[Array, Array]:
    """Return mean and precision of biases by bins, of ratings in the model's unit. Raises PriorError where they are not
    Normal."""
    prior = Normal.of(model, site, model.shapes[site], torch.zeros((), dtype=torch.float64))
    if not prior.is_proper:
        raise PriorError(f"the prior of '{site}' is flat, expected a Normal one")
    return prior.mean.numpy() / model.units[1], prior.precision.numpy() * model.units[1] ** 2


def block_sizes(model: PMF, side: str) -> tuple[int, ...]:
    """Return how many covariates of a side each block with a ridge of its own has."""
    blocks, total = getattr(model, f"{side}_blocks"), getattr(model, f"num_{side}_covariates")
    return blocks or ((total,) if total else ())
