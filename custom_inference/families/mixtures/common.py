"""What engines and sampler of mixtures ask of the densities of the classes, and what fits start with: distant rows.

An over-complete start has a centre in every class of the data almost surely, which K centres seldom have; what it has
too many of is recognised by the marginal likelihood, components integrated out: merging two classes gains

    log m(S_a + S_b) - log m(S_a) - log m(S_b)

which is positive where the rows of both might well come from one class, whatever their number, and very negative where
not. (Of over-complete starts: Dasgupta & Schulman, J. Machine Learning Research 8, 2007; of the criterion: Heller &
Ghahramani, *Bayesian hierarchical clustering*, ICML 2005.)
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from custom_inference.core.align import match_components
from custom_inference.core.posteriors import ContinuousPosterior
from custom_inference.families.common.distances import Distances, squared_distances
from custom_inference.families.conjugate.pair import NOTHING
from custom_inference.families.mixtures.rows import MixtureRows
from ppl_models import Data, Model
from ppl_models.data import sparse as _sparse
from ppl_models.likelihoods import ExponentialFamily

#: w (K, F) and r (K, D) of ``MixtureRows.table``: at given components, or expected under their posterior.
Natural = tuple[Tensor, Tensor | None]
#: log m of classes with statistics (..., F) and (..., D), (...).
LogMarginal = Callable[[Tensor, Tensor], Tensor]

#: Random starts draw the classes' counts around the mean row's: as Gamma variables of this shape.
_SHAPE = 3.0
#: Rows of which a class has some at all.
_ALIVE = 0.1
#: How much of a centre is its row; the rest is the mean row.
_OWN = 0.7
#: Classes are told apart by so many features at most.
_INFORMATIVE = 3000
#: Differences of the log marginal likelihood are computed for so many entries at a time.
_AT_ONCE = 2**22


@dataclass(frozen=True)
class Density(abc.ABC):
    """The class-conditional density of one model: x_n | class k, with the component site its means.

    ``counts`` and ``observed`` are S (K, F) and M (K, D) of ``densities``, M (K, 1) where nothing is missing.
    """

    site: str
    likelihood: ExponentialFamily

    #: The conjugate pair of the component site, whose parameters are (K, F), and the posterior that is reported.
    pair: ClassVar[type[Any]]
    kind: ClassVar[type[Any]]
    #: All parameters of a prior under which ``mode`` is maximum likelihood.
    flat_at: ClassVar[float] = 0.0
    #: Components are kept this far off their edges; those of informed starts by so much.
    floor: ClassVar[float] = 1e-12
    floor_of_centres: ClassVar[float] = 1e-12
    #: Whether the classes' counts are of events, which samplers hold beside an exposure.
    events: ClassVar[bool] = False
    #: Informed starts begin with so many times as many classes, which are merged.
    excess: ClassVar[int] = 3

    @classmethod
    def of(cls, model: Any) -> Self:
        return cls(model.component_site, model.likelihood)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the posterior's parameters."""
        return tuple(one.name for one in fields(self.kind))

    def pair_of(self, *parameters: Tensor) -> Any:
        """Make a prior or posterior of these parameters."""
        return self.pair(*parameters)

    def statistics(self, counts: Tensor, observed: Tensor) -> tuple[Tensor, ...]:
        """Return what the pair is updated by."""
        return counts, observed

    def value_of_classes(self, value: Tensor) -> Tensor:
        """Reshape a value of the site to (K, F)."""
        return value

    def in_site_shape(self, parameters: Any) -> Any:
        """Reshape the parameters of a pair from (K, F) to the shape of the site."""
        return parameters

    def rows(self, data: Data) -> MixtureRows:
        return MixtureRows.of_entries(data, self.likelihood)

    def distances(self, rows: MixtureRows) -> tuple[Distances, Tensor]:
        """Return a function of the distances between rows, and the rows' weights (N,)."""
        return squared_distances(rows.counts), torch.ones_like(rows.base)

    def scale_rows(self, rows: MixtureRows) -> Tensor:
        """Return the counts (N, F), dense, scaled so that every row weighs the same."""
        return _sparse.dense(rows.counts)

    def scale_mean(self, rows: MixtureRows) -> Tensor:
        """Return the mean row (F,) on that scale."""
        return rows.mean

    def natural(self, value: Tensor) -> Natural:
        """Return the natural parameter and the log-normaliser."""
        eta = self.likelihood.natural(value)
        return eta, self.likelihood.log_normaliser(eta)

    def mode(self, prior: Any, counts: Tensor, observed: Tensor, *, floor: float | None = None) -> Tensor:
        """Return the component site by maximum a posteriori; of what nobody of a class has answered the prior's mean:
        a mode at an edge would read as never or always."""
        found = prior.mode(*self.statistics(counts, observed), floor=floor or self.floor)
        if observed.shape != found.shape:  # no entry is missing
            return found
        unseen = (observed <= NOTHING) & (observed.amax(1, keepdim=True) > _ALIVE) & prior.mean.isfinite()
        return torch.where(unseen, prior.mean, found)

    def log_prior(self, prior: Any, value: Tensor) -> Tensor:
        """Compute the log prior density that ``mode`` maximises with the likelihood."""
        return prior.log_density(self.value_of_classes(value)).sum()

    def centres(self, rows: MixtureRows, index: Tensor) -> Tensor:
        """Return the component site of classes with these rows as centres, each pulled to the mean row."""
        pull, chosen = (1 - _OWN) / _OWN, rows.select(index)
        everywhere = self.scale_mean(rows)
        own = torch.ones_like(everywhere) if chosen.mask is None else chosen.mask.to(everywhere)
        centres = self.scale_rows(chosen) + pull * everywhere
        weight = (own + pull).expand_as(centres)
        return self.mode(self.flat(centres), centres, weight, floor=self.floor_of_centres)

    def marginal(self, prior: Any, counts: Tensor, observed: Tensor) -> tuple[LogMarginal, Tensor, Tensor]:
        """Return ``log_marginal`` of the features that tell classes apart, under the prior (1, F) of any class; and the
        statistics of these features."""
        columns = self.informative(counts, _INFORMATIVE).to(counts.device)
        some = observed if observed.shape[1] == 1 else observed[:, columns]
        return partial(self.log_marginal, prior.map(lambda part: part[0, columns])), counts[:, columns], some

    def random(self, rows: MixtureRows, size: int, generator: torch.Generator) -> Tensor:
        """Draw a random component site of ``size`` classes: the mean row, every entry scaled at random."""
        concentration = torch.full((size, rows.counts.shape[1]), _SHAPE, dtype=torch.float64)
        noise = (torch._standard_gamma(concentration, generator=generator) / _SHAPE).to(rows.like)
        return self.mode(self.flat(noise), rows.mean * noise, torch.ones_like(noise))

    def prior(self, model: Model, like: Tensor) -> Any:
        """Return the prior. Raises PriorError for priors that are not conjugate."""
        prior = self.pair.of(model, self.site, like).expand(model.shapes[self.site])
        return self.pair_of(*(self.value_of_classes(part) for part in prior))

    def flat(self, like: Tensor) -> Any:
        """Return a prior under which ``mode`` is maximum likelihood, of the shape of ``like``: one that adds nothing to
        the counts in the basis of logarithms, so that small counts are not rounded."""
        return self.pair_of(*(torch.full_like(like, self.flat_at) for _ in self.names))

    def require_mode(self, model: Model, like: Tensor) -> None:  # noqa: B027 - an empty default is meant
        """Raises MethodError for priors under which ``mode`` is none; by default every prior has one in some basis."""

    def update(self, prior: Any, counts: Tensor, observed: Tensor) -> Any:
        """Return the posterior of the component site."""
        return prior.update(*self.statistics(counts, observed))

    @abc.abstractmethod
    def mean_natural(self, posterior: Any) -> Natural:
        """Return the posterior means of the natural parameter and the log-normaliser."""

    def posterior(self, parameters: Any) -> ContinuousPosterior:
        return self.kind(*self.in_site_shape(parameters))

    def log_marginal(self, prior: Any, counts: Tensor, observed: Tensor) -> Tensor:
        """Compute the log likelihood (...) of rows with these statistics, (..., F) and (..., D), with the component
        integrated out.

        Of all features, or of those of ``informative``. Terms that do not depend on the rows' classes are left out.
        """
        return prior.log_marginal(*self.statistics(counts, observed)).sum(-1)

    def informative(self, counts: Tensor, most: int) -> Tensor:
        """Return the most frequent features, at most ``most``: enough to tell classes apart by."""
        total = counts.sum(0)
        return torch.arange(len(total)) if len(total) <= most else torch.topk(total, most).indices


