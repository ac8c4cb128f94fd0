"""``fit(model, x)``: the best-known method for a model and a size."""

from __future__ import annotations

from typing import Any

import torch

from custom_inference._methods import named_method, with_settings
from custom_inference.engines import engines_of, scalable_bound
from custom_inference.fit import Fit
from custom_inference.svi import SVI
from custom_inference.vem import EM, VariationalEM
from ppl_models import Data, Model
from ppl_models._model import require_model
from ppl_models._row_blocks import RowBlocks

#: Exact EM is the default up to codes of this many bits.
EXACT_EM_UP_TO = 10
#: Families for continuous locals, the first that a model has being its default: scores are integrated out (logistic
#: PCA), memberships estimated as points, as their paper does and as phantoms need (aspect Bernoulli).
PREFERRED = ("vb", "gaussian", "map", "mean_field")


def default_method(model: Model, data: Data | None) -> Any:
    """The best-known method for a model and a size.

    Binary codes: exact EM where enumeration is cheap, the family for large codes beyond. Choices of a class: exact EM.
    Continuous locals, and the blocks of a graph's nodes: the family that ``PREFERRED`` names, but collapsed
    variational Bayes for mixed memberships of small graphs, of which "vb" is too sure. All with search;
    AutoDelta with the codes summed out for models without closed-form steps.
    """
    del data  # no default depends on the data so far
    engines = engines_of(model)
    if not engines:
        return SVI(guide="delta")
    if model.is_graph and "cvb0" in engines and engines["cvb0"]().feasible(model):
        return VariationalEM(guide="cvb0")
    if model.has_continuous_locals or model.is_graph:
        return VariationalEM(guide=next(name for name in (*PREFERRED, *engines) if name in engines))
    if model.code_bits is None or model.code_bits <= EXACT_EM_UP_TO:
        return EM()
    return VariationalEM(guide=scalable_bound(model))


def fit(
    model: Model,
    x: Any,
    *,
    seed: int = 0,
    method: Any = None,
    mask: Any = None,
    device: Any = None,
    dtype: torch.dtype = torch.float64,
    init: Any = None,
    progress: bool = True,
    **settings: Any,
) -> Fit:
    """Fit a model with the default, best-known method for it and for the size at hand.

    method: a method object, or one of the names that :func:`custom_inference.methods_for` gives for the model.
    settings: fields of the method.
    Missing entries: NaN, or ``mask`` (True = observed).
    """
    require_model(model)
    if isinstance(x, RowBlocks):  # only VariationalEM learns from these; it says what it needs
        blocks = default_method(model, None) if method is None else named_method(method)
        return with_settings(blocks, settings).fit(
            model, x, mask=mask, seed=seed, device=device, dtype=dtype, init=init, progress=progress
        )
    data = model.prepare(x, mask=mask, dtype=dtype, device=device)
    if method is None:
        chosen = with_settings(default_method(model, data), settings)
    else:
        chosen = named_method(method, **settings)
    return chosen.fit(model, data, seed=seed, device=device, dtype=dtype, init=init, progress=progress)
