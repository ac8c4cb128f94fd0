"""Labelled LDA by LDA's engines, with the topics that a document lacks shut off; and which labels new documents have.

Let S_i be the topics of document i, a = sum_k alpha_k and a_i = sum over S_i. A Dirichlet(alpha) of all topics, and
words that S_i alone can write, differ from Dirichlet(alpha_k, k in S_i) by a number: with n_ik tokens of topic k, L_i
in all,

    E[prod_k pi_k^n_ik] = Gamma(a) / Gamma(a + L_i) prod_{k in S_i} Gamma(alpha_k + n_ik) / Gamma(alpha_k),

where the labelled model has a_i for a. So do the bounds on it, in which pi~_ik = alpha_k outside of S_i. The sweeps are
therefore LDA's, on scores multiplied by 0 where a topic is not allowed, and the bound of document i gains

    log [Gamma(a_i) / Gamma(a_i + L_i)] - log [Gamma(a) / Gamma(a + L_i)].

CVB0 takes concentrations of 0 as they are: what is 0 stays 0 when it is multiplied.

With p(s) the share of the training documents that had the set of labels s (one more counted for each, so that none is
impossible), and the evidence of a document's words under the topics that s allows:

    p(s | words)  proportional to  p(s) p(words | s),        p(label l | words) = sum over sets s with l of p(s | words)

Only sets that some training document had are considered: where all had one label these are the labels. A bound is the
looser the more labels a set has; so the evidence is a sum over the numbers of tokens of each topic, or, of longer
documents, an unbiased estimate by particles. Sets whose bound is far below the best are left with their bounds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from custom_inference.core.draws import draw_globals, has_draws
from custom_inference.core.engine import Engine, EStep, Params, Warm
from custom_inference.core.fit import Fit
from custom_inference.core.posteriors import DirichletPosterior
from custom_inference.families.rows.documents import DocumentRows
from custom_inference.families.topics.admixture import Admixture, read_admixture
from custom_inference.families.topics.common import TopicEngine
from custom_inference.families.topics.cvb0 import LdaCvb0, TopicCounts
from custom_inference.families.topics.dirichlet import LdaDirichlet, TopicScores
from custom_inference.families.topics.numbers import divide, is_short, sum_numbers
from custom_inference.families.topics.tokens import TokenFilter
from custom_inference.families.topics.vb import LdaVB, TopicPosteriors
from ppl_models import Data, LabeledLDA, MethodError
from ppl_models.core.errors import warn_of_data

#: Sets of labels whose bounds are further below the best are not looked at again.
_SLACK = 20.0
#: Sums of about so many terms are taken; runs of particle filters, and their particles, beyond.
_TERMS, _RUNS, _PARTICLES = 2e5, 4, 64
#: Draws of the globals, at most, that labels are predicted by.
_GLOBALS = 25
#: Standard errors of probabilities of labels that are said.
_UNSURE = 0.1


class _Labelled(TopicEngine):
    """Rows with the topics that each document may use as their weights (N, K), 0 or 1."""

    def rows(self, model: LabeledLDA, data: Data) -> DocumentRows:  # pyright: ignore[reportIncompatibleMethodOverride]
        return restrict_to_labels(model, data)


def restrict_to_labels(model: LabeledLDA, data: Data) -> DocumentRows:
    """Return the documents with the topics that they may use; without weights where they may use all of them."""
    rows, labels = DocumentRows.of(data), data.others.get("labels")
    return rows if labels is None else rows.with_weights(model.allowed(labels).to(rows.counts.dtype).contiguous())


class _LabelledDirichlet(_Labelled, LdaDirichlet):
    """Sweeps over the documents, each restricted to the topics of its labels."""

    def documents(self, rows: DocumentRows, scores: TopicScores, alpha: Tensor, warm: Warm) -> EStep:
        step = super().documents(rows, scores, alpha, warm)
        if rows.weight is None:
            return step
        lengths, own, whole = rows.lengths, rows.weight @ alpha, alpha.sum()
        gain = torch.lgamma(own) - torch.lgamma(own + lengths) - torch.lgamma(whole) + torch.lgamma(whole + lengths)
        return step._replace(bound=step.bound + gain)

    def posterior(
        self, model: LabeledLDA, params: Params | TopicPosteriors, rows: DocumentRows, step: EStep
    ) -> DirichletPosterior:
        """Dirichlets of the topics that the documents have, 0 of the others."""
        concentration = step.locals["concentration"]
        return DirichletPosterior(concentration if rows.weight is None else concentration * rows.weight)

    def responsibilities(self, model: LabeledLDA, params: Params, rows: DocumentRows, warm: Params) -> Tensor:
        found = super().responsibilities(model, params, rows, warm)
        if rows.weight is None:
            return found
        document = torch.arange(len(rows)).repeat_interleave(rows.counts.crow_indices().diff())
        found = found * rows.weight[document]
        return found / found.sum(-1, keepdim=True).clamp_min(torch.finfo(found.dtype).tiny)


@dataclass(frozen=True, kw_only=True)
class LabelledDirichlet(_LabelledDirichlet):
    """Dirichlet posteriors of the proportions, the topics as points (Murphy 2012, eqs. 27.43-27.46)."""


@dataclass(frozen=True, kw_only=True)
class LabelledVB(_LabelledDirichlet, LdaVB):
    """Dirichlet posteriors of the topics too (Murphy 2012, eqs. 27.47-27.49).

    learn: None or "gamma", the concentration of the topics' prior.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.learn in ("alpha", "both"):
            raise MethodError(
                "learn='alpha' needs documents that may use all topics; CollapsedGibbs(learn=True) does not"
            )

    def local(self) -> Engine:
        return LabelledDirichlet()


