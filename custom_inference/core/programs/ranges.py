"""Which values the whole numbers among a row's latents have where a bound depends on other values: all that are
possible in any row, asked of the program at the values of the latents before them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from custom_inference.core.isolation import torch_seeded
from custom_inference.core.programs.density import RowDensity
from custom_inference.core.programs.statements import run
from custom_inference.core.programs.supports import ends_of
from ppl_models import Data, Model, ModelError

#: Values of other latents at which bounds are asked, at most, and runs that real numbers are taken from.
_ASKED, _RUNS = 4096, 3
#: What to write in place of a real number whose bounds depend on other values.
INSTEAD = "state a latent within constraints.unit_interval in its place, and compute low + (high - low) * latent"


def cover(density: RowDensity) -> RowDensity:
    """Give the density with all values that whole numbers have whose bounds depend on other values, in any row.

    Raises ModelError for bounds that depend on real numbers: then the values have no end that could be known.
    """
    sites = density.model.sites
    names = [
        latent.name
        for latent in density.layout.moving
        if latent.transform is None and None in ends_of(sites[latent.name].support)
    ]
    if not names:
        return density
    draws = [density.draw(seed) for seed in range(_RUNS if density.layout.continuous else 1)]
    for _ in range(len(names) + 1):
        asked = [_ask(density, code) for code in draws]
        if any(one != asked[0] for one in asked):
            reals = ", ".join(f"'{latent.name}'" for latent in density.layout.continuous)
            raise ModelError(
                f"what values {name_all(names)} of {type(density.model).__name__} may have depends on {reals}: declare "
                "them with their bounds, such as Site(..., support=constraints.integer_interval(0, 50))"
            )
        ranges = {name: asked[0][name] for name in names}
        held = {one.name: one.options for one in density.layout.finite if one.options is not None}
        if all((held[name][0], held[name][-1]) == pair for name, pair in ranges.items()):
            break
        density = replace(density, layout=density.layout.in_range(ranges))
    return density


def name_all(names: Iterable[str]) -> str:
    """The names in quotation marks."""
    return ", ".join(f"'{name}'" for name in names)


def _ask(density: RowDensity, drawn: Tensor) -> dict[str, tuple[int, int]]:
    """Latent -> its least and largest value in any row at all values of the finite latents, or at many of them; real
    numbers as they were drawn, and what has no bound as far as the layout has it."""
    layout = density.layout
    codes = layout.configurations(density.like) if layout.num_configurations <= _ASKED else _vary(density)
    every = codes[:, None].repeat(1, len(density), 1)
    for latent in layout.continuous:
        every[..., layout.slices[latent.name]] = drawn[:, layout.slices[latent.name]]
    with torch.no_grad():
        ends = density.ask_ranges(every).unflatten(1, (-1, 2))  # (M, L, 2, N)
    low, high = ends[:, :, 0].amin((0, 2)), ends[:, :, 1].amax((0, 2))
    found = {}
    for number, latent in enumerate(one for one in layout.moving if one.transform is None):
        assert latent.options is not None
        own = latent.options[[0, -1], 0]
        found[latent.name] = tuple(
            int(new) if math.isfinite(new) else int(old)
            for new, old in zip((float(low[number]), float(high[number])), own.tolist(), strict=True)
        )
    return found


def _vary(density: RowDensity) -> Tensor:
    """Codes (C, W): every latent with all of its elements at its least, its largest or random values."""
    layout, generator = density.layout, torch.Generator().manual_seed(0)
    codes = density.like.new_zeros(_ASKED, layout.width)
    for latent in layout.finite:
        assert latent.options is not None
        last = len(latent.options) - 1
        how = torch.randint(3, (_ASKED, 1), generator=generator)
        how[:2] = torch.tensor([[0], [1]])
        place = torch.randint(last + 1, (_ASKED, latent.elements), generator=generator)
        place = torch.where(how == 0, 0, torch.where(how == 1, last, place))
        codes[:, layout.slices[latent.name]] = latent.options.to(codes)[place.to(codes.device)].flatten(1)
    return codes


def require_still(model: Model, program: Callable[..., Any], data: Data, doer: str) -> None:
    """Refuse a program that draws a real number within bounds that depend on its globals or on other latents, for what
    takes coordinates of it from one run of the program. Raises ModelError, which names the latent."""
    found: list[dict[str, list[Tensor]]] = []
    with torch.no_grad(), torch_seeded(0):
        for number in range(2):
            torch.default_generator.manual_seed(number)  # a run puts the state of random numbers back
            nodes = run(program, data)
            laws = {name: nodes[name]["fn"] for name in model.sites_of("latent") if name in nodes}
            real = {name: ends_of(law.support) for name, law in laws.items() if not law.support.is_discrete}
            found.append(
                {name: [torch.as_tensor(end) for end in ends if end is not None] for name, ends in real.items()}
            )
    for name, ends in found[0].items():
        if not all(torch.equal(one, other) for one, other in zip(ends, found[1][name], strict=True)):
            raise ModelError(
                f"{doer} holds '{name}' of {type(model).__name__} within the bounds of one run of the program, and "
                f"these depend on its other values; {INSTEAD}"
            )
