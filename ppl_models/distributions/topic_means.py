"""Responses to the mean topic of a document's tokens, the topics of the tokens summed out.

With tokens l = 1..L, q_l ~ Cat(phi_l) independent given proportions and words, and eta = W qbar, qbar = (1/L) sum_l q_l
(Murphy, eqs. 27.65-27.66), the law of a response y is p(y) = E[f(y | eta)]. Where eta is one number S = w'qbar, f is an
inverse Laplace transform, f(y | s) = 1/(2 pi i) int F(z) e^{z s} dz, and with M(z) = E[e^{z S}], a product over words,

    p(y) = 1/(2 pi) int F(theta + i t) M(theta + i t) dt

    binary    F(z) = pi / sin(pi z),  0 < theta < 1   (``tokens.log_mean_sigmoid``, at 1/2)
    real      F(z) = exp(scale^2 z^2 / 2 - z y)       of Normal(S, scale)
    counts    F(z) = Gamma(y - z) / y!,  theta < y    of Poisson(e^S)

a one-dimensional integral for any number of topics and tokens, taken by the trapezoid rule through the saddle point.
Real responses are taken about a centre, so that of a document without tokens it is the mean.

Several responses to the same tokens, and categories, need the joint law of qbar: that of the numbers of tokens of each
topic, which is the convolution of the tokens' laws, (L + 1)^(K - 1) terms a document.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pyro.distributions as dist
import torch
from scipy.special import loggamma
from torch import Tensor
from torch.distributions import constraints

from ppl_models.core.errors import CapacityError
from ppl_models.distributions.basic import Shape, UnexpandedLaw
from ppl_models.distributions.tokens import Cells, TopicMeanBernoulli, integrate_tilted, log_mean_sigmoid

#: Kinds of responses, with what each is supported on.
SUPPORTS = {
    "binary": constraints.boolean,
    "categorical": constraints.nonnegative_integer,
    "real": constraints.real,
    "counts": constraints.nonnegative_integer,
}
#: What the trapezoid rules leave out is exp(-_DIGITS) of the integral, the tail of a Normal from _SPREADS on.
_DIGITS, _SPREADS = 36.0, 8.5
#: Noise is taken as at least this part of the range of the weights: the rule has as many nodes in proportion.
_FINEST = 1 / 2000
#: Halvings of the brackets of saddle points: near is enough.
_HALVINGS = 16
#: Terms of the convolutions of all documents, at most.
_MOST_TERMS = 2**24


def law_of(kind: str, eta: Tensor, scale: Tensor | None = None) -> Any:
    """p(y | eta): of categories eta is (..., C), else (...)."""
    if kind == "binary":
        return dist.Bernoulli(logits=eta)
    if kind == "categorical":
        return dist.Categorical(logits=eta)
    return dist.Poisson(eta.exp()) if kind == "counts" else dist.Normal(eta, 1.0 if scale is None else scale)


def tokens_share(proportion: Tensor, topic: Tensor, cells: Cells) -> Tensor:
    """phi (M, K): p(q = k | word, proportions) of the tokens of every cell."""
    joint = proportion[cells.row] * topic.T[cells.word]
    return joint / joint.sum(-1, keepdim=True).clamp(min=torch.finfo(joint.dtype).tiny)


def response_law(
    kind: str,
    proportion: Tensor,
    topic: Tensor,
    counts: Tensor,
    weight: Tensor,
    scale: Tensor | None = None,
    centre: Tensor | None = None,
) -> Any:
    """p(y_n | words, proportions). weight: (K,) of one response, (R, K) of several, (C, K) of categories.

    proportion: (N, K). topic: (K, V). counts: (N, V), dense or CSR. scale: of real responses, () or (R,). centre: of
    these, (R,); by default 0.
    """
    if kind == "binary" and weight.ndim == 1:
        return TopicMeanBernoulli(proportion, topic, counts, weight)
    return TopicMeanResponse(kind, proportion, topic, counts, weight, scale, centre)


class TopicMeanResponse(UnexpandedLaw):
    """The law of responses of one kind, as :func:`response_law` says. NaN among several responses is one not observed.

    Raises CapacityError from ``log_prob`` where the convolution has too many terms; draws take no convolution.
    """

    leaves_out_missing = True

    def __init__(
        self, kind: str, proportion: Tensor, topic: Tensor, counts: Tensor, weight: Tensor, scale: Tensor | None = None,
        centre: Tensor | None = None,
    ):  # fmt: skip
        centre = weight.new_zeros(weight.shape[:-1] or 1) if centre is None else centre
        self.kind, self.scale = kind, scale
        self.centre = centre if weight.ndim > 1 else centre.squeeze(0)
        self.weight = weight - self.centre.unsqueeze(-1)
        self.cells = Cells.of(counts)
        self.phi = tokens_share(proportion, topic, self.cells)
        several = weight.ndim == 2 and kind != "categorical"
        super().__init__(proportion.shape[:1], weight.shape[:1] if several else torch.Size(), validate_args=False)

    @property
    def support(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        one = SUPPORTS[self.kind]
        return constraints.independent(one, 1) if self.event_shape else one

    @property
    def mean(self) -> Tensor:
        """E[y], (N,) or (N, R); of categories their probabilities, (N, C)."""
        mean = mean_response(self.kind, self.weight, self.phi, self.cells)
        return mean + self.centre if self.kind == "real" else mean

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        """Draw responses by drawing the tokens' topics."""
        with torch.no_grad():
            draws = [self._draw() for _ in range(math.prod(sample_shape))]
            return torch.stack(draws).reshape(self._extended_shape(sample_shape))

    def _draw(self) -> Tensor:
        eta = draw_means(self.phi, self.cells) @ self.weight.movedim(-1, 0) + self.centre
        return law_of(self.kind, eta, self.scale).sample().to(eta)

    def log_prob(self, value: Tensor) -> Tensor:
        if self.kind == "real":
            value = value - self.centre
        if self.weight.ndim == 1:
            integral: Any = log_mean_normal if self.kind == "real" else log_mean_poisson
            given = (value, self.scale) if self.kind == "real" else (value,)
            return integral(*given, self.weight, self.phi, self.cells)
        chance, eta = topic_count_law(self.phi, self.cells, self.weight)
        law, seen = law_of(self.kind, eta, self.scale), ~torch.isnan(value)
        given = torch.where(seen, value, torch.zeros_like(value)).unsqueeze(1)
        each = law.log_prob(given)
        if self.event_shape:
            each = torch.where(seen.unsqueeze(1), each, torch.zeros_like(each)).sum(-1)
        return log_mixture(chance, each)


