"""`ping-llm query …`: questions to a trained model."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ping_llm.errors import PingError, UsageError

if TYPE_CHECKING:
    from ping_llm.query.context import Context
    from ping_llm.query.model import Model

_RUN = typer.Argument(help="A run, a checkpoint or an export.", show_default=False)
_SRC = typer.Option(None, "--src", help="Source: an address or a prefix (203.0.113.0/24, 203.0.113.?).")
_DST = typer.Option(None, "--dst", help="Destination: an address or a prefix.")
_AT = typer.Option(
    None, "--at", help="When: 2024-05-01T12:00:00Z, or seconds since 1970. By default unknown."
)
_CONTEXT = typer.Option(None, "--context", help="Past measurements of the source: .parquet, .csv or .jsonl.")
_FROM_DATA = typer.Option(
    None, "--from-data", help="Rows (`ping-llm rows build`) to pick past measurements from."
)
_TOP = typer.Option(10, "--top", help="How many answers.")
_BITS = typer.Option(None, "--bits", help="Answer with prefixes of this length (8, 16, 24 …), not addresses.")
_SEED = typer.Option(0, "--seed", help="The same seed, the same answer.")
_TEMPERATURE = typer.Option(1.0, "--temperature", help="1: as the model believes; below: more of the same.")
_JSON = typer.Option(False, "--json", help="Print JSON.")
_PNG = typer.Option(None, "--png", help="Draw the answer to this file.")


def register(app: typer.Typer) -> None:
    query = typer.Typer(help="Ask a trained model.", no_args_is_help=True)
    app.add_typer(query, name="query")
    for command in (rtt, complete, inverse, score, generate):
        query.command(command.__name__)(command)


def rtt(
    run: Path = _RUN,
    src: str | None = _SRC,
    dst: str | None = _DST,
    at: str | None = _AT,
    context: Path | None = _CONTEXT,
    from_data: Path | None = _FROM_DATA,
    pairs: Path | None = typer.Option(
        None, "--pairs", help="A table of src_addr, dst_addr and, if known, event_time: one answer a row."
    ),
    below: float | None = typer.Option(None, "--below", help="Also P(rtt < this many ms)."),
    all_orders: bool = typer.Option(False, "--all-orders", help="Average over the orders of the fields."),
    consistency: bool = typer.Option(
        False,
        "--consistency",
        help="Of a prefix: also the mixture over its addresses, and how far it is off.",
    ),
    as_json: bool = _JSON,
    png: Path | None = _PNG,
) -> None:
    """How long will a packet take from here to there, and will it come back at all?"""
    from ping_llm.query import pictures, show
    from ping_llm.tables import print_json

    if pairs is not None:
        if src or dst or context:
            raise UsageError("--pairs brings its own addresses: leave out --src, --dst and --context")
        if below is not None or consistency:
            raise UsageError("--below and --consistency are for one question: leave out --pairs")
        _rtt_pairs(_load(run), pairs, from_data, all_orders, as_json, png)
        return
    if src is None or dst is None:
        raise UsageError("say --src and --dst, or give a table with --pairs")
    model = _load(run)
    known = _context(model, src, dst, at, context, from_data)
    answer = model.rtt(src, dst, at, known, all_orders=all_orders)
    gap = None
    if consistency:
        from ping_llm.query.consistency import prefix_consistency

        gap = prefix_consistency(model, answer.question)
    if png is not None:
        pictures.rtt_picture(answer, png, gap)
    if as_json:
        print_json(show.rtt_values(answer, below) | ({} if gap is None else show.consistency_values(gap)))
    else:
        print(show.rtt_text(answer, below))
        if gap is not None:
            print(show.consistency_text(gap))


def _rtt_pairs(
    model: "Model", path: Path, from_data: Path | None, all_orders: bool, as_json: bool, png: Path | None
) -> None:
    import json

    from ping_llm.progress import Progress
    from ping_llm.query import pictures, show
    from ping_llm.query.files import read_questions

    questions = read_questions(path)
    if from_data is not None:
        from ping_llm.query.select import History

        questions = History(from_data).add_to(questions, _most(model))
    answers: list[Any] = [None] * len(questions)
    with Progress("questions", len(questions)) as progress:
        for index, answer in model.rtt_stream(questions, all_orders=all_orders):
            answers[index] = show.rtt_values(answer)
            progress.advance()
    if png is not None:
        pictures.pairs_picture(answers, png)
    if as_json:
        # One object a line: a table of pairs may be long, and a program can read it line by line.
        for values in answers:
            print(json.dumps(values, ensure_ascii=False))
        return
    print(show.pairs_text(answers))


def complete(
    run: Path = _RUN,
    src: str | None = _SRC,
    dst: str | None = _DST,
    field: str = typer.Option("dst", "--field", help="Which address to complete: dst or src."),
    at: str | None = _AT,
    context: Path | None = _CONTEXT,
    from_data: Path | None = _FROM_DATA,
    version: int | None = typer.Option(None, "--ip", help="4 or 6, where neither address tells."),
    top: int = _TOP,
    bits: int | None = _BITS,
    samples: int | None = typer.Option(None, "--samples", help="Draw so many at random instead of the top."),
    temperature: float = _TEMPERATURE,
    seed: int = _SEED,
    as_json: bool = _JSON,
    png: Path | None = _PNG,
) -> None:
    """The most probable completions of a partial address."""
    from ping_llm.query import pictures, show
    from ping_llm.tables import print_json

    model = _load(run)
    known = None
    if field == "dst" and src is not None:
        known = _context(model, src, dst, at, context, from_data)
    elif context is not None or from_data is not None:
        raise UsageError("a context says what the source is: there is nothing to complete")
    given = src if field == "dst" else dst
    title = f"{'source' if field == 'src' else 'destination'} given {given or 'nothing'}"
    if samples is not None:
        drawn = model.sample_addresses(
            src, dst, at, known, field=field, count=samples, bits=bits, version=version,
            temperature=temperature, seed=seed,
        )  # fmt: skip
        if png is not None:
            pictures.samples_picture(drawn, title, png)
        texts = [str(address) for address in drawn]
        print_json({"samples": texts}) if as_json else print("\n".join(texts))
        return
    answer = model.complete(src, dst, at, known, field=field, count=top, bits=bits, version=version)
    if png is not None:
        pictures.completions_picture(answer, title, png)
    print_json(show.completions_values(answer)) if as_json else print(show.completions_text(answer))


def inverse(
    run: Path = _RUN,
    src: str = typer.Option(..., "--src", help="Source: an address or a prefix."),
    rtt_range: str = typer.Option(..., "--rtt", help="The range in ms, as 10-20."),
    within: str | None = typer.Option(None, "--within", help="Only destinations of this prefix."),
    at: str | None = _AT,
    context: Path | None = _CONTEXT,
    from_data: Path | None = _FROM_DATA,
    top: int = _TOP,
    bits: int | None = _BITS,
    places: Path | None = typer.Option(
        None,
        "--places",
        help="A table of prefix, latitude, longitude: marks what light cannot reach in time.",
    ),
    as_json: bool = _JSON,
    png: Path | None = _PNG,
) -> None:
    """Which destinations lie within a range of RTTs of a source?"""
    from ping_llm.query import pictures, show
    from ping_llm.tables import print_json

    low, high = _range(rtt_range)
    model = _load(run)
    known = _context(model, src, within, at, context, from_data)
    answer = model.inverse(src, low, high, at, known, within=within, count=top, bits=bits)
    limits = None
    if places is not None:
        from ping_llm.query.places import Places

        limits = Places(places).least_rtts(src, [one.address for one in answer.completions.best])
    if png is not None:
        pictures.completions_picture(answer.completions, f"{low:g} to {high:g} ms from {src}", png)
    if as_json:
        print_json(show.inverse_values(answer, limits, high))
    else:
        print(f"P(a reply within {low:g} to {high:g} ms | {src}) = {100 * answer.probability:.1f} %")
        print(show.completions_text(answer.completions, limits, high))


def score(
    run: Path = _RUN,
    file: Path = typer.Argument(help="Measurements: .parquet, .csv, .jsonl, or a folder of Parquet files."),
    anomalies: int | None = typer.Option(None, "--anomalies", help="List the K strangest results instead."),
    limit: int | None = typer.Option(None, "--limit", help="Stop after so many measurements."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON: one object a measurement."),
    png: Path | None = _PNG,
) -> None:
    """How many bits does each measurement cost, field by field? Many bits: strange."""
    from ping_llm.query.report import print_anomalies, print_scores

    if anomalies is not None and anomalies < 1:
        raise UsageError(f"--anomalies {anomalies} lists none: ask for at least one")
    model = _load(run)
    if anomalies is not None:
        print_anomalies(model, file, anomalies, limit, as_json, png)
    else:
        print_scores(model, file, limit, as_json, png)


def generate(
    run: Path = _RUN,
    src: str | None = _SRC,
    at: str | None = _AT,
    context: Path | None = _CONTEXT,
    from_data: Path | None = _FROM_DATA,
    histories: int = typer.Option(1, "--histories", help="How many, each by itself."),
    measurements: int = typer.Option(10, "--measurements", help="New measurements of each."),
    temperature: float = _TEMPERATURE,
    seed: int = _SEED,
    as_json: bool = _JSON,
    png: Path | None = _PNG,
) -> None:
    """Sample measurements, or the continuation of a source's history."""
    from ping_llm.query import pictures, show
    from ping_llm.tables import print_json

    model = _load(run)
    known = None if src is None else _context(model, src, None, at, context, from_data)
    made = model.generate(
        src, at, known, histories=histories, measurements=measurements, temperature=temperature, seed=seed
    )
    if png is not None:
        pictures.generated_picture(made, png)
    print_json(show.generated_values(made)) if as_json else print(show.generated_text(made))


