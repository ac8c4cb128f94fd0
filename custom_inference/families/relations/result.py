"""What fits of relational models say: clusters and tables, who is together, predictions of cells."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyro
import torch
from torch import Tensor

from custom_inference.core.fit import Fit
from custom_inference.core.isolation import seed_of
from custom_inference.core.objectives import objective_line
from custom_inference.core.posteriors import LabellingPosterior
from custom_inference.core.predicted import Prediction
from custom_inference.families.relations.problem import clusters_of, draw_tables, tables
from ppl_models import DataError, MethodError
from ppl_models.core.errors import list_some, unknown_name
from ppl_models.data.labels import places_of
from ppl_models.data.lazy import pandas as pd

#: Draws that predictions average over, at most; draws of a posterior of which all clusterings are listed.
_DRAWS, _OF_LISTED = 100, 2000
#: Draws that intervals of predictions are made of.
_INTERVALS = 1000


@dataclass(kw_only=True, repr=False)
class RelationFit(Fit):
    """A fit of :class:`ppl_models.IRM`.

    params: ``concentration`` (T,), posterior mean given the clusters; ``cluster_TYPE`` (N_t,), the most probable
        clusters that were found, the largest first; and the tables, ``edge_probability_RELATION`` (K, ...) and so on,
        their posterior means at these clusters.
    elbo: log p(x, clusters) of the search, tables and concentrations integrated out.
    draws: ``cluster_TYPE`` (chain, draw, N_t), labels of different draws unrelated. Where all clusterings of a toy are
        listed these are drawn from them, each as often as its weight says; the list itself is in ``sample_stats``:
        ``clusterings`` (1, C, E), of the entities of all types, and their ``log_weight`` (1, C).
    """

    model: Any  # an IRM
    data: Any  # Relations

    def __post_init__(self) -> None:
        super().__post_init__()
        if "log_weight" in self.sample_stats and "clusterings" not in self.sample_stats:
            self._draw_listed()
        clusters = clusters_of(self.model, self.data, 0)
        clusters.take(self._labels())
        self.params |= {site: value.to(self.data.x) for site, value in tables(self.model, clusters).items()}

    def _draw_listed(self) -> None:
        """Systematic draws from the clusterings listed, in random order: their plain means are posterior means."""
        assert self.draws is not None
        rng, share = np.random.default_rng(self.seed), self.sample_stats["log_weight"][0].exp().cpu().numpy()
        levels = (np.arange(_OF_LISTED) + rng.random()) / _OF_LISTED
        chosen = np.searchsorted(share.cumsum() / share.sum(), levels).clip(max=len(share) - 1)
        order = torch.as_tensor(rng.permutation(chosen))
        listed = torch.cat([self.draws[self._site(t)] for t in self.model.types], -1)
        self.sample_stats = {**self.sample_stats, "clusterings": listed}
        self.draws = {site: value[:, order.to(value.device)] for site, value in self.draws.items()}

    @property
    def _listed(self) -> tuple[dict[str, Tensor], Tensor] | None:
        """All clusterings by type, (C, N_t), and their log weights (C,), where they are listed."""
        if "clusterings" not in self.sample_stats:
            return None
        parts = self.sample_stats["clusterings"][0].split(list(self.model.types.values()), -1)
        found = {self._site(t): part for t, part in zip(self.model.types, parts, strict=True)}
        return found, self.sample_stats["log_weight"][0]

    @property
    def derived(self) -> tuple[str, ...]:
        return tuple(table for relation in self.model.relations for table in self.model.tables(relation))

    def _labels(self) -> np.ndarray:
        return np.concatenate([self.params[f"cluster_{t}"].cpu().numpy() for t in self.model.types])

    def __repr__(self) -> str:
        types = ", ".join(f"{n} {t} in {self.num_clusters(t)} clusters" for t, n in self.model.types.items())
        return (
            f"Fit of IRM to {types} by {self.method_name}\n  {': '.join(objective_line(self))}\n  status: {self.status}"
        )

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(repr(self))}</pre>{self.report().to_html(index=False)}"

    def num_clusters(self, kind: str) -> int:
        """Clusters of a type that have entities, in the best partition."""
        return len(torch.unique(self.params[self._site(kind)]))

    def _site(self, kind: str) -> str:
        if kind not in self.model.types:
            raise MethodError(unknown_name("type", kind, self.model.types))
        return f"cluster_{kind}"

    @property
    def posterior(self) -> Any:
        """The posterior of the clusters of the first type."""
        return self.posteriors[self.model.local_site]

    @property
    def posteriors(self) -> dict[str, LabellingPosterior]:
        """The posteriors of the clusters of every type; without draws all mass is on the best partition."""
        if self._listed is not None:
            listed, weight = self._listed
            return {s: LabellingPosterior(each, weight, each.max() + 1) for s, each in listed.items()}
        found = {}
        for t in self.model.types:
            site = self._site(t)
            draws = self.params[site][None, None] if self.draws is None else self.draws[site]
            labels = draws.flatten(0, 1)
            found[site] = LabellingPosterior.of_draws(labels, int(labels.max()) + 1)
        return found

    def co_assignment(self, kind: str) -> Any:
        """P(two entities share a cluster), a frame with their labels (N_t, N_t), over all draws of all chains."""
        names = list(self.data.names(kind))
        together = self.posteriors[self._site(kind)].together().cpu().numpy()
        return pd.DataFrame(together, index=names, columns=names)

    @property
    def coords(self) -> dict[str, list[Any]]:
        model, data = self.model, self.data
        own = {t: list(data.names(t)) for t in model.types}
        return {**own, "type": list(model.types), "relation": list(model.relations)}

    def transform(self, x: Any = None, *, mask: Any = None, bound: str | None = None, **others: Any) -> Any:
        """Type -> the best clusters of its entities (N_t,)."""
        if x is not None or mask is not None or bound is not None or others:
            raise MethodError("clusters of other entities than those of the fit; fit them together")
        return {t: self.params[self._site(t)] for t in self.model.types}

    def report(self, *, top: int = 6) -> Any:
        """One line a cluster: its type, number, size and first members."""
        lines = []
        for t in self.model.types:
            label, names = self.params[self._site(t)].cpu().numpy(), self.coords[t]
            for k in np.unique(label):
                members = np.flatnonzero(label == k)
                shown = list_some([names[i] for i in members], top)
                lines.append({"type": t, "cluster": int(k), "size": len(members), "members": shown})
        return pd.DataFrame(lines)

    def table(self, relation: str) -> Any:
        """The posterior mean of what cells are in every block at the best partition, (K, ...): probabilities, expected
        counts, or means; of categories their probabilities."""
        if relation not in self.model.relations:
            raise MethodError(unknown_name("relation", relation, self.model.relations))
        return self.params[self.model.tables(relation)[-1]]

    def sample(self, num_rows: int | None = None, *, seed: int = 0) -> dict[str, Tensor]:
        """All cells of all relations anew, at the best clusters and the means of the tables: x (C, 2 + A)."""
        if num_rows is not None:
            raise MethodError("num_rows of relations, whose entities are those of the fit; leave it out")
        values = {**self.params}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of(seed, "x"))
            made: Any = pyro.condition(self.model, data=values)
            return {"x": made()}

    def log_likelihood(self, x: Any = None, bound: str | None = None, *, mask: Any = None, **others: Any) -> Tensor:
        """Not available: log p(x) sums over all partitions (``method="exact"`` of toys has it in ``details``)."""
        raise MethodError("log p(x) of relations sums over all partitions; fit(..., method='exact') has that of toys")

    def aic(self, bound: str | None = None) -> float:
        raise MethodError("no AIC of relations: the tables are integrated out; compare elbo[-1], the log joint")

    def bic(self, bound: str | None = None) -> float:
        raise MethodError("no BIC of relations: the tables are integrated out; compare elbo[-1], the log joint")

    def clusterings(self) -> Iterator[tuple[float, np.ndarray]]:
        """Some draws of the clusters of all types (E,), with weights that add up to 1; else the best clusters."""
        if self.draws is None:
            yield 1.0, self._labels()
            return
        if self._listed is not None:
            each, share = (self.sample_stats[name][0].cpu().numpy() for name in ("clusterings", "log_weight"))
            share = np.exp(share)
            first = np.argsort(-share)[: 10 * _DRAWS]
            for n in first:
                yield float(share[n] / share[first].sum()), each[n]
            return
        each = torch.cat([self.draws[self._site(t)].flatten(0, 1) for t in self.model.types], -1).cpu().numpy()
        chosen = np.unique(np.linspace(0, len(each) - 1, min(len(each), _DRAWS)).round().astype(int))
        for n in chosen:
            yield 1.0 / len(chosen), each[n]

    def to_arviz(self, **settings: Any) -> Any:
        """Draws of the clusters, as whole numbers, with the labels of the entities; ``lp``; the listed cells.

        Labels of different draws are unrelated: :meth:`co_assignment` is what does not depend on them.
        """
        from custom_inference.faces.arviz_relations import to_arviz

        if settings:
            raise MethodError(unknown_name("setting of to_arviz", next(iter(settings)), ()))
        return to_arviz(self)

    def plot(self, kind: str = "relations", **settings: Any) -> Any:
        """ "relations": matrices in the order of the clusters; "clusters": the graph of the clusters of a relation;
        "co_assignment": who is together; "elbo"."""
        from custom_inference.faces.relations import KINDS

        if kind not in KINDS:
            raise MethodError(unknown_name("kind of plot", kind, KINDS))
        return KINDS[kind](self, **settings)


def predict(
    fit: RelationFit, query: Any, *entities: Any, positions: Any = None, uncertainty: bool = False
) -> np.ndarray | Prediction:
    """The posterior mean of cells, (M,): probabilities of 1, expected counts, means; of categories (M, C).

    query: a relation and the entities of the cells along each of its axes, by their labels (the numbers 0, 1, ...
        where a type has none): ``("likes", people, films)``; or the relation alone, for all its cells (N_1, ..., N_A).
        Averaged over draws of the clusters.
    positions: the entities by their numbers in the data, whatever their labels: ``predict("likes", positions=(i, j))``.
    uncertainty: give a :class:`Prediction` instead: its sd and its intervals are of the probability, of the expected
        count, or of the mean of a cell, over draws of the clusters and, given these, of the tables; spread is NaN.

    Raises DataError for unknown relations and entities.
    """
    relation, *parts = (query, *entities) if isinstance(query, str) else query
    model, data = fit.model, fit.data
    if relation not in model.relations:
        raise DataError(unknown_name("relation", relation, model.relations), axis="relation")
    types = model.relations[relation]
    if positions is not None:
        if parts:
            raise DataError("entities beside positions", axis=relation, expected="one of them")
        parts = list(positions)
    if parts and len(parts) != len(types):
        raise DataError(f"{len(parts)} axes", axis=relation, expected=f"{len(types)}: {', '.join(types)}")
    names = {} if positions is not None else data.coords
    place = []
    for t, given in zip(types, parts, strict=False):
        single = isinstance(given, str) or np.ndim(given) == 0
        hint = "" if names.get(t) is None else "; positions=(...) takes numbers"
        place.append(places_of([given] if single else given, names.get(t), model.types[t], t, hint=hint))
    if not parts:
        place = list(np.meshgrid(*(np.arange(model.types[t]) for t in types), indexing="ij", sparse=True))
    first = dict(zip(model.types, np.concatenate([[0], np.cumsum(list(model.types.values()))]), strict=False))
    total, drawn = 0.0, []
    clusters, rng = clusters_of(model, data, 0), np.random.default_rng(fit.seed)
    each = list(fit.clusterings())
    often = rng.multinomial(_INTERVALS, [weight for weight, _ in each]) if uncertainty else [0] * len(each)
    for (weight, labels), times in zip(each, often, strict=True):
        clusters.take(labels)
        at = tuple(clusters.work.label[first[t] + p] for t, p in zip(types, place, strict=True))
        total = total + weight * tables(model, clusters)[model.tables(relation)[-1]].numpy()[at]
        drawn += [table[at] for table in draw_tables(model, clusters, relation, int(times), rng)]
    if not uncertainty:
        return np.asarray(total)
    mean, draws = torch.as_tensor(total), torch.as_tensor(np.stack(drawn))
    return Prediction(mean, (draws - mean).square().mean(0).sqrt(), torch.full_like(mean, torch.nan), draws)
