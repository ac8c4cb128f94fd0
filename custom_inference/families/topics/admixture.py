"""What a program of documents says of their words, given the globals and what stands beside them: read by running it.

    pi_i ~ Dirichlet(alpha_i),   a token of document i is word v with probability sum_k pi_ik b_{g(i) k v}

Concentrations may be 0 (labels that a document lacks), depend on covariates, or be weights of sticks; topics may be
mixed by a matrix of the document's class, or be those of its slice of time. The program is run at proportions that are
one component each, which gives b, and at random ones, which proves that the words' probabilities are linear in pi.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyro
import torch
from pyro import poutine
from torch import Tensor

from custom_inference.core.isolation import default_dtype, isolated
from custom_inference.families.rows.documents import DocumentRows
from ppl_models import Data, Model
from ppl_models.distributions import FaceDirichlet, Tokens

#: Numbers of the mixed topics of a block of documents, and of the topics of all groups of documents.
_BLOCK, _MOST = 2**23, 2**28


@dataclass(frozen=True)
class Admixture:
    """rows: N documents. alpha: their concentrations (N, K). topic: G tables of topics (G, K, V), one of which each
    document has: group (N,)."""

    rows: DocumentRows
    alpha: Tensor
    topic: Tensor
    group: Tensor

    def parts(self) -> Iterator[tuple[Tensor, DocumentRows, Tensor]]:
        """Give, for each table of topics, the places of its documents, these, and the table (K, V)."""
        for number, topic in enumerate(self.topic):
            places = (self.group == number).nonzero().flatten()
            yield places, self.rows if len(places) == len(self.rows) else self.rows.select(places), topic

    def select(self, places: Tensor) -> Admixture:
        """Return some of the documents."""
        return Admixture(self.rows.select(places), self.alpha[places], self.topic, self.group[places])

    def of(self, data: Data) -> Admixture:
        """Return the same documents with other words, such as a half of their own."""
        return replace(self, rows=_read_rows(data, coefficient=self.rows.coefficient))


def _read_rows(data: Data, *, coefficient: bool) -> DocumentRows:
    return DocumentRows.of(replace(data, x=data.x.double()), coefficient=coefficient)


def read_admixture(model: Model, params: Mapping[str, Tensor], data: Data) -> Admixture | None:
    """Read what a program says of documents; None where it is no admixture with Dirichlet proportions, or has observed
    something beside the words. data: with what the documents are given."""
    if any(site in data.others for site in model.sites_of("observed")):
        return None
    values = {site: value.double() if value.is_floating_point() else value for site, value in params.items()}
    rows = _read_rows(data, coefficient=bool(getattr(model, "coefficient", False)))
    alpha, mixed, group, table = [], [], [], torch.empty(0)
    blocks, start = [data.to(dtype=torch.float64)], 0
    while blocks:
        block = blocks.pop()
        law, tokens = _run(model, values, block)
        if not isinstance(law, torch.distributions.Dirichlet | FaceDirichlet) or type(tokens) is not Tokens:
            return None
        table, size = tokens.topic, law.concentration.shape[-1]
        most = max(1, _BLOCK // (size * len(table)))
        if table.ndim != 2 or not len(block):
            return None
        if len(block) > most:
            blocks += [block.rows(slice(at, at + most)) for at in range(0, len(block), most)][::-1]
            continue
        found = _find_mixtures(model, values, block, size)
        if found is None:
            return None
        alpha.append(law.concentration.expand(len(block), size))
        mixed.append(found[0])
        group.append(found[1] + start)
        start += len(found[0])
    every, chosen = _without_repeats(torch.cat(mixed))
    if every[..., 0].numel() * table.shape[1] > _MOST:
        return None
    return Admixture(rows, torch.cat(alpha), every @ table, chosen[torch.cat(group)])


def _find_mixtures(model: Model, values: Mapping[str, Tensor], data: Data, size: int) -> tuple[Tensor, Tensor] | None:
    """Find what every component mixes the program's topics by, (G, K, T), and whose mixture each document has, (N,);
    None where words' probabilities are not linear in the proportions."""
    few, like = data if data.others else data.rows(slice(0, 1)), data.x
    unit = torch.eye(size, dtype=like.dtype, device=like.device)
    each = [_run(model, values, few, one.expand(len(few), size))[1].proportion.expand(len(few), -1) for one in unit]
    mixed, group = _without_repeats(torch.stack(each, 1))
    group = group.expand(len(data))
    random = torch.rand(len(data), size, generator=torch.Generator().manual_seed(0), dtype=like.dtype).to(like)
    random = random / random.sum(-1, keepdim=True)
    said = _run(model, values, data, random)[1].proportion
    expected = torch.einsum("nk,nkt->nt", random, mixed[group])
    return (mixed, group) if torch.allclose(said.expand_as(expected), expected, atol=1e-9) else None


def _without_repeats(mixed: Tensor) -> tuple[Tensor, Tensor]:
    """Return the different ones of mixtures (N, K, T), and the place of each among them, (N,)."""
    weight = torch.rand(mixed[0].numel(), generator=torch.Generator().manual_seed(1), dtype=mixed.dtype).to(mixed)
    number, chosen = (mixed.flatten(1) @ weight).mul(1e9).round().unique(return_inverse=True)
    first = torch.full((len(number),), len(mixed), device=mixed.device)
    first = first.scatter_reduce(0, chosen, torch.arange(len(mixed), device=mixed.device), "amin")
    return mixed[first], chosen


def _run(model: Model, values: Mapping[str, Tensor], data: Data, proportion: Tensor | None = None) -> tuple[Any, Any]:
    """Run the program at values of the globals and, where they are given, proportions (N, K): the laws of the main
    latent and of the words."""
    held = dict(values) if proportion is None else {**values, model.local_site: proportion}
    with isolated(0), default_dtype(data.x.dtype):
        nodes: Any = poutine.trace(pyro.condition(model, data=held)).get_trace(data.x, **data.arguments).nodes
    return nodes[model.local_site]["fn"], nodes[model.observed_site]["fn"]
