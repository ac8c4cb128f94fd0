"""Engines that are compiled from the programs of graphs.

Mean field is q(z) = prod_n Cat(phi_n) with points of the globals: variational EM. The responsibilities are part of the
state, as the values of the globals alone do not say which of many optima is meant.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from scipy.special import softmax
from torch import Tensor
from torch.nn.functional import one_hot

from custom_inference.compiled.engine import EverySite
from custom_inference.compiled.graphs.rows import DyadRows, Floats
from custom_inference.compiled.graphs.starts import DyadStarts, divide
from custom_inference.compiled.graphs.steps import GraphSteps
from custom_inference.compiled.graphs.structure import structure_if_known
from custom_inference.compiled.graphs.sweep import DyadTables, bound_at, name_blocks, sweep
from custom_inference.compiled.sources import EntrySource
from custom_inference.core.engine import Engine, EStep, InitialStep, Params, Warm
from custom_inference.core.posteriors import CodePosterior
from custom_inference.core.states import PointsWithLocals, State, move_state, values_of
from custom_inference.families.blocks.mean_field import RESPONSIBILITY, code_posterior, division_of
from ppl_models import Data, GraphModel

#: Sweeps over the nodes in one E step, at most.
SWEEPS = 5
#: Updates of propensities before a start's first E step.
_FIRST = 5
#: M steps of a start in which standard deviations that begin anywhere come to the data's, and what change of theirs is
#: none.
_SETTLED, _STILL = 30, 0.1
#: Divisions that a cold start tries, and the sweeps after which they are compared.
_TRIES, _COLD_SWEEPS = 4, 30


class DyadEngine(DyadStarts, Engine[DyadRows, Any]):
    """Base of the engines of programs of graphs: points of the globals, M steps in closed form or by climbing."""

    any_prior_of = EverySite()
    additive = False
    one_process = True

    #: Itself: its proposals are its own.
    engine = property(lambda self: self)  # pyright: ignore[reportAssignmentType,reportIncompatibleVariableOverride]

    def rows(self, model: GraphModel, data: Data) -> DyadRows:
        """Read the graph. Raises NotCompiled where the program is no product of laws of nodes and dyads."""
        found = DyadRows.of(model, data)
        found.structure.propensities.check(model)
        return found

    def steps(self, model: GraphModel, rows: DyadRows) -> GraphSteps:
        """Return the M step of the program at the model's priors, found once."""
        known = rows.structure.steps
        if model not in known:
            known[model] = GraphSteps.of_graph(model, rows.structure)
        return known[model]

    def tables(self, model: GraphModel, state: PointsWithLocals | Params, rows: DyadRows) -> DyadTables:
        """Evaluate the laws at the values of the globals."""
        with torch.no_grad():
            return DyadTables.at(rows, values_of(model, state))

    def best(self, model: GraphModel, values: Params, labelled: Tensor, counted: Tensor, rows: DyadRows) -> Params:
        """Return values of the globals at their best given the probabilities (N, K) of labels and the expected features
        (K, K, F) of dyads."""
        statistics = rows.statistics(labelled, counted)
        values = {site: value.double() for site, value in values.items()}
        return move_state(
            self.steps(model, rows).advance(values, statistics, float(len(rows)), (None, None)), rows.like
        )

    def prior_term(self, model: GraphModel, state: PointsWithLocals | Params) -> Tensor:
        structure = structure_if_known(model)
        values = {site: value.double() for site, value in values_of(model, state).items()}
        if structure is None:
            return model.log_prior(values)
        return structure.steps[model].log_prior(values) if model in structure.steps else model.log_prior(values)

    def fit_to(self, model: GraphModel, values: Params, share: Tensor, rows: DyadRows, *, times: int = 1) -> Params:
        """Return values of the globals at their best given responsibilities (N, K) of independent nodes; propensities
        improved some times, and the rest again at its best; for starts, ``times`` above 1, standard deviations until
        they have come to the data's from wherever they are."""
        phi, own = share.double().numpy(), rows.structure.propensities
        spread = self.steps(model, rows).sites_in("spread")

        def refit(found: Params) -> Params:
            counted = torch.as_tensor(rows.count(phi, own.weights(found, len(rows))))
            for _ in range(_SETTLED if times > 1 else 1):
                before, found = found, self.best(model, found, share.double(), counted, rows)
                if all(bool((found[s] / before[s] - 1).abs().max() < _STILL) for s in spread):
                    break
            return found

        values = refit(values)
        for _ in range(times if own.ends else 0):
            values = {site: value.double() for site, value in values.items()}
            rates = np.exp(DyadTables.at(rows, values).natural[0])  # log w of the counts
            values = refit(own.update(model, values, rows.degrees, partial(rows.partners, phi, rates)))
        if own.ends:
            other = self._rescale(model, values, phi, rows)
            if other is not None:
                values = max(values, refit(other), key=lambda one: self._value(model, one, phi, rows))
        return values

    def _rescale(self, model: GraphModel, values: Params, phi: Floats, rows: DyadRows) -> Params | None:
        """Exchange scales of propensities for those of rates of blocks; None where these are something else."""
        structure, (source, *_) = rows.structure, rows.structure.dyads.sources
        own, sites = structure.propensities, sorted(source.sites)
        if not own.scales or any(s in model.known for s in (*own.scales, *sites)) or len(sites) != 1:
            return None
        value = values[sites[0]].double()
        prior = self.steps(model, rows).prior_of_rates(sites[0], value)
        if prior is None or type(source) is not EntrySource or not source.plain:
            return None
        return own.rescale(model, values, phi.argmax(1), value.numpy(), (prior[0].numpy(), prior[1].numpy()))

    def _value(self, model: GraphModel, values: Params, phi: Floats, rows: DyadRows) -> float:
        """Compute the objective at responsibilities of independent nodes."""
        at = self.tables(model, values, rows)
        return bound_at(at, rows, phi, rows.count(phi, at.weight)) + float(self.prior_term(model, values))

    def start_at(self, model: GraphModel, responsibility: Tensor, rows: DyadRows) -> Params:
        """Return values of the globals that suit a division of the nodes, (N, K)."""
        start, degrees = rows.structure.probe.draw_globals(), rows.degrees
        typical = (degrees @ responsibility.numpy() + 1) / (responsibility.sum(0).numpy() + 1)
        for site, ends in rows.structure.propensities.ends.items():
            if site not in model.known:  # degrees, by those of their blocks
                usual = degrees[list(ends)].sum(0) / (typical[list(ends)].sum(0) @ responsibility.T.numpy())
                start[site] = torch.as_tensor(usual + 0.1)
        return self.fit_to(model, start, responsibility, rows, times=_FIRST)

    @abc.abstractmethod
    def from_responsibilities(self, model: GraphModel, responsibility: Tensor, rows: DyadRows) -> Any:
        """Return a state that suits a division of the nodes, (N, K)."""

    def initial(self, model: GraphModel, rows: DyadRows, generator: torch.Generator) -> Any:
        """Put every node into a random block."""
        label = torch.randint(rows.num_labels, (len(rows),), generator=generator)
        return self.from_responsibilities(model, one_hot(label, rows.num_labels).double(), rows)


