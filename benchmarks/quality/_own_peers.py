"""Other programs on the data of programs of one's own, as their users would write them.

Every function takes the rows, a seed and the number of steps or iterations, and returns what it found as NumPy arrays:
weight and p or rate of mixtures; start, move and emit of chains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.stats import bernoulli, poisson

from benchmarks.quality._own_by_hand import chain_evidence
from benchmarks.quality._own_data import Array

Found = Mapping[str, Array]
#: Steps of Adam with the rate 0.05, and iterations of EM at most, where these end by themselves or do not.
STEPS, ITERATIONS, _DYNAMAX = 500, 500, 200


@dataclass(frozen=True)
class Program:
    """needs: the packages that have to be there; method: what a user reads of it; runs: by kind of data."""

    name: str
    needs: tuple[str, ...]
    method: str
    runs: Mapping[str, Callable[[Array, int, int], Found]]


def evidence(kind: str, x: Array, found: Found) -> float:
    """The mean log-likelihood of a row, the same for all programs."""
    if kind == "chain":
        return float(chain_evidence(x, found["start"], found["move"], found["emit"]).mean())
    law = bernoulli.logpmf if kind == "bits" else poisson.logpmf
    what = found["p"].clip(1e-9, 1 - 1e-9) if kind == "bits" else found["rate"].clip(1e-9)
    joint = np.stack([law(x, one).sum(1) for one in what], 1) + np.log(found["weight"])
    return float(np.logaddexp.reduce(joint, 1).mean())


_SIZES = {"bits": 10, "counts": 5}


# ----- Pyro -------------------------------------------------------------------------------------------------------


def _pyro_mixture(kind: str, x: Array, seed: int, steps: int) -> Found:
    import pyro
    import pyro.distributions as laws

    dist: Any = laws

    size = _SIZES[kind]

    def model(x: Any) -> None:
        weight = pyro.sample("weight", dist.Dirichlet(torch.ones(size)))
        prior, law, site = (
            (dist.Beta(1.0, 1.0), dist.Bernoulli, "p")
            if kind == "bits"
            else (dist.Gamma(0.1, 0.1), dist.Poisson, "rate")
        )
        what = pyro.sample(site, prior.expand([size, x.shape[1]]).to_event(2))
        with pyro.plate("row", len(x)):
            z = pyro.sample("z", dist.Categorical(weight), infer={"enumerate": "parallel"})
            pyro.sample("x", law(what[z]).to_event(1), obs=x)

    return _by_pyro(model, torch.as_tensor(x).float(), seed, steps)


def _pyro_chain(x: Array, seed: int, steps: int) -> Found:
    import pyro
    import pyro.distributions as laws

    dist: Any = laws

    def model(x: Any) -> None:
        start = pyro.sample("start", dist.Dirichlet(torch.ones(4)))
        move = pyro.sample("move", dist.Dirichlet(torch.ones(4)).expand([4]).to_event(1))
        emit = pyro.sample("emit", dist.Dirichlet(torch.ones(8)).expand([4]).to_event(1))
        with pyro.plate("row", len(x)):
            z: Any = None
            for t in pyro.markov(range(x.shape[1])):
                chances = start if z is None else move[z]
                z = pyro.sample(f"z{t}", dist.Categorical(chances), infer={"enumerate": "parallel"})
                pyro.sample(f"x{t}", dist.Categorical(emit[z]), obs=x[:, t])

    return _by_pyro(model, torch.as_tensor(x).long(), seed, steps)


def _by_pyro(model: Any, x: Any, seed: int, steps: int) -> Found:
    import pyro
    from pyro import poutine
    from pyro.infer import SVI, TraceEnum_ELBO
    from pyro.infer.autoguide import AutoDelta, init_to_sample
    from pyro.optim import PyroOptim

    adam = PyroOptim(torch.optim.Adam, {"lr": 0.05})
    pyro.clear_param_store()
    pyro.set_rng_seed(seed)
    guide = AutoDelta(
        poutine.block(model, hide_fn=lambda site: str(site.get("name")).startswith("z")), init_loc_fn=init_to_sample
    )
    svi = SVI(model, guide, adam, TraceEnum_ELBO(max_plate_nesting=1))
    for _ in range(steps):
        svi.step(x)
    return {name: value.detach().double().numpy() for name, value in guide.median().items()}


# ----- NumPyro ----------------------------------------------------------------------------------------------------


def _numpyro_mixture(kind: str, x: Array, seed: int, steps: int) -> Found:
    import jax.numpy as jnp  # pyright: ignore[reportMissingImports]
    import numpyro  # pyright: ignore[reportMissingImports]
    import numpyro.distributions as dist  # pyright: ignore[reportMissingImports]

    size = _SIZES[kind]

    def model(x: Any) -> None:
        weight = numpyro.sample("weight", dist.Dirichlet(jnp.ones(size)))
        shape = [size, x.shape[1]]
        if kind == "bits":
            what = numpyro.sample("p", dist.Beta(1.0, 1.0).expand(shape).to_event(2))
        else:
            what = numpyro.sample("rate", dist.Gamma(0.1, 0.1).expand(shape).to_event(2))
        law = dist.Bernoulli if kind == "bits" else dist.Poisson
        with numpyro.plate("row", len(x)):
            z = numpyro.sample("z", dist.Categorical(weight), infer={"enumerate": "parallel"})
            numpyro.sample("x", law(what[z]).to_event(1), obs=x)

    return _by_numpyro(model, jnp.asarray(x, jnp.float32), seed, steps)


def _numpyro_chain(x: Array, seed: int, steps: int) -> Found:
    import jax.numpy as jnp  # pyright: ignore[reportMissingImports]
    import numpyro  # pyright: ignore[reportMissingImports]
    import numpyro.distributions as dist  # pyright: ignore[reportMissingImports]
    from numpyro.contrib.funsor import markov  # pyright: ignore[reportMissingImports]

    def model(x: Any) -> None:
        start = numpyro.sample("start", dist.Dirichlet(jnp.ones(4)))
        move = numpyro.sample("move", dist.Dirichlet(jnp.ones(4)).expand([4]).to_event(1))
        emit = numpyro.sample("emit", dist.Dirichlet(jnp.ones(8)).expand([4]).to_event(1))
        with numpyro.plate("row", x.shape[0]):
            z: Any = None
            for t in markov(range(x.shape[1])):
                chances = start if z is None else move[z]
                z = numpyro.sample(f"z{t}", dist.Categorical(chances), infer={"enumerate": "parallel"})
                numpyro.sample(f"x{t}", dist.Categorical(emit[z]), obs=x[:, t])

    return _by_numpyro(model, jnp.asarray(x, jnp.int32), seed, steps)


def _by_numpyro(model: Any, x: Any, seed: int, steps: int) -> Found:
    import jax  # pyright: ignore[reportMissingImports]
    from numpyro import handlers, optim  # pyright: ignore[reportMissingImports]
    from numpyro.infer import SVI, TraceEnum_ELBO, init_to_sample  # pyright: ignore[reportMissingImports]
    from numpyro.infer.autoguide import AutoDelta  # pyright: ignore[reportMissingImports]

    seeded = handlers.seed(model, jax.random.PRNGKey(seed))
    free = handlers.block(seeded, hide_fn=lambda site: site["name"][0] in "zx")
    guide = AutoDelta(free, init_loc_fn=init_to_sample)
    svi = SVI(model, guide, optim.Adam(0.05), TraceEnum_ELBO())
    done = svi.run(jax.random.PRNGKey(seed), steps, x, progress_bar=False)
    return {name: np.asarray(value, float) for name, value in guide.median(done.params).items()}


# ----- pomegranate ------------------------------------------------------------------------------------------------


def _pomegranate_mixture(kind: str, x: Array, seed: int, iterations: int) -> Found:
    from pomegranate.distributions import Bernoulli, Poisson  # pyright: ignore[reportMissingImports]
    from pomegranate.gmm import GeneralMixtureModel  # pyright: ignore[reportMissingImports]

    law, name, what = (Bernoulli, "p", "probs") if kind == "bits" else (Poisson, "rate", "lambdas")
    # Its own starts may leave classes empty, which end at no number.
    rows = np.random.default_rng(seed).choice(len(x), _SIZES[kind], replace=False)
    start = (0.5 * x[rows] + 0.5 * x.mean(0)).clip(0.01, 0.99 if kind == "bits" else None)
    parts = [law(torch.as_tensor(one).float()) for one in start]
    made = GeneralMixtureModel(parts, max_iter=iterations, tol=1e-5 * len(x), random_state=seed)
    made.fit(torch.as_tensor(x).float())
    values = np.stack([getattr(one, what).detach().double().numpy() for one in made.distributions])
    return {"weight": made.priors.double().numpy(), name: values}


def _pomegranate_chain(x: Array, seed: int, iterations: int) -> Found:
    from pomegranate.distributions import Categorical  # pyright: ignore[reportMissingImports]
    from pomegranate.hmm import DenseHMM  # pyright: ignore[reportMissingImports]

    start = np.random.default_rng(seed).dirichlet(np.ones(8), 4)
    parts = [Categorical(torch.as_tensor(one)[None].float()) for one in start]
    edges: Any = {
        "starts": [0.25] * 4,
        "edges": [[0.2] * 4] * 4,
        "ends": [0.2] * 4,
    }  # its own default is one step alone
    made = DenseHMM(parts, **edges, max_iter=iterations, tol=1e-5 * len(x), random_state=seed)
    made.fit(torch.as_tensor(x).long()[..., None])
    begin, move = (np.exp(np.asarray(one.detach().double())) for one in (made.starts, made.edges))
    emit = np.concatenate([np.asarray(one.probs.detach().double()) for one in made.distributions])
    return {"start": begin / begin.sum(), "move": move / move.sum(1, keepdims=True), "emit": emit}


# ----- dynamax ----------------------------------------------------------------------------------------------------


def _dynamax(x: Array, seed: int, iterations: int) -> Found:
    import jax  # pyright: ignore[reportMissingImports]
    import jax.numpy as jnp  # pyright: ignore[reportMissingImports]
    from dynamax.hidden_markov_model import CategoricalHMM  # pyright: ignore[reportMissingImports]

    made, symbols = CategoricalHMM(4, 1, 8), jnp.asarray(x[..., None], jnp.int32)
    start, properties = made.initialize(jax.random.PRNGKey(seed))
    number = min(iterations, _DYNAMAX)  # it makes as many as it is told
    found, _ = made.fit_em(start, properties, symbols, num_iters=number, verbose=False)
    parts = found.initial.probs, found.transitions.transition_matrix, found.emissions.probs[:, 0]
    return dict(zip(("start", "move", "emit"), (np.asarray(one, float) for one in parts), strict=True))


# ----- hmmlearn ---------------------------------------------------------------------------------------------------


def _hmmlearn(x: Array, seed: int, iterations: int) -> Found:
    from hmmlearn.hmm import CategoricalHMM  # pyright: ignore[reportMissingImports]

    made = CategoricalHMM(4, n_iter=iterations, tol=1e-5 * len(x), random_state=seed)
    made.fit(x.astype(int).reshape(-1, 1), [x.shape[1]] * len(x))
    return {"start": made.startprob_, "move": made.transmat_, "emit": made.emissionprob_}


_ADAM, _EM = f"Adam, {STEPS} steps", "EM, one start"
PROGRAMS: tuple[Program, ...] = (
    Program("Pyro", ("pyro-ppl",), f"TraceEnum_ELBO, AutoDelta, {_ADAM}",
            {"bits": partial(_pyro_mixture, "bits"), "counts": partial(_pyro_mixture, "counts"), "chain": _pyro_chain}),
    Program("NumPyro", ("numpyro", "funsor"), f"TraceEnum_ELBO, AutoDelta, {_ADAM}, compiling",
            {"bits": partial(_numpyro_mixture, "bits"), "counts": partial(_numpyro_mixture, "counts"),
             "chain": _numpyro_chain}),
    Program("pomegranate", ("pomegranate",), _EM,
            {"bits": partial(_pomegranate_mixture, "bits"), "counts": partial(_pomegranate_mixture, "counts"),
             "chain": _pomegranate_chain}),
    Program("dynamax", ("dynamax",), f"{_EM}, {_DYNAMAX} iterations, compiling", {"chain": _dynamax}),
    Program("hmmlearn", ("hmmlearn",), _EM, {"chain": _hmmlearn}),
)  # fmt: skip


def run(program: Program, kind: str, x: Array, seed: int, few: int | None = None) -> Found:
    """Fit once. few: steps or iterations, by default those that a user would take."""
    number = few or (STEPS if "Adam" in program.method else ITERATIONS)
    return program.runs[kind](x, seed, number)
