"""Better optima of a Helmholtz machine on few different rows, by replacing hidden units one at a time.

There the optima are many, most starts end in poor ones, and a climb takes milliseconds. A unit u of a hidden layer is
begun anew, into the layer below in the direction of a row or at random, the whole machine climbs, and is kept where it
ends higher. What is climbed is

    (sum_n log p(x_n) + log p(theta)) / N,   d / dA_l(u) = children_l(u) - parents_l(u) sigmoid(A_l(u))

with the expected statistics of :mod:`.exact` and A_l(u) = b_l + W_l'u, by Fisher's identity, in NumPy: tables are so
small here that torch's bookkeeping is most of its time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from custom_inference.core.engine import Params
from custom_inference.core.optimize.lbfgs import minimise
from custom_inference.families.conjugate.normal import Normal
from custom_inference.families.helmholtz.tables import Patterns
from ppl_models import HelmholtzMachine, PriorError
from ppl_models.distributions import all_codes

Array = NDArray[Any]
#: Replacements at most, and rows times states of the last hidden layer that all of them together go over once.
_MOST, _CELLS = 160, 2**20
#: Iterations after a replacement, and of what then is less than so much below the machine it came from; of the best.
_BRIEF, _LONGER, _NEAR, _POLISH = 40, 120, 0.02, 500
#: Log odds of what the row has that a new unit stands for, and against what it lacks; chances of such units, and of
#: those of other layers.
_ODDS, _OF_ROW, _ABOVE = 3.0, 0.5, 0.15
#: Deviations of the weights of new units, of one sign and free ones, and their bias.
_WIDE, _FREE, _BIAS = 2.0, 1.0, -1.0


def count_replacements(model: HelmholtzMachine, rows: Patterns) -> int:
    """Count the replacements that these rows are worth; none where tables are large."""
    return min(_MOST, _CELLS // (len(rows.ones) * 2 ** model.layers[-2]))


class Ascent:
    """What is climbed, as a function of all weights in one array. rows: all that are different."""

    def __init__(self, model: HelmholtzMachine, rows: Patterns):
        self.model, self.layers = model, model.layers
        self.ones = rows.ones.double().cpu().numpy()
        self.seen = None if rows.seen is None else rows.seen.double().cpu().numpy()
        count = rows.count.double().cpu().numpy()
        self.share, self.number = count / count.sum(), float(count.sum())
        self.codes = [all_codes(size, dtype=torch.float64).numpy() for size in self.layers[:-1]]
        self.sites, self.shapes = list(model.shapes), [tuple(shape) for shape in model.shapes.values()]
        ends = np.cumsum([int(np.prod(shape)) for shape in self.shapes])
        self.slices = [slice(end - int(np.prod(shape)), end) for end, shape in zip(ends, self.shapes, strict=True)]
        self._normal = self._normal_priors()

    def _normal_priors(self) -> tuple[Array, Array] | None:
        """Means and precisions of all weights; None where a prior is neither Normal nor flat."""
        like = torch.zeros((), dtype=torch.float64)
        try:
            each = [Normal.of(self.model, site, self.model.shapes[site], like) for site in self.sites]
        except PriorError:
            return None
        return (
            np.concatenate([one.mean.flatten().numpy() for one in each]),
            np.concatenate([one.precision.flatten().numpy() for one in each]),
        )

    def parts(self, flat: Array) -> dict[str, Array]:
        """All weights by site, as views."""
        pairs = zip(self.sites, self.slices, self.shapes, strict=True)
        return {site: flat[place].reshape(shape) for site, place, shape in pairs}

    def join(self, at: Params) -> Array:
        return np.concatenate([at[site].detach().double().cpu().numpy().ravel() for site in self.sites])

    def log_prior(self, flat: Array) -> tuple[float, Array]:
        """log p(theta), up to a constant, and its slope."""
        if self._normal is not None:
            mean, precision = self._normal
            pull = precision * (flat - mean)
            return -0.5 * float(pull @ (flat - mean)), -pull
        with torch.enable_grad():
            at = {site: torch.tensor(value, requires_grad=True) for site, value in self.parts(flat).items()}
            value = self.model.log_prior(at)
            slope = torch.autograd.grad(value, list(at.values()), allow_unused=True, materialize_grads=True)
        return float(value.detach()), np.concatenate([one.numpy().ravel() for one in slope])

    def __call__(self, flat: Array) -> tuple[float, Array]:
        """The value and the slope of what is climbed."""
        at, last = self.parts(flat), len(self.layers) - 1
        marginal, above, odds = [self.codes[0] @ at["bias_0"] - _softplus(at["bias_0"]).sum()], [], []
        for layer in range(1, last + 1):
            odds.append(self.codes[layer - 1] @ at[f"weight_{layer}"] + at[f"bias_{layer}"])
            if layer < last:
                joint = odds[-1] @ self.codes[layer].T + (marginal[-1] - _softplus(odds[-1]).sum(1))[:, None]
                chance, log_sum = _normalise(joint, 0)
                above.append(chance)
                marginal.append(log_sum)
        off = _softplus(odds[-1])
        joint = self.ones @ odds[-1].T + marginal[-1]
        joint -= off.sum(1) if self.seen is None else self.seen @ off.T
        state, log_p = _normalise(joint, 1)
        state *= self.share[:, None]
        expected = state.sum(0)
        parents = expected[:, None] if self.seen is None else state.T @ self.seen
        children, slope = state.T @ self.ones, {}
        for layer in range(last, 0, -1):
            of_odds = children - parents * _sigmoid(odds[layer - 1])
            slope[f"weight_{layer}"], slope[f"bias_{layer}"] = self.codes[layer - 1].T @ of_odds, of_odds.sum(0)
            if layer > 1:
                pairs = above[layer - 2] * expected
                expected, children = pairs.sum(1), pairs @ self.codes[layer - 1]
                parents = expected[:, None]
        slope["bias_0"] = expected @ self.codes[0] - _sigmoid(at["bias_0"])
        prior, of_prior = self.log_prior(flat)
        whole = np.concatenate([slope[site].ravel() for site in self.sites])
        return float(self.share @ log_p) + prior / self.number, whole + of_prior / self.number

    def climb(self, flat: Array, iterations: int) -> tuple[Array, float]:
        """Climb by L-BFGS; return where it ends, and the value there."""

        def negative(at: Array) -> tuple[float, Array]:
            value, slope = self(at)
            return -value, -slope

        found, value, _ = minimise(negative, flat, maxiter=iterations, maxcor=20)
        return found, -value

    def replace_unit(self, flat: Array, rng: np.random.Generator) -> Array:
        """Begin one hidden unit anew, most often one of the last layer."""
        flat, last = flat.copy(), len(self.layers) - 1
        at, below = self.parts(flat), last
        if last > 1 and rng.random() < _ABOVE:
            below = int(rng.integers(1, last))
        unit = rng.integers(self.layers[below - 1])
        if below == last and rng.random() < _OF_ROW:
            at[f"weight_{below}"][unit] = _ODDS * (2 * self.ones[rng.choice(len(self.share), p=self.share)] - 1)
        else:
            sign, drawn = rng.integers(-1, 2), rng.standard_normal(self.layers[below])
            at[f"weight_{below}"][unit] = _WIDE * sign * np.abs(drawn) if sign else _FREE * drawn
        at[f"bias_{below - 1}"][unit] = _BIAS
        if below > 1:
            at[f"weight_{below - 1}"][:, unit] = _FREE * rng.standard_normal(self.layers[below - 2])
        return flat


def improve(ascent: Ascent, starts: list[Params], replacements: int, generator: torch.Generator) -> Params:
    """Return the best that replacements lead to: of all starts by turns in the first half, then of the best."""
    rng = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
    pool = [ascent.climb(ascent.join(start), _LONGER) for start in starts]
    for turn in range(replacements):
        best = max(range(len(pool)), key=lambda number: pool[number][1])
        chosen = turn % len(pool) if turn < replacements // 2 else best
        value = pool[chosen][1]
        found = ascent.climb(ascent.replace_unit(pool[chosen][0], rng), _BRIEF)
        if found[1] > value - _NEAR:
            found = ascent.climb(found[0], _LONGER)
        if found[1] > value:
            pool[chosen] = found
    flat, _ = ascent.climb(max(pool, key=lambda pair: pair[1])[0], _POLISH)
    return {site: torch.tensor(value).to(starts[0][site]) for site, value in ascent.parts(flat).items()}


def _softplus(odds: Array) -> Array:
    return np.maximum(odds, 0) + np.log1p(np.exp(-np.abs(odds)))


def _sigmoid(odds: Array) -> Array:
    return 0.5 + 0.5 * np.tanh(0.5 * odds)


def _normalise(logs: Array, axis: int) -> tuple[Array, Array]:
    """Chances along an axis, and the logarithms of the sums. The logarithms are overwritten."""
    top = logs.max(axis, keepdims=True)
    np.exp(logs - top, out=logs)
    total = logs.sum(axis, keepdims=True)
    logs /= total
    return logs, (top + np.log(total)).squeeze(axis)
