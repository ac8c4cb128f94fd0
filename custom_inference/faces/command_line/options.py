"""The options that commands of ``ppl`` share. Nothing here loads torch: help and errors in options must not wait."""

import inspect
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer


class Header(StrEnum):
    """Whether the first line of a table names its columns."""

    YES = "yes"
    NO = "no"
    AUTO = "auto"


ModelName = Annotated[str, typer.Argument(metavar="MODEL", help="name of a model; 'ppl models' lists them")]
_FITTED = "name of a model; 'ppl models' lists them; auto: the one that 'ppl suggest' puts first"
Components = Annotated[int, typer.Option("--components", "-k", min=1, help="number of components")]
Seed = Annotated[int, typer.Option(help="seed of all random numbers; the same seed gives the same result")]
Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="write the results as JSON to this file")]
NoProgress = Annotated[bool, typer.Option("--no-progress", help="no progress bar on standard error")]
SavedFit = Annotated[Path, typer.Argument(metavar="FIT", help="what 'ppl fit' wrote: its folder, or fit.safetensors")]
Top = Annotated[int, typer.Option(min=1, help="names of features to report for each component")]
Table = Annotated[Path | None, typer.Option(metavar="CSV", help="write to this file, not to standard output")]
_CLIP = "ratings: predictions within the ratings of the fit"
Clip = Annotated[bool, typer.Option("--clip", help=_CLIP)]
_FILL = "rows: FILE again, with what the model expects in place of missing entries alone"
_NEW = "ratings: users and items that the fit does not know are new ones, of whom the prior is known"
_FILE = (
    "rows by features: CSV, TSV, Parquet, NPZ; of documents also texts one a line, lda-c, UCI; of graphs an adjacency "
    "matrix or edges in these, edges as text, GML, GraphML; of ratings a table, MovieLens' u.data too"
)
_COLUMNS = (
    "tables: the columns to read, between commas; of edges both ends, perhaps the weight; of ratings user, item, "
    "rating, perhaps time; NPZ: the array that names the features"
)
_ID = "tables: the column that names the rows  [default: the first, where it is not numeric]"
_HEADER = "CSV, TSV, text: whether the first line names the columns; auto: what it looks like, which is said"
_MASK, _ABOVE = "entries equal to V are missing (NaN always is)", "binarise: 1 where an entry is greater than T"
_EMPTY = "leave out rows without any 1; of graphs, nodes without an edge"
_SHARE, _STOP = "documents: leave out words in more than this share", "documents: leave out stop words: english"
_DIRECTED = "graphs  [default: what the file says; edges: directed]"
_SETTING, _PROCESSES = "a setting of the method; repeatable", "divide the rows among so many processes of this machine"
_BLOCKS = "read FILE, or a folder of files, N rows at a time: it need not fit into memory"
_METHODS = "methods, separated by commas  [default: exact and every family of EM]"
_BESIDE = (
    "what the model observes or is given beside FILE, with a row for each of its rows: a file, or columns of FILE "
    "between commas; of a response also what it is, as stars:real (binary, categorical, real, counts); weights=COLUMN: "
    "how often each row counts; repeatable"
)
_COMPONENTS = (
    "number of components; may be left out of models that find it: hdp and infinite_sbm, of which it is the most that "
    "there may be (50, 20), labeled_lda and partially_labeled_lda (what the labels need), rtm (by the number and "
    "length of the texts), irm (clusters of each type); all others need it"
)
_KIND = (
    "what FILE holds: binary, categories, counts, documents, graph, ratings, real  [default: what it looks like; texts "
    "are documents, GML and GraphML graphs]"
)
_MODELS = "models, separated by commas  [default: all that read such data and need nothing beside]"
_SIZES = "numbers of components: 2-8, or 2,4,8"
_CRITERIA = "heldout, loo, evidence, bic, separated by commas"
_NEIGHBOURS = "do not compare the fit with fits of one component fewer and one more, which long fits never are"
_PATTERN = r"documents: what a word is  [default: two letters or more; (?u)\b\w+\b: one or more]"
_TEXT = "documents: the column of FILE, a table, that holds their texts"


