"""Search for the structure of programs of shares, in runs of them.

Choices are flipped, those with a bit in their number at once, which tells which of them an element looks up by; and the
program is run with all choices at component k and theta_n the k-th corner, which gives the parameters of component k,
for ``origins`` to say which entries of globals they are. Rows bound to the structure prove it (``proof``).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from custom_inference.compiled.admixture.responses import Response
from custom_inference.compiled.admixture.structure import AdmixtureStructure, Observed
from custom_inference.compiled.blocks import Block
from custom_inference.compiled.derive import choose_law
from custom_inference.compiled.kept import KeptStructures, refuse_errors
from custom_inference.compiled.laws import (
    BernoulliLaw,
    BinomialLaw,
    CategoricalLaw,
    Law,
    MultinomialLaw,
    NormalLaw,
    PoissonLaw,
    TokensLaw,
)
from custom_inference.compiled.origins import Asked, Group, ProgramRuns, find_sources
from custom_inference.compiled.probes import Probe, alike, require_entries
from custom_inference.compiled.reading import NotCompiled, Statement, Variables, without_wrappers
from custom_inference.compiled.sources import Entries
from custom_inference.core.programs.density import RowDensity
from custom_inference.core.programs.latents import Latent, Layout
from custom_inference.core.programs.statements import run
from ppl_models import Data, Model
from ppl_models.core.hierarchy import typical_values

#: Rows that a program is probed on.
_READ = 16
#: Values of the choices and of theta at which it is asked what depends on them.
_TRIALS = 2
#: The laws whose probabilities may be sums over the choices of a component, and those whose rates.
_OF_CHOICES = (BernoulliLaw, BinomialLaw, CategoricalLaw, MultinomialLaw, TokensLaw, PoissonLaw)

_STRUCTURES = KeptStructures[AdmixtureStructure]()


def admixture_of(model: Model, data: Data) -> AdmixtureStructure:
    """Return the structure of a program of shares, found once, on some of the rows.

    Raises NotCompiled where it has none.
    """
    return _STRUCTURES.find(model, refuse_errors()(lambda own: derive_admixture(own, data)))


def recall_admixture(model: Model) -> AdmixtureStructure | None:
    """Return the structure of a program that was read before."""
    return _STRUCTURES.recall(model)


def derive_admixture(model: Model, data: Data, *, seed: int = 0) -> AdmixtureStructure:
    """Read the structure of a program of shares off runs of it on some of the rows.

    Raises NotCompiled, with the reason, where it is none.
    """
    data = data.to(dtype=torch.float64).rows(torch.arange(min(len(data), _READ)))
    values = {site: value.double() for site, value in typical_values(model).items()}
    density = RowDensity.of(model, values, data)
    layout, own = density.layout, copy.copy(density.model)
    if len(layout.continuous) != 1 or len(layout.continuous[0].visible) > 1:
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
    observed, responses = reader.find_observed(rate is not None)
    return AdmixtureStructure(
        own, layout, latent, variables, entries, shape, rate, observed, probe, reader.beta, responses
    )


@dataclass(frozen=True)
class _Reader:
    """Runs of a program of shares."""

    probe: Probe
    latent: Latent
    entries: Entries

    @property
    def beta(self) -> bool:
        """Whether theta is stated as the second of its two entries."""
        return self.latent.width == 1

    @property
    def size(self) -> int:
        return max(self.latent.width, 2)

    def draw_shares(self, number: int) -> Tensor:
        """Draw different points of the simplex, (number, K)."""
        drawn = torch.rand(number, self.size, generator=self.probe.generator, dtype=torch.float64) + 0.1
        return drawn / drawn.sum(-1, keepdim=True)

    def draw_choices(self, number: int) -> Tensor:
        """Draw numbers of the choices' values, (number, V)."""
        sizes = torch.tensor(self.probe.variables.sizes, dtype=torch.float64)
        return (torch.rand(number, len(sizes), generator=self.probe.generator, dtype=torch.float64) * sizes).long()

    def read(self, params: Mapping[str, Tensor], share: Tensor, chosen: Tensor, rows: Tensor) -> dict[str, Statement]:
        code = share[..., 1:] if self.beta else share
        return self.probe.read({**params, self.latent.name: self.latent.decode(code)}, chosen, rows)

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
            elif type(made).__name__ == "Beta":
                parts = [made.concentration0, made.concentration1]
            else:
                raise NotCompiled(
                    f"'{self.latent.name}' is drawn from {type(made).__name__}, no Dirichlet, Beta or Gamma"
                )
            if self.beta != (type(made).__name__ == "Beta"):
                raise NotCompiled(f"'{self.latent.name}' is no vector of shares, and no single Beta")
            asked.append([self.latent.encode(part.double().expand(shape), probe.data.x).double() for part in parts])
        first = [part[:1] for part in asked[0]]
        for parts in asked:
            if not all(bool(alike(part, one).all()) for part, one in zip(parts, first, strict=True)):
                raise NotCompiled(f"the law of '{self.latent.name}' depends on rows, on choices or on globals")
        if self.beta:
            return torch.cat([part[0] for part in first]), None
        return first[0][0], first[1][0] if len(first) > 1 else None

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
                bit = type(law) is BernoulliLaw and self.size == 2
                width = self.size if law.kinds.get("probs") == "proportion" else 1 if bit else 0
                expected = share.flip(-1) if bit else share  # a bit has the chance of its one first
                known = own.shape[1:] == (len(every.of_site(name)), width)
                if not known or not bool(alike(law.natural(own), expected.log().unsqueeze(1)).all()):
                    raise NotCompiled(f"the probabilities of '{name}' are not the entries of '{self.latent.name}'")

    def find_observed(self, gamma: bool) -> tuple[tuple[Observed, ...], tuple[Response, ...]]:
        """Find what is observed, the parameters of the components, and which statements are responses."""
        probe, size, zeros = self.probe, self.size, torch.zeros(self.size, dtype=torch.long)
        scopes = self._find_scopes()
        corner = torch.eye(size, dtype=torch.float64)
        component = torch.arange(size)[:, None].expand(size, len(probe.variables))
        stated = [self.read(params, corner, component, zeros) for params in probe.fingerprints]
        code = corner[:, 1:] if self.beta else corner
        runs = _CornerRuns(probe, self.entries, component, zeros, {self.latent.name: self.latent.decode(code)})
        laws, asked, cells = dict[str, Law](), list[Asked](), dict[str, Tensor]()
        for name, scope in scopes.items():
            one = stated[0][name]
            require_entries(float(one.parameters.numel()))
            laws[name] = self._choose_law(name, one, scope, gamma)
            first, cells[name] = _share_cells([each[name].parameters for each in stated])
            if scope.averages:  # every response has a place of its own
                first = cells[name] = torch.arange(one.parameters.shape[1])
            group = Group(name, first, (0,), None, False)
            row = torch.arange(size)[:, None].expand(size, len(first))
            values = [each[name].parameters[:, first] for each in stated]
            asked.append(Asked(group, runs, row, first.expand_as(row), values))
        found, responses = list[Observed](), list[Response]()
        for one, source in zip(asked, find_sources(probe, self.entries, laws, asked), strict=True):
            name, scope = one.group.statement, scopes[one.group.statement]
            block = Block(laws[name], ((0,),), (size,), source, elements=((name, one.group.elements),))
            if scope.averages:
                responses.append(Response.of(name, block, not bool(scope.shares.any())))
                continue
            by = None if bool(scope.shares.all()) else scope.choice
            usual = stated[0][name].parameters[..., 0].mean(0) if type(laws[name]) is PoissonLaw else None
            found.append(Observed(name, laws[name], block, cells[name], by, usual))
        if not found:
            raise NotCompiled("nothing is observed of its components but averages")
        if any(one.of_choices for one in responses) and any(one.choice is None for one in found):
            raise NotCompiled("responses are of averages of choices, which other statements have summed out")
        return tuple(found), tuple(responses)

    def _choose_law(self, name: str, one: Statement, scope: _Scope, gamma: bool) -> Law:
        """Return the law of a statement. Raises NotCompiled where it depends on shares or choices in other ways."""
        if scope.averages:
            even = bool(alike(one.parameters[..., 1], one.parameters[:1, :, 1]).all())
            if gamma or type(one.law) is not NormalLaw or not even:
                raise NotCompiled(f"'{name}' depends on several choices or on shares, and is not normal about a mean")
            return one.law
        if bool(scope.shares.all()) and bool((scope.choice < 0).all()):
            if type(one.law) not in ((PoissonLaw,) if gamma else _OF_CHOICES):
                raise NotCompiled(f"'{name}' is {one.law.kind.__name__}, whose parameters are no sums over choices")
            return one.law
        if bool(scope.shares.any()) or bool((scope.choice < 0).any()):
            raise NotCompiled(f"'{name}' depends neither on one choice of each element nor on a sum of them")
        law = choose_law(name, one, self.probe.variables)
        if not law.exponential:
            raise NotCompiled(f"'{name}' is {law.kind.__name__} of too many values")
        return law

    def _find_scopes(self) -> dict[str, _Scope]:
        """Find on which choices every statement that is observed depends, and whether on theta; refuse what differs
        between rows."""
        probe, every = self.probe, self.probe.variables
        bits = len(every).bit_length()
        turned = ((torch.arange(1, len(every) + 1)[None] >> torch.arange(bits)[:, None]) & 1).reshape(bits, len(every))
        turned = torch.cat([turned, 1 - turned])  # what depends on one choice differs either way, not both
        rows, found = torch.arange(len(probe.data)), dict[str, _Scope]()
        for trial, params in enumerate(probe.fingerprints[:_TRIALS]):
            base, share = self.draw_choices(1) * min(trial, 1), self.draw_shares(2)
            chosen = torch.cat([base, (base + turned) % max(self.size, 1), base])
            own = torch.cat([share[:1].expand(2 * bits + 1, -1), share[1:]])
            stated = self.read(params, own, chosen, torch.zeros(len(chosen), dtype=torch.long))
            beside = self.read(params, share[:1].expand(len(rows), -1), base.expand(len(rows), -1), rows)
            for name in [name for name in stated if name not in every.names]:
                differs = ~alike(stated[name].parameters[1:], stated[name].parameters[:1]).all(-1)  # (2 bits + 1, E)
                number = (differs[:bits] * (1 << torch.arange(bits))[:, None]).sum(0) - 1
                number = torch.where((differs[:bits] & differs[bits:-1]).any(0), len(every), number)
                known = found.get(name, _Scope(number, differs[-1], False))
                choice, shares = torch.maximum(known.choice, number), known.shares | differs[-1]
                several, normal = choice >= len(every), type(stated[name].law) is NormalLaw
                if bool(several.any()) and not (normal and bool(several.all()) and not bool(shares.any())):
                    raise NotCompiled(f"elements of '{name}' depend on several choices")
                averages = bool(several.any()) or (normal and bool(shares.all()) and bool((choice < 0).all()))
                found[name] = _Scope(choice, shares, averages)
                varies = not bool(alike(beside[name].parameters, beside[name].parameters[:1]).all())
                if varies and type(beside[name].law) is not PoissonLaw:  # of which the proof tells
                    raise NotCompiled(f"the parameters of '{name}' depend on what rows are given")
        return found


class _Scope(NamedTuple):
    """What the elements (E,) of a statement depend on: the choice that each looks up by, -1 without one; whether on
    theta; whether the statement is a response about averages."""

    choice: Tensor
    shares: Tensor
    averages: bool


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
