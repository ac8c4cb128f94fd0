"""What all conjugate pairs have in common: how they are read from a model, and the basis that modes are taken in.

The maximum of a density depends on its basis. Where a concentration (a Gamma's shape) is below 1 the density is
unbounded at the edge; as a density of logits (of the logarithm) it has a factor p (lambda) more, and a maximum inside
(MacKay, *Choice of basis for Laplace approximation*, Machine Learning 33, 1998). Dirichlet and Gamma pairs take the
mode of their own density where all concentrations are at least 1, so that flat priors give maximum likelihood, and else
that of the softmax basis (of log lambda). Their ``log_density`` is in the same basis.

Where nothing was observed, and the prior is flat, everything is a mode: ``mode`` is then the mean of the prior.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ppl_models import Model, PriorError

Prior = TypeVar("Prior", bound=torch.distributions.Distribution)
#: Draws are at least this, so that they have a logarithm.
TINY = np.finfo(np.float64).tiny
#: Of so many trials, tokens or rows nothing was observed: other classes' rows have some of a class by rounding.
NOTHING = 1e-6


@dataclass(frozen=True)
class Pair:
    """A conjugate prior, or a posterior of its form. Its parameters, which iteration goes over, are tensors that
    broadcast against each other and against the site."""

    @property
    def parameters(self) -> dict[str, Tensor]:
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.parameters.values())

    def map(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Return the pair with a function of every parameter in its place."""
        return type(self)(**vars(self) | {name: function(value) for name, value in self.parameters.items()})

    def expand(self, shape: tuple[int, ...]) -> Self:
        """Return the pair with all parameters of this shape."""
        return self.map(lambda parameter: parameter.expand(shape))


def conjugate_prior(model: Model, site: str, kind: type[Prior]) -> Prior:
    """Return the prior of a site. Raises :class:`PriorError` where it is of another kind."""
    prior = model.priors[site]
    if not isinstance(prior, kind):
        needed = f"{'an' if kind.__name__[0] in 'AEIOU' else 'a'} {kind.__name__} prior for '{site}'"
        raise PriorError(f"closed-form steps need {needed}, not {type(prior).__name__}; use SVI or NUTS for it")
    return prior


def without_mode(kind: str, site: str) -> PriorError:
    """Return the error for a prior whose density has no maximum."""
    return PriorError(
        f"the {kind} prior of '{site}' has a concentration below 1, so its density is unbounded at the edge and "
        "has no maximum a posteriori; use NUTS, or concentrations of at least 1"
    )


def basis_shift(concentration: Tensor) -> float:
    """Return what a prior's concentrations (shapes) are lowered by in exponents: 1, where the mode is that of its own
    density; 0 where some are below 1, and it is taken in the softmax basis (of a rate, that of its logarithm)."""
    return 0.0 if bool((concentration < 1).any()) else 1.0


def array(value: Tensor) -> NDArray[np.float64]:
    """Return a tensor as an array in double precision."""
    return value.detach().cpu().double().numpy()
