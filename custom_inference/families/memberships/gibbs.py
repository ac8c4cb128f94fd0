"""Collapsed Gibbs sampling of mixed-membership block models: the blocks that nodes take for every dyad.

Memberships, block matrix and sparsity are integrated out. With c_ik how often node i takes block k, m_ab and e_ab the
dyads with and without an edge whose nodes take blocks a and b, and z the background dyads (notation of ``ppl_models``'
``mmsb``; eta ~ Beta(g, h), rho ~ Beta(c, d)):

    p(x, s, r, z) = prod_i E[prod_k pi_ik^{c_ik}] prod_ab B(g_ab + m_ab, h_ab + e_ab) / B(g_ab, h_ab) p(z)

over a <= b in undirected graphs; p(z) = rho^|z| (1 - rho)^(E - |z|), or B(c + |z|, d + E - |z|) / B(c, d). A background
dyad takes no blocks: whether it does makes no difference to p(x), eta and pi. Where the prior of eta or rho is no Beta,
that is a value of the chain's state (``common.explicit``), drawn given m and e, or |z|.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import betaln, xlog1py, xlogy
from torch import Tensor

from custom_inference.core.local_inference import Local, LocalSolver
from custom_inference.core.posteriors import JointDirichletMixture
from custom_inference.core.posteriors.continuous import mirror
from custom_inference.families.common.explicit import Explicit, notes, with_references
from custom_inference.families.common.hyper import with_hyper_parameters
from custom_inference.families.conjugate.beta import Beta
from custom_inference.families.conjugate.dirichlet import Dirichlet, log_marginal_of_table
from custom_inference.families.conjugate.learn import update_concentration
from custom_inference.families.memberships.common import membership_prior
from custom_inference.families.memberships.gibbs_state import arrays_of, empty_state, rates
from custom_inference.families.memberships.variational import MmsbDirichlet
from custom_inference.families.rows.graph import GraphRows
from custom_inference.gibbs.protocol import Chain, Params, Sampler, draw_locals, no_bound
from ppl_models import MMSB, Data, Model

#: Up to so many blocks every dyad is drawn from the table of all pairs.
EXACT_UP_TO = 6
#: Visits to dyads that a sweep makes at least.
VISITS = 2**12
#: The share of its block in a node's first membership.
_LOYAL = 0.8
#: Sweeps, and draws, at given globals.
_LOCAL_WARMUP, _LOCAL_DRAWS, _LOCAL_THIN = 50, 200, 2


class MmsbChain(Chain):
    """The blocks of all observed dyads.

    start: values of the globals, and of the memberships, that the first blocks are drawn at; without memberships, or
    without any, the first sweep draws each dyad's given those before it.
    exact: whether all dyads are drawn from the table of their full conditional; by default where K is small.
    passes: how often a sweep visits every dyad; by default so often that it makes ``VISITS`` visits: small graphs need
        many (R's lda: 5000 for Sampson's monks), which take no time.
    explicit: globals that are values of the state; ``model`` has Beta priors in their place.
    """

    def __init__(
        self,
        model: MMSB,
        rows: GraphRows,
        seed: int,
        start: Params | None = None,
        *,
        exact: bool | None = None,
        passes: int | None = None,
        explicit: Mapping[str, Explicit] | None = None,
    ):
        self.model, self.rows, self.explicit, self._begun = model, rows, explicit or {}, False
        self.exact = model.num_blocks <= EXACT_UP_TO if exact is None else exact
        dyads = model.num_dyads(len(rows))
        self.passes = max(1, -(-VISITS // max(dyads, 1))) if passes is None else passes
        self.fixed = arrays_of(model, rows)
        self.state = empty_state(self.fixed, rows, seed)
        self._generator = np.random.default_rng(seed % 2**64)
        if start is not None and "membership" in start:
            self._seat(start)
            self._draw_explicit()

    def _seat(self, start: Params) -> None:
        from custom_inference.families.memberships import gibbs_kernels as kernels

        membership = _numpy(start["membership"]).clip(0)
        rho = float(start["sparsity"]) if "sparsity" in start else float(self.model.sparsity or 0.0)
        membership = np.ascontiguousarray(membership / membership.sum(1, keepdims=True))
        kernels.seat(self.fixed, self.state, membership, rates(_numpy(start["edge_probability"])), min(rho, 1 - 1e-9))

    def sweep(self) -> None:
        """Draw new blocks for every dyad, ``passes`` times, then new values of what is explicit; other threads may run
        meanwhile."""
        from custom_inference.families.memberships import gibbs_kernels as kernels

        kernels.sweep(self.fixed, self.state, self.exact, self.passes)
        self._draw_explicit()

    def give(self, probability: NDArray[np.float64] | None, sparsity: float | None) -> None:
        """Hold eta (K, K), or rho, or both, at these values from now on."""
        if probability is not None:
            self.fixed = self.fixed._replace(prior=rates(probability), learns_rate=False)
            self.state.rate[:], self.state.cells[:] = self.fixed.prior, 0
        if sparsity is not None:
            self.fixed = self.fixed._replace(sparsity=np.array([1 - sparsity, sparsity]), learns_background=False)

    def _draw_explicit(self) -> None:
        for site, statistics in self._explicit_statistics().items():
            one = self.explicit[site]
            if not self._begun:
                one.begin(statistics, self._generator)
            one.update(statistics, self._generator)
            self.give(*((None, float(one.value)) if site == "sparsity" else (one.value.numpy(), None)))
        self._begun = True

    def _explicit_statistics(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Return the dyads of each value by their blocks, and background and other ones, for what is explicit."""
        from custom_inference.families.memberships import gibbs_kernels as kernels

        found: dict[str, Any] = {}
        if "edge_probability" in self.explicit:  # sweeps at held rates keep no counts
            found["edge_probability"] = kernels.count(self.fixed, self.state, np.empty_like(self.state.cells))
        if "sparsity" in self.explicit:
            found["sparsity"] = self.state.kind
        tensors = {site: torch.as_tensor(value, dtype=torch.float64) for site, value in found.items()}
        return {site: (value[1], value[0]) for site, value in tensors.items()}

    def list_sampled(self) -> dict[str, str]:
        return notes(self.explicit)

    def _values(self) -> Params:
        return {site: one.value for site, one in self.explicit.items()}

    def log_joint(self) -> float:
        explicit = {site: self.explicit[site].log_joint(one) for site, one in self._explicit_statistics().items()}
        prior, cells, kind = self.fixed.prior, self.state.cells, self.state.kind
        pairs, background = explicit.get("edge_probability"), explicit.get("sparsity")
        if pairs is None:
            each = _beta(prior).log_marginal(torch.as_tensor(cells[1]), torch.as_tensor(cells.sum(0)))
            pairs = float((each if self.fixed.directed else each.triu()).sum())
        if background is None:
            background = self._log_background(kind[1], kind[0])
        return float(log_marginal_of_table(self.state.member, self.fixed.alpha) + pairs + background)

    def _log_background(self, some: int, rest: int) -> float:
        d, c = self.fixed.sparsity
        if self.fixed.learns_background:
            return float(betaln(c + some, d + rest) - betaln(c, d))
        return float(xlogy(some, c) + xlog1py(rest, -c))

    def _concentrations(self) -> tuple[Any, Any, Any]:
        """Return the concentrations of pi (N, K), of 1 - eta and eta (2, K, K), and of 1 - rho and rho (2,)."""
        state, fixed = self.state, self.fixed
        return state.member + fixed.alpha, state.cells + fixed.prior, state.kind + fixed.sparsity

    def _globals(self, eta: Any, rho: Any, membership: Any) -> Params:
        found = {"edge_probability": eta, "membership": membership}
        found |= {"sparsity": rho} if self.fixed.learns_background else {}
        return {site: torch.as_tensor(value) for site, value in found.items()} | self._values()

    def means(self) -> Params:
        """Return E[eta | s, r, x] = (g + m) / (g + h + m + e), E[pi_i | s, r] = (c_i + alpha) / sum, and E[rho | z]."""
        member, cells, kind = self._concentrations()
        return self._globals(cells[1] / cells.sum(0), kind[1] / kind.sum(), member / member.sum(1, keepdims=True))

    def draw(self) -> Params:
        """Draw the globals from Beta(g + m, h + e), Dirichlet(alpha + c_i) and Beta(c + |z|, d + E - |z|)."""
        member, cells, kind = self._concentrations()
        eta = _beta(cells).draw(self._generator)
        membership = Dirichlet(torch.as_tensor(member)).draw(self._generator)
        rho = _beta(kind).draw(self._generator) if self.fixed.learns_background else None
        return self._globals(eta if self.fixed.directed else mirror(eta), rho, membership)

    def locals(self) -> Tensor:
        """Return alpha + c_i, (N, K)."""
        return torch.as_tensor(self.state.member + self.fixed.alpha)

    def profile(self) -> Tensor:
        """Return the columns of the memberships, (K, N): where edges are few, those of eta tell blocks apart less
        well."""
        return self.means()["membership"].T

    def indicators(self) -> Tensor:
        """Return s and r of all dyads, in the model's order, (2, E); -1 where hidden, or background."""
        i, j = (part.numpy() for part in self.model.dyads(torch.arange(self.model.num_dyads())))
        both = np.stack([self.state.sender[i, j], self.state.receiver[j, i]]).astype(np.int64)
        return torch.as_tensor(np.where(both < self.model.num_blocks, both, -1))

    def learn(self, *, latents: bool = True, components: bool = True) -> None:
        """Take a step of Minka's fixed point for the concentration of the memberships."""
        if not latents:
            return
        alpha = update_concentration(self.state.member, self.fixed.alpha)
        self.fixed = self.fixed._replace(alpha=alpha, mass=float(alpha.sum()))

    def with_fitted_priors(self, model: MMSB) -> Model:
        return model.with_concentration(torch.as_tensor(self.fixed.alpha))


