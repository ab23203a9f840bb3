"""MaxText's training loop, with the data, records and checkpoints of this package."""

import contextlib
import functools
import logging
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import absl.logging
import jax
import jax.numpy as jnp
import numpy as np
from maxtext.common import checkpointing, metric_logger, train_state_nnx
from maxtext.common.gcloud_stub import StubSummaryWriter
from maxtext.input_pipeline import input_pipeline_interface
from maxtext.trainers.pre_train import train
from maxtext.utils import exceptions, max_utils, maxtext_utils, sharding, train_utils

from ping_llm.train import token_loss
from ping_llm.train.board import Board
from ping_llm.train.maxtext_seam import losses
from ping_llm.train.maxtext_seam.config import DATASET_TYPE
from ping_llm.train.session import Feed


class Session(Protocol):
    """Callbacks of MaxText's loop."""

    def feeds(self, config: Any, for_train: Any, for_eval: Any) -> tuple[Feed, Feed | None]:
        """Return the data of the training and of its evaluation, as arrays of the given shardings."""

    def begin(self, step: int, parameters: int, writer: Any) -> None:
        """Called before the first step."""

    def record(self, kind: str, step: int, scalars: dict[str, float]) -> dict[str, float]:
        """Record the numbers of a step; `kind` is train or eval. Returns further numbers for TensorBoard."""

    def sample(self, step: int, weights: Callable[[], dict[str, np.ndarray]]) -> None:
        """Called after a step; `weights` returns the parameters by their names in checkpoints."""

    def must_stop(self, step: int) -> bool:
        """Whether to save a checkpoint after this step and end."""

    def saving(self, step: int) -> None:
        """Called before a checkpoint is written; all earlier records must then be on disk."""


def run(config: Any, session: Session) -> None:
    """Run MaxText's whole training, with the data, records and checkpoints of the session.

    Returns when the training has finished or was stopped; the session has the state. On errors in the data,
    MaxText returns as well, so the caller must check the feed's `error`.
    """
    quiet()
    train_utils.validate_train_config(config)
    saver = _Saver(session)
    with jax_as_maxtext_sets_it(config), _replaced(session, saver):
        try:
            train.train_loop(config, None)
        finally:
            saver.wait()


