"""Models run forward at given values: new rows, and what the observed site is at given locals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyro
import torch
from pyro import poutine
from torch import Tensor

from custom_inference.core.isolation import default_dtype, isolated
from custom_inference.core.latent_values import is_own_of_rows, latent_values, read_latents
from custom_inference.core.programs.row_plates import row_plates_of
from custom_inference.core.states import Params
from ppl_models import MODELS, Data, MethodError, Model, ModelError


def factors_in(nodes: Mapping[str, Any]) -> dict[str, Tensor]:
    """Name -> logarithm of each factor in a run of a program."""
    return {
        name: node["fn"].log_factor
        for name, node in nodes.items()
        if node["type"] == "sample" and type(node["fn"]).__name__ == "Unit"
    }


def refuse_factors(model: Model, names: Iterable[str], of: str = "latents and data") -> None:
    """Refuse to draw where there are factors. of: what they are of. Raises ModelError, which names them."""
    named = ", ".join(f"'{name}'" for name in names)
    if named:
        raise ModelError(
            f"{type(model).__name__} has factors of {of} ({named}), which draws of its program leave out: they would "
            "not be from the distribution that is fitted; state what the factors stand for as distributions of sites"
        )


Values = Mapping[str, Tensor]

#: Rows a block: sparse data are made dense no further.
_BLOCK_ROWS = 4096


def sample_rows(model: Model, params: Values, num_rows: int, *, seed: int = 0, like: Data | None = None) -> Params:
    """Run the model forward at ``params``: latents of rows and observed sites -> (num_rows, ...).

    like: data of as many rows, whose lengths and the like the program is given.

    Raises ModelError for a program with factors.
    """
    graph = not model.rows_are_independent
    if num_rows < 1 + graph:
        of_nodes = "2 nodes: sample() draws a graph of as many as the fit's, sample(n) one of n"
        raise MethodError(f"num_rows = {num_rows}, expected at least {of_nodes if graph else 1}")
    nodes = _forward(model, params, num_rows, seed, like)
    refuse_factors(model, factors_in(nodes))
    if is_own_of_rows(model):
        found = read_latents(model, nodes, row_plates_of(model, lambda few: _forward_few(model, params, few, like)))
    else:
        found = {model.local_site: nodes[model.local_site]["value"]}
    found |= {site: nodes[site]["value"] for site in model.sites_of("observed")}
    return {**found, model.observed_site: model.as_data(found[model.observed_site])}


def run_of(model: Model, num_rows: int, values: Values, *, seed: int, like: Data) -> Params:
    """A run of the program, held at the values of some sites (which it takes as they are): global and observed sites.

    like: data of as many rows, whose lengths and the like the program is given.

    Raises ModelError for a program with factors, unless it is held at values of the main latent.
    """
    nodes = _forward(model, values, num_rows, seed, like)
    if model.local_site not in values:
        refuse_factors(model, factors_in(nodes))
    found = {site: nodes[site]["value"] for site in (*model.global_sites, *model.sites_of("observed"))}
    return {**found, model.observed_site: model.as_data(found[model.observed_site])}


def observed_site(model: Model, params: Values, local: Tensor, *, seed: int = 0, like: Data | None = None) -> Any:
    """The program's observed site at given locals (N, ...): its distribution ``fn``, and a ``value`` drawn from it.

    like: the data that the locals belong to, whose lengths and the like the program is given.
    """
    values = {**params, **latent_values(model, params, like, local)}
    return _forward(model, values, len(local), seed, like)[model.observed_site]


def require_copies(model: Model, params: Values, local: Tensor, like: Data) -> None:
    """Refuse a program in which a factor depends on the observed site, whose distribution at given locals is then not
    the one that is stated. Raises ModelError, which names the factors."""
    if type(model) in MODELS.values():  # which have none
        return
    values = {**params, **latent_values(model, params, like, local)}
    one, other = (factors_in(_forward(model, values, len(local), seed, like)) for seed in (0, 1))
    refuse_factors(model, [name for name in one if not torch.equal(one[name], other[name])], "what is observed")


def _forward(model: Model, values: Values, num_rows: int, seed: int, like: Data | None) -> Any:
    """The sites of a run of the program, held at the values of some."""
    given = model.given_rows(num_rows) if like is None else model.given(like)
    dtype = next((value.dtype for value in values.values() if value.is_floating_point()), None)
    if dtype is None and like is not None:
        dtype = like.x.dtype
    with isolated(seed), default_dtype(dtype or torch.get_default_dtype()):
        return poutine.trace(pyro.condition(model, data=dict(values))).get_trace(num_rows=num_rows, **given).nodes


def _forward_few(model: Model, values: Values, num_rows: int, like: Data | None) -> Any:
    """The sites of a run on so many rows, given what the first of ``like`` are given, in turn."""
    few = None if like is None else like.rows(torch.arange(num_rows) % len(like))
    return _forward(model, values, num_rows, 0, few)


def feature_mean(model: Model, params: Values, local: Tensor, *, like: Data | None = None) -> Tensor:
    """E[x_nj | local latents], (N, D) for a local site (N, ...): the mean of the program's observed site."""
    values = {**params, **latent_values(model, params, like, local)}
    if like is not None and model.rows_are_independent:
        values[model.observed_site] = like.x  # nothing need be drawn: of long documents that takes longest
    return model.as_data(_forward(model, values, len(local), 0, like)[model.observed_site]["fn"].mean)