@dataclass(frozen=True)
class SourceOptions:
    """The source of a command's data, and what is done to them before they reach the model."""

    file: Annotated[Path, typer.Argument(metavar="FILE", help=_FILE)]
    columns: Annotated[str | None, typer.Option(metavar="NAMES", help=_COLUMNS)] = None
    id: Annotated[str | None, typer.Option(metavar="COLUMN", help=_ID)] = None
    drop: Annotated[str | None, typer.Option(metavar="NAMES", help="tables: columns to leave out")] = None
    header: Annotated[Header, typer.Option(help=_HEADER)] = Header.AUTO
    transpose: Annotated[bool, typer.Option("--transpose", help="the file has features by rows")] = False
    mask_value: Annotated[float | None, typer.Option(metavar="V", help=_MASK)] = None
    threshold: Annotated[float | None, typer.Option(metavar="T", help=_ABOVE)] = None
    drop_empty_rows: Annotated[bool, typer.Option("--drop-empty-rows", help=_EMPTY)] = False
    matrix: Annotated[str | None, typer.Option(metavar="NAME", help="NPZ: which of its matrices")] = None
    labels: Annotated[str | None, typer.Option(metavar="NAME", help="NPZ: the array that names the rows")] = None
    vocabulary: Annotated[Path | None, typer.Option(metavar="FILE", help="documents: the words, one a line")] = None
    min_count: Annotated[int, typer.Option(min=1, help="documents: leave out words with fewer tokens in all")] = 1
    max_share: Annotated[float, typer.Option(min=0, max=1, help=_SHARE)] = 1.0
    stop_words: Annotated[str | None, typer.Option(metavar="LIST", help=_STOP)] = None
    token_pattern: Annotated[str | None, typer.Option(metavar="REGEX", help=_PATTERN)] = None
    keep_case: Annotated[bool, typer.Option("--keep-case", help="documents: do not make letters small")] = False
    ngrams: Annotated[int, typer.Option(min=1, metavar="N", help="documents: words and up to N in a row")] = 1
    directed: Annotated[bool | None, typer.Option("--directed/--undirected", help=_DIRECTED)] = None
    beside: Annotated[list[str] | None, typer.Option("--with", metavar="NAME=FILE", help=_BESIDE)] = None
    text: Annotated[str | None, typer.Option(metavar="COLUMN", help=_TEXT)] = None


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """The options of ``ppl fit``."""

    model: Annotated[str, typer.Argument(metavar="MODEL", help=_FITTED)]
    components: Annotated[int | None, typer.Option("--components", "-k", min=1, help=_COMPONENTS)] = None
    method: Annotated[str, typer.Option(help="name of a method; 'ppl models' lists them")] = "default"
    seed: Seed = 0
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="output folder  [default: FILE_MODEL_kK]")] = None
    source: SourceOptions
    image_shape: Annotated[str | None, typer.Option(metavar="HxW", help="draw components as images")] = None
    top: Top = 8
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help=_SETTING)] = None
    processes: Annotated[int | None, typer.Option(min=1, metavar="P", help=_PROCESSES)] = None
    block_rows: Annotated[int | None, typer.Option(min=1, metavar="N", help=_BLOCKS)] = None
    no_compare: Annotated[bool, typer.Option("--no-compare", help=_NEIGHBOURS)] = False
    json: Json = None
    no_progress: NoProgress = False


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """The options of ``ppl compare``."""

    model: ModelName
    components: Components
    methods: Annotated[str | None, typer.Option(metavar="NAMES", help=_METHODS)] = None
    seed: Seed = 0
    rows: Annotated[int | None, typer.Option(min=1, help="use this many random rows")] = None
    source: SourceOptions
    json: Json = None
    no_progress: NoProgress = False


@dataclass(frozen=True, kw_only=True)
class ChooseOptions:
    """The options of ``ppl choose``."""

    model: ModelName
    sizes: Annotated[str, typer.Option("--components", "-k", metavar="N-M", help=_SIZES)] = "1-6"
    criteria: Annotated[str, typer.Option(metavar="NAMES", help=_CRITERIA)] = "heldout,evidence,bic"
    folds: Annotated[int, typer.Option(min=2, help="parts of the data, each held out once")] = 5
    seconds: Annotated[float, typer.Option(help="for the evidence of each number")] = 10.0
    seed: Seed = 0
    source: SourceOptions
    figure: Annotated[Path | None, typer.Option(metavar="PNG", help="draw every criterion to this file")] = None
    json: Json = None
    no_progress: NoProgress = False


