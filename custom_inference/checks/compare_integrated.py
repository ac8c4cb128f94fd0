"""Every method's fit of a toy corpus against the exact posterior with topics and proportions integrated out."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from custom_inference.core.fit import Fit, completed
from custom_inference.em.method import VariationalEM
from custom_inference.families.topics.exact import CollapsedPosterior, collapsed_posterior
from custom_inference.gibbs import CollapsedGibbs
from ppl_models import Data, MethodError, Model

#: E steps at the fitted globals until no share of a token changes by more than this.
_SETTLED, _MOST_STEPS = 1e-9, 2000


def compare_integrated(
    methods: Sequence[Any], model: Model, x: Any, *, seed: int = 0, mask: Any = None, progress: bool = True
) -> Iterator[tuple[dict[str, Any], Fit]]:
    """For each method its line of the table, with its name as "method", and its fit.

    bound: the method's lower bound on log p(y), of variational Bayes over the topics; NaN of others, whose objective is
        none with the topics integrated out. evidence: the exact log p(y). gap_per_row: (evidence - bound) / N.
    kl_per_row: KL(prod_t r_t || p(q | y)) / N of the method's factorised posterior of the tokens' topics, by the whole
        table of K^T values; NaN of samplers. A method that commits to one of K! labellings pays up to log K! for it.
    worst_marginal_error: max over pairs of tokens of |P~(q_t = q_t') - P(q_t = q_t' | y)|, in which labels do not
        matter; sum_k r_tk r_t'k of a factorised posterior, the share of draws of a sampler.
    seconds: wall time of the fit.
    """
    # The whole table of a toy corpus is laid out on the CPU, and everything is compared there.
    x = x.to(device="cpu") if isinstance(x, Data) else x.cpu() if isinstance(x, Tensor) else x
    exact = collapsed_posterior(model, x, mask=mask)
    for method in methods:
        begin = time.perf_counter()
        fitted = _every_chain(method)
        fit = completed(fitted.fit(model, x, mask=mask, seed=seed, progress=progress))
        seconds = time.perf_counter() - begin
        yield {"method": method.name, **_scores(method, fit, exact), "seconds": seconds}, fit


def _every_chain(method: Any) -> Any:
    """Samplers keep all their chains and the tokens' topics: what is compared does not depend on labels."""
    return replace(method, indicators=True, align=False) if isinstance(method, CollapsedGibbs) else method


def _scores(method: Any, fit: Fit, exact: CollapsedPosterior) -> dict[str, float]:
    together, divergence = _together(method, fit, exact)
    bound = float(fit.elbo[-1]) if fit.bound_name == "vb" else float("nan")
    rows = exact.num_documents
    return {
        "bound": bound,
        "evidence": exact.log_evidence,
        "gap_per_row": (exact.log_evidence - bound) / rows,
        "kl_per_row": divergence / rows,
        "worst_marginal_error": float((together - exact.co_assignment).abs().max()),
    }


def _together(method: Any, fit: Fit, exact: CollapsedPosterior) -> tuple[Tensor, float]:
    """P~(q_t = q_t'), (T, T), and the divergence of the method's posterior of q."""
    draws = fit.draws or {}
    if "indicator" in draws:
        q = draws["indicator"].flatten(0, 1)  # (S, T)
        return sum_of_pairs(torch.nn.functional.one_hot(q).to(exact.alpha)), float("nan")
    if {"topic", "topic_proportion"} <= set(draws):
        # Given both, the tokens' topics are independent: P(q_t = k | pi, b) ~ pi_ik b_kv, averaged over the draws.
        topic, proportion = (draws[site].flatten(0, 1) for site in ("topic", "topic_proportion"))
        shares = proportion[:, exact.document] * topic[:, :, exact.word].mT
        return sum_of_pairs(shares / shares.sum(-1, keepdim=True)), float("nan")
    if not isinstance(method, VariationalEM):
        raise MethodError(f"{method.name} says nothing of single tokens; use VariationalEM, CollapsedGibbs or NUTS")
    shares = token_shares(method, fit)
    return sum_of_pairs(shares[None]), exact.divergence(shares)


def sum_of_pairs(shares: Tensor) -> Tensor:
    """sum_k r_tk r_t'k averaged over S draws (S, T, K): (T, T), 1 on the diagonal."""
    flat = shares.transpose(0, 1).flatten(1)
    return (flat @ flat.T / len(shares)).fill_diagonal_(1.0)


def token_shares(method: VariationalEM, fit: Fit) -> Tensor:
    """The posterior topic of every token (T, K) under the family that a fit used, at its globals."""
    model = fit.model
    engine: Any = method.engine(model)
    if not hasattr(engine, "responsibilities"):
        raise MethodError(f"the engine of {method.name} gives no topics of single tokens")
    rows = engine.rows(model, fit.data)
    with torch.no_grad():
        state = _own_state(engine, fit)
        step = engine.e_step(model, state, rows)
        shares = engine.responsibilities(model, state, rows, step.locals)
        for _ in range(_MOST_STEPS):
            step = engine.e_step(model, state, rows, step.locals)
            before, shares = shares, engine.responsibilities(model, state, rows, step.locals)
            if not len(shares) or float((shares - before).abs().max()) < _SETTLED:
                break
    # A cell of the counts stands for all tokens of one word in one document.
    return shares.repeat_interleave(rows.counts.values().long(), 0).double()


def _own_state(engine: Any, fit: Fit) -> Any:
    """The engine's own state: of a posterior of the topics its concentration (CVB0: less the prior's)."""
    posterior = fit.global_posterior.get("topic")
    return engine.state.from_posterior(fit.model, posterior) if posterior is not None else dict(fit.globals)
