"""How far is an approximation from the truth? One call."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from custom_inference.core.fit import Fit, completed
from custom_inference.core.local_inference import Local
from custom_inference.core.posteriors import kullback_leibler
from custom_inference.em.method import VariationalEM
from custom_inference.exact import Exact
from custom_inference.families.topics.exact import CollapsedPosterior, collapsed_posterior
from custom_inference.gibbs import CollapsedGibbs
from custom_inference.methods import fit as default_fit
from ppl_models import Data, MethodError, Model
from ppl_models.core.model import require_model

#: E steps at the fitted globals until no token's topic probability changes by more than this.
_SETTLED, _MOST_STEPS = 1e-9, 2000
#: Name of a method, its columns of the table, and what it found.
Line = tuple[str, dict[str, float], Any]


@dataclass(frozen=True)
class Comparison:
    """table: one line a method; locals: method -> its posterior and bound per row; params: the common globals.

    With ``at="integrated"`` there are no common globals: fits: method -> its own fit.
    interrupted: Ctrl-C ended the comparison; the table has the methods until then.
    """

    table: pd.DataFrame
    locals: dict[str, Local] = field(default_factory=dict)
    params: dict[str, Tensor] = field(default_factory=dict)
    fits: dict[str, Fit] = field(default_factory=dict)
    interrupted: bool = False

    def __repr__(self) -> str:
        return self.table.to_string(float_format=lambda value: f"{value:.4g}")

    def _repr_html_(self) -> str:
        from custom_inference.faces import displays

        return displays.report(f"Comparison of {len(self.table)} methods", table=self.table, plot=self.plot)

    def plot(self, **settings: Any) -> Any:
        """Bars of the gap per row and of the worst marginal error.

        settings: ``title``, and ``axes`` to draw on, two of them; returns these, or a new Figure.
        """
        from custom_inference.checks.plots import plot_comparison

        return plot_comparison(self.table, **settings)


def compare(
    methods: Sequence[Any],
    model: Model,
    x: Any,
    at: Fit | Mapping[str, Tensor] | str | None = None,
    seed: int = 0,
    *,
    mask: Any = None,
    progress: bool = True,
) -> Comparison:
    """Every method's posterior over the local latents at the SAME globals, against the exact one.

    at: the globals: a fit, or a mapping site -> tensor; by default those of the default fit. With "integrated" every
        method is fitted, and compared with the exact posterior of the tokens' topics, topics and proportions integrated
        out (toy corpora under LDA).
    Columns of ``table``: ``bound`` (sum over the rows of the method's bound), ``evidence`` (exact),
    ``gap_per_row`` = (evidence - bound) / N, ``kl_per_row`` = mean KL(q || exact posterior),
    ``worst_marginal_error`` = max |E_q[s_ni] - E[s_ni | x_n]| (of codes: of the marginals), ``seconds`` (wall time of
    the local inference). Points have no bound (NaN) and an infinite divergence.

    With "integrated" ``bound`` is that of variational Bayes over the topics on log p(y), NaN of others, whose objective
    is none with the topics integrated out; ``kl_per_row`` = KL(prod_t r_t || p(q | y)) / N of the factorised posterior
    of the tokens' topics, by the whole table of K^T values, NaN of samplers (a method that commits to one of K!
    labellings pays up to log K! for it); ``worst_marginal_error`` = max over pairs of tokens of
    |P~(q_t = q_t') - P(q_t = q_t' | y)|, in which labels do not matter: sum_k r_tk r_t'k of a factorised posterior, the
    proportion of draws of a sampler; ``seconds`` (wall time of the fit).

    Ctrl-C returns the methods that are done. Raises CapacityError where the exact posterior does not fit into memory.
    """
    if not methods:
        raise MethodError("no methods to compare")
    if isinstance(at, str):
        if at != "integrated":
            raise MethodError(f'at = {at!r}, expected a fit, a mapping site -> tensor, "integrated", or nothing')
        table, fits, interrupted = _collected(_of_fits(methods, model, x, seed, mask, progress))
        return Comparison(table, fits=fits, interrupted=interrupted)
    require_model(model)
    data = model.as_read(model.prepare(x, mask=mask, dtype=torch.float64))
    if at is None:
        at = completed(default_fit(model, data, seed=seed, progress=progress))
    # A fit may have fewer components than were asked for: its model is the one its parameters belong to.
    chosen = at.model if isinstance(at, Fit) else model
    params = {s: v.to(data.x) for s, v in chosen.check_params(at.params if isinstance(at, Fit) else at).items()}
    table, locals_, interrupted = _collected(_of_locals(methods, chosen, params, data, seed))
    return Comparison(table, locals_, params, interrupted=interrupted)


def _collected(lines: Iterator[Line]) -> tuple[pd.DataFrame, dict[str, Any], bool]:
    """The table, what each method found under a name of its own, and whether Ctrl-C ended them after the first."""
    rows, found, interrupted = [], {}, False
    try:
        for name, scores, one in lines:
            numbered = (f"{name} #{i}" for i in range(2, len(found) + 3))
            name = name if name not in found else next(other for other in numbered if other not in found)
            rows.append({"method": name, **scores})
            found[name] = one
    except KeyboardInterrupt:
        if not found:
            raise
        interrupted = True
    return pd.DataFrame(rows).set_index("method"), found, interrupted


def _of_locals(
    methods: Sequence[Any], model: Model, params: dict[str, Tensor], data: Data, seed: int
) -> Iterator[Line]:
    with torch.no_grad():
        exact = Exact().local_posterior(model, params, data)
    rows = len(exact.posterior.mean)  # of a graph the nodes: its bound is one number
    for method in methods:
        begin = time.perf_counter()
        local = method.local_posterior(model, params, data, seed=seed)
        seconds = time.perf_counter() - begin
        scores = {
            "bound": float(local.bound.sum()),
            "evidence": float(exact.bound.sum()),
            "gap_per_row": float((exact.bound - local.bound).sum() / rows),
            "kl_per_row": float(kullback_leibler(local.posterior, exact.posterior).sum() / rows),
            "worst_marginal_error": float((local.posterior.mean - exact.posterior.mean).abs().max()),
        }
        yield method.name, {**scores, "seconds": seconds}, local


def _of_fits(methods: Sequence[Any], model: Model, x: Any, seed: int, mask: Any, progress: bool) -> Iterator[Line]:
    """Every method's fit of a toy corpus against the exact posterior of the tokens' topics."""
    # The whole table is laid out on the CPU, and everything is compared there.
    x = x.to(device="cpu") if isinstance(x, Data) else x.cpu() if isinstance(x, Tensor) else x
    exact = collapsed_posterior(model, x, mask=mask)
    rows = exact.num_documents
    for method in methods:
        begin = time.perf_counter()
        # Samplers keep all their chains and the tokens' topics: what is compared does not depend on labels.
        every = replace(method, indicators=True, align=False) if isinstance(method, CollapsedGibbs) else method
        fit = completed(every.fit(model, x, mask=mask, seed=seed, progress=progress))
        seconds = time.perf_counter() - begin
        together, divergence = _together(method, fit, exact)
        bound = float(fit.elbo[-1]) if fit.bound_name == "vb" else float("nan")
        scores = {
            "bound": bound,
            "evidence": exact.log_evidence,
            "gap_per_row": (exact.log_evidence - bound) / rows,
            "kl_per_row": divergence / rows,
            "worst_marginal_error": float((together - exact.co_assignment).abs().max()),
        }
        yield method.name, {**scores, "seconds": seconds}, fit


def _together(method: Any, fit: Fit, exact: CollapsedPosterior) -> tuple[Tensor, float]:
    """P~(q_t = q_t'), (T, T), and the divergence of the method's posterior of q."""
    draws = fit.draws or {}
    if "indicator" in draws:
        q = draws["indicator"].flatten(0, 1)  # (S, T)
        return _sum_of_pairs(torch.nn.functional.one_hot(q).to(exact.alpha)), float("nan")
    if {"topic", "topic_proportion"} <= set(draws):
        # Given both, the tokens' topics are independent: P(q_t = k | pi, b) ~ pi_ik b_kv, averaged over the draws.
        topic, proportion = (draws[site].flatten(0, 1) for site in ("topic", "topic_proportion"))
        r = proportion[:, exact.document] * topic[:, :, exact.word].mT
        return _sum_of_pairs(r / r.sum(-1, keepdim=True)), float("nan")
    if not isinstance(method, VariationalEM):
        raise MethodError(f"{method.name} says nothing of single tokens; use VariationalEM, CollapsedGibbs or NUTS")
    r = _responsibilities(method, fit)
    return _sum_of_pairs(r[None]), exact.divergence(r)


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
