"""The structure of programs whose rows have shares of their own, read off runs: topics of documents, aspects of
answers, activations of rates.

A row n has a latent theta_n that is Dirichlet, or a vector of Gammas, and what is observed of it comes from K
components in these proportions. Either the program draws a choice z among the components for every token and looks up
by it

    z_nl ~ Cat(theta_n),   x_nl ~ f(parameters of component z_nl),

or it states the sum over the choices: probabilities sum_k theta_nk p_k of categories, counts or bits, or Poisson rates
sum_k theta_nk r_k. Both are found the same way: choices are flipped, those with a bit in their number at once, which
tells which of them an element looks up by; and the program is run with all choices at component k and theta_n the k-th
corner, which gives the parameters of component k, for ``origins`` to say which entries of globals they are. Rows bound
to the structure prove it (``admixture_proof``).
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from custom_inference.compiled.blocks import Block
from custom_inference.compiled.derive import choose_law
from custom_inference.compiled.laws import (
    BernoulliLaw,
    BinomialLaw,
    CategoricalLaw,
    Law,
    MultinomialLaw,
    PoissonLaw,
    TokensLaw,
)
from custom_inference.compiled.origins import Asked, Group, ProgramRuns, find_sources
from custom_inference.compiled.probes import Probe, alike, require_entries
from custom_inference.compiled.reading import NotCompiled, Statement, Variables, without_wrappers
from custom_inference.compiled.sources import Entries
from custom_inference.compiled.steps import Steps
from custom_inference.core.programs.density import RowDensity
from custom_inference.core.programs.latents import Latent, Layout
from custom_inference.core.programs.statements import run
from ppl_models import Data, Model
from ppl_models.core.hierarchy import typical_values

#: Rows that a program is probed on.
_READ = 16
#: Values of the choices and of theta at which it is asked what depends on them.
_TRIALS = 2
#: The laws whose probabilities may be sums over the choices of a component.
_OF_CHOICES = (BernoulliLaw, BinomialLaw, CategoricalLaw, MultinomialLaw, TokensLaw)


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
    rate (K,). steps: the M steps of models, by the type of numbers.
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
        return {**params, self.latent.name: self.latent.decode(share)}

    def code_of(self, share: Tensor, chosen: Tensor) -> Tensor:
        """Return the codes (N, W) of all latents, from theta (N, K) and numbers of the choices' values (N, V)."""
        finite = self.variables.codes(chosen, share)
        parts, own = [], self.variables.layout.slices
        for latent in self.layout:
            parts.append(share if latent.name == self.latent.name else finite[:, own[latent.name]])
        return torch.cat(parts, 1)

    def steps_of(self, model: Model, like: Tensor) -> Steps:
        """Return the M step of a model with this structure, found once."""
        known = self.steps.setdefault(like.dtype, weakref.WeakKeyDictionary())
        if model not in known:
            own = copy.copy(model)  # the model itself would be held for ever
            known[model] = Steps.of(own, self.entries, [one.block.to(like) for one in self.observed])
        return known[model]


#: Model -> its structure; and why others have none.
_STRUCTURES: weakref.WeakKeyDictionary[Model, AdmixtureStructure] = weakref.WeakKeyDictionary()
_REFUSED: weakref.WeakKeyDictionary[Model, str] = weakref.WeakKeyDictionary()


def admixture_of(model: Model, data: Data) -> AdmixtureStructure:
    """Return the structure of a program of shares, found once, on some of the rows.

    Raises NotCompiled where it has none.
    """
    if model not in _STRUCTURES and model not in _REFUSED:
        try:
            _STRUCTURES[model] = derive_admixture(model, data)
        except NotCompiled as reason:
            _REFUSED[model] = str(reason)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            _REFUSED[model] = f"it does not run on values that differ between rows ({first})"
    if model in _REFUSED:
        raise NotCompiled(f"{type(model).__name__} is not compiled: {_REFUSED[model]}")
    return _STRUCTURES[model]


def recall_admixture(model: Model) -> AdmixtureStructure | None:
    """Return the structure of a program that was read before."""
    return _STRUCTURES.get(model)


def derive_admixture(model: Model, data: Data, *, seed: int = 0) -> AdmixtureStructure:
    """Read the structure of a program of shares off runs of it on some of the rows.

    Raises NotCompiled, with the reason, where it is none.
    """
    data = data.to(dtype=torch.float64).rows(torch.arange(min(len(data), _READ)))
    values = {site: value.double() for site, value in typical_values(model).items()}
    density = RowDensity.of(model, values, data)
    layout, own = density.layout, copy.copy(density.model)
    if len(layout.continuous) != 1 or len(layout.continuous[0].visible) != 1:
        raise NotCompiled("its rows have other real latents than one vector of shares")
    latent = layout.continuous[0]
    if any(one.open or one.moving for one in layout):
        raise NotCompiled("a latent has no largest value, or a support that moves")
    variables = Variables.of(Layout(layout.finite), density.plates)
    probe = Probe(own, density.data, variables, seed=seed)
    entries = Entries({site: tuple(shape) for site, shape in model.shapes.items()})
    reader = _Reader(probe, latent, entries)
    shape, rate = reader.read_law()
    reader.require_choices(rate is not None)
    observed = reader.find_observed(rate is not None)
    return AdmixtureStructure(own, layout, latent, variables, entries, shape, rate, observed, probe)


