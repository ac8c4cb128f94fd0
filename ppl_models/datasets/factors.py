"""Factor models with known truth: ratings as products of factors, and counts as sums of components."""

from __future__ import annotations

import numpy as np
import torch

from ppl_models.core.errors import ModelError
from ppl_models.data import sparse
from ppl_models.data.ratings.data import Ratings
from ppl_models.datasets.images import Generated


def sample_ratings(
    num_users: int = 300,
    num_items: int = 200,
    num_components: int = 3,
    *,
    density: float = 0.15,
    factor_scale: float = 0.5,
    bias_scale: float = 0.4,
    mean: float = 3.5,
    scale: float = 0.5,
    seed: int = 0,
) -> Generated:
    """Draw ratings from probabilistic matrix factorisation with biases (Murphy 2012, eqs. 27.90 and 27.93).

    r_nj = u_n'v_j + mean + f_n + g_j + N(0, scale^2) with u, v ~ N(0, factor_scale I) (variances, so that u'v has the
    variance K factor_scale^2), f, g ~ N(0, bias_scale^2). Each user rates a number of items of their own, ``density``
    of them on average (Gamma of shape 1: some many, most few, none fewer than one); popular items more often.

    Returns the ratings that were given; ``truth`` has mean, user, item, user_bias, item_bias and scale.
    """
    if min(num_users, num_items, num_components) < 1 or not 0 < density <= 1:
        found = f"{num_users} users, {num_items} items, {num_components} components, density = {density}"
        raise ModelError(f"{found}; expected at least 1 of each and a density in (0, 1]")
    rng = np.random.default_rng(seed)
    user, item = (factor_scale**0.5 * rng.standard_normal((n, num_components)) for n in (num_users, num_items))
    user_bias, item_bias = (bias_scale * rng.standard_normal(n) for n in (num_users, num_items))
    share = rng.gamma(1.0, 1.0, num_users)
    each = np.clip(np.rint(share / share.mean() * density * num_items), 1, num_items).astype(np.int64)
    # The items of a user: those with the largest popularity plus Gumbel noise, a draw without replacement.
    popularity = np.log(rng.gamma(1.0, 1.0, num_items) + 1e-3)
    chosen = [np.sort(np.argsort(-(popularity + rng.gumbel(size=num_items)))[:size]) for size in each]
    rows, columns = np.repeat(np.arange(num_users), each), np.concatenate(chosen)
    predictor = (user[rows] * item[columns]).sum(1) + mean + user_bias[rows] + item_bias[columns]
    value = predictor + scale * rng.standard_normal(len(rows))
    crow = torch.as_tensor(np.concatenate([[0], np.cumsum(each)]))
    kind = torch.get_default_dtype()
    x = sparse.tensor(crow, torch.as_tensor(columns), torch.as_tensor(value).to(kind), size=(num_users, num_items))
    truth = {"mean": mean, "user": user, "item": item, "user_bias": user_bias, "item_bias": item_bias, "scale": scale}
    return Generated(
        data=Ratings(x=x), truth={site: torch.as_tensor(part).to(kind) for site, part in truth.items()}, coords={}
    )


def sample_gamma_poisson(
    num_rows: int = 300,
    num_features: int = 40,
    num_components: int = 4,
    *,
    shape: float = 0.5,
    total: float = 40.0,
    loading_shape: float = 0.3,
    seed: int = 0,
) -> Generated:
    """Draw counts from the Gamma-Poisson model (Murphy 2012, eqs. 27.15-27.16): x_nj ~ Poisson(sum_k z_nk b_kj).

    Loadings b are Gamma(loading_shape) scaled to add up to 1 in each component, activations z Gamma(shape) with rates
    that give ``total`` events a row on average. ``truth`` has loading and activation.
    """
    if min(num_rows, num_features, num_components) < 1 or min(shape, total, loading_shape) <= 0:
        raise ModelError("expected at least 1 row, feature and component, and positive shapes and total")
    rng = np.random.default_rng(seed)
    loading = rng.gamma(loading_shape, 1.0, (num_components, num_features)) + 1e-6
    loading /= loading.sum(1, keepdims=True)
    activation = rng.gamma(shape, total / (shape * num_components), (num_rows, num_components))
    x = torch.as_tensor(rng.poisson(activation @ loading)).to(torch.get_default_dtype())
    return Generated.of(x, {"loading": loading, "activation": activation})
