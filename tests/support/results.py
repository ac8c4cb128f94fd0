"""A small result of every kind that has a figure or a display in notebooks; labels are hostile to markup."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import torch

from custom_inference import (
    Bracket,
    CollapsedGibbs,
    Comparison,
    CrossValidation,
    Evidence,
    Fit,
    LeaveOneOut,
    ModelComparison,
    PredictiveCheck,
    VariationalEM,
    loo,
    posterior_predictive_check,
    simulation_based_calibration,
)
from custom_inference.core.local_inference import Local
from custom_inference.core.posteriors import BernoulliPosterior
from ppl_models import LDA, MMSB, MODELS, NOCA, Data, MixtureOfPoissons, as_documents, datasets
from tests.support.calibration import proper_priors, tiny
from tests.support.fits import given, given_graph

HOSTILE = ["<b>bold</b>", "a & b", '"><script>alert(1)</script>', "&lt;i&gt;", "plain", "<img src=x>"]


@cache
def noca(*, pixels: bool = False) -> Fit:
    """A fit with invented parameters."""
    generator = torch.Generator().manual_seed(0)
    loading = torch.rand(3, 6, generator=generator) ** 4
    names = ["r0c0", "r0c1", "r0c2", "r1c0", "r1c1", "r1c2"] if pixels else HOSTILE
    x = torch.bernoulli(torch.full((40, 6), 0.3), generator=generator)
    return given(
        NOCA(num_components=3, num_features=6),
        {"source_prior": torch.tensor([0.4, 0.3, 0.001]), "loading": loading, "leak": torch.full((6,), 0.05)},
        Data(x=x, coords={"feature": names}),
        elbo=40 * torch.linspace(-30.0, -10.0, 25),
        bound_name="mean_field",
        status="converged after <25> iterations & stayed there",
        local=Local(BernoulliPosterior(torch.rand(40, 3, generator=generator) ** 3), torch.zeros(40)),
    )


def _begun(model: str, guide: str) -> Fit:
    """A fit of the model's example that has just begun."""
    example = MODELS[model].example()
    return VariationalEM(guide=guide, search=None, max_iterations=2).fit(example.model, example.data, progress=False)


@cache
def correlated() -> Fit:
    return _begun("ctm", "gaussian")


@cache
def dated() -> Fit:
    return _begun("dtm", "cvb0")


@cache
def sentences() -> Fit:
    return _begun("ldahmm", "vb")


@cache
def topics() -> Fit:
    rng = np.random.default_rng(0)
    data = as_documents(rng.poisson(0.7, (12, 6)), vocabulary=HOSTILE)
    drawn = {"topic": rng.dirichlet(np.ones(6), 2), "topic_proportion": rng.dirichlet(np.ones(2), 12)}
    params = {site: torch.as_tensor(value) for site, value in drawn.items()}
    return given(LDA(num_topics=2, vocabulary_size=6), params, data)


@cache
def memberships() -> Fit:
    drawn = datasets.sample_mmsb(0.6 * np.eye(3) + 0.05, 18, directed=False, seed=2)
    model, eta = MMSB(num_blocks=3, num_nodes=18, directed=False), drawn.truth["edge_probability"]
    return given_graph(model, drawn.graph, drawn.truth["membership"], {"edge_probability": eta})


@cache
def comparison() -> Comparison:
    table = {"bound": [-9.0, -9.5], "gap_per_row": [0.0, 0.03], "worst_marginal_error": [0.0, 0.02]}
    return Comparison(pd.DataFrame(table, index=pd.Index(["Exact", "<b>mine</b>"], name="method")))


@cache
def bracketed() -> Bracket:
    lower = torch.tensor([-3.0, -5.0, -4.0, -2.0], dtype=torch.float64)
    width = torch.tensor([0.2, 0.0, 1.5, 0.4], dtype=torch.float64)
    return Bracket(lower, lower + width, width == 0)


@cache
def chosen() -> ModelComparison:
    models = {f"<b>{k}</b>": MixtureOfPoissons(num_components=k, num_features=4) for k in (1, 2, 3)}
    values = {"evidence": [-20.0, -15.0, -16.0], "evidence_error": [0.0, 0.2, 0.3], "bic": [44.0, 38.0, 41.0]}
    pairs = zip(models, values["evidence"], values["evidence_error"], strict=True)
    evidence = {
        name: Evidence(log_evidence=value, standard_error=error, method="smc", how="", model="")
        for name, value, error in pairs
    }
    table = pd.DataFrame(values, index=pd.Index([*models], name="model"))
    return ModelComparison(table, ("evidence", "bic"), "row", dict(models), evidence=evidence)


@cache
def check() -> PredictiveCheck:
    statistics = {"<b>total</b>": lambda x: x.sum(), "first": lambda x: x[:, 0].mean()}
    return posterior_predictive_check(noca(), statistics, num_samples=20, progress=False)


@cache
def counted() -> PredictiveCheck:
    fit = classes()
    return posterior_predictive_check(fit, ["value_frequency"], num_samples=20, progress=False)


@cache
def classes() -> Fit:
    example = MixtureOfPoissons.example()
    return CollapsedGibbs(chains=1, warmup=20, num_samples=60).fit(example.model, example.data, progress=False)


@cache
def left_out() -> LeaveOneOut:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of so few draws
        return loo(classes(), progress=False)


@cache
def calibration() -> Any:
    model = proper_priors(tiny("mixture_of_poissons"))
    return simulation_based_calibration(model, "exact", of="locals", num_simulations=12, num_rows=5, progress=False)


@cache
def folds() -> CrossValidation:
    lines = {"num_topics": [2, 2, 3, 3], "fold": [0, 1, 0, 1], "perplexity": [9.0, 8.0, 7.0, 6.5], "tokens": [5] * 4}
    return CrossValidation(pd.DataFrame({**lines, "seconds": [0.1] * 4}), "by <completion>", "LDA")
