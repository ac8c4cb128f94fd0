"""Methods of the infinite relational model: the most probable clusters, samples of them, a bound, and all of them."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from custom_inference.core.diagnostics import convergence
from custom_inference.core.ended import Ended
from custom_inference.core.fit import Fit, require_fit_of, require_mapping
from custom_inference.core.method import Call, Method
from custom_inference.core.progress import Progress
from custom_inference.core.settings import require_whole
from custom_inference.core.threads import map_in_threads
from custom_inference.families.relations.exact import Posterior, all_partitions
from custom_inference.families.relations.problem import clusters_of
from custom_inference.families.relations.result import RelationFit
from custom_inference.families.relations.search import Found, random_start, rounds_for, search, settle
from custom_inference.families.relations.state import Clusters
from custom_inference.families.relations.variational import Bound, draw_labels, soften_labels
from ppl_models import IRM, Data, MethodError, Model, ModelError, Relations
from ppl_models.core.errors import unknown_name

#: Chains of draws after a search.
_CHAINS = 2
_OBJECTIVE = "log p(x, clusters), all else integrated out"


class _OfRelations(Method):
    """A method of relational models."""

    @abc.abstractmethod
    def fit_clusters(self, model: IRM, data: Relations, call: Call) -> RelationFit:
        """Fit the clusters of the entities."""

    def _fit(self, model: Model, data: Data, call: Call) -> Fit:
        return self.fit_clusters(self._require_relations(model), cast(Relations, data), call)

    def check(self, model: Model) -> None:
        self._require_relations(model)

    def _require_relations(self, model: Model) -> IRM:
        """Return the model. Raises MethodError for others."""
        if not isinstance(model, IRM):
            raise MethodError(f"{self.name} is for relational models such as IRM, not {type(model).__name__}")
        return model

    def check_init(self, model: Model, init: Any) -> None:
        """Clusters of all entities, of a fit or by their sites."""
        if init is not None and self.takes_no_init:
            raise MethodError(f"{self.name} takes no init: {self.takes_no_init}")
        _labels(self._require_relations(model), init)


@dataclass(frozen=True, kw_only=True)
class PartitionSearch(_OfRelations):
    """The most probable clusters, and draws of those near them.

    starts: random starts, of which the best goes on. rounds: changes of many entities that are tried; by default as
        many as take some seconds.
    num_samples: draws of the clusters afterwards, by two chains of Gibbs sweeps and split-merge moves from the best
        ones, which make half of them each. Chains from elsewhere too: ``RelationGibbs``.

    Threads share starts, rounds and chains. The result does not depend on how many there are.
    """

    starts: int = 2
    rounds: int | None = None
    num_samples: int = 50

    def __post_init__(self) -> None:
        for name in ("starts", "rounds", "num_samples"):
            if name != "rounds" or self.rounds is not None:
                require_whole(name, getattr(self, name), 1 if name == "starts" else 0)

    @property
    def name(self) -> str:
        return "PartitionSearch"

    def fit_clusters(self, model: IRM, data: Relations, call: Call) -> RelationFit:
        """``init``, a fit of the same entities, is one of the starts."""
        clusters = clusters_of(model, data, call.seed)
        with Progress(None, self.name, enabled=call.progress) as bar:
            begin = _labels(model, call.init)
            rounds = rounds_for(clusters) if self.rounds is None else self.rounds
            found = search(clusters, self.starts, rounds, bar, begin)
            chains = [_Chain(self._copy(clusters)) for _ in range(0 if found.interrupted else _CHAINS)]
            draws = -(-self.num_samples // _CHAINS)
            try:
                map_in_threads(lambda chain: chain.run(0, draws, 1, bar), chains)
            except KeyboardInterrupt:
                chains, found = [], found._replace(interrupted=True)
            top, labels = max((chain.best for chain in chains), key=lambda one: one[0], default=(-np.inf, found.labels))
            if top > found.log_joint:
                clusters.take(labels)
                found = found._replace(log_joint=settle(clusters, 0, 50), labels=clusters.labels)
        ended = "interrupted after" if found.interrupted else "the best of"
        drawn = f"; {_CHAINS} chains of {draws} draws from there" if chains and draws else ""
        status = f"{ended} {self.starts} starts and {found.rounds} rounds{drawn}"
        how = Ended.INTERRUPTED if found.interrupted else Ended.COMPLETE
        return _result(model, data, call, self, status, how, clusters, found, chains)

    @staticmethod
    def _copy(clusters: Clusters) -> Clusters:
        """Return clusters with the same labels and random numbers of their own."""
        made = clusters.with_seed(int(clusters.generator.integers(2**63)))
        made.take(clusters.labels)
        return made


@dataclass(frozen=True, kw_only=True)
class RelationGibbs(_OfRelations):
    """Draws of the clusters from their posterior: collapsed Gibbs sampling with split-merge moves.

    num_samples: draws of each chain, ``thin`` sweeps apart, after ``warmup`` sweeps. chains: every second one starts at
        what a search finds, the others at random clusters. moves: split-merge moves of a sweep.

    ``Fit.params`` are the clusters of the highest log p(x, z) that any chain met, climbed from greedily; co-assignments
    and predictions average over all draws of all chains, whichever modes they are in: ``status`` says how chains agree.
    """

    num_samples: int = 200
    warmup: int = 100
    thin: int = 1
    chains: int = 4
    moves: int = 10
    rounds: int = 100

    def __post_init__(self) -> None:
        for name in ("num_samples", "warmup", "thin", "chains", "moves", "rounds"):
            require_whole(name, getattr(self, name), 0 if name in ("warmup", "moves", "rounds") else 1)

    @property
    def name(self) -> str:
        return "RelationGibbs"

    def fit_clusters(self, model: IRM, data: Relations, call: Call) -> RelationFit:
        seeds = np.random.SeedSequence([call.seed % 2**64]).generate_state(self.chains, np.uint64).tolist()
        chains, interrupted = [], False
        with Progress(None, self.name, enabled=call.progress) as bar:
            begin = _labels(model, call.init)
            for number, seed in enumerate(seeds):
                clusters = clusters_of(model, data, seed)
                try:
                    if number % 2 == 0:
                        search(clusters, 2, self.rounds, bar, begin)
                    else:
                        clusters.take(random_start(clusters, number // 2))
                    chains.append(_Chain(clusters, self.moves))
                    chains[-1].run(self.warmup, self.num_samples, self.thin, bar)
                except KeyboardInterrupt:
                    interrupted = True
                    break
        full = [chain for chain in chains if len(chain.draws) == self.num_samples] or chains[:1]
        if not full or not full[0].draws:
            raise KeyboardInterrupt
        best = max(full, key=lambda chain: chain.best[0])
        best.clusters.take(best.best[1])
        settle(best.clusters, 0, 50)
        found = Found(best.clusters.labels, best.clusters.log_joint(), [one[2] for one in best.draws], 0)
        agreed = convergence({"log p(x, z)": np.array([[one[2] for one in chain.draws] for chain in full])})
        how = f"interrupted; {len(full)}" if interrupted else f"{len(full)}"
        accepted = sum(chain.accepted for chain in full) / max(1, sum(chain.tried for chain in full))
        status = f"{how} chains of {len(full[0].draws)} draws, {self.thin} sweeps apart; {agreed}; " \
                 f"{100 * accepted:.1f} % of split-merge moves accepted"  # fmt: skip
        ended = Ended.INTERRUPTED if interrupted else Ended.SAMPLED
        return _result(model, data, call, self, status, ended, best.clusters, found, full)


@dataclass(frozen=True, kw_only=True)
class RelationVB(_OfRelations):
    """Variational Bayes: independent labels of all entities, tables and proportions under their best posteriors.

    starts: of the highest bound one goes on; the first is what a search of so many ``rounds`` finds (None: as many as
        its own default), the others are random clusters after some Gibbs sweeps. ``init``, a fit of the same entities,
        takes the place of the search.
    truncation: clusters of a type at most, where their number is unbounded; None: half as many again as the start has.
    max_iterations, tolerance: of each start; it ends where the bound gains less in a round.
    num_samples: draws of the labels from their posterior.

    ``Fit.elbo`` is a lower bound on log p(x), tables, proportions and concentrations integrated out; ``params`` are the
    most probable labels of each entity, ``draws`` are of the variational posterior: one mode, and sharper than it is.
    """

    starts: int = 6
    rounds: int | None = None
    truncation: int | None = None
    max_iterations: int = 500
    tolerance: float = 1e-4
    num_samples: int = 200

    def __post_init__(self) -> None:
        for name in ("starts", "rounds", "truncation", "max_iterations", "num_samples"):
            if getattr(self, name) is not None:
                require_whole(name, getattr(self, name), 0 if name == "rounds" else 1)

    @property
    def name(self) -> str:
        return "RelationVB"

    def fit_clusters(self, model: IRM, data: Relations, call: Call) -> RelationFit:
        clusters, runs, interrupted = clusters_of(model, data, call.seed), [], False
        bound = Bound(clusters)
        with Progress(None, self.name, enabled=call.progress) as bar:
            begin = _labels(model, call.init)
            try:
                for number in range(self.starts):
                    labels = self._start(clusters, number, bar, begin)
                    logs = soften_labels(clusters, labels, self.truncation)
                    runs.append(bound.maximise(logs, self.max_iterations, self.tolerance, bar))
            except KeyboardInterrupt:
                interrupted = True
        if not runs:
            raise KeyboardInterrupt
        logs, trace = max(runs, key=lambda one: one[1][-1])
        labels = torch.cat([log.argmax(-1) for log in logs]).numpy()
        clusters.take(labels)
        ended = "interrupted after" if interrupted else "the best of"
        near = sum(run[1][-1] > trace[-1] - 1.0 for run in runs)
        status = f"{ended} {len(runs)} starts, {near} of them within a nat; {len(trace) - 1} rounds"
        found = Found(labels, clusters.log_joint(), trace, len(trace) - 1)
        how = Ended.LIMIT if len(trace) > self.max_iterations else Ended.CONVERGED
        how = Ended.INTERRUPTED if interrupted else how
        made = _result(model, data, call, self, status, how, clusters, found, [])
        draws = draw_labels(clusters, logs, self.num_samples, call.seed)
        sites = [f"cluster_{t}" for t in model.types]
        own = {**dict(zip(sites, draws[:-1], strict=True)), "concentration": draws[-1].to(data.x.dtype)}
        elbo = torch.tensor(trace, dtype=torch.float64)
        return replace(made, elbo=elbo, objective="bound", bound_name="vb", draws=own)

    def _start(self, clusters: Clusters, number: int, bar: Progress, begin: np.ndarray | None) -> np.ndarray:
        if number == 0:
            if begin is not None:
                return begin
            return search(clusters, 2, rounds_for(clusters) if self.rounds is None else self.rounds, bar).labels
        clusters.take(random_start(clusters, number))
        settle(clusters, 20, 5)
        return clusters.labels


@dataclass(frozen=True, kw_only=True)
class ExactPartitions(_OfRelations):
    """The exact posterior over all partitions of all types, of toys. Raises CapacityError for more than 2^16."""

    takes_no_init = "it lists all clusterings, and nothing starts anywhere"

    @property
    def name(self) -> str:
        return "ExactPartitions"

    def fit_clusters(self, model: IRM, data: Relations, call: Call) -> RelationFit:
        posterior = all_partitions(model, data)
        clusters, best = clusters_of(model, data, call.seed), int(posterior.log_weight.argmax())
        clusters.take(posterior.labels[best])
        found = Found(clusters.labels, clusters.log_joint(), [posterior.log_evidence], 0)
        status = f"all {len(posterior.labels)} clusterings; log p(x) = {posterior.log_evidence:.4f}"
        return _result(model, data, call, self, status, Ended.SOLVED, clusters, found, [], posterior)


class _Chain:
    """A chain of clusters, what it drew, and the best that it met."""

    def __init__(self, clusters: Clusters, moves: int = 5):
        self.clusters, self.moves = clusters, moves
        #: Labels, concentrations and log p(x, z) of every draw.
        self.draws: list[tuple[np.ndarray, np.ndarray, float]] = []
        self.tried = self.accepted = 0
        self.best = (clusters.log_joint(), clusters.labels)

    def run(self, warmup: int, samples: int, thin: int, bar: Progress) -> None:
        for step in range(warmup + samples * thin):
            self.clusters.sweep()
            self.accepted += sum(self.clusters.split_or_merge() for _ in range(self.moves))
            self.tried += self.moves
            concentration, level = self.clusters.draw_concentrations(), self.clusters.log_joint()
            if level > self.best[0]:
                self.best = level, self.clusters.labels
            if step >= warmup and (step - warmup + 1) % thin == 0:
                self.draws.append((self.clusters.compact(), concentration, level))
            bar.advance(level)


def _labels(model: IRM, init: Fit | Mapping[str, Tensor] | None) -> np.ndarray | None:
    """The clusters of a fit, or of a mapping with all of them."""
    if init is None:
        return None
    sites, found = {f"cluster_{t}": size for t, size in model.types.items()}, []
    if isinstance(init, Fit):
        require_fit_of(model, init)
        values = init.params
    else:
        values = require_mapping(init)
        for site in values:
            if site not in model.dims:
                raise ModelError(f"init: {unknown_name('site of IRM', site, sites)}")
    for site, size in sites.items():
        if site not in values:
            raise ModelError(f"no value for site '{site}' in init; needed: {', '.join(sites)}")
        value = torch.as_tensor(values[site])
        if tuple(value.shape) != (size,):
            raise ModelError(f"site '{site}' has shape {tuple(value.shape)}, expected {(size,)}")
        if not bool(((value >= 0) & (value < size) & (value == value.round())).all()):
            raise ModelError(f"init of '{site}' has values that are no clusters, expected whole numbers below {size}")
        found.append(value.cpu().numpy())
    return np.concatenate(found).astype(np.int64)


def _result(
    model: IRM, data: Relations, call: Call, method: Method, status: str, ended: Ended, clusters: Clusters,
    found: Found, chains: list[_Chain], posterior: Posterior | None = None,
) -> RelationFit:  # fmt: skip
    clusters.take(found.labels)
    shares = [clusters.prior.of_concentration(t, size) for t, size in enumerate(clusters.work.size)]
    means = [float(grid @ share) for grid, share in zip(clusters.prior.grid, shares, strict=True)]
    params = {"concentration": torch.tensor(means, dtype=torch.float64)}
    labels = clusters.compact()
    params |= {f"cluster_{t}": torch.as_tensor(labels[clusters.of_type(n)]) for n, t in enumerate(model.types)}
    draws, stats = None, {}
    chains = [chain for chain in chains if chain.draws]
    if chains:
        every = [torch.as_tensor(np.array([[one[n] for one in chain.draws] for chain in chains])) for n in range(3)]
        draws = {f"cluster_{t}": every[0][..., clusters.of_type(n)] for n, t in enumerate(model.types)}
        draws["concentration"], stats = every[1].to(data.x.dtype), {"lp": every[2].double()}
    elif posterior is not None:
        parts = torch.as_tensor(posterior.labels)[None].split(list(model.types.values()), -1)
        draws = {f"cluster_{t}": part for t, part in zip(model.types, parts, strict=True)}
        stats = {"log_weight": torch.as_tensor(posterior.log_weight)[None]}
    details: dict[str, Any] = {"log_joint": found.log_joint, "rounds": found.rounds}
    details |= {} if posterior is None else {"log_evidence": posterior.log_evidence}
    return RelationFit(
        model=model, params={site: v.to(data.x.dtype) if v.is_floating_point() else v for site, v in params.items()},
        elbo=torch.tensor([*found.trace, found.log_joint], dtype=torch.float64), bound_name=_OBJECTIVE,
        objective="log joint", status=status, ended=ended, method=method, data=data, seed=call.seed, draws=draws,
        sample_stats=stats, details=details,
    )  # fmt: skip
