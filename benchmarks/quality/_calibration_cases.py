"""Which methods are checked on which models, and what is known of the outcome."""

from __future__ import annotations

from dataclasses import MISSING, dataclass
from typing import Any

import numpy as np
import pyro.distributions as dist
import torch

from benchmarks.quality._calibration_methods import OneRate, Spoiled
from custom_inference import NUTS, CollapsedGibbs
from custom_inference.methods import methods_for, resolve_method
from ppl_models import HDP, MODELS, PMF, GammaPoisson, GraphModel, LogisticPCA, MixtureOfPoissons, Model
from ppl_models.distributions import Flat, InverseWishart

#: What is known: the posterior is exact (but for Monte Carlo error), approximate, or spoiled on purpose.
EXACT, APPROXIMATE, SPOILED = "exact", "approximate", "spoiled"
#: Settings for many small fits.
GIBBS = CollapsedGibbs(chains=1, warmup=50, num_samples=150, thin=2, search=False)
NUTS_ = NUTS(num_samples=120, warmup=120, chains=1, max_tree_depth=5)


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

    @property
    def key(self) -> tuple[str, str]:
        """Model and method, as the report has them."""
        return self.title, self.method.name

    @property
    def like(self) -> Any:
        return None if self.num_rows is None else given(self.model, self.num_rows)


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


#: What a model's constructor is given, where it asks for it.
SIZES = {
    "vocabulary_size": 6, "num_features": 4, "num_categories": 3, "num_covariates": 2, "num_users": 20, "num_items": 4,
    "num_choices": 3, "num_times": 2, "num_states": 2, "num_labels": 1, "topics_per_label": 1,
    "num_classes": 2,
}  # fmt: skip
#: The same where there is a default.
_SHORT = {"document_length": 12, "sentence_length": 4, "layers": (1, 2, 4)}
_COMPONENTS = ("num_components", "num_topics", "max_topics", "num_hidden")


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
        model: Any = kind(num_blocks=num_components, **settings)
        return model.with_concentration(0.5) if name == "mmsb" else model
    fields = kind.__dataclass_fields__
    asked = {one for one in fields if fields[one].default is MISSING or one in _COMPONENTS}
    sizes = {one: num_components for one in _COMPONENTS if one in asked}
    if name in ("labeled_lda", "partially_labeled_lda"):  # a topic of the label, one common to all documents
        sizes["num_topics"] = 2
    sizes |= {one: size for one, size in SIZES.items() if one in asked}
    sizes |= {one: size for one, size in _SHORT.items() if one in fields}
    return proper(kind(**sizes, **({"adaptive": False} if name == "pmf" else {})))


def proper(model: Model) -> Model:
    """With priors that data can be drawn from, and under which a fit of few rows is not at its prior's edge."""
    priors = {site: prior.proposal for site, prior in model.priors.items() if isinstance(prior, Flat)}
    chosen: dict[str, Any] = {
        "rate": dist.Gamma(2.0, 0.5),
        "bias": dist.Normal(0.0, 1.0),
        "mean": dist.Normal(0.0, 1.0),
    }
    if not isinstance(model, LogisticPCA):
        priors |= {site: prior for site, prior in chosen.items() if site in model.priors}
    if isinstance(model, GammaPoisson) and not model.has_atoms:
        priors |= {"loading": dist.Gamma(1.0, 0.5), "activation": dist.Gamma(1.0, 0.5)}
    if isinstance(model, HDP):  # proportions next to 0 would leave documents in one of several modes
        priors |= {"concentration": dist.Gamma(8.0, 2.0), "stick_concentration": dist.Gamma(8.0, 4.0)}
    return model.with_priors(**priors) if priors else model


