"""The aspect Bernoulli model with the memberships integrated out: by Dirichlet posteriors, or exactly.

Given the expected numbers of ones and zeros that each aspect drew, on_kt and off_kt, the M step is the mode of a Beta:
a_kt = (on_kt + a - 1) / (on_kt + off_kt + a + b - 2). The Dirichlet prior of the memberships is any.

Variational Bayes. q(s_n) = Dirichlet(gamma_n), and independently of it every draw's aspect has q(z = k) proportional to
e_nk b_k with e_nk = exp(E log s_nk) = exp(psi(gamma_nk) - psi(sum_j gamma_nj)), b = a for a draw that came out 1 and
1 - a for a 0 (as in Blei, Ng & Jordan, *Latent Dirichlet allocation*, JMLR 2003, for the model of Bingham et al.
(2007), eqs. 1-3). The bound is

    L_n = sum_t [ones_nt log(e_n' a_t) + zeros_nt log(e_n' (1 - a_t))] - KL(Dirichlet(gamma_n) || Dirichlet(alpha))

plus the binomial coefficient, and gamma_n = alpha + e_n * [(ones / e a) a' + (zeros / e (1 - a)) (1 - a)'], elementwise
where not a matrix product: no array of rows by features by aspects is formed.

Exactly. Given s_n the draws of a row are independent, with b_ik = a_kt for a 1 of feature t and 1 - a_kt for a 0
(eqs. 4 and 10-11): ``common.polynomial`` integrates their product. A missing entry is a draw that the row does not
have.

Under any prior of the memberships E steps are those of ``common.laplace``, the M step that of Beta modes. A draw of
feature t that came out 1 is a token of word t, whose probability in aspect k is a_kt, and one that came out 0 a token
of word D + t, with 1 - a_kt: p(x_n | s_n, a) is then that of documents (Bingham et al. 2007, eqs. 10-11).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from custom_inference.core.engine import Engine, EStep, ExactEngine, Params, Warm
from custom_inference.core.posteriors import DirichletMixture, DirichletPosterior
from custom_inference.families.common import polynomial as _polynomial
from custom_inference.families.common.laplace import LaplaceMemberships
from custom_inference.families.common.polynomial import BLOCK_ENTRIES, num_states, num_terms
from custom_inference.families.conjugate.beta import FLOOR, Beta
from custom_inference.families.conjugate.dirichlet import Dirichlet
from custom_inference.families.rows.counts import CountRows
from custom_inference.families.rows.documents import DocumentRows
from ppl_models import AspectBernoulli, Data, Model
from ppl_models.data import sparse

#: Sweeps of the first E step under Dirichlet posteriors, which starts from equal shares.
_COLD_SWEEPS = 25
#: Up to this many numbers a row the exact engine is a default.
_FEASIBLE = 20_000


class AspectEngine(Engine):
    """Data and starts of all engines."""

    def rows(self, model: Model, data: Data) -> CountRows:
        return CountRows.of(data, model.settings()["total_count"])

    def initial(self, model: Model, rows: CountRows, generator: torch.Generator) -> Params:
        """Aspects uniform in [0.25, 0.75], the source's start "within the required range" (below eq. 6)."""
        noise = torch.rand(model.shapes["aspect_probability"], generator=generator, dtype=torch.float64)
        return {"aspect_probability": (0.25 + 0.5 * noise).to(rows.like)}


@dataclass(frozen=True, kw_only=True)
class AspectMarginal(AspectEngine):
    """Priors and the M step of the engines that integrate the memberships out."""

    accelerate = "squarem"

    def alpha(self, model: Model, like: Tensor) -> Tensor:
        """The concentration of the memberships' prior, (K,). Raises MethodError where that is not a Dirichlet."""
        return Dirichlet.of(model, "membership", like).concentration.expand(model.local_shape)

    def check(self, model: Model, rows: CountRows) -> None:
        """Raises MethodError for priors without a closed-form update."""
        self.alpha(model, rows.like)
        Beta.with_mode(model, "aspect_probability", torch.ones(1))

    def m_step(self, model: Model, params: Params, step: EStep, rows: CountRows) -> Params:
        counts, prior = step.statistics, Beta.with_mode(model, "aspect_probability", params["aspect_probability"])
        return {"aspect_probability": prior.mode(counts["on"], counts["on"] + counts["off"], floor=FLOOR)}


