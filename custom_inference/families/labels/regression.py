"""Dirichlet-multinomial regression (Murphy 2012, eq. 27.71) by variational EM: ``topics.learned`` with
alpha_i = exp(c + W'(u_i - m)).

The M step climbs in the weights of covariates in their units, W_p s_p (``ppl_models.core.scales``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from custom_inference.core.all_rows import AllRows
from custom_inference.core.engine import Params
from custom_inference.families.conjugate.normal import Normal
from custom_inference.families.rows.documents import DocumentRows
from custom_inference.families.topics.learned import START_ALPHA, LearnedConcentration, log_prevalence, maximise
from ppl_models import Data, DirichletMultinomialRegression
from ppl_models.dirichlet_multinomial_regression import RegressedAdmixture

#: What the regression is in.
SITES = ("prevalence_bias", "prevalence_weight")


@dataclass(frozen=True)
class CovariateDocumentRows(DocumentRows):
    """Documents with their covariates (N, P), at the centre where none are given."""

    covariates: Tensor = None  # pyright: ignore[reportAssignmentType]

    @classmethod
    def read(cls, model: RegressedAdmixture, data: Data) -> CovariateDocumentRows:
        counts = DocumentRows.of(data).counts
        centre, _ = model.scale_of_columns(counts.values())
        given: Tensor = data.others["covariates"] if "covariates" in data.others else centre.expand(len(data), -1)
        return cls(counts, covariates=given.to(counts.dtype))


@dataclass(frozen=True, kw_only=True)
class RegressionDirichlet(LearnedConcentration):
    """Dirichlet posteriors of the proportions; topics and weights as points."""

    def rows(self, model: RegressedAdmixture, data: Data) -> CovariateDocumentRows:
        return CovariateDocumentRows.read(model, data)

    def check(self, model: RegressedAdmixture, rows: DocumentRows) -> None:
        """Raises MethodError for priors of the weights other than Normal (or flat), of topics other than Dirichlet."""
        super().check(model, rows)
        for site in SITES:
            Normal.of(model, site, model.shapes[site], rows.like.values())

    def document_alpha(
        self, model: DirichletMultinomialRegression, state: Params, rows: CovariateDocumentRows
    ) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return model.concentration(state, rows.covariates)

    def complete(self, model: RegressedAdmixture, params: Params, counts: Tensor | None = None) -> Params:
        return start_as_lda(model, params)

    def learn_concentration(
        self, model: DirichletMultinomialRegression, params: Params, rows: AllRows, warm: Params
    ) -> Params:
        """Update c and W so that they climb the likelihood of the expected counts, with their priors."""
        return maximise_weights(
            model, params, rows, warm, lambda at, u, n: log_prevalence(model.concentration(at, u), n)
        )


def maximise_weights(
    model: RegressedAdmixture,
    params: Params,
    rows: AllRows,
    warm: Params,
    term: Callable[[Params, Tensor, Tensor], Tensor],
) -> Params:
    """Maximise ``term`` (at their values, of covariates and the expected counts of these rows) and the priors in c and
    W."""
    parts = [(part.covariates, each["counts"]) for part, each in rows.pieces(warm)]
    size = params["prevalence_bias"].shape[0]
    unit = model.scale_of_columns(params["prevalence_weight"])[1].unsqueeze(-1)

    def values(point: Tensor) -> Params:
        matrix = point.view(-1, size)
        return {"prevalence_bias": matrix[0], "prevalence_weight": matrix[1:] / unit}

    def total(point: Tensor) -> Tensor:
        at = values(point)
        return sum((term(at, u, n) for u, n in parts), point.new_zeros(()))

    def prior(point: Tensor) -> Tensor:
        return sum((model.prior(s, like=v).log_prob(v) for s, v in values(point).items()), 0 * point.sum())

    start = torch.cat([params["prevalence_bias"].unsqueeze(0), params["prevalence_weight"] * unit]).flatten()
    return values(maximise(total, prior, start, rows))


def start_as_lda(model: RegressedAdmixture, params: Params) -> Params:
    """Return parameters with the concentrations of LDA in every document."""
    topic = params["topic"]
    bias = topic.new_full((len(topic),), START_ALPHA).log()
    return {**params, "prevalence_bias": bias, "prevalence_weight": topic.new_zeros(model.shapes["prevalence_weight"])}
