"""What nodes bring to their dyads besides their block: nothing, or under degree correction a propensity each.

x_ij ~ Poisson(theta_i theta'_j eta_ab); theta' = theta where the graph is undirected. Given the shares phi of the
blocks, with d_i the edges of a node (a self loop of an undirected graph twice), E[eta] and priors Gamma(a, b),

    points        theta_i = (d_i + a - 1) / (b + e_i),   or (d_i + a) / (b + e_i) in the basis of log theta (a < 1),
    posteriors    q(theta_i) = Gamma(a + d_i, b + e_i),
    e_i = sum over the dyads (i, j) of E[theta'_j] sum_ab phi_ia E[eta_ab] phi_jb.

In an undirected graph e_i holds the other theta themselves. All nodes are then updated at once under the bound
t_i t_j <= (t_i^2 s_j / s_i + t_j^2 s_i / s_j) / 2, tight at s, the values before: with e_i at s and D_i the numerator
above, t_i solves (e_i / s_i + 2 c_i) t^2 + b t = D_i, which raises the objective (self loops: c_i t^2, exact; their
E[theta_i^2] = E[theta_i]^2 (1 + 1 / (a + d_i)), shapes being kept at a + d_i).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from custom_inference.core.engine import Params
from custom_inference.core.posteriors import ContinuousPosterior, GammaPosterior
from custom_inference.families.blocks.rows import Floats, SbmRows, Weights
from custom_inference.families.common.gamma import expected_log_gamma, gamma_divergence, gamma_log_density, gamma_prior
from ppl_models import DegreeCorrectedSBM, MethodError, Model

#: Propensities are kept this far from 0.
FLOOR = 1e-10
#: Updates of undirected propensities in one M step.
_PASSES = 4
#: Blocks are rescaled by at most exp of this in one M step.
_FARTHEST = 5.0


class NodeTerms(NamedTuple):
    """Weights in the exposures, and the powers of them that the nodes' edges bring, a sum over nodes."""

    weights: Weights
    log_power: float


class Exposures(NamedTuple):
    """What a node's dyads expose it to, at E[eta], by propensities 1 of its own.

    partners: of means (N,) of the others' propensities, the sum over its dyads with others, (N,); whether it is the
        first of them. own: that of its self loop, (N,).
    """

    partners: Callable[[Floats, bool], Floats]
    own: Floats


class Plain:
    """No degree correction: nodes of one block bring nothing of their own."""

    @property
    def names(self) -> tuple[str, ...]:
        """Their parameters."""
        return ()

    def check(self) -> None:
        """Nothing to refuse."""

    def terms(self, params: Params, rows: SbmRows) -> NodeTerms:
        del params
        return NodeTerms(Weights.ones(len(rows)), 0.0)

    def start(self, rows: SbmRows, share: Floats) -> Params:
        """Parameters to begin with, given shares (N, K)."""
        del rows, share
        return {}

    def update(self, params: Params, rows: SbmRows, exposures: Exposures) -> Params:
        """Better parameters."""
        del params, rows, exposures
        return {}

    def rescaled(self, params: Params, rows: SbmRows, share: Floats, matrix: Floats, prior: Any) -> Params | None:
        """Parameters in the scale that suits the priors; None where there is none to choose."""
        del params, rows, share, matrix, prior

    def prior_term(self, params: Params) -> float:
        """Their log prior density, or minus the divergence of their posteriors from the prior."""
        del params
        return 0.0

    def values(self, params: Params) -> tuple[Params, dict[str, ContinuousPosterior]]:
        """Values, and posteriors where there are."""
        del params
        return {}, {}


