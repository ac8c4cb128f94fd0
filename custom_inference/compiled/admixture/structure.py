"""The structure of programs whose rows have shares of their own: topics of documents, aspects of answers, activations
of rates.

A row n has a latent theta_n that is Dirichlet (of two also as the Beta of the second), or a vector of Gammas, and what
is observed of it comes from K components in these proportions. Either the program draws a choice z among the components
for every token and looks up by it

    z_nl ~ Cat(theta_n),   x_nl ~ f(parameters of component z_nl),

or it states the sum over the choices: probabilities sum_k theta_nk p_k of categories, counts or bits, or Poisson rates
sum_k theta_nk r_k. Responses are normal about averages of the components' numbers (``responses``).
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from custom_inference.compiled.admixture.responses import Response
from custom_inference.compiled.blocks import Block
from custom_inference.compiled.laws import Law, PoissonLaw
from custom_inference.compiled.probes import Probe
from custom_inference.compiled.reading import Variables
from custom_inference.compiled.sources import Entries
from custom_inference.compiled.steps import Steps
from custom_inference.core.programs.latents import Latent, Layout
from ppl_models import Model


@dataclass(frozen=True)
class Observed:
    """A statement of what is observed.

    cell: (E,) which place of the block each element has; elements with the same parameters share one. choice: (E,)
    which choice each looks up by; None: the choices are summed out. usual: (E,) rates in the row that was probed, at
    one point: those of others may be known multiples of them.
    """

    name: str
    law: Law
    block: Block
    cell: Tensor
    choice: Tensor | None
    usual: Tensor | None = None

    @property
    def num_cells(self) -> int:
        """How many places there are."""
        return int(self.cell.max()) + 1

    @property
    def is_rate(self) -> bool:
        """Whether it is a Poisson rate that adds up over the components."""
        return self.choice is None and type(self.law) is PoissonLaw


@dataclass(frozen=True)
class AdmixtureStructure:
    """What a program of shares is made of.

    layout: of all latents. latent: theta. variables: the choices. shape: (K,) concentrations of theta, or shapes with
    rate (K,). beta: whether theta is stated as its second entry. responses: what depends on averages of components'
    numbers. steps: the M steps of models, by the type of numbers.
    """

    model: Model
    layout: Layout
    latent: Latent
    variables: Variables
    entries: Entries
    shape: Tensor
    rate: Tensor | None
    observed: tuple[Observed, ...]
    probe: Probe = field(repr=False)
    beta: bool = False
    responses: tuple[Response, ...] = ()
    steps: dict[torch.dtype, weakref.WeakKeyDictionary[Model, Steps]] = field(default_factory=dict, repr=False)

    @property
    def size(self) -> int:
        """How many components there are."""
        return len(self.shape)

    @property
    def centre(self) -> Tensor:
        """A point (1, K) that theta may be at."""
        return torch.full((1, self.size), 1 / self.size, dtype=torch.float64)

    def with_shares(self, params: Mapping[str, Tensor], share: Tensor) -> dict[str, Tensor]:
        """Return globals and the latent of rows, (B, K), as a run of the program is given them."""
        return {**params, self.latent.name: self.latent.decode(self.encode(share))}

    def encode(self, share: Tensor) -> Tensor:
        """Return the codes (..., w) that the latent has at theta (..., K)."""
        return share[..., 1:] if self.beta else share

    @property
    def has_terms(self) -> bool:
        """Whether log p has terms in shares, or in averages of choices, beside its words."""
        return bool(self.responses) or (self.rate is None and any(one.is_rate for one in self.observed))

    @property
    def averages_choices(self) -> bool:
        """Whether responses depend on all choices of a row."""
        return any(one.of_choices for one in self.responses)

    def code_of(self, share: Tensor, chosen: Tensor) -> Tensor:
        """Return the codes (N, W) of all latents, from theta (N, K) and numbers of the choices' values (N, V)."""
        finite = self.variables.codes(chosen, share)
        parts, own = [], self.variables.layout.slices
        for latent in self.layout:
            own_part = latent.name == self.latent.name
            parts.append(self.encode(share) if own_part else finite[:, own[latent.name]])
        return torch.cat(parts, 1)

    def profile(self, values: Mapping[str, Tensor]) -> Tensor:
        """Return all parameters of every component, (K, M)."""
        flat = self.entries.flatten({site: value.double() for site, value in values.items()})
        blocks = [one.block.parameters(flat)[0].flatten(1) for one in self.observed]
        return torch.cat([*blocks, *(one.block.parameters(flat)[0, 0, :, :-1].T for one in self.responses)], 1)

    def steps_of(self, model: Model, like: Tensor) -> Steps:
        """Return the M step of a model with this structure, found once."""
        known = self.steps.setdefault(like.dtype, weakref.WeakKeyDictionary())
        if model not in known:
            own = copy.copy(model)  # the model itself would be held for ever
            known[model] = Steps.of(
                own, self.entries, [one.block.to(like) for one in (*self.observed, *self.responses)]
            )
        return known[model]
