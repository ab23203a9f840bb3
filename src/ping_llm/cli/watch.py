"""`ping-llm watch`: alarms on changes in a stream of results."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ping_llm.cli import query
from ping_llm.errors import PingError, UsageError

if TYPE_CHECKING:
    from ping_llm.watch.inputs import Files
    from ping_llm.watch.results import Output


def register(app: typer.Typer) -> None:
    app.command("watch")(watch)


def watch(
    run: Path = query.RUN,
    source: str = typer.Argument(
        "-", metavar="[INPUT]", help="JSON lines: a file, a folder of files, or - for standard input."
    ),
    state: Path = typer.Option(..., "--state", help="Folder of the state and of the output files."),
    follow: bool = typer.Option(False, "--follow", help="Wait for more at the end of the file or folder."),
    url: str | None = typer.Option(None, "--url", help="URL of a stream of JSON lines, instead of INPUT."),
    false_alarms: float = typer.Option(
        1.0, "--false-alarms-per-day", help="False alarms per day of the whole stream, at most."
    ),
    refresh: int = typer.Option(
        16, "--refresh", help="Results of a pair after which the model is asked again. 1: for every result."
    ),
    least_ms: float = typer.Option(2.0, "--least-ms", help="Least change of an RTT worth an alarm, ms."),
    least_percent: float = typer.Option(
        5.0, "--least-percent", help="The same in percent of the expected median. The larger one counts."
    ),
    accept_hours: float = typer.Option(
        24.0, "--accept-hours", help="Hours after which a change is taken as the new level."
    ),
    most_pairs: int = typer.Option(200_000, "--most-pairs", help="Pairs kept in memory."),
    size: int | None = query.SIZE,
    errors: int | None = typer.Option(None, "--errors", hidden=True),
    msm_id: int | None = query.MSM_ID,
    probe: int | None = query.PROBE,
    throughput: float | None = query.THROUGHPUT,
    data: Path | None = query.DATA,
    no_data: bool = query.NO_DATA,
    metrics: int | None = typer.Option(
        None, "--metrics", min=0, max=65535, help="Port of /metrics (Prometheus) and of the page. 0: any."
    ),
    metrics_host: str = typer.Option("127.0.0.1", "--metrics-host", help="Address of that port."),
    webhook: str | None = typer.Option(None, "--webhook", help="URL that each event is sent to by POST."),
    all_results: bool = typer.Option(False, "--all", help="Print a line per result, not only events."),
    png: Path | None = typer.Option(
        None, "--png", help="Picture of the last day to write at the end: .png, .svg or .pdf."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON lines: results and events."),
) -> None:
    """Raise alarms on changes in a stream of results.

    You state the rate of false alarms.

    Stop it with Ctrl-C; the same command continues where it stopped, also after a kill.
    """
    from ping_llm.watch.options import WatchOptions
    from ping_llm.watch.run import Outside, Watch

    options = WatchOptions(
        false_alarms_per_day=false_alarms,
        refresh=refresh,
        accept_hours=accept_hours,
        most_pairs=most_pairs,
        least_ms=least_ms,
        least_share=least_percent / 100,
    )
    given = query.conditions_of(size, errors, msm_id, probe, throughput)
    if url is not None and source != "-":
        raise UsageError("--url and INPUT exclude each other")
    if metrics is None and metrics_host != "127.0.0.1":
        raise UsageError("--metrics-host needs --metrics PORT")
    with query.drawn(png) as picture:
        model = query.load(run, data, no_data)
        if model.data is None and not model.knows_addresses:
            raise UsageError(f"{run} has nothing to compare with: give it earlier measurements with --data")
        files = _source(source, url, follow, state)
        outside = Outside(
            (lambda output: _print_json(output)) if as_json else (lambda output: _print(output, all_results)),
            metrics_host, metrics, webhook,
        )  # fmt: skip
        watching = Watch(model, options, files, state, outside, given)
        counts = watching.run()
        if picture is not None:
            from ping_llm.watch.page import day_picture

            day_picture(watching.day, picture)
    if as_json:
        _print_line({"event": "stopped", **{name.replace(" ", "_"): value for name, value in counts.items()}})
    if counts["rejected"] and not counts["results"]:
        raise PingError(
            f"none of the {counts['rejected']:,} lines is a result: a watch reads one JSON object per line, "
            f"as RIPE Atlas writes them; {state / 'rejects.jsonl'} has the lines with what is wrong "
            "(`ping-llm ingest` reads tables and the output of ping)"
        )


def _source(source: str, url: str | None, follow: bool, state: Path) -> "Files":
    import os
    import stat
    import sys

    from ping_llm.watch.inputs import Inbox, files_of, from_pipe, from_url

    if url is not None:
        return Inbox(state, from_url(url))
    if source != "-":
        return files_of(Path(source), follow)
    if stat.S_ISREG(os.fstat(sys.stdin.fileno()).st_mode):
        raise UsageError(
            "standard input must not be a file: give the file as INPUT instead of `< FILE`, so that the same "
            "command can continue in it"
        )
    return Inbox(state, from_pipe(sys.stdin.fileno()))


def _print(output: "Output", all_results: bool) -> None:
    from ping_llm.watch.alarms import sentence
    from ping_llm.watch.store import result_text

    if all_results:
        for seen in output.seen:
            print(result_text(seen))
    for event in output.events:
        print(sentence(event))
    if output.events or all_results:
        print(end="", flush=True)


def _print_line(values: dict[str, object]) -> None:
    import orjson

    print(orjson.dumps(values).decode(), flush=True)


def _print_json(output: "Output") -> None:
    import sys

    import orjson

    from ping_llm.watch.store import result_values

    lines = [orjson.dumps({"event": "result"} | result_values(seen)) for seen in output.seen]
    lines += [orjson.dumps(event) for event in output.events]
    if lines:
        sys.stdout.write(b"\n".join([*lines, b""]).decode())
        sys.stdout.flush()
