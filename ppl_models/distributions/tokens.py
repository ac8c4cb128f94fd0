"""The tokens of a document as one distribution over its word counts: what topic models observe; and responses to them.

What sparse counts cost are products of two thin matrices at the stored entries of a sparse one.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributions import constraints

from ppl_models.data import sparse as _sparse
from ppl_models.distributions.basic import Law, Shape, UnexpandedLaw


class Tokens(Law):
    """Word counts n (V,) of documents whose every token is drawn from sum_k pi_k b_k (Murphy 2012, eq. 27.13).

        log p(n) = sum_v n_v log sum_k pi_k b_kv,    plus log(L! / prod_v n_v!) with ``coefficient`` (Murphy, eq. 27.11)

    Without the coefficient it is the probability of the tokens in their order. The number of tokens is given, not
    modelled: ``num_tokens`` says how many a draw has.

    Parameters
    ----------
    proportion: (..., B, K), of the topics in each document; a one-hot row for a document of one topic.
    topic: (K, V) word probabilities; each row sums to 1.
    num_tokens: tokens of each document, (B,) or one number.

    ``log_prob`` takes counts (..., B, V) or, without a dense copy, a torch CSR tensor (B, V).
    """

    support: ClassVar[Any] = constraints.independent(constraints.nonnegative_integer, 1)
    own_axes: ClassVar[Mapping[str, int]] = {"proportion": 1}

    def __init__(self, proportion: Tensor, topic: Tensor, num_tokens: Tensor | int = 1, *, coefficient: bool = False):
        self.proportion, self.topic, self.coefficient = proportion, topic, coefficient
        self.num_tokens = torch.as_tensor(num_tokens, device=topic.device)
        super().__init__(proportion.shape[:-1], topic.shape[-1:], validate_args=False)

    @property
    def probs(self) -> Tensor:
        """Word probabilities of each document, (..., B, V)."""
        return self.proportion @ self.topic

    @property
    def mean(self) -> Tensor:
        """Expected counts, (..., B, V)."""
        probs = self.probs
        return self.num_tokens.to(probs).unsqueeze(-1) * probs

    @property
    def variance(self) -> Tensor:
        """The variance of each count, L p (1 - p), (..., B, V)."""
        return self.mean * (1 - self.probs)

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        with torch.no_grad():
            shape = self._extended_shape(sample_shape)
            probs = self.probs.expand(shape).reshape(-1, shape[-1])
            lengths = self.num_tokens.expand(shape[:-1]).reshape(-1)
            return draw_counts(probs, lengths).reshape(shape)

    def log_prob(self, value: Tensor) -> Tensor:
        total = self._sparse_terms(value) if _sparse.is_sparse(value) else torch.xlogy(value, self.probs).sum(-1)
        return total + log_coefficient(value) if self.coefficient else total

    def _sparse_terms(self, value: Tensor) -> Tensor:
        row, _, count = _sparse.triplets(value)
        probability = entry_products(self.proportion, self.topic, value)
        terms = torch.xlogy(count, probability)
        return terms.new_zeros(*terms.shape[:-1], value.shape[0]).index_add(-1, row, terms)


class SoftmaxTokens(Tokens):
    """Word counts of documents whose every token is drawn from softmax(eta) (Murphy 2012, eq. 27.6).

        log p(n) = sum_v n_v eta_v - L log sum_v e^eta_v,   plus log(L! / prod_v n_v!) with ``coefficient`` (27.8)

    logits: eta (..., B, V), of each document.
    """

    own_axes: ClassVar[Mapping[str, int]] = {"logits": 1}

    def __init__(self, logits: Tensor, num_tokens: Tensor | int = 1, *, coefficient: bool = False):
        self.logits, self.coefficient = torch.log_softmax(logits, -1), coefficient
        self.num_tokens = torch.as_tensor(num_tokens, device=logits.device)
        TorchDistribution.__init__(self, logits.shape[:-1], logits.shape[-1:], validate_args=False)

    @property
    def probs(self) -> Tensor:
        """Word probabilities of each document, (..., B, V)."""
        return self.logits.exp()

    def log_prob(self, value: Tensor) -> Tensor:
        if _sparse.is_sparse(value):
            row, column, count = _sparse.triplets(value)
            terms = count * self.logits[..., row, column]
            total = terms.new_zeros(*terms.shape[:-1], value.shape[0]).index_add(-1, row, terms)
        else:
            total = (value * self.logits).sum(-1)
        return total + log_coefficient(value) if self.coefficient else total


def draw_counts(probs: Tensor, lengths: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Counts (B, V) of so many words (B,) drawn in every document by its probabilities (B, V)."""
    rows, size = probs.shape
    ends = probs.double().cumsum(-1)
    row = torch.repeat_interleave(torch.arange(rows, device=probs.device), lengths.long())
    drawn = torch.rand(len(row), generator=generator, dtype=torch.float64, device=probs.device)
    # All rows' distribution functions one behind the other: as many numbers as words, whatever the longest document.
    shifted = ends / ends[:, -1:] + torch.arange(rows, device=probs.device).unsqueeze(-1)
    place = torch.searchsorted(shifted.flatten(), row + drawn, right=True)
    place = torch.minimum(place, row * size + size - 1)
    return torch.bincount(place, minlength=rows * size).view(rows, size).to(probs)


