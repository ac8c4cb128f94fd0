"""The globals and the real numbers that stand for the latents of all rows as one vector, where these can be integrated
out neither in closed form nor soon enough by quadrature."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from custom_inference.checks.evidence.coordinates import Globals
from custom_inference.checks.evidence.likelihood import ENTRIES, Target, require_priors
from custom_inference.core.isolation import seed_of, torch_seeded
from custom_inference.core.latent_values import is_own_of_rows
from custom_inference.core.programs.density import RowDensity
from custom_inference.core.programs.reference import best_reference
from custom_inference.core.programs.statements import learning, run
from custom_inference.core.registry import engines_of
from ppl_models import Data, Model, ModelError
from ppl_models.core.hierarchy import typical_values


@dataclass(frozen=True)
class Joint(Globals):
    """The unknown globals, and behind them the real numbers of the latents of N rows, (N R,)."""

    density: RowDensity

    def draw(self, count: int, seed: int) -> Tensor:
        """Draw all from the program's prior, (count, d)."""
        u, parts, layout = super().draw(count, seed), [], self.density.layout
        with torch_seeded(seed_of(seed, "locals")):
            for number, one in enumerate(u):
                torch.default_generator.manual_seed(seed_of(seed, "locals", number))
                density = self.density.at(self.evaluate(one)[0])
                nodes = run(density.model, density.data, density.params)
                values = {name: nodes[name]["value"].expand(nodes[name]["fn"].shape()) for name in layout.names}
                parts.append(density.unconstrain(layout.encode(values, density.like)).flatten())
        return torch.cat([u, torch.stack(parts)], 1)

    def evaluate_all(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log prior density of all at u (d,), and log p(x | all), both ()."""
        values, prior = self.evaluate(u[: self.size])
        layout, density = self.density.layout, self.density.at(values)
        reals = u[self.size :].reshape(1, len(density), layout.num_reals)
        code, volume = density.constrain(reals.new_zeros(1, len(density), layout.width), reals)
        of_latents, of_rows = density.split(code)
        return prior + (of_latents + volume).sum(), of_rows.sum()


@dataclass
class JointTarget(Target):
    """The prior and the likelihood of globals and latents."""

    globals: Joint

    def _one(self, u: Tensor) -> tuple[Tensor, Tensor]:
        with learning():
            return self.globals.evaluate_all(u)


def joint_target_of(model: Model, data: Data) -> JointTarget | None:
    """Return the prior and the likelihood of globals and latents together; None of models whose latents are summed or
    integrated out in closed form, or are not all real numbers.

    Raises PriorError for a prior that is improper.
    """
    known = best_reference(model) == "enumeration" if is_own_of_rows(model) else "exact" in engines_of(model)
    if known or not (model.rows_are_independent and model.row_latents):
        return None
    globals_, data = Globals.of(model, data), model.as_read(data).dense()
    start = {site: value.to(data.x) for site, value in typical_values(model).items()}
    try:
        density = RowDensity.of(model, start, data)
    except (NotImplementedError, ModelError):
        return None
    if density.layout.finite:
        return None
    require_priors(model, start, data)
    joint = Joint(**vars(globals_), density=density)
    return JointTarget(joint, _not_known, max(1, ENTRIES // data.x.numel()))


def _not_known(values: Mapping[str, Tensor]) -> Tensor:
    raise NotImplementedError("log p(x | globals) by itself")
