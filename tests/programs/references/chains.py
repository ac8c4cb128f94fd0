"""log p(x_n, latents_n | globals) of chains; of long ones the sums by forwards and backwards passes."""

import numpy as np
from scipy import stats
from scipy.special import logsumexp

from tests.programs.references import _reference as of
from tests.programs.references._reference import Reference, chosen, seen

STEPS = 40


def hidden_chain(params, latents, data):
    states = np.stack([latents[f"z{t}"] for t in range(STEPS)], -1).astype(int)
    move = np.log(params["move"])
    prior = np.log(params["start"])[states[..., 0]] + move[states[..., :-1], states[..., 1:]].sum(-1)
    return prior + seen(chosen(np.log(params["emit"])[states], data["x"]), data)


def forwards_backwards(params, data):
    """log p(x_n) and of every state z_t its posterior probabilities (Rabiner, 1989, eqs. 19-27), in logarithms."""
    x, mask = data["x"].astype(int), data["mask"]
    move, emit = np.log(params["move"]), np.log(params["emit"])
    said = np.where(mask[..., None], emit.T[x], 0.0)  # (N, T, states)
    alpha = [np.log(params["start"]) + said[:, 0]]
    for t in range(1, STEPS):
        alpha.append(logsumexp(alpha[-1][:, :, None] + move, axis=1) + said[:, t])
    beta = [np.zeros_like(alpha[0])]
    for t in range(STEPS - 1, 0, -1):
        beta.insert(0, logsumexp(move + (said[:, t] + beta[0])[:, None], axis=2))
    evidence = logsumexp(alpha[-1], axis=1)
    return evidence, {f"z{t}": np.exp(alpha[t] + beta[t] - evidence[:, None]) for t in range(STEPS)}


def of_two_chains(params, latents):
    """log p of the bits, and the bits (..., T) of both."""
    total, found = 0.0, []
    for number, chain in enumerate("ab"):
        bits = np.stack([latents[f"{chain}{t}"] for t in range(4)], -1)
        chance = np.where(bits[..., :-1] == 1, params["stay"][number], params["rise"][number])
        chance = np.concatenate([np.full_like(bits[..., :1], params["begin"][number]), chance], -1)
        total = total + np.where(bits == 1, np.log(chance), np.log1p(-chance)).sum(-1)
        found.append(bits)
    return total, found


def added_levels(params, latents, data):
    prior, (a, b) = of_two_chains(params, latents)
    mean = params["level"] + a * params["step"][0] + b * params["step"][1]
    return prior + seen(stats.norm.logpdf(data["x"], mean, params["noise"]), data)


def added_rates(params, latents, data):
    prior, (a, b) = of_two_chains(params, latents)
    rate = params["base"] + a * params["rate"][0] + b * params["rate"][1]
    return prior + seen(stats.poisson.logpmf(data["x"], rate), data)


def classes_of_chains(params, latents, data):
    z, x, mask = latents["z"].astype(int), data["x"].astype(int), data["mask"]
    first, move = np.log(params["first"])[z], np.log(params["move"])[z]
    total = np.log(params["weight"])[z]
    for t in range(x.shape[1]):
        begun = chosen(first[..., None, :], x[:, t, None])[..., 0]
        if t:
            wide = np.broadcast_to(move, (len(z), len(x), *move.shape[2:]))
            later = wide[:, np.arange(len(x)), x[:, t - 1], x[:, t]]
            begun = np.where(mask[:, t - 1], later, begun)
        total = total + np.where(mask[:, t], begun, 0.0)
    return total


HIDDEN_CHAIN = Reference(
    hidden_chain,
    lambda params, data: {f"z{t}": of.choice(len(params["start"])) for t in range(STEPS)},
    {"start": ("dirichlet", 1), "move": ("dirichlet", 1.5), "emit": ("dirichlet", 1)},
    summed=forwards_backwards,
)
_CHANCES = {site: ("beta", 1, 1) for site in ("begin", "rise", "stay")}
ADDED_LEVELS = Reference(
    added_levels,
    lambda params, data: {f"{chain}{t}": of.bit() for chain in "ab" for t in range(4)},
    {**_CHANCES, "level": ("normal", 0, 3), "step": ("normal", 0, 3), "noise": ("lognormal", -0.5, 0.5)},
)
ADDED_RATES = Reference(
    added_rates,
    lambda params, data: {f"{chain}{t}": of.bit() for chain in "ab" for t in range(4)},
    {**_CHANCES, "base": ("gamma", 2, 2), "rate": ("gamma", 2, 0.5)},
)
CLASSES_OF_CHAINS = Reference(
    classes_of_chains,
    lambda params, data: {"z": of.choice(2)},
    {"weight": ("dirichlet", 1), "first": ("dirichlet", 1), "move": ("dirichlet", 1.5)},
)
