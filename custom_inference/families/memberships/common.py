"""What the variational engines of the mixed-membership block model share (Murphy 2012, eqs. 27.77-27.79; Airoldi et al.
2008).

q(pi_i) = Dirichlet(gamma_i) for every node, and for every observed dyad a joint table q(s_ij = a, r_ij = b) of the
blocks that its ends take: tighter than the product q(s_ij) q(r_ij) of Airoldi et al., and cheaper, because the best
table at given gamma needs not be stored (``dyads``). With L1_ab and L0_ab the (expected) log eta_ab and
log(1 - eta_ab), and e_i = exp(E[log pi_i]),

    log p(x | eta, rho) >= sum_{x_ij = 1} log [(1 - rho) e_i' exp(L1) e_j]
                           + sum_{x_ij = 0} log [rho + (1 - rho) e_i' exp(L0) e_j]
                           - sum_i KL(q(pi_i) || Dirichlet(alpha)).

The sums are the maximum over the tables at any gamma. A zero of the background (rho; eq. 27.79) is let off drawing
blocks, which changes nothing in p(x) and raises the bound: otherwise it would read rho sum_a e_ia sum_b e_jb, and these
sums are below 1 by Jensen's inequality. The best gamma at given tables is alpha_a plus the number of times that node i
takes block a in them, so that each round

    tables at gamma  ->  gamma_ia = alpha_a + sum over the ends of i of q(i takes a)

cannot lower the bound (the nested variational inference of Airoldi et al., without an inner loop: their tables and ours
are at their optimum at once). Hidden dyads appear nowhere. A self loop draws two blocks from the same pi_i: j = i
above.

Zeros: by dense products, N^2 K operations a round; or all zeros of node i share ONE distribution phi_i of the block it
takes in them (a restriction of q, hence still a lower bound; ``shared``), which costs E K + N K^2.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from custom_inference.core.engine import Engine, Params
from custom_inference.core.posteriors import BetaPosterior, ContinuousPosterior, SymmetricBetaPosterior
from custom_inference.core.posteriors.continuous import mirror
from custom_inference.core.process_group import Pool
from custom_inference.core.states import State
from custom_inference.families.conjugate.beta import FLOOR, Beta
from custom_inference.families.conjugate.dirichlet import Dirichlet
from custom_inference.families.memberships.dyads import Dyads, pair_sums, zero_sums
from custom_inference.families.memberships.initialisation import pair_totals, random_membership
from custom_inference.families.rows.graph import GraphRows
from ppl_models import MMSB, Data, MethodError
from ppl_models.core.errors import unknown_name

#: Operations of a round's dense products up to which every zero has a table of its own.
DENSE_UP_TO = 2**32
ZEROS = ("each", "shared")


@dataclass(frozen=True)
class MembershipPosteriors(State):
    """concentration: gamma (N, K); links l and gaps m (K, K); where rho is learned, background (2,)."""

    concentration: Tensor
    links: Tensor
    gaps: Tensor
    background: Tensor | None = None

    def posteriors(self, model: MMSB) -> Mapping[str, ContinuousPosterior]:
        kind = BetaPosterior if model.directed else SymmetricBetaPosterior
        found: dict[str, ContinuousPosterior] = {"edge_probability": kind(self.links, self.gaps)}
        return found if self.background is None else {**found, "sparsity": BetaPosterior(*self.background)}


@dataclass(frozen=True)
class ExpectedCounts(State):
    """Expected counts: members n (N, K), links l and gaps m (K, K), background (2,)."""

    members: Tensor
    links: Tensor
    gaps: Tensor
    background: Tensor

    def add_to_priors(self, model: MMSB) -> MembershipPosteriors:
        """Return the posteriors at these counts."""
        like, background = self.links, None
        if model.sparsity is None:
            background = torch.stack([*beta_prior(model, "sparsity", like)]) + self.background
        concentration = membership_prior(model, like) + self.members
        edge = beta_prior(model, "edge_probability", like)
        return MembershipPosteriors(concentration, edge.on + self.links, edge.off + self.gaps, background)

    def posteriors(self, model: MMSB) -> Mapping[str, ContinuousPosterior]:
        return self.add_to_priors(model).posteriors(model)


class MembershipFactors(NamedTuple):
    """Expected logarithms: share E[log pi] (N, K), link E[log eta] and gap E[log(1 - eta)] (K, K), and of rho and 1 -
    rho (scalars)."""

    share: Tensor
    link: Tensor
    gap: Tensor
    background: Tensor
    foreground: Tensor


class Collected(NamedTuple):
    """What the tables add up to. members (N, K): how often every node takes every block; links, gaps (K, K): dyads of
    each value by their blocks, symmetric if undirected; background, foreground: zeros that are and dyads that are not
    of the background; total: the bound's part beside divergences. role (N, K): phi, where zeros share it."""

    members: Tensor
    links: Tensor
    gaps: Tensor
    background: Tensor
    foreground: Tensor
    total: Tensor
    role: Tensor | None = None

    def counts(self) -> ExpectedCounts:
        split = torch.stack([self.background, self.foreground]).to(self.members)
        return ExpectedCounts(self.members, self.links, self.gaps, split)

    def roles(self) -> Params:
        """Return the locals that the next tables go on from."""
        return {} if self.role is None else {"role": self.role}


