"""The seam to MaxText 0.2.5: the only module that imports it, with every internal that we rely on.

No file of MaxText is changed. For the time of one training, some of its functions are replaced by ours,
each of which calls the original: the maker of data iterators, the saver of checkpoints, the metric logger,
the loss, and the two steps that carry it out. tests/train/test_seam.py names each internal, so that an
upgrade fails there and says what moved.
"""

import contextlib
import functools
import io
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import absl.logging
import jax
import jax.numpy as jnp
import numpy as np
import omegaconf
import pydantic
import tensorboardX
from flax import nnx
from maxtext.common import checkpointing, metric_logger
from maxtext.configs import pyconfig, types
from maxtext.input_pipeline import input_pipeline_interface
from maxtext.trainers.pre_train import train
from maxtext.utils import (
    exceptions,
    max_utils,
    maxtext_utils,
    model_creation_utils,
    sharding,
    train_utils,
)

from ping_llm.errors import UsageError
from ping_llm.train import emphasis, fields, settings
from ping_llm.train.feed import Feed

DATASET_TYPE = settings.DatasetType.NETWORK

# MaxText's config class with our keys. Its own dataset types stay what they are.
NetworkConfig: type[pydantic.BaseModel] = pydantic.create_model(  # type: ignore[call-overload]
    "NetworkConfig",
    __base__=types.MaxTextConfig,
    dataset_type=(types.DatasetType | settings.DatasetType, types.DatasetType.SYNTHETIC),
    **settings.fields(),
)


class Session(Protocol):
    """Who runs a training: MaxText's loop asks these of us."""

    def feeds(self, config: Any, for_train: Any, for_eval: Any) -> tuple[Feed, Feed | None]:
        """The data of the training and of its evaluation, as arrays of the given shardings."""

    def begin(self, step: int, parameters: int, writer: Any) -> None:
        """The first step is about to be made."""

    def record(self, kind: str, step: int, scalars: dict[str, float]) -> None:
        """A step's numbers are there; `kind` is train or eval."""

    def must_stop(self, step: int) -> bool:
        """Whether to save after this step and end."""

    def saving(self, step: int) -> None:
        """A checkpoint is about to be written; everything before it must be on disk."""


def read_config(path: Path, overrides: Iterable[str], run: Path) -> Any:
    """MaxText's config object for a yml and `key=value` overrides, checked and complete.

    Initialises JAX's devices, so jax.distributed comes before.
    """
    given = settings.split_overrides(overrides)
    merged: dict[str, Any] = dict(pyconfig._load_config(str(path)))
    known = settings.known_keys(NetworkConfig)
    settings.check_keys(merged, known, str(path))
    settings.check_keys(given, known, "on the command line")
    fixed = {
        "run_name": run.name,
        "base_output_directory": str(run.resolve().parent),
        "skip_jax_distributed_system": "true",
        "hardware": given.get("hardware", _hardware()),
        "jax_cache_dir": given.get("jax_cache_dir", str(settings.compilation_cache())),
        "log_config": given.get("log_config", "false"),
    }
    fixed |= settings.per_device_batch_size(merged | given, jax.device_count())
    # JAX keeps programs that took a second to compile. MaxText's setup has many that take less; keeping them
    # too made the compiling of a second launch three times shorter (42 s to 14 s on two crowded cores).
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.05)
    words = [f"{key}={value}" for key, value in (given | fixed).items()]
    try:
        # The public initialize() ends the process on a bad config; this is the same without that.
        return pyconfig.HyperParameters(
            pyconfig._initialize_pydantic(["", str(path), *words], config_class=NetworkConfig)
        )
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or path.name
        raise UsageError(f"{path.name}: {where}: {first['msg']}") from error
    except (ValueError, TypeError, AssertionError, omegaconf.errors.OmegaConfBaseException) as error:
        raise UsageError(f"{path.name}: {error}") from error


def own_keys(path: Path, overrides: Iterable[str]) -> str:
    """A yml that trains the same again: every key that differs from MaxText's base.yml."""
    ours = pyconfig._load_config(str(path))
    ours = omegaconf.OmegaConf.merge(ours, omegaconf.OmegaConf.from_cli(list(overrides)))
    theirs = pyconfig._load_config(str(Path(pyconfig.__file__).with_name("base.yml")))
    kept = {key: value for key, value in ours.items() if key not in theirs or theirs[key] != value}
    kept["base_config"] = "base.yml"
    return omegaconf.OmegaConf.to_yaml(omegaconf.OmegaConf.create(kept))


def _hardware() -> str:
    return {"cpu": "cpu", "gpu": "gpu", "cuda": "gpu", "tpu": "tpu"}.get(jax.default_backend(), "cpu")


