"""Rows of the table of peers: rows of a table, binary, real, of counts and of categories."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from benchmarks._lines import Lines
from benchmarks.quality import cvq_bars
from benchmarks.quality._counts_data import counts, divergence, score
from benchmarks.quality._counts_methods import log_linear_rate, mean_rate, scikit_learn_nmf
from benchmarks.quality._machines_data import digits
from benchmarks.quality._peer_rows_of import PROGRAMS, Row, Timed, given_score, once
from benchmarks.quality.machines import of_scikit_learn
from benchmarks.quality.machines import score as boltzmann_score
from benchmarks.speed import _aspect_peers
from benchmarks.speed._peers import PEERS, Peer
from custom_inference.core.fit import Fit
from custom_inference.core.local_inference import log_likelihood
from ppl_models import NOCA, datasets
from ppl_models.core.model import Model

_COMPONENTS = 10
_THINNED = "four newsgroups, thinned: log-likelihood of a token left out"
_MIXED = "log-likelihood of a row, which both maximise"


# ----- binary sources ---------------------------------------------------------------------------------------------


def _checkout(peer: Peer, x: Any) -> Timed:
    """A program that runs from a checkout, by the Python that has what it needs."""
    python = str(PROGRAMS.get("peer-python", Path(sys.executable)))
    return Timed(*peer.run(PROGRAMS[peer.option], python, x, 0))


def _images(folder: Path) -> Any:
    del folder
    return datasets.image_patterns(2000, seed=0).x


def _noisy_or_score(x: Any, params: dict[str, Any]) -> float:
    """Exact, by sums over all codes."""
    model = NOCA(num_components=len(params["source_prior"]), num_features=x.shape[1])
    params = {site: params[site].double() for site in ("source_prior", "loading", "leak")}
    return float(log_likelihood(model, params, model.prepare(x, dtype=torch.float64), bound="exact").mean())


def _bars(folder: Path) -> Any:
    del folder
    return cvq_bars.Problem.draw(8, 0.5, 0)


def _params(data: Any, found: Fit) -> Any:
    del data
    return found.params


def _genomes(folder: Path) -> Any:
    del folder
    return datasets.admixture()


def _adamixture(generated: Any) -> Timed:
    x = generated.x.numpy()
    found = _aspect_peers.adamixture(PROGRAMS["adamixture"], x, 5, 1, 2)
    return Timed(_aspect_peers.log_likelihood(found, x, 2), found.seconds)


def _genome_score(generated: Any, found: Fit | float) -> float:
    """log p(x | s, a), without binomial coefficients, as that of the peer."""
    if type(found) is float:
        return found
    fitted: Fit = found  # pyright: ignore[reportAssignmentType]
    coefficient = torch.where(generated.x == 1, 2.0, 1.0).double().log().sum()
    return float(fitted.plugin_log_likelihood().double().sum() - coefficient)


# ----- counts -----------------------------------------------------------------------------------------------------


def _hpfrec(data: Any) -> Any:
    import pandas as pd
    from hpfrec import HPF  # pyright: ignore[reportMissingImports]

    cells = sp.coo_matrix(data[0])
    table = pd.DataFrame({"UserId": cells.row, "ItemId": cells.col, "Count": cells.data})
    settings: dict[str, Any] = {"stop_crit": "maxiter", "check_every": 300, "reindex": False, "verbose": False}
    made = HPF(k=20, ncores=1, maxiter=300, random_seed=0, use_float=False, **settings)
    made.fit(table)
    rate, theta, beta = np.zeros(data[0].shape), np.asarray(made.Theta), np.asarray(made.Beta)
    rate[: len(theta), : len(beta)] = theta @ beta.T
    return rate


def _glmpca(data: Any) -> Any:
    from glmpca.glmpca import glmpca  # pyright: ignore[reportMissingImports]

    np.random.seed(0)  # noqa: NPY002 (it has no other way to be seeded)
    x, rate = data[0].astype(float), np.zeros(data[0].shape)
    used = x.sum(0) > 0
    found = glmpca(x[:, used].T, 10, fam="poi", penalty=10.0, ctl={"maxIter": 60, "eps": 1e-4})
    log = found["factors"] @ found["loadings"].T + found["coefX"][:, 0] + np.log(x[:, used].mean(1))[:, None]
    rate[:, used] = np.exp(np.clip(log, -30, 10))
    return rate


def _rate(data: Any, found: Fit) -> Any:
    del data
    return mean_rate(found).double().numpy()


def _thinned(data: Any) -> dict[str, Any]:
    return {"x": sp.csr_matrix(data[0].astype(float))}


# ----- others -----------------------------------------------------------------------------------------------------


def _grey(folder: Path) -> Any:
    """Digits in shades of grey, 0 to 1."""
    from sklearn.datasets import load_digits

    del folder
    rows: Any = load_digits()
    order = np.random.default_rng(0).permutation(len(rows.data))
    return rows.data[order[:1437]] / 16, rows.data[order[1437:]] / 16


def _shades(folder: Path) -> Any:
    """Digits in four shades, 0 to 3."""
    return tuple(np.minimum((part * 4).astype(int), 3) for part in _grey(folder))


def _digits(folder: Path) -> Any:
    del folder
    return digits()


def _likelihood(part: int) -> Callable[[Any, Fit], float]:
    """Mean log-likelihood of the training (0) or test rows (1)."""

    def read(data: Any, found: Fit) -> float:
        model: Model = found.model
        return float(log_likelihood(model, found.globals, model.prepare(data[part], dtype=torch.float64)).mean())

    return read


def _pca(data: Any) -> float:
    from sklearn.decomposition import PCA

    return float(PCA(_COMPONENTS).fit(data[0]).score(data[1]))


def _stepmix(measurement: str) -> Callable[[Any], float]:
    def run(data: Any) -> float:
        from stepmix import StepMix  # pyright: ignore[reportMissingImports]

        settings: dict[str, Any] = {"n_init": 10, "random_state": 0, "progress_bar": 0, "max_iter": 300}
        made = StepMix(_COMPONENTS, measurement=measurement, **settings).fit(data[0].astype(int))
        return float(made.score(data[0].astype(int)))

    return run


def _bernoulli_rbm(data: Any) -> Any:
    from sklearn.neural_network import BernoulliRBM

    settings: dict[str, Any] = {"learning_rate": 0.01, "batch_size": 10, "n_iter": 300, "random_state": 0}
    return of_scikit_learn(BernoulliRBM(16, **settings).fit(data[0]))


def _train(data: Any) -> dict[str, Any]:
    return {"x": data[0]}


ROWS: tuple[Row, ...] = (
    Row(Lines("fit(NOCA(num_components=8), x)"), "images of eight sources: exact log-likelihood of a row", "more",
        PEERS[0].name, ("tvo",), _images, once(lambda x: {"x": x}, _params), lambda x: _checkout(PEERS[0], x),
        _noisy_or_score),
    Row(Lines("fit(CVQ(num_components=16), x)"), "16 bars in noise: exact log-likelihood of a row", "more",
        "ProSper BSC_ET, 100 steps", ("prosper",), _bars, once(lambda problem: {"x": problem.x}, _params),
        lambda problem: _checkout(cvq_bars.peer_of("prosper", 16), problem.x),
        lambda problem, params: problem.exact({site: one.to(problem.x) for site, one in params.items()})),
    Row(Lines("fit(AspectBernoulli(num_components=5, total_count=2), x)"),
        "500 genomes of 9915 sites: log-likelihood", "more", "adamixture", ("adamixture",), _genomes,
        once(lambda generated: {"x": generated.x}, lambda generated, found: found), _adamixture, _genome_score),
    Row(Lines("fit(NMF(num_components=20), x)"), "four newsgroups: divergence a token, which both minimise", "less",
        "scikit-learn NMF, nndsvda, 300 iterations", ("scikit-learn",), counts, once(_thinned, _rate),
        lambda data: scikit_learn_nmf(data[0], 0, num_factors=20)[0], lambda data, rate: divergence(rate, data[0])),
    Row(Lines("fit(GammaPoisson(num_components=20), x)"), _THINNED, "more",
        "hpfrec, 300 iterations", ("hpfrec",), counts, once(_thinned, _rate), _hpfrec,
        lambda data, rate: score(rate, *data)),
    Row(Lines("fit(PoissonPCA(num_components=10), x)"), _THINNED, "more", "glmpca, penalty 10, 60 iterations",
        ("glmpca",), counts, once(_train, lambda data, found: log_linear_rate(found)), _glmpca,
        lambda data, rate: score(rate, *data)),
    Row(Lines("fit(GaussianPCA(num_components=10), x)"), "digits in grey: log-likelihood of a test row", "more",
        "scikit-learn PCA", ("scikit-learn",), _grey, once(_train, _likelihood(1)), _pca, given_score),
    Row(Lines("fit(MixtureOfBernoullis(num_components=10), x, method='em')"),
        f"digits, black and white: {_MIXED}", "more", "stepmix, 10 starts", ("stepmix",),
        _digits, once(_train, _likelihood(0)), _stepmix("binary"), given_score),
    Row(Lines("fit(MixtureOfCategoricals(num_components=10), x, method='em')"),
        f"digits in four shades: {_MIXED}", "more", "stepmix, 10 starts", ("stepmix",),
        _shades, once(_train, _likelihood(0)), _stepmix("categorical"),
        given_score),
    Row(Lines("fit(RBM(num_hidden=16), x)"), "digits: log-likelihood of a test row", "more",
        "scikit-learn BernoulliRBM, 300 passes", ("scikit-learn",), _digits,
        once(_train, lambda data, found: found.globals), _bernoulli_rbm,
        lambda data, weights: boltzmann_score(weights, data[1])),
)  # fmt: skip
