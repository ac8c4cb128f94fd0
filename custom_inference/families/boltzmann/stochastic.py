"""Stochastic maximum likelihood of harmoniums: CD, persistent CD and parallel tempering (002, section 27.7.2).

The slope of the mean log-likelihood (27.112) is E[h t' | rows] - E[h t' | model] plus that of the prior, the second
term by the states of Markov chains. With centred units (Montavon & Mueller, *Deep Boltzmann machines and the centering
trick*, 2012) the products are those of h - lambda and t - mu, which turns the same steps into better conditioned ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from custom_inference.core.fit import Fit
from custom_inference.core.local_inference import LocalSolver
from custom_inference.core.method import Call, Method
from custom_inference.core.progress import Progress
from custom_inference.core.registry import engine_for
from custom_inference.families.boltzmann import common
from custom_inference.families.boltzmann.annealing import log_pseudo_likelihood
from custom_inference.families.boltzmann.chains import Chains
from custom_inference.families.boltzmann.common import SITES, HarmoniumRows
from custom_inference.families.boltzmann.exact import column_naturals, completions
from custom_inference.families.common.priors import normal_parameters
from ppl_models import Data, MethodError, Model
from ppl_models.core.errors import unknown_name
from ppl_models.rbm import HarmoniumModel

#: Updates that the number of passes is chosen for, and its range.
_UPDATES, _FEWEST, _MOST = 12000, 60, 1500
#: How often a fit is watched, the rows that are looked at, and the codes up to which log p is exact there.
_WATCHES, _WATCHED, _EXACT_BITS = 20, 500, 11
_OPTIMIZERS = ("momentum", "adam")


@dataclass(frozen=True, kw_only=True)
class ContrastiveDivergence(Method):
    """Contrastive divergence CD-k: the model's phase by k Gibbs sweeps from each row (002, algorithm 27.3).

    max_iterations: passes over the rows (epochs); None: by the number of rows. sweeps: k. batch_size: rows an update.
    learning_rate: of the first update, falling to 0 linearly; None: .5 of binary units and of softmax units, .02 of
        gaussian ones, .01 of documents. optimizer: "momentum", or "adam"; None: "adam" of documents, else "momentum".
    momentum: of both. weight_decay: l in -l |W|^2 / 2 beside the mean log-likelihood; None: the model's priors.
    centred: whether units are centred; None: of all but documents. averaging: the share of the updates, the last ones,
        whose weights are averaged.
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
    momentum: float = 0.5
    weight_decay: float | None = None
    centred: bool | None = None
    averaging: float = 0.5
    validation: float = 0.0
    patience: int = 5

    kind: ClassVar[str] = "cd"
    chains: ClassVar[int] = 0
    temperatures: ClassVar[int] = 1

    def __post_init__(self) -> None:
        whole = {"max_iterations": self.max_iterations or 1, "sweeps": self.sweeps, "batch_size": self.batch_size}
        for name, value in (whole | {"patience": self.patience}).items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise MethodError(f"{name} = {value!r}, expected a whole number of at least 1")
        if self.optimizer not in (None, *_OPTIMIZERS):
            raise MethodError(unknown_name("optimizer", self.optimizer, _OPTIMIZERS))
        shares = {"momentum": self.momentum, "averaging": self.averaging, "validation": self.validation}
        for name, value in shares.items():
            if not 0 <= value < 1:
                raise MethodError(f"{name} = {value}, expected at least 0 and below 1")
        if (self.learning_rate is not None and not self.learning_rate > 0) or not (self.weight_decay or 0.0) >= 0:
            found = f"learning_rate = {self.learning_rate}, weight_decay = {self.weight_decay}"
            raise MethodError(f"{found}; expected a positive one, and one of at least 0")

    @property
    def name(self) -> str:
        return f"{self.kind.upper()}-{self.sweeps}"

    def check(self, model: Model) -> None:
        """Raises MethodError for other models, and for sites whose values are known."""
        if not isinstance(model, HarmoniumModel):
            raise MethodError(f"{self.name} takes RBM and ReplicatedSoftmax alone")
        if model.known:
            raise MethodError(f"{self.name} moves all sites, and {next(iter(model.known))!r} is fixed; use EM")

    def _fit(self, model: Model, data: Data, call: Call) -> Fit:
        assert isinstance(model, HarmoniumModel)
        training = _Training(self, model, data, call)
        ended = training.run(Progress(training.passes, self.name, enabled=call.progress))
        params = {site: value.to(data.x.dtype) for site, value in training.kept().items()}
        if not all(bool(torch.isfinite(value).all()) for value in params.values()):
            raise MethodError(f"{self.name} left the finite numbers; expected a smaller learning_rate")
        return Fit(
            model=model,
            params=params,
            elbo=torch.tensor(training.trace, dtype=torch.float64),
            bound_name="pseudo-likelihood",
            objective="estimate",
            status=ended,
            method=self.name,
            data=data,
            seed=call.seed,
            solver=LocalSolver(engine=engine_for(model, "exact")),
            details={"watched": training.watched, "passes": training.passes},
        )