def given(model: Any, num_rows: int) -> Any:
    """Data with what the model is given beside them, whose words and lengths are to be drawn anew; None: nothing."""
    sites, rng = model.sites_of("given"), np.random.default_rng(0)
    covariates, labels = rng.standard_normal((num_rows, SIZES["num_covariates"])), np.arange(num_rows) % 2
    beside = {"covariates": covariates, "labels": labels[:, None]}
    found = {site: beside[site] for site in sites if site in beside and getattr(model, f"num_{site}", 0)}
    if not found:
        return None
    width = model.sizes.get("word", model.sizes.get("feature"))
    each = max(1, getattr(model, "document_length", width) // width)
    return model.prepare(np.full((num_rows, width), each), dtype=torch.float64, **found)


def rating_problem(likelihood: str) -> Model:
    """Ratings of five items by twelve users, one factor, learned priors."""
    covariance = InverseWishart(5.0, 1.5 * torch.eye(2))
    model = PMF(num_components=1, num_users=12, num_items=5, likelihood=likelihood)
    return model.with_priors(user_covariance=covariance, item_covariance=covariance, mean=dist.Normal(0.0, 1.0))


#: Model -> methods of the local posterior beside the exact one.
APPROXIMATIONS = {
    "noca": ("truncated", "factorized", "mean_field"),
    "cvq": ("truncated", "mean_field"),
    "aspect_bernoulli": ("dirichlet", "map"),
    "lda": ("gibbs", "dirichlet"),
    "user_rating_profile": ("dirichlet",),
    "logistic_pca": ("gaussian",),
    "sbm": ("gibbs", "mean_field"),
    "poisson_sbm": ("gibbs", "mean_field"),
    "degree_corrected_sbm": ("gibbs", "mean_field"),
    "covariate_sbm": ("mean_field",),
    "mmsb": ("gibbs", "dirichlet"),
    "gamma_poisson": ("gibbs", "gamma"),
    "spike_gamma_poisson": ("gibbs", "gamma"),
    "poisson_pca": ("variational", "laplace"),
    **dict.fromkeys(("categorical_pca", "softmax_pca", "discriminative_categorical_pca"),
                    ("variational", "laplace", "gaussian")),
    "bilinear_pmf": ("gaussian",),
    "choice_pmf": ("gaussian",),
    # At given globals the samplers of these, and of LDA-HMM, give the engine's posterior.
    **dict.fromkeys(("ctm", "random_effects_lda"), ("gaussian", "laplace")),
    "ldahmm": ("dirichlet",),
    "dtm": ("gaussian",),
    **dict.fromkeys(("hdp", "supervised_lda", "dirichlet_multinomial_regression"), ("gibbs", "dirichlet")),
    "labeled_lda": ("gibbs", "dirichlet"),
}  # fmt: skip


#: Samplers of the globals, models with documents or counts.
SAMPLED = (
    "lda", "gamma_poisson", "spike_gamma_poisson", "ctm", "random_effects_lda", "hdp", "ldahmm", "supervised_lda",
    "labeled_lda", "dirichlet_multinomial_regression",
)  # fmt: skip


def local_cases() -> list[Case]:
    """Posteriors of locals at given globals: the exact engine of every model, and the approximations."""
    cases = []
    for name in MODELS:
        model, rows = problem(name), None if issubclass(MODELS[name], GraphModel) else 20
        exact = ("exact",) if "exact" in methods_for(model) else ()
        for method in (*exact, *APPROXIMATIONS.get(name, ())):
            known = EXACT if method in ("exact", "gibbs") else APPROXIMATE
            share = 0.25 if (name, method) == ("mmsb", "exact") else 1.0
            cases.append(Case(name, model, resolve_method(method, model=model), "locals", known, rows, share))
    spoiled = (Spoiled(power=2.0), Spoiled(power=0.5), Spoiled(hidden=1), Spoiled(hidden=-1))
    return cases + [Case("noca", problem("noca"), method, "locals", SPOILED, share=3.0) for method in spoiled]


def fit_cases() -> list[Case]:
    """Whole fits: samplers, and spoiled posteriors."""
    cases = [Case("one_rate", one_rate(), OneRate(), "globals", EXACT, 10)]
    cases += [Case("one_rate", one_rate(), one, "globals", SPOILED, 10)
              for one in (OneRate(narrow=4.0), OneRate(narrow=0.25), OneRate(shift=1.2))]  # fmt: skip
    mixtures = ("mixture_of_poissons", "mixture_of_categoricals", "mixture_of_multinomials")
    graphs = ("sbm", "poisson_sbm", "degree_corrected_sbm", "mmsb")
    for name in (*mixtures, *SAMPLED, *graphs):
        rows = None if issubclass(MODELS[name], GraphModel) else 10
        # That of the HDP samples the process without a limit to the number of topics, of which there are two here.
        known = APPROXIMATE if name == "hdp" else EXACT
        cases.append(Case(name, problem(name), GIBBS, "globals", known, rows))
    for likelihood in ("gaussian", "logistic"):
        cases.append(Case(f"pmf, {likelihood}", rating_problem(likelihood), GIBBS, "globals", EXACT, 12, 0.5))
    for name, size in (("noca", 3), ("mixture_of_bernoullis", 2)):
        cases.append(Case(name, problem(name, size), NUTS_, "globals", EXACT, 10, 0.3))
    return cases
