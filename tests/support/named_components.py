"""Toys of rows and graphs whose components priors or known values tell apart, and all such toys: ``named_topics``.

Rows are five, nodes three or five, so that all values of the discrete latents can be listed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyro.distributions as dist
import torch
from scipy.special import betaln, gammaln, softmax

from ppl_models.distributions import SpikeGamma
from tests.references import (
    _graphs,
    _shared,
    degree_corrected_sbm,
    gamma_poisson,
    mmsb,
    mmsb_integrated,
    poisson_sbm,
    sbm,
)
from tests.support.named_topics import (
    ALPHA,
    GAMMA,
    Case,
    dirichlet,
    labelled,
    links,
    logits,
    process,
    regression,
    supervised,
    syntax,
    topics,
)

TABLE = np.array([[0.7, 0.4], [0.25, 0.55]])


# ----- rows -----------------------------------------------------------------------------------------------------------

ROWS: dict[str, Any] = {
    "mixture_of_bernoullis": np.array([[1.0, 0], [1, 1], [0, 0], [1, 0], [0, 1]]),
    "mixture_of_categoricals": np.array([[2.0, 0], [1, 1], [0, 0], [2, 1], [0, 2]]),
    "mixture_of_poissons": np.array([[3.0, 0], [2, 4], [0, 1], [5, 0], [1, 2]]),
}


def mixture(name: str) -> Case:
    """Five rows in two classes under Dirichlet(.6, 2), components integrated out."""
    counts_of_words = "multinomial" in name
    x = ROWS.get(name, np.array([[2.0, 1, 0], [0, 1, 1], [1, 0, 2], [0, 0, 3], [1, 1, 0]]))
    z = np.eye(2)[_shared.assignments(2, 5)]
    size = z.sum(1)
    log = _shared.log_dirichlet_moment(size, ALPHA)
    sums = np.einsum("mnk,nd->mkd", z, x)
    site = (
        "topic"
        if counts_of_words
        else {"mixture_of_bernoullis": "probability", "mixture_of_poissons": "rate"}.get(name, "response")
    )
    settings: dict[str, Any] = (
        {"num_topics": 2, "vocabulary_size": 3} if counts_of_words else {"num_components": 2, "num_features": 2}
    )
    if site == "probability":
        prior, log = dist.Beta(1.5, 0.8), log + (betaln(1.5 + sums, 0.8 + size[..., None] - sums)).sum((1, 2))
        mean = (1.5 + sums) / (2.3 + size[..., None])
    elif site == "rate":
        each = gammaln(2.0 + sums) - (2.0 + sums) * np.log(0.5 + size[..., None])
        prior, log, mean = dist.Gamma(2.0, 0.5), log + each.sum((1, 2)), (2.0 + sums) / (0.5 + size[..., None])
    else:
        table = sums if counts_of_words else np.einsum("mnk,ndc->mkdc", z, np.eye(3)[x.astype(int)])
        prior, log = dirichlet(GAMMA, 3), log + _shared.log_dirichlet_moment(table, GAMMA).reshape(len(z), -1).sum(1)
        mean = (table + GAMMA) / (table + GAMMA).sum(-1, keepdims=True)
        settings |= {} if counts_of_words else {"num_categories": 3}
    weight = softmax(log)
    proportion = (size + ALPHA) / (size + ALPHA).sum(1, keepdims=True)
    exact = {site: np.tensordot(weight, mean, 1), "mixing_proportion": weight @ proportion}
    priors = {site: prior, "mixing_proportion": dirichlet(ALPHA)}
    return Case.of(name, settings, priors, x, local=np.einsum("m,mnk->nk", weight, z), globals_=exact)


def factors(spike: float = 0.0) -> Case:
    """Known loadings; with spikes the posterior is a mixture over the sets of what is not 0."""
    loading, shape, rate = np.array([[0.8, 0.2], [0.1, 0.9]]), np.array([0.7, 1.5]), np.array([1.0, 1.0])
    x, settings = np.array([[2.0, 1], [0, 0], [1, 3]]), {"num_components": 2, "num_features": 2}
    gamma = torch.as_tensor(shape), torch.as_tensor(rate)
    if not spike:
        local = gamma_poisson.posterior_mean({"loading": loading}, x, shape, rate)
        return Case.of(
            "gamma_poisson", settings, {"loading": loading, "activation": dist.Gamma(*gamma)}, x, local=local
        )
    joint, means = [], []
    for on in ([True, True], [True, False], [False, True], [False, False]):
        own, mean = np.array(on), np.zeros((3, 2))
        log = np.where(x.sum(1) > 0, -np.inf, 0.0)
        if own.any():
            given: Any = ({"loading": loading[own]}, x, shape[own], rate[own])
            log, mean[:, own] = gamma_poisson.log_evidence(*given), gamma_poisson.posterior_mean(*given)
        joint.append(log + np.log(np.where(own, 1 - spike, spike)).sum())
        means.append(mean)
    local = np.einsum("sn,snk->nk", softmax(joint, axis=0), np.array(means))
    priors = {"loading": loading, "activation": SpikeGamma(torch.tensor(spike), *gamma)}
    return Case.of("spike_gamma_poisson", settings, priors, x, local=local)


# ----- graphs ---------------------------------------------------------------------------------------------------------

GRAPH = np.array([[0, 1, 1, 0, 0], [0, 0, 1, 1, 0], [1, 0, 0, 0, 0], [0, 1, 0, 0, 1], [1, 0, 0, 0, 0]], dtype=float)


def blocks(name: str, known: bool) -> Case:
    """Five nodes in two blocks: a known table and flat proportions, or proportions under Dirichlet(.6, 2)."""
    binary, q = "poisson" not in name and "degree" not in name, _graphs.labelings(2, 5)
    x = GRAPH if binary else GRAPH * np.array([1.0, 2, 1, 1, 2])
    site, alpha = "edge_probability" if binary else "edge_rate", np.ones(2) if known else ALPHA
    priors: dict[str, Any] = {"block_proportion": dirichlet(alpha)}
    theta = {"out_propensity": np.array([1.0, 0.5, 1.5, 1, 0.7]), "in_propensity": np.array([0.6, 1.0, 1, 1.2, 0.8])}
    theta = theta if "degree" in name else {}
    table = TABLE if binary else 2 * TABLE
    if known:
        reference = sbm if binary else degree_corrected_sbm if theta else poisson_sbm
        at = reference.graph({"block_proportion": np.ones(2), site: table, **theta}, x)
        log = at.log_joint(q) + _graphs.log_label_prior(q, 2, alpha)
        priors[site] = table
    else:
        prior = (0.8, 1.7)
        priors[site] = dist.Beta(*prior) if binary else dist.Gamma(*prior)
        more: Any = {"propensity": tuple(theta.values())} if theta else {}
        integrated = sbm.log_joint_integrated if binary else poisson_sbm.log_joint_integrated
        log = np.array([integrated(one, x, 2, alpha, prior, **more) for one in q])
    local = _graphs.marginals(q, softmax(log), 2)
    return Case.of(name, {"num_blocks": 2, "num_nodes": 5}, {**priors, **theta}, x, local=local)


def memberships(known: bool) -> Case:
    """Three nodes, with the table known or integrated out."""
    x, settings = GRAPH[:3, :3], {"num_blocks": 2, "num_nodes": 3}
    if known:
        alpha, prior = np.full(2, 0.8), TABLE
        local = mmsb.posterior_mean({"edge_probability": TABLE}, x, alpha)
    else:
        alpha, prior = ALPHA, dist.Beta(0.8, 1.7)
        local = mmsb_integrated.membership_mean(x, 2, ALPHA, (0.8, 1.7))
    return Case.of("mmsb", settings, {"edge_probability": prior, "membership": dirichlet(alpha)}, x, local=local)


# ----- all of them ----------------------------------------------------------------------------------------------------

BLOCKS = ("sbm", "infinite_sbm", "poisson_sbm", "degree_corrected_sbm")
MIXTURES = (
    "mixture_of_bernoullis",
    "mixture_of_categoricals",
    "mixture_of_poissons",
    "mixture_of_multinomials",
    "mixture_of_multinomial_counts",
)
CASES: dict[str, Callable[[], Case]] = {
    **{f"{name}, known": lambda name=name: topics(name, [0.8, 0.8], known=True) for name in ("lda", "multinomial_pca")},
    **{f"{name}, alpha": lambda name=name: topics(name, ALPHA) for name in ("lda", "multinomial_pca")},
    "lda, gamma": lambda: topics("lda", [0.8, 0.8], gamma=np.array([[2.0, 0.5, 0.5], [0.5, 0.5, 2.0]])),
    **{
        f"{name}, known": lambda name=name: labelled(name, known=True)
        for name in ("labeled_lda", "partially_labeled_lda")
    },
    **{f"{name}, labels": lambda name=name: labelled(name) for name in ("labeled_lda", "partially_labeled_lda")},
    "dirichlet_multinomial_regression, known": regression,
    "supervised_lda, known": lambda: supervised(known=True),
    "supervised_lda, weights": supervised,
    "rtm, known": lambda: links(known=True),
    "rtm, weights": links,
    "hdp, known": lambda: process(True),
    "hdp, shares": lambda: process(False),
    "ldahmm, alpha": syntax,
    **{f"{name}, known": lambda name=name: logits(name) for name in ("ctm", "random_effects_lda")},
    **{f"{name}, alpha": lambda name=name: mixture(name) for name in MIXTURES},
    "gamma_poisson, known": factors,
    "spike_gamma_poisson, known": lambda: factors(0.3),
    **{f"{name}, known": lambda name=name: blocks(name, True) for name in BLOCKS},
    **{f"{name}, alpha": lambda name=name: blocks(name, False) for name in BLOCKS},
    "mmsb, known": lambda: memberships(True),
    "mmsb, alpha": lambda: memberships(False),
}