@dataclass(frozen=True, kw_only=True)
class AspectDirichlet(AspectMarginal):
    """sweeps: updates of gamma per E step."""

    sweeps: int = 5
    name = "dirichlet"

    def e_step(
        self, model: Model, params: Params, rows: CountRows, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        a = params["aspect_probability"]
        alpha, present, absent = self.alpha(model, a), a.pow(temperature), (1 - a).pow(temperature)
        on, off, found, bounds = torch.zeros_like(a), torch.zeros_like(a), [], []
        for at, part in rows.blocks:
            gamma = warm["concentration"][at] if warm else alpha + (part.draws / len(alpha))[:, None]
            for _ in range(self.sweeps if warm else max(self.sweeps, _COLD_SWEEPS)):
                share = _share(gamma)
                rise, fall = part.ones / (share @ present), part.zeros / (share @ absent)
                gamma = alpha + share * (rise @ present.T + fall @ absent.T)
            share = _share(gamma)
            one, zero = share @ present, share @ absent
            on += present * (share.T @ (part.ones / one))
            off += absent * (share.T @ (part.zeros / zero))
            if temperature != 1.0:
                one, zero = share @ a, share @ (1 - a)
            entries = torch.xlogy(part.ones, one) + torch.xlogy(part.zeros, zero)
            bounds.append(entries.sum(-1) - Dirichlet(gamma).kl(alpha))
            found.append(gamma)
        bound = torch.cat(bounds) + rows.log_coefficient
        return EStep({"on": on, "off": off}, {"concentration": torch.cat(found)}, bound)

    def posterior(self, model: Model, params: Params, rows: CountRows, step: EStep) -> DirichletPosterior:
        return DirichletPosterior(step.locals["concentration"])


@dataclass(frozen=True, kw_only=True)
class AspectExact(AspectMarginal, ExactEngine):
    """Exact E step by multiplying out the polynomial of every row.

    max_bytes: memory allowed; half of what is free by default.
    """

    max_bytes: float | None = None

    def feasible(self, model: Model) -> bool:
        """Up to ``_FEASIBLE`` numbers a row: 199 draws for two components, 47 for three, 23 for four."""
        num_components, num_features = model.shapes["aspect_probability"]
        return num_states(num_features * model.settings()["total_count"], num_components) <= _FEASIBLE

    def check(self, model: Model, rows: CountRows) -> None:
        """Raises MethodError for priors without closed-form updates, CapacityError for polynomials that do not fit."""
        super().check(model, rows)
        self._require(model.shapes["aspect_probability"], rows, 1)

    def _require(self, shape: tuple[int, ...], rows: CountRows, num_rows: int, *, only_last: bool = False) -> None:
        """``num_rows`` of the rows at a time; shape: of the aspects."""
        size, draws = shape[0], shape[1] * rows.total_count
        what, fits = f"{draws} draws in {size} memberships", 'use a bound instead, such as "dirichlet"'
        settings = {"what": what, "fits": fits, "limit": self.max_bytes, "only_last": only_last}
        _polynomial.require_memory(draws, size, num_rows, rows.like.element_size(), **settings)

    def e_step(
        self, model: Model, params: Params, rows: CountRows, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        aspect = params["aspect_probability"]
        on, off, bounds = torch.zeros_like(aspect), torch.zeros_like(aspect), []
        for part in self._parts(params, rows):
            draws = _Draws(aspect, part, temperature)
            states, log_scale = _polynomial.multiply_forms(draws, keep=True)
            weight = _polynomial.prior_weight(len(draws), self.alpha(model, aspect)).to(part.like)
            bounds.append(log_scale + (weight @ states[-1]).log() + part.log_coefficient)
            for draw, share in _polynomial.attribute_draws(draws, states, weight):
                feature, is_one = draws.outcome(draw)
                share = share if draws.mask is None else share * draws.mask[feature]
                on[:, feature] += share @ is_one
                off[:, feature] += share @ (1 - is_one)
        return EStep({"on": on, "off": off}, {}, torch.cat(bounds))

    def _parts(self, params: Params, rows: CountRows, *, keep: bool = True) -> list[CountRows]:
        size, num_features = params["aspect_probability"].shape
        draws = num_features * rows.total_count
        each = num_states(draws, size) if keep else 4 * num_terms(draws, size)
        block = max(1, min(len(rows), BLOCK_ENTRIES // each))
        self._require((size, num_features), rows, block)
        return [part for _, part in rows.parts(block)]

    def log_evidence(self, model: Model, params: Params, rows: CountRows) -> Tensor:
        return torch.cat([self._log_terms(model, params, part)[1] for part in self._parts(params, rows, keep=False)])

    def _log_terms(self, model: Model, params: Params, rows: CountRows) -> tuple[Tensor, Tensor]:
        """log [w(m) beta(m) / p(x_n)] (N, S), and log p(x_n) (N,)."""
        aspect = params["aspect_probability"]
        log_weight, log_evidence = _polynomial.log_terms(_Draws(aspect, rows), self.alpha(model, aspect))
        return log_weight, log_evidence + rows.log_coefficient

    def posterior(self, model: Model, params: Params, rows: CountRows, step: EStep | None = None) -> DirichletMixture:
        """The exact posterior of every membership: the same Dirichlets for all rows, in each row's own proportions."""
        size, num_features = shape = params["aspect_probability"].shape
        self._require(shape, rows, len(rows), only_last=True)
        parts = self._parts(params, rows, keep=False)
        log_weight = torch.cat([self._log_terms(model, params, part)[0] for part in parts])
        exponents = _polynomial.terms_of(num_features * rows.total_count, size, rows.like.device).every.to(rows.like)
        return DirichletMixture(log_weight, self.alpha(model, exponents) + exponents)


class _Draws:
    """The linear forms of the rows' draws, in order: feature by feature, a feature's ones first."""

    def __init__(self, aspect: Tensor, rows: CountRows, temperature: float = 1.0):
        self.like, self.rows, self.temperature = aspect, rows, temperature
        ones = rows.ones.to_dense() if rows.is_sparse else rows.ones  # of a block of rows, never of all
        self.ones, self.size, self.num_rows = ones.T.contiguous(), len(aspect), len(rows)
        self.mask = None if rows.mask is None else rows.mask.T

    def __len__(self) -> int:
        return self.rows.total_count * self.like.shape[1]

    def outcome(self, draw: int) -> tuple[int, Tensor]:
        """Feature, and whether each row's draw came out 1 (B,)."""
        feature, position = divmod(draw, self.rows.total_count)
        return feature, (self.ones[feature] > position).to(self.like)

    def form(self, draw: int) -> Tensor:
        feature, is_one = self.outcome(draw)
        a = self.like[:, feature, None]
        b = (a * is_one + (1 - a) * (1 - is_one)).pow(self.temperature)
        return b if self.mask is None else torch.where(self.mask[feature], b, torch.ones_like(b))


def _share(gamma: Tensor) -> Tensor:
    """e of the module's docstring, bounded: of concentrations near 0 it would be e^(-1 / gamma)."""
    return Dirichlet(gamma).expected().clamp(min=-80.0).exp()


class TokenRows(CountRows):
    """Counts of ones and zeros that are also read as documents."""

    @cached_property
    def tokens(self) -> DocumentRows:
        """Counts (N, 2 D): the ones of every feature, then the zeros."""
        ones = sparse.dense(self.ones)
        zeros = self.total_count - ones
        if self.mask is not None:
            zeros = zeros.masked_fill(~self.mask, 0.0)
        return DocumentRows(sparse.from_dense(torch.cat([ones, zeros], 1)))


@dataclass(frozen=True, kw_only=True)
class AspectLaplace(LaplaceMemberships, AspectMarginal):
    """A Gaussian of stick-breaking coordinates a row, the aspects as points."""

    def rows(self, model: AspectBernoulli, data: Data) -> TokenRows:
        return TokenRows.of(data, model.total_count)

    def check(self, model: Model, rows: CountRows) -> None:
        super().check(model, rows)
        self.check_local_prior(model, rows.log_coefficient)

    def e_step(
        self, model: Model, params: Params, rows: TokenRows, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        a = params["aspect_probability"]
        counts, locals_, bound = self.infer_memberships(model, rows.tokens, torch.cat([a, 1 - a], 1), warm, temperature)
        on, off = counts.chunk(2, 1)
        return EStep({"on": on, "off": off}, locals_, bound + rows.log_coefficient)
