"""Binary responses to the mean of a document's topic indicators, the indicators summed out exactly.

With tokens l = 1..L, q_l ~ Cat(phi_l) independent given proportions and words, qbar = (1/L) sum_l q_l (002, eq. 27.65):

    p(y = 1 | words) = E[sigmoid(S)],   S = w'qbar = sum_l w_{q_l} / L
    sigmoid(s) = 1/2 int sech(pi t) exp((1/2 + i t) s) dt
    E[sigmoid(S)] = 1/2 int sech(pi t) prod_v [sum_k phi_vk exp((1/2 + i t) w_k / L)]^{n_v} dt

a one-dimensional integral for any number of topics and tokens. Its integrand is analytic for |Im t| < 1/2, so that the
trapezoid rule converges geometrically.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints

from ppl_models.data import sparse

#: The rule is exact to about exp(-_DIGITS) of the integral.
_DIGITS = 28.0
#: (node, cell, topic) terms that are held at once.
_TERMS = 2**24


class Cells(NamedTuple):
    """The words that occur: row, word and count of each (M,); length: tokens of each document (N,), at least 1."""

    row: Tensor
    word: Tensor
    count: Tensor
    length: Tensor

    @classmethod
    def of(cls, counts: Tensor) -> Cells:
        """From word counts (N, V), dense or CSR."""
        if sparse.is_sparse(counts):
            row, word, count = sparse.triplets(counts)
        else:
            row, word = counts.nonzero(as_tuple=True)
            count = counts[row, word]
        total = count.new_zeros(counts.shape[0]).index_add(0, row, count)
        return cls(row, word, count, total.clamp(min=1.0))

    def summed(self, value: Tensor) -> Tensor:
        """sum_v value_v over the words of each document, (N, ...), of a value a cell (M, ...)."""
        return value.new_zeros(len(self.length), *value.shape[1:]).index_add(0, self.row, value)


def log_mean_sigmoid(weight: Tensor, responsibility: Tensor, cells: Cells, sign: float) -> Tensor:
    """log E[sigmoid(sign w'qbar)] of every document, (N,).

    weight: w (K,). responsibility: phi (M, K), of every cell's tokens. sign: 1 for p(y = 1), -1 for p(y = 0).
    """
    row, _, count, length = cells
    reach = float(weight.detach().abs().max())
    step, top = torch.pi / (_DIGITS + reach), (_DIGITS + reach / 2) / torch.pi
    nodes = step * torch.arange(int(top / step) + 1).to(weight)
    exponent = (sign / length)[row, None] * weight
    tilted = responsibility * (exponent / 2).exp()
    log_m = tilted.sum(1).log()
    tilted = tilted / tilted.sum(1, keepdim=True)
    rule = torch.where(nodes == 0, step, 2 * step) * 0.5 / torch.cosh(torch.pi * nodes)
    integral = torch.zeros_like(length)
    for part in torch.arange(len(nodes), device=nodes.device).split(max(1, _TERMS // max(1, exponent.numel()))):
        angle = nodes[part, None, None] * exponent
        cell = torch.complex((tilted * angle.cos()).sum(-1), (tilted * angle.sin()).sum(-1))
        total = torch.zeros(len(part), len(length), dtype=cell.dtype, device=cell.device)
        total = total.index_add(1, row, torch.log(cell) * count)
        integral = integral + rule[part] @ total.exp().real
    # Rounding must not make the integral smaller than it can be: sech(reach / 2) / 2.
    floor = 0.5 / torch.cosh(weight.new_tensor(min(reach / 2, 40.0)))
    return torch.zeros_like(length).index_add(0, row, count * log_m) + integral.clamp(min=floor).log()


class TopicMeanBernoulli(TorchDistribution):
    """y_n ~ Bernoulli(E[sigmoid(w'qbar_n)]) given a document's proportions and its words (002, eqs. 27.65-27.66).

    Parameters
    ----------
    proportion: (N, K). topic: (K, V). counts: (N, V), dense or CSR. weight: w (K,).
    A document without tokens has qbar = 0.
    """

    arg_constraints: ClassVar[Any] = {}
    support: ClassVar[Any] = constraints.boolean

    def __init__(self, proportion: Tensor, topic: Tensor, counts: Tensor, weight: Tensor):
        self.cells = Cells.of(counts)
        joint = proportion[self.cells.row] * topic.T[self.cells.word]
        share = joint / joint.sum(-1, keepdim=True).clamp(min=torch.finfo(joint.dtype).tiny)
        self.log_chance = torch.stack([log_mean_sigmoid(weight, share, self.cells, sign) for sign in (-1.0, 1.0)], -1)
        super().__init__(proportion.shape[:1], torch.Size(), validate_args=False)

    def expand(self, batch_shape, _instance=None):
        del _instance
        if torch.Size(batch_shape) != self.batch_shape:
            raise ValueError(f"responses of {self.batch_shape[0]} documents as a batch of shape {tuple(batch_shape)}")
        return self

    @property
    def mean(self) -> Tensor:
        """P(y = 1), (N,)."""
        return self.log_chance[..., 1].exp()

    def sample(self, sample_shape=torch.Size()) -> Tensor:  # noqa: B008
        with torch.no_grad():
            return torch.bernoulli(self.mean.clamp(max=1.0).expand(self._extended_shape(sample_shape)))

    def log_prob(self, value: Tensor) -> Tensor:
        return torch.where(value > 0.5, self.log_chance[..., 1], self.log_chance[..., 0])
