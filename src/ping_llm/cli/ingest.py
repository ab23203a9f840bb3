"""ping-llm ingest"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from ping_llm.ingest.accounting import Account


def register(app: typer.Typer) -> None:
    @app.command()
    def ingest(
        inputs: list[str] = typer.Argument(
            ...,
            metavar="IN...",
            help="Files, folders or patterns of raw results; - is standard input.",
            show_default=False,
        ),
        out: Path = typer.Option(..., "--out", help="Folder for the table.", show_default=False),
        rtt: str = typer.Option(
            "avg", help="RTT of a result: avg, min or max of its packets, or each (one row per packet)."
        ),
        source: str = typer.Option(
            "auto", help="Source address: from, src_addr, or auto for src_addr if it is public, else from."
        ),
        traceroutes: str = typer.Option(
            "off",
            help="Traceroutes: off, last for destinations that were reached, or hops for every public hop.",
        ),
        src: str | None = typer.Option(
            None, "--src", help="Address where ping, fping or mtr was run, to read what they printed."
        ),
        workers: int = typer.Option(0, min=0, help="Worker processes; 0 is one per core, at most 8."),
        keep_going: bool = typer.Option(False, "--keep-going", help="Exit code 0 even if files are damaged."),
        overwrite: bool = typer.Option(False, "--overwrite", help="Replace a table made from other inputs."),
        append: bool = typer.Option(
            False,
            "--append",
            help="Add the new files to the table in --out, as if all were ingested together.",
        ),
        places: list[Path] = typer.Option(
            [],
            "--places",
            help="Table of prefix, latitude, longitude, or .mmdb: replies that are faster than light allows "
            "are rejected. May be repeated.",
        ),
        engine: str = typer.Option("local", help="Where files are read: local, or spark; the same bytes."),
        spark_master: str | None = typer.Option(None, help="Spark master, such as yarn."),
        step: str | None = typer.Option(
            None, help="Step to run alone, on clusters: read (the share of a task), then finish."
        ),
        task: int = typer.Option(0, help="Task of the step read to run, from 0."),
        tasks: int = typer.Option(1, help="Number of tasks that share the step read."),
        as_json: bool = typer.Option(False, "--json", help="Print the summary (ingest.json) as JSON."),
    ) -> None:
        """Read RIPE Atlas results or tables into one validated table.

        Every result is counted: as a measurement, a duplicate, a reject with its reason, or not a ping."""
        from collections import Counter

        from ping_llm.errors import UsageError
        from ping_llm.ingest.accounting import nothing_usable
        from ping_llm.ingest.options import IngestOptions
        from ping_llm.ingest.run import ClusterOptions, ingest_on_cluster
        from ping_llm.ingest.run import ingest as run
        from ping_llm.paths import printable
        from ping_llm.tables import print_json, table

        options = IngestOptions(rtt, source, traceroutes, src, tuple(str(path) for path in places))
        if append and overwrite:
            raise UsageError("--append and --overwrite exclude each other")
        where = ClusterOptions(engine, spark_master, step, task, tasks)
        if where != ClusterOptions():
            if append or overwrite:
                raise UsageError("--append and --overwrite exclude --step and --engine spark")
            made = ingest_on_cluster(inputs, out, options, workers or None, where)
            if made is None:
                return
            report = made
        else:
            report = run(inputs, out, options, workers or None, overwrite, append)
        if as_json:
            print_json(report.as_json())
        else:
            with_hops = options.with_traceroutes
            names = ["results", "measurements", "duplicates", "not pings", "rejects"]
            if with_hops:
                names.insert(4, "not used")

            def counts(name: str, account: "Account") -> list[Any]:
                row = [name, account.results, account.measurements, account.duplicates, account.not_pings]
                return [*row, *([account.not_used.total()] if with_hops else []), account.rejected]

            total = report.total
            shown = [counts(path, account) for path, account, _ in report.files]
            shown = [*(shown if len(shown) <= 20 else []), counts("total", total)]
            print(table(shown, ("file", *names)))
            for title, unit, counted in (
                ("kind", "measurements", total.kinds if with_hops else Counter()),
                ("not used because", "hops", total.not_used),
                ("what became of them", "replies", total.replies),
                ("rejected because", "results", total.rejects),
            ):
                if +counted:
                    print()
                    print(table((+counted).most_common(), (title, unit)))
        for sentence in report.troubles:
            print(f"ping-llm: {printable(sentence)}", file=sys.stderr)
        if report.total.not_pings and not options.with_traceroutes:
            print(
                f"ping-llm: {report.total.not_pings:,} results are not pings; "
                "if they are traceroutes, --traceroutes last or --traceroutes hops uses them",
                file=sys.stderr,
            )
        nothing = nothing_usable(report.total, out)
        if nothing:
            print(f"ping-llm: {printable(nothing)}", file=sys.stderr)
        if nothing or (report.troubles and not keep_going):
            raise typer.Exit(1)

    @app.command()
    def rejects(
        folder: Path = typer.Argument(help="Folder that `ingest` wrote.", show_default=False),
        reason: str | None = typer.Option(None, "--reason", help="Reason to list, such as bad_rtt."),
        count: int = typer.Option(10, "-n", min=0, help="Number of rejects to print."),
        as_json: bool = typer.Option(False, "--json", help="Print JSON: one object per reject, all of them."),
    ) -> None:
        """List what `ingest` rejected, by reason, with examples."""
        from ping_llm.ingest.accounting import read_rejects
        from ping_llm.paths import printable
        from ping_llm.tables import print_json, table

        if as_json:
            for one in read_rejects(folder, reason):
                print_json(one, indent=None)
            return
        counts: dict[str, int] = {}
        first: list[dict[str, Any]] = []
        for one in read_rejects(folder, reason):
            counts[one["reason"]] = counts.get(one["reason"], 0) + 1
            if len(first) < count:
                first.append(one)
        if not counts:
            print("no rejects" if reason is None else f"no rejects for {reason}")
            return
        print(table(sorted(counts.items(), key=lambda item: -item[1]), ("reason", "rejects")))
        if first:
            rows = [
                (printable(one["file"]), one["record"], one["reason"], _start(one["raw"])) for one in first
            ]
            print()
            print(table(rows, ("file", "record", "reason", "text")))


def _start(raw: str) -> str:
    from ping_llm.paths import printable

    text = printable(" ".join(raw.split()))
    return text if len(text) <= 100 else f"{text[:99]}…"
