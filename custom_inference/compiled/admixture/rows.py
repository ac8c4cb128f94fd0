"""Rows of programs of shares, as documents of words.

A *word* is what one token of a row shows: the places and the values of the elements that a choice decides; of sums over
choices a category, a one or a zero, or an event of a rate. Tokens that show the same count together, so that what a row
costs goes by its different words. A word is made of pieces, one for each of its elements: a piece has a score under
every component, features . natural parameters, and what is counted of it goes to the M step as expected features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from custom_inference.compiled.admixture.responses import Terms
from custom_inference.compiled.admixture.structure import AdmixtureStructure, Observed
from custom_inference.compiled.laws import CategoricalLaw
from custom_inference.compiled.reading import NotCompiled, Statement
from custom_inference.families.rows.documents import DocumentRows
from ppl_models import Data
from ppl_models.data import sparse

#: Numbers of a run of the program at most.
ENTRIES = 2**24


@dataclass(frozen=True)
class Pieces:
    """M different things that elements of one statement show: their places (M,) in the block, and which of F features
    (M,) is 1 while the others are 0, or all features (M, F)."""

    cell: Tensor
    width: int
    single: Tensor | None = None
    features: Tensor | None = None

    @classmethod
    def of(cls, one: Observed, cell: Tensor, value: Tensor) -> Pieces:
        """Make them of values (M,), or (M, ...) of vectors."""
        law = one.law
        if type(law) is CategoricalLaw:
            return cls(cell, law.sizes[0], value.long())
        features = law.features(value)
        if bool(((features == 0) | (features == 1)).all()) and bool((features.sum(-1) == 1).all()):
            return cls(cell, features.shape[-1], features.argmax(-1))
        return cls(cell, features.shape[-1], None, features)

    def to(self, dtype: torch.dtype) -> Pieces:
        return self if self.features is None else replace(self, features=self.features.to(dtype))

    def scores(self, one: Observed, values: Tensor) -> Tensor:
        """Return log p (K, M) of every piece under every component, from natural parameters (K, U, F), or parameters of
        laws that are evaluated by value."""
        if self.features is None:
            return values[:, self.cell, self.single]
        if one.law.by_value:
            return one.law.evaluate(values[:, self.cell], self.features)
        return (values[:, self.cell] * self.features).sum(-1)

    def gather(self, counts: Tensor, one: Observed) -> Tensor:
        """Return the expected features (1, K, U, F) of counts (K, M)."""
        size = len(counts)
        if self.features is None:
            assert self.single is not None
            flat = counts.new_zeros(size, one.num_cells * self.width)
            return flat.index_add(1, self.cell * self.width + self.single, counts).reshape(1, size, -1, self.width)
        weighed = counts.unsqueeze(-1) * self.features
        return counts.new_zeros(size, one.num_cells, self.width).index_add(1, self.cell, weighed).unsqueeze(0)


@dataclass(frozen=True)
class AdmixtureRows:
    """N rows of a program of shares.

    counts (N, W): of every word, in CSR layout. pieces: of every statement, numbered one after the other; made (W, J):
    which of them each word is made of, -1 beyond. exposed: (N, U) how many elements of a rate were observed, None of
    other laws. offset (N,): what log p adds that depends on no parameter. token (N, V): the word that each choice
    decides, -1 where it shows nothing. answers: of every statement of responses the values (N, U), NaN where unknown.
    """

    structure: AdmixtureStructure
    counts: Tensor
    pieces: tuple[Pieces, ...]
    made: Tensor
    exposed: tuple[Tensor | None, ...]
    offset: Tensor
    token: Tensor
    answers: tuple[Tensor, ...] = ()

    def __len__(self) -> int:
        return len(self.offset)

    @property
    def like(self) -> Tensor:
        return self.offset

    @cached_property
    def documents(self) -> DocumentRows:
        """The words of the rows, as kernels read documents."""
        return DocumentRows(self.counts)

    @cached_property
    def owners(self) -> Tensor | None:
        """The component of every entry of the globals, where all are rates of one."""
        return find_owners(self.structure)

    @property
    def repeats(self) -> bool:
        """Whether words occur often enough to be told apart by what they occur with."""
        return self.counts.shape[1] <= 0.5 * float(self.documents.lengths.sum())

    def select(self, index: Tensor | slice) -> AdmixtureRows:
        """Return some of the rows."""
        exposed = tuple(None if one is None else one[index] for one in self.exposed)
        counts, answers = sparse.select_rows(self.counts, index), tuple(one[index] for one in self.answers)
        offset, token = self.offset[index], self.token[index]
        return replace(self, counts=counts, exposed=exposed, offset=offset, token=token, answers=answers)

    def to(self, dtype: torch.dtype) -> AdmixtureRows:
        """Return the rows with numbers of another type."""
        if dtype == self.like.dtype:
            return self
        pieces = tuple(one.to(dtype) for one in self.pieces)
        exposed = tuple(None if one is None else one.to(dtype) for one in self.exposed)
        counts, offset = self.counts.to(dtype), self.offset.to(dtype)
        return replace(self, counts=counts, pieces=pieces, exposed=exposed, offset=offset)

    def scores(self, values: Sequence[Tensor]) -> Tensor:
        """Return log p (K, W) of every word under every component, from what is known of the blocks' parameters."""
        parts = [p.scores(one, v) for p, one, v in zip(self.pieces, self.structure.observed, values, strict=False)]
        every = torch.cat([*parts, parts[0].new_zeros(len(parts[0]), 1)], 1)  # the last is what is no piece
        return every[:, self.made].sum(-1)

    def gather(self, counts: Tensor, mean: Tensor) -> list[Tensor]:
        """Return the expected features (1, K, U, F) of every statement from the expected numbers of words (K, W) of
        every component, and the means (N, K) of theta, which rates are exposed to."""
        total = counts.new_zeros(len(counts), sum(len(one.cell) for one in self.pieces) + 1)
        for piece in self.made.unbind(-1):
            total = total.index_add(1, piece % total.shape[1], counts)
        found, start = [], 0
        for pieces, one, exposed in zip(self.pieces, self.structure.observed, self.exposed, strict=True):
            part = pieces.gather(total[:, start : start + len(pieces.cell)], one)
            start += len(pieces.cell)
            if exposed is not None:
                part = torch.stack([part[..., 0], (mean.T @ exposed).unsqueeze(0).to(part)], -1)
            found.append(part)
        return found

    def exposure(self, values: Sequence[Tensor]) -> Tensor:
        """Return the sums (N, K) of the components' rates over what was observed, from natural parameters (K, U, 2)."""
        total = self.offset.new_zeros(len(self), self.structure.size)
        for exposed, value in zip(self.exposed, values, strict=False):  # the rest are of responses
            if exposed is not None:
                total = total - exposed @ value[..., 1].T
        return total

    def terms(self, values: Sequence[Tensor], temperature: float) -> Terms:
        """Return what log p has beside words, from natural parameters of all blocks, those of responses last."""
        own, structure = values[len(self.structure.observed) :], self.structure
        exposure = None
        if structure.rate is None and any(one.is_rate for one in structure.observed):
            exposure = temperature * self.exposure(values)
        parts = tuple(
            (one.of_choices, one.law, answer, temperature * natural[0].double())
            for one, answer, natural in zip(structure.responses, self.answers, own, strict=True)
        )
        return Terms(exposure, parts, len(structure.variables))


