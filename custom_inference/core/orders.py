"""Orders of components where priors, known values or labels tell them apart.

A likelihood does not see in which order components stand. Where what is stated of them differs, every order is another
optimum, and no climb leads from one to another: between them components would have to change what they are. So the best
order is sought at once, where a fit has come to its end: by an assignment of components to places (Kuhn 1955) where the
densities of the priors are sums over places, by exchanges of two where they are not; by exchanges at which the rows are
evaluated anew where known values, or the prior of the latents, tell places apart. The fit then goes on from there, and
the better of both is kept.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from custom_inference.compiled.derive import structure_if_known
from custom_inference.compiled.moves import Exchangeable, find_exchangeable
from custom_inference.core.align import AXES, Order, exchange
from custom_inference.core.ended import Ended
from custom_inference.core.exchangeable import exchangeable
from custom_inference.core.fit import Fit
from custom_inference.core.latent_values import is_own_of_rows
from custom_inference.core.local_inference import LocalSolver, bounds_of, scalable_bound
from custom_inference.core.registry import engine_for
from custom_inference.core.stages import Stages
from ppl_models import Data, Model, PriorError
from ppl_models.core.priors import is_flat

Values = dict[str, Tensor]
#: Orders that are tried in turn, each from the fit that the one before it led to.
_TURNS = 3
#: Exchangeable of which all exchanges are evaluated on the rows, and rows that they are evaluated on, at most.
_EXCHANGED, _ROWS = 12, 200
#: E steps of each, at most, and the gain of a row below which they end.
_PASSES, _SETTLED = 20, 1e-3
#: What an order must gain, in nats.
_GAIN = 1e-3
#: Places of which exchanges are tried where densities are no sums over places, at most.
_ENTANGLED = 40
#: Stands for infinity in assignments.
_NEVER = 1e12
#: Places of which all exchanges are tried where the priors of their shares tell them apart, at most.
_SHARED = 4
_WITH_MEANS = ("Beta", "Dirichlet", "Gamma", "Normal", "LogNormal", "Exponential")
#: Objectives at the end of a fit that rise throughout where they are no draws, nor estimated by some.
_NOISY = 10


def places_of(model: Model) -> list[Exchangeable]:
    """Return what may be permuted in the globals that are unknown, of a listed model its components, where something
    tells its places apart."""
    if is_own_of_rows(model):
        known = structure_if_known(model)
        return [] if known is None else list(find_exchangeable(known))
    if not model.has_components or model.component_site not in model.unknown_sites:
        return []
    sets, size = exchangeable(model), model.sizes["component"]
    if size < 2 or any(len(one) == size for one in sets):
        return []
    axes = {site: tuple(n for n, axis in enumerate(model.dims[site]) if axis in AXES) for site in model.unknown_sites}
    return [Exchangeable(size, {site: own for site, own in axes.items() if own}, (), ())]


def settle_order(model: Model, fit: Fit, go_on: Callable[[Values], Fit]) -> Fit:
    """Return a fit whose components stand where priors, known values and labels have them.

    go_on: fits from given values of the globals. Another order counts where its fit ends at a higher objective. Ctrl-C
    leaves the fit that there is.
    """
    if fit.solver is not None and fit.solver.engine.settles_order(model):
        return fit
    try:
        for _ in range(_TURNS if not fit.interrupted else 0):
            values = _reorder(model, fit)
            again = None if values is None else go_on(values)
            if again is None or not _is_better(model, again, fit):
                break
            fit = _continue(fit, again)
        for values in _exchange_shares(model, fit) if not fit.interrupted else ():
            again = go_on(values)
            fit = _continue(fit, again) if _is_better(model, again, fit) else fit
    except KeyboardInterrupt:
        fit.ended, fit.status = Ended.INTERRUPTED, f"{fit.status}; interrupted in the search for the components' order"
    return fit


def _continue(fit: Fit, again: Fit) -> Fit:
    """Return the fit that went on from another order, with what was said of the one before it."""
    again.status = f"{fit.status}; then in the order that priors or known values have: {again.status}"
    again.details, again.stages = {**fit.details, **again.details}, Stages((*fit.stages, *again.stages))
    again.method = fit.method
    return again


def _exchange_shares(model: Model, fit: Fit) -> Iterator[Values]:
    """Give the globals with two places exchanged and their shares as the priors have them, where few places are told
    apart by priors of their shares: these have come to fit what stands there, so that they do not tell any more."""
    values = {site: fit.params[site] for site in model.global_sites if site in fit.params}
    if is_own_of_rows(model) or len(values) < len(model.global_sites):
        return
    for places in places_of(model):
        told = [site for site in places.sites if model.dims[site] == ("component",)]
        shares = [site for site in told if type(model.priors[site]).__name__ in _WITH_MEANS]
        if places.size > _SHARED or not shares:
            continue
        means = {site: model.prior(site, like=values[site]).mean.expand_as(values[site]) for site in shares}
        for one, other in itertools.combinations(range(places.size), 2):
            order = list(range(places.size))
            order[one], order[other] = other, one
            if any(bool(mean[one] != mean[other]) for mean in means.values()):
                yield {**places.permute(values, torch.tensor(order)), **means}


def _reorder(model: Model, fit: Fit) -> Values | None:
    """Return the values of the globals in a better order; None where there is none, or none can be told."""
    before = {site: fit.params[site] for site in model.global_sites if site in fit.params}
    if len(before) < len(model.global_sites) or not all(bool(value.isfinite().all()) for value in before.values()):
        return None
    after = before
    for places in places_of(model):
        after = places.permute(after, torch.tensor(find_order(model, places, after)))
        if _is_told_by_rows(model, places):
            after = _exchange_by_rows(model, fit.data, places, after)
    return None if all(torch.equal(before[site], after[site]) for site in before) else after


def _is_better(model: Model, again: Fit, fit: Fit) -> bool:
    """Whether a fit that began in another order ended higher. Objectives that are draws, or estimated by some, differ
    by more than orders do: there it is the better one, as it began, unless it went back."""
    if len(again.elbo) and bool((fit.elbo[-_NOISY:].diff() >= 0).all()):
        return float(again.elbo[-1]) > float(fit.elbo[-1]) + _GAIN
    values = again.globals
    return all(find_order(model, one, values) == tuple(range(one.size)) for one in places_of(model))


def find_order(model: Model, places: Exchangeable, values: Values) -> Order:
    """Return the order of places at which the priors of the globals are the most probable."""
    values = {site: value.detach().double() for site, value in values.items()}
    kinds = model.component_kinds  # components of different ones have rows of their own
    gains, entangled = _gains_of_places(model, places, values)
    slots, present = list(range(places.size)), tuple(range(places.size))
    if kinds is not None:
        gains = gains.masked_fill(kinds != kinds[:, None], -_NEVER)

    def density(order: Order) -> float:
        others = _log_prior(model, places.permute(values, torch.tensor(order)), entangled) if entangled else 0.0
        return float(gains[slots, order].sum()) + others

    assigned = tuple(linear_sum_assignment(gains.numpy(), maximize=True)[1].tolist())
    best = max((present, assigned), key=density)
    if entangled and places.size <= _ENTANGLED:
        best = exchange(best, density)
    return best if density(best) > density(present) + _GAIN else present


def _log_prior(model: Model, values: Values, sites: Sequence[str] | None = None) -> float:
    """Return the log density of the priors, of all sites or some; minus infinity outside their supports."""
    try:
        return float(model.log_prior(values, sites).nan_to_num(nan=-torch.inf))
    except ValueError:
        return -torch.inf


def _gains_of_places(model: Model, places: Exchangeable, values: Values) -> tuple[Tensor, list[str]]:
    """Return a (K, K) of the log density in each place of what stands in each, and the sites whose density is no sum
    over places.

    Values are moved on by one place after another: each move shows every place with another's values.
    """
    sites = [site for site in places.sites if not is_flat(model.priors[site])]
    entangled = [site for site in places.turned if site not in places.sites and not is_flat(model.priors[site])]
    gains, present = torch.zeros(places.size, places.size, dtype=torch.float64), torch.arange(places.size)
    for shift in range(places.size):
        order = present.roll(-shift)
        moved = places.permute(values, order)
        for site in (site for site in sites if site not in entangled):
            own = _density_of_places(model, site, moved, places.sites[site])
            if own is None:
                entangled.append(site)
            else:
                gains[present, order] += own
    return gains.nan_to_num(nan=-_NEVER, neginf=-_NEVER, posinf=_NEVER), entangled


def _density_of_places(model: Model, site: str, values: Values, axes: tuple[int, ...]) -> Tensor | None:
    """Return what the log density of a site has of each place, (K,); None where it is no sum over them."""
    value = values[site]
    prior: Any = model.prior(site, like=value, values=values)
    while getattr(prior, "reinterpreted_batch_ndims", 0):
        prior = prior.base_dist
    outer = value.ndim - len(prior.event_shape)
    if len(axes) == 1 and axes[0] < outer:
        each = prior.log_prob(value).expand(value.shape[:outer])
    elif len(axes) == 1 and type(prior).__name__ == "Dirichlet":
        each = (prior.concentration - 1) * value.clamp(min=torch.finfo(value.dtype).tiny).log()
    else:
        return None
    return each.movedim(axes[0], 0).reshape(len(each.movedim(axes[0], 0)), -1).sum(1)


def _is_told_by_rows(model: Model, places: Exchangeable) -> bool:
    """Whether known values, or a prior of the latents, may tell places apart, which the rows alone can weigh."""
    if places.size > _EXCHANGED or is_own_of_rows(model) or not bounds_of(model):
        return False
    dims = (model.dims.get(site, ()) for site in (*model.known, *({model.local_site} & set(model.priors))))
    return any(axis in AXES for axes in dims for axis in axes)


def _exchange_by_rows(model: Model, data: Data, places: Exchangeable, values: Values) -> Values:
    """Return the values with places exchanged while that raises the bound on some rows and the log prior."""
    some, sets = data, exchangeable(model)
    if model.rows_are_independent and len(data) > _ROWS:
        some = data.rows(torch.randperm(len(data), generator=torch.Generator().manual_seed(0))[:_ROWS])
    solver = LocalSolver(engine=engine_for(model, scalable_bound(model)), max_iterations=_PASSES, tolerance=_SETTLED)

    def value(order: Order) -> float:
        moved = places.permute(values, torch.tensor(order))
        bound = solver.solve(model, moved, some).bound
        return float(bound.double().sum()) * len(data) / len(some) + _log_prior(model, moved)

    try:
        order = exchange(tuple(range(places.size)), value, lambda pair: not any({*pair} <= {*one} for one in sets))
    except PriorError:  # no bound has steps for these priors
        return values
    return places.permute(values, torch.tensor(order))
