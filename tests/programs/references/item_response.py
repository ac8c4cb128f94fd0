"""log p(x_n, latents_n | globals) of the programs of item response."""

import numpy as np
from scipy import stats
from scipy.special import expit, log_expit

from tests.programs.references import _reference as of
from tests.programs.references._reference import Reference, chosen, seen


def answers(eta, data):
    """log p(x | log-odds eta) of every entry."""
    return seen(np.where(data["x"] == 1, log_expit(eta), log_expit(-eta)), data)


def rasch(params, latents, data):
    ability = latents["ability"]
    return stats.norm.logpdf(ability) + answers(ability[..., None] - params["difficulty"], data)


def two_parameter(params, latents, data):
    ability = latents["ability"]
    eta = params["discrimination"] * (ability - params["difficulty"])
    return stats.norm.logpdf(ability).sum(-1) + answers(eta, data)


def graded(params, latents, data):
    ability = latents["ability"]
    steps = np.cumsum(np.concatenate([params["first"][:, None], params["gap"]], 1), 1)
    above = expit((params["slope"] * ability[..., None])[..., None] - steps)
    ends = [np.ones_like(above[..., :1]), above, np.zeros_like(above[..., :1])]
    return stats.norm.logpdf(ability) + seen(chosen(np.log(-np.diff(np.concatenate(ends, -1))), data["x"]), data)


def mixed_rasch(params, latents, data):
    kind, ability = latents["kind"], latents["ability"]
    prior = kind @ np.log(params["weight"]) + stats.norm.logpdf(ability, 0, 1.2)
    return prior + answers(ability[..., None] - kind @ params["difficulty"], data)


def skills(needed):
    """P(x = 1) = 1 - slip where all the skills that are needed are there, else guess."""

    def rows(params, latents, data):
        skill, mastery = latents["skill"], params["mastery"]
        lacking = (np.asarray(needed) * (1 - skill)[..., None, :]).sum(-1)
        right = np.where(lacking == 0, 1 - params["slip"], params["guess"])
        prior = (skill * np.log(mastery) + (1 - skill) * np.log1p(-mastery)).sum(-1)
        return prior + seen(np.where(data["x"] == 1, np.log(right), np.log1p(-right)), data)

    return rows


RASCH = Reference(rasch, lambda params, data: {"ability": of.real()}, {"difficulty": ("normal", 0, 2)})
TWO_PARAMETER = Reference(
    two_parameter,
    lambda params, data: {"ability": of.reals(1, nodes=321)},
    {"discrimination": ("lognormal", 0, 0.5), "difficulty": ("normal", 0, 2)},
)
GRADED = Reference(
    graded,
    lambda params, data: {"ability": of.real(-8, 8)},
    {"slope": ("lognormal", 0, 0.5), "first": ("normal", -1, 2), "gap": ("gamma", 2, 1)},
)
MIXED_RASCH = Reference(
    mixed_rasch,
    lambda params, data: {"kind": of.one_hot(2), "ability": of.real()},
    {"weight": ("dirichlet", 1), "difficulty": ("normal", 0, 1.5)},
)
SKILLS = Reference(
    skills(((1, 0), (0, 1), (1, 1), (1, 0), (0, 1), (1, 1))),
    lambda params, data: {"skill": of.bits(2)},
    {"mastery": ("beta", 1, 1), "guess": ("beta", 1, 4), "slip": ("beta", 1, 4)},
)
NEEDED = [
    [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1], [1, 0, 1, 1]
]  # fmt: skip
SKILL_VECTOR = Reference(
    skills(NEEDED),
    lambda params, data: {"skill": of.bits(4)},
    {"mastery": ("beta", 1, 1), "guess": ("beta", 1, 4), "slip": ("beta", 1, 4)},
)
