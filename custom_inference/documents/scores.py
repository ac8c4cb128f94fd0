"""How well document models predict: one interface for LDA, PLSA, mixtures, and what is built on them.

    perplexity = exp(-(1/N) sum_i (1/L_i) log q(y_i))      per document                     (Murphy 2012, eq. 27.29)
    perplexity = exp(-sum_i log q(y_i) / sum_i L_i)        per token: all tokens pooled

with natural logarithms (Murphy mixes them with base 2 in eqs. 27.24-27.26) and q(y_i) the probability of the L_i tokens
of a held-out document in their order, without the multinomial coefficient.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from custom_inference.core.annealing.estimate import Budget
from custom_inference.core.annealing.local import anneal_locals
from custom_inference.core.fit import Fit
from custom_inference.core.isolation import seed_of
from custom_inference.core.local_inference import ANNEALED, bounds_of, log_likelihood, solve_local
from custom_inference.core.predictive import conditional_log_likelihood
from custom_inference.core.settings import require_positive
from custom_inference.documents import samplers
from custom_inference.documents.samplers import split_tokens
from custom_inference.families.rows.documents import DocumentRows
from custom_inference.families.topics.admixture import Admixture, read_admixture
from ppl_models import Data, DataError, DataWarning, MethodError, Model
from ppl_models.core.errors import unknown_name, warn_of_absent
from ppl_models.data.covariates import read_before
from ppl_models.data.held import MatrixLike, Source
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
    """log q(y_i) of held-out documents given what stands beside them, at the globals of a fit.

    how, with its settings
    ----------------------
    the name of a bound (``fit.bounds``): "exact" is exact, others bound log p(y_i | globals) from below, but
        for "laplace" and what else is an estimate, on either side of it.
    "ais": log p(y_i | globals), estimated until the standard errors are small or ``seconds`` = 60 are over, of any
        model (:class:`custom_inference.AIS`; topics of tokens by particles that look ahead); ``seed``.
    "importance": log p(y_i | globals) by importance sampling, for short documents; ``samples`` = 1000, ``from_prior`` =
        .1 the share of the draws that come from the prior (1: all), the others from an approximate posterior; ``seed``.
    "left_to_right": by a particle filter; ``particles`` = 20, ``sweeps`` = 1 of Gibbs a token, ``runs`` = 1; ``seed``.
    "plugin": log p(y_i | proportions folded in from y_i itself, topics): no held-out probability, and too good.
    "completion": proportions are folded in from one half of the tokens of each document and score the other half;
        ``share`` = .5 of the tokens are observed, drawn by ``seed``; or ``x`` is observed and ``held_out`` scored.
    These two take ``alpha`` (by default the model's) and ``iterations`` = 100 of folding in; see ``fold_in``. Where
    proportions have no Dirichlet prior, they are those of the fit's own inference.
    Samplers answer with the evidence itself where it is a closed form: of mixtures, and of proportions that are known.

    What the documents are given (labels, covariates, slices of time) is told by its name, with a DataWarning where the
    fit had it and they have not: the score is then what the program says of such documents. What the model observes
    beside the words (responses, links) is left out: the score is of the words alone.
    floor: topics are raised to this and normalised; without, words that a topic excludes can have probability 0.

    Raises MethodError for an unknown ``how``, a setting that it does not have, and what is observed beside the words.
    """
    if fit.model.data_kind != "documents":
        raise MethodError(f"{type(fit.model).__name__} is no model of documents; see fit.log_likelihood")
    if not 0 <= floor < 1:
        raise MethodError(f"floor = {floor}, expected a small number of at least 0")
    valid = (*bounds_of(fit.model), ANNEALED, *_HOW)
    if how not in valid:
        raise MethodError(unknown_name("score of held-out documents", how, valid))
    if how in _HOW and not {"topic", "topic_logit"} & set(fit.globals):
        bounds = ", ".join(bounds_of(fit.model))
        raise MethodError(f"how = {how!r} is for models with topics; valid for {type(fit.model).__name__}: {bounds}")
    beside = {site: settings.pop(site) for site in fit.model.other_sites if site in settings}
    problem = _pose(fit, _read(fit, x, mask, beside), floor)
    if "held_out" in settings:
        settings["held_out"] = _read(fit, settings["held_out"], None, beside)
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


def without_observed(model: Model, data: Data) -> Data:
    """Return documents with what they are given, without what is observed beside their words."""
    given = {site: value for site, value in data.others.items() if model.sites[site].role == "given"}
    return replace(data, others=given, between=())


def _read(fit: Fit, x: Source, mask: MatrixLike | None, beside: Mapping[str, Any]) -> Data:
    """Read documents, with what they are given. Warn of what those of the fit were given and these are not. Raises
    MethodError for what is observed beside the words."""
    model, own = fit.model, read_before(x)
    told = {site for site, value in beside.items() if value is not None} | set(() if own is None else own.others)
    for site in told & set(model.sites_of("observed")):
        raise MethodError(
            f"'{site}' of held-out documents of {type(model).__name__} is observed beside their words, and depends on "
            f"the topics of all their tokens; a score is of words alone: expected documents without '{site}'"
        )
    for site in set(model.sites_of("given")) & set(fit.data.others) - told:
        warn_of_absent(site, "the program says something else of these", f"{site}=..., of each, as the fit had it")
    return without_observed(model, fit.read(x, mask, **beside))


def _pose(fit: Fit, data: Data, floor: float) -> _Problem:
    """Put documents beside the globals of a fit, whose topics have no word below ``floor``."""
    rows = DocumentRows.of(data, coefficient=bool(getattr(fit.model, "coefficient", False)))
    return _Problem(fit, _raise_topics(fit, floor), data, rows)


def _raise_topics(fit: Fit, floor: float) -> dict[str, Tensor]:
    """Return the globals, whose topics have no word below ``floor``."""
    params = dict(fit.globals)
    site = next((site for site in ("topic", "topic_logit") if site in params), None)
    if site is None and floor:
        raise MethodError(f"floor = {floor} of {type(fit.model).__name__}, which has no topics; expected 0")
    if site is not None and floor:
        topic = params[site].softmax(-1) if site == "topic_logit" else params[site]
        topic = topic.clamp(min=floor)
        topic = topic / topic.sum(-1, keepdim=True)
        params[site] = topic.log() if site == "topic_logit" else topic
    return params


@dataclass(frozen=True)
class _Problem:
    """A fit, its globals with floored topics, and the documents with what they are given."""

    fit: Fit
    params: dict[str, Tensor]
    data: Data
    rows: DocumentRows

    @property
    def model(self) -> Model:
        return self.fit.model

    @cached_property
    def said(self) -> Admixture | None:
        """What the program says of the documents, where it is an admixture with Dirichlet proportions."""
        return read_admixture(self.model, self.params, self.data)

    def infer(self, data: Data) -> Tensor:
        """Compute the values (N, K) of the main latent whose proportions are the posterior mean, by the fit's own
        inference; over draws where proportions are not the values themselves."""
        model: Any = self.model
        given: Any = {"fallback": self.fit.solver, "seed": self.fit.seed, "evidence": False}
        posterior = solve_local(model, self.params, data, **given).posterior
        mean = posterior.mean
        if model.proportions(mean) is mean:
            return mean
        seeds = (seed_of(self.fit.seed, "proportions", number) for number in range(_ROUNDS))
        rounds = (model.proportions(posterior.sample(_DRAWS, seed=seed)).mean(0) for seed in seeds)
        return (sum(rounds, torch.zeros_like(mean)) / _ROUNDS).log()  # whose softmax it is


def _bound(problem: _Problem, seed: int = 0, *, name: str) -> HeldOut:
    log_p = log_likelihood(problem.model, problem.params, problem.data, bound=name, seed=seed)
    return HeldOut(log_probability=log_p - problem.rows.log_coefficient, tokens=problem.rows.lengths)


def _anneal(problem: _Problem, seconds: float = 60.0, seed: int = 0) -> HeldOut:
    require_positive("seconds", seconds)
    found = anneal_locals(problem.model, problem.params, problem.data, Budget(seconds=seconds), seed=seed)
    log_p = found.log_evidence - problem.rows.log_coefficient
    return HeldOut(log_probability=log_p, tokens=problem.rows.lengths, standard_error=found.standard_error)


def _importance(problem: _Problem, samples: int = 1000, from_prior: float = 0.1, seed: int = 0) -> HeldOut:
    if samples < 2 or not 0 < from_prior <= 1:
        raise MethodError(f"samples = {samples}, from_prior = {from_prior}; expected at least 2, and a share up to 1")

    def sampler(said: Admixture, **settings: Any) -> samplers.Estimate:
        # The prior's share of the folded-in posterior mean is taken off again: what is left are the document's tokens.
        weight = said.rows.lengths.unsqueeze(1) + said.alpha.sum(-1, keepdim=True)
        expected = (fold_in(said, alpha=said.alpha, iterations=50) * weight - said.alpha).clamp(min=0)
        return samplers.importance(said, expected, **settings)

    return _estimate(problem, sampler, samples=samples, from_prior=from_prior, seed=seed)


def _left_to_right(problem: _Problem, particles: int = 20, sweeps: int = 1, runs: int = 1, seed: int = 0) -> HeldOut:
    if min(particles, runs) < 1 or sweeps < 0:
        raise MethodError(f"particles = {particles}, sweeps = {sweeps}, runs = {runs}; expected at least 1, 0 and 1")
    return _estimate(problem, samplers.left_to_right, particles=particles, sweeps=sweeps, runs=runs, seed=seed)


def _estimate(problem: _Problem, sampler: Callable[..., samplers.Estimate], **settings: Any) -> HeldOut:
    """Estimate held-out probabilities by a sampler; those that are a closed form are exact."""
    if problem.said is None:
        if "exact" in bounds_of(problem.model):
            return _bound(problem, name="exact")
        raise _no_dirichlet(problem.model)
    log_mean, error = (value.to(problem.rows.like) for value in sampler(problem.said, **settings))
    error = None if bool(torch.isnan(error).all()) else error
    return HeldOut(log_probability=log_mean, tokens=problem.rows.lengths, standard_error=error)


def _no_dirichlet(model: Model) -> MethodError:
    """Return the error that says of which models there is no particle or importance sampler."""
    found = f"the proportions of documents of {type(model).__name__} have no Dirichlet prior"
    return MethodError(f'{found}, which this needs; expected how="completion" or how="{ANNEALED}"')


def _score_completion(
    problem: _Problem, observed: Data, scored: Data, alpha: ArrayLike | None, iterations: int
) -> HeldOut:
    """sum_v n_iv log sum_k theta_ik b_kv of the ``scored`` tokens, theta being folded in from the ``observed`` ones; by
    the fit's own inference where the prior of proportions is no Dirichlet."""
    rows = DocumentRows.of(scored, coefficient=problem.rows.coefficient)
    if problem.said is None:
        if alpha is not None:
            found = f"the proportions of documents of {type(problem.model).__name__} have no Dirichlet prior"
            raise MethodError(f"alpha = {alpha}, but {found}; expected none")
        log_p = conditional_log_likelihood(problem.model, problem.params, scored, problem.infer(observed))
        return HeldOut(log_probability=log_p - rows.log_coefficient, tokens=rows.lengths)
    said = problem.said.of(observed)
    theta = fold_in(said, alpha=alpha, iterations=iterations)
    log_p = rows.lengths.clone()
    for places, part, topic in said.of(scored).parts():
        log_p[places] = Tokens(theta[places], topic).log_prob(part.counts).to(log_p)
    return HeldOut(log_probability=log_p, tokens=rows.lengths)


def _plugin(problem: _Problem, alpha: ArrayLike | None = None, iterations: int = 100) -> HeldOut:
    return _score_completion(problem, problem.data, problem.data, alpha, iterations)


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
    return _score_completion(problem, observed, scored, alpha, iterations)


_HOW: dict[str, Callable[..., HeldOut]] = {
    "completion": _completion,
    "plugin": _plugin,
    "importance": _importance,
    "left_to_right": _left_to_right,
}


def fold_in(said: Admixture, *, alpha: ArrayLike | Tensor | None = None, iterations: int = 100) -> Tensor:
    """Topic proportions (N, K) of documents at fixed topics b (K, V), repeating

        r_vk ~ theta_k b_kv,        theta_k ~ alpha_k + sum_v n_v r_vk

    from uniform ones. It is CVB0 without taking a token's own topic off, and the mode in the softmax basis of the
    posterior (MacKay 1998). alpha: of the components that a document can have, by default the model's; 0 is maximum
    likelihood, the folding-in of PLSA, where the prior of the model is flat: from concentrations that are all at least
    1, alpha - 1 is used, the mode as usual. Documents without tokens get the prior's mean.
    """
    if iterations < 1:
        raise MethodError(f"iterations = {iterations}, expected at least 1")
    prior, found = said.alpha, torch.empty_like(said.alpha)
    given = prior if alpha is None else torch.as_tensor(alpha).to(prior)
    if not bool(((given >= 0) & torch.isfinite(given)).all()):
        raise MethodError(f"alpha = {alpha}, expected finite numbers of at least 0")
    can = (prior > 0).to(prior)
    prior = given * can
    mean = torch.where(prior.sum(-1, keepdim=True) > 0, prior, can)
    mean = mean / mean.sum(-1, keepdim=True)
    if alpha is None:
        prior = prior - (prior >= 1).all(-1, keepdim=True).to(prior)
    tiny = torch.finfo(prior.dtype).tiny
    for places, rows, topic in said.parts():
        for block in rows.blocks:
            documents = places[block.documents]
            seen, count = block.of_words(topic.T), block.count.to(topic)
            theta = can[documents]
            for _ in range(iterations):
                share = count / (seen @ theta.unsqueeze(-1)).squeeze(-1).clamp(min=tiny)
                theta = prior[documents] + theta * (share.unsqueeze(1) @ seen).squeeze(1)
            total = theta.sum(-1, keepdim=True)
            found[documents] = torch.where(total > 0, theta / total.clamp(min=tiny), mean[documents])
    return found
