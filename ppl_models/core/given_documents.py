"""Documents that come with something else: topic admixtures whose proportions' prior depends on what is given."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from torch import Tensor

from ppl_models.core.document_model import TopicAdmixture
from ppl_models.core.errors import DataError
from ppl_models.data.containers import as_tensor, unpacked
from ppl_models.data.matrix import Data


@dataclass(frozen=True, kw_only=True, eq=False)
class GivenAdmixture(TopicAdmixture):
    """LDA in which the prior of a document's proportions is a Dirichlet that depends on what is given with it."""

    #: The site that is given, (N, number), and the field that is this number.
    given_site: ClassVar[str]
    given_size: ClassVar[str]

    @abc.abstractmethod
    def proportion_prior(self, site: Mapping[str, Tensor], given: Tensor | None) -> Any:
        """That of the proportions, of documents given (B, number); None: of documents of which nothing is given."""

    def check_given(self, given: Tensor) -> None:
        """Raises DataError for values that cannot be."""

    @property
    def latent_depends_on(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.given_site

    def latent_given(self, site: Mapping[str, Tensor], given: Tensor | None, rows: int) -> Any:
        del rows
        return self.proportion_prior(site, given)

    def prepare(self, data: Any, *, mask: Any = None, dtype=None, device=None, **others: Any) -> Data:
        """Word counts, and what is given with each document, (N, number). Raises DataError for anything else."""
        own = data.others if isinstance(data, Data) else {}
        given = others.pop(self.given_site, None)
        given = own.get(self.given_site) if given is None else given
        checked = super().prepare(data, mask=mask, dtype=dtype, device=device, **others)
        if given is None:
            return replace(checked, others={})
        value = self.read_given(given, checked)
        expected = len(checked), getattr(self, self.given_size)
        if value.shape != expected:
            what = f"{expected}, one row for each document and one column for each of {self.given_size}"
            raise DataError(f"shape {tuple(value.shape)}", site=self.given_site, expected=what)
        self.check_given(value)
        return replace(checked, others={self.given_site: value})

    def read_given(self, given: Any, data: Data) -> Tensor:
        """As numbers of the type of the words' counts."""
        return as_tensor(unpacked(given)[0], data.x.dtype).to(data.x.device)

    def prepare_new(self, data: Any, like: Data, **settings: Any) -> Data:
        """As :meth:`prepare`, in the vocabulary of the documents ``like``."""
        given = {site: settings.pop(site, None) for site in self.other_sites}
        return self.prepare(super().prepare_new(data, like, **settings), **given)

    @classmethod
    def for_data(cls, data: Data, num_components: int, **settings: Any) -> Self:
        """The model whose vocabulary, and number of what is given, are the data's; 1 where nothing is given."""
        given = data.others.get(cls.given_site)
        settings.setdefault(cls.given_size, 1 if given is None or given.ndim < 2 else given.shape[1])
        return super().for_data(data, num_components, **settings)
