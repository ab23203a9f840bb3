"""The functions of the public API: thin, and lazy about what they import."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ping_llm.errors import PingError, UsageError
from ping_llm.extras import need, need_for_fit
from ping_llm.interchange import Table, is_table, to_arrow, write_beside

if TYPE_CHECKING:
    from ping_llm.answer.address_queries import Known
    from ping_llm.answer.model import Model
    from ping_llm.answer.remote import Remote
    from ping_llm.ingest.run import IngestReport
    from ping_llm.measurements.columns import Columns as Measurements
    from ping_llm.splits.holdout import Splits
    from ping_llm.train.run import Outcome

Paths = str | Path | Sequence[str | Path]


def load(run: str | Path, *, data: "bool | Known" = True) -> "Model":
    """Load a run, a checkpoint or an export.

    Needs `ping-llm[query]`; an edge export needs `ping-llm[edge]` only.

    Args:
      run: folder of a run, of a checkpoint or of an export.
      data: probe rows that questions without a context look back on, or measurements in memory: a table of
        pandas, polars or pyarrow, or a list of `Measurement` or of dictionaries. For `base` and tuned runs
        also files that `ingest` reads. True: the rows that the run remembers, if they are still there. False:
        none.
    """
    need("edge" if (Path(run) / "model.onnx").is_file() else "query")
    from ping_llm.answer.model import Model

    return Model.load(run, data=data)


def connect(
    url: str,
    *,
    token_file: str | Path | None = None,
    ca: str | Path | None = None,
    patience: float = 60.0,
) -> "Remote":
    """Ask a server (`ping-llm serve`) with the methods of a loaded model; answers are equal.

    The base install suffices: no JAX is needed.

    Args:
      url: address of the server, such as http://127.0.0.1:8000.
      token_file: file with the token. None: the environment variable PING_LLM_TOKEN, if it is set.
      ca: certificates (PEM) that are trusted besides those of the system.
      patience: seconds for which a server that is too busy is asked again.
    """
    from ping_llm.answer.remote import Remote

    return Remote(url, token_file=token_file, ca=ca, patience=patience)


def read(source: "Paths | Table", *, traceroutes: str = "off") -> "Measurements":
    """Read measurements into memory, ordered by time.

    Records that are not measurements are left out. `ingest` counts them by reason, and takes data of any
    size.

    Args:
      source: files, folders or patterns: results of RIPE Atlas (also compressed), Parquet, CSV, JSON lines.
        Or a table of pandas, polars or pyarrow with `event_time`, `src_addr`, `dst_addr` and `rtt` (ms; -1:
        no reply).
      traceroutes: `off`; `last`: the destination, if it was reached; `hops`: every public hop.

    Raises:
      PingError: there is no measurement in it, or a row of the table is not one.
    """
    from ping_llm.measurements.columns import NO_TIME, Columns

    if is_table(source):
        from ping_llm.answer.files import to_columns

        columns = to_columns(
            to_arrow(source), "the table", needs=("event_time", "src_addr", "dst_addr", "rtt")
        )
        if (columns.time == NO_TIME).any():
            raise PingError("the table has rows without an event_time: every measurement needs one")
        return columns.sorted_by_time()
    import pyarrow as pa

    from ping_llm.ingest import IngestOptions, read_measurements

    names = _names(source)
    batches = list(read_measurements(names, IngestOptions(traceroutes=traceroutes)))
    if not batches:
        raise PingError(
            f"no measurement was found in {', '.join(names)}; `ping_llm.ingest` gives the reasons"
        )
    return Columns.from_table(pa.Table.from_batches(batches)).sorted_by_time()


def ingest(
    inputs: Paths,
    out: str | Path,
    *,
    rtt: str = "avg",
    source: str = "auto",
    traceroutes: str = "off",
    places: "Paths" = (),
    workers: int | None = None,
    overwrite: bool = False,
) -> "IngestReport":
    """Write a validated table of measurements (Parquet) and account for every result.

    An interrupted call resumes when it is made again.

    Args:
      inputs: files, folders or patterns: results of RIPE Atlas, Parquet, CSV, JSON lines.
      out: folder of the table.
      rtt: `avg`, `min` or `max` over the packets of a result, or `each`: one measurement per packet.
      source: `auto` (src_addr if public, else from), `from` or `src_addr`.
      traceroutes: `off`, `last` or `hops`, as for `read`.
      places: tables or databases of places; replies that are faster than light allows are rejected.
      workers: processes; by default one per core, at most 8.
      overwrite: replace a table that was made from other inputs.

    Returns:
      a report: `total.measurements`, `total.rejects` by reason, `troubles` with files.
    """
    from ping_llm.ingest.options import IngestOptions
    from ping_llm.ingest.run import ingest as run

    options = IngestOptions(rtt, source, traceroutes, places=tuple(_names(places)))
    return run(_names(inputs), Path(out), options, workers, overwrite)


def addresses(
    name: str,
    *,
    places: "Paths" = (),
    data: str | Path | None = None,
    end: Literal["source", "destination"] = "destination",
) -> list[str]:
    """The addresses or prefixes that a name stands for, to ask a model about.

    Args:
      name: a host name, which is resolved; `AS3333`, `country:NL` or `NL`, `probe:1234`, which the places or
        the data must know; or an address or prefix, which stands for itself.
      places: tables of prefixes (with `country`, `asn`, `latitude`, `longitude`), the table of `fetch
        probes`, or databases (.mmdb).
      data: probe rows. Their addresses count before the prefixes of the places, the most measured first.
      end: whether sources or destinations of the data are meant.

    Raises:
      UsageError: neither the places nor the data know the name, or it cannot be resolved.
    """
    from ping_llm.answer.names import NameIndex, Names

    index = NameIndex([Path(path) for path in _names(places)], _path(data))
    return Names(index).find(name, end).addresses


def split(
    data: "Paths | Table",
    *,
    time: float = 0.8,
    pairs: float = 0.1,
    sources: float = 0.1,
    destinations: float = 0.1,
    seed: int = 0,
) -> "Splits":
    """Divide measurements into a training set and four tests that share with it only what they may.

    The tests are `later` (known pairs, later in time), `pairs` (new pairs of known ends), `sources` and
    `destinations` (new ones). The result has been checked for leaks.

    Args:
      data: measurements, or whatever `read` takes.
      time: share of the measurements, oldest first, that may be trained on; 1 for no cut in time.
      pairs, sources, destinations: shares that are held out.
      seed: random seed of what is held out.

    Returns:
      splits: `splits.train` and `splits.test("later")` are measurements.
    """
    from ping_llm.splits.holdout import SplitOptions
    from ping_llm.splits.holdout import split as run

    return run(_measurements(data), SplitOptions(time, pairs, sources, destinations, seed))


def build_rows(
    data: "Paths | Table",
    out: str | Path,
    *,
    group_by: str = "src_addr",
    max_row_mib: int = 8,
    workers: int = 0,
    memory_limit: str = "4GB",
) -> dict[str, Any]:
    """Group measurements by source into probe rows, which training reads and answers look back on.

    Args:
      data: whatever `read` takes.
      out: folder of the rows.
      group_by: `src_addr` or `probe_id`.
      max_row_mib: size at which a long history is cut into several rows.
      workers: threads; 0 for one per core.
      memory_limit: such as 4GB.

    Returns:
      the manifest: counts, fingerprint, and the checksum of each shard.
    """
    from ping_llm.rows.build import RowOptions, RunOptions
    from ping_llm.rows.build import build as run

    options = RowOptions(max_row_mib=max_row_mib, group_by=group_by)
    how = RunOptions(workers=workers, memory_limit=memory_limit)
    if not is_table(data):
        from ping_llm.ingest.tabled import as_tables

        with as_tables(_names(data), Path(out)) as tables:
            return run(tables, out, options, how)
    kept = _write_beside(data, Path(out))
    try:
        return run([kept], out, options, how)
    finally:
        kept.unlink()


def train(
    config: str,
    rows: str | Path | None = None,
    run: str | Path | None = None,
    *,
    eval_rows: str | Path | None = None,
    weights: str | Path | None = None,
    teacher: str | Path | None = None,
    minutes: float | None = None,
    overrides: Iterable[str] = (),
) -> "Outcome":
    """Train a network, or go on where the run in the folder stopped.

    Needs `ping-llm[train]`.

    Args:
      config: name of a packaged config (tiny, menog, base-model, 20m, 100m, 300m) or path of a .yml.
      rows: probe rows to train on.
      run: folder of the run; by default runs/CONFIG.
      eval_rows: probe rows to evaluate on during training.
      weights: run whose newest weights this one begins with.
      teacher: run or export, at least four times as large, whose distributions of RTTs are learned.
      minutes: time budget instead of a number of steps.
      overrides: `key=value` words, MaxText's keys or ours.

    Returns:
      the outcome: `state` (`finished`, `stopped`, `already`), `step`, `loss`.
    """
    need("train")
    from ping_llm.train.run import train as run_training

    return run_training(
        config,
        list(overrides),
        run=_path(run),
        rows=_path(rows),
        eval_rows=_path(eval_rows),
        weights=_path(weights),
        teacher=_path(teacher),
        minutes=minutes,
    )


def fit(
    data: "Paths | Table",
    run: str | Path,
    *,
    minutes: float = 20.0,
    config: str | None = None,
    traceroutes: str = "off",
    start: str | Path | None = None,
    final: bool = False,
    queries: int = 1000,
    baselines: Sequence[str] = (),
    seed: int = 0,
    world: str | Path | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Ingest, split, train, calibrate and evaluate: afterwards `load(run)` answers questions.

    Needs `ping-llm[train]`. An interrupted call resumes when it is made again.

    Args:
      data: whatever `read` takes: at least 300 measurements.
      run: folder of the run.
      minutes: minutes of training. 0: none; the packaged model is tuned to the data, and `ping-llm[query]` is
        enough.
      config: training config; by default chosen by data and machine.
      traceroutes: `off`, `last` or `hops`, as for `read`.
      start: run or export to begin with the weights of, or `base`, or `none` for random ones; by default
        `base`, where no config is given and there is no GPU.
      final: spend the last quarter of the minutes on all the data, after the report.
      queries: questions of each test of the report.
      baselines: simple methods to mix and compare with; by default all.
      seed: random seed of what is held out.
      world: folder of the simulation, where the data are simulated: adds the truth to the report.
      say: called with a sentence at each step.

    Returns:
      the report, as in RUN/report/report.json.
    """
    need_for_fit(minutes)
    from ping_llm.answer.methods.registry import full_name
    from ping_llm.evaluate.inputs import address_questions
    from ping_llm.fit.options import FitOptions
    from ping_llm.fit.run import fit as run_fit
    from ping_llm.splits.holdout import SplitOptions

    options = FitOptions(
        minutes=minutes,
        config=config,
        traceroutes=traceroutes,
        final=final,
        seed=seed,
        splits=SplitOptions(seed=seed),
        queries=queries,
        address_questions=address_questions(queries, 10),
        baselines=tuple(full_name(name) for name in baselines),
    )
    names = [str(_write_beside(data, Path(run)))] if is_table(data) else _names(data)
    return run_fit(names, Path(run), options, say, start=_path(start), world=_path(world))


