"""Starts for mixed memberships: see ``initialisation``."""

from __future__ import annotations

from typing import Any

import torch

from custom_inference.core.engine import Params
from custom_inference.core.proposals import Proposals
from custom_inference.families.memberships.dyads import Dyads
from custom_inference.families.memberships.initialisation import propose_membership, same_memberships
from ppl_models import Model


class MembershipProposals(Proposals):
    """Starts of the engines at points of the globals."""

    def propose(self, model: Model, rows: Dyads, generator: torch.Generator, attempt: int) -> Params:
        return self.engine.from_membership(model, rows, propose_membership(rows, model, generator, attempt))

    def search_size(self, model: Model, num_rows: int) -> tuple[int, int]:
        """Starts of both kinds; fewer of large graphs, on all of which each has to look."""
        return (6 if num_rows <= 300 else 3 if num_rows <= 3000 else 2), num_rows


class PosteriorProposals(MembershipProposals):
    """Starts of variational Bayes."""

    def same_solution(self, model: Model, first: Any, second: Any) -> bool:
        return same_memberships(first.concentration, second.concentration)


class CountProposals(MembershipProposals):
    """Starts of CVB0."""

    def same_solution(self, model: Model, first: Any, second: Any) -> bool:
        return same_memberships(*(one.members + 1e-6 for one in (first, second)))
