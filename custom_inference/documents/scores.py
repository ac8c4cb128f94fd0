"""How well document models predict: one interface for LDA, PLSA, mixtures, and what is built on them.

    perplexity = exp(-(1/N) sum_i (1/L_i) log q(y_i))      per document                     (Murphy 2012, eq. 27.29)
    perplexity = exp(-sum_i log q(y_i) / sum_i L_i)        per token: all tokens pooled

with natural logarithms (Murphy mixes them with base 2 in eqs. 27.24-27.26) and q(y_i) the probability of the L_i tokens
of a held-out document in their order, without the multinomial coefficient.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from custom_inference.core.annealing.estimate import Budget
from custom_inference.core.fit import Fit
from custom_inference.core.isolation import seed_of
from custom_inference.core.local_inference import ANNEALED, anneal_local, bounds_of, log_likelihood
from custom_inference.core.settings import require_positive
from custom_inference.documents import samplers
from custom_inference.documents.samplers import split_tokens
from custom_inference.families.rows.documents import DocumentRows
from ppl_models import Data, DataError, DataWarning, MethodError, Model
from ppl_models.core.errors import unknown_name
from ppl_models.distributions import Tokens

#: Draws of what proportions are functions of, over which these are averaged: rounds, and draws of each.
_ROUNDS, _DRAWS = 10, 10


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Scores of held-out documents.

    log_probability: log q(y_i) (N,), in nats. tokens: how many were scored, (N,). how: what q is.
    standard_error: Monte Carlo error of log_probability (N,), for estimates by sampling; None where there is but one
        run. Such estimates are unbiased for q(y_i); their logarithms are low on average, by half the squared error.
    """

    log_probability: Tensor
    tokens: Tensor
    how: str = ""
    standard_error: Tensor | None = None

    def perplexity(self, per: str = "token") -> float:
        """exp of minus the mean log probability, over all tokens ("token") or of the documents' means ("document").

        Documents without tokens say nothing and are left out.
        """
        if per not in ("token", "document"):
            raise MethodError(unknown_name("mean of a perplexity", per, ("token", "document")))
        scored = self.tokens > 0
        if not bool(scored.any()):
            raise DataError("no tokens to score", axis="document", expected="documents with words of the vocabulary")
        log_p, tokens = self.log_probability[scored], self.tokens[scored]
        mean = log_p.sum() / tokens.sum() if per == "token" else (log_p / tokens).mean()
        return float(torch.exp(-mean))


def perplexity(fit: Fit, x: Any, *, how: str = "completion", per: str = "token", **settings: Any) -> float:
    """Perplexity of documents ``x`` under a fit: :func:`held_out` with its arguments, and ``per`` "token" or
    "document" (Murphy 2012, eq. 27.29)."""
    return held_out(fit, x, how=how, **settings).perplexity(per)