@dataclass(frozen=True)
class Propensities(Plain):
    """A propensity for every node (two where directed): a point, or a Gamma posterior. ``integrated``: the latter."""

    model: Any
    integrated: bool

    @property
    def sites(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.model.propensity_sites))

    @property
    def names(self) -> tuple[str, ...]:
        if not self.integrated:
            return self.sites
        return tuple(f"{site}_{part}" for site in self.sites for part in ("shape", "rate"))

    def check(self) -> None:
        """Raises MethodError for priors that are not conjugate, and for improper ones of posteriors."""
        for site in self.sites:
            if self.integrated and not bool((self._prior(site)[1] > 0).all()):
                raise MethodError(f"the prior of '{site}' is improper, so nothing bounds log p(x); use a Gamma")
            self._prior(site)

    def _prior(self, site: str) -> tuple[Tensor, Tensor]:
        like = torch.zeros(self.model.num_nodes, dtype=torch.float64)
        shape, rate = gamma_prior(self.model, site, like)
        return shape.expand_as(like), rate.expand_as(like)

    def _power(self, site: str) -> Floats:
        """The power of theta_i that the prior brings: a - 1; a in the basis of the logarithm, and of posteriors."""
        shape, _ = self._prior(site)
        return (shape - (0.0 if self.integrated or bool((shape < 1).any()) else 1.0)).numpy()

    def _degrees(self, rows: SbmRows) -> dict[str, Floats]:
        return dict(zip(self.model.propensity_sites, rows.degrees, strict=True))

    # ----- parameters and values --------------------------------------------------------------------------

    def _pair(self, params: Params, site: str) -> tuple[Tensor, Tensor]:
        return params[f"{site}_shape"].double(), params[f"{site}_rate"].double()

    def _means(self, params: Params) -> dict[str, Floats]:
        if not self.integrated:
            return {site: params[site].double().numpy() for site in self.sites}
        return {site: (shape / rate).numpy() for site in self.sites for shape, rate in [self._pair(params, site)]}

    def _from_means(self, means: dict[str, Floats], rows: SbmRows) -> Params:
        if not self.integrated:
            return {site: torch.as_tensor(mean) for site, mean in means.items()}
        params: Params = {}
        for site, mean in means.items():
            shape = self._prior(site)[0] + torch.as_tensor(self._degrees(rows)[site])
            params |= {f"{site}_shape": shape, f"{site}_rate": shape / torch.as_tensor(mean)}
        return params

    def terms(self, params: Params, rows: SbmRows) -> NodeTerms:
        means = self._means(params)
        out, into = (means[site] for site in self.model.propensity_sites)
        power = 0.0
        for site in self.sites:
            log = expected_log_gamma(*self._pair(params, site)) if self.integrated else _log(params[site].double())
            power += float(torch.as_tensor(self._degrees(rows)[site]) @ log)
        return NodeTerms(Weights(out, into, out * into * self._spread(rows)), power)

    def _spread(self, rows: SbmRows) -> Floats | float:
        """E[theta_i theta'_i] / (E[theta_i] E[theta'_i])."""
        if self.model.directed or not self.integrated:
            return 1.0
        return 1 + 1 / (self._prior("propensity")[0].numpy() + rows.degrees[0])

    def start(self, rows: SbmRows, share: Floats) -> Params:
        """Degrees against the block's mean degree, in the prior's mean."""
        means = {}
        for site, degree in self._degrees(rows).items():
            shape, rate = self._prior(site)
            middle = np.where(rate.numpy() > 0, shape.numpy() / np.maximum(rate.numpy(), FLOOR), 1.0)
            typical = (share.T @ degree + 1e-3) / (share.sum(0) + 1e-3)
            means[site] = np.maximum((degree + 0.1) / (share @ typical + 0.1) * middle, FLOOR)
        return self._from_means(means, rows)

    # ----- updates ----------------------------------------------------------------------------------------

    def update(self, params: Params, rows: SbmRows, exposures: Exposures) -> Params:
        means = dict(self._means(params))
        numerator = {site: self._power(site) + degree for site, degree in self._degrees(rows).items()}
        rates = {site: self._prior(site)[1].numpy() for site in self.sites}
        if not self.model.directed:
            site, own = self.sites[0], exposures.own * self._spread(rows)
            for _ in range(_PASSES):
                exposure = exposures.partners(means[site], True)
                means[site] = _undirected(means[site], exposure, own, numerator[site], rates[site])
            return self._from_means(means, rows)
        for site, other, outgoing in zip(self.sites, self.sites[::-1], (True, False), strict=True):
            exposure = rates[site] + exposures.partners(means[other], outgoing) + exposures.own * means[other]
            means[site] = np.maximum(numerator[site] / np.maximum(exposure, FLOOR), FLOOR)
        return self._from_means(means, rows)

    def rescaled(self, params: Params, rows: SbmRows, share: Floats, matrix: Floats, prior: Any) -> Params | None:
        """Block by block the scale that suits the priors, were the blocks certain: there the likelihood is the same
        for theta_i c_a, eta_ab / (c_a c_b), and coordinate ascent would crawl.

        prior: of eta, (power, rate) (K, K), the power as in :meth:`_power`, 0 below the diagonal if undirected.
        """
        label, means = share.argmax(1), self._means(params)
        blocks = share.shape[1]
        sums = {
            site: tuple(
                np.bincount(label, weight, blocks)
                for weight in (self._power(site), self._prior(site)[1].numpy() * means[site])
            )
            for site in self.sites
        }
        moves = _scales([sums[site] for site in self.model.propensity_sites], matrix, prior, self.model.directed)
        scaled = {site: means[site] * np.exp(move)[label] for site, move in zip(self.sites, moves, strict=False)}
        return self._from_means(scaled, rows)

    def prior_term(self, params: Params) -> float:
        if self.integrated:
            return -sum(float(gamma_divergence(self._pair(params, s), self._prior(s)).sum()) for s in self.sites)
        return sum(float(gamma_log_density(params[s].double(), self._prior(s))) for s in self.sites)

    def values(self, params: Params) -> tuple[Params, dict[str, ContinuousPosterior]]:
        if not self.integrated:
            return {site: params[site] for site in self.sites}, {}
        found = {s: GammaPosterior(params[f"{s}_shape"], params[f"{s}_rate"]) for s in self.sites}
        return {site: posterior.mean for site, posterior in found.items()}, dict(found)


