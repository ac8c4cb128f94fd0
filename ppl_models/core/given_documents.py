"""Documents that come with something else, labels or covariates, on which their proportions or words depend."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models.core.document_model import TopicAdmixture
from ppl_models.core.errors import DataError, about, warn_of_absent
from ppl_models.core.scales import OnOwnScale
from ppl_models.core.sites import Site
from ppl_models.data.covariates import beside, covariates_of
from ppl_models.data.matrix import Data
from ppl_models.data.names import encode_labels


@dataclass(frozen=True, kw_only=True, eq=False)
class GivenDocuments(TopicAdmixture):
    """LDA of documents with which something is given: the door for it."""

    #: The site that is given, (N, number), and the field that is this number.
    given_site: ClassVar[str]
    given_size: ClassVar[str]
    #: The axis of what is given, where its places have names.
    named_axis: ClassVar[str | None] = None

    def check_given(self, given: Tensor) -> None:
        """Raises DataError for values that cannot be."""

    def prepare(self, data: Any, *, mask: Any = None, dtype=None, device=None, **others: Any) -> Data:
        """Word counts, and what is given with each document, (N, number). Raises DataError for anything else."""
        own, known = (data.others, data.coords) if isinstance(data, Data) else ({}, {})
        given = others.pop(self.given_site, None)
        given = own.get(self.given_site) if given is None else given
        checked = super().prepare(data, mask=mask, dtype=dtype, device=device, **others)
        if given is None:
            return replace(checked, others={})
        given, names = self._encode_names(given, known.get(str(self.named_axis)))
        value = self.read_given(given, checked)
        expected = len(checked), getattr(self, self.given_size)
        if value.shape != expected:
            what = f"{expected}, one row for each document and one column for each of {self.given_size}"
            raise DataError(f"shape {tuple(value.shape)}", site=self.given_site, expected=what)
        self.check_given(value)
        coords = {axis: labels for axis, labels in checked.coords.items() if axis != self.named_axis}
        coords |= {} if names is None else {str(self.named_axis): names}
        return replace(checked, coords=coords, others={self.given_site: value})

    def _encode_names(self, given: Any, known: Any) -> tuple[Any, list[Any] | None]:
        """Encode given names as numbers, and return these with the names; known: the names of a fit.

        Raises DataError for names that are not known, and for another number of them than the model has.
        """
        if self.named_axis is None:
            return given, None
        number = getattr(self, self.given_size)
        with about(self.given_site):
            given, names = encode_labels(given, number, known)
            if names is not None and len(names) != number:
                listed = ", ".join(map(str, names[:8])) + (", ..." if len(names) > 8 else "")
                found = f"{len(names)} different ones ({listed})"
                raise DataError(found, axis=self.named_axis, expected=f"{self.given_size} = {number} of them")
        return given, names

    def read_given(self, given: Any, data: Data) -> Tensor:
        """Return what is given as numbers, in the dtype of the word counts."""
        return beside(given, data)

    def prepare_new(self, data: Any, like: Data, **settings: Any) -> Data:
        """Prepare new documents in the vocabulary of ``like``."""
        given = {site: settings.pop(site, None) for site in self.other_sites}
        checked = super().prepare_new(data, like, **settings)
        known = {axis: names for axis, names in like.coords.items() if axis == self.named_axis}
        return self.prepare(replace(checked, coords=checked.coords | known), **given)

    @classmethod
    def for_data(cls, data: Data, num_components: int, **settings: Any) -> Self:
        """The model whose vocabulary, and number of what is given, are the data's; 1 where nothing is given."""
        given = data.others.get(cls.given_site)
        settings.setdefault(cls.given_size, 1 if given is None or given.ndim < 2 else given.shape[1])
        return super().for_data(data, num_components, **settings)


