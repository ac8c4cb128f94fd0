"""Learned priors: Gibbs sampling and variational Bayes beside NUTS on the program itself."""

import numpy as np
import pytest
import torch

import custom_inference as ci
from custom_inference.core.diagnostics import effective_size
from ppl_models import PMF, ratings
from ppl_models.distributions import InverseWishart

QUIET = {"progress": False}
USERS, ITEMS = 5, 4


@pytest.fixture(scope="module")
def fits():
    rng = np.random.default_rng(4)
    x = 3 + 0.8 * rng.normal(size=(USERS, 1)) + rng.normal(size=(USERS, 1)) * rng.normal(size=ITEMS)
    x = x + 0.5 * rng.normal(size=x.shape)
    covariance = InverseWishart(5.0, 1.5 * torch.eye(2))
    model = PMF(num_components=1, num_users=USERS, num_items=ITEMS)
    model = model.with_priors(user_covariance=covariance, item_covariance=covariance, mean=float(x.mean()))
    data = ratings(x)
    gibbs = ci.CollapsedGibbs(num_samples=1200, warmup=100, thin=1, chains=1).fit(model, data, seed=1, **QUIET)
    return {"model": model, "data": data, "gibbs": gibbs, "vb": ci.fit(model, data, draws=400, **QUIET)}


def summaries(fit):
    """Of each draw: sigma, log determinants of the covariances, and predictions of all pairs, (S, .)."""
    draws = {site: value.flatten(0, 1) for site, value in fit.draws.items()}
    eta = draws["user_profile"][:, :, :1] + draws["item_bias"].unsqueeze(1)
    eta = eta + draws["user_profile"][:, :, 1:] @ draws["item"].mT
    spread = [torch.logdet(draws[f"{side}_covariance"]) for side in ("user", "item")]
    return torch.cat([draws["scale"].log()[:, None], torch.stack(spread, 1), eta.flatten(1)], 1).numpy()


def error(values):
    """Of means, by the effective number of draws."""
    return values.std(0) / np.sqrt(effective_size(values[None]))


@pytest.mark.slow  # ``joint_test`` holds the sampler against its prior in seconds
def test_gibbs_and_nuts_sample_one_posterior(fits):
    nuts = ci.NUTS(num_samples=120, warmup=80, chains=1, max_tree_depth=4)
    one = summaries(nuts.fit(fits["model"], fits["data"], seed=1, **QUIET))
    other = summaries(fits["gibbs"])
    assert (np.abs(one.mean(0) - other.mean(0)) < 4.5 * np.hypot(error(one), error(other))).all()
    assert np.hypot(error(one), error(other))[3:].max() < 0.25


def test_variational_predictions_are_close_and_no_wider(fits):
    exact, found = summaries(fits["gibbs"]), summaries(fits["vb"])
    assert (np.abs(found.mean(0)[3:] - exact.mean(0)[3:]) < 0.6 * exact.std(0)[3:]).all()
    assert found.std(0)[3:].mean() < 1.1 * exact.std(0)[3:].mean()
