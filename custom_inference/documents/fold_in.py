"""Topic proportions of new documents at given topics."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from custom_inference.families.common.documents import DocumentRows
from custom_inference.families.mixtures.rows import MixtureRows
from ppl_models import MethodError, Model


def is_mixture(model: Model) -> bool:
    """Whether a document has one topic, whose probability is a global."""
    return "mixing_proportion" in model.shapes


def topic_prior(model: Model, like: Tensor, given: Any = None) -> Tensor:
    """Concentration (K,) of the Dirichlet prior of the topic proportions: as given, or the model's.

    Raises MethodError for another prior.
    """
    if given is not None:
        alpha = torch.as_tensor(given, dtype=like.dtype, device=like.device).expand(like.shape[0])
        if not bool(((alpha >= 0) & torch.isfinite(alpha)).all()):
            raise MethodError(f"alpha = {given}, expected finite numbers of at least 0")
        return alpha
    prior = model.priors.get(model.local_site)
    if not isinstance(prior, torch.distributions.Dirichlet):
        raise MethodError(f"the prior of '{model.local_site}' is no Dirichlet; give alpha")
    return prior.concentration.to(like).expand(like.shape[0])


def fold_in(
    model: Model, params: dict[str, Tensor], rows: DocumentRows, *, alpha: Any = None, iterations: int = 100
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
    if is_mixture(model):
        if alpha is not None:
            raise MethodError(f"alpha = {alpha} for {type(model).__name__}, whose documents have one topic each")
        tokens = MixtureRows(rows.counts.to(topic.dtype), topic.new_zeros(len(rows)))
        return torch.softmax(torch.log(params["mixing_proportion"]) + tokens.table(torch.log(topic)), -1)
    concentration = topic_prior(model, topic, alpha)
    mean = torch.nan_to_num(concentration / concentration.sum(), nan=1 / len(concentration))
    if alpha is None and bool((concentration >= 1).all()):
        concentration = concentration - 1
    found = torch.empty(len(rows), topic.shape[0], dtype=topic.dtype, device=topic.device)
    tiny = torch.finfo(topic.dtype).tiny
    for block in rows.blocks:
        seen, count = topic.T[block.word], block.count.to(topic)
        theta = torch.ones(len(count), topic.shape[0], dtype=topic.dtype, device=topic.device)
        for _ in range(iterations):
            share = count / (seen @ theta.unsqueeze(-1)).squeeze(-1).clamp(min=tiny)
            theta = concentration + theta * (share.unsqueeze(1) @ seen).squeeze(1)
        total = theta.sum(-1, keepdim=True)
        found[block.documents] = torch.where(total > 0, theta / total.clamp(min=tiny), mean)
    return found
