"""Comparison of every method's fit of a toy corpus with the exact posterior of the tokens' topics, all else integrated
out."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from custom_inference.core.fit import Fit, require_complete
from custom_inference.core.local_inference import WHAT
from custom_inference.core.method import Method
from custom_inference.em.method import VariationalEM
from custom_inference.families.topics.exact import CollapsedPosterior, collapsed_posterior
from custom_inference.gibbs import CollapsedGibbs
from ppl_models import Data, MethodError, Model

#: E steps at the fitted globals until no token's topic probability changes by more than this.
_SETTLED, _MOST_STEPS = 1e-9, 2000


def score_fits(
    model: Model, x: Any, *, seed: int, mask: ArrayLike | None, progress: bool
) -> Callable[[Any], tuple[dict[str, Any], Fit]]:
    """method -> the columns of its line, and its fit. Raises MethodError and CapacityError where nothing is exact."""
    # The whole table is laid out on the CPU, and everything is compared there.
    x = x.to(device="cpu") if isinstance(x, Data) else x.cpu() if torch.is_tensor(x) else x
    exact = collapsed_posterior(model, x, mask=mask)
    rows = exact.num_documents

    def score(method: Method) -> tuple[dict[str, Any], Fit]:
        begin = time.perf_counter()
        # Samplers keep all their chains and the tokens' topics: what is compared does not depend on labels.
        every = replace(method, indicators=True, align=False) if isinstance(method, CollapsedGibbs) else method
        fit = require_complete(every.fit(model, x, mask=mask, seed=seed, progress=progress))
        seconds = time.perf_counter() - begin
        together, divergence, what, posterior = _together(method, fit, exact)
        bound = float(fit.elbo[-1]) if fit.bound_name == "vb" else float("nan")
        scores = {
            "what": what,
            "posterior": posterior,
            "bound": bound,
            "standard_error": abs(0.0 * bound),
            "evidence": exact.log_evidence,
            "gap_per_row": (exact.log_evidence - bound) / rows,
            "kl_per_row": divergence / rows,
            "worst_marginal_error": float((together - exact.co_assignment).abs().max()),
            "seconds": seconds,
        }
        return scores, fit

    return score


def _together(method: Method, fit: Fit, exact: CollapsedPosterior) -> tuple[Tensor, float, str, str]:
    """P~(q_t = q_t'), (T, T), the divergence of the method's posterior of q, what that is, and its name."""
    draws = fit.draws or {}
    if "indicator" in draws:
        q = draws["indicator"].flatten(0, 1)  # (S, T)
        same = _sum_of_pairs(torch.nn.functional.one_hot(q).to(exact.alpha))
        return same, float("nan"), "draws", f"{method.name}, topics of tokens"
    if {"topic", "topic_proportion"} <= set(draws):
        # Given both, the tokens' topics are independent: P(q_t = k | pi, b) ~ pi_ik b_kv, averaged over the draws.
        topic, proportion = (draws[site].flatten(0, 1) for site in ("topic", "topic_proportion"))
        r = proportion[:, exact.document] * topic[:, :, exact.word].mT
        same = _sum_of_pairs(r / r.sum(-1, keepdim=True))
        return same, float("nan"), "draws", f"{method.name}, topics and proportions"
    if not isinstance(method, VariationalEM):
        raise MethodError(f"{method.name} says nothing of single tokens; use VariationalEM, CollapsedGibbs or NUTS")
    r, engine = _responsibilities(method, fit), method.engine(fit.model)
    return _sum_of_pairs(r[None]), exact.divergence(r), WHAT[engine.objective], engine.name


def _sum_of_pairs(r: Tensor) -> Tensor:
    """sum_k r_tk r_t'k averaged over S draws (S, T, K): (T, T), 1 on the diagonal."""
    flat = r.transpose(0, 1).flatten(1)
    return (flat @ flat.T / len(r)).fill_diagonal_(1.0)


def _responsibilities(method: VariationalEM, fit: Fit) -> Tensor:
    """The posterior topic of every token (T, K) under the family that a fit used, at its globals."""
    model, posterior = fit.model, fit.global_posterior.get("topic")
    engine: Any = method.engine(model)
    if not hasattr(engine, "responsibilities"):
        raise MethodError(f"the engine of {method.name} gives no topics of single tokens")
    rows = engine.rows(model, fit.data)
    with torch.no_grad():
        # The engine's own state: of a posterior of the topics its concentration (CVB0: less the prior's).
        state = dict(fit.globals) if posterior is None else engine.state.from_posterior(model, posterior)
        step = engine.e_step(model, state, rows)
        r = engine.responsibilities(model, state, rows, step.locals)
        for _ in range(_MOST_STEPS):
            step = engine.e_step(model, state, rows, step.locals)
            before, r = r, engine.responsibilities(model, state, rows, step.locals)
            if not len(r) or float((r - before).abs().max()) < _SETTLED:
                break
    # A cell of the counts stands for all tokens of one word in one document.
    return r.repeat_interleave(rows.counts.values().long(), 0).double()