def _load(run: Path) -> "Model":
    import ping_llm

    return ping_llm.load(run)


def _most(model: "Model") -> int:
    """Measurements that may fit: the shortest, of IPv4 with a short time, take eleven tokens."""
    return max(model.config.max_length // 11, 4)


def _range(text: str) -> tuple[float, float]:
    try:
        low, high = (float(part) for part in text.replace("..", "-").split("-"))
    except ValueError:
        raise UsageError(f"the range {text!r} cannot be read: write 10-20 for 10 to 20 ms") from None
    return low, high


def _context(
    model: "Model", src: str, dst: str | None, at: str | None, path: Path | None, data: Path | None
) -> "Context | None":
    """Past measurements from a file (all of the asked source) or picked from rows."""
    from ping_llm.query.context import Context, Question

    if path is not None and data is not None:
        raise UsageError("give --context or --from-data, not both")
    question = Question.of(src, dst, at)
    if data is not None:
        from ping_llm.query.select import History

        context = History(data).context(question, _most(model))
        if not len(context):
            raise PingError(f"{data} holds no earlier measurement of {src}: ask without --from-data")
        return context
    if path is None:
        return None
    from ping_llm.query.files import read_columns

    columns = read_columns(path)
    return Context.of(columns.src, columns.dst, columns.time, columns.rtt)