@dataclass(frozen=True, kw_only=True)
class LabelledCvb0(_Labelled, LdaCvb0):
    """Collapsed variational Bayes to zeroth order."""

    def local(self) -> Engine:
        return LabelledDirichlet()

    def document_alpha(self, model: LabeledLDA, state: TopicCounts, rows: DocumentRows) -> Tensor:
        alpha = self.alpha(model, rows.like.values())
        return alpha if rows.weight is None else (alpha * rows.weight).contiguous()


def predict_labels(fit: Fit, data: Data) -> Tensor:
    """Compute the probability of every label (N, L) by the words alone."""
    sets, count = label_sets(fit)
    return weigh_labels(LabelledDirichlet(), fit, data, sets, count, sets)


def weigh_labels(engine: LdaDirichlet, fit: Fit, data: Data, sets: Tensor, count: Tensor, labels: Tensor) -> Tensor:
    """Compute p(label | words), (N, L), the sum of p(s | words) over sets of labels (S, C) that so many training
    documents had, (S,), by which of the labels (S, L) are in them. One document more is counted for each set. The mean
    over draws of the globals where the fit has them.

    Warns where the estimates of the evidence leave probabilities uncertain.
    """
    data = replace(data.to(dtype=torch.float64, device="cpu"), others={}, between=())
    point = {site: value.double().cpu() for site, value in fit.globals.items()}
    every = list(draw_globals(fit, _GLOBALS)) if has_draws(fit) else [point]
    each = [_weigh_labels_at(params, engine, fit, data, sets, count, labels) for params in every]
    chance, error = torch.stack([one for one, _ in each]).mean(0), torch.stack([one for _, one in each])
    error = error.square().sum(0).sqrt() / len(each)
    unsure = (error > _UNSURE).any(-1)
    if bool(unsure.any()):
        warn_of_data(
            f"labels: the standard error of a probability is {float(error.max()):.2g} at most, above {_UNSURE:g} in "
            f"{int(unsure.sum())} of {len(error)} documents, whose evidence is estimated"
        )
    return chance.to(fit.globals["topic"])


def _weigh_labels_at(
    params: Params, engine: LdaDirichlet, fit: Fit, data: Data, sets: Tensor, count: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """Return p(label | words), (N, L), at globals, and its standard error where the evidence is estimated."""
    model = fit.model
    given = [replace(data, others={"labels": one.to(data.x).expand(len(data), -1)}) for one in sets]
    prior = torch.log(count.to(data.x) + 1)
    joint = [engine.e_step(model, params, engine.rows(model, one)).bound for one in given]
    bound = torch.stack(joint, -1) + prior
    near = bound > bound.amax(-1, keepdim=True) - _SLACK
    found = bound.repeat(_RUNS, 1, 1)
    for place, one in enumerate(given):
        some = near[:, place].nonzero().flatten()
        said = read_admixture(model, params, one.rows(slice(0, 1)))
        if said is not None and len(some):
            alike = torch.zeros_like(some)
            said = Admixture(DocumentRows.of(one).select(some), said.alpha[alike], said.topic, alike)
            found[:, some, place] = _estimate_evidence(said, fit.seed) + prior[place]
    share = labels.to(found)
    chance = torch.softmax(found.logsumexp(0), -1) @ share
    return chance, (torch.softmax(found, -1) @ share).std(0) / _RUNS**0.5


def _estimate_evidence(said: Admixture, seed: int) -> Tensor:
    """Return log p(words) of documents that all may use the same topics: sums, of long documents with several topics
    estimates by particle filters, (runs, N)."""
    can = (said.alpha > 0).any(0)
    said = replace(said, alpha=said.alpha[:, can], topic=said.topic[:, can])
    short = is_short(said, _TERMS)
    found = said.alpha.new_zeros(_RUNS, len(said.alpha))
    for places in divide(said, short.nonzero().flatten()):
        found[:, places] = sum_numbers(said, places)[0].logsumexp(1)
    places = (~short).nonzero().flatten()
    if len(places):
        filters = TokenFilter.of(said.select(places))
        generator, few = torch.Generator().manual_seed(seed), torch.full((len(places),), _PARTICLES)
        found[:, places] = torch.stack([filters.run(few, generator)[0] for _ in range(_RUNS)])
    return found


def label_sets(fit: Fit) -> tuple[Tensor, Tensor]:
    """Return the sets of labels (S, L) of the fit's documents, without the empty one, and how many have each (S,)."""
    if "labels" not in fit.data.others:
        raise MethodError("the model was fitted without labels: fit(model, words, labels=...) to predict them")
    labels = fit.data.others["labels"].cpu()
    sets, count = labels[labels.any(-1)].unique(dim=0, return_counts=True)
    return sets, count
