"""The supports of a program's latents where they depend on other values: on globals, on what rows are given, on other
latents. They are asked in the run of the program in which they are used.

Such a latent is called *moving*. In a run at given values one that is outside of its support there stands at the
nearest value inside, so that what is stated of it has a density and a slope, and the row is noted: it has no
probability.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from pyro.distributions import constraints
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.distributions import Distribution

from custom_inference.core.programs.latents import Latent
from custom_inference.core.programs.sticks import bijection_to
from ppl_models.core.priors import support_of


def base_of(fn: Distribution) -> Any:
    """The distribution of one element: without independent axes, masks and the like."""
    while hasattr(fn, "base_dist") and not isinstance(fn, torch.distributions.TransformedDistribution):
        fn = fn.base_dist  # type: ignore[attr-defined]
    return fn


def ends_of(support: constraints.Constraint | None) -> tuple[Any, Any]:
    """The least and the largest value of one element of a support, None where there is no such bound."""
    while hasattr(support, "base_constraint"):
        support = support.base_constraint  # type: ignore[union-attr]
    return getattr(support, "lower_bound", None), getattr(support, "upper_bound", None)


def is_moving(fn: Distribution, declared: constraints.Constraint | None) -> bool:
    """Whether a bound of what a statement draws is a tensor that is not the bound that its site declares: then it may
    be another one at other values."""
    if constraints.one_hot in (declared, getattr(base_of(fn), "support", None)):
        return False
    own, said = ends_of(support_of(base_of(fn))), ends_of(declared)
    return any(
        torch.is_tensor(end) and (other is None or bool((end != torch.as_tensor(other).to(end)).any()))
        for end, other in zip(own, said, strict=True)
    )


class Held(Messenger):
    """Holds moving latents in a run of a program: at ``values``, or at what real numbers ``reals`` stand for.

    at: latent -> its value in the run. volume: latent -> the logarithm of the volume that the map from real numbers
    stretches, entry by entry. outside: latent -> where the value that was asked for is outside of the support. ends:
    latent -> the bounds of the support, infinite where there are none. sources: latent -> the real numbers that stand
    for the value, if ``inverts``.
    """

    def __init__(
        self,
        latents: Iterable[Latent],
        values: Mapping[str, Tensor],
        reals: Mapping[str, Tensor] | None = None,
        *,
        inverts: bool = False,
    ):
        super().__init__()
        self.latents = {latent.name: latent for latent in latents if latent.moving}
        self.values, self.reals, self.inverts = values, reals or {}, inverts
        self.at: dict[str, Tensor] = {}
        self.volume: dict[str, Tensor] = {}
        self.outside: dict[str, Tensor] = {}
        self.ends: dict[str, tuple[Tensor, Tensor]] = {}
        self.sources: dict[str, Tensor] = {}

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        name = msg["name"]
        if name not in self.latents:
            return
        fn: Any = msg["fn"]
        if name in self.reals:
            transform: Any = bijection_to(fn.support)
            value = transform(self.reals[name])
            self.volume[name] = transform.log_abs_det_jacobian(self.reals[name], value)
        else:
            asked = self.values[name]
            like = asked if asked.is_floating_point() else asked.to(torch.get_default_dtype())
            low, high = (
                torch.as_tensor(far if end is None else end).to(like)
                for end, far in zip(ends_of(support_of(base_of(fn))), (-torch.inf, torch.inf), strict=True)
            )
            self.ends[name] = low.expand(asked.shape), high.expand(asked.shape)
            self.outside[name] = (asked < low) | (asked > high)
            value = torch.where(asked < low, low.to(asked), torch.where(asked > high, high.to(asked), asked))
            if self.inverts:
                inverse: Any = bijection_to(fn.support).inv
                self.sources[name] = inverse(value)
        self.at[name] = value
        msg["value"], msg["is_observed"] = value, True
