"""Toys of documents whose topics priors or known values tell apart, and their exact posteriors.

Documents are two of three tokens, so that all topics of the tokens can be listed. ``local`` is E[local | x] (N, K), of
blocks and classes their probabilities; ``globals_``, where there are some to be learned, E[site | x].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyro.distributions as dist
import torch
from scipy import stats
from scipy.special import gammaln, softmax

from ppl_models import MODELS, Data, Model
from tests.references import _shared, ctm, ldahmm, random_effects_lda, rtm, supervised_lda
from tests.references._shared import Array

WORDS, TOKENS = np.array([[2.0, 1, 0], [0, 1, 2]]), np.array([0, 0, 1, 1, 2, 2])
TOPIC = np.array([[0.6, 0.3, 0.1], [0.2, 0.2, 0.6]])
ALPHA, GAMMA = np.array([0.6, 2.0]), 0.7
_TOPICS: dict[str, Any] = {"num_topics": 2, "vocabulary_size": 3}


@dataclass
class Case:
    """What is sampled, and what should come out."""

    model: Model
    data: Data
    local: Array
    globals_: dict[str, Array] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, settings: dict[str, Any], priors: dict[str, Any], x: Array, **more: Any) -> Case:
        """more: ``given``, what goes with x, and the exact values."""
        given = more.pop("given", {})
        numbers = {s: torch.as_tensor(p, dtype=torch.float64) for s, p in priors.items() if isinstance(p, np.ndarray)}
        model = MODELS[name](**settings).with_priors(**{**priors, **numbers})
        return cls(model, model.prepare(x, dtype=torch.float64, **given), **more)


def dirichlet(concentration: Any, size: int = 0) -> Any:
    value = torch.as_tensor(np.asarray(concentration), dtype=torch.float64)
    return dist.Dirichlet(value.expand(size) if size else value)


# ----- documents ------------------------------------------------------------------------------------------------------


def of_tokens(
    alpha: Array, *, topic: Array | None = None, gamma: Any = GAMMA, extra: Callable[[Array], Array] | None = None
) -> dict[str, Any]:
    """The posterior from all topics of all tokens. alpha (N, K), 0 of topics that a document lacks; topics known, or
    integrated out under Dirichlet(gamma), gamma (K, V); extra: more factors, logs (M,) of counts (M, N, K)."""
    size = alpha.shape[1]
    q = _shared.assignments(size, len(TOKENS))
    counts = np.stack([_shared.counts_of_values(part, size) for part in (q[:, :3], q[:, 3:])], 1)
    allowed = np.where(alpha > 0, alpha, 1.0)
    rise = (gammaln(allowed + counts) - gammaln(allowed)).sum((1, 2))
    log = np.where(((counts > 0) & (alpha == 0)).any((1, 2)), -np.inf, rise)  # lengths are the same for all
    words = np.stack([[np.bincount(TOKENS[one == k], minlength=3) for k in range(size)] for one in q]).astype(float)
    gamma = np.broadcast_to(gamma, (size, 3))
    if topic is not None:
        log = log + (words * np.log(topic)).sum((1, 2))
    else:
        log = log + sum(_shared.log_dirichlet_moment(words[:, k], gamma[k]) for k in range(size))
    log = log if extra is None else log + extra(counts)
    found: dict[str, Any] = {"local": _shared.mean_given_counts(log, counts, alpha)}
    if topic is None:
        found["globals_"] = {"topic": _shared.mean_given_counts(log, words, gamma)}
    return found


def topics(name: str, alpha: Any, *, known: bool = False, gamma: Any = GAMMA, **more: Any) -> Case:
    """LDA and what differs from it in concentrations and factors alone. more: ``settings``, ``priors``, ``given``,
    ``own`` concentrations (N, K), ``extra``."""
    size = len(np.atleast_1d(alpha))
    settings = {"num_topics": size, "vocabulary_size": 3, **more.get("settings", {})}
    topic = np.resize(TOPIC, (size, 3)) if known else None
    priors = {"topic": topic if known else dirichlet(gamma, 0 if np.ndim(gamma) else 3), **more.get("priors", {})}
    if "own" not in more or name.endswith("labeled_lda"):
        priors["topic_proportion"] = dirichlet(alpha)
    own = more.get("own", np.tile(alpha, (2, 1)))
    exact = of_tokens(own, topic=topic, gamma=gamma, extra=more.get("extra"))
    return Case.of(name, settings, priors, WORDS, given=more.get("given", {}), **exact)


def labelled(name: str, **more: Any) -> Case:
    """The first document has the label; the second the other one too, or none."""
    if name == "labeled_lda":
        own = np.array([[0.8, 0.0], [0.8, 0.8]])
        return topics(name, [0.8, 0.8], own=own, settings={"num_labels": 2}, given={"labels": [[1, 0], [1, 1]]}, **more)
    own = np.array([0.5, 1.5, 1.0])
    settings = {"num_labels": 1, "topics_per_label": 2}
    return topics(name, own, own=np.tile(own, (2, 1)), settings=settings, given={"labels": [[1], [0]]}, **more)


def regression() -> Case:
    bias, weight, covariates = np.array([-0.5, 0.6]), np.array([[0.7, -0.4]]), np.array([[1.0], [-1.0]])
    own = np.exp(bias + covariates @ weight)
    priors = {"prevalence_bias": bias, "prevalence_weight": weight}
    more: dict[str, Any] = {"settings": {"num_covariates": 1}, "priors": priors, "given": {"covariates": covariates}}
    return topics("dirichlet_multinomial_regression", own[0], own=own, **more)


def supervised(**more: Any) -> Case:
    params, response = {"response_weight": np.array([3.0, -2.0])}, [1.0, 0.0]

    def extra(counts: Array) -> Array:
        return sum(supervised_lda.log_response(params, counts[:, i], r) for i, r in enumerate(response))  # type: ignore

    return topics("supervised_lda", [0.8, 0.8], priors=dict(params), given={"response": response}, extra=extra, **more)


def links(**more: Any) -> Case:
    params: dict[str, Any] = {"link_weight": np.array([3.0, 0.3]), "link_bias": np.array(0.2)}
    matrix = np.array([[0.0, 1], [1, 0]])

    def extra(counts: Array) -> Array:
        return np.array([rtm.log_links(params, one / 3, matrix, "additive") for one in counts])

    return topics("rtm", [0.8, 0.8], priors=params, given={"links": matrix}, extra=extra, **more)


def process(known: bool) -> Case:
    """Known shares of the topics; or known topics under sticks, the first of which is integrated on a grid."""
    a, c, settings = 1.5, 0.8, {"max_topics": 2, "vocabulary_size": 3}
    priors: dict[str, Any] = {"concentration": a, "stick_concentration": c}
    if not known:
        weight = np.array([0.75, 0.25])
        priors |= {"topic_weight": weight, "topic": dirichlet(GAMMA, 3)}
        return Case.of("hdp", settings, priors, WORDS, **of_tokens(np.tile(a * weight, (2, 1))))
    v = (np.arange(400) + 0.5) / 400
    q = _shared.assignments(2, 6)
    counts = np.stack([_shared.counts_of_values(part, 2) for part in (q[:, :3], q[:, 3:])], 1)
    alpha = a * np.stack([v, 1 - v], -1)[:, None, None]  # (G, 1, 1, K) beside counts (M, N, K)
    log = (gammaln(alpha + counts) - gammaln(alpha)).sum((2, 3)) + np.log(TOPIC)[q, TOKENS].sum(1)
    weight = softmax(log + stats.beta.logpdf(v, 1, c)[:, None])
    after = (alpha + counts) / (a + 3)
    exact: dict[str, Any] = {"local": np.einsum("gm,gmnk->nk", weight, after)}
    exact["globals_"] = {"topic_weight": np.array([weight.sum(1) @ v, weight.sum(1) @ (1 - v)])}
    return Case.of("hdp", settings, {**priors, "topic": TOPIC}, WORDS, **exact)


def syntax() -> Case:
    """Each token is syntax, or of one of two topics; one sentence a document."""
    x = np.array([[1.0, 1, 2], [2, 3, 3]])
    every = _shared.assignments(3, 6)
    state, topic = (every == 2).astype(int), np.where(every == 2, 0, every)
    concentrations: dict[str, Any] = {"topic_proportion": ALPHA, "topic": 0.7, "emission": 0.7, "initial": 1.0}
    concentrations["transition"] = 1.0
    log = [ldahmm.collapsed_log_joint(x, s, q, (2, 2, 3), concentrations) for s, q in zip(state, topic, strict=True)]
    counts = np.stack([_shared.counts_of_values(part, 3)[:, :2] for part in (every[:, :3], every[:, 3:])], 1)
    priors = {"topic_proportion": dirichlet(ALPHA), "topic": dirichlet(GAMMA, 3), "emission": dirichlet(GAMMA, 3)}
    priors |= {"initial": dirichlet(1.0, 2), "transition": dirichlet(1.0, 2)}
    local = _shared.mean_given_counts(np.array(log), counts, ALPHA)
    return Case.of("ldahmm", {**_TOPICS, "num_states": 2}, priors, x, local=local)


def logits(name: str) -> Case:
    covariance = np.array([[1.5, 0.4], [0.4, 0.8]])
    if name == "ctm":
        params = {"topic": TOPIC, "mean": np.array([0.8, -0.6]), "covariance": covariance}
        return Case.of(name, _TOPICS, dict(params), WORDS, local=ctm.posterior_logit(params, WORDS)[0])
    params = {"topic": TOPIC, "mean": np.array([[0.8, -0.6]]), "covariance": covariance}
    u = np.array([[1.0], [-0.7]])
    local = random_effects_lda.posterior_logit(params, WORDS, covariates=u)[0]
    return Case.of(name, {**_TOPICS, "num_covariates": 1}, dict(params), WORDS, given={"covariates": u}, local=local)
