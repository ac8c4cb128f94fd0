"""Problems that programs draw themselves, at globals that somebody chose."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyro
import torch
from pyro import poutine

from ppl_models import Data, Example, Model


def drawn(
    model: Model, truth: Mapping[str, Any], num_rows: int, *, seed: int, missing: float = 0.0, **given: Any
) -> Example:
    """Rows that the program draws at these globals, of which a share of the entries is missing then.

    given: what the program conditions on, by its names.
    """
    dtype = torch.get_default_dtype()
    values = {site: torch.as_tensor(value, dtype=dtype) for site, value in truth.items()}
    others = {site: torch.as_tensor(value, dtype=dtype) for site, value in given.items()}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        trace = poutine.trace(pyro.condition(model, data=values)).get_trace(num_rows=num_rows, **others)
        x = model.as_data(trace.nodes[model.observed_site]["value"])
        mask = torch.rand(x.shape) >= missing
    beside = [site for site in model.sites_of("observed") if site != model.observed_site]
    others |= {site: trace.nodes[site]["value"].to(dtype) for site in beside}
    latents = {site: trace.nodes[site]["value"] for site in model.sites_of("latent")}
    filled = torch.where(mask, x, torch.zeros_like(x)).to(dtype)
    data = Data(x=filled, mask=mask if missing else None, others=others)
    return Example(model=model, data=data, truth={**values, **latents})
