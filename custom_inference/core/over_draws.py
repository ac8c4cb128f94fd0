"""The locals' posterior of fits that hold draws of the globals: the average of the posteriors given each draw.

    p(s_n | x) = E[p(s_n | x_n, theta) | x],   about   1/S sum_s p(s_n | x_n, theta_s)

It differs from the posterior at the mean of the draws by as much as the globals are uncertain.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from custom_inference.core.local_inference import is_feasible, solve_local
from custom_inference.core.posteriors import CodePosterior

#: Draws that are averaged over, at most, evenly spaced over the chains; of large data so many that they take about
#: _PRODUCTS products of entries and values, but no fewer than _FEWEST.
AVERAGED, _FEWEST, _PRODUCTS = 200, 25, 2e10


def mixture_over_draws(fit: Any) -> CodePosterior | None:
    """The mixture of the exact posteriors of the training rows' codes or choices, given draws of the globals.

    At most ``AVERAGED`` draws, evenly over all chains, of large data fewer. None where the fit holds no draws of the
    globals, or has drawn the locals with them; where the rows depend on each other; and where a posterior given the
    globals is no table over the same values for all rows.
    """
    model, draws = fit.model, fit.draws
    if draws is None or model.local_site in draws or not model.rows_are_independent or not is_feasible(model):
        return None
    varying = [site for site in model.global_sites if site in draws]
    if not varying:
        return None
    chains, length = draws[varying[0]].shape[:2]
    values = model.local_shape[0] if model.code_bits is None else 2.0**model.code_bits
    number = min(chains * length, AVERAGED, max(_FEWEST, int(_PRODUCTS / (values * fit.data.x.numel()))))
    total, codes = None, None
    for place in range(number):
        chain, draw = divmod(place * chains * length // number, length)
        params = fit.globals | {site: draws[site][chain, draw] for site in varying}
        posterior = solve_local(model, params, fit.data, seed=fit.seed).posterior
        if not isinstance(posterior, CodePosterior) or not posterior.shared:
            return None
        total = _added(total, posterior.log_weight)
        codes = posterior.codes
    assert total is not None and codes is not None
    return CodePosterior(codes, total - math.log(number))


def _added(total: Tensor | None, log_weight: Tensor) -> Tensor:
    """log(exp(total) + exp(log_weight)), one draw at a time: no more than two tables are held."""
    return log_weight if total is None else torch.logaddexp(total, log_weight)
