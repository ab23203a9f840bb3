"""`ping-llm query score`: how unusual results are, on one machine or on a cluster."""

from pathlib import Path

import typer

from ping_llm.cli import bulk, query
from ping_llm.errors import UsageError


def score(
    run: Path = query.RUN,
    file: Path = typer.Argument(help="Measurements: what `ingest` reads, or a folder that a command wrote."),
    anomalies: int | None = typer.Option(
        None, "--anomalies", help="Number of most unusual results to list, instead of all."
    ),
    above: float | None = typer.Option(
        None,
        "--above",
        help="Probability P, such as 0.99: list the results outside their central interval of P.",
    ),
    raw: bool = typer.Option(
        False,
        "--raw",
        help="Print the uncalibrated bits of every field from the network alone, which is faster.",
    ),
    limit: int | None = typer.Option(None, "--limit", help="Largest number of measurements to score."),
    out: Path | None = typer.Option(
        None, "--out", help="Folder for the score of every result as Parquet by day; it resumes."
    ),
    step: str | None = bulk.STEP,
    task: int = bulk.TASK,
    tasks: int = bulk.TASKS,
    engine: bulk.Engine = bulk.ENGINE,
    spark_master: str | None = bulk.SPARK_MASTER,
    data: Path | None = query.DATA,
    no_data: bool = query.NO_DATA,
    conditions: str | None = typer.Option(
        None, "--size", "--errors", "--msm-id", "--probe", "--throughput", hidden=True
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON: one object per measurement."),
    png: Path | None = query.PNG,
) -> None:
    """Score how unusual each result is: bits and tail probability, given earlier measurements."""
    from ping_llm.answer.report import print_anomalies, print_results, print_scores

    if conditions is not None:
        raise UsageError(
            f"score has none of {query.CONDITIONS}: the file states them, in the columns size, "
            "packet_error_count, msm_id, probe_id and throughput_mbps"
        )
    if anomalies is not None and anomalies < 1:
        raise UsageError(f"--anomalies must be at least 1, not {anomalies}")
    if above is not None and not 0 < above < 1:
        raise UsageError(f"--above must be between 0 and 1, such as 0.99, not {above:g}")
    if raw and (above is not None or anomalies is not None):
        raise UsageError("--raw excludes --anomalies and --above, which compare calibrated answers")
    bulk.check(out, step, tasks, engine)
    from ping_llm.model.packaged import answers_from_nothing

    # The packaged model compares each result with the rest of the file, unless it is given other data.
    data = file if answers_from_nothing(run) and data is None else data
    others = raw or any(value is not None for value in (anomalies, above, limit, png))
    if out is not None and others:
        raise UsageError("--out excludes --raw, --anomalies, --above, --limit and --png")
    model = query.load(run, data, no_data)
    if out is not None:
        from ping_llm.answer.bulk_scores import ScoreJob

        job = ScoreJob(run, not no_data if data is None else data, file)
        bulk.run(job, model, out, step, task, tasks, engine, spark_master, as_json)
        return
    if anomalies is not None or above is not None:
        print_anomalies(model, file, anomalies, limit, as_json, png, above)
    elif raw or model.stack is None:
        print_scores(model, file, limit, as_json, png)
    else:
        print_results(model, file, limit, as_json, png)
