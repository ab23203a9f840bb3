"""What a model weighs and costs, by MaxText's own reckoning."""

import contextlib
import io
from typing import Any

import jax
from flax import nnx
from maxtext.utils import max_utils, maxtext_utils, model_creation_utils, train_utils


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


def _bytes(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree) if hasattr(leaf, "dtype"))
