"""The result of every inference method, without reports and files: parameters, posteriors, scores of rows."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from custom_inference.core import predictive
from custom_inference.core.ended import Ended, require_finite
from custom_inference.core.engine import POINT, Objective
from custom_inference.core.isolation import seed_of
from custom_inference.core.labels import Labelled
from custom_inference.core.latent_values import is_own_of_rows, layout_of_model, posteriors_of
from custom_inference.core.local_inference import (
    ALONE,
    Local,
    LocalSolver,
    bounds_of,
    is_feasible,
    log_likelihood,
    solve_local,
)
from custom_inference.core.objectives import describe_objective, objective_line
from custom_inference.core.over_draws import mixture_over_draws
from custom_inference.core.posteriors import ContinuousPosterior, LocalPosterior
from custom_inference.core.reader import Reader
from custom_inference.core.registry import engines_of
from custom_inference.core.stages import Stages
from ppl_models import Data, MethodError, Model
from ppl_models.data.held import MatrixLike, Source
from ppl_models.data.several import same_data


@dataclass(kw_only=True)
class Result(Labelled):
    """What was learned, and how it went.

    model: the model that was fitted (its number of components may be smaller than a start's: see ``details``).
    params: global site -> tensor: the point estimate, or the posterior mean where ``draws`` holds a posterior.
        Methods that estimate the locals as points (an aspect model's memberships) report these here too, (N, ...);
        fits of graphs always: the most probable ``block`` of each node (N,), the mean ``membership`` (N, K); and
        the means of parts of the main latent that have names of their own (users' factors and biases).
    elbo: (T,) objective per iteration: the bound summed over the rows plus the log prior of the globals.
    prior_term: the part of the last ``elbo`` that is of the globals: the log density of their priors without flat ones
        (of SVI with their constants), in the M step's coordinates (see ``log_prior``); of a posterior of the globals
        minus its divergence from their priors, E_q[log p - log q]. None where the objective has no such parts (log
        joints of draws, guides of one's own). ``data_term`` is the rest.
    objective: what kind of number ``elbo`` is: "evidence", log p(x | params) itself, and "log posterior" where the
        ``prior_term`` that is added to it is not 0; beside its prior term "bound", a lower bound on the evidence (on
        log p(x) where the globals have a posterior); "log joint", of globals and locals, up to constants of flat
        priors; "estimate", which may lie on either side of the evidence.
    bound_name: what the objective bounds with: "exact" (exact), "factorized", "mean_field", "truncated", ...;
        "map" where it is no bound but the log joint of globals and locals, up to constants of flat priors.
    status: in plain language, how the fit ended and how many restarts agreed.
    ended: how it ended, for programs: "converged", "limit", "unbounded", "failed", "complete", "interrupted",
        "sampled", "solved" or "unknown".
    method: the settings object that fitted; of a file of an earlier version, or where settings are objects of one's
        own, its name. method_name: what reports and tables call it.
    global_posterior: global site -> its approximate posterior, from methods that have one (variational Bayes);
        ``params`` holds its mean.
    draws: global site -> (chain, draw, ...) posterior draws, from methods that have them.
    stages: what ran, in its order: name, seconds, and the objective a row; the last is the method itself.
    weights: (N,), how often each row counted; None: each once. ``elbo`` and criteria (BIC, AIC) go by them, and what is
        said of single rows does not.
    details: what else the method has to report (JSON-able).
    """

    model: Model
    params: dict[str, Tensor]
    elbo: Tensor
    bound_name: str
    objective: Objective
    status: str
    method: Any
    data: Data
    seed: int
    local: Local | None = None
    solver: LocalSolver | None = None
    global_posterior: dict[str, ContinuousPosterior] = field(default_factory=dict)
    draws: dict[str, Tensor] | None = None
    prior_term: float | None = None
    sample_stats: dict[str, Tensor] = field(default_factory=dict)
    guide: Any = None
    weights: Tensor | None = None
    ended: Ended = Ended.UNKNOWN
    method_name: str = ""
    stages: Stages = field(default_factory=Stages)
    details: dict[str, Any] = field(default_factory=dict)
    #: The posterior of the training rows, where it was asked for without its evidence.
    _alone: LocalPosterior | None = field(default=None, init=False, repr=False, compare=False)

    def __repr__(self) -> str:
        shape = ", ".join(f"{k} = {v}" for k, v in self.model.chosen_settings().items())
        unit = f"{self.model.row_axis}s"
        unit += "" if self.weights is None else f", of weight {float(self.weights.sum()):g} in all,"
        points = self.point_estimates
        alone = "" if len(points) == len(self.model.unknown_sites) else f" of {', '.join(points)}"
        return (
            f"Fit of {type(self.model).__name__}({shape}) to {len(self.data)} {unit} by {self.method_name}\n"
            f"  {': '.join(objective_line(self))}\n  status: {self.status}"
            + (f"\n  globals: point estimates{alone}" if points else "")
        )

    def __post_init__(self) -> None:
        """A fit is where its data are: what samplers and node sweeps computed on the CPU moves there."""
        self.method_name = self.method_name or (self.method if isinstance(self.method, str) else self.method.name)
        self.model, device = self.model.summed_out, self.data.x.device
        if self.objective == "evidence" and self.prior_term:
            self.objective = "log posterior"
        found = {site: value.to(self.data.x) for site, value in self.model.known.items()} | self.params
        order = [*(site for site in self.model.global_sites if site in found), *found]
        self.params = {site: found[site].to(device) for site in order}
        self.global_posterior = {site: posterior.to(device) for site, posterior in self.global_posterior.items()}
        self.draws = None if self.draws is None else {site: value.to(device) for site, value in self.draws.items()}
        require_finite(self.method_name, values=self.params, draws=self.draws or {})
        self.local = None if self.local is None else self.local.to(device)
        self.weights = None if self.weights is None else self.weights.to(device)
        site = self.model.local_site
        if not self.model.rows_are_independent and site not in self.params:
            self.params[site] = self.model.local_value(self.posterior.mean)
        if any(part not in self.params for part in self.model.part_sites):
            self.params |= self.model.local_parts(self.params.get(site, self.posterior.mean))

    @property
    def described_objective(self) -> str:
        """What kind of number the objective is, by which posterior, and of what parts: "evidence"; "log posterior =
        evidence + log prior"; "bound, mean_field"."""
        return describe_objective(self)

    @property
    def data_term(self) -> float | None:
        """The last of ``elbo`` without its ``prior_term``: the evidence, bound or estimate summed over the rows; None
        where the objective has no such parts."""
        return float(self.elbo[-1]) - self.prior_term if len(self.elbo) and self.prior_term is not None else None

    @property
    def derived(self) -> tuple[str, ...]:
        """The ``params`` that follow from the others and the data, which files do not hold."""
        return ()

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended the fit early: it then holds the best state so far."""
        return self.ended is Ended.INTERRUPTED

    @property
    def posterior(self) -> LocalPosterior:
        """The method's own posterior over the local latents of the training rows.

        Several latents have a joint posterior, over codes that hold them side by side; see ``posteriors``. Fits with
        draws of the globals whose locals are summed or integrated out have the average of the exact posteriors given
        each of at most 200 draws."""
        if self.local is None and self._over_draws is not None:
            return self._over_draws
        if self.local is None and self._alone is None:
            found = self._solve(self.data, None, evidence=False)
            if found.what == ALONE:
                self._alone = found.posterior
            else:
                self.local = found
        return self._alone if self.local is None else self.local.posterior  # pyright: ignore[reportReturnType]

    @cached_property
    def _over_draws(self) -> LocalPosterior | None:
        with torch.no_grad():
            return mixture_over_draws(self)

    @property
    def posteriors(self) -> dict[str, LocalPosterior]:
        """The method's own posterior of every latent site for the training rows, with ``mean``, ``variance``, ``mode``
        and ``sample``; the means of a choice are the probabilities of its values."""
        return posteriors_of(self.model, self.globals, self.data, self.posterior)

    @property
    def globals(self) -> dict[str, Tensor]:
        """The global sites among ``params``."""
        return {site: self.params[site] for site in self.model.global_sites}

    @property
    def point_estimates(self) -> tuple[str, ...]:
        """The globals that the fit has one value of: no posterior, and no draws that differ, but for those of a chain.
        What a guide of one's own holds as a point is in its draws again and again."""
        drawn, spread = self.draws or {}, {site for site, q in self.global_posterior.items() if not q.is_point}
        spread |= {site for site, v in drawn.items() if self.sample_stats or bool((v != v[:1, :1]).any())}
        return tuple(site for site in self.model.unknown_sites if site not in spread)

    @property
    def reader(self) -> Reader:
        """What was learned about how the data are read: names, labels, order, levels, units."""
        return Reader(self.model, self.data, (like := next(iter(self.globals.values()))).dtype, like.device)

    def read(self, x: Source | None = None, mask: MatrixLike | None = None, **others: Any) -> Data:
        """Read further data as those of the fit were; without x, return the data that it was fitted to.

        Labels are those of the fit, in its order. others: further observed and given sites, by name. Raises DataError
        for labels that its data do not have, and for missing ones; MethodError for arguments beside no x.
        """
        if x is None:
            for name in (name for name, value in {"mask": mask, **others}.items() if value is not None):
                raise MethodError(f"{name}= without x, which then is that of the fit; give x too")
            return self.data
        return self.reader.read(x, mask=mask, **others)

    def _solve(self, data: Data, bound: str | None, *, evidence: bool = True) -> Local:
        own = data is self.data and bound is None
        if own and self.local is not None and is_own_of_rows(self.model) and not is_feasible(self.model, self.data):
            return self.local
        settings: dict[str, Any] = {"bound": bound, "fallback": self.solver, "seed": self.seed, "evidence": evidence}
        return solve_local(self.model, self.globals, data, **settings)

    def local_posterior(self, x: Any = None, *, mask: Any = None, bound: str | None = None, **others: Any) -> Local:
        """Infer the local latents of ``x`` (by default the training rows): posterior and bound on log p(x_n).

        bound: the family, by the name of its bound; by default exact where that is feasible, else the fit's own,
            and the fit's own too where that estimates the locals as points ("map").
        """
        return self._solve(self.read(x, mask, **others), bound)

    def posterior_of(self, x: Any, *, mask: Any = None, bound: str | None = None, **others: Any) -> LocalPosterior:
        """Return the posterior of :meth:`local_posterior` alone, without computing what only its evidence needs (such
        as the partition function of a Boltzmann machine)."""
        return self._solve(self.read(x, mask, **others), bound, evidence=False).posterior

    def transform(self, x: Any = None, *, mask: Any = None, bound: str | None = None, **others: Any) -> Any:
        """Return posterior means of each row's first latent, (N, K), labelled like x if it is a DataFrame or DataArray.

        For the data that the model was fitted to (given again, or x left out) these are the fit's own: the values in
        ``params`` where locals were estimated as points or drawn, else the mean of ``posterior``, averaged over draws
        of the globals if there are any. Other data, some of the training rows too, are inferred until convergence, at
        the globals or their posterior, by the fit's own family (then with the fit's values, up to the tolerance of both
        or another fixed point) or by what ``rows_given_anew`` names: of CVB0, samplers and guides; values then differ.

        bound: infer the locals anew under this family, as :meth:`local_posterior`.
        """
        data = self.read(x, mask, **others)
        if bound is not None:
            mean = self._solve(data, bound, evidence=False).posterior.mean
        elif same_data(data, self.data):
            held = self.params.get(self.model.local_site)
            mean = self.posterior.mean if held is None or not held.is_floating_point() else held
        else:
            mean = self._infer(data).posterior.mean
        mean = self._of_main_latent(mean)
        # In this order: tensors and arrays need no pandas.
        if x is None or isinstance(x, Tensor | np.ndarray | Data):
            return mean
        return self.label_rows(x, mean, data)

    def _of_main_latent(self, mean: Tensor) -> Tensor:
        """Select the means of the first latent from those of all."""
        if not is_own_of_rows(self.model) or len(mean) == 0:
            return mean
        first = layout_of_model(self.model, self.globals, self.data).latents[0]
        return mean.reshape(len(mean), -1)[:, : first.width].reshape(len(mean), *first.mean_shape)

    def _infer(self, data: Data) -> Local:
        """Infer locals by the family that the fit used, at its globals or their posterior; compute the evidence only
        where the family needs it."""
        if self.solver is not None:
            settings: dict[str, Any] = {"seed": self.seed, "posteriors": self.global_posterior, "evidence": False}
            return self.solver.solve(self.model, self.globals, data, **settings)
        points = self.bound_name == POINT and POINT in engines_of(self.model)
        return self._solve(data, POINT if points else None, evidence=False)

    def log_likelihood(self, x: Any = None, bound: str | None = None, *, mask: Any = None, **others: Any) -> Tensor:
        """Return log p(x_n | params), (N,): exact by default, or the named lower bound or estimate.

        For machines (RBM) whose partition function is too large for an exact sum the default is the estimate "ais".

        Raises :class:`ppl_models.CapacityError` where the exact sum is not feasible, with an estimate of the
        memory and the list of bounds; ``MethodError`` for an unknown bound.
        """
        data = self.read(x, mask, **others)
        return log_likelihood(self.model, self.globals, data, bound=bound, seed=self.seed)

    @cached_property
    def evidence(self) -> Tensor:
        """The exact log p(x_n | params) of the training rows, (N,)."""
        return self.log_likelihood()

    @property
    def bounds(self) -> list[str]:
        """The names that ``bound=`` takes: "exact", lower bounds, and estimates, which may lie above ("bethe")."""
        return bounds_of(self.model)

    def plugin_log_likelihood(self, x: Any = None, *, mask: Any = None, **others: Any) -> Tensor:
        """Return log p(x_n | s_n, params), (N,), at the most probable locals given x_n itself: no bound on log p(x_n).

        For models whose locals are estimated as points it is the likelihood of their papers (Bingham et al. 2007, eq.
        6).
        """
        data = self.read(x, mask, **others)
        posterior = self.posterior if x is None else self.posterior_of(data)
        return predictive.conditional_log_likelihood(self.model, self.globals, data, posterior.mode)

    def sample(self, num_rows: int | None = None, *, seed: int = 0) -> dict[str, Tensor]:
        """Draw new rows from the fitted model, 1 by default: local and observed site -> (num_rows, ...).

        For graphs, draw a graph of ``num_rows`` nodes, by default as many as the fitted one has. Rows of programs
        without engines get the covariates of the fit's rows, in turn. Raises ModelError for programs with factors.
        """
        if num_rows is None:
            num_rows = 1 if self.model.rows_are_independent else len(self.data)
        like = None
        if is_own_of_rows(self.model) and self.model.given(self.data) and num_rows > 0:
            like = self.data.rows(torch.arange(num_rows, device=self.data.x.device) % len(self.data))
        return predictive.sample_rows(self.model, self.globals, num_rows, seed=seed, like=like)

    def predictive(self, num_samples: int = 100, *, seed: int = 0) -> Tensor:
        """Draw posterior predictive copies of the training data, (num_samples, N, D), at their own posterior codes, but
        not where a program has factors of what is observed (ModelError)."""
        model, site = self.model, self.model.observed_site
        source = self.posterior.sample(num_samples, seed=seed_of(seed, model.local_site))
        predictive.require_copies(model, self.globals, source[0], self.data)
        runs = (
            predictive.observed_site(model, self.globals, one, seed=seed_of(seed, site, i), like=self.data)
            for i, one in enumerate(source)
        )
        return model.as_data(torch.stack([run["value"] for run in runs]))

    def to(self, device: torch.device | str) -> Self:
        """Move the fit to another device, for what is computed from it; return itself if it is there already.

        A Pyro guide (``guide``) stays where it is: it belongs to the optimisation, which is over.
        """
        moved = self.data.to(device=device)
        return self if moved.x.device == self.data.x.device else replace(self, data=moved)