def expect_generated(model: Model, values: Values, like: Data, *, seed: int) -> Tensor:
    """Return E[x_nj | values of sites], (N, D), of rows that are given, and observed with beside x, what ``like`` is,
    whose x is not looked at."""
    beside = {site: like.others[site] for site in model.sites_of("observed") if site in like.others}
    with pyro.validation_enabled(False):  # of values of latents at the ends of their supports
        node = _forward(model, {**values, **beside}, len(like), seed, like)[model.observed_site]
    return model.as_data(node["fn"].mean)


def refuse_draws(model: Model, params: Values, like: Data) -> None:
    """Refuse a program with factors, which draws leave out. Raises ModelError."""
    refuse_factors(model, factors_in(_forward_few(model, params, 2, like)))


def conditional_log_likelihood(model: Model, params: Values, data: Data, local: Tensor) -> Tensor:
    """log p(x_n | local latents, params), (N,), of the observed entries, in blocks of rows; of a graph (1,)."""
    if not model.rows_are_independent:
        values = latent_values(model, params, data, local)
        return observed_log_prob(model, {**params, **values}, data).sum().unsqueeze(0)
    found = []
    for start in range(0, len(data), _BLOCK_ROWS):
        block = slice(start, start + _BLOCK_ROWS)
        values = latent_values(model, params, data, local[block])
        found.append(observed_log_prob(model, {**params, **values}, data.rows(block)))
    return torch.cat(found)


def observed_log_prob(model: Model, values: Values, data: Data) -> Tensor:
    """log p(x | values of every latent site), of each row (N,), or of each dyad of a graph (E,)."""
    with isolated(0), default_dtype(next(value.dtype for value in values.values() if value.is_floating_point())):
        site = _observing(model, values, data)
    return site["fn"].log_prob(site["value"])


def observed_law(model: Model, values: Values, data: Data) -> Any:
    """p(x | values of every latent site) as the program's distribution, of as many entries as the data have.

    Within the caller's :func:`isolated`: this is called again and again.
    """
    return _observing(model, values, data)["fn"]


def _observing(model: Model, values: Values, data: Data) -> Any:
    data, program = model.as_read(data), pyro.condition(model, data=dict(values))
    return poutine.trace(program).get_trace(data.x, **data.arguments).nodes[model.observed_site]