def held_out(
    fit: Fit, x: Any, *, how: str = "completion", mask: Any = None, floor: float = 0.0, **settings: Any
) -> HeldOut:
    """log q(y_i) of held-out documents, at the topics of a fit.

    how, with its settings
    ----------------------
    the name of a bound (``fit.bounds``): "exact" is exact, others bound log p(y_i | topics) from below.
    "ais": log p(y_i | topics), estimated until the standard errors are small or ``seconds`` = 60 are over, of any model
        (:class:`custom_inference.AIS`; topics of tokens by particles that look ahead); ``seed``.
    "importance": log p(y_i | topics) by importance sampling, for short documents; ``samples`` = 1000, ``from_prior`` =
        .1 the share of the draws that come from the prior (1: all), the others from an approximate posterior; ``seed``.
    "left_to_right": by a particle filter; ``particles`` = 20, ``sweeps`` = 1 of Gibbs a token, ``runs`` = 1; ``seed``.
    "plugin": log p(y_i | proportions folded in from y_i itself, topics): no held-out probability, and too good.
    "completion": proportions are folded in from one half of the tokens of each document and score the other half;
        ``share`` = .5 of the tokens are observed, drawn by ``seed``; or ``x`` is observed and ``held_out`` scored.
    These two take ``alpha`` (by default the model's) and ``iterations`` = 100 of folding in; see ``fold_in``. Where the
    model has another prior of proportions than a Dirichlet, they are those of the fit's own inference.
    Mixtures have one topic a document: their evidence is exact, and is what the samplers are answered with.

    What the model takes beside the words (the documents' slices) is given by its name.
    floor: topics are raised to this and normalised; without, words that a topic excludes can have probability 0.

    Raises MethodError for an unknown ``how``, or a setting that it does not have.
    """
    if fit.model.data_kind != "documents":
        raise MethodError(f"{type(fit.model).__name__} is no model of documents; see fit.log_likelihood")
    if not 0 <= floor < 1:
        raise MethodError(f"floor = {floor}, expected a small number of at least 0")
    valid = (*bounds_of(fit.model), ANNEALED, *_HOW)
    if how not in valid:
        raise MethodError(unknown_name("score of held-out documents", how, valid))
    beside = {site: settings.pop(site) for site in fit.model.other_sites if site in settings}
    if "held_out" in settings:
        settings["held_out"] = fit.read(settings["held_out"], None, **beside)
    params, data = dict(fit.globals), fit.read(x, mask, **beside)
    model: Any = fit.model
    changing = "drift_variance" in model.sites and how in _HOW  # of topics that change
    if changing:
        params["topic"], data = model.topics(params), model.dated(data)
        settings |= {"held_out": model.dated(settings["held_out"])} if "held_out" in settings else {}
    if "topic" in params:
        topic = params["topic"].clamp(min=floor)
        topic = topic / topic.sum(-1, keepdim=True)
        params["topic"] = topic.transpose(0, 1).flatten(1) if changing else topic
    elif how in _HOW:
        bounds = ", ".join(bounds_of(fit.model))
        raise MethodError(f"how = {how!r} is for models with topics; valid for {type(fit.model).__name__}: {bounds}")
    problem = _Problem(fit.model, params, data, DocumentRows.of(data), partial(_mean_proportions, fit))
    score = _HOW.get(how) or (_anneal if how == ANNEALED else partial(_bound, name=how))
    known = [name for name in inspect.signature(score).parameters if name not in ("problem", "name")]
    for name in settings:
        if name not in known:
            raise MethodError(unknown_name(f"setting of how = {how!r}", name, known))
    found = score(problem, **settings)
    if impossible := int(torch.isinf(found.log_probability).sum()):
        message = f"{impossible} documents have probability 0, and the perplexity is infinite; floor=1e-12 avoids it"
        warnings.warn(message, DataWarning, stacklevel=2)
    return replace(found, how=how)


class _Problem(NamedTuple):
    """The documents, and a fit's model and globals with floored topics. infer: posterior mean proportions (N, K) of
    documents, by the fit's own inference."""

    model: Model
    params: dict[str, Tensor]
    data: Data
    rows: DocumentRows
    infer: Callable[[Data], Tensor]

    @property
    def log_coefficient(self) -> Tensor:
        """What the model counts for the orders of the words, (N,)."""
        return replace(self.rows, coefficient=getattr(self.model, "coefficient", False)).log_coefficient


def _bound(problem: _Problem, seed: int = 0, *, name: str) -> HeldOut:
    log_p = log_likelihood(problem.model, problem.params, problem.data, bound=name, seed=seed)
    return HeldOut(log_probability=log_p - problem.log_coefficient, tokens=problem.rows.lengths)


def _anneal(problem: _Problem, seconds: float = 60.0, seed: int = 0) -> HeldOut:
    require_positive("seconds", seconds)
    found = anneal_local(problem.model, problem.params, problem.data, Budget(seconds=seconds), seed=seed)
    log_p = found.bound - problem.log_coefficient
    return HeldOut(log_probability=log_p, tokens=problem.rows.lengths, standard_error=found.standard_error)


