"""Checkpoints: a fit that was stopped, wherever that was, goes on from its file and ends where it would have ended."""

from dataclasses import replace

import pyro.distributions as dist
import pytest
import torch

from custom_inference import EM, Checkpoint, VariationalEM
from custom_inference.em import steps as _steps
from custom_inference.em.checkpoint import checksum, checksum_of, describe_model
from ppl_models import MODELS, Data, FileFormatError, GraphData, MethodError, RowBlocks

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
    plain = _steps.EMStep.take

    def at(self, *arguments):
        counts["steps"] += 1
        if counts["steps"] > after:
            raise Stopped
        return plain(self, *arguments)

    monkeypatch.setattr(_steps.EMStep, "take", at)


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
    plain = _steps.EMStep.take

    def counting(self, *arguments):
        counted["steps"] += 1
        return plain(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(_steps.EMStep, "take", counting)
        whole = method.fit(example.model, example.data, seed=3, progress=False)
    with monkeypatch.context() as patch:
        crashing(patch, int(counted["steps"] * share))
        with pytest.raises(Stopped):
            kept.fit(example.model, example.data, seed=3, progress=False)
    same(kept.fit(example.model, example.data, seed=3, progress=False), whole)


def test_the_search_is_not_made_again(tmp_path, monkeypatch):
    example, path = MODELS["noca"].example(), tmp_path / "state"
    first = EM(checkpoint=path).fit(example.model, example.data, progress=False)
    monkeypatch.setattr("custom_inference.em.fitting.find_start", None)
    again = EM(checkpoint=path).fit(example.model, example.data, progress=False)
    same(again, first)
    assert again.details["start_scores"] == first.details["start_scores"]


@pytest.mark.quick
def test_a_longer_fit_goes_on_from_a_shorter_one(tmp_path):
    example, path = MODELS["noca"].example(), tmp_path / "state"
    whole = EM(max_iterations=30, tolerance=1e-12).fit(example.model, example.data, progress=False)
    settings = {"tolerance": 1e-12, "checkpoint": Checkpoint(path=path, every=1)}
    EM(max_iterations=8, **settings).fit(example.model, example.data, progress=False)
    same(EM(max_iterations=30, **settings).fit(example.model, example.data, progress=False), whole)


@pytest.mark.quick
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
    with pytest.raises(MethodError, match=r"every = 2\.5"):
        Checkpoint(path=path, every=2.5)  # pyright: ignore[reportArgumentType]
    with pytest.raises(MethodError, match="is a folder, expected the path of a file"):
        EM(checkpoint=tmp_path).fit(model, data, progress=False)
    with pytest.raises(MethodError, match="checkpoint = 5, expected the path of a file"):
        EM(checkpoint=5).fit(model, data, progress=False)  # pyright: ignore[reportArgumentType]


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


@pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")
def test_fits_from_blocks_go_on_bit_for_bit_where_some_blocks_have_missing_entries(tmp_path):
    """Codes are proposed at random: a step more, or with other masks, would be seen."""
    example, path = MODELS["noca"].example(), tmp_path / "state"
    mask = torch.ones_like(example.data.x, dtype=torch.bool)
    mask[-7, 2] = False  # the last block alone
    source = RowBlocks.of(replace(example.data, mask=mask), 20)
    settings = {"guide": "truncated", "max_iterations": 6, "tolerance": 1e-12}
    whole = VariationalEM(**settings, checkpoint=tmp_path / "other").fit(example.model, source, progress=False)
    kept = Checkpoint(path=path, every=2)
    VariationalEM(**{**settings, "max_iterations": 4}, checkpoint=kept).fit(example.model, source, progress=False)
    again = VariationalEM(**settings, checkpoint=kept).fit(example.model, source, progress=False)
    assert torch.equal(again.elbo, whole.elbo)
    assert all(torch.equal(again.params[site], whole.params[site]) for site in whole.params)


@pytest.mark.filterwarnings("ignore::ppl_models.DataWarning")
def test_what_steps_wrote_of_blocks_and_is_gone_or_damaged_is_told(tmp_path):
    example, path = MODELS["lda"].example(), tmp_path / "state"
    method = VariationalEM(guide="vb", max_iterations=4, tolerance=1e-12, checkpoint=Checkpoint(path=path, every=2))
    source = RowBlocks.of(example.data, 10)
    method.fit(example.model, source, progress=False)
    longer = replace(method, max_iterations=6)
    some = sorted((tmp_path / "state.locals").glob("*-1.safetensors"))
    for file in some:
        file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(FileFormatError, match=r"-1\.safetensors: not readable"):
        longer.fit(example.model, source, progress=False)
    for file in some:
        file.unlink()
    with pytest.raises(FileFormatError, match="is not there: what the E step wrote of block 1"):
        longer.fit(example.model, source, progress=False)


def test_rows_of_the_same_columns_are_other_data(tmp_path):
    example, path = MODELS["noca"].example(), tmp_path / "state"
    EM(checkpoint=path).fit(example.model, example.data, progress=False)
    generator = torch.Generator().manual_seed(0)
    shuffled = example.data.x.clone()
    for j in range(shuffled.shape[1]):
        shuffled[:, j] = shuffled[torch.randperm(len(shuffled), generator=generator), j]
    for other in (shuffled, example.data.x.flip(0)):
        with pytest.raises(MethodError, match="another problem: data was"):
            EM(checkpoint=path).fit(example.model, other, progress=False)
    with pytest.raises(MethodError, match="another problem: dtype was 'torch.float64', now 'torch.float32'"):
        EM(checkpoint=path).fit(example.model, example.data, dtype=torch.float32, progress=False)


def test_checksums_add_up_and_know_hidden_dyads():
    x = torch.rand(9, 3, dtype=torch.float64).round(decimals=1)
    whole = checksum(Data(x=x))
    assert torch.equal(checksum_of([Data(x=x[:4]), Data(x=x[4:])]), whole)
    assert torch.equal(checksum(Data(x=x.to_sparse_csr())), whole)
    graph = MODELS["mmsb"].example().data
    hidden = (torch.tensor(pair) for pair in ([[0], [1]], [[0], [2]]))
    other = [GraphData(x=graph.x, hidden=one, directed=graph.directed) for one in hidden]
    assert len({int(checksum(one)[1]) for one in (graph, *other)}) == 3


def test_numbers_of_wrapped_priors_tell_models_apart():
    model = MODELS["noca"].example().model
    first, second = (
        describe_model(model.with_priors(leak=dist.Beta(torch.full(model.shapes["leak"], a), 9.0).to_event(1)))
        for a in (1.0, 2.0)
    )
    assert first != second


def test_all_blocks_are_of_the_problem_and_files_of_others_are_left_alone(tmp_path):
    example, path = MODELS["lda"].example(), tmp_path / "state"
    x = example.data.x
    method = VariationalEM(guide="vb", max_iterations=4, tolerance=1e-12, checkpoint=Checkpoint(path=path, every=2))
    method.fit(example.model, RowBlocks.of(x, 10), progress=False)
    for other in (torch.cat([x[:10], x[10:].flip(0)]), x[:-1]):
        with pytest.raises(MethodError, match="another problem: data was"):
            method.fit(example.model, RowBlocks.of(other, 10), progress=False)
    with pytest.raises(MethodError, match="another problem: rows was 'blocks', now 'in memory'"):
        method.fit(example.model, x, progress=False)
    stray = tmp_path / "state.locals" / ".DS_Store"
    stray.write_text("")
    method.fit(example.model, RowBlocks.of(x, 10), progress=False)
    assert stray.exists()


@pytest.mark.quick
def test_damage_is_noticed(tmp_path):
    example, path = MODELS["noca"].example(), tmp_path / "state"
    method = EM(checkpoint=Checkpoint(path=path, every=1), max_iterations=4, search=None)
    method.fit(example.model, example.data, progress=False)
    content = path.read_bytes()
    for place in range(9, len(content), max(1, len(content) // 150)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
        with pytest.raises(FileFormatError):
            method.fit(example.model, example.data, progress=False)