def same_classes(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> bool:
    """Tell whether two solutions, components (K, ...) with their proportions (K,), have the same classes."""
    if len(first[0]) == 1:
        return True
    apart = [value.flatten(1) - proportion @ value.flatten(1) for value, proportion in (first, second)]
    return bool((match_components(*apart).similarity > 0.95).all())


def of_classes(statistics: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return S (K, F), and M: where nothing is missing the rows of each class, (K, 1)."""
    observed = statistics["observed"] if "observed" in statistics else statistics["rows"].unsqueeze(-1)
    return statistics["counts"], observed


def pair_gains(
    log_marginal: LogMarginal, counts: Tensor, observed: Tensor, pairs: Tensor, alone: Tensor | None = None
) -> Tensor:
    """Compute what merging the classes of each pair (2, P) gains, (P,). alone: the log marginals of the classes."""
    alone, found = log_marginal(counts, observed) if alone is None else alone, []
    for one, other in zip(*(part.split(max(1, _AT_ONCE // counts.shape[1])) for part in pairs), strict=True):
        together = log_marginal(counts[one] + counts[other], observed[one] + observed[other])
        found.append(together - alone[one] - alone[other])
    return torch.cat(found)


def merge_classes(log_marginal: LogMarginal, counts: Tensor, observed: Tensor, target: int) -> list[list[int]]:
    """Group classes into ``target`` groups: the best pair is merged until so few are left.

    counts (M, F), observed (M, D): the statistics of M classes.
    """
    counts, observed = counts.clone(), observed.clone()
    alone = log_marginal(counts, observed)
    size = len(counts)

    def gains(one: int, others: Tensor) -> Tensor:
        return pair_gains(log_marginal, counts, observed, torch.stack([torch.full_like(others, one), others]), alone)

    gain = torch.full((size, size), -torch.inf, dtype=alone.dtype, device=alone.device)
    for i in range(size - 1):
        gain[i, i + 1 :] = gains(i, torch.arange(i + 1, size))
    groups = [[i] for i in range(size)]
    for _ in range(size - target):
        first, second = divmod(int(gain.argmax()), size)
        groups[first] += groups[second]
        groups[second] = []
        counts[first] += counts[second]
        observed[first] += observed[second]
        alone[first] = log_marginal(counts[first], observed[first])
        gain[second], gain[:, second] = -torch.inf, -torch.inf
        others = torch.tensor([i for i in range(size) if groups[i] and i != first], dtype=torch.long)
        if len(others):
            gain[others.clamp(max=first), others.clamp(min=first)] = gains(first, others)
    return [group for group in groups if group]