def nodes_of(model: Model, *, integrated: bool) -> Plain:
    """What the nodes of a model bring."""
    return Propensities(model, integrated) if isinstance(model, DegreeCorrectedSBM) else Plain()


def _log(value: Tensor) -> Tensor:
    return torch.log(value.clamp(min=torch.finfo(value.dtype).tiny))


def _undirected(mean: Floats, exposure: Floats, own: Floats, numerator: Floats, rate: Floats) -> Floats:
    """One update of all nodes, whose exposure is to the others' means; see the module."""
    square = exposure / mean + 2 * own
    # The positive root of square t^2 + rate t = numerator, written so that square = 0 is no special case.
    root = rate + np.sqrt(rate**2 + 4 * np.maximum(square, 0) * numerator)
    return np.maximum(2 * numerator / np.maximum(root, FLOOR), FLOOR)


def _scales(sums: list[Any], matrix: Floats, prior: tuple[Floats, Floats], directed: bool) -> list[Floats]:
    """log c of the blocks, (K,) for the first nodes of dyads and for the second; the same if undirected.

    Maximises sum_a [P_a u_a - Q_a e^(u_a)], the same of v, - sum_ab [p_ab (u_a + v_b) + r_ab eta_ab e^(-u_a - v_b)],
    which is concave. sums: (P, Q) of the first and of the second.
    """
    (power, rate), blocks = prior, len(matrix)
    sides = sums if directed else sums[:1]

    def negative(flat: Floats) -> tuple[float, Floats]:
        moves = flat.reshape(len(sides), blocks)
        first, second = moves[0], moves[-1]
        value, slope = 0.0, np.zeros_like(moves)
        for move, (linear, growing), into in zip(moves, sides, slope, strict=True):
            value += float(linear @ move - growing @ np.exp(move))
            into += linear - growing * np.exp(move)
        shrunk = rate * matrix * np.exp(-first[:, None] - second)
        value -= float((power * (first[:, None] + second)).sum() + shrunk.sum())
        slope[0] += (shrunk - power).sum(1)
        slope[-1] += (shrunk - power).sum(0)
        return -value, -slope.ravel()

    used = np.concatenate([(np.abs(linear) + growing) > 0 for linear, growing in sides])
    bounds = [(-_FARTHEST, _FARTHEST) if one else (0.0, 0.0) for one in used]
    found = minimize(negative, np.zeros(len(used)), jac=True, method="L-BFGS-B", bounds=bounds)
    moves = found.x.reshape(len(sides), blocks)
    return [moves[0], moves[-1]]
