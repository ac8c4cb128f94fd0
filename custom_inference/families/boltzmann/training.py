"""One fit by stochastic maximum likelihood: passes over the rows, looks at how it goes, and which weights are kept."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from custom_inference.core.ended import Ended
from custom_inference.core.engine import Params
from custom_inference.core.method import Call
from custom_inference.core.progress import Progress
from custom_inference.families.boltzmann import common
from custom_inference.families.boltzmann.annealing import log_pseudo_likelihood
from custom_inference.families.boltzmann.ascent import Ascent
from custom_inference.families.boltzmann.chains import Chains
from custom_inference.families.boltzmann.common import (
    Bordered,
    HarmoniumRows,
    MachineWeights,
    column_naturals,
    first_bias,
)
from custom_inference.families.boltzmann.exact import completions, energy_of_shapes
from custom_inference.families.boltzmann.priors import priors_of
from custom_inference.families.boltzmann.search import maximum
from custom_inference.families.boltzmann.slopes import BinarySlopes, WeightSlopes
from ppl_models import Data, MethodError
from ppl_models.rbm import HarmoniumModel

#: Updates that the number of passes is chosen for, of rows and of documents, and its range; how often as many of one
#: machine whose updates are cheap, and how many of those run side by side where the best can be told.
_UPDATES, _OF_DOCUMENTS, _FEWEST, _MOST = 12000, 1500, 60, 1500
_LONGER, _ABREAST = 1.65, 6
#: Updates and machines where exact ascent follows, and entries of the table of hidden states and of the rows up to
#: which it does: four million take a millisecond, and a search has some 1,500 slopes. An entry of the matrices of its
#: coordinates, (D + 1, D + 1) of every hidden unit, takes as long as so many of those. How much the prior of W counts
#: at first, falling to 1 in the first half: units that part late, in the order of what they explain, find better ends.
_BEFORE_ASCENT, _ASCENDING, _ASCENT_WORK, _COORDINATES, _STRENGTH = 4000, 12, 2**23, 8, 30.0
#: Entries of rows, times hidden units and as many more as what is done of every entry costs, that the passes of a fit
#: take by default at most, unless the fewest passes do: minutes on one slow core.
_PRODUCTS, _BESIDE = 2**35, 8
#: How often a fit is watched, the rows and documents that are looked at, and the codes up to which log p is exact.
_WATCHES, _WATCHED, _DOCUMENTS, _EXACT_BITS = 20, 500, 25, 11
#: Codes up to which runs are compared by log p.
_COMPARED_BITS = 16

#: The learning rate of Adam.
_ADAM = 0.01
#: Tokens a document from which on the learning rate falls, with the root of their number.
_LENGTH = 100.0


@dataclass
class Training:
    """One fit: its weights, their averages, and what was seen on the way. method: the settings. attempt: which run.

    machines: how many are learned, side by side, until the best of them is chosen.
    """

    method: Any
    model: HarmoniumModel
    data: Data
    call: Call
    attempt: int = 0
    trace: list[float] = field(default_factory=list)
    watched: dict[str, list[float]] = field(default_factory=dict)
    machines: int = field(init=False, default=1)
    ended: Ended = field(init=False, default=Ended.COMPLETE)

    #: Whether all rows are there, and learned from at a rate that falls to 0.
    whole: ClassVar[bool] = True

    def __post_init__(self) -> None:
        method, model = self.method, self.model
        self.generator = torch.Generator(self.data.x.device).manual_seed(self.call.seed + 100_003 * self.attempt)
        rows = HarmoniumRows.of(model, self.data).to(torch.float32)
        order = torch.randperm(len(rows), generator=self.generator, device=self.data.x.device)
        held = int(method.validation * len(rows))
        self.held = rows.select(order[:held]) if held else None
        self.rows = rows.select(order[held:]) if held else rows
        self.size = min(method.batch_size, len(self.rows))
        self.per_pass = max(1, len(self.rows) // self.size)
        self._plan()
        self._start()

    def _plan(self) -> None:
        """How many runs there are, and passes: where the best of machines that are learned side by side can be told,
        several of those; else one that takes longer, where updates are as cheap."""
        method = self.method
        plain = method.kind == "pcd" and not method.centred and method.optimizer in (None, "momentum")
        # Both layers of binary units that all rows have and show, and a prior whose slope is linear.
        shown = self.rows.times is None and self.rows.missing is None
        binary = shown and self.model.data_kind == "binary" and self.model.code_bits is not None
        linear = binary and priors_of(self.model, method.weight_decay, len(self.rows), self.rows.like) is not None
        self.binary = self.whole and plain and linear
        told = self.sums_cheap and self.call.init is None
        self.abreast = self.binary and told and self.held is None
        self.ascends = self._ascends()
        self.strength = _STRENGTH if self.ascends and self.call.init is None else 1.0
        several = _ASCENDING if self.ascends else _ABREAST
        self.runs: int = method.restarts or (several if self.abreast else 2 if told else 1)
        self.machines = self.runs if self.abreast else 1
        updates = _OF_DOCUMENTS if self.model.sites[self.model.observed_site].sparse else _UPDATES
        updates = _BEFORE_ASCENT if self.ascends else updates
        longer = _LONGER if self.binary and self.machines == 1 else 1
        usual = min(int(longer * _MOST), max(_FEWEST, int(longer * updates) // self.per_pass))
        self.passes = method.max_iterations or max(_FEWEST, min(usual, _PRODUCTS // self.products_of_pass))

    @property
    def products_of_pass(self) -> int:
        """What a pass costs: entries of the rows of all machines, times hidden units and what is beside them."""
        units, *visible = self.model.shapes["weight"]
        return self.machines * self.per_pass * self.size * math.prod(visible) * (units + _BESIDE)

    def _ascends(self) -> bool:
        """Whether what the chains lead to goes on by exact gradients. Raises MethodError where that is asked for in
        vain."""
        asked, shape = self.method.ascent, self.model.shapes["weight"]
        units, features = shape[0], math.prod(shape[1:])
        binary = self.binary and self.held is None and units <= min(_COMPARED_BITS, features)
        if asked and not binary:
            expected = f"at most {_COMPARED_BITS} hidden units, no more than visible ones, binary ones of both kinds"
            raise MethodError(
                f"ascent = True, expected {expected}, rows that were observed whole, none held out, Gaussian priors "
                "and persistent CD with its default optimiser"
            )
        work = (2**units + len(self.rows)) * features + _COORDINATES * units * (features + 1) ** 2
        cheap = binary and work <= _ASCENT_WORK
        return cheap if asked is None else asked

    def _start(self) -> None:
        method, model, rows = self.method, self.model, self.rows
        base = column_naturals(model, rows)
        given = self.call.start(model)
        start = self._random(base) if given is None else {site: value.to(base) for site, value in given.items()}
        self.weights = Bordered(start) if self.binary else MachineWeights(start)
        self.total, self.averaged = torch.zeros_like(self.weights.theta), 0
        self.best: tuple[float, Tensor | None] = (-math.inf, None)
        chains = Chains.of(
            method.kind, method.sweeps, method.chains, method.temperatures, model.energy(self.weights.at),
            base.flatten(), rows, self.generator,
        )  # fmt: skip
        discrete = model.data_kind in ("binary", "categories") and model.code_bits is not None
        centred = rows.times is None and not discrete if method.centred is None else method.centred
        settings = (model, rows, self.weights, chains, self.generator, method.weight_decay, centred)
        self.slopes = BinarySlopes(*settings, size=self.size) if self.binary else WeightSlopes(*settings)
        if given is not None and chains.state.shape[1]:  # those of a machine that has learned are far from its start
            chains.state.copy_(self._rows_as_states(chains.state))
        documents = self.slopes.of_documents
        self.optimizer = method.optimizer or ("adam" if documents else "momentum")
        # The chains' states answer the weights of some updates ago, which those run away from with momentum: the end is
        # the worse for it. What learns without an end, at a small rate, is quicker with it.
        usual = 0.0 if self.whole and method.kind != "cd" else 0.5
        self.momentum = usual if method.momentum is None else method.momentum
        rate = (1 - self.momentum) * (1.0 if discrete else 0.04) if self.optimizer == "momentum" else _ADAM
        if documents and not method.learning_rate:
            # What goes into a hidden unit grows with the length of documents. On a fifth of the training documents .01
            # was chosen at 73 tokens a document; at 677, of .01, .003 and .001, the second.
            assert rows.times is not None
            rate = _ADAM * min(1.0, math.sqrt(_LENGTH / max(float(rows.times.mean()), 1.0)))
        self.rate = method.learning_rate or rate

    def _random(self, base: Tensor) -> Params:
        """Small weights, of several machines with an axis of those. base: visible biases."""
        model, axes = self.model, (self.machines,) if self.machines > 1 else ()
        shape = (*axes, *model.shapes["weight"])
        noise = torch.randn(shape, generator=self.generator, dtype=torch.float32, device=base.device)
        bias = base.new_zeros(*axes, *model.shapes["hidden_bias"])
        visible = first_bias(base).expand(*axes, *base.shape)
        return {"weight": 0.01 * noise, "visible_bias": visible, "hidden_bias": bias}

    def _rows_as_states(self, state: Tensor) -> Tensor:
        """Chains that begin at rows."""
        completed = self.slopes.completed
        if self.rows.times is not None:
            return completed.expand_as(state).clone()
        return completed[
            torch.randint(len(completed), state.shape[:2], generator=self.generator, device=completed.device)
        ]

    def final_params(self) -> Params:
        """Return the weights of the fit: the best on rows held out, the average of the last ones, or these."""
        chosen = self.best[1] if self.best[1] is not None else self._averages()
        return {site: value.contiguous().clone() for site, value in self.weights.parts(chosen).items()}

    def choose(self, ascends: bool = False) -> bool:
        """Keep the best of machines trained side by side, or what exact ascent makes of them; return whether that
        converged."""
        if self.machines == 1 and not ascends:
            return True
        averages = self._averages() if self.machines > 1 else self._averages().unsqueeze(0)
        ended = True
        if ascends:
            rows = self.rows.statistic.cpu()
            priors = priors_of(self.model, self.method.weight_decay, len(rows), rows.double())
            assert priors is not None
            generator = torch.Generator().manual_seed(self.call.seed)
            found, ended = maximum(Ascent(rows, priors), [self.weights.parts(one) for one in averages], generator)
            best = self.weights.join({site: value.to(averages) for site, value in found.items()})
        else:
            scores = torch.tensor([self._exact_score(self.weights.parts(one)) for one in averages])
            best = averages[int(scores.nan_to_num(-torch.inf).argmax())].clone()
        self.machines, self.total, self.averaged = 1, best, 1
        self._watch(again=True)
        return ended

    @property
    def sums_cheap(self) -> bool:
        """Whether runs are compared by log p(x), which takes a sum of few terms."""
        energy = energy_of_shapes(self.model)
        whole = self.rows.times is None and self.rows.missing is None
        return whole and not energy.closed_form and min(energy.bits) <= _COMPARED_BITS

    def score(self) -> float:
        """How good the weights are: log p of rows held out, log p(x) + log p(theta) a row, or the pseudo-likelihood."""
        if self.held is not None or not self.sums_cheap:
            return self.best[0] if self.held is not None else self.trace[-1] / len(self.rows)
        return self._exact_score(self.final_params())

    def _exact_score(self, params: Params) -> float:
        with torch.no_grad():
            log_p, decay = common.log_likelihood(self.model, params, self.rows).mean(), self.method.weight_decay
            if decay is not None:
                return float(log_p - 0.5 * decay * params["weight"].square().sum())
            return float(log_p + self.model.log_prior(params) / len(self.rows))

    def _averages(self) -> Tensor:
        return self.total / self.averaged if self.averaged else self.weights.theta

    def run(self, bar: Progress) -> str:
        """Train, and say how it ended; ``ended`` has it too."""
        status = self._run(bar)
        if not self.ascends or self.interrupted:
            self.choose()
            return status
        status = f"{status}, then exact gradients"
        if self.choose(ascends=True):
            self.ended = Ended.CONVERGED
            return status
        self.ended = Ended.INTERRUPTED
        return f"interrupted after {status}"

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended it."""
        return self.ended is Ended.INTERRUPTED

    def _run(self, bar: Progress) -> str:
        done, stale, number = 0, 0, self.passes * self.per_pass
        looks = max(1, self.passes // _WATCHES)
        try:
            with bar, torch.no_grad():
                for done in range(self.passes):
                    order = torch.randperm(len(self.rows), generator=self.generator, device=self.total.device)
                    for part, index in enumerate(order.split(self.size)[: self.per_pass]):
                        self._update(index, (done * self.per_pass + part) / number)
                    if (done + 1) % looks == 0 or done + 1 == self.passes:
                        stale = 0 if self._watch() else stale + 1
                        bar.advance(self.trace[-1] / len(self.rows), looks)
                        if self.held is not None and stale >= self.method.patience:
                            self.ended = Ended.CONVERGED
                            return f"stopped after {done + 1} passes: no gain on held-out rows; the best was kept"
        except KeyboardInterrupt:
            if not self.trace:
                self._watch()
            self.ended = Ended.INTERRUPTED
            return f"interrupted after {done} passes"
        return f"{self.passes} passes"

    def _update(self, index: Tensor, share: float) -> None:
        rate = self.rate * (1 - share)
        if self.optimizer == "momentum":
            strength = 1 + (self.strength - 1) * max(0.0, 1 - 2 * share)
            self.weights.climb(self.slopes.of_posterior(index, rate, strength), rate, self.momentum)
        else:
            self.weights.climb_adam(self.slopes.of_posterior(index), rate)
        self.slopes.confine()
        if share >= 1 - self.method.averaging:
            self.total += self.weights.theta
            self.averaged += 1

    def _watch(self, again: bool = False) -> bool:
        """Whether rows held out gained. again: in place of the last look. Of several machines the first is seen."""
        theta = self._averages() if self.machines == 1 else self._averages()[0]
        if again and self.trace:
            self.trace.pop()
            self.watched["log_pseudo_likelihood"].pop()
        params = self.weights.parts(theta)
        seen = self.rows.select(slice(0, _WATCHED)) if len(self.rows) > _WATCHED else self.rows
        score = float(self._score(params, seen).mean())
        self.trace.append(score * len(self.rows))
        self.watched.setdefault("log_pseudo_likelihood", []).append(score)
        if self.held is None:
            return True
        held = float(self._score(params, self.held).mean())
        self.watched.setdefault("held_out", []).append(held)
        if seen.missing is None:
            free = [-common.negative_free_energy(common.free_energy_of(self.model, params, part), part).mean()
                    for part in (self.held, seen)]  # fmt: skip
            self.watched.setdefault("free_energy_gap", []).append(float(free[0] - free[1]))
        gained = held > self.best[0]
        if gained:
            self.best = held, theta.clone()
        return gained

    def _score(self, params: Params, rows: HarmoniumRows) -> Tensor:
        energy = common.free_energy_of(self.model, params, rows)
        if energy.closed_form or (min(energy.bits) <= _EXACT_BITS and rows.missing is None):
            return common.log_likelihood(self.model, params, rows)
        rows = rows.select(slice(0, _DOCUMENTS)) if self.slopes.of_documents else rows
        energy = common.free_energy_of(self.model, params, rows)
        if rows.missing is not None:
            rows = HarmoniumRows(next(completions(self.model, params, rows, 5, self.generator))[0], rows.base)
        return log_pseudo_likelihood(energy, rows, torch.Generator().manual_seed(0))
