"""Posteriors in factors, of latents that are too many for a table: a hidden chain by its passes in NumPy."""

import numpy as np
import torch

import custom_inference as ci
from custom_inference.compiled.posterior import FactorPosterior
from custom_inference.core.posteriors.finite import kullback_leibler
from tests.programs.references.chains import STEPS
from tests.programs.zoo import as_numpy, case_of


def posterior_at(case, globals_):
    local = ci.Exact().local_posterior(case.model, globals_, case.data)
    assert isinstance(local.posterior, FactorPosterior)
    return local.posterior


def other_globals(case):
    mixed = {site: 0.7 * value + 0.3 / value.shape[-1] for site, value in case.globals.items()}
    return {**mixed, "start": case.globals["start"].flip(0)}


def test_divergences_of_chains_are_exact():
    """KL(q || p) of each row by the chain rule: of the first state, and of every move given the state before, whose
    laws under each posterior follow from the backwards pass."""
    case = case_of("broken_chain").few(6)
    q, p = posterior_at(case, case.globals), posterior_at(case, other_globals(case))
    assert torch.allclose(kullback_leibler(q, q), torch.zeros(6), rtol=0, atol=1e-9)
    x, mask = case.table["x"].astype(int), case.table["mask"]

    def laws(params):
        """The law of the first state (N, S), and of every move (N, T - 1, S, S), given x."""
        said = np.where(mask[..., None], params["emit"].T[x], 1.0)
        behind, moves = np.ones_like(said[:, 0]), []
        for t in range(STEPS - 1, 0, -1):
            weight = params["move"] * (said[:, t] * behind)[:, None]
            behind = weight.sum(-1)
            moves.insert(0, weight / behind[..., None])
        first = params["start"] * said[:, 0] * behind
        return first / first.sum(-1, keepdims=True), np.stack(moves, 1)

    (one, steps), (two, others) = laws(as_numpy(case.globals)), laws(as_numpy(other_globals(case)))
    expected, now = (one * np.log(one / two)).sum(-1), one
    for t in range(STEPS - 1):
        expected = expected + np.einsum("ns,nsu,nsu->n", now, steps[:, t], np.log(steps[:, t] / others[:, t]))
        now = np.einsum("ns,nsu->nu", now, steps[:, t])
    assert expected.min() > 0.01
    assert np.allclose(kullback_leibler(q, p), expected, rtol=1e-9, atol=1e-9)


def test_long_chains_are_compared():
    case = case_of("hidden_chain").few(4)
    table = ci.compare(["exact"], case.model, case.data, at=case.globals, progress=False).table
    assert np.allclose(table["evidence"], case.reference.evidence(as_numpy(case.globals), case.table).sum(), rtol=1e-9)
    assert abs(table.iloc[0]["kl_per_row"]) < 1e-8


def test_draws_made_together_have_log_probabilities_of_the_whole_chain():
    """log p(x, z) - log p(x) of each draw; the most probable chain is as probable as any."""
    case = case_of("hidden_chain").few(3)
    q = posterior_at(case, case.globals)
    draws = q.sample(300, seed=2)
    assert draws.shape == (300, 3, 3 * STEPS) and torch.equal(draws, q.sample(300, seed=2))
    log_q = torch.stack([q.log_prob(one) for one in draws])
    best = q.log_prob(q.mode)
    assert bool((log_q <= best + 1e-9).all()) and q.mode.shape == (3, 3 * STEPS)
    states = draws.unflatten(-1, (STEPS, 3)).argmax(-1).numpy()
    latents = {f"z{t}": states[..., t] for t in range(STEPS)}
    params, table = as_numpy(case.globals), case.table
    expected = case.reference.rows(params, latents, table) - case.reference.evidence(params, table)
    assert np.allclose(log_q, expected, rtol=0, atol=1e-8)
