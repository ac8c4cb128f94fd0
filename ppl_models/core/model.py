"""The model protocol: a frozen settings object that is itself the Pyro program."""

from __future__ import annotations

import abc
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self, Unpack

import torch
from pyro.poutine.condition_messenger import ConditionMessenger
from torch import Tensor

from ppl_models.core import displays, doors, hierarchy, shapes
from ppl_models.core.errors import ModelError, about, require_whole
from ppl_models.core.model_priors import WithPriors
from ppl_models.core.priors import describe_prior, support_of
from ppl_models.core.running import as_given, rows_of
from ppl_models.core.unsized import UnsizedModel, require_settings, sizes_lacking, with_sizes
from ppl_models.data.columns import check_columns, check_for_fitting, warn_of_ids
from ppl_models.data.covariates import read_before
from ppl_models.data.held import MatrixLike, Reading, Source, is_string
from ppl_models.data.matrix import Data

#: Names that begin a description and keep their capital.
_PEOPLE = ("Dirichlet", "Gaussian", "Helmholtz", "Poisson")


@dataclass(frozen=True)
class Example:
    """A tiny problem with known truth: what the conformance tests run every model and method on."""

    model: Model
    data: Data
    truth: dict[str, Tensor]

    def _repr_html_(self) -> str:
        parts = self.model._repr_html_(), self.data._repr_html_()
        return displays.with_truth("Example", self.truth, *parts)

    @classmethod
    def of(cls, model: Model, data: MatrixLike, truth: Mapping[str, Any], **others: Any) -> Example:
        """Make an example from arrays: x (or prepared data) and ``others`` are cast to the default dtype, and so are
        the real values of the truth."""
        dtype = torch.get_default_dtype()
        read = read_before(data)
        if read is None:
            given = {site: torch.as_tensor(value).to(dtype) for site, value in others.items()}
            read = Data(x=torch.as_tensor(data).to(dtype), others=given)
        values = {site: torch.as_tensor(value) for site, value in truth.items()}
        truth = {site: value.to(dtype) if value.is_floating_point() else value for site, value in values.items()}
        return cls(model=model, data=read, truth=truth)


