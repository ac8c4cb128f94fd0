"""The objective of a fit is named for what it is, with its parts, under flat and informative priors."""

from __future__ import annotations

import json

import pyro.distributions as dist
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import custom_inference as ci
from custom_inference.core.objectives import objective_line
from custom_inference.core.tensor_files import digest
from ppl_models import LDA, NOCA
from tests.programs.zoo import PROGRAMS

SPARSE = dist.Beta(1.0, 5000.0)
EXAMPLE = NOCA.example()


def fit(method, **priors):
    return method.fit(EXAMPLE.model.with_priors(**priors), EXAMPLE.data, seed=0, progress=False)


def test_an_informative_prior_makes_it_the_log_posterior():
    """A strong prior raises the sum by its density and not the evidence; the parts tell the two apart."""
    weak, strong = (fit(ci.EM(), leak=dist.Beta(1.0, b)) for b in (50.0, 5000.0))
    assert float(strong.elbo[-1]) > float(weak.elbo[-1]) + 20 and strong.evidence.sum() < weak.evidence.sum() + 1
    for one in (weak, strong):
        assert one.objective == "log posterior" and one.data_term is not None and one.prior_term is not None
        assert one.data_term == pytest.approx(float(one.evidence.sum()), abs=1e-9)
        leak = one.params["leak"]
        b = 50.0 if one is weak else 5000.0
        by_hand = (torch.log(torch.tensor(b)) + (b - 1) * torch.log1p(-leak)).sum()
        assert one.prior_term == pytest.approx(float(by_hand), abs=1e-8)
        shown = f"{float(one.elbo[-1]):.2f} = {one.data_term:.2f} + {one.prior_term:.2f}"
        assert objective_line(one) == ("objective (log posterior = evidence + log prior)", shown)
        assert f"  objective (log posterior = evidence + log prior): {shown}\n" in repr(one)
        page = one._repr_html_()
        assert "log posterior = evidence + log prior" in page and f"{one.prior_term:.4f}" in page
        (axes,) = (a for a in one.plot("elbo").axes[:1])
        assert "log posterior" in axes.get_ylabel()


def test_flat_priors_leave_the_evidence():
    flat = fit(ci.EM())
    assert flat.objective == "evidence" and flat.prior_term == 0
    assert float(flat.elbo[-1]) == pytest.approx(float(flat.evidence.sum()), abs=1e-9)
    assert "objective (evidence): " in repr(flat)


@pytest.mark.parametrize(
    ("method", "name"),
    [
        (ci.VariationalEM(max_iterations=5), "bound on the log posterior, factorized = bound + log prior"),
        (ci.SVI(guide="delta", steps=5), "log posterior = evidence + log prior"),
        (ci.SVI(guide="mean_field", steps=5), "bound on the log posterior, mean_field = bound + log prior"),
        (ci.NUTS(num_samples=3, warmup=2, chains=1, max_tree_depth=1), "log joint (codes summed out)"),
    ],
)
def test_methods_name_their_parts(method, name):
    one = fit(method, leak=SPARSE)
    assert one.described_objective == name
    assert (one.prior_term is None) == isinstance(method, ci.NUTS)


def test_what_draws_of_a_guide_are_divided_into_is_a_divergence():
    """Of AutoNormal: E_q[log p - log q] by the guide's own normals, which are known, on the unconstrained scale."""
    one = fit(ci.SVI(guide="normal", steps=50), leak=dist.Beta(2.0, 9.0))
    assert one.described_objective.endswith("- divergence of the globals from their priors")
    total = torch.zeros(())
    generator = torch.Generator().manual_seed(0)
    for site, quantiles in one.guide.quantiles([0.5, 0.8413447460685429]).items():
        middle, upper = (value.detach().logit() for value in quantiles)
        spread = upper - middle
        u = middle + spread * torch.randn(4000, *middle.shape, generator=generator)
        value = torch.sigmoid(u)
        log_q = dist.Normal(middle, spread).log_prob(u) - value.log() - torch.log1p(-value)
        total = total + (one.model.priors[site].log_prob(value) - log_q).mean(0).sum()
    assert one.prior_term == pytest.approx(float(total), abs=1.0)


def test_files_of_earlier_versions_are_read(tmp_path):
    """They do not hold the parts, and call a log posterior the evidence."""
    for model, data, method in (
        (EXAMPLE.model.with_priors(leak=SPARSE), EXAMPLE.data, ci.EM()),
        (EXAMPLE.model, EXAMPLE.data, ci.EM()),
        (LDA.example().model, LDA.example().data, ci.VariationalEM(guide="dirichlet", max_iterations=3)),
        (LDA.example().model, LDA.example().data, ci.VariationalEM(guide="vb", max_iterations=3)),
    ):
        one = method.fit(model, data, seed=0, progress=False)
        path = one.save(tmp_path / "fit.safetensors")
        with safe_open(path, framework="pt") as archive:
            header = archive.metadata()
            tensors = {key: archive.get_tensor(key) for key in archive.keys()}  # noqa: SIM118
        text = json.loads(header["fit"])
        assert text.pop("prior_term") == one.prior_term
        text["objective"] = text["objective"].replace("log posterior", "evidence")
        old = json.dumps(text)
        save_file(tensors, path, {**header, "fit": old, "digest": digest(old, tensors)})
        loaded = ci.Fit.load(path)
        assert torch.equal(loaded.elbo, one.elbo)
        if one.global_posterior:
            assert loaded.prior_term is None and loaded.objective == "bound"
        else:
            assert loaded.prior_term == pytest.approx(one.prior_term, abs=1e-9) and repr(loaded) == repr(one)


@pytest.mark.parametrize("name", ["two_flags", "rasch", "noisy_max", "abundance"])
def test_own_programs_have_the_same_parts(name):
    """Latents summed out, or integrated by quadrature, by ``log_likelihood`` too; the next fit goes on from there."""
    example, method = PROGRAMS[name][0].example(), ci.SVI(guide="delta", steps=3)
    one = method.fit(example.model, example.data, progress=False)
    assert one.data_term == pytest.approx(float(one.log_likelihood().sum()), abs=1e-6)
    assert (one.objective == "evidence") == (one.prior_term == 0) == (name == "abundance")
    again = method.fit(example.model, example.data, init=one, seed=4, progress=False)
    assert float(again.elbo[0]) == pytest.approx(float(one.elbo[-1]), abs=1e-3)
