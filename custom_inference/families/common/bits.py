"""Tempered chains of the bits of models in which what they do to the features adds up: noisy-or, normal, logistic."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import logsigmoid

from custom_inference.core.annealing.chains import Chains, Product, State, Tuning, draw_seed
from custom_inference.core.engine import Params
from ppl_models import CVQ, NOCA, Data, HelmholtzMachine

Reals = NDArray[np.float64]


@dataclass(frozen=True)
class BitChains(Chains):
    """Chains over the K bits of N rows.

    kind: one of ``bit_kernels.KINDS``. prior: log odds of the bits (K,). shift (N, K), constant (N,): what a bit
    that is on adds to the log joint by itself, its prior apart, and what is there without any. seen (N, D): which
    features count in a row beside that, with their targets (N, D). weight (K, D), offset (D,): what a bit does to the
    level of a feature, where that begins; see ``bit_kernels.flip``.
    """

    kind: str
    prior: Tensor
    shift: Tensor
    constant: Tensor
    seen: Tensor
    target: Tensor
    weight: Tensor
    offset: Tensor
    base: Product | None = None

    def __len__(self) -> int:
        return len(self.shift)

    @property
    def options(self) -> Tensor:
        return torch.full((len(self.prior),), 2)

    @property
    def num_reals(self) -> int:
        return 0

    def rows(self, index: Tensor) -> BitChains:
        parts = {name: getattr(self, name)[index] for name in ("shift", "constant", "seen", "target")}
        return replace(self, **parts, base=None if self.base is None else self.base.rows(index))

    @property
    def _table(self) -> Tensor:
        """The log-probabilities (N, K, 2) that paths begin at."""
        if self.base is not None:
            return self.base.table
        return torch.stack([logsigmoid(-self.prior), logsigmoid(self.prior)], -1).expand(len(self), -1, -1)

    def begin(self, chains: int, generator: torch.Generator) -> State:
        chance = self._table[..., 1].exp()
        drawn = torch.rand(chains, *chance.shape, generator=generator, dtype=torch.float64).to(chance) < chance
        return self.at(drawn.to(chance), generator)

    def at(self, code: Tensor, generator: torch.Generator) -> State:
        del generator
        place = code.round().to(torch.uint8)
        bits = np.ascontiguousarray(place.transpose(0, 1).numpy())
        joint = np.empty(bits.shape[:2])
        from custom_inference.families.common.bit_kernels import log_joints

        log_joints(*self._arguments(bits), joint)
        begun = torch.where(place.bool(), self._table[..., 1], self._table[..., 0]).sum(-1)
        empty = code.new_zeros(*code.shape[:-1], 0, dtype=torch.float64)
        return State(place, empty, torch.from_numpy(joint).T.contiguous(), begun)

    def code(self, state: State) -> Tensor:
        return state.place.to(self.shift)

    def move(self, state: State, power: Tensor, tuning: Tuning, generator: torch.Generator) -> tuple[State, Tensor]:
        from custom_inference.families.common.bit_kernels import flip

        bits = state.place.transpose(0, 1).contiguous().numpy()
        joint, begun = (one.T.contiguous().numpy() for one in (state.joint, state.base))
        flip(*self._arguments(bits), joint, begun, power.numpy(), draw_seed(generator))
        place, *both = (torch.from_numpy(one).transpose(0, 1).contiguous() for one in (bits, joint, begun))
        return State(place, state.reals, *both), torch.ones_like(power)

    def _arguments(self, bits: NDArray[np.uint8]) -> tuple[Any, ...]:
        from custom_inference.families.common.bit_kernels import KINDS

        row, entry = self.seen.nonzero(as_tuple=True)
        start = torch.cat([torch.zeros(1, dtype=torch.long), self.seen.sum(-1).cumsum(0)])
        table, width, room = self._table, self.offset.shape[0], np.empty
        return (
            KINDS.index(self.kind), bits, start.numpy(), entry.numpy(), self.target[row, entry].numpy(),
            self.weight.numpy(), self.offset.numpy(), (self.shift + self.prior).numpy(),
            (self.constant + logsigmoid(-self.prior).sum()).numpy(), (table[..., 1] - table[..., 0]).numpy(),
            room(width), room(width), room(self.weight.shape),
        )  # fmt: skip


def noisy_or_chains(model: NOCA, params: Params, data: Data) -> BitChains:
    """Chains of NOCA's sources: P(feature off) is the product of 1 - p over what is present."""
    del model
    x, seen = _read_entries(data)
    on = seen & (x > 0)
    off = (seen & ~on).double()
    keep, leak = (1 - params[site].double().clamp(max=1 - 1e-12) for site in ("loading", "leak"))
    odds = _log_odds(params["source_prior"])
    return BitChains("noisy_or", odds, off @ keep.log().T, off @ leak.log(), on, on.double(), keep, leak)


def normal_chains(model: CVQ, params: Params, data: Data) -> BitChains:
    """Chains of the sources of a cooperative vector quantizer, in units of the noise."""
    x, seen = _read_entries(data)
    scale = params["scale"].double().expand(x.shape[1])
    target = torch.where(seen, (x - (model.centre or 0.0)) / scale, 0.0)
    constant = -(seen.double() @ (scale.log() + 0.5 * np.log(2 * np.pi)))
    odds, weight = _log_odds(params["source_prior"]), params["weight"].double() / scale
    if not bool(seen.all()):
        shift = torch.zeros(len(x), len(odds), dtype=torch.float64)
        return BitChains("normal", odds, shift, constant, seen, target, weight, torch.zeros_like(scale))
    square, none = weight @ weight.T, torch.zeros(len(x), len(odds), dtype=torch.float64)
    shift, constant = target @ weight.T - 0.5 * square.diagonal(), constant - 0.5 * target.square().sum(-1)
    return BitChains("quadratic", odds, shift, constant, none == 0, none, -square, none[0])


def logistic_chains(model: HelmholtzMachine, params: Params, data: Data) -> BitChains | None:
    """Chains of the units of a machine with one hidden layer; None of others."""
    if len(model.layers) != 2:
        return None
    from custom_inference.families.common.bit_kernels import MOST_ODDS

    x, seen = _read_entries(data)
    ones, bias, weight = torch.where(seen, x, 0.0), params["bias_1"].double(), params["weight_1"].double()
    prior, shift, constant = params["bias_0"].double(), ones @ weight.T, ones @ bias
    kind, most = "logistic", bias.abs() + weight.abs().sum(0)
    if float(most.max()) < np.log(MOST_ODDS):
        kind, weight, bias = "odds", weight.exp(), bias.exp()
    return BitChains(kind, prior, shift, constant, seen, ones, weight, bias)


def _read_entries(data: Data) -> tuple[Tensor, Tensor]:
    """The entries (N, D) in double precision, and which of them were observed."""
    data = data.dense()
    seen = torch.ones_like(data.x, dtype=torch.bool) if data.mask is None else data.mask
    return torch.where(seen, data.x, torch.zeros_like(data.x)).double(), seen


def _log_odds(chance: Tensor) -> Tensor:
    return torch.logit(chance.double(), eps=1e-15)
