"""What the engines of correlated topic models share: rows with a design, M steps, and starts.

With q(z_n) of mean m_n and covariance V_n, prior means B'd_n and covariances s_n Sigma, the expected log joint is, in B
and Sigma under Normal(c_pk, 1 / l_pk) and InverseWishart(df, Psi) (Murphy 2012, eq. 27.51),

    B      solves  G B Sigma^-1 + l * (B - c) = X Sigma^-1        G = sum_n d_n d_n' / s_n,  X = sum_n d_n m_n' / s_n
    Sigma  = (Psi + T - X'B - B'X + B'G B) / (df + K + 1 + N)     T = sum_n (m_n m_n' + V_n) / s_n

by turns, each the exact conditional maximum. What the data cannot see, equal changes of all logits, goes to its mode
under the priors where these are the same for all topics. Topics as LDA's (27.42).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from custom_inference.core.engine import EStep, Params
from custom_inference.core.posteriors import GaussianPosterior
from custom_inference.families.conjugate.normal import Normal
from custom_inference.families.conjugate.wishart import InverseWishart
from custom_inference.families.rows.documents import DocumentRows
from custom_inference.families.topics.common import TopicEngine
from ppl_models import Data
from ppl_models.ctm import LogisticNormalTopics

#: Rounds of B and covariance in an M step, and the change that ends them.
_ROUNDS, _SETTLED = 50, 1e-10


@dataclass(frozen=True)
class CorrelatedRows(DocumentRows):
    """Documents with their design d (N, P') and scale s (N,)."""

    design: Tensor = None  # pyright: ignore[reportAssignmentType]
    scale: Tensor = None  # pyright: ignore[reportAssignmentType]

    @classmethod
    def read(cls, model: LogisticNormalTopics, data: Data) -> CorrelatedRows:
        rows: Any = cls.of(data, coefficient=model.coefficient)
        like = rows.counts.values()
        design, scale = model.design(data.others.get("covariates"), len(rows), like)
        design, scale = design.to(like), like.new_ones(len(rows)) if scale is None else scale.to(like)
        return cls(rows.counts, rows.coefficient, design=design, scale=scale)


class LocationPrior(NamedTuple):
    """Normal(centre, 1 / precision) of the elements of B, each (P', K)."""

    centre: Tensor
    precision: Tensor

    @classmethod
    def of(cls, model: LogisticNormalTopics, like: Tensor) -> LocationPrior:
        """Raises PriorError for other priors."""
        pairs = [Normal.of(model, site, model.shapes[site], like) for site in model.location_sites]
        size, units = model.num_topics, model.location_units(like)
        centre, precision = (
            torch.cat([part.reshape(-1, size) for part in parts]) for parts in zip(*pairs, strict=True)
        )
        return cls(centre * units, precision / units.square())

    @property
    def exchangeable(self) -> bool:
        """Whether all topics have the same."""
        return all(bool((part == part[:, :1]).all()) for part in self)


def split_location(model: LogisticNormalTopics, location: Tensor) -> Params:
    """Split B (P', K), in units of the design's columns, into the values of the sites whose rows it has."""
    found, at = {}, 0
    location = location / model.location_units(location)
    for site in model.location_sites:
        shape = model.shapes[site]
        rows = shape[0] if len(shape) == 2 else 1
        found[site] = location[at : at + rows].reshape(shape)
        at += rows
    return found


class Moments(NamedTuple):
    """N (), G (P', P'), X (P', K) and T (K, K): what the Gaussian's parameters are learned from; additive over rows."""

    rows: Tensor
    gram: Tensor
    cross: Tensor
    outer: Tensor

    @classmethod
    def of(cls, rows: CorrelatedRows, mean: Tensor, covariance: Tensor) -> Moments:
        """Sum the moments over the rows at q(z_n) = N(mean_n, covariance_n)."""
        inverse = rows.scale.reciprocal()
        weighted = rows.design * inverse[:, None]
        spread = torch.einsum("n,nkl->kl", inverse, covariance)
        number = mean.new_tensor(float(len(rows)))
        return cls(number, rows.design.T @ weighted, weighted.T @ mean, (mean * inverse[:, None]).T @ mean + spread)

    def scatter(self, location: Tensor) -> Tensor:
        """The expected sum of squares about B'd_n, (K, K)."""
        part = self.cross.T @ location
        return self.outer - part - part.T + location.T @ self.gram @ location


def solve_location(moments: Moments, precision: Tensor, prior: LocationPrior) -> Tensor:
    """Solve for B at a precision Sigma^-1 (K, K)."""
    right = moments.cross @ precision + prior.precision * prior.centre
    system = torch.kron(moments.gram.contiguous(), precision.contiguous()) + torch.diag(prior.precision.flatten())
    return torch.linalg.solve(system, right.flatten()).view_as(right)


class DocumentLogits:
    """The prior of every document's logits at given globals, whose evidence is raised to a temperature.

    mean (N, K), precision (N, K, K), log_det (N,): that of the covariance. length (N,): tempered.
    """

    def __init__(self, model: LogisticNormalTopics, params: Params, rows: CorrelatedRows, temperature: float):
        factor = torch.linalg.cholesky(params["covariance"])
        self.precision = torch.cholesky_inverse(factor) / rows.scale[:, None, None]
        self.log_det = 2 * factor.diagonal().log().sum() + len(factor) * rows.scale.log()
        self.mean, self.length = rows.design @ model.location(params), temperature * rows.lengths

    def pull(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """Compute Sigma_n^-1 (z_n - mu_n), (N, K), and (z_n - mu_n)' Sigma_n^-1 (z_n - mu_n), (N,)."""
        off = value - self.mean
        pulled = (self.precision @ off[:, :, None]).squeeze(-1)
        return pulled, (pulled * off).sum(1)


class CorrelatedEngine(TopicEngine):
    """Rows, checks, starts and M steps; what differs is the posterior of a document's logits.

    Their E steps' statistics are those of the topics, and the fields of :class:`Moments`.
    """

    def alpha(self, model: LogisticNormalTopics, like: Tensor) -> Tensor:
        """(K,): the logits have no Dirichlet prior; starts are sampled as under a flat one."""
        return like.new_ones(model.shapes["topic"][0])

    def rows(self, model: LogisticNormalTopics, data: Data) -> CorrelatedRows:
        return CorrelatedRows.read(model, data)

    def check(self, model: LogisticNormalTopics, rows: CorrelatedRows) -> None:
        super().check(model, rows)
        LocationPrior.of(model, rows.like.values())
        InverseWishart.of(model, "covariance", rows.like.values())

    def complete(self, model: LogisticNormalTopics, params: Params, counts: Tensor | None = None) -> Params:
        topic = params["topic"]
        location = {site: topic.new_zeros(model.shapes[site]) for site in model.location_sites}
        return {**params, **location, "covariance": torch.eye(len(topic)).to(topic)}

    def m_step(self, model: LogisticNormalTopics, params: Params, step: EStep, rows: DocumentRows) -> Params:
        moments = Moments(*(step.statistics[name] for name in Moments._fields))
        location, covariance = model.location(params), params["covariance"]
        prior, wishart = LocationPrior.of(model, location), InverseWishart.of(model, "covariance", location)
        psi, size = wishart.scale, len(covariance)
        for _ in range(_ROUNDS):
            precision = torch.cholesky_inverse(torch.linalg.cholesky(covariance))
            before, location = location, solve_location(moments, precision, prior)
            covariance = wishart.update(moments.rows, moments.scatter(location)).mode
            covariance = (covariance + covariance.T) / 2
            if float((location - before).abs().max()) < _SETTLED:
                break
        if prior.exchangeable and bool((psi == psi[0, 0] * torch.eye(size).to(psi)).all()):
            # Equal changes of all logits: to their mode under the priors, which never lowers the objective.
            centre = torch.eye(size).to(location) - 1.0 / size
            location = location @ centre + prior.centre.mean(1, keepdim=True)
            covariance = centre @ covariance @ centre + wishart.mode[0, 0] / size
        topic = super().m_step(model, params, step, rows)
        return {**topic, **split_location(model, location), "covariance": covariance}

    def posterior(
        self, model: LogisticNormalTopics, params: Params, rows: CorrelatedRows, step: EStep
    ) -> GaussianPosterior:
        return GaussianPosterior(step.locals["mean"], step.locals["covariance"])
