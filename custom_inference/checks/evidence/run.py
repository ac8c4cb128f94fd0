"""The evidence of a whole model: exactly where a sum is known, else by tempered sampling with its standard error."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch

from custom_inference.checks.evidence import tempered
from custom_inference.checks.evidence.chib import estimate_by_chib, has_chib
from custom_inference.checks.evidence.coordinates import require_proper
from custom_inference.checks.evidence.exact import exact_evidence
from custom_inference.checks.evidence.labelings import (
    estimate_by_annealing,
    expect_other,
    has_labelings,
    require_labelings,
)
from custom_inference.checks.evidence.likelihood import joint_target_of, target_of
from custom_inference.checks.evidence.result import Evidence, combine
from custom_inference.core.annealing.estimate import Budget
from custom_inference.core.annealing.local import anneal_locals
from custom_inference.core.diagnostics import CONVERGED
from custom_inference.core.isolation import default_dtype, isolated
from custom_inference.core.programs.checked import check_program
from custom_inference.core.programs.reference import EXACTLY, best_reference
from custom_inference.core.reader import read_at
from custom_inference.core.settings import require_seed
from ppl_models import Data, MethodError, Model, PriorError
from ppl_models.block_models import BlockModel
from ppl_models.core.errors import unknown_name
from ppl_models.core.model import require_model
from ppl_models.data.held import MatrixLike, Source

METHODS = ("auto", "exact", "smc", "chib", "labelings")
#: Estimates whose logarithms differ by more than this, sd in nats, are dominated by a few of them.
_APART = 1.0
#: What is to be known of latents and globals that move together.
_TOGETHER = (
    "latents moved together with the globals: where both are narrow, as where a scale goes to 0, all runs may miss a "
    "part, and the estimate is then too low by more than its error"
)
#: R-hat of runs above this is remarked on: that of runs, few as they are, varies more than that of long chains.
_AGREE = 1.05


def marginal_likelihood(
    model: Model,
    x: Source,
    *,
    method: str = "auto",
    seed: int = 0,
    seconds: float = 60.0,
    mask: MatrixLike | None = None,
    progress: bool = True,
    **others: Any,
) -> Evidence:
    """Compute log p(x) of a model, its globals and the latents of its rows integrated out under its priors.

    Parameters
    ----------
    model: of rows, documents or graphs, with proper priors. x, mask, others: as for :func:`custom_inference.fit`.
    method: "exact": closed forms, and sums over all assignments: mixtures of one component, of up to 24 rows with
        two, up to 15 with more (conjugate priors), toy corpora of ``LDA``, ``SBM`` and ``PoissonSBM`` of few nodes.
        "smc": tempered sequential Monte Carlo over the globals, the latents of the rows summed or integrated out (by
        the model's exact engine; of programs without engines by sums), or, where they are real numbers without a
        closed form, moved together with the globals. It begins with draws from the prior, in which all K! labelings
        of components occur: none needs to be corrected for. "chib": Chib's estimate from the collapsed Gibbs sampler
        of a mixture with at most 12 components, averaged over all relabelings. "labelings": tempered sampling of the
        labelings of the nodes under ``SBM`` and ``PoissonSBM``, all else integrated out. "auto": exact where that
        takes seconds; of these block models "labelings"; of mixtures with conjugate priors "chib", if its chains
        agree; else "smc". What refuses the model or its priors is passed over.
    seed: the same seed gives the same result where the seconds do not cut it short.
    seconds: sampling ends when they are over, or earlier, with the error below .015 nats.

    Returns
    -------
    :class:`custom_inference.Evidence`; NaN, with the reason among its remarks, where the seconds did not suffice.
    Ctrl-C returns what the finished runs of "smc" say; where there is none, and by other methods, it is raised.

    Raises
    ------
    PriorError: a prior that is improper, or, of "exact" and "chib", not conjugate; it names the site.
    MethodError: latents that can neither be summed out nor moved (it names the site), a method that does not apply, an
    unknown one.
    """
    model = require_model(model)
    require_seed(seed)
    if method not in METHODS:
        raise MethodError(unknown_name("method of the evidence", method, METHODS))
    if not (math.isfinite(seconds) and seconds > 0):
        raise MethodError(f"seconds = {seconds}, expected a positive number")
    data = read_at(model, None, x, mask, others).to(device="cpu")
    check_program(model, data)
    scaled = model.on_scale_of(data)
    task = _Task(scaled, data, method, seed, time.perf_counter(), seconds, progress)
    require_proper(scaled)
    with isolated(seed), default_dtype(torch.float64):
        found = task.run()
    if scaled is not model:
        remark = "default priors are on the scale of the data, which p(x) is thus not quite free of"
        return replace(found, remarks=(*found.remarks, remark))
    return found


@dataclass(frozen=True)
class _Task:
    model: Model
    data: Data
    method: str
    seed: int
    begin: float
    allowed: float
    progress: bool

    def run(self) -> Evidence:
        if not self.model.unknown_sites and self.model.rows_are_independent:
            return self._at_known()
        ways = {
            "exact": self._exactly,
            "labelings": self._by_annealing,
            "chib": lambda: self._by_chib(self.allowed),
            "smc": self._by_smc,
        }
        return self._automatically() if self.method == "auto" else ways[self.method]()

    def _automatically(self) -> Evidence:
        """Take the first estimate that serves. One that something speaks against is kept for where no other does."""
        ways: list[Callable[[], Evidence]] = [self._exactly]
        ways += [self._by_annealing] if has_labelings(self.model) else []
        ways += [lambda: self._by_chib(self.allowed / 2)] if has_chib(self.model) else []
        ways += [self._by_smc] if len(ways) == 1 or self.model.rows_are_independent else []
        kept: Evidence | None = None
        for way in ways:
            try:
                found = way()
            except (MethodError, PriorError):
                if way is ways[-1] and kept is None:
                    raise
                continue
            if not found.remarks:
                return found
            if kept is None or math.isfinite(found.log_evidence):
                kept = found
        assert kept is not None
        return kept

    def _at_known(self) -> Evidence:
        """All globals are known: the latents alone are summed out, or their evidence estimated."""
        known = dict(self.model.known)
        if joint_target_of(self.model, self.data) is None or best_reference(self.model) in EXACTLY:
            total = float(target_of(self.model, self.data).log_likelihood(known))
            return self._result(total, 0.0, "exact", "all globals are known")
        found = anneal_locals(self.model, known, self.data, Budget(seconds=self.allowed), seed=self.seed)
        error = float(found.standard_error.square().sum().sqrt())
        how = "by annealed importance sampling of the latents: all globals are known"
        return self._result(float(found.log_evidence.sum()), error, "ais", how)

    def _result(self, value: float, error: float, method: str, how: str, **more: Any) -> Evidence:
        name = str(type(self.model).__name__)
        size = self.model.local_shape[:1] if self.model.has_components else ()
        label = f"{name} of {size[0]} components" if size else name
        seconds = time.perf_counter() - self.begin
        return Evidence(
            log_evidence=value, standard_error=error, method=method, how=how, model=label, seconds=seconds, **more
        )

    def _exactly(self) -> Evidence:
        found = exact_evidence(self.model, self.data)
        if found is not None:
            return self._result(found[0], 0.0, "exact", found[1])
        raise MethodError(
            f"no exact evidence of {type(self.model).__name__} with {len(self.data)} rows: known are mixtures of "
            "few rows with conjugate priors, toy corpora of LDA and block models of few nodes; "
            f"{expect_other(self.model)}"
        )

    def _by_smc(self) -> Evidence:
        joint = joint_target_of(self.model, self.data)
        target = target_of(self.model, self.data) if joint is None else joint
        how = f"by tempered sequential Monte Carlo over the globals{'' if joint is None else ' and latents'}"
        try:
            runs, interrupted = tempered.sample(
                target, seed=self.seed, deadline=self.begin + self.allowed, progress=self.progress,
                enough=lambda logs: combine(logs)[1] <= tempered.SMALL,
            )  # fmt: skip
        except tempered.Halted as halted:
            remark = (
                f"{self.allowed:g} seconds were over at temperature {halted.temperature:.2g} of 1 of the pilot run: "
                "there is no estimate; allow more"
            )
            return self._result(math.nan, math.nan, "smc", how, remarks=(remark,))
        if not len(runs.log_estimates):
            remark = (
                f"{self.allowed:g} seconds sufficed for no independent runs after the pilot run: there is no estimate; "
                "allow more"
            )
            return self._result(math.nan, math.nan, "smc", how, remarks=(remark,))
        value, error = combine(runs.log_estimates)
        number, size = runs.log_likelihood.shape
        remarks = _judge(runs.log_estimates, runs.r_hat(), "runs")
        return self._result(
            value, error, "smc", f"{how}, {number} runs of {size} particles",
            chains=runs.log_estimates, ess=runs.effective_size(), r_hat=runs.r_hat(), interrupted=interrupted,
            remarks=remarks if joint is None else (*remarks, _TOGETHER),
        )  # fmt: skip

    def _by_annealing(self) -> Evidence:
        require_labelings(self.model)
        logs, number = estimate_by_annealing(
            cast(BlockModel, self.model), self.data, seed=self.seed, deadline=self.begin + self.allowed,
            progress=self.progress,
        )  # fmt: skip
        if not len(logs):
            remark = (
                f"{self.allowed:g} seconds suffice for {max(0, number)} temperatures: there is no estimate; allow more"
            )
            how = "by tempered sampling of labelings"
            return self._result(math.nan, math.nan, "labelings", how, remarks=(remark,))
        value, error = combine(logs)
        how = f"by tempered sampling of labelings, {len(logs)} runs of {number} temperatures"
        return self._result(value, error, "labelings", how, chains=logs, remarks=_judge(logs, 1.0, "runs"))

    def _by_chib(self, seconds: float) -> Evidence:
        found = estimate_by_chib(
            self.model, self.data, seed=self.seed, deadline=self.begin + seconds, progress=self.progress,
            enough=lambda logs: combine(-logs)[1] <= tempered.SMALL,
        )  # fmt: skip
        value, error = combine(-found.log_estimates)
        how = f"by Chib's identity, {found.draws} draws of {len(found.log_estimates)} Gibbs chains"
        return self._result(
            -value, error, "chib", how, chains=found.log_estimates, ess=found.ess, r_hat=found.r_hat,
            remarks=_judge(found.log_estimates, found.r_hat, "chains"),
        )  # fmt: skip


def _judge(log_estimates: np.ndarray, r_hat: float, name: str) -> tuple[str, ...]:
    """Say what speaks against an estimate."""
    found = []
    if len(log_estimates) < 2:
        found.append("the seconds sufficed for one run alone, which has no error; allow more")
    elif np.std(log_estimates, ddof=1) > _APART:
        found.append(f"the {name} differ by {np.std(log_estimates, ddof=1):.1f} nats (sd): the error is a guess")
    if r_hat > _AGREE:
        found.append(f"the {name} disagree (R-hat {r_hat:.2f} of the log likelihood, {CONVERGED} is wanted)")
    return tuple(found)
