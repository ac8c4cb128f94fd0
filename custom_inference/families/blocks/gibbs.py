"""Collapsed Gibbs sampling of stochastic block models: the block of every node, block proportions and block matrix
integrated out."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import gammaln
from torch import Tensor

from custom_inference.core.local_inference import Local
from custom_inference.core.posteriors import LabellingPosterior
from custom_inference.families.blocks.gibbs_globals import (
    begin,
    log_constant,
    log_joint_given,
    mirrored,
    pair_priors,
    propensity_priors,
    rename_given,
    sweep_given,
)
from custom_inference.families.blocks.state import BERNOULLI
from custom_inference.families.common.dirichlet import dirichlet_prior
from custom_inference.families.common.graph_rows import GraphRows
from custom_inference.gibbs.protocol import Chain, Params, Sampler, no_bound
from ppl_models import SBM, Data, DegreeCorrectedSBM, MethodError, Model, PoissonSBM
from ppl_models.distributions import Flat
from ppl_models.sbm import BlockModel

Array = NDArray[np.float64]

#: Merge-split moves of a sweep: one, and one more for so many blocks; scans of each division's launch.
_BLOCKS_A_MOVE, _SCANS = 4, 3
#: Engine of a block's scale, in standard deviations of the prior.
_SCALE_STEP = 3.0
#: At given globals: starts, of which the best goes on, and its draws.
_STARTS, _DRAWS = 8, 200
#: Of profiles, so that the rows of blocks without nodes agree with each other.
_PRESENCE = 1e-3
#: Attempts of the search for a start on graphs of at most so many node updates a sweep; one on larger ones.
_ATTEMPTS, _SMALL = 3, 2**17
#: What partitions are searched by; the first that a model is an instance of.
_LIKELIHOOD = {SBM: "bernoulli", DegreeCorrectedSBM: "degree_corrected", PoissonSBM: "poisson"}


class BlockChain(Chain):
    """The blocks of all nodes under a Bernoulli or Poisson block model.

    start: ``block`` (N,) to begin with, or values of the globals that the first blocks are drawn at; without them the
        first sweep draws each node's given those before it.
    """

    def __init__(self, model: BlockModel, rows: GraphRows, seed: int, start: Params | None = None):
        self.model, self.rows = model, rows
        self.graph, self.state = begin(model, rows, seed, start)
        self._generator = np.random.default_rng(seed % 2**64)
        self._constant = log_constant(self.graph, rows)

    def sweep(self) -> None:
        """A new block for every node, then moves of many nodes at once; other threads may run meanwhile."""
        from custom_inference.families.blocks import gibbs_kernels as kernels
        from custom_inference.families.blocks import gibbs_moves as moves

        kernels.sweep(self.graph, self.state, 1.0)
        moves.merge_split(self.graph, self.state, 1 + self.graph.num_blocks // _BLOCKS_A_MOVE, _SCANS)

    def log_joint(self) -> float:
        """log p(x, z), see ``_sbm_state``."""
        from custom_inference.families.blocks import gibbs_kernels as kernels

        return self._constant + float(kernels.total(self.graph, self.state))

    def _posterior(self) -> tuple[Array, Array, Array]:
        """alpha + n (K,), and of every pair of blocks the Beta's (a + m, b + t - m), or the Gamma's (a + m, b + t)."""
        graph, state = self.graph, self.state
        edges, exposure = state.edges, state.exposure
        left = exposure - edges if graph.kind == BERNOULLI else exposure
        return graph.alpha + state.size, graph.first + edges, graph.second + left

    def means(self) -> Params:
        """E[pi | z], E[eta | z, x]."""
        share, first, second = self._posterior()
        mean = first / (first + second) if self.graph.kind == BERNOULLI else first / second
        return {"block_proportion": torch.as_tensor(share / share.sum()), self.model.component_site: _tensor(mean)}

    def draw(self) -> Params:
        """From p(pi | z) and p(eta | z, x), with the blocks (N,) themselves."""
        share = self._generator.standard_gamma(self._posterior()[0]).clip(np.finfo(np.float64).tiny)
        matrix = self._draw_matrix()
        return {
            "block_proportion": torch.as_tensor(share / share.sum()),
            self.model.component_site: _tensor(matrix),
            "block": self.indicators(),
        }

    def _draw_matrix(self) -> Array:
        _, first, second = self._posterior()
        if self.graph.kind == BERNOULLI:
            edge = np.finfo(np.float64).eps
            drawn = self._generator.beta(first, second).clip(edge, 1 - edge)
        else:
            drawn = (self._generator.standard_gamma(first) / second).clip(np.finfo(np.float64).tiny)
        return drawn if self.graph.directed else mirrored(drawn)

    def profile(self) -> Tensor:
        """The nodes of every block (K, N): two labellings are matched by the nodes that they share."""
        return torch.nn.functional.one_hot(self.indicators(), self.graph.num_blocks).T.double() + _PRESENCE

    def indicators(self) -> Tensor:
        """The block of every node, (N,)."""
        return torch.as_tensor(self.state.label.copy())

    def locals(self) -> Tensor:
        """The same: they depend on each other, so the draws themselves are kept."""
        return self.indicators()


class PropensityChain(BlockChain):
    """The blocks of all nodes, and their propensities: under degree correction these are drawn, not integrated out."""

    def __init__(self, model: BlockModel, rows: GraphRows, seed: int, start: Params | None = None):
        super().__init__(model, rows, seed, start)
        assert isinstance(model, DegreeCorrectedSBM)
        self._sites = model.propensity_sites
        self._shape, self._rate = propensity_priors(model, len(rows))
        self._degree = np.stack([self.graph.out_degree, self.graph.in_degree])

    def sweep(self) -> None:
        """Blocks at the present propensities, then propensities (``_sbm_conditionals``)."""
        from custom_inference.families.blocks import gibbs_conditionals as conditionals
        from custom_inference.families.blocks import gibbs_kernels as kernels

        super().sweep()
        rate, drawn = self._draw_matrix(), self._generator.standard_gamma(self._shape + self._degree)
        drawn, uniform = drawn.clip(np.finfo(np.float64).tiny), self._generator.random(len(self.rows))
        conditionals.draw_propensities(self.graph, self.state, rate, drawn, self._rate, uniform)
        kernels.fill(self.graph, self.state)
        conditionals.scale_propensities(self.graph, self.state, self._shape, self._rate, _SCALE_STEP)
        kernels.fill(self.graph, self.state)

    def log_joint(self) -> float:
        """log p(x, z, theta)."""
        sides = slice(None) if self.graph.directed else slice(1)
        shape, rate, degree = self._shape[sides], self._rate[sides], self._degree[sides]
        theta = np.stack([self.graph.out_weight, self.graph.in_weight])[sides]
        prior = shape * np.log(rate) - gammaln(shape) - rate * theta
        return super().log_joint() + float((prior + (shape - 1 + degree) * np.log(theta)).sum())

    def _propensities(self) -> Params:
        values = (self.graph.out_weight, self.graph.in_weight)
        return {site: torch.as_tensor(v.copy()) for site, v in zip(self._sites, values, strict=True)}

    def means(self) -> Params:
        """E[pi | z], E[eta | z, theta, x], and the present propensities."""
        return super().means() | self._propensities()

    def draw(self) -> Params:
        return super().draw() | self._propensities()


class BlockSampler(Sampler):
    """Chains of :class:`BlockChain` or :class:`PropensityChain`."""

    def check(self, model: Model, data: Data) -> None:
        dirichlet_prior(model, "block_proportion", torch.zeros(()))
        for site in model.global_sites[1:]:
            if isinstance(model.priors[site], Flat):
                raise MethodError(f"the prior of '{site}' is improper (Flat) and cannot be integrated out; use EM")
        pair_priors(_block_model(model))
        if isinstance(model, DegreeCorrectedSBM):
            propensity_priors(model, model.num_nodes)

    def chain(self, model: Model, data: Data, seed: int, start: Params | None) -> BlockChain:
        made, rows = _block_model(model), GraphRows.of(_block_model(model), data)
        kind = PropensityChain if isinstance(made, DegreeCorrectedSBM) else BlockChain
        return kind(made, rows, seed, start)

    def propose(self, model: Model, data: Data, seed: int) -> Params:
        """The best of some partitions (``_sbm_partitions``)."""
        from custom_inference.families.blocks.partitions import best_partition

        made = _block_model(model)
        rows = GraphRows.of(made, data)
        kind = next(kind for kind in _LIKELIHOOD if isinstance(made, kind))
        attempts = _ATTEMPTS if len(rows) * made.num_blocks**2 <= _SMALL else 1
        return {"block": torch.as_tensor(best_partition(rows, made.num_blocks, _LIKELIHOOD[kind], seed, attempts))}

    def local_of_draws(self, model: Model, data: Data, locals_: Tensor) -> Local:
        posterior = LabellingPosterior.of_draws(locals_, _block_model(model).num_blocks)
        return Local(posterior, no_bound(1, data.x))

    def relabelled(self, locals_: Tensor, order: Tensor) -> Tensor:
        return torch.argsort(order)[locals_]

    def local_posterior(self, model: Model, params: Params, data: Data, *, seed: int = 0) -> Local:
        """Gibbs sampling of the blocks at given globals: several chains from empty graphs, and on with the best.

        Every sweep ends with new names for all blocks (``rename_given``).
        """
        made = _block_model(model)
        rows = GraphRows.of(made, data)
        generator = np.random.default_rng(seed % 2**64)
        starts = [begin(made, rows, int(generator.integers(2**63)), params) for _ in range(_STARTS)]
        graph, state = max(starts, key=lambda one: log_joint_given(*one, params))
        draws = []
        for _ in range(_DRAWS):
            sweep_given(graph, state, params, 1)
            rename_given(graph, state, params, generator)
            draws.append(torch.as_tensor(state.label.copy()))
        return self.local_of_draws(model, data, torch.stack(draws))


def _block_model(model: Model) -> BlockModel:
    assert isinstance(model, BlockModel)
    return model


def _tensor(value: Array) -> Tensor:
    return torch.as_tensor(value)
