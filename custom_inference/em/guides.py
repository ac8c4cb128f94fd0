"""Families without settings that have closed-form engines and no Pyro guide: give them to ``VariationalEM``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from custom_inference.core.engine import POINT, Engine
from custom_inference.core.guide import Guide
from custom_inference.core.registry import engine_for, engines_of
from ppl_models import MethodError, Model


@dataclass(frozen=True, kw_only=True)
class AllCodes(Guide):
    """Q = the exact posterior: codes are summed over, memberships integrated; what EM uses."""

    name: ClassVar[str] = "exact"


@dataclass(frozen=True, kw_only=True)
class PointEstimate(Guide):
    """Q = all mass on one value a row: globals and locals are estimated jointly, by maximum a posteriori.

    The estimation of the aspect Bernoulli paper (Bingham et al. 2007, eqs. 5-6) and of logistic PCA. The objective is
    the log joint, not a bound on the evidence, and the locals appear in ``Fit.params``.
    """

    name: ClassVar[str] = POINT


@dataclass(frozen=True, kw_only=True)
class DirichletMembership(Guide):
    """Q(s_n) = Dirichlet(gamma_n): variational Bayes over memberships."""

    name: ClassVar[str] = "dirichlet"


@dataclass(frozen=True, kw_only=True)
class VariationalBayes(Guide):
    """Q(locals) Q(globals), both of the conjugate families: the globals get a posterior, not a point.

    The bound is one on log p(x). ``Fit.params`` holds the means of the globals, ``Fit.global_posterior`` their Q.

    learn: which concentrations of Dirichlet priors to learn too (empirical Bayes), where the model's engine can: of LDA
        "alpha" (of the topic proportions, one for every topic), "gamma" (of the topics) or "both"; of gamma-Poisson
        models "activation" (shapes, rates and spikes of the activations). ``Fit.model`` has the learned priors.
    zeros: of graphs with mixed memberships, whether the dyads without an edge each have a Q of their own ("each"), or
        share one by node ("shared"), which costs N K^2 instead of N^2 K and gives a lower bound; None: by size.
    """

    learn: str | None = None
    zeros: str | None = None
    name: ClassVar[str] = "vb"

    def engine(self, model: Model) -> Engine:
        """Raises MethodError where something is to be learned that the model's engine cannot learn."""
        found = engines_of(model).get(self.name)
        if self.learn is not None and not hasattr(found, "learn"):
            raise MethodError(f"learn = {self.learn!r}, but {type(model).__name__} has no priors that are learned")
        if self.zeros is not None and not hasattr(found, "zeros"):
            raise MethodError(f"zeros = {self.zeros!r}, but {type(model).__name__} does not tell zeros apart")
        settings = {"learn": self.learn, "zeros": self.zeros}
        return engine_for(model, self.name, **{name: v for name, v in settings.items() if v is not None})


@dataclass(frozen=True, kw_only=True)
class CollapsedVariationalBayes(Guide):
    """Q over the topics of the tokens with proportions and topics integrated out, to zeroth order (CVB0).

    Asuncion, Welling, Smyth & Teh, *On smoothing and inference for topic models*, UAI 2009. The objective is the
    likelihood at the expected proportions and topics, no bound on log p(x).
    """

    name: ClassVar[str] = "cvb0"


@dataclass(frozen=True, kw_only=True)
class GaussianScore(Guide):
    """Q(s_n) = Normal(m_n, C_n): variational Bayes over real-valued scores, by Jaakkola's bound on the sigmoid."""

    name: ClassVar[str] = "gaussian"


@dataclass(frozen=True, kw_only=True)
class Laplace(Guide):
    """Q(s_n) = a Gaussian of the stick-breaking coordinates of a membership, under any prior with two derivatives.

    About the mode of every row (Laplace's approximation), corrected by weighted nodes of that Gaussian: the objective
    is their estimate of the evidence, which may lie on either side of it.

    draws: nodes a row; None: a product rule for up to four components, 8 draws a component beyond that, 64 at least;
        1: Laplace's approximation as it is.
    """

    draws: int | None = None
    name: ClassVar[str] = "laplace"

    def engine(self, model: Model) -> Engine:
        return engine_for(model, self.name, draws=self.draws)


@dataclass(frozen=True, kw_only=True)
class Truncated(Guide):
    """Q(s_n) in proportion to p(x_n, s_n) on a set of codes that evolves per row; for VariationalEM.

    The bound log sum over the set of p(x_n, s) never exceeds log p(x_n) and grows whenever the set improves.

    free: sources per row that take all their values, 2^free codes, during EM. New rows, which start from the empty
        code, get at least 2^6.
    """

    free: int = 4
    name: ClassVar[str] = "truncated"

    def __post_init__(self) -> None:
        if not 1 <= self.free <= 12:
            raise MethodError(f"free = {self.free}, expected 1 to 12 (2^free codes a row)")

    def engine(self, model: Model) -> Engine:
        return engine_for(model, self.name, free=self.free)
