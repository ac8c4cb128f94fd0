"""What fits say of themselves: what kind of number the objective is, and what the locals of rows are."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import custom_inference as ci
from ppl_models import LDA, MODELS, NOCA, PMF, FileFormatError, MixtureOfBernoullis
from ppl_models.data.several import same_data

BRIEF = {"search": None, "max_iterations": 5}
#: Model, method, kind of its objective.
OBJECTIVES = [
    ("noca", ci.EM(**BRIEF), "evidence"),
    ("noca", ci.VariationalEM(guide="mean_field", **BRIEF), "bound"),
    ("lda", ci.VariationalEM(guide="vb", **BRIEF), "bound"),
    ("lda", ci.VariationalEM(guide="cvb0", **BRIEF), "estimate"),
    ("lda", ci.VariationalEM(guide="map", **BRIEF), "log joint"),
    ("lda", ci.CollapsedGibbs(num_samples=3, warmup=2, chains=1), "log joint"),
    ("noca", ci.NUTS(num_samples=2, warmup=2, chains=1, max_tree_depth=1), "log joint"),
    ("noca", ci.SVI(guide="delta", steps=3), "evidence"),
    ("noca", ci.SVI(guide="normal", steps=3), "estimate"),
    ("noca", ci.SVI(guide="mean_field", steps=3), "bound"),
    ("noca", ci.SVI(guide="mean_field", globals_="normal", steps=3), "estimate"),
    ("aspect_bernoulli", ci.SVI(guide="mean_field", steps=3), "estimate"),
    ("aspect_bernoulli", ci.SVI(guide="delta", steps=3), "log joint"),
]


@pytest.mark.parametrize(("name", "method", "kind"), OBJECTIVES)
def test_the_objective_says_what_it_is(name, method, kind, tmp_path):
    example = MODELS[name].example()
    fit = method.fit(example.model, example.data, progress=False)
    assert fit.objective == kind
    assert (kind if not fit.bound_name.startswith("log") else fit.bound_name) in repr(fit)
    assert ci.Fit.load(fit.save(tmp_path / "fit")).objective == kind


@pytest.mark.quick
def test_evidence_and_bounds_are_of_their_kind():
    """Of EM the objective is log p(x | params) + log p(params), of mean field at most that at its own params."""
    example = NOCA.example()
    for guide in ("exact", "mean_field"):
        fit = ci.VariationalEM(guide=guide, **BRIEF).fit(example.model, example.data, progress=False)
        whole = float(fit.log_likelihood().sum() + fit.model.log_prior(fit.params))
        gap = whole - float(fit.elbo[-1])
        assert abs(gap) < 1e-6 if guide == "exact" else gap > 1e-3


def _with(path, changed, objective):
    """The file with another objective in its header (None: with none); without a digest, as older files are."""
    with safe_open(path, framework="pt") as archive:
        header, tensors = archive.metadata(), {key: archive.get_tensor(key) for key in archive.keys()}  # noqa: SIM118
    meta = json.loads(header["fit"]) | {"objective": objective}
    if objective is None:
        del meta["objective"]
    save_file(tensors, changed, {"format": header["format"], "fit": json.dumps(meta)})
    return changed


@pytest.mark.parametrize(("name", "method", "kind"), OBJECTIVES[:8])
def test_files_of_earlier_versions_say_it_by_the_name_of_the_bound(name, method, kind, tmp_path):
    example = MODELS[name].example()
    fit = method.fit(example.model, example.data, progress=False)
    path = fit.save(tmp_path / "fit")
    assert ci.Fit.load(_with(path, tmp_path / "older", None)).objective == kind
    with pytest.raises(FileFormatError, match="objective = 'nonsense', expected evidence, bound"):
        ci.Fit.load(_with(path, tmp_path / "wrong", "nonsense"))


#: Model, guide: families that infer further rows as those of the fit, and whose E step has one fixed point on them.
FOLDED = [
    ("lda", "dirichlet"),
    ("lda", "map"),
    ("user_rating_profile", "vb"),
    ("user_rating_profile", "map"),
    ("mixture_of_bernoullis", "vb"),
    ("mixture_of_categoricals", "vb"),
    ("mixture_of_poissons", "vb"),
    ("mixture_of_multinomials", "exact"),
    ("aspect_bernoulli", "dirichlet"),
    ("noca", "mean_field"),
]


@pytest.mark.parametrize(("name", "guide"), FOLDED)
def test_a_part_of_the_rows_is_inferred_as_in_the_fit(name, guide):
    """To a hundredth: what iterations that gain less than 1e-8 a row leave of the way to the same fixed point."""
    example = MODELS[name].example()
    method = ci.VariationalEM(guide=guide, search=None, max_iterations=2000, tolerance=1e-8)
    fit = method.fit(example.model, example.data, seed=1, progress=False)
    part = torch.arange(1, len(example.data), 7)
    found = fit.transform(example.data.rows(part))
    assert float((found - fit.transform()[part]).abs().max()) < 0.01


def test_a_part_after_loading_is_inferred_by_the_posterior_of_the_globals(tmp_path):
    example = LDA.example()
    fit = ci.VariationalEM(guide="vb", **BRIEF).fit(example.model, example.data, progress=False)
    loaded, part = ci.Fit.load(fit.save(tmp_path / "fit")), example.data.rows(slice(0, 6))
    assert torch.allclose(loaded.transform(part), fit.transform(part))
    point = fit.solver.solve(fit.model, fit.globals, part).posterior.mean
    assert float((point - fit.transform(part)).abs().max()) > 1e-4


def test_the_same_data_are_known_in_any_form():
    x = (np.random.default_rng(0).random((8, 3)) < 0.5).astype(float)
    model = MixtureOfBernoullis(num_components=2, num_features=3)
    whole, masked = model.prepare(x), model.prepare(x, mask=x < 2)
    assert same_data(whole, masked)  # nothing is missing
    hidden = np.ones_like(x, dtype=bool)
    hidden[2, 1] = False
    assert not same_data(whole, model.prepare(x, mask=hidden))
    assert not same_data(whole, whole.rows(slice(0, 4))) and not same_data(whole, model.prepare(1 - x))
    counts = LDA.example().data
    dense = counts.dense()
    assert same_data(counts, dense) and same_data(dense, counts.to())


def test_settings_that_nobody_chose_are_not_printed():
    model = PMF(num_components=2, num_users=5, num_items=3)
    decided = {"num_components": 2, "num_users": 5, "num_items": 3, "adaptive": True}  # the last by the model itself
    assert model.chosen_settings() == decided
    assert repr(model).startswith("PMF(num_components=2, num_users=5, num_items=3, adaptive=True; ")
    assert "biases=False" in repr(replace(model, biases=False)) and "biases" in model.settings()


@pytest.mark.quick
def test_what_print_shows_fits_a_page_of_80_columns():
    """Components by the names of what they are strongest in, as many features as fit the line, and no number cut."""
    example = NOCA.example()
    names = [f"a rather long name {j}" for j in range(6)]
    frame = pd.DataFrame(example.data.x.numpy(), columns=names)
    found = ci.EM(search=None, max_iterations=2).fit(NOCA(num_components=3, num_features=6), frame, progress=False)
    lines = str(found).splitlines()
    assert max(map(len, lines)) <= 80 and lines[0] == repr(found).splitlines()[0]
    report = found.report(top=8)
    for line, (component, row) in zip(lines[-3:], report.iterrows(), strict=True):
        shown = line.removeprefix(f"  s{component} ").removesuffix(", ...")
        assert line.startswith(f"  s{component} a rather") and row["strongest"].startswith(shown + ",")
    assert "s0" not in repr(found)
