"""log p(x_n, latents_n | globals) of the programs of several finite latents a row."""

import numpy as np
from scipy import stats

from tests.programs.references import _reference as of
from tests.programs.references._reference import Reference, chosen, seen


def two_flags(params, latents, data):
    label, flag, raised = latents["label"], latents["flag"], latents["raised"]
    odd = label @ params["odd"]
    prior = label @ np.log(params["weight"]) + np.where(flag == 1, np.log(odd), np.log1p(-odd))
    rate = (label @ params["rate"]) * np.where(flag == 1, 4, 1)[..., None] + 3 * raised[..., None]
    return prior + np.log(np.where(raised == 1, 0.3, 0.7)) + seen(stats.poisson.logpmf(data["x"], rate), data)


def mixture_of_mixtures(params, latents, data):
    k, s = latents["class"].argmax(-1), latents["subclass"].argmax(-1)
    prior = np.log(params["weight"])[k] + np.log(params["table"])[k, s]
    return prior + seen(stats.poisson.logpmf(data["x"], params["rate"][k, s]), data)


def hierarchical(params, latents, data):
    group, kind = latents["group"].astype(int), latents["kind"].astype(int)
    prior = np.log(params["share"])[group] + np.log(params["table"])[group, kind]
    return prior + seen(chosen(np.log(params["response"])[kind], data["x"]), data)


def class_tree(params, latents, data):
    group, total, answers = latents["group"].astype(int), np.log(params["share"])[latents["group"].astype(int)], []
    for j in range(len(params["table"])):
        kind = latents[f"theme_{j}"].astype(int)
        total = total + np.log(params["table"])[j, group, kind]
        answers.append(params["yes"][j][kind])
    chance = np.concatenate(answers, -1)
    return total + seen(stats.bernoulli.logpmf(data["x"], chance), data)


TWO_FLAGS = Reference(
    two_flags,
    lambda params, data: {"label": of.one_hot(2), "flag": of.bit(), "raised": of.bit()},
    {"weight": ("dirichlet", 1), "odd": ("beta", 1, 4), "rate": ("gamma", 2, 0.7)},
)
MIXTURE_OF_MIXTURES = Reference(
    mixture_of_mixtures,
    lambda params, data: {"class": of.one_hot(2), "subclass": of.one_hot(3)},
    {"weight": ("dirichlet", 1), "table": ("dirichlet", 1), "rate": ("gamma", 1, 0.2)},
)
HIERARCHICAL = Reference(
    hierarchical,
    lambda params, data: {"kind": of.choice(3), "group": of.choice(2)},
    {"share": ("dirichlet", 1), "table": ("dirichlet", 2), "response": ("dirichlet", 1)},
)
CLASS_TREE = Reference(
    class_tree,
    lambda params, data: {"group": of.choice(2), **{f"theme_{j}": of.choice(2) for j in range(3)}},
    {"share": ("dirichlet", 1), "table": ("dirichlet", 1), "yes": ("beta", 1.5, 1.5)},
)
