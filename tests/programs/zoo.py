"""Every program with its reference, and its problem: the example's rows, complete or with missing entries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from ppl_models import Data, Example
from tests.programs import (
    annotators,
    causes,
    chains,
    classes,
    effects,
    experts,
    factors,
    gaussians,
    item_response,
    mixtures,
    regimes,
    shares,
)
from tests.programs import wildlife as animals
from tests.programs.references import annotators as of_annotators
from tests.programs.references import causes as of_causes
from tests.programs.references import chains as of_chains
from tests.programs.references import classes as of_classes
from tests.programs.references import effects as of_effects
from tests.programs.references import experts as of_experts
from tests.programs.references import factors as of_factors
from tests.programs.references import gaussians as of_gaussians
from tests.programs.references import item_response as of_items
from tests.programs.references import mixtures as of_mixtures
from tests.programs.references import regimes as of_regimes
from tests.programs.references import shares as of_shares
from tests.programs.references import wildlife as of_animals
from tests.programs.references._reference import Reference
from tests.support.cases import swapped_priors

PROGRAMS: dict[str, tuple[Any, Reference]] = {
    "rasch": (item_response.Rasch, of_items.RASCH),
    "two_parameter": (item_response.TwoParameter, of_items.TWO_PARAMETER),
    "graded_response": (item_response.GradedResponse, of_items.GRADED),
    "mixed_rasch": (item_response.MixedRasch, of_items.MIXED_RASCH),
    "skill_plate": (item_response.SkillPlate, of_items.SKILLS),
    "annotators": (annotators.Annotators, of_annotators.ANNOTATORS),
    "occupancy": (animals.Occupancy, of_animals.OCCUPANCY),
    "abundance": (animals.Abundance, of_animals.ABUNDANCE),
    "truncated_abundance": (animals.TruncatedAbundance, of_animals.TRUNCATED),
    "zero_inflated": (mixtures.ZeroInflated, of_mixtures.ZERO_INFLATED),
    "student_mixture": (mixtures.StudentMixture, of_mixtures.STUDENT),
    "von_mises_mixture": (mixtures.VonMisesMixture, of_mixtures.VON_MISES),
    "beta_binomial_mixture": (mixtures.BetaBinomialMixture, of_mixtures.BETA_BINOMIAL),
    "negative_binomial_mixture": (mixtures.NegativeBinomialMixture, of_mixtures.NEGATIVE_BINOMIAL),
    "censored_mixture": (mixtures.CensoredMixture, of_mixtures.CENSORED),
    "latent_class_regression": (experts.LatentClassRegression, of_experts.LATENT_CLASS),
    "mixture_of_experts": (experts.MixtureOfExperts, of_experts.EXPERTS),
    "two_flags": (classes.TwoFlags, of_classes.TWO_FLAGS),
    "mixture_of_mixtures": (classes.MixtureOfMixtures, of_classes.MIXTURE_OF_MIXTURES),
    "hierarchical_classes": (classes.HierarchicalClasses, of_classes.HIERARCHICAL),
    "probit_factors": (factors.ProbitFactors, of_factors.PROBIT),
    "ordinal_factors": (factors.OrdinalFactors, of_factors.ORDINAL),
    "noisy_and": (causes.NoisyAnd, of_causes.NOISY_AND),
    "noisy_max": (causes.NoisyMax, of_causes.NOISY_MAX),
    "two_layers": (causes.TwoLayers, of_causes.TWO_LAYERS),
    "change_point": (regimes.ChangePoint, of_regimes.CHANGE_POINT),
    "two_state_chain": (regimes.TwoStateChain, of_regimes.CHAIN),
    "spike_and_slab": (effects.SpikeAndSlab, of_effects.SPIKE_AND_SLAB),
    "random_effects": (effects.RandomEffects, of_effects.RANDOM_EFFECTS),
    "frailty": (effects.Frailty, of_effects.FRAILTY),
    "speeds": (effects.Speeds, of_effects.SPEEDS),
    "skill": (effects.Skill, of_effects.SKILL),
    "shares": (effects.Shares, of_effects.SHARES),
    "hidden_chain": (chains.HiddenChain, of_chains.HIDDEN_CHAIN),
    "broken_chain": (chains.BrokenChain, of_chains.HIDDEN_CHAIN),
    "added_levels": (chains.AddedLevels, of_chains.ADDED_LEVELS),
    "added_rates": (chains.AddedRates, of_chains.ADDED_RATES),
    "classes_of_chains": (chains.ClassesOfChains, of_chains.CLASSES_OF_CHAINS),
    "class_tree": (classes.ClassTree, of_classes.CLASS_TREE),
    "crowd": (annotators.Crowd, of_annotators.CROWD),
    "seasons": (animals.Seasons, of_animals.SEASONS),
    "skill_vector": (item_response.SkillVector, of_items.SKILL_VECTOR),
    "growth_classes": (experts.GrowthClasses, of_experts.GROWTH),
    "topic_of_tokens": (shares.TopicOfTokens, of_shares.TOPIC_OF_TOKENS),
    "supervised_topics": (shares.SupervisedTopics, of_shares.SUPERVISED_TOPICS),
    "rates_by_shares": (shares.RatesByShares, of_shares.RATES_BY_SHARES),
    "kalman_chain": (gaussians.KalmanChain, of_gaussians.KALMAN_CHAIN),
    "random_slopes": (gaussians.RandomSlopes, of_gaussians.RANDOM_SLOPES),
    "gaussian_factors": (gaussians.Factors, of_gaussians.FACTORS),
    "intercept_mixture": (gaussians.InterceptMixture, of_gaussians.INTERCEPT_MIXTURE),
    "factor_mixture": (gaussians.FactorMixture, of_gaussians.FACTOR_MIXTURE),
    "causes_of_causes": (causes.CausesOfCauses, of_causes.CAUSES_OF_CAUSES),
}  # fmt: skip

#: What log p of one entry agrees to, where that is not rounding: torch's Bessel functions of the von Mises are
#: polynomials of seven digits.
DIGITS = {"von_mises_mixture": 1e-7}


@cache
def problem_of(name: str) -> Example:
    """The program, its data and the truth, in float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return PROGRAMS[name][0].example()
    finally:
        torch.set_default_dtype(before)


