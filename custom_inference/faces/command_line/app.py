"""The command line ``ppl``: demo, models, fit, compare.

Exit codes: 0 done; 1 the input cannot be used (one line on standard error says why); 2 wrong options;
130 interrupted (what was reached is written all the same).
"""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

# Everything that loads torch is imported inside the commands: help and option errors must not wait for it.

app = typer.Typer(
    help="Latent-variable models of discrete data: fit them, and measure approximations against the exact posterior.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

INTERRUPTED = 130

ModelName = Annotated[str, typer.Argument(metavar="MODEL", help="name of a model; 'ppl models' lists them")]
DataFile = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        help="rows by features: CSV, Parquet, NPZ; of documents also texts one a line, lda-c, UCI; of graphs an "
        "adjacency matrix or edges in these, edges as text, GML, GraphML",
    ),
]
Components = Annotated[int, typer.Option("--components", "-k", min=1, help="number of components")]
Seed = Annotated[int, typer.Option(help="seed of all random numbers; the same seed gives the same result")]
Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="write the results as JSON to this file")]
NoProgress = Annotated[bool, typer.Option("--no-progress", help="no progress bar on standard error")]
Columns = Annotated[str | None, typer.Option(metavar="NAME", help="NPZ: the array that names the features")]
MatrixName = Annotated[str | None, typer.Option("--matrix", metavar="NAME", help="NPZ: which of its matrices")]
Labels = Annotated[str | None, typer.Option(metavar="NAME", help="NPZ: the array that names the rows")]
Words = Annotated[Path | None, typer.Option("--vocabulary", metavar="FILE", help="documents: the words, one a line")]
MinCount = Annotated[int, typer.Option(min=1, help="documents: leave out words with fewer tokens in all")]
MaxShare = Annotated[float, typer.Option(min=0, max=1, help="documents: leave out words in more than this share")]
StopWords = Annotated[str | None, typer.Option(metavar="LIST", help="documents: leave out stop words: english")]
Transpose = Annotated[bool, typer.Option("--transpose", help="the file has features by rows")]
MaskValue = Annotated[float | None, typer.Option(metavar="V", help="entries equal to V are missing (NaN always is)")]
Threshold = Annotated[float | None, typer.Option(metavar="T", help="binarise: 1 where an entry is greater than T")]
DropEmpty = Annotated[
    bool, typer.Option("--drop-empty-rows", help="leave out rows without any 1; of graphs, nodes without an edge")
]
Directed = Annotated[
    bool | None, typer.Option("--directed/--undirected", help="graphs  [default: what the file says; edges: directed]")
]
Beside = Annotated[
    list[str] | None,
    typer.Option(
        "--with", metavar="NAME=FILE",
        help="what the model observes or is given beside FILE, with a row for each of its rows; repeatable",
    ),
]  # fmt: skip
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="a setting of the method; repeatable")
]


def _image_shape(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    height, _, width = text.lower().partition("x")
    if not (height.isdecimal() and width.isdecimal() and int(height) and int(width)):
        raise typer.BadParameter(f"{text!r} is not HEIGHTxWIDTH, such as 8x8")
    return int(height), int(width)


def _fail(message: str, code: int = 1) -> NoReturn:
    rank = os.environ.get("RANK", "0")  # of a group of processes, by torchrun
    typer.echo(f"{'' if rank == '0' else f'process {rank}: '}error: {' '.join(message.split())}", err=True)
    raise typer.Exit(code)


def _warn(message: Any, *_: Any, **__: Any) -> None:
    if os.environ.get("RANK", "0") == "0":
        typer.echo(f"warning: {' '.join(str(message).split())}", err=True)


@contextlib.contextmanager
def _reported() -> Iterator[None]:
    """Errors of the suite as one line; warnings as one line each; anything else is a bug and keeps its traceback.

    One torch thread, unless OMP_NUM_THREADS says otherwise.
    """
    import torch

    from ppl_models import PPLError

    # The tensors here are small, and two threads on a busy machine have been ten times slower than one.
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        for kind in (DeprecationWarning, PendingDeprecationWarning, FutureWarning):
            warnings.simplefilter("ignore", kind)
        warnings.showwarning = _warn
        try:
            yield
        except PPLError as error:
            _fail(str(error))
        except OSError as error:
            _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        except MemoryError:
            _fail("out of memory; fewer components, fewer rows, or a method with minibatches would need less")
        except KeyboardInterrupt:
            _fail("interrupted before there was anything to keep", INTERRUPTED)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="where figures and the fit go")] = Path("noca_demo"),
    rows: Annotated[int, typer.Option(min=1, help="number of images to generate")] = 1000,
    seed: Seed = 0,
    components: Annotated[int, typer.Option("--components", "-k", min=1, max=12, help="number of components")] = 8,
    json: Json = None,
    no_progress: NoProgress = False,
) -> None:
    """Learn image sources from generated data, and measure the approximations against the exact posterior."""
    with _reported():
        from custom_inference.faces.command_line import demo as _demo

        _demo.run(out, rows=rows, seed=seed, components=components, json=json, progress=not no_progress)


