"""Topics and syntax by variational EM: the states and topics of a document's tokens exact given its proportions' q.

q(pi_i, z_i, q_i) = Dirichlet(pi_i | pi~_i) q(z_i, q_i) (cf. Murphy, eq. 27.43), where q(z_i, q_i) is a hidden Markov
chain in every sentence, found by forward and backward passes. With e_ik = exp(E[log pi_ik]) for the topics' shares,

    bound_i = sum_sentences log Z(e_i) - KL(Dirichlet(pi~_i) || Dirichlet(alpha)) <= log p(y_i | globals)
    pi~_ik <- alpha_k + E_q[number of tokens of document i with z = 0, q = k]

where Z(e) sums prod_l A_{z_l-1 z_l} e(y_l | z_l) over all states, e(v | 0) = sum_k e_ik b_kv, e(v | c) = B_cv. The
bound holds at any pi~_i, as q(z, q) is at its best given pi~. An E step that goes on from the last one takes pi~ from
what that expected, and makes one pass; the M step divides the expected numbers (plus the priors') by their sums.

With Dirichlet posteriors of topics, classes and moves too ("vb"), exp(E[log .]) stands in place of every table, and the
M step adds the expected numbers to the priors' concentrations (cf. Murphy 2012, eqs. 27.47-27.49). Together they climb

    F = sum_i bound_i - sum_sites KL(q(site) || p(site)) <= log p(y).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from custom_inference.core.engine import Engine, EStep, InitialStep, Params, Warm
from custom_inference.core.posteriors import DirichletPosterior
from custom_inference.core.states import State, values_of
from custom_inference.families.conjugate.dirichlet import Dirichlet
from custom_inference.families.syntax.rows import Array, SentenceRows, SyntaxExpectations, SyntaxTables, array
from ppl_models import LDAHMM, Data

#: Probabilities of words and moves are kept this far from 0: nothing meets log 0.
_FLOOR = 1e-12
#: How even random starts are: frequencies and moves are multiplied by Gamma variables of this shape.
_NOISE_SHAPE = 4


def tables_of(values: Params) -> SyntaxTables:
    """The tables of the passes from values of the sites, or of exp E[log .]; the last axis of each is a simplex's."""
    topic = array(values["topic"].T)
    if "emission" not in values:
        return SyntaxTables(topic, np.zeros((len(topic), 1)), np.ones((1, 1)), np.ones(1))
    classes = np.concatenate([np.zeros((len(topic), 1)), array(values["emission"].T)], 1)
    return SyntaxTables(topic, np.ascontiguousarray(classes), array(values["transition"]), array(values["initial"]))


def statistics_of(model: LDAHMM, found: SyntaxExpectations, like: Tensor) -> Params:
    """The expected numbers by site, each of the site's shape."""
    parts = {
        "topic": found.topic.T,
        "emission": found.classes[:, 1:].T,
        "transition": found.transition,
        "initial": found.initial,
    }
    return {site: torch.as_tensor(parts[site].copy()).to(like) for site in model.global_sites}