def run(config: Any, session: Session) -> None:
    """MaxText's whole training, with our data, records and checkpoints.

    Returns when the training is over or was stopped; the session knows which. MaxText's own handling of
    errors in the data is to return as well, so the caller looks at the feed's `error`.
    """
    _quiet()
    train_utils.validate_train_config(config)
    saver = _Saver(session)
    with _jax_as_maxtext_sets_it(config), _replaced(session, saver):
        try:
            train.train_loop(config, None)
        finally:
            saver.wait()


@contextlib.contextmanager
def _jax_as_maxtext_sets_it(config: Any) -> Iterator[None]:
    """The switches that train.initialize() sets, which takes no config class; put back afterwards."""
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


def _quiet() -> None:
    if os.environ.get("PING_LLM_DEBUG"):
        return
    # What fails also raises, and we say it in one sentence.
    absl.logging.set_verbosity(absl.logging.FATAL)
    for name in ("maxtext", "pyconfig", "orbax"):
        logging.getLogger(name).setLevel(logging.ERROR)


@contextlib.contextmanager
def _replaced(session: Session, saver: "_Saver") -> Iterator[None]:
    replacements = [
        (input_pipeline_interface, "create_data_iterator", _data_iterators(session)),
        (metric_logger, "MetricLogger", functools.partial(_Logger, session, saver)),
        (checkpointing, "maybe_save_checkpoint", saver.after_step),
        (train, "loss_fn", _loss_with_fields),
        (train, "train_step", _train_step_with_fields),
        (train, "eval_step", _eval_step_with_fields),
    ]
    originals = [getattr(module, name) for module, name, _ in replacements]
    for module, name, ours in replacements:
        setattr(module, name, ours)
    try:
        yield
    finally:
        for (module, name, _), original in zip(replacements, originals, strict=True):
            setattr(module, name, original)


def _data_iterators(session: Session) -> Callable[[Any, Any], tuple[Any, Any]]:
    original = input_pipeline_interface.create_data_iterator

    def create(config: Any, mesh: Any) -> tuple[Any, Any]:
        if config.dataset_type != DATASET_TYPE:
            return original(config, mesh)
        for_train = sharding.get_input_data_sharding(config, mesh)
        for_eval = sharding.get_input_data_sharding(config, mesh, rules=config.logical_axis_rules_for_eval)
        return session.feeds(config, for_train, for_eval)

    return create


class _Saver:
    """Saves after a step's numbers are on disk, not before.

    MaxText saves first and records later. Killed in between, the resumed run would begin after a step
    that nobody recorded. So the request is held until the logger has written.
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
        # MaxText's own last save leaves out step 0, so a training of one step would end without a model.
        if config.steps - 1 not in checkpointing.all_steps(manager):
            checkpointing.save_checkpoint(manager, config.steps - 1, state, config, iterator, force=True)

    def after_record(self) -> None:
        assert self.logger is not None
        assert self._held is not None
        manager, state, config, iterator, step = self._held
        self._held = None
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
        """Let the save that goes on in the background finish.

        MaxText leaves it when it stops early. The next save would wait for it anyway, and what is complete
        can be entered with its checksums.
        """
        if self._manager is not None:
            checkpointing.wait_until_finished(self._manager)


class _Logger(metric_logger.MetricLogger):
    """MaxText's logger, with our records instead of its log lines."""

    def __init__(
        self, session: Session, saver: _Saver, config: Any, learning_rate_schedule: Any, start_step: int = 0
    ):
        super().__init__(config, learning_rate_schedule, start_step)
        if start_step and config.enable_tensorboard and jax.process_index() == 0:
            # So that TensorBoard forgets what was made after the checkpoint that we go on from.
            folder = self.writer.logdir  # type: ignore[has-type]
            self.writer.close()  # type: ignore[has-type]
            self.writer = tensorboardX.SummaryWriter(
                folder, purge_step=start_step, filename_suffix=".resumed"
            )
        self._session, self._saver = session, saver
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
        summed = np.asarray(metrics["scalar"][_FIELDS], np.float64)
        total = self.cumulative_eval_metrics["scalar"]
        total[_FIELDS] = summed + total.get(_FIELDS, 0.0)

    def write_metrics(self, metrics: Any, step: int, metric_type: str = "train") -> None:
        if metric_type == "running_eval":
            return
        scalars = jax.device_get(metrics["scalar"])
        summed = np.asarray(scalars.pop(_FIELDS))
        numbers = {name: float(value) for name, value in scalars.items()}
        numbers |= {
            f"{metric_type}/bits/{name}": value for name, value in fields.bits_per_measurement(summed).items()
        }
        self._session.record(metric_type, step, numbers)
        shown = {"scalar": numbers, "scalars": {}}
        if self.config.enable_tensorboard:
            self.write_metrics_to_tensorboard(shown, step, metric_type)
        if self.config.enable_wandb and jax.process_index() == 0:
            self.write_metrics_to_wandb(shown, step)


