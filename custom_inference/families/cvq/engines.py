"""Posteriors of CVQ's codes by the quadratic form of ``common``: over all codes, on cubes of likely ones, mean field.

Enumeration. The log joint of all 2^K codes is two matrix products, h (N, K) with the codes' bits and, where entries are
missing, the rows' couplings (N, K(K-1)/2) with the codes' pairs of bits (they are shared by the rows otherwise). The
posterior table R (N, 2^K) enters the M step through R C and through the expected pairs.

Truncated posteriors (``families.common.cubes``). The codes of a cube need h and G at the free sources only: with b the
base code without them and f_i = h_i - sum_j G_ij b_j,

    log p(x, s) = c + sum_i b_i (h_i + f_i) / 2 + sum_{i free} s_i f_i - sum_{i < j free} s_i s_j G_ij.

Cost per row: K^2 + H^2 2^H, whatever 2^K is.

Mean field (Diab 2020, "Variational EM"), q(s) = prod_i Bernoulli(lambda_i):

    F_n = c + sum_i lambda_i h_i - 1/2 sum_{i != j} lambda_i lambda_j G_ij + H(lambda),
    H = -sum_i [lambda_i log lambda_i + (1 - lambda_i) log(1 - lambda_i)]      (the slides print the opposite sign)

and dF/dlambda_i = 0 where lambda_i = sigmoid(h_i - sum_{j != i} G_ij lambda_j), the slides' fixed point. F is concave
in each lambda_i, so the update of one source at a time, the others held, never lowers F; all at once could.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from custom_inference.core.engine import EStep, Params, Warm
from custom_inference.core.posteriors import BernoulliPosterior, LocalPosterior
from custom_inference.families.common.cubes import CubeEngine, CubeModel
from custom_inference.families.common.enumerated import Enumerated, codes_of, exponentiate
from custom_inference.families.cvq.common import CvqEngine, Quadratic, moments, quadratics
from custom_inference.families.rows.base import BlockSteps, add_statistics
from custom_inference.families.rows.matrix import RealRows
from ppl_models import Model

#: Rows a block of truncated posteriors: its (rows, 2^H) table stays in cache.
_BLOCK_ROWS = 1024


@dataclass(frozen=True, kw_only=True)
class CvqExact(CvqEngine, Enumerated):
    """Exact E step over all codes; closed-form M step."""

    def tables(self, params: Params, rows: RealRows, temperature: float = 1.0) -> _CodeTables:
        return _CodeTables(params, codes_of(len(params["source_prior"]), rows.x.dtype, rows.x.device), temperature)

    def e_step(
        self, model: Model, params: Params, rows: RealRows, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        tables, steps = self.tables(params, rows, temperature), BlockSteps()
        for part in self.blocks(params, rows):
            weight, scale, evidence = exponentiate(tables.joint(part))
            steps.add(self._moments(part, tables.codes, weight, scale), evidence)
        return steps.join()

    def _moments(self, rows: RealRows, codes: Tensor, weight: Tensor, scale: Tensor) -> dict[str, Tensor]:
        """weight (B, C) times scale (B,) are the posteriors."""
        mean = (weight @ codes) * scale[:, None]
        if rows.observed is None:
            return moments(rows, mean, (codes * (scale @ weight)[:, None]).T @ codes)
        first, second, both = _pairs(codes.shape[1], codes.dtype, codes.device)
        together = (weight @ both) * scale[:, None]
        full = together.new_zeros(len(rows), codes.shape[1], codes.shape[1])
        full[:, first, second] = full[:, second, first] = together
        return moments(rows, mean, full)


class _CodeTables(NamedTuple):
    """The parameters with all codes (C, K)."""

    params: Params
    codes: Tensor
    temperature: float

    def joint(self, rows: RealRows) -> Tensor:
        """log p(x_n, c) (N, C)."""
        found = []
        for _, _, form in quadratics(self.params, rows, self.temperature):
            if form.coupling.ndim == 2:
                shared = -0.5 * (self.codes @ form.coupling * self.codes).sum(-1)
                joint = torch.addmm(shared, form.linear, self.codes.T)
            else:
                first, second, both = _pairs(self.codes.shape[1], self.codes.dtype, self.codes.device)
                joint = form.linear @ self.codes.T
                joint.addmm_(form.coupling[:, first, second], both.T, alpha=-1)
            found.append(joint.add_(form.constant[:, None]))
        return found[0] if len(found) == 1 else torch.cat(found)


@lru_cache(maxsize=4)
def _pairs(num_bits: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """The pairs i < j, and s_i s_j of every code (C, K(K-1)/2); never written to."""
    first, second = torch.triu_indices(num_bits, num_bits, 1, device=device)
    codes = codes_of(num_bits, dtype, device)
    return first, second, codes[:, first] * codes[:, second]


class _CodeTable(NamedTuple):
    """Log joints (B, 2^H) up to the row's constant, and the base codes with the free sources off (B, K)."""

    joint: Tensor
    fixed: Tensor

    def where(self, keep: Tensor, other: _CodeTable) -> _CodeTable:
        return _CodeTable(*(torch.where(keep[:, None], mine, its) for mine, its in zip(self, other, strict=True)))