@dataclass(frozen=True, kw_only=True)
class SyntaxDirichlet(Engine):
    """cold_sweeps: at most this many passes of an E step that does not go on from the last one. threshold: a document
    is done when its pi~ changes by less than this, on average over the topics."""

    cold_sweeps: int = 50
    threshold: float = 1e-3

    name: ClassVar[str] = "dirichlet"

    def rows(self, model: LDAHMM, data: Data) -> SentenceRows:
        return SentenceRows.of(data, model.vocabulary_size)

    def alpha(self, model: LDAHMM, like: Tensor) -> Tensor:
        """The concentration of the proportions' prior, (K,)."""
        return Dirichlet.of(model, model.local_site, like).concentration.expand(model.local_shape)

    def prior(self, model: LDAHMM, site: str, like: Tensor) -> Tensor:
        """The concentration of a global's prior, of the site's shape."""
        return Dirichlet.of(model, site, like).concentration.expand(model.shapes[site])

    def check(self, model: LDAHMM, rows: SentenceRows) -> None:
        """Raises PriorError for priors that are no Dirichlet."""
        self.alpha(model, rows.like)
        for site in model.global_sites:
            self.prior(model, site, rows.like)

    def initial(self, model: LDAHMM, rows: SentenceRows, generator: torch.Generator) -> Any:
        return self.from_counts(model, self.random_counts(model, rows, generator))

    def random_counts(self, model: LDAHMM, rows: SentenceRows, generator: torch.Generator) -> Params:
        """The tokens of every word shared among topics and classes, and moves, at random."""
        frequency = torch.as_tensor(np.bincount(rows.words[0], minlength=rows.num_words) + 0.1)
        parts = sum(model.shapes[site][0] for site in ("topic", "emission") if site in model.shapes)
        found = {}
        for site in model.global_sites:
            shape = model.shapes[site]
            noise = torch.rand((_NOISE_SHAPE, *shape), generator=generator, dtype=torch.float64)
            weight = -torch.log1p(-noise * (1 - 1e-6)).sum(0) / _NOISE_SHAPE
            found[site] = weight * (frequency / parts if shape[-1] == rows.num_words else frequency.sum() / 100)
        return {site: value.to(rows.like) for site, value in found.items()}

    def from_counts(self, model: LDAHMM, counts: Params) -> Any:
        """The parameters at given expected numbers."""
        return {
            site: Dirichlet(self.prior(model, site, counts[site])).mode(counts[site], floor=_FLOOR)
            for site in model.global_sites
        }

    def tables(self, model: LDAHMM, state: Params | SyntaxPosteriors, temperature: float) -> SyntaxTables:
        """Return the tables of the passes, those of words tempered."""
        return tables_of(
            {s: v**temperature if s in ("topic", "emission") else v for s, v in values_of(model, state).items()}
        )

    def e_step(
        self, model: LDAHMM, state: Params | SyntaxPosteriors, rows: SentenceRows, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        alpha, tables = self.alpha(model, rows.like), self.tables(model, state, temperature)
        if warm is None:
            concentration = self.run_passes(rows, tables, alpha)
        else:
            concentration = warm["concentration"].to(alpha)
        found = rows.compute_expectations(tables, share_of(concentration))
        after = alpha + torch.as_tensor(found.usage).to(alpha)
        bound = torch.as_tensor(found.log_evidence).to(alpha) - Dirichlet(concentration).kl(alpha)
        return EStep(statistics_of(model, found, alpha), {"concentration": after}, bound)

    def run_passes(self, rows: SentenceRows, tables: SyntaxTables, alpha: Tensor) -> Tensor:
        """Compute pi~ (N, K) by passes over the documents that still change, from equal shares of half the tokens."""
        tokens = np.bincount(rows.document, minlength=len(rows))
        found = (alpha + torch.as_tensor(tokens / 2 / len(alpha)).to(alpha).unsqueeze(1)).clone()
        active = np.ones(len(rows), bool)
        for _ in range(self.cold_sweeps):
            usage = torch.as_tensor(rows.compute_expectations(tables, share_of(found), active=active).usage).to(alpha)
            now = torch.as_tensor(active).to(alpha.device)
            change = torch.where(now, (alpha + usage - found).abs().mean(1), 0.0)
            found = torch.where(now.unsqueeze(1), alpha + usage, found)
            active = (change >= self.threshold).cpu().numpy()
            if not active.any():
                break
        return found

    def m_step(self, model: LDAHMM, state: Params | SyntaxPosteriors, step: EStep, rows: SentenceRows) -> Any:
        return self.from_counts(model, step.statistics)

    def prior_term(self, model: LDAHMM, state: Params | SyntaxPosteriors) -> Tensor | float:
        """Sum the log prior densities in the basis in which the M step takes their modes."""
        values = values_of(model, state)
        each = (Dirichlet(self.prior(model, s, values[s])).log_density(values[s]).double() for s in model.global_sites)
        return sum(each, torch.zeros((), dtype=torch.float64))

    def posterior(
        self, model: LDAHMM, state: Params | SyntaxPosteriors, rows: SentenceRows, step: EStep
    ) -> DirichletPosterior:
        return DirichletPosterior(step.locals["concentration"])


def share_of(concentration: Tensor) -> Array:
    """exp(E[log pi_ik]), (N, K)."""
    return array(Dirichlet(concentration.double()).expected().exp())


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

    def values(self, model: LDAHMM) -> Params:
        del model
        return {site: value / value.sum(-1, keepdim=True) for site, value in self.sites.items()}

    def posteriors(self, model: LDAHMM) -> Mapping[str, DirichletPosterior]:
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

    def from_counts(self, model: LDAHMM, counts: Params) -> SyntaxPosteriors:
        """The priors' concentrations plus the numbers."""
        return SyntaxPosteriors(**{s: self.prior(model, s, counts[s]) + counts[s] for s in model.global_sites})

    def tables(self, model: LDAHMM, state: SyntaxPosteriors, temperature: float) -> SyntaxTables:
        tempered = {"topic": temperature, "emission": temperature}
        return tables_of(
            {s: (tempered.get(s, 1.0) * Dirichlet(v.double()).expected()).exp() for s, v in state.sites.items()}
        )

    def prior_term(self, model: LDAHMM, state: SyntaxPosteriors) -> Tensor:
        each = [Dirichlet(v).kl(self.prior(model, s, v)).double().sum() for s, v in state.sites.items()]
        return -torch.stack(each).sum()

    def from_point(self, model: LDAHMM, params: Params, rows: SentenceRows, e_step: InitialStep) -> SyntaxPosteriors:
        """The posterior that the documents give when their own are inferred at these values."""
        return self.from_counts(model, e_step().statistics)
