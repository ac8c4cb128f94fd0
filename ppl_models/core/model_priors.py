"""What priors a model has, and the statements of sites by their priors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from ppl_models.core import hierarchy
from ppl_models.core.errors import ModelError, unknown_name
from ppl_models.core.priors import is_flat, move_prior, require_prior, require_support, support_of, value_if_known
from ppl_models.core.running import Run, current_run, running
from ppl_models.core.sites import Declaration, of_element


class _Priors(dict[str, Any]):
    """Priors of all sites of a model of type ``owner``; ``chosen`` are those that the user gave."""

    chosen: Mapping[str, Any]
    owner: type


@dataclass(frozen=True, kw_only=True, eq=False)
class WithPriors(Declaration):
    """A declaration of sites with their priors; :class:`ppl_models.Model` says what they may be."""

    priors: Mapping[str, Any] = field(default_factory=dict)

    def _set_priors(self) -> None:
        native = self.default_priors()
        chosen = self.priors
        if isinstance(chosen, _Priors) and chosen.owner is type(self):  # by ``dataclasses.replace``; else all are given
            chosen = chosen.chosen
        priors = {site: hierarchy.as_prior(prior) for site, prior in chosen.items()}
        hypers = hierarchy.hyper_parameters(type(self).__name__, priors, native)
        if hypers:
            sites, sizes = hierarchy.hyper_sites(hypers, priors)
            object.__setattr__(self, "hyper_sites", sites)
            object.__setattr__(self, "hyper_sizes", sizes)
        ordered = _Priors({name: priors[name] for name in hypers} | native | priors)
        ordered.chosen, ordered.owner = priors, type(self)
        object.__setattr__(self, "priors", ordered)
        declared = self.sites
        for site in native:
            if site not in declared:
                raise ModelError(unknown_name(f"site in default_priors() of {type(self).__name__}", site, declared))
        bare = [site for site in self.global_sites if site not in ordered]
        if bare:
            raise ModelError(
                f"global '{bare[0]}' of {type(self).__name__} has no prior; state one in default_priors(), or give "
                f"priors={{'{bare[0]}': ...}}: probabilities and simplexes alone have flat ones by default, which a "
                "default_priors() of one's own keeps by {**super().default_priors(), ...}"
            )
        for site, prior in ordered.items():
            if hierarchy.is_function(prior):
                continue
            shape = self.shape_of(site)
            require_prior(site, prior, shape)
            require_support(site, prior, declared[site].support, shape)
            if declared[site].role == "latent" and value_if_known(prior) is not None:
                raise ModelError(f"'{site}' is a latent of the rows; only global sites can be known")
        if self.has_functions:
            hierarchy.require_order(ordered, [*self.global_sites, *self.sites_of("latent")])
            hierarchy.check_functions(self)

    def default_priors(self) -> dict[str, Any]:
        """Site name -> default prior of one element: every global site, and local sites whose prior is free.

        Here the flat ones, of the sites that are probabilities or lie on the simplex; models add those of the others.
        """
        priors: dict[str, Any] = {}
        sites = self.sites
        for name in (*self.global_sites, *self.sites_of("latent")):
            if sites[name].support is constraints.unit_interval:
                priors[name] = dist.Beta(1.0, 1.0)
            elif sites[name].support is constraints.simplex:
                priors[name] = dist.Dirichlet(torch.ones(self.shape_of(name)[-1]))
        return priors

    def with_priors(self, **priors: Any) -> Self:
        """Return a copy with some priors replaced; hyper-parameters that no prior depends on any more are dropped."""
        exchanged = {**self.chosen_priors, **priors}
        for name in reversed([*self.hyper_sites]):  # one may have been there for another
            used = {one for site, prior in exchanged.items() if site != name for one in hierarchy.arguments_of(prior)}
            if name not in priors and name not in used:
                del exchanged[name]
        return replace(self, priors=exchanged)

    @property
    def chosen_priors(self) -> dict[str, Any]:
        """The priors that the user gave; all others follow from the settings by ``default_priors``, also after
        ``dataclasses.replace``."""
        assert isinstance(self.priors, _Priors)
        return dict(self.priors.chosen)

    @property
    def known(self) -> dict[str, Tensor]:
        """The values of the known global sites."""
        values = {site: value_if_known(self.priors[site]) for site in self.global_sites}
        return {site: value.expand(self.shapes[site]) for site, value in values.items() if value is not None}

    @property
    def unknown_sites(self) -> tuple[str, ...]:
        """The global sites that are to be learned."""
        return tuple(site for site in self.global_sites if value_if_known(self.priors[site]) is None)

    @property
    def supports(self) -> dict[str, Any]:
        """Global site -> the support of one element: the declared one, or that of its prior, where this is no function,
        of sites that are declared as any real numbers or without a support."""
        found = dict[str, Any]()
        for site in self.global_sites:
            declared, own = self.sites[site].support, of_element(support_of(self.priors[site]))
            # Gammas say that 0 is among their values, where no law that they are priors of is.
            own = constraints.positive if own is constraints.nonnegative else own
            narrow = own in (constraints.positive, constraints.unit_interval, constraints.simplex)
            found[site] = own if declared is None or (declared is constraints.real and narrow) else declared
        return found

    @property
    def has_functions(self) -> bool:
        """Whether some prior is a function of earlier sites."""
        return any(hierarchy.is_function(prior) for prior in self.priors.values())

    def at(self, values: Mapping[str, Tensor]) -> Self:
        """Return a copy whose hierarchical priors are evaluated at given values of the globals, without
        hyper-parameters."""
        if not self.has_functions:
            return self
        plain = {site: hierarchy.at(prior, values) for site, prior in self.priors.items()}
        return replace(self, priors={site: prior for site, prior in plain.items() if site not in self.hyper_sites})

    def settings(self) -> dict[str, Any]:
        """Return the dataclass fields other than ``priors``."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "priors"}

    def chosen_settings(self) -> dict[str, Any]:
        """Return the settings that differ from their defaults."""
        default = {f.name: f.default for f in fields(self)}
        found = self.settings()
        return {k: v for k, v in found.items() if type(v) is not type(default[k]) or v != default[k]}

    def prior(self, site: str, *, like: Tensor | None = None, values: Mapping[str, Tensor] | None = None) -> Any:
        """Return the prior of a whole global site, or of one row of a local one, on the dtype and device of ``like``.

        values: values of earlier sites, for a prior that is a function of them.
        """
        prior = hierarchy.prior_at(site, self.priors[site], values or {})
        prior, shape = move_prior(prior, like), self.shape_of(site)
        # An element may itself be a vector, as with a Dirichlet: its axes are the site's last.
        batch = shape[: len(shape) - len(prior.event_shape)]
        return prior.expand(batch).to_event(len(batch))

    def shape_of(self, site: str) -> tuple[int, ...]:
        """Return the shape of a global site, or of one row of a latent."""
        sizes = self.sizes
        return tuple(sizes[axis] for axis in self.sites[site].dims)

    def possible(self, site: str) -> Tensor | None:
        """Return which entries of a global on the simplex can be positive, bool, broadcastable to its shape; None, the
        default, if all can."""
        del site
        return None

    def sample(self, site: str) -> Tensor:
        """State a site of the program: draw it from its prior, given the sites that were stated before it, or hold it
        at its value where that is known. Hyper-parameters of priors are stated before the first site."""
        run = current_run()
        if site not in self.sites:
            raise ModelError(unknown_name(f"site of {type(self).__name__}", site, self.sites))
        like = torch.empty(()) if run.like is None else run.like
        for name in dict.fromkeys((*self.hyper_sites, site)):
            if name in run.values and name != site:
                continue
            prior = self.prior(name, like=like, values=run.values)
            if value_if_known(self.priors.get(name)) is None:
                run.values[name] = pyro.sample(name, prior)
            else:
                run.values[name] = pyro.deterministic(name, prior.mean, event_dim=len(prior.event_shape))
        return run.values[site]

    def sample_globals(self, *, like: Tensor | None = None) -> dict[str, Tensor]:
        """State every global site, in order; inside a program's call as :meth:`sample` does.

        like: a tensor whose type and device the draws have; by default those of what the program is given, or torch's.
        """
        run = current_run()
        with running(Run(run.like if like is None else like, run.values)) as run:
            for site in self.global_sites:
                if site not in run.values:
                    self.sample(site)
            return {site: run.values[site] for site in self.global_sites}

    def log_prior(self, params: Mapping[str, Tensor], sites: Iterable[str] | None = None) -> Tensor:
        """Sum the log prior densities of the globals, or of some, as the program states them; flat ones add 0."""
        like, unknown = params[self.global_sites[0]], self.unknown_sites
        total = torch.zeros((), dtype=like.dtype, device=like.device)
        for site in unknown if sites is None else set(sites) & set(unknown):
            if not is_flat(self.priors[site]):
                total = total + self.prior(site, like=params[site], values=params).log_prob(params[site])
        return total
