"""Saved fits that are damaged or were tampered with: a usable fit, or an error that names the file."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import scipy.sparse
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

from custom_inference import EM, SVI, CollapsedGibbs, Fit, VariationalEM
from ppl_models import CVQ, LDA, NOCA, SBM, Data, DataWarning, FileFormatError
from tests.support.files import damage, little_memory, loads_or_says, strict
from tests.support.fuzz import fuzz, says_something


def _fits() -> dict[str, Fit]:
    quiet: dict[str, Any] = {"progress": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        noca, lda, sbm, cvq = (kind.example() for kind in (NOCA, LDA, SBM, CVQ))
        rows, features = [(i, "a") for i in range(20)], [f"f{j}" for j in range(noca.data.num_features)]
        few = Data(x=noca.data.x[:20], coords={"row": rows, "feature": features})
        texts, masked = scipy.sparse.csr_matrix(lda.data.dense().x[:12].numpy()), cvq.data.x[:20].clone()
        masked[0, 0] = float("nan")
        short: dict[str, Any] = {"search": None, "max_iterations": 3}
        hidden = sbm.data.without(torch.tensor([[0], [1]]))
        return {
            "em": EM(**short).fit(noca.model, few, **quiet),
            "mean_field": VariationalEM(guide="mean_field", **short).fit(cvq.model, masked, **quiet),
            "svi": SVI(guide="delta", steps=3).fit(cvq.model, masked[1:], **quiet),
            "lda": VariationalEM(guide="vb", **short).fit(lda.model, texts, **quiet),
            "gibbs": CollapsedGibbs(num_samples=3, warmup=2, chains=2).fit(lda.model, texts, **quiet),
            "sbm": VariationalEM(guide="vb", **short).fit(sbm.model, hidden, **quiet),
        }


FITS = ["em", "mean_field", "svi", "lda", "gibbs", "sbm"]


@pytest.fixture(scope="module")
def fits(tmp_path_factory) -> dict[str, Path]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    folder = tmp_path_factory.mktemp("fits")
    try:
        return {name: fit.save(folder / f"{name}.safetensors") for name, fit in _fits().items()}
    finally:
        torch.set_default_dtype(before)


def _contents(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    with safe_open(path, framework="pt") as archive:
        tensors = {key: archive.get_tensor(key) for key in archive.keys()}  # noqa: SIM118
        return tensors, json.loads(archive.metadata()["fit"])


def _put(path: Path, tensors: dict[str, torch.Tensor], meta: Any, **header: str) -> Path:
    """A file of these contents without a digest: what somebody who means harm would write."""
    save_file(tensors, path, metadata={"format": "ppl-models fit 1", "fit": json.dumps(meta), **header})
    return path


def _usable(fit: Fit) -> None:
    """Every part of a fit that was read can be used."""
    assert all(bool(torch.isfinite(value).all()) for value in fit.params.values())
    fit.model.check_params(fit.params)
    assert repr(fit) and len(fit.coords) > 0
    with strict():
        assert fit.transform().shape == (len(fit.data), *fit.model.local_shape)


@pytest.mark.parametrize("name", FITS)
def test_fits_come_back_as_they_were(name, fits):
    fit = Fit.load(fits[name])
    _usable(fit)
    tensors, meta = _contents(fits[name])
    again = Fit.load(fit.save(fits[name].with_suffix(".again")))
    assert all(torch.equal(again.params[site], tensors[f"params/{site}"]) for site in fit.params)
    assert {axis: [list(v) if isinstance(v, tuple) else v for v in labels]
            for axis, labels in again.data.coords.items()} == meta["coords"]  # fmt: skip
    if name == "em":
        assert again.data.coords["row"][3] == (3, "a")


@pytest.mark.parametrize("name", FITS)
@given(damaged=damage())
@fuzz(40)
def test_no_damage_to_a_fit_goes_unnoticed(name, fits, damaged):
    raw = fits[name].read_bytes()
    contents = damaged(raw)
    found = loads_or_says(fits[name], Fit.load, contents)
    if found is None:
        return
    same, other = _contents(fits[name]), fits[name].with_suffix(".other")
    other.write_bytes(contents)
    tensors, meta = _contents(other)
    assert meta == same[1] and all(torch.equal(tensors[k].nan_to_num(), v.nan_to_num()) for k, v in same[0].items())


EVIL = st.sampled_from(["__class__", "os.system", "eval", "../../x", "params/__class__", "print", "", "Delta", "LKJ",
                        "Empirical", "TransformedDistribution", "constraints", "Normal", "lambda: 0"])  # fmt: skip
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-2, 5), st.just(10**12), st.floats(), EVIL),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(EVIL, inner, max_size=2)),
    max_leaves=4,
)


@st.composite
def edits(draw: st.DrawFn) -> Callable[[dict[str, torch.Tensor], dict[str, Any]], None]:
    """One change to the tensors or, somewhere in its tree, to the header."""
    which, what, value = draw(st.integers(0, 10**6)), draw(st.integers(0, 8)), draw(JSON)
    name = draw(EVIL)

    def edit(tensors: dict[str, torch.Tensor], meta: dict[str, Any]) -> None:
        key = sorted(tensors)[which % len(tensors)]
        tensor = tensors[key]
        if what == 0:
            del tensors[key]
        elif what == 1:
            tensors[key] = tensor.flatten()[: max(0, tensor.numel() - 1)].clone()
        elif what == 2 and tensor.ndim:
            tensors[key] = tensor.unsqueeze(0).clone() if which % 2 else tensor.movedim(0, -1).contiguous().clone()
        elif what == 3:
            swapped = {torch.float64: torch.int64, torch.int64: torch.float64}.get(tensor.dtype, tensor.dtype)
            half = which % 2 or not tensor.ndim
            tensors[key] = tensor.to(torch.float16) if half else tensor.contiguous().view(swapped)
        elif what == 4 and tensor.is_floating_point() and tensor.numel():
            tensors[key] = torch.full_like(tensor, [float("nan"), float("inf"), -5.0, 1e300][which % 4])
        elif what == 5:
            prefix = ["params/", "draws/", "global/", "local/", "stats/", "data/", ""][which % 7]
            tensors[prefix + (name or "x")] = tensor.clone()
        else:
            node: Any = meta
            while isinstance(node, dict | list) and node:
                place = list(node)[which % len(node)] if isinstance(node, dict) else which % len(node)
                inner = node[place]
                if what == 6 or not isinstance(inner, dict | list) or not inner:
                    break
                node = inner
            if what == 8 and isinstance(node, dict):
                node[name] = value
            elif what == 7 and which % 3 == 0 and isinstance(node, dict):
                del node[place]
            else:
                node[place] = value

    return edit


@pytest.mark.parametrize("name", FITS)
@given(edit=edits())
@fuzz(50)
def test_fits_that_were_tampered_with_are_usable_or_refused(name, fits, edit):
    tensors, meta = _contents(fits[name])
    edit(tensors, meta)
    path = fits[name].with_suffix(".edited")
    try:
        _put(path, tensors, meta)
        with strict():
            found = Fit.load(path)
    except FileFormatError as error:
        assert str(path) in str(error) and says_something(error), str(error)
        return
    _usable(found)


def _set(meta: dict[str, Any], where: str, value: Any) -> None:
    *path, last = where.split("/")
    for step in path:
        meta = meta[step]
    meta[last] = value


@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        ("settings/num_features", 10**12, "num_features = 1000000000000 of no tensor"),
        ("settings/num_components", "print", "num_components = 'print'"),
        ("settings/os.system", "ls", "noca has no setting 'os.system'"),
        ("settings/priors", {}, "noca has no setting 'priors'"),
        ("model", "__class__", "model '__class__' is not known"),
        ("priors/leak", {"distribution": "constraints", "arguments": {}}, "unknown distribution 'constraints'"),
        ("priors/leak", {"distribution": "__builtins__", "arguments": {}}, "unknown distribution"),
        ("priors/leak", {"distribution": "MaskedDistribution", "arguments": {"mask": 1}}, "with arguments"),
        ("priors/leak", {"distribution": "Beta", "arguments": {"validate_args": False}}, "with arguments"),
        ("priors/leak", {"distribution": "LKJCholesky", "arguments": {"dim": 10**6}}, "with arguments"),
        ("priors/leak", {"distribution": "Beta", "arguments": {"concentration1": 1}}, "unusable arguments"),
        ("priors/leak", {"distribution": "Beta", "arguments": {"concentration1": float("nan"), "concentration0": 1}},
         "unusable arguments"),
        ("priors/leak", {"distribution": "Beta", "arguments": {
            "concentration1": {"all": 1.0, "shape": [10**6, 10**6]}, "concentration0": 1}}, "a parameter of shape"),
        ("priors/leak", {"flat": {"flat": {"distribution": "Normal", "arguments": {"loc": "0", "scale": 1}}}},
         "expected numbers"),
        ("solver_settings", {"steps": "print"}, "settings of the bound"),
        ("solver", "os.system", "has no engine"),
        ("coords/row", ["a"], "1 labels of the axis 'row' of 20"),
        ("seed", "0", "seed = '0'"),
    ],
)  # fmt: skip
def test_headers_name_nothing_but_models_distributions_and_settings(where, value, message, fits):
    tensors, meta = _contents(fits["em"])
    _set(meta, where, value)
    path = _put(fits["em"].with_suffix(".header"), tensors, meta)
    with little_memory(), pytest.raises(FileFormatError, match=message):
        Fit.load(path)


def test_fits_of_earlier_versions_carry_no_digest_and_are_read(fits):
    tensors, meta = _contents(fits["em"])
    _usable(Fit.load(_put(fits["em"].with_suffix(".old"), tensors, meta)))
    with pytest.raises(FileFormatError, match="damaged"):
        Fit.load(_put(fits["em"].with_suffix(".old"), tensors, meta, digest="00"))
    with pytest.raises(FileFormatError, match="not those that were saved"):
        Fit.load(_put(fits["em"].with_suffix(".old"), tensors, meta, digesu="00"))


def test_labels_that_are_no_json_are_kept_as_text(tmp_path):
    frame = pd.DataFrame(NOCA.example().data.x.numpy()[:20], index=pd.date_range("2020-01-01", periods=20))
    fit = EM(search=None, max_iterations=2).fit(NOCA.example().model, frame, progress=False)
    assert Fit.load(fit.save(tmp_path / "fit")).data.coords["row"][1] == "2020-01-02 00:00:00"