@dataclass(frozen=True)
class _Reader:
    """Runs of a program of shares."""

    probe: Probe
    latent: Latent
    entries: Entries

    @property
    def size(self) -> int:
        return self.latent.width

    def draw_shares(self, number: int) -> Tensor:
        """Draw different points of the simplex, (number, K)."""
        drawn = torch.rand(number, self.size, generator=self.probe.generator, dtype=torch.float64) + 0.1
        return drawn / drawn.sum(-1, keepdim=True)

    def draw_choices(self, number: int) -> Tensor:
        """Draw numbers of the choices' values, (number, V)."""
        sizes = torch.tensor(self.probe.variables.sizes, dtype=torch.float64)
        return (torch.rand(number, len(sizes), generator=self.probe.generator, dtype=torch.float64) * sizes).long()

    def read(self, params: Mapping[str, Tensor], share: Tensor, chosen: Tensor, rows: Tensor) -> dict[str, Statement]:
        return self.probe.read({**params, self.latent.name: self.latent.decode(share)}, chosen, rows)

    def read_law(self) -> tuple[Tensor, Tensor | None]:
        """Return the concentration (K,) of theta, or shape and rate (K,) where its entries are Gammas."""
        probe, rows = self.probe, torch.arange(len(self.probe.data))
        asked = []
        for params in probe.fingerprints[:2]:
            codes = probe.variables.codes(self.draw_choices(len(rows)), probe.data.x)
            values = {**params, **probe.variables.layout.decode(codes)}
            node = run(probe.model, probe.data, values)[self.latent.name]
            made, shape = without_wrappers(node["fn"])[0], node["fn"].shape()
            if type(made).__name__ == "Dirichlet":
                parts = [made.concentration]
            elif type(made).__name__ in ("Gamma", "Exponential"):
                parts = [getattr(made, "concentration", torch.ones_like(made.rate)), made.rate]
            else:
                raise NotCompiled(f"'{self.latent.name}' is drawn from {type(made).__name__}, no Dirichlet or Gamma")
            asked.append([self.latent.encode(part.double().expand(shape), probe.data.x).double() for part in parts])
        first = [part[0] for part in asked[0]]
        for parts in asked:
            if not all(bool(alike(part, one).all()) for part, one in zip(parts, first, strict=True)):
                raise NotCompiled(f"the law of '{self.latent.name}' depends on rows, on choices or on globals")
        return first[0], first[1] if len(first) > 1 else None

    def require_choices(self, gamma: bool) -> None:
        """Refuse finite latents that are not drawn with theta as their probabilities."""
        probe, every = self.probe, self.probe.variables
        for v in range(len(every)):
            if not torch.equal(every.own_values(v), torch.arange(self.size).double()):
                raise NotCompiled(f"'{every.names[v]}' is no choice among the {self.size} entries of theta")
        if len(every) and gamma:
            raise NotCompiled(f"choices are drawn by '{self.latent.name}', which does not sum to 1")
        rows = torch.arange(len(probe.data))
        for params in probe.fingerprints[:_TRIALS]:
            share = self.draw_shares(len(rows))
            stated = self.read(params, share, self.draw_choices(len(rows)), rows)
            for name in dict.fromkeys(every.names):
                law, own = stated[name].law, stated[name].parameters
                known = law.kinds.get("probs") == "proportion" and own.shape[1:] == (
                    len(every.of_site(name)),
                    self.size,
                )
                if not known or not bool(alike(law.natural(own), share.log().unsqueeze(1)).all()):
                    raise NotCompiled(f"the probabilities of '{name}' are not the entries of '{self.latent.name}'")

    def find_observed(self, gamma: bool) -> tuple[Observed, ...]:
        """Find what is observed, and the parameters of the components."""
        probe, size, zeros = self.probe, self.size, torch.zeros(self.size, dtype=torch.long)
        choice, summed = self._find_scopes()
        corner = torch.eye(size, dtype=torch.float64)
        component = torch.arange(size)[:, None].expand(size, len(probe.variables))
        stated = [self.read(params, corner, component, zeros) for params in probe.fingerprints]
        runs = _CornerRuns(probe, self.entries, component, zeros, {self.latent.name: self.latent.decode(corner)})
        laws, asked, cells = dict[str, Law](), list[Asked](), dict[str, Tensor]()
        for name, depends in summed.items():
            one = stated[0][name]
            require_entries(float(one.parameters.numel()))
            if bool(depends.all()) and bool((choice[name] < 0).all()):
                laws[name] = self._require_sum(name, one, gamma)
            elif bool(depends.any()) or bool((choice[name] < 0).any()):
                raise NotCompiled(f"'{name}' depends neither on one choice of each element nor on a sum of them")
            else:
                laws[name] = choose_law(name, one, probe.variables)
                if not laws[name].exponential:
                    raise NotCompiled(f"'{name}' is {laws[name].kind.__name__} of too many values")
            first, cells[name] = _share_cells([each[name].parameters for each in stated])
            group = Group(name, first, (0,), None, False)
            row, values = torch.arange(size)[:, None].expand(size, len(first)), []
            for each in stated:
                values.append(each[name].parameters[:, first])
            asked.append(Asked(group, runs, row, first.expand_as(row), values))
        found = []
        sources = find_sources(probe, self.entries, laws, asked)
        for one, source in zip(asked, sources, strict=True):
            name = one.group.statement
            block = Block(laws[name], ((0,),), (size,), source, elements=((name, one.group.elements),))
            by = None if bool(summed[name].all()) else choice[name]
            usual = stated[0][name].parameters[..., 0].mean(0) if gamma else None
            found.append(Observed(name, laws[name], block, cells[name], by, usual))
        return tuple(found)

    def _find_scopes(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Find the choice that every element (E,) of what is observed looks up by, -1 without one, and whether it
        depends on theta; refuse what differs between rows."""
        probe, every = self.probe, self.probe.variables
        bits = len(every).bit_length()
        turned = ((torch.arange(1, len(every) + 1)[None] >> torch.arange(bits)[:, None]) & 1).reshape(bits, len(every))
        number, rows = torch.zeros(0), torch.arange(len(probe.data))
        choice, summed = dict[str, Tensor](), dict[str, Tensor]()
        latents = set(every.names)
        for params in probe.fingerprints[:_TRIALS]:
            base, share = self.draw_choices(1), self.draw_shares(2)
            chosen = torch.cat([base, (base + turned) % max(self.size, 1), base])
            own = torch.cat([share[:1].expand(bits + 1, -1), share[1:]])
            stated = self.read(params, own, chosen, torch.zeros(len(chosen), dtype=torch.long))
            beside = self.read(params, share[:1].expand(len(rows), -1), base.expand(len(rows), -1), rows)
            for name in [name for name in stated if name not in latents]:
                differs = ~alike(stated[name].parameters[1:], stated[name].parameters[:1]).all(-1)  # (bits + 1, E)
                number = (differs[:-1] * (1 << torch.arange(bits))[:, None]).sum(0) - 1
                choice[name] = torch.maximum(choice.get(name, number), number)
                summed[name] = summed.get(name, differs[-1]) | differs[-1]
                if bool((number >= len(every)).any()):
                    raise NotCompiled(f"elements of '{name}' depend on several choices")
                varies = not bool(alike(beside[name].parameters, beside[name].parameters[:1]).all())
                if varies and type(beside[name].law) is not PoissonLaw:  # of which the proof tells
                    raise NotCompiled(f"the parameters of '{name}' depend on what rows are given")
        return choice, summed

    def _require_sum(self, name: str, one: Statement, gamma: bool) -> Law:
        """Return the law of a statement whose probabilities or rates are sums over the components."""
        law = one.law
        if type(law) not in ((PoissonLaw,) if gamma else _OF_CHOICES):
            raise NotCompiled(f"'{name}' is {law.kind.__name__}, whose parameters are no probabilities of a choice")
        return law


class _CornerRuns(ProgramRuns):
    """Runs of a program at the components, theta being the corners."""

    def __init__(self, probe: Probe, entries: Entries, chosen: Tensor, rows: Tensor, share: Mapping[str, Tensor]):
        super().__init__(probe, entries, chosen, rows)
        self.share = share

    def give_values(self, flat: Tensor) -> dict[str, Tensor]:
        return {**super().give_values(flat), **{name: value.to(flat) for name, value in self.share.items()}}


def _share_cells(values: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Put elements with the same parameters (K, E, P), at all fingerprints, into one cell: the first element of each
    cell, and the cell (E,) of each element."""
    every = torch.cat([one.movedim(1, 0).flatten(1) for one in values], 1)
    # By their bytes, which are the same of what is computed alike.
    own = np.ascontiguousarray(every.numpy()).view(np.dtype((np.void, every.shape[1] * every.element_size())))[:, 0]
    cell = torch.from_numpy(np.unique(own, return_inverse=True)[1])
    number = torch.full((int(cell.max()) + 1,), len(cell))
    first = number.scatter_reduce(0, cell, torch.arange(len(cell)), "amin")
    order = first.argsort()
    cell = order.argsort()[cell]
    first = first[order]
    same = alike(every, every[first[cell]]).all()
    return (first, cell) if bool(same) else (torch.arange(len(cell)), torch.arange(len(cell)))
