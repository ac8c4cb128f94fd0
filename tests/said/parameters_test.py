"""AIC and BIC count what is estimated, globals and points of rows, and nothing that is known."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributions import constraints

from custom_inference import fit
from custom_inference.core.evaluate import num_parameters
from ppl_models import MODELS, GammaPoisson, Model

QUIET: Any = {"progress": False}


def slopes(model: Model, values: dict[str, torch.Tensor], sites: list[str]) -> int:
    """The dimensions of the entries of some sites, less one of every simplex, and the triangle of matrices."""
    total = 0
    for site in sites:
        shape, support = values[site].shape, model.sites[site].support
        if support is constraints.positive_definite:
            total += shape[-1] * (shape[-1] + 1) // 2
        else:
            total += math.prod(shape) - (math.prod(shape[:-1]) if support is constraints.simplex else 0)
    return total


@pytest.mark.parametrize("name", [name for name in MODELS if name != "irm"])
def test_a_known_site_is_not_counted(name):
    """Counts fall by the site's own dimensions, but for those that the likelihood did not see."""
    example = MODELS[name].example()
    model = example.model
    values = {site: example.truth[site] for site in model.global_sites if site in example.truth}
    for site, value in values.items():
        if site not in model.unknown_sites:
            continue
        known = model.with_priors(**{site: value})
        unseen = model.num_unseen(0) - known.num_unseen(0)
        assert model.num_parameters(0) - known.num_parameters(0) == slopes(model, values, [site]) - unseen, site
        assert unseen >= 0
    if set(values) >= set(model.unknown_sites):
        assert model.with_priors(**{site: values[site] for site in model.unknown_sites}).num_parameters(0) == 0


def test_what_the_likelihood_does_not_see_is_the_null_space_of_its_curvature():
    """Of a model of logits: the rank of the Jacobian of the rows' laws at general values is the count."""
    generator = torch.Generator().manual_seed(0)
    model = MODELS["logistic_pca"].example().model
    weight, bias = (torch.randn(model.shapes[site], generator=generator).double() for site in ("weight", "bias"))
    score = torch.randn(9, model.sizes["component"], generator=generator).double()

    def logits(flat: torch.Tensor) -> torch.Tensor:
        sizes = [weight.numel(), bias.numel(), score.numel()]
        w, b, z = (part.view(one.shape) for part, one in zip(flat.split(sizes), (weight, bias, score), strict=True))
        return (z @ w + b).flatten()

    jacobian: Any = torch.autograd.functional.jacobian(
        logits, torch.cat([one.flatten() for one in (weight, bias, score)])
    )
    assert int(torch.linalg.matrix_rank(jacobian)) == model.num_parameters(9)


@pytest.mark.parametrize("name", ["gamma_poisson", "nmf", "aspect_bernoulli", "plsa", "lda", "logistic_pca"])
def test_points_of_rows_are_counted(name):
    example = MODELS[name].example()
    model, rows = example.model, len(example.model.prepare(example.data))
    found = fit(model, example.data, method="map", **QUIET)
    each = model.local_shape[0] - (model.sites[model.local_site].support is constraints.simplex)
    extra = rows * each - model.num_unseen(rows) + model.num_unseen(0)
    assert num_parameters(found) == model.num_parameters(0) + extra
    psi = (found.bic() - found.aic()) / (np.log(rows) - 2) if name != "nmf" else num_parameters(found)
    assert psi == pytest.approx(num_parameters(found), rel=1e-6)


def test_codes_and_posteriors_of_rows_are_no_parameters():
    for name in ("mixture_of_bernoullis", "noca", "gamma_poisson"):
        example = MODELS[name].example()
        found = fit(example.model, example.data, **QUIET)
        assert num_parameters(found) == found.model.num_parameters(0)
    assert GammaPoisson(num_components=2, num_features=5).num_parameters(0) == 10
