"""Saved posteriors of every kind, tampered with: refused by name, or usable."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from custom_inference import EM, Fit
from custom_inference.core.posteriors import POSTERIORS
from custom_inference.core.store_check import _posterior
from ppl_models import CVQ, FileFormatError
from tests.support.fuzz import says_something

ROWS, SIZE = 6, 2
#: Of axes whose size is the posterior's own affair, unless it follows from the others.
OTHERS = 3
FOLLOWING = {"LogisticNormalPosterior": SIZE - 1, "MixedPosterior": SIZE}
#: Of sticks, of matrices between blocks, of chains in time and of linear predictors: globals alone have such.
OF_GLOBALS = [
    "JointLogNormalPosterior",
    "JointLogitNormalPosterior",
    "JointNormalPosterior",
    "SticksPosterior",
    "SymmetricBetaPosterior",
    "SymmetricGammaPosterior",
    "WalkPosterior",
]
KINDS = [kind for kind in POSTERIORS if kind not in OF_GLOBALS]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A file of a fit without a posterior, its path, tensors and header."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    path = tmp_path_factory.mktemp("fits") / "fit.safetensors"
    try:
        model = CVQ(num_components=SIZE, num_features=4)
        EM(search=None, max_iterations=2).fit(model, torch.randn(ROWS, 4), progress=False).save(path)
    finally:
        torch.set_default_dtype(before)
    with safe_open(path, framework="pt") as archive:
        tensors = {key: archive.get_tensor(key) for key in archive.keys()}  # noqa: SIM118
        return path, tensors, json.loads(archive.metadata()["fit"])


def shape_of(axes: str, other: int) -> tuple[int, ...]:
    sizes = {"n": (ROWS,), "k": (SIZE,), "*": (ROWS, SIZE)}
    return tuple(size for axis in axes.partition("|")[0] for size in sizes.get(axis, (other,)))


def parts_of(kind: str) -> dict[str, Tensor]:
    """Tensors that make one."""
    made: dict[str, Tensor] = {}
    for name, axes in POSTERIORS[kind].layout().items():
        shape = shape_of(axes, FOLLOWING.get(kind, OTHERS))
        value = torch.full(shape, 0.5, dtype=torch.float64)
        if name in ("covariance", "root"):
            value = torch.eye(shape[-1], dtype=torch.float64).expand(shape).clone()
        elif name == "log_weight":
            value = torch.full(shape, -1.0, dtype=torch.float64).log_softmax(-1)
        elif name in ("codes", "labels"):
            value = torch.zeros(shape, dtype=torch.float64 if name == "codes" else torch.int64)
        elif name == "place":
            value = torch.arange(len(value))
        elif name == "num_blocks":
            value = torch.tensor(SIZE)
        elif name == "maps":
            value = torch.tensor([[1.0, SIZE, SIZE, 0.0, 0.0]], dtype=torch.float64)
        elif name == "kind":
            value = torch.tensor(0)
        made[name] = value
    return made


def read(saved: Any, kind: Any, parts: dict[str, Tensor]) -> Fit:
    path, tensors, meta = saved
    kept = {name: value for name, value in tensors.items() if not name.startswith("local/")}
    bound = torch.zeros(ROWS, dtype=torch.float64)
    found = {f"local/{name}": value.contiguous().clone() for name, value in {"bound": bound, **parts}.items()}
    meta = {**meta, "local": kind, "bound_name": "mean_field", "solver": None}
    other = path.with_suffix(".edited")
    save_file({**kept, **found}, other, metadata={"format": "ppl-models fit 1", "fit": json.dumps(meta)})
    return Fit.load(other)


def usable(fit: Fit) -> None:
    assert fit.local is not None
    posterior = fit.local.posterior
    assert posterior.mean.shape == posterior.mode.shape == (ROWS, SIZE)
    assert bool(torch.isfinite(posterior.mean).all())
    drawn = posterior.sample(2)
    assert drawn.shape == (2, ROWS, SIZE) and bool(torch.isfinite(drawn).all())
    posterior.log_prob(drawn[0])


@pytest.mark.parametrize("kind", KINDS)
def test_posteriors_are_read(kind, saved):
    usable(read(saved, kind, parts_of(kind)))


def edits(value: Tensor) -> dict[str, Tensor | None]:
    """What one of its tensors is exchanged for; None: left out."""
    shape, number = value.shape, value.numel()
    other: dict[str, Tensor | None] = {
        "missing": None, "more axes": value[None], "whole numbers": value.long() + 7, "half": value.half(),
        "booleans": value.bool(), "empty": value[:0] if value.ndim else value.new_zeros(0),
    }  # fmt: skip
    if value.ndim:
        other |= {"one fewer": value[1:], "flat": value.flatten(), "one more": torch.cat([value, value[:1]])}
        other |= {"a number": value.flatten()[0] if number else value}
    if value.ndim > 1:
        other["transposed"] = value.movedim(0, -1)
    if value.is_floating_point():
        for number in (float("nan"), float("inf"), -float("inf"), -5.0, 0.0, 1e300):
            other[f"all {number}"] = torch.full(shape, number, dtype=value.dtype)
            one = value.clone()
            one.view(-1)[-1] = number
            other[f"one {number}"] = one
    else:
        other |= {"huge": value + 10**12, "below zero": value - 10}
    return other


@pytest.mark.parametrize("kind", KINDS)
def test_posteriors_that_were_tampered_with_are_usable_or_refused(kind, saved):
    refused = 0
    for name, value in parts_of(kind).items():
        for what, other in edits(value).items():
            parts = parts_of(kind)
            del parts[name]
            try:
                found = read(saved, kind, parts if other is None else {**parts, name: other})
            except FileFormatError as error:
                assert says_something(error) and ".edited" in str(error), (name, what, error)
                refused += 1
                continue
            try:
                usable(found)
            except Exception as error:
                raise AssertionError(f"{name}, {what}: read but not usable: {error!r}") from error
    assert refused > 0


@pytest.mark.parametrize("kind", ["Local", "os.system", "", 3, ["PointPosterior"], {}, "LocalPosterior"])
def test_other_kinds_are_refused(kind, saved):
    with pytest.raises(FileFormatError, match="of the unknown kind" if isinstance(kind, str) else "local = "):
        read(saved, kind, parts_of("PointPosterior"))


STICKS = {"own": torch.tensor([2.0, 3.0]), "rest": torch.tensor([1.0, 4.0])}


def test_sticks_are_read():
    assert torch.allclose(
        _posterior("SticksPosterior", STICKS, (3,)).mean, STICKS["own"].new_tensor([2 / 3, 1 / 7, 4 / 21])
    )


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [("own", torch.tensor([2.0, 3.0, 1.0]), "shapes"), ("own", torch.tensor([2.0, -3.0]), "own is not positive")],
)
def test_sticks_that_were_tampered_with_are_refused(name, value, said):
    with pytest.raises(FileFormatError, match=said):
        _posterior("SticksPosterior", {**STICKS, name: value}, (3,))


@pytest.mark.parametrize("kind", OF_GLOBALS)
def test_posteriors_of_other_shapes_are_refused(kind, saved):
    with pytest.raises(FileFormatError, match="shape"):
        read(saved, kind, parts_of(kind))
