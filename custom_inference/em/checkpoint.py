"""Checkpoints: the position of a run on disk, from which the same call goes on to the same end.

One safetensors file with JSON in its header, replaced at once, so that a crash while it is written leaves the old one.
Several processes write one file each for what is of their own rows, named by the iteration, and then the first of them
writes the main file, which names that iteration: until then the old ones count.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.distributions import Distribution, Transform

from custom_inference.core.engine import Engine, Warm
from custom_inference.core.process_group import ALONE, Pool
from custom_inference.core.settings import require_whole
from custom_inference.core.states import Params, tensors_of
from custom_inference.core.tensor_files import digest, write_tensors
from custom_inference.em.steps import Position
from ppl_models import Data, FileFormatError, GraphData, MethodError, Model
from ppl_models.data import sparse

FORMAT = "ppl-models checkpoint 2"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The file in which a fit saves its state, and how often.

    path: a file; if it holds a checkpoint of the very same problem (model, priors, method, seed, data), the fit goes on
        from it; one of another problem is refused. every: iterations (or passes of minibatches) between two writings.
    """

    path: str | Path
    every: int = 10

    def __post_init__(self) -> None:
        require_whole("every", self.every)
        try:
            path = Path(self.path)
        except TypeError:
            problem = f"checkpoint = {self.path!r}, expected the path of a file, or a Checkpoint"
            raise MethodError(problem) from None
        if path.is_dir():
            raise MethodError(f"checkpoint = {str(self.path)!r} is a folder, expected the path of a file")

    @classmethod
    def of(cls, given: str | Path | Checkpoint | None) -> Checkpoint | None:
        return given if given is None or isinstance(given, Checkpoint) else cls(path=given)


