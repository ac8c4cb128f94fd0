"""How far is an approximation from the truth? One call."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
from numpy.typing import ArrayLike
from torch import Tensor

from custom_inference.checks.annealed import AIS, SMC
from custom_inference.checks.compare_integrated import score_fits
from custom_inference.checks.exact import Exact
from custom_inference.checks.reference import PosteriorReference, find_posterior_reference
from custom_inference.core.fit import Fit, check_globals, require_complete
from custom_inference.core.latent_values import is_own_of_rows
from custom_inference.core.local_inference import Local
from custom_inference.core.method import Method
from custom_inference.core.posterior_bounds import evaluate_posterior
from custom_inference.core.reader import read_at
from custom_inference.methods import every_method, methods_for, resolve_method
from custom_inference.methods import fit as default_fit
from ppl_models import Data, MethodError, Model
from ppl_models.core.errors import PPLError, own_errors
from ppl_models.core.model import size_model
from ppl_models.data.held import is_text
from ppl_models.data.several import same_data

#: Methods that learn no globals, and so fit no model, by name.
_BESIDE: dict[str, Callable[[], Method]] = {"exact": Exact, "ais": AIS, "smc": SMC}
#: method -> the columns of its line, and what it found.
Scored = Callable[[Any], tuple[dict[str, Any], Any]]


@dataclass(frozen=True)
class Comparison:
    """table: one line a method; locals: method -> its posterior and bound per row; params: the common globals.

    With ``at="integrated"`` there are no common globals: fits: method -> its own fit.
    refused: method -> why it has no line. no_exact: why there is no exact posterior to compare with, "" where there is.
    interrupted: Ctrl-C ended the comparison; the table has the methods until then.

    Columns of ``table``: ``what`` the line is ("exact", "enumeration", "variational", "point", "draws"; a sampler or a
    guide of the globals has nothing of its own at given ones, and its line is "exact, not sampled" or "..., not
    fitted"), ``posterior``: the name of the local posterior, the same where lines are the same posterior (engines that
    differ in the globals alone), ``bound`` (sum over the rows of the method's bound), ``standard_error`` (of a bound
    that is a Monte Carlo estimate, which may exceed the evidence by as much; 0 of others), ``evidence`` (exact),
    ``gap_per_row`` = (evidence - bound) / N, ``kl_per_row`` = mean KL(q || exact posterior),
    ``worst_marginal_error`` = max |E_q[s_ni] - E[s_ni | x_n]| (of codes: of the marginals), ``seconds`` (wall time of
    the local inference). ``gap_error`` and ``marginal_error`` are standard errors, of the gap (and the divergence) and
    of the worst marginal error, 0 where the reference is exact; ``reference_error`` says how far an estimated one may
    be off. Points have no bound (NaN) and an infinite divergence. The ``bound`` of an "estimate" is one of the
    evidence, as Laplace's is, and may exceed it.

    Of programs without engines methods that have nothing of their own at given globals have no line, but stand in the
    column ``also`` of the line whose posterior theirs is; ``what`` says whether the exact posterior is by "enumeration"
    or "quadrature".

    With "integrated" ``bound`` is that of variational Bayes over the topics on log p(y), NaN of others, whose objective
    is none with the topics integrated out; ``kl_per_row`` = KL(prod_t r_t || p(q | y)) / N of the factorised posterior
    of the tokens' topics, by the whole table of K^T values, NaN of samplers (a method that commits to one of K!
    labellings pays up to log K! for it); ``worst_marginal_error`` = max over pairs of tokens of
    |P~(q_t = q_t') - P(q_t = q_t' | y)|, in which labels do not matter: sum_k r_tk r_t'k of a factorised posterior, the
    proportion of draws of a sampler; ``seconds`` (wall time of the fit).
    """

    table: pd.DataFrame
    locals: dict[str, Local] = field(default_factory=dict)
    params: dict[str, Tensor] = field(default_factory=dict)
    fits: dict[str, Fit] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    no_exact: str = ""
    interrupted: bool = False
    reference: PosteriorReference | None = None

    @property
    def best_bound(self) -> str | None:
        """The method of the highest bound: all are of the same evidence, so that it is the closest. None without."""
        bound = self._bounds["bound"]
        return str(bound.idxmax()) if bool(bound.notna().any()) else None

    @property
    def reference_error(self) -> float:
        """How far the reference may be off, in nats a row: 0 where it is exact, else the distance between its bounds
        from below and from above of rows that were drawn from the model; NaN without a reference."""
        if self.reference is None or self.reference.local is None:
            return math.nan
        if self.reference.estimated is None:
            return 0.0
        return math.nan if self.reference.check is None else self.reference.check.gap

    @property
    def _bounds(self) -> pd.DataFrame:
        """The table without estimates of the evidence, which may exceed it, and be high without being close."""
        return self.table.loc[self.table["what"] != "estimate"]

    @property
    def remarks(self) -> list[str]:
        """What the table does not say: why nothing is exact and which bound is the best then, and what was refused."""
        found = [f"no exact posterior to compare with: {self.no_exact}"] if self.no_exact else []
        found += [] if self.reference is None else self.reference.remarks
        if self.no_exact and self.best_bound is not None:
            found.append(f"the highest bound, closest to the evidence: {self.best_bound}{self._ties()}")
        what = self.table["what"].to_dict()
        estimates = [str(name) for name in what if what[name] == "estimate"]
        if estimates:
            found.append(f"estimates, no bounds, which may lie above the evidence: {', '.join(estimates)}")
        return found + [f"{name} refused: {reason}" for name, reason in self.refused.items()]

    def _ties(self) -> str:
        """The methods whose bounds the Monte Carlo errors do not tell from the highest."""
        bound, error = (self._bounds[name].to_dict() for name in ("bound", "standard_error"))
        best = self.best_bound
        both = {name: 2 * math.hypot(error[name], error[best]) for name in bound}
        close = [str(name) for name in bound if name != best and 0 < both[name] >= bound[best] - bound[name]]
        return f" (within two standard errors: {', '.join(close)})" if close else ""

    def __repr__(self) -> str:
        table = self.table.to_string(float_format=lambda value: f"{value:.4g}")
        return "\n".join([table, *self.remarks])

    def _repr_html_(self) -> str:
        from custom_inference.faces import displays

        return displays.report(f"Comparison of {len(self.table)} methods", table=self.table, plot=self.plot)

    def plot(self, **settings: Any) -> Any:
        """Bars of the gap per row and of the worst marginal error, with two standard errors of what is estimated.

        settings: ``title``, and ``axes`` to draw on, two of them; returns these, or a new Figure.
        """
        from custom_inference.checks.comparison_plots import plot_comparison

        table, found = self.table.copy(), self.reference
        check = None if found is None else found.check
        table.attrs["reference"] = "exact" if found is None else found.how
        table.attrs["reference_error"] = self.reference_error
        table.attrs["reference_spread"] = math.nan if check is None else check.gap_error
        return plot_comparison(table, **settings)


def compare(
    methods: Sequence[Method | Fit | str],
    model: Model,
    x: Any,
    at: Fit | Mapping[str, Tensor] | str | None = None,
    seed: int = 0,
    *,
    mask: ArrayLike | None = None,
    reference: str = "auto",
    seconds: float = 60.0,
    progress: bool = True,
    **others: Any,
) -> Comparison:
    """Every method's posterior over the local latents at the SAME globals, against the exact one.

    methods: objects, or names that :func:`custom_inference.methods_for` gives for the model; also fits, whose own
        posteriors of the locals are compared as they were fitted.
    at: the globals: a fit, or a mapping site -> tensor; by default those of the default fit. With "integrated" every
        method is fitted, and compared with the exact posterior of the tokens' topics, topics and proportions integrated
        out (toy corpora under LDA).
    reference: what is compared with. "auto": the exact posterior, and where there is none an estimate by annealed
        importance sampling (:class:`AIS`); "exact" or "ais" alone; "none".
    seconds: about how long such an estimate may take, or exact sums where that depends on the rows.
    others: what the model observes or conditions on beside x, by the names of its sites.

    Where there is no exact posterior, ``no_exact`` says why. Where there is no estimate either (latents without moves),
    what is measured against it is NaN: the bounds remain.
    A method that refuses the model has no line but a reason in ``refused``; if all do, the first error is raised.

    :class:`Comparison` says what the columns of its table are. Ctrl-C returns the methods that are done.

    Raises MethodError for an unknown name, before anything is computed; ModelError for globals that the model cannot
    have (a wrong shape, values outside a site's support); CapacityError where the table of the exact
    posterior does not fit into memory.
    """
    model, x = size_model(model, x, others)
    named = _name_methods(methods, model)
    if isinstance(at, str):
        if others:
            raise MethodError(f"at = {at!r} with {', '.join(others)}; LDA observes nothing beside x")
        return _compare_fits(named, model, at, x=x, seed=seed, mask=mask, progress=progress)
    data = read_at(model, at, x, mask, others)
    model = model.on_scale_of(data)
    if at is None:
        at = require_complete(default_fit(model, data, seed=seed, progress=progress))
        model = at.model
    chosen, params = check_globals(model, at, data, called="at")
    found = find_posterior_reference(chosen, params, data, reference=reference, seconds=seconds, seed=seed)
    scored = _score_locals(chosen, params, data, found, seed)
    table, locals_, refused, interrupted = _collect(named, chosen, scored)
    if is_own_of_rows(chosen):
        table = _without_repeats(table)
    table.attrs["num_rows"] = len(data)
    return Comparison(
        table, locals_, params, refused=refused, no_exact=found.no_exact, reference=found, interrupted=interrupted
    )


def _compare_fits(named: dict[str, Any], model: Model, at: str, **call: Any) -> Comparison:
    """Compare fits by every method, with topics and proportions integrated out."""
    if at != "integrated":
        raise MethodError(f'at = {at!r}, expected a fit, a mapping site -> tensor, "integrated", or nothing')
    table, fits, refused, interrupted = _collect(named, model, score_fits(model, **call))
    return Comparison(table, fits=fits, refused=refused, interrupted=interrupted)


@dataclass(frozen=True)
class _Fitted:
    """A fit among the methods: its own posterior of the locals, as it was fitted."""

    fitted: Fit

    @property
    def name(self) -> str:
        return f"fit by {self.fitted.method_name}"

    def local_posterior(self, model: Model, params: dict[str, Tensor], data: Data, *, seed: int = 0) -> Local:
        """Raises MethodError where the fit is of other data than those that are compared."""
        del seed
        if not same_data(self.fitted.model.as_read(self.fitted.data), data):
            raise MethodError("the fit among the methods is of other data than those that are compared")
        return evaluate_posterior(model, params, data, self.fitted.posterior, family=self.name)


def _name_methods(methods: Sequence[Any], model: Model) -> dict[str, Any]:
    """Methods, and names of such, under names of their own. Refuse at once what is no method of the suite; one of other
    models is refused in its turn."""
    if not methods:
        raise MethodError("no methods to compare")
    if is_text(methods):
        raise MethodError(f"methods = {methods!r}, expected a list of methods or names")
    found: dict[str, Any] = {}
    for one in methods:
        name = str(one) if is_text(one) else ""
        if name in _BESIDE and name not in methods_for(model):
            one = _BESIDE[name]()
        if is_text(one):
            if one not in methods_for(model) and one not in every_method():
                resolve_method(one, model=model)  # says which there are
        elif isinstance(one, Fit):
            if type(one.model) is not type(model):
                raise MethodError(f"a fit of {type(one.model).__name__} among the methods for {type(model).__name__}")
            one = _Fitted(one)
        elif isinstance(one, type) or not hasattr(one, "local_posterior"):
            raise MethodError(f"{one!r} is not a method; expected a name, or an object such as EM()")
        name = name or one.name
        numbered = (f"{name} #{i}" for i in range(2, len(found) + 3))
        found[name if name not in found else next(other for other in numbered if other not in found)] = one
    return found


def _collect(
    methods: dict[str, Any], model: Model, scored: Scored
) -> tuple[pd.DataFrame, dict[str, Any], dict[str, str], bool]:
    """The table, what each method found, why others did not, and whether Ctrl-C ended them after the first."""
    rows: list[dict[str, Any]] = []
    found: dict[str, Any] = {}
    refused: dict[str, PPLError] = {}
    for name, one in methods.items():
        try:
            with own_errors():
                scores, found[name] = scored(resolve_method(one, model=model) if is_text(one) else one)
            rows.append({"method": name, **scores})
        except PPLError as error:
            refused[name] = error
        except KeyboardInterrupt:
            if not rows:
                raise
            break
    else:
        if not rows:
            raise next(iter(refused.values()))
    # Without the shapes of sites that Pyro adds, in further lines.
    reasons = {name: str(error).partition("\n")[0] for name, error in refused.items()}
    interrupted = len(rows) + len(refused) < len(methods)
    return pd.DataFrame(rows).set_index("method"), found, reasons, interrupted


def _without_repeats(table: pd.DataFrame) -> pd.DataFrame:
    """Lines of one and the same posterior as one line: methods that have nothing of their own at given globals stand in
    the column ``also`` of the line whose posterior theirs is."""
    repeated = table["what"].str.contains("not sampled|not fitted")
    also = {name: "" for name in table.index}
    for name, line in table.loc[repeated].iterrows():
        same = [other for other in table.index[~repeated] if table.loc[other, "posterior"] == line["posterior"]]
        first = same[0] if same else next(n for n in table.index if table.loc[n, "posterior"] == line["posterior"])
        if first != name:
            also[first] = f"{also[first]}, {name}".removeprefix(", ")
            also.pop(name)
    kept = table.loc[[*also]]
    return kept.assign(also=list(also.values())) if len(kept) < len(table) else kept


def _score_locals(
    model: Model, params: dict[str, Tensor], data: Data, reference: PosteriorReference, seed: int
) -> Scored:
    def score(method: Method | _Fitted) -> tuple[dict[str, Any], Local]:
        begin = time.perf_counter()
        local = method.local_posterior(model, params, data, seed=seed)
        seconds = time.perf_counter() - begin
        bound, error = float(local.bound.sum()), local.standard_error
        spread = abs(0.0 * bound) if error is None else float(error.square().sum().sqrt())
        line = {"what": local.what or "own", "posterior": local.family or method.name}
        line |= {"bound": bound, "standard_error": spread}
        return {**line, **reference.distances(model, params, data, local), "seconds": seconds}, local

    return score
