"""One simulation: draw a truth and data, infer, rank the truth among the draws."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.distributions import constraints

from custom_inference.checks.calibration.densities import log_densities
from custom_inference.checks.calibration.labels import exchangeable, has_standard_form, matched
from custom_inference.checks.calibration.problem import Drawn, Problem, Simulated, randomised_rank
from custom_inference.core.draws import posterior_draws
from ppl_models import DataError, DataWarning, MethodError, Model
from ppl_models.core.priors import support_of

#: Data sets that a method may refuse in a row.
_ATTEMPTS = 50
#: Proportions are compared after rounding.
_DECIMALS = 12
Values = dict[str, Tensor]


def simulate(problem: Problem, index: int) -> Simulated:
    """The simulation of this number. A function of the problem and the number alone."""
    values_of = {"locals": _of_locals, "globals": _of_fit}[problem.of]
    refusal: DataError | None = None
    for attempt in range(_ATTEMPTS):
        seeds = problem.seeds(index, attempt)
        drawn = problem.draw(seeds)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DataWarning)
                values = values_of(problem, drawn, seeds)
        except DataError as error:
            # Given the data the posterior is what it is: leaving out some by a rule about data alone biases no rank.
            refusal = error
            continue
        ties = torch.Generator().manual_seed(seeds["ties"])
        ranks = {name: randomised_rank(value[0], value[1:], ties) for name, value in values.items()}
        return Simulated(ranks, len(values["log_joint"]) - 1, attempt)
    assert refusal is not None
    refusal.add_note(f"{_ATTEMPTS} simulated data sets in a row were refused like this; simulate more rows (num_rows=)")
    raise refusal


def _of_locals(problem: Problem, drawn: Drawn, seeds: Mapping[str, int]) -> Values:
    """At given globals: quantity -> its value at the true locals, and at each of the draws, (1 + S, ...)."""
    model = problem.model
    data = model.as_read(drawn.data)
    local = problem.method.local_posterior(model, drawn.params, data, seed=seeds["method"])
    draws = local.posterior.sample(problem.num_draws, seed=seeds["draws"])
    every = torch.cat([one_hot(model, drawn.local)[None], draws.detach().to(torch.float64)])
    held = {model.local_site: model.local_value(every)}
    found = log_densities(model, held, data, given=drawn.params, by_row=not model.is_graph)
    each = ({**drawn.params, model.local_site: one} for one in held[model.local_site])
    return {model.local_site: every, **found, **_user_quantities(problem, list(each), drawn)}


def _of_fit(problem: Problem, drawn: Drawn, seeds: Mapping[str, int]) -> Values:
    """Of a whole fit: quantity -> its value at the truth, and at each of the posterior's draws, (1 + S, ...)."""
    model = problem.model
    fit = problem.method.fit(model, drawn.data, seed=seeds["method"], progress=False)
    if fit.model.shapes != model.shapes:
        raise MethodError(f"{fit.method} changed the model's shapes to {fit.model.shapes} from {model.shapes}")
    draws = posterior_draws(fit, problem.num_draws, seed=seeds["draws"])
    truth = {**drawn.params, model.local_site: drawn.local}
    stacked = {site: torch.cat([value[None], draws[site].detach().to(value)]) for site, value in truth.items()}
    each = [{site: value[i] for site, value in stacked.items()} for i in range(len(stacked[model.local_site]))]
    found = log_densities(model, stacked, drawn.data) | _user_quantities(problem, each, drawn)
    each = _named_alike(model, each, fit.params, seeds["labels"])
    values = {site: _to_rounding(model, site, torch.stack([one[site] for one in each])) for site in truth}
    values[model.local_site] = one_hot(model, values[model.local_site])
    return values | found


def _named_alike(model: Model, each: Sequence[Values], params: Values, seed: int) -> list[Values]:
    """The truth and every draw, their components named by one rule: see ``labels``."""
    if has_standard_form(model):
        return [model.standard_form(one) for one in each]
    sets = exchangeable(model)
    if not sets or (model.is_graph and len(sets[0]) < model.local_shape[-1]):  # blocks are matched all together
        return list(each)
    generator = torch.Generator().manual_seed(seed)
    return [matched(model, one, params, generator, sets) for one in each]


def _to_rounding(model: Model, site: str, value: Tensor) -> Tensor:
    """Proportions that are equal but for rounding are ties, as the only one of one component, which is 1."""
    simplex = site in model.priors and support_of(model.priors[site]) is constraints.simplex
    return torch.round(value, decimals=_DECIMALS) if simplex else value


def one_hot(model: Model, local: Tensor) -> Tensor:
    """Values of the local site (..., N, K); blocks, whole numbers, as the unit vectors that posteriors give."""
    if local.dtype == torch.int64:
        return torch.nn.functional.one_hot(local, model.local_shape[0]).to(torch.float64)
    return local.to(torch.float64)


def _user_quantities(problem: Problem, each: Sequence[Values], drawn: Drawn) -> Values:
    found = {}
    for name, quantity in problem.quantities.items():
        values = [torch.as_tensor(quantity(one, drawn.data), dtype=torch.float64) for one in each]
        if any(value.ndim for value in values):
            raise MethodError(f"quantity '{name}' has shape {tuple(values[0].shape)}, expected one number")
        found[name] = torch.stack(values)
    return found