def _importance(problem: _Problem, samples: int = 1000, from_prior: float = 0.1, seed: int = 0) -> HeldOut:
    if samples < 2 or not 0 < from_prior <= 1:
        raise MethodError(f"samples = {samples}, from_prior = {from_prior}; expected at least 2, and a share up to 1")

    def sampler(topic: Tensor, alpha: Tensor, rows: DocumentRows, **settings: Any) -> samplers.Estimate:
        # The prior's share of the folded-in posterior mean is taken off again: what is left are the document's tokens.
        mean = fold_in(problem.model, problem.params, rows, alpha=alpha, iterations=50)
        expected = (mean * (rows.lengths.unsqueeze(1) + alpha.sum()) - alpha).clamp(min=0)
        return samplers.importance(topic, alpha, rows, expected, **settings)

    return _estimate(problem, sampler, samples=samples, from_prior=from_prior, seed=seed)


def _left_to_right(problem: _Problem, particles: int = 20, sweeps: int = 1, runs: int = 1, seed: int = 0) -> HeldOut:
    if min(particles, runs) < 1 or sweeps < 0:
        raise MethodError(f"particles = {particles}, sweeps = {sweeps}, runs = {runs}; expected at least 1, 0 and 1")
    return _estimate(problem, samplers.left_to_right, particles=particles, sweeps=sweeps, runs=runs, seed=seed)


def _estimate(problem: _Problem, sampler: Callable[..., samplers.Estimate], **settings: Any) -> HeldOut:
    """Estimate held-out probabilities by a sampler; those of a mixture are exact."""
    if "mixing_proportion" in problem.model.shapes:  # one topic a document
        return _bound(problem, name="exact")
    topic, rows = problem.params["topic"], problem.rows
    estimate = sampler(topic, topic_prior(problem.model, topic), rows, **settings)
    log_mean, error = (value.to(topic) for value in estimate)
    error = None if bool(torch.isnan(error).all()) else error
    return HeldOut(log_probability=log_mean, tokens=rows.lengths, standard_error=error)


def _score_completion(
    problem: _Problem, observed: Data, scored: DocumentRows, alpha: ArrayLike | None, iterations: int
) -> HeldOut:
    """sum_v n_iv log sum_k theta_ik b_kv of the ``scored`` tokens, theta being folded in from the ``observed`` ones; by
    the fit's own inference where the prior of proportions is no Dirichlet that is the same for all documents."""
    model, topic = problem.model, problem.params["topic"]
    if alpha is None and "mixing_proportion" not in model.shapes and not _has_dirichlet(model):
        proportion = problem.infer(observed).to(topic)
    else:
        proportion = fold_in(model, problem.params, DocumentRows.of(observed), alpha=alpha, iterations=iterations)
    log_p = Tokens(proportion, topic).log_prob(scored.counts.to(topic.dtype))
    return HeldOut(log_probability=log_p, tokens=scored.lengths)


def _mean_proportions(fit: Fit, data: Data) -> Tensor:
    """Compute posterior mean proportions (N, K), over draws where they are not the local values themselves."""
    model: Any = fit.model
    posterior = fit.posterior_of(data)
    mean = posterior.mean
    if model.proportions(mean) is mean:
        return mean
    seeds = (seed_of(fit.seed, "proportions", number) for number in range(_ROUNDS))
    rounds = (model.proportions(posterior.sample(_DRAWS, seed=seed)).mean(0) for seed in seeds)
    return sum(rounds, torch.zeros_like(mean)) / _ROUNDS


def _plugin(problem: _Problem, alpha: ArrayLike | None = None, iterations: int = 100) -> HeldOut:
    return _score_completion(problem, problem.data, problem.rows, alpha, iterations)