def log_coefficient(counts: Tensor) -> Tensor:
    """log(L! / prod_v n_v!) of every row, (..., B); counts dense or CSR."""
    if not _sparse.is_sparse(counts):
        return torch.lgamma(counts.sum(-1) + 1) - torch.lgamma(counts + 1).sum(-1)
    row, _, count = _sparse.triplets(counts)
    lengths = _sparse.row_sums(counts)
    return torch.lgamma(lengths + 1).index_add(0, row, -torch.lgamma(count + 1))


#: Entries a block, where there is no fused kernel: a block of both factors stays in cache.
_BLOCK = 4096


def entry_products(left: Tensor, right: Tensor, at: Tensor) -> Tensor:
    """sum_k left_ik right_kj at the stored entries (i, j) of ``at`` (N, V) in CSR layout: (..., number of entries).

    left: (..., N, K), or (..., 1, K) where all rows are equal; right: (K, V). For plain matrices neither the products'
    K terms nor their gradient's are ever held at once: (N, V) and (entries, K) numbers are not allocated.
    """
    if left.ndim > 2 or right.ndim > 2 or left.shape[0] != at.shape[0]:
        row, column, _ = _sparse.triplets(at)
        rows = left.expand(*left.shape[:-2], at.shape[0], left.shape[-1]).index_select(-2, row)
        return (rows * right.mT[..., column, :]).sum(-1)
    return _EntryProducts.apply(left, right, at.crow_indices(), at.col_indices())


def sparse_product(sparse: Tensor, dense: Tensor) -> Tensor:
    """``sparse`` (N, V), in CSR layout and fixed, times ``dense`` (V, H): (N, H)."""
    return _SparseProduct.apply(dense, sparse.crow_indices(), sparse.col_indices(), sparse.values())


class _SparseProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dense: Tensor, crow: Tensor, column: Tensor, values: Tensor) -> Tensor:
        ctx.save_for_backward(crow, column, values)
        ctx.num_columns = dense.shape[0]
        return _sparse.tensor(crow, column, values, size=(len(crow) - 1, dense.shape[0])) @ dense.contiguous()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        crow, column, values = ctx.saved_tensors
        sparse = _sparse.tensor(crow, column, values, size=(len(crow) - 1, ctx.num_columns))
        return _multiply_transposed(sparse, gradient), None, None, None


