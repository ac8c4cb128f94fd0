"""Distributions of graph models: labelings of nodes as one event, and symmetric matrices."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.distributions import biject_to, constraints, transform_to
from torch.distributions.kl import register_kl
from torch.distributions.transforms import Transform

from ppl_models.core.errors import ModelError, require_room
from ppl_models.distributions.basic import Law, Shape, UnexpandedLaw
from ppl_models.distributions.normals import InUnits

#: What marks the nodes (E,) of dyads as their first or second ones, 0 or 1: an attribute of the tensor.
END = "_end_of_dyads"
#: Listing more labelings than this would need gigabytes before any data are seen.
MAX_LABELINGS = 2**22


def all_labelings(num_nodes: int, num_blocks: int, *, device: torch.device | str | None = None) -> Tensor:
    """Every labeling of N nodes by K blocks, (K^N, N) whole numbers; row c holds c in base K, first node first.

    Raises CapacityError for more than 2^22 of them.
    """
    if num_nodes * math.log2(max(num_blocks, 1)) > math.log2(MAX_LABELINGS):
        log_labelings, most = num_nodes * math.log(num_blocks), int(math.log(MAX_LABELINGS, num_blocks))
        needed = 8.0 * num_nodes * math.exp(min(log_labelings, 600.0))  # e^700 is no float
        fits = f"with {num_blocks} blocks at most {most} nodes are enumerated"
        what = f"{num_blocks}^{num_nodes} labelings of the nodes"
        require_room(what, needed, 8.0 * num_nodes * MAX_LABELINGS, fits)
    index = torch.arange(num_blocks**num_nodes, device=device)
    power = num_blocks ** torch.arange(num_nodes - 1, -1, -1, device=device)
    return index[:, None] // power % num_blocks


class Labelling(Law):
    """The blocks of N nodes as ONE event, enumerable over its K^N values: log p(q) = sum_i log pi_{i q_i}.

    The blocks of a graph's nodes meet again in every dyad's likelihood, so they must not be enumerated in a plate:
    Pyro would treat them as independent and return a wrong evidence without an error (see ``BernoulliVector``).

    probs: (..., N, K), of each node's blocks; batch shape ``probs.shape[:-2]``, event shape ``(N,)``.
    """

    arg_constraints: ClassVar[Any] = {"probs": constraints.independent(constraints.simplex, 1)}
    own_axes: ClassVar[Mapping[str, int]] = {"probs": 2}
    has_enumerate_support = True

    def __init__(self, probs: Tensor, validate_args: bool | None = None):
        self.probs = probs
        super().__init__(probs.shape[:-2], probs.shape[-2:-1], validate_args=validate_args)

    @constraints.dependent_property(is_discrete=True, event_dim=1)
    def support(self) -> Any:
        return constraints.independent(constraints.integer_interval(0, self.probs.shape[-1] - 1), 1)

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        with torch.no_grad():
            return torch.distributions.Categorical(self.probs, validate_args=False).sample(sample_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        # Clamped as torch.distributions clamps, so that no optimiser ever meets inf - inf.
        log = torch.log(self.probs.clamp_min(torch.finfo(self.probs.dtype).tiny))
        batch = np.broadcast_shapes(log.shape[:-2], value.shape[:-1])
        log, value = log.expand(*batch, *log.shape[-2:]), value.long().expand(*batch, value.shape[-1])
        return log.gather(-1, value.unsqueeze(-1)).squeeze(-1).sum(-1)

    def entropy(self) -> Tensor:
        return torch.special.entr(self.probs).sum((-2, -1))

    def enumerate_support(self, expand: bool = True) -> Tensor:
        size, blocks = self.probs.shape[-2:]
        every = all_labelings(size, blocks, device=self.probs.device)
        every = every.reshape((-1,) + (1,) * len(self.batch_shape) + (size,))
        return every.expand((-1, *self.batch_shape, size)) if expand else every


@register_kl(Labelling, Labelling)
def _divergence(q: Labelling, p: Labelling) -> Tensor:
    """KL(q || p) = sum_i sum_k q_ik (log q_ik - log p_ik)."""
    log_q, log_p = (torch.log(one.probs.clamp_min(torch.finfo(one.probs.dtype).tiny)) for one in (q, p))
    return (q.probs * (log_q - log_p)).sum((-2, -1))


class EndBlocks(NamedTuple):
    """Blocks of the first and of the second node of every dyad, (..., E) each, in place of those of all nodes.

    A program whose ``block`` has this value gives p(x_ij | q_i = a, q_j = b) for all pairs (a, b) at once, which is
    what expectations under independent nodes are made of.
    """

    first: Tensor
    second: Tensor

    def __getitem__(self, key: tuple[Any, ...] | Tensor | int | slice) -> Any:
        """Return the blocks at the ends of the dyads, of a labelling that is looked up there: ``z[..., i]``.

        Raises ModelError for a look-up of other nodes, whose blocks are not known here.
        """
        index: Any = key[-1] if type(key) is tuple else key
        if not torch.is_tensor(index):
            return (self.first, self.second)[key]  # pyright: ignore[reportCallIssue, reportArgumentType]
        end = getattr(index, END, None)
        if end is None or (type(key) is tuple and key[:-1] != (Ellipsis,)):
            raise ModelError(
                "the blocks of a graph's nodes are looked up elsewhere than at the ends of its dyads; expected "
                "z[..., i] and z[..., j] at the i and j that 'with graph as (i, j)' gives, as they are"
            )
        return self.first if end == 0 else self.second

    @classmethod
    def at(cls, block: Tensor | EndBlocks, i: Tensor, j: Tensor) -> EndBlocks:
        """Return the blocks at the ends i and j (E,) of dyads, from those of all nodes (..., N), or as they are."""
        if isinstance(block, EndBlocks):
            return block
        first, second = block[..., i], block[..., j]
        # An enumerated labelling has a last batch axis for the plate.
        return cls(first.squeeze(-2), second.squeeze(-2)) if block.ndim > 1 else cls(first, second)

    @classmethod
    def every(cls, num_blocks: int, *, device: torch.device | str | None = None) -> EndBlocks:
        """All K^2 pairs, (K, 1, 1) and (1, K, 1): log-probabilities of the dyads come out as (K, K, E)."""
        block = torch.arange(num_blocks, device=device)
        return cls(block[:, None, None], block[None, :, None])


class EveryLabelling(Tensor):
    """All labellings of a graph's nodes (L, 1, N) as they are enumerated, the axis before the nodes that of the plate
    of dyads: looked up at the ends of these they have it, ``z[..., i]`` (L, E)."""

    #: What is computed of it is a plain tensor.
    __torch_function__: ClassVar[Any] = torch._C._disabled_torch_function_impl

    def __getitem__(self, key: tuple[Any, ...] | Tensor | int | slice) -> Tensor:
        index, plain = key[-1] if type(key) is tuple else key, self.as_subclass(Tensor)
        if getattr(index, END, None) is None or type(key) is not tuple:
            return plain[key]
        return plain[key].squeeze(-2)


class LooksUp(Messenger):
    """Gives the program of a graph the labellings that are enumerated as such as are looked up at the ends of dyads."""

    def __init__(self, site: str):
        super().__init__()
        self.site = site

    def _pyro_post_sample(self, msg: dict[str, Any]) -> None:
        value = msg["value"]
        if msg["name"] == self.site and torch.is_tensor(value) and value.ndim > 1 and not value.is_floating_point():
            msg["value"] = value.as_subclass(EveryLabelling)


class _SymmetricConstraint(constraints.Constraint):
    """Matrices (K, K, ...) equal to their transpose in the first two of the event's axes, entries within another."""

    def __init__(self, base: Any, shape: torch.Size):
        self.base_constraint, self.shape, self.event_dim = base, shape, len(shape)
        super().__init__()

    @property
    def lower_bound(self) -> Any:
        """The lower bound of the entries, or None."""
        return getattr(self.base_constraint, "lower_bound", None)

    @property
    def upper_bound(self) -> Any:
        return getattr(self.base_constraint, "upper_bound", None)

    def check(self, value: Tensor) -> Tensor:
        inside = self.base_constraint.check(value).flatten(-len(self.shape)).all(-1)
        rest = len(self.shape) - 2
        mirrored = value.transpose(-1 - rest, -2 - rest)
        return inside & (value == mirrored).flatten(-len(self.shape)).all(-1)


