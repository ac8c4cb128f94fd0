"""What the processes of ``distributed_test`` run: the fits that are compared, and processes that fail on purpose.

By torchrun: ``torchrun --nproc-per-node=2 --max-restarts=1 -m tests.support.distributed FOLDER``.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import signal
import sys
import time
from collections.abc import Collection
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from custom_inference import EM, Checkpoint, Fit, VariationalEM
from custom_inference.core.engine import Engine
from custom_inference.core.method import refusal
from custom_inference.core.processes import Surroundings, begin_worker
from custom_inference.core.registry import engines_of
from custom_inference.em.guides import VariationalBayes
from custom_inference.faces import distributed
from custom_inference.faces.distributed.member import problem_of, ran
from custom_inference.families.noca.exact import NocaExact
from custom_inference.methods import default_method
from ppl_models import MODELS, NOCA, Data, DataError, Model, PPLError, RowBlocks

#: What torchrun's processes fit: what they send is counted, and one of everything that is organised in another way.
SOME = (
    *("noca exact", "noca exact, holes", "cvq exact", "cvq exact, holes", "plain aspects", "plain draws", "lda vb"),
    *("plain memberships", "search, codes", "learned priors", "blocks, holes", "init"),
)
#: Iterations of the fits that are compared: enough for extrapolations to be taken.
ITERATIONS = 4
#: Rows of theirs, at most: a number that does not divide evenly.
ROWS = 31
ALIKE = Surroundings({}, 1, torch.float64)


@dataclass(frozen=True)
class Case:
    model: Model
    data: Any
    method: Any
    settings: dict[str, Any] = field(default_factory=dict)

    def alone(self) -> Fit:
        return self.method.fit(self.model, self.data, progress=False, **self.settings)

    def together(self, **how: Any) -> Fit:
        return distributed.fit(self.model, self.data, method=self.method, progress=False, **self.settings, **how)


def short(guide: Any, **more: Any) -> VariationalEM:
    return VariationalEM(guide=guide, max_iterations=ITERATIONS, tolerance=1e-12, search=None, **more)


def with_holes(data: Data) -> Data:
    """Missing entries in the first rows alone: the last process has none."""
    holes = torch.ones_like(data.x, dtype=torch.bool)
    holes[:9] = torch.rand(9, data.num_features, generator=torch.Generator().manual_seed(4)) < 0.7
    return Data(x=data.x.masked_fill(~holes, 0.0), mask=holes)


def cases() -> dict[str, Case]:
    """Every family of every model that several processes can fit, from the same start; and the rest that matters."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # examples draw their data in it
    try:
        return _families() | _more()
    finally:
        torch.set_default_dtype(before)


def is_shared(model: Model, bound: str, engine: Any) -> bool:
    """Whether several processes may fit a model by an engine."""
    return not (engine().one_process or engine().sequential or refusal(short(bound), model))


def _families() -> dict[str, Case]:
    found = {}
    for name, kind in MODELS.items():
        example = kind.example()
        model, data = example.model, example.data
        if not model.is_graph:
            data = data.rows(slice(0, min(len(data) - 1, ROWS)))
        for bound, engine in engines_of(model).items():
            if is_shared(model, bound, engine):
                found[f"{name} {bound}"] = Case(model, data, short(bound))
                if name in ("noca", "cvq", "aspect_bernoulli", "logistic_pca", "mixture_of_bernoullis"):
                    found[f"{name} {bound}, holes"] = Case(model, with_holes(data), short(bound))
    return found


