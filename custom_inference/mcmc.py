"""Pyro's NUTS over the globals, with the codes summed out."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from pyro.infer import MCMC
from pyro.infer import NUTS as PyroNUTS
from pyro.infer.mcmc.util import initialize_model
from torch import Tensor
from torch.distributions import Transform, biject_to

from custom_inference.compiled.labels import settle_labels
from custom_inference.core.diagnostics import convergence, round_for_file
from custom_inference.core.ended import Ended
from custom_inference.core.engine import POINT
from custom_inference.core.enumeration import plate_nesting
from custom_inference.core.fit import Fit, require_complete
from custom_inference.core.isolation import default_dtype, isolated
from custom_inference.core.latent_values import is_own_of_rows, latent_values
from custom_inference.core.local_inference import Local, solve_local
from custom_inference.core.method import Call, Method, refusal
from custom_inference.core.programs.ranges import require_still
from custom_inference.core.programs.reference import count_configurations
from custom_inference.core.progress import Progress
from custom_inference.core.registry import engine_for, engines_of
from custom_inference.core.settings import require_between, require_whole
from custom_inference.core.states import Params
from custom_inference.em.method import EM, VariationalEM
from custom_inference.svi.guides.scaled import InUnitsOf
from custom_inference.svi.initialisation import clamp_to_interior
from custom_inference.svi.marginal import MarginalBound, log_prior_of
from custom_inference.svi.method import SVI
from ppl_models import Data, MethodError, Model
from ppl_models.core.hierarchy import is_function, typical_values


class _Draw(NamedTuple):
    """Unconstrained values, their log joint, the divergences of the chain so far, and how the draw was made."""

    values: Params
    log_joint: Tensor
    divergences: int
    trajectory: _Trajectory


class _Trajectory(NamedTuple):
    """What ArviZ knows of a draw by NUTS, under ArviZ's names.

    energy: of the Hamiltonian where the trajectory starts, -log joint of the unconstrained values plus the kinetic
        energy of the fresh momentum. tree_depth: doublings. n_steps: leapfrog steps. acceptance_rate: the Metropolis
        probability, averaged over these.
    """

    energy: float
    tree_depth: int
    n_steps: int
    acceptance_rate: float
    diverging: bool
    step_size: float


class _RecordedNUTS(PyroNUTS):
    """Pyro's NUTS, which keeps no record of a draw's trajectory, with one of the last."""

    trajectory: _Trajectory
    _within = False

    def sample(self, params: Params) -> Params:
        self.trajectory = _Trajectory(float("nan"), 0, 0, 0.0, False, float(self.step_size))
        return super().sample(params)

    def _build_tree(self, *arguments: Any) -> Any:
        """Calls itself for the halves of a tree; the outermost call is a doubling."""
        if self._within:
            return super()._build_tree(*arguments)
        self._within = True
        try:
            tree = super()._build_tree(*arguments)
        finally:
            self._within = False
        last, steps = self.trajectory, int(tree.num_proposals)
        total = last.acceptance_rate * last.n_steps + float(tree.sum_accept_probs)
        self.trajectory = last._replace(
            energy=float(arguments[-1]),
            tree_depth=last.tree_depth + 1,
            n_steps=last.n_steps + steps,
            acceptance_rate=total / (last.n_steps + steps),
            diverging=bool(tree.diverging),
        )
        return tree


@dataclass(frozen=True, kw_only=True)
class NUTS(Method):
    """No-U-turn sampling of the globals given the data, all codes summed out: the gold standard on toy problems.

    Continuous locals (memberships, scores) are sampled with the globals.

    num_samples, warmup: per chain. chains: run one after the other, each from its own jittered start.
    The starts are the maximum a posteriori of exact EM, so that chains begin in the same labelling; draws are
    aligned afterwards, as far as their components are exchangeable. Long work: costs one evaluation of the evidence and
    its gradient per leapfrog step.

    ``status`` and ``details`` of a fit have the number of divergences, the largest R-hat (of a single chain that of its
    halves) and the smallest effective size, over all entries of all sites and the log joint.
    """

    num_samples: int = 300
    warmup: int = 200
    chains: int = 2
    target_accept: float = 0.8
    max_tree_depth: int = 8
    jitter: float = 0.1

    draws_globals = True
    needs_density = True

    def __post_init__(self) -> None:
        for name, least in {"num_samples": 1, "warmup": 0, "chains": 1, "max_tree_depth": 1}.items():
            require_whole(name, getattr(self, name), least)
        require_between("target_accept", self.target_accept, "(0, 1)")
        require_between("jitter", self.jitter, "[0, inf)")

    def _fit(self, model: Model, data: Data, call: Call) -> Fit:
        """Ctrl-C returns the draws of the chains that are done; of the first chain those until then."""
        data, start = model.as_read(data), call.start(model)
        if start is None:
            start = _mode(model, data, call.seed)
        elif model.has_continuous_locals:
            start = {site: value.to(data.x) for site, value in start.items()}
            if not is_own_of_rows(model):
                if POINT in engines_of(model) and refusal(VariationalEM(guide=POINT), model) is not None:
                    start = _mode(model, data, call.seed) | start  # points in another basis, where priors have no mode
                else:
                    local = SVI(guide="delta", steps=500).local_posterior(model, start, data, seed=call.seed)
                    start[model.local_site] = local.posterior.mean
            elif not _sums_out_latents(model):
                local = solve_local(model, start, data, seed=call.seed)
                start |= latent_values(model, start, data, local.posterior.mean)
        with isolated(call.seed), default_dtype(call.dtype):
            return self._result(model, data, call.seed, *self._sample(model, data, start, call.progress))

    def _sample(
        self, model: Model, data: Data, start: Params, progress: bool
    ) -> tuple[list[list[_Draw]], Any, str, Ended]:
        """Draw the chains: their draws, the transforms to the unconstrained values that they hold, and how it went."""
        potential, transforms = log_joint_potential(model, data)
        inside = clamp_to_interior(model, start, 1e-3)
        free = {site: value for site, value in inside.items() if site not in model.known}
        if not free:
            raise MethodError(f"every global of {type(model).__name__} is known: there is nothing to draw")
        unconstrained = {site: transforms[site](value.to(data.x)) for site, value in free.items()}
        # A simplex of one entry, as the proportions of a mixture of one component, has no unconstrained coordinate:
        # there is nothing to sample, and Pyro's MCMC takes no empty tensors.
        empty = {site: value for site, value in unconstrained.items() if not value.numel()}

        def complete(varying: Params) -> Params:
            return {site: empty[site] if site in empty else varying[site] for site in unconstrained}

        done: list[list[_Draw]] = []
        drawn: list[_Draw] = []
        try:
            for chain in range(self.chains):
                noisy = {s: v + self.jitter * torch.randn_like(v) for s, v in unconstrained.items() if v.numel()}
                label, drawn = f"{self.name} chain {chain + 1} of {self.chains}", []
                self._chain(potential, complete, noisy, drawn, label, progress)
                done.append(drawn)
        except KeyboardInterrupt:
            if not done and not drawn:
                raise
            of_first = f"{len(drawn)} of {self.num_samples} draws of the first chain"
            how = f"interrupted after {f'{len(done)} of {self.chains} chains' if done else of_first}"
            return done or [drawn], transforms, how, Ended.INTERRUPTED
        drew = "drew 1 chain" if self.chains == 1 else f"drew {self.chains} chains"
        return done, transforms, f"{drew} of {self.num_samples} after {self.warmup} warm-up steps", Ended.SAMPLED

    def _chain(
        self,
        potential: Callable[[Params], Tensor],
        complete: Callable[[Params], Params],
        start: Params,
        drawn: list[_Draw],
        label: str,
        progress: bool,
    ) -> None:
        """Runs a chain; ``drawn`` collects the draws as they come."""

        def heard(kernel: _RecordedNUTS, params: Params, stage: str, *__: Any) -> None:
            if stage.startswith("Sample"):
                values = complete({site: value.detach().clone() for site, value in params.items()})
                divergences = (drawn[-1].divergences if drawn else 0) + kernel.trajectory.diverging
                drawn.append(_Draw(values, -potential(values).detach(), divergences, kernel.trajectory))
            bar.advance()

        kernel = _RecordedNUTS(
            potential_fn=lambda varying: potential(complete(varying)),
            target_accept_prob=self.target_accept,
            max_tree_depth=self.max_tree_depth,
        )
        settings: dict[str, Any] = {"num_samples": self.num_samples, "warmup_steps": self.warmup, "hook_fn": heard}
        with Progress(self.warmup + self.num_samples, label, enabled=progress) as bar, warnings.catch_warnings():
            # torch deprecates what Pyro's MCMC still calls; nothing here depends on it.
            warnings.simplefilter("ignore")
            MCMC(kernel, initial_params=start, disable_progbar=True, **settings).run()

    def _result(
        self, model: Model, data: Data, seed: int, chains: list[list[_Draw]], transforms: Mapping[str, Transform],
        outcome: str, ended: Ended,
    ) -> Fit:  # fmt: skip
        draws = {}
        for site in chains[0][0].values:
            values = torch.stack([torch.stack([one.values[site] for one in chain]) for chain in chains])
            draws[site] = transforms[site].inv(values)
        draws = settle_labels(model, data, draws)
        lp = torch.stack([torch.stack([one.log_joint for one in chain]) for chain in chains])
        divergences = sum(chain[-1].divergences for chain in chains)
        found = convergence({site: value.double().cpu().numpy() for site, value in {**draws, "log joint": lp}.items()})
        trajectories = {
            name: torch.tensor([[getattr(one.trajectory, name) for one in chain] for chain in chains])
            for name in _Trajectory._fields
        }
        return Fit(
            model=model,
            params={site: value.to(data.x) for site, value in model.known.items()}
            | {site: value.mean((0, 1)) for site, value in draws.items()},
            elbo=lp.flatten().double(),
            bound_name="log joint" if model.local_site in draws else "log joint (codes summed out)",
            objective="log joint",
            status=f"{outcome}; {divergences} divergences; {found}",
            ended=ended,
            method=self,
            data=data,
            seed=seed,
            draws=draws,
            sample_stats={"lp": lp, **trajectories},
            details={
                "divergences": divergences,
                "r_hat": round_for_file(found.r_hat),
                "r_hat_of": found.r_hat_of,
                "ess": round_for_file(found.ess),
                "ess_of": found.ess_of,
            },
        )

    def local_posterior(self, model: Model, params: Params, data: Data, *, seed: int = 0) -> Local:
        """Given the globals the codes are summed out: the exact posterior, of which nothing is sampled."""
        return solve_local(model, params, data, bound="exact", seed=seed).but("not sampled")


def log_joint_potential(model: Model, data: Data) -> tuple[Any, dict[str, Any]]:
    """-log p(globals, x) of unconstrained globals with the codes summed out, and the transforms to them.

    With closed-form steps the evidence is theirs; otherwise Pyro enumerates the program. Continuous locals are not
    summed out: they are arguments beside the globals.
    """
    own = is_own_of_rows(model)
    if model.has_continuous_locals and not (own and count_configurations(model) > 1):
        if own:
            require_still(model, model, data, "NUTS")
        program: Any = InUnitsOf(model, data.stored)(model) if model.site_units else model
        return initialize_model(program, (data.x,), data.arguments)[1:3]
    typical, known = typical_values(model), {site: value.to(data.x) for site, value in model.known.items()}
    priors = {site: model.prior(site, like=data.x, values=typical) for site in model.unknown_sites}
    transforms = {site: biject_to(prior.support).inv for site, prior in priors.items()}
    if own:
        return _program_potential(model, data, known, transforms), transforms
    if "exact" not in engines_of(model):
        middle = {s: t.inv(torch.zeros(t.forward_shape(model.shapes[s])).to(data.x)) for s, t in transforms.items()}
        depth = plate_nesting(model, middle, data)
        return initialize_model(model, (data.x,), data.arguments, max_plate_nesting=depth)[1:3]
    of_latents = any(is_function(model.priors.get(site)) for site in model.sites_of("latent"))
    engine: Any = engine_for(model, "exact")
    rows = engine.rows(model, data)

    def potential(unconstrained: Params) -> Tensor:
        params = known | {site: transforms[site].inv(value) for site, value in unconstrained.items()}
        volume = torch.stack(
            [transforms[s].inv.log_abs_det_jacobian(v, params[s]).sum() for s, v in unconstrained.items()]
        ).sum()
        evidence = engine.log_evidence(model.at(params) if of_latents else model, params, rows).sum()
        return -(evidence + model.log_prior(params) + volume)

    return potential, transforms


def _sums_out_latents(model: Model) -> bool:
    """Whether no latent of the rows of a program without engines is sampled: where some are finite."""
    return count_configurations(model) > 1 or not model.has_continuous_locals


def _program_start(model: Model, data: Data, seed: int) -> Params:
    """The mode of a program without engines, and beside it the means of continuous latents that are sampled too."""
    fit = require_complete(
        SVI(guide="delta", optimizer="lbfgs", restarts=2).fit(model, data, seed=seed, progress=False)
    )
    if _sums_out_latents(model):
        return fit.globals
    return fit.globals | latent_values(model, fit.globals, data, fit.posterior.mean)


def _program_potential(model: Model, data: Data, known: Params, transforms: dict[str, Any]) -> Any:
    """The potential of a program without engines, whose latents are summed or integrated out."""
    bound = MarginalBound(model, data)

    def potential(unconstrained: Params) -> Tensor:
        params = known | {site: transforms[site].inv(value) for site, value in unconstrained.items()}
        pairs = ((transforms[site].inv, value, params[site]) for site, value in unconstrained.items())
        volume = torch.stack([inverse.log_abs_det_jacobian(value, at).sum() for inverse, value, at in pairs]).sum()
        return -(bound.bound(None, params).sum() + log_prior_of(model, params, bound.data) + volume)

    return potential


def _mode(model: Model, data: Data, seed: int) -> Params:
    """Maximum a posteriori: by exact EM where codes are summed out, of continuous locals too by "map" steps.

    By AutoDelta where the model or its priors have no closed-form steps.
    """
    if is_own_of_rows(model):
        return _program_start(model, data, seed)
    method = VariationalEM(guide=POINT) if model.has_continuous_locals else EM()
    if refusal(method, model) is not None:
        method = SVI(guide="delta", steps=500)
    found = require_complete(method.fit(model, data, seed=seed, progress=False)).params
    sites = (*model.global_sites, *([model.local_site] if model.has_continuous_locals else []))
    return {site: found[site] for site in sites}