@dataclass(frozen=True, kw_only=True)
class PersistentCD(ContrastiveDivergence):
    """Persistent contrastive divergence PCD-k (stochastic maximum likelihood): the model's phase by chains that are
    never restarted (002, algorithm 27.4).

    chains: how many; rows with units of their own (documents, absent entries) have one each. Other settings as CD's.
    """

    chains: int = 100  # pyright: ignore[reportIncompatibleVariableOverride]

    kind: ClassVar[str] = "pcd"


@dataclass(frozen=True, kw_only=True)
class ParallelTempering(PersistentCD):
    """Persistent chains at several temperatures, from independent units to the machine, which exchange their states:
    these mix where single chains stay in one mode (Desjardins et al., AISTATS 2010).

    temperatures: how many. Other settings as those of persistent CD.
    """

    temperatures: int = 10  # pyright: ignore[reportIncompatibleVariableOverride]

    kind: ClassVar[str] = "pt"


@dataclass
class _Training:
    """One fit: its weights as one vector, what the updates keep, and what was seen on the way."""

    method: ContrastiveDivergence
    model: HarmoniumModel
    data: Data
    call: Call
    trace: list[float] = field(default_factory=list)
    watched: dict[str, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        method, model = self.method, self.model
        self.generator = torch.Generator(self.data.x.device).manual_seed(self.call.seed)
        rows = HarmoniumRows.of(model, self.data).to(torch.float32)
        order = torch.randperm(len(rows), generator=self.generator, device=self.data.x.device)
        held = int(method.validation * len(rows))
        self.held = rows.select(order[:held]) if held else None
        self.rows = rows.select(order[held:]) if held else rows
        self.is_document = bool(model.sites[model.observed_site].sparse)
        self.size = min(method.batch_size, len(self.rows))
        self.per_pass = max(1, len(self.rows) // self.size)
        self.passes = method.max_iterations or min(_MOST, max(_FEWEST, _UPDATES // self.per_pass))
        self._start()

    def _start(self) -> None:
        method, model, rows = self.method, self.model, self.rows
        shapes = model.shapes
        base = column_naturals(model, rows)
        noise = 0.01 * torch.randn(shapes["weight"], generator=self.generator, dtype=torch.float32, device=base.device)
        start = {"weight": noise, "visible_bias": base, "hidden_bias": base.new_zeros(shapes["hidden_bias"])}
        given = self.call.start(model)
        start = start if given is None else {site: value.to(base) for site, value in given.items()}
        self.theta = torch.cat([start[site].flatten() for site in SITES])
        self.sizes = [start[site].numel() for site in SITES]
        self.total, self.averaged, self.best = torch.zeros_like(self.theta), 0, (-math.inf, None)
        self.first, self.second = torch.zeros_like(self.theta), torch.zeros_like(self.theta)
        self.mean, self.precision = self._priors(start)
        energy = model.energy(self.params())
        self.chains = Chains.of(
            method.kind, method.sweeps, method.chains, method.temperatures, energy, base.flatten(), rows, self.generator
        )
        centred = not self.is_document and rows.times is None if method.centred is None else method.centred
        self.centre = None
        if centred:
            self.centre = [rows.statistic.mean(0), torch.full_like(energy.hidden_bias, 0.5 if model.code_bits else 0.0)]
        self.completed = rows.statistic if rows.missing is None else next(
            completions(model, self.params(), rows, 1, self.generator)
        )[0]  # fmt: skip

    def _priors(self, start: dict[str, Tensor]) -> tuple[Tensor, Tensor] | tuple[None, None]:
        """Mean and precision of the prior of every weight; None where it is not Normal, and is differentiated."""
        means, precisions = [], []
        for site in SITES:
            shape, decay = tuple(start[site].shape), self.method.weight_decay
            if decay is not None:
                precision = decay * len(self.rows) if site == "weight" else 0.0
                parts = start[site].new_zeros(shape), torch.full_like(start[site], precision)
            elif not isinstance(self.model.priors[site], torch.distributions.Normal) and not hasattr(
                self.model.priors[site], "proposal"
            ):
                return None, None
            else:
                parts = normal_parameters(self.model, site, shape, start[site])
            means.append(parts[0].flatten())
            precisions.append(parts[1].flatten())
        return torch.cat(means), torch.cat(precisions) / len(self.rows)

    def params(self, theta: Tensor | None = None) -> dict[str, Tensor]:
        parts = (self.theta if theta is None else theta).split(self.sizes)
        return {site: part.view(self.model.shapes[site]) for site, part in zip(SITES, parts, strict=True)}

    def kept(self) -> dict[str, Tensor]:
        """The weights of the fit: the best on rows held out, the average of the last ones, or these."""
        chosen = self.best[1] if self.best[1] is not None else self._averages()
        return {site: value.clone() for site, value in self.params(chosen).items()}

    def _averages(self) -> Tensor:
        return self.total / self.averaged if self.averaged else self.theta

    def run(self, bar: Progress) -> str:
        """How it ended."""
        done, stale, number = 0, 0, self.passes * self.per_pass
        looks = max(1, self.passes // _WATCHES)
        try:
            with bar, torch.no_grad():
                for done in range(self.passes):
                    order = torch.randperm(len(self.rows), generator=self.generator, device=self.theta.device)
                    for part in range(self.per_pass):
                        index = order[part * self.size : (part + 1) * self.size]
                        self._update(index, (done * self.per_pass + part) / number)
                    if (done + 1) % looks == 0 or done + 1 == self.passes:
                        stale = 0 if self._watch() else stale + 1
                        bar.advance(self.trace[-1] / len(self.rows), looks)
                        if self.held is not None and stale >= self.method.patience:
                            return f"stopped after {done + 1} passes: no gain on held-out rows; the best was kept"
        except KeyboardInterrupt:
            if not self.trace:
                self._watch()
            return f"interrupted after {done} passes"
        return f"{self.passes} passes"

    def _update(self, index: Tensor, share: float) -> None:
        grad = self._slope(index)
        if self.precision is not None and self.mean is not None:
            grad -= self.precision * (self.theta - self.mean)
        else:
            grad += self._slope_of_prior()
        rate = (self.method.learning_rate or self._rate) * (1 - share)
        if (self.method.optimizer or ("adam" if self.is_document else "momentum")) == "momentum":
            self.theta += self.first.mul_(self.method.momentum).add_(grad, alpha=rate)
        else:
            step = round(share * self.passes * self.per_pass) + 1
            self.first.lerp_(grad, 0.1)
            self.second.lerp_(grad.square(), 0.001)
            scale = (self.second / (1 - 0.999**step)).sqrt_().add_(1e-8)
            self.theta.addcdiv_(self.first, scale, value=rate / (1 - 0.9**step))
        if share >= 1 - self.method.averaging:
            self.total += self.theta
            self.averaged += 1

    @property
    def _rate(self) -> float:
        if self.is_document:
            return 0.01
        return 0.5 if self.model.data_kind in ("binary", "categories") and self.model.code_bits else 0.02

    def _slope(self, index: Tensor) -> Tensor:
        """That of the mean log-likelihood in all weights, of a minibatch."""
        rows, model = self.rows, self.model
        data = self.completed[index]
        batch = rows if rows.times is rows.missing is None else rows.select(index)
        energy = model.energy_of_rows(self.params(), batch.times)
        if rows.missing is not None:
            *_, (data, _) = completions(model, self.params(), batch, 1, self.generator, data)
            self.completed[index] = data
        clamped = energy.hidden_mean(data)
        fantasy = self.chains.negative(energy, data, index)
        free = energy.hidden_mean(fantasy)
        bias_rows = batch.times if self.is_document else None
        up, down = (clamped, free) if bias_rows is None else (clamped * bias_rows, free * bias_rows)
        bias = up.mean(0) - down.mean(0)
        visible = data.mean(0) - fantasy.mean(0)
        if self.centre is None:
            weight = clamped.T @ data / len(data) - free.T @ fantasy / len(fantasy)
        else:
            mu, level = self.centre
            weight = (clamped - level).T @ (data - mu) / len(data) - (free - level).T @ (fantasy - mu) / len(fantasy)
            bias, visible = bias - weight @ mu, visible - level @ weight
            level.lerp_(clamped.mean(0), 0.01)
        return torch.cat([weight.flatten(), visible, bias])

    def _slope_of_prior(self) -> Tensor:
        with torch.enable_grad():
            at = self.theta.clone().requires_grad_()
            return torch.autograd.grad(self.model.log_prior(self.params(at)), at)[0] / len(self.rows)

    def _watch(self) -> bool:
        """Whether rows held out gained."""
        theta = self._averages()
        params = self.params(theta)
        seen = self.rows.select(slice(0, _WATCHED)) if len(self.rows) > _WATCHED else self.rows
        score = float(self._score(params, seen).mean())
        self.trace.append(score * len(self.rows))
        self.watched.setdefault("log_pseudo_likelihood", []).append(score)
        if self.held is None:
            return True
        held = float(self._score(params, self.held).mean())
        self.watched.setdefault("held_out", []).append(held)
        if seen.missing is None:
            free = [-common.unnormalised(common.free_energy_of(self.model, params, part), part).mean()
                    for part in (self.held, seen)]  # fmt: skip
            self.watched.setdefault("free_energy_gap", []).append(float(free[0] - free[1]))
        gained = held > self.best[0]
        if gained:
            self.best = held, theta.clone()
        return gained

    def _score(self, params: dict[str, Tensor], rows: HarmoniumRows) -> Tensor:
        energy = common.free_energy_of(self.model, params, rows)
        if energy.closed_form or (min(energy.bits) <= _EXACT_BITS and rows.missing is None):
            return common.log_likelihood(self.model, params, rows)
        rows = rows.select(slice(0, 100)) if self.is_document else rows
        energy = common.free_energy_of(self.model, params, rows)
        if rows.missing is not None:
            rows = HarmoniumRows(next(completions(self.model, params, rows, 5, self.generator))[0], rows.base)
        return log_pseudo_likelihood(energy, rows, torch.Generator().manual_seed(0))
