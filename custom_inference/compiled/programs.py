"""Which compiled engines programs of one's own may have, by the names that methods know them by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module

from torch.distributions import constraints

from custom_inference.compiled.admixture.globals import part_of
from custom_inference.compiled.bayes.engine import CompiledVB
from custom_inference.compiled.engine import CompiledExact
from custom_inference.compiled.gaussian.bits import CompiledBits
from custom_inference.compiled.gaussian.engine import CompiledGaussian
from custom_inference.compiled.gaussian.matched import CompiledMatched
from custom_inference.compiled.gaussian.structure import may_be_gaussian, may_have_bits
from custom_inference.core.engine import Engine
from custom_inference.core.latent_values import is_own_of_rows
from custom_inference.core.registry import family_of
from ppl_models import Model
from ppl_models.core.sites import of_element


def engines_of_program(model: Model) -> Mapping[str, Callable[[], Engine]]:
    """Name -> what makes the engine, of those that are compiled from a program without engines, the default first.

    Whether the program has the structure that they need is found when rows are read: they raise NotCompiled then.
    """
    family = family_of(model)
    if family.compiled:
        return {name: make for name, make in family.engines.items() if name != "exact"}
    if is_sampled_by_sums(model):
        return {CompiledExact.name: CompiledExact, CompiledVB.name: CompiledVB}
    if not is_own_of_rows(model):
        return {}
    if may_be_gaussian(model):
        return {CompiledGaussian.name: CompiledGaussian}
    if may_have_bits(model):
        return {CompiledMatched.name: CompiledMatched, CompiledBits.name: CompiledBits}
    if not may_have_shares(model):
        return {}
    integrated = all(part_of(model, site) for site in model.unknown_sites)
    names = ["vb", "conjugate"] if integrated else ["conjugate"]
    if [part_of(model, site) for site in model.unknown_sites] == ["proportion"]:
        names.append("cvb0")  # of tokens
    return {name: partial(_make_admixture, name) for name in names}


def is_sampled_by_sums(model: Model) -> bool:
    """Whether a program may have chains that draw the latents of rows backwards through a sum (``gibbs``): rows with
    finite latents alone."""
    return is_own_of_rows(model) and not model.has_continuous_locals


def is_sampled_by_choices(model: Model) -> bool:
    """Whether a program may have chains that draw choices, shares and globals in turn: rows with shares, of which
    nothing but x is observed."""
    return is_own_of_rows(model) and may_have_shares(model) and len(model.sites_of("observed")) == 1


def _make_admixture(name: str) -> Engine:
    """Make an engine of programs of shares. Its kernels are those of families, whose records know methods, which know
    this module: it is loaded where it is needed."""
    return import_module("custom_inference.compiled.admixture.engines").ENGINES[name]()


def may_have_shares(model: Model) -> bool:
    """Whether a row has one vector of several shares or activations, or one share, and choices at most beside it, as
    declared."""
    sites = [model.sites[name] for name in model.row_latents]
    real = [site for site in sites if site.choice is None and (site.support is None or not site.support.is_discrete)]
    if len(real) != 1 or len(real[0].dims) > 1 or len(real[0].plates) > 1:
        return False
    support = of_element(real[0].support)
    if not real[0].dims:
        return support is constraints.unit_interval  # a Beta: shares of two
    return model.sizes[real[0].dims[0]] > 1 and support in (constraints.simplex, constraints.positive)
