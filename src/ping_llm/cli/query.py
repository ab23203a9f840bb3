"""`ping-llm query …`: questions to a trained model."""

import contextlib
import functools
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ping_llm.cli.listing import Listing
from ping_llm.errors import PingError, UsageError
from ping_llm.files import PICTURES, write_bytes

if TYPE_CHECKING:
    from ping_llm.answer.answering import SimpleModel
    from ping_llm.answer.conditions import Conditions
    from ping_llm.answer.context import Context
    from ping_llm.answer.model import Model
    from ping_llm.answer.names import Named, Names

RUN = typer.Argument(help="Run, checkpoint or export, or base, the model in the package.", show_default=False)
#: Of questions about addresses. It may be missing, so that the error can say how to make a run.
RUN_OF_ADDRESSES = typer.Argument(
    None,
    help="Run, checkpoint or export that `fit` or `train` made; base, the model in the package, knows no "
    "addresses.  [required]",
    show_default=False,
)
OPTIONAL_RUN = typer.Argument(
    None,
    help="Run, checkpoint or export.  [default: base, the model in the package, which answers from --data "
    "or --context]",
    show_default=False,
)
#: Methods that need a model; without a run, they use the packaged one.
OF_A_MODEL = ("stack", "network")
METHOD = typer.Option(
    "stack",
    "--method",
    help="Method: stack (network and simple methods, calibrated), network, or one of last, recent, "
    "median, weighted, hour, neighbours, dmfsgd, vivaldi, prefixes, boosted, embeddings, relations …",
)
SRC = typer.Option(
    None,
    "--src",
    help="Source: an address, a prefix (203.0.113.0/24, 203.0.113.?), a host name, AS3333, country:NL or "
    "probe:1234.",
)
DST = typer.Option(None, "--dst", help="Destination: as --src.")
PLACES = typer.Option(
    [],
    "--places",
    help="Table of prefix, country, asn, of probes, or .mmdb, for names such as AS3333. May be repeated.",
)
AT = typer.Option(
    None, "--at", help="Time: 2024-05-01T12:00:00Z, seconds since 1970, or now.  [default: unknown]"
)
CONTEXT = typer.Option(
    None,
    "--context",
    help="File of earlier measurements of the source (with base: of any), in any format that `ingest` reads; "
    "also the output of ping, fping or mtr at the source.",
)
DATA = typer.Option(
    None,
    "--data",
    help="Probe rows from which earlier measurements are taken (with base: any file that `ingest` reads).  "
    "[default: those recorded in the run]",
)
NO_DATA = typer.Option(False, "--no-data", help="Use no earlier measurements from the run's data.")
_TRAINED = "if the model was trained on it (network_fields)."
SIZE = typer.Option(None, "--size", help=f"Payload of the packets in bytes, {_TRAINED}")
ERRORS = typer.Option(None, "--errors", help=f"Packets that were not answered, {_TRAINED}")
MSM_ID = typer.Option(None, "--msm-id", help=f"Atlas measurement, {_TRAINED}")
PROBE = typer.Option(None, "--probe", help=f"Atlas probe, {_TRAINED}")
THROUGHPUT = typer.Option(
    None, "--throughput", metavar="MBPS", help=f"Mbit/s measured with the RTT, {_TRAINED}"
)
#: The options of conditions, for error messages.
CONDITIONS = "--size, --errors, --msm-id, --probe and --throughput"
_TOP = typer.Option(10, "--top", help="Number of answers.")
_BITS = typer.Option(
    None, "--bits", help="Prefix length of the answers (8, 16, 24 …).  [default: whole addresses]"
)
_SEED = typer.Option(0, "--seed", help="Random seed.")
_TEMPERATURE = typer.Option(
    1.0,
    "--temperature",
    help="Sampling temperature. 1: the model's distribution; lower values favour probable answers.",
)
JSON = typer.Option(False, "--json", help="Print JSON.")
PNG = typer.Option(None, "--png", help="Picture of the answer to write: .png, .svg or .pdf.")


def register(app: typer.Typer) -> None:
    from ping_llm.cli.rtt import rtt
    from ping_llm.cli.score import score

    query = typer.Typer(
        cls=Listing, help="Ask a model: RTTs, completions, searches by RTT, scores.", no_args_is_help=True
    )
    app.add_typer(query, name="query")
    for command in (rtt, complete, inverse, score, generate):
        query.command(command.__name__)(picture_last(command))


