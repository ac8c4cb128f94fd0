"""Topic proportions, and memberships of user rating profiles, under any prior; the topics as points.

E steps are those of ``common.laplace``, the M step that of the family (Murphy 2012, eqs. 27.42 and 27.46).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from custom_inference.core.engine import EStep, Params, Warm
from custom_inference.families.common.laplace import LaplaceMemberships
from custom_inference.families.rows.documents import DocumentRows
from custom_inference.families.topics.common import TopicEngine
from custom_inference.families.topics.user_rating_profile import ProfileEngine
from ppl_models import Model


@dataclass(frozen=True, kw_only=True)
class LdaLaplace(LaplaceMemberships, TopicEngine):
    """A Gaussian of stick-breaking coordinates a document, the topics as points."""

    def check(self, model: Model, rows: DocumentRows) -> None:
        super().check(model, rows)
        self.check_local_prior(model, rows.like.values())

    def e_step(
        self, model: Model, params: Params, rows: DocumentRows, warm: Warm = None, *,
        temperature: float = 1.0, generator: torch.Generator | None = None,
    ) -> EStep:  # fmt: skip
        counts, locals_, bound = self.infer_memberships(model, rows, self.topics(model, params), warm, temperature)
        return EStep({"topic": counts}, locals_, bound + rows.log_coefficient)


@dataclass(frozen=True, kw_only=True)
class ProfileLaplace(ProfileEngine, LdaLaplace):
    """The Laplace approximation of memberships, with the responses as points."""
