"""What the expected features of factors say of the entries of globals, and which parts entries play.

A law whose parameter is an entry, or a sum on a scale on which its parts are hidden causes, gives counts for a mode in
closed form:

    chance       on log v + off log(1 - v)           probabilities; of products of failures (noisy OR, noisy AND) after
                                                     the expected numbers of causes that failed or not
    proportion   count log v                         points of simplexes
    rate         events log v - exposure v           rates; of sums of rates after the expected shares of events
    place        -precision (v - pull / precision)^2 / 2    means of normals; of linear predictors jointly ("linear")
    spread       -number log v - squares / (2 v^2)   standard deviations of normals
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from custom_inference.compiled.blocks import Block
from custom_inference.compiled.laws import Said
from custom_inference.compiled.sources import Entries, Sums
from ppl_models import Model


def parts_in(block: Block, model: Model, entries: Entries) -> Iterator[tuple[str, str]]:
    """Yield (site, part) of all entries in a block: "mixed" where there is no closed form."""
    for name, source in zip(block.law.names, block.sources, strict=True):
        for site in source.sites:
            yield site, source.part_of(block.law.kinds.get(name, ""), site, model.supports[site], entries)


#: Rates are kept above this.
LEAST = 1e-9
#: Standard deviations are, whose squares are divided by.
TINY = 1e-140
#: The least standard deviation of a normal, as a part of that of the data: a row that explains itself gains no more.
NARROW = 1e-3
#: The variance of what does not vary but by rounding, as a part of the square of its mean.
_CONSTANT = 1e-12


def find_spread(squares: Tensor, sums: Tensor, number: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sums of squares of values about their means, from those about 0, and how many values there are."""
    mean = (sums / number).nan_to_num(0.0).square()
    spread = (squares / number).nan_to_num(0.0) - mean
    # Of a constant, by its size: below, a mean is not known in single precision.
    spread = torch.where(spread > _CONSTANT * mean, spread, (1e-6 * mean).clamp(min=1e-6))
    return spread * number, number


def find_least(blocks: Sequence[Block], statistics: Sequence[Tensor], flat: Tensor) -> Tensor:
    """Find the least standard deviations that normals may have, (entries,), by the spread of what each is of."""
    total = {"squares": torch.zeros_like(flat), "number": torch.zeros_like(flat)}
    for block, counted in zip(blocks, statistics, strict=True):
        if block.law.kinds.get("scale") == "spread":
            counted = counted[..., :3]
            every = counted.sum(1, keepdim=True)  # of each element, whatever the latents are
            if float(every[..., 2].max()) < 1.5:  # as many elements as rows
                every = every.sum(2, keepdim=True)
            squares, number = find_spread(*every.unbind(-1))
            spread = (squares / number).nan_to_num(0.0)
            said = "spread", (counted[..., 2] * spread, counted[..., 2])
            block.sources[1].count(said, flat, flat, total)
    return (NARROW * (total["squares"] / total["number"]).nan_to_num(0.0).sqrt()).clamp(min=TINY)


@dataclass(frozen=True)
class Predictors:
    """The means of normals of a block as linear predictors of the entries that are solved for.

    matrix: (M, L) the slopes in these. shift: (M,), and others: places, entries and slopes of entries that are held.
    """

    matrix: Tensor
    shift: Tensor
    others: tuple[Tensor, Tensor, Tensor]

    @classmethod
    def of(cls, sums: Sums, column: Tensor, size: int) -> Predictors:
        """Make them of sums of entries. column: (entries,) which unknown each entry is, -1 of those that are held."""
        shift, place, entry, slope, *_ = sums
        learned = column[entry] >= 0
        matrix = torch.zeros(len(shift), size, dtype=torch.float64)
        matrix.index_put_((place[learned], column[entry[learned]]), slope[learned].double(), accumulate=True)
        return cls(matrix, shift, (place[~learned], entry[~learned], slope[~learned]))

    def equations(self, said: Said, flat: Tensor) -> tuple[Tensor, Tensor]:
        """Return the matrix (L, L) and the right-hand side (L,) of the entries' system."""
        sums, number, precision = said[1]
        place, entry, slope = self.others
        held = self.shift.index_add(0, place, slope * flat[entry]) if len(place) else self.shift
        weight = (precision * number).reshape(-1)
        pull = (precision * sums).reshape(-1) - weight * held
        weighted = self.matrix * weight.double().unsqueeze(-1)
        return self.matrix.T @ weighted, self.matrix.T @ pull.double()
