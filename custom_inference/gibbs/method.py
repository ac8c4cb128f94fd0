"""Collapsed Gibbs sampling: the discrete latents one at a time, everything else integrated out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from custom_inference.compiled.programs import is_sampled_by_choices, is_sampled_by_sums
from custom_inference.core.align import match_components
from custom_inference.core.diagnostics import convergence, effective_size, r_hat, round_for_file
from custom_inference.core.ended import Ended
from custom_inference.core.fit import Fit
from custom_inference.core.local_inference import Local
from custom_inference.core.method import Call, Method, to_ask_with
from custom_inference.core.settings import require_whole
from custom_inference.gibbs.chains import Mode, Record, Settings, left_out, rank_modes, run_chains, say_lower
from custom_inference.gibbs.programs import CompiledSampler
from custom_inference.gibbs.protocol import Params, Sampler, require_learn, sampler_of
from custom_inference.gibbs.shares import SharesSampler
from ppl_models import Data, MethodError, Model

#: Draws of a site are kept where all of them together have at most so many entries; likewise those of the locals.
_ENTRIES = 2**23
#: Of every component, so many of its strongest features are watched for convergence.
_WATCHED = 10


@dataclass(frozen=True, kw_only=True)
class CollapsedGibbs(Settings, Method):
    """Collapsed Gibbs sampling (Murphy 2012, section 27.3.4; Griffiths & Steyvers, PNAS 2004), several chains in
    threads.

    num_samples: draws kept of each chain, ``thin`` sweeps apart, after ``warmup`` sweeps.
    chains: independent chains. The one in the most probable mode is reported, by the sampler's estimate of the mode's
        evidence where it has one, otherwise by the mean log p(x, q), together with those that found the same
        components: different modes are never averaged. ``status`` says how many agreed, how far below the others are,
        and names modes without meaning.
    learn: estimate the concentrations of the Dirichlet priors (Minka's fixed point) during the warm-up: True, of all;
        "defaults", of those that the model has by default, while priors that were stated stay. They are held fixed
        when draws are collected; ``Fit.model`` has those of the best chain, and ``status`` says which were learned.
    search: start every chain from values of its own near a good mode, where the model's sampler proposes some (LDA: a
        short run with more topics than asked for, merged down); otherwise, and with False, from the prior.
    align: reorder the components of each draw to match the mean of those before it, those that are exchangeable: which
        priors and known values do not tell apart. All others stay as they are.
    indicators: keep the discrete latents of every draw too, as ``Fit.draws["indicator"]``.
    threads: chains that run at once; by default as many as torch uses. The result does not depend on it.

    ``Fit.params`` are posterior means: over the draws, of the means given the discrete latents (Rao-Blackwell). Under
    exchangeable priors the exact posterior mean is the same for all components, as every labelling is equally probable.
    What is reported is the mean within one labelling, which chains on more than toy data do not leave; it describes one
    mode of the posterior. Where labels switch often, only what does not depend on them (predictions, which tokens share
    a topic) has a meaning. With ``align=False`` nothing is reordered, and all chains are reported, whatever modes they
    are in. Components that unequal priors or known values tell apart have the same draws either way.

    ``Fit.draws`` are draws of the globals from their posterior (and of the locals, where small enough).

    Globals whose priors are not conjugate, and hyper-parameters, are not integrated out: their values are part of each
    chain's state and move by slice and Metropolis steps; known ones are held. ``status`` says which. Their draws are
    these values, and ``elbo`` has their log prior density in it. The proportions of rows need Dirichlet priors.
    """

    draws_globals = True

    def __post_init__(self) -> None:
        for name in ("num_samples", "warmup", "thin", "chains", *(["threads"] if self.threads is not None else [])):
            require_whole(name, getattr(self, name), 0 if name == "warmup" else 1)
        require_learn(self.learn)

    def ask(self, model: Model) -> None:
        super().ask(model)
        sampler = self.sampler(model)
        compiled = is_sampled_by_sums(model) or is_sampled_by_choices(model)
        example = None if compiled else to_ask_with(model)  # compiled ones ask of priors alone
        if example is not None:
            data = example[1]
            sampler.check(model, model.as_read(data) if model.rows_are_independent else data)

    def _fit(self, model: Model, data: Data, call: Call) -> Fit:
        """Ctrl-C returns what the chains have until then. ``init`` gives the globals that the first discrete latents
        are drawn at, in all chains. The sampler runs on the CPU, whatever ``device`` holds the result.
        """
        checked = model.as_read(data) if model.rows_are_independent else data  # graphs are never made dense
        sampler, start, seed = self.sampler(model), call.start(model), call.seed
        here = checked.to(device="cpu")
        sampler.check(model, here)
        if self.learn and not sampler.learns:
            raise MethodError(f"the sampler of {type(model).__name__} learns no concentrations; use learn=False")
        seeds = np.random.SeedSequence([seed % 2**64]).generate_state(self.chains, np.uint64).tolist()
        if start is not None or not self.search:
            starts = [None if start is None else {site: value.cpu() for site, value in start.items()}] * self.chains
        else:
            starts = sampler.starts(model, here, seeds)
        chains, kept = (
            sampler.chains(model, here, seeds, starts),
            self._plan_draws(model, len(checked), sampler.entries),
        )
        records = [Record(chain, self, model, sampler, *kept) for chain in chains]
        if interrupted := any(chain.interrupted for chain in chains):
            for record in records:
                record.run(lambda record=record: record.sweeps > 0)
        else:
            interrupted = run_chains(records, label=self.name, progress=call.progress)
        return self._result(records, here, seed, interrupted).to(checked.x.device)

    def local_posterior(self, model: Model, params: Params, data: Data, *, seed: int = 0) -> Local:
        """The locals at given globals, without a bound: of LDA by Gibbs sampling of the tokens' topics.

        Exact where the model's sampler has no more to draw.
        """
        params = {site: value.cpu() for site, value in params.items()}
        local = self.sampler(model).local_posterior(model, params, data.to(device="cpu"), seed=seed)
        drawn = local._replace(what="draws", family=self.name)
        return (local.but("not sampled") if local.what else drawn).to(data.x.device)

    def sampler(self, model: Model) -> Sampler:
        """Return the sampler of a model, of programs of one's own that of compiled ones. Raises MethodError for models
        without one."""
        if is_sampled_by_choices(model):
            return SharesSampler()
        return CompiledSampler() if is_sampled_by_sums(model) else sampler_of(model)

    def _plan_draws(self, model: Model, rows: int, entries: int | None) -> tuple[tuple[str, ...], int, int]:
        """The sites whose draws are kept, of every how many draws the locals are, and of how many those sites."""
        total = self.chains * self.num_samples
        sizes = {site: int(np.prod(shape)) for site, shape in model.shapes.items()}
        sizes[model.local_site] = rows * int(np.prod(model.local_shape))
        if entries is not None:
            every = max(1, -(-max(sizes.values()) * total // entries))
            return tuple(sizes), every, every
        keep = tuple(site for site, size in sizes.items() if size * total <= _ENTRIES)
        if not set(model.global_sites) <= set(keep):
            keep = ()
        return keep, max(1, -(-sizes[model.local_site] * total // _ENTRIES)), 1

    def _result(self, records: list[Record], data: Data, seed: int, interrupted: bool) -> Fit:
        model, sampler = records[0].model, records[0].sampler
        begun = [record for record in records if record.sweeps]
        if not begun:
            raise KeyboardInterrupt
        if not any(record.count for record in begun):
            for record in begun:  # cut short in the warm-up: the present states stand for draws
                record.collect()
        modes = rank_modes([record for record in begun if record.count])
        usable = [mode.record for mode in modes]
        best, agreeing = usable[0], usable
        if self.align and sampler.matched:  # otherwise nothing is matched: all chains are draws from one posterior
            sets = sampler.exchangeable(model)
            for record in usable[1:] if sets else ():
                record.relabel(match_components(best.profile, record.profile, within=sets, by_distance=True))
            agreeing = [best, *(one for one in usable[1:] if one.agrees(best, sets))]
        elif self.align:
            agreeing = sampler.settle(model, usable)
        total, zero = sum(one.count for one in agreeing), torch.zeros(())
        params = {s: sum((one.mean[s] * (one.count / total) for one in agreeing), zero) for s in model.global_sites}
        diagnostics, length = _diagnostics(model, agreeing), _shortest(agreeing)
        same = [mode for mode in modes if any(mode.record is one for one in agreeing)]
        remarks = left_out(modes[0], [mode for mode in modes if mode not in same])
        parts = ([getattr(one, name) for one in usable] for name in ("mean", "draws", "locals"))
        each = sampler.keep_each(*parts)
        remarks += [f"predictions are the mean over all {len(usable)} chains"] * (len(usable) > 1 and bool(each))
        beside = ", ".join(["q", *best.chain.list_sampled()])
        return Fit(
            model=model.with_priors(**best.list_learned()),
            params={site: value.to(data.x) for site, value in {**params, **model.known}.items()},
            elbo=torch.tensor(best.trace + best.lp, dtype=torch.float64),
            bound_name=sampler.target or f"log p(x, {beside}), all else integrated out",
            objective="log joint",
            status="; ".join([*self._status(records, modes, same, interrupted, diagnostics), *remarks]),
            ended=Ended.INTERRUPTED if interrupted else Ended.SAMPLED,
            method=self,
            data=data,
            seed=seed,
            local=sampler.local_of_draws(model, data, torch.stack([one for r in agreeing for one in r.locals])),
            draws=_stack_draws(agreeing, data.x.dtype),
            sample_stats={"lp": torch.tensor([record.lp[:length] for record in agreeing], dtype=torch.float64)}
            | {name.replace(" ", "_"): torch.as_tensor(value) for name, value in _collect_watched(agreeing).items()}
            | each,
            details={
                **diagnostics,
                "chains": len(records),
                "agreeing": len(agreeing),
                "draws": [record.count for record in records],
                "log_evidence": [round(mode.level, 3) for mode in modes],
                "mean_lp": [round(float(np.mean(r.lp)), 3) if r.lp else None for r in records],
            },
        )

    def _status(
        self, records: list[Record], modes: list[Mode], same: list[Mode], interrupted: bool, found: dict
    ) -> list[str]:
        """modes: of all usable chains; same: of those that agree with the best."""
        first, agreeing = modes[0].record, [mode.record for mode in same]
        still = all(record.count > 1 and len(set(record.lp)) == 1 for record in agreeing)
        chains = "one chain" if len(agreeing) == 1 else f"{len(agreeing)} chains"
        drawn = f"{chains} of {_shortest(agreeing)} draws, {self.thin} sweeps apart"
        parts = [f"{drawn}, after {self.warmup} of warm-up"]
        if interrupted:
            parts = [f"interrupted after {sum(r.sweeps for r in records)} sweeps in all; {drawn}"]
        parts += [found["agreement"]] if "agreement" in found else []
        if self.align and (first.sampler.matched or first.sampler.compares):
            moved = "never left" if still else "found"
            parts.append(f"{len(same)} of {len(modes)} chains {moved} these components{say_lower(same)}")
        if found["lp_r_hat"] is None:
            parts.append("no R-hat: " + ("the draws of a chain are all alike" if still else "too few draws"))
        else:
            what = first.sampler.target or "log p(x, q)"
            parts.append(f"{what}: R-hat {found['lp_r_hat']:.3f}, effective size {found['lp_ess']:.0f}")
        if learned := first.list_learned():
            parts.append("the prior of " + " and of ".join(f"'{site}'" for site in learned) + " was learned")
        return [*parts, *first.chain.list_sampled().values()]


def _shortest(records: list[Record]) -> int:
    return min(record.count for record in records)


def _stack_draws(records: list[Record], dtype: torch.dtype) -> dict[str, Tensor] | None:
    """site -> (chain, draw, ...), cut to the shortest chain; None where nothing was kept."""
    length, first = _shortest(records), records[0]
    draws = {
        site: torch.stack([one for r in records for one in r.draws[site][:length]]).unflatten(0, (len(records), -1))
        for site in first.draws
    }
    # Blocks of nodes are whole numbers, and stay so.
    draws = {site: value.to(dtype) if value.is_floating_point() else value for site, value in draws.items()}
    if first.indicators:
        draws["indicator"] = torch.stack([torch.stack(r.indicators[:length]) for r in records])
    return draws or None


def _collect_watched(records: list[Record]) -> dict[str, np.ndarray]:
    """Collect what the chains watch, (chain, draw) each."""
    length, names = _shortest(records), records[0].watched[0]
    return {name: np.array([[each[name] for each in one.watched[:length]] for one in records]) for name in names}


def _diagnostics(model: Model, records: list[Record]) -> dict[str, Any]:
    """R-hat and effective sample size of log p(x, q), and the worst of the components' strongest features."""
    length = _shortest(records)
    if length < 4:
        return {"lp_r_hat": None, "lp_ess": None}
    lp = np.array([record.lp[:length] for record in records])
    found: dict[str, Any] = {
        "lp_r_hat": round_for_file(float(r_hat(lp))),
        "lp_ess": round_for_file(float(effective_size(lp))),
    }
    own = _collect_watched(records) | records[0].sampler.list_watched(records)
    if own:
        agreed = convergence(own)
        found |= {"r_hat": round_for_file(agreed.r_hat), "r_hat_of": agreed.r_hat_of}
        return found | {"ess": round_for_file(agreed.ess), "ess_of": agreed.ess_of, "agreement": str(agreed)}
    site = model.component_site
    if site not in records[0].draws:
        return found
    mean = records[0].mean[site]
    strongest = mean.topk(min(_WATCHED, mean.shape[-1]), dim=-1).indices
    watched = np.array([[one.gather(-1, strongest).numpy() for one in r.draws[site][:length]] for r in records])
    worst = np.max(r_hat(watched)), np.min(effective_size(watched))
    return found | {f"{site}_r_hat": round_for_file(float(worst[0])), f"{site}_ess": round_for_file(float(worst[1]))}