def picture_last(command: Callable[..., None]) -> Callable[..., None]:
    """Wrap a command to draw to a temporary file, so that an error of writing it comes after the answer."""

    @functools.wraps(command)
    def run(*arguments: Any, png: Path | None = None, **options: Any) -> None:
        with drawn(png) as aside:
            command(*arguments, png=aside, **options)

    return run


@contextlib.contextmanager
def drawn(png: Path | None) -> Iterator[Path | None]:
    """Yield a temporary path that becomes `png` at the end of the block; None if nothing is to be drawn."""
    if png is None or png.suffix.lower() not in PICTURES:
        yield None
        if png is not None:
            raise PingError(f"no picture was written: the name of {png} must end in {', '.join(PICTURES)}")
        return
    with tempfile.TemporaryDirectory() as folder:
        aside = Path(folder) / f"picture{png.suffix.lower()}"
        yield aside
        try:
            write_bytes(png, aside.read_bytes())
        except OSError as error:
            raise PingError(f"no picture was written: {png}: {error.strerror or error}") from error


def names(model: "Model | SimpleModel | None", places: list[Path], most: int | None = None) -> "Names":
    """Return the resolver of names: host names, and names from the places and the model's data."""
    from ping_llm.answer.names import MOST, NameIndex, Names

    data = None if model is None else model.data
    return Names(NameIndex(places, data), most=most or MOST)


def addresses_of(found: "Names", src: str | None, dst: str | None = None) -> tuple[str | None, str | None]:
    """Return the address or prefix that each text stands for; print a note to stderr about each name.

    A name stands for an address of the other end's IP version, if there is a choice.
    """
    ends = found.ends(src, dst)
    for note in ends.notes:
        typer.echo(f"note: {note}", err=True)
    first, second = (None if end is None else str(end) for end in (ends.src, ends.dst))
    return first, second


def say(*named: "Named") -> None:
    for one in named:
        if one.note is not None:
            typer.echo(f"note: {one.note}", err=True)


def conditions_of(
    size: int | None, errors: int | None, msm_id: int | None, probe: int | None, throughput: float | None
) -> "Conditions":
    """Return the conditions that a question states besides its ends and its time."""
    from ping_llm.answer.conditions import Conditions

    return Conditions(size, errors, msm_id, probe, throughput)


def simple_method(
    name: str, data: Path | None, context: Path | None = None, src: str | None = None
) -> "SimpleModel":
    """Return a simple method fitted to measurements, with the interface of a run.

    Args:
      data, context: the measurements, in one of both; as for the packaged model, they mean the same.
      src: the question's source, for the output of ping, fping or mtr.
    """
    if data is not None and context is not None:
        raise UsageError(
            "--data and --context exclude each other: without a run, a method is fitted to either"
        )
    given = context if data is None else data
    if given is None:
        raise UsageError(
            "without a run, a simple method needs --data: the rows or the file that it is fitted to"
        )
    from ping_llm.answer.answering import SimpleModel

    return SimpleModel(name, given, _address(src))


def complete(
    run: Path | None = RUN_OF_ADDRESSES,
    src: str | None = SRC,
    dst: str | None = DST,
    field: str = typer.Option("dst", "--field", help="Address to complete: dst or src."),
    at: str | None = AT,
    size: int | None = SIZE,
    errors: int | None = ERRORS,
    msm_id: int | None = MSM_ID,
    probe: int | None = PROBE,
    throughput: float | None = THROUGHPUT,
    context: Path | None = CONTEXT,
    data: Path | None = DATA,
    no_data: bool = NO_DATA,
    version: int | None = typer.Option(
        None, "--ip", help="IP version, 4 or 6, where neither address is given."
    ),
    top: int = _TOP,
    passes: int = typer.Option(64, "--passes", min=1, help="Limit of the search, in passes of the network."),
    bits: int | None = _BITS,
    samples: int | None = typer.Option(
        None, "--samples", help="Number of random samples to draw instead of the most probable addresses."
    ),
    temperature: float = _TEMPERATURE,
    seed: int = _SEED,
    as_json: bool = JSON,
    places: list[Path] = PLACES,
    png: Path | None = PNG,
) -> None:
    """List the most probable completions of a partial address."""
    from ping_llm.answer import pictures, show
    from ping_llm.tables import print_json

    model = load_run(run, data, no_data)
    src, dst = addresses_of(names(model, places), src, dst)
    known = None
    if field == "dst" and src is not None:
        known = _known(model, src, dst, at, context)
    elif context is not None or data is not None:
        raise UsageError(
            "--context and --data must have --field dst and --src: they give measurements of that source"
        )
    conditions = conditions_of(size, errors, msm_id, probe, throughput)
    given = src if field == "dst" else dst
    title = f"{'source' if field == 'src' else 'destination'} given {given or 'nothing'}"
    if samples is not None:
        drawn = model.sample_addresses(
            src, dst, at, known, field=field, count=samples, bits=bits, version=version,
            temperature=temperature, seed=seed, conditions=conditions,
        )  # fmt: skip
        if png is not None:
            pictures.samples_picture(drawn, title, png)
        texts = [str(address) for address in drawn]
        print_json({"samples": texts}) if as_json else print("\n".join(texts))
        return
    answer = model.complete(
        src, dst, at, known, field=field, count=top, bits=bits, version=version, passes=passes,
        conditions=conditions,
    )  # fmt: skip
    if png is not None:
        pictures.completions_picture(answer, title, png)
    print_json(show.completions_values(answer)) if as_json else print(show.completions_text(answer))


