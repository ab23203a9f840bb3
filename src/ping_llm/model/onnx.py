"""An ONNX graph with a KV cache: the model without JAX, for runtimes on phones, routers and browsers.

Inputs: input_ids int64 [batch, new], and past_key_values.N.key/.value float32 [batch, kv_heads, past,
head_dim]. Outputs: logits float32 [batch, new, vocabulary], and present.N.key/.value, which hold past + new
positions. The first call has a past of length 0 and begins with PAD (0). All rows of a batch have the same
length.

A graph for `edge.py` has two more inputs, and a batch of 1: position_ids int64 [new], and hidden float32
[new, past + new], which is added to the attention scores: 0 where a new token attends to a position, -1e30
where it does not. With these, many continuations of one context are run in parallel as one row, and share its
cache without a copy.
"""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ping_llm.files import whole_file
from ping_llm.model.checkpoint import Tensors
from ping_llm.model.config import ModelConfig

#: Newest versions that all runtimes of the last two years read.
OPSET = 17
IR_VERSION = 8


class _Graph:
    """Nodes and constants of a graph; every method returns the name of its result."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}
        self._count = 0

    def constant(self, value: np.ndarray, name: str | None = None) -> str:
        name = name or f"constant_{len(self.constants)}"
        if name not in self.constants:
            self.constants[name] = numpy_helper.from_array(np.ascontiguousarray(value), name)
        return name

    def ints(self, *values: int) -> str:
        return self.constant(
            np.array(values, np.int64), "ints_" + "_".join(map(str, values)).replace("-", "m")
        )

    def call(self, operator: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        return self.calls(operator, 1, *inputs, names=[output] if output else None, **attributes)[0]

    def calls(
        self, operator: str, outputs: int, *inputs: str, names: list[str] | None = None, **attributes: Any
    ) -> list[str]:
        self._count += 1
        made = names or [f"{operator.lower()}_{self._count}_{index}" for index in range(outputs)]
        self.nodes.append(helper.make_node(operator, list(inputs), made, **attributes))
        return made


def build(
    config: ModelConfig, tensors: Tensors, int8: bool = False, branching: bool = False
) -> onnx.ModelProto:
    """Build the graph with its weights: as floats, or as 8-bit integers with a scale per output.

    `branching` adds the inputs position_ids and hidden.

    Only weights are rounded. Rounding activations too, as in dynamic quantization, cost 0.04 bits per token.
    """
    graph = _Graph()
    kv, group, dim = config.kv_heads, config.heads // config.kv_heads, config.head_dim

    def stored(values: np.ndarray, name: str, axis: int) -> str:
        """Add a matrix; each index along `axis` has its own scale."""
        if not int8:
            return graph.constant(values.astype(np.float32), name)
        scales = np.maximum(np.abs(values).max(axis=1 - axis), 1e-12) / 127
        rounded = np.rint(values / np.expand_dims(scales, 1 - axis)).astype(np.int8)
        return graph.call(
            "DequantizeLinear",
            graph.constant(rounded, name),
            graph.constant(scales.astype(np.float32), f"{name}.scales"),
            axis=axis,
        )

    def weight(name: str) -> str:
        return stored(tensors[f"{name}.weight"].T, name, axis=1)

    def normed(x: str, name: str) -> str:
        square = graph.call("ReduceMean", graph.call("Mul", x, x), axes=[-1], keepdims=1)
        epsilon = graph.constant(np.array(config.norm_epsilon, np.float32), "epsilon")
        root = graph.call("Sqrt", graph.call("Add", square, epsilon))
        return graph.call("Mul", graph.call("Div", x, root), graph.constant(tensors[f"{name}.weight"], name))

    positions, mask = ("position_ids", "hidden") if branching else _places(graph)
    half = dim // 2
    frequencies = (config.rope_theta ** (-np.arange(half) / half)).astype(np.float32)
    angles = graph.call(
        "Mul",
        graph.call("Unsqueeze", graph.call("Cast", positions, to=TensorProto.FLOAT), graph.ints(1)),
        graph.constant(frequencies, "frequencies"),
    )
    cosine, sine = graph.call("Cos", angles), graph.call("Sin", angles)

    def heads(x: str, name: str, count: int) -> str:
        """Project to heads, [batch, count, new, dim]."""
        projected = graph.call("Reshape", graph.call("MatMul", x, weight(name)), graph.ints(0, 0, count, dim))
        return graph.call("Transpose", projected, perm=[0, 2, 1, 3])

    def rotated(x: str) -> str:
        first, second = graph.calls("Split", 2, x, graph.ints(half, half), axis=-1)
        left = graph.call("Sub", graph.call("Mul", first, cosine), graph.call("Mul", second, sine))
        right = graph.call("Add", graph.call("Mul", second, cosine), graph.call("Mul", first, sine))
        return graph.call("Concat", left, right, axis=-1)

    x = graph.call("Gather", stored(tensors["model.embed_tokens.weight"], "embedding", axis=0), "input_ids")
    scale = graph.constant(np.array(1 / np.sqrt(dim), np.float32), "scale")
    for index in range(config.layers):
        at = f"model.layers.{index}"
        h = normed(x, f"{at}.input_layernorm")
        query = graph.call("Mul", rotated(heads(h, f"{at}.self_attn.q_proj", config.heads)), scale)
        query = graph.call("Reshape", query, graph.ints(0, kv, group, -1, dim))
        present = []
        for name, made in (
            ("key", rotated(heads(h, f"{at}.self_attn.k_proj", kv))),
            ("value", heads(h, f"{at}.self_attn.v_proj", kv)),
        ):
            grown = graph.call("Concat", f"past_key_values.{index}.{name}", made, axis=2,
                               output=f"present.{index}.{name}")  # fmt: skip
            present.append(graph.call("Unsqueeze", grown, graph.ints(2)))
        key = graph.call("Transpose", present[0], perm=[0, 1, 2, 4, 3])
        weights = graph.call("Softmax", graph.call("Add", graph.call("MatMul", query, key), mask), axis=-1)
        attended = graph.call("Transpose", graph.call("MatMul", weights, present[1]), perm=[0, 3, 1, 2, 4])
        attended = graph.call("Reshape", attended, graph.ints(0, 0, config.heads * dim))
        x = graph.call("Add", x, graph.call("MatMul", attended, weight(f"{at}.self_attn.o_proj")))
        h = normed(x, f"{at}.post_attention_layernorm")
        gate = graph.call("MatMul", h, weight(f"{at}.mlp.gate_proj"))
        gate = graph.call("Mul", gate, graph.call("Sigmoid", gate))
        up = graph.call("MatMul", h, weight(f"{at}.mlp.up_proj"))
        x = graph.call(
            "Add", x, graph.call("MatMul", graph.call("Mul", gate, up), weight(f"{at}.mlp.down_proj"))
        )
    graph.call("MatMul", normed(x, "model.norm"), weight("lm_head"), output="logits")
    return _model(graph, config, branching)


def _places(graph: _Graph) -> tuple[str, str]:
    """Add positions and mask of a row of new tokens that follow its past."""
    past = graph.call("Gather", graph.call("Shape", "past_key_values.0.key"), graph.ints(2))
    new = graph.call("Gather", graph.call("Shape", "input_ids"), graph.ints(1))
    end = graph.call("Add", past, new)

    def scalar(name: str) -> str:
        return graph.call("Squeeze", name, graph.ints(0))

    one, zero = graph.constant(np.array(1, np.int64), "one"), graph.constant(np.array(0, np.int64), "zero")
    positions = graph.call("Range", scalar(past), scalar(end), one)
    keys_seen = graph.call("Range", zero, scalar(end), one)
    later = graph.call("Greater", graph.call("Unsqueeze", keys_seen, graph.ints(0)),
                       graph.call("Unsqueeze", positions, graph.ints(1)))  # fmt: skip
    hidden = graph.constant(np.array(-1e30, np.float32), "hidden")
    mask = graph.call("Where", later, hidden, graph.constant(np.array(0, np.float32), "shown"))
    return positions, mask


def _model(graph: _Graph, config: ModelConfig, branching: bool) -> onnx.ModelProto:
    def floats(name: str, shape: list[Any]) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    names = [f"{index}.{part}" for index in range(config.layers) for part in ("key", "value")]
    cache = ["batch", config.kv_heads, "past", config.head_dim]
    grown = ["batch", config.kv_heads, "all", config.head_dim]
    inputs = [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "new"])]
    if branching:
        inputs.append(helper.make_tensor_value_info("position_ids", TensorProto.INT64, ["new"]))
        inputs.append(floats("hidden", ["new", "all"]))
    inputs += [floats(f"past_key_values.{name}", cache) for name in names]
    outputs = [floats("logits", ["batch", "new", config.vocabulary])]
    outputs += [floats(f"present.{name}", grown) for name in names]
    made = helper.make_graph(graph.nodes, "ping-llm", inputs, outputs, list(graph.constants.values()))
    model = helper.make_model(
        made, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="ping-llm"
    )
    onnx.checker.check_model(model)
    return model


def write(
    config: ModelConfig, tensors: Tensors, path: Path, *, int8: bool = False, branching: bool = False
) -> None:
    with whole_file(path) as aside:
        aside.write_bytes(build(config, tensors, int8, branching).SerializeToString())


class OnnxSession:
    """A graph in onnxruntime, with its cache."""

    def __init__(self, path: Path, config: ModelConfig):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self._config = config
        self._cache: dict[str, np.ndarray] = {}

    def start(self, batch: int) -> None:
        """Empty the cache, for a batch of `batch` rows."""
        empty = np.zeros((batch, self._config.kv_heads, 0, self._config.head_dim), np.float32)
        for index in range(self._config.layers):
            for part in ("key", "value"):
                self._cache[f"past_key_values.{index}.{part}"] = empty

    def step(self, ids: np.ndarray) -> np.ndarray:
        """Append tokens; return the logits after each new token, [batch, new, vocabulary]."""
        logits, *present = self._session.run(None, {"input_ids": ids.astype(np.int64), **self._cache})
        names = [output.name for output in self._session.get_outputs()][1:]
        for name, value in zip(names, present, strict=True):
            self._cache[name.replace("present", "past_key_values")] = value
        return np.asarray(logits)
