"""CVB0 of programs of tokens: shares and topics are integrated out, and every word of a row has expected topics.

What is updated, and what the objective is, stands in ``families.topics.cvb0``; here the words of rows are its words,
and its counts are those of Dirichlet posteriors of the one global that there is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from custom_inference.compiled.admixture.engine import AdmixtureVB
from custom_inference.compiled.admixture.globals import GlobalPosteriors, prior_of_site
from custom_inference.compiled.admixture.posterior import posterior_of_rows
from custom_inference.compiled.admixture.rows import AdmixtureRows
from custom_inference.compiled.admixture.structure import AdmixtureStructure
from custom_inference.compiled.reading import NotCompiled
from custom_inference.core.engine import EStep, Objective, Params, Warm
from custom_inference.core.posteriors import LocalPosterior
from custom_inference.core.states import State
from custom_inference.families.conjugate.dirichlet import Dirichlet
from custom_inference.families.rows.documents import DocumentRows
from custom_inference.families.topics.cvb0 import LdaCvb0, TopicCounts
from ppl_models import Data, Model
from ppl_models.data import sparse


@dataclass(frozen=True, kw_only=True)
class AdmixtureCvb0(AdmixtureVB):
    """Expected topics of the words of every row. Locals: "responsibility", of every stored entry (nnz, K)."""

    sequential = True
    hands_on_locals = True

    name: ClassVar[str] = "cvb0"
    objective: ClassVar[Objective] = "estimate"
    accelerate = None  # pyright: ignore[reportAssignmentType]

    def rows(self, model: Model, data: Data) -> AdmixtureRows:
        """Read the rows. Raises NotCompiled where they are no tokens of topics that are learned."""
        rows = super().rows(model, data)
        structure, sites = rows.structure, list(model.unknown_sites)
        source: Any = structure.observed[0].block.sources[0]
        single = len(sites) == len(structure.observed) == structure.observed[0].num_cells == 1
        plain = single and structure.rate is None and not structure.has_terms and source.plain
        if not plain or not torch.equal(source.index[0, :, 0].flatten(), _places(structure, sites[0])):
            raise NotCompiled(f"{type(model).__name__} is not compiled for CVB0: its rows are no tokens of topics")
        return rows

    def e_step(
        self, model: Model, state: State | Params, rows: AdmixtureRows, warm: Warm = None, *, temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        """Make one pass."""
        assert type(state) is GlobalPosteriors
        ((site, own),) = state.concentration.items()
        prior = prior_of_site(model, site, own, tuple(own.shape))
        assert type(prior) is Dirichlet
        tokens = _Tokens(shape=rows.structure.shape.to(own), prior=prior.concentration)
        counts, documents = _Counts((own - prior.concentration).clamp(min=0), mean=state.values(model)[site]), _of(rows)
        found = tokens.e_step(model, counts, documents, warm, temperature=temperature, generator=generator)
        told = {"0": found.statistics["topic"][None, :, None], "rows": rows.like.new_tensor(float(len(rows)))}
        return EStep(told, found.locals, found.bound + rows.offset)

    def prior_term(self, model: Model, state: State | Params) -> Tensor:
        """Return 0: what is integrated out has its prior in the objective."""
        del model, state
        return torch.zeros((), dtype=torch.float64)

    def posterior(self, model: Model, state: State | Params, rows: AdmixtureRows, step: EStep) -> LocalPosterior:
        """Return the posterior at the expected numbers of tokens, choices at the means of the topics."""
        assert type(state) is GlobalPosteriors
        counted = _of(rows).sum_by_document(step.locals["responsibility"])
        concentration = rows.structure.shape.to(counted) + counted
        blocks, flat = rows.structure.steps_of(model, rows.like).blocks, rows.structure.entries
        natural = [block.natural(flat.flatten(state.values(model)))[0] for block in blocks]
        return posterior_of_rows(rows, rows.scores(natural), {"concentration": concentration})


@dataclass(frozen=True)
class _Counts(TopicCounts):
    """Expected tokens (K, V), and the mean of their posterior."""

    mean: Tensor = field(default_factory=lambda: torch.zeros(0))

    def values(self, model: Model) -> dict[str, Tensor]:
        del model
        return {"topic": self.mean}


@dataclass(frozen=True, kw_only=True)
class _Tokens(LdaCvb0):
    """The steps of LDA at the concentrations of shares (K,) and of topics (K, V)."""

    shape: Tensor
    prior: Tensor

    def document_alpha(self, model: Model, state: Params | State, rows: DocumentRows) -> Tensor:
        del model, state, rows
        return self.shape

    def words_prior(self, model: Model, like: Tensor) -> Tensor:
        del model, like
        return self.prior


def _of(rows: AdmixtureRows) -> DocumentRows:
    """Return the rows with categories (N, V) in place of the words that occur."""
    (one,), (pieces,) = rows.structure.observed, rows.pieces
    assert pieces.single is not None
    crow, column, values = rows.counts.crow_indices(), rows.counts.col_indices(), rows.counts.values()
    category = pieces.single[rows.made[column, 0]]
    return DocumentRows(sparse.tensor(crow, category, values, size=(len(rows), one.law.sizes[0])))


def _places(structure: AdmixtureStructure, site: str) -> Tensor:
    """Return where the entries of a site are among all, in order."""
    own = structure.entries.slices[site]
    return torch.arange(own.start, own.stop)
