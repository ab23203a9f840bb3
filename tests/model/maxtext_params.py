"""Parameters as MaxText names them, without MaxText."""

import numpy as np


def maxtext_params(layers=(0, 1)):
    generator = np.random.default_rng(0)

    def array(*shape):
        return generator.standard_normal(shape).astype(np.float32)

    params = {
        "token_embedder/embedding": array(272, 32),
        "decoder/decoder_norm/scale": array(32),
        "decoder/logits_dense/kernel": array(32, 272),
    }
    for index in layers:
        at = f"decoder/layers_{index}"
        params |= {
            f"{at}/pre_self_attention_layer_norm/scale": array(32),
            f"{at}/post_self_attention_layer_norm/scale": array(32),
            f"{at}/self_attention/query/kernel": array(32, 4, 8),
            f"{at}/self_attention/key/kernel": array(32, 2, 8),
            f"{at}/self_attention/value/kernel": array(32, 2, 8),
            f"{at}/self_attention/out/kernel": array(4, 8, 32),
            f"{at}/mlp/wi_0/kernel": array(32, 48),
            f"{at}/mlp/wi_1/kernel": array(32, 48),
            f"{at}/mlp/wo/kernel": array(48, 32),
        }
    return params