@app.command()
def models(json: Json = None) -> None:
    """List the models: their sites with shapes, and the methods that fit them."""
    with _reported():
        from custom_inference.faces.command_line import run as _cli_run

        _cli_run.list_models(json)


@app.command()
def fit(
    model: ModelName,
    file: DataFile,
    components: Components,
    method: Annotated[str, typer.Option(help="name of a method; 'ppl models' lists them")] = "default",
    seed: Seed = 0,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="output folder  [default: FILE_MODEL_kK]")] = None,
    columns: Columns = None,
    transpose: Transpose = False,
    mask_value: MaskValue = None,
    threshold: Threshold = None,
    drop_empty_rows: DropEmpty = False,
    matrix: MatrixName = None,
    labels: Labels = None,
    vocabulary: Words = None,
    min_count: MinCount = 1,
    max_share: MaxShare = 1.0,
    stop_words: StopWords = None,
    directed: Directed = None,
    beside: Beside = None,
    image_shape: Annotated[str | None, typer.Option(metavar="HxW", help="draw components as images")] = None,
    top: Annotated[int, typer.Option(min=1, help="names of features to report for each component")] = 8,
    settings: Settings = None,
    processes: Annotated[
        int | None, typer.Option(min=1, metavar="P", help="divide the rows among so many processes of this machine")
    ] = None,
    block_rows: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="read FILE, or a folder of files, N rows at a time: it need not fit into memory"
        ),
    ] = None,
    json: Json = None,
    no_progress: NoProgress = False,
) -> None:
    """Fit MODEL to FILE; write the fit, tables, ArviZ netCDF and figures; print the components."""
    shape = _image_shape(image_shape)
    with _reported():
        from custom_inference.faces.command_line import run as _cli_run

        source = _cli_run.Source(
            file, columns, transpose, mask_value, threshold, drop_empty_rows,
            matrix, labels, vocabulary, min_count, max_share, stop_words, directed, tuple(beside or ()),
        )  # fmt: skip
        interrupted = _cli_run.fit(
            model, source, components, method=method, settings=settings or [], seed=seed, image_shape=shape, top=top,
            out=out or Path(f"{file.stem}_{model.lower()}_k{components}"), json=json, progress=not no_progress,
            processes=processes, block_rows=block_rows,
        )  # fmt: skip
    if interrupted:
        raise typer.Exit(INTERRUPTED)


@app.command()
def compare(
    model: ModelName,
    file: DataFile,
    components: Components,
    methods: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="methods, separated by commas  [default: exact and every family of EM]"),
    ] = None,
    seed: Seed = 0,
    rows: Annotated[int | None, typer.Option(min=1, help="use this many random rows")] = None,
    columns: Columns = None,
    transpose: Transpose = False,
    mask_value: MaskValue = None,
    threshold: Threshold = None,
    drop_empty_rows: DropEmpty = False,
    matrix: MatrixName = None,
    labels: Labels = None,
    vocabulary: Words = None,
    min_count: MinCount = 1,
    max_share: MaxShare = 1.0,
    stop_words: StopWords = None,
    directed: Directed = None,
    beside: Beside = None,
    json: Json = None,
    no_progress: NoProgress = False,
) -> None:
    """Compare the posteriors of several methods at the globals of the default fit with the exact posterior."""
    with _reported():
        from custom_inference.faces.command_line import run as _cli_run

        source = _cli_run.Source(
            file, columns, transpose, mask_value, threshold, drop_empty_rows,
            matrix, labels, vocabulary, min_count, max_share, stop_words, directed, tuple(beside or ()),
        )  # fmt: skip
        _cli_run.compare(
            model, source, components, methods=methods, seed=seed, rows=rows, json=json, progress=not no_progress
        )


def main() -> None:
    """The entry point."""
    app(prog_name="ppl")


if __name__ == "__main__":
    sys.exit(main())