def inverse(
    run: Path | None = RUN_OF_ADDRESSES,
    src: str = typer.Option(..., "--src", help="Source: an address, a prefix, or a name as for `query rtt`."),
    rtt_range: str = typer.Option(..., "--rtt", help="RTT range in ms, such as 10-20."),
    within: str | None = typer.Option(
        None, "--within", help="Prefix of the destinations, or a name: AS3333 …"
    ),
    at: str | None = AT,
    size: int | None = SIZE,
    errors: int | None = ERRORS,
    msm_id: int | None = MSM_ID,
    probe: int | None = PROBE,
    throughput: float | None = THROUGHPUT,
    context: Path | None = CONTEXT,
    data: Path | None = DATA,
    no_data: bool = NO_DATA,
    top: int = _TOP,
    passes: int = typer.Option(32, "--passes", min=1, help="Limit of the search, in passes of the network."),
    bits: int | None = _BITS,
    places: list[Path] = typer.Option(
        [],
        "--places",
        help="Table of prefix, latitude, longitude, country, asn, or .mmdb: marks destinations too far for "
        "light in fibre; also for names such as AS3333. May be repeated.",
    ),
    as_json: bool = JSON,
    png: Path | None = PNG,
) -> None:
    """List the most probable destinations within a range of RTTs from a source."""
    from ping_llm.answer import pictures, show
    from ping_llm.tables import print_json

    low, high = _range(rtt_range)
    model = load_run(run, data, no_data)
    source, within = addresses_of(names(model, places), src, within)
    src = source or src
    known = read_context(context, src)
    answer = model.inverse(
        src, low, high, at, known, within=within, count=top, bits=bits, passes=passes,
        conditions=conditions_of(size, errors, msm_id, probe, throughput),
    )  # fmt: skip
    limits = None
    if places:
        from ping_llm.answer.context import as_prefix
        from ping_llm.measurements.places import Places

        limits = Places(places).least_rtts(
            as_prefix(src, "source"), [one.address for one in answer.completions.best]
        )
    if png is not None:
        pictures.completions_picture(answer.completions, f"{low:g} to {high:g} ms from {src}", png)
    if as_json:
        print_json(show.inverse_values(answer, limits, high))
    else:
        if answer.probability < 0.01:
            print(
                f"note: less than 1 % of the pings from {src} are answered within {low:g} to {high:g} ms; "
                "the shares below are shares of these"
            )
        print(f"P(a reply within {low:g} to {high:g} ms | {src}) = {show.percent(answer.probability)}")
        print(show.completions_text(answer.completions, limits, high))


