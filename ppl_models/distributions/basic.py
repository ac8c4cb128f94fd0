"""Binary codes, the noisy OR, and flat priors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import Distribution, biject_to, constraints, transform_to

from ppl_models.core.errors import require_room

#: Enumerating a code of more bits than this would need gigabytes before any data are seen.
MAX_ENUMERABLE_BITS = 22
#: Codes of so many bits are listed at once.
_FEW_BITS = 12

# A mixture has the unconstrained coordinates of its components; torch registers none.
biject_to.register(constraints.MixtureSameFamilyConstraint, lambda mixture: biject_to(mixture.base_constraint))
transform_to.register(constraints.MixtureSameFamilyConstraint, lambda mixture: transform_to(mixture.base_constraint))


def log1mexp(a: Tensor) -> Tensor:
    """log(1 - exp(-a)) for a > 0 without cancellation (Maechler 2012): finite and differentiable down to ``tiny``."""
    a = a.clamp(min=torch.finfo(a.dtype).tiny)
    small = a < 0.6931471805599453
    # Both branches are differentiated by torch.where: keep the unused one away from its singularity.
    low = torch.log(-torch.expm1(-torch.where(small, a, torch.ones_like(a))))
    high = torch.log1p(-torch.exp(-torch.where(small, torch.ones_like(a), a)))
    return torch.where(small, low, high)


def theta_of(probability: Tensor) -> Tensor:
    """theta = -log(1 - p): the additive parameters of NOCA's paper (above eq. 3). p = 1 is clamped to 1 - eps."""
    return -torch.log1p(-probability.clamp(max=1 - torch.finfo(probability.dtype).eps))


