"""Where a process of a group gets its rows from: data that it holds, or a file of which it reads its part."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from custom_inference.core.capabilities import state_from
from custom_inference.core.engine import Engine, EStep
from custom_inference.core.states import tensors_of
from custom_inference.core.tensor_files import write_tensors
from ppl_models import Data, GraphData
from ppl_models.data import sparse


@dataclass(frozen=True)
class Held:
    """Data in this process."""

    data: Data

    def __len__(self) -> int:
        return len(self.data)

    def whole(self) -> Data:
        return self.data

    def part(self, at: slice) -> Data:
        return self.data.rows(at)


@dataclass(frozen=True)
class Filed:
    """Data that another process wrote (:meth:`of`): processes of one machine read their rows from one file."""

    path: Path
    num_rows: int

    @classmethod
    def of(cls, data: Data, path: Path) -> Filed:
        x = data.x
        if sparse.is_sparse(x):
            tensors = {"crow": x.crow_indices(), "column": x.col_indices(), "values": x.values()}
        else:
            tensors = {"x": x} | ({} if data.mask is None else {"mask": data.mask})
        header = {"coords": json.dumps(data.coords, default=str), "width": str(x.shape[1])}
        if isinstance(data, GraphData):
            tensors |= {} if data.hidden is None else {"hidden": data.hidden}
            header["graph"] = json.dumps({"directed": data.directed, "self_loops": data.self_loops})
        write_tensors(path, tensors, header)
        return cls(path, len(data))

    def __len__(self) -> int:
        return self.num_rows

    def whole(self) -> Data:
        return self.part(slice(0, self.num_rows))

    def part(self, at: slice) -> Data:
        with safe_open(self.path, framework="pt") as archive:
            header: dict[str, Any] = archive.metadata()
            coords = json.loads(header["coords"])
            if "row" in coords:
                coords["row"] = coords["row"][at]
            names = set(archive.keys())
            x = _sparse_part(archive, at, int(header["width"])) if "crow" in names else None
            if x is not None and "graph" in header:
                hidden = archive.get_tensor("hidden") if "hidden" in names else None
                return GraphData(x=x, hidden=hidden, coords=coords, **json.loads(header["graph"]))
            if x is not None:
                return Data(x=x, coords=coords)
            mask = archive.get_slice("mask")[at] if "mask" in names else None
            return Data(x=archive.get_slice("x")[at], mask=mask, coords=coords)


def _sparse_part(archive: Any, at: slice, width: int) -> Tensor:
    crow: Tensor = archive.get_slice("crow")[at.start : at.stop + 1]
    first, last = int(crow[0]), int(crow[-1])
    column, values = (archive.get_slice(name)[first:last] for name in ("column", "values"))
    return sparse.tensor(crow - first, column, values, size=(len(crow) - 1, width))


def flat(groups: dict[str, dict[str, Tensor]]) -> dict[str, Tensor]:
    """One flat mapping for a file."""
    return {f"{group}/{name}": value for group, values in groups.items() for name, value in values.items()}


def groups_of(tensors: dict[str, Tensor], names: dict[str, list[str]]) -> dict[str, dict[str, Tensor]]:
    """The groups again, their members in the order of ``names``."""
    return {group: {name: tensors[f"{group}/{name}"] for name in members} for group, members in names.items()}


def write_run(path: Path, run: Any) -> None:
    """A run, for the process that asked for it."""
    step = run.step
    groups = {"state": tensors_of(run.state), "locals": step.locals, "statistics": step.statistics}
    groups["bound"] = {"": step.bound}
    about = {name: getattr(run, name) for name in ("trace", "outcome", "interrupted", "evaluations", "details")}
    about["names"] = {group: list(values) for group, values in groups.items()}
    write_tensors(path, flat(groups), {"about": json.dumps(about)})


def read_run(path: Path, device: torch.device, engine: Engine) -> Any:
    """What :func:`write_run` wrote."""
    from custom_inference.em.loop import Run

    with safe_open(path, framework="pt", device=str(device)) as archive:
        about = json.loads(archive.metadata()["about"])
        tensors = {key: archive.get_tensor(key) for key in archive.keys()}  # noqa: SIM118
    groups = groups_of(tensors, about.pop("names"))
    step = EStep(groups["statistics"], groups["locals"], groups["bound"][""])
    return Run(state_from(engine, groups["state"]), step, **about)