def _completion(
    problem: _Problem,
    held_out: Data | None = None,
    share: float = 0.5,
    alpha: ArrayLike | None = None,
    iterations: int = 100,
    seed: int = 0,
) -> HeldOut:
    if held_out is None:
        observed, scored = split_tokens(problem.data, share=share, seed=seed)
    else:
        observed, scored = problem.data, held_out
        if len(observed) != len(scored):
            found = f"{len(scored)} held-out documents beside {len(observed)} observed ones"
            raise DataError(found, axis="document", expected="the two parts of the same documents")
    return _score_completion(problem, observed, DocumentRows.of(scored), alpha, iterations)


_HOW: dict[str, Callable[..., HeldOut]] = {
    "completion": _completion,
    "plugin": _plugin,
    "importance": _importance,
    "left_to_right": _left_to_right,
}


def topic_prior(model: Model, like: Tensor, given: ArrayLike | None = None) -> Tensor:
    """Concentration (K,) of the Dirichlet prior of the topic proportions: as given, or the model's. Raises MethodError
    for another prior."""
    if given is not None:
        alpha = torch.as_tensor(given, dtype=like.dtype, device=like.device).expand(like.shape[0])
        if not bool(((alpha >= 0) & torch.isfinite(alpha)).all()):
            raise MethodError(f"alpha = {given}, expected finite numbers of at least 0")
        return alpha
    if not _has_dirichlet(model):
        found = f"documents of {type(model).__name__} have no Dirichlet prior of '{model.local_site}' in common"
        raise MethodError(f'{found}, which this needs; expected how="completion" or how="{ANNEALED}"')
    return model.priors[model.local_site].concentration.to(like).expand(like.shape[0])


def _has_dirichlet(model: Model) -> bool:
    """Whether the prior of the proportions is a Dirichlet, the same for all documents."""
    return isinstance(model.priors.get(model.local_site), torch.distributions.Dirichlet)


def fold_in(
    model: Model,
    params: dict[str, Tensor],
    rows: DocumentRows,
    *,
    alpha: ArrayLike | None = None,
    iterations: int = 100,
) -> Tensor:
    """Topic proportions (N, K) of documents at fixed topics b (K, V), repeating

        r_vk ~ theta_k b_kv,        theta_k ~ alpha_k + sum_v n_v r_vk

    from uniform ones. It is CVB0 without taking a token's own topic off, and the mode in the softmax basis of the
    posterior (MacKay 1998). alpha: by default the model's; 0 is maximum likelihood, the folding-in of PLSA, where the
    prior of the model is flat: from concentrations that are all at least 1, alpha - 1 is used, the mode as usual.

    Of mixtures the posterior probabilities of the documents' one topic. Documents without tokens get the prior's mean.
    """
    if iterations < 1:
        raise MethodError(f"iterations = {iterations}, expected at least 1")
    topic = params["topic"]
    if "mixing_proportion" in model.shapes:
        if alpha is not None:
            raise MethodError(f"alpha = {alpha} for {type(model).__name__}, whose documents have one topic each")
        log_p = rows.counts.to(topic.dtype) @ torch.log(topic).T.contiguous()
        return torch.softmax(torch.log(params["mixing_proportion"]) + log_p, -1)
    concentration = topic_prior(model, topic, alpha)
    mean = torch.nan_to_num(concentration / concentration.sum(), nan=1 / len(concentration))
    if alpha is None and bool((concentration >= 1).all()):
        concentration = concentration - 1
    found = topic.new_empty(len(rows), len(topic))
    tiny = torch.finfo(topic.dtype).tiny
    for block in rows.blocks:
        seen, count = block.of_words(topic.T), block.count.to(topic)
        theta = topic.new_ones(len(count), len(topic))
        for _ in range(iterations):
            share = count / (seen @ theta.unsqueeze(-1)).squeeze(-1).clamp(min=tiny)
            theta = concentration + theta * (share.unsqueeze(1) @ seen).squeeze(1)
        total = theta.sum(-1, keepdim=True)
        found[block.documents] = torch.where(total > 0, theta / total.clamp(min=tiny), mean)
    return found
