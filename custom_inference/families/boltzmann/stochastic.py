"""Stochastic maximum likelihood of harmoniums: CD, persistent CD and parallel tempering (Murphy 2012, section
27.7.2)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from custom_inference.core.ended import Ended
from custom_inference.core.fit import Fit
from custom_inference.core.local_inference import LocalSolver
from custom_inference.core.method import Call, Method
from custom_inference.core.progress import Progress
from custom_inference.core.registry import engine_for
from custom_inference.core.settings import require_between, require_positive, require_whole
from custom_inference.families.boltzmann.common import require_machine
from custom_inference.families.boltzmann.training import Training
from ppl_models import Data, MethodError, Model
from ppl_models.core.errors import unknown_name
from ppl_models.rbm import HarmoniumModel

_OPTIMIZERS = ("momentum", "adam")


@dataclass(frozen=True, kw_only=True)
class ContrastiveDivergence(Method):
    """Contrastive divergence CD-k: the model's phase by k Gibbs sweeps from each row (Murphy 2012, algorithm 27.3).

    max_iterations: passes over the rows (epochs); None: by the number of rows. sweeps: k. batch_size: rows an update.
    learning_rate: of the first update, falling to 0 linearly; None: 1 - momentum of binary units and of softmax units,
        .04 of that of gaussian ones; with Adam, and of documents, .01, of those less where they are longer than 100
        tokens. optimizer: "momentum", or "adam"; None: "adam" of documents, else "momentum".
    momentum: of the first; None: .5, beside persistent chains 0, as they lag behind the weights.
    weight_decay: l in -l |W|^2 / 2 beside the mean log-likelihood; None: the model's priors.
    centred: whether units are centred; None: where some are gaussian. averaging: the share of the updates, the last
        ones, whose weights are averaged.
    restarts: runs, of which that with the best log p(x) + log p(theta) is kept, or with the best pseudo-likelihood
        where that has more than 2^16 terms; None: one in that case, else two, or six that persistent CD of binary units
        learns side by side at the price of three, twelve where exact gradients follow.
    ascent: whether persistent CD goes on by exact gradients of log p(x) + log p(theta), to the maximum, and replaces
        units where others lead higher. None: where a sum over the hidden states, of binary units and Gaussian priors,
        is cheap (2^16 states of 64 visible units are); the runs then are a third as long, and the prior of W counts
        more at first.
    validation: the share of the rows that are held out; their exact log-likelihood where that is cheap, else their
        pseudo-likelihood, decides which weights are kept, and ends the fit after ``patience`` looks without a gain.

    ``elbo`` has an estimate of sum_n log p(x_n), 20 times or so: the pseudo-likelihood, or exact for few hidden units.
    ``details["watched"]`` has the same a row, that of rows held out, and the free-energy gap F(held out) - F(trained
    on) (Hinton, *A practical guide to training RBMs*, 2010). Ctrl-C keeps the weights that are there.
    """

    max_iterations: int | None = None
    sweeps: int = 1
    batch_size: int = 100
    learning_rate: float | None = None
    optimizer: str | None = None
    momentum: float | None = None
    weight_decay: float | None = None
    centred: bool | None = None
    averaging: float = 0.5
    restarts: int | None = None
    ascent: bool | None = None
    validation: float = 0.0
    patience: int = 5

    kind: ClassVar[str] = "cd"
    chains: ClassVar[int] = 0
    temperatures: ClassVar[int] = 1
    #: Settings of the kind that are whole numbers.
    whole: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        names = ["sweeps", "batch_size", "patience", *self.whole]
        for name in names + [one for one in ("max_iterations", "restarts") if getattr(self, one) is not None]:
            require_whole(name, getattr(self, name))
        if self.ascent not in (None, True, False):
            raise MethodError(f"ascent = {self.ascent!r}, expected True, False or None")
        if self.optimizer not in (None, *_OPTIMIZERS):
            raise MethodError(unknown_name("optimizer", self.optimizer, _OPTIMIZERS))
        for name in ("averaging", "validation", *(["momentum"] if self.momentum is not None else [])):
            require_between(name, getattr(self, name), "[0, 1)")
        if self.learning_rate is not None:
            require_positive("learning_rate", self.learning_rate)
        if self.weight_decay is not None:
            require_between("weight_decay", self.weight_decay, "[0, inf)")

    @property
    def name(self) -> str:
        return f"{self.kind.upper()}-{self.sweeps}"

    def check(self, model: Model) -> None:
        """Raises MethodError for other models, and for sites whose values are known."""
        require_machine(model, f"{self.name} takes RBM and ReplicatedSoftmax alone")
        if model.known:
            raise MethodError(f"{self.name} moves all sites, and {next(iter(model.known))!r} is fixed; use EM")

    def _fit(self, model: Model, data: Data, call: Call) -> Fit:
        model = require_machine(model)
        best, status = self._run(model, data, call, 0)
        other, runs = best, best.runs
        for attempt in range(1, 1 if best.abreast else runs):
            if other.interrupted:
                break
            other, status = self._run(model, data, call, attempt)
            best = other if other.score() > best.score() or not math.isfinite(best.score()) else best
        ended = Ended.INTERRUPTED if other.interrupted else best.ended
        return self.conclude(best, status if runs == 1 else f"{status}; the best of {runs} runs", ended)

    def _run(self, model: HarmoniumModel, data: Data, call: Call, attempt: int) -> tuple[Training, str]:
        training = Training(self, model, data, call, attempt)
        return training, training.run(Progress(training.passes, self.name, enabled=call.progress))

    def conclude(self, training: Training, status: str, ended: Ended) -> Fit:
        """Return the fit that training came to. Raises MethodError where it left the finite numbers."""
        model, data = training.model, training.data
        params = {site: value.to(data.x.dtype) for site, value in training.final_params().items()}
        if not all(bool(torch.isfinite(value).all()) for value in params.values()):
            raise MethodError(f"{self.name} left the finite numbers; expected a smaller learning_rate")
        return Fit(
            model=model,
            params=params,
            elbo=torch.tensor(training.trace, dtype=torch.float64),
            bound_name="pseudo-likelihood",
            objective="estimate",
            prior_term=0.0,
            status=status,
            ended=ended,
            method=self,
            data=data,
            seed=training.call.seed,
            solver=LocalSolver(engine=engine_for(model, "exact")),
            details={"watched": training.watched, "passes": training.passes},
        )


@dataclass(frozen=True, kw_only=True)
class PersistentCD(ContrastiveDivergence):
    """Persistent contrastive divergence PCD-k (stochastic maximum likelihood): the model's phase by chains that are
    never restarted (Murphy 2012, algorithm 27.4).

    chains: how many; rows with units of their own (documents, absent entries) have one each. Other settings as CD's.
    """

    chains: int = 100  # pyright: ignore[reportIncompatibleVariableOverride]

    kind: ClassVar[str] = "pcd"
    whole: ClassVar[tuple[str, ...]] = ("chains",)


@dataclass(frozen=True, kw_only=True)
class ParallelTempering(PersistentCD):
    """Persistent chains at several temperatures, from independent units to the machine, which exchange their states:
    these mix where single chains stay in one mode (Desjardins et al., AISTATS 2010).

    temperatures: how many. Other settings as those of persistent CD.
    """

    temperatures: int = 10  # pyright: ignore[reportIncompatibleVariableOverride]

    kind: ClassVar[str] = "pt"
    whole: ClassVar[tuple[str, ...]] = ("chains", "temperatures")
