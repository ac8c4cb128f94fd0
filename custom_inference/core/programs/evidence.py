"""log p(x_n | globals) of rows as a function of the globals: by the factors of a compiled program, by the sum over all
values of finite latents together, or by quadrature. Gradients flow to the globals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from custom_inference.compiled.derive import structure_if_known, structure_of
from custom_inference.compiled.gaussian.binding import bind_gaussian
from custom_inference.compiled.gaussian.rows import GaussianRows
from custom_inference.compiled.gaussian.structure import may_be_gaussian
from custom_inference.compiled.proof import bind
from custom_inference.compiled.reading import NotCompiled
from custom_inference.compiled.structure import Bound, flatten
from custom_inference.core.programs.density import RowDensity
from custom_inference.core.programs.quadrature import integrate
from custom_inference.core.programs.windows import is_settled, require_room, settle
from ppl_models import Data, Model


class Table(NamedTuple):
    """codes (C, W) of all values, and log p(x_n, value | globals) of each, (N, C); density: whose layout lists them."""

    codes: Tensor
    log_joint: Tensor
    density: RowDensity


def enumerate_table(density: RowDensity, *, looks: bool = True) -> Table:
    """Enumerate all values of finite latents with their log joint. Gradients flow to the globals.

    looks: whether it is asked which values there are; otherwise only where those of the layout do not do.

    Raises CapacityError where there are too many, and MethodError where there is no end of them.
    """
    density = settle(density) if looks else density
    require_room(density)
    codes = density.layout.configurations(density.like)
    log_joint = density(codes[:, None].expand(-1, len(density), -1)).T
    if not looks and not is_settled(density, codes, log_joint):
        return enumerate_table(density)
    return Table(codes, log_joint, density)


#: Globals -> log p(x_n | globals), (N,).
RowEvidence = Callable[[Mapping[str, Tensor]], Tensor]


def bind_rows(density: RowDensity, *, sums: bool = True) -> Bound | None:
    """Return the rows as the compiled program reads them; None where it is not compiled, as with real latents, or where
    ``sums`` over its latents are asked for and too wide."""
    layout, like = density.layout, density.like
    if layout.num_reals or not layout.latents or like.device.type != "cpu":
        return None
    try:
        with torch.no_grad():
            return bind(structure_of(density.model, density.data), density.data, sums=sums).to(like.dtype)
    except NotCompiled:
        return None


def bind_gaussian_rows(density: RowDensity) -> GaussianRows | None:
    """Return the rows as a program of Gaussian latents reads them; None of other programs."""
    if not density.layout.num_reals or density.like.device.type != "cpu" or not may_be_gaussian(density.model):
        return None
    try:
        return bind_gaussian(density.model, density.data)
    except NotCompiled:
        return None


def bind_to_sum(density: RowDensity) -> Bound | GaussianRows | None:
    """Return the rows as the compiled program reads them, whose latents it sums or integrates out; None where it is not
    compiled."""
    bound = bind_rows(density)
    return bind_gaussian_rows(density) if bound is None else bound


def sum_of(bound: Bound | GaussianRows, params: Mapping[str, Tensor]) -> Tensor:
    """Compute log p(x_n | globals), (N,), of the rows of a compiled program."""
    return bound.log_evidence(flatten(bound, params)).expand(len(bound))


def row_evidence(density: RowDensity) -> RowEvidence:
    """Return log p(x_n | globals), (N,), as a function of the globals, for many evaluations: the program is compiled
    once, and rows are read once."""
    if not density.layout.latents:
        return lambda params: density.at(params)(density.like.new_zeros(1, len(density), 0))[0]
    bound = bind_to_sum(density)
    if bound is not None:
        return lambda params: sum_of(bound, params)
    if density.layout.num_reals:
        return lambda params: integrate(settle(density.at(params))).log_evidence
    return lambda params: enumerate_table(density.at(params)).log_joint.logsumexp(-1)


def find_width(model: Model, data: Data | None = None) -> float | None:
    """Find how many values of a row the sum of a compiled program goes through at once, at most; None of one that is
    not compiled.

    data: rows on which the program is compiled if it was not yet; without, None of what was not.
    """
    structure = structure_if_known(model)
    if structure is None and data is not None and not model.has_continuous_locals and data.x.device.type == "cpu":
        try:
            with torch.no_grad():
                dense = model.as_read(data).dense()
                structure = bind(structure_of(model, dense), dense).structure
        except NotCompiled:
            return None
    return None if structure is None else structure.width