def log_mixture(chance: Tensor, each: Tensor) -> Tensor:
    """log sum_g p_ng exp(each_ng), (N,)."""
    top = torch.where(chance > 0, each, -torch.inf).amax(-1, keepdim=True).detach()
    return (chance * (each - top).clamp(max=0).exp()).sum(-1).log() + top.squeeze(-1)


def mean_response(kind: str, weight: Tensor, phi: Tensor, cells: Cells) -> Tensor:
    """E[y] given the tokens' shares phi (M, K); of categories their probabilities, (N, C)."""
    if kind == "categorical":
        chance, eta = topic_count_law(phi, cells, weight)
        return (chance.unsqueeze(-1) * torch.softmax(eta, -1)).sum(1)
    if kind == "real":
        return cells.sum_by_document(cells.count[:, None] * phi) / cells.length[:, None] @ weight.movedim(-1, 0)
    if weight.ndim == 2:
        return torch.stack([mean_response(kind, one, phi, cells) for one in weight], -1)
    if kind == "binary":
        return log_mean_sigmoid(weight, phi, cells, 1.0).exp()
    return cells.sum_by_document(
        cells.count * (phi * (weight / cells.length[cells.row, None]).exp()).sum(1).log()
    ).exp()


def draw_means(phi: Tensor, cells: Cells) -> Tensor:
    """qbar (N, K) of topics drawn for all tokens."""
    place = torch.arange(len(phi), device=phi.device).repeat_interleave(cells.count.long())
    topic = torch.multinomial(phi[place], 1).squeeze(1) if len(place) else place
    drawn = phi.new_zeros(len(cells.length), phi.shape[1])
    return drawn.index_put_((cells.row[place], topic), phi.new_ones(len(place)), True) / cells.length[:, None]


def topic_count_law(phi: Tensor, cells: Cells, weight: Tensor) -> tuple[Tensor, Tensor]:
    """(p (N, G), eta (N, G, D)): the law of eta = W qbar, by the numbers of tokens of the first K - 1 topics.

    The tokens' laws are convolved one by one. weight: (D, K). Raises CapacityError beyond 2^24 terms.
    """
    size, (num_documents, number) = phi.shape[1], (len(cells.length), cells.sum_by_document(cells.count))
    longest = int(number.max()) if num_documents else 0
    terms = num_documents * float(longest + 1) ** (size - 1)
    if terms > _MOST_TERMS:
        found = f"{longest} tokens in {size} topics have {terms:.2g} vectors of counts in {num_documents} documents"
        raise CapacityError(
            f"{found}, more than the {_MOST_TERMS} that the exact law of categories or several responses sums over; "
            "use VariationalEM or CollapsedGibbs, which need no such sum",
            needed_bytes=8 * terms,
            allowed_bytes=8.0 * _MOST_TERMS,
        )
    place = torch.arange(len(phi), device=phi.device).repeat_interleave(cells.count.long())
    row = cells.row[place]
    order = torch.arange(len(row), device=phi.device) - (number.cumsum(0) - number).long()[row]
    share = phi.new_zeros(num_documents, longest, size).index_put((row, order), phi[place])
    table = phi.new_zeros(num_documents, *[longest + 1] * (size - 1))
    table[(slice(None), *[0] * (size - 1))] = 1.0
    for token in range(longest):
        each = share[:, token].reshape(num_documents, size, *[1] * (size - 1))
        moved = table * each[:, -1] + sum(torch.roll(table, 1, k + 1) * each[:, k] for k in range(size - 1))
        inside = (token < number).reshape(-1, *[1] * (size - 1))
        table = torch.where(inside, moved, table)
    axes = [torch.arange(longest + 1).to(phi)] * (size - 1)
    counts = torch.cartesian_prod(*axes).reshape(-1, size - 1) if axes else phi.new_zeros(1, 0)
    moved = counts @ (weight[:, :-1] - weight[:, -1:]).T
    eta = (moved + number[:, None, None] * weight[:, -1]) / cells.length[:, None, None]
    return table.reshape(num_documents, -1), eta


