"""log p(x_n, class | globals) where covariates say which class is likely."""

import numpy as np
from scipy import stats
from scipy.special import log_softmax

from tests.programs.references import _reference as of
from tests.programs.references._reference import Reference, seen


def latent_class(params, latents, data):
    membership = latents["membership"]
    prior = (membership * log_softmax(data["covariates"] @ params["coefficient"], -1)).sum(-1)
    return prior + seen(stats.bernoulli.logpmf(data["x"], membership @ params["chance"]), data)


def experts(params, latents, data):
    expert, inputs = latents["expert"].astype(int), data["inputs"]
    gate = log_softmax(inputs @ params["gate"], -1)
    prior = gate[np.arange(len(inputs)), expert]
    mean = (params["slope"][expert] * inputs).sum(-1, keepdims=True)
    return prior + seen(stats.norm.logpdf(data["x"], mean, params["noise"][expert][..., None]), data)


def growth(params, latents, data):
    kind = latents["kind"].astype(int)
    share = log_softmax(data["covariates"] @ params["coefficient"], -1)
    mean = params["intercept"][kind][..., None] + params["slope"][kind][..., None] * np.arange(data["x"].shape[1])
    prior = share[np.arange(len(share)), kind]
    return prior + seen(stats.norm.logpdf(data["x"], mean, params["noise"]), data)


LATENT_CLASS = Reference(
    latent_class,
    lambda params, data: {"membership": of.one_hot(2)},
    {"coefficient": ("normal", 0, 1.5), "chance": ("beta", 1, 1)},
)
EXPERTS = Reference(
    experts,
    lambda params, data: {"expert": of.choice(2)},
    {"gate": ("normal", 0, 1.5), "slope": ("normal", 0, 3), "noise": ("lognormal", -0.5, 0.5)},
)
GROWTH = Reference(
    growth,
    lambda params, data: {"kind": of.choice(3)},
    {
        "coefficient": ("normal", 0, 1.5),
        "intercept": ("normal", 0, 3),
        "slope": ("normal", 0, 3),
        "noise": ("lognormal", -0.5, 0.5),
    },
)
