"""A program of people's own, run once before it is fitted: what would fail later without a name, or not fail at all."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pyro
import torch
from pyro import poutine
from torch import Tensor
from torch.distributions import Distribution

from custom_inference.core.isolation import default_dtype
from custom_inference.core.latent_values import plates_of_rows
from custom_inference.core.programs.row_plates import row_dim_of
from custom_inference.core.programs.statements import (
    check_statements,
    is_statement,
    layout_of,
    own_parameters,
    row_plates_on,
)
from custom_inference.core.programs.supports import base_of
from custom_inference.core.registry import engines_of
from ppl_models import MODELS, Data, Model, ModelError, PPLError
from ppl_models.core.errors import about
from ppl_models.core.hierarchy import typical_values
from ppl_models.core.sites import of_element
from ppl_models.core.supports import Entries, is_fixed
from ppl_models.data.entries import refuse_entries

#: Entries of x that a program is tried on.
_CELLS = 100_000
#: What torch says of tensors that are taken for one number.
_OF_ONE = ("Boolean value of Tensor", "be converted to Scalar", "only one element tensors")


def check_program(model: Model, data: Data) -> None:
    """Refuse a program of rows, no model of the suite, whose statements are not what it declares, or do not suit data.

    Raises ModelError for parameters among its statements, for what cannot be run, for latents that leave their support,
    and for a statement of x that missing entries are not left out of; DataError for entries that the distribution of x
    gives no probability.
    """
    if not _is_of_people(model):
        return
    part, params = _some_rows(data), _typical_globals(model, data)
    trace = _trace(model, part, params, part.arguments)
    learned = [name for name, node in trace.nodes.items() if node["type"] == "param"]
    if learned:
        raise ModelError(
            f"the program of {type(model).__name__} states the parameter '{learned[0]}' by pyro.param or pyro.module; "
            "what is learned is a global site: declare it in `sites` with its prior, and draw it by self.sample"
        )
    nodes = {name: node for name, node in trace.nodes.items() if is_statement(node)}
    check_statements(model, nodes, params)
    _check_shapes(model, nodes)
    if not engines_of(model):
        layout_of(model, nodes, row_plates_on(model, part, params))
    if nodes[model.observed_site]["value"].shape == part.x.shape:
        _check_entries(model, data, nodes[model.observed_site]["fn"])
    if part.mask is not None:
        _check_mask(model, part, params, int((~data.observed).sum()))


def check_minibatches(model: Model, data: Data, batch_size: int | None) -> None:
    """Refuse a program of people's own that states x of other rows than those of a minibatch, or does not weigh these
    as all. Raises ModelError."""
    if batch_size is None or batch_size >= len(data) or not _is_of_people(model):
        return
    part, site = _some_rows(data), model.observed_site
    batch_size = min(batch_size, len(part) - 1)
    arguments = {**part.arguments, "batch_size": batch_size}
    node = _trace(model, part, _typical_globals(model, data), arguments).nodes[site]
    dim = row_dim_of(node, plates_of_rows(model, part))
    found = 0 if dim is None else node["value"].shape[dim - node["fn"].event_dim]
    scale, expected = float(torch.as_tensor(node["scale"]).max()), len(part) / batch_size
    times = (
        "" if math.isclose(scale, expected, rel_tol=1e-6) else f", which count {scale:.3g} and not {expected:.3g} times"
    )
    if found != batch_size or times:
        raise ModelError(
            f"{_describe_statement(model)} the x of {found} rows in a minibatch of {batch_size}{times}; "
            f"{_advise(site)}; in a plate of its own, pyro.plate(..., subsample_size=batch_size) as index, it is "
            "that of x[index]"
        )


def _some_rows(data: Data) -> Data:
    """Return dense rows that stand for all, those with missing entries first: what a program states of one row it
    states of every other."""
    columns = max(1, data.x.shape[1:].numel())
    if data.x.shape[0] * columns > _CELLS:
        complete = torch.ones(len(data)) if data.mask is None else data.mask.flatten(1).all(1).double()
        data = data.rows(complete.argsort(stable=True)[: max(2, _CELLS // columns)])
    return data.dense()


def _typical_globals(model: Model, data: Data) -> dict[str, Tensor]:
    return {name: value.to(data.x) for name, value in typical_values(model).items() if name not in model.known}


def _is_of_people(model: Model) -> bool:
    kind = type(model)
    return kind.listed and kind not in MODELS.values() and model.rows_are_independent


def _describe_statement(model: Model) -> str:
    return f"the program of {type(model).__name__} states '{model.observed_site}' with"


def _advise(site: str) -> str:
    return f"write rows.observe('{site}', ...) in the plate self.rows(x, mask, batch_size, num_rows), not pyro.sample"


def _trace(model: Model, data: Data, params: dict[str, Tensor], arguments: Mapping[str, Tensor | int | None]) -> Any:
    """Run the program at these globals; the caller's parameters and random state stay as they are."""
    tracer: Any = poutine.trace(pyro.condition(model, data=params))
    with own_parameters(), torch.random.fork_rng(devices=[]), default_dtype(data.x.dtype):
        torch.manual_seed(0)
        try:
            with torch.no_grad():
                return tracer.get_trace(data.x, **arguments)
        except PPLError:
            raise
        except Exception as error:
            shapes = {
                name: tuple(node["value"].shape) for name, node in tracer.trace.nodes.items() if is_statement(node)
            }
            stated = ", ".join(f"'{name}' {shape}" for name, shape in shapes.items()) or "anything"
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            reason, *_ = reason.partition(", but found invalid values")
            raise ModelError(
                f"the program of {type(model).__name__} failed after stating {stated}: {reason}; expected "
                f"{_expect_instead(reason, len(data))}"
            ) from error