def _saddle(low: Tensor, high: Tensor, increasing: Callable[[Tensor], Tensor]) -> Tensor:
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        above = increasing(middle) > 0
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    return (low + high) / 2


def _slope(exponent: Tensor, phi: Tensor, cells: Cells) -> Callable[[Tensor], Tensor]:
    """theta (N,) -> d/dtheta log M(theta), (N,)."""
    log_phi, e = phi.detach().clamp_min(1e-300 if phi.dtype == torch.float64 else 1e-37).log(), exponent.detach()
    return lambda theta: cells.sum_by_document(
        cells.count * (torch.softmax(log_phi + theta[cells.row, None] * e, 1) * e).sum(1)
    )


def log_mean_normal(value: Tensor, scale: float | Tensor, weight: Tensor, phi: Tensor, cells: Cells) -> Tensor:
    """log E[Normal(y; S, scale)] of every document, (N,)."""
    exponent = weight / cells.length[cells.row, None]
    low, high = float(weight.detach().min()), float(weight.detach().max())
    low, high = min(low, 0.0), max(high, 0.0)  # documents without tokens have S = 0
    scale = torch.as_tensor(scale).to(weight).clamp(min=max((high - low) * _FINEST, 1e-300))
    fixed, y = scale.detach(), value.detach()
    slope = _slope(exponent, phi, cells)
    theta = _saddle((y - high) / fixed**2, (y - low) / fixed**2, lambda at: slope(at) + fixed**2 * at - y)
    top, period = _SPREADS / float(fixed), high - low + _SPREADS * float(fixed)
    step = 2 * math.pi / period
    t = step * torch.arange(int(top / step) + 2).to(weight)
    phase = t[:, None] * (scale**2 * theta - value)
    size = -0.5 * (scale * t).square()[:, None] + torch.zeros_like(phase)
    rule = _weights(t, step)[:, None] * torch.complex(size, phase).exp()
    log_m, integral = integrate_tilted(exponent, theta, t, rule, phi, cells)
    return log_m + 0.5 * (scale * theta).square() - theta * value + _log_resolved(integral, 1 / period)


def log_mean_poisson(value: Tensor, weight: Tensor, phi: Tensor, cells: Cells) -> Tensor:
    """log E[Poisson(y; e^S)] of every document, (N,)."""
    exponent = weight / cells.length[cells.row, None]
    low, high = min(float(weight.detach().min()), 0.0), max(float(weight.detach().max()), 0.0)
    slope, y = _slope(exponent, phi, cells), value.detach()
    first = torch.full_like(y, math.log(0.5))
    last = torch.full_like(y, math.log(math.exp(min(high, 80.0)) + 2.0))
    log_c = _saddle(first, last, lambda at: torch.digamma(at.exp()) - slope(y - at.exp()))
    c = log_c.exp()
    most, least = float(c.max()), float(c.min())
    step = 2 * math.pi / (high - low + _DIGITS / least + math.log(_DIGITS / least + 10) + 5)
    t = step * torch.arange(int((25 + 9 * most**0.5) / step) + 2).to(weight)
    points = c[None].cpu().numpy() - 1j * t[:, None].cpu().numpy()
    transform = torch.as_tensor(loggamma(points)).to(weight.device)
    start = torch.lgamma(c)
    rule = _weights(t, step)[:, None] * (transform - start).exp().to(torch.complex(t[:1], t[:1]).dtype)
    log_m, integral = integrate_tilted(exponent, y - c, t, rule, phi, cells)
    return start - torch.lgamma(value + 1) + log_m + _log_resolved(integral, 1.0)


def _weights(t: Tensor, step: float) -> Tensor:
    """Return the weights at t >= 0 of the trapezoid rule over the whole line, with the factor 1/(2 pi)."""
    return torch.where(t == 0, 0.5, 1.0).to(t) * (step / math.pi)


def _log_resolved(integral: Tensor, size: float) -> Tensor:
    """Its logarithm. Sums of terms of this size are exact to rounding: a law that is smaller by more in a gap between
    the few values that S can take (short documents, noise far below their distance) is taken as rounding there."""
    return integral.clamp(min=torch.finfo(integral.dtype).eps * size).log()
