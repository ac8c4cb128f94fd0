"""The evidence of block models of more nodes than can be enumerated: tempered sampling of labelings.

With proportions and block matrix integrated out only the labeling z of the nodes is left, and Gibbs sampling at
temperature t draws each node's block from

    P(z_i = k | z_-i) prop. to (alpha_k + n_k) p(x | z with z_i = k)^t

The product of p(x | z)^(t' - t) along 0 = t_0 < ... < t_T = 1, from a labeling that the prior draws, is an unbiased
estimate of p(x) (Neal, *Annealed importance sampling*, Statistics and Computing 11, 2001); all K! labelings of the
blocks are equally likely at the start. Where blocks emerge some labelings are left behind: the members of a run are
resampled by their weights when these are worth less than half of them, after which the product of the mean weights is
unbiased (Del Moral, Doucet & Jasra, J. Royal Statistical Society B 68, 2006). Runs are independent; all go through the
nodes together.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from custom_inference.checks.evidence.result import Array
from custom_inference.core.progress import Progress
from custom_inference.families.blocks.likelihoods import likelihood_of
from custom_inference.families.blocks.rows import SbmRows
from custom_inference.families.conjugate.dirichlet import Dirichlet
from custom_inference.graphs.blocks import edges_follow_blocks
from ppl_models import Data, MethodError, Model
from ppl_models.block_models import BlockModel

#: Independent runs and their members; temperatures at most and at least, which stand at (t / T)^3.
RUNS, MEMBERS, MOST, FEWEST = 8, 32, 1000, 30
CHAINS = RUNS * MEMBERS
_POWER = 3
#: Temperatures that are tried to learn what one of them costs.
_TRIED = 5


def has_labelings(model: Model) -> bool:
    """Whether the estimate is defined: SBM and PoissonSBM, of which two nodes make a dyad."""
    return model.is_graph and edges_follow_blocks(model) and not getattr(model, "self_loops", False)


def estimate_by_annealing(
    model: BlockModel, data: Data, *, seed: int, deadline: float, progress: bool
) -> tuple[Array, int]:
    """Return the logarithms of independent unbiased estimates of p(x), (R,), and the number of temperatures; no
    estimates where the seconds do not suffice for as many of these as it takes.

    Raises PriorError for priors that are not conjugate.
    """
    graph = _Labelings(model, data, torch.Generator().manual_seed(seed))
    begin = time.perf_counter()
    graph.anneal(_TRIED, lambda: None)
    once = (time.perf_counter() - begin) / _TRIED
    number = int(min(MOST, 0.9 * (deadline - time.perf_counter()) / once))
    if number < FEWEST:
        return graph.likelihood.new_empty(0).numpy(), number
    with Progress(number, "evidence: annealing", enabled=progress) as bar:
        return graph.anneal(number, bar.advance).numpy(), number


class _Labelings:
    """A graph and the labelings (C, N) of its nodes in all chains, with what they sum to."""

    def __init__(self, model: BlockModel, data: Data, generator: torch.Generator):
        rows = SbmRows.of(model, data)
        self.matrix, self.generator, self.directed = likelihood_of(model), generator, model.directed
        self.blocks, self.prior = model.num_blocks, self.matrix.prior()
        x, seen = (torch.as_tensor(part, dtype=torch.float64) for part in rows.dense)
        self.x, self.seen = (part if self.directed else part + part.T for part in (x, seen))
        self.concentration = Dirichlet.of(model, "block_proportion", x).concentration.expand(self.blocks)
        self.constant = rows.log_factorials if self.matrix.kind == "poisson" else 0.0
        self.likelihood = x.new_zeros(CHAINS)

    def anneal(self, number: int, tell: Callable[[], None]) -> Tensor:
        """Bring all members through so many temperatures; return the log estimates of the runs (R,)."""
        proportion = torch._sample_dirichlet(self.concentration.expand(CHAINS, -1), generator=self.generator)
        labels = torch.multinomial(proportion, len(self.x), replacement=True, generator=self.generator)
        code = one_hot(labels, self.blocks).to(self.x)
        sums = tuple(code.mT @ (part @ code) for part in (self.x, self.seen))
        likelihood, weight, before = self._score(*sums), self.x.new_zeros(RUNS, MEMBERS), 0.0
        total = self.x.new_zeros(RUNS)
        for step in range(1, number + 1):
            temperature = (step / number) ** _POWER
            weight = weight + (temperature - before) * likelihood.reshape(RUNS, MEMBERS)
            before = temperature
            if step < number:
                index, poor = self._resample(weight)
                total = total + torch.where(poor, weight.logsumexp(1) - math.log(MEMBERS), 0.0)
                weight = torch.where(poor.unsqueeze(1), 0.0, weight)
                code, sums = code[index], tuple(part[index] for part in sums)
                likelihood = self._sweep(code, sums, temperature)
            tell()
        return total + weight.logsumexp(1) - math.log(MEMBERS) - self.constant

    def _resample(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Choose members by their log weights (R, M), systematically, in runs whose weights are worth too few; return
        all (R M,), and which runs those are (R,)."""
        share = torch.softmax(weight, 1)
        poor = 1 / share.square().sum(1) < MEMBERS / 2
        edges = share.cumsum(1)
        offset = torch.rand(RUNS, 1, generator=self.generator, dtype=edges.dtype)
        points = (torch.arange(MEMBERS, dtype=edges.dtype) + offset) / MEMBERS * edges[:, -1:]
        drawn = torch.searchsorted(edges, points).clamp(max=MEMBERS - 1)
        index = torch.where(poor.unsqueeze(1), drawn, torch.arange(MEMBERS))
        return (index + MEMBERS * torch.arange(RUNS).unsqueeze(1)).flatten(), poor

    def _sweep(self, code: Tensor, sums: tuple[Tensor, ...], temperature: float) -> Tensor:
        """Draw a block for every node, in place; return log p(x | z) (C,), but for its constant."""
        eye, likelihood = torch.eye(self.blocks, dtype=code.dtype), self.likelihood
        size = code.sum(1)
        for i in range(code.shape[1]):
            own = code[:, i].clone()
            size -= own
            candidates, parts = [], []
            for table, total in zip((self.x, self.seen), sums, strict=True):
                out, into = table[i] @ code, table[:, i] @ code
                total -= own.unsqueeze(2) * out.unsqueeze(1) + into.unsqueeze(2) * own.unsqueeze(1)
                added = eye[:, :, None] * out[:, None, None] + into[:, None, :, None] * eye[:, None, :]
                candidates.append(total.unsqueeze(1) + added)
                parts.append(added)
            score = self._score(*candidates)
            chance = torch.softmax((self.concentration + size).log() + temperature * score, -1)
            chosen = torch.multinomial(chance, 1, generator=self.generator)
            code[:, i] = one_hot(chosen[:, 0], self.blocks).to(code)
            size += code[:, i]
            for total, added in zip(sums, parts, strict=True):
                total += added[torch.arange(CHAINS), chosen[:, 0]]
            likelihood = score.gather(1, chosen)[:, 0]
        return likelihood

    def _score(self, edges: Tensor, dyads: Tensor) -> Tensor:
        """Sum the log marginal likelihoods of pairs of blocks, (...), from what is between them, (..., K, K)."""
        if not self.directed:  # dyads within a block were counted from both ends
            within = 1 - 0.5 * torch.eye(self.blocks, dtype=edges.dtype)
            edges, dyads = edges * within, dyads * within
        each = self.prior.log_marginal(edges, dyads)
        return (each if self.directed else each.triu()).sum((-2, -1))


def require_labelings(model: Model) -> None:
    """Refuse models without labelings. Raises MethodError."""
    if not has_labelings(model):
        raise MethodError(
            f"tempered sampling of labelings is for SBM and PoissonSBM without self loops, not {type(model).__name__}; "
            f"{expect_other(model)}"
        )


def expect_other(model: Model) -> str:
    """Say which estimates serve a model, in errors of those that do not."""
    if model.rows_are_independent:
        return "expected method='smc'"
    if has_labelings(model):
        return "expected method='labelings', or 'exact' of few nodes"
    return "no method serves it: of graphs SBM and PoissonSBM without self loops alone have an evidence ('labelings')"
