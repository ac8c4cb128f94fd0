"""Multinomial regression LDA (Murphy 2012, eqs. 27.68-27.70): exact EM, the two-stage shortcut, predicted words.

Given the covariates the proportions pi_i = softmax(c + W'u_i) are known, and the tokens are independent: the evidence
is sum_v n_iv log sum_k pi_ik b_kv, and the E step is exact. With r_ivk proportional to pi_ik b_kv and n_ik the sum over
v of n_iv r_ivk:

    M step    b_kv proportional to sum_i n_iv r_ivk + the prior's pseudo-counts                  (as LDA's)
              c, W climb sum_ik n_ik log pi_ik with their priors: a multinomial logistic regression of the counts
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from custom_inference.core.all_rows import AllRows
from custom_inference.core.draws import draw_globals, has_draws
from custom_inference.core.engine import EStep, ExactEngine, Params, Warm
from custom_inference.core.fit import Fit
from custom_inference.core.local_inference import LocalSolver
from custom_inference.core.method import Call, Method
from custom_inference.core.posteriors import KnownPosterior
from custom_inference.core.registry import engines_of
from custom_inference.core.settings import require_between, require_positive, require_whole
from custom_inference.em.method import VariationalEM
from custom_inference.families.conjugate.normal import Normal
from custom_inference.families.labels.regression import SITES, CovariateDocumentRows, maximise_weights, start_as_lda
from custom_inference.families.rows.documents import DocumentRows
from custom_inference.families.topics.common import TopicEngine
from custom_inference.families.topics.learned import START_ALPHA
from custom_inference.families.topics.propose import TopicProposals
from ppl_models import LDA, Data, MethodError, MultinomialRegressionLDA
from ppl_models.data import sparse as _sparse
from ppl_models.data.containers import as_tensor, unpack
from ppl_models.distributions.tokens import Cells, entry_products, sparse_product


@dataclass(frozen=True, kw_only=True)
class ExpertsExact(TopicEngine, ExactEngine):
    """Exact EM; topics and weights as points."""

    additive = False
    reads_rows = True

    def rows(self, model: MultinomialRegressionLDA, data: Data) -> CovariateDocumentRows:
        return CovariateDocumentRows.read(model, data)

    def alpha(self, model: MultinomialRegressionLDA, like: Tensor) -> Tensor:
        """Return the concentration (K,) that starts are sampled with."""
        return like.new_full(model.shapes["topic"][:1], START_ALPHA)

    def check(self, model: MultinomialRegressionLDA, rows: DocumentRows) -> None:
        """Raises MethodError for priors of the weights other than Normal (or flat), of topics other than Dirichlet."""
        self.words_prior(model, rows.like.values())
        for site in SITES:
            Normal.of(model, site, model.shapes[site], rows.like.values())

    def complete(self, model: MultinomialRegressionLDA, params: Params, counts: Tensor | None = None) -> Params:
        return start_as_lda(model, params)

    def e_step(
        self, model: MultinomialRegressionLDA, params: Params, rows: CovariateDocumentRows, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        counts, topic = rows.counts, params["topic"] ** temperature
        share = model.expected_proportion(params, rows.covariates)
        mixture = entry_products(share, topic, counts).clamp_min(torch.finfo(topic.dtype).tiny)
        bound = Cells.of(counts).sum_by_document(torch.xlogy(counts.values(), mixture))
        ratio = counts.values() / mixture
        size = counts.shape[0], counts.shape[1]
        spread = _sparse.tensor(counts.crow_indices(), counts.col_indices(), ratio, size=size)
        own = share * sparse_product(spread, topic.T.contiguous())
        statistics = {"topic": topic * rows.sum_by_word(ratio, share.contiguous()).T}
        return EStep(statistics, {"counts": own, "share": share}, bound)

    def m_step(
        self, model: MultinomialRegressionLDA, params: Params, step: EStep, rows: DocumentRows | AllRows
    ) -> Params:
        topic = self.best_topics(model, step.statistics["topic"])
        weights = maximise_weights(model, params, AllRows.of(rows), step.locals, partial(weigh_proportions, model))
        return {**params, **topic, **weights}

    def posterior(
        self, model: MultinomialRegressionLDA, params: Params, rows: DocumentRows, step: EStep
    ) -> KnownPosterior:
        return KnownPosterior(step.locals["share"])


class ExpertsProposals(TopicProposals):
    """Starts: LDA's topics, which know nothing of the covariates, and random ones in turns."""

    def propose(
        self, model: MultinomialRegressionLDA, rows: DocumentRows, generator: torch.Generator, attempt: int
    ) -> Params:
        if attempt % 2:
            return self.engine.initial(model, rows, generator)
        return super().propose(model, rows, generator, attempt)

    def at_random(self, attempt: int, num_rows: int) -> bool:
        return attempt % 2 == 1

    def search_size(self, model: MultinomialRegressionLDA, num_rows: int) -> tuple[int, int]:
        return 4, super().search_size(model, num_rows)[1]