@dataclass(frozen=True, kw_only=True)
class SuggestOptions:
    """The options of ``ppl suggest``."""

    components: Components
    kind: Annotated[str | None, typer.Option(metavar="KIND", help=_KIND)] = None
    models: Annotated[str | None, typer.Option(metavar="NAMES", help=_MODELS)] = None
    share: Annotated[float, typer.Option(help="of the entries that is held out")] = 0.2
    rows: Annotated[int, typer.Option(min=1, help="compare on so many random rows of more")] = 2000
    seed: Seed = 0
    source: SourceOptions
    json: Json = None
    no_progress: NoProgress = False


def spell_command(command: str, options: FitOptions | ChooseOptions) -> str:
    """Return the line of a shell that gives a command these options; those that are as by default are left out."""
    words, last = ["ppl", command], []
    for holder in (options, options.source):
        for name, parameter in inspect.signature(type(holder), eval_str=True).parameters.items():
            value = getattr(holder, name)
            if name == "source" or value == parameter.default:
                continue
            meta = parameter.annotation.__metadata__[0]
            known = [str(one) for one in (meta.default, *(meta.param_decls or ()))]  # typer keeps the first as default
            names = [one for one in known if one.startswith("--")] or [f"--{name.replace('_', '-')}"]
            names += [one for one in known if one.startswith("-") and not one.startswith("--")]
            if type(meta) is typer.models.ArgumentInfo:
                words.append(str(value))
            elif value is True or value is False:
                last.append(names[0].split("/")[0 if value else -1])
            else:
                each = value if type(value) is list else [value]
                last += [text for one in each for text in (min(names, key=len), str(one))]
    return shlex.join([*words, *last])


@dataclass(frozen=True, kw_only=True)
class ShowOptions:
    """The options of ``ppl show``."""

    fit: SavedFit
    top: Top = 8
    json: Json = None


@dataclass(frozen=True, kw_only=True)
class NewRowsOptions:
    """The options of ``ppl transform``."""

    fit: SavedFit
    source: SourceOptions
    out: Table = None
    block_rows: Annotated[int | None, typer.Option(min=1, metavar="N", help=_BLOCKS)] = None


@dataclass(frozen=True, kw_only=True)
class PredictOptions:
    """The options of ``ppl predict``."""

    fit: SavedFit
    source: SourceOptions
    out: Table = None
    fill: Annotated[bool, typer.Option("--fill", help=_FILL)] = False
    new: Annotated[bool, typer.Option("--new", help=_NEW)] = False
    clip: Clip = False


@dataclass(frozen=True, kw_only=True)
class RecommendOptions:
    """The options of ``ppl recommend``."""

    fit: SavedFit
    users: Annotated[list[str] | None, typer.Option("--user", metavar="LABEL", help="a user  [default: all]")] = None
    number: Annotated[int, typer.Option("-n", min=1, help="items of each user")] = 10
    seen: Annotated[bool, typer.Option("--seen", help="items that the user has rated, too")] = False
    clip: Clip = False
    out: Table = None


def takes(kind: type[Any]) -> Callable[[Callable[[Any], None]], Callable[..., None]]:
    """A command of one argument, a record of options, as one with an option for each field of it and of its source, if
    it has one."""
    own, source = (inspect.signature(one, eval_str=True).parameters for one in (kind, SourceOptions))
    parts = [list(source.values()) if name == "source" else [parameter] for name, parameter in own.items()]
    by_name = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for part in parts for one in part]

    def decorate(command: Callable[[Any], None]) -> Callable[..., None]:
        def reading(**given: Any) -> None:
            if "source" in own:
                given["source"] = SourceOptions(**{name: given.pop(name) for name in source})
            command(kind(**given))

        reading.__name__, reading.__doc__ = command.__name__, command.__doc__
        reading.__signature__ = inspect.Signature(by_name)  # pyright: ignore[reportFunctionMemberAccess]
        return reading

    return decorate
