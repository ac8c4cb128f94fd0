"""Factorisations of counts: from the training counts to the fitted rate (N, V) and the CPU seconds of the fit alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray

from benchmarks.quality._common import cpu_seconds
from benchmarks.quality._counts_data import Counts, rank_one
from custom_inference import CollapsedGibbs, VariationalBayes, VariationalEM, fit
from custom_inference.em.search import Search
from custom_inference.families.factors.poisson_rows import PoissonRows
from custom_inference.families.factors.poisson_updates import Globals, PoissonScores, rates
from ppl_models import NMF, GammaPoisson, PoissonPCA

Rate = NDArray[Any]
Fitted = Callable[..., tuple[Rate, float]]


def poisson_pca(train: Counts, seed: int, *, num_factors: int, guide: str, iterations: int) -> tuple[Rate, float]:
    """Ten iterations from the principal components, then so many of the guide's, in single precision."""
    model = PoissonPCA(num_components=num_factors, num_features=train.shape[1]).with_row_offsets()
    method = VariationalEM(guide=guide, max_iterations=iterations, search=Search(settle=10, climb=0))
    settings: dict[str, Any] = {"offset": "total", "dtype": torch.float32, "progress": False, "seed": seed}
    found, seconds = cpu_seconds(lambda: method.fit(model, train, **settings))
    return log_linear_rate(found), seconds


def poisson_default(train: Counts, seed: int, *, num_factors: int) -> tuple[Rate, float]:
    """What two lines give."""
    made: Any = PoissonPCA(num_components=num_factors)  # pyright: ignore[reportCallIssue]
    found, seconds = cpu_seconds(lambda: fit(made, train, seed=seed, progress=False))
    return log_linear_rate(found), seconds


def log_linear_rate(found: Any) -> Rate:
    """The mean rate of Poisson PCA under the posteriors of the scores."""
    posterior, at = found.local.posterior, Globals(found.params["weight"], found.params["bias"])
    rate = rates(PoissonRows.of(found.data).counts, at, PoissonScores(posterior.mean, posterior.covariance))
    return rate.double().numpy()


def scikit_learn_nmf(train: Counts, seed: int, *, num_factors: int) -> tuple[Rate, float]:
    """Of the Kullback-Leibler divergence."""
    import scipy.sparse as sp
    from sklearn.decomposition import NMF

    settings: dict[str, Any] = {
        "n_components": num_factors, "solver": "mu", "beta_loss": "kullback-leibler", "init": "nndsvda", "tol": 1e-5,
    }  # fmt: skip
    made, x = NMF(max_iter=300, random_state=seed, **settings), sp.csr_matrix(train.astype(float))
    activation, seconds = cpu_seconds(lambda: made.fit_transform(x))
    return activation @ made.components_, seconds


def gamma_poisson(train: Counts, seed: int, *, num_factors: int, method: Any, flat: bool = False) -> tuple[Rate, float]:
    """The mean rate: over the draws where the method samples, else at the posterior means."""
    import scipy.sparse as sp

    made = (NMF if flat else GammaPoisson)(num_components=num_factors, num_features=train.shape[1])
    x, settings = sp.csr_matrix(train.astype(float)), {"dtype": torch.float32, "progress": False, "seed": seed}
    rate, seconds = cpu_seconds(lambda: mean_rate(method.fit(made, x, **settings)))
    return rate.double().numpy(), seconds


def mean_rate(fit: Any) -> torch.Tensor:
    """E[z] b averaged over the draws, E[z] being given the components of the events (Rao-Blackwell)."""
    if fit.draws is None:
        return fit.transform() @ fit.params["loading"]
    activation = fit.local.posterior.shape / fit.local.posterior.rate  # (N, draws, K)
    loading = fit.draws["loading"].flatten(0, 1)
    return activation.flatten(1) @ loading.flatten(0, 1) / len(loading)


def unigram(train: Counts, seed: int) -> tuple[Rate, float]:
    del seed
    return cpu_seconds(lambda: rank_one(train))


def sampled(chains: int, warmup: int, num_samples: int, thin: int) -> CollapsedGibbs:
    """Chains in whichever modes they are: of a rate the mean over modes has a meaning. Shapes and rates are learned."""
    settings: dict[str, Any] = {"warmup": warmup, "num_samples": num_samples, "thin": thin}
    return CollapsedGibbs(chains=chains, threads=1, learn=True, search=False, align=chains == 1, **settings)


def _gap(method: Any, *, flat: bool = False) -> Fitted:
    return partial(gamma_poisson, num_factors=20, method=method, flat=flat)


def _poisson(num_factors: int, guide: str, iterations: int) -> Fitted:
    return partial(poisson_pca, num_factors=num_factors, guide=guide, iterations=iterations)


class Line(NamedTuple):
    """seeds: whether the result depends on them."""

    num_factors: int
    fitted: Fitted
    seeds: bool = True


#: Chains, sweeps of warm-up, draws and sweeps between them: 120 sweeps in all.
GIBBS = (3, 30, 5, 2)
#: Iterations of Poisson PCA.
VARIATIONAL, BAYESIAN = {10: 12, 20: 5}, {10: 8, 20: 14}
_VB = VariationalEM(guide=VariationalBayes(learn="activation"), tolerance=1e-3)

LINES: dict[str, Line] = {
    "row total x unigram": Line(0, unigram, False),
    "NMF 20": Line(20, _gap(VariationalEM(guide="map"), flat=True), False),
    "GaP, points 20": Line(20, _gap(VariationalEM(guide="map", max_iterations=90))),
    "GaP, VB 20": Line(20, _gap(_VB)),
    "GaP, Gibbs 20": Line(20, _gap(sampled(*GIBBS))),
    "Poisson PCA, the default 20": Line(20, partial(poisson_default, num_factors=20)),
    **{f"Poisson PCA {k}": Line(k, _poisson(k, "variational", n)) for k, n in VARIATIONAL.items()},
    **{f"Poisson PCA, uncertain weights {k}": Line(k, _poisson(k, "bayesian", n)) for k, n in BAYESIAN.items()},
}
