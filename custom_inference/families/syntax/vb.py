"""Topics and syntax by variational Bayes: topics, classes, moves and proportions all have Dirichlet posteriors.

The E step is that of ``dirichlet`` with exp(E[log .]) in place of every table; the M step adds the expected numbers to
the priors' concentrations (cf. 002, eqs. 27.47-27.49). Together they climb

    F = sum_i bound_i - sum_sites KL(q(site) || p(site)) <= log p(y),

with q(pi, z, q, globals) = prod_i q(pi_i) q(z_i, q_i) prod_sites Dirichlet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from custom_inference.core.engine import Engine, InitialStep, Params
from custom_inference.core.posteriors import DirichletPosterior
from custom_inference.core.states import State
from custom_inference.families.conjugate.dirichlet import Dirichlet
from custom_inference.families.syntax.dirichlet import SyntaxDirichlet, sites_of, tables_of
from custom_inference.families.syntax.rows import SentenceRows, SyntaxTables
from ppl_models import Model


@dataclass(frozen=True)
class SyntaxPosteriors(State):
    """The concentrations of the sites' posteriors, each of the site's shape; None: the model has no classes."""

    topic: Tensor
    emission: Tensor | None = None
    initial: Tensor | None = None
    transition: Tensor | None = None

    @property
    def sites(self) -> Params:
        """Site -> concentration."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {site: value for site, value in values.items() if value is not None}

    def values(self, model: Model) -> Params:
        del model
        return {site: value / value.sum(-1, keepdim=True) for site, value in self.sites.items()}

    def posteriors(self, model: Model) -> Mapping[str, DirichletPosterior]:
        del model
        return {site: DirichletPosterior(value) for site, value in self.sites.items()}

    @classmethod
    def of_posteriors(cls, posteriors: Mapping[str, Any]) -> Self:
        return cls(**{site: posterior.concentration for site, posterior in posteriors.items()})


@dataclass(frozen=True, kw_only=True)
class SyntaxVB(SyntaxDirichlet):
    """Settings are those of :class:`SyntaxDirichlet`."""

    integrates_globals = True

    name: ClassVar[str] = "vb"
    state: ClassVar[type[State]] = SyntaxPosteriors

    def local(self) -> Engine:
        return SyntaxDirichlet()

    def from_counts(self, model: Model, counts: Params) -> SyntaxPosteriors:
        """The priors' concentrations plus the numbers."""
        return SyntaxPosteriors(**{s: self.prior(model, s, counts[s]) + counts[s] for s in sites_of(model)})

    def tables(self, model: Model, state: SyntaxPosteriors, temperature: float) -> SyntaxTables:
        tempered = {"topic": temperature, "emission": temperature}
        return tables_of(
            {s: (tempered.get(s, 1.0) * Dirichlet(v.double()).expected()).exp() for s, v in state.sites.items()}
        )

    def prior_term(self, model: Model, state: SyntaxPosteriors) -> Tensor:
        each = [Dirichlet(v).kl(self.prior(model, s, v)).double().sum() for s, v in state.sites.items()]
        return -torch.stack(each).sum()

    def from_point(self, model: Model, params: Params, rows: SentenceRows, e_step: InitialStep) -> SyntaxPosteriors:
        """The posterior that the documents give when their own are inferred at these values."""
        return self.from_counts(model, e_step().statistics)
