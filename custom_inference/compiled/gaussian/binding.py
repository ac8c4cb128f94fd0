"""Rows of a program with Gaussian latents, read by its structure, which is proved in them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from custom_inference.compiled.blocks import Block
from custom_inference.compiled.gaussian.rows import GaussianRows, Read
from custom_inference.compiled.gaussian.structure import (
    AffineGroup,
    GaussianStructure,
    gaussian_structure_of,
    make_blocks,
)
from custom_inference.compiled.reading import NotCompiled, read_codes
from custom_inference.core.programs.density import RowDensity
from ppl_models import Data, Model

#: Numbers of a run of the program, and moments of the cells of what differs between rows, at most.
_RUN, _MOMENTS = 2**23, 2**26
#: Random latents and globals at which the structure is proved, more of them for so many values of finite latents, how
#: far apart real ones are drawn, and by how much log p may differ.
_PROVED, _VALUES, _APART, _DIFFER = 2, 8, (1.0, 8.0), 1e-7
#: Log-probabilities below are those of what cannot be.
_IMPOSSIBLE = -1e20


def bind_gaussian(model: Model, data: Data) -> GaussianRows:
    """Read rows, and prove the structure in them. Raises NotCompiled where it is not that of the program."""
    dense = data.to(dtype=torch.float64, device="cpu")
    structure = gaussian_structure_of(model, dense)
    try:
        with torch.no_grad():
            found = _read(structure, dense)
            content = hashlib.sha256(_content_of(dense)).digest()
            if content not in structure.proved:
                _prove(found, dense)
                structure.proved.add(content)
    except NotCompiled as reason:
        if not structure.proved:
            structure.refused = str(reason)
        raise NotCompiled(f"{type(model).__name__} is not compiled: {reason}") from None
    return found.to(data.x.dtype)


def _content_of(data: Data) -> bytes:
    """Return all that rows are given, as bytes."""
    given = {"x": data.x, "mask": data.mask, **data.others}
    parts = [(name, one.detach().cpu().contiguous()) for name, one in given.items() if one is not None]
    return b"".join(f"{name}{tuple(one.shape)}".encode() + one.numpy().tobytes() for name, one in parts)


def _read(structure: GaussianStructure, data: Data) -> GaussianRows:
    first, params = structure.codes[:1].expand(len(data), -1), structure.probe.fingerprints[0]
    stated = read_codes(structure.model, data, params, structure.layout, structure.plates, first)
    blocks, parts, cells = list(structure.blocks), list[Read](), [0] * len(structure.blocks)
    varying = _read_varying(structure, data) if structure.varying else []
    blocks += [block for block, _, _ in varying]
    cells += [number for _, _, number in varying]
    for place, block in enumerate(blocks):
        values, masks = list[Tensor](), list[Tensor]()
        for name, elements in block.elements:
            value, seen = stated[name].value[:, elements], stated[name].seen
            if name in structure.layout.names:
                if seen is not None and not bool(seen.all()):
                    raise NotCompiled(f"'{name}' is masked")
                value, seen = torch.zeros_like(value), None
            own = torch.ones_like(value, dtype=torch.bool) if seen is None else seen[:, elements]
            values.append(torch.where(own, value, torch.zeros_like(value)))
            masks.append(own)
        x, every = torch.stack(values, 1), torch.stack(masks, 1)
        own_cells = varying[place - len(structure.blocks)][1] if cells[place] else None
        parts.append(Read(x, None if bool(every.all()) else every, own_cells))
    finite, kinds = (
        None if structure.finite is None else structure.finite.read_rows(data),
        _find_kinds(parts, len(data)),
    )
    return GaussianRows(structure, tuple(blocks), tuple(parts), tuple(cells), kinds, data.x, finite)


def _find_kinds(parts: Sequence[Read], number: int) -> Tensor:
    """Return a number (N,) that rows share which see the same entries and have the same coefficients."""
    generator, kinds = torch.Generator().manual_seed(0), torch.zeros(number, dtype=torch.long)
    for part in parts:
        for one in (part.seen, part.cells):
            if one is not None:
                flat = one.reshape(number, -1).long()
                drawn = torch.randint(-(2**62), 2**62, (flat.shape[1],), generator=generator)
                kinds = kinds + (flat * drawn).sum(1)
    return kinds


def _read_varying(structure: GaussianStructure, data: Data) -> list[tuple[Block, Tensor, int]]:
    """The blocks of the groups whose parameters differ between rows, the cells (N, E) of their elements, and how many
    cells there are."""
    groups, wide = structure.varying, sum(len(group.elements) for group in structure.varying)
    values = len(structure.codes)
    rows = max(1, _RUN // (values * (1 + structure.size) * (wide + structure.size)))
    read = [list[Tensor]() for _ in groups]
    for index in torch.arange(len(data)).split(rows):
        runs = structure.run_on(data.rows(index))
        stated = [runs(flat) for flat in structure.flats]
        for own, group in zip(read, groups, strict=True):
            columns = [0, *(1 + v for v in group.parents)]
            each = [one[group.statement] for one in stated]
            laws = [one.coefficient[:, :, group.elements][..., columns] for one in each]
            laws += [one.scale[:, :, group.elements].unsqueeze(-1) for one in each]
            own.append(torch.cat(laws, -1).movedim(0, -2).flatten(-2))
    found = []
    for own, group in zip(read, groups, strict=True):
        every = torch.cat(own)  # (N, E, ...)
        distinct, cell = torch.unique(every.flatten(0, 1), dim=0, return_inverse=True)
        number, many = len(distinct), len(group.elements)
        if number * values * float(len(group.parents) + 2) ** 2 > _MOMENTS:
            raise NotCompiled(f"'{group.statement}' has {number} laws of different coefficients, which are too many")
        first = torch.full((number,), len(cell)).scatter_reduce(0, cell, torch.arange(len(cell)), "amin")
        found.append((_block_of(structure, group, data, first, many), cell.reshape(len(data), many), number))
    return found


def _block_of(structure: GaussianStructure, group: AffineGroup, data: Data, cells: Tensor, many: int) -> Block:
    """Make the block of cells, numbered by (row, element), in rows that differ."""
    rows, place = torch.unique(cells // many, return_inverse=True)
    runs = structure.run_on(data.rows(rows))
    return make_blocks(structure, [group], runs, [place], [group.elements[cells % many]])[0]


def _prove(rows: GaussianRows, data: Data) -> None:
    """Compare the structure with the program's own log joint, row by row, at random globals and real latents, beside
    several values of the finite ones.

    Raises NotCompiled where they differ.
    """
    structure = rows.structure
    probe, codes = structure.probe, structure.codes
    for number in range(_PROVED + min(len(codes) - 1, _VALUES)):
        params = probe.draw_globals()
        noise = torch.randn(len(rows), structure.size, generator=probe.generator, dtype=torch.float64)
        latents, value = _APART[number % len(_APART)] * noise, (torch.arange(len(rows)) + number) % len(codes)
        code = codes[value] + latents @ structure.units
        expected = RowDensity(structure.model, params, data, structure.layout, structure.plates)(code[None])[0]
        found = rows.log_joint(structure.entries.flatten(params), value, latents)
        possible = expected > _IMPOSSIBLE
        apart = possible & ~((found - expected).abs() <= _DIFFER * (1 + expected.abs()))
        apart |= ~possible & ~(found <= _IMPOSSIBLE)
        if bool(apart.any()):
            n = int(apart.nonzero()[0])
            raise NotCompiled(
                f"its normal laws give log p(x, latents) = {float(found[n]):.6g} in row {n}, the program "
                f"{float(expected[n]):.6g}"
            )
