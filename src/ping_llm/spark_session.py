"""Spark sessions, distribution of work over Spark workers, and readable Spark errors."""

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ping_llm.errors import PingError
from ping_llm.extras import how_to_install

if TYPE_CHECKING:
    import pyarrow as pa


def spark_session(name: str, master: str | None) -> tuple[Any, bool]:
    """Return the active session (spark-submit, a notebook) or a new one, and whether it is new.

    Args:
      name: Name of the application, shown in Spark's web interface.
      master: Spark master, such as yarn. None: the one set by spark-submit or the environment.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise PingError(f"--engine spark needs Apache Spark and Java 17: {how_to_install('spark')}") from None
    active = SparkSession.getActiveSession()
    if active is not None:
        return active, False
    # Workers must run the Python that has this package; on a cluster, its image or archive sets the variable.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    if master:
        builder = builder.master(master)
    # Spark's default is ten thousand measurements per batch, about 1 MB; larger batches cost less.
    builder = builder.config("spark.sql.execution.arrow.maxRecordsPerBatch", 1 << 16)
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.sql.adaptive.enabled", "false")
    return builder.getOrCreate(), True


def each_on_spark(name: str, master: str | None, count: int, work: Callable[[int], None]) -> None:
    """Call `work` with 0 … count - 1 on the workers; Spark repeats the calls of a lost worker.

    Args:
      work: Function to call; it is pickled. Its relative paths start at the working directory of the command.
    """
    session, own = spark_session(name, master)
    here = str(Path.cwd())

    def run(batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        for batch in batches:
            with contextlib.chdir(here):
                for number in batch.column(0).to_pylist():
                    work(number)
            yield batch

    try:
        numbers = session.createDataFrame([(number,) for number in range(count)], "number int")
        numbers.repartition(count, "number").mapInArrow(run, "number int").collect()
    except Exception as error:
        raise PingError(f"Spark failed: {cause_of(error)}") from error
    finally:
        if own:
            session.stop()


def cause_of(error: Exception) -> str:
    """The line of a Spark error that names the cause: the last error raised by our own code, if any."""
    raised = re.findall(r"^\s*([\w.]+(?:Error|Exception): .*)$", str(error), re.MULTILINE)
    own = [line for line in raised if line.startswith("ping_llm.errors.")]
    if own:
        return own[-1].partition(": ")[2]
    return raised[-1] if raised else (str(error).strip().splitlines() or [type(error).__name__])[0]
