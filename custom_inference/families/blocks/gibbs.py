"""Collapsed Gibbs sampling of stochastic block models: the block of every node, block proportions and block matrix
integrated out, or explicit where their priors are not conjugate (``gibbs_explicit``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from scipy.special import gammaln
from torch import Tensor

from custom_inference.core.local_inference import Local
from custom_inference.core.posteriors import LabellingPosterior
from custom_inference.core.posteriors.continuous import mirror
from custom_inference.families.blocks.bethe import SbmBethe, propagates
from custom_inference.families.blocks.cells import fill, total
from custom_inference.families.blocks.evidence import trivial
from custom_inference.families.blocks.gibbs_explicit import BlockValues, Walks
from custom_inference.families.blocks.labels_given import (
    at_globals,
    begin,
    log_constant,
    log_joint_given,
    rename_given,
    sweep_given,
)
from custom_inference.families.blocks.likelihoods import partition_likelihood
from custom_inference.families.blocks.mean_field import division_of
from custom_inference.families.blocks.nodes import Propensities
from custom_inference.families.blocks.propose import BlockProposals
from custom_inference.families.blocks.rows import Floats, SbmRows
from custom_inference.families.blocks.vb import SbmVB
from custom_inference.families.common.explicit import Explicit, notes, with_references
from custom_inference.families.common.hyper import with_hyper_parameters
from custom_inference.families.conjugate.dirichlet import Dirichlet
from custom_inference.families.rows.graph import GraphRows
from custom_inference.gibbs.protocol import Chain, Params, Sampler, no_bound
from ppl_models import Data
from ppl_models.block_models import BlockModel

#: Merge-split moves of a sweep: one, and one more for so many blocks; scans of each division's launch.
_BLOCKS_A_MOVE, _SCANS = 4, 3
#: On graphs of so many nodes and more they take several times as long as single nodes: every fourth sweep has them.
_LARGE, _EVERY = 1000, 4
#: Steps of a block's scale, in standard deviations of the prior.
_SCALE_STEP = 3.0
#: At given globals: initialisations, of which the best goes on, and its draws.
_STARTS, _DRAWS = 8, 200
#: Attempts of the search for a start on graphs of at most so many node updates a sweep; one on larger ones.
_ATTEMPTS, _SMALL = 3, 2**17


class BlockChain(Chain):
    """The blocks of all nodes under a Bernoulli or Poisson block model.

    start: ``block`` (N,) to begin with, or values of the globals that the first blocks are drawn at; without them the
        first sweep draws each node's given those before it.
    explicit: globals that are values of the state; ``model`` has conjugate priors in their place.
    """

    def __init__(
        self,
        model: BlockModel,
        rows: GraphRows,
        seed: int,
        start: Params | None = None,
        explicit: Mapping[str, Explicit] | None = None,
    ):
        self.model, self.rows, self.explicit = model, SbmRows.of_rows(rows), explicit or {}
        self.graph, self.state = begin(model, self.rows, seed, start)
        self._generator = np.random.default_rng(seed % 2**64)
        if start is not None and "block" not in start:  # the names that the globals give the blocks
            rename_given(self.graph, self.state, at_globals(model, self.rows, start), self._generator)
        self._values, self._at = BlockValues(model, self.explicit), self.graph
        self._sweeps = 0
        self._work = np.arange(self.graph.num_blocks), np.empty((4, len(self.rows)), np.int64)
        self._constant = log_constant(self.graph, self.rows, self._values.explicit)
        if start is not None:
            self._draw_explicit()

    def sweep(self) -> None:
        """Draw a new block for every node, moves of many nodes at once, and new values of what is explicit; other
        threads may run meanwhile."""
        from custom_inference.families.blocks import gibbs_moves as moves
        from custom_inference.families.blocks import gibbs_sparse as sparse

        sparse.sweep(self._at, self.state, 1.0)
        if len(self.rows) < _LARGE or self._sweeps % _EVERY == 0:
            number = 1 + self.graph.num_blocks // _BLOCKS_A_MOVE
            moves.merge_split(self._at, self.state, number, _SCANS, *self._work)
        self._sweeps += 1
        self._draw_explicit()

    def _draw_explicit(self) -> None:
        if self._values.explicit:
            self._at = self._values.draw(self.graph, self.state, self._generator)
            fill(self._at, self.state)

    def list_sampled(self) -> dict[str, str]:
        return notes(self.explicit)

    def log_joint(self) -> float:
        """Compute log p(x, z), see ``rows``."""
        return self._constant + total(self._at, self.state) + self._values.log_prior()

    def _posteriors(self) -> tuple[Dirichlet, Any]:
        """Return p(pi | z), and p(eta | z, x) of every pair of blocks."""
        graph, state, matrix = self.graph, self.state, self._values.likelihood
        size, edges, exposure = (torch.as_tensor(part.copy()) for part in (state.size, state.edges, state.exposure))
        prior = matrix.pair(torch.as_tensor(graph.first), torch.as_tensor(graph.second))
        proportion = Dirichlet(torch.as_tensor(graph.alpha)).update(size)
        return proportion, prior.update(edges, exposure)

    def _globals(self, proportion: Tensor, matrix: Tensor) -> Params:
        return {"block_proportion": proportion, self.model.component_site: matrix, **self._values.values()}

    def means(self) -> Params:
        """Return E[pi | z] and E[eta | z, x]."""
        return self._globals(*(posterior.mean for posterior in self._posteriors()))

    def draw(self) -> Params:
        """Draw the globals from p(pi | z) and p(eta | z, x), and return them with the blocks (N,) themselves."""
        proportion = self._posteriors()[0].draw(self._generator)
        return {**self._globals(proportion, self._draw_matrix()), "block": self.indicators()}

    def _draw_matrix(self) -> Tensor:
        if self.model.component_site in self.explicit:
            return self.explicit[self.model.component_site].value
        drawn = self._posteriors()[1].draw(self._generator)
        return drawn if self.graph.directed else mirror(drawn)

    def profile(self) -> Tensor:
        """Return how probable every node is in every block given the others', (K, N + 1): labellings are matched by the
        nodes that they share. The last entry, 1, is what blocks without nodes have in common."""
        return torch.nn.functional.pad(torch.as_tensor(self._shares().T), (0, 1), value=1.0)

    def evidence(self) -> float:
        """Estimate log p(x) at this mode by ``evidence``, after variational Bayes has converged from the present
        blocks."""
        engine = BlockProposals(SbmVB())
        value, state = engine.run_iterations(self.model, self.rows, torch.as_tensor(self._shares()))
        return engine.weigh(self.model, state, self.rows, value)

    def remark(self) -> str:
        return trivial(self._shares())

    def _shares(self) -> Floats:
        """Compute how probable every node is in every block given the others', (N, K), at the present explicit values,
        which the sums of the state go with."""
        from custom_inference.families.blocks import gibbs_kernels as kernels

        share = np.empty((len(self.rows), self.graph.num_blocks))
        kernels.conditionals(self._at, self.state, share)
        return share

    def indicators(self) -> Tensor:
        """Return the block of every node, (N,)."""
        return torch.as_tensor(self.state.label.copy())

    def locals(self) -> Tensor:
        """Return the blocks again, as indicators: they depend on each other, so the draws themselves are kept."""
        return self.indicators()


class PropensityChain(BlockChain):
    """The blocks of all nodes, and their propensities: under degree correction these are drawn, not integrated out."""

    def __init__(self, model: BlockModel, rows: GraphRows, *settings: Any, **others: Any):
        super().__init__(model, rows, *settings, **others)
        nodes = Propensities(model, integrated=True)
        self._sites = nodes.sites
        sides = [self.explicit[site] for site in self._sites if site in self.explicit]
        self._walks = Walks(sides, self.graph) if sides else None
        if self._walks is not None:
            fill(self._at, self.state)
        self._shape, self._rate = (part.numpy() for part in nodes.priors())

    def sweep(self) -> None:
        """Draw blocks at the present propensities, then propensities (``gibbs_conditionals``)."""
        from custom_inference.families.blocks import gibbs_conditionals as conditionals

        super().sweep()
        if self._walks is not None:
            self._walks.run(self._at, self.state, self._draw_matrix().numpy(), self._generator)
            fill(self._at, self.state)
            return
        rate, both = self._draw_matrix().numpy(), (2, len(self.rows))  # undirected graphs use the first
        drawn = self._generator.standard_gamma(np.broadcast_to(self._shape + self.rows.degrees, both))
        drawn, uniform = drawn.clip(np.finfo(np.float64).tiny), self._generator.random(len(self.rows))
        conditionals.draw_propensities(self._at, self.state, rate, drawn, self._rate, uniform)
        fill(self._at, self.state)
        conditionals.scale_propensities(self._at, self.state, self._shape, self._rate, _SCALE_STEP)
        fill(self._at, self.state)

    def log_joint(self) -> float:
        """Compute log p(x, z, theta)."""
        shape, rate, theta = self._shape, self._rate, self.graph.weight
        if self._walks is not None:
            prior = self._walks.log_prior(theta) - np.log(theta)
            return super().log_joint() + float((prior + self.rows.degrees * np.log(theta)).sum())
        prior = shape * np.log(rate) - gammaln(shape) - rate * theta
        return super().log_joint() + float((prior + (shape - 1 + self.rows.degrees) * np.log(theta)).sum())

    def _propensities(self) -> Params:
        return {site: torch.as_tensor(v.copy()) for site, v in zip(self._sites, self.graph.weight, strict=True)}

    def means(self) -> Params:
        """Return E[pi | z], E[eta | z, theta, x], and the present propensities."""
        return super().means() | self._propensities()

    def draw(self) -> Params:
        return super().draw() | self._propensities()


class BlockSampler(Sampler):
    """Chains of :class:`BlockChain` or :class:`PropensityChain`."""

    def check(self, model: BlockModel, data: Data) -> None:
        with_references(model)

    def chain(self, model: BlockModel, data: Data, seed: int, start: Params | None) -> Chain:
        conjugate, explicit = with_references(model)
        nodes = Propensities(conjugate, integrated=True).sites
        kind = PropensityChain if nodes else BlockChain
        if explicit.keys() & set(nodes):  # of directed graphs both
            conjugate, explicit = with_references(model, forced=nodes)
        chain = kind(conjugate, SbmRows.of(model, data), seed, start, explicit)
        return with_hyper_parameters(model, chain, explicit, seed, start)

    def starts(self, model: BlockModel, data: Data, seeds: list[int]) -> list[Params | None]:
        """Variational optima, of large graphs those of belief propagation, each of a search of its own; of every fourth
        chain the likeliest of some divisions instead: where sampling leads there from the others', and here from
        theirs, the chains may be believed."""
        rows, model = SbmRows.of(model, data), with_references(model)[0]
        make = (self._optimum, self._optimum, self._optimum, self._likeliest)
        return [{"block": make[number % 4](model, rows, seed, number)} for number, seed in enumerate(seeds)]

    def _optimum(self, model: BlockModel, rows: SbmRows, seed: int, number: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed % 2**63)
        proposals = BlockProposals(SbmVB())
        if propagates(model):
            from custom_inference.families.blocks.bethe_starts import BetheProposals

            proposals = BetheProposals(SbmBethe())
        division = division_of(proposals.propose(model, rows, generator, number))
        assert division is not None
        return division.argmax(-1)

    def _likeliest(self, model: BlockModel, rows: SbmRows, seed: int, number: int) -> Tensor:
        """Return the partition of the highest integrated likelihood that ``partitions`` finds."""
        from custom_inference.families.blocks.partitions import best_partition

        attempts = _ATTEMPTS if len(rows) * model.num_blocks**2 <= _SMALL else 1
        label = best_partition(rows, model.num_blocks, partition_likelihood(model), seed + number, attempts)
        return torch.as_tensor(label)

    def local_of_draws(self, model: BlockModel, data: Data, locals_: Tensor) -> Local:
        posterior = LabellingPosterior.of_draws(locals_, model.num_blocks)
        return Local(posterior, no_bound(1, data.x))

    def relabel(self, locals_: Tensor, order: Tensor) -> Tensor:
        return torch.argsort(order)[locals_]

    def local_posterior(self, model: BlockModel, params: Params, data: Data, *, seed: int = 0) -> Local:
        """Gibbs sampling of the blocks at given globals: several chains from empty graphs, and on with the best.

        Every sweep ends with new names for all blocks (``rename_given``).
        """
        rows = SbmRows.of(model, data)
        model = with_references(model)[0]
        at, generator = at_globals(model, rows, params), np.random.default_rng(seed % 2**64)
        starts = [begin(model, rows, int(generator.integers(2**63)), params) for _ in range(_STARTS)]
        graph, state = max(starts, key=lambda one: log_joint_given(*one, at))
        draws = []
        for _ in range(_DRAWS):
            sweep_given(graph, state, at, 1)
            rename_given(graph, state, at, generator)
            draws.append(torch.as_tensor(state.label.copy()))
        return self.local_of_draws(model, data, torch.stack(draws))
