"""Checkpoints: a fit that was stopped, wherever that was, goes on from its file and ends where it would have ended."""

from __future__ import annotations

from dataclasses import replace

import pyro.distributions as dist
import pytest
import torch

from custom_inference import EM, Checkpoint, VariationalEM, _loop
from ppl_models import MODELS, FileFormatError, MethodError, RowBlocks

CASES = {
    "noca exact": ("noca", EM(max_iterations=25, tolerance=1e-12)),
    "noca factorized": ("noca", VariationalEM(guide="factorized", max_iterations=9, search=None)),
    "cvq truncated": ("cvq", VariationalEM(guide="truncated", max_iterations=15, tolerance=1e-12, search=None)),
    "aspects, anderson": ("aspect_bernoulli", VariationalEM(guide="map", max_iterations=25, tolerance=1e-12)),
    "topics, squarem": ("lda", VariationalEM(guide="vb", max_iterations=25, tolerance=1e-12, accelerate="squarem")),
    "blocks": ("mmsb", VariationalEM(guide="vb", max_iterations=25, tolerance=1e-12)),
    "minibatches": ("lda", VariationalEM(guide="vb", max_iterations=6, tolerance=1e-12, batch_size=7)),
}


class Stopped(Exception):
    """A crash."""


def crashing(monkeypatch, after):
    """A crash after so many E steps of the climb."""
    counts = {"steps": 0}
    plain = _loop._Climb._at

    def at(self, *arguments):
        counts["steps"] += 1
        if counts["steps"] > after:
            raise Stopped
        return plain(self, *arguments)

    monkeypatch.setattr(_loop._Climb, "_at", at)


def same(first, second):
    assert torch.equal(first.elbo, second.elbo)
    assert first.status == second.status
    for site, value in first.params.items():
        assert torch.equal(value, second.params[site]), site
    assert torch.equal(first.posterior.mean, second.posterior.mean)


@pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("share", [0.3, 0.8])
def test_a_crashed_fit_goes_on_and_ends_where_it_would_have_ended(name, share, tmp_path, monkeypatch):
    model_name, method = CASES[name]
    example, path = MODELS[model_name].example(), tmp_path / "state"
    kept = replace(method, checkpoint=Checkpoint(path=path, every=2))
    counted = {"steps": 0}
    plain = _loop._Climb._at

    def counting(self, *arguments):
        counted["steps"] += 1
        return plain(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(_loop._Climb, "_at", counting)
        whole = method.fit(example.model, example.data, seed=3, progress=False)
    with monkeypatch.context() as patch:
        crashing(patch, int(counted["steps"] * share))
        with pytest.raises(Stopped):
            kept.fit(example.model, example.data, seed=3, progress=False)
    same(kept.fit(example.model, example.data, seed=3, progress=False), whole)


def test_the_search_is_not_made_again(tmp_path, monkeypatch):
    example, path = MODELS["noca"].example(), tmp_path / "state"
    first = EM(checkpoint=path).fit(example.model, example.data, progress=False)
    monkeypatch.setattr("custom_inference._fitting.search", None)
    again = EM(checkpoint=path).fit(example.model, example.data, progress=False)
    same(again, first)
    assert again.details["start_scores"] == first.details["start_scores"]


def test_a_longer_fit_goes_on_from_a_shorter_one(tmp_path):
    example, path = MODELS["noca"].example(), tmp_path / "state"
    whole = EM(max_iterations=30, tolerance=1e-12).fit(example.model, example.data, progress=False)
    settings = {"tolerance": 1e-12, "checkpoint": Checkpoint(path=path, every=1)}
    EM(max_iterations=8, **settings).fit(example.model, example.data, progress=False)
    same(EM(max_iterations=30, **settings).fit(example.model, example.data, progress=False), whole)


def test_other_problems_are_refused(tmp_path):
    example, path = MODELS["noca"].example(), tmp_path / "state"
    model, data = example.model, example.data
    EM(checkpoint=path).fit(model, data, progress=False)
    other = data.x.clone()
    other[0] = 1 - other[0]
    with pytest.raises(MethodError, match="another problem: data was"):
        EM(checkpoint=path).fit(model, other, progress=False)
    with pytest.raises(MethodError, match="another problem: seed was 0, now 1"):
        EM(checkpoint=path).fit(model, data, seed=1, progress=False)
    with pytest.raises(MethodError, match="another problem: method was"):
        EM(checkpoint=path, accelerate="squarem").fit(model, data, progress=False)
    with pytest.raises(MethodError, match="another problem: init was None"):
        EM(checkpoint=path).fit(model, data, init=example.truth, progress=False)
    with pytest.raises(MethodError, match="another problem: model was"):
        EM(checkpoint=path).fit(model.with_priors(leak=dist.Beta(2.0, 9.0)), data, progress=False)
    path.write_bytes(b"no checkpoint")
    with pytest.raises(FileFormatError, match="not readable as a checkpoint"):
        EM(checkpoint=path).fit(model, data, progress=False)
    with pytest.raises(MethodError, match="every = 0"):
        Checkpoint(path=path, every=0)


@pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")
@pytest.mark.parametrize("batch_size", [None, 5])
def test_fits_from_blocks_go_on_too(batch_size, tmp_path):
    example, path = MODELS["lda"].example(), tmp_path / "state"
    settings = {"guide": "vb", "max_iterations": 6, "tolerance": 1e-12, "batch_size": batch_size}
    source = RowBlocks.of(example.data, 10)
    whole = VariationalEM(**settings).fit(example.model, source, progress=False)
    kept = VariationalEM(**settings, checkpoint=Checkpoint(path=path, every=2))
    short = VariationalEM(**{**settings, "max_iterations": 4}, checkpoint=Checkpoint(path=path, every=2))
    short.fit(example.model, source, progress=False)
    again = kept.fit(example.model, source, progress=False)
    torch.testing.assert_close(again.elbo, whole.elbo, rtol=1e-12, atol=1e-12)
