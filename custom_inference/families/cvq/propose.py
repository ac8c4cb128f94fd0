"""Starts for CVQ that find the good optimum: mean-field EM from random rows, then superfluous sources are reseated.

What random starts get wrong looks alike: a true source is missing, while two sources share another one, or one is
hardly ever on; and one source is the mean of two true ones, on where either is. EM cannot leave such a state, a jump
can: the source whose absence would cost least is taken away, and comes back as

- a *birth*, where the residuals, inferred again without it, look most like a binary source, or
- half of a *split* of the source whose active rows' residuals vary most coherently.

After a few EM steps the better jump is kept if it raised the bound. One jump costs tens of milliseconds.

Both look along leading eigenvectors v of sum_n q_n r_n r_n', with the residuals r_n = x_n - lambda_n W in units of
sigma. A birth (q_n = 1) is a CVQ with K = 1, whose EM starts from the rows that reach far along v or -v. A split
(q_n = lambda_ni) gives the rows on either side of v to different halves.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from custom_inference.core.align import match_components
from custom_inference.core.engine import EStep, Params
from custom_inference.core.proposals import Proposals
from custom_inference.families.conjugate.beta import FLOOR
from custom_inference.families.cvq.engines import CvqMeanField
from custom_inference.families.rows.matrix import RealRows
from ppl_models import Model
from ppl_models.core.priors import is_flat

#: EM steps of the first climb and after a jump; directions in which births are tried, and the EM steps of each.
FIRST_CLIMB, CLIMB, DIRECTIONS, BIRTH_STEPS = 30, 12, 3, 6
#: Gain per row below which a jump only moved along with EM, or exchanged two sources.
WORTH = 1e-3
#: log10 of the smallest scale that random starts begin under, in the data's root mean square.
_SMALLEST = -2.0


class CvqProposals(Proposals):
    """Starts of every CVQ engine."""

    random_rows = 600

    def propose(self, model: Model, rows: RealRows, generator: torch.Generator, attempt: int) -> Params:
        """A random start climbed by mean-field EM, its superfluous sources reseated.

        Every third start gives one source to the mean of the data: a baseline is hard to find by jumps.
        """
        start = self.engine.initial(model, rows, generator)
        if attempt % 3 == 1 and model.shapes["source_prior"][0] > 1:
            start = with_baseline(start, rows)
        found = Climber(model, rows).start(start)
        return upright(found) if all(is_flat(model.priors[site]) for site in ("source_prior", "weight")) else found

    def draw(self, model: Model, rows: RealRows, generator: torch.Generator) -> Params:
        """An M step from marginals drawn at random, between bits that are sure and bits of which nothing is known,
        under a scale that is drawn too: EM leaves the codes that a small one makes sure no more."""
        start, (num_bits,) = self.engine.initial(model, rows, generator), model.shapes["source_prior"]
        sure, small = torch.rand(2, generator=generator, dtype=torch.float64).tolist()
        uniform = torch.rand(len(rows), num_bits, generator=generator, dtype=torch.float64)
        mean = ((1 - sure) * uniform + sure * (uniform > 0.5)).to(rows.like)
        start = {**start, "scale": start["scale"] * 10 ** (_SMALLEST * small)}
        step = CvqMeanField(sweeps=0).e_step(model, start, rows, {"mean": mean})
        return CvqMeanField().m_step(model, start, step, rows)

    def search_size(self, model: Model, num_rows: int) -> tuple[int, int]:
        """Starts agree more often than not: three are tried, more only where no two of them agree."""
        return 6, max(2000, 60 * model.shapes["source_prior"][0])

    def same_solution(self, model: Model, first: Params, second: Params) -> bool:
        """Every source of one has its own counterpart in the other, with cosine of the weights above .9."""
        return bool((match_components(first["weight"], second["weight"]).similarity > 0.9).all())


def with_baseline(params: Params, rows: RealRows) -> Params:
    """The first source on in nearly every row with the features' means, the others relative to it."""
    mean = rows.x.sum(0) / rows.observed_count
    weight, prior = params["weight"] - 0.5 * mean, params["source_prior"].clone()
    weight[0], prior[0] = mean, 0.99
    centred = rows.square.sum() - (rows.observed_count * mean.square()).sum()
    least = 1e-6 * params["scale"].max()  # which is the entries' root mean square
    spread = (centred.clamp(min=0) / rows.observed_count.sum()).sqrt().clamp(min=least)
    return {**params, "weight": weight, "source_prior": prior, "scale": spread.expand_as(params["scale"]).clone()}


def upright(params: Params, *, always: float = 0.999) -> Params:
    """Rewrite the parameters, without changing the density, so that priors are at most a half, where one source is
    always on.

    With such a baseline b, a source and its opposite say the same: s_i w_i + b = (1 - s_i)(-w_i) + (b + w_i).
    """
    prior = params["source_prior"]
    base = int(prior.argmax())
    flipped = prior > 0.5
    flipped[base] = False
    if float(prior[base]) < always or not bool(flipped.any()):
        return params
    weight = torch.where(flipped[:, None], -params["weight"], params["weight"])
    weight[base] += params["weight"][flipped].sum(0)
    return {**params, "source_prior": torch.where(flipped, 1 - prior, prior), "weight": weight}


