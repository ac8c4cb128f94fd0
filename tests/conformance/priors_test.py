"""Every model's priors: what may be put in their place, and what is refused."""

import pyro.distributions as dist
import pytest
import torch

from ppl_models import MODELS, ModelError
from tests.support.cases import problem_of

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("name", MODELS)
def test_priors_are_checked(name):
    model = problem_of(name).model
    with pytest.raises(ModelError, match="unknown site .*valid: "):
        model.with_priors(nonsense=dist.Beta(1.0, 1.0))
    for site in model.global_sites:
        with pytest.raises(ModelError, match=site):
            model.with_priors(**{site: dist.Beta(torch.ones(97), torch.ones(97))})  # neither its shape nor its support
        with pytest.raises(ModelError, match=site):
            model.with_priors(**{site: object()})
    assert model.with_priors() is not model
