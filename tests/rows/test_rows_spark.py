"""The Spark engine on real worker processes gives the bytes of the others."""

import os
import shutil
import sys

import pytest

pytest.importorskip("pyspark", reason="the spark extra is not installed")
if shutil.which("java") is None:
    pytest.skip("Spark needs Java 17, and there is no java", allow_module_level=True)

import pyarrow as pa
import pyarrow.parquet as pq
from rows_data import edge_table, folder_bytes, write_measurements

from ping_llm.errors import PingError
from ping_llm.rows import plan
from ping_llm.rows.build import RowOptions, RunOptions, build

SPARK = RunOptions(engine="spark", spark_master="local-cluster[2,1,2048]", memory_limit="1GB")


@pytest.fixture(scope="module")
def session():
    """Two worker processes of one core, shared by the tests of this file."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    started = (
        SparkSession.builder.master("local-cluster[2,1,2048]")
        .appName("ping-llm tests")
        .config("spark.ui.enabled", "false")
        .config("spark.executor.memory", "1g")
        .config("spark.task.maxFailures", 1)
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", 500)
        .config("spark.sql.adaptive.enabled", "false")
        .getOrCreate()
    )
    started.sparkContext.setLogLevel("ERROR")
    yield started
    started.stop()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_spark_gives_the_same_bytes(session, tmp_path, monkeypatch):
    # Executors read the plan; only the driver decides on parts and slices.
    monkeypatch.setattr(plan, "_MIN_SLICE", 1500)
    write_measurements(tmp_path / "in" / "good.parquet", 6000, sources=300)
    edges = edge_table(3, 500)
    kinds = pa.array([("ping", "hop", "last", "wrong", None)[row % 5] for row in range(len(edges))])
    mbps = pa.array([(94.3, None, 0.0, -2.0)[row % 4] for row in range(len(edges))])
    edges = edges.append_column("kind", kinds).append_column("throughput_mbps", mbps)
    pq.write_table(edges, tmp_path / "in" / "edges.parquet")
    for options in (RowOptions(max_row_mib=1), RowOptions(group_by="probe_id", split="probe:0.7,0.3")):
        name = options.group_by
        build([tmp_path / "in"], tmp_path / f"{name}-local", options)
        build([tmp_path / "in"], tmp_path / f"{name}-spark", options, SPARK)
        assert folder_bytes(tmp_path / f"{name}-spark") == folder_bytes(tmp_path / f"{name}-local")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_failure_on_a_worker_is_a_sentence(session, tmp_path):
    write_measurements(tmp_path / "in.parquet", 500)
    from ping_llm.rows.build import run_step

    run_step("plan", [tmp_path / "in.parquet"], tmp_path / "out")
    data = bytearray((tmp_path / "in.parquet").read_bytes())
    data[4:2000] = bytes(1996)
    (tmp_path / "in.parquet").write_bytes(data)
    with pytest.raises(PingError, match=r"Spark failed: .*in.parquet"):
        build([tmp_path / "in.parquet"], tmp_path / "out", run=SPARK)
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert plan.parts_for(500) == 1