@dataclass(frozen=True, kw_only=True, eq=False)
class GivenAdmixture(GivenDocuments):
    """LDA in which the prior of a document's proportions depends on what is given with it."""

    @abc.abstractmethod
    def proportion_prior(self, site: Mapping[str, Tensor], given: Tensor | None) -> Any:
        """Return the prior of the proportions of documents with ``given`` (B, number), or with nothing given (None)."""

    @property
    def latent_depends_on(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.given_site

    def latent_given(self, site: Mapping[str, Tensor], given: Tensor | None, rows: int) -> Any:
        del rows
        return self.proportion_prior(site, given)


@dataclass(frozen=True, kw_only=True, eq=False)
class RegressedAdmixture(OnOwnScale, GivenAdmixture):
    """Documents with covariates u (N, P), the prior of whose proportions depends on eta = c + W'(u - centre) (N, K)
    alone.

    prevalence_bias: c (K,). prevalence_weight: W (P, K), in row p Normal(0, 1 / unit_p) by default. covariates: given,
    finite numbers; the centre where none are given.
    """

    num_covariates: int

    given_site: ClassVar[str] = "covariates"
    given_size: ClassVar[str] = "num_covariates"
    scaled_site: ClassVar[str] = "covariates"
    scaled_size: ClassVar[str] = "num_covariates"
    axes: ClassVar[Mapping[str, str]] = {**TopicAdmixture.axes, "covariate": "num_covariates"}
    sites: ClassVar[Mapping[str, Site]] = {
        "topic": TopicAdmixture.sites["topic"],
        "prevalence_bias": Site("global", ("component",)),
        "prevalence_weight": Site("global", ("covariate", "component")),
        "topic_proportion": TopicAdmixture.sites["topic_proportion"],
        "covariates": Site("given", ("covariate",), ("document",), constraints.real),
        "x": TopicAdmixture.sites["x"],
    }
    #: Mean and standard deviation of the default prior of c.
    bias_prior: ClassVar[tuple[float, float]]

    def default_priors(self) -> dict[str, Any]:
        return {
            "topic": super().default_priors()["topic"],
            "prevalence_bias": dist.Normal(*self.bias_prior),
            "prevalence_weight": self.of_weights(1.0),
        }

    def predictor(self, site: Mapping[str, Tensor], covariates: Tensor | None) -> Tensor:
        """eta (N, K) of documents with these covariates; (K,) of documents without."""
        bias, weight = site["prevalence_bias"], site["prevalence_weight"]
        centre, _ = self.scale_of_columns(weight)
        # Without covariates still a product, so that pictures show that the weights matter.
        away = torch.zeros_like(centre) if covariates is None else covariates - centre
        found = bias.unsqueeze(-2) + torch.atleast_2d(away) @ weight
        return found if away.ndim > 1 else found.squeeze(-2)

    def prior(self, site: str, *, like: Tensor | None = None, values: Mapping[str, Tensor] | None = None) -> Any:
        """Return the prior of a site; for the proportions, that of documents without covariates, at ``values`` or at
        the prior means of the weights."""
        if site != "topic_proportion":
            return super().prior(site, like=like, values=values)
        sites = ("prevalence_bias", "prevalence_weight")
        return self.proportion_prior(values or {s: self.prior(s, like=like).mean for s in sites}, None)

    def read_given(self, given: Any, data: Data) -> Tensor:
        return covariates_of(given, data, self.num_covariates)

    def check_for_fitting(self, data: Data) -> None:
        """Refuses what LDA refuses; warns of documents without covariates, all of one prior."""
        super().check_for_fitting(data)
        if "covariates" not in data.others:
            warn_of_absent("covariates", "all have one prior, that of the bias", "covariates=..., a row for each")


def read_labels(given: Any, data: Data, number: int) -> Tensor:
    """Labels as indicators (N, L), 0 where unknown, from these or, where a document has one at most, from numbers
    0, ..., L - 1, (N,), NaN or -1 where it is unknown. Raises DataError for others."""
    with about("labels"):
        value = beside(given, data)
        if value.ndim == 2 and value.shape[1] == 1 and number > 1:
            value = value.squeeze(1)
        if value.ndim != 1:
            return torch.nan_to_num(value)
        label = torch.nan_to_num(value, nan=-1.0)
        wrong = ((label < -1) | (label >= number) | (label != label.round())).nonzero().flatten()
        if len(wrong):
            first = f"{float(label[wrong[0]]):g} of document {int(wrong[0])}"
            found = f"{len(wrong)} labels are unknown (the first: {first})"
            raise DataError(found, expected=f"0, ..., {number - 1}, or -1 or NaN where there is none")
        return (label.unsqueeze(-1) == torch.arange(number, device=label.device)).to(data.x.dtype)


def check_labels(given: Tensor) -> None:
    """Raises DataError for indicators other than 0 and 1."""
    wrong = ((given != 0) & (given != 1)).nonzero()
    if len(wrong):
        row, label = wrong[0].tolist()
        value = float(given[row, label])
        found = f"{len(wrong)} values are neither 0 nor 1 (the first: {value:g}, document {row}, label {label})"
        raise DataError(found, site="labels", expected="1 for the labels of a document, 0 for others")


def check_each_label(given: Tensor) -> None:
    """Raises DataError for labels that no document has: nothing is known of their topics."""
    without = (given.sum(0) == 0).nonzero().flatten().tolist()
    if without:
        which = ", ".join(map(str, without[:5])) + (", ..." if len(without) > 5 else "")
        found = f"{len(without)} labels without a document ({which})"
        raise DataError(found, site="labels", axis="label", expected="a document of every label, or fewer labels")


def count_labels(given: Any) -> int | None:
    """How many labels there are, from one column of their numbers; None of other forms, or of none."""
    if given is None or not (np.ndim(given) == 1 or (np.shape(given)[1] == 1 and float(np.nanmax(given)) > 1)):
        return None
    return int(np.nanmax(given)) + 1