@dataclass(frozen=True, kw_only=True)
class DyadMeanField(DyadEngine):
    """q(z) = prod_n Cat(phi_n), node after node."""

    name = "mean_field"
    state: ClassVar[type[State]] = PointsWithLocals

    def e_step(
        self, model: GraphModel, state: PointsWithLocals | Params, rows: DyadRows, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        """Sweep over the nodes from the state's responsibilities; without any, from the best of some divisions."""
        at = self.tables(model, state, rows)
        known = warm[RESPONSIBILITY] if warm else division_of(state)
        phi = _start_cold(at, rows, generator) if known is None else known.detach().cpu().double().numpy().copy()
        sweep(at, rows, phi, SWEEPS, temperature)
        counted = rows.count(phi, at.weight)
        bound = bound_at(at, rows, phi, counted, temperature)
        found = {RESPONSIBILITY: torch.as_tensor(phi)}
        statistics = {"dyads": torch.as_tensor(counted)}
        return EStep(statistics, found, torch.tensor([bound], dtype=torch.float64))

    def bound(
        self, model: GraphModel, state: PointsWithLocals | Params, rows: DyadRows, responsibility: Tensor
    ) -> Tensor:
        """Compute the bound at any responsibilities (N, K), (1,)."""
        at, phi = self.tables(model, state, rows), responsibility.detach().double().numpy()
        return torch.tensor([bound_at(at, rows, phi, rows.count(phi, at.weight))], dtype=torch.float64)

    def m_step(
        self, model: GraphModel, state: PointsWithLocals | Params, step: EStep, rows: DyadRows
    ) -> PointsWithLocals:
        share = step.locals[RESPONSIBILITY]
        return PointsWithLocals(self.fit_to(model, values_of(model, state), share, rows), {RESPONSIBILITY: share})

    def posterior(self, model: GraphModel, state: PointsWithLocals, rows: DyadRows, step: EStep) -> CodePosterior:
        return code_posterior(step._replace(locals={RESPONSIBILITY: step.locals[RESPONSIBILITY].to(rows.like)}))

    def from_point(self, model: GraphModel, params: Params, rows: DyadRows, e_step: InitialStep) -> PointsWithLocals:
        """Return the given values with the division that suits them."""
        return PointsWithLocals(params, {RESPONSIBILITY: e_step().locals[RESPONSIBILITY]})

    def from_responsibilities(self, model: GraphModel, responsibility: Tensor, rows: DyadRows) -> PointsWithLocals:
        return PointsWithLocals(self.start_at(model, responsibility, rows), {RESPONSIBILITY: responsibility.double()})


def _start_cold(at: DyadTables, rows: DyadRows, generator: torch.Generator | None) -> Floats:
    """Return the best phi that sweeps find from the labels' laws alone, and from some divisions of the nodes."""
    size = rows.num_labels
    phi = np.broadcast_to(softmax(at.labels, 1), (len(rows), size)).copy()
    if size == 1:
        return phi
    seed = 0 if generator is None else int(torch.randint(2**31, (), generator=generator))
    labels = [label for number in range(_TRIES) for label in divide(rows, seed, number)]
    starts = [phi, *(np.ascontiguousarray(name_blocks(at, rows, np.eye(size)[label])) for label in labels)]
    scores = []
    for one in starts:
        sweep(at, rows, one, _COLD_SWEEPS)
        scores.append(bound_at(at, rows, one, rows.count(one, at.weight)))
    return starts[int(np.argmax(scores))]