class _Mirror(Transform):
    """Unconstrained numbers of the entries a <= b, (..., U), to a symmetric matrix whose entries obey a constraint."""

    bijective = True

    def __init__(self, constraint: _SymmetricConstraint, entry: Any):
        super().__init__()
        self.constraint, self.entry = constraint, entry
        self.row, self.column = torch.triu_indices(constraint.shape[0], constraint.shape[0])
        self.domain = constraints.real_vector
        self.codomain = constraint

    @property
    def free(self) -> torch.Size:
        """The shape of the unconstrained numbers of all entries a <= b."""
        every = torch.Size((len(self.row), *self.constraint.shape[2:]))
        return every if self.entry.codomain.event_dim == 0 else torch.Size(self.entry.inverse_shape(every))

    def _transform(self, x: Tensor) -> Tensor:
        """Values (..., U, ...) of the entries; of vectors, such as points of simplexes, each by itself."""
        if self.entry.codomain.event_dim == 0:
            return self.entry(x).unflatten(-1, self.free)
        return self.entry(x.unflatten(-1, self.free))

    def _call(self, x: Tensor) -> Tensor:
        size, *rest = self.constraint.shape
        values = self._transform(x)
        axis = values.ndim - len(rest)
        place = torch.zeros(size, size, dtype=torch.long)
        place[self.row, self.column] = place[self.column, self.row] = torch.arange(len(self.row))
        return values.index_select(axis, place.flatten().to(x.device)).unflatten(axis, (size, size))

    def _inverse(self, y: Tensor) -> Tensor:
        rest = len(self.constraint.shape) - 2
        upper = y[(..., self.row, self.column, *[slice(None)] * rest)]
        if self.entry.codomain.event_dim == 0:
            return self.entry.inv(upper.flatten(-1 - rest))
        return self.entry.inv(upper).flatten(-len(self.free))

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        if self.entry.codomain.event_dim == 0:
            return self.entry.log_abs_det_jacobian(x, self.entry(x)).sum(-1)
        free = x.unflatten(-1, self.free)
        return self.entry.log_abs_det_jacobian(free, self.entry(free)).flatten(x.ndim - 1).sum(-1)

    def forward_shape(self, shape: Shape):
        return torch.Size(shape[:-1]) + self.constraint.shape

    def inverse_shape(self, shape: Shape):
        return torch.Size((*shape[: -len(self.constraint.shape)], self.free.numel()))


