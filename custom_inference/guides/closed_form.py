"""Families without settings that have closed-form steps and no Pyro guide: give them to ``VariationalEM``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from custom_inference.engines import engines_of, steps_for
from custom_inference.guides._protocol import Guide
from custom_inference.steps._protocol import POINT, Steps
from ppl_models import MethodError, Model


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

    learn: which concentrations of Dirichlet priors to learn too (empirical Bayes), where the model's steps can: of LDA
        "alpha" (of the topic proportions, one for every topic), "gamma" (of the topics) or "both". ``Fit.model`` has
        the learned priors.
    zeros: of graphs with mixed memberships, whether the dyads without an edge each have a Q of their own ("each"), or
        share one by node ("shared"), which costs N K^2 instead of N^2 K and gives a lower bound; None: by size.
    """

    learn: str | None = None
    zeros: str | None = None
    bound_name: ClassVar[str] = "vb"

    def steps(self, model: Model) -> Steps:
        """Raises MethodError where something is to be learned that the model's steps cannot learn."""
        found = engines_of(model).get(self.bound_name)
        if self.learn is not None and not hasattr(found, "learn"):
            raise MethodError(f"learn = {self.learn!r}, but {type(model).__name__} has no priors that are learned")
        if self.zeros is not None and not hasattr(found, "zeros"):
            raise MethodError(f"zeros = {self.zeros!r}, but {type(model).__name__} does not tell zeros apart")
        settings = {"learn": self.learn, "zeros": self.zeros}
        return steps_for(model, self.bound_name, **{name: v for name, v in settings.items() if v is not None})


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
