"""Closed-form updates of proportions under Dirichlet priors, and what Dirichlet posteriors of them need.

``groups`` cuts the last axis into that many equal parts, or into parts of these sizes, each a point of a simplex of its
own: 1 for the words of a topic; the features of the simplex factor model (002, eq. 27.14), whose categories lie side by
side, are more.

The maximum of a posterior depends on the basis its density is taken in. On the simplex a Dirichlet(c) with some c < 1
is unbounded at the edge; as a density of the logits a, p = softmax(a), it has the factor prod_k p_k more:

    simplex:    sum_k (n_k + c_k - 1) log p_k,    p_k proportional to n_k + c_k - 1
    softmax:    sum_k (n_k + c_k) log p_k,        p_k proportional to n_k + c_k

(MacKay, *Choice of basis for Laplace approximation*, Machine Learning 33, 1998.) The second is what 002, eqs. 27.42 and
27.46 print. Engines take the first where all c >= 1, so that flat priors give maximum likelihood, and else the second.

Concentrations of priors are learned by maximum likelihood, from expected logarithms of what they are priors of. For N
vectors p_i with means g_k = (1/N) sum_i E[log p_ik], the expected log density divided by N is

    f(a) = log Gamma(sum_k a_k) - sum_k log Gamma(a_k) + sum_k (a_k - 1) g_k,

concave in a. Its maximum solves psi(a_k) = psi(sum_j a_j) + g_k; setting a to psi^-1 of the right-hand side never
lowers f (Minka, *Estimating a Dirichlet distribution*, 2000, section 1).
"""

from __future__ import annotations

import torch
from torch import Tensor

from custom_inference.families.common.newton import decreasing_root
from custom_inference.families.common.priors import basis_shift, conjugate_prior
from ppl_models import Model, PriorError

#: The number of parts of equal size, or the sizes of all.
Groups = int | tuple[int, ...]

#: Learned concentrations stay above this: exp(psi(a)), about exp(-1 / a), is still a number.
LEAST = 4e-3
_MOST = 1e6


def dirichlet_prior(model: Model, site: str, like: Tensor) -> Tensor:
    """Return the concentration of a Dirichlet prior, whatever it is, broadcastable to the site. Raises
    :class:`MethodError` for any other prior."""
    return conjugate_prior(model, site, torch.distributions.Dirichlet).concentration.to(like)


def dirichlet_concentration(model: Model, site: str, like: Tensor) -> Tensor:
    """Return the concentration of a Dirichlet prior, broadcastable to the site. Raises :class:`MethodError` for any
    other prior, and for concentrations below 1, where the density is unbounded at the edge and has no mode."""
    concentration = dirichlet_prior(model, site, like)
    if basis_shift(concentration) == 0:
        raise PriorError(
            f"the Dirichlet prior of '{site}' has a concentration below 1, so its density is unbounded at the edge and "
            "has no maximum a posteriori; use NUTS, or concentrations of at least 1"
        )
    return concentration


def dirichlet_mode(counts: Tensor, concentration: Tensor, *, floor: float, groups: Groups = 1) -> Tensor:
    """Maximise sum_k counts_k log p_k + log Dirichlet(p; concentration) in p, kept ``floor`` off the edges."""
    return _shares(counts + concentration - 1, floor, groups)


def softmax_or_simplex(counts: Tensor, concentration: Tensor, *, floor: float = 0.0, groups: Groups = 1) -> Tensor:
    """Maximise sum_k counts_k log p_k + log prior in p, in the softmax basis where some concentration is below 1, kept
    ``floor`` off the edges. Goes with :func:`log_prior_density`."""
    return _shares(counts + concentration - basis_shift(concentration), floor, groups)


def log_prior_density(value: Tensor, concentration: Tensor, *, groups: Groups = 1) -> Tensor:
    """Sum log Dirichlet(value; concentration) over rows and groups, in the basis of :func:`softmax_or_simplex`; 0 for a
    flat prior, which moves no maximum, as in ``Model.log_prior``."""
    if bool((concentration == 1).all()):
        return value.new_zeros(())
    parameter = concentration.expand_as(value)
    normaliser = torch.lgamma(group_sums(parameter, groups)).sum() - torch.lgamma(parameter).sum()
    return normaliser + torch.xlogy(parameter - basis_shift(concentration), value).sum()


def normalise(weight: Tensor, groups: Groups = 1) -> Tensor:
    """Divide each group by its sum."""
    return weight / _expand_groups(group_sums(weight, groups), groups, weight)


