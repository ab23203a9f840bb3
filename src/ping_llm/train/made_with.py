"""Checks that a run is resumed with the same data and keys that it was made with.

A command that resumes a run must request the same training. Differences are reported before anything in the
folder is changed.
"""

import fnmatch
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ping_llm.errors import PingError, UsageError
from ping_llm.files import read_yaml
from ping_llm.model import ledger
from ping_llm.train import runs, schedule, settings

# Keys of loading, hardware, checkpoints and records, on which the trained model depends only by
# rounding. steps and the folders have separate rules.
_FREE = (
    *("base_config", "run_name", "base_output_directory", "steps"),
    *(
        "network_train_files",
        "network_eval_files",
        "network_teacher",
        "network_threads",
        "network_on_bad_row",
        "grain_*",
    ),
    "network_samples",
    *("per_device_batch_size", "gradient_accumulation_steps", "max_inflight_computations"),
    *("*checkpoint*", "load_parameters_path", "load_full_state_path"),
    *("eval_*", "abort_on_*", "log_*", "*tensorboard*", "*wandb*", "*goodput*", "*profile*", "monitor_*"),
    *("metrics_file", "gcs_metrics", "dump_*", "debug_*", "compile*", "jax_*", "hardware"),
    *("attention", "sa_*", "remat_policy", "ici_*", "dcn_*", "mesh_axes", "logical_axis_rules*", "shard*"),
)
# With a time budget, the schedule is in schedule.json, and config.yml has only its part decided so far.
_OF_SCHEDULE = (
    "learning_rate",
    "learning_rate_schedule_steps",
    "warmup_steps_fraction",
    "wsd_decay_steps_fraction",
)


def data_of(config: Any) -> dict[str, str] | None:
    """The folder and fingerprint of the rows that a config trains on; None for other dataset types.

    Raises:
        PingError: there are no rows, or they are damaged.
    """
    if config.dataset_type != settings.DatasetType.NETWORK:
        return None
    if config.network_eval_files:  # damage is found now, and not at the first evaluation
        _fingerprint(Path(config.network_eval_files), config)
    rows = Path(config.network_train_files).resolve()
    return {"rows": str(rows), "fingerprint": _fingerprint(rows, config)}


def _fingerprint(rows: Path, config: Any) -> str:
    from ping_llm.contexts.batches import open_rows
    from ping_llm.rows.store import RowStore

    data_format = config.network_data_format
    if data_format == "probe_chunks":
        return RowStore(rows).manifest["fingerprint"]  # damage is found now, before anything is written
    if data_format == settings.PRETOKENIZED:
        from ping_llm.contexts.stored import Stored

        stored = Stored.open(rows)
        stored.check(settings.context_options(config), config.max_target_length)
        return stored.fingerprint
    try:
        return open_rows(rows, data_format).fingerprint
    except (OSError, ValueError) as error:
        raise PingError(f"cannot read {rows}: {error}") from error


def begun(run: Path) -> bool:
    """Whether there is a checkpoint to resume from; without one, a run starts again with any keys."""
    return bool(ledger.steps(run / "checkpoints"))


def refuse_other(
    run: Path,
    config: Any,
    given: set[str],
    data: dict[str, str] | None,
    asked: schedule.Schedule | None,
    seam: Any,
    teacher: dict[str, Any] | None = None,
) -> None:
    """Check that a command requests the training of the run that it would resume.

    Args:
        run: folder of the run, which is only read.
        config: config of the command.
        given: keys of the command that differ from MaxText's defaults.
        data: rows of the command, as from `data_of`.
        asked: schedule that the command requests, if it has a time budget.
        seam: module `maxtext_seam`, which reads the run's config.
        teacher: the facts of the command's teacher, if it has one.

    Raises:
        UsageError: they differ; the message lists the differences.
    """
    if not begun(run):
        return
    differing = [
        *_other_data(run, data),
        *_other_teacher(run, teacher),
        *_other_batch(run, config),
        *_other_keys(run, config, given, asked is not None, seam),
        *_other_budget(run, asked),
    ]
    if differing:
        raise UsageError(
            f"{run} was made with {'; '.join(differing)}. A run resumes only with what it was made with: "
            f"give the same again, or train into another folder with --run "
            f"(--weights {run} begins there with these weights)"
        )