@dataclass(frozen=True)
class Case:
    """A program with data that its reference knows too."""

    model: Any
    data: Data
    reference: Reference
    truth: dict[str, torch.Tensor]

    @property
    def is_finite(self) -> bool:
        """Whether all latents have finitely many values."""
        return self.reference.is_finite(as_numpy(self.globals), self.table)

    @property
    def globals(self) -> dict[str, torch.Tensor]:
        return {site: self.truth[site] for site in self.model.global_sites}

    @property
    def table(self) -> dict[str, np.ndarray]:
        """The data in NumPy."""
        return table_of(self.data)

    def few(self, rows: int) -> Case:
        """So many rows, from all over the data."""
        return replace(self, data=self.data.rows(torch.linspace(0, len(self.data) - 1, rows).long()))

    def swapped(self) -> Case:
        """The same under informative priors, of the globals and of the latents whose priors are free."""
        priors, spelled = swapped_priors(self.model)
        named = {site: one if isinstance(one[0], str) else ("beta", *one) for site, one in spelled.items()}
        return replace(self, model=self.model.with_priors(**priors), reference=self.reference.with_priors(named))


def table_of(data: Data) -> dict[str, np.ndarray]:
    mask = torch.ones_like(data.x, dtype=torch.bool) if data.mask is None else data.mask
    return {"x": data.x.numpy(), "mask": mask.numpy(), **{site: value.numpy() for site, value in data.others.items()}}


def as_numpy(values: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    return {site: value.detach().double().numpy() for site, value in values.items()}


def case_of(name: str, *, missing: bool | None = None) -> Case:
    """missing: whether a third of the entries is hidden, all are seen, or those that the example has."""
    example, reference = problem_of(name), PROGRAMS[name][1]
    data = example.data
    if missing is not None:
        generator = torch.Generator().manual_seed(0)
        mask = torch.rand(data.x.shape, generator=generator) > 0.3 if missing else None
        data = replace(data, mask=mask)
    return Case(example.model, data, reference, example.truth)


def some(*names: str, without: Sequence[str] = ()) -> Any:
    """Parametrises a test by programs: those named in every run, the others among the slow ones, but for some."""
    marks = {name: [] if name in names else [pytest.mark.slow] for name in PROGRAMS if name not in without}
    return pytest.mark.parametrize("name", [pytest.param(name, marks=own) for name, own in marks.items()])
