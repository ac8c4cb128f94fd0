"""Families without settings that have closed-form steps and no Pyro guide: give them to ``VariationalEM``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from custom_inference.guides._protocol import Guide
from custom_inference.steps._protocol import POINT


@dataclass(frozen=True, kw_only=True)
class AllCodes(Guide):
    """Q = the exact posterior: codes are summed over, memberships integrated; what EM uses."""

    bound_name: ClassVar[str] = "evidence"


@dataclass(frozen=True, kw_only=True)
class PointEstimate(Guide):
    """Q = all mass on one value a row: globals and locals are estimated jointly, by maximum a posteriori.

    The estimation of the aspect Bernoulli paper (001, eqs. 5-6) and of logistic PCA. The objective is the log joint,
    not a bound on the evidence, and the locals appear in ``Fit.params``.
    """

    bound_name: ClassVar[str] = POINT


@dataclass(frozen=True, kw_only=True)
class DirichletMembership(Guide):
    """Q(s_n) = Dirichlet(gamma_n): variational Bayes over memberships."""

    bound_name: ClassVar[str] = "dirichlet"


@dataclass(frozen=True, kw_only=True)
class VariationalBayes(Guide):
    """Q(locals) Q(globals), both of the conjugate families: the globals get a posterior, not a point.

    The bound is one on log p(x). ``Fit.params`` holds the means of the globals, ``Fit.global_posterior`` their Q.
    """

    bound_name: ClassVar[str] = "vb"


@dataclass(frozen=True, kw_only=True)
class CollapsedVariationalBayes(Guide):
    """Q over the topics of the tokens with proportions and topics integrated out, to zeroth order (CVB0).

    Asuncion, Welling, Smyth & Teh, *On smoothing and inference for topic models*, UAI 2009. The objective is the
    likelihood at the expected proportions and topics, no bound on log p(x).
    """

    bound_name: ClassVar[str] = "cvb0"


@dataclass(frozen=True, kw_only=True)
class GaussianScore(Guide):
    """Q(s_n) = Normal(m_n, C_n): variational Bayes over real-valued scores, by Jaakkola's bound on the sigmoid."""

    bound_name: ClassVar[str] = "gaussian"
