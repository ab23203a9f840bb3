"""The numbers that define the network, and their Hugging Face names.

The architecture is Llama's: pre-norm with RMSNorm, rotary positions, grouped queries, SwiGLU, untied
embeddings. So config.json of an export is a Llama configuration, and any tool that runs Llama runs our model.
"""

from dataclasses import dataclass
from typing import Any

from ping_llm.errors import PingError


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of one network. Hashable: the compiled functions are cached by it."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp_width: int
    vocabulary: int = 272
    #: Longest sequence of the training: beyond it the rotary positions were never seen.
    max_length: int = 1024
    rope_theta: float = 10_000.0
    norm_epsilon: float = 1e-5

    @property
    def parameters(self) -> int:
        attention = self.width * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        layer = attention + 3 * self.width * self.mlp_width + 2 * self.width
        return self.layers * layer + 2 * self.vocabulary * self.width + self.width

    def to_llama(self) -> dict[str, Any]:
        """The keys of a Hugging Face config.json."""
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
        if values.get("model_type") != "llama":
            raise PingError(f"{origin}: model_type is {values.get('model_type')!r}, only 'llama' can be run")
        try:
            return cls(
                layers=values["num_hidden_layers"],
                width=values["hidden_size"],
                heads=values["num_attention_heads"],
                kv_heads=values["num_key_value_heads"],
                head_dim=values["head_dim"],
                mlp_width=values["intermediate_size"],
                vocabulary=values["vocab_size"],
                max_length=values["max_position_embeddings"],
                rope_theta=values["rope_theta"],
                norm_epsilon=values["rms_norm_eps"],
            )
        except KeyError as missing:
            raise PingError(f"{origin}: the key {missing} is missing; export the run again") from None
