"""What mixtures are fitted by where no method is named: posterior means, where maxima are at the edges."""

from __future__ import annotations

import pytest
import torch

import custom_inference as ci
from ppl_models import MixtureOfBernoullis, MixtureOfCategoricals, MixtureOfMultinomials, MixtureOfPoissons
from ppl_models.datasets import image_patterns


@pytest.mark.parametrize("seed", range(2))
def test_the_default_predicts_new_binary_rows_better_than_maximum_likelihood(seed):
    x = image_patterns(300, seed=seed).data.x
    model = MixtureOfBernoullis(num_components=6, num_features=x.shape[1])
    fits = [ci.fit(model, x[:150], method=method, progress=False) for method in (None, "em")]
    default, em = (float(fit.log_likelihood(x[150:]).mean()) for fit in fits)
    assert default > em + 1.0


@pytest.mark.parametrize("seed", range(2))
def test_the_default_predicts_new_answers_better_than_maximum_likelihood(seed):
    generator = torch.Generator().manual_seed(seed)
    table = torch.distributions.Dirichlet(torch.full((3, 8, 4), 0.5))
    torch.manual_seed(seed)
    probability = table.sample()
    kind = torch.randint(3, (300,), generator=generator)
    x = torch.distributions.Categorical(probability[kind]).sample().double()
    model = MixtureOfCategoricals(num_components=3, num_features=8, num_categories=4)
    fits = [ci.fit(model, x[:100], method=method, progress=False) for method in (None, "em")]
    default, em = (float(fit.log_likelihood(x[100:]).mean()) for fit in fits)
    assert default > em + 0.05


def test_mixtures_with_priors_off_the_edges_are_fitted_exactly():
    kinds = MixtureOfBernoullis, MixtureOfCategoricals, MixtureOfPoissons, MixtureOfMultinomials
    examples = [kind.example() for kind in kinds]
    found = [ci.fit(example.model, example.data, progress=False).bound_name for example in examples]
    assert found == ["vb", "vb", "exact", "exact"]
