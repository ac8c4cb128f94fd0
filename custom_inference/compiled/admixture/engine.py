"""Variational Bayes of programs of shares: rows' shares and choices, and the globals as points or with posteriors.

q(theta_n, choices) = Dirichlet(theta_n) or prod_k Gamma(theta_nk), times a distribution over the components of each
token. With s_kw what word w scores under component k, log p at the globals' values or its mean under their posteriors,

    phi_nwk proportional to exp(E log theta_nk + s_kw),    concentration_nk = alpha_k + sum_w c_nw phi_nwk,

which are the sweeps of ``families.topics.dirichlet``; with Gammas those of ``families.gamma_poisson``. They climb a
lower bound on log p(x_n | globals), or with posteriors of the globals, less their divergence from the priors, on log
p(x).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from custom_inference.compiled.admixture.ascent import climb_rows
from custom_inference.compiled.admixture.globals import (
    Expected,
    GlobalPosteriors,
    divergence,
    prior_of_site,
    update,
    why_not_integrated,
)
from custom_inference.compiled.admixture.posterior import posterior_of_rows
from custom_inference.compiled.admixture.proof import read_rows
from custom_inference.compiled.admixture.rows import AdmixtureRows
from custom_inference.compiled.admixture.starts import AdmixtureStarts
from custom_inference.compiled.engine import EverySite
from custom_inference.compiled.reading import NotCompiled
from custom_inference.core.engine import Engine, EStep, InitialStep, Params, Warm
from custom_inference.core.posteriors import LocalPosterior
from custom_inference.core.states import State, values_of
from custom_inference.em.rows import FitRows
from custom_inference.families.conjugate.dirichlet import Dirichlet
from custom_inference.families.gamma_poisson.common import best_scale
from custom_inference.families.gamma_poisson.engines import rates_after
from custom_inference.families.topics.dirichlet import TopicScores, equal_shares, sweep_documents
from ppl_models import Data, Model

#: At globals that stay: so many sweeps of a row at most, until its concentrations change by less.
_MOST, _STILL = 2000, 1e-6


@dataclass(frozen=True, kw_only=True)
class AdmixturePoints(AdmixtureStarts, Engine):
    """Points of the globals, and how rows are inferred at given ones.

    sweeps, cold_sweeps: at most so many of an E step that goes on from the last one, and of one that does not.
    threshold: a row is done when its concentrations change by less than this, on average.
    """

    sweeps: int = 10
    cold_sweeps: int = 100
    threshold: float = 1e-3

    name: ClassVar[str] = "conjugate"
    accelerate = "squarem"
    any_prior_of = EverySite()
    engine = property(lambda self: self)  # pyright: ignore[reportIncompatibleVariableOverride]

    def rows(self, model: Model, data: Data) -> AdmixtureRows:
        """Read the rows. Raises NotCompiled where the program has no shares of rows."""
        return read_rows(model, data).to(data.x.dtype)

    def at_length(self) -> Any:
        return type(self)(sweeps=_MOST, cold_sweeps=_MOST, threshold=_STILL)

    def values(self, model: Model, state: State | Params, rows: AdmixtureRows) -> list[Tensor]:
        """Return the natural parameters (K, U, F) of every statement, or the parameters of laws that go by value."""
        entries = rows.structure.entries
        own = values_of(model, state)
        flat = entries.flatten({site: own[site].to(rows.like) for site in entries.shapes})
        blocks, structure = rows.structure.steps_of(model, rows.like).blocks, rows.structure
        found = [block.natural(flat)[0] for block in blocks[: len(structure.observed)]]
        # Squares of responses cancel: they are taken in double precision.
        return [*found, *(one.block.natural(flat.double())[0] for one in structure.responses)]

    def _climb(self, rows: AdmixtureRows, values: list[Tensor], score: Tensor, temperature: float, warm: Warm) -> EStep:
        """Take the E step of rows with terms beside their words."""
        shape, scores = rows.structure.shape.to(rows.like), TopicScores.of(score)
        begin = warm["concentration"] if warm else equal_shares(rows.documents, shape)
        start = begin, warm["log_share"] if warm else Dirichlet(begin).expected()
        sweeps = self.sweeps if warm else self.cold_sweeps
        terms = rows.terms(values, temperature)
        found = climb_rows(rows.documents, scores.word, shape, start, terms, sweeps, self.threshold)
        mean = found.concentration / found.concentration.sum(1, keepdim=True)
        counted = [*rows.gather(found.counts, mean), *terms.gather(found.concentration, found.tokens)]
        statistics = {str(place): one for place, one in enumerate(counted)}
        statistics |= {"rows": rows.like.new_tensor(float(len(rows)))}
        scale = (rows.counts @ scores.log_scale.unsqueeze(-1))[:, 0]
        locals_ = {"concentration": found.concentration, "log_share": found.log_share}
        return EStep(statistics, locals_, (found.bound + scale + rows.offset).to(rows.like))

    def e_step(
        self, model: Model, state: State | Params, rows: AdmixtureRows, warm: Warm = None, *, temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        values = self.values(model, state, rows)
        score = temperature * rows.scores(values)
        if rows.structure.has_terms:
            return self._climb(rows, values, score, temperature, warm)
        start, sweeps = (warm["concentration"], self.sweeps) if warm else (None, self.cold_sweeps)
        shape, documents, offset, after = rows.structure.shape.to(rows.like), rows.documents, rows.offset, None
        if rows.structure.rate is not None:
            after, offset, documents = self._expose(rows, values)
            least = after.amin(1)
            offset = offset - documents.lengths * least.log()
        limits = sweeps, self.threshold, self.cold_sweeps
        found = sweep_documents(documents, TopicScores.of(score), shape, start, *limits)
        concentration = found.concentration
        total = concentration.sum(1, keepdim=True) if after is None else after
        counted = rows.gather(found.counts, concentration / total)
        statistics = {str(place): one for place, one in enumerate(counted)}
        statistics |= {"rows": rows.like.new_tensor(float(len(rows))), "share": (concentration / total).sum(0)}
        locals_ = {"concentration": concentration} if after is None else {"concentration": concentration, "rate": after}
        return EStep(statistics, locals_, found.bound + offset)

    def _expose(self, rows: AdmixtureRows, values: Sequence[Tensor]) -> tuple[Tensor, Tensor, Any]:
        """Return the rates (N, K) of the Gammas given their rows, what log p(x_n) has beside the words' (see
        ``gamma_poisson.common``), and the words with weights."""
        assert rows.structure.rate is not None
        shape, rate = rows.structure.shape.to(rows.like), rows.structure.rate.to(rows.like)
        after, total = rates_after(rate, rows.exposure(values)), shape.sum()
        rise = torch.lgamma(total + rows.documents.lengths) - torch.lgamma(total)
        constant = rise - (shape * (after.log() - rate.log())).sum(1) + rows.offset
        return after, constant, rows.documents.with_weights(after.amin(1, keepdim=True) / after)

    def m_step(self, model: Model, state: State | Params, step: EStep, rows: AdmixtureRows | FitRows) -> Any:
        own: Any = getattr(rows, "first_rows", rows)
        steps, counted = own.structure.steps_of(model, own.like), self.list_features(step, own)
        number = float(step.statistics["rows"])
        return steps.advance(values_of(model, state), counted, number, [None] * len(counted))

    def list_features(self, step: EStep, rows: AdmixtureRows) -> list[Tensor]:
        """Return the expected features of every statement."""
        structure = rows.structure
        return [step.statistics[str(place)] for place in range(len(structure.observed) + len(structure.responses))]

    def prior_term(self, model: Model, state: State | Params) -> Tensor | float:
        known = self.steps_if_known(model)
        return super().prior_term(model, state) if known is None else known.log_prior(values_of(model, state))

    def posterior(self, model: Model, state: State | Params, rows: AdmixtureRows, step: EStep) -> LocalPosterior:
        return posterior_of_rows(rows, rows.scores(self.values(model, state, rows)), step.locals)


@dataclass(frozen=True, kw_only=True)
class AdmixtureVB(AdmixturePoints):
    """Posteriors of the globals."""

    integrates_globals = True

    name: ClassVar[str] = "vb"
    state: ClassVar[type[State]] = GlobalPosteriors  # pyright: ignore[reportIncompatibleVariableOverride]

    def local(self) -> Engine:
        return AdmixturePoints()

    def rows(self, model: Model, data: Data) -> AdmixtureRows:
        """Read the rows. Raises NotCompiled where the program has no shares of rows, or its globals no posteriors in
        closed form."""
        rows = read_rows(model, data)
        structure, entries = rows.structure, rows.structure.entries
        blocks = [one.block for one in (*structure.observed, *structure.responses)]
        why = why_not_integrated(model, entries, blocks, entries.flatten(rows.structure.probe.fingerprints[0]))
        if why:
            raise NotCompiled(f"{type(model).__name__} is not compiled for variational Bayes: {why}")
        return rows.to(data.x.dtype)

    def values(self, model: Model, state: State | Params, rows: AdmixtureRows) -> list[Tensor]:
        assert type(state) is GlobalPosteriors
        expected = Expected.of(model, state, rows.structure.entries)
        blocks = rows.structure.steps_of(model, rows.like).blocks
        return [expected.natural(block).to(rows.like) for block in blocks]

    def m_step(
        self, model: Model, state: State | Params, step: EStep, rows: AdmixtureRows | FitRows
    ) -> GlobalPosteriors:
        own: Any = getattr(rows, "first_rows", rows)
        steps = own.structure.steps_of(model, own.like)
        found = update(model, steps.entries, steps.blocks, self.list_features(step, own))
        return found if own.structure.rate is None else _scale(model, found, step, own)

    def prior_term(self, model: Model, state: State | Params) -> Tensor:
        assert type(state) is GlobalPosteriors
        return -divergence(model, state)

    def from_point(self, model: Model, params: Params, rows: AdmixtureRows, e_step: InitialStep) -> GlobalPosteriors:
        """Return the posteriors that the rows give when their own are inferred at these values."""
        del params
        made: Any = None
        return self.m_step(model, made, e_step(), rows)

    def project(self, model: Model, state: GlobalPosteriors, locals_: Params) -> tuple[GlobalPosteriors, Params]:
        """Keep all parameters positive."""
        return state.clamp(), locals_


def _scale(model: Model, state: GlobalPosteriors, step: EStep, rows: AdmixtureRows) -> GlobalPosteriors:
    """Move the scale between the rates of every component and its activations to its best: ordinary steps creep along
    it (see ``gamma_poisson.common``)."""
    owner = rows.owners
    assert rows.structure.rate is not None
    entries, size = rows.structure.entries, rows.structure.size
    if owner is None or set(state.shape) != set(entries.shapes):  # what is known has its scale
        return state
    shape, rate = rows.structure.shape.to(rows.like), rows.structure.rate.to(rows.like)
    count, mass = rows.like.new_zeros(size), rows.like.new_zeros(size)
    for site in state.shape:
        prior: Any = prior_of_site(model, site, rows.like, entries.shapes[site])
        own = owner[entries.slices[site]]
        mean = state.shape[site] / state.rate[site]
        count = count.index_add(0, own, prior.shape.reshape(-1))
        mass = mass.index_add(0, own, (prior.rate * mean).reshape(-1))
    power = step.statistics["rows"] * shape - count
    found = best_scale(power, rate * step.statistics["share"], mass)
    moved = {s: one * found[owner[entries.slices[s]]].reshape(one.shape) for s, one in state.rate.items()}
    return GlobalPosteriors(state.concentration, state.chance, state.shape, moved)
