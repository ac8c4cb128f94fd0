"""The user rating profile model (Murphy 2012, eq. 27.14) by the engines of LDA.

A row's responses are the words "response r is c" of a document, of which it has one for each r that was observed: with
a column for each such word, p(y_i | pi_i) = prod_v [sum_k pi_ik b_kv]^n_iv is LDA's density at topics whose columns
are normalised in R groups of C_r. So the E steps are LDA's, and M steps, priors and divergences go by groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from custom_inference.core.engine import EStep, Params
from custom_inference.families.common.polynomial import num_terms
from custom_inference.families.common.tables import groups_of, in_tables, side_by_side
from custom_inference.families.conjugate.dirichlet import Groups
from custom_inference.families.mixtures.rows import MixtureRows
from custom_inference.families.rows.documents import DocumentRows
from custom_inference.families.topics.common import TopicEngine
from custom_inference.families.topics.dirichlet import LdaDirichlet
from custom_inference.families.topics.exact import LdaExact
from custom_inference.families.topics.map import LdaMap
from custom_inference.families.topics.vb import LdaVB, TopicPosteriors
from ppl_models import Data, MethodError, UserRatingProfile
from ppl_models.data import sparse as _sparse

#: Exact sums are cheap up to this many terms a row. They are the default up to so many responses and rows, about ten
#: seconds; of longer rows points say nearly the same.
_EXACT_TERMS, _FEW_RESPONSES, _FEW_ROWS = 500, 20, 4000


def is_short(model: UserRatingProfile) -> bool:
    """Tell whether rows are so short that the default sums over the profiles of their responses."""
    return model.num_features <= _FEW_RESPONSES and ProfileExact().feasible(model)


def of_many_rows(data: Data) -> tuple[str | None, str]:
    """Return the engine of points, and why, where sums over all rows take long."""
    if len(data) <= _FEW_ROWS:
        return None, ""
    return "map", f"since exact sums over more than {_FEW_ROWS:,} rows take long"


class ProfileEngine(TopicEngine):
    """Base of the engines of profiles, on top of those of LDA: tables b (K, R, C) are topics (K, C_1 + ... + C_R) side
    by side."""

    site: ClassVar[str] = "response"

    def groups(self, model: UserRatingProfile) -> Groups:
        return groups_of(model)

    def topics(self, model: UserRatingProfile, params: Params) -> Tensor:
        return side_by_side(params[self.site], model.categories)

    def to_site_shape(self, model: UserRatingProfile, topic: Tensor) -> Tensor:
        return in_tables(topic, model.categories)

    def words_prior(self, model: UserRatingProfile, like: Tensor) -> Tensor:
        """Return the concentrations (K, C_1 + ... + C_R)."""
        return side_by_side(super().words_prior(model, like).expand(model.shapes["response"]), model.categories)

    def rows(self, model: UserRatingProfile, data: Data) -> DocumentRows:
        return DocumentRows(MixtureRows.of_categories(data, model.categories).counts)

    def initial(self, model: UserRatingProfile, rows: DocumentRows, generator: torch.Generator) -> Any:
        return self.from_counts(model, self.random_counts(model, rows, generator))


@dataclass(frozen=True, kw_only=True)
class ProfileDirichlet(ProfileEngine, LdaDirichlet):
    """Dirichlet posteriors of the memberships, the responses as points (Murphy 2012, eqs. 27.44 and 27.45)."""


@dataclass(frozen=True, kw_only=True)
class ProfileMap(ProfileEngine, LdaMap):
    """Points for memberships and responses."""

    def point_locals(self, step: EStep) -> dict[str, Tensor]:
        return {"membership": step.locals["topic_proportion"]}


@dataclass(frozen=True, kw_only=True)
class ProfileExact(ProfileEngine, LdaExact):
    """The memberships integrated out by all C(R + K - 1, K - 1) numbers of responses from each profile."""

    def feasible(self, model: UserRatingProfile) -> bool:
        """Tell whether a row has few enough numbers of responses to sum over."""
        return num_terms(model.num_features, model.num_components) <= _EXACT_TERMS

    def check(self, model: UserRatingProfile, rows: DocumentRows) -> None:
        super().check(model, rows)
        self.require(model.num_components, model.num_features, 1, rows.like.values().element_size())


@dataclass(frozen=True, kw_only=True)
class ProfileVB(ProfileEngine, LdaVB):
    """Dirichlet posteriors of memberships and responses."""

    noise_shape: ClassVar[int] = 1

    def check(self, model: UserRatingProfile, rows: DocumentRows) -> None:
        """Raises MethodError where priors are to be learned, too."""
        super().check(model, rows)
        if self.learn is not None:
            raise MethodError(f"learn = {self.learn!r}: the priors of the user rating profile model are not learned")

    def local(self) -> ProfileDirichlet:
        return ProfileDirichlet()

    def initial(self, model: UserRatingProfile, rows: DocumentRows, generator: torch.Generator) -> TopicPosteriors:
        """Divide every response among the profiles in random proportions."""
        random = super().initial(model, rows, generator).concentration
        return self.from_counts(model, random / random.sum(0) * _sparse.column_sums(rows.counts))
