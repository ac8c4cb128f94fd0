"""What nodes bring to their dyads besides their block: under degree correction a propensity each.

x_ij ~ Poisson(theta_i theta'_j eta_ab); theta' = theta where the graph is undirected. Given the responsibilities
phi, with d_i the edges of a node (a self loop of an undirected graph twice), E[eta] and priors Gamma(a, b),

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
from torch import Tensor

from custom_inference.core.engine import Params
from custom_inference.core.optimize.lbfgs import minimise
from custom_inference.core.posteriors import ContinuousPosterior, GammaPosterior
from custom_inference.families.blocks.rows import Floats, NodeWeights, SbmRows
from custom_inference.families.conjugate.gamma import Gamma
from ppl_models import PriorError
from ppl_models.block_models import BlockModel

#: Propensities are kept this far from 0.
FLOOR = 1e-10
#: Updates of undirected propensities in one M step.
_PASSES = 4
#: Blocks are rescaled by at most exp of this in one M step.
_FARTHEST = 5.0
#: Logarithms are taken of no less.
_TINY = np.finfo(np.float64).tiny


class Exposures(NamedTuple):
    """What a node's dyads expose it to, at E[eta], by propensities 1 of its own.

    partners: of means (N,) of the others' propensities, the sum over its dyads with others, (N,); whether it is the
        first of them. own: that of its self loop, (N,).
    """

    partners: Callable[[Floats, bool], Floats]
    own: Floats


@dataclass(frozen=True)
class Propensities:
    """S propensities of every node (two where directed, none without degree correction): points, or Gamma posteriors.

    integrated: the latter.
    """

    model: BlockModel
    integrated: bool

    @property
    def sites(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.model.propensity_sites))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the parameters."""
        return tuple(site + part for part in (("_shape", "_rate") if self.integrated else ("",)) for site in self.sites)

    def check(self) -> None:
        """Raises MethodError for priors that are not conjugate, and for improper ones of posteriors."""
        for site, rate in zip(self.sites, self.priors().rate, strict=True):
            if self.integrated and not bool((rate > 0).all()):
                raise PriorError(f"the prior of '{site}' is improper, so nothing bounds log p(x); use a Gamma")

    def priors(self) -> Gamma:
        """Return the priors, of parameters (S, N). Raises PriorError for priors that are no Gammas."""
        like = torch.zeros(self.model.num_nodes, dtype=torch.float64)
        pairs = [Gamma.of(self.model, site, like) for site in self.sites]
        shape, rate = (like.new_empty(len(pairs), len(like)) for _ in range(2))
        for side, pair in enumerate(pairs):
            shape[side], rate[side] = pair
        return Gamma(shape, rate)

    def power(self, shape: Tensor) -> Tensor:
        """Return the power of theta in the prior, a its shape: a - 1; a in the basis of the logarithm, and for
        posteriors."""
        return shape - (0.0 if self.integrated or bool((shape < 1).any()) else 1.0)

    @property
    def powers(self) -> Floats:
        """The powers of all propensities, (S, N)."""
        return torch.stack([self.power(shape) for shape in self.priors().shape]).numpy()

    def _stack(self, params: Params, part: str = "") -> Tensor:
        return torch.stack([params[site + part].double() for site in self.sites])

    def _posterior(self, params: Params) -> Gamma:
        return Gamma(self._stack(params, "_shape"), self._stack(params, "_rate"))

    def _means(self, params: Params) -> Floats:
        """Return the means of the propensities, (S, N)."""
        if not self.integrated:
            return self._stack(params).numpy()
        return self._posterior(params).mean.numpy()

    def _from_means(self, means: Floats, rows: SbmRows) -> Params:
        parts = torch.as_tensor(means)
        if self.integrated:
            shape = self.priors().shape + torch.as_tensor(rows.degrees)
            parts = torch.cat([shape, shape / parts])
        return {name: part.clone() for name, part in zip(self.names, parts, strict=True)}

    def weights(self, params: Params, rows: SbmRows) -> NodeWeights:
        """Return the weights of the nodes in their dyads."""
        if not self.sites:
            return rows.unweighted
        ends = self._means(params)
        log = self._posterior(params).expected()[0].numpy() if self.integrated else np.log(ends.clip(_TINY))
        return NodeWeights(
            ends, ends[0] * ends[-1] * self._second_moment_ratio(rows), float((rows.degrees * log).sum())
        )

    def _second_moment_ratio(self, rows: SbmRows) -> Floats | float:
        """Compute E[theta_i theta'_i] / (E[theta_i] E[theta'_i])."""
        if self.model.directed or not self.integrated:
            return 1.0
        return 1 + 1 / (self.priors().shape[0].numpy() + rows.degrees[0])

    def start(self, rows: SbmRows, phi: Floats) -> Params:
        """Return parameters to begin with: degrees relative to the block's mean degree, times the prior's mean."""
        if not self.sites:
            return {}
        (shape, rate), degree = (part.numpy() for part in self.priors()), rows.degrees
        middle = np.where(rate > 0, shape / np.maximum(rate, FLOOR), 1.0)
        typical = (degree @ phi + 1e-3) / (phi.sum(0) + 1e-3)
        return self._from_means(np.maximum((degree + 0.1) / (typical @ phi.T + 0.1) * middle, FLOOR), rows)

    def update(self, params: Params, rows: SbmRows, exposures: Exposures) -> Params:
        """Return better parameters of the propensities."""
        means, rate = self._means(params), self.priors().rate.numpy()
        numerator = self.powers + rows.degrees
        if not self.model.directed:
            own = exposures.own * self._second_moment_ratio(rows)
            for _ in range(_PASSES):
                exposure = exposures.partners(means[0], True)
                means = _update_undirected(means[0], exposure, own, numerator[0], rate[0])[None]
            return self._from_means(means, rows)
        for side in (0, 1):
            exposure = rate[side] + exposures.partners(means[1 - side], side == 0) + exposures.own * means[1 - side]
            means[side] = np.maximum(numerator[side] / np.maximum(exposure, FLOOR), FLOOR)
        return self._from_means(means, rows)

    def rescale(
        self, params: Params, rows: SbmRows, phi: Floats, matrix: Floats, prior: tuple[Floats, Floats]
    ) -> Params:
        """Rescale the propensities block by block to the scale that suits the priors, were the blocks certain: there
        the likelihood is the same for theta_i c_a, eta_ab / (c_a c_b), and coordinate ascent would crawl.

        prior: of eta, (power, rate) (K, K), the power as in :meth:`power`, 0 below the diagonal if undirected.
        """
        label, means = phi.argmax(1), self._means(params)
        terms = self.powers, self.priors().rate.numpy() * means
        sums: Any = [[np.bincount(label, side, phi.shape[1]) for side in term] for term in terms]
        moves = find_scales(np.array(sums[0], np.float64), np.array(sums[1], np.float64), matrix, prior)
        return self._from_means(means * np.exp(moves)[:, label], rows)

    def prior_term(self, params: Params) -> float:
        """Compute the log prior density, or minus the divergence of the posteriors from the prior."""
        if not self.sites:
            return 0.0
        if self.integrated:
            return -float(self._posterior(params).kl(self.priors()).sum())
        sides = zip(self._stack(params), *self.priors(), strict=True)
        return sum(float(Gamma(shape, rate).log_density(value).sum()) for value, shape, rate in sides)

    def posteriors(self, params: Params) -> dict[str, ContinuousPosterior]:
        """Return the posterior of every site, where propensities are integrated out."""
        return {site: GammaPosterior(params[f"{site}_shape"], params[f"{site}_rate"]) for site in self.sites}


