"""Random weights of a given size, for tests and benchmarks that do not depend on the predictions."""

import numpy as np

from ping_llm.model.checkpoint import Tensors
from ping_llm.model.config import ModelConfig


def random_tensors(config: ModelConfig, seed: int = 0, scale: float = 1.0) -> Tensors:
    """Draw tensors with Hugging Face names. A larger `scale` gives distributions with lower entropy."""
    generator = np.random.default_rng(seed)

    def matrix(outputs: int, inputs: int, gain: float = 1.0) -> np.ndarray:
        values = generator.standard_normal((outputs, inputs)) * gain / np.sqrt(inputs)
        return np.asarray(values, np.float32)

    width, inner, kv = config.width, config.heads * config.head_dim, config.kv_heads * config.head_dim
    tensors = {
        "model.embed_tokens.weight": matrix(config.vocabulary, width, np.sqrt(width)),
        "model.norm.weight": np.ones(width, np.float32),
        "lm_head.weight": matrix(config.vocabulary, width, scale),
    }
    for index in range(config.layers):
        at = f"model.layers.{index}"
        tensors |= {
            f"{at}.input_layernorm.weight": np.ones(width, np.float32),
            f"{at}.self_attn.q_proj.weight": matrix(inner, width),
            f"{at}.self_attn.k_proj.weight": matrix(kv, width),
            f"{at}.self_attn.v_proj.weight": matrix(kv, width),
            f"{at}.self_attn.o_proj.weight": matrix(width, inner),
            f"{at}.post_attention_layernorm.weight": np.ones(width, np.float32),
            f"{at}.mlp.gate_proj.weight": matrix(config.mlp_width, width),
            f"{at}.mlp.up_proj.weight": matrix(config.mlp_width, width),
            f"{at}.mlp.down_proj.weight": matrix(width, config.mlp_width),
        }
    return tensors