for _registry in (biject_to, transform_to):
    _registry.register(
        _SymmetricConstraint, lambda constraint: _Mirror(constraint, biject_to(constraint.base_constraint))
    )


class Symmetric(UnexpandedLaw):
    """A symmetric matrix (K, K, ...) whose entries a <= b are independent.

    base: the entries' distribution, batch shape (K, K, ...), of numbers or of vectors; of its entries below the
        diagonal nothing is used.
    """

    def __init__(self, base: Any, validate_args: bool | None = None):
        self.base = base
        super().__init__(torch.Size(), base.batch_shape + base.event_shape, validate_args=validate_args)

    @property
    def has_rsample(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.base.has_rsample

    @constraints.dependent_property(is_discrete=False)
    def support(self) -> Any:
        entries = self.base.support
        if isinstance(entries, InUnits):  # each of its own: those on and above the diagonal, one after the other
            row, column = torch.triu_indices(*self.event_shape[:2])
            parts = (part.expand(self.event_shape)[row, column].flatten() for part in (entries.loc, entries.scale))
            entries = InUnits(*parts)
        return _SymmetricConstraint(entries, self.event_shape)

    @property
    def mean(self) -> Tensor:
        return self._mirror(self.base.mean)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        return self._mirror(self.base.rsample(sample_shape))

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        with torch.no_grad():
            return self._mirror(self.base.sample(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        row, column = torch.triu_indices(self.event_shape[0], self.event_shape[0])
        rest = len(self.base.batch_shape) - 2
        return self.base.log_prob(value)[(..., row, column, *[slice(None)] * rest)].flatten(-1 - rest).sum(-1)

    def _mirror(self, value: Tensor) -> Tensor:
        first = torch.arange(self.event_shape[0], device=value.device)
        low, high = torch.minimum(first[:, None], first), torch.maximum(first[:, None], first)
        return value[(..., low, high, *[slice(None)] * (len(self.event_shape) - 2))]
