"""Learning a Helmholtz machine with its recognition network: wake-sleep and its successors.

With f_s = log p(x, h_s) - log q(h_s | x) of draws h_1, ..., h_S from q(. | x), w_s = softmax(f)_s, the steps climb

    wake-sleep (Hinton, Dayan, Frey & Neal, 1995), S = 1:
        p: mean log p(x, h)                       q: mean log q(h* | x*) of fantasies (h*, x*) from p
        (the slides' delta rules, w += rate s_u (s_v - p(s_v = 1)), are the gradients of these)
    reweighted wake-sleep (Bornschein & Bengio, ICLR 2015):
        p: sum_s w_s log p(x, h_s)                q: half sum_s w_s log q(h_s | x), half the fantasies'
    importance weighted (Burda et al., ICLR 2016; gradients of q by VIMCO: Mnih & Rezende, ICML 2016), which climbs
        B = log mean_s exp f_s <= log p(x):       p: sum_s w_s grad log p(x, h_s)
        q: sum_s [(B - B_-s) - w_s] grad log q(h_s | x),  B_-s with f_s exchanged for the mean of the others
    REINFORCE with the mean of the other draws as baseline (Mnih & Gregor, ICML 2014), which climbs E_q[f] <= log p(x):
        p: mean_s grad log p(x, h_s)              q: mean_s (f_s - mean of the other f) grad log q(h_s | x)

and the log prior of the globals, its part for the rows at hand.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from custom_inference.core.ended import Ended
from custom_inference.core.fit import Fit
from custom_inference.core.local_inference import Local, LocalSolver
from custom_inference.core.method import Call, Method
from custom_inference.core.posterior_bounds import evaluate_posterior
from custom_inference.core.progress import Progress
from custom_inference.core.settings import require_positive, require_whole
from custom_inference.families.helmholtz.exact import ExactBelief
from custom_inference.families.helmholtz.recognition import Recognition, fantasies, log_generative
from custom_inference.families.helmholtz.search import random_start
from custom_inference.families.rows.matrix import BinaryRows
from ppl_models import Data, HelmholtzMachine, MethodError, Model

#: Values of the objective that are kept, at most, each the mean over the steps since the last.
_VALUES = 200
#: Deviation of the weights at the start.
_SPREAD = 0.1


@dataclass(frozen=True, kw_only=True)
class RecognitionMethod(Method):
    """Stochastic steps of the generative and of the recognition network together.

    steps: of ``batch_size`` rows each. particles: S. learning_rate: of Adam, falling to 0 over the second half.
    optimizer: "adam", or "sgd", plain steps.

    ``Fit.elbo`` is the mean of f over the steps between two of its values, times N, with the log prior: a noisy
    estimate of the bound. ``Fit.guide`` is the recognition network; ``Fit.posterior`` its q. Further rows are inferred
    exactly where that is feasible, else by annealed importance sampling.
    """

    steps: int = 3000
    batch_size: int = 100
    particles: int = 5
    learning_rate: float = 0.01
    optimizer: str = "adam"

    #: The fewest draws of a row that the steps are defined for.
    least_particles: ClassVar[int] = 1

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size"):
            require_whole(name, getattr(self, name), 1)
        require_whole("particles", self.particles, self.least_particles)
        require_positive("learning_rate", self.learning_rate)
        if self.optimizer not in ("adam", "sgd"):
            raise MethodError(f"optimizer = {self.optimizer!r}, expected 'adam' or 'sgd'")

    def check(self, model: Model) -> None:
        if not isinstance(model, HelmholtzMachine):
            raise MethodError(f"{type(model).__name__}: {self.name} is for HelmholtzMachine")

    def surrogate(self, log_p: Tensor, log_q: Tensor, of_fantasies: Tensor) -> Tensor:
        """What one step climbs: its gradient is that of the docstring. log_p, log_q (S, N), of_fantasies (M,)."""
        raise NotImplementedError

    def _fit(self, model: Any, data: Data, call: Call) -> Fit:
        run = _LearningRun(self, model, BinaryRows.of(data), call.seed, call.start(model))
        ended = run.train(call.progress, learn=True)
        how = "interrupted after" if ended is Ended.INTERRUPTED else "ended after"
        return Fit(
            model=model,
            params={site: value.detach() for site, value in run.params.items()},
            elbo=torch.tensor(run.trace, dtype=torch.float64),
            bound_name="recognition",
            objective="estimate",
            prior_term=run.prior_term,
            status=f"{how} {run.done} steps; the objective is a noisy estimate",
            ended=ended,
            method=self,
            data=data,
            seed=call.seed,
            local=run.local(data),
            solver=LocalSolver(engine=ExactBelief()) if ExactBelief().feasible(model) else None,
            guide=run.network,
        )

    def local_posterior(
        self, model: HelmholtzMachine, params: dict[str, Tensor], data: Data, *, seed: int = 0
    ) -> Local:
        """Infer the locals by a recognition network that is learned with the generative one held."""
        run = _LearningRun(self, model, BinaryRows.of(data), seed, params)
        run.train(False, learn=False)
        return run.local(data)


@dataclass(frozen=True, kw_only=True)
class WakeSleep(RecognitionMethod):
    """The wake-sleep algorithm (Hinton et al. 1995); with the plain delta rule it is ``WakeSleep(optimizer="sgd")``."""

    particles: int = 1

    def surrogate(self, log_p: Tensor, log_q: Tensor, of_fantasies: Tensor) -> Tensor:
        return log_p.mean() + of_fantasies.mean()


@dataclass(frozen=True, kw_only=True)
class ReweightedWakeSleep(RecognitionMethod):
    """Reweighted wake-sleep: draws from q weighted by p / q."""

    least_particles: ClassVar[int] = 2

    def surrogate(self, log_p: Tensor, log_q: Tensor, of_fantasies: Tensor) -> Tensor:
        weight = torch.softmax((log_p - log_q).detach(), 0)
        return (weight * (log_p + 0.5 * log_q)).sum(0).mean() + 0.5 * of_fantasies.mean()


@dataclass(frozen=True, kw_only=True)
class ImportanceWeighted(RecognitionMethod):
    """The importance weighted bound, with leave-one-out control variates (VIMCO)."""

    least_particles: ClassVar[int] = 2

    def surrogate(self, log_p: Tensor, log_q: Tensor, of_fantasies: Tensor) -> Tensor:
        f = (log_p - log_q).detach()
        weight, number = torch.softmax(f, 0), len(f)
        others = (f.sum(0) - f) / (number - 1)
        # Row s has f_s exchanged for the mean of the others.
        exchanged = f.expand(number, *f.shape) + torch.diag_embed((others - f).movedim(0, -1)).movedim(0, -1)
        signal = torch.logsumexp(f, 0) - torch.logsumexp(exchanged, 1)
        return (weight * log_p + (signal - weight) * log_q).sum(0).mean()


@dataclass(frozen=True, kw_only=True)
class Reinforce(RecognitionMethod):
    """The evidence lower bound by the score function, with the mean of the other draws as baseline."""

    least_particles: ClassVar[int] = 2

    def surrogate(self, log_p: Tensor, log_q: Tensor, of_fantasies: Tensor) -> Tensor:
        f = (log_p - log_q).detach()
        baseline = (f.sum(0) - f) / (len(f) - 1)
        return (log_p + (f - baseline) * log_q).mean()


@dataclass
class _LearningRun:
    """The state of learning."""

    settings: RecognitionMethod
    model: HelmholtzMachine
    rows: BinaryRows
    seed: int
    start: dict[str, Tensor] | None
    trace: list[float] = field(default_factory=list)
    prior_term: float = 0.0
    done: int = 0

    def __post_init__(self) -> None:
        self.generator, like, start = torch.Generator().manual_seed(self.seed), self.rows.like, self.start
        if start is None:
            random = random_start(self.model, self.rows, self.generator, [0.0], free=_SPREAD)
            start = {site: value[0] for site, value in random.items()}
        start = {**start, **self.model.known}
        shapes = {site: self.model.shapes[site] for site in self.model.global_sites}
        self.params = {site: start[site].detach().to(like).expand(shape).clone() for site, shape in shapes.items()}
        self.network = Recognition(self.model.layers, like, self.generator, _SPREAD)

    def train(self, progress: bool, *, learn: bool) -> Ended:
        """Take all steps; learn: of the generative network too. Returns how they ended."""
        settings, free = self.settings, set(self.params) - set(self.model.known) if learn else set()
        generative = [value for site, value in self.params.items() if site in free]
        changed = [*generative, *self.network.parameters()]
        for value in generative:
            value.requires_grad_()
        kinds: dict[str, Any] = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}
        optimizer = kinds[settings.optimizer](changed, lr=settings.learning_rate)
        every, recent, priors = math.ceil(settings.steps / _VALUES), [], [0.0]
        with Progress(settings.steps, settings.name, enabled=progress) as bar, torch.enable_grad():
            try:
                while self.done < settings.steps:
                    share = self.done / settings.steps
                    optimizer.param_groups[0]["lr"] = settings.learning_rate * min(1.0, 2 * (1 - share))
                    value, prior = self._step(optimizer, learn)
                    priors = [*priors, prior] if recent else [prior]
                    recent.append(value + prior)
                    self.done += 1
                    if self.done % every == 0:
                        self.trace.append(sum(recent) / len(recent))
                        recent.clear()
                    bar.advance()
            except KeyboardInterrupt:
                if not self.done:
                    raise
                return Ended.INTERRUPTED
            finally:
                self.trace += [sum(recent) / len(recent)] if recent else []
                self.prior_term = sum(priors) / len(priors)
        return Ended.COMPLETE

    def _step(self, optimizer: torch.optim.Optimizer, learn: bool) -> tuple[float, float]:
        """The estimate of the bound before the step, and the log prior there."""
        settings, size = self.settings, len(self.rows)
        chosen = torch.randint(size, (min(settings.batch_size, size),), generator=self.generator)
        rows = self.rows.select(chosen.to(self.rows.like.device))
        hidden = self.network.sample(rows.ones, settings.particles, self.generator)
        log_p = log_generative(self.params, hidden, rows.ones, rows.observed)
        log_q = self.network.log_prob(rows.ones, hidden)
        *above, x = fantasies(self.params, self.model.layers, len(rows), self.generator)
        value = settings.surrogate(log_p, log_q, self.network.log_prob(x, above))
        prior = self.model.log_prior(self.params) if learn else torch.zeros(())
        optimizer.zero_grad()
        (-(value + prior / size)).backward()
        optimizer.step()
        return size * float((log_p - log_q).detach().mean()), float(prior.detach())

    def local(self, data: Data) -> Local:
        params = {site: value.detach() for site, value in self.params.items()}
        posterior = self.network.posterior(self.rows.ones, self.generator)
        if not posterior.shared:
            return Local(
                posterior, data.x.new_full((len(data),), torch.nan), what="estimate", family=self.settings.name
            )
        return evaluate_posterior(self.model, params, data, posterior, self.settings.name)
