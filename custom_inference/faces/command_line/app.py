"""The command line ``ppl``: demo, models, suggest, choose, fit, compare; of saved fits show, transform, predict and
recommend.

Exit codes: 0 done; 1 the input cannot be used, or a part of the output could not be written, which costs none of the
others (one line on standard error says why); 2 wrong options;
130 interrupted (what was reached is written all the same).
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from custom_inference import __version__
from custom_inference.faces.command_line.options import (
    ChooseOptions,
    CompareOptions,
    FitOptions,
    Json,
    NewRowsOptions,
    NoProgress,
    PredictOptions,
    RecommendOptions,
    Seed,
    ShowOptions,
    SuggestOptions,
    takes,
)
from custom_inference.faces.command_line.words import in_words_of_commands

# Everything that loads torch is imported inside the commands: help and option errors must not wait for it.

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

INTERRUPTED = 130


def _image_shape(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    height, _, width = text.lower().partition("x")
    if not (height.isdecimal() and width.isdecimal() and int(height) and int(width)):
        raise typer.BadParameter(f"{text!r} is not HEIGHTxWIDTH, such as 8x8")
    return int(height), int(width)


def _fail(message: str, code: int = 1) -> NoReturn:
    rank = os.environ.get("RANK", "0")  # of a group of processes, by torchrun
    typer.echo(f"{'' if rank == '0' else f'process {rank}: '}error: {in_words_of_commands(message)}", err=True)
    raise typer.Exit(code)


def _warn(said: set[str], message: Any, *_: Any, **__: Any) -> None:
    """Says a warning, once a command."""
    text = in_words_of_commands(str(message))
    if text not in said and os.environ.get("RANK", "0") == "0":
        typer.echo(f"warning: {text}", err=True)
    said.add(text)


@contextlib.contextmanager
def _say_own_warnings() -> Iterator[None]:
    """Say warnings of the suite in a line each, and how long long work goes on; keep libraries quiet."""
    from custom_inference.core.progress import Progress
    from ppl_models import DataWarning

    before, Progress.says_time = logging.root.manager.disable, True
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("default", DataWarning)
            warnings.showwarning = functools.partial(_warn, set())
            yield
    finally:
        logging.disable(before)
        Progress.says_time = False


@contextlib.contextmanager
def _report_errors() -> Iterator[Any]:
    """Load what does the work, and report its errors and warnings as one line each; bugs keep their traceback. What
    libraries warn of is for programmers, and nobody reads it here.

    One torch thread, unless OMP_NUM_THREADS says otherwise.
    """
    import torch

    from ppl_models import PPLError

    # The tensors here are small, and two threads on a busy machine have been ten times slower than one.
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    with _say_own_warnings():
        try:
            from custom_inference.faces.command_line import run

            yield run
        except PPLError as error:
            _fail(str(error))
        except BrokenPipeError:  # of a reader that has had enough, as ``head``: typer ends without a word
            raise
        except OSError as error:
            _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        except MemoryError:
            _fail("out of memory; fewer components, fewer rows, or a method with minibatches would need less")
        except KeyboardInterrupt:
            _fail("interrupted before there was anything to keep", INTERRUPTED)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"ppl-models {__version__}")
        raise typer.Exit()


@app.callback()
def begin(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="print the version, and nothing else"),
    ] = False,
) -> None:
    """Latent-variable models of discrete data: fit them, and measure approximations against the exact posterior."""


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
    with _report_errors():
        from custom_inference.faces.command_line import demo as _demo

        _demo.run(out, rows=rows, seed=seed, components=components, json=json, progress=not no_progress)


@app.command()
def models(json: Json = None) -> None:
    """List the models: their sites with shapes, and the methods that fit them."""
    with _report_errors() as run:
        run.list_models(json)


@app.command()
@takes(FitOptions)
def fit(options: FitOptions) -> None:
    """Fit MODEL to FILE; write the fit, tables, ArviZ netCDF and figures; print the components."""
    image_shape = _image_shape(options.image_shape)
    with _report_errors() as run:
        interrupted = run.fit(options, image_shape)
    if interrupted:
        raise typer.Exit(INTERRUPTED)


@app.command()
@takes(SuggestOptions)
def suggest(options: SuggestOptions) -> None:
    """Compare the models that apply to FILE by how well they predict entries that were held out."""
    with _report_errors() as run:
        run.suggest(options)


@app.command()
@takes(ChooseOptions)
def choose(options: ChooseOptions) -> None:
    """Choose the number of components of MODEL for FILE: held-out scores, evidence and BIC of several numbers."""
    with _report_errors() as run:
        run.choose(options)


@app.command()
@takes(CompareOptions)
def compare(options: CompareOptions) -> None:
    """Compare the posteriors of several methods at the globals of the default fit with the exact posterior."""
    with _report_errors() as run:
        run.compare(options)


@app.command()
@takes(ShowOptions)
def show(options: ShowOptions) -> None:
    """Print again what 'ppl fit' printed of FIT: model, status, scores, components."""
    with _report_errors():
        from custom_inference.faces.command_line import saved

        saved.show(options)


@app.command()
@takes(NewRowsOptions)
def transform(options: NewRowsOptions) -> None:
    """Write what FIT knows of the latents of the rows of FILE: their posterior means, a column each component."""
    with _report_errors():
        from custom_inference.faces.command_line import saved

        saved.transform(options)


@app.command()
@takes(PredictOptions)
def predict(options: PredictOptions) -> None:
    """Write what FIT predicts for FILE: responses or classes of its rows, or else their expected entries; of ratings,
    graphs and relations FILE names the pairs."""
    with _report_errors():
        from custom_inference.faces.command_line import saved

        saved.predict(options)


@app.command()
@takes(RecommendOptions)
def recommend(options: RecommendOptions) -> None:
    """Write the best items of users that they have not rated, by FIT, a fit of ratings or clicks."""
    with _report_errors():
        from custom_inference.faces.command_line import saved

        saved.recommend(options)


def main() -> None:
    """The entry point."""
    app(prog_name="ppl")
