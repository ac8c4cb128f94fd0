"""The plates of programs, and the statements of what is observed in them: rows, documents, dyads.

A program says ``with self.rows(x, mask, batch_size, num_rows) as rows:`` and states the rows' latents and x inside.
Minibatches, masks and missing entries are the plate's business: ``rows.of(covariates)`` are those of the rows of this
minibatch, ``rows.observe("x", law)`` is the statement of their x.
"""

from __future__ import annotations

from typing import Any, Protocol, Self, TypedDict

import pyro
import torch
from torch import Tensor

from ppl_models.core.errors import ModelError, unknown_name
from ppl_models.core.missing import of_entries
from ppl_models.core.running import current_run
from ppl_models.core.sites import Declaration
from ppl_models.core.supports import INSIDE
from ppl_models.data import sparse as _sparse
from ppl_models.data.device import device_of
from ppl_models.distributions.labellings import END


class Plate(TypedDict, total=False):
    """What programs are called with beside their data, and hand to the plate of their rows as ``**plate``.

    mask: of the shape of x, True where an entry is observed. batch_size: rows of a minibatch; None: all rows. num_rows:
    rows to generate where there is no x.
    """

    mask: Tensor | None
    batch_size: int | None
    num_rows: int


class DocumentPlate(Plate, total=False):
    """What programs of documents are called with. num_tokens: of each that is generated, (N,) or one number."""

    num_tokens: Tensor | int | None


def enter_plate(x: Tensor | None, size: int, batch_size: int | None) -> tuple[Any, Tensor]:
    """Enter the plate "data" of so many rows or dyads; return it, and those of this minibatch by number."""
    plate = pyro.plate("data", size, subsample_size=batch_size, dim=-1, device=device_of(x))
    index = plate.__enter__()
    assert index is not None
    return plate, index


class Rows:
    """The plate "data" of independent rows.

    x: (N, ...), what is observed, or None where rows are generated.
    mask: (N, ...), True where an entry is observed. Others have no influence, whatever x holds there.
    batch_size: rows of a minibatch; None: all rows.
    num_rows: rows to generate where x is None.

    index: the rows of this minibatch, or None where it is all of them; places: the same, in either case. number: how
        many there are.
    """

    def __init__(
        self, model: Declaration, x: Tensor | None, mask: Tensor | None, batch_size: int | None, num_rows: int
    ):
        self.model, self.x, self.mask, self.batch_size = model, x, mask, batch_size
        self.number = num_rows if x is None else x.shape[0]
        self.index: Tensor | None = None
        self.places = torch.arange(0)

    def __enter__(self) -> Any:
        self.plate, index = enter_plate(self.x, self.number, self.batch_size)
        self.index = None if self.batch_size is None else index
        self.places, self.number = index, len(index)
        return self

    def __exit__(self, *error: Any) -> Any:
        return self.plate.__exit__(*error)

    def of(self, value: Tensor | None) -> Any:
        """Return the rows of this minibatch of a tensor (N, ...) that is given beside x; None of None."""
        return value if value is None or self.index is None else _sparse.select_rows(value, self.index)

    def observe(self, site: str, law: Any) -> Tensor:
        """State x of these rows by the distribution of their entries, batch shape (B, D); last axes may be its events.
        Of another observed site it states what the program was called with by its name.

        Raises DataError for a part of an entry that is missing where entries are vectors; ModelError for a site that is
        not declared.
        """
        if site not in self.model.sites:
            raise ModelError(unknown_name("site", site, self.model.sites_of("observed")))
        rows, mask, vector = self.of(self.x), self.of(self.mask), len(law.event_shape)
        if site != self.model.observed_site:  # of which what is missing is NaN
            rows, mask = self.of(current_run().given.get(site)), None
        if mask is not None:
            seen = of_entries(mask, vector, site)
            fill = INSIDE.get(self.model.sites[site].support)
            if rows is not None and (fill is not None or self.model.data_kind == "categories"):
                # A category that does not exist would be looked up in the table, masked or not, and a density outside
                # its support refused.
                seen_parts = mask if vector else seen
                rows = torch.where(seen_parts, rows, torch.full_like(rows, fill or 0.0))
            law = law.mask(seen)
        return pyro.sample(site, law.to_event(len(self.model.sites[site].dims) - vector), obs=rows)


class Documents(Rows):
    """The plate "data" of documents, whose x are word counts (N, V), dense or CSR.

    num_tokens: of each document that is generated, (N,) or one number.

    lengths: the numbers of tokens of these documents, those of x where there is one. Tokens of masked entries are left
        out of their documents.
    """

    def __init__(
        self, model: Declaration, x: Tensor | None, mask: Tensor | None, batch_size: int | None, num_rows: int,
        num_tokens: Tensor | int,
    ):  # fmt: skip
        super().__init__(model, x, mask, batch_size, num_rows)
        self.lengths: Any = num_tokens
        self.counts: Tensor | None = None

    def __enter__(self) -> Self:
        super().__enter__()
        if self.x is not None:
            rows, mask = self.of(self.x), self.of(self.mask)
            counts: Tensor = rows if mask is None else torch.where(mask, rows, torch.zeros_like(rows))
            self.counts, self.lengths = counts, _sparse.row_sums(counts)
        return self

    def observe(self, site: str, law: Any) -> Tensor:
        """State the word counts of these documents, whose distributions have batch shape (B,)."""
        if site != self.model.observed_site:
            return super().observe(site, law)
        return pyro.sample(site, law, obs=self.counts)


class GraphShape(Protocol):
    """What :class:`Graph` asks a model of graphs."""

    def num_dyads(self, num_nodes: int | None = None) -> int: ...
    def dyads(self, index: Tensor, num_nodes: int | None = None) -> tuple[Tensor, Tensor]: ...


class Graph:
    """A graph, and the plate "data" of its dyads: ``with graph as (i, j):`` gives their nodes, (E,) each.

    x: (N, N), the adjacency matrix, dense or CSR, or None where a graph is generated.
    mask: (N, N), True where a dyad is observed. Of undirected graphs what is right of the diagonal counts.
    batch_size: dyads of a minibatch; None: all of them.
    """

    def __init__(
        self, model: GraphShape, x: Tensor | None, mask: Tensor | None, batch_size: int | None, num_nodes: int
    ):
        self.model, self.x, self.mask, self.num_nodes = model, x, mask, num_nodes
        self.batch_size = batch_size
        self.i = self.j = torch.empty(0, dtype=torch.long)

    def __enter__(self) -> tuple[Tensor, Tensor]:
        self.plate, index = enter_plate(self.x, self.model.num_dyads(self.num_nodes), self.batch_size)
        self.i, self.j = self.model.dyads(index, self.num_nodes)
        for end, nodes in enumerate((self.i, self.j)):
            setattr(nodes, END, end)
        return self.i, self.j

    def __exit__(self, *error: Any) -> Any:
        return self.plate.__exit__(*error)

    def observe(self, site: str, law: Any) -> Tensor:
        """State the edges of these dyads, (E,): ``law`` has their batch shape."""
        law = law if self.mask is None else law.mask(self.mask[self.i, self.j])
        return pyro.sample(site, law, obs=None if self.x is None else _sparse.entries(self.x, self.i, self.j))
