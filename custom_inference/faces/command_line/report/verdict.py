"""Whether to worry: how a fit ended, whether its starts and chains agreed, and how sure its numbers are."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pandas as pd

from custom_inference.core.diagnostics import CONVERGED
from custom_inference.core.ended import Ended
from custom_inference.core.fit import Fit
from custom_inference.methods import methods_for

#: Settings of methods that say how long they go on.
_LIMITS = ("max_iterations", "max_sweeps", "sweeps", "steps", "max_steps", "draws", "seconds")
#: Methods with a posterior of the globals: in closed form, by draws of its own sampler, by Pyro's generic ones.
_WITH_POSTERIOR = ("vb", "gibbs", "svi_normal", "nuts")
_ENDS = {
    Ended.CONVERGED: "",
    Ended.UNBOUNDED: "The objective rises without end, so that the numbers maximise nothing: give informative priors, "
    "or fewer components.",
    Ended.FAILED: "The fit ended short of a maximum, and not for want of steps: do not rely on it before another seed "
    "or method confirms it.",
    Ended.COMPLETE: "All steps of the schedule were taken, which does not look whether the objective stands still.",
    Ended.INTERRUPTED: "The fit was interrupted: it holds the best state until then, and further steps may change it.",
    Ended.SAMPLED: "",
    Ended.SOLVED: "There was nothing to iterate: the answer is exact.",
    Ended.UNKNOWN: "",
}


def judge(fit: Fit, described: pd.DataFrame | None = None, *, behind: bool = False) -> list[str]:
    """Return sentences that say whether to worry, the verdict first. described: of draws, what is said of each number,
    with R-hat. behind: whether no components predict better, so that nothing is calm but the fit itself."""
    ended, agreed = _judge_end(fit), _judge_agreement(fit)
    mixed = _judge_draws(fit, described)
    found = [one for one in (ended, agreed, mixed) if one]
    worried = fit.ended in (Ended.LIMIT, Ended.UNBOUNDED, Ended.FAILED, Ended.INTERRUPTED)
    worried = worried or "not yet agree" in mixed or "Only one" in agreed
    if fit.ended in (Ended.CONVERGED, Ended.UNKNOWN) and not found:
        return ["Nothing says whether other starts would agree: fit again with another `--seed`, and compare."]
    if not worried and fit.ended in (Ended.CONVERGED, Ended.SOLVED, Ended.SAMPLED) and (agreed or mixed):
        calm = "The fit itself ended well." if behind else "No sign of trouble."
        return found if "one start" in agreed or "optima" in agreed else [calm, *found]
    return ["To be taken with care.", *found] if worried else found


def _judge_end(fit: Fit) -> str:
    if fit.ended is not Ended.LIMIT:
        return _ENDS[fit.ended]
    method: Any = fit.method
    known = {one.name for one in fields(method)} if hasattr(method, "__dataclass_fields__") else set()
    setting = next((name for name in _LIMITS if name in known), None)
    longer = f" `--set {setting}=N` with a larger N than {getattr(method, setting)} lets it go on." if setting else ""
    return f"The fit was stopped at its limit before the objective stood still: numbers may still change.{longer}"


def _judge_agreement(fit: Fit) -> str:
    scores = fit.details.get("start_scores") or []
    agreeing, tried = fit.details.get("agreeing_starts"), len(scores)
    if "chains" in fit.details and "agreeing" in fit.details:
        agreeing, tried = fit.details["agreeing"], fit.details["chains"]
    if agreeing is None or not tried:
        return ""
    if tried == 1:
        return "There was one start, so that nothing says whether another would find better components."
    if agreeing == 1:
        return (
            f"Only one of {tried} starts found these components, and the others ended elsewhere, no better: there may "
            f"be better ones still. Fit again with another `--seed`, and compare the objective."
        )
    found = f"{agreeing} of {tried} starts found these components"
    if 2 * agreeing < tried:
        return (
            f"{found}, fewer than half: there are other optima, in which the others ended, and the best of all was "
            f"taken. Fit again with another `--seed`, and compare the objective."
        )
    return f"{found} ({'the others ended elsewhere, no better' if agreeing < tried else 'all of them'})."


def has_chains(fit: Fit) -> bool:
    """Return whether the draws are states of Markov chains, of which R-hat says something: samplers keep the log joint
    of every state, and draws from an approximation have none."""
    return fit.draws is not None and "lp" in fit.sample_stats


def _judge_draws(fit: Fit, described: pd.DataFrame | None) -> str:
    if fit.draws is None or not has_chains(fit):
        return ""
    chains = next(iter(fit.draws.values())).shape[0]
    alone = " One chain cannot show modes that it missed." if chains == 1 else ""
    worst = (
        float("nan")
        if described is None or "r_hat" not in described
        else max((float(one) for one in described["r_hat"].to_list() if one == one), default=float("nan"))
    )
    if worst != worst:
        return f"Nothing says whether the draws have converged: they have no R-hat.{alone}"
    if worst > CONVERGED:
        return f"The draws do not yet agree (worst R-hat {worst:.3f}, above {CONVERGED}): take more of them.{alone}"
    return f"The draws agree (worst R-hat {worst:.3f}).{alone}"


def say_how_sure(fit: Fit, intervals: bool) -> str:
    """Return what is known of how far numbers may be from the truth, or how to learn it."""
    drawn = ""
    if fit.draws is not None:
        number = next(iter(fit.draws.values()))
        drawn = f"{number.shape[0] * number.shape[1]} draws from "
    points = fit.point_estimates
    beside = f" Of {', '.join(points)} only point estimates are known." if points else ""
    if intervals and has_chains(fit):
        return f"Intervals of 90 %, of {drawn}the posterior.{beside}"
    if intervals:
        return (
            f"Intervals of 90 %, of {drawn}the approximation of the posterior that {fit.method_name} found: it is "
            f"around one solution, and such intervals tend to be too narrow.{beside}"
        )
    if fit.global_posterior or drawn:
        kind = "a posterior" if has_chains(fit) else "an approximate posterior"
        return f"The fit has {kind}, in fit.safetensors and posterior.nc, but no intervals of components.{beside}"
    return f"Only a point estimate is known: nothing says how far the numbers may be from the truth.{_suggest(fit)}"


def _suggest(fit: Fit) -> str:
    name = name_method_with_posterior(fit)
    return "" if name is None else f" `--method {name}` fits a posterior, with intervals."


def name_method_with_posterior(fit: Fit) -> str | None:
    """Return the quickest method that finds a posterior of the globals of this model, if there is one."""
    able = methods_for(fit.model)
    return next((name for name in _WITH_POSTERIOR if name in able), None)
