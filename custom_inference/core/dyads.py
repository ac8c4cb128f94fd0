"""Minibatches of a graph's dyads: those with edges and those without, drawn apart and weighted to be unbiased.

Graphs are sparse: dyads drawn uniformly would hold few edges, and the noise of their number would hide all else. Every
step takes edges and other dyads about equally (stratified sampling; Gopalan & Blei, PNAS 110, 2013, likewise).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.distributions import kl_divergence

from custom_inference.core.isolation import own_store, torch_seeded
from ppl_models import Data, GraphData, GraphModel
from ppl_models.data import sparse as _sparse
from ppl_models.distributions import EndBlocks, Labelling

#: The program's plate of dyads.
_PLATE = "data"


def dyad_number(model: GraphModel, i: Tensor, j: Tensor, num_nodes: int) -> Tensor:
    """The numbers of dyads (i, j), of undirected graphs i < j: the inverse of ``GraphModel.dyads``."""
    first = model.first_nodes
    if first is not None:
        return i * (num_nodes - first) + j - first
    if model.directed:
        return i * num_nodes + j if model.self_loops else i * (num_nodes - 1) + j - (j > i).long()
    shift = 0 if model.self_loops else 1
    width = num_nodes - shift
    return i * width - i * (i - 1) // 2 + j - i - shift


def _numbers(model: GraphModel, i: Tensor, j: Tensor, num_nodes: int) -> Tensor:
    """Sorted numbers of those places (i, j) of a matrix that are dyads."""
    keep = i == i if model.directed else i <= j
    if model.first_nodes is not None:
        keep = (i < model.first_nodes) & (j >= model.first_nodes)
    if not model.self_loops:
        keep &= i != j
    return dyad_number(model, i[keep], j[keep], num_nodes).unique()


class DyadSample(Messenger):
    """Wraps a graph's program so that each run with ``batch_size`` sees a stratified sample of the observed dyads.

    Half of them are edges, or all edges where these are fewer, with weight (edges) / (edges drawn); the others have
    none, with weight (observed dyads without edge) / (their number drawn). The sum of weighted terms is an unbiased
    estimate of that over all observed dyads. Drawn with replacement unless a whole stratum is taken.

    generator: of the CPU, whose dyads are the same whatever device the graph is on; by default that device's own.
    A run's ``batch_size`` must be that of this object; hidden dyads are never drawn, so that x may stay sparse.
    """

    def __init__(self, model: GraphModel, data: Data, batch_size: int, *, generator: torch.Generator | None = None):
        super().__init__()
        self.generator = generator
        self.site, self.size = model.observed_site, len(data)
        row, column = _sparse.triplets(data.x)[:2] if _sparse.is_sparse(data.x) else data.x.nonzero().T
        self.edges = _numbers(model, row, column, self.size)
        hidden = data.hidden if isinstance(data, GraphData) else None
        if hidden is None and data.mask is not None:
            hidden = (~data.mask).nonzero().T
        if hidden is not None:
            hidden = _numbers(model, hidden[0], hidden[1], self.size)
            self.edges = self.edges[~torch.isin(self.edges, hidden)]
        excluded = self.edges if hidden is None else torch.cat([self.edges, hidden]).sort().values
        # The r-th number that is not among the sorted e_0 < e_1 < ... is r + #{k: e_k - k <= r}.
        self.skipped = excluded - torch.arange(len(excluded), device=excluded.device)
        self.others = model.num_dyads(self.size) - len(excluded)
        self.edges_drawn = min(len(self.edges), max(batch_size // 2, batch_size - self.others))
        self.others_drawn = min(batch_size - self.edges_drawn, self.others)
        self.batch_size = self.edges_drawn + self.others_drawn
        self.weight: Tensor | None = None
        self.kept: tuple[Tensor, Tensor] | None = None

    @classmethod
    def with_fixed_dyads(cls, model: GraphModel, data: Data, batch_size: int) -> DyadSample:
        """Make a sample whose dyads are the same in every run, and for every object of the same graph and size. They
        are in order of their numbers, so that lookups of neighbours are adjacent in memory."""
        sample = cls(model, data, batch_size, generator=torch.Generator().manual_seed(0))
        number, weight = sample.draw()
        parts = [part.sort().values for part in number.split([sample.edges_drawn, sample.others_drawn])]
        sample.kept = torch.cat(parts), weight
        return sample

    def variance(self, terms: Tensor) -> Tensor:
        """Estimate the variance, over samples of dyads, of the sum of weighted terms (batch_size,)."""
        strata = ((terms[: self.edges_drawn], len(self.edges)), (terms[self.edges_drawn :], self.others))
        parts = [len(drawn) * drawn.var() for drawn, total in strata if 1 < len(drawn) < total]
        return torch.stack([terms.new_zeros(()), *parts]).sum()

    def draw(self) -> tuple[Tensor, Tensor]:
        """Numbers of dyads and their weights, (batch_size,) each."""
        if self.kept is not None:
            return self.kept
        edges = self.edges[self._choose(len(self.edges), self.edges_drawn)]
        rank = self._choose(self.others, self.others_drawn)
        others = rank + torch.searchsorted(self.skipped, rank, right=True)
        strata = ((len(self.edges), self.edges_drawn), (self.others, self.others_drawn))
        weight = [torch.full((drawn,), total / max(drawn, 1), device=edges.device) for total, drawn in strata]
        return torch.cat([edges, others]), torch.cat(weight)

    def _choose(self, total: int, number: int) -> Tensor:
        """Numbers below ``total``: all of them, or fewer, with replacement."""
        device = self.edges.device
        if number == total:
            return torch.arange(total, device=device)
        if self.generator is None:
            return torch.randint(total, (number,), device=device)
        return torch.randint(total, (number,), generator=self.generator).to(device)

    def _process_message(self, msg: Any) -> None:
        if msg["type"] == "sample" and msg["name"] == _PLATE and type(msg["fn"]).__name__ == "_Subsample":
            msg["value"], self.weight = self.draw()
            msg["done"] = True
        elif msg["type"] == "sample" and msg["name"] == self.site:
            assert self.weight is not None
            msg["scale"] = self.weight  # in place of the plate's, which is that of uniform draws


class EveryPair(Messenger):
    """Gives the blocks of the ends of all dyads every pair of values, whatever a guide drew."""

    def __init__(self, site: str, pairs: EndBlocks):
        super().__init__()
        self.site, self.pairs = site, pairs

    @classmethod
    def of(cls, site: str, q: Labelling) -> EveryPair:
        return cls(site, EndBlocks.every(q.probs.shape[-1], device=q.probs.device))

    def _process_message(self, msg: Any) -> None:
        if msg["type"] == "sample" and msg["name"] == self.site:
            msg["value"], msg["done"] = self.pairs, True


def expected_log_likelihood(model: GraphModel, trace: Any, probs: Tensor) -> Tensor:
    """sum_dyads sum_ab phi_ia phi_jb log p(x_ij | a, b) (), of a program that ran under :class:`EveryPair`.

    The trace's scales apply: of minibatches it is an unbiased estimate.
    """
    return _expectations_by_dyad(model, trace, probs).sum()


def _expectations_by_dyad(model: GraphModel, trace: Any, probs: Tensor) -> Tensor:
    """Return the expected log likelihood of each dyad, (E,)."""
    i, j = model.dyads(trace.nodes[_PLATE]["value"], len(probs))
    log_p = trace.nodes[model.observed_site]["log_prob"]
    # Dyad by dyad, the K^2 terms are weighted by the one end and then by the other.
    each = (torch.einsum("abe,ea->eb", log_p, probs[i]) * probs[j]).sum(-1)
    if model.self_loops:  # both ends are one node: the K terms of equal blocks
        each = torch.where(i == j, (log_p.diagonal(dim1=0, dim2=1) * probs[i]).sum(-1), each)
    return each


def estimate_log_joint(
    model: GraphModel, params: Mapping[str, Tensor], data: Data, local: Tensor, *, batch_size: int
) -> Tensor:
    """log p(x, local | params), (); of more than ``batch_size`` dyads an unbiased estimate by so many of them.

    The dyads are the same in every call: differences between locals are not those of two draws.
    """
    return log_joint_of_draws(model, params, data, local[None], batch_size=batch_size)[0][0]


def log_joint_of_draws(
    model: GraphModel, params: Mapping[str, Tensor], data: Data, draws: Tensor, *, batch_size: int
) -> tuple[Tensor, Tensor]:
    """``estimate_log_joint`` of draws (S, N, ...), (S,), and the variance of their mean, (), by the choice of dyads."""
    sites, found, total = (model.local_site, model.observed_site), [], torch.zeros(())
    data, sample = _sample_dyads(model, data, batch_size)
    for local in draws:
        program: Any = pyro.condition(model.summed_out, data={**params, model.local_site: local})
        with torch.no_grad():
            trace = _run(data, program, sample)
            trace.compute_log_prob(site_filter=lambda name, _: name in sites)
        nodes = [trace.nodes[site] for site in sites if site in trace.nodes]
        found.append(torch.stack([node["log_prob_sum"] for node in nodes]).sum())
        if sample is not None:
            total = total + nodes[-1]["log_prob"]  # not kept for every draw: there are many dyads
    values = torch.stack(found)
    return values, values.new_zeros(()) if sample is None else sample.variance(total / len(draws))


def estimate_bound(
    model: GraphModel, params: Mapping[str, Tensor], data: Data, probs: Tensor, *, batch_size: int
) -> tuple[Tensor, Tensor | None]:
    """The ELBO of independent blocks phi (N, K) at given globals, (1,): sum_q phi(q) (log p(x, q) - log phi(q)).

    Of more than ``batch_size`` dyads an unbiased estimate by so many of them, with its variance, (1,), by the choice of
    dyads; None where all of them were taken.
    """
    q = Labelling(probs, validate_args=False)
    program: Any = EveryPair.of(model.local_site, q)(pyro.condition(model.summed_out, data=dict(params)))
    data, sample = _sample_dyads(model, data, batch_size)
    trace = _run(data, program, sample)
    trace.compute_log_prob(site_filter=lambda name, _: name == model.observed_site)
    terms = _expectations_by_dyad(model, trace, probs)
    bound = (terms.sum() - kl_divergence(q, trace.nodes[model.local_site]["fn"])).unsqueeze(0)
    return bound, None if sample is None else sample.variance(terms).unsqueeze(0)


def _sample_dyads(model: GraphModel, data: Data, batch_size: int) -> tuple[Data, DyadSample | None]:
    """The data as the program takes them, and so many of their dyads, the same in every call; None for all of them."""
    if batch_size >= model.num_dyads(len(data)):
        return model.as_read(data), None
    return data, DyadSample.with_fixed_dyads(model, data, batch_size)


def _run(data: Data, program: Callable[..., Any], sample: DyadSample | None) -> Any:
    """The trace of a program on a sample of dyads, or on all."""
    with torch_seeded(0), own_store():
        if sample is None:
            return poutine.trace(program).get_trace(data.x, **data.arguments)
        return poutine.trace(sample(program)).get_trace(data.x, batch_size=sample.batch_size)