def bind_words(structure: AdmixtureStructure, data: Data) -> AdmixtureRows:
    """Read rows in double precision, without a proof."""
    stated = _read_values(structure, data)
    found = _Words(structure, len(data))
    for one in structure.observed:
        if one.choice is None:
            found.add_summed(one, stated[one.name])
    answers = list[Tensor]()
    for one in structure.responses:
        own = stated[one.name]
        answers.append(own.value if own.seen is None else torch.where(own.seen, own.value, torch.nan))
    found.add_tokens(stated, torch.cat([~one.isnan() for one in answers], 1).any(1) if answers else None)
    return replace(found.make(), answers=tuple(answers))


def _read_values(structure: AdmixtureStructure, data: Data) -> dict[str, Statement]:
    """Read the values of what is observed, some rows at a time."""
    probe, number = replace(structure.probe, data=data), len(data)
    widest = max(1, sum(len(one.cell) * one.law.width for one in structure.observed))
    parts: dict[str, list[Statement]] = {}
    rates = {one.name for one in structure.observed if one.is_rate}
    for index in torch.arange(number).split(max(1, ENTRIES // widest)):
        zeros = torch.zeros(len(index), len(structure.variables), dtype=torch.long)
        given = structure.with_shares(probe.fingerprints[0], structure.centre.expand(len(index), -1))
        for name, one in probe.read(given, zeros, index).items():
            kept = one.parameters if name in rates else one.parameters.new_zeros(len(index), 0)
            parts.setdefault(name, []).append(replace(one, parameters=kept))
    return {name: _join(every) for name, every in parts.items()}


def _join(parts: list[Statement]) -> Statement:
    seen = None if parts[0].seen is None else torch.cat([one.seen for one in parts if one.seen is not None])
    parameters, value = (torch.cat([getattr(one, name) for one in parts]) for name in ("parameters", "value"))
    return replace(parts[0], parameters=parameters, value=value, seen=seen)


class _Words:
    """The words of rows, statement by statement."""

    def __init__(self, structure: AdmixtureStructure, number: int):
        self.structure, self.number = structure, number
        self.pieces: dict[str, Pieces] = {}
        self.exposed: dict[str, Tensor] = {}
        self.offset = torch.zeros(number, dtype=torch.float64)
        self.counts: list[Tensor] = []
        self.made: list[Tensor] = []
        self.token = torch.full((number, len(structure.variables)), -1)
        self.made_of_tokens = torch.zeros(0, 1, dtype=torch.long)

    def require_values(self, one: Observed, stated: Statement) -> tuple[Tensor, Tensor]:
        """Return the values (N, E) that were seen, and which; add what else log p has to the offset."""
        value, seen = stated.value, self.find_seen(stated)
        unknown = one.law.find_unknown(value)
        if bool((unknown & seen.reshape(*seen.shape, *[1] * (unknown.ndim - 2))).any()):
            raise NotCompiled(f"'{one.name}' has further values in these rows")
        wide = seen.reshape(*seen.shape, *[1] * (value.ndim - 2))
        value = torch.where(wide, value, torch.full_like(value, one.law.inside))
        self.offset = self.offset + (one.law.base(value) * seen).sum(-1)
        return value, seen

    @staticmethod
    def find_seen(stated: Statement) -> Tensor:
        return torch.ones(stated.value.shape[:2], dtype=torch.bool) if stated.seen is None else stated.seen

    def add_summed(self, one: Observed, stated: Statement) -> None:
        """Add the words of a statement whose choices are summed out: its features, place by place."""
        value, seen = self.require_values(one, stated)
        features = one.law.features(value) * seen.unsqueeze(-1)
        if bool((features < 0).any()):
            raise NotCompiled(f"'{one.name}' has values that are no counts")
        if one.is_rate and one.usual is not None:
            times = stated.parameters[..., 0] / one.usual  # what rates are given to be multiplied by
            if not bool((times > 0).all()):
                raise NotCompiled(f"rates of '{one.name}' are 0 in some rows")
            self.offset = self.offset + (features[..., 0] * times.log()).sum(-1)
            features = torch.stack([features[..., 0], features[..., 1] * times], -1)
        by_cell = features.new_zeros(self.number, one.num_cells, features.shape[-1]).index_add(1, one.cell, features)
        if one.is_rate:
            self.exposed[one.name] = by_cell[..., 1]
            by_cell = by_cell[..., :1]
        width = by_cell.shape[-1]
        cell = torch.arange(one.num_cells).repeat_interleave(width)
        self.pieces[one.name] = Pieces(cell, features.shape[-1], torch.arange(width).repeat(one.num_cells))
        self.counts.append(by_cell.flatten(1))

    def add_tokens(self, stated: Mapping[str, Statement], answered: Tensor | None) -> None:
        """Add the words that choices decide: what the elements of each choice show together; nothing, too, in rows (N,)
        that answer by an average of all choices."""
        choosing = [one for one in self.structure.observed if one.choice is not None]
        slots = torch.zeros(len(self.structure.variables), dtype=torch.long)
        shown, kinds = [], 0
        for one in choosing:
            assert one.choice is not None
            number = self._add_pieces(one, stated[one.name])  # (N, E)
            shown.append((one.choice, torch.where(number >= 0, number + kinds, -1)))
            kinds += len(self.pieces[one.name].cell)
        places = []
        for choice, _ in shown:
            own = torch.empty_like(choice)
            for e, v in enumerate(choice.tolist()):
                own[e], slots[v] = slots[v], slots[v] + 1
            places.append(own)
        if not shown:
            return
        key = torch.full((self.number, len(slots), max(1, int(slots.max()))), -1)
        for (choice, number), place in zip(shown, places, strict=True):
            key[:, choice, place] = number
        word, token = torch.unique(key.flatten(0, 1), dim=0, return_inverse=True)
        token, nothing = token.reshape(self.number, -1), (word < 0).all(-1)
        left, used = nothing[token], ~nothing
        if answered is not None and self.structure.averages_choices:
            left, used = left & ~answered.unsqueeze(-1), torch.ones_like(nothing)
        self.token = torch.where(left, -1, (used.cumsum(0) - 1)[token])
        self.made_of_tokens = word[used]

    def _add_pieces(self, one: Observed, stated: Statement) -> Tensor:
        """Add the different values of a statement, and return which of them every element (N, E) shows."""
        _, seen = self.require_values(one, stated)
        value = stated.value.reshape(*seen.shape, -1)
        every = torch.cat([one.cell.expand_as(seen).unsqueeze(-1).to(value), value], -1)[seen]
        different, number = torch.unique(every, dim=0, return_inverse=True)
        own = different[:, 1:].reshape(-1, *stated.value.shape[2:])
        self.pieces[one.name] = Pieces.of(one, different[:, 0].long(), own)
        return torch.full(seen.shape, -1).masked_scatter(seen, number)

    def make(self) -> AdmixtureRows:
        """Put the words of all statements side by side."""
        observed, starts, start = self.structure.observed, dict[str, int](), 0
        for one in observed:
            starts[one.name], start = start, start + len(self.pieces[one.name].cell)
        made, summed = [], [one for one in observed if one.choice is None]
        for one in summed:
            made.append((starts[one.name] + torch.arange(len(self.pieces[one.name].cell))).unsqueeze(-1))
        counts, before = list(self.counts), sum(len(one) for one in made)
        if len(summed) < len(observed):
            # Pieces of tokens are numbered among themselves so far.
            place = [
                starts[o.name] + torch.arange(len(self.pieces[o.name].cell)) for o in observed if o.choice is not None
            ]
            place = torch.cat([*place, torch.full((1,), -1)])
            made.append(place[self.made_of_tokens])
            size = len(self.made_of_tokens)
            tokens = torch.zeros(self.number, size + 1, dtype=torch.float64)
            tokens.scatter_add_(1, torch.where(self.token < 0, size, self.token), torch.ones(self.token.shape).double())
            counts.append(tokens[:, :size])
        widest = max(one.shape[1] for one in made)
        made = [torch.nn.functional.pad(one, (0, widest - one.shape[1]), value=-1) for one in made]
        token = torch.where(self.token < 0, self.token, self.token + before)
        exposed = tuple(self.exposed.get(one.name) for one in observed)
        pieces = tuple(self.pieces[one.name] for one in observed)
        every = sparse.from_dense(torch.cat(counts, 1))
        return AdmixtureRows(self.structure, every, pieces, torch.cat(made), exposed, self.offset, token)


def find_owners(structure: AdmixtureStructure) -> Tensor | None:
    """Return the component (entries,) that every entry of the globals is a rate of; None where some are no rates, or
    rates of several components."""
    total = sum(torch.Size(shape).numel() for shape in structure.entries.shapes.values())
    owner = torch.full((max(total, 1),), -1)
    for one in structure.observed:
        source: Any = one.block.sources[0]
        if not (one.is_rate and source.of_entries and bool((source.slope > 0).all())):
            return None
        index = source.index[0, ..., 0]
        component = torch.arange(structure.size)[:, None].expand_as(index)
        if bool(((owner[index] >= 0) & (owner[index] != component)).any()):
            return None
        owner[index] = component
        if not torch.equal(owner[index], component):
            return None
    return owner if bool((owner >= 0).all()) else None