@contextlib.contextmanager
def jax_as_maxtext_sets_it(config: Any) -> Iterator[None]:
    """Set the options that train.initialize() sets, which takes no config class; restore them afterwards."""
    wanted = {
        "jax_default_prng_impl": "unsafe_rbg",
        "jax_use_shardy_partitioner": config.shardy,
        "jax_remove_size_one_mesh_axis_from_type": config.remove_size_one_mesh_axis_from_type,
    }
    before = {name: getattr(jax.config, name) for name in wanted}
    for name, value in wanted.items():
        jax.config.update(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


def quiet() -> None:
    if os.environ.get("PING_LLM_DEBUG"):
        return
    # Failures also raise errors, which are reported in one sentence.
    absl.logging.set_verbosity(absl.logging.FATAL)
    for name in ("maxtext", "pyconfig", "orbax"):
        logging.getLogger(name).setLevel(logging.ERROR)


@contextlib.contextmanager
def _replaced(session: Session, saver: "_Saver") -> Iterator[None]:
    replacements = [
        (input_pipeline_interface, "create_data_iterator", _data_iterators(session)),
        (maxtext_utils, "get_shaped_batch", _shaped_batch),
        (max_utils, "initialize_summary_writer", _board),
        (metric_logger, "MetricLogger", functools.partial(_Logger, session, saver)),
        (checkpointing, "maybe_save_checkpoint", saver.after_step),
        (train, "loss_fn", losses.loss_with_fields),
        (train, "train_step", losses.train_step_with_fields),
        (train, "eval_step", losses.eval_step_with_fields),
    ]
    originals = [getattr(module, name) for module, name, _ in replacements]
    for module, name, ours in replacements:
        setattr(module, name, ours)
    try:
        yield
    finally:
        for (module, name, _), original in zip(replacements, originals, strict=True):
            setattr(module, name, original)


def _board(tensorboard_dir: str, run_name: str, enable_tensorboard: bool = True) -> Any:
    """Replacement of MaxText's initialize_summary_writer, whose writer can wait forever."""
    if jax.process_index() != 0:
        return None
    return Board(f"{tensorboard_dir.rstrip('/')}/{run_name}") if enable_tensorboard else StubSummaryWriter()


def _data_iterators(session: Session) -> Callable[[Any, Any], tuple[Any, Any]]:
    original = input_pipeline_interface.create_data_iterator

    def create(config: Any, mesh: Any) -> tuple[Any, Any]:
        if config.dataset_type != DATASET_TYPE:
            return original(config, mesh)
        for_train = sharding.get_input_data_sharding(config, mesh)
        for_eval = sharding.get_input_data_sharding(config, mesh, rules=config.logical_axis_rules_for_eval)
        return session.feeds(config, for_train, for_eval)

    return create


_original_shaped_batch = maxtext_utils.get_shaped_batch


def _shaped_batch(config: Any, batch_sharding: Any = None, is_eval: bool = False) -> dict[str, Any]:
    """Add the shape of a teacher's probabilities; MaxText compiles the step before the first batch."""
    shapes: dict[str, Any] = _original_shaped_batch(config, batch_sharding, is_eval)
    if config.network_teacher and not is_eval:
        shape = (*shapes["targets"].shape, config.vocab_size)
        shapes[token_loss.TAUGHT] = jax.ShapeDtypeStruct(shape, jnp.float32, sharding=batch_sharding)
    return shapes


class _Saver:
    """Saves a checkpoint after the step's numbers are on disk, not before.

    MaxText saves first and records later. After a kill in between, the resumed run would begin after a step
    without a record. So the request is held until the logger has written.
    """

    def __init__(self, session: Session):
        self._session = session
        self._original = checkpointing.maybe_save_checkpoint
        self._held: tuple[Any, ...] | None = None
        self._manager: Any = None
        self.logger: _Logger | None = None

    def after_step(
        self, manager: Any, state: Any, config: Any, iterator: Any, step: int | None = None
    ) -> None:
        self._manager = manager
        if step is not None:
            self._held = (manager, state, config, iterator, int(step))
            return
        if manager is None:
            return
        assert self.logger is not None
        self.logger.write_buffered()
        self.wait()
        self._session.saving(config.steps - 1)
        # MaxText's own last save omits step 0, so a training of one step would end without a model.
        if config.steps - 1 not in checkpointing.all_steps(manager):
            checkpointing.save_checkpoint(manager, config.steps - 1, state, config, iterator, force=True)

    def after_record(self) -> None:
        assert self.logger is not None
        assert self._held is not None
        manager, state, config, iterator, step = self._held
        self._held = None
        self._session.sample(step, functools.partial(_weights, state))
        stop = self._session.must_stop(step)
        due = manager is not None and checkpointing._should_save_checkpoint_at_step(
            manager, step, config, False
        )
        if due or stop:
            self.logger.write_buffered()
        if manager is not None and (due or stop):
            self.wait()
            self._session.saving(step)
            if due:
                self._original(manager, state, config, iterator, step)
            else:
                checkpointing.save_checkpoint(manager, step, state, config, iterator, force=True)
        if stop:
            self.wait()
            raise exceptions.StopTraining("asked to stop")

    def wait(self) -> None:
        """Wait for the save that is running in the background.

        MaxText does not wait for it when it stops early. The next save would wait anyway, and a complete
        checkpoint can be entered with its checksums.
        """
        if self._manager is not None:
            checkpointing.wait_until_finished(self._manager)


def _weights(state: Any) -> dict[str, np.ndarray]:
    tree = train_state_nnx.to_checkpoint_dict(state)["params"]["params"]
    flat = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {"/".join(str(key.key) for key in path): np.asarray(leaf, np.float32) for path, leaf in flat}


class _Logger(metric_logger.MetricLogger):
    """MaxText's logger, with the session's records instead of its log lines."""

    def __init__(
        self, session: Session, saver: _Saver, config: Any, learning_rate_schedule: Any, start_step: int = 0
    ):
        super().__init__(config, learning_rate_schedule, start_step)
        if start_step and config.enable_tensorboard and jax.process_index() == 0:
            # So that TensorBoard discards events after the checkpoint from which the run resumes.
            self.writer = Board(self.writer.logdir, purge_step=start_step)  # type: ignore[has-type]
        self._session, self._saver = session, saver
        self._wandb_failed = False
        saver.logger = self

    def write_setup_info_to_tensorboard(self, params: Any) -> None:
        super().write_setup_info_to_tensorboard(params)
        self._session.begin(self.start_step, max_utils.calculate_num_params_from_pytree(params), self.writer)

    def buffer_and_write_metrics(
        self, metrics: Any, step: int, step_time_delta: Any = None, is_training: bool = True
    ) -> None:
        super().buffer_and_write_metrics(metrics, step, step_time_delta, is_training)
        if is_training:
            self._saver.after_record()

    def write_buffered(self) -> None:
        while self.buffered_metrics:
            self._flush_one_buffered_entry(self.buffered_metrics.pop(0))

    def _accumulate_eval_metrics(self, metrics: Any) -> None:
        super()._accumulate_eval_metrics(metrics)
        summed = np.asarray(metrics["scalar"][losses.FIELDS], np.float64)
        total = self.cumulative_eval_metrics["scalar"]
        total[losses.FIELDS] = summed + total.get(losses.FIELDS, 0.0)

    def write_metrics(self, metrics: Any, step: int, metric_type: str = "train") -> None:
        if metric_type == "running_eval":
            return
        scalars = jax.device_get(metrics["scalar"])
        summed = np.asarray(scalars.pop(losses.FIELDS))
        numbers = {name: float(value) for name, value in scalars.items()}
        numbers |= {
            f"{metric_type}/bits/{name}": value
            for name, value in token_loss.bits_per_measurement(summed).items()
        }
        numbers |= self._session.record(metric_type, step, numbers)
        shown = {"scalar": numbers, "scalars": {}}
        if self.config.enable_tensorboard:
            self.write_metrics_to_tensorboard(shown, step, metric_type)
        if self.config.enable_wandb and jax.process_index() == 0 and not self._wandb_failed:
            try:
                self.write_metrics_to_wandb(shown, step)
            except Exception as error:  # an error of W&B must not end the training
                self._wandb_failed = True
                print(f"warning: logging to W&B stops here ({error})", file=sys.stderr)