def _more() -> dict[str, Case]:
    noca, topics, aspects = (MODELS[name].example() for name in ("noca", "lda", "aspect_bernoulli"))
    x = topics.data.x
    sparse = (x.to_dense() if x.layout != torch.strided else x).to_sparse_csr()
    draws = torch.cat([torch.ones(30, 9), torch.full((30, 9), 1000.0)])  # by which Newton steps are chosen, or not
    draws *= torch.rand(60, 9, generator=torch.Generator().manual_seed(1)).round()
    heavy = MODELS["aspect_bernoulli"](num_components=2, num_features=9, total_count=1000)
    plain_vb = short("vb", accelerate=None)
    few = torch.tensor([[1.0, 0, 1, 0, 0, 1], [0, 1, 1, 0, 1, 0], [1, 1, 0, 1, 1, 1]])
    return {
        "search, codes": Case(noca.model, noca.data, EM(max_iterations=30)),
        "search, aspects": Case(aspects.model, aspects.data, default_method(aspects.model, None)),
        "search, topics": Case(topics.model, topics.data, VariationalEM(guide="vb", max_iterations=15)),
        "learned priors": Case(topics.model, topics.data, short(VariationalBayes(learn="both"))),
        "sparse": Case(topics.model, Data(x=sparse), short("vb")),
        "squarem": Case(topics.model, topics.data, short("vb", accelerate="squarem")),
        "squarem of locals": Case(aspects.model, aspects.data, short("map", accelerate="squarem")),
        "blocks": Case(topics.model, _blocks(topics.data), short("vb"), {"init": topics.truth}),
        "blocks, holes": Case(noca.model, _blocks(with_holes(noca.data)), short("exact"), {"init": noca.truth}),
        "blocks, pieces": Case(noca.model, _blocks(noca.data), short("factorized"), {"init": noca.truth}),
        "init": Case(noca.model, noca.data, short("exact"), {"init": noca.truth}),
        "init, topics": Case(topics.model, topics.data, short("vb"), {"init": topics.truth}),
        "single": Case(noca.model, noca.data, short("exact"), {"dtype": torch.float32}),
        "a row each": Case(noca.model, few, short("exact")),
        "draws": Case(heavy, draws, short("map")),
        "plain draws": Case(heavy, draws, short("map", accelerate=None)),
        "plain aspects": Case(aspects.model, aspects.data, short("map", accelerate=None)),
        "plain memberships": Case(MODELS["mmsb"].example().model, MODELS["mmsb"].example().data, plain_vb),
    }