@dataclass(frozen=True, kw_only=True)
class TwoStage(Method):
    """The shortcut of Law et al. (2010): an LDA of the words, then a multinomial logistic regression of its
    documents' proportions on their covariates (weights with their priors, every document counting once).

    Fast, and the topics know nothing of the covariates. ``Fit.elbo`` is what the model makes of the result: log p(x)
    and the log prior density of the globals.

    alpha: the concentration of that LDA's proportions. max_iterations, tolerance: of the regression, in rounds of a few
        steps and by the largest change of a weight.
    """

    alpha: float = START_ALPHA
    max_iterations: int = 100
    tolerance: float = 1e-7

    def __post_init__(self) -> None:
        require_positive("alpha", self.alpha)
        require_whole("max_iterations", self.max_iterations)
        require_between("tolerance", self.tolerance, "[0, inf)")

    def check(self, model: MultinomialRegressionLDA) -> None:
        """Raises MethodError for other models, and for priors that exact EM does not take."""
        if engines_of(model).get("exact") is not ExpertsExact:
            raise MethodError(f"{type(model).__name__}: the two-stage shortcut is for MultinomialRegressionLDA")

    def _fit(self, model: MultinomialRegressionLDA, data: Data, call: Call) -> Fit:
        """``init`` gives the topics to start from."""
        engine, start = ExpertsExact(), call.start(model)
        rows = engine.rows(model, data)
        engine.check(model, rows)
        priors = {"topic": model.priors["topic"]}
        lda = LDA(num_topics=model.num_topics, vocabulary_size=model.vocabulary_size, priors=priors)
        words = Data(x=data.x, mask=data.mask, coords=data.coords)
        begin = None if start is None else {"topic": start["topic"]}
        found = VariationalEM(guide="vb").fit(
            lda.with_concentration(alpha=self.alpha), words, seed=call.seed, init=begin, progress=call.progress
        )
        params = start_as_lda(model, {"topic": found.params["topic"]})
        with torch.no_grad():
            params, steps = self._fit_weights(model, params, rows, found.transform())
            local = LocalSolver(engine=engine).solve(model, params, data)
            prior = engine.prior_term(model, params)
        return Fit(
            model=model,
            params=params,
            elbo=torch.stack([local.bound.sum() + prior]).double().cpu(),
            bound_name="exact",
            objective="evidence",
            prior_term=float(prior),
            status=f"LDA of the words ({found.status}), then a regression of its proportions, {steps} rounds",
            ended=found.ended,
            method=self,
            data=data,
            seed=call.seed,
            local=local,
            solver=LocalSolver(engine=engine),
        )

    def _fit_weights(
        self, model: MultinomialRegressionLDA, params: Params, rows: CovariateDocumentRows, share: Tensor
    ) -> tuple[Params, int]:
        every, steps = AllRows.of(rows), 0
        for steps in range(1, self.max_iterations + 1):  # noqa: B007
            weights = maximise_weights(model, params, every, {"counts": share}, partial(weigh_proportions, model))
            change = max(float((weights[site] - params[site]).abs().max()) for site in SITES)
            params = {**params, **weights}
            if change < self.tolerance:
                break
        return params, steps


def weigh_proportions(model: MultinomialRegressionLDA, params: Params, covariates: Tensor, counts: Tensor) -> Tensor:
    """Compute sum_ik n_ik log pi_ik, ()."""
    return (counts * model.predictor(params, covariates).log_softmax(-1)).sum()


def predict_words(fit: Fit, covariates: ArrayLike | Tensor) -> Tensor:
    """Compute P(word | covariates), (N, V), of covariates (N, P) (eq. 27.70), the mean over draws of the globals where
    the fit has them: seen words would change nothing."""
    like, model = fit.params["topic"], cast(MultinomialRegressionLDA, fit.model)
    given = as_tensor(unpack(fit.reader.encode("covariates", covariates))[0], like.dtype).to(like.device)
    if given.ndim != 2 or given.shape[1] != model.num_covariates:
        raise MethodError(f"predict takes covariates (N, {model.num_covariates}), found shape {tuple(given.shape)}")
    model.check_given(given)
    every = list(draw_globals(fit)) if has_draws(fit) else [fit.params]
    found = [model.expected_proportion(params, given.to(params["topic"])) @ params["topic"] for params in every]
    return torch.stack(found).mean(0).to(like)
