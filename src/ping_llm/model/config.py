"""The numbers that define the network, and their Hugging Face names.

The architecture is Llama's: pre-norm with RMSNorm, rotary positions, grouped queries, SwiGLU, untied
embeddings. So config.json of an export is a Llama configuration, and any tool for Llama can run the model.
"""

import math
from dataclasses import dataclass, fields
from typing import Any

from ping_llm.errors import PingError
from ping_llm.tokens.vocab import VOCABULARY_SIZE

#: Keys of a Llama configuration that change the computation, and their supported values; the first is meant
#: if the key is absent.
_FIXED: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "tie_word_embeddings": (False,),
    "rope_scaling": (None,),
    "partial_rotary_factor": (1.0, None),
    "pretraining_tp": (1, None),
    "quantization_config": (None,),
    "architectures": (["LlamaForCausalLM"], None),
}

#: Keys that do not change the forward pass.
_HARMLESS = {
    "model_type",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "torch_dtype",  # the type is read from the file of the weights
    "dtype",
    "transformers_version",
    "initializer_range",
    "attention_dropout",
    "use_cache",
    "_name_or_path",
    "is_decoder",
    "is_encoder_decoder",
    "chunk_size_feed_forward",
    "id2label",
    "label2id",
    "problem_type",
    "return_dict",
    "output_attentions",
    "output_hidden_states",
}

#: Fields of ModelConfig by their key in a Llama configuration.
_SIZES = {
    "num_hidden_layers": "layers",
    "hidden_size": "width",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "head_dim": "head_dim",
    "intermediate_size": "mlp_width",
    "vocab_size": "vocabulary",
    "max_position_embeddings": "max_length",
}


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of one network. Hashable, because compiled functions are cached by it."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp_width: int
    vocabulary: int = 272
    #: Number of tokens of the longest training sequence; later rotary positions are untrained.
    max_length: int = 1024
    rope_theta: float = 10_000.0
    norm_epsilon: float = 1e-5

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type in (int, "int") and (type(value) is not int or value < 1):
                raise PingError(f"{field.name} is {value!r}; it must be an integer of at least 1")
        if self.heads % self.kv_heads:
            raise PingError(f"heads is {self.heads}; it must be a multiple of kv_heads, {self.kv_heads}")
        if self.head_dim % 2:
            raise PingError(f"head_dim is {self.head_dim}; it must be even, since positions rotate halves")
        # Below 1, the frequencies grow with the dimension, and soon overflow float32.
        if not _number(self.rope_theta) or not 1 <= self.rope_theta <= 1e30:
            raise PingError(f"rope_theta is {self.rope_theta!r}; it must be a number from 1 to 1e30")
        if not _number(self.norm_epsilon) or not 0 < self.norm_epsilon < 1:
            raise PingError(f"norm_epsilon is {self.norm_epsilon!r}; it must be a number between 0 and 1")

    @property
    def parameters(self) -> int:
        attention = self.width * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        layer = attention + 3 * self.width * self.mlp_width + 2 * self.width
        return self.layers * layer + 2 * self.vocabulary * self.width + self.width

    def to_llama(self) -> dict[str, Any]:
        """The content of a Hugging Face config.json."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_act": "silu",
            "hidden_size": self.width,
            "intermediate_size": self.mlp_width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocabulary,
            "max_position_embeddings": self.max_length,
            "rms_norm_eps": self.norm_epsilon,
            "rope_theta": self.rope_theta,
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": False,
            # Every context starts from PAD, the only token that is never predicted.
            "bos_token_id": 0,
            "eos_token_id": None,
            "pad_token_id": 0,
            "torch_dtype": "float32",
        }

    @classmethod
    def from_llama(cls, values: dict[str, Any], origin: str) -> "ModelConfig":
        """Read a config.json.

        Raises:
          PingError: a key is missing or unknown, or has an unsupported value.
        """
        if not isinstance(values, dict) or values.get("model_type") != "llama":
            found = values.get("model_type") if isinstance(values, dict) else None
            raise PingError(f"{origin}: model_type is {found!r}, only 'llama' can be run")
        for key, allowed in _FIXED.items():
            if key in values and not any(_same(values[key], value) for value in allowed):
                raise PingError(f"{origin}: {key} is {values[key]!r}, only {allowed[0]!r} can be run")
        known = {*_FIXED, *_HARMLESS, *_SIZES, "rope_theta", "rope_parameters", "rms_norm_eps"}
        if unknown := sorted(set(values) - known):
            raise PingError(
                f"{origin}: the key {unknown[0]} is not known to this program, and may change "
                "what is computed; export the run again, or remove the key"
            )
        try:
            if values["vocab_size"] != VOCABULARY_SIZE:
                raise PingError(f"vocab_size is {values['vocab_size']!r}; it must be {VOCABULARY_SIZE}")
            return cls(
                **{field: values[key] for key, field in _SIZES.items()},
                rope_theta=_rope_theta(values),
                norm_epsilon=values["rms_norm_eps"],
            )
        except KeyError as missing:
            raise PingError(f"{origin}: the key {missing} is missing; export the run again") from None
        except PingError as error:
            raise PingError(f"{origin}: {error}") from None


def _rope_theta(values: dict[str, Any]) -> Any:
    """Read rope_theta from its own key, or from rope_parameters, where transformers 5 writes it."""
    parameters = values.get("rope_parameters")
    if parameters is None:
        return values["rope_theta"]
    if not isinstance(parameters, dict) or not {"rope_theta"} <= set(parameters) <= {
        "rope_theta",
        "rope_type",
    }:
        raise PingError(f"rope_parameters is {parameters!r}; it must hold rope_theta and rope_type only")
    if parameters.get("rope_type", "default") != "default":
        raise PingError(f"rope_type is {parameters['rope_type']!r}, only 'default' can be run")
    theta = parameters["rope_theta"]
    if values.get("rope_theta", theta) != theta:
        raise PingError(f"rope_theta is {values['rope_theta']!r}, but {theta!r} in rope_parameters")
    return theta


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _same(value: Any, other: Any) -> bool:
    """Whether two values are equal, with booleans not equal to numbers."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)
