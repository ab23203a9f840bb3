"""`ping-llm bench`: speed in one run, compared with an upper limit and with the usual approach."""

from pathlib import Path

import typer

from ping_llm.cli.listing import Listing

bench = typer.Typer(
    cls=Listing,
    help="Measure speed, compared with its limit in the same run.",
    no_args_is_help=True,
)


def register(app: typer.Typer) -> None:
    app.add_typer(bench, name="bench")


@bench.command()
def query(
    repeats: int = typer.Option(200, help="Questions asked one at a time."),
    batch: int = typer.Option(64, help="Questions per batch."),
    context: int = typer.Option(32, help="Context measurements per question."),
    maxtext: bool = typer.Option(True, help="Compare with MaxText's decode engine."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Measure exact rtt queries to a model of 2 million parameters, compared with MaxText."""
    from ping_llm.bench.query import QueryBench, measure
    from ping_llm.tables import print_json, table

    figures = measure(QueryBench(repeats, batch, context, maxtext=maxtext))
    if as_json:
        print_json(figures)
    else:
        print(table([(name, value) for name, value in figures.items()]))


@bench.command()
def ingest(
    inputs: list[str] = typer.Argument(
        None, metavar="[INPUT…]", help="Compressed JSON lines.  [default: generated results]"
    ),
    results: int = typer.Option(2_000_000, help="Results to generate."),
    files: int = typer.Option(8, help="Files to generate."),
    compression: str = typer.Option("gz", help="Compression of the generated files: gz, bz2 or zst."),
    traceroutes: bool = typer.Option(False, "--traceroutes", help="Traceroutes instead of pings."),
    workers: int = typer.Option(0, min=0, help="Worker processes of the scaling test. 0: one per core."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Measure ingest, compared with bare decompression and JSON parsing of the same files."""
    from ping_llm.bench.ingest import MadeUp, run
    from ping_llm.tables import print_json, table

    measured = run(inputs or [], MadeUp(results, files, compression, traceroutes), workers or None).as_json()
    if as_json:
        print_json(measured)
    else:
        print(table([(name.replace("_", " "), value) for name, value in measured.items()]))


@bench.command()
def rows(
    measurements: int = typer.Option(5_000_000, "--measurements", "-n", help="Measurements to simulate."),
    data: Path | None = typer.Option(None, help="Folder of measurements to use instead of simulated ones."),
    hot: int = typer.Option(0, help="Measurements of one additional, very busy source."),
    legacy_measurements: int = typer.Option(200_000, min=1, help="Measurements given to the earlier design."),
    workers: int = typer.Option(0, help="Threads. 0: one per core."),
    memory_limit: str = typer.Option("4GB", help="Memory limit, as in `rows build`."),
    repeats: int = typer.Option(2, help="Runs per variant. The best counts."),
    only_build: bool = typer.Option(
        False, help="Measure the build only, without DuckDB's sort and the earlier design."
    ),
    scratch: Path | None = typer.Option(None, help="Folder for temporary data.  [default: the system's]"),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Measure speed and memory of building rows, compared with DuckDB's sort and an earlier design."""
    from ping_llm.bench.rows import BenchOptions, bench
    from ping_llm.tables import print_json, table

    report = bench(
        BenchOptions(
            measurements, data, hot, legacy_measurements, workers, memory_limit, repeats, only_build, scratch
        )
    )
    if as_json:
        print_json(report)
    else:
        print(table([(name, value) for name, value in report.items() if name != "runs"]))


@bench.command()
def train(
    config: str = typer.Argument("tiny", help="Packaged config, or path of a .yml file."),
    overrides: list[str] | None = typer.Argument(
        None, metavar="KEY=VALUE…", help="Config overrides, for both sides."
    ),
    steps: int = typer.Option(40, help="Steps per turn."),
    turns: int = typer.Option(3, help="Turns per side."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Measure the step time, compared with MaxText alone and a matrix product; also waiting and launch."""
    from ping_llm.bench.train import TrainBench, measure
    from ping_llm.tables import print_json, table

    figures = measure(TrainBench(config, steps, turns, tuple(overrides or ())))
    if as_json:
        print_json(figures)
        return
    launch = figures.pop("launch")
    lines = list(figures.items()) + [(f"launch: {name} s", seconds) for name, seconds in launch.items()]
    typer.echo(table(lines))


@bench.command("plan-check")
def plan_check(
    configs: list[str] = typer.Argument(
        ..., metavar="CONFIG…", help="Packaged configs, or paths of .yml files."
    ),
    overrides: list[str] = typer.Option([], "--set", metavar="KEY=VALUE", help="Config overrides."),
    rows: Path | None = typer.Option(None, help="Probe rows.  [default: simulated]"),
    steps: int = typer.Option(3, min=1, help="Steps per config."),
    length: int = typer.Option(256, min=64, help="Tokens per sequence; one sequence per step."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Measure memory and FLOPs of real steps with a tiny batch, compared with `train --plan`."""
    from ping_llm.bench.plan_check import PlanCheck, lines, measure
    from ping_llm.tables import print_json, table

    found = measure(PlanCheck(tuple(configs), steps, length, tuple(overrides)), rows)
    if as_json:
        print_json(found)
        return
    header, *rest = lines(found)
    print(table(rest, header))
    print("planned / measured; state: weights and optimizer; temporaries: gradients, copies, activations")


@bench.command()
def loader(
    rows: Path | None = typer.Option(None, help="Probe rows.  [default: simulated]"),
    measurements: int = typer.Option(1_000_000, help="Measurements to simulate, where --rows is not given."),
    length: int = typer.Option(1024, help="Tokens per sequence."),
    batch_size: int = typer.Option(32, help="Sequences per batch."),
    seconds: float = typer.Option(3.0, help="Seconds per turn."),
    turns: int = typer.Option(3, help="Turns per loader. The fastest counts."),
    startup_rows: int = typer.Option(7_000_000, help="Rows of the start-up test. 0: no start-up test."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Measure tokens per second, compared with plain Python and pre-tokenized data; start-up and memory."""
    from ping_llm.bench.loader import LoaderBench, measure
    from ping_llm.tables import print_json, table

    figures = measure(LoaderBench(measurements, length, batch_size, seconds, turns, startup_rows), rows)
    if as_json:
        print_json(figures)
    else:
        print(table(list(figures.items())))


@bench.command()
def feed(
    tokens_per_s: float = typer.Option(
        1_000_000, "--tokens-per-s", help="Tokens per second that the simulated accelerator consumes."
    ),
    rows: Path | None = typer.Option(None, help="Probe rows.  [default: simulated]"),
    seconds: float = typer.Option(10.0, help="Duration in seconds."),
    length: int = typer.Option(1024, help="Tokens per sequence."),
    batch_size: int = typer.Option(32, help="Sequences per batch."),
    threads: int = typer.Option(1, help="Loader threads."),
    workers: int = typer.Option(0, help="Grain worker processes to use instead of threads."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Measure how long a simulated accelerator waits for the loader."""
    import shutil
    import tempfile

    from ping_llm.bench.loader import FeedBench, simulated_rows
    from ping_llm.bench.loader import measure_feed as measure
    from ping_llm.tables import print_json, table

    bench = FeedBench(tokens_per_s, seconds, batch_size, length, threads, workers)
    folder = Path(tempfile.mkdtemp(prefix="ping-llm-bench-"))
    try:
        figures = measure(bench, rows or simulated_rows(folder, 300_000))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if as_json:
        print_json(figures)
    else:
        print(table(list(figures.items())))


_COLUMNS = ("bits", "95 %", "median error, ms")


@bench.command()
def encodings(
    data: Path | None = typer.Option(None, "--data", help="Measurements (Parquet).  [default: simulated]"),
    steps: int = typer.Option(200, help="Training steps per encoding."),
    batch: int = typer.Option(8, help="Sequences of 256 tokens per step."),
    layers: int = typer.Option(2, help="Layers of the model."),
    width: int = typer.Option(96, help="Width of the model."),
    questions: int = typer.Option(120, help="Questions per test."),
    only: str = typer.Option("all", help="Encodings, separated by commas, or all."),
    keep: Path | None = typer.Option(
        None, "--keep", help="Folder of the trainings. An interrupted benchmark resumes there."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Train the same small model with each RTT encoding and compare bits over the same millisecond bins."""
    from ping_llm.bench.encodings import EncodingsBench, measure
    from ping_llm.tables import print_json, table
    from ping_llm.tokens.rtt import RTT_ENCODINGS

    names = tuple(RTT_ENCODINGS) if only == "all" else tuple(name.strip() for name in only.split(","))
    figures = measure(EncodingsBench(names, steps, batch, layers, width, questions), data, keep)
    if as_json:
        print_json(figures)
        return
    tests = list(figures["questions"])
    header = ["encoding", "bytes", *(f"{test}: {what}" for test in tests for what in _COLUMNS)]
    rows = []
    for name, one in (figures["encodings"] | figures["reference"]).items():
        row = [name, str(one.get("bytes", ""))]
        for test in tests:
            bounds = one[test]["interval"]
            row += [f"{one[test]['bits']:.2f}", f"{bounds[0]:.2f}–{bounds[1]:.2f}" if bounds else ""]
            row += ["" if one[test]["medae_ms"] is None else f"{one[test]['medae_ms']:.1f}"]
        rows.append([*row, f"{one['seconds_training']:.0f}" if "bytes" in one else ""])
    typer.echo(table(rows, [*header, "training, s"]))


@bench.command()
def serve(
    run: Path | None = typer.Argument(
        None, help="Run to serve.  [default: random weights of 0.7 M parameters]"
    ),
    clients: int = typer.Option(64, min=1, help="Requests in progress of the closed loop."),
    seconds: float = typer.Option(20.0, min=1.0, help="Length of each phase, s."),
    soak: float = typer.Option(0.0, min=0.0, help="Length of a phase at 80 % of the capacity, minutes."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Measure a server under load: closed loop, repeated questions, twice its capacity."""
    from ping_llm.bench.serve import ServeBench, measure
    from ping_llm.extras import need
    from ping_llm.tables import print_json, table

    need("serve")
    figures = measure(ServeBench(run, clients, seconds, soak))
    if as_json:
        print_json(figures)
    else:
        print(table([(name, value) for name, value in figures.items()]))


@bench.command()
def score(
    run: str = typer.Argument("base", help="Run, or base, which answers from the measurements themselves."),
    data: Path | None = typer.Option(None, "--data", help="Folder of measurements.  [default: simulated]"),
    measurements: int = typer.Option(4_000, help="Measurements to simulate, where --data is not given."),
    processes: int = typer.Option(2, min=2, help="Processes of the second turn, each on a core of its own."),
    spark: bool = typer.Option(False, "--spark", help="Also score with as many Spark workers."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Measure `query score --out`: measurements per second on one core, and by several processes."""
    from ping_llm.bench.score import ScoreBench, measure
    from ping_llm.tables import print_json, table

    figures = measure(ScoreBench(run, data, measurements, processes, spark))
    if as_json:
        print_json(figures)
    else:
        print(table([(name.replace("_", " "), value) for name, value in figures.items()]))


@bench.command()
def watch(
    run: Path | None = typer.Argument(None, help="Run.  [default: random weights of the config tiny]"),
    results: int = typer.Option(60_000, help="Results of the stream. The first half is not timed."),
    pairs: int = typer.Option(1_000, help="Pairs of the stream."),
    refresh: str = typer.Option("16", help="Values of --refresh to compare, separated by commas."),
    detection: Path | None = typer.Option(
        None,
        "--detection",
        help="Measure detection on these results: Atlas JSON or a folder of measurements.",
    ),
    world: Path | None = typer.Option(None, "--world", help="Folder of the simulation that made them."),
    shuffled: bool = typer.Option(False, "--shuffled", help="Shuffle each pair's results in time first."),
    rates: str = typer.Option(
        "0.1,1,10",
        "--false-alarms-per-day",
        help="With --detection: false alarms per day to state, separated by commas. One watch for each.",
    ),
    data: Path | None = typer.Option(
        None, "--data", help="With --detection: earlier measurements, as `watch --data`."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Measure results per second of `watch`, or how soon it finds changes, compared with two simple rules."""
    from ping_llm.bench.watch import WatchBench, measure
    from ping_llm.errors import UsageError
    from ping_llm.tables import print_json, table

    if detection is not None:
        if run is None:
            raise UsageError("--detection needs a run")
        from ping_llm.bench.detection import measured

        stated = tuple(float(part) for part in rates.split(","))
        figures = measured(run, detection, world, shuffled, stated, data)
        if as_json:
            print_json(figures)
            return
        header = ["rule", "changes found", "delay, results", "delay, h", "false alarms per day"]
        print(f"{figures['results']:,} results, {figures['days']:.1f} days, {figures['changes']:,} changes")
        rows = [
            [name, f"{one['found']:.0%}", one["delay_results"], one["delay_hours"], one["false_per_day"]]
            for name, one in figures["rules"].items()
        ]
        print(table(rows, header))
        return
    chosen = tuple(int(part) for part in refresh.split(","))
    figures = measure(WatchBench(results, pairs, chosen), run)
    if as_json:
        print_json(figures)
        return
    print(f"{results:,} results of {pairs:,} pairs, peak memory {figures['peak memory MiB']:,} MiB")
    names = list(figures[f"refresh {chosen[0]}"])
    print(table([[each, *figures[f"refresh {each}"].values()] for each in chosen], ["refresh", *names]))


@bench.command()
def plan(
    run: Path | None = typer.Argument(None, help="Run.  [default: a small simulated world of its own]"),
    data: Path | None = typer.Option(
        None, "--data", help="Results after the run's training: Atlas JSON or a folder of measurements."
    ),
    sources: int = typer.Option(30, help="Sources whose pairs are asked about."),
    destinations: int = typer.Option(8, help="Pairs per source, at most."),
    budget: int = typer.Option(60, help="Measurements."),
    seed: int = typer.Option(0, help="Random seed."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Compare answers after planned measurements with answers after as many random ones."""
    from ping_llm.answer.model import Model
    from ping_llm.bench import plan as planning
    from ping_llm.bench.detection import read_stream
    from ping_llm.errors import UsageError
    from ping_llm.tables import print_json, table

    if (run is None) != (data is None):
        raise UsageError("a run and --data must be given together")
    if run is None or data is None:
        model, replay = planning.simulated(sources, destinations, seed)
    else:
        model = Model.load(run, data=False)
        replay = planning.of_stream(read_stream(data), sources, destinations, seed)
    figures = planning.measure(model, replay, min(budget, len(replay.first)), seed)
    if as_json:
        print_json(figures)
        return
    print(f"{figures['pairs']:,} pairs, {figures['budget']:,} measurements")
    rows = [[name, *one.values()] for name, one in figures.items() if isinstance(one, dict)]
    print(table(rows, ["measured", "CRPS, ms", "bits"]))


@bench.command()
def rank(
    data: Path = typer.Argument(help="Results: Atlas JSON, a table, or a folder of measurements."),
    sources: int = typer.Option(300, help="Sources to ask about, at most."),
    questions: int = typer.Option(200, help="Held-out questions per kind that weigh the methods."),
    methods: str = typer.Option(
        "all", help="Simple methods, stack (of them) and base, separated by commas, or all."
    ),
    seed: int = typer.Option(0, help="Random seed."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Measure how often the chosen destination is the fastest of ten, by method."""
    from ping_llm.bench.detection import read_stream
    from ping_llm.bench.rank import measure
    from ping_llm.tables import print_json, table

    names = () if methods == "all" else tuple(name.strip() for name in methods.split(","))
    figures = measure(read_stream(data), sources, questions, names, seed)
    if as_json:
        print_json(figures)
        return
    print(f"{figures['sources']:,} sources, ten destinations each, {figures['train']:,} measurements learned")
    rows = [
        [name, f"{one['fastest']:.0%}", one["regret_ms"], one["median_regret_ms"]]
        for name, one in figures["methods"].items()
    ]
    print(table(rows, ["method", "chose the fastest", "regret, ms", "median regret, ms"]))