class _CodeScores(NamedTuple):
    """A block of rows and its quadratic form."""

    rows: RealRows
    form: Quadratic

    def cheapest_flips(self, base: Tensor, number: int) -> Tensor:
        score = (1 - 2 * base) * (self.form.linear - self.form.pull(base))
        return score.topk(number, 1).indices

    def cube(self, base: Tensor, free: Tensor, subsets: Tensor) -> _CodeTable:
        fixed = base.scatter(1, free, 0.0)
        field, coupling = self.form.linear - self.form.pull(fixed), self.form.coupling
        first, second, position = _free_pairs(free, base.shape[1])
        among = coupling.reshape(-1)[position] if coupling.ndim == 2 else coupling.flatten(1).gather(1, position)
        joint = field.gather(1, free) @ subsets.T - among @ (subsets[:, first] * subsets[:, second]).T
        return _CodeTable(joint + 0.5 * (fixed * (self.form.linear + field)).sum(1, keepdim=True), fixed)


class _CodeMoments(CubeModel):
    """The quadratic log joint on cubes, counting first and second moments of the codes."""

    def __init__(self, params: Params, rows: RealRows):
        self.forms = list(quadratics(params, rows, block_rows=_BLOCK_ROWS))
        self.constant = torch.cat([form.constant for _, _, form in self.forms])
        self.total: dict[str, Tensor] = {}

    def blocks(self) -> Iterator[tuple[slice, _CodeScores]]:
        for block, part, form in self.forms:
            yield block, _CodeScores(part, form)

    def count(
        self, scores: _CodeScores, table: _CodeTable, weight: Tensor, free: Tensor, subsets: Tensor, mean: Tensor
    ) -> None:
        """<ss'> = <s><s'> but for the free sources, whose covariance is added."""
        on, num_bits = mean.gather(1, free), mean.shape[1]
        first, second, position = _free_pairs(free, num_bits)
        extra = weight @ (subsets[:, first] * subsets[:, second]) - on[:, first] * on[:, second]
        if scores.rows.observed is None:
            covariance = mean.new_zeros(num_bits**2).index_add_(0, position.flatten(), extra.flatten())
            pairs = mean.T @ mean
        else:
            covariance = mean.new_zeros(len(mean), num_bits**2).scatter_add_(1, position, extra)
            pairs = mean[:, :, None] * mean[:, None, :]
        covariance = covariance.view_as(pairs)
        counts = moments(scores.rows, mean, pairs + covariance + covariance.mT)
        self.total = add_statistics(self.total, counts)

    def statistics(self, mean: Tensor) -> dict[str, Tensor]:
        return self.total


def _free_pairs(free: Tensor, num_bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """The pairs i < j of free sources, and where each is in a flattened (K, K), (B, pairs)."""
    first, second = torch.triu_indices(free.shape[1], free.shape[1], 1, device=free.device)
    return first, second, free[:, first] * num_bits + free[:, second]


@dataclass(frozen=True, kw_only=True)
class CvqTruncated(CvqEngine, CubeEngine):
    """E step on cubes of 2^H codes (see :class:`CubeEngine` for the settings); closed-form M step.

    Choosing a cube costs no more than using it, so it is done at every E step.
    """

    refresh_every: int = 1

    def e_step(
        self, model: Model, params: Params, rows: RealRows, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        return self.cube_step(_CodeMoments(params, rows), params, rows, warm, temperature)


@dataclass(frozen=True, kw_only=True)
class CvqMeanField(CvqEngine):
    """E step: ``sweeps`` coordinate sweeps over the sources (0: F_n at given lambda); closed-form M step."""

    sweeps: int = 2
    name: ClassVar[str] = "mean_field"

    def e_step(
        self, model: Model, params: Params, rows: RealRows, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        # Coordinate ascent stays in the mode it starts in: begin at each row's likely codes.
        start = warm["mean"] if warm else CvqTruncated(free=4).infer_means(model, params, rows, 3)
        steps = BlockSteps()
        for block, part, form in quadratics(params, rows, temperature):
            mean = sweep_sources(form, start[block], self.sweeps)
            entropy = (torch.special.entr(mean) + torch.special.entr(1 - mean)).sum(-1)
            bound = form.constant + (mean * (form.linear - 0.5 * form.pull(mean))).sum(-1) + entropy
            steps.add(moments(part, mean), bound, mean=mean)
        return steps.join()

    def bound(self, model: Model, params: Params, rows: RealRows, mean: Tensor) -> Tensor:
        """F_n of the module's docstring for any lambda = ``mean`` (N, K), per row (N,)."""
        return replace(self, sweeps=0).e_step(model, params, rows, {"mean": mean}).bound

    def posterior(self, model: Model, params: Params, rows: RealRows, step: EStep) -> LocalPosterior:
        return BernoulliPosterior(step.locals["mean"])


def sweep_sources(form: Quadratic, start: Tensor, sweeps: int) -> Tensor:
    """Return lambda (B, K) after ``sweeps`` passes over the sources."""
    # Sources are rows here: each update reads and writes contiguous memory.
    mean, linear = start.T.clone(memory_format=torch.contiguous_format), form.linear.T.contiguous()
    shared = form.coupling.ndim == 2
    coupling = form.coupling if shared else form.coupling.permute(1, 2, 0).contiguous()
    for _ in range(sweeps):
        for i in range(len(mean)):
            pull = coupling[i] @ mean if shared else (coupling[i] * mean).sum(0)
            torch.sigmoid(linear[i] - pull, out=mean[i])
    return mean.T.contiguous()
