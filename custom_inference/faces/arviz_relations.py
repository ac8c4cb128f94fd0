"""Fits of relational models as ArviZ knows them."""

from __future__ import annotations

from typing import Any

from custom_inference.faces.arviz_groups import attributes_of, dataset, distinct
from custom_inference.faces.arviz_library import arviz


def to_arviz(fit: Any) -> Any:
    """InferenceData or DataTree with the groups posterior, sample_stats and observed_data; without draws the clusters
    are those of one, in posterior and in point_estimates, as of all models."""
    model, labels = fit.model, {axis: distinct(names) for axis, names in fit.coords.items()}
    dims = {**{f"cluster_{t}": (t,) for t in model.types}, "concentration": ("type",)}
    draws = fit.draws
    stats = {name: value for name, value in fit.sample_stats.items() if name not in ("log_weight", "clusterings")}
    one = {site: fit.params[site][None, None] for site in dims}
    groups = {"posterior": dataset(draws or one, dims, labels)}
    if draws is None:
        groups["point_estimates"] = groups["posterior"].copy()
    if stats:
        groups["sample_stats"] = dataset(stats, {}, {})
    parts, axes = {}, {}
    for r, name in enumerate(model.relations):
        rows = fit.data.of(r).cpu().numpy()
        parts |= {
            f"{name}_entity": rows[:, 1 : 1 + len(model.relations[name])].astype(int),
            f"{name}_value": rows[:, -1],
        }
        axes |= {f"{name}_entity": (f"{name}_cell", f"{name}_axis"), f"{name}_value": (f"{name}_cell",)}
    groups["observed_data"] = dataset(parts, axes, {}, leading=())
    attributes = attributes_of(fit)
    groups["posterior"].attrs |= attributes
    return arviz().container(groups, attributes)
