"""The model protocol: a frozen settings object that is itself the Pyro program."""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Self

import pyro
import torch
from pyro.distributions import Distribution
from torch import Tensor
from torch.distributions import constraints

from ppl_models.core.errors import ModelError, unknown_name
from ppl_models.core.priors import broadcasts, is_flat, moved_like
from ppl_models.data.matrix import Data, check_for_fitting


@dataclass(frozen=True)
class Example:
    """A tiny problem with known truth: what the conformance tests run every model and method on."""

    model: Model
    data: Data
    truth: dict[str, Tensor]


@dataclass(frozen=True, kw_only=True, eq=False)
class Model(abc.ABC):
    """A generative model. Subclasses are frozen, keyword-only dataclasses whose ``__call__`` is the Pyro model.

    priors: site name -> unexpanded distribution of one element of the site (or one that broadcasts to the
    site's shape). Sites that are not named keep the default of ``default_priors``. A local site may be among them
    (the Dirichlet of a membership): its distribution is that of one row.
    """

    priors: Mapping[str, Distribution] = field(default_factory=dict)

    #: Local latent site whose posterior ``Fit.transform`` reports, and the observed site.
    local_site: ClassVar[str]
    observed_site: ClassVar[str] = "x"
    #: What the axes of x are called; labels that come with the data are those of these axes.
    row_axis: ClassVar[str] = "row"
    feature_axis: ClassVar[str] = "feature"
    #: Whether the program takes a sparse x (torch's CSR layout) as it is.
    reads_sparse: ClassVar[bool] = False
    #: Whether x is the adjacency matrix of a graph: one observation, whose rows (nodes) are not independent.
    is_graph: ClassVar[bool] = False
    #: The (K, D) global site whose rows are the components: what is aligned, drawn and reported.
    component_site: ClassVar[str] = "loading"
    #: A (D,) global that is drawn beside the components (a leak, a bias), if there is one.
    baseline_site: ClassVar[str | None] = None
    #: What an entry of the component site, and a posterior mean of the local site, are: labels of colour scales.
    component_meaning: ClassVar[str] = "value"
    local_meaning: ClassVar[str] = "posterior mean"
    #: What one line of ``ppl models`` says.
    summary: ClassVar[str] = ""

    def __post_init__(self) -> None:
        known = self.default_priors()
        for site, prior in self.priors.items():
            if site not in known:
                raise ModelError(unknown_name(f"site of {type(self).__name__}", site, known))
            self._check_prior(site, prior)
        object.__setattr__(self, "priors", {**known, **self.priors})

    # ----- what a model must say --------------------------------------------------------------------------

    @abc.abstractmethod
    def default_priors(self) -> dict[str, Distribution]:
        """Site name -> default prior of one element: every global site, and local sites whose prior is free."""

    @property
    @abc.abstractmethod
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Global site -> shape."""

    @property
    @abc.abstractmethod
    def dims(self) -> dict[str, tuple[str, ...]]:
        """Site (global, local or observed) -> names of its axes."""

    @abc.abstractmethod
    def __call__(self, x: Tensor | None = None, *, mask: Tensor | None = None, batch_size: int | None = None):
        """The Pyro program."""

    @abc.abstractmethod
    def prepare(self, data: Any, *, mask: Any = None, dtype=None, device=None) -> Data:
        """Validate data for this model."""

    @classmethod
    @abc.abstractmethod
    def example(cls) -> Example:
        """A tiny model with data and truth."""

    @classmethod
    @abc.abstractmethod
    def for_data(cls, data: Data, num_components: int, **settings: Any) -> Model:
        """The model of this family whose shape fits the data."""

    # ----- what every model gets --------------------------------------------------------------------------

    def with_priors(self, **priors: Distribution) -> Self:
        """The same model with the named priors exchanged."""
        return replace(self, priors={**self.priors, **priors})

    @property
    def global_sites(self) -> tuple[str, ...]:
        return tuple(self.shapes)

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Shape of one row's local latent."""
        return self.shapes[self.component_site][:1]

    @property
    def has_continuous_locals(self) -> bool:
        """Whether the local latent has a density (a membership, a score) rather than finitely many values."""
        return self.local_site in self.priors

    @property
    def data_kind(self) -> str:
        """What x holds, which decides the checks that make sense of it: by default "real", any numbers.

        Of the suite's models also "binary", "counts", "documents" (counts whose totals are given), "categories", and,
        as networkx calls them, "graph", "digraph", "multigraph" and "multidigraph".
        """
        return "real"

    @property
    def other_sites(self) -> tuple[str, ...]:
        """Observed and given sites beside x: what ``fit`` takes by their names."""
        return ()

    @property
    def summed_out(self) -> Model:
        """The same model without the sites that are there to be summed out: what fits hold; by default this one."""
        return self

    @property
    def code_bits(self) -> int | None:
        """Bits of the binary code that each row's local latent is, or None where it is something else."""
        return None

    def settings(self) -> dict[str, Any]:
        """The dataclass fields other than ``priors``."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "priors"}

    def prior(self, site: str, *, like: Tensor | None = None) -> Any:
        """The prior of a whole global site, or of one row of a local one, on the dtype and device of ``like``."""
        prior, shape = moved_like(self.priors[site], like), self._shape_of(site)
        # An element may itself be a vector, as with a Dirichlet: its axes are the site's last.
        batch = shape[: len(shape) - len(prior.event_shape)]
        return prior.expand(batch).to_event(len(batch))

    def _shape_of(self, site: str) -> tuple[int, ...]:
        return self.local_shape if site == self.local_site else self.shapes[site]

    def sample_globals(self, *, like: Tensor | None = None) -> dict[str, Tensor]:
        """The prior statements of the program: one ``pyro.sample`` a global site."""
        return {site: pyro.sample(site, self.prior(site, like=like)) for site in self.global_sites}

    def log_prior(self, params: Mapping[str, Tensor]) -> Tensor:
        """Sum of the log prior densities of the globals."""
        total = torch.zeros((), dtype=params[self.global_sites[0]].dtype, device=params[self.global_sites[0]].device)
        for site in self.global_sites:
            if not is_flat(self.priors[site]):
                total = total + self.prior(site, like=params[site]).log_prob(params[site])
        return total

    def as_read(self, data: Data) -> Data:
        """The data as the program reads them: dense, unless it reads sparse ones."""
        return data if self.reads_sparse else data.dense()

    def prepare_new(self, data: Any, like: Data, *, mask: Any = None, dtype=None, device=None) -> Data:
        """Validate further data for a model that was fitted to ``like``; by default as :meth:`prepare` does."""
        del like
        return self.prepare(data, mask=mask, dtype=dtype, device=device)

    def as_data(self, value: Tensor) -> Tensor:
        """Values (or means) of the program's observed site as data hold them; by default as they are."""
        return value

    def local_value(self, local: Tensor) -> Tensor:
        """Values of the local site from what posteriors give, (..., N, K) (one-hot rows, ...); by default these."""
        return local

    def standard_form(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Values of the sites under a rule that picks one of those that differ by a symmetry of the likelihood.

        For symmetries other than the order of the components, as rotations are; by default the values as they are.
        """
        return dict(values)

    def given(self, data: Data) -> dict[str, Any]:
        """What the program conditions on beside the locals (lengths, ...), as its arguments; by default nothing."""
        del data
        return {}

    def check_for_fitting(self, data: Data) -> None:
        """Refuse, or warn of, data that are valid but cannot be learned from; the default's rules are for 0/1 data."""
        check_for_fitting(data, site=self.observed_site)

    def prominence(self, params: Mapping[str, Tensor]) -> Tensor:
        """How much each component matters, (K,): what reports order the components by."""
        return params[self.component_site].abs().sum(-1)

    def report_columns(self, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What reports say of each component beside its strongest features: column name -> (K,)."""
        return {"prominence": self.prominence(params)}

    def component_matrix(self, params: Mapping[str, Tensor]) -> Tensor:
        """The components side by side, (K, F): what figures and tables show; by default the component site."""
        return params[self.component_site]

    def component_labels(self, features: Sequence[Any]) -> list[Any]:
        """Labels of the F columns of :meth:`component_matrix`, from those of the features."""
        return list(features)

    def shut_off(self, params: Mapping[str, Tensor], **thresholds: float) -> Tensor:
        """Components that explain nothing, (K,) bool."""
        return torch.zeros(self.shapes[self.component_site][0], dtype=torch.bool)

    def num_parameters(self, num_rows: int) -> int:
        """Free parameters, as AIC and BIC count them: the entries of the globals, one less for each simplex.

        Models whose local latents are estimated as points add those of ``num_rows`` rows.
        """
        total = 0
        for site, shape in self.shapes.items():
            prior: Any = self.priors[site]
            size, event = math.prod(shape), tuple(prior.event_shape)
            simplex = prior.support is constraints.simplex
            total += size - (size // event[-1] if simplex else 0)
        return total

    def check_params(self, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The globals of this model among ``params``, checked for names and shapes."""
        checked = {}
        for site, shape in self.shapes.items():
            if site not in params:
                raise ModelError(f"no value for site '{site}'; needed: {', '.join(self.shapes)}")
            value = torch.as_tensor(params[site])
            if tuple(value.shape) != shape:
                raise ModelError(f"site '{site}' has shape {tuple(value.shape)}, expected {shape}")
            checked[site] = value
        return checked

    def _check_prior(self, site: str, prior: Any) -> None:
        if not (isinstance(prior, torch.distributions.Distribution) and hasattr(prior, "to_event")):
            kind = f"{type(prior).__module__}.{type(prior).__name__}"
            raise ModelError(
                f"prior of '{site}' is a {kind}, expected a Pyro distribution such as pyro.distributions.Beta(1., 9.)"
            )
        shape, event = self._shape_of(site), tuple(prior.event_shape)
        batch = shape[: max(0, len(shape) - len(event))]
        if isinstance(prior, torch.distributions.Dirichlet) and not bool((prior.concentration > 0).all()):
            worst = float(prior.concentration.min())
            raise ModelError(f"prior of '{site}' has a concentration of {worst:g}, expected positive numbers")
        if batch + event != shape or not broadcasts(tuple(prior.batch_shape), batch):
            raise ModelError(
                f"prior of '{site}' has batch shape {tuple(prior.batch_shape)} and event shape "
                f"{event}; expected a distribution of one element, or one that broadcasts to {shape}"
            )


def require_model(model: Any) -> None:
    """Raises ModelError for what is no model: a class, a name."""
    if not isinstance(model, Model):
        found = f"the class {model.__name__}" if isinstance(model, type) else repr(model)
        raise ModelError(f"{found} is not a model; expected an instance, such as CVQ(num_components=3, num_features=8)")
