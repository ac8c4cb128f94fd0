"""Files that earlier versions saved: each is read, and gives the numbers that it gave to the version that wrote it.

``saved`` has a folder for every format, named for what files had next: digests, prior terms, stages,
the version. A change of what files hold adds a folder: fits of the version before, saved by it.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from custom_inference import EM, Fit, __version__
from ppl_models import NOCA, FileFormatError

SAVED = Path(__file__).parent / "saved"
#: File -> objective and log-likelihood of the data, as the version that wrote the file printed them.
EXPECTED = {
    "before_digests/lda": (-55.14175709065222, -42.473008729002494),
    "before_digests/mixture_of_poissons": (-41.26386366705021, -30.744153341967433),
    "before_digests/noca": (-9.364288049483822, -9.364288049483822),
    "before_digests/sbm": (-14.130421770209319, -9.846349556306217),
    "before_prior_terms/lda": (-56.466448209003886, -43.62684080514384),
    "before_prior_terms/mixture_of_poissons": (-41.26386366705021, -30.744153341967433),
    "before_prior_terms/noca": (-9.364284028489772, -9.364284028489772),
    "before_prior_terms/sbm": (-14.130421770214694, None),
    "before_stages/lda": (-56.26690034769335, -41.69881602655225),
    "before_stages/mixture_of_poissons": (-41.26386366705021, -30.744153341967433),
    "before_stages/noca": (-9.364284028489772, -9.364284028489772),
    "before_stages/sbm": (-14.130421770214694, None),
    "before_versions/lda": (-56.26690034769335, -41.69881602655225),
    "before_versions/mixture_of_poissons": (-41.26386366705021, -30.744153341967433),
    "before_versions/noca": (-9.364284028489772, -9.364284028489772),
    "before_versions/sbm": (-14.130421770214696, -9.846349554477488),
}


def test_every_file_is_expected():
    assert {path.relative_to(SAVED).with_suffix("").as_posix() for path in SAVED.rglob("*.safetensors")} == set(
        EXPECTED
    )


@pytest.mark.quick
@pytest.mark.parametrize("name", EXPECTED)
def test_files_of_earlier_versions_are_read(name):
    fit = Fit.load(SAVED / f"{name}.safetensors")
    objective, log_likelihood = EXPECTED[name]
    assert float(fit.elbo[-1]) == pytest.approx(objective, rel=1e-12)
    if log_likelihood is not None:
        assert float(fit.log_likelihood().sum()) == pytest.approx(log_likelihood, rel=1e-6)
    with safe_open(SAVED / f"{name}.safetensors", framework="pt") as archive:
        kept = {key.removeprefix("params/"): archive.get_tensor(key) for key in archive.keys() if "params/" in key}  # noqa: SIM118
    assert kept and all(torch.equal(fit.params[site], value) for site, value in kept.items())
    shares = fit.transform()
    assert shares.shape == (len(fit.data), 2) and bool(((shares >= 0) & (shares <= 1)).all())


@pytest.mark.parametrize("name", EXPECTED)
def test_they_can_be_saved_again(name, tmp_path):
    fit = Fit.load(SAVED / f"{name}.safetensors")
    again = Fit.load(fit.save(tmp_path / "again.safetensors"))
    assert again.params.keys() == fit.params.keys() and again.status == fit.status
    assert all(torch.equal(again.params[site], value) for site, value in fit.params.items())


def header(path: Path) -> dict[str, str]:
    with safe_open(path, framework="pt") as archive:
        return archive.metadata()


def test_files_say_which_version_wrote_them(tmp_path):
    example = NOCA.example()
    fit = EM(search=None, max_iterations=2).fit(example.model, example.data, progress=False)
    path = fit.save(tmp_path / "fit.safetensors")
    found = header(path)
    meta = json.loads(found["fit"])
    assert meta["version"] == __version__
    with safe_open(path, framework="pt") as archive:
        tensors = {key: archive.get_tensor(key) for key in archive.keys()}  # noqa: SIM118
    for later, told in ({"model": "Unheard"}, "written by version '99.0'"), ({}, None):
        text = json.dumps({**meta, "version": "99.0", **later})
        save_file(tensors, path, metadata={"format": found["format"], "fit": text})
        if told is None:
            assert Fit.load(path).status == fit.status
            continue
        with pytest.raises(FileFormatError, match=told):
            Fit.load(path)