@dataclass
class Keeper:
    """Writes and reads the checkpoints of one fit.

    problem: a JSON-able description of what is fitted. data: the checksum of its rows. generator: its state is saved
    too. details: results of the search, saved from the first checkpoint on. pin: is called with the locals of what is
    written.
    """

    settings: Checkpoint
    problem: dict[str, Any]
    data: Tensor
    generator: torch.Generator
    pool: Pool = ALONE
    details: dict[str, Any] = field(default_factory=dict)
    pin: Callable[[Warm], None] | None = None

    def __post_init__(self) -> None:
        self.path = Path(self.settings.path)
        [total] = self.pool.total(self.data)
        # The number of processes first: the places of rows, by which data are told, are those in a process's part.
        self.problem = {**self.problem, "processes": self.pool.size, "data": [int(part) for part in total]}

    def watch(self, at: Position) -> None:
        """Keep every ``settings.every``-th position; ``run_em`` calls this."""
        if len(at.trace) % self.settings.every == 0:
            self.keep(at)

    def keep(self, at: Position) -> None:
        """Write the position to disk; the main file says where its parts are."""
        groups = {"acceleration": at.acceleration}
        for place, start in (("start", at.start), ("fallback", at.fallback)):
            state, warm = start or ({}, None)
            groups |= {f"{place}/state": tensors_of(state), f"{place}/locals": warm or {}}
        tensors = {f"{group}/{name}": value for group, values in groups.items() for name, value in values.items()}
        tensors["generator"] = self.generator.get_state()
        about = {"trace": at.trace, "stalled": at.stalled, "evaluations": at.evaluations, "details": self.details}
        has_locals = [at.start[1] is not None, at.fallback is not None and at.fallback[1] is not None]
        about |= {"problem": self.problem, "has_locals": has_locals, "names": list(tensors_of(at.start[0]))}
        if self.pool.size > 1:
            write_tensors(self._own(len(at.trace)), tensors, _header("{}", tensors))
            self.pool.wait()  # all have written theirs before the main file says so
            tensors = {}
        if self.pool.rank == 0:
            write_tensors(self.path, tensors, _header(json.dumps(about), tensors))
        self.pool.wait()  # and the main file says so before the old ones go
        if self.pin is not None:
            self.pin(at.start[1])
        if self.pool.size > 1:
            for old in self.path.parent.glob(f"{self.path.name}.*.{self.pool.rank}-of-{self.pool.size}"):
                if old != self._own(len(at.trace)):
                    old.unlink(missing_ok=True)

    def _own(self, iteration: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{iteration}.{self.pool.rank}-of-{self.pool.size}")

    def resume(self, engine: Engine, like: Tensor) -> Position | None:
        """Return the position that the file holds and set the generator's state; None if there is no file.

        Raises FileFormatError for a file that is no checkpoint, MethodError for one of another problem.
        """
        found = self.pool.from_first(lambda: _read(self.path) if self.path.exists() else None)
        if found is None:
            return None
        tensors, about = found
        for name, value in self.problem.items():
            was = about["problem"].get(name)
            if was != value:
                problem = f"{self.path} is a checkpoint of another problem: {name} was {was!r}, now {value!r}"
                raise MethodError(f"{problem}; give another path, or remove the file")
        if self.pool.size > 1:
            own = self._own(len(about["trace"]))
            if self.pool.count(float(not own.exists())):
                problem = f"{self.path}: the part of some process is not there ({own.name}, or that of another one)"
                where = "it is written beside the file, in a folder that every machine has to see"
                raise FileFormatError(f"{problem}; {where}")
            tensors, _ = _read(own)
        self.generator.set_state(tensors.pop("generator"))
        self.details.update(about["details"])
        return _position(engine, {name: value.to(like.device) for name, value in tensors.items()}, about)


def _position(engine: Engine, tensors: dict[str, Tensor], about: dict[str, Any]) -> Position:
    def group(prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}

    starts: list[Any] = []
    for place, has_locals in zip(("start", "fallback"), about["has_locals"], strict=True):
        state, warm = group(f"{place}/state/"), group(f"{place}/locals/")
        # In the order that they had: accelerations know them side by side.
        ordered = {name: state[name] for name in about["names"]} if state else None
        starts.append(ordered and (engine.state_from(ordered), warm if has_locals else None))
    start, fallback = starts
    numbers = {name: about[name] for name in ("trace", "stalled", "evaluations")}
    return Position(start, fallback, **numbers, acceleration=group("acceleration/"))


def _header(about: str, tensors: dict[str, Tensor]) -> dict[str, str]:
    return {"format": FORMAT, "about": about, "digest": digest(about, tensors)}


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(path, framework="pt") as archive:
            header = archive.metadata() or {}
            if header.get("format") != FORMAT:
                raise FileFormatError(f"{path}: not a checkpoint (format {header.get('format')!r})")
            tensors = {key: archive.get_tensor(key) for key in archive.keys()}  # noqa: SIM118
        if header.get("digest") != digest(header["about"], tensors):
            raise FileFormatError(f"{path}: damaged: its contents are not those that were written")
        return tensors, json.loads(header["about"])
    except FileFormatError:
        raise
    except (SafetensorError, KeyError, OSError, ValueError, RuntimeError) as error:
        raise FileFormatError(f"{path}: not readable as a checkpoint: {error}") from None


def checksum(data: Data, first: int = 0) -> Tensor:
    """Return a checksum that adds up over parts of the data: (rows, sum of a number for each row).

    A row's number depends on its values, their columns, what is missing, and its position (``first`` is that of the
    first row), so that rows or entries that change places are noticed. In graphs the hidden dyads count too.
    """
    x = data.x
    if sparse.is_sparse(x):
        row, column, values = sparse.triplets(x)
    else:
        if data.mask is not None:
            x = torch.where(data.mask, x, x.new_tensor(-1.0 / 3))
        values, places = x.flatten(), torch.arange(x.numel(), device=x.device)
        row, column = places // x.shape[1], places % x.shape[1]
    weighted = (values.double() * 2.0**20).round().long() * (_mix_bits(column + 1) | 1)
    each = torch.zeros(len(x), dtype=torch.int64, device=x.device).index_add_(0, row, weighted)
    total = _mix_bits(each + _mix_bits(torch.arange(len(x), device=x.device) + (first + 1))).sum()
    if isinstance(data, GraphData) and data.hidden is not None:
        total = total + _mix_bits(_mix_bits(data.hidden[0] + 1) + data.hidden[1]).sum()
    return torch.stack([torch.tensor(len(x)), total.cpu()])


def checksum_of(blocks: Iterable[Data], first: int = 0) -> Tensor:
    """Return the checksum of all rows of blocks, reading them one after the other."""
    total = torch.zeros(2, dtype=torch.int64)
    for data in blocks:
        total = total + checksum(data, first + int(total[0]))
    return total


def _mix_bits(whole: Tensor) -> Tensor:
    """Mix 64-bit integers so that every bit depends on all bits (the finaliser of SplitMix64)."""
    for factor in (-4658895280553007687, -7723592293110705685):
        whole = (whole ^ (whole >> 29)) * factor
    return whole ^ (whole >> 32)


def describe_model(model: Model) -> str:
    """Describe a model by its name and a fingerprint of its settings and priors."""
    priors = {site: _numbers(prior) for site, prior in model.priors.items()}
    return f"{type(model).__name__} {fingerprint(repr((model.settings(), priors)))}"


def describe_values(values: Params | None) -> str | None:
    """Describe values of the globals by a fingerprint."""
    if values is None:
        return None
    return str(fingerprint(repr({site: one.flatten().tolist() for site, one in values.items()})))


def _numbers(prior: Distribution | Transform) -> list[Any]:
    """List the type of a distribution and its parameters, with those of its base, transforms or mixture components."""
    names = [n for n in getattr(prior, "arg_constraints", {}) if n in vars(prior) or hasattr(type(prior), n)]
    found = {n: torch.as_tensor(getattr(prior, n)).flatten().tolist() for n in names}
    for name, part in vars(prior).items():
        parts = part if isinstance(part, list | tuple) else [part]
        if parts and all(isinstance(one, Distribution | Transform) for one in parts):
            found[name] = [_numbers(one) for one in parts]
        elif isinstance(prior, Transform) and isinstance(part, int | float | Tensor):
            found[name] = torch.as_tensor(part).flatten().tolist()
    return [type(prior).__name__, found]


def fingerprint(text: str) -> int:
    """Return a short number for a long description."""
    return zlib.crc32(text.encode())