def _beta(counts: Any) -> Beta:
    """Return the Betas of concentrations or counts (2, ...) of failures and successes."""
    return Beta(torch.as_tensor(counts[1]), torch.as_tensor(counts[0]))


class MmsbSampler(Sampler):
    """Chains of :class:`MmsbChain`."""

    learns: ClassVar[bool] = True

    def check(self, model: MMSB, data: Data) -> None:
        membership_prior(model, data.x)
        with_references(model)

    def chain(self, model: MMSB, data: Data, seed: int, start: Params | None) -> Chain:
        conjugate, explicit = with_references(model)
        if start is not None and "membership" not in start:  # globals alone seat nobody
            at = {site: value.to(data.x) for site, value in start.items()}
            found = LocalSolver(engine=MmsbDirichlet()).solve(conjugate, at, data, seed=seed % 2**63)
            start = {**start, "membership": found.posterior.mean}
        chain = MmsbChain(conjugate, GraphRows.of(model, data), seed, start, explicit=explicit)
        return with_hyper_parameters(model, chain, explicit, seed, start)

    def propose(self, model: MMSB, data: Data, seed: int) -> Params:
        """Propose memberships mostly of the blocks of a partition of high integrated likelihood: every seed has its
        own."""
        from custom_inference.families.blocks.partitions import propose_partition

        rows = GraphRows.of(model, data)
        return start_at(model, rows, propose_partition(rows, model.num_blocks, "bernoulli", seed, 0))

    def local_of_draws(self, model: MMSB, data: Data, locals_: Tensor) -> Local:
        """Mix what the draws say of all memberships together, with equal weights."""
        like = data.stored
        return Local(JointDirichletMixture.of_draws(locals_.to(like)), no_bound(1, like))

    def local_posterior(self, model: MMSB, params: Params, data: Data, *, seed: int = 0) -> Local:
        """Sample the dyads' blocks by Gibbs steps at given globals, the memberships integrated out (no bound)."""
        chain = MmsbChain(with_references(model)[0], GraphRows.of(model, data), seed)
        rho = float(params["sparsity"]) if model.sparsity is None else None
        chain.give(_numpy(params["edge_probability"]), rho)
        return self.local_of_draws(model, data, draw_locals(chain, _LOCAL_WARMUP, _LOCAL_DRAWS, _LOCAL_THIN))


def start_at(model: MMSB, rows: GraphRows, label: NDArray[np.int64]) -> Params:
    """Return memberships mostly of the blocks of a partition, and what its edges and dyads say of eta, off 0 and 1."""
    size = model.num_blocks
    own = np.eye(size)[label]
    seen = own.sum(0)[:, None] * own.sum(0) - own.T @ (rows.hidden_out.matrix @ own)
    seen = seen if model.self_loops else seen - np.diag(own.sum(0))
    eta = (own.T @ (rows.outgoing.matrix @ own) + 0.5) / (seen + 1.0)
    return {"edge_probability": torch.as_tensor(eta), "membership": torch.as_tensor(_LOYAL * own + (1 - _LOYAL) / size)}


def _numpy(value: Tensor) -> NDArray[np.float64]:
    return value.detach().cpu().double().numpy()