def group_sums(value: Tensor, groups: Groups = 1) -> Tensor:
    """Sum over each group, (..., groups)."""
    if isinstance(groups, int):
        return value.unflatten(-1, (groups, -1)).sum(-1)
    return torch.stack([part.sum(-1) for part in value.split(groups, -1)], -1)


def expected_log(concentration: Tensor, groups: Groups = 1) -> Tensor:
    """Compute E[log p_k] = psi(c_k) - psi(sum_j c_j) under Dirichlet(c); the sum runs over k's group (002, eq.
    27.40)."""
    total = torch.digamma(group_sums(concentration, groups))
    return torch.digamma(concentration) - _expand_groups(total, groups, concentration)


def dirichlet_divergence(posterior: Tensor, prior: Tensor, groups: Groups = 1) -> Tensor:
    """Compute KL(Dirichlet(posterior) || Dirichlet(prior)) of every row, summed over its groups, (...)."""
    prior = prior.expand_as(posterior)
    normaliser = torch.lgamma(group_sums(posterior, groups)) - torch.lgamma(group_sums(prior, groups))
    each = torch.lgamma(prior) - torch.lgamma(posterior) + (posterior - prior) * expected_log(posterior, groups)
    return normaliser.sum(-1) + each.sum(-1)


def log_moment(counts: Tensor, concentration: Tensor, groups: Groups = 1) -> Tensor:
    """Compute log E[prod_k p_k^{n_k}] under Dirichlet(concentration), groups multiplied, (...) (002, eqs. 27.33 and
    27.35)."""
    total, added = group_sums(concentration, groups), group_sums(counts, groups)
    return log_rising(counts, concentration) + (torch.lgamma(total) - torch.lgamma(total + added)).sum(-1)


def log_rising(counts: Tensor, start: Tensor) -> Tensor:
    """Compute sum log [Gamma(start + counts) / Gamma(start)] over the last axis."""
    return (torch.lgamma(start + counts) - torch.lgamma(start)).sum(-1)


def _expand_groups(of_groups: Tensor, groups: Groups, like: Tensor) -> Tensor:
    """Repeat the value of each group (..., groups) at all its places, (..., D)."""
    if isinstance(groups, int):
        size = like.shape[-1] // groups
        return of_groups.unsqueeze(-1).expand(*of_groups.shape, size).flatten(-2)
    return of_groups.repeat_interleave(torch.tensor(groups, device=like.device), -1)


def _shares(weight: Tensor, floor: float, groups: Groups) -> Tensor:
    # Uniform where nothing was counted: every point is a maximum there.
    total = _expand_groups(group_sums(weight, groups), groups, weight)
    weight = torch.where(total > 0, weight, torch.ones_like(weight))
    return normalise(normalise(weight, groups).clamp(min=floor), groups)


def fit_concentration(mean_log: Tensor, start: Tensor, *, iterations: int = 20) -> Tensor:
    """Fit a concentration for every component by Minka's fixed point from ``start`` (K,)."""
    concentration = start
    for _ in range(iterations):
        before = concentration
        target = torch.digamma(before.sum()) + mean_log
        concentration = inverse_digamma(target).clamp(LEAST, _MOST)
        if bool(((concentration - before).abs() <= 1e-9 * concentration).all()):
            break
    return concentration


def inverse_digamma(value: Tensor) -> Tensor:
    """Compute psi^-1 by Newton's method, from Minka's start (appendix C); five steps give full precision."""
    start = torch.where(value >= -2.22, value.exp() + 0.5, -1 / (value - torch.digamma(value.new_ones(()))))
    for _ in range(5):
        start = start - (torch.digamma(start) - value) / torch.polygamma(1, start)
    return start


def fit_scale(mean_log: Tensor, base: Tensor, start: Tensor) -> Tensor:
    """Find the factor s, a scalar, that maximises f(s base): one strength, the shares of the components being given.

    f'(s) = M psi(s M) - sum_v m_v psi(s m_v) + sum_v m_v g_v falls in s; m = base, M = sum m.
    """
    total = base.sum()

    def slope(s: Tensor) -> tuple[Tensor, Tensor]:
        value = total * torch.digamma(s * total) - (base * torch.digamma(s * base)).sum() + (base * mean_log).sum()
        bend = total**2 * torch.polygamma(1, s * total) - (base**2 * torch.polygamma(1, s * base)).sum()
        return value.reshape(1), bend.reshape(1)

    lower, upper = base.new_tensor([LEAST]) / base.min(), base.new_tensor([_MOST]) / base.max()
    return decreasing_root(slope, lower, upper, start.reshape(1)).squeeze(0)
