"""Small problems for the tests of the mixtures, and sums over the classes of all rows at once."""

import itertools

import numpy as np
import torch
from scipy.special import betaln, gammaln

from ppl_models import (
    MixtureOfBernoullis,
    MixtureOfCategoricals,
    MixtureOfMultinomialCounts,
    MixtureOfMultinomials,
    MixtureOfPoissons,
)


def multinomials(seed, num_rows=8, *, counts=False, size=6):
    """Model, params, x, of random components; the second document is empty."""
    rng = np.random.default_rng(seed)
    kind = MixtureOfMultinomialCounts if counts else MixtureOfMultinomials
    params = {"mixing_proportion": rng.dirichlet(np.ones(3)), "topic": rng.dirichlet(np.ones(size), 3)}
    x = rng.poisson(1.5, (num_rows, size)).astype(float)
    x[1] = 0
    return kind(num_topics=3, vocabulary_size=size), params, x


def poissons(seed, num_rows=8):
    rng = np.random.default_rng(seed)
    params = {"mixing_proportion": rng.dirichlet(np.ones(3)), "rate": rng.gamma(1.0, 2.0, (3, 5))}
    return MixtureOfPoissons(num_components=3, num_features=5), params, rng.poisson(2.0, (num_rows, 5)).astype(float)


def bernoullis(seed, num_rows=8):
    rng = np.random.default_rng(seed)
    params = {"mixing_proportion": rng.dirichlet(np.ones(3)), "probability": rng.uniform(0.02, 0.98, (3, 5))}
    x = (rng.random((num_rows, 5)) < 0.5).astype(float)
    return MixtureOfBernoullis(num_components=3, num_features=5), params, x


def categoricals(seed, num_rows=8):
    rng = np.random.default_rng(seed)
    params = {"mixing_proportion": rng.dirichlet(np.ones(3)), "response": rng.dirichlet(np.ones(4), (3, 5))}
    model = MixtureOfCategoricals(num_components=3, num_features=5, num_categories=4)
    return model, params, rng.integers(0, 4, (num_rows, 5)).astype(float)


#: Name -> problem of a seed.
PROBLEMS = {
    "mixture_of_bernoullis": bernoullis,
    "mixture_of_multinomials": multinomials,
    "mixture_of_multinomial_counts": lambda seed, **settings: multinomials(seed, counts=True, **settings),
    "mixture_of_poissons": poissons,
    "mixture_of_categoricals": categoricals,
}


def tensors(params):
    return {site: torch.tensor(value) for site, value in params.items()}


def missing(x, seed, share=0.3):
    """A mask, True where observed."""
    return np.random.default_rng(seed).random(x.shape) > share


def assignments(num_rows, size):
    """Every assignment of classes to the rows, one-hot (K^N, N, K)."""
    return np.eye(size)[np.array(list(itertools.product(range(size), repeat=num_rows)))]


def collapsed(name, model, x, mask, alpha, prior):
    """log p(x, z) with all globals integrated out, for every z of ``assignments``; written with loops from the math.

    prior: of the components: gamma of the Dirichlet, or (a, b) of the Beta or Gamma.
    """
    size = len(alpha)
    seen = np.ones(x.shape, bool) if mask is None else mask
    filled = np.where(seen, x, 0.0)
    found = []
    for z in assignments(len(x), size):
        number = z.sum(0)
        total = gammaln(alpha.sum()) - gammaln(alpha.sum() + len(x)) + (gammaln(alpha + number) - gammaln(alpha)).sum()
        for k in range(size):
            rows = z[:, k] == 1
            if name == "mixture_of_poissons":
                events, exposure = filled[rows].sum(0), seen[rows].sum(0)
                a, b = prior
                total += (a * np.log(b) - gammaln(a) + gammaln(a + events) - (a + events) * np.log(b + exposure)).sum()
            elif name == "mixture_of_bernoullis":
                on, (a, b) = filled[rows].sum(0), prior
                total += (betaln(a + on, b + seen[rows].sum(0) - on) - betaln(a, b)).sum()
            elif name == "mixture_of_categoricals":
                for r in range(x.shape[1]):
                    kept = x[rows & seen[:, r], r].astype(int)
                    total += _polya(np.bincount(kept, minlength=model.categories[r]), prior)
            else:
                total += _polya(filled[rows].sum(0), prior)
        found.append(total)
    constant = 0.0
    if name == "mixture_of_poissons":
        constant = -gammaln(filled + 1)[seen].sum()
    if name == "mixture_of_multinomial_counts":
        constant = (gammaln(filled.sum(1) + 1) - gammaln(filled + 1).sum(1)).sum()
    return np.array(found) + constant


def _polya(counts, prior):
    """log of the integral of prod_c p_c^counts_c Dirichlet(p; prior, ..., prior)."""
    size, total = len(counts), counts.sum()
    rise = (gammaln(prior + counts) - gammaln(prior)).sum()
    return rise + gammaln(size * prior) - gammaln(size * prior + total)
