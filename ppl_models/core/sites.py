"""The declaration of a model's sites: what role each plays, its axes, its plates, its support."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from torch.distributions import constraints

from ppl_models.core.errors import ModelError, unknown_name

Role = Literal["global", "latent", "observed", "given"]

#: The supports that what a model's latents and data are is told by, as the objects that they are compared with.
_NAMED = (
    constraints.boolean, constraints.nonnegative, constraints.nonnegative_integer, constraints.one_hot,
    constraints.positive, constraints.positive_definite, constraints.positive_integer, constraints.real,
    constraints.simplex, constraints.unit_interval,
)  # fmt: skip


def of_element(support: Any) -> Any:
    """The support of one element, whatever axes are events: ``independent`` wrappers are taken off (``real_vector`` is
    one), and what equals a support that has a name in torch, as ``interval(0, 1)`` does, is that object itself."""
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    if support is None or any(support is named for named in _NAMED):
        return support
    try:
        key = _key(support)
    except (TypeError, ValueError, RuntimeError):  # bounds that are several numbers
        return support
    return next((named for named in _NAMED if _key(named) == key), support)


def _key(support: Any) -> tuple[Any, ...]:
    """Equal for supports of the same kind with the same bounds."""
    return (type(support), *sorted((name, float(bound)) for name, bound in getattr(support, "__dict__", {}).items()))


@dataclass(frozen=True)
class Site:
    """One site of a model's program.

    role: "global" (one value for all data), "latent" (a value for every row, token, node, ...), "observed", or "given"
        (covariates, time: what the program conditions on).
    dims: names of the axes of one element, whose sizes the model's ``axes`` give. One that stands twice has "to_"
        before it the second time.
    plates: names of the plates in front of it, as the axes of its values: ("row",), ("node",), ("token",).
    support: of one element, which the prior of a site must not leave: as Pyro's distributions say it, of events too
        (``real_vector`` is ``real``, ``independent(positive, 1)`` is ``positive``); a point of the simplex, a one-hot
        vector or a matrix is one element.
    choice: the axis among whose places the site chooses one, as a whole number.
    sparse: of an observed site, whether the program takes a sparse value (torch's CSR layout) as it is.
    """

    role: Role
    dims: tuple[str, ...] = ()
    plates: tuple[str, ...] = ()
    support: Any = None
    choice: str | None = None
    sparse: bool = False

    def __post_init__(self) -> None:
        if self.role not in get_args(Role):
            raise ModelError(unknown_name("role of a site", self.role, get_args(Role)))
        object.__setattr__(self, "support", of_element(self.support))
        dims = list[str]()
        for axis in self.dims:
            dims.append(f"to_{axis}" if axis in dims else axis)
        object.__setattr__(self, "dims", tuple(dims))

    def __reduce__(self) -> Any:
        """A copy is compared with the supports of the process that reads it."""
        return type(self), (self.role, self.dims, self.plates, self.support, self.choice, self.sparse)

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of all axes of the site's values."""
        return (*self.plates, *self.dims)


class Declaration:
    """Properties that follow from the declaration of a model's sites: shapes, names of axes, kinds of latents."""

    #: Every site of the program, in the order of its statements; a property where it depends on the settings.
    sites: ClassVar[Mapping[str, Site]]
    #: Axis -> the field that is its size.
    axes: ClassVar[Mapping[str, str]]
    #: Whether the suite lists the class: not where it states another model's program in more sites.
    listed: ClassVar[bool] = True
    #: Names of the entries of the main latent that stand before those of the components.
    before_components: tuple[str, ...] = ()
    #: The hyper-parameters of priors that are functions, and the sizes of their axes.
    hyper_sites: ClassVar[Mapping[str, Site]] = {}
    hyper_sizes: ClassVar[Mapping[str, int]] = {}

    @property
    def sizes(self) -> dict[str, int]:
        """Axis -> size, of the axes whose sizes the model has; rows are the data's."""
        return {axis: getattr(self, field) for axis, field in self.axes.items()} | dict(self.hyper_sizes)

    def sites_of(self, role: Role) -> tuple[str, ...]:
        """The names of the sites that play a role."""
        return tuple(name for name, site in self.sites.items() if site.role == role)

    def _check_sites(self) -> None:
        """Raises ModelError where nothing is latent or observed, where an axis has no size, and for latents in a plate
        of another name than that of x (but where the class states another model's program in more sites)."""
        name, sizes = type(self).__name__, self.sizes
        roles = {site.role for site in self.sites.values()}
        lacking = [role for role in ("latent", "observed") if role not in roles]
        if lacking:
            raise ModelError(f"{name} declares no {lacking[0]} site; expected one at least, Site({lacking[0]!r}, ...)")
        plates = self.sites[self.observed_site].plates
        known_plates = {*plates[:1], *sizes}  # of relations, those of their entities too
        for site, declared in self.sites.items():
            unknown = [axis for axis in (*declared.dims, declared.choice) if axis is not None and axis not in sizes]
            if unknown and (declared.role == "global" or declared.choice in unknown):
                known = ", ".join(sizes) or "none"
                raise ModelError(
                    f"site '{site}' of {name} has the axis '{unknown[0]}', whose size `axes` does not give; "
                    f"known: {known}"
                )
            if self.listed and declared.role == "latent" and not known_plates.issuperset(declared.plates[:1]):
                raise ModelError(
                    f"latent '{site}' of {name} is declared in the plates {declared.plates}, and "
                    f"'{self.observed_site}' in {plates}; expected the same first one, that of the rows"
                )

    @property
    def global_sites(self) -> tuple[str, ...]:
        return self.sites_of("global")

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Global site -> shape."""
        sites, sizes = self.sites, self.sizes
        return {name: tuple(sizes[axis] for axis in site.dims) for name, site in sites.items() if site.role == "global"}

    @property
    def dims(self) -> dict[str, tuple[str, ...]]:
        """Site -> names of its axes."""
        return {name: site.axes for name, site in self.sites.items()}

    @property
    def local_site(self) -> str:
        """The main latent: whose posterior ``Fit.transform`` reports."""
        return self.sites_of("latent")[0]

    @property
    def observed_site(self) -> str:
        """The site of the data: x, or where none is called that the first that is observed."""
        observed = self.sites_of("observed")
        return "x" if "x" in observed else observed[0]

    @property
    def other_sites(self) -> tuple[str, ...]:
        """Observed and given sites beside x: what ``fit`` takes by their names."""
        main = self.observed_site
        return (*(name for name in self.sites_of("observed") if name != main), *self.sites_of("given"))

    @property
    def part_sites(self) -> tuple[str, ...]:
        """Latents that are parts of the main one (:meth:`Model.local_parts`)."""
        return ()

    @property
    def has_components(self) -> bool:
        """Whether some global has a value for each component, so that there is something to align and report."""
        return any("component" in self.sites[name].dims for name in self.global_sites)

    @property
    def component_site(self) -> str:
        """The global whose rows are the components, (K, D, ...): what is aligned, drawn and reported.

        Raises ModelError where no global has the axis "component".
        """
        sites = self.sites
        found = [name for name in self.global_sites if "component" in sites[name].dims]
        if not found:
            axes = {name: sites[name].dims for name in self.global_sites}
            name = type(self).__name__
            raise ModelError(
                f"{name} has no components: none of its globals has the axis 'component', of {axes}; what is reported, "
                "drawn and aligned is an axis of that name"
            )
        return next((name for name in found if len(sites[name].dims) > 1), (*found, *self.global_sites)[0])

    @property
    def row_axis(self) -> str:
        """The name of the row axis of x, under which labels of the data are kept."""
        return self.sites[self.observed_site].axes[0]

    @property
    def feature_axis(self) -> str:
        """The last axis of x; of rows that are one number each there is none, and "feature" names their only column."""
        dims = self.sites[self.observed_site].dims
        return dims[-1] if dims else "feature"

    @property
    def rows_are_independent(self) -> bool:
        """Whether p(x | globals) is a product over rows; not where the rows are of the model's own, as nodes are."""
        return self.row_axis not in self.axes

    @property
    def is_graph(self) -> bool:
        """Whether x relates its rows to each other: an adjacency matrix."""
        return self.feature_axis == f"to_{self.row_axis}"

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Shape of the posterior mean of one row's main latent; of a choice the probabilities of its values."""
        return self.mean_shape_of(self.local_site)

    def mean_shape_of(self, latent: str) -> tuple[int, ...]:
        """Shape of the posterior mean of one row's value of a latent: at least one axis."""
        site, sizes = self.sites[latent], self.sizes
        own = tuple(sizes[axis] for axis in (*site.plates[1:], *site.dims) if axis in sizes)
        return (*own, *((sizes[site.choice],) if site.choice else ())) or (1,)

    @property
    def row_latents(self) -> tuple[str, ...]:
        """The latents of a row but those that are parts of the main one."""
        parts = self.part_sites
        return tuple(name for name in self.sites_of("latent") if name not in parts)

    @property
    def has_continuous_locals(self) -> bool:
        """Whether some latent has a density (a membership, a score) rather than finitely many values."""
        latents = [self.sites[name] for name in self.row_latents]
        return any(
            site.choice is None and site.support is not None and not site.support.is_discrete for site in latents
        )

    @property
    def has_atoms(self) -> bool:
        """Whether some value of the main latent has a probability though others have a density: neither sums nor
        gradients reach all of it."""
        return any(getattr(self.sites[name].support, "has_atom", False) for name in self.row_latents)

    #: Of a latent with atoms, why it has no density.
    without_density: ClassVar[str] = "is exactly 0 with some probability"

    @property
    def code_bits(self) -> int | None:
        """Bits of the binary code that each row's only latent is, or None where there is something else."""
        binary = self.sites[self.local_site].support is constraints.boolean and len(self.row_latents) == 1
        return math.prod(self.local_shape) if binary else None

    @property
    def data_kind(self) -> str:
        """The kind of x, which decides how it is checked: by its support "binary", "counts" or "real".

        Of the suite's models also "documents" (counts whose totals are given), "categories", and, as networkx calls
        them, "graph", "digraph", "multigraph" and "multidigraph".
        """
        kinds = {constraints.boolean: "binary", constraints.nonnegative_integer: "counts"}
        return kinds.get(self.sites[self.observed_site].support, "real")