def all_codes(num_bits: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Tensor:
    """Every binary code of ``num_bits`` bits, (2^K, K); row c holds the bits of c, least significant first."""
    needed, allowed = (8 * 2.0**bits * bits for bits in (num_bits, MAX_ENUMERABLE_BITS))
    require_room(f"2^{num_bits} binary codes", needed, allowed, f"at most {MAX_ENUMERABLE_BITS} bits fit")
    few, dtype = min(num_bits, _FEW_BITS), dtype or torch.get_default_dtype()
    index = torch.arange(2**few, device=device)
    codes = ((index[:, None] >> torch.arange(few, device=device)) & 1).to(dtype)
    if few == num_bits:
        return codes
    # In place, by doubling: the bits as whole numbers would take twice the memory of the codes.
    every = torch.zeros((2**num_bits, num_bits), dtype=dtype, device=device)
    every[: 2**few, :few] = codes
    for bit in range(few, num_bits):
        every[2**bit : 2 ** (bit + 1), :bit] = every[: 2**bit, :bit]
        every[2**bit : 2 ** (bit + 1), bit] = 1
    return every


#: The shape of a batch or of a sample; torch's own is one.
Shape = tuple[int, ...]


class Law(TorchDistribution):
    """The base of the distributions of this room, which says once how their batches are expanded."""

    arg_constraints: ClassVar[Any] = {}
    #: Parameters with an axis for each of the batch's -> how many further axes they have, behind these.
    own_axes: ClassVar[Mapping[str, int]] = {}

    def expand(self, batch_shape: Shape, _instance: Self | None = None) -> Self:
        """Return the distribution with another batch shape; no constructor runs, nor a check."""
        new: Any = self._get_checked_instance(type(self), _instance)
        new.__dict__.update(vars(self))
        for name, axes in self.own_axes.items():
            value = getattr(self, name)
            setattr(new, name, value.expand((*batch_shape, *value.shape[value.ndim - axes :])))
        TorchDistribution.__init__(new, torch.Size(batch_shape), self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new


class UnexpandedLaw(Law):
    """A distribution whose batch is what it was made of, such as the documents whose words it holds."""

    def expand(self, batch_shape: Shape, _instance: Self | None = None) -> Self:
        """Return the distribution. Raises NotImplementedError for another batch shape than its own."""
        if torch.Size(batch_shape) != self.batch_shape:
            found = f"{type(self).__name__} of batch shape {tuple(self.batch_shape)}"
            raise NotImplementedError(f"{found} has no other, {tuple(batch_shape)}")
        return self


class BernoulliVector(Law):
    """A vector of K independent Bernoulli bits as ONE event, enumerable over its 2^K values.

    log p(s) = sum_i [s_i log pi_i + (1 - s_i) log(1 - pi_i)].

    Use this, and not a plate of K Bernoullis, for a binary code whose bits meet again in one likelihood:
    Pyro's parallel enumeration treats the members of a plate as independent given everything outside it, and
    returns a wrong evidence, without an error, when they are not.

    probs: (..., K) probabilities; batch shape ``probs.shape[:-1]``, event shape ``(K,)``.
    """

    arg_constraints: ClassVar[Any] = {"probs": constraints.independent(constraints.unit_interval, 1)}
    support: ClassVar[Any] = constraints.independent(constraints.boolean, 1)
    own_axes: ClassVar[Mapping[str, int]] = {"probs": 1}
    has_enumerate_support = True

    def __init__(self, probs: Tensor, validate_args: bool | None = None):
        self.probs = probs
        super().__init__(probs.shape[:-1], probs.shape[-1:], validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self.probs

    @property
    def variance(self) -> Tensor:
        return self.probs * (1 - self.probs)

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        with torch.no_grad():
            return torch.bernoulli(self.probs.expand(self._extended_shape(sample_shape)))

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        # Clamped as torch.distributions.Bernoulli clamps: a bit with pi = 0 that is on costs log(eps), not -inf,
        # so that no optimiser ever meets inf - inf.
        eps = torch.finfo(self.probs.dtype).eps
        probs = self.probs.clamp(eps, 1 - eps)
        return (value * torch.log(probs) + (1 - value) * torch.log1p(-probs)).sum(-1)

    def entropy(self) -> Tensor:
        return (torch.special.entr(self.probs) + torch.special.entr(1 - self.probs)).sum(-1)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        codes = all_codes(self.event_shape[0], dtype=self.probs.dtype, device=self.probs.device)
        codes = codes.reshape((-1,) + (1,) * len(self.batch_shape) + self.event_shape)
        return codes.expand((-1, *self.batch_shape, *self.event_shape)) if expand else codes


class NoisyOr(Law):
    """Binary features that are each the OR of noisy causes (Singliar & Hauskrecht 2006, eqs. 2-3).

    P(x_j = 0 | s) = (1 - p_0j) prod_i (1 - p_ij)^{s_i} = exp(-a_j), with the activation
    a_j = theta_0j + sum_i s_i theta_ij and theta = -log(1 - p).

    Everything is computed from the activation by ``log1mexp``, so that neither p near 0 nor p near 1 loses
    digits, in float32 too. p = 1 is represented by 1 - eps and P(x = 1) is never below the smallest normal
    number: as in torch's Bernoulli, log-probabilities stay finite.

    Parameters
    ----------
    source: (..., K) presence of the causes, 0 or 1 (values between are allowed: mean activations).
    loading: (..., K, D) transmission probabilities p_ij.
    leak: (..., D) leak probabilities p_0j.

    The features are the rightmost *batch* dimension, so that entries can be masked one by one:
    ``NoisyOr(s, p, p0).mask(observed).to_event(1)``.
    """

    arg_constraints: ClassVar[Any] = {"loading": constraints.unit_interval, "leak": constraints.unit_interval}
    support: ClassVar[Any] = constraints.boolean

    def __init__(self, source: Tensor, loading: Tensor, leak: Tensor, validate_args: bool | None = None):
        self.source, self.loading, self.leak = source, loading, leak
        theta, theta0 = theta_of(loading), theta_of(leak)
        summed = (source.unsqueeze(-2) @ theta).squeeze(-2) if theta.ndim > 2 else source @ theta
        # Plates expand distributions: what is computed from the activation is computed before that expansion.
        self._activation = summed + theta0
        super().__init__(self._activation.shape, validate_args=validate_args)

    @property
    def activation(self) -> Tensor:
        """a_j(s), of the batch shape."""
        return self._activation.expand(self.batch_shape)

    @property
    def probs(self) -> Tensor:
        """P(x_j = 1 | s) = 1 - exp(-a_j)."""
        return -torch.expm1(-self.activation)

    @property
    def mean(self) -> Tensor:
        return self.probs

    @property
    def variance(self) -> Tensor:
        return self.probs * torch.exp(-self.activation)

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        with torch.no_grad():
            return torch.bernoulli(self.probs.expand(self._extended_shape(sample_shape)))

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        shape = np.broadcast_shapes(self.batch_shape, value.shape)
        return torch.where(value > 0.5, log1mexp(self._activation), -self._activation).expand(shape)


class Flat(Law):
    """An improper flat prior: log density 0 everywhere on the support of ``proposal``.

    With it the posterior mode is the maximum-likelihood estimate. An improper prior cannot be drawn from, yet a
    program has to generate: draws (of the program run forwards, of initial values) come from ``proposal``, which has
    no other influence.

    proposal: a proper distribution, which gives support, shapes and draws.
    """

    def __init__(self, proposal: Distribution, validate_args: bool | None = None):
        self.proposal = proposal
        super().__init__(proposal.batch_shape, proposal.event_shape, validate_args=validate_args)

    @property
    def support(self) -> Any:
        return self.proposal.support

    @property
    def has_rsample(self) -> bool:
        return self.proposal.has_rsample

    @property
    def mean(self) -> Tensor:
        """The proposal's: where samplers and optimisers may begin."""
        return self.proposal.mean

    def expand(self, batch_shape: Shape, _instance: Self | None = None) -> Self:
        return type(self)(self.proposal.expand(batch_shape), validate_args=self._validate_args)

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        return self.proposal.sample(sample_shape)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        return self.proposal.rsample(sample_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        shape = np.broadcast_shapes(value.shape[: value.ndim - len(self.event_shape)], self.batch_shape)
        return value.new_zeros(shape)