def _blocks(data: Data) -> RowBlocks:
    """Five blocks, of which one process of three reads one; missing entries are in the first alone."""
    x = data.x.to_dense() if data.x.layout != torch.strided else data.x
    x = x if data.mask is None else x.masked_fill(~data.mask, torch.nan)
    return RowBlocks(read=_Parts(x, -(-len(x) // 5)), num_rows=len(x))


@dataclass(frozen=True)
class _Parts:
    """A source that can be handed to other processes."""

    x: Tensor
    size: int

    def __call__(self) -> list[Tensor]:
        return list(self.x.split(self.size))


def recorded(fit: Fit) -> dict[str, Any]:
    """All of a fit that is compared."""
    tensors = {f"param {name}": value for name, value in fit.params.items()}
    tensors |= {"elbo": fit.elbo, "posterior": fit.posterior.mean}
    assert fit.local is not None
    found = {"tensors": tensors, "status": fit.status, "details": fit.details, "bound": fit.local.bound}
    return found


def all_fits(names: Collection[str] | None = None) -> dict[str, Any]:
    """The cases, or some of them, and what is refused."""
    chosen = {name: case for name, case in cases().items() if names is None or name in names}
    found: dict[str, Any] = {name: recorded(case.together()) for name, case in chosen.items()}
    return found | {"few rows": _refused(), "sequential": _sequential_run()}


def _sequential_run() -> dict[str, Any]:
    case = sequential()
    settings: dict[str, Any] = {"mask": None, "dtype": torch.float64, "device": None, "init": None, "progress": False}
    with distributed.group() as pool:
        run = ran(problem_of(case.model, case.data, case.method, **settings), pool)
    return {"responsibility": run.step.locals["responsibility"], "trace": run.trace, "status": run.outcome}


def sequential() -> Case:
    """CVB0 to convergence."""
    case = cases()["lda vb"]
    method = VariationalEM(guide="cvb0", max_iterations=400, tolerance=1e-8, search=None)
    return Case(case.model, case.data, method)


def _refused() -> str:
    """What is said of more processes than rows; the same in all processes."""
    example = MODELS["noca"].example()
    try:
        distributed.fit(example.model, example.data.rows(slice(0, 1)), method=short("exact"), progress=False)
    except PPLError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def member(rank: int, size: int, folder: Path) -> None:
    """One of several forked processes that make all fits in one group."""
    begin_worker(ALIKE, GLOO_SOCKET_IFNAME="lo")
    meeting = f"file://{folder}/meeting-{size}"
    with distributed.group(init_method=meeting, rank=rank, world_size=size, timeout=300.0):
        torch.save(all_fits(), folder / f"{size}-{rank}.pt")


#: Sums in parts differ from sums at once by some units of rounding, relative to their terms. EM maps such differences
#: to ones of the same size; least squares of extrapolations and roots at the edge of flat objectives enlarge them, by
#: the square root of their condition. 1e-9 is the former with room for the latter; in single precision 2e-3.
TOLERANCE = {torch.float64: {"rtol": 1e-9, "atol": 1e-9}, torch.float32: {"rtol": 2e-3, "atol": 2e-3}}


def compare(found: dict[str, Any], expected: dict[str, Any], scale: float = 1.0) -> None:
    dtype = expected["bound"].dtype
    tolerance = {name: scale * value for name, value in TOLERANCE[dtype].items()}
    if dtype == torch.float64:
        assert found["status"].split("(")[0] == expected["status"].split("(")[0]  # as many iterations
    assert found["tensors"].keys() == expected["tensors"].keys()
    for name, value in expected["tensors"].items():
        torch.testing.assert_close(found["tensors"][name], value, **tolerance, msg=lambda text, n=name: n + text)
    torch.testing.assert_close(found["bound"], expected["bound"], equal_nan=True, **tolerance)


def identical(first: dict[str, Any], second: dict[str, Any]) -> None:
    assert first["status"] == second["status"]
    for name, value in {**first["tensors"], "bound": first["bound"]}.items():
        other = {**second["tensors"], "bound": second["bound"]}[name]
        torch.testing.assert_close(other, value, rtol=0, atol=0, equal_nan=True)  # points have no bound: NaN


@dataclass(frozen=True, kw_only=True)
class FaultyEngine(NocaExact):
    """Of one process the ``at``-th M step goes wrong, where ``once`` exists, which then goes."""

    fault: str = ""
    at: int = 5
    once: str = ""
    rank: int = 1
    counted: list[int] = field(default_factory=lambda: [0], repr=False)

    def m_step(self, model: Model, params: Any, step: Any, rows: Any) -> Any:
        self.counted[0] += 1
        rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
        if rank == self.rank and self.counted[0] == self.at and self.once:
            with contextlib.suppress(FileNotFoundError):  # of several that come here at once, one goes wrong
                Path(self.once).rename(f"{self.once}.{os.getpid()}")
                fail(self.fault)
        return super().m_step(model, params, step, rows)


def fail(fault: str) -> None:
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "hang":
        time.sleep(600)
    if fault == "data":
        raise DataError("an entry is wrong", site="y", axis="row", expected="none such")
    raise RuntimeError("no error of ours")


@dataclass(frozen=True, kw_only=True)
class Faulty(EM):
    fault: str = ""
    at: int = 5
    once: str = ""
    rank: int = 1
    search: Any = None
    max_iterations: int = 14
    tolerance: float = 1e-12

    def engine(self, model: Model) -> Engine:
        plain = super().engine(model)
        given = {one.name: getattr(plain, one.name) for one in fields(plain)}  # pyright: ignore[reportArgumentType]
        return FaultyEngine(**given, fault=self.fault, at=self.at, once=self.once, rank=self.rank)


def in_namespace(rank: int, namespace: str, interface: str, first: str, folder: Path) -> None:
    """One process of a group of two, in a network of its own."""
    with Path(f"/run/netns/{namespace}").open() as handle:
        if ctypes.CDLL(None, use_errno=True).setns(handle.fileno(), 0x40000000):
            raise OSError(ctypes.get_errno(), "setns")
    meeting = {"MASTER_ADDR": first, "MASTER_PORT": "29511", "RANK": str(rank), "WORLD_SIZE": "2"}
    begin_worker(ALIKE, GLOO_SOCKET_IFNAME=interface, **meeting)
    case = cases()["noca factorized"]
    torch.save(recorded(case.together(timeout=300.0)), folder / f"{rank}.pt")


def main() -> None:
    """The first time, process 1 is killed in the middle; started again, the fit goes on; then all others."""
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    folder, example = Path(sys.argv[1]), NOCA.example()
    kept = Checkpoint(path=folder / "state", every=3)
    with distributed.group(timeout=300.0) as pool:
        method = Faulty(fault="kill", at=8, once=str(folder / "once"), checkpoint=kept)
        resumed = recorded(distributed.fit(example.model, example.data, method=method, progress=False))
        attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        torch.save({**all_fits(SOME), "resumed": resumed, "attempt": attempt}, folder / f"2-{pool.rank}.pt")
    _command_line(folder)
    with distributed.group(timeout=300.0):
        if distributed.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        Case(example.model, example.data, short("exact")).together()


def _command_line(folder: Path) -> None:
    from custom_inference.faces.distributed import __main__

    settings = ["--method", "em", "--set", "search=null", "--set", "max_iterations=5"]
    arguments = ["noca", str(folder / "data.csv"), "-k", "2", "--out", str(folder / "out"), *settings]
    printed = io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["", *arguments]),
        contextlib.redirect_stdout(printed),
        contextlib.suppress(SystemExit),
    ):
        __main__.main()
    (folder / f"printed-{distributed.rank()}").write_text(printed.getvalue())


if __name__ == "__main__":
    main()
