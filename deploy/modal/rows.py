"""Build probe rows on Modal, with input and output on a volume.

    modal volume put ping-llm data/measurements /measurements
    modal run --detach deploy/modal/rows.py --inputs measurements --out rows
    modal volume get ping-llm rows

Small inputs are built in one container. With --tasks N, the slices of the input and then the parts are
divided among N containers, as among the tasks of a Slurm array. Run it again after a failure to resume.
"""

import shlex
from pathlib import Path

import modal

VOLUME = "/volume"
CPUS = 8
MEMORY_MB = 20 * 1024
MEMORY_LIMIT = "16GB"  # what is left of the container's memory is for Python, DuckDB and the page cache

_REPOSITORY = Path(__file__).parents[2] if modal.is_local() else Path("/repository")
_image = (
    modal.Image.debian_slim(python_version="3.12")
    .add_local_dir(
        _REPOSITORY, "/repository", copy=True, ignore=[".venv", ".git", "runs", "data", "**/__pycache__"]
    )
    .run_commands(
        "pip install uv",
        "uv pip install --system -c /repository/constraints.txt /repository",
    )
)

app = modal.App("ping-llm-rows")
_volume = modal.Volume.from_name("ping-llm", create_if_missing=True)


@app.function(
    image=_image,
    cpu=CPUS,
    memory=MEMORY_MB,
    volumes={VOLUME: _volume},
    timeout=24 * 3600,
    retries=3,
)
def rows(
    inputs: list[str], out: str, step: str | None = None, task: int = 0, tasks: int = 1, options: str = ""
) -> dict | None:
    """Run the whole build, or one task's share of one of its steps; paths are on the volume.

    Returns:
      the counts of the manifest; None before it is written.
    """
    from ping_llm.rows.build import RowOptions, RunOptions, build, run_step

    _volume.reload()
    chosen = dict(word.split("=", 1) for word in shlex.split(options))
    if "max_row_mib" in chosen:
        chosen["max_row_mib"] = int(chosen["max_row_mib"])
    shape, run = RowOptions(**chosen), RunOptions(workers=CPUS, memory_limit=MEMORY_LIMIT)
    places, folder = [f"{VOLUME}/{place}" for place in inputs], f"{VOLUME}/{out}"
    try:
        if step is None:
            manifest = build(places, folder, shape, run)
        else:
            manifest = run_step(step, places, folder, shape, run, task, tasks)
    finally:
        _volume.commit()
    return manifest["counts"] if manifest else None


@app.local_entrypoint()
def main(inputs: str, out: str, tasks: int = 1, options: str = "") -> None:
    """Build probe rows on Modal.

    Args:
      inputs: files and folders of measurements on the volume, separated by spaces.
      out: folder of the rows on the volume.
      tasks: number of containers.
      options: options of the rows, such as "group_by=probe_id max_row_mib=4".
    """
    places = shlex.split(inputs)
    if tasks == 1:
        print(rows.remote(places, out, options=options))
        return
    rows.remote(places, out, "plan", options=options)
    for step in ("scan", "encode"):
        shares = [(places, out, step, task, tasks, options) for task in range(tasks)]
        list(rows.starmap(shares))
    print(rows.remote(places, out, "finish", options=options))