def generate(
    run: Path | None = RUN_OF_ADDRESSES,
    src: str | None = SRC,
    at: str | None = AT,
    size: int | None = SIZE,
    errors: int | None = ERRORS,
    msm_id: int | None = MSM_ID,
    probe: int | None = PROBE,
    throughput: float | None = THROUGHPUT,
    context: Path | None = CONTEXT,
    data: Path | None = DATA,
    no_data: bool = NO_DATA,
    histories: int = typer.Option(1, "--histories", help="Number of independent histories."),
    measurements: int = typer.Option(10, "--measurements", help="New measurements per history."),
    prefixes: bool = typer.Option(False, "--prefixes", help="Allow prefixes in place of whole addresses."),
    places: list[Path] = PLACES,
    temperature: float = _TEMPERATURE,
    seed: int = _SEED,
    as_json: bool = JSON,
    png: Path | None = PNG,
) -> None:
    """Sample measurements, or a continuation of the history of a source."""
    from ping_llm.answer import pictures, show
    from ping_llm.tables import print_json

    model = load_run(run, data, no_data)
    src, _ = addresses_of(names(model, places), src)
    known = None if src is None else _known(model, src, None, at, context)
    made = model.generate(
        src, at, known, histories=histories, measurements=measurements, temperature=temperature, seed=seed,
        prefixes=prefixes, conditions=conditions_of(size, errors, msm_id, probe, throughput),
    )  # fmt: skip
    if png is not None:
        pictures.generated_picture(made, png)
    print_json(show.generated_values(made)) if as_json else print(show.generated_text(made))


def load_run(run: Path | None, data: Path | None, no_data: bool) -> "Model":
    """Load the model of a question about addresses, which cannot do without a run."""
    if run is None:
        raise UsageError(
            "RUN must be named: `ping-llm fit DATA --run RUN` makes one; base, the model in the package, "
            "knows no addresses"
        )
    return load(run, data, no_data)


def load(run: Path, data: Path | None, no_data: bool) -> "Model":
    """Load the model with the data of its contexts; print a note to stderr if they are missing."""
    from ping_llm.answer.model import Model

    if data is not None and no_data:
        raise UsageError("--data and --no-data exclude each other")
    return _with_notes(run, Model.load(run, data=data if data is not None else not no_data))


def _with_notes(run: Path, model: "Model") -> "Model":
    """Print warnings and notes about the model to stderr; return the model."""
    for doubt in model.doubts:
        typer.echo(f"warning: {run}: {doubt}", err=True)
    if model.data_note:
        typer.echo(f"note: {model.data_note}", err=True)
    return model


def load_with(
    run: Path | None, data: Path | None, no_data: bool, context: Path | None, src: str | None = None
) -> "tuple[Model, Path | None]":
    """Return the model, and the context if it still must be read: the packaged model uses it as data."""
    from ping_llm.model.packaged import NAME, base_folder

    run = run or Path(NAME)
    if base_folder(run) is None or context is None:
        return load(run, data, no_data), context
    if data is not None:
        raise UsageError("--data and --context exclude each other: the packaged model answers from either")
    # Imported here: the packaged model takes 0.2 s, which a question to a run does not need.
    from ping_llm.answer.base import BaseModel, read_data
    from ping_llm.answer.model import Model

    model = Model.load(run, data=False)
    assert isinstance(model, BaseModel)
    return _with_notes(run, model.about(read_data(context, _address(src)))), None


def _address(text: str | None) -> str | None:
    """Return the text if it is an address, as the source of a file with the output of ping, fping or mtr."""
    from ping_llm.ingest.tool_text import is_address

    return text if text is not None and is_address(text) else None


def _range(text: str) -> tuple[float, float]:
    """Parse 10-20, 10..20, <20 or 20 (below 20), with or without "ms"."""
    plain = re.sub(r"\s|ms", "", text.lower()).replace("..", "-").replace("–", "-")
    parts = ["0", plain.lstrip("<")] if plain.startswith("<") or "-" not in plain else plain.split("-")
    try:
        low, high = map(float, parts)
    except ValueError:
        raise UsageError(f"--rtt must be a range in ms, such as 10-20 or <20, not {text!r}") from None
    if not 0 <= low < high:
        raise UsageError(f"--rtt must go from a smaller to a larger RTT, such as 10-20, not {text!r}")
    return low, high


def read_context(path: Path | None, src: str | None = None) -> "Context | None":
    """Read earlier measurements of the source from a file."""
    if path is None:
        return None
    from ping_llm.answer.conditions import LARGEST
    from ping_llm.answer.context import Context
    from ping_llm.answer.files import read_columns

    columns = read_columns(path, src=_address(src), optional=LARGEST)
    return Context.of_columns(columns)


def _known(model: "Model", src: str, dst: str | None, at: str | None, path: Path | None) -> "Context | None":
    """Return earlier measurements for a question to the network alone, from a file or from the data."""
    from ping_llm.answer.context import Question

    if path is not None or model.data is None:
        return read_context(path, src)
    found = model.data.context(Question.of(src, dst, at), max(model.config.max_length // 11, 4))
    return found if len(found) else None
