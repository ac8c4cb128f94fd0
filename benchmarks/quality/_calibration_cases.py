"""Which methods are checked on which models, and what is known of the outcome."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyro.distributions as dist
import torch

from benchmarks.quality._calibration_methods import OneRate, Spoiled
from custom_inference import NUTS, SVI, CollapsedGibbs, VariationalEM
from custom_inference.methods import methods_for, named_method
from ppl_models import MODELS, PMF, GraphModel, MixtureOfPoissons, Model
from ppl_models.distributions import InverseWishart

#: What is known: the posterior is exact (but for Monte Carlo error), approximate, or spoiled on purpose.
EXACT, APPROXIMATE, SPOILED = "exact", "approximate", "spoiled"
#: Settings for many small fits.
GIBBS = CollapsedGibbs(chains=1, warmup=50, num_samples=150, thin=2, search=False)
VB = VariationalEM(guide="vb")
NUTS_ = NUTS(num_samples=120, warmup=120, chains=1, max_tree_depth=5)
SVI_ = SVI(guide="normal", steps=400)


@dataclass(frozen=True)
class Case:
    """share: of the number of simulations, smaller for slow methods."""

    title: str
    model: Model
    method: Any
    of: str
    known: str
    num_rows: int | None = 20
    share: float = 1.0


def explaining_away(name: str) -> Model:
    """Sources that account for the same features: given these they depend on each other, which mean field ignores."""
    kind: Any = MODELS[name]
    if name == "noca":
        priors = {"source_prior": dist.Beta(4.0, 6.0), "loading": dist.Beta(6.0, 2.0), "leak": dist.Beta(1.0, 30.0)}
        return kind(num_components=3, num_features=4).with_priors(**priors)
    priors = {"source_prior": dist.Beta(4.0, 4.0), "weight": dist.Normal(1.0, 0.3), "scale": dist.LogNormal(-0.7, 0.2)}
    return kind(num_components=3, num_features=3).with_priors(**priors)


def one_rate() -> Model:
    """Counts of three rates, whose posterior is conjugate."""
    return MixtureOfPoissons(num_components=1, num_features=3).with_priors(rate=dist.Gamma(2.0, 0.5))


def problem(name: str, num_components: int = 2) -> Model:
    """A small problem of every model, with proper priors under which its components can be told apart."""
    kind: Any = MODELS[name]
    if name in ("noca", "cvq"):
        return explaining_away(name)
    if issubclass(kind, GraphModel):
        settings: dict[str, Any] = {"num_nodes": 7, "directed": False}
        if name == "covariate_sbm":
            feature = np.random.default_rng(0).standard_normal((7, 1))
            settings = {"covariates": torch.as_tensor(feature), "directed": False}
        model = kind(num_blocks=num_components, **settings)
        return model.with_concentration(0.5) if name == "mmsb" else model
    if "num_topics" in kind.__dataclass_fields__:
        return kind(num_topics=num_components, vocabulary_size=6, document_length=12)
    if name in ("rbm", "replicated_softmax"):
        return kind(num_hidden=num_components, num_features=4)
    sizes = {"num_components": num_components, "num_features": 4, "num_categories": 3, "num_covariates": 2,
             "num_users": 20, "num_items": 4, "num_choices": 3}  # fmt: skip
    model = kind(**{field: size for field, size in sizes.items() if field in kind.__dataclass_fields__})
    return model.with_priors(rate=dist.Gamma(2.0, 0.5)) if name == "mixture_of_poissons" else model


def rating_problem(likelihood: str) -> Model:
    """Ratings of five items by twelve users, one factor, learned priors."""
    covariance = InverseWishart(5.0, 1.5 * torch.eye(2))
    model = PMF(num_components=1, num_users=12, num_items=5, likelihood=likelihood)
    return model.with_priors(user_covariance=covariance, item_covariance=covariance, mean=dist.Normal(0.0, 1.0))


#: Model -> methods of the local posterior beside the exact one.
APPROXIMATIONS = {
    "noca": ("truncated", "factorized", "mean_field", "svi"),
    "cvq": ("truncated", "mean_field"),
    "aspect_bernoulli": ("dirichlet", "map"),
    "lda": ("gibbs", "cvb0", "dirichlet", "map"),
    "user_rating_profile": ("dirichlet", "map"),
    "logistic_pca": ("gaussian", "map"),
    "sbm": ("gibbs", "mean_field"),
    "poisson_sbm": ("gibbs", "mean_field"),
    "degree_corrected_sbm": ("gibbs", "mean_field"),
    "covariate_sbm": ("mean_field",),
    "mmsb": ("gibbs", "cvb0", "dirichlet"),
}


def local_cases() -> list[Case]:
    """Posteriors of locals at given globals: the exact engine of every model, and the approximations."""
    cases = []
    for name in MODELS:
        rows = None if issubclass(MODELS[name], GraphModel) else 20
        exact = ("exact",) if "exact" in methods_for(MODELS[name].example().model) else ()
        for method in (*exact, *APPROXIMATIONS.get(name, ())):
            known = EXACT if method in ("exact", "gibbs") else APPROXIMATE
            settings: dict[str, Any] = {"steps": 400} if method == "svi" else {}
            share = {"svi": 0.15, "factorized": 0.5}.get(method, 1.0)
            cases.append(Case(name, problem(name), named_method(method, **settings), "locals", known, rows, share))
    spoiled = (Spoiled(power=2.0), Spoiled(power=0.5), Spoiled(hidden=1), Spoiled(hidden=-1))
    return cases + [Case("noca", problem("noca"), method, "locals", SPOILED) for method in spoiled]


def fit_cases() -> list[Case]:
    """Whole fits: samplers, variational Bayes, normals, and spoiled posteriors."""
    cases = [Case("one_rate", one_rate(), OneRate(), "globals", EXACT, 10)]
    cases += [Case("one_rate", one_rate(), one, "globals", SPOILED, 10)
              for one in (OneRate(narrow=4.0), OneRate(narrow=0.25), OneRate(shift=1.2))]  # fmt: skip
    mixtures = ("mixture_of_poissons", "mixture_of_categoricals", "mixture_of_multinomials")
    for name in (*mixtures, "lda", "sbm", "poisson_sbm", "degree_corrected_sbm", "mmsb"):
        rows = None if issubclass(MODELS[name], GraphModel) else 10
        cases.append(Case(name, problem(name), GIBBS, "globals", EXACT, rows))
        cases.append(Case(name, problem(name), VB, "globals", APPROXIMATE, rows, 0.5))
    cases.append(Case("user_rating_profile", problem("user_rating_profile"), VB, "globals", APPROXIMATE, 10, 0.5))
    cases.append(Case("lda", problem("lda"), VariationalEM(guide="cvb0"), "globals", APPROXIMATE, 10, 0.5))
    cases.append(Case("noca", problem("noca"), SVI_, "globals", APPROXIMATE, 10, 0.3))
    for likelihood in ("gaussian", "logistic"):
        rated = rating_problem(likelihood)
        cases.append(Case(f"pmf, {likelihood}", rated, GIBBS, "globals", EXACT, 12, 0.5))
        cases.append(
            Case(f"pmf, {likelihood}", rated, named_method("vb", model=rated), "globals", APPROXIMATE, 12, 0.5)
        )
    for name, size in (("noca", 3), ("mixture_of_bernoullis", 2), ("logistic_pca", 1), ("aspect_bernoulli", 2)):
        cases.append(Case(name, problem(name, size), NUTS_, "globals", EXACT, 10, 0.3))
    return cases
