"""Whether the two parts of an objective are what they are called, by other ways to compute each."""

from __future__ import annotations

import pyro
import torch
from pyro import poutine

from custom_inference import Fit
from custom_inference.core.engine import Engine
from custom_inference.core.objectives import objective_line
from ppl_models.core.priors import is_flat

#: Draws that divergences are estimated by.
_DRAWS = 400


def check_parts(fit: Fit, evidence: torch.Tensor) -> None:
    """evidence: log p(x | params) of all rows, exact."""
    name, value = objective_line(fit)
    if fit.prior_term is None:
        assert fit.data_term is None and " = " not in value
        assert fit.objective not in ("evidence", "log posterior") and not name.startswith("objective (evidence")
        return
    assert fit.data_term is not None
    if " = " in value:
        total, parts = value.split(" = ")
        first, sign, second = parts.split(" ")
        second = float(second.strip("()")) * (-1 if sign == "-" else 1)
        assert abs(float(total) - float(first) - second) < 0.02 and " = " in name
        assert abs(second - fit.prior_term) < 0.01
    else:
        assert fit.prior_term == 0 and " = " not in name
    if fit.objective in ("evidence", "log posterior"):
        # Integrals over continuous locals are by nodes that were placed at the iteration before.
        torch.testing.assert_close(fit.data_term, float(evidence), rtol=1e-9, atol=1e-8)
        assert (fit.objective == "evidence") == (fit.prior_term == 0)
    else:
        assert "evidence" not in name
    if fit.objective == "estimate" and not fit.prior_term:
        return  # of predictions of what is left out: nothing of the globals is in it
    if fit.global_posterior and set(fit.global_posterior) == set(fit.model.unknown_sites):
        _check_divergence(fit)
    elif not fit.global_posterior and fit.draws is None:
        _check_density(fit)


def _check_density(fit: Fit) -> None:
    """Of engines whose steps have no basis of their own: the program's statements of the globals, but of flat ones."""
    if fit.solver is None or type(fit.solver.engine).prior_term is not Engine.prior_term:
        return
    if fit.method_name == "SGD" or fit.bound_name == "recognition":
        return  # stochastic steps: the last objective is from before the values that the fit holds
    model = fit.model
    trace = poutine.trace(pyro.condition(model.sample_globals, data=fit.globals)).get_trace(like=fit.data.x)
    trace.compute_log_prob()
    named = [site for site in model.unknown_sites if not is_flat(model.priors[site])]
    expected = sum((float(trace.nodes[site]["log_prob"].sum()) for site in named), 0.0)
    torch.testing.assert_close(fit.prior_term, expected, rtol=1e-9, atol=1e-8)


def _check_divergence(fit: Fit) -> None:
    """E_q[log q - log p] as a mean over draws, within six standard errors."""
    known, found = {site: fit.globals[site] for site in fit.model.known}, torch.zeros(_DRAWS)
    drawn = {site: one.sample(_DRAWS, seed=seed) for seed, (site, one) in enumerate(fit.global_posterior.items())}
    for number in range(_DRAWS):
        at = known | {site: value[number] for site, value in drawn.items()}
        for site, posterior in fit.global_posterior.items():
            prior = fit.model.prior(site, like=fit.data.x, values=at)
            found[number] += posterior.log_prob(at[site]).sum() - prior.log_prob(at[site])
    slack = 6 * float(found.std()) / _DRAWS**0.5 + 1e-6
    assert fit.prior_term is not None and abs(float(found.mean()) + fit.prior_term) < slack, (
        found.mean(),
        fit.prior_term,
    )