class _EntryProducts(torch.autograd.Function):
    """Products p_e at the entries only; with dL/dp_e in W, dL/dleft = W right' and dL/dright = left' W."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, crow: Tensor, column: Tensor) -> Tensor:
        ctx.save_for_backward(left, right, crow, column)
        size = (left.shape[0], right.shape[1])
        pattern = _sparse.tensor(crow, column, left.new_zeros(len(column)), size=size)
        try:
            return torch.sparse.sampled_addmm(pattern, left.contiguous(), right.contiguous(), beta=0.0).values()
        except RuntimeError:  # a build of torch without the kernel
            return _in_blocks(left, right, pattern)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, weight: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        left, right, crow, column = ctx.saved_tensors
        size, needed = (left.shape[0], right.shape[1]), ctx.needs_input_grad
        sparse = _sparse.tensor(crow, column, weight.contiguous(), size=size)
        grad_left = sparse @ right.T.contiguous() if needed[0] else None
        grad_right = _multiply_transposed(sparse, left).T if needed[1] else None
        return grad_left, grad_right, None, None


def _in_blocks(left: Tensor, right: Tensor, at: Tensor) -> Tensor:
    row, column, _ = _sparse.triplets(at)
    columns = right.T.contiguous()
    blocks = zip(row.split(_BLOCK), column.split(_BLOCK), strict=True)
    return torch.cat([(left.index_select(0, i) * columns.index_select(0, j)).sum(-1) for i, j in blocks])


def _multiply_transposed(sparse: Tensor, left: Tensor) -> Tensor:
    """sparse' left, (V, K)."""
    if sparse.device.type != "cpu":
        return sparse.mT @ left
    # Scipy's kernel reads the rows as they are stored; torch's is several times slower here.
    return torch.from_numpy(_sparse.to_scipy(sparse).T @ left.detach().contiguous().numpy())


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
        """Read the cells of word counts (N, V), dense or CSR."""
        if _sparse.is_sparse(counts):
            row, word, count = _sparse.triplets(counts)
        else:
            row, word = counts.nonzero(as_tuple=True)
            count = counts[row, word]
        total = count.new_zeros(counts.shape[0]).index_add(0, row, count)
        return cls(row, word, count, total.clamp(min=1.0))

    def sum_by_document(self, value: Tensor) -> Tensor:
        """sum_v value_v over the words of each document, (N, ...), of a value a cell (M, ...)."""
        return value.new_zeros(len(self.length), *value.shape[1:]).index_add(0, self.row, value)


def log_mean_sigmoid(weight: Tensor, responsibility: Tensor, cells: Cells, sign: float | Tensor) -> Tensor:
    """log E[sigmoid(sign w'qbar)] of every document, (N,), the topic indicators summed out exactly.

    With tokens l = 1..L, q_l ~ Cat(phi_l) independent given proportions and words, qbar = (1/L) sum_l q_l (eq. 27.65):

        p(y = 1 | words) = E[sigmoid(S)],   S = w'qbar = sum_l w_{q_l} / L
        sigmoid(s) = 1/2 int sech(pi t) exp((1/2 + i t) s) dt
        E[sigmoid(S)] = 1/2 int sech(pi t) prod_v [sum_k phi_vk exp((1/2 + i t) w_k / L)]^{n_v} dt

    a one-dimensional integral for any number of topics and tokens. Its integrand is analytic for |Im t| < 1/2, so that
    the trapezoid rule converges geometrically.

    weight: w (K,). responsibility: phi (M, K), of every cell's tokens. sign: 1 for p(y = 1), -1 for p(y = 0);
        one number, or one a document (N,).
    """
    row, length = cells.row, cells.length
    reach = float(weight.detach().abs().max())
    step, top = torch.pi / (_DIGITS + reach), (_DIGITS + reach / 2) / torch.pi
    nodes = step * torch.arange(int(top / step) + 1).to(weight)
    rule = step * torch.where(nodes == 0, 1.0, 2.0).to(nodes) * 0.5 / torch.cosh(torch.pi * nodes)
    half = torch.full_like(length, 0.5)
    exponent = (sign / length)[row, None] * weight
    log_m, integral = integrate_tilted(exponent, half, nodes, rule[:, None], responsibility, cells)
    # Rounding must not make the integral smaller than it can be: sech(reach / 2) / 2.
    floor = 0.5 / torch.cosh(weight.new_tensor(min(reach / 2, 40.0)))
    return log_m + integral.clamp(min=floor).log()


