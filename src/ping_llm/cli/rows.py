"""ping-llm rows"""

from pathlib import Path

import typer

from ping_llm.cli.listing import Listing
from ping_llm.tables import print_json, table


def register(app: typer.Typer) -> None:
    rows = typer.Typer(
        cls=Listing, help="Group measurements by source, into probe rows.", no_args_is_help=True
    )
    app.add_typer(rows, name="rows")
    rows.command()(build)
    rows.command()(inspect)
    rows.command()(verify)


def build(
    inputs: list[str] = typer.Argument(
        ...,
        metavar="IN...",
        help="Measurements, or whatever `ingest` reads: files, folders or patterns. Steps take Parquet only.",
    ),
    out: Path = typer.Option(..., "--out", help="Folder for the rows."),
    engine: str = typer.Option(
        "duckdb", help="Engine: duckdb, reference or spark; all write the same bytes."
    ),
    workers: int = typer.Option(0, help="Threads; 0 is one per core."),
    memory_limit: str = typer.Option("4GB", help="Memory limit; the peak stays below it + 1 GB."),
    temp: Path | None = typer.Option(None, help="Folder for intermediate files. [default: below --out]"),
    max_row_mib: int = typer.Option(
        8, help="Largest row in MiB; a longer history is split into consecutive rows."
    ),
    group_by: str = typer.Option("src_addr", help="Key of a row: src_addr or probe_id."),
    split: str | None = typer.Option(
        None, help="Shares by hash of the key, such as probe:0.9,0.1 for train and val."
    ),
    spark_master: str | None = typer.Option(None, help="Spark master, such as yarn."),
    step: str | None = typer.Option(
        None, help="Step to run alone, on clusters: plan, scan, encode or finish."
    ),
    append: bool = typer.Option(
        False,
        "--append",
        help="Replace the rows in --out by those of more input: IN is all of it, old and new.",
    ),
    task: int = typer.Option(0, help="Task of the step to run, from 0."),
    tasks: int = typer.Option(1, help="Number of tasks that share the step."),
    as_json: bool = typer.Option(False, "--json", help="Print the counts as JSON."),
) -> None:
    """Build probe rows from measurements. If run again after an interruption, it continues."""
    from ping_llm.ingest.tabled import as_tables
    from ping_llm.rows.build import RowOptions, RunOptions, run_step
    from ping_llm.rows.build import build as run

    options = RowOptions(max_row_mib=max_row_mib, group_by=group_by, split=split)
    how = RunOptions(engine, workers, memory_limit, temp, spark_master)
    if append:
        from ping_llm.errors import UsageError
        from ping_llm.rows.append import append as add

        if step is not None:
            raise UsageError("--append excludes --step")
        manifest = add(inputs, out, options, how)
    elif step is None:
        with as_tables(inputs, out) as tables:
            manifest = run(tables, out, options, how)
    else:
        found = run_step(step, inputs, out, options, how, task, tasks)
        if found is None:
            return
        manifest = found
    counts = manifest["counts"]
    if as_json:
        print_json(counts)
        return
    lines = [(name.replace("_", " "), counts[name]) for name in ("in", "measurements", "rows")]
    if split:
        lines = [("in", counts["in"])]
        for name, _ in options.fractions():
            from ping_llm.rows.manifest import load_manifest

            own = load_manifest(out / name)["counts"]
            lines += [(f"{name}: measurements", own["measurements"]), (f"{name}: rows", own["rows"])]
    lines += [(f"rejected: {reason}", count) for reason, count in counts["rejected"].items()]
    print(table(lines))


def inspect(
    folder: Path = typer.Argument(..., metavar="DIR", help="Folder of probe rows."),
    row: int | None = typer.Option(None, "--row", help="Row to print, from 0."),
    limit: int = typer.Option(20, help="Number of measurements of the row to print."),
    html: Path | None = typer.Option(None, help="HTML file for the figures."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Show what is in a folder of rows."""
    from ping_llm.errors import UsageError
    from ping_llm.measurements.schema import THROUGHPUT
    from ping_llm.rows import inspect as looking
    from ping_llm.rows.store import RowStore

    store = RowStore(folder)
    if row is not None:
        if not 0 <= row < len(store):
            raise UsageError(f"there is no row {row}: {folder} has rows 0 to {len(store) - 1}")
        facts, lines = looking.row_table(store, row, limit)
        if as_json:
            names = ("time", "dst", "rtt", "msm_id", "probe_id", "size", "packet_error_count", THROUGHPUT)
            print_json(facts | {"shown": [dict(zip(names, line, strict=True)) for line in lines]})
            return
        print(table([(name, str(value)) for name, value in facts.items()]))
        print()
        print(table(lines, looking.ROW_HEADER))
        if facts["measurements"] > limit:
            print(f"… and {facts['measurements'] - limit:,} more")
        return
    found = looking.inspect(store)
    if html is not None:
        looking.write_html(found, html)
    if as_json:
        print_json(found.as_dict())
        return
    print(table(looking.summary_lines(found)))
    widest = max((rows for _, rows, _ in found.histogram), default=1) or 1
    bars = [
        (label, rows, measurements, "▇" * round(30 * rows / widest))
        for label, rows, measurements in found.histogram
    ]
    print("\n" + table(bars, ("per row", "rows", "measurements", "")))
    print("\n" + table(found.largest_sources, ("largest sources", "rows", "measurements")))
    padding = [(str(one.length), f"{one.alone:.1%}", f"{one.packed:.1%}") for one in found.padding]
    print("\n" + table(padding, ("tokens", "padding, one context each", "packed")))


def verify(
    folder: Path = typer.Argument(..., metavar="DIR", help="Folder of probe rows, or of its splits."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Check every byte and every row against the manifest. Exit code 1 if something is wrong."""
    from dataclasses import asdict

    from ping_llm.errors import PingError
    from ping_llm.rows.verify import verify as check

    found = check(folder)
    if as_json:
        print_json(asdict(found))
    else:
        for problem in found.problems:
            print(problem)
        print(f"{found.rows:,} rows, {found.measurements:,} measurements, {found.bytes:,} bytes: ", end="")
        print(f"{len(found.problems)} problems" if found.problems else "all as the manifest says")
    if found.problems:
        raise PingError(f"{folder} is damaged; build it again")
