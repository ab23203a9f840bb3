"""Every internal of MaxText that the seam relies on, by name: an upgrade that moves one fails here."""

import ast
import inspect
from pathlib import Path

import pytest
from small_training import SMALL, losses

from ping_llm.train import run, settings
from ping_llm.train.run import quiet

with quiet():
    from maxtext.common import checkpointing, data_loader, metric_logger, train_state_nnx
    from maxtext.configs import pyconfig, types
    from maxtext.inference.maxengine import maxengine
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

    from ping_llm.train import maxtext_seam as seam

_CALLED = [
    (pyconfig._initialize_pydantic, ["argv", "config_class"]),
    (pyconfig._load_config, ["config_name"]),
    (pyconfig.HyperParameters.__init__, ["self", "pydantic_config"]),
    (input_pipeline_interface.create_data_iterator, ["config", "mesh"]),
    (checkpointing.maybe_save_checkpoint, ["checkpoint_manager", "state", "config", "data_iterator", "step"]),
    (checkpointing._should_save_checkpoint_at_step, ["checkpoint_manager", "step", "config", "force"]),
    (
        checkpointing.save_checkpoint,
        ["checkpoint_manager", "step", "state", "config", "data_iterator", "force"],
    ),
    (checkpointing.wait_until_finished, ["checkpoint_manager"]),
    (checkpointing.all_steps, ["checkpoint_manager"]),
    (metric_logger.MetricLogger.__init__, ["self", "config", "learning_rate_schedule", "start_step"]),
    (
        metric_logger.MetricLogger.buffer_and_write_metrics,
        ["self", "metrics", "step", "step_time_delta", "is_training"],
    ),
    (metric_logger.MetricLogger._flush_one_buffered_entry, ["self", "entry"]),
    (metric_logger.MetricLogger._accumulate_eval_metrics, ["self", "metrics"]),
    (metric_logger.MetricLogger.write_metrics, ["self", "metrics", "step", "metric_type"]),
    (metric_logger.MetricLogger.write_metrics_to_tensorboard, ["self", "metrics", "step", "metric_type"]),
    (metric_logger.MetricLogger.write_metrics_to_wandb, ["self", "metrics", "step"]),
    (metric_logger.MetricLogger.write_setup_info_to_tensorboard, ["self", "params"]),
    (
        train.loss_fn,
        ["model", "config", "data", "dropout_rng", "params", "sparsity_state", "is_train"],
    ),
    (
        train.train_step,
        ["model", "config", "state_mesh_shardings", "params_shardings", "state", "data", "dropout_rng"],
    ),
    (train.eval_step, ["model", "config", "state", "data", "dropout_rng"]),
    (train.train_loop, ["config", "recorder", "state"]),
    (train_state_nnx.to_checkpoint_dict, ["state"]),
    (max_utils.cross_entropy_with_logits, ["logits", "targets", "z_loss"]),
    (max_utils.calculate_num_params_from_pytree, ["params"]),
    (max_utils.initialize_summary_writer, ["tensorboard_dir", "run_name", "enable_tensorboard"]),
    (sharding.get_input_data_sharding, ["config", "mesh", "rules"]),
    (train_utils.validate_train_config, ["config"]),
    (train_utils.create_training_optimizer, ["config", "model", "mesh"]),
    (maxtext_utils.get_mesh_from_config, ["config", "devices"]),
    (maxtext_utils.calculate_tflops_training_per_device, ["config"]),
    (maxtext_utils.get_shaped_batch, ["config", "batch_sharding", "is_eval"]),
    (model_creation_utils.create_nnx_abstract_model, ["config", "mesh"]),
    (model_creation_utils.get_nnx_create_model_fn, ["config"]),
    (pyconfig.initialize, ["argv"]),
    (exceptions.StopTraining.__init__, ["self", "reason"]),
    (maxengine.MaxEngine.__init__, ["self", "config"]),
    (maxengine.MaxEngine.insert, ["self", "prefix", "decode_state", "slot"]),
    (maxengine.MaxEngine.generate, ["self", "params", "decode_state"]),
    (maxengine.engine_api.ResultTokens, []),
]


@pytest.mark.parametrize(
    ("function", "parameters"), _CALLED, ids=lambda value: getattr(value, "__name__", None)
)
def test_what_we_call_or_replace_takes_what_we_give(function, parameters):
    names = list(inspect.signature(inspect.unwrap(function)).parameters)
    assert names[: len(parameters)] == parameters


def test_every_internal_that_the_seam_uses_is_named_here():
    used = set()
    for tree in (ast.parse(path.read_text()) for path in Path(seam.__file__).parent.glob("*.py")):
        nodes = list(ast.walk(tree))
        imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
        modules = {name.name for node in imports if node.module.startswith("maxtext") for name in node.names}
        used |= {
            f"{node.value.id}.{node.attr}"
            for node in nodes
            if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in modules
        }
    assert len(used) > 20
    here = Path(__file__).read_text()
    assert [name for name in sorted(used) if name not in here] == []


@pytest.mark.parametrize(
    "name",
    [
        *("learning/loss", "learning/grad_norm", "learning/total_weights", "learning/current_learning_rate"),
        *("eval/avg_loss", "eval/total_weights"),
    ],
)
def test_the_numbers_that_we_record_have_these_names(name):
    assert f'"{name}"' in inspect.getsource(train) + inspect.getsource(metric_logger)