def integrate_tilted(
    exponent: Tensor, theta: Tensor, nodes: Tensor, rule: Tensor, responsibility: Tensor, cells: Cells
) -> tuple[Tensor, Tensor]:
    """(log M(theta), Re sum_j rule_j M(theta + i t_j) / M(theta)) of every document, each (N,).

    M(z) = E[exp(z S)] = prod_v [sum_k phi_vk exp(z e_vk)]^{n_v} is the generating function of S = sum_l e_{l, q_l}.

    exponent: e (M, K). theta: (N,). nodes: t (J,). rule: (J, 1) or (J, N), real or complex. responsibility: phi (M, K).
    """
    row, count, size = cells.row, cells.count, len(cells.length)
    power = exponent * theta[row, None]
    largest = power.detach().amax(1, keepdim=True)
    tilted = (responsibility * (power - largest).exp()).clamp(min=torch.finfo(power.dtype).tiny)
    log_m = tilted.sum(1).log() + largest.squeeze(1)
    tilted = tilted / tilted.sum(1, keepdim=True)
    integral = torch.zeros_like(cells.length)
    for part in torch.arange(len(nodes), device=nodes.device).split(max(1, _TERMS // max(1, exponent.numel()))):
        angle = nodes[part, None, None] * exponent
        cell = torch.complex((tilted * angle.cos()).sum(-1), (tilted * angle.sin()).sum(-1))
        total = torch.zeros(len(part), size, dtype=cell.dtype, device=cell.device)
        total = total.index_add(1, row, torch.log(cell) * count)
        integral = integral + (rule[part] * total.exp()).sum(0).real
    return torch.zeros_like(cells.length).index_add(0, row, count * log_m), integral


class TopicMeanBernoulli(UnexpandedLaw):
    """y_n ~ Bernoulli(E[sigmoid(w'qbar_n)]) given a document's proportions and its words (Murphy 2012, eqs.
    27.65-27.66).

    proportion: (N, K). topic: (K, V). counts: (N, V), dense or CSR. weight: w (K,).
    A document without tokens has qbar = 0.
    """

    support: ClassVar[Any] = constraints.boolean

    def __init__(self, proportion: Tensor, topic: Tensor, counts: Tensor, weight: Tensor):
        self.cells, self.weight = Cells.of(counts), weight
        joint = proportion[self.cells.row] * topic.T[self.cells.word]
        self.phi = joint / joint.sum(-1, keepdim=True).clamp(min=torch.finfo(joint.dtype).tiny)
        super().__init__(proportion.shape[:1], torch.Size(), validate_args=False)

    @property
    def mean(self) -> Tensor:
        """P(y = 1), (N,)."""
        return self._log_on.exp()

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        with torch.no_grad():
            return torch.bernoulli(self.mean.clamp(max=1.0).expand(self._extended_shape(sample_shape)))

    def log_prob(self, value: Tensor) -> Tensor:
        if value.shape == self.batch_shape:  # one integral a document, of the response that it has
            sign = torch.where(value > 0.5, 1.0, -1.0).to(self.phi)
            return log_mean_sigmoid(self.weight, self.phi, self.cells, sign)
        return torch.where(value > 0.5, self._log_on, self._log_off)

    @functools.cached_property
    def _log_on(self) -> Tensor:
        """log P(y = 1), (N,)."""
        return log_mean_sigmoid(self.weight, self.phi, self.cells, 1.0)

    @functools.cached_property
    def _log_off(self) -> Tensor:
        return log_mean_sigmoid(self.weight, self.phi, self.cells, -1.0)
