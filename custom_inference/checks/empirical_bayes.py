"""Held-out likelihood under the training rows' own distribution of the latents (Bingham et al. 2007, eqs. 22-26)."""

from __future__ import annotations

import math
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from custom_inference.core import predictive
from custom_inference.core.fit import Fit
from custom_inference.families.rows.documents import DocumentRows
from ppl_models import Data, MethodError
from ppl_models.distributions.tokens import Tokens

#: Entries of the (test rows, training rows) table per block.
_BLOCK_ENTRIES = 2**22


def empirical_bayes_log_likelihood(fit: Fit, x_test: Any, mask: ArrayLike | None = None) -> Tensor:
    """log p(x_test) for every test row, (N_test,), with the latents' density that of the training rows (eq. 22).

    For continuous latents (memberships, scores) p(s) is the empirical density of the training rows' estimates s_n, the
    point estimates or posterior means of the fit:

        log p(x) = log (1 / N_train) sum_n prod_t p(x_t | s_n)                                      (eqs. 23 and 25)

    Latents of finitely many values (classes, codes) have a prior of their own: there it is the exact evidence, such as
    log sum_k pi_k prod_t p_kt^x_t (1 - p_kt)^(1 - x_t) of a mixture (eq. 26). Missing entries drop out.

    In models of documents (PLSA, LDA) p(x | s_n) is that of the words that occur, and sparse counts stay sparse:

        log p(x) = log (1 / N_train) sum_n prod_t (sum_k s_nk b_kt)^x_t                                       (eq. 24)

    which is -inf for a document with a word to which no training document gives any probability.

    Raises MethodError for continuous latents with observations other than counts of Bernoulli draws or of words.
    """
    if not fit.model.has_continuous_locals:
        return fit.log_likelihood(x_test, mask=mask)
    data = fit.read(x_test, mask)
    local = fit.posterior.mean
    sites = predictive.observed_site(fit.model, fit.globals, local[:1])
    if isinstance(sites["fn"], Tokens):
        return _of_words(sites["fn"], fit.params["topic"], local, data)
    total_count = _draws(fit, sites["fn"])
    mean = predictive.feature_mean(fit.model, fit.globals, local) / total_count
    # Means that rounded to 0 or 1 would give an entry probability 0.
    edge = torch.finfo(mean.dtype).eps / 2
    on, off = torch.log(mean.clamp(min=edge)).T, torch.log1p(-mean.clamp(max=1 - edge)).T
    size, found = max(1, _BLOCK_ENTRIES // len(local)), []
    for start in range(0, len(data), size):
        part = data.rows(slice(start, start + size)).dense()
        seen = torch.ones_like(part.x) if part.mask is None else part.mask.to(part.x)
        ones = part.x * seen
        zeros = total_count * seen - ones
        coefficient = torch.lgamma(ones + zeros + 1) - torch.lgamma(ones + 1) - torch.lgamma(zeros + 1)
        table = ones @ on + zeros @ off
        found.append(table.logsumexp(-1) - math.log(len(local)) + coefficient.sum(-1))
    return torch.cat(found)


def _of_words(tokens: Tokens, topic: Tensor, local: Tensor, data: Data) -> Tensor:
    """Eq. 24: local (N_train, K), topic (K, V); a block of training documents at a time."""
    rows = DocumentRows.of(data, coefficient=tokens.coefficient)
    total = torch.full_like(rows.lengths, -torch.inf)
    for part in local.split(max(1, _BLOCK_ENTRIES // max(data.num_features, len(data)))):
        log_word = torch.log(part @ topic).T.contiguous()
        total = torch.logaddexp(total, (rows.counts @ log_word).logsumexp(-1))
    return total - math.log(len(local)) + rows.log_coefficient


def _draws(fit: Fit, distribution: torch.distributions.Distribution) -> int:
    """How many Bernoulli draws an entry is the sum of."""
    while hasattr(distribution, "base_dist"):
        distribution = getattr(distribution, "base_dist")  # noqa: B009 (only some have it)
    if isinstance(distribution, torch.distributions.Bernoulli):
        return 1
    if isinstance(distribution, torch.distributions.Binomial):
        return int(distribution.total_count.max())
    name = type(fit.model).__name__
    raise MethodError(f"{name} has continuous latents and {type(distribution).__name__} observations; expected counts")