# The per-field sums travel through MaxText's steps in the place of z_loss, which is the one entry that
# reaches the metrics of both steps untouched, gradient accumulation included.
_FIELDS = "fields"
_original_loss_fn = train.loss_fn
_original_train_step = train.train_step
_original_eval_step = train.eval_step


def _loss_with_fields(model: Any, config: Any, data: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    seen = []
    original = max_utils.cross_entropy_with_logits

    def cross_entropy(logits: Any, targets: Any, z_loss: float = 0.0) -> tuple[Any, Any]:
        losses = original(logits, targets, z_loss=z_loss)
        seen.append((logits, losses))
        if config.dataset_type != DATASET_TYPE or not emphasis.wanted(config):
            return losses
        return emphasis.of_config(config, logits, losses[0], data["targets"]), losses[1]

    max_utils.cross_entropy_with_logits = cross_entropy
    try:
        loss, aux = _original_loss_fn(model, config, data, *args, **kwargs)
    finally:
        max_utils.cross_entropy_with_logits = original
    if config.dataset_type == DATASET_TYPE and seen:
        logits, (total, z_loss) = jax.lax.stop_gradient(seen[0])
        summed = fields.sums(logits, total - z_loss, data["targets"], data["targets_segmentation"] != 0)
    else:
        summed = jnp.zeros(len(fields.NAMES) + 1)
    aux["z_loss"] = jnp.concatenate([jnp.reshape(aux["z_loss"], (1,)), summed])
    return loss, aux


@functools.wraps(_original_train_step)
def _train_step_with_fields(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
    state, metrics = _original_train_step(*args, **kwargs)
    return state, _unpack(metrics, "learning/z_loss")


@functools.wraps(_original_eval_step)
def _eval_step_with_fields(*args: Any, **kwargs: Any) -> Any:
    return _unpack(_original_eval_step(*args, **kwargs), "evaluation/z_loss")


def _unpack(metrics: Any, vehicle: str) -> Any:
    packed = metrics["scalar"][vehicle]
    metrics["scalar"][vehicle], metrics["scalar"][_FIELDS] = packed[0], packed[1:]
    return metrics


def sizes(config: Any) -> dict[str, float]:
    """What a model of this config weighs, from abstract shapes: nothing is computed.

    Returns parameters, weight_bytes, optimizer_bytes (over all devices) and flops a step on one device.
    """
    mesh = maxtext_utils.get_mesh_from_config(config)
    create_model, abstract = model_creation_utils.create_nnx_abstract_model(config, mesh)
    _, optimizer = train_utils.create_training_optimizer(config, abstract, mesh=mesh)

    def create() -> tuple[Any, Any]:
        model = create_model()
        return nnx.state(model, nnx.Param), nnx.state(nnx.Optimizer(model, optimizer, wrt=nnx.Param))

    weights, states = nnx.eval_shape(create)
    with contextlib.redirect_stdout(io.StringIO()):
        teraflops, _, _ = maxtext_utils.calculate_tflops_training_per_device(config)
    return {
        "parameters": max_utils.calculate_num_params_from_pytree(weights),
        "weight_bytes": _bytes(weights),
        "optimizer_bytes": _bytes(states),
        "flops_per_device_step": teraflops * 1e12,
    }


def run_untouched(config: Any, on_step: Callable[[], None]) -> None:
    """MaxText's own training with nothing of ours but a stop-watch, for comparison."""
    original = metric_logger.MetricLogger

    class Watched(original):  # type: ignore[misc,valid-type]
        def write_metrics(self, metrics: Any, step: int, metric_type: str = "train") -> None:
            super().write_metrics(metrics, step, metric_type)
            on_step()

    _quiet()
    metric_logger.MetricLogger = Watched
    try:
        with _jax_as_maxtext_sets_it(config):
            train.train_loop(config, None)
    finally:
        metric_logger.MetricLogger = original


def _bytes(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree) if hasattr(leaf, "dtype"))


def bare_forward(**keys: Any) -> Callable[[np.ndarray, np.ndarray], Any]:
    """MaxText's own llama2 forward on random weights, (inputs, positions) → logits, to measure against."""
    fixed = {
        "run_name": "bare",
        "decoder_block": "llama2",
        "dtype": "float32",
        "attention": "dot_product",
        "enable_checkpointing": False,
        "dataset_type": "synthetic",
        "skip_jax_distributed_system": True,
        "log_config": False,
    }
    base = str(Path(pyconfig.__file__).with_name("base.yml"))
    config = pyconfig.initialize(["", base, *(f"{key}={value}" for key, value in (fixed | keys).items())])
    graph, state = nnx.split(model_creation_utils.get_nnx_create_model_fn(config)())

    @jax.jit
    def forward(state: Any, inputs: Any, positions: Any) -> Any:
        return nnx.merge(graph, state)(
            decoder_input_tokens=inputs,
            decoder_positions=positions,
            decoder_segment_ids=jnp.ones_like(inputs),
            enable_dropout=False,
        )

    return functools.partial(forward, state)