def _update_undirected(mean: Floats, exposure: Floats, own: Floats, numerator: Floats, rate: Floats) -> Floats:
    """Update all nodes once, whose exposure is to the others' means; see the module."""
    square = exposure / mean + 2 * own
    # The positive root of square t^2 + rate t = numerator, written so that square = 0 is no special case.
    root = rate + np.sqrt(rate**2 + 4 * np.maximum(square, 0) * numerator)
    return np.maximum(2 * numerator / np.maximum(root, FLOOR), FLOOR)


def find_scales(linear: Floats, growing: Floats, matrix: Floats, prior: tuple[Floats, Floats]) -> Floats:
    """Find the best log c of the blocks, (S, K).

    Maximises sum_a [P_a u_a - Q_a e^(u_a)], the same of v, - sum_ab [p_ab (u_a + v_b) + r_ab eta_ab e^(-u_a - v_b)],
    which is concave; u of the first nodes of dyads, v of the second, and v = u if undirected. linear, growing: P, Q.
    """
    power, rate = prior

    def negative(flat: Floats) -> tuple[float, Floats]:
        moves = flat.reshape(linear.shape)
        both = moves[0][:, None] + moves[-1]
        grown, shrunk = growing * np.exp(moves), rate * matrix * np.exp(-both)
        value = (linear * moves - grown).sum() - (power * both + shrunk).sum()
        slope = linear - grown
        slope[0] += (shrunk - power).sum(1)
        slope[-1] += (shrunk - power).sum(0)
        return -float(value), -slope.ravel()

    used = (np.abs(linear) + growing > 0).ravel()
    bounds = [(-_FARTHEST, _FARTHEST) if one else (0.0, 0.0) for one in used]
    return minimise(negative, np.zeros(len(used)), bounds=bounds)[0].reshape(linear.shape)