@dataclass(frozen=True, kw_only=True)
class MmsbEngine(Engine):
    """zeros: "each" has its own table, or they are "shared" by node; None: by size.

    Several processes divide the edges and the blocks of zeros.
    """

    shares_work = True

    zeros: str | None = None

    def __post_init__(self) -> None:
        if self.zeros not in (None, *ZEROS):
            raise MethodError(unknown_name("treatment of zeros", str(self.zeros), ZEROS))

    @property
    def saved_settings(self) -> dict[str, Any]:
        return {} if self.zeros is None else {"zeros": self.zeros}

    def divide_rows(self, rows: Dyads, processes: Pool) -> Dyads:
        return replace(rows, processes=processes)

    def rows(self, model: MMSB, data: Data) -> Dyads:
        """Read the graph; onto the CPU, wherever it is, where zeros share their blocks: the sweep goes node by node."""
        here = data.to(device="cpu") if self.shares_zeros(model, data) else data
        return Dyads.of(GraphRows.of(model, here))

    def check(self, model: MMSB, rows: Dyads) -> None:
        """Raises MethodError for priors without closed-form updates."""
        beta_prior(model, "edge_probability", rows.like)
        if model.sparsity is None:
            beta_prior(model, "sparsity", rows.like)
        membership_prior(model, rows.like)
        if self.shares_zeros(model, rows) and rows.processes.size > 1:
            raise MethodError('zeros="shared" is swept node by node, in one process; use zeros="each" for several')

    def shares_zeros(self, model: MMSB, rows: Dyads | Data) -> bool:
        dense = 3.0 * len(rows) ** 2 * model.num_blocks
        return self.zeros == "shared" if self.zeros is not None else dense > DENSE_UP_TO

    @abc.abstractmethod
    def from_membership(self, model: MMSB, rows: Dyads, membership: Tensor) -> Any:
        """Return the state at which nodes divide their dyads as ``membership`` (N, K) says, the two ends
        independently."""

    def initial(self, model: MMSB, rows: Dyads, generator: torch.Generator) -> Any:
        return self.from_membership(model, rows, random_membership(rows, model.num_blocks, generator))

    def counts_of(self, rows: Dyads, membership: Tensor) -> ExpectedCounts:
        """Compute the counts there, without any of the background or foreground."""
        links, gaps = pair_totals(rows, membership)
        return ExpectedCounts(rows.ends[:, None] * membership, links, gaps, rows.like.new_zeros(2))

    def table_bound(self, model: MMSB, gamma: Tensor, found: Collected) -> Tensor:
        """Compute the bound on log p(x | eta, rho), ()."""
        return found.total - Dirichlet(gamma).kl(membership_prior(model, gamma)).sum(dtype=torch.float64)

    def collect(
        self, model: MMSB, rows: Dyads, factors: MembershipFactors, role: Tensor | None = None, temperature: float = 1.0
    ) -> Collected:
        """Sum over all tables at their optimum; where zeros share, after one sweep of ``role``."""
        log_link, log_gap = temperature * factors.link, temperature * factors.gap
        share, link, gap = (exp_with_floor(one) for one in (factors.share, log_link, log_gap))
        near, far = factors.foreground.exp(), factors.background.exp()
        source, target = (rows.processes.shard(end) for end in (rows.source, rows.target))
        edges = pair_sums(source, target, share, link)
        count = torch.tensor(float(rows.num_edges), dtype=torch.float64, device=share.device)
        near_edges = count * factors.foreground.double() if rows.num_edges else 0.0
        members, links = edges.members(share, link), edges.cells(share, link, directed=rows.directed)
        if self.shares_zeros(model, rows):
            from custom_inference.families.memberships.shared import update_shared_zeros

            log_rho = factors.background, factors.foreground
            zeros = update_shared_zeros(rows, factors.share, log_gap, share, gap, log_rho, role)
            members, total = members + zeros.members, edges.log_total + near_edges + zeros.total
            return Collected(members, links, zeros.gaps, zeros.background, count + zeros.foreground, total, zeros.role)
        zeros, table = zero_sums(rows, share, near * gap, far), near * gap
        members, gaps = members + zeros.members(share, table), zeros.cells(share, table, directed=rows.directed)
        total = edges.log_total + zeros.log_total
        members, links, gaps, weight, total = rows.processes.total(members, links, gaps, zeros.weight, total)
        far_away = far.double() * weight
        return Collected(members, links, gaps, far_away, count + rows.num_zeros - far_away, near_edges + total)

    def log_rho(self, model: MMSB, params: Params, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return log rho and log(1 - rho) at a point: the site's, or the model's setting."""
        rho = params["sparsity"] if model.sparsity is None else like.new_tensor(float(model.sparsity))
        return torch.log(rho), torch.log1p(-rho)


def membership_prior(model: MMSB, like: Tensor) -> Tensor:
    """Return alpha (K,). Raises MethodError where the prior of the memberships is not a Dirichlet."""
    return Dirichlet.of(model, "membership", like).concentration.expand(model.num_blocks)


def beta_prior(model: MMSB, site: str, like: Tensor) -> Beta:
    """Return a Beta prior, in the site's shape; of a symmetric site the entries a <= b, mirrored.

    Raises :class:`PriorError` for any other prior.
    """
    found = Beta.of(model, site, like.new_zeros(())).expand(model.shapes[site])
    return found.map(mirror) if found.on.ndim == 2 and not model.directed else found


def modes(model: MMSB, like: Tensor, links: Tensor, gaps: Tensor, background: Tensor) -> Params:
    """Return eta and rho by maximum a posteriori at expected counts, see :class:`ExpectedCounts`."""
    found = {"edge_probability": beta_prior(model, "edge_probability", like).mode(links, links + gaps, floor=FLOOR)}
    if model.sparsity is None:
        found["sparsity"] = beta_prior(model, "sparsity", like).mode(background[0], background.sum(), floor=FLOOR)
    return found


def exp_with_floor(log_value: Tensor) -> Tensor:
    """Compute exp, with a floor whose products of three are still normal numbers: no Z is 0."""
    return log_value.clamp(min=0.3 * math.log(torch.finfo(log_value.dtype).tiny)).exp()
