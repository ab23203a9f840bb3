"""`ping-llm query rtt`: the RTT between two addresses, from a run or from a server."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ping_llm.cli import bulk, query
from ping_llm.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

    from ping_llm.answer.answering import SimpleModel
    from ping_llm.answer.bulk_rtt import RttJob
    from ping_llm.answer.context import Question
    from ping_llm.answer.model import Model
    from ping_llm.answer.remote import Remote
    from ping_llm.answer.results import RttAnswer

URL = typer.Option(None, "--url", help="Server (`ping-llm serve`) to ask instead of a run: http://HOST:PORT.")
TOKEN_FILE = typer.Option(
    None, "--token-file", help="File with the token of the server.  [default: the variable PING_LLM_TOKEN]"
)
CA = typer.Option(None, "--ca", help="Certificates (PEM) to trust besides those of the system.")


def rtt(
    run: Path | None = query.OPTIONAL_RUN,
    src: str | None = query.SRC,
    dst: str | None = query.DST,
    at: str | None = query.AT,
    size: int | None = query.SIZE,
    errors: int | None = query.ERRORS,
    msm_id: int | None = query.MSM_ID,
    probe: int | None = query.PROBE,
    throughput: float | None = query.THROUGHPUT,
    context: Path | None = query.CONTEXT,
    data: Path | None = query.DATA,
    no_data: bool = query.NO_DATA,
    url: str | None = URL,
    token_file: Path | None = TOKEN_FILE,
    ca: Path | None = CA,
    pairs: Path | None = typer.Option(
        None,
        "--pairs",
        help="Table with src, dst and optionally time, rtt, size, msm_id, probe_id and throughput_mbps, in "
        "any format that `ingest` reads: one answer per row.",
    ),
    out: Path | None = typer.Option(
        None, "--out", help="With --pairs: folder for the answers as Parquet by day; it resumes."
    ),
    step: str | None = bulk.STEP,
    task: int = bulk.TASK,
    tasks: int = bulk.TASKS,
    engine: bulk.Engine = bulk.ENGINE,
    spark_master: str | None = bulk.SPARK_MASTER,
    method: str = query.METHOD,
    raw: bool = typer.Option(
        False, "--raw", help="Answer with the uncalibrated distribution of the network alone."
    ),
    below: float | None = typer.Option(None, "--below", help="Also print P(rtt < BELOW), BELOW in ms."),
    all_orders: bool = typer.Option(
        False, "--all-orders", help="With --raw: average over all orders of the fields."
    ),
    consistency: bool = typer.Option(
        False,
        "--consistency",
        help="For a prefix: also print the mixture over its addresses and the distance between the two.",
    ),
    places: list[Path] = query.PLACES,
    as_json: bool = query.JSON,
    png: Path | None = query.PNG,
) -> None:
    """Predict the RTT distribution and the probability of no reply between two addresses."""
    from ping_llm.answer import show
    from ping_llm.answer.context import Question
    from ping_llm.tables import print_json

    conditions = query.conditions_of(size, errors, msm_id, probe, throughput)
    if pairs is not None:
        if src or dst or context or conditions:
            raise UsageError(
                f"--pairs excludes --src, --dst, --context, {query.CONDITIONS}: the table has them"
            )
        if below is not None or consistency:
            raise UsageError("--pairs excludes --below and --consistency, which are for a single question")
    elif src is None or dst is None:
        raise UsageError("--src and --dst, or --pairs, must be given")
    bulk.check(out, step, tasks, engine)
    if out is not None:
        if pairs is None or any(value is not None for value in (url, token_file, ca, png)) or all_orders:
            raise UsageError(
                "--out needs --pairs, and excludes --url, --token-file, --ca, --png, --all-orders"
            )
        job = _job(run, data, no_data, pairs, method, raw)
        is_loaded = job.run is not None and engine == "local" and step != "finish"
        loaded = query.load(job.run, data, no_data) if is_loaded and job.run is not None else None
        bulk.run(job, loaded, out, step, task, tasks, engine, spark_master, as_json)
        return
    asked: Model | SimpleModel | None = None
    if url is not None:
        if run is not None or data is not None or no_data or all_orders or consistency:
            raise UsageError(
                "--url excludes RUN, --data, --no-data, --all-orders and --consistency: the server has a run"
            )
        remote = connect(url, token_file, ca)

        def ask(questions: "Sequence[Question]") -> "Iterator[tuple[int, RttAnswer]]":
            return remote.rtt_stream(questions, raw=raw, method=method)

    elif token_file is not None or ca is not None:
        raise UsageError("--token-file and --ca need --url")
    elif run is None and method not in query.OF_A_MODEL:
        asked = query.simple_method(method, data, context, src)
        context = None
        ask = asked.rtt_stream
    else:
        model, context = query.load_with(run, data, no_data, context, src)
        asked = model

        def ask(questions: "Sequence[Question]") -> "Iterator[tuple[int, RttAnswer]]":
            return model.rtt_stream(questions, raw=raw, method=method, all_orders=all_orders)

    if pairs is not None:
        _rtt_pairs(ask, asked or remote, pairs, as_json, png)
        return
    assert src is not None
    assert dst is not None
    found = remote.names if url is not None and not places else query.names(asked, places)
    ends = found.pair(src, dst)
    known = query.read_context(context, src)
    questions = [
        Question.of(one, other, at, known, conditions)
        for one in ends[0].ends
        for other in ends[1].ends
        if one.version == other.version or len(ends[0].ends) == len(ends[1].ends) == 1
    ]
    notes = tuple(end.note for end in ends if end.note is not None)
    if len(questions) != 1:
        if below is not None or consistency:
            raise UsageError("--below and --consistency are for a single pair; " + "; ".join(notes))
        query.say(*ends)
        _answer_all(ask, questions, None, as_json, png)
        return
    _, answer = next(iter(ask(questions)))
    answer = replace(answer, notes=(*notes, *answer.notes))
    gap = None
    if consistency:
        from ping_llm.answer.complete import prefix_consistency

        if run is None:
            raise UsageError("--consistency needs a run")
        gap = prefix_consistency(model, answer.question)
    if png is not None:
        from ping_llm.answer import pictures

        pictures.rtt_picture(answer, png, gap)
    if as_json:
        print_json(show.rtt_values(answer, below) | ({} if gap is None else show.consistency_values(gap)))
    else:
        print(show.rtt_text(answer, below))
        if gap is not None:
            print(show.consistency_text(gap))


def _job(run: Path | None, data: Path | None, no_data: bool, pairs: Path, method: str, raw: bool) -> "RttJob":
    from ping_llm.answer.bulk_rtt import RttJob
    from ping_llm.model.packaged import NAME

    if data is not None and no_data:
        raise UsageError("--data and --no-data exclude each other")
    if run is None and method in query.OF_A_MODEL:
        run = Path(NAME)
    return RttJob(run, not no_data if data is None else data, pairs, method, raw)


def connect(url: str, token_file: Path | None, ca: Path | None) -> "Remote":
    """Connect to a server; print a note if its token would be sent unencrypted."""
    from ping_llm.answer.remote import Remote

    remote = Remote(url, token_file=token_file, ca=ca)
    if remote.sends_token_in_the_clear:
        typer.echo("note: the token is not encrypted on its way: use https", err=True)
    return remote


def _rtt_pairs(
    ask: "Callable[[Sequence[Question]], Iterator[tuple[int, RttAnswer]]]",
    model: "Model | SimpleModel | Remote",
    path: Path,
    as_json: bool,
    png: Path | None,
) -> None:
    from ping_llm.answer.files import read_questions

    questions, observed = read_questions(path, model.optional_fields)
    _answer_all(ask, questions, observed, as_json, png)


def _answer_all(
    ask: "Callable[[Sequence[Question]], Iterator[tuple[int, RttAnswer]]]",
    questions: "Sequence[Question]",
    observed: "np.ndarray | None",
    as_json: bool,
    png: Path | None,
) -> None:
    from ping_llm.answer import show
    from ping_llm.progress import Progress
    from ping_llm.tables import print_json

    answers: list[Any] = [None] * len(questions)
    with Progress("questions", len(questions)) as progress:
        for index, answer in ask(questions):
            answers[index] = show.rtt_values(answer)
            if observed is not None:
                answers[index] |= show.observed_values(answer.distribution, float(observed[index]))
            progress.advance()
    if png is not None:
        from ping_llm.answer import pictures

        pictures.pairs_picture(answers, png)
    if as_json:
        # One object per line: a table of pairs may be long, and a program can read it line by line.
        for values in answers:
            print_json(values, indent=None)
        return
    print(show.pairs_text(answers))