def evaluate(
    data: str | Path,
    out: str | Path,
    run: str | Path | None = None,
    *,
    queries: int = 2000,
    baselines: Sequence[str] | None = None,
    world: str | Path | None = None,
    answers: str | Path | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Measure a run and the simple methods on held-out measurements, and write a report.

    Needs `ping-llm[query]`. An interrupted call resumes when it is made again.

    Args:
      data: files or folders that `read` takes, or a folder with the parts train and test.
      out: folder of the report: report.html, report.json and pictures.
      run: run or export to measure; without one, only the simple methods are.
      queries: questions of each test at most; 0 for all.
      baselines: names of simple methods; by default all whose packages are installed.
      world: folder of the simulation, where the data are simulated: adds the truth.
      answers: file to write every question and its answer to, one JSON object per line.
      seed: random seed of what is held out and asked.

    Returns:
      the report, as in report.json: `splits` has for each test and method the figures.
    """
    need("query")
    from ping_llm.answer.methods.registry import usable
    from ping_llm.evaluate.inputs import EvaluateOptions, address_questions
    from ping_llm.evaluate.run import evaluate as run_evaluation
    from ping_llm.splits.holdout import SplitOptions

    options = EvaluateOptions(
        splits=SplitOptions(seed=seed),
        queries=queries,
        baselines=usable() if baselines is None else tuple(baselines),
        address_questions=address_questions(queries),
        seed=seed,
    )
    return run_evaluation(Path(data), Path(out), options, _path(run), _path(world), _path(answers))


def _path(path: str | Path | None) -> Path | None:
    return None if path is None else Path(path)


def _names(paths: "Paths | Table") -> list[str]:
    if isinstance(paths, str | Path):
        return [str(paths)]
    if not isinstance(paths, Sequence) or not all(isinstance(path, str | Path) for path in paths):
        raise UsageError(
            f"{type(paths).__name__} cannot be read: give paths, or a table of pandas, polars or pyarrow"
        )
    return [str(path) for path in paths]


def _measurements(data: "Paths | Table") -> "Measurements":
    from ping_llm.measurements.columns import Columns

    return data if isinstance(data, Columns) else read(data)


def _write_beside(data: "Paths | Table", folder: Path) -> Path:
    """A table as a Parquet file beside a folder: an input like any other."""
    return write_beside(_measurements(data).to_arrow(), folder)