@dataclass(frozen=True, kw_only=True, eq=False)
class Model(WithPriors, abc.ABC):
    """A generative model. Subclasses are frozen, keyword-only dataclasses whose ``__call__`` is the Pyro model.

    priors: site name -> unexpanded distribution of one element of the site (or one that broadcasts to the
    site's shape). Sites that are not named keep the default of ``default_priors``. A local site may be among them
    (the Dirichlet of a membership): its distribution is that of one row. Instead of a distribution also a number or a
    tensor, the known value of a global site, which every method holds there; or a function of earlier sites, whose
    arguments that are no sites of the model are hyper-parameters: global sites with priors of their own.

    Sizes that data have (features, words, users, nodes, classes) may be left out: the model then takes them from the
    data that it is fitted to, or from those of its ``for_data``, and can do nothing else before.

    Raises ModelError for a setting that is unknown or lacking, a size below 1, an unknown prior name, and a prior whose
    shape or support is not its site's.
    """

    #: Further fields that are whole numbers of at least 1.
    whole_fields: ClassVar[tuple[str, ...]] = ()
    #: Why more components than columns (features, nodes) make no sense, for models that refuse it.
    wide_reason: ClassVar[str | None] = None
    #: The line of ``ppl models`` about it: the first of the docstring.
    summary: ClassVar[str] = ""

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        if "sites" in vars(cls):
            sites: Any = hierarchy.SitesOf(vars(cls)["sites"])
            cls.sites = sites
            if twice := hierarchy.find_twice(sites.own, getattr(cls, "axes", {})):
                cls.axes = {**cls.axes, **twice}
        if "__call__" in vars(cls):
            cls.__call__ = as_given(vars(cls)["__call__"])
        for door in {"prepare", "prepare_new"} & set(vars(cls)):
            setattr(cls, door, doors.with_containers(vars(cls)[door]))
        if "for_data" in vars(cls):
            made: Any = classmethod(doors.with_door(vars(cls)["for_data"].__func__))
            cls.for_data = made
        if "__repr__" not in vars(cls):  # or ``dataclass`` would write one, which does not say what priors are
            cls.__repr__ = Model.__repr__
        if cls.__doc__ and "summary" not in vars(cls):
            line = cls.__doc__.partition("\n\n")[0].removesuffix(".")
            named = not line[1:2].islower() or line.startswith(_PEOPLE)
            cls.summary = line if named else line[:1].lower() + line[1:]

    def __new__(cls, *unnamed: Any, **settings: Any) -> Self:
        if not all(map(is_string, cls.axes.values())):
            expected = "the name of a field for each axis, as in {'component': 'num_components'}"
            raise ModelError(f"axes = {dict(cls.axes)} of {cls.__name__}; expected {expected}")
        lacking = sizes_lacking(cls, settings) if settings else ()
        if not lacking:
            require_settings(cls, unnamed, settings)
        else:
            sizes = (*cls.axes.values(), *cls.whole_fields)
            require_whole({name: settings[name] for name in sizes if settings.get(name) is not None})
        made: Any = UnsizedModel(cls, settings, lacking) if lacking else super().__new__(cls)
        return made

    def __reduce__(self) -> Any:
        """Copies are made of no settings, which ``__new__`` would refuse, and filled then."""
        return object.__new__, (type(self),), dict(vars(self))

    def __post_init__(self) -> None:
        require_whole({name: getattr(self, name) for name in (*self.axes.values(), *self.whole_fields)})
        self._check_sites()
        if self.wide_reason is not None:
            few, many = self.axes["component"], self._columns()
            if getattr(self, few) > getattr(self, many):
                found = f"{few} = {getattr(self, few)} exceeds {many} = {getattr(self, many)}"
                raise ModelError(f"{found}: {self.wide_reason}; expected at most as many")
        self._set_priors()

    def __repr__(self) -> str:
        settings = [f"{name}={value!r}" for name, value in self.chosen_settings().items()]
        priors = ", ".join(f"{site}: {describe_prior(prior)}" for site, prior in self.priors.items())
        return f"{type(self).__name__}({', '.join(settings)}; {priors})"

    def _repr_html_(self) -> str:
        return displays.of_model(self)

    # ----- what a model must say --------------------------------------------------------------------------

    @abc.abstractmethod
    def __call__(self, x: Tensor | None = None, *, mask: Tensor | None = None, batch_size: int | None = None):
        """Run the Pyro program; further observed and given sites are arguments by their names."""

    @abc.abstractmethod
    def prepare(self, data: Source, **reading: Unpack[Reading]) -> Data:
        """Validate data for this model; further observed and given sites are arguments by their names."""

    @classmethod
    def example(cls) -> Example:
        """Return a tiny model with data and truth: what listed models are tested on, and their estimators are built by.

        Raises ModelError where a class has none.
        """
        raise ModelError(
            f"{cls.__name__} has no example: estimators and the command line need a class method 'example' that "
            "returns Example(model=..., data=..., truth=...)"
        )

    @classmethod
    def has_example(cls) -> bool:
        """Say whether the class has an example: whether it is a program to be listed, and not a base of such."""
        return cls.example.__func__ is not Model.example.__func__

    @classmethod
    @doors.with_door
    def for_data(cls, data: Data, num_components: int | None = None, **settings: Any) -> Self:
        """Make the model whose shape fits the data: the axes of x have the data's sizes, the components (or the one
        axis of the main latent that x lacks) ``num_components``, and other axes what ``settings`` say.

        data: prepared data, or what the reader of such data accepts: a DataFrame, an array, texts, edges.

        Raises ModelError if the data have other axes, or a size is still unknown.
        """
        return cls(**shapes.sizes_for(cls, data, num_components, settings), **settings)

    @classmethod
    def number_for(cls, data: Data, settings: Mapping[str, Any]) -> int | None:
        """Return how many components :meth:`for_data` takes where nobody says it, by default as many as the default of
        the field says; None, where there is none: then somebody must."""
        del data, settings
        return doors.default_of(cls, cls.axes.get("component", ""))

    @classmethod
    def _columns(cls) -> str:
        """Return the name of the field that is the number of columns."""
        return next(field for axis, field in cls.axes.items() if "component" not in axis)

    # ----- what every model gets --------------------------------------------------------------------------

    def on_scale_of(self, data: Data | None, *, like: Model | None = None, weights: Tensor | None = None) -> Self:
        """Return the model with its default priors on the scale of these data, if the program leaves the scale open;
        without data, on that of standardised data (centre 0, unit 1).

        Methods call it when they fit; priors that the user gave do not change. By default returns the model itself.

        like: a model whose fit is the start, and whose scale is used if its values are relative to its centre.
        weights: (N,), how often each row counts.
        """
        del data, like, weights
        return self

    @property
    def site_units(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Centre and unit of the values of sites, broadcastable to the site (for covariances the units of the rows):
        generic guides optimise in these coordinates. Sites that are not named have centre 0 and unit 1, or coordinates
        of their prior; by default none is named."""
        return {}

    @property
    def component_kinds(self) -> Tensor | None:
        """The role of each component in the program, a whole number, (K,); None, the default, if all have the same."""
        return None

    @property
    def summed_out(self) -> Model:
        """The model without the sites that are there to be summed out, for fits to hold; by default itself."""
        return self

    @property
    def named_sizes(self) -> dict[str, int]:
        """Sizes of axes that no site has but whose entries have names in the data; by default none."""
        return {}

    @property
    def factor_sites(self) -> dict[str, str]:
        """The sites beside x that may be factors: "columns" of several, one "value" a row, or its "place"."""
        own = [*self.sites_of("given"), getattr(self, "scaled_site", "")]
        return {site: "columns" for site in own if site.endswith("covariates")}

    def as_read(self, data: Data) -> Data:
        """Return the data as the program reads them: dense, unless it reads sparse matrices."""
        return data if self.sites[self.observed_site].sparse else data.dense()

    def prepare_new(self, data: Source, like: Data, **settings: Any) -> Data:
        """Validate further data for a model that was fitted to ``like``; by default as :meth:`prepare` does."""
        return self.prepare(data, **settings)

    def as_data(self, value: Tensor) -> Tensor:
        """Convert values (or means) of the observed site to the form in which data hold them; by default unchanged."""
        return value

    def local_value(self, local: Tensor) -> Tensor:
        """Convert a posterior's values (..., N, K), such as one-hot rows, to those of the local site."""
        return local

    def local_parts(self, local: Tensor) -> dict[str, Tensor]:
        """Split the main latent (..., N, K) into parts with names of their own, which fits report beside the globals;
        by default there are none."""
        return {}

    def standard_form(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Pick one representative of the values that are equivalent by a symmetry of the likelihood.

        For symmetries such as rotations, not the order of the components; by default the values are unchanged.
        """
        return dict(values)

    def given(self, data: Data) -> dict[str, Any]:
        """Return what the program conditions on beside the locals (covariates, lengths, ...), as its arguments."""
        return {site: data.others[site] for site in self.sites_of("given") if site in data.others}

    def given_rows(self, num_rows: int) -> dict[str, Any]:
        """Return the same arguments for rows about which nothing is known; by default none, so the program's own."""
        del num_rows
        return {}

    def check_for_fitting(self, data: Data) -> None:
        """Refuse data, or warn of data, that are valid but cannot be learned from: columns without any observed entry,
        columns that are always 0 (or, in 0/1 data, always the same), 0/1 data without a 1."""
        with about(self.observed_site):
            if self.data_kind == "binary":
                check_for_fitting(data)
            else:
                check_columns(data, constant=(0,) if self.data_kind == "counts" else ())
            if self.data_kind == "counts":
                warn_of_ids(data)

    def rows_of(self, given: Mapping[str, Any]) -> dict[str, int]:
        """Return ``num_rows`` for generating rows with these arguments beside x, if they determine it; what is given of
        columns does not."""
        columns = {name for name, site in self.sites.items() if site.role == "given" and not site.plates}
        return rows_of({name: value for name, value in given.items() if name not in columns})

    def num_parameters(self, num_rows: int) -> int:
        """Count the free parameters for AIC and BIC: those of the unknown globals, and of the latents of ``num_rows``
        rows where these are estimated as points, less what the likelihood does not see of them (``num_unseen``).

        A simplex has one less than entries, a positive definite matrix those on and below its diagonal. What is known
        is not counted, nor are latents of finitely many values, which are no parameters as points either.
        """
        supports = {site: {support_of(self.priors[site]), self.sites[site].support} for site in self.unknown_sites}
        total = sum(shapes.count_free(self.shapes[site], own) for site, own in supports.items())
        local = self.sites[self.local_site].support
        if num_rows and not getattr(local, "is_discrete", True):
            total += num_rows * shapes.count_free(self.local_shape, {local})
        return total - self.num_unseen(num_rows)

    def num_unseen(self, num_rows: int) -> int:
        """Count the dimensions of unknown globals, and of the latents of ``num_rows`` rows as points, along which the
        likelihood does not change: rotations, a number added to all logits, scales. By default none."""
        del num_rows
        return 0

    def check_params(self, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Check names and shapes of the globals in ``params``; known sites get their known values, and missing
        hyper-parameters typical ones."""
        checked, params = {}, dict(params)
        like = torch.as_tensor(next(iter(params.values()), 0.0))
        if not set(self.hyper_sites) <= set(params):
            typical = hierarchy.typical_values(self)
            params |= {site: typical[site] for site in self.hyper_sites if site not in params}
        params |= {site: value.to(like) if like.is_floating_point() else value for site, value in self.known.items()}
        for site, shape in self.shapes.items():
            if site not in params:
                raise ModelError(f"no value for site '{site}'; needed: {', '.join(self.shapes)}")
            value = torch.as_tensor(params[site])
            if tuple(value.shape) != shape:
                raise ModelError(f"site '{site}' has shape {tuple(value.shape)}, expected {shape}")
            checked[site] = value
        return checked


def size_model(model: Any, data: Source, others: Mapping[str, Any], init: object = None) -> tuple[Model, Any]:
    """Return the model, of the sizes of the data where it has none yet, and the data, as :func:`with_sizes` does.

    init: a fit that is the start, in whose columns, words and answers the data are sized; anything else is ignored.

    Raises ModelError for anything but a model.
    """
    start: Any = init if type(model) is UnsizedModel and hasattr(init, "reader") else None
    if start is not None and isinstance(start.model, model.kind):
        known = {site: one for site, one in others.items() if site in start.model.other_sites}
        return require_model(with_sizes(model, start.read(data, **known), others)[0]), data
    model, data = with_sizes(model, data, others)
    return require_model(model), data


def require_model(model: Any) -> Model:
    """Return the model; sites conditioned by ``pyro.poutine.condition(model, data)`` become known.

    Raises ModelError for anything but a model, such as a class or a name.
    """
    if type(model) is UnsizedModel:
        model.require_sizes()
    bound = getattr(model, "func", None)  # of what a handler's call gives: its context, the handler, the program
    if isinstance(bound, functools.partial) and isinstance(bound.args[0], ConditionMessenger):
        handler, inner = bound.args
        return require_model(inner).with_priors(**dict(handler.data))
    if not isinstance(model, Model):
        found = f"the class {model.__name__}" if isinstance(model, type) else repr(model)
        raise ModelError(f"{found} is not a model; expected an instance, such as CVQ(num_components=3, num_features=8)")
    return model
