"""The proof that the factors of a program are the program, made whenever rows are bound to them."""

from __future__ import annotations

import hashlib
import zlib

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from custom_inference.compiled.reading import NotCompiled
from custom_inference.compiled.structure import WIDEST, Bound, Structure
from custom_inference.core.programs.density import RowDensity
from ppl_models import Data

#: Values of all latents on which factors are proved to be the program, at most: even ones, and random ones; by how much
#: they may differ; and rows, at most.
_DIFFERENT, _DRAWN, _DIFFER, _PROVED = 8, 2, 1e-7, 4096
#: Log-probabilities below are those of what cannot be.
_IMPOSSIBLE = -1e20


def bind(structure: Structure, data: Data, *, sums: bool = True) -> Bound:
    """Read rows: the features of what was observed, and the parameters that differ between rows; and prove the factors
    in every one of these rows, which may be other than those that were probed.

    sums: whether sums over the latents are asked for, which may be too wide.

    Raises NotCompiled where a statement of these rows is not as it was in the rows that were probed.
    """
    found = _bind(structure, data)
    if sums and found.plan.width > WIDEST:
        width = f"its sum goes through {found.plan.width:.3g} values of a row at once, of at most {WIDEST}"
        raise NotCompiled(f"{type(structure.model).__name__} is not compiled: {width}")
    return found


def _bind(structure: Structure, data: Data) -> Bound:
    data = data.to(dtype=torch.float64)
    own = _digests(data)
    content = hashlib.sha256(own.tobytes()).digest()
    if content in structure.kept:
        return structure.kept[content]
    try:
        found = structure.read_rows(data)
        new = torch.from_numpy(~_are_among(own, structure.proved))
        if bool(new.any()):
            every = bool(new.all())
            prove(found if every else found.select(new), data if every else data.rows(new.nonzero()[:, 0]))
            _add(own, structure.proved)
    except NotCompiled as reason:
        if not structure.proved:
            structure.refused = str(reason)
        raise NotCompiled(f"{type(structure.model).__name__} is not compiled: {reason}") from None
    _keep(structure, content, found)
    return found


def _are_among(digests: NDArray[np.uint64], known: list[NDArray[np.uint64]]) -> NDArray[np.bool_]:
    """Tell which digests are in one of several arrays in order."""
    found = np.zeros(len(digests), dtype=bool)
    for one in known:
        found |= one[np.searchsorted(one, digests).clip(max=len(one) - 1)] == digests
    return found


def _add(digests: NDArray[np.uint64], known: list[NDArray[np.uint64]]) -> None:
    """Add digests to arrays in order, of which each is more than twice as long as the next."""
    known.append(np.sort(digests))
    while len(known) > 1 and len(known[-2]) <= 2 * len(known[-1]):
        last = known.pop()
        known[-1] = np.sort(np.concatenate([known[-1], last]), kind="stable")


def _keep(structure: Structure, content: bytes, rows: Bound) -> None:
    """Keep rows for the next pass, as far as there is room."""
    if structure.room >= rows.size:
        structure.room -= rows.size
        structure.kept[content] = rows


def choose_rows(data: Data, most: int) -> Tensor:
    """Numbers of some rows that differ in what they are given, the first of each, with others."""
    number, given = len(data), [one.reshape(len(data), -1) for one in data.others.values()]
    rows = torch.linspace(0, number - 1, min(number, most)).long()
    if given:
        _, place = torch.unique(torch.cat([one.double() for one in given], 1), dim=0, return_inverse=True)
        first = torch.full((int(place.max()) + 1,), number).scatter_reduce(0, place, torch.arange(number), "amin")
        rows = torch.cat([first[:: max(1, len(first) // most)], rows])
    return torch.unique(rows)


def _digests(data: Data) -> NDArray[np.uint64]:
    """A digest (N,) of all that each row is given, and of what it is called."""
    dense = data.x if data.x.layout == torch.strided else data.x.to_dense()
    given = {name: one for name, one in {"x": dense, "mask": data.mask, **data.others}.items() if one is not None}
    flat = [one.detach().cpu().double().reshape(len(data), -1) for one in given.values()]
    bits = np.ascontiguousarray(torch.cat(flat, 1).numpy()).view(np.uint64)
    called = zlib.crc32(repr([(name, tuple(one.shape[1:])) for name, one in given.items()]).encode())
    drawn = np.random.default_rng(called).integers(2**63, size=bits.shape[1], dtype=np.uint64)
    mixed = (bits ^ (bits >> np.uint64(29))) * (drawn * np.uint64(2) + np.uint64(1))  # by odd numbers
    return (mixed ^ (mixed >> np.uint64(32))).sum(1, dtype=np.uint64)


def prove(bound: Bound, data: Data) -> None:
    """Compare the factors of rows with the program's own log joint, row by row, at random globals and at values of the
    latents that reach all of each: what one row alone has is not in others, where structure is looked for. Of very many
    rows some are, among them all that differ in what they are given, as far as these are not too many.

    Raises NotCompiled where they differ.
    """
    structure = bound.structure
    probe, variables = structure.probe, structure.variables
    rows = choose_rows(data, _PROVED)
    if len(rows) < len(data):
        bound, data = bound.select(rows), data.rows(rows)
    sizes = torch.tensor(variables.sizes)
    number = max((len(one) for one in variables.options), default=1)
    for attempt in range(min(number, _DIFFERENT) + _DRAWN):
        params = probe.draw_globals()
        if attempt < min(number, _DIFFERENT):  # the first, the last, and those between
            part = attempt / max(min(number, _DIFFERENT) - 1, 1)
            chosen = (part * (sizes - 1)).round().long().expand(len(data), -1)
        else:
            noise = torch.rand(len(data), len(sizes), generator=probe.generator, dtype=torch.float64)
            chosen = (noise * sizes).long()
        density = RowDensity(structure.model, params, data, variables.layout, variables.plates)
        with torch.no_grad():
            expected = density(variables.codes(chosen, data.x)[None])[0]
            found = bound.log_joint(structure.entries.flatten(params), chosen)
        possible = expected > _IMPOSSIBLE
        apart = possible & ~((found - expected).abs() <= _DIFFER * (1 + expected.abs()))
        apart |= ~possible & ~(found <= _IMPOSSIBLE)
        if bool(apart.any()):
            n = int(apart.nonzero()[0])
            raise NotCompiled(
                f"its factors give log p(x, latents) = {float(found[n]):.6g} in row {int(rows[n])}, the program "
                f"{float(expected[n]):.6g}"
            )