def _expect_instead(reason: str, rows: int) -> str:
    """Return what to write in place of what failed for this reason."""
    if "to satisfy the constraint" in reason:
        return "parameters within their range wherever the globals are within their supports"
    if any(said in reason for said in _OF_ONE):
        return (
            "a course that is the same in all rows: torch.where(z == 1, a, b) in place of `if z == 1`, and numbers "
            "that are looked up, p[z], in place of .item() or float()"
        )
    return f"statements of {rows} rows, in which what is one number a row takes the axes of x by unsqueeze(-1)"


def _check_shapes(model: Model, nodes: Mapping[str, Any]) -> None:
    """Refuse statements that what was observed does not fit."""
    for name in model.sites_of("observed"):
        if name not in nodes:
            continue
        stated, found = tuple(nodes[name]["fn"].shape()), tuple(nodes[name]["value"].shape)
        mask, batch = nodes[name].get("mask"), tuple(nodes[name]["fn"].batch_shape)
        if torch.is_tensor(mask) and not _broadcasts(mask.shape, batch):
            raise ModelError(
                f"the program of {type(model).__name__} masks '{name}' by a tensor of shape {tuple(mask.shape)}, which "
                f"its batch of shape {batch} does not fit; expected NaN, or mask=, for entries that are not observed"
            )
        if not _broadcasts(stated, found):
            raise ModelError(
                f"the program of {type(model).__name__} states '{name}' by {type(base_of(nodes[name]['fn'])).__name__} "
                f"of shape {stated}, but its values have the shape {found}; expected a law of every entry"
            )


def _broadcasts(*shapes: tuple[int, ...]) -> bool:
    try:
        torch.broadcast_shapes(*shapes)
    except RuntimeError:
        return False
    return True


def _check_entries(model: Model, data: Data, law: Distribution) -> None:
    """Refuse entries that the distribution of x gives no probability at any values of the latents."""
    law = base_of(law)
    support = of_element(getattr(law, "support", None)) if is_fixed(law) else None
    if support is None:
        return
    rule = Entries(support, said_by="its distribution")
    wrong = ~rule.valid(data.x.values() if data.is_sparse else data.x)
    if data.mask is not None:
        wrong = wrong & data.mask
    with about(model.observed_site):
        refuse_entries(data.x, data.feature_names, wrong, rule.refusal)


def _check_mask(model: Model, data: Data, params: dict[str, Tensor], number: int) -> None:
    """Refuse a program in which x has a density though nothing of it is observed; ``number`` entries are missing."""
    site, nothing = model.observed_site, torch.zeros_like(data.x, dtype=torch.bool)
    trace = _trace(model, data, params, {**data.arguments, "mask": nothing})
    with pyro.validation_enabled(False):
        trace.compute_log_prob(site_filter=lambda name, _: name == site)
    if abs(float(trace.nodes[site]["log_prob_sum"])) > 0:
        raise ModelError(
            f"{_describe_statement(model)} the {number} missing entries as if they were observed; {_advise(site)}"
        )