@pytest.mark.parametrize(
    "name", ["config", "writer", "start_step", "buffered_metrics", "cumulative_eval_metrics"]
)
def test_what_we_use_of_the_logger(name):
    assert f"self.{name} = " in inspect.getsource(metric_logger.MetricLogger.__init__)


@pytest.mark.parametrize("room", ["session", "run", "estimate", "settings"])
def test_every_key_that_we_read_is_one_of_the_config(room):
    source = (Path(seam.__file__).parents[1] / f"{room}.py").read_text()
    read = {
        node.attr
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("config", "full", "self._config")
    } - {"endswith"}
    known = set(settings.known_keys(seam.NetworkConfig))
    assert len(read) > 2
    assert read - known == set()


@pytest.mark.parametrize(
    ("function", "words", "because"),
    [
        (train_utils.setup_train_loop, "import create_data_iterator", "it is looked up when called"),
        (train.train_loop, "metric_logger.MetricLogger(", "the logger is looked up when called"),
        (train.train_loop, "maxtext_utils.get_shaped_batch(", "so are the shapes of a batch"),
        (train.train_loop, "checkpointing.maybe_save_checkpoint(", "so is the saver, at the end"),
        (train.training_loop_iteration, "checkpointing.maybe_save_checkpoint(", "and after each step"),
        (train.loss_fn, "max_utils.cross_entropy_with_logits(", "the fields' losses are seen there"),
        (train.loss_fn, '"z_loss": total_z_loss', "the fields travel in its place"),
        (train.train_step, '"learning/z_loss": z_loss', "and arrive in the training's metrics"),
        (train.eval_step, '"evaluation/z_loss": z_loss', "and in the evaluation's"),
        (
            train.training_loop_iteration,
            "eval_data_iterator.reset()",
            "an evaluation starts from the beginning",
        ),
        (data_loader.DataLoader.load_next_batch_pre_sharding, "next(self.data_iterator)", "one batch a step"),
        (checkpointing.save_checkpoint, '== "grain"', "no iterator is saved for our dataset type"),
        (metric_logger.MetricLogger.buffer_and_write_metrics, "self.buffered_metrics", "we flush it to save"),
    ],
)
def test_how_maxtext_does_it(function, words, because):
    assert words in inspect.getsource(function), because


def test_a_step_records_after_it_saves():
    """Which is why the saver waits for the logger; were it the other way round, we need not."""
    source = inspect.getsource(train.training_loop_iteration)
    assert source.index("maybe_save_checkpoint(") < source.rindex("buffer_and_write_metrics(")


@pytest.mark.parametrize("kind", [*types.DatasetType, "network"])
def test_every_dataset_type_of_maxtext_is_still_one(kind):
    field = seam.NetworkConfig.model_fields["dataset_type"]
    from pydantic import TypeAdapter

    assert TypeAdapter(field.annotation).validate_python(getattr(kind, "value", kind)) == kind


@pytest.mark.parametrize("kind", types.DatasetType)
def test_with_maxtexts_dataset_types_every_key_is_maxtexts(kind):
    """Our config class gives what MaxText's own gives, its derived keys and checks included."""
    files = ("grain_train_files=files", "hf_path=parquet", "hf_train_files=files", "olmo_index_path=files")
    base = str(Path(pyconfig.__file__).with_name("base.yml"))
    words = ["", base, "run_name=run", f"dataset_type={kind.value}", "log_config=false", *files]

    def keys(config_class):
        with quiet():
            found = pyconfig._initialize_pydantic(words, config_class=config_class).model_dump()
        found.pop("dump_hlo_xla_flags")  # grows with every call
        return found

    theirs, ours = keys(types.MaxTextConfig), keys(seam.NetworkConfig)
    assert {key: ours[key] for key in theirs} == theirs
    assert set(ours) - set(theirs) == set(settings.fields()) - set(theirs)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_maxtexts_synthetic_data_trains(tmp_path):
    outcome = run.train("tiny", [*SMALL, "steps=2", "dataset_type=synthetic"], run=tmp_path / "run")
    assert outcome.state == "finished"
    assert list(losses(tmp_path / "run")) == [0, 1]


def test_maxtexts_data_is_left_to_maxtext():
    """Another dataset type goes to the original, with the session never asked."""
    asked = []

    class Config:
        dataset_type = "synthetic"

    original = input_pipeline_interface.create_data_iterator
    try:
        input_pipeline_interface.create_data_iterator = lambda config, mesh: (
            asked.append(config) or ("train", None)
        )
        assert seam.loop._data_iterators(session=None)(Config, mesh=None) == ("train", None)
    finally:
        input_pipeline_interface.create_data_iterator = original
    assert asked == [Config]


def test_nothing_of_maxtext_stays_replaced():
    before = [train.loss_fn, metric_logger.MetricLogger, checkpointing.maybe_save_checkpoint]
    with seam.loop._replaced(None, seam.loop._Saver(None)):
        assert train.loss_fn is not before[0]
    assert [train.loss_fn, metric_logger.MetricLogger, checkpointing.maybe_save_checkpoint] == before


def test_only_the_seam_imports_maxtext():
    source = Path(seam.__file__).parents[2]
    importers = {
        path.relative_to(source).parent.as_posix()
        for path in source.rglob("*.py")
        if any(
            line.lstrip().startswith(("import maxtext", "from maxtext"))
            for line in path.read_text().splitlines()
        )
    }
    assert importers == {"train/maxtext_seam"}