def schedule_of(run: Path, asked: schedule.Schedule) -> schedule.Schedule:
    """The run's schedule so far; `asked` if it has none, or a different one without a checkpoint."""
    made = schedule.read(run)
    return made if made is not None and made.asked() == asked.asked() else asked


def _other_data(run: Path, data: dict[str, str] | None) -> Iterator[str]:
    made = runs.read(run).get("data") or {}
    # Runs from before the key `data` have the fingerprint only in the state of the stream.
    fingerprint = made.get("fingerprint") or _newest_stream(run).get("fingerprint")
    if data and fingerprint and fingerprint != data["fingerprint"]:
        named = f"the rows {made['rows']}" if made else "rows"
        yield (
            f"{named} of fingerprint {fingerprint[:12]}, not {data['rows']} of fingerprint "
            f"{data['fingerprint'][:12]}"
        )


def _other_teacher(run: Path, teacher: dict[str, Any] | None) -> Iterator[str]:
    made = runs.read(run).get("teacher")
    before, now = (each and each["fingerprint"] for each in (made, teacher))
    if before != now:
        yield f"{_teacher_text(made)}, not {_teacher_text(teacher)}"


def _teacher_text(facts: dict[str, Any] | None) -> str:
    return f"the teacher {facts['path']} of fingerprint {facts['fingerprint']}" if facts else "no teacher"


def _newest_stream(run: Path) -> dict[str, Any]:
    path = run / "streams.json"
    states = json.loads(path.read_bytes()) if path.exists() else {}
    return states[max(states, key=int)] if states else {}


def _other_batch(run: Path, config: Any) -> Iterator[str]:
    """Compare batch sizes of the stream: per_device_batch_size gives another batch on other devices."""
    made = _newest_stream(run).get("batch_size")
    if made is not None and made != config.global_batch_size_to_load:
        yield f"{made} sequences per step, not {config.global_batch_size_to_load}"


def _other_keys(run: Path, config: Any, given: set[str], in_time: bool, seam: Any) -> Iterator[str]:
    path = run / "config.yml"
    if not path.is_file():
        return
    made = seam.read_config(path, [], run)
    for key in sorted(given | set(read_yaml(path))):
        if any(fnmatch.fnmatchcase(key, free) for free in _FREE) or (in_time and key in _OF_SCHEDULE):
            continue
        if key == "learning_rate_schedule_steps" and made.steps != config.steps:
            continue  # compared below, with steps
        before, now = getattr(made, key, None), getattr(config, key, None)
        if before != now:
            yield f"{key}={_text(before)}, not {_text(now)}"
    if not in_time and schedule.read(run) is None:
        yield from _other_steps(made, config)


def _other_steps(made: Any, config: Any) -> Iterator[str]:
    """Compare steps: more are allowed if the learning rates of the steps already made do not change."""
    if config.steps < made.steps:
        yield f"steps={made.steps}, not {config.steps}"
    if made.learning_rate_schedule_steps == config.learning_rate_schedule_steps:
        return
    follows = all(each.learning_rate_schedule_steps == each.steps for each in (made, config))
    if follows and config.lr_schedule_type == "wsd":
        return
    if config.steps >= made.steps:
        yield (
            f"a {_text(made.lr_schedule_type)} schedule over {made.learning_rate_schedule_steps} steps, "
            f"not over {config.learning_rate_schedule_steps}"
        )


def _other_budget(run: Path, asked: schedule.Schedule | None) -> Iterator[str]:
    made = schedule.read(run)
    if made is None and asked is not None:
        yield "a number of steps, not with --minutes"
    if made is not None and asked is None:
        yield f"--minutes {made.minutes:g}, not without"
    if made is not None and asked is not None:
        for (name, before), now in zip(made.asked().items(), asked.asked().values(), strict=True):
            if before != now:
                yield f"{name} {before:g}, not {now:g}"


def _text(value: Any) -> str:
    return str(getattr(value, "value", value))
