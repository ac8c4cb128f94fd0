"""One simulation: draw a truth and data from the program, infer, rank the truth among the draws."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyro
import torch
from pyro import poutine
from torch import Tensor
from torch.distributions import constraints

from custom_inference.checks.calibration.labels import Values, match_to_reference, prior_draw
from custom_inference.compiled.labels import find_places, reorder
from custom_inference.core.draws import posterior_draws
from custom_inference.core.exchangeable import exchangeable, has_standard_form
from custom_inference.core.isolation import default_dtype, own_store
from custom_inference.core.latent_values import code_of, is_own_of_rows, latent_values, layout_of_model, split_draws
from custom_inference.core.predictive import sample_rows
from custom_inference.core.programs.density import RowDensity
from custom_inference.core.settings import require_whole
from ppl_models import Data, DataError, DataWarning, MethodError, Model, ModelError
from ppl_models.core.priors import support_of
from ppl_models.distributions import Flat

#: A test quantity of the user's: f(values of every site, data) -> one number.
Quantity = Callable[[Values, Data], Any]
#: Random numbers of one simulation, each with a state of its own.
_PURPOSES = ("globals", "data", "method", "draws", "ties", "labels")
#: Data sets that a method may refuse in a row.
_ATTEMPTS = 50
#: Proportions are compared after rounding.
_DECIMALS = 12
#: Logarithms too: equal values that were added up in another order are ties, not differences.
_LOG_DECIMALS = 7
#: Draws are evaluated so many at a time that they hold about this many (draw, entry of x) pairs.
_PAIRS = 2**22


class Simulated(NamedTuple):
    """One simulation: where the truth ranks among the draws, by quantity, in [0, 1]; how many draws; data sets that the
    method refused before this one."""

    ranks: dict[str, np.ndarray]
    num_draws: int
    refused: int


class Drawn(NamedTuple):
    """Globals and locals (as the program holds them; of programs without engines the codes of all their latents), and
    the data drawn at them."""

    params: Values
    local: Tensor
    data: Data


@dataclass(frozen=True, kw_only=True)
class Problem:
    """All that a simulation needs, so that it can run in a process of its own.

    at: the globals, or None to draw them. like: data whose rows, lengths and missing entries are those of the
    simulated data.
    """

    model: Model
    method: Any
    of: str
    num_rows: int
    num_draws: int
    seed: int
    at: dict[str, Tensor] | None = None
    like: Data | None = None
    quantities: Mapping[str, Quantity] = field(default_factory=dict)

    def seeds(self, index: int, attempt: int = 0) -> dict[str, int]:
        """Seeds by purpose of the simulation of this number, whatever the others are."""
        state = np.random.SeedSequence([self.seed % 2**64, index, attempt]).generate_state(len(_PURPOSES))
        return dict(zip(_PURPOSES, map(int, state), strict=True))

    def draw(self, seeds: Mapping[str, int]) -> Drawn:
        model, params = self.model, self.at
        if params is None:
            params = prior_draw(model, seeds["globals"])
        with torch.no_grad():
            drawn = sample_rows(model, params, self.num_rows, seed=seeds["data"], like=self.like)
        mask = None if self.like is None else model.as_read(self.like).mask
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)  # of simulated data nobody can do anything about
            x, *others = model.sites_of("observed")
            given = model.given_rows(self.num_rows) if self.like is None else self.like.others
            beside: dict[str, Any] = {site: given[site] for site in model.sites_of("given") if site in given}
            beside |= {site: drawn[site] for site in others} if self.like is None else _seen(self.like, drawn, others)
            data = model.prepare(drawn[x], mask=mask, dtype=torch.float64, **beside)
        return Drawn(params, code_of(model, params, data, drawn), data)


def _seen(like: Data, drawn: Values, sites: Sequence[str]) -> Values:
    """Return of what is drawn beside x that which ``like`` knows."""
    found = {}
    for site in sites:
        if site in like.others:
            missing = torch.isnan(like.others[site].to_dense())
            found[site] = drawn[site].double().masked_fill(missing, torch.nan) if bool(missing.any()) else drawn[site]
    return found


def rows_of(model: Model, num_rows: int | None, like: Data | None) -> int:
    """How many rows (nodes) a simulated data set has."""
    if like is not None:
        if num_rows not in (None, len(like)):
            raise MethodError(f"num_rows = {num_rows}, but the data given as like= have {len(like)} rows")
        if like.mask is not None and "num_tokens" in model.given(like):
            problem = "documents with missing entries: how many tokens those have is not known, so none can be drawn"
            raise DataError(problem, site=model.observed_site, expected="like= without missing entries, or num_rows=")
        return len(like)
    nodes = model.settings().get("num_nodes")
    if nodes is not None:
        if num_rows not in (None, nodes):
            raise MethodError(f"num_rows = {num_rows}, but the model is of graphs of {nodes} nodes")
        return nodes
    rows = 20 if num_rows is None else num_rows
    require_whole("num_rows", rows)
    return rows


def require_proper(model: Model) -> None:
    """Refuse improper priors: what posterior follows from them, no simulation from a prior can show."""
    improper = [site for site, prior in model.priors.items() if isinstance(prior, Flat)]
    if improper:
        example = ", ".join(f"{site}=..." for site in improper)
        raise ModelError(
            f"improper priors cannot be simulated from: {', '.join(improper)}; give these sites proper ones by "
            f'model.with_priors({example}), or check the posteriors of the locals alone by of="locals"'
        )


def randomise_rank(truth: Tensor, draws: Tensor, generator: torch.Generator) -> np.ndarray:
    """Rank the truth (...) among draws (n, ...), in [0, 1]: (#less + U (#equal + 1)) / (n + 1), U uniform.

    If the truth and the draws are exchangeable, its place among the n + 1 in order is uniform, ties being broken at
    random, and U spreads the place over its share of [0, 1]: the rank is uniform whether values are continuous or
    discrete, for any n. ``floor((n + 1) rank)`` is the usual integer rank, 0 .. n.
    """
    less, equal = (draws < truth).sum(0), (draws == truth).sum(0)
    uniform = torch.rand(truth.shape, generator=generator, dtype=torch.float64)
    return ((less + uniform * (equal + 1)) / (len(draws) + 1)).numpy()


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
        ranks = {name: randomise_rank(value[0], value[1:], ties) for name, value in values.items()}
        return Simulated(ranks, len(values["log_joint"]) - 1, attempt)
    assert refusal is not None
    refusal.add_note(f"{_ATTEMPTS} simulated data sets in a row were refused like this; simulate more rows (num_rows=)")
    raise refusal


def _of_locals(problem: Problem, drawn: Drawn, seeds: Mapping[str, int]) -> Values:
    """Return each quantity at the true locals and at S posterior draws given the globals, (1 + S, ...)."""
    model = problem.model
    data = model.as_read(drawn.data)
    local = problem.method.local_posterior(model, drawn.params, data, seed=seeds["method"])
    draws = local.posterior.sample(problem.num_draws, seed=seeds["draws"])
    every = torch.cat([one_hot(model, drawn.local)[None], draws.detach().to(torch.float64)])
    if is_own_of_rows(model):
        return _of_program(problem, drawn, data, every)
    held = {model.local_site: model.local_value(every)}
    found = log_densities(model, held, data, given=drawn.params, by_row=model.rows_are_independent)
    each = [{**drawn.params, model.local_site: one} for one in held[model.local_site]]
    return {model.local_site: every, **found, **_user_quantities(problem, each, drawn)}


def _of_program(problem: Problem, drawn: Drawn, data: Data, every: Tensor) -> Values:
    """Draws of a program without engines: every (1 + S, N, W), the codes of all its latents."""
    model = problem.model
    density, values = RowDensity.of(model, drawn.params, data), split_draws(model, drawn.params, data, every)
    with torch.no_grad():
        prior, likelihood = density.split(every)
    each = [{**drawn.params, **latent_values(model, drawn.params, data, one)} for one in every]
    both = {"log_joint": prior + likelihood, "log_likelihood": likelihood}
    own = {name: value.double() for name, value in values.items()}
    return {**own, **_round_logs(both), **_user_quantities(problem, each, drawn)}


def _of_fit(problem: Problem, drawn: Drawn, seeds: Mapping[str, int]) -> Values:
    """Return each quantity at the truth and at S posterior draws of a whole fit, (1 + S, ...)."""
    model = problem.model
    fit = problem.method.fit(model, drawn.data, seed=seeds["method"], progress=False)
    if fit.model.shapes != model.shapes:
        raise MethodError(f"{fit.method_name} changed the model's shapes to {fit.model.shapes} from {model.shapes}")
    draws = posterior_draws(fit, problem.num_draws, seed=seeds["draws"])
    own = is_own_of_rows(model)
    local = latent_values(model, drawn.params, drawn.data, drawn.local) if own else {model.local_site: drawn.local}
    truth = {**drawn.params, **local}
    stacked = {site: torch.cat([value[None], draws[site].detach().to(value)]) for site, value in truth.items()}
    each = [{site: value[i] for site, value in stacked.items()} for i in range(len(stacked[model.local_site]))]
    found = log_densities(model, stacked, drawn.data) | _user_quantities(problem, each, drawn)
    each = _name_components(model, each, fit.params, seeds["labels"])
    values = {site: torch.stack([one[site] for one in each]) for site in truth}
    # Proportions that are equal but for rounding are ties, as the only one of one component, which is 1.
    values |= {s: torch.round(v, decimals=_DECIMALS) for s, v in values.items() if _is_simplex(model, s)}
    if own:  # the program may hold rows along any axis
        layout = layout_of_model(model, drawn.params, drawn.data)
        codes = torch.stack([layout.encode({site: one[site] for site in local}, drawn.data.x) for one in each])
        values |= split_draws(model, drawn.params, drawn.data, codes)
    else:
        values[model.local_site] = one_hot(model, values[model.local_site])
    return values | found


def _name_components(model: Model, each: Sequence[Values], params: Values, seed: int) -> list[Values]:
    """The truth and every draw, their components named by one rule: see ``labels``."""
    if has_standard_form(model):
        return [model.standard_form(one) for one in each]
    if is_own_of_rows(model) and not model.has_components:
        places = find_places(model)
        return [reorder(model, one, params, places) for one in each]
    sets = exchangeable(model)
    if not sets:
        return list(each)
    generator = torch.Generator().manual_seed(seed)
    return [match_to_reference(model, one, params, generator, sets) for one in each]


def _is_simplex(model: Model, site: str) -> bool:
    return site in model.priors and support_of(model.priors[site]) is constraints.simplex


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


def log_densities(
    model: Model, draws: Values, data: Data, *, given: Values | None = None, by_row: bool = False
) -> Values:
    """log p(all observed | all latents) as "log_likelihood" and log p(x, those drawn | those given) as "log_joint".

    draws: site -> (S, ...), each as the program holds it. given: sites with one value for all draws.
    by_row: (S, N), of each row with its locals; otherwise (S,). Both rounded, so that equal values are ties.
    """
    data = model.as_read(data)
    observed = [site for site in model.sites_of("observed") if site == model.observed_site or site in data.others]
    latents = model.row_latents if is_own_of_rows(model) else (model.local_site,)
    found = _site_log_probs(model, draws, data, given or {}, (*model.global_sites, *latents, *observed))
    if not by_row:
        found = {site: value.reshape(len(value), -1).sum(1) for site, value in found.items()}
    else:  # of pairs of rows all of them count in every row
        pairs = [site for site in found if found[site].shape[1:] != (len(data),)]
        found |= {site: found[site].reshape(len(found[site]), -1).sum(1, keepdim=True) for site in pairs}
    likelihood: Any = sum(found[site] for site in observed)
    joint: Any = sum(found[site] for site in (*draws, *observed))
    return _round_logs({"log_likelihood": likelihood, "log_joint": joint})


def _round_logs(values: Values) -> Values:
    return {name: torch.round(value.double(), decimals=_LOG_DECIMALS) for name, value in values.items()}


def _site_log_probs(model: Model, draws: Values, data: Data, given: Values, sites: Sequence[str]) -> Values:
    """Site -> (S, ...) log-probabilities of the statements of the program at S draws of its latents."""
    draws, given = dict(draws), dict(given)
    for side in (draws, given):  # draws of a Dirichlet may be 0 to rounding, where its density is no number
        side |= {s: v.clamp_min(torch.finfo(v.dtype).tiny) for s, v in side.items() if _is_simplex(model, s)}

    def at(one: Values) -> Values:
        program = pyro.condition(model.summed_out, data={**given, **one})
        trace = poutine.trace(program).get_trace(data.x, **data.arguments)
        trace.compute_log_prob()
        nodes: Any = trace.nodes
        return {site: nodes[site]["log_prob"] for site in sites}

    number = len(next(iter(draws.values())))
    chunk = max(1, _PAIRS // max(1, data.x.numel()))
    with torch.no_grad(), own_store(), default_dtype(torch.float64), pyro.validation_enabled(False):
        try:
            return torch.vmap(at, chunk_size=chunk)(draws)
        except RuntimeError:  # a program whose course depends on values: one draw after the other
            each = [at({site: value[i] for site, value in draws.items()}) for i in range(number)]
            return {site: torch.stack([one[site] for one in each]) for site in sites}