class Climber:
    """Mean-field EM with jumps, on some rows."""

    def __init__(self, model: Model, rows: RealRows):
        self.model, self.rows, self.engine = model, rows, CvqMeanField()

    def climb(self, params: Params, number: int, mean: Tensor | None = None) -> tuple[Params, EStep]:
        """``number`` EM iterations; with ``mean`` (N, K) they begin with an M step."""
        if mean is not None:
            given = CvqMeanField(sweeps=0).e_step(self.model, params, self.rows, {"mean": mean})
            params = self.engine.m_step(self.model, params, given, self.rows)
        step = self.engine.e_step(self.model, params, self.rows, None if mean is None else {"mean": mean})
        for _ in range(number):
            params = self.engine.m_step(self.model, params, step, self.rows)
            step = self.engine.e_step(self.model, params, self.rows, step.locals)
        return params, step

    def objective(self, params: Params, step: EStep) -> float:
        return float(step.bound.sum() + self.model.log_prior(params))

    def start(self, params: Params, *, failures: int = 3) -> Params:
        """EM from ``params``, then jumps until ``failures`` in a row did not pay, or 2 K were made."""
        params, step = self.climb(params, FIRST_CLIMB)
        best, refused = self.objective(params, step), 0
        for _ in range(2 * len(params["source_prior"])):
            loss, without = self.removal(params, step)
            source = int(loss.argsort()[refused])
            trial, moved = self.jump(params, without[source], source)
            gain = self.objective(trial, moved) - best
            if gain > WORTH * len(self.rows):
                params, step, best, refused = trial, moved, best + gain, 0
                continue
            refused += 1
            if refused >= min(failures, len(loss)):
                break
        return params

    def removal(self, params: Params, step: EStep) -> tuple[Tensor, list[Tensor]]:
        """What the bound loses when each source is held off and the others are inferred again, (K,), and their means.

        The others' priors are refitted, a gain of N KL(pi_new || pi) each: else a duplicate would seem to be worth
        log 2 a row.
        """
        losses, means = [], []
        for source in range(len(params["source_prior"])):
            pi = params["source_prior"].clone()
            pi[source] = FLOOR
            again = self.engine.e_step(self.model, {**params, "source_prior": pi}, self.rows, step.locals)
            new = again.locals["mean"].mean(0).clamp(FLOOR, 1 - FLOOR)
            divergence = new * (new / pi).log() + (1 - new) * ((1 - new) / (1 - pi)).log()
            divergence[source] = 0.0
            losses.append((step.bound - again.bound).sum() - len(self.rows) * divergence.sum())
            means.append(again.locals["mean"])
        return torch.stack(losses), means

    def jump(self, params: Params, mean: Tensor, source: int) -> tuple[Params, EStep]:
        """``source`` taken away, and the better of a birth and a split put in its place; then EM."""
        mean = mean.index_fill(1, torch.tensor([source], device=mean.device), 0.0)
        residual = self.rows.x - mean @ params["weight"]
        if self.rows.observed is not None:
            residual = residual * self.rows.observed
        scaled = residual / params["scale"]
        # Positions are marginals, not parameters: the M step that follows finds the parameters.
        places = [birth(scaled, self.rows.observed, mean, source)]
        if mean.shape[1] > 1:
            places.append(split(scaled, mean, source))
        trials = [self.climb(params, CLIMB, place) for place in places]
        return max(trials, key=lambda trial: self.objective(*trial))


def leading(scaled: Tensor, weight: Tensor, number: int, *, iterations: int = 12) -> Tensor:
    """Leading eigenvectors of sum_n q_nk r_n r_n' for every column k of ``weight`` (N, K): (K, D, number)."""
    size, num_features = weight.shape[1], scaled.shape[1]
    shape, generator = (size, num_features, min(number, num_features)), torch.Generator().manual_seed(0)
    vectors = torch.randn(shape, generator=generator, dtype=torch.float64).to(scaled)
    for _ in range(iterations):
        vectors = torch.linalg.qr(vectors).Q
        along = scaled @ vectors.permute(1, 0, 2).flatten(1)  # (N, K number)
        along = along.unflatten(1, (size, -1)) * weight[..., None]
        vectors = (scaled.T @ along.flatten(1)).unflatten(1, (size, -1)).permute(1, 0, 2)
    return torch.linalg.qr(vectors).Q


def birth(scaled: Tensor, observed: Tensor | None, mean: Tensor, source: int) -> Tensor:
    """The means (N, K) with the one binary source that explains the scaled residuals (N, D) best in place of one."""
    vectors = leading(scaled, scaled.new_ones(len(scaled), 1), DIRECTIONS)[0]
    along = torch.cat([scaled @ vectors, -(scaled @ vectors)], 1)  # (N, 2 directions)
    on = (along > along.std(0, correction=0)).to(scaled)
    field, prior = on, on.mean(0)
    for _ in range(BIRTH_STEPS):
        prior = on.mean(0).clamp(1e-3, 0.9)
        count = on.sum(0)[:, None] if observed is None else on.T @ observed
        weight = (on.T @ scaled) / count.clamp(min=1.0)
        square = weight.square()
        cost = square.sum(1) if observed is None else observed @ square.T
        field = scaled @ weight.T - 0.5 * cost + torch.logit(prior)
        on = torch.sigmoid(field)
    gain = (softplus(field) + torch.log1p(-prior)).sum(0)
    return mean.select_scatter(on[:, gain.argmax()], 1, source)


def split(scaled: Tensor, mean: Tensor, source: int) -> Tensor:
    """The means (N, K) with half of the rows of the most incoherent source given to ``source``."""
    vectors = leading(scaled, mean, 1)[..., 0]  # (K, D)
    along = scaled @ vectors.T
    score = (mean * (along.square() - 1)).sum(0)
    score[source] = -torch.inf
    chosen = int(score.argmax())
    half = mean[:, chosen] * (along[:, chosen] > 0)
    return mean.select_scatter(half, 1, source).select_scatter(mean[:, chosen] - half, 1, chosen)
